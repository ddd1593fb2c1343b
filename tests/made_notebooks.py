"""A small repository of notebooks, and how a test waits for the processes that run them."""

import os
import time
from pathlib import Path

import nbformat
from nbformat import v4

PARAMETERS = """\
profile: str = "smoke"  # the profile it runs in
name: str = "plain"  # the id its results get
precision: float = 88.0  # target precision of the critic, %
seeds: int = 3  # how many
sizes: list[int] = [1, 2]  # slates
reset: bool = False  # statistics
shift: int = 0  # of nothing
recall: list[float] = [86, 80]  # target recall of the critic, %
label: str = "none"  # any text
encoder: str = "minilm"  # registry entry"""
RECORD = """\
import json
from earlib import paths
verdicts = ["agrees", "agrees", "differs", None]
rows = [{"variant": str(n), "verdict": one} for n, one in enumerate(verdicts)]
paths.write_atomically(paths.results() / profile / f"{name}.json", json.dumps({"rows": rows, "precision": precision}))
print(precision, sizes, reset, encoder)"""


def write_notebook(root, name, *cells, parameters=PARAMETERS):
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = v4.new_notebook(metadata={"kernelspec": python, "language_info": {"name": "python"}})
    notebook.cells = [
        v4.new_markdown_cell(f"# The title of {name}\n\nText."),
        v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}),
        *map(v4.new_code_cell, cells),
    ]
    (root / "notebooks").mkdir(exist_ok=True)
    nbformat.write(notebook, root / "notebooks" / f"{name}.ipynb")


def write_profile(root, text, name="smoke"):
    (root / "notebooks" / "profiles").mkdir(parents=True, exist_ok=True)
    (root / "notebooks" / "profiles" / f"{name}.yaml").write_text(text)


def outputs(path):
    cells = nbformat.read(path, as_version=4).cells
    return "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))


def wait_until(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def gone(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{process}/stat")  # a zombie that nobody waits for has ended too
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"
