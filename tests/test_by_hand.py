"""A notebook that is run by hand, in whatever way, saves into build/by-hand and changes nothing in the checkout."""

import os
import subprocess

import nbformat
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


def checkout():
    """All that git knows of the state of this checkout, and the bytes of the results."""
    state = subprocess.run(["git", "-C", paths.ROOT, "status", "--porcelain"], capture_output=True, text=True).stdout
    folders = (paths.reference() / "smoke", paths.reference() / "laptop", paths.notebooks())
    return state, {file: file.read_bytes() for folder in folders for file in folder.iterdir() if file.is_file()}


def test_a_notebook_by_hand_leaves_the_checkout_as_it_is_and_says_where_it_saved(tmp_path, monkeypatch):
    """As JupyterLab runs it: in a kernel whose folder is the notebook's."""
    monkeypatch.setenv("EARLIB_BUILD", str(tmp_path / "build"))
    monkeypatch.delenv("EARLIB_RUNNING")
    monkeypatch.setenv("EARLIB_RESULTS", str(tmp_path / "own"))
    before = checkout()
    notebook = with_smoke(nbformat.read(notebooks.sources()[NAME], as_version=4))
    made = NotebookClient(notebook, resources={"metadata": {"path": paths.notebooks()}}).execute()
    printed = [output.get("text", "") for cell in made.cells for output in cell.get("outputs", [])]
    assert checkout() == before and not (tmp_path / "own").exists()
    folder = tmp_path / "build" / "by-hand" / "smoke"
    assert sorted(file.name for file in folder.iterdir()) == SAVED
    told = [line for text in printed for line in text.splitlines() if line.startswith("run by hand")]
    assert len(told) == 1 and told[0].startswith("run by hand: saved in ") and "by-hand" in told[0]


def test_a_path_is_shown_relative_unless_that_is_longer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert paths.shown(tmp_path / "a" / "b") == os.path.join("a", "b")
    assert paths.shown(tmp_path.parent / "b") == os.path.join("..", "b")
    (tmp_path / "a" / "b" / "c" / "d" / "e" / "f").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b" / "c" / "d" / "e" / "f")
    assert paths.shown("/x") == "/x"
