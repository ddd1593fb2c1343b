"""The client of language models, against a real HTTP server that fails in prescribed ways."""

import logging
import os
import signal
import threading
import time
import traceback

import pytest
from scripted_server import ScriptedServer, Step, ask_of, completion, error, questions, says

from earlib.llm import Reply, budget, parsing
from earlib.llm.client import Client

KEY = "sk-test-0123456789abcdefXYZ"
pytestmark = pytest.mark.usefixtures("stored")
ELSEWHERE = "http://models.example/v1"  # never asked
SOON = (("retry-after-ms", "20"),)  # so that the library's retries take no time
NEW_NAME = error(400, "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                      "'max_completion_tokens' instead.", "unsupported_parameter", "max_tokens")  # fmt: skip
NO_TEMPERATURE = error(400, "Unsupported value: 'temperature' does not support 0 with this model. Only the default "
                            "(1) value is supported.", "unsupported_value", "temperature")  # fmt: skip


def texts(replies):
    return [reply.text for reply in replies]


# Asking


def test_replies_come_in_order_and_equal_requests_are_asked_once(stored):
    with ScriptedServer(rule=lambda body: says(body["messages"][-1]["content"], tokens=(7, 3))) as server:
        asker = Client("m", server.url, KEY, concurrency=4)
        replies = asker.ask([ask_of("b"), ask_of("a"), ask_of("b"), ask_of("c", sample=1), ask_of("c")])
        assert texts(replies) == ["b", "a", "b", "c", "c"]
        assert replies[0] == Reply("b", "ok", 7, 3)
        assert len(server.requests) == 4 == len(stored())  # another sample is another call
        assert asker.usage == (4, 0, 28, 12, None)
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
        sent = {"model": "m", "max_tokens": 512, "temperature": 0.0}
        assert server.requests[0] == sent | {"messages": [{"role": "user", "content": "b"}]}


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


def test_two_threads_ask_the_same_once():
    with ScriptedServer(rule=lambda body: says("x")._replace(delay=0.1)) as server:
        asker, found = Client("m", server.url), []
        threads = [threading.Thread(target=lambda: found.append(asker.ask(questions(5)))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(server.requests) == 5 and texts(found[0]) == texts(found[1])


def test_an_interrupt_keeps_what_is_under_way(stored):
    def rule(body):
        if len(server.requests) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return says("x")._replace(delay=0.05)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in a background process
    try:
        with ScriptedServer(rule=rule) as server:
            with pytest.raises(KeyboardInterrupt):
                Client("m", server.url, concurrency=2).ask(questions(100))
            assert 4 <= len(server.requests) == len(stored()) < 100
    finally:
        signal.signal(signal.SIGINT, before)


def test_progress_shows_tokens_and_cost(capsys):
    with ScriptedServer() as server:
        Client("m", server.url, price=(1.0, 10.0)).ask(questions(12))
        shown = capsys.readouterr().err
        assert "asking m: 100%" in shown and "12/12" in shown and "120 tokens in, 60 out, $0.0007" in shown
        Client("m", server.url).ask(questions(12))
        assert capsys.readouterr().err == ""  # nothing to wait for


# An endpoint that stumbles


@pytest.mark.parametrize("script", [
    [error(429, headers=(("retry-after", "1"),))],
    [error(500, headers=SOON), error(503, headers=SOON), error(529, headers=SOON)],
    [error(408, headers=SOON), error(409, headers=SOON)],
    [Step(drop="before")], [Step(completion("long enough to be cut"), drop="within")],
    [says("late")._replace(delay=60)],
], ids=["rate limit", "server errors", "conflict", "dropped", "cut", "slow"])  # fmt: skip
def test_the_library_tries_again(script, stored):
    began = time.monotonic()
    with ScriptedServer(script) as server:
        asker = Client("m", server.url, timeout=0.8 if script[0].delay else 60)
        assert asker.ask(questions(1))[0][:2] == ("re: q0", "ok")
        assert asker.usage.calls == len(server.requests) == len(script) + 1
    if script[0].status == 429:
        assert time.monotonic() - began >= 1  # the time that the endpoint asked for
    assert len(stored()) == 1


UNREADABLE = [b'{"choices": [{"mess', b"", b"null", b"[1, 2]", completion(["a", "list"]), {"choices": []},
              {"choices": [{"message": None}]}, {"choices": "Yes"}]  # fmt: skip


@pytest.mark.parametrize(("step", "reason"), [
    (error(500, "boom", headers=SOON), "Error code: 500 - boom"),
    (error(400, "too long", "context_length_exceeded", "messages"), "too long"),
    (Step(drop="before"), "connection was lost"), (says("late")._replace(delay=60), "no reply within 0.2 s"),
    (Step({"error": {"message": "not good"}}), "not good"), (Step({"error": "no quota"}), "no quota"),
    (Step({"detail": "no such thing"}), "no such thing"),
    (Step(b"\xff\xfe\x00 no JSON", headers=(("Content-Type", "application/json"),)), "unreadable"),
    (Step(b"<html>Gateway</html>", headers=(("Content-Type", "text/html"),)), "unreadable"),
    *[(Step(body), "unreadable") for body in UNREADABLE],
])  # fmt: skip
def test_a_failure_is_counted_apart_not_kept_and_asked_again(step, reason, stored):
    with ScriptedServer(rule=lambda body: step) as server:
        asker = Client("m", server.url, max_retries=0, timeout=0.2 if step.delay else 60)
        with pytest.warns(UserWarning, match="1 of 1 requests failed"):
            (reply,) = asker.ask(questions(1))
        assert reply.status == "failed" and reply.text == "" and reason in reply.reason
        assert stored() == []
        server.rule = lambda body: says("now")
        assert texts(Client("m", server.url).ask(questions(1))) == ["now"]


@pytest.mark.parametrize(
    ("status", "match"), [(401, "refuses the key"), (403, "refuses the key"), (404, "no such model")]
)
def test_what_no_retry_can_mend_stops_the_run_after_one_call(status, match):
    with ScriptedServer(rule=lambda body: error(status, "no such model")) as server:
        with pytest.raises(ConnectionError, match=match):
            Client("m", server.url).ask(questions(50))
        assert len(server.requests) == 1


def test_the_tenth_failure_in_a_row_stops_a_run_and_the_ninth_does_not(stored):
    with ScriptedServer([says("x")] * 3, rule=lambda body: error(500, "down")) as server:
        asker = Client("m", server.url, concurrency=1, max_retries=0)
        with pytest.warns(UserWarning, match="9 of 12 requests failed"):
            asker.ask(questions(12))
        with pytest.raises(ConnectionError, match="10 failures in a row, the last: .*down.*of 10 replies 0 came"):
            asker.ask(questions(13))  # three are kept, ten fail


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


@pytest.mark.parametrize("refusal", [
    error(400, "Unrecognized request argument supplied: temperature"),
    Step({"detail": [{"type": "extra_forbidden", "loc": ["body", "temperature"], "msg": "Extra inputs"}]}, 422),
    Step(b"temperature is not known here", 400, (("Content-Type", "text/plain"),)),
])  # fmt: skip
def test_refusals_of_other_servers_are_understood(refusal):
    with ScriptedServer(rule=lambda body: refusal if "temperature" in body else says("fine")) as server:
        with pytest.warns(UserWarning, match="refuses a temperature"):
            assert texts(Client("m", server.url).ask(questions(5))) == ["fine"] * 5
        assert len(server.requests) == 6


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


def test_an_empty_reply_cut_off_by_its_budget_is_asked_again_with_twice_as_much(stored):
    def rule(body):
        return says("done") if body["max_tokens"] >= 256 else says(None, finish="length", tokens=(10, 64))

    with ScriptedServer(rule=rule) as server:
        (reply,) = Client("m", server.url).ask([ask_of("a", max_tokens=64)])
        assert [body["max_tokens"] for body in server.requests] == [64, 128, 256]
        assert reply == Reply("done", "ok", 30, 64 + 64 + 5)  # all that was paid
        assert [(row["text"], row["completion_tokens"]) for row in stored()] == [("done", 133)]


def test_the_budget_grows_within_bounds_and_an_empty_reply_is_no_answer():
    with ScriptedServer(rule=lambda body: says("  \n", finish="length")) as server:
        (reply,) = Client("m", server.url).ask([ask_of("a", max_tokens=10)])
        assert [body["max_tokens"] for body in server.requests] == [10, 20, 40, 80, 160]
        assert (reply.status, reply.text) == ("empty", "")


def test_a_text_that_was_cut_off_is_marked_and_read_as_such():
    with ScriptedServer(rule=lambda body: says("Citations: [3, 1]", finish="length")) as server:
        for _ in range(2):  # the second time from the store
            (reply,) = Client("m", server.url).ask(questions(1))
            assert reply[:2] == ("Citations: [3, 1]", "cut")
            assert reply.read(parsing.read_citations, 13) == (None, "cut off")
            assert reply._replace(status="ok").read(parsing.read_citations, 13) == ((1, 3), "")
            assert reply._replace(status="empty").read(parsing.read_answer) is None
        assert len(server.requests) == 1


@pytest.mark.parametrize(("step", "status"), [
    (says(None, refusal="I will not"), "refused"), (says("I ca", finish="content_filter"), "refused"),
    (error(400, "flagged", "content_filter"), "refused"), (error(400, "flagged", "invalid_prompt"), "refused"),
    (says(""), "empty"), (says(None, finish="tool_calls"), "empty"),
])  # fmt: skip
def test_refusals_and_empty_replies_are_counted_apart_and_paid_for_once(step, status):
    with ScriptedServer(rule=lambda body: step) as server:
        assert Client("m", server.url).ask(questions(1))[0].status == status
        again = Client("m", server.url).ask(questions(1))[0]
        assert again.status == status and again.cached
        assert len(server.requests) == 1


@pytest.mark.parametrize(("match", "wrong"), [
    ("EARLIB_LLM_MODEL", {"model": ""}), ("base_url", {"base_url": "http:127.0.0.1"}),
    ("base_url", {"base_url": "http://u:hidden@host/v1"}), ("base_url", {"base_url": "http://host/v1?key=hidden"}),
    ("concurrency", {"concurrency": 0}), ("timeout", {"timeout": float("nan")}), ("max_calls", {"max_calls": -1}),
    ("max_cost", {"max_cost": float("inf"), "price": (1, 1)}), ("price", {"price": (1, -1)}),
    ("price", {"max_cost": 1.0, "base_url": ELSEWHERE}), ("patience", {"patience": 3}),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused_without_showing_secrets(match, wrong):
    with pytest.raises(ValueError, match=match) as caught:
        Client(**{"model": "m", "base_url": "http://127.0.0.1:1/v1", **wrong})
    assert "hidden" not in str(caught.value)


# Secrets


def test_secrets_are_written_and_shown_nowhere(tmp_path, caplog, capfd, recwarn):
    told = f"you sent {KEY}"
    steps = [says(told), error(400, told), error(400, told, "content_filter"), error(500, told), Step(drop="before")]
    steps += [says(None, refusal=told), Step(told.encode()), *[error(status, told) for status in (401, 404)]]
    caplog.set_level(logging.DEBUG)
    shown = []
    with ScriptedServer() as server:
        for number, step in enumerate(steps):
            asker = Client("m", server.url, KEY, max_retries=0)
            server.rule = lambda body, step=step: step
            try:
                shown += asker.ask([ask_of(str(number))])
            except ConnectionError as caught:
                shown.append("".join(traceback.format_exception(caught)))
            shown += [repr(asker), str(vars(asker)), str(asker.usage)]
        server.script = [says("x")]
        with pytest.raises(budget.LimitReached) as limited:
            Client("m", server.url, KEY, max_calls=1).ask(questions(3))
        shown.append("".join(traceback.format_exception(limited.value)))
    output = capfd.readouterr()
    shown += [output.out, output.err, caplog.text, *[str(warning.message) for warning in recwarn]]
    shown += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert "you sent [secret]" in shown[0].text  # the endpoint did tell
    assert not [text for text in shown if KEY in str(text)]
    assert any(b"you sent [secret]" in text for text in shown if isinstance(text, bytes))  # files were read
