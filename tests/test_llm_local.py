"""Language models on this machine: a real server with a real model, where it is installed (`make test-llm`)."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from filelock import FileLock, Timeout

from earlib import paths
from earlib.harness import notebooks
from earlib.llm import NoModel, Request, local
from earlib.llm.models import connect

QUICK = "smollm2-135m"


def can_serve():
    found = any((folder / local.file_name(QUICK)).exists() for folder in paths.model_folders())
    return found and (paths.model_server() / "installed").exists()


served = pytest.mark.skipif(
    not (can_serve() or os.environ.get("EARLIB_TEST_LLM")),
    reason=f"`make llm` builds the server, and {QUICK}'s file is to lie in models/ or EARLIB_MODELS",
)


def listens(port, host=local.HOST):
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def port_of(name):
    return int(local.address(name).split(":")[2].split("/")[0])


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A root folder without a server and models, and an empty cache."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.delenv("EARLIB_MODELS", raising=False)
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EARLIB_BUILD", str(tmp_path / "build"))
    connect.cache_clear()
    yield tmp_path
    connect.cache_clear()


def test_without_a_server_the_message_says_how_to_get_one(elsewhere):
    client = connect(QUICK)  # nothing is needed yet
    with pytest.raises(NoModel, match="`make llm` builds it"):
        client.ask([Request([{"role": "user", "content": "Hello"}])])


def test_no_model_is_a_choice():
    with pytest.raises(NoModel, match="llm: none"):
        connect("none")


def test_a_file_that_is_not_the_publishers_is_refused(elsewhere):
    (elsewhere / ".venv-llm").mkdir()
    (elsewhere / ".venv-llm" / "installed").touch()
    (elsewhere / "models").mkdir()
    (elsewhere / "models" / local.file_name(QUICK)).write_bytes(b"something else")
    with pytest.raises(ValueError, match="wrong checksum.*remove the file"):
        local.Server(QUICK).start()


def fake_server(folder, monkeypatch):
    """An environment for the server with this Python, and an empty file as the model."""
    empty = local.MODELS[QUICK]._replace(url="http://models.example/tiny.gguf", sha256=hashlib.sha256().hexdigest())
    monkeypatch.setitem(local.MODELS, QUICK, empty)
    (folder / ".venv-llm" / "bin").mkdir(parents=True)
    (folder / ".venv-llm" / "installed").touch()
    (folder / ".venv-llm" / "bin" / "python").symlink_to(sys.executable)
    (folder / "models").mkdir()
    (folder / "models" / "tiny.gguf").touch()


def test_a_server_that_does_not_come_up_is_told_with_its_last_words(elsewhere, monkeypatch):
    fake_server(elsewhere, monkeypatch)  # without the server's package
    with pytest.raises(ConnectionError, match="did not come up.*No module named"):
        local.Server(QUICK).start()


FAKE = """
import json, os, sys
assert not {"API_KEY", "CONFIG_FILE", "CHAT_FORMAT"} & set(os.environ)  # the server would take them for options
from http.server import BaseHTTPRequestHandler, HTTPServer
told = dict(zip(sys.argv[1::2], sys.argv[2::2]))
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200), self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": told["--model_alias"]}]}).encode())
HTTPServer((told["--host"], int(told["--port"])), Handler).serve_forever()
"""


def test_a_server_answers_takes_its_turn_and_ends(elsewhere, monkeypatch, capsys):
    fake_server(elsewhere, monkeypatch)
    (elsewhere / "llama_cpp").mkdir()
    (elsewhere / "llama_cpp" / "server.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))
    for name in ("API_KEY", "CONFIG_FILE", "CHAT_FORMAT"):
        monkeypatch.setenv(name, "x")
    with socket.socket() as free:
        free.bind((local.HOST, 0))
        monkeypatch.setattr(local, "PORT", free.getsockname()[1] - list(local.MODELS).index(QUICK))
    turn = FileLock(elsewhere / "build" / "llm.lock")
    with local.Server(QUICK) as server:
        assert connect(QUICK).endpoint == server.address and listens(port_of(QUICK))
        server.start()  # a second start changes nothing
        assert capsys.readouterr().err.count("answers at") == 1
        with pytest.raises(Timeout):
            turn.acquire(timeout=0)
        server._process.kill()
        server._process.wait()
        server.start()  # it starts again if it ended by itself
        assert listens(port_of(QUICK))
    assert not listens(port_of(QUICK))
    turn.acquire(timeout=0)
    turn.release()
    code = "import os; print(os.environ['OPENAI_BASE_URL'], os.environ['EARLIB_LLM_MODEL']); raise SystemExit(3)"
    out = elsewhere / "out"
    assert local.main([QUICK, "sh", "-c", f'{sys.executable} -c "{code}" > {out}']) == 3
    assert out.read_text().split() == [server.address, QUICK]
    with pytest.raises(SystemExit, match="0"):
        local.main(["--help"])
    assert local.main(["smollm-135m"]) == 2 and "did you mean" in capsys.readouterr().err


def test_the_models_are_pinned():
    for model in local.MODELS.values():
        assert len(model.sha256) == 64 and model.url.endswith(".gguf")
        revision = model.url.split("/resolve/")[1].split("/")[0]
        assert len(revision) == 40 and int(revision, 16)
    assert local.DEFAULT in local.MODELS


def serving(then):
    """Command of a process that serves and then does something."""
    return [sys.executable, "-c", f"import time; from earlib.llm import local; local.Server({QUICK!r}).start(); {then}"]


@pytest.mark.llm
@served
def test_a_killed_process_leaves_no_server():
    command = serving("print('up', flush=True); time.sleep(99)")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n" and listens(port_of(QUICK))
        process.send_signal(signal.SIGKILL)
    until = time.monotonic() + 10
    while listens(port_of(QUICK)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not listens(port_of(QUICK))


def run_notebook(name, folder, *further):
    places = {"EARLIB_RESULTS": str(folder / "results"), "EARLIB_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "earlib.run", name, "--profile", "smoke", "-p", "llm", QUICK, *further]
    return subprocess.run(command, env=os.environ | places, capture_output=True, text=True, timeout=300)


@pytest.mark.llm
@served
@pytest.mark.skipif("tab02_main_results" not in notebooks.sources(), reason="the main table's notebook is missing")
def test_the_whole_path_from_slates_to_a_table(tmp_path):
    """Answers, verdicts and their rows by a real model; the second time nothing is asked, and nothing is served."""
    few = ("-p", "judge", QUICK, "-p", "llm_questions", "4")
    done = run_notebook("tab02_main_results", tmp_path, *few)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{QUICK} answers at" in done.stderr
    (path,) = (tmp_path / "results" / "smoke").glob("*.json")
    rows = [row for row in json.loads(path.read_text())["rows"] if row.get("llm") == QUICK]
    f1 = [row for row in rows if row["metric"] == "f1"]
    assert {row["variant"] for row in f1} >= {"retriever", "rmm", "ear", "constant_answer"}
    for row in f1:
        assert row["n_queries"] + row["unparsed"] + row["refused"] == 4 and row["varies"]
    assert all(row.get("printed") is None for row in rows)  # synthetic dialogues are compared with nothing
    again = run_notebook("tab02_main_results", tmp_path, *few)
    assert again.returncode == 0 and "answers at" not in again.stderr
    assert [row for row in json.loads(path.read_text())["rows"] if row.get("llm") == QUICK] == rows
