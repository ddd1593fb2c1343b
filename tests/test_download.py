"""Downloads from a real server on this machine: right bytes once, anything else an error that says what to do."""

import contextlib
import hashlib
import resource
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from earlib import paths
from earlib.data import download
from earlib.data.benchmarks import load

NAME = "sample.bin"
BODY = bytes(range(256)) * 1200
DIGEST = hashlib.sha256(BODY).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers by the first word of the path and counts what was asked."""

    def do_HEAD(self):
        self.send_response(404 if self.path.startswith("/missing") else 200)
        self.end_headers()

    def do_GET(self):
        self.server.gets += 1
        way = self.path.split("/")[1]
        if way == "once-broken":
            way = "truncated" if self.server.gets == 1 else "right"
        body = {"wrong": BODY[::-1], "missing": b"no"}.get(way, BODY)
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
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.gets, server.release = 0, threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.release.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A project folder of its own, and nothing found elsewhere."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.delenv("EARLIB_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "data"


def publish(monkeypatch, port, way="right"):
    file = download.File(f"http://127.0.0.1:{port}/{way}/{NAME}", DIGEST, "CC0")
    monkeypatch.setitem(download.FILES, NAME, file)


def fails(words, timeout=2.0):
    with pytest.raises(download.Unavailable) as caught:
        download.fetch(NAME, timeout=timeout)
    message = str(caught.value)
    for word in (NAME, "127.0.0.1", "EARLIB_DATA", DIGEST, *words):
        assert word in message
    assert "\n" not in message


def test_right_bytes_are_fetched_once(server, monkeypatch, home):
    publish(monkeypatch, server.server_port)
    path = download.fetch(NAME)
    assert path == home / NAME
    assert path.read_bytes() == BODY
    assert [entry.name for entry in home.iterdir()] == [NAME]
    assert path.stat().st_mode & 0o777 == 0o644
    assert download.fetch(NAME) == path
    assert server.gets == 1


@pytest.mark.parametrize(
    "way, words",
    [
        ("wrong", ["do not have the SHA-256"]),
        ("truncated", ["broke off"]),
        ("missing", ["404"]),
        ("stalled", ["stopped sending"]),
    ],
)
def test_failed_download_leaves_nothing_and_is_not_repeated(server, monkeypatch, home, way, words):
    publish(monkeypatch, server.server_port, way)
    fails(words, timeout=1.0)
    assert list(home.iterdir()) == []
    assert server.gets == 1


def test_interrupted_download_is_made_good_by_the_next(server, monkeypatch, home):
    publish(monkeypatch, server.server_port, "once-broken")
    fails(["broke off"])
    assert download.fetch(NAME).read_bytes() == BODY
    assert [entry.name for entry in home.iterdir()] == [NAME]


def test_killed_download_is_made_good_by_the_next(server, monkeypatch, home):
    code = (
        "from earlib.data import download\n"
        f"download.FILES[{NAME!r}] = download.File('http://127.0.0.1:{server.server_port}/stalled/x', {DIGEST!r}, '')\n"
        f"download.fetch({NAME!r}, timeout=30)\n"
    )
    environment = {"EARLIB_ROOT": str(home.parent), "NO_PROXY": "127.0.0.1", "PYTHONPATH": ":".join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not server.gets and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert server.gets == 1
    assert not (home / NAME).exists()
    publish(monkeypatch, server.server_port)
    assert download.fetch(NAME).read_bytes() == BODY


def test_the_command_says_where_files_lie_or_why_they_do_not(server, monkeypatch, home, capsys):
    publish(monkeypatch, server.server_port)
    monkeypatch.setattr(download, "FILES", {NAME: download.FILES[NAME]})
    download.main()
    assert capsys.readouterr().out == f"{home / NAME}\n"
    (home / NAME).unlink()
    publish(monkeypatch, server.server_port, "missing")
    with pytest.raises(SystemExit, match=f"^error: {NAME} cannot be had: .*EARLIB_DATA$"):
        download.main()


def test_silent_server_is_given_up_in_time(monkeypatch):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        publish(monkeypatch, silent.getsockname()[1])
        start = time.monotonic()
        fails(["no answer from 127.0.0.1 within 1 s"], timeout=1.0)
        assert time.monotonic() - start < 5


def test_refused_connection_is_named(monkeypatch):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as closed:
        port = closed.getsockname()[1]
    publish(monkeypatch, port)
    fails(["no connection", "refused"])


def test_unknown_host_fails_within_ten_seconds(monkeypatch):
    file = download.File(f"http://127.0.0.1.invalid/{NAME}", DIGEST, "CC0")
    monkeypatch.setitem(download.FILES, NAME, file)
    start = time.monotonic()
    fails(["127.0.0.1.invalid"], timeout=5.0)
    assert time.monotonic() - start < 10


def test_search_path_comes_first(server, monkeypatch, tmp_path, home):
    publish(monkeypatch, server.server_port)
    chosen = tmp_path / "chosen"
    monkeypatch.setenv("EARLIB_DATA", str(chosen))
    assert download.fetch(NAME) == home / NAME  # a folder that is not there holds nothing
    chosen.mkdir()
    (chosen / NAME).write_bytes(BODY)
    assert download.fetch(NAME) == chosen / NAME
    assert server.gets == 1


def test_wrong_local_file_is_neither_used_nor_overwritten(server, monkeypatch, home):
    publish(monkeypatch, server.server_port)
    home.mkdir()
    (home / NAME).write_bytes(b"mine")
    with pytest.raises(ValueError, match="wrong checksum") as caught:
        download.fetch(NAME)
    for word in (str(home / NAME), DIGEST, hashlib.sha256(b"mine").hexdigest()):
        assert word in str(caught.value)
    assert (home / NAME).read_bytes() == b"mine"
    assert server.gets == 0


def test_folder_that_cannot_be_made_is_named(server, monkeypatch, home):
    publish(monkeypatch, server.server_port)
    home.write_text("a file where the folder should be")
    fails([f"cannot write to the folder {home}"])


def test_full_disk_is_named_and_leaves_nothing(server, monkeypatch, home):
    publish(monkeypatch, server.server_port)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(BODY) // 2, limits[1]))  # writes beyond it fail
    try:
        fails([f"cannot write to the folder {home}"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(home.iterdir()) == []


def test_locomo_without_network_says_where_to_put_it(monkeypatch):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as closed:
        port = closed.getsockname()[1]
    locomo = download.FILES["locomo10.json"]
    monkeypatch.setitem(download.FILES, "locomo10.json", download.File(f"http://127.0.0.1:{port}/", locomo.sha256, ""))
    told = f"locomo10.json cannot be had.*refused.*{locomo.sha256}.*EARLIB_DATA"
    with pytest.raises(download.Unavailable, match=told):
        load("locomo")


def test_unknown_file_is_answered_with_the_near_one():
    with pytest.raises(ValueError, match="unknown data file 'locomo.json', did you mean 'locomo10.json'"):
        download.fetch("locomo.json")
