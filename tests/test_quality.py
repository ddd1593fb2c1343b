"""Realised quality of citations and what they teach, on the made dialogues; language models over a real server."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import ScriptedServer, Step, completion, says

from earlib import records
from earlib.core.config import Config
from earlib.core.explorer import Exploration
from earlib.experiments import critic_quality, runs, settings
from earlib.experiments.settings import Setting
from earlib.llm import models, teaching

SETTING = Setting(dataset="toy", seeds=2)


def test_citations_of_a_simulated_critic_are_counted_once(monkeypatch, tmp_path):
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path))
    first = critic_quality.teach(FEW, PERFECT, assisted=ASSISTED)
    monkeypatch.setattr(runs, "learners", None)  # any training fails
    again = critic_quality.teach(FEW, PERFECT, assisted=ASSISTED)
    for one, other in zip((*first.quality, *first[1:]), (*again.quality, *again[1:]), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(TypeError):
        critic_quality.teach(FEW, PERFECT)  # of no evaluation questions: another entry


@pytest.mark.parametrize(("precision", "recall", "off"), [(100, 100, 0), (88, 86, 8), (60, 70, 8)])
def test_what_is_realised_is_near_the_targets_and_without_errors_on_them(precision, recall, off):
    """Some hundred citations: three standard deviations are 8 points at most."""
    found = critic_quality.teach(SETTING, Config(precision=precision, recall=recall)).quality
    assert found.precision == pytest.approx([precision] * 2, abs=off)
    assert found.recall == pytest.approx([recall] * 2, abs=off)
    assert np.all((found.no_gold > 0) & (found.no_gold < 100))


def test_a_critic_with_other_labels_is_refused():
    with pytest.raises(ValueError, match="errors = 'shuffled': expected 'slate' or 'persistent'"):
        critic_quality.teach(SETTING, Config(errors="shuffled"))


FLAGS = st.lists(st.booleans(), min_size=3, max_size=3)


@given(st.lists(st.tuples(FLAGS, FLAGS, st.booleans()), min_size=1, max_size=8))
def test_the_quality_of_citations_by_brute_force(shown):
    """Slates of three, each with its gold, what was cited and whether that could be read."""
    slates = torch.arange(3 * len(shown)).view(1, 1, -1, 3)
    gold = torch.tensor([[sum((is_gold for is_gold, _, _ in shown), [])]])
    citations = torch.tensor([[[[1 if one else -1 for one in cited] for _, cited, _ in shown]]])
    readable = torch.tensor([[[[read] * 3 for _, _, read in shown]]])
    counts = critic_quality._counted(gold, Exploration(slates, citations, readable, None, None))
    found = critic_quality._quality(counts[None].astype(float))
    pairs = [pair for is_gold, cited, read in shown if read for pair in zip(is_gold, cited, strict=True)]
    whole = [is_gold for is_gold, _, read in shown if read]
    for value, chosen, among in (
        (found.precision, sum(g and c for g, c in pairs), sum(c for _, c in pairs)),
        (found.recall, sum(g and c for g, c in pairs), sum(g for g, _ in pairs)),
        (found.base_rate, sum(g for g, _ in pairs), len(pairs)),
        (found.no_gold, sum(not any(g) for g in whole), len(whole)),
        (found.unparsed, len(shown) - len(whole), len(shown)),
    ):
        assert np.isnan(value[0]) if not among else value[0] == pytest.approx(100 * chosen / among)


# -- a language model as the critic

FEW = Setting(dataset="toy", seeds=1, train_queries=8)
ASSISTED = 4
GOLD = {}  # of each question: the texts of its gold turns
TEXTS = {one.id: one.text for one in settings.benchmark("toy").memories}
for one in settings.benchmark("toy").asked:
    GOLD.setdefault(one.text, set()).update(TEXTS[turn] for turn in one.gold)


def perfect(body):
    """Cites exactly the gold memories, as the simulated critic of precision and recall 100 does."""
    prompt = body["messages"][-1]["content"].split("**Input**")[-1]
    question = re.search(r"User Query: (.*)", prompt)[1]
    shown = re.findall(r"- Memory \[(\d+)\]:\n (.*)", prompt)
    return says(f"Citations: [{', '.join(at for at, text in shown if text in GOLD[question]) or 'NO_CITE'}]")


@pytest.fixture
def server(monkeypatch):
    with ScriptedServer(rule=perfect) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        models.connect.cache_clear()
        yield running
        models.connect.cache_clear()


PERFECT = Config(precision=100, recall=100)


def by_metric(rows):
    return {(row["variant"], row["metric"]): row for row in rows}


def test_a_model_that_cites_all_gold_teaches_what_the_simulated_critic_without_errors_teaches(server):
    simulated = critic_quality.teach(FEW, PERFECT, None, ASSISTED)
    model = critic_quality.teach(FEW, PERFECT, teaching.llm_critic(FEW, PERFECT, "m"), ASSISTED)
    for one, other in zip(model.quality, simulated.quality, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(model.queries, simulated.queries)
    np.testing.assert_array_equal(model.adapter, simulated.adapter)
    np.testing.assert_array_equal(model.assisted, simulated.assisted)
    assert model.assisted.shape[-1] == ASSISTED and (model.quality.precision, model.quality.unparsed) == (100, 0)
    cited_less = critic_quality.teach(FEW, Config(precision=100, recall=30), None, ASSISTED)
    assert not np.array_equal(cited_less.adapter, model.adapter)  # otherwise the comparison would prove nothing


def test_a_call_is_timed_anew_and_by_no_stored_reply(server):
    before = len(server.requests)
    for _ in range(2):
        seconds = teaching.seconds_a_call(FEW, PERFECT, "m", [0, 1, 2])
        assert seconds.shape == (3,) and (seconds > 0).all()
    assert len(server.requests) - before == 6


def test_the_rows_of_a_model_and_of_a_simulated_critic(server):
    model = by_metric(teaching.critic_rows(FEW, PERFECT, ASSISTED, llm="m", critic="m"))
    simulated = by_metric(teaching.critic_rows(FEW, PERFECT, ASSISTED, critic="simulated"))
    assert model.keys() == simulated.keys() and len(model) == len(critic_quality.Quality._fields) + 2
    for key, row in model.items():
        other = simulated[key]
        assert row["measured"] == other["measured"] and row.get("difference") == other.get("difference")
        assert (row["llm"], row["varies"], row["unparsed"], row["refused"]) == ("m at 127.0.0.1", True, 0, 0)
        assert not row.get("sees_gold") and not other.get("llm") and not other.get("varies")
    assert [key for key, row in simulated.items() if row.get("sees_gold")] == [("ear", "recall@5")]
    static = runs.answers(FEW, "retriever")
    for variant, asked in (("ear_adapter", static.queries.shape[1]), ("ear", ASSISTED)):
        row = model[variant, "recall@5"]
        assert row["n_queries"] + row["excluded"] == asked
        baseline = 100 * np.nanmean(static.values[0, 0, :asked])
        assert row["measured"] - row["difference"] == pytest.approx(baseline)
    assert model["ear_adapter", "precision"]["n_queries"] == 8


def test_what_a_model_says_that_cannot_be_read_is_counted_and_measures_nothing(server):
    server.rule = lambda body: says("I like them all.")
    rows = by_metric(teaching.critic_rows(FEW, PERFECT, ASSISTED, llm="m", critic="m"))
    assert rows["ear_adapter", "unparsed"]["measured"] == 100
    for metric in ("precision", "recall", "base_rate", "no_gold"):
        assert rows["ear_adapter", metric]["measured"] is None
        assert rows["ear_adapter", metric]["reason"] == critic_quality.UNREAD
    slates = 8 * 4 + ASSISTED * 3  # T in training, T - 1 at test time
    assert {(row["unparsed"], row["refused"]) for row in rows.values()} == {(slates, 0)}
    assert len(server.requests) == slates  # every slate again
    server.rule = lambda body: Step(completion(None, refusal="No."))
    rows = teaching.critic_rows(FEW, PERFECT, ASSISTED, llm="other", critic="other")
    assert {(row["unparsed"], row["refused"]) for row in rows} == {(0, slates)}


def test_nothing_learned_from_a_model_that_cites_everything_counts(server):
    server.rule = lambda body: says("Citations: [0, 1, 2, 3, 4]")
    rows = by_metric(teaching.critic_rows(FEW, PERFECT, ASSISTED, llm="m", critic="m"))
    precision, chance = (rows["ear_adapter", metric]["measured"] for metric in ("precision", "base_rate"))
    assert precision == chance and rows["ear_adapter", "recall"]["measured"] == 100
    told = f"of what the critic cites {precision:.1f} % is gold, of all that it is shown {chance:.1f} %"
    for variant in ("ear_adapter", "ear"):
        row = rows[variant, "recall@5"]
        assert (row["measured"], row["reason"]) == (None, told) and "difference" not in row


def test_without_a_model_there_is_a_dash_for_each_number():
    rows = teaching.critic_rows(FEW, PERFECT, ASSISTED, llm="none", critic="none")
    assert len(rows) == len(critic_quality.Quality._fields) + 2
    made = records.record("x", "X", "p", {}, {}, [records.row(**row) for row in rows])
    assert {row["verdict"] for row in made["rows"]} == {"not run"}


def test_an_estimate_counts_a_call_for_each_slate(server, tmp_path, monkeypatch):
    monkeypatch.setenv("EARLIB_LLM_ESTIMATE", str(tmp_path / "notes"))
    models.connect.cache_clear()
    teaching.critic_rows(FEW, PERFECT, ASSISTED, llm="m", critic="m")
    assert server.requests == [] and len((tmp_path / "notes").read_text().splitlines()) == 8 * 4 + ASSISTED * 3
