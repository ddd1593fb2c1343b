"""The notebooks: how they are written, and that the committed smoke results come out again (nbval)."""

import ast
import json
import os
import shutil
import subprocess
import sys

import nbformat
import pytest

from earlib import paths
from earlib.harness import runner

SOURCES = runner.sources()
SMOKE = paths.reference() / "smoke"
LONGEST = 15  # lines of a cell

pytestmark = pytest.mark.skipif(not SOURCES, reason=f"no notebook in {paths.notebooks()} yet")
each = pytest.mark.parametrize("name", SOURCES)


def read(path):
    return nbformat.read(path, as_version=4)


def tagged(notebook, tag):
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", [])]


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def executed(name, profile="smoke"):
    path = paths.reference() / profile / f"{name}.ipynb"
    assert path.exists(), f"make it with `make {name} PROFILE={profile}` and commit it"
    return read(path)


@each
def test_a_source_is_bare_and_its_parameters_can_be_read(name):
    notebook = read(SOURCES[name])
    nbformat.validate(notebook)
    (parameters,) = tagged(notebook, "parameters")
    assigned = [line.target.id for line in ast.parse(parameters.source).body]  # annotated assignments and nothing else
    assert list(runner.read_parameters(SOURCES[name])) == assigned
    assert set(runner.SET_BY_RUN) < set(assigned)
    assert all(known.help for known in runner.read_parameters(SOURCES[name]).values())
    assert [cell for cell in code(notebook) if cell.outputs or cell.execution_count] == []
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")


@each
def test_cells_are_short_and_define_nothing(name):
    cells = code(read(SOURCES[name]))
    assert [cell.source for cell in cells if len(cell.source.splitlines()) > LONGEST] == []
    nodes = [node for cell in cells for node in ast.walk(ast.parse(cell.source))]
    assert [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)] == []


@pytest.mark.parametrize("profile", [file.stem for file in paths.profiles().glob("*.yaml")])
def test_every_profile_fits_the_notebooks(profile):
    plans = runner.make_plans(["all"], profile, {})
    assert list(dict.fromkeys(plan.source.stem for plan in plans)) == list(SOURCES)


@each
@pytest.mark.parametrize("profile", ["smoke", "laptop"])
def test_a_committed_result_is_that_of_the_source(name, profile):
    notebook = executed(name, profile)
    written = [cell for cell in notebook.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    assert [(cell.cell_type, cell.source) for cell in written] == [
        (cell.cell_type, cell.source) for cell in read(SOURCES[name]).cells
    ]
    (plan,) = runner.make_plans([name], profile, {})
    assert notebook.metadata.papermill.parameters == plan.parameters
    assert any(cell.outputs for cell in code(notebook))
    checked = tagged(notebook, "nbval-check-output")
    assert checked and all(cell.outputs for cell in checked)
    errors = [output for cell in code(notebook) for output in cell.outputs if output.output_type == "error"]
    record = json.loads((paths.reference() / profile / f"{name}.json").read_text())
    assert errors == [] and (record["id"], record["profile"]) == (name, profile)
    commit = record["provenance"]["commit"] or ""
    assert "local changes" not in commit, f"made of a source that no commit holds: make {name} PROFILE={profile} again"
    assert any("values within" in output.get("text", "") for cell in checked for output in cell.outputs)


@each
def test_a_committed_record_without_its_notebook_is_of_a_commit(name):
    record = json.loads((paths.reference() / "laptop-large" / f"{name}.json").read_text())
    assert (record["id"], record["profile"]) == (name, "laptop-large")
    assert "local changes" not in (record["provenance"]["commit"] or "")


def nbval(name, folder, **environment):
    """Run a copy of a smoke result in `folder`; whether its checked cells come out the same, and the report."""
    folder.mkdir()
    shutil.copy(SMOKE / f"{name}.ipynb", folder)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    command += ["-p", "nbval.plugin", "--nbval-lax", "--nbval-current-env", f"{name}.ipynb"]
    places = {"EARLIB_ROOT": str(paths.ROOT), "EARLIB_RESULTS": str(folder / "results")}
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | places | environment
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # others: nothing was run
    return done.returncode == 0, done.stdout


@each
def test_the_smoke_result_comes_out_again(name, tmp_path):
    executed(name)
    same, report = nbval(name, tmp_path / "again")
    assert same, f"{report}\nif it is meant, `make {name} PROFILE=smoke` twice: the second compares with the first"


@each
def test_a_changed_reference_is_found_out(name, tmp_path):
    """The check of a notebook reads the committed record: with one value altered it must not pass."""
    executed(name)
    root = tmp_path / "root"
    shutil.copytree(SMOKE, root / "results" / "smoke")
    record = root / "results" / "smoke" / f"{name}.json"
    content = json.loads(record.read_text())
    row = next(row for row in content["rows"] if row["measured"] is not None and not row.get("varies"))
    row["measured"] += 20  # above any tolerance
    record.write_text(json.dumps(content))
    same, report = nbval(name, tmp_path / "again", EARLIB_ROOT=str(root))
    assert not same and "Cell outputs differ" in report, report
