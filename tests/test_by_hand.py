"""A notebook that is run by hand, in whatever way, saves into build/by-hand and changes nothing in the checkout."""

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress

import nbformat
import papermill
import pytest
import websocket
from made_notebooks import wait_until
from nbclient import NotebookClient

from earlib import paths
from earlib.harness import notebooks, profiles

NAME = "fig02_walkthrough"
SAVED = [f"{NAME}{end}" for end in (".json", ".png", "_candidates.png", "_paradigms.png", "_slates.png")]


def with_smoke(notebook):
    """The notebook with the values of the profile smoke in its parameters cell, as a reader types them there."""
    (plan,) = profiles.make_plans([NAME], "smoke", {})
    (cell,) = [one for one in notebook.cells if "parameters" in one.metadata.get("tags", [])]
    cell.source += "".join(f"\n{name} = {value!r}" for name, value in plan.parameters.items())
    return notebook


def plain_papermill(tmp_path):
    """`papermill notebooks/NAME.ipynb mine.ipynb -p profile smoke ...`."""
    (plan,) = profiles.make_plans([NAME], "smoke", {})
    target = tmp_path / "mine.ipynb"
    papermill.execute_notebook(plan.source, target, plan.parameters, kernel_name="python3", progress_bar=False)
    return nbformat.read(target, as_version=4)


def plain_nbclient(tmp_path):
    """As `jupyter execute` runs it."""
    notebook = with_smoke(nbformat.read(notebooks.sources()[NAME], as_version=4))
    return NotebookClient(notebook, resources={"metadata": {"path": paths.notebooks()}}).execute()


def jupyter_server(tmp_path):
    """As JupyterLab runs it: the file from the server's contents, its cells through a kernel's websocket."""
    log, token = tmp_path / "server.log", "t"
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", "--ServerApp.port=0"]
    command += [f"--ServerApp.root_dir={paths.ROOT}", f"--IdentityProvider.token={token}", "--ServerApp.ip=127.0.0.1"]
    places = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    with log.open("w") as out:
        server = subprocess.Popen(command, env=os.environ | places, stdout=out, stderr=out, cwd=tmp_path)
    try:
        wait_until(lambda: list((tmp_path / "RUNTIME").glob("jpserver-*.json")) or server.poll() is not None, 120)
        (told,) = (tmp_path / "RUNTIME").glob("jpserver-*.json")
        url = json.loads(told.read_text())["url"]

        def ask(what, **content):
            data = json.dumps(content).encode() if content else None
            request = urllib.request.Request(f"{url}api/{what}", data, {"Authorization": f"token {token}"})
            return json.load(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120))

        def answers():
            with suppress(urllib.error.URLError):
                return ask("status")

        wait_until(answers, 120)
        notebook = with_smoke(nbformat.from_dict(ask(f"contents/notebooks/{NAME}.ipynb")["content"]))
        kernel = ask("kernels", name="python3", path="notebooks")["id"]
        channel = f"{url.replace('http', 'ws', 1)}api/kernels/{kernel}/channels?token={token}"
        connection = websocket.create_connection(channel, timeout=120, http_no_proxy=["*"])
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = list(executed(connection, cell))
        connection.close()
        return notebook
    finally:
        server.terminate()  # its kernels end with it
        server.wait(timeout=60)


def executed(connection, cell):
    """Outputs of a cell that a kernel runs."""
    header = {"msg_id": cell.id, "msg_type": "execute_request", "session": "s", "username": "u", "version": "5.3"}
    content = {"code": cell.source, "silent": False, "store_history": True, "stop_on_error": True}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    connection.send(json.dumps(message))
    while True:
        told = json.loads(connection.recv())
        if told["parent_header"].get("msg_id") != cell.id:
            continue
        assert told["msg_type"] != "error", told["content"]
        if told["msg_type"] in ("stream", "display_data", "execute_result"):
            yield nbformat.v4.output_from_msg(told)
        if told["msg_type"] == "status" and told["content"]["execution_state"] == "idle":
            return


def checkout():
    """All that git knows of the state of this checkout, and the bytes of the results."""
    state = subprocess.run(["git", "-C", paths.ROOT, "status", "--porcelain"], capture_output=True, text=True).stdout
    folders = (paths.reference() / "smoke", paths.reference() / "laptop", paths.notebooks())
    return state, {file: file.read_bytes() for folder in folders for file in folder.iterdir() if file.is_file()}


@pytest.mark.parametrize("way", [plain_papermill, plain_nbclient, jupyter_server])
def test_a_notebook_by_hand_leaves_the_checkout_as_it_is_and_says_where_it_saved(way, tmp_path, monkeypatch):
    monkeypatch.setenv("EARLIB_BUILD", str(tmp_path / "build"))
    monkeypatch.delenv("EARLIB_RUNNING")
    monkeypatch.setenv("EARLIB_RESULTS", str(tmp_path / "own"))
    before = checkout()
    printed = [output.get("text", "") for cell in way(tmp_path).cells for output in cell.get("outputs", [])]
    assert checkout() == before and not (tmp_path / "own").exists()
    folder = tmp_path / "build" / "by-hand" / "smoke"
    assert sorted(file.name for file in folder.iterdir()) == SAVED
    told = [line for text in printed for line in text.splitlines() if line.startswith("run by hand")]
    assert len(told) == 1 and told[0].startswith("run by hand: saved in ") and "by-hand" in told[0]


def test_nbval_by_hand_finds_a_committed_notebook_unchanged(tmp_path):
    shutil.copy(paths.reference() / "smoke" / "tab01_dataset_stats.ipynb", tmp_path)
    left = {name: value for name, value in os.environ.items() if name != "EARLIB_RUNNING"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval-lax", "--nbval-current-env"]
    environment = left | {"EARLIB_BUILD": str(tmp_path / "build"), "EARLIB_DTYPE": "float64"}
    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_path_is_shown_relative_unless_that_is_longer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert paths.shown(tmp_path / "a" / "b") == os.path.join("a", "b")
    assert paths.shown(tmp_path.parent / "b") == os.path.join("..", "b")
    (tmp_path / "a" / "b" / "c" / "d" / "e" / "f").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b" / "c" / "d" / "e" / "f")
    assert paths.shown("/x") == "/x"
