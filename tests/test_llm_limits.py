"""Limits of calls and cost, their ledger, and estimates."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import ScriptedServer, Step, ask_of, error, questions, says

from earlib.llm import Reply, budget
from earlib.llm.client import Client
from earlib.llm.replies import reply_key

pytestmark = pytest.mark.usefixtures("stored")
KEY = "sk-test-0123456789abcdefXYZ"
ELSEWHERE = "http://models.example/v1"  # never asked
SOON = (("retry-after-ms", "20"),)  # so that the library's retries take no time


def test_max_calls_is_never_passed_and_the_next_run_goes_on(stored):
    with ScriptedServer(rule=lambda body: says("x")._replace(delay=0.01)) as server:
        with pytest.raises(budget.LimitReached, match="max_calls=25 .* 25 calls.* 25 came and are kept .*Run again"):
            Client("m", server.url, max_calls=25).ask(questions(60))
        assert len(server.requests) == 25 == len(stored())
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
    with ScriptedServer([says("late")._replace(delay=60), Step(b"{"), error(500)]) as server:
        asker = Client("m", server.url, price=(0.0, 1.0), timeout=0.8, max_retries=0)
        with pytest.warns(UserWarning, match="3 of 4 requests failed"):
            asker.ask([ask_of(str(number), max_tokens=100_000) for number in range(4)])
        assert asker.usage.cost == pytest.approx((2 * 100_000 + 5) / 1e6)
        assert len(server.requests) == 4


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
    with pytest.raises(ValueError, match=rf"(?s){name.lower()}.*Input should be .*'{wrong}'"):
        Client("m", ELSEWHERE, price=(1, 1))


def test_a_client_gives_up_what_others_hold_back_but_waits_for_its_own(tmp_path, monkeypatch):
    path = tmp_path / "ledger.json"
    monkeypatch.setenv("EARLIB_LLM_LEDGER", str(path))
    bound = (len("q0") + budget.FRAME + 512) / 1e6
    with ScriptedServer(rule=lambda body: says("x", tokens=(1, 1))._replace(delay=0.02)) as server:
        asker = Client("m", server.url, max_cost=1.5 * bound, price=(1.0, 1.0), concurrency=4)
        asker.ask(questions(10))  # room for one call at a time: each waits until the one before has ended
        assert server.most == 1 and len(server.requests) == 10
        totals = json.loads(path.read_text())
        assert totals == {"calls": 10, "unpriced": 0, "spent": pytest.approx(20e-6), "held": 0, "reached": ""}
        path.write_text(json.dumps(totals | {"held": bound}))  # as a killed process leaves it
        with pytest.raises(budget.LimitReached, match="max_cost"):
            asker.ask([ask_of("new")])
        assert len(server.requests) == 10


def test_processes_that_change_a_ledger_at_the_same_time_lose_no_call(tmp_path):
    path = tmp_path / "ledger.json"
    code = (
        "import sys, httpx; from earlib.llm import Request, budget\ncall = httpx.Request('POST', 'http://x')\n"
        "own = budget.Budget(price=(1.0, 1.0), ledger=sys.argv[1]); print(flush=True); sys.stdin.readline()\n"
        "for _ in range(40): own.expect(Request([]), 1); own.before(call); own.settle(3, 0)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    running = [subprocess.Popen([sys.executable, "-c", code, path], **pipes) for _ in range(3)]
    for process in running:
        process.stdout.readline()  # all are ready
    for process in running:
        process.stdin.close()
    assert [process.wait(60) for process in running] == [0] * 3
    for process in running:
        process.stdout.close()
    expected = {"calls": 120, "unpriced": 0, "spent": pytest.approx(360e-6), "held": 0, "reached": ""}
    assert json.loads(path.read_text()) == expected


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200), st.integers(0, 60)), max_size=30))
def test_clients_of_any_price_never_pass_the_cost_of_their_ledger(calls):
    with tempfile.TemporaryDirectory() as folder:
        ledger, most = str(Path(folder) / "ledger.json"), 0.01
        budgets = [budget.Budget(None, most, price, ledger) for price in ((0.0, 0.0), (1.0, 10.0), (5.0, 3.0))]
        for which, tokens_in, tokens_out in calls:
            budgets[which].expect(questions(1)[0], 60)
            try:
                budgets[which].before(httpx.Request("POST", "http://x"))
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
        wanted = [*questions(3), ask_of("x" * 400, max_tokens=50)]
        replies = asker.ask([*wanted, *wanted])
        assert asker.estimating and len(server.requests) == 2 and asker.usage.calls == 0
        assert [reply.text for reply in replies] == ["re: q0", "re: q1", "", ""] * 2
        assert replies[2] == Reply("", "failed", reason="only estimated")
    told = [json.loads(line) for line in notes.read_text().splitlines()]
    assert [one["cached"] for one in told] == [True, True, False, False]
    assert [one["key"] for one in told] == [reply_key("m", server.url, request) for request in wanted]
    assert (told[3]["in"], told[3]["out"], told[3]["cost"]) == (100, 50, pytest.approx(0.0006))
    assert Client("gpt-5-mini").ask(questions(1))[0].status == "failed"  # needs no key
    Client("gpt-5-mini", ELSEWHERE).ask(questions(1))
    own, elsewhere = (json.loads(line)["cost"] for line in notes.read_text().splitlines()[4:])
    assert own > 0 and elsewhere is None  # not OpenAI's own price
    assert not recwarn.list and KEY not in notes.read_text()


def test_what_makes_the_endpoint_ready_is_called_when_a_reply_is_missing_and_may_raise():
    begun = []
    with ScriptedServer() as server:
        asker = Client("m", server.url, start=lambda: begun.append(1))
        assert not begun
        for _ in range(2):
            asker.ask(questions(3))
        assert len(begun) == 1

    def start():
        raise RuntimeError("not installed")

    asker = Client("m", server.url, start=start)
    assert [reply.text for reply in asker.ask(questions(3))] == ["re: q0", "re: q1", "re: q2"]
    with pytest.raises(RuntimeError, match="^not installed$"):
        asker.ask(questions(4))
