"""Downloads from a real server on this machine: right bytes once, anything else an error that names the next step."""

import contextlib
import hashlib
import json
import os
import socket
import threading
import traceback
from http.server import BaseHTTPRequestHandler
from itertools import product

import pytest
from faults import full_disk
from made_longmemeval import QUESTION
from scripted_server import questions
from small_proxy import proxy, serving

from earlib import paths
from earlib.data import download, encoders, longmemeval
from earlib.data.benchmarks import load
from earlib.llm.client import Client

NAME = "sample.bin"
BODY = bytes(range(256)) * 1200
DIGEST = hashlib.sha256(BODY).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers by the first word of the path and counts the requests."""

    def do_GET(self):
        self.server.gets += 1
        way = self.path.split("/")[1]
        body = {"wrong": self.server.body[::-1], "missing": b"no"}.get(way, self.server.body)
        self.send_response(404 if way == "missing" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if way in ("truncated", "stalled") else body)
        self.wfile.flush()
        if way == "stalled":
            self.server.release.wait(30)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with serving(Handler, gets=0, body=BODY, release=threading.Event()) as server:
        yield server
        server.release.set()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A project folder for this test, with no data elsewhere."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.delenv("EARLIB_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "data"


@pytest.fixture
def publish(monkeypatch):
    def publish(port, way="right", name=NAME, sha256=DIGEST, at="http://127.0.0.1:{}"):
        file = download.File(f"{at.format(port)}/{way}/{name}", sha256, "CC0")
        monkeypatch.setitem(download.FILES, name, file)

    return publish


def fails(*words, timeout=30.0):
    with pytest.raises(download.Unavailable) as caught:
        download.fetch(NAME, timeout=timeout)
    message = str(caught.value)
    for word in (NAME, "127.0.0.1", "EARLIB_DATA", DIGEST, *words):
        assert word in message
    assert "\n" not in message


def left(home):
    return [entry.name for entry in home.iterdir()]


def test_right_bytes_are_fetched_once(server, publish, home):
    publish(server.server_port)
    path = download.fetch(NAME)
    assert path == home / NAME
    assert path.read_bytes() == BODY
    assert left(home) == [NAME]
    assert path.stat().st_mode & 0o777 == 0o644
    assert download.fetch(NAME) == path
    assert server.gets == 1


@pytest.mark.parametrize(
    "way, words, timeout",
    [
        ("wrong", "does not match the known hash", 30.0),
        ("truncated", "IncompleteRead", 30.0),
        ("missing", "404", 30.0),
        ("stalled", "timed out", 2.0),
    ],
)
def test_failed_download_leaves_nothing_and_is_made_good_by_the_next(server, publish, home, way, words, timeout):
    publish(server.server_port, way)
    fails(words, timeout=timeout)
    assert left(home) == [] and server.gets == 1
    publish(server.server_port)
    assert download.fetch(NAME).read_bytes() == BODY
    assert left(home) == [NAME]


def test_the_command_says_where_files_lie_or_why_they_do_not(server, publish, monkeypatch, home, capsys):
    monkeypatch.setattr(download, "FILES", {})
    publish(server.server_port)
    download.main()
    assert capsys.readouterr().out == f"{home / NAME}\n"
    (home / NAME).unlink()
    publish(server.server_port, "missing")
    with pytest.raises(SystemExit, match=f"^error: {NAME} cannot be had: .*EARLIB_DATA$"):
        download.main()


def test_server_without_an_answer_is_named(publish):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        publish(silent.getsockname()[1])
        fails("timed out", timeout=0.5)
    fails("refused")


def test_search_path_comes_first(server, publish, monkeypatch, tmp_path, home):
    publish(server.server_port)
    chosen = tmp_path / "chosen"
    monkeypatch.setenv("EARLIB_DATA", str(chosen))
    assert download.fetch(NAME) == home / NAME  # a missing folder is passed over
    chosen.mkdir()
    (chosen / NAME).write_bytes(BODY)
    assert download.fetch(NAME) == chosen / NAME
    assert server.gets == 1


def test_local_file_that_is_wrong_or_unreadable_is_neither_used_nor_overwritten(publish, home):
    publish(9)
    home.mkdir()
    (home / NAME).write_bytes(b"mine")
    with pytest.raises(ValueError, match="wrong checksum") as caught:
        download.fetch(NAME)
    for word in (str(home / NAME), DIGEST, hashlib.sha256(b"mine").hexdigest()):
        assert word in str(caught.value)
    assert (home / NAME).read_bytes() == b"mine"
    (home / NAME).unlink()
    (home / NAME).mkdir()
    with pytest.raises(OSError, match=f"Is a directory: '{home / NAME}'"):
        download.fetch(NAME)


def test_folder_that_takes_no_file_is_named_and_left_empty(server, publish, home):
    publish(server.server_port)
    with full_disk(len(BODY) // 2):
        fails(str(home))
    assert left(home) == []
    home.rmdir()
    home.write_text("a file where the folder should be")
    fails(str(home))


def test_published_benchmark_is_downloaded_checked_and_read(server, publish, home):
    server.body = json.dumps([QUESTION]).encode()
    publish(server.server_port, name=longmemeval.FILE, sha256=hashlib.sha256(server.body).hexdigest())
    made = load("longmemeval")
    assert left(home) == [longmemeval.FILE]
    assert (made.name, [query.id for query in made.queries]) == ("LongMemEval_S", ["q1"])
    (home / longmemeval.FILE).write_bytes(server.body + b" ")
    with pytest.raises(ValueError, match="wrong checksum"):
        load("longmemeval")


def test_unknown_file_is_answered_with_the_near_one():
    with pytest.raises(ValueError, match="unknown data file 'locomo.json', did you mean 'locomo10.json'"):
        download.fetch("locomo.json")


@pytest.mark.parametrize(
    "variable, name",
    [
        ("HTTP_PROXY", "http://user:se%23kr%2Fet@{}"),
        ("HTTP_PROXY", "http://user:se@kr!et@{}/"),
        ("HTTP_PROXY", "{}"),
        *((variable, "http://{}") for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY")),
    ],
)
def test_a_download_goes_through_the_proxy(server, publish, home, monkeypatch, variable, name):
    publish(80, at="http://publisher.invalid")
    with proxy(monkeypatch, server.server_port, variable) as asked:
        monkeypatch.setenv(variable, name.format(os.environ[variable].removeprefix("http://")))
        assert download.fetch(NAME).read_bytes() == BODY
    assert asked == [f"GET http://publisher.invalid/right/{NAME}"]


@pytest.mark.parametrize("spared", ["", "publisher.invalid", "*"])
def test_the_loopback_never_goes_through_a_proxy(server, publish, home, monkeypatch, spared):
    publish(server.server_port)
    with proxy(monkeypatch, server.server_port, "HTTP_PROXY", "ALL_PROXY") as asked:
        monkeypatch.setenv("NO_PROXY", spared)
        assert download.fetch(NAME).read_bytes() == BODY
        assert spared in os.environ["NO_PROXY"].split(",") + [""]
    assert asked == []


WAYS = {
    "file": lambda: download.fetch(NAME),
    "model": lambda: encoders.resolve("a/b@main"),
    "reply": lambda: Client("m", "https://publisher.invalid/v1", "key", max_retries=0).ask(questions(1)),
}
PASSWORDS = ("sekret#1", "12#sekret", "sek/ret", "12/sekret", "sek?ret", "sek\\ret", "sek[ret")


@pytest.mark.parametrize("ask, password", [*product(["file"], PASSWORDS), *product(["model", "reply"], ["sek/ret"])])
def test_a_password_that_is_not_encoded_is_never_shown(hub, publish, home, monkeypatch, ask, password):
    publish(443, at="https://publisher.invalid")
    with proxy(monkeypatch, 9), pytest.raises(OSError, match="HTTPS_PROXY: expected scheme:.* percent-enc") as error:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:{password}@127.0.0.1:9")
        WAYS[ask]()
    told = "".join(traceback.format_exception(error.value))
    assert not any(part in told for part in ("sek", "ret@"))
