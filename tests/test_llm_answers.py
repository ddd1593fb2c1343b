"""Answers, verdicts and their rows, with a real HTTP server whose replies the tests determine."""

import dataclasses
import re

import numpy as np
import pytest
from scripted_server import ScriptedServer, completion, error, says
from scripted_server import Step as Reaction

from earlib import paper, records
from earlib.core.config import Config
from earlib.experiments import runs, settings
from earlib.experiments.settings import Setting
from earlib.harness import tables
from earlib.llm import answers, grading, models, teaching
from earlib.llm.answers import Panel

SETTING = Setting(dataset="toy", seeds=2)
NUMBER = 40  # of each seed
ASKED = settings.benchmark("toy").asked
DAY = "9 May 2023"
EVALUATED = [settings.split([query.scope for query in ASKED], SETTING, seed)[1] for seed in range(SETTING.seeds)]
BY_SEED = [[ASKED[number] for number in part if ASKED[number].gold][:NUMBER] for part in EVALUATED]
QUESTIONS = [query for part in BY_SEED for query in part]
NAME = "m at 127.0.0.1"  # a model of an endpoint that nobody declared as its publisher's


@pytest.fixture
def server(monkeypatch):
    """An endpoint whose `rule` the test sets; it answers with the question's gold answer, and judges by equality."""
    with ScriptedServer(rule=honest) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        models.connect.cache_clear()
        yield running
        models.connect.cache_clear()


def prompt_of(body):
    return body["messages"][-1]["content"]


def judges(body):
    return "ground-truth" in prompt_of(body)


def question_of(body):
    said = re.findall(r"\*\*Question\*?\*?:\*?\*? ?(.*)", prompt_of(body))[-1]
    return next(query for query in ASKED if query.text == said.strip().removeprefix(f"[{DAY}] "))


def honest(body):
    if not judges(body):
        return says(f"**Answer**: {question_of(body).answer}")
    candidate = re.findall(r"\*\*Response:\*\* (.*)", prompt_of(body))[-1]
    return says("Output: Yes" if question_of(body).answer.rstrip(".") in candidate else "Output: No")


def panel(llm="m"):
    return Panel(llm, "jay", NUMBER)


@pytest.fixture(scope="module")
def reached():
    return {name: runs.answers(SETTING, name) for name in ("retriever", "ceiling")}


def rows_of(reached, *names, given=None, **keys):
    """Rows of all systems, or of these."""
    return answers.answer_rows(
        given or panel(), SETTING, {name: reached[name] for name in names or reached}, "retriever", **keys
    )


def record_of(rows):
    return records.record("x", "X", "p", {}, {}, [records.row(**row) for row in rows])


def by(rows, metric, variant):
    (found,) = [row for row in rows if (row["metric"], row["variant"]) == (metric, variant)]
    return found


def test_right_answers_are_right(server, reached):
    rows = rows_of(reached)
    for metric in ("f1", "j"):
        row = by(rows, metric, "retriever")
        assert (row["measured"], row["n_queries"], row["unparsed"], row["refused"]) == (100, NUMBER, 0, 0)
        judge = "jay at 127.0.0.1" if metric == "j" else None
        assert (row["llm"], row.get("judge"), row["varies"], row["seeds"]) == (NAME, judge, True, 2)
        assert by(rows, metric, "ceiling")["difference"] == 0
    assert {body["model"] for body in server.requests} == {"m", "jay"}


def test_the_questions_are_those_of_every_seed_that_retrieval_is_measured_on(reached):
    assert any(not ASKED[number].gold for part in EVALUATED for number in part)  # so that this shows something
    queries = reached["retriever"].queries
    every = answers.asked_of(Panel("m", "jay"), SETTING, queries)
    assert (every.place == ~np.isnan(reached["retriever"].values[0])).all() and every.place.any(1).all()
    assert list(every.numbers) == list(queries[every.place])
    some = answers.asked_of(panel(), SETTING, queries)
    assert some.questions == QUESTIONS and set(some.numbers) < set(every.numbers)
    assert list(answers.subset(SETTING, 5)) == list(some.numbers[:5])
    assert list(answers.subset(SETTING, 0)) == list(every.numbers[every.seeds == 0])


def test_equal_questions_about_equal_slates_are_asked_once(server, reached):
    asked = answers.asked_of(panel(), SETTING, reached["retriever"].queries)
    answers.generate(panel(), asked, dict.fromkeys(("one", "same"), reached["retriever"].slates[asked.place]))
    assert len(server.requests) == len({query.id for query in QUESTIONS}) < len(QUESTIONS)


def test_a_model_reads_the_slate_in_its_order_each_memory_behind_its_date(server, reached):
    found, memories = settings.candidates_of(settings.Setting(dataset="toy"), 20), settings.benchmark("toy").memories
    number = answers.subset(SETTING, 1)[0]
    expected = [memories[found.index[number, at]] for at in range(5)]
    assert all(one.date for one in expected)
    dated, bare = ([form.format(one) for one in expected] for form in ("- [{0.date}] {0.text}", "- {0.text}"))
    for given, texts in ((panel(), dated), (panel()._replace(dates=False), bare)):
        server.requests.clear()
        rows_of(reached, "retriever", given=given)
        sent = [prompt_of(body) for body in server.requests if not judges(body) and question_of(body) == ASKED[number]]
        assert "\n".join(texts) in sent[0]


def test_abstentions_are_passed_over_and_a_question_follows_its_date(server, reached, monkeypatch):
    """For the model and the judge; the slates stay those of their questions."""
    toy, odd = settings.benchmark("toy"), {BY_SEED[0][0].id, BY_SEED[0][3].id}
    asked = [query._replace(date=DAY) for query in toy.queries]
    asked = tuple(query._replace(abstention=True, gold=()) if query.id in odd else query for query in asked)
    monkeypatch.setattr(settings, "benchmark", lambda *_: dataclasses.replace(toy, queries=asked))
    given = Panel("m", "jay", 8)
    rows = rows_of(reached, given=given)
    rows += answers.judge_rows(given, SETTING, reached, "retriever")
    kept = [[query.id for query in part if query.id not in odd][:8] for part in BY_SEED]
    found = answers.asked_of(given, SETTING, reached["retriever"].queries).questions
    assert [query.id for query in found] == kept[0] + kept[1]
    row = by(rows, "j", "retriever")
    assert (row["measured"], row["n_queries"], row["abstentions"]) == (100, 8, 2)
    found, first = settings.candidates_of(SETTING, 20), next(query for query in ASKED if query.id == kept[0][2])
    for body in server.requests:
        query = question_of(body)
        assert query.id not in odd and f"[{DAY}] {query.text}" in prompt_of(body)
        if not judges(body) and query == first:
            memory = toy.memories[found.index[ASKED.index(query), 0]]
            assert f"[{memory.date}] {memory.text}" in prompt_of(body)
    made = record_of(rows)
    assert "2 abstention questions left out" in tables.caption(made, metric="j", variant="retriever")
    monkeypatch.setattr(settings, "benchmark", lambda *_: toy)
    assert "abstentions" not in record_of(rows_of(reached, given=given))["rows"][0]


def test_the_mean_length_of_an_answer_stands_beside_its_verdict(server, reached):
    server.rule = lambda body: honest(body) if judges(body) else says("word " * 489)
    rows = rows_of(reached)
    assert by(rows, "j", "retriever")["answer_words"] == 489 and by(rows, "f1", "retriever")["answer_words"] is None
    made = record_of(rows)
    assert "( ) mean length of the answers" in tables.caption(made, metric="j")
    shown = tables.table(made, metric="j").to_string()
    assert shown.count("(489 words)") == 2 and "] (489 words)" in shown


def test_f1_is_that_of_the_answers_and_the_constant_answer_is_chosen_in_training(server, reached):
    server.rule = lambda body: honest(body) if judges(body) else says("Answer: the piano")
    rows = rows_of(reached)
    expected = grading.f1(["the piano"] * len(QUESTIONS), [query.answer for query in QUESTIONS])
    assert by(rows, "f1", "retriever")["measured"] == pytest.approx(100 * expected.mean())
    floors = []
    for seed, part in enumerate(BY_SEED):
        learned = settings.split([query.scope for query in ASKED], SETTING, seed)[0]
        constant = grading.constant_answer([ASKED[number].answer for number in learned])
        floors.append(grading.f1([constant] * NUMBER, [query.answer for query in part]).mean())
    assert by(rows, "f1", answers.CONSTANT)["measured"] == pytest.approx(100 * np.mean(floors))


def test_what_cannot_be_read_and_what_is_refused_is_counted_and_never_scored(server, reached):
    first, second = QUESTIONS[0].text, QUESTIONS[1].text

    def rule(body):
        if judges(body) and question_of(body).text == first:
            return says("Perhaps.")
        if judges(body) and question_of(body).text == second:
            return Reaction(completion(None, refusal="I will not."))
        return honest(body)

    server.rule = rule
    rows = rows_of(reached, "retriever")
    row = by(rows, "j", "retriever")
    counts = [[query.text for query in part].count(text) for part in BY_SEED for text in (first, second)]
    assert (row["measured"], row["unparsed"], row["refused"]) == (100, counts[0] + counts[2], counts[1] + counts[3])
    assert (row["n_queries"], row["n_queries_most"]) == (NUMBER - 2, NUMBER - counts[2] - counts[3])
    assert by(rows, "f1", "retriever")["n_queries"] == NUMBER


def test_an_answer_that_cannot_be_read_is_not_judged(server, reached):
    server.rule = lambda body: honest(body) if judges(body) else Reaction(completion(None, refusal="No."))
    rows = rows_of(reached, "retriever")
    for metric in ("f1", "j"):
        row = by(rows, metric, "retriever")
        assert row["measured"] is None and row["reason"] == f"none of {NUMBER} replies of seed 0 could be read"
        assert (row["unparsed"], row["refused"]) == (0, len(QUESTIONS))
    texts = [prompt_of(body) for body in server.requests if judges(body)]
    assert not any("**Response:** \n" in text or "None" in text for text in texts)  # constant and planted ones alone


def test_each_type_of_question_gets_rows_of_its_own(server, reached):
    kinds = sorted({query.category for query in QUESTIONS})
    rows = rows_of(reached, "retriever", categories=kinds)
    judged = [row for row in rows if (row["metric"], row["variant"]) == ("j", "retriever")]
    counts = {row["category"]: row["n_queries"] for row in judged}
    fewest = {k: min(sum(query.category == k for query in part) for part in BY_SEED) for k in kinds}
    assert counts == {"all types": NUMBER, **fewest}


@pytest.mark.parametrize("name", ["none", "smollm2-135m"])
def test_without_a_model_each_number_is_a_dash_with_the_reason(name, reached, tmp_path, monkeypatch):
    monkeypatch.setattr("earlib.paths.ROOT", tmp_path)
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path))
    models.connect.cache_clear()
    given = Panel(name, name, NUMBER)
    rows = rows_of(reached, given=given, store="both")
    rows += answers.judge_rows(given, SETTING, reached, "retriever")
    assert all(row["measured"] is None and row["reason"] and row["varies"] for row in rows)
    assert {row["variant"] for row in rows} == {"retriever", "ceiling", answers.CONSTANT, None}
    made = record_of(rows)
    assert {row["verdict"] for row in made["rows"]} == {"not run"}


@pytest.mark.parametrize("fault", ["the key", "a limit", "no key", "no server", "nothing but failures"])
def test_whatever_keeps_a_reply_away_leaves_a_dash_and_the_reason(fault, server, reached, monkeypatch, recwarn):
    if fault == "the key":
        server.rule, reason = lambda _: error(401), f"{server.url} refuses the key (401); check OPENAI_API_KEY"
    elif fault == "a limit":
        monkeypatch.setenv("EARLIB_LLM_MAX_CALLS", "50")
        reason = "max_calls=50 would be passed: 50 were made"
    elif fault == "no key":
        for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
            monkeypatch.delenv(name, raising=False)
        reason = "api_key: https://api.openai.com/v1 needs one, found none; set OPENAI_API_KEY"
    elif fault == "no server":
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.02)  # seconds; else 20 for each of the functions
        reason = "http://127.0.0.1:9/v1 cannot be reached; is the server running?"
    else:
        server.rule, reason = lambda _: error(422, "no such luck"), "10 failures in a row, the last: "
    rows = rows_of(reached)
    assert all(row["measured"] is None and row["reason"].startswith(reason) for row in rows)
    assert fault == "nothing but failures" or {row["reason"] for row in rows} == {reason}
    if fault in ("the key", "no key", "no server"):  # from the first request on
        rows = answers.judge_rows(panel(), SETTING, reached, "retriever")
        rows += teaching.critic_rows(SETTING, Config(), 4, llm="m")
        assert {(row["measured"], row["reason"]) for row in rows} == {(None, reason)}


def right(rows):
    return [row["measured"] for row in rows if row["metric"] == "judge_right"]


@pytest.mark.parametrize(("verdict", "expected"), [("Yes", [100, 100, 0]), ("No", [0, 0, 100])])
def test_a_judge_that_cannot_judge_is_seen(server, reached, verdict, expected):
    server.rule = lambda body: says(f"Output: {verdict}") if judges(body) else honest(body)
    assert right(answers.judge_rows(panel(), SETTING, reached, "retriever")) == expected
    rows, (yes, _, no) = rows_of(reached), expected
    told = f"the judge is right on {yes} % of planted right answers and {no} % of planted wrong answers, less than 80 %"
    assert {(row["measured"], row["reason"]) for row in rows if row["metric"] == "j"} == {(None, told)}
    assert by(rows, "f1", "retriever")["measured"] == 100 and "difference" in by(rows, "f1", "ceiling")
    assert not any("difference" in row for row in rows if row["metric"] == "j")


def test_a_judge_that_can_is_right_on_all_and_does_not_flip(server, reached):
    (*rows, flips) = answers.judge_rows(panel(), SETTING, reached, "retriever")
    assert right(rows) == [100, 100, 100]
    assert (flips["metric"], flips["measured"], flips["n_queries"]) == ("judge_flips", 0, NUMBER)


def test_a_judge_that_changes_its_mind_is_seen(server, reached):
    said = {}

    def rule(body):
        if not judges(body):
            return honest(body)
        said[prompt_of(body)] = not said.get(prompt_of(body), False)
        return says("Yes" if said[prompt_of(body)] else "No")

    server.rule = rule
    (*_, flips) = answers.judge_rows(panel(), SETTING, {"retriever": reached["retriever"]}, "retriever")
    gold = {query.text for query in BY_SEED[0]}  # right answers equal the planted ones: asked once more, and kept
    assert len(gold) == NUMBER and flips["measured"] > 0


def test_another_models_answers_are_never_held_as_the_papers_own_setting():
    held = {"id": "tab02", "encoder": "contriever"}
    row = records.row("locomo", "contriever", "ear", "j", against=held, measured=50.0, llm="qwen2.5-coder-0.5b")
    assert row["reported_llm"] == paper.LANGUAGE_MODEL and not records.own_setting(row)
    assert records.own_setting({**row, "llm": "gpt-5-mini"})


def test_a_name_is_the_papers_model_only_at_an_endpoint_that_is_declared_as_its_publishers(monkeypatch):
    for variable in ("OPENAI_BASE_URL", "EARLIB_LLM_PUBLISHER"):
        monkeypatch.delenv(variable, raising=False)

    def name(address):
        models.connect.cache_clear()
        if address:
            monkeypatch.setenv("OPENAI_BASE_URL", address)
        return models.row_name("gpt-5-mini"), models.endpoints("gpt-5-mini", "none", "gpt-5-mini")["endpoints"]

    elsewhere = "http://models.example:8000/v1"
    assert name("") == ("gpt-5-mini", {"gpt-5-mini": "api.openai.com"})
    assert name(elsewhere) == ("gpt-5-mini at models.example", {"gpt-5-mini": "models.example"})
    monkeypatch.setenv("EARLIB_LLM_PUBLISHER", "http://models.example:8000/v1/")
    assert name(elsewhere)[0] == "gpt-5-mini"
    assert name("http://other.example/v1")[0] == "gpt-5-mini at other.example"
    assert models.row_name("none") == "none" and models.endpoints("none") == {}
    models.connect.cache_clear()


def test_the_caption_names_the_models_and_counts_what_was_not_read(server, reached):
    (once,) = [query for query in QUESTIONS if QUESTIONS.count(query) == 1][:1]

    def rule(body):
        return says("Perhaps.") if judges(body) and question_of(body) == once else honest(body)

    server.rule = rule
    rows = rows_of(reached, "retriever")
    made = record_of(rows)
    told = tables.caption(made, metric="j", variant="retriever")
    for words in ("language model m at 127.0.0.1, judge jay at 127.0.0.1", f"{NUMBER - 1} to {NUMBER} questions",
                  "1 of the replies of a line could not be read"):  # fmt: skip
        assert words in told
