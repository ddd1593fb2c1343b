"""The store of replies: keys, damage, files of earlier versions, real kills and several processes."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_notebooks import wait_until
from scripted_server import ScriptedServer, ask_of, questions, says

from earlib.llm import Reply, Request
from earlib.llm.client import Client
from earlib.llm.replies import ReplyStore, reply_key

pytestmark = pytest.mark.usefixtures("stored")
OLD_KEY = "09878a79ce33487fa90503bed6329b7d7b0a2602b0c44ac3f0a37dbbcddb7495"


# Keys


@settings(max_examples=30)
@given(
    first=st.tuples(st.text(), st.text(), st.text(), st.integers(1, 5), st.sampled_from([None, 0, 1, 0.5]), st.just(0)),
    second=st.tuples(st.text(), st.text(), st.text(), st.integers(1, 5), st.sampled_from([None, 0.0, 1.0]), st.just(1)),
    same=st.booleans(),
)
def test_keys_are_equal_exactly_if_all_that_determines_a_reply_is(first, second, same):
    second = first if same else second
    keys = [
        reply_key(model, endpoint, ask_of(text, max_tokens=most, temperature=heat, sample=sample))
        for model, endpoint, text, most, heat, sample in (first, second)
    ]
    assert (keys[0] == keys[1]) == (first == second)


@settings(max_examples=30)
@given(st.lists(st.text(max_size=3), min_size=1, max_size=4), st.lists(st.text(max_size=3), min_size=1, max_size=4))
def test_keys_tell_messages_apart(first, second):
    made = [Request([{"role": "user", "content": text} for text in messages]) for messages in (first, second)]
    assert (reply_key("m", "e", made[0]) == reply_key("m", "e", made[1])) == (first == second)


def test_keys_do_not_know_how_a_number_is_written():
    assert len({reply_key("m", "e", ask_of("a", temperature=heat)) for heat in (0, 0.0, -0.0, False)}) == 1


def test_keys_are_those_of_replies_that_were_paid_for():
    key = reply_key("gpt-5-mini", "https://api.openai.com/v1", ask_of("q", max_tokens=64))
    assert key == OLD_KEY


# The file


def test_the_first_reply_of_a_key_counts_for_all(tmp_path, stored):
    path = tmp_path / "r.sqlite"
    first, second = ReplyStore(path), ReplyStore(path)
    assert first.get("a") is None and not path.exists()
    assert first.put("a", Reply("one", "ok"), "m", "e") == Reply("one", "ok")
    assert second.put("a", Reply("two", "ok")) == Reply("one", "ok", cached=True)
    second.put("b", Reply("three\u2028\n\0", "refused", 3, 4))
    assert first.get("b") == ReplyStore(path).get("b") == Reply("three\u2028\n\0", "refused", 3, 4, cached=True)
    assert [tuple(row)[:5] for row in stored(path)][0] == ("a", "m", "e", "ok", "one") and len(stored(path)) == 2


@pytest.mark.parametrize("damage", [b"no database at all", b""], ids=["foreign", "within"])
def test_a_file_that_cannot_be_read_is_named_with_the_next_step(tmp_path, damage):
    store = ReplyStore(tmp_path / "r.sqlite")
    for key in range(40):
        store.put(str(key), Reply("x" * 500, "ok"))
    store._database.close()
    whole = store.path.read_bytes()
    store.path.write_bytes(damage * 1000 or whole[:4096] + bytes(len(whole) - 4096))
    for call in (lambda: ReplyStore(store.path).get("1"), lambda: ReplyStore(store.path).put("new", Reply("x", "ok"))):
        with pytest.raises(OSError, match=r"cannot read or keep a reply in .*r\.sqlite: .*restore the file"):
            call()


def test_a_full_disk_stops_the_run_and_loses_no_reply(stored):
    with ScriptedServer(rule=lambda body: says("x" * 20_000)) as server:
        asker = Client("m", server.url, concurrency=2)
        asker.ask(questions(3))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = max(file.stat().st_size for file in asker._store.path.parent.iterdir())
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30, before[1]))  # the next reply does not fit
            with pytest.raises(OSError, match="cannot read or keep a reply in .*replies.sqlite") as caught:
                asker.ask(questions(30))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "EARLIB_CACHE" in str(caught.value) and len(server.requests) <= 6
        assert len(stored()) == 3 and len(asker.ask(questions(30))) == 30 == len(stored())


RUN = """
import sys
from made_notebooks import wait_until
from scripted_server import questions
from earlib.llm.client import Client
Client("m", sys.argv[1], concurrency=4).ask(questions(30))
"""


def test_a_run_that_was_killed_goes_on_and_asks_only_the_rest(stored):
    def rule(body):  # after eight answers further requests are held, so that the run does not end before its kill
        return says("re: " + body["messages"][0]["content"])._replace(delay=60 if len(server.requests) > 8 else 0)

    with ScriptedServer(rule=rule) as server:
        with subprocess.Popen([sys.executable, "-c", RUN, server.url], cwd=Path(__file__).parent) as process:
            wait_until(lambda: len(server.requests) >= 12)
            process.kill()
        kept = [row["text"] for row in stored()]
        assert 4 <= len(kept) == len(set(kept)) <= 8
        before = len(server.requests)
        server.rule = lambda body: says("re: " + body["messages"][0]["content"])
        replies = Client("m", server.url).ask(questions(30))
        assert [reply.text for reply in replies] == [f"re: q{number}" for number in range(30)]
        asked = [body["messages"][0]["content"] for body in server.requests[before:]]
        assert len(asked) == 30 - len(kept) and not {f"re: {text}" for text in asked} & set(kept)
