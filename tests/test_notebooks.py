"""The notebooks: their form, and that the committed smoke results come out again and what is wrong does not."""

import ast
import contextlib
import io
import itertools
import json
import os
import shutil
import subprocess
import sys

import nbformat
import pytest
import torch

from earlib import paths, records
from earlib.core import adapter, learner
from earlib.core.critic import SimulatedCritic
from earlib.experiments import comparisons, runs, settings
from earlib.harness import notebooks, pages, profiles, runner

SOURCES = notebooks.sources()
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


def planned(name, profile="smoke"):
    (plan,) = profiles.make_plans([name], profile, {})
    return plan


def tolerance(name):
    return planned(name).every.get("tolerance", 0.1)


@each
def test_a_source_is_bare_short_and_its_parameters_can_be_read(name):
    notebook = read(SOURCES[name])
    nbformat.validate(notebook)
    (cell,) = tagged(notebook, "parameters")
    assigned = [line.target.id for line in ast.parse(cell.source).body]  # annotated assignments and nothing else
    model = notebooks.parameters(SOURCES[name])
    fields, without_a_line = model.model_fields, ["depth"] if notebooks.takes_depth(model) else []
    assert list(fields) == assigned + without_a_line and set(profiles.SET_BY_RUN) < set(assigned)
    assert all(field.description for field in fields.values())
    assert [cell for cell in code(notebook) if cell.outputs or cell.execution_count] == []
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")
    assert [cell.source for cell in code(notebook) if len(cell.source.splitlines()) > LONGEST] == []
    nodes = [node for cell in code(notebook) for node in ast.walk(ast.parse(cell.source))]
    if name != "annotated_ear":  # whose subject is its code
        assert [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)] == []


@pytest.mark.parametrize("profile", [file.stem for file in paths.profiles().glob("*.yaml")])
def test_every_profile_fits_the_notebooks(profile):
    plans = profiles.make_plans(["all"], profile, {})
    assert list(dict.fromkeys(plan.source.stem for plan in plans)) == list(SOURCES)
    assert len({plan.name for plan in plans}) == len(plans)


@each
@pytest.mark.parametrize("profile", ["smoke", "laptop", "laptop-large"])
def test_a_committed_record_is_of_a_commit(name, profile):
    record = json.loads((paths.reference() / profile / f"{name}.json").read_text())
    assert (record["id"], record["profile"]) == (name, profile)
    commit = record["provenance"]["commit"] or ""
    assert "local changes" not in commit, f"made of a source that no commit holds: make {name} PROFILE={profile} again"


@pytest.mark.parametrize("profile", ["smoke", "laptop", "laptop-large"])
def test_a_quantity_has_one_value_in_all_records_of_a_profile(profile):
    values = {}
    for file in sorted((paths.reference() / profile).glob("*.json")):
        record = records.load(file.stem, profile, paths.reference())
        for row in record["rows"]:
            if row["measured"] is not None and not row.get("over") and not row.get("varies"):
                named = row["n_queries"], row["seeds"], records.key_of(row)
                values.setdefault(named, {})[record["id"]] = row["measured"]
    shared = {name: of for name, of in values.items() if len(of) > 1}
    assert len(shared) > 40
    parted = [(name, of) for name, of in shared.items() if max(of.values()) - min(of.values()) > 1e-3]
    assert not parted


def source_at(commit, name):
    """A notebook's source at a commit of this repository."""
    command = ["git", "-C", str(paths.ROOT), "show", f"{commit}:notebooks/{name}.ipynb"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the history does not reach back to {commit}")
    return nbformat.reads(done.stdout, as_version=4)


@each
@pytest.mark.parametrize("profile", ["smoke", "laptop"])
def test_a_committed_notebook_is_that_of_the_source(name, profile):
    """Of today's source for smoke, which is run again below; of the commit that its record names for laptop."""
    notebook = read(paths.reference() / profile / f"{name}.ipynb")
    record = json.loads((paths.reference() / profile / f"{name}.json").read_text())
    source = read(SOURCES[name]) if profile == "smoke" else source_at(record["provenance"]["commit"], name)
    assert pages._is_run_of(notebook, source)
    assert notebook.metadata.papermill.parameters == planned(name, profile).parameters
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert outputs and [output for output in outputs if output.output_type == "error"] == []
    checked = tagged(notebook, "nbval-check-output")
    assert checked and all(cell.outputs for cell in checked)
    assert any("values within" in output.get("text", "") for cell in checked for output in cell.outputs)


# -- the committed smoke results come out again


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory, worker_id):
    """A cache of the notebooks alone, the same for all processes of the tests: notebooks share runs."""
    base = tmp_path_factory.getbasetemp()
    return (base if worker_id == "master" else base.parent) / "notebooks"


@pytest.fixture
def nbval(tmp_path, shared_cache, monkeypatch):
    """Runs a copy of a smoke result; returns whether its checked cells come out the same, and the report."""

    def run(name, **environment):
        folder, report = tmp_path / "again", io.StringIO()
        folder.mkdir()
        shutil.copy(SMOKE / f"{name}.ipynb", folder)
        places = {"EARLIB_ROOT": str(paths.ROOT), "EARLIB_RESULTS": str(folder / "results")}
        places |= {"EARLIB_CACHE": str(shared_cache), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        for variable, value in (planned(name).machine | places | environment).items():
            monkeypatch.setenv(variable, value)
        command = ["-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--capture=no", "--rootdir", str(folder)]
        command += ["-p", "nbval.plugin", "--nbval-lax", "--nbval-current-env", str(folder / f"{name}.ipynb")]
        with contextlib.redirect_stdout(report):
            code = pytest.main(command)
            if "Kernel didn't respond" in report.getvalue():  # it never began: another kernel had taken its port
                report.truncate(report.seek(0))
                code = pytest.main(command)
        assert code in (0, 1), report.getvalue()  # others: nothing was run
        return code == 0, report.getvalue()

    return run


@each
def test_the_smoke_result_comes_out_again(name, nbval):
    same, report = nbval(name)
    assert same, f"{report}\nif it is meant, `make {name} PROFILE=smoke` twice: the second compares with the first"


def test_a_changed_reference_is_found_out_by_an_executed_notebook(tmp_path, nbval):
    name, root = "tab01_dataset_stats", tmp_path / "root"
    shutil.copytree(SMOKE, root / "results" / "smoke")
    record = root / "results" / "smoke" / f"{name}.json"
    content = json.loads(record.read_text())
    next(row for row in content["rows"] if row.get("measured") is not None and not row.get("varies"))["measured"] += 1
    record.write_text(json.dumps(content))
    same, report = nbval(name, EARLIB_ROOT=str(root))
    assert not same and "Cell outputs differ" in report, report


def test_what_no_row_of_a_record_holds_comes_out_again_too(tmp_path, shared_cache, monkeypatch, capsys):
    """Notebooks that show texts of the package, such as open questions, are committed with these texts."""
    shutil.copytree(SMOKE, tmp_path / "results" / "smoke")
    for variable, folder in (("EARLIB_RESULTS", tmp_path / "results"), ("EARLIB_CACHE", shared_cache)):
        monkeypatch.setenv(variable, str(folder))
    assert runner.main(["claims", "tab01_dataset_stats", "--profile", "smoke"]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert len(told) == 2 and all(", unchanged" in line for line in told), f"{told}: make them again with PROFILE=smoke"


@each
def test_a_value_off_by_more_than_the_tolerance_is_found_out(name, capsys):
    """The tolerances are tight, and a record with one value altered does not pass."""
    record, allowed = records.load(name, "smoke", paths.reference()), tolerance(name)
    assert allowed <= (0.001 if name == "tab11_12_store_geometry" else 0.1)
    within, beyond, *_ = (row for row in record["rows"] if row["measured"] is not None and not row.get("varies"))
    within["measured"] += 0.9 * allowed
    beyond["measured"] += 1.1 * allowed
    records.compare_with_reference(record, allowed)
    summary, *off = capsys.readouterr().out.splitlines()
    assert "values within" in summary and len(off) == 1, (summary, off)


# -- what is wrong does not come out as the committed results


@pytest.fixture
def check(monkeypatch, tmp_path, capsys):
    """Runs the cells of a notebook in this process, with empty caches; returns the lines of its check."""
    name = "tab07_replay_sampling"

    def run():
        plan = planned(name)
        places = {"EARLIB_CACHE": str(tmp_path), "EARLIB_RESULTS": str(tmp_path)}
        for variable, value in (plan.machine | places).items():
            monkeypatch.setenv(variable, value)
        empty()
        scope = {}
        for cell in code(read(plan.source)):
            if "parameters" in cell.metadata.get("tags", []):
                scope |= {key: field.default for key, field in notebooks.parameters(plan.source).model_fields.items()}
                scope |= plan.parameters
            elif "figures.save" not in cell.source:
                capsys.readouterr()
                exec(cell.source, scope)
        return capsys.readouterr().out.splitlines()

    yield run
    empty()


def empty():
    """Forget what the experiments hold in memory, which a planted fault would not reach, or leave behind."""
    for module in (comparisons, runs, settings):
        for function in vars(module).values():
            getattr(function, "cache_clear", lambda: None)()


def no_replay(loss, *given):
    alone, replayed = loss(*given)
    return alone, torch.zeros_like(replayed)


def other_sign_of_the_baseline(loss, *terms):
    return loss(*terms[:-1], -terms[-1])


def citations_of_another_question(told, critic, queries, *given):
    return told(critic, queries.roll(1), *given)


def similarity_without_normalisation(score, made, *given):
    made.normalise = False
    return score(made, *given)


FAULTS = {
    no_replay: (learner.Learner, "_replay_loss"),
    other_sign_of_the_baseline: (learner, "ranking_loss"),
    citations_of_another_question: (SimulatedCritic, "__call__"),
    similarity_without_normalisation: (adapter.Adapter, "score"),
}


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_a_planted_fault_fails_the_check(fault, check, monkeypatch):
    if fault:
        owner, name = FAULTS[fault]
        right = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: fault(right, *given))
    summary, *off = check()
    assert "values within 0.1 points" in summary and bool(off) is bool(fault), off


# -- every kind of processor

# Without vector instructions a notebook takes several times as long; `EARLIB_TEST_PROCESSORS=all` runs all of them.
SPANNING = "ext02_adapters fig05_noise_robustness tab02_main_results tab03_ablation tab04_memory_types "
SPANNING += "tab06_hyperparameters tab07_replay_sampling tab11_12_store_geometry"


@pytest.mark.skipif(
    not os.environ.get("EARLIB_TEST_PROCESSORS"), reason="takes a quarter of an hour: make test-processors"
)
@pytest.mark.parametrize("library", [{}, {"MKL_CBWR": "COMPATIBLE", "OPENBLAS_CORETYPE": "Prescott"}], ids=str)
@pytest.mark.parametrize("capability, threads", list(itertools.product(["default", "avx2"], ["1", "2"])))
def test_smoke_is_the_same_under_every_setting_of_the_processor(capability, threads, library, tmp_path, capsys):
    places = {f"EARLIB_{one}": str(tmp_path / one.lower()) for one in ("CACHE", "RESULTS", "BUILD")}
    setting = {"ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads} | library
    names = SOURCES if os.environ["EARLIB_TEST_PROCESSORS"] == "all" else SPANNING.split()
    command = [sys.executable, "-m", "earlib.run", *names, "--profile", "smoke"]
    done = subprocess.run(command, env=os.environ | setting | places, cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in names:
        records.compare_with_reference(records.load(name, "smoke", tmp_path / "results"), tolerance(name))
        summary, *off = capsys.readouterr().out.splitlines()
        assert "values within" in summary and off == [], (name, summary, off)
