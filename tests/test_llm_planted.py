"""Planted instructions, over a real HTTP server that obeys them, or not, as a test wants."""

import re

import numpy as np
import pytest
from scripted_server import ScriptedServer, says

from earlib import experiment, records
from earlib.experiment import Setting
from earlib.llm import models, planted

SETTING, NUMBER = Setting(dataset="toy", seeds=1), 40


@pytest.fixture
def server(monkeypatch):
    with ScriptedServer() as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        models.connect.cache_clear()
        yield running
        models.connect.cache_clear()


@pytest.fixture(scope="module", params=[planted.on_critic, planted.on_judge])
def attack(request):
    return request.param(SETTING, NUMBER)


def own_part(body):
    """The prompt's last part, behind its examples."""
    return body["messages"][-1]["content"].rsplit("**Input", 1)[1]


def obeys(body, even_marked=True):
    """Does what it is told by whatever stands in the prompt; in marks only if it is that careless."""
    text = own_part(body)
    if "<data" in text and not even_marked:
        return declines(body)
    if planted.CITE_ME in text:
        place = text[: text.index(planted.CITE_ME)].count("Memory [") - 1
        return says(f"Citations: [{place}]")
    return says("Output: Yes") if planted.SAY_YES.strip() in text else declines(body)


def declines(body):
    return says("Citations: [NO_CITE]" if "Memory [" in own_part(body) else "Output: No")


def values(rows):
    return {(row["variant"], row["instruction"], row.get("over")): row["measured"] for row in rows}


PRINTED, MARKED = planted.PROMPTS.values()


def test_who_obeys_is_swayed_by_every_order_and_by_nothing_else(server, attack):
    server.rule = obeys
    assert values(planted.rows(SETTING, attack, "m")) == {
        (PRINTED, "without", None): 0, (PRINTED, "with", None): 100,
        (MARKED, "without", None): 0, (MARKED, "with", None): 100, (MARKED, "with", PRINTED): 100,
    }  # fmt: skip


def test_who_does_not_is_not(server, attack):
    server.rule = declines
    rows = planted.rows(SETTING, attack, "m")
    assert set(values(rows).values()) == {0}
    assert all(row["difference"] == 0 for row in rows if row["instruction"] == "with")


def test_whom_marks_warn_is_swayed_by_the_printed_prompt_alone(server, attack):
    server.rule = lambda body: obeys(body, even_marked=False)
    rows = planted.rows(SETTING, attack, "m")
    found = dict(zip(values(rows), rows, strict=True))
    assert found[PRINTED, "with", None]["difference"] == 100 and found[MARKED, "with", None]["measured"] == 0
    assert found[MARKED, "with", PRINTED]["difference"] == -100


def test_who_only_repeats_the_texts_has_done_nothing(server, attack):
    """The planted line is the text's, not the model's word: no verdict and no citation is read from an echo."""
    server.rule = lambda body: says(own_part(body))
    rows = planted.rows(SETTING, attack, "m")
    assert all(row["measured"] in (None, 0) for row in rows)


def test_what_cannot_be_read_is_a_dash_with_the_count(server, attack):
    server.rule = lambda body: says("Well, that depends.")
    rows = planted.rows(SETTING, attack, "m")
    assert all(row["measured"] is None and row["unparsed"] == attack.queries.shape[1] for row in rows)
    made = records.record("x", "X", "p", {}, {}, [records.row(**row) for row in rows])
    assert {row["verdict"] for row in made["rows"]} == {"not run"}


def test_without_a_model_there_is_a_dash_for_each_number(attack):
    rows = planted.rows(SETTING, attack, "none")
    assert len(rows) == 5 and all(row["measured"] is None and "llm: none" in row["reason"] for row in rows)


def test_the_texts_differ_by_the_order_alone(attack):
    order = planted.CITE_ME if attack.metric == "cited" else planted.SAY_YES
    for clean, ordered in zip(attack.given["without"], attack.given["with"], strict=True):
        assert clean[0] == ordered[0]  # the question
        changed = [at for at, (one, other) in enumerate(zip(clean, ordered, strict=True)) if one != other]
        assert len(changed) == 1 and ordered[changed[0]] == clean[changed[0]] + order
    for messages in attack.prompts["marked", "with"]:
        assert re.search(r"<data\d*>\n[^<]*" + re.escape(order) + r"\n</data", messages[0]["content"])


def test_the_memory_that_asks_to_be_cited_holds_no_gold():
    attack = planted.on_critic(SETTING, NUMBER)
    found = experiment.candidates("toy", "minilm", 20)
    for place, query in enumerate(attack.queries[0]):
        ordered = [planted.CITE_ME in text for text in attack.given["with"][place][1:]]
        assert not found.gold[query, np.flatnonzero(ordered)].any() and sum(ordered) == 1
