"""Runs and notebooks on workers, real processes: the same results as without, whatever becomes of a worker."""

import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from made_notebooks import PARAMETERS, RECORD, gone, outputs, wait_until, write_notebook

from earlib import paths
from earlib.core.config import VARIANTS, Config
from earlib.data import benchmarks
from earlib.experiments import runs, settings
from earlib.harness import grid, machines, runner

WITHOUT = ("retriever", "ear_adapter", "explorer_test", "monot5_ear")  # nothing of their own to learn, or no weights
LEARNERS = [name for name in VARIANTS if name not in WITHOUT]


@pytest.fixture(scope="module")
def client():
    with machines.connect(workers=2) as connected:
        yield connected


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A run cache of the test's own; the embeddings are those of the session."""
    (tmp_path / "cache").mkdir()
    (paths.cache() / "embeddings").mkdir(exist_ok=True)
    (tmp_path / "cache" / "embeddings").symlink_to(paths.cache() / "embeddings")
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "runs"


def planned(*variants, **setting):
    return grid.jobs(grid.cells(["toy"], ["minilm"], variants, **setting))


def serial(job):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return runs.compute_run(job.setting, job.config, job.found, job.splits)
    finally:
        torch.set_num_threads(threads)


def assert_identical(job):
    """The cached run equals, bit for bit, one without workers."""
    found, expected = runs.cached(job), serial(job)
    for name, one, other in zip(expected._fields, found, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes(), name


@pytest.mark.parametrize(
    "variants, setting",
    [(LEARNERS, {"seeds": 2}), (("rmm", "ear"), {"seeds": 2, "split": "conversation", "evaluate_every": 16})],
)
def test_runs_on_workers_are_bit_for_bit_those_without(client, empty, variants, setting):
    wanted = planned(*variants, **setting)
    assert grid.compute(grid.missing(wanted), client) == set()
    assert len(list(empty.iterdir())) == len(variants)
    for job in wanted.values():
        assert_identical(job)


def test_the_candidates_that_are_sent_are_those_of_the_run():
    found = planned("ear", seeds=1).popitem()[1].found
    sent = grid.read_part(found)
    assert torch.equal(sent.memory, found.memory) and len(sent.bank) == len(found.index.unique())
    assert torch.equal(sent.index.argsort(stable=True), found.index.argsort(stable=True))  # ties go the same way
    for name in ("query", "gold", "gold_count"):
        assert torch.equal(getattr(sent, name), getattr(found, name))


def test_a_worker_killed_in_mid_run_loses_nothing(client, empty):
    wanted = planned("rmm", "explorer_training", "ear", seeds=2, epochs=3)

    def running():
        return [address for address, tasks in client.processing().items() if any("_task" in task for task in tasks)]

    def kill():
        wait_until(running)
        (pid,) = client.run(os.getpid, workers=running()[:1]).values()
        os.kill(pid, signal.SIGKILL)

    before, thread = set(client.scheduler_info()["workers"]), threading.Thread(target=kill)
    thread.start()
    assert grid.compute(grid.missing(wanted), client) == set()
    thread.join()
    assert set(client.scheduler_info()["workers"]) != before  # another process has its place
    for job in wanted.values():
        assert_identical(job)


def test_what_is_in_the_cache_is_not_computed_again(client, empty, capsys):
    arguments = ["--dataset", "toy", "--variant", "retriever", "ear", "rmm", "ear_adapter", "--seeds", "2"]
    arguments += ["--scheduler", client.scheduler.address]
    assert grid.main(arguments) == 0
    first = capsys.readouterr()
    assert "2/2" in first.err  # EAR and its adapter alone are one run
    head, *rows = first.out.splitlines()
    assert head.split() == ["dataset", "encoder", "variant", "seeds", "recall@5", "hitrate@5"]
    assert [row.split()[2] for row in rows] == ["retriever", "ear", "rmm", "ear_adapter"]
    before = {file: file.stat().st_mtime_ns for file in empty.iterdir()}
    arguments[-1] = "tcp://127.0.0.1:1"  # where nothing answers: nothing is asked
    assert grid.main(arguments) == 0
    assert capsys.readouterr() == (first.out, "")
    assert {file: file.stat().st_mtime_ns for file in empty.iterdir()} == before
    ear = runs.answers(settings.Setting(dataset="toy", seeds=2), "ear")
    assert f"{100 * np.nanmean(ear.values[0], 1).mean():.1f} ±" in rows[1]


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--dataset", "tyo"], "unknown dataset 'tyo', did you mean 'toy'"),
        (["--dataset", "toy", "--encoder", "minlm"], "unknown encoder 'minlm', did you mean 'minilm'"),
        (["--dataset", "toy", "--variant", "rmm", "eat"], "unknown variant 'eat', did you mean 'ear'"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_starts(empty, capsys, arguments, expected):
    assert grid.main(arguments) == 2
    message = capsys.readouterr().err
    assert expected in message and message.count("\n") == 1
    assert not empty.exists()


@pytest.mark.parametrize("option", ["--seeds", "--workers"])
def test_a_number_below_one_is_refused(capsys, option):
    with pytest.raises(SystemExit):
        grid.main(["--dataset", "toy", option, "0"])
    assert f"{option}: expected 1 or more" in capsys.readouterr().err


def test_a_scheduler_that_does_not_answer_is_named(empty, capsys, monkeypatch):
    monkeypatch.setattr(machines, "REACHED", 1)
    assert grid.main(["--dataset", "toy", "--variant", "ear", "--scheduler", "tcp://127.0.0.1:1"]) == 2
    message = capsys.readouterr().err
    assert "no scheduler answers at tcp://127.0.0.1:1" in message and "start one with `dask scheduler`" in message


def test_a_run_that_fails_is_told_in_a_line_and_stops_no_other(client, empty, capsys):
    wanted = planned("rmm", "ear", seeds=1)
    bad, good = wanted
    diverging = Config(optimizer="sgd", learning_rate=1e30)
    wanted[bad] = runs.job(bad.setting, diverging)
    failed = grid.compute(grid.missing(wanted), client)
    assert failed == {wanted[bad].key}
    (message,) = [line for line in capsys.readouterr().err.splitlines() if "FAILED" in line]
    assert message.startswith("toy/minilm/rmm: FAILED: FloatingPointError: the adapter diverged")
    assert_identical(wanted[good])
    assert [line.split()[4:] for line in grid.table(wanted, failed).splitlines()][1] == ["-", "-"]


def test_a_worker_with_another_source_is_refused_by_name(client, empty, capsys, monkeypatch):
    monkeypatch.setattr(machines, "source", lambda: "another")
    assert len(grid.compute(grid.missing(planned("ear", seeds=1)), client)) == 1
    assert "OtherSource: the worker tcp://127.0.0.1:" in capsys.readouterr().err
    assert not empty.exists()


# -- workers apart: they share nothing with the client but the source


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """The address of a scheduler with one worker, which has no data, no cache and no notebooks; and its folder."""
    folder = tmp_path_factory.mktemp("apart")
    own = {name: str(folder / name.lower()) for name in ("EARLIB_ROOT", "EARLIB_CACHE", "EARLIB_DATA", "EARLIB_BUILD")}
    environment = os.environ | own | {"EARLIB_RESULTS": str(folder / "results")}
    told = folder / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    ends = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": paths.ROOT}
    scheduler = ["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", told]
    processes = [subprocess.Popen([*dask, *scheduler], **ends)]
    try:
        wait_until(lambda: told.exists() and told.read_text().endswith("}"))
        address = json.loads(told.read_text())["address"]
        worker = ["worker", address, "--nthreads", "1", "--no-dashboard", "--local-directory", folder]
        processes.append(subprocess.Popen([*dask, *worker], **ends))
        yield address, folder
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(timeout=300)


def test_workers_need_neither_data_nor_weights_nor_a_disk_in_common(apart, empty):
    address, folder = apart
    assert grid.main(["--dataset", "toy", "--variant", "ear", "--seeds", "2", "--scheduler", address]) == 0
    assert_identical(planned("ear", seeds=2).popitem()[1])
    assert not [name for name in ("earlib_root", "earlib_cache", "earlib_data", "results") if (folder / name).exists()]


def test_notebooks_run_on_workers_apart_and_are_published_here_alone(apart, root, capsys):
    address, folder = apart
    for name, model in (("plain", "none"), ("asking", "some/model")):
        where = "import os\nprint(os.environ['EARLIB_ROOT'])"
        write_notebook(root, name, where, RECORD, parameters=f'{PARAMETERS}\nllm: str = "{model}"')
    reads = "from earlib import paths\nprint(sorted(file.name for file in (paths.records() / profile).glob('*.json')))"
    write_notebook(root, "claims", reads)
    write_notebook(root, "broken", "print('so far')", "1 / 0")
    assert runner.main(["all", "--profile", "smoke", "--scheduler", address]) == 1
    told = capsys.readouterr()
    assert "] broken FAILED after" in told.err and "ZeroDivisionError: division by zero\n" in told.err
    results = root / "results" / "smoke"
    assert outputs(results / "plain.ipynb").startswith(f"{folder / 'earlib_root'}\n")
    assert outputs(results / "asking.ipynb").startswith(f"{root}\n")  # the ledger of its costs is here
    assert outputs(results / "claims.ipynb") == "['asking.json', 'plain.json']\n"
    assert "so far" in outputs(root / "build" / "smoke" / "broken" / "broken.ipynb")
    assert not (folder / "results").exists() and not (folder / "earlib_build").exists()


# -- notebooks on workers of this machine


def waiting(file, then=""):
    """A cell that tells its process and the worker's, and waits until a file is there."""
    return (
        f"import os, pathlib, time\nfolder = pathlib.Path({str(file.parent)!r})\n"
        f"(folder / f'{{name}}.pid').write_text(f'{{os.getpid()}} {{os.getppid()}}')\n"
        f"while not pathlib.Path({str(file)!r}).exists():\n    time.sleep(0.05)\n{then}"
    )


def processes(*files):
    """The kernel and its parent, of each file that `waiting` writes, as soon as it is there."""
    wait_until(lambda: all(file.exists() and " " in file.read_text() for file in files))
    return [int(pid) for file in files for pid in file.read_text().split()]


def test_a_notebook_whose_worker_is_killed_runs_again(apart, root, start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("signs")
    write_notebook(root, "plain", waiting(folder / "go"), RECORD)
    process = start("--scheduler", apart[0])
    kernel, worker = processes(folder / "plain.pid")
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: (folder / "plain.pid").read_text().split()[1:] not in ([], [str(worker)]))
    wait_until(lambda: gone(kernel))
    (folder / "go").touch()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and err == "", err
    assert {file.name for file in (root / "results" / "smoke").iterdir()} == {"plain.ipynb", "plain.json"}


@pytest.mark.parametrize("engine, sent", [("--jobs", signal.SIGKILL), ("--scheduler", signal.SIGINT)])
def test_stopped_notebooks_leave_no_kernel_and_the_old_results(request, root, start, tmp_path_factory, engine, sent):
    old = root / "results" / "smoke" / "plain.json"
    paths.write_atomically(old, "old")
    folder = tmp_path_factory.mktemp("signs")
    for name in ("plain", "other"):
        write_notebook(root, name, RECORD.replace("agrees", "changed"), waiting(folder / "never"))
    many = engine == "--jobs"
    option = "2" if many else request.getfixturevalue("apart")[0]
    process = start(*["other"] * many, engine, option, start_new_session=True)
    kernels = processes(*[folder / f"{name}.pid" for name in ("plain", "other")[: 1 + many]])[::2]
    os.killpg(process.pid, sent)  # as a terminal does
    _, message = process.communicate(timeout=300)
    assert process.returncode == (130 if sent == signal.SIGINT else -sent)
    if sent == signal.SIGINT:
        assert message.splitlines()[-1] == "interrupted; older results are as they were" and "Traceback" not in message
    for kernel in kernels:
        wait_until(lambda: gone(kernel))  # noqa: B023 (called at once)
    assert [(file, file.read_text()) for file in old.parent.iterdir()] == [(old, "old")]


def test_names_in_a_grid_count_once():
    assert len(grid.cells(["toy", "toy"], ["minilm"], ["ear", "rmm", "ear"])) == 2
    assert {cell.setting.dataset for cell in grid.cells(benchmarks.NAMES, ["minilm"], ["ear"])} == set(benchmarks.NAMES)
