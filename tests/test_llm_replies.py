"""The store of replies: keys, damage, files of earlier versions, real kills and several processes."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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


def test_threads_share_a_store(tmp_path):
    store, found = ReplyStore(tmp_path / "r.sqlite"), []
    threads = [
        threading.Thread(target=lambda at=at: found.append(store.put("a", Reply(str(at), "ok")).text))
        for at in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and set(found) == {store.get("a").text}


@pytest.mark.parametrize("damage", [b"no database at all", b""], ids=["foreign", "within"])
def test_a_file_that_cannot_be_read_is_named_with_the_next_step(tmp_path, damage):
    store = ReplyStore(tmp_path / "r.sqlite")
    for key in range(40):
        store.put(str(key), Reply("x" * 500, "ok"))
    store._database.close()
    whole = store.path.read_bytes()
    store.path.write_bytes(damage * 1000 or whole[:4096] + bytes(len(whole) - 4096))
    with pytest.raises(OSError, match=r"cannot read a reply in .*r\.sqlite: .*restore the file, or move it away"):
        ReplyStore(store.path).get("1")
    with pytest.raises(OSError, match="cannot keep a reply in .*r.sqlite"):
        ReplyStore(store.path).put("new", Reply("x", "ok"))


def test_a_store_in_a_folder_that_cannot_be_written_is_read(tmp_path, monkeypatch):
    store = ReplyStore(tmp_path / "r.sqlite")
    store.put("a", Reply("x", "ok"))
    store._database.close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert ReplyStore(store.path).get("a").text == "x"
    with pytest.raises(OSError, match="cannot keep a reply .*set EARLIB_CACHE to another folder"):
        ReplyStore(store.path).put("b", Reply("x", "ok"))


def test_a_full_disk_stops_the_run_and_loses_no_reply(stored):
    with ScriptedServer(rule=lambda body: says("x" * 20_000)) as server:
        asker = Client("m", server.url, concurrency=2)
        asker.ask(questions(3))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = max(file.stat().st_size for file in asker._store.path.parent.iterdir())
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30, before[1]))  # the next reply does not fit
            with pytest.raises(OSError, match="cannot keep a reply in .*replies.sqlite") as caught:
                asker.ask(questions(30))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "EARLIB_CACHE" in str(caught.value) and len(server.requests) <= 6
        assert len(stored()) == 3 and len(asker.ask(questions(30))) == 30 == len(stored())


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
        os.environ["EARLIB_CACHE"] = order["cache"]
        asked = [Request([{"role": "user", "content": text}]) for text in order["texts"]]
        replies = Client("m", order["url"], concurrency=4, max_retries=0).ask(asked)
        out = Path(order["out"])
        out.with_suffix(".part").write_text(json.dumps({q: reply.text for q, reply in zip(order["texts"], replies)}))
        os.replace(out.with_suffix(".part"), out)
        os._exit(0)
    print(child, flush=True)
"""


@pytest.fixture(scope="module")
def launcher():
    with subprocess.Popen([sys.executable, "-c", PROCESS], stdin=-1, stdout=-1, text=True) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def start(tmp_path, stored, launcher):
    """Starts a run of some questions in a process of its own; gives its number and the file of its results."""

    def run(url, asked, name):
        order = {"url": url, "texts": asked, "out": str(tmp_path / name), "cache": os.environ["EARLIB_CACHE"]}
        print(json.dumps(order), file=launcher.stdin, flush=True)
        return int(launcher.stdout.readline()), tmp_path / name

    return run


def wait_for(condition, seconds=120):
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


def test_kills_change_nothing_and_repeat_at_most_the_calls_in_flight(start, stored):
    rng, asked, kept, kills = random.Random(0), [f"q{number}" for number in range(30)], set(), 4
    most = 0  # further requests are held, so that no run ends before its kill

    def rule(body):
        return says("re: " + body["messages"][0]["content"])._replace(
            delay=0.01 if len(server.requests) <= most else 60
        )

    with ScriptedServer(rule=rule) as server:

        def check(since):
            seen = [body["messages"][0]["content"] for body in server.requests]
            assert not kept & set(seen[since:])  # what is stored is not asked again
            return len(seen) - len(set(seen))

        for kill in range(kills):
            before = len(server.requests)
            most = before + rng.randint(2, 7)
            process, out = start(server.url, asked, f"run{kill}")
            wait_for(lambda most=most: len(server.requests) >= most)
            time.sleep(rng.random() * 0.03)
            os.kill(process, signal.SIGKILL)
            wait_for(lambda process=process: is_gone(process))
            assert not out.exists()
            assert check(before) <= 4 * kill
            store = ReplyStore(Path(os.environ["EARLIB_CACHE"]) / "llm" / "replies.sqlite")
            kept = {text for text in asked if store.get(reply_key("m", server.url, ask_of(text)))}
            assert kill < len(kept)  # the first request of each run goes alone, so it was stored
        before, most = len(server.requests), 1000
        _, out = start(server.url, asked, "last")
        wait_for(out.exists)
        assert json.loads(out.read_text()) == {text: f"re: {text}" for text in asked}
        assert check(before) <= 4 * kills and len(stored()) == len(asked)


def test_two_processes_share_one_store_and_agree(start, stored):
    asked = [f"q{number}" for number in range(24)]
    counter = iter(range(1000))  # the server never says the same twice
    with ScriptedServer(rule=lambda body: says(f"{next(counter)}")._replace(delay=0.02)) as server:
        runs = [start(server.url, asked, "one"), start(server.url, asked[::-1], "two")]
        wait_for(lambda: all(out.exists() for _, out in runs))
        one, two = [json.loads(out.read_text()) for _, out in runs]
        assert one == two and len(stored()) == len(asked)
        assert len(server.requests) <= len(asked) + 2 * 4
