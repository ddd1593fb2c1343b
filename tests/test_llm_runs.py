"""Limits and estimates of whole runs: notebooks that ask a scripted endpoint, in kernels of their own."""

import json
import re
import signal

import pytest
from made_notebooks import wait_until, write_notebook
from scripted_server import ScriptedServer, Step, completion, questions

from earlib.harness import runner
from earlib.llm.budget import LimitReached
from earlib.llm.client import Client

PARAMETERS = """\
profile: str = "smoke"  # the profile it runs in
name: str = "asks"  # the id its results get
llm: str = "m"  # language model
questions: int = 6  # how many"""
ASK = """\
from earlib.llm import Request
from earlib.llm.client import Client
client = Client(llm, concurrency=2)
replies = client.ask([Request([{"role": "user", "content": f"q{at}"}], 10) for at in range(questions)])
print([reply.status for reply in replies])"""
KEY = "sk-secret-0123456789abcdef"


@pytest.fixture
def server(root, monkeypatch, tmp_path_factory):
    """Two notebooks, `asks` and `more`, whose questions an endpoint answers; the second repeats those of the first."""
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    write_notebook(root, "asks", ASK, parameters=PARAMETERS)
    write_notebook(root, "more", ASK, parameters=PARAMETERS.replace("asks", "more").replace("= 6", "= 10"))
    with ScriptedServer() as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        yield running


def test_an_estimate_asks_and_leaves_nothing_and_equals_what_is_then_asked(server, root, capsys):
    before = sorted(path for path in root.rglob("*") if path.is_file())
    assert runner.main(["asks", "more", "plain", "--profile", "smoke", "--estimate"]) == 0
    told = capsys.readouterr().out
    assert server.requests == [] and sorted(path for path in root.rglob("*") if path.is_file()) == before
    assert "no language model is asked by plain" in told
    calls = dict(re.findall(r"^(asks|more|in all) +(\d+)", told, re.M))
    assert calls == {"asks": "6", "more": "4", "in all": "10"}  # what both ask counts once
    assert runner.main(["asks", "more", "--profile", "smoke"]) == 0
    assert len(server.requests) == 10 and "language models: 10 calls, cost unknown" in (said := capsys.readouterr().out)
    assert "language models: m without a limit; `make estimate PROFILE=smoke` says what it may cost" in said
    assert runner.main(["asks", "--profile", "smoke", "--estimate"]) == 0
    assert re.search(r"^in all +0 +6 ", capsys.readouterr().out, re.M)  # all are kept now


def test_a_limit_holds_for_all_notebooks_of_a_run_together_and_the_key_is_nowhere(server, root, capsys):
    assert runner.main(["asks", "more", "--profile", "smoke", "--max-calls", "7", "--jobs", "2"]) == 1
    told = capsys.readouterr()
    assert len(server.requests) == 7 and "language models: 7 calls" in told.out and "without a limit" not in told.out
    assert re.search(r"LimitReached: max_calls=7 would be passed.*Run again, with a higher limit", told.err)
    assert runner.main(["asks", "more", "--profile", "smoke", "--max-calls", "16"]) == 0  # goes on where it was
    assert 10 <= len(server.requests) <= 16  # both at once ask the same
    assert KEY not in told.out + told.err + "".join(capsys.readouterr())
    assert all(KEY.encode() not in path.read_bytes() for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("options", [["--max-calls", "-1"], ["--max-cost", "nan"]])
def test_limits_that_mean_nothing_are_refused(server, options, capsys):
    with pytest.raises(SystemExit, match="2"):
        runner.main(["asks", "--profile", "smoke", *options])
    assert options[0] in capsys.readouterr().err


def test_a_ledger_that_cannot_be_read_lets_no_call_through(server, tmp_path, monkeypatch):
    (tmp_path / "ledger.json").write_text("not JSON")
    monkeypatch.setenv("EARLIB_LLM_LEDGER", str(tmp_path / "ledger.json"))
    with pytest.raises(LimitReached, match="EARLIB_LLM_LEDGER: calls cannot be counted in .*remove it"):
        Client("m", server.url, KEY, max_calls=5).ask(questions(1))
    assert server.requests == []


def test_a_restart_does_not_get_the_limit_again(server, root, capsys):
    command = ["asks", "--profile", "smoke", "--max-calls"]
    assert runner.main([*command, "4"]) == 1
    assert "language models: max_calls=4 would be passed" in capsys.readouterr().out
    assert runner.main([*command, "4"]) == 1
    told = "language models: an earlier run, which did not finish, took 4 calls, cost unknown; it counts here"
    assert told in capsys.readouterr().out and len(server.requests) == 4
    assert runner.main([*command, "6"]) == 0  # and then it is finished
    assert told in capsys.readouterr().out and len(server.requests) == 6
    assert not (root / "build" / "ledger-smoke.json").exists()


def test_what_a_run_took_before_it_was_stopped_counts(server, root, start):
    server.rule = lambda body: Step(completion("yes"), delay=0.5)
    write_notebook(root, "plain", ASK, parameters=PARAMETERS.replace("asks", "plain"))
    process = start("--max-calls", "6")
    wait_until(lambda: len(server.requests) >= 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130 and len(server.requests) < 6
    calls = json.loads((root / "build" / "ledger-smoke.json").read_text())["calls"]
    assert 0 <= calls - len(server.requests) <= 1  # a call counts before it is sent


def test_a_run_beside_another_of_its_profile_counts_for_itself(server, root):
    with runner._ledger("smoke") as first, runner._ledger("smoke") as second:
        assert first != second


def test_a_model_that_cannot_be_asked_costs_rows_and_is_told_before(server, root, capsys, monkeypatch):
    server.listed = 401
    write_notebook(root, "plain", "print(llm)", parameters=PARAMETERS.replace("asks", "plain"))
    assert runner.main(["plain", "--profile", "smoke"]) == 0
    told = f"missing: {server.url} refuses the key (401); check OPENAI_API_KEY. Without some values: plain\n"
    assert told in capsys.readouterr().out and server.requests == []
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert runner.main(["plain", "--profile", "smoke"]) == 0
    assert "missing: http://127.0.0.1:9/v1 cannot be reached; is the server running" in capsys.readouterr().out
    assert runner.main(["plain", "--profile", "smoke", "--max-cost", "3"]) == 2
    assert "the price of m at http://127.0.0.1:9/v1 is not known" in capsys.readouterr().err
    assert runner.main(["plain", "--profile", "smoke", "-p", "llm", "none", "--max-cost", "3"]) == 0
    assert "missing" not in capsys.readouterr().out
