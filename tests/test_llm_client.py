"""The client of language models, against a real HTTP server that misbehaves as told, and real kills."""

import asyncio
import base64
import json
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import ScriptedServer, Step, completion, error, says

from earlib.llm import Reply, Request, budget
from earlib.llm.client import Client
from earlib.llm.replies import Cache, key

KEY = "sk-test-0123456789abcdefXYZ"
ELSEWHERE = "http://models.example/v1"  # never asked
SOON = (("retry-after-ms", "20"),)  # so that the library's retries take no time
NEW_NAME = error(400, "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                      "'max_completion_tokens' instead.", "unsupported_parameter", "max_tokens")  # fmt: skip
NO_TEMPERATURE = error(400, "Unsupported value: 'temperature' does not support 0 with this model. Only the default "
                            "(1) value is supported.", "unsupported_value", "temperature")  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """An empty cache, and nothing from the environment."""
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "cache"))
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", *filter(lambda name: name.startswith("EARLIB_LLM_"), os.environ)):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def lines(tmp_path):
    """Reads the kept replies."""
    path = tmp_path / "cache" / "llm" / "replies.jsonl"
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ask_of(text, **kwargs):
    return Request([{"role": "user", "content": text}], **kwargs)


def questions(count):
    return [ask_of(f"q{number}") for number in range(count)]


def texts(replies):
    return [reply.text for reply in replies]


# Asking


def test_replies_come_in_order_and_equal_requests_are_asked_once(lines):
    with ScriptedServer(rule=lambda body: says(body["messages"][-1]["content"], tokens=(7, 3))) as server:
        asker = Client("m", server.url, KEY, concurrency=4)
        replies = asker.ask([ask_of("b"), ask_of("a"), ask_of("b"), ask_of("c", sample=1), ask_of("c")])
        assert texts(replies) == ["b", "a", "b", "c", "c"]
        assert replies[0] == Reply("b", "ok", 7, 3)
        assert len(server.requests) == 4 == len(lines())  # another sample is another call
        assert asker.usage == (4, 0, 28, 12, None)
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
        assert server.requests[0] == {
            "model": "m",
            "messages": [{"role": "user", "content": "b"}],
            "max_tokens": 512,
            "temperature": 0.0,
        }


def test_a_second_run_is_served_from_the_cache_without_key_or_server(monkeypatch):
    with ScriptedServer() as server:
        first = Client("m", server.url).ask(questions(20))
        other = Client("other", server.url).ask(questions(20))
    second = Client("m", server.url, max_calls=0)
    assert second.ask(questions(20)) == [reply._replace(cached=True) for reply in first]
    assert second.usage == (0, 20, 0, 0, None)
    assert not any(reply.cached for reply in other)


def test_concurrency_is_used_and_bounded():
    with ScriptedServer(rule=lambda body: says("x")._replace(delay=0.05)) as server:
        Client("m", server.url, concurrency=5).ask(questions(40))
        assert server.most == 5


def test_model_address_and_key_come_from_the_environment(monkeypatch):
    with ScriptedServer() as server:
        monkeypatch.setenv("EARLIB_LLM_MODEL", "some/model")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url + "/")
        monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
        assert texts(Client().ask(questions(1))) == ["re: q0"]
        assert server.requests[0]["model"] == "some/model"
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_it_works_where_an_event_loop_already_runs():
    async def cell(url):
        return Client("m", url).ask(questions(3))

    with ScriptedServer() as server:
        assert texts(asyncio.run(cell(server.url))) == ["re: q0", "re: q1", "re: q2"]


def test_two_threads_ask_the_same_once():
    with ScriptedServer(rule=lambda body: says("x")._replace(delay=0.1)) as server:
        asker, found = Client("m", server.url), []
        threads = [threading.Thread(target=lambda: found.append(asker.ask(questions(5)))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(server.requests) == 5 and texts(found[0]) == texts(found[1])


def test_an_interrupt_keeps_what_is_under_way(lines):
    with ScriptedServer(rule=lambda body: says("x")._replace(delay=0.1)) as server:
        threading.Timer(0.45, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            Client("m", server.url, concurrency=2).ask(questions(40))
        assert 2 <= len(server.requests) == len(lines()) < 20


def test_progress_shows_tokens_and_cost(capsys):
    with ScriptedServer() as server:
        Client("m", server.url, price=(1.0, 10.0)).ask(questions(12))
        shown = capsys.readouterr().err
        assert "asking m: 12 of 12 replies" in shown and "120 tokens in, 60 out, $0.0007" in shown
        Client("m", server.url).ask(questions(12))
        assert capsys.readouterr().err == ""  # nothing to wait for


# An endpoint that stumbles


@pytest.mark.parametrize(
    "script",
    [
        [error(429, headers=(("retry-after", "1"),))],
        [error(500, headers=SOON), error(503, headers=SOON), error(529, headers=SOON)],
        [error(408, headers=SOON), error(409, headers=SOON)],
        [Step(drop="before")],
        [Step(completion("long enough to be cut"), drop="within")],
        [says("late")._replace(delay=1.0)],
    ],
    ids=["rate limit", "server errors", "conflict", "dropped", "cut", "slow"],
)
def test_the_library_tries_again(script, lines):
    began = time.monotonic()
    with ScriptedServer(script) as server:
        asker = Client("m", server.url, timeout=0.4)
        assert asker.ask(questions(1))[0][:2] == ("re: q0", "ok")
        assert asker.usage.calls == len(server.requests) == len(script) + 1
    if script[0].status == 429:
        assert time.monotonic() - began >= 1  # the time that the endpoint asked for
    assert len(lines()) == 1


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (error(500, "boom", headers=SOON), "Error code: 500 - boom"),
        (error(400, "too long", "context_length_exceeded", "messages"), "too long"),
        (Step(drop="before"), "connection was lost"),
        (says("late")._replace(delay=0.6), "no reply within 0.2 s"),
        (Step(b'{"choices": [{"mess'), "unreadable"),
        (Step(b""), "unreadable"),
        (Step(b"\xff\xfe\x00 no JSON", headers=(("Content-Type", "application/json"),)), "unreadable"),
        (Step(b"<html>Gateway</html>", headers=(("Content-Type", "text/html"),)), "unreadable"),
        (Step(b"null"), "unreadable"),
        (Step(b"[1, 2]"), "unreadable"),
        (Step({"choices": []}), "unreadable"),
        (Step({"choices": [{"message": None}]}), "unreadable"),
        (Step({"choices": "Yes"}), "unreadable"),
        (Step(completion(["a", "list"])), "unreadable"),
        (Step({"error": {"message": "not good"}}), "unreadable"),
    ],
)
def test_a_failure_is_counted_apart_not_kept_and_asked_again(step, reason, lines):
    with ScriptedServer(rule=lambda body: step) as server:
        asker = Client("m", server.url, max_retries=0, timeout=0.2)
        with pytest.warns(UserWarning, match="1 of 1 requests failed"):
            (reply,) = asker.ask(questions(1))
        assert reply.status == "failed" and reply.text == "" and reason in reply.reason
        assert lines() == []
        server.rule = lambda body: says("now")
        assert texts(asker.ask(questions(1))) == ["now"]


def test_one_bad_request_does_not_stop_the_others():
    def rule(body):
        return error(400, "no") if body["messages"][0]["content"] == "q3" else says("fine")

    with ScriptedServer(rule=rule) as server, pytest.warns(UserWarning, match="1 of 20 requests failed"):
        replies = Client("m", server.url).ask(questions(20))
    assert [number for number, reply in enumerate(replies) if reply.status != "ok"] == [3]


@pytest.mark.parametrize(
    ("step", "match"),
    [(error(401), "refuses the key"), (error(403), "refuses the key"), (error(404, "no such model"), "no such model")],
)
def test_what_no_retry_can_mend_stops_the_run_after_one_call(step, match):
    with ScriptedServer(rule=lambda body: step) as server:
        with pytest.raises(ConnectionError, match=match):
            Client("m", server.url).ask(questions(50))
        assert len(server.requests) == 1


def test_an_endpoint_that_is_not_there_is_named():
    with ScriptedServer() as server:
        url = server.url
    with pytest.raises(ConnectionError, match=f"{url} cannot be reached"):
        Client("m", url, max_retries=0).ask(questions(50))


def test_failures_in_a_row_stop_the_run_and_the_next_one_goes_on(lines):
    with ScriptedServer([says("x")] * 30, rule=lambda body: error(500, "down")) as server:
        asker = Client("m", server.url, concurrency=4, max_retries=0)
        with pytest.raises(ConnectionError, match="10 failures in a row, the last: .*down.*30 came and are kept"):
            asker.ask(questions(100))
        assert len(server.requests) < 60 and len(lines()) == 30
        server.rule = lambda body: says("x")
        asked = len(server.requests)
        asker.ask(questions(100))
        assert len(server.requests) == asked + 70


# Models that differ in what they take


def gpt5(body):
    if "max_tokens" in body:
        return NEW_NAME
    return NO_TEMPERATURE if "temperature" in body else says("fine")


def test_what_a_model_refuses_is_learned_once():
    with ScriptedServer(rule=gpt5) as server:
        asker = Client("gpt-5-mini", server.url)
        with pytest.warns(UserWarning, match="refuses a temperature") as told:
            assert all(reply.status == "ok" for reply in asker.ask(questions(40)))
        assert len(server.requests) == 42 and len(told) == 1
        assert server.requests[-1].keys() == {"model", "messages", "max_completion_tokens"}
        assert asker.refused == {"max_tokens", "temperature"}
        asker.ask(questions(50))
        assert len(server.requests) == 52


@pytest.mark.parametrize(
    "refusal",
    [
        error(400, "Unrecognized request argument supplied: temperature"),
        Step({"detail": [{"type": "extra_forbidden", "loc": ["body", "temperature"], "msg": "Extra inputs"}]}, 422),
        Step(b"temperature is not known here", 400, (("Content-Type", "text/plain"),)),
    ],
)
def test_refusals_of_other_servers_are_understood(refusal):
    with ScriptedServer(rule=lambda body: refusal if "temperature" in body else says("fine")) as server:
        with pytest.warns(UserWarning, match="refuses a temperature"):
            assert texts(Client("m", server.url).ask(questions(5))) == ["fine"] * 5
        assert len(server.requests) == 6


def test_a_server_that_knows_the_old_names_alone_sees_no_other():
    with ScriptedServer(rule=lambda body: error(400) if "max_completion_tokens" in body else says("fine")) as server:
        assert texts(Client("m", server.url).ask(questions(5))) == ["fine"] * 5
        assert all(body["max_tokens"] == 512 for body in server.requests)


def test_a_budget_that_is_too_large_teaches_nothing():
    def rule(body):
        limit = body.get("max_tokens") or body["max_completion_tokens"]
        return error(400, "'max_tokens' is too large", None, "max_tokens") if limit > 100 else says("fine")

    with ScriptedServer(rule=rule) as server:
        asker = Client("m", server.url)
        with pytest.warns(UserWarning, match="failed"):
            assert asker.ask([ask_of("a", max_tokens=101)])[0].status == "failed"
        asker.ask([ask_of("a", max_tokens=100)])
        assert server.requests[-1]["max_tokens"] == 100 and not asker.refused


def test_no_temperature_sends_none():
    with ScriptedServer() as server:
        Client("m", server.url).ask([ask_of("a", temperature=None)])
        assert "temperature" not in server.requests[0]


# Replies that are none


def test_an_empty_reply_cut_off_by_its_budget_is_asked_again_with_twice_as_much(lines):
    def rule(body):
        return says("done") if body["max_tokens"] >= 256 else says(None, finish="length", tokens=(10, 64))

    with ScriptedServer(rule=rule) as server:
        (reply,) = Client("m", server.url).ask([ask_of("a", max_tokens=64)])
        assert [body["max_tokens"] for body in server.requests] == [64, 128, 256]
        assert reply == Reply("done", "ok", 30, 64 + 64 + 5)  # all that was paid
        assert [(line["text"], line["completion_tokens"]) for line in lines()] == [("done", 133)]


def test_the_budget_grows_within_bounds_and_an_empty_reply_is_no_answer():
    with ScriptedServer(rule=lambda body: says("  \n", finish="length")) as server:
        (reply,) = Client("m", server.url).ask([ask_of("a", max_tokens=10)])
        assert [body["max_tokens"] for body in server.requests] == [10, 20, 40, 80, 160]
        assert (reply.status, reply.text) == ("empty", "")


def test_a_text_that_was_cut_off_is_a_reply():
    with ScriptedServer(rule=lambda body: says("half an", finish="length")) as server:
        assert Client("m", server.url).ask(questions(1))[0][:2] == ("half an", "ok")
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("step", "status"),
    [
        (says(None, refusal="I will not"), "refused"),
        (says("I ca", finish="content_filter"), "refused"),
        (error(400, "flagged", "content_filter"), "refused"),
        (error(400, "flagged", "invalid_prompt"), "refused"),
        (says(""), "empty"),
        (says(None, finish="tool_calls"), "empty"),
    ],
)
def test_refusals_and_empty_replies_are_counted_apart_and_paid_for_once(step, status):
    with ScriptedServer(rule=lambda body: step) as server:
        assert Client("m", server.url).ask(questions(1))[0].status == status
        again = Client("m", server.url).ask(questions(1))[0]
        assert again.status == status and again.cached
        assert len(server.requests) == 1


# Limits


def test_max_calls_is_never_passed_and_the_next_run_goes_on(lines):
    with ScriptedServer(rule=lambda body: says("x")._replace(delay=0.01)) as server:
        with pytest.raises(budget.LimitReached, match="max_calls=25 .* 25 calls.* 25 came and are kept .*Run again"):
            Client("m", server.url, max_calls=25).ask(questions(60))
        assert len(server.requests) == 25 == len(lines())
        asker = Client("m", server.url, max_calls=35)
        assert len(asker.ask(questions(60))) == 60
        assert asker.usage[:2] == (35, 25)


def test_retries_of_the_library_are_calls():
    with ScriptedServer(rule=lambda body: error(500, headers=SOON)) as server:
        with pytest.raises(budget.LimitReached):
            Client("m", server.url, max_calls=3, max_retries=10).ask(questions(5))
        assert len(server.requests) == 3


def test_max_cost_is_never_passed_and_almost_used():
    price, tokens = (1.0, 10.0), (100, 400)
    with ScriptedServer(rule=lambda body: says("x", tokens=tokens)._replace(delay=0.01)) as server:
        asker = Client("m", server.url, max_cost=0.1, price=price)
        with pytest.raises(budget.LimitReached, match=r"max_cost=0.1 would be passed: a call can cost \$0.0052"):
            asker.ask(questions(100))
        billed = len(server.requests) * (price[0] * tokens[0] + price[1] * tokens[1]) / 1e6
        assert asker.usage.cost == pytest.approx(billed)
        assert 0.1 - 0.0052 < billed <= 0.1  # calls wait for what others turn out not to need


def test_a_call_without_an_answer_may_be_billed_and_counts_in_full():
    with ScriptedServer([says("late")._replace(delay=0.5), Step(b"{"), error(500)]) as server:
        asker = Client("m", server.url, price=(0.0, 1.0), timeout=0.2, max_retries=0)
        with pytest.warns(UserWarning, match="3 of 4 requests failed"):
            asker.ask([ask_of(str(number), max_tokens=100_000) for number in range(4)])
        assert asker.usage.cost == pytest.approx((2 * 100_000 + 5) / 1e6)
        assert len(server.requests) == 4


def test_an_estimate_calls_nothing():
    with ScriptedServer() as server:
        asker = Client("m", server.url, price=(1.0, 10.0))
        asker.ask(questions(3))
        wanted = [*questions(3), ask_of("x" * 400, max_tokens=50), ask_of("x" * 400, max_tokens=50)]
        assert asker.estimate(wanted) == (1, 3, 100, 50, pytest.approx(0.0006))
        assert len(server.requests) == 3
        assert str(asker.estimate(wanted)) == "1 calls, 3 replies from the cache, 100 tokens in, 50 out, $0.0006"
    assert Client("gpt-5-mini").estimate(wanted).cost is not None  # needs no key
    assert Client("gpt-5-mini", ELSEWHERE).estimate(wanted).cost is None  # not OpenAI's own price


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "http://localhost:8000/v1", ELSEWHERE])
def test_what_an_endpoint_costs_is_unknown_unless_it_is_told(url):
    """Also on this machine: a server there may pass the calls on to one that is paid."""
    usage = Client("gpt-5-mini", url).estimate(questions(1))
    assert usage.cost is None and str(usage).endswith("cost unknown")
    free = Client("m", url, price=(0.0, 0.0)).estimate(questions(1))
    assert free.cost == 0 and str(free).endswith("nothing to pay")


@pytest.mark.parametrize("limit", [{"max_calls": 3}, {"max_cost": 0.001}])
def test_limits_come_from_the_environment_unless_they_are_given(limit, monkeypatch):
    ((name, value),) = limit.items()
    with ScriptedServer(rule=lambda body: says("x", tokens=(100, 100))) as server:
        monkeypatch.setenv(f"EARLIB_LLM_{name.upper()}", str(value))
        asker = Client("m", server.url, price=(1.0, 1.0))
        with pytest.raises(budget.LimitReached, match=f"{name}={value} would be passed.*Run again"):
            asker.ask([ask_of(str(number), max_tokens=100) for number in range(20)])
        assert 0 < len(server.requests) < 10
        Client("m", server.url, price=(1.0, 1.0), **{name: 1000}).ask(questions(20))
        asked = len(server.requests)
        with pytest.raises(budget.LimitReached, match=f"{name}=0 "):  # 0 is a limit, not the absence of one
            Client("m", server.url, price=(1.0, 1.0), **{name: 0}).ask([ask_of("new")])
        assert len(server.requests) == asked


@pytest.mark.parametrize("name", ["MAX_CALLS", "MAX_COST"])
@pytest.mark.parametrize("wrong", ["few", "-1", "nan", "inf"])
def test_a_limit_of_the_environment_that_cannot_be_meant_is_named(name, wrong, monkeypatch):
    monkeypatch.setenv(f"EARLIB_LLM_{name}", wrong)
    with pytest.raises(ValueError, match=f"EARLIB_LLM_{name}.*: expected a.* number"):
        Client("m", ELSEWHERE, price=(1, 1))


def test_a_client_gives_up_what_others_hold_back_but_waits_for_its_own(tmp_path, monkeypatch):
    path = tmp_path / "ledger.json"
    monkeypatch.setenv("EARLIB_LLM_LEDGER", str(path))
    bound = sum(budget.worst_case(questions(1)[0], 512)) / 1e6
    with ScriptedServer(rule=lambda body: says("x", tokens=(1, 1))._replace(delay=0.02)) as server:
        asker = Client("m", server.url, max_cost=1.5 * bound, price=(1.0, 1.0), concurrency=4)
        asker.ask(questions(10))  # room for one call at a time: each waits until the one before has ended
        assert server.most == 1 and len(server.requests) == 10
        totals = json.loads(path.read_text())
        assert totals == {"calls": 10, "unpriced": 0, "spent": pytest.approx(20e-6), "held": 0}
        path.write_text(json.dumps(totals | {"held": bound}))  # as a killed process leaves it
        with pytest.raises(budget.LimitReached, match="max_cost"):
            asker.ask([ask_of("new")])
        assert len(server.requests) == 10


def test_processes_that_change_a_ledger_at_the_same_time_lose_no_call(tmp_path):
    path = tmp_path / "ledger.json"
    code = (
        "import sys; from earlib.llm import Request, budget\n"
        "own = budget.Budget(price=(1.0, 1.0), ledger=sys.argv[1]); print(flush=True); sys.stdin.readline()\n"
        "for _ in range(300): own.expect(Request([]), 1); own.before(None); own.settle(3, 0)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    running = [subprocess.Popen([sys.executable, "-c", code, path], **pipes) for _ in range(4)]
    for process in running:
        process.stdout.readline()  # all are ready
    for process in running:
        process.stdin.close()
    assert [process.wait(60) for process in running] == [0] * 4
    for process in running:
        process.stdout.close()
    assert json.loads(path.read_text()) == {"calls": 1200, "unpriced": 0, "spent": pytest.approx(3600e-6), "held": 0}


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200), st.integers(0, 60)), max_size=30))
def test_clients_of_any_price_never_pass_the_cost_of_their_ledger(calls):
    with tempfile.TemporaryDirectory() as folder:
        ledger, most = str(Path(folder) / "ledger.json"), 0.01
        budgets = [budget.Budget(None, most, price, ledger) for price in ((0.0, 0.0), (1.0, 10.0), (5.0, 3.0))]
        for which, tokens_in, tokens_out in calls:
            budgets[which].expect(questions(1)[0], 60)
            try:
                budgets[which].before(None)
            except budget.LimitReached:
                continue
            budgets[which].settle(min(tokens_in, 66), tokens_out)
        spent = [one.usage(0).cost for one in budgets]
        with budget.Ledger(ledger).changing() as totals:
            assert totals["spent"] == pytest.approx(sum(spent)) and totals["held"] == 0
        assert sum(spent) <= most * (1 + 1e-9)


def test_in_estimate_mode_nothing_is_started_or_asked_and_what_would_be_is_noted(tmp_path, monkeypatch, recwarn):
    notes = tmp_path / "notes.jsonl"
    with ScriptedServer() as server:
        Client("m", server.url, KEY).ask(questions(2))
        monkeypatch.setenv("EARLIB_LLM_ESTIMATE", str(notes))
        asker = Client("m", server.url, KEY, price=(1.0, 10.0), start=lambda: pytest.fail("started"))
        replies = asker.ask([*questions(4), *questions(4)])
        assert asker.estimating and len(server.requests) == 2 and asker.usage.calls == 0
        assert texts(replies) == ["re: q0", "re: q1", "", ""] * 2
        assert replies[2] == Reply("", "failed", reason="only estimated")
    told = [json.loads(line) for line in notes.read_text().splitlines()]
    assert [one["cached"] for one in told] == [True, True, False, False]
    assert [one["key"] for one in told] == [key("m", server.url, request) for request in questions(4)]
    estimate = asker.estimate(questions(4))
    assert sum(one["out"] for one in told) == estimate.completion_tokens == 1024
    assert sum(one["cost"] for one in told) == pytest.approx(estimate.cost, rel=0.01)
    assert Client("gpt-5-mini").ask(questions(1))[0].status == "failed"  # needs no key
    assert not recwarn.list and KEY not in notes.read_text()


def test_what_makes_the_endpoint_ready_is_called_when_a_reply_is_missing_and_may_raise():
    begun = []
    with ScriptedServer() as server:
        asker = Client("m", server.url, start=lambda: begun.append(1))
        assert not begun
        asker.ask(questions(3))
        asker.ask(questions(3))
        assert len(begun) == 1

    def start():
        raise RuntimeError("not installed")

    asker = Client("m", server.url, start=start)
    assert texts(asker.ask(questions(3))) == ["re: q0", "re: q1", "re: q2"]
    with pytest.raises(RuntimeError, match="^not installed$"):
        asker.ask(questions(4))


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"model": ""}, "EARLIB_LLM_MODEL"),
        ({"base_url": "127.0.0.1:8000"}, "base_url"),
        ({"base_url": "http://u:hidden@[::1/v1"}, "base_url"),
        ({"base_url": "http://u:hidden@host:port/v1"}, "base_url"),
        ({"base_url": "https://host/v1?key=hidden"}, "base_url"),
        ({"api_key": "hidden key"}, "api_key"),
        ({"api_key": "hidden\u00e9"}, "api_key"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"timeout": float("nan")}, "timeout"),
        ({"max_calls": -1}, "max_calls"),
        ({"max_cost": 1.0, "base_url": ELSEWHERE}, "price"),
        ({"max_cost": float("inf"), "price": (1, 1)}, "max_cost"),
        ({"price": (1, -1)}, "price"),
    ],
)
def test_what_cannot_be_meant_is_refused_without_showing_secrets(wrong, match):
    with pytest.raises(ValueError, match=match) as caught:
        Client(**{"model": "m", "base_url": "http://127.0.0.1:1/v1", **wrong})
    assert "hidden" not in everything_about(caught.value)


@pytest.mark.parametrize(
    ("request_", "match"),
    [
        ("text", "expected a Request"),
        (Request("text"), "list of messages"),
        (Request([]), "list of messages"),
        (Request([{"role": "user"}]), "role and a content"),
        (Request([{"role": "user", "content": None}]), "role and a content"),
        (ask_of("half a pair \ud800"), "role and a content"),
        (ask_of("a", max_tokens=0), "max_tokens"),
        (ask_of("a", temperature=-1), "temperature"),
        (ask_of("a", sample=0.5), "sample"),
    ],
)
def test_a_request_that_cannot_be_sent_is_named(request_, match):
    with pytest.raises(ValueError, match=rf"requests\[1\].*{match}"):
        Client("m", "http://127.0.0.1:1/v1").ask([ask_of("a"), request_])


def test_openai_itself_needs_a_key():
    with pytest.raises(ValueError, match="OPENAI_API_KEY"):
        Client("gpt-5-mini").ask(questions(1))


# Secrets


def everything_about(exception):
    """All that a log or a notebook could print of an exception, variables included; but for those of a test."""
    parts = []
    while exception is not None:
        whole = traceback.TracebackException.from_exception(exception, capture_locals=True)
        parts += [repr(exception), str(exception), repr(vars(exception)), *whole.format_exception_only()]
        parts += [repr(vars_) for frame in whole.stack if frame.filename != __file__ for vars_ in frame.locals.items()]
        exception = exception.__cause__ or exception.__context__
    return "\n".join(parts)


@pytest.mark.parametrize("login", ["", "someone:pass%2Fword99@"])
def test_secrets_are_written_and_shown_nowhere(login, tmp_path, caplog, capfd, recwarn):
    secrets = [KEY]
    if login:
        secrets += ["pass/word99", base64.b64encode(b"someone:pass/word99").decode()]
    told = f"you sent {' and '.join(secrets)}"
    steps = [says(told), error(400, told), error(400, told, "content_filter"), error(500, told), Step(drop="before")]
    steps += [says(None, refusal=told), Step(told.encode()), *[error(status, told) for status in (401, 404)]]
    caplog.set_level(logging.DEBUG)
    shown = []
    with ScriptedServer() as server:
        url = server.url.replace("http://", f"http://{login}")
        for number, step in enumerate(steps):
            asker = Client("m", url, KEY, max_retries=0)
            server.rule = lambda body, step=step: step
            try:
                shown += asker.ask([ask_of(str(number))])
            except ConnectionError as caught:
                shown.append(everything_about(caught))
            shown += [repr(asker), str(vars(asker)), str(asker.usage)]
        sent = server.headers[0]["authorization"]
        server.script = [says("x")]
        with pytest.raises(budget.LimitReached) as limited:
            Client("m", url, KEY, max_calls=1).ask(questions(3))
        shown.append(everything_about(limited.value))
    assert sent == (f"Basic {secrets[-1]}" if login else f"Bearer {KEY}")
    with pytest.raises(ConnectionError) as caught:
        Client("m", url, KEY, max_retries=0).ask([ask_of("nobody there")])
    shown.append(everything_about(caught.value))
    output = capfd.readouterr()
    shown += [output.out, output.err, caplog.text, *[str(warning.message) for warning in recwarn]]
    shown += [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert "you sent [secret]" in shown[0].text  # the endpoint did tell
    for secret in [*secrets, "%2Fword99"] if login else secrets:
        assert not [text for text in shown if secret in str(text)]


# The cache


@given(
    first=st.tuples(st.text(), st.text(), st.text(), st.integers(1, 5), st.sampled_from([None, 0, 1, 0.5]), st.just(0)),
    second=st.tuples(st.text(), st.text(), st.text(), st.integers(1, 5), st.sampled_from([None, 0.0, 1.0]), st.just(1)),
    same=st.booleans(),
)
def test_keys_are_equal_exactly_if_all_that_decides_a_reply_is(first, second, same):
    second = first if same else second
    keys = [key(model, endpoint, ask_of(text, max_tokens=most, temperature=heat, sample=sample))
            for model, endpoint, text, most, heat, sample in (first, second)]  # fmt: skip
    assert (keys[0] == keys[1]) == (first == second)


@given(st.lists(st.text(max_size=3), min_size=1, max_size=4), st.lists(st.text(max_size=3), min_size=1, max_size=4))
def test_keys_tell_messages_apart(first, second):
    made = [Request([{"role": "user", "content": text} for text in messages]) for messages in (first, second)]
    assert (key("m", "e", made[0]) == key("m", "e", made[1])) == (first == second)


def test_keys_do_not_know_how_a_number_is_written():
    assert len({key("m", "e", ask_of("a", temperature=heat)) for heat in (0, 0.0, -0.0, False)}) == 1


@settings(max_examples=60)
@given(kept=st.lists(st.text(), min_size=1, max_size=4), cut=st.integers(1, 10_000))
def test_half_a_line_is_dropped_with_a_warning_and_nothing_else_is_lost(kept, cut):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replies.jsonl"
        first = Cache(path)
        for number, text in enumerate(kept):
            first.put(str(number), Reply(text, "ok"))
        whole = path.read_bytes()
        cut = 1 + cut % len(whole)
        path.write_bytes(whole[: len(whole) - cut])
        remaining = whole[: len(whole) - cut].count(b"\n")
        broken = not whole[: len(whole) - cut].endswith(b"\n") and cut < len(whole)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            second = Cache(path)
            found = [second.get(str(number)) for number in range(len(kept))]
        assert ["half written" in str(warning.message) for warning in told] == [True] * broken
        assert found == [Reply(text, "ok", cached=True) for text in kept[:remaining]] + [None] * (len(kept) - remaining)
        for number in range(remaining, len(kept)):
            second.put(str(number), Reply(kept[number], "ok"))
        assert path.read_bytes() == whole  # as if nothing had happened


@settings(max_examples=40)
@given(st.binary(max_size=60).map(lambda junk: junk.replace(b"\n", b" ")))
def test_lines_that_hold_no_reply_are_left_out_with_a_warning(junk):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replies.jsonl"
        Cache(path).put("a", Reply("x", "ok"))
        path.write_bytes(junk + b"\n" + path.read_bytes() + b'{"key": "b", "status": "failed", "text": ""}\n')
        with pytest.warns(UserWarning, match="2 of 3 lines cannot be read"):
            assert Cache(path).get("a").text == "x"


def test_the_first_reply_of_a_key_counts_for_all(tmp_path):
    first, second = Cache(tmp_path / "r"), Cache(tmp_path / "r")
    assert first.put("a", Reply("one", "ok")) == Reply("one", "ok")
    assert second.put("a", Reply("two", "ok")) == Reply("one", "ok", cached=True)
    second.put("b", Reply("three\u2028\n\ud800", "ok"))
    assert first.get("b") == Cache(first.path).get("b") == Reply("three\u2028\n\ud800", "ok", cached=True)
    assert len(first.path.read_bytes().splitlines()) == 2
    first.path.unlink()
    first.put("c", Reply("four", "ok"))
    assert Cache(first.path).get("c").text == "four"


def test_a_full_disk_stops_the_run_and_leaves_whole_lines(tmp_path, lines):
    with ScriptedServer(rule=lambda body: says("x" * 200)) as server:
        asker = Client("m", server.url, concurrency=2)
        asker.ask(questions(3))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = asker._cache.path.stat().st_size
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30, before[1]))  # the next line does not fit
            with pytest.raises(OSError, match="cannot keep a reply in .*replies.jsonl") as caught:
                asker.ask(questions(30))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "EARLIB_CACHE" in str(caught.value) and len(server.requests) <= 5
        assert asker._cache.path.stat().st_size == size and len(lines()) == 3
        assert len(asker.ask(questions(30))) == 30 == len(lines())


# Kills and several processes

PROCESS = """
import json, os, signal, sys
from pathlib import Path
from earlib.llm import Request
from earlib.llm.client import Client
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:  # a run for each line, in a process of its own that need not import anything again
    order = json.loads(line)
    child = os.fork()
    if not child:
        asked = [Request([{"role": "user", "content": text}]) for text in order["texts"]]
        replies = Client("m", order["url"], concurrency=4, max_retries=0).ask(asked)
        out = Path(order["out"])
        out.with_suffix(".part").write_text(json.dumps({q: reply.text for q, reply in zip(order["texts"], replies)}))
        os.replace(out.with_suffix(".part"), out)
        os._exit(0)
    print(child, flush=True)
"""


@pytest.fixture
def start(tmp_path):
    """Starts a run of some questions in a process of its own; gives its number and the file of its results."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", PROCESS], **pipes) as process:

        def run(url, asked, name):
            out = tmp_path / name
            print(json.dumps({"url": url, "texts": asked, "out": str(out)}), file=process.stdin, flush=True)
            return int(process.stdout.readline()), out

        yield run
        process.stdin.close()


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def is_gone(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_ten_kills_change_nothing_and_repeat_at_most_the_calls_in_flight(start, lines):
    rng, asked, kept = random.Random(0), [f"q{number}" for number in range(80)], set()
    with ScriptedServer(rule=lambda body: says("re: " + body["messages"][0]["content"])._replace(delay=0.04)) as server:

        def check(since):
            seen = [body["messages"][0]["content"] for body in server.requests]
            assert not kept & set(seen[since:])  # what is recorded is not asked again
            return len(seen) - len(set(seen))

        for kill in range(10):
            before, some = len(server.requests), rng.randint(1, 9)
            process, out = start(server.url, asked, f"run{kill}")
            wait_for(lambda most=before + some: len(server.requests) >= most)
            time.sleep(rng.random() * 0.06)
            os.kill(process, signal.SIGKILL)
            wait_for(lambda process=process: is_gone(process))
            assert not out.exists()
            assert check(before) <= 4 * kill
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cache = Cache(Path(os.environ["EARLIB_CACHE"]) / "llm" / "replies.jsonl")
            kept = {text for text in asked if cache.get(key("m", server.url, ask_of(text)))}
        before = len(server.requests)
        _, out = start(server.url, asked, "last")
        wait_for(out.exists)
        assert json.loads(out.read_text()) == {text: f"re: {text}" for text in asked}
        assert check(before) <= 4 * 10
        assert len(kept) >= 10 and len(lines()) == len(asked)


def test_two_processes_share_one_cache_and_agree(start, lines):
    asked = [f"q{number}" for number in range(60)]
    counter = iter(range(1000))  # the server never says the same twice
    with ScriptedServer(rule=lambda body: says(f"{next(counter)}")._replace(delay=0.03)) as server:
        runs = [start(server.url, asked, "one"), start(server.url, asked[::-1], "two")]
        wait_for(lambda: all(out.exists() for _, out in runs))
        one, two = [json.loads(out.read_text()) for _, out in runs]
        assert one == two and len(lines()) == len(asked) == len({line["key"] for line in lines()})
        assert len(server.requests) <= len(asked) + 2 * 4
