"""The runner: what it refuses before running, where results go, and that nothing older is ever lost."""

import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_notebooks import PARAMETERS, RECORD, gone, outputs, wait_until, write_notebook, write_profile

from earlib import paths
from earlib.harness import costs, notebooks, profiles, runner


def plan(*pairs, name="plain"):
    (made,) = profiles.make_plans([name], "smoke", dict(pair.split("=", 1) for pair in pairs))
    return made


def run(*arguments):
    """The exit code of a run in the profile smoke."""
    return runner.main([*arguments, "--profile", "smoke"])


def printed(root, *cells, name="plain", **options):
    """What a notebook prints in the profile smoke; given cells, it is written first."""
    if cells:
        write_notebook(root, name, *cells, **options)
    assert run(name) == 0
    return outputs(root / "results" / "smoke" / f"{name}.ipynb")


def held(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_run_leaves_notebook_and_record_and_a_second_one_the_same_bytes(root, monkeypatch, tmp_path_factory):
    assert printed(root) == "88.0 [1, 2] False minilm\n"
    first = held(root / "results" / "smoke")
    assert sorted(first) == ["plain.ipynb", "plain.json"]
    monkeypatch.setenv("EARLIB_BUILD", str(tmp_path_factory.mktemp("elsewhere")))
    assert run("plain") == 0 and held(root / "results" / "smoke") == first


def test_metadata_keeps_the_parameters_and_nothing_of_the_occasion(root):
    write_notebook(root, "plain", "import sys\nprint(1)", "print(2, file=sys.stderr)\nprint(3)")
    assert run("plain", "-p", "seeds", "4") == 0
    file = root / "results" / "smoke" / "plain--seeds-4.ipynb"
    text, notebook = file.read_text(), nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata["papermill"] == {"parameters": {"profile": "smoke", "name": "plain--seeds-4", "seeds": 4}}
    assert "version" not in notebook.metadata.language_info
    assert all(set(cell.metadata) <= {"tags", "jupyter"} for cell in notebook.cells)
    assert [cell.id for cell in notebook.cells if cell.metadata.get("jupyter")] == ["injected-parameters"]
    assert outputs(file) == "1\n3\n"
    assert "duration" not in text and "_time" not in text and str(root) not in text


def test_the_kernel_is_this_interpreter_whatever_kernels_the_user_has(root, monkeypatch):
    foreign = root / "jupyter" / "kernels" / "python3"
    foreign.mkdir(parents=True)
    (foreign / "kernel.json").write_text('{"argv": ["/bin/false"], "display_name": "x", "language": "python"}')
    monkeypatch.setenv("JUPYTER_PATH", str(root / "jupyter"))
    assert printed(root, "import sys\nprint(sys.executable)") == f"{sys.executable}\n"


@pytest.mark.parametrize(
    "pairs, name",
    [
        (["precision=88"], "plain"),  # the default
        (["precision=88.0", "recall=[86, 80]", "label=none"], "plain"),
        (["precision=70.5", "seeds=5"], "plain--precision-70.5--seeds-5"),
        (["sizes=[3,4]"], "plain--sizes-3+4"),
        (["reset=true"], "plain--reset-True"),
        (["label=no"], "plain--label-no"),
        (["recall=70"], "plain--recall-70"),
        (["recall=[70, 60]"], "plain--recall-70+60"),
    ],
)
def test_names_of_own_results(root, pairs, name):
    assert plan(*pairs).name == plan(*pairs).parameters["name"] == name
    assert plan(*reversed(pairs)).name == name


lists = [st.lists(one, max_size=3) for one in (st.text(max_size=3), st.floats(0, 1))]
kinds = [st.text(), st.integers(), st.floats(allow_nan=False), *lists]
values = st.one_of(
    *(st.lists(one, min_size=2, max_size=2, unique_by=repr) for one in kinds),
    st.floats(0.1, 100).map(lambda value: [value, math.nextafter(value, 200)]),  # one for `%.12g`
)


@given(values)
def test_different_values_never_share_a_file_and_never_leave_the_folder(values):
    slugs = [profiles.slug(value) for value in values]
    assert slugs[0] != slugs[1]
    assert all("/" not in slug and "--" not in slug and len(slug) <= 182 for slug in slugs)


@pytest.mark.parametrize(
    "typed, value",
    [
        ("precision=1e-3", 0.001),
        ("precision=70", 70.0),
        ("precision=.5", 0.5),
        ("shift=-1", -1),
        ("sizes=[]", []),
        ("sizes=[1, 3]", [1, 3]),
        ("sizes=3", [3]),
        ("recall=70", [70.0]),
        ("reset=true", True),
        ("label=1e-3", "1e-3"),
        ("label=[a]", "[a]"),
    ],
)
def test_values_are_read_by_the_type_of_their_parameter(root, typed, value):
    key = typed.partition("=")[0]
    found = plan(typed).parameters[key]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "typed, expected",
    [
        ("precision=yes", "expected float, got 'yes'"),
        ("precision=[70]", "expected float"),
        ("precision=70 %", "expected float, got '70 %'"),
        ("seeds=3.5", "expected int, got '3.5'"),
        ("seeds=null", "expected int, got 'null'"),
        ("sizes=x", "expected list[int], got 'x'"),
        ("sizes={1: 2}", "expected list[int]"),
        ("sizes=[1, x]", "expected list[int], got ['1', 'x']"),
        ("reset=never", "expected bool, got 'never'"),
        ("sizes=[1", "not valid YAML"),
        ("precison=70", "did you mean 'precision'"),
        ("q=70", "known: depth, encoder, label, precision"),
        ("profile=laptop", "unknown parameter 'profile'"),
        (
            "encoder=minlm",
            "command line: encoder (registry entry): unknown encoder 'minlm', did you mean 'minilm'?; known: minilm",
        ),
        ("seeds=0", "command line: seeds (how many): expected greater than or equal to 1, got 0"),
        ("precision=130", "expected less than or equal to 100, got 130"),
        ("precision=0", "expected greater than 0"),
        ("recall=130", "expected less than or equal to 100, got 130"),
        ("recall=[70, 0]", "expected greater than 0, got 0"),
        ("dataset=toy", "unknown parameter 'dataset'"),
        ("plian", "unknown notebook 'plian', did you mean 'plain'"),
        ("smok", "unknown profile 'smok', did you mean 'smoke'"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_runs(root, capsys, typed, expected):
    wrong = {"plian": ["plian"], "smok": ["plain", "--profile", "smok"]}.get(typed, ["plain", "-p", *typed.split("=")])
    assert runner.main(["--profile", "smoke", *wrong]) == 2
    message = capsys.readouterr().err
    assert expected in message and message.count("\n") == 1
    assert typed.partition("=")[0] in message
    assert not (root / "build").exists() and not (root / "results").exists()


INCOMPLETE = ["plain -p precision", "plain -p", "", "plain --jobs 2 --scheduler tcp://a:1"]
OUT_OF_RANGE = [f"plain --{option}" for option in ("jobs 0", "max-calls -1", "max-cost -0.5", "max-cost nan")]


@pytest.mark.parametrize("line", INCOMPLETE + OUT_OF_RANGE)
def test_incomplete_commands_say_how_they_go(root, capsys, line):
    with pytest.raises(SystemExit) as stopped:
        runner.main(line.split())
    told = capsys.readouterr().err
    assert stopped.value.code == 2 and "usage: python -m earlib.run" in told
    assert (" or more" in told) is (line in OUT_OF_RANGE)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("title: x\ndefaults: {precision: no}\n", "smoke.yaml: defaults: precision"),
        ("title: x\ndefaults: {seeds: 0}\n", "defaults: seeds (how many): expected greater than or equal to 1"),
        ("title: x\nnotebooks: {plain: {recall: [70, 101]}}\n", "notebooks.plain: recall"),
        ("title: x\ndefaults: {encoder: minlm}\n", "defaults: encoder (registry entry): unknown encoder 'minlm'"),
        ("title: x\ndefaults: {sedes: 5}\n", "did you mean 'seeds'"),
        ("title: x\nnotebooks: {plain: {seeds: x}}\n", "smoke.yaml: notebooks.plain: seeds (how many): expected int"),
        ("title: x\nnotebooks: {plian: {seeds: 3}}\n", "did you mean 'plain'"),
        ("title: x\nnotebooks: {plain: {sedes: 3}}\n", "did you mean 'seeds'"),
        ("title: x\ndefaults: {name: y}\n", "unknown parameter in defaults of"),
        ("defaults: {seeds: 3}\n", "smoke.yaml: title: Field required"),
        ("title: x\ndefault: {seeds: 3}\n", "smoke.yaml: default: Extra inputs"),
        ("title: [x\n", "smoke.yaml: not valid YAML"),
        ("", "smoke.yaml: the whole file"),
        ("title: x\ndevice: gpu\n", "smoke.yaml: device: Value error, device: expected cpu, cuda or cuda:N, got 'gpu'"),
        ("title: x\nprecision: half\n", "smoke.yaml: precision: Input should be 'full' or 'mixed'"),
    ],
)
def test_a_malformed_profile_is_named_with_file_and_field(root, capsys, text, expected):
    write_profile(root, text)
    assert run("plain") == 2
    told = capsys.readouterr().err
    assert expected in told and "smoke.yaml" in told


def test_a_default_that_the_profile_changed_can_be_asked_for(root):
    write_profile(root, "title: x\ndefaults: {seeds: 2}\n")
    assert plan("seeds=2") == plan()
    assert plan("seeds=3").parameters == {"profile": "smoke", "name": "plain--seeds-3", "seeds": 3}


def test_a_profile_gives_defaults_to_those_that_have_them_and_single_notebooks_their_own(root):
    write_notebook(root, "short", "1", parameters='profile: str = ""\nname: str = ""\nseeds: int = 1')
    write_profile(root, "title: x\ndefaults: {seeds: 5, precision: 7e1}\nnotebooks: {plain: {seeds: 6}}\n")
    assert plan().parameters == {"profile": "smoke", "name": "plain", "seeds": 6, "precision": 70.0}
    assert plan(name="short").parameters == {"profile": "smoke", "name": "short", "seeds": 5}
    both = profiles.make_plans(["all"], "smoke", {"precision": "80"})
    assert [made.name for made in both] == ["plain--precision-80", "short"]


@pytest.mark.parametrize(
    "parameters",
    [
        'profile: str = ""\nname: str = ""\nseeds = 3',  # no type
        'profile: str = ""\nname: str = ""\nseeds: int = 3.5',
        'profile: str = ""\nseeds: int = 3',  # no name
        'profile: str = ""\nname: str = ""\nseeds: int = os.getpid()',  # never evaluated
    ],
)
def test_a_parameters_cell_that_cannot_be_checked_is_refused(root, capsys, parameters):
    write_notebook(root, "plain", "1", parameters=parameters)
    assert run("plain") == 2
    assert "plain.ipynb" in capsys.readouterr().err


@pytest.mark.parametrize(
    "totals, expected",
    [
        ((1200, 0, 0.01, 0.0023), "1,200 calls, $0.0123"),
        ((3, 0, 0.0, 0.0), "3 calls, nothing to pay"),
        ((3, 2, 2.0, 0.0), "3 calls, of 2 the cost is unknown, of the others $2.00"),
        ((3, 3, 0.0, 0.0), "3 calls, cost unknown"),
    ],
)
def test_what_a_run_took_is_told_with_what_is_not_known(totals, expected):
    assert costs.took(dict(zip(("calls", "unpriced", "spent", "held"), totals, strict=True))) == expected


def test_estimates_never_become_results(root, monkeypatch):
    monkeypatch.setenv("EARLIB_LLM_ESTIMATE", str(root / "notes"))
    assert printed(root, "import os\nprint(repr(os.environ['EARLIB_LLM_ESTIMATE']))") == "''\n"


def test_an_estimate_that_fails_says_so_and_keeps_nothing(root, capsys):
    write_notebook(root, "plain", RECORD, "1 / 0", parameters=PARAMETERS + '\nllm: str = "m"')
    assert run("plain", "--estimate") == 1
    told = capsys.readouterr()
    assert "ZeroDivisionError" in told.err and "plain (FAILED, as far as it came)" in told.out
    assert not (root / "build").exists() and not (root / "results").exists()


def test_a_notebook_whose_model_is_none_is_not_run_for_an_estimate(root, capsys):
    write_notebook(root, "plain", "1 / 0", parameters=PARAMETERS + '\nllm: str = "none"')
    assert run("plain", "--estimate") == 0
    assert capsys.readouterr().out == "no language model is asked by plain\n"


@pytest.mark.parametrize("content", [b"", b'{"cells": [', b"[]", b"{}", b"\xff\xfe", None])
def test_an_unreadable_notebook_is_named(root, capsys, content):
    file = root / "notebooks" / "cut.ipynb"
    file.mkdir() if content is None else file.write_bytes(content)
    for arguments in (["cut"], ["all"], ["plain", "cut"], ["--list"]):
        assert run(*arguments) == 2
        assert f"error: {file}: expected a notebook" in capsys.readouterr().err


def test_a_failing_cell_keeps_the_old_result_and_the_broken_notebook(root, capsys):
    assert run("plain") == 0
    old = held(root / "results" / "smoke")
    write_notebook(root, "plain", RECORD.replace("agrees", "changed"), "print('so far')\nraise ValueError('K > 3')")
    assert run("plain") == 1 and held(root / "results" / "smoke") == old
    broken = root / "build" / "smoke" / "plain"
    assert "so far" in outputs(broken / "plain.ipynb") and list(broken.parent.iterdir()) == [broken]
    assert f": ValueError: K > 3\n  the notebook as far as it came: {paths.shown(broken)}\n" in capsys.readouterr().err
    assert printed(root, RECORD) and not broken.exists()


def test_a_kernel_that_dies_is_a_failure(root, capsys):
    write_notebook(root, "plain", "import os\nos._exit(1)")
    assert run("plain") == 1
    assert "DeadKernelError" in capsys.readouterr().err


def test_what_was_computed_is_kept_when_it_cannot_be_published(root, capsys):
    folder = root / "results" / "smoke"
    folder.parent.mkdir()
    blocked = f"import pathlib\npathlib.Path({str(folder)!r}).write_text('in the way')"
    write_notebook(root, "plain", RECORD, blocked)
    assert run("plain") == 1
    message = capsys.readouterr().err
    assert "cannot write" in message
    (kept,) = (root / "build" / "smoke").iterdir()
    assert f"as far as it came: {paths.shown(kept)}" in message
    left = {str(file.relative_to(kept)) for file in kept.rglob("*") if file.is_file()}
    assert left == {"plain.ipynb", "smoke/plain.json"}


@pytest.mark.parametrize("jobs, chosen", [(1, None), (2, None), (2, "7")])
def test_kernels_side_by_side_share_the_cores(root, monkeypatch, jobs, chosen):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    for name in ("plain", "other"):
        write_notebook(root, name, "import os\nprint(os.environ.get('OMP_NUM_THREADS'))")
    assert run("all", "--jobs", str(jobs)) == 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    expected = chosen or (str(max(1, cores // jobs)) if jobs > 1 else None)
    said = {outputs(file) for file in (root / "results" / "smoke").glob("*.ipynb")}
    assert said == {f"{expected}\n"}


REPOSITORY = Path(runner.__file__).parent.parent.parent
PROFILES = sorted(file.stem for file in (REPOSITORY / "notebooks" / "profiles").glob("*.yaml"))


def test_all_goes_on_after_a_failure_and_sums_up(root, capsys):
    write_notebook(root, "broken", "1 / 0")
    assert run("all", "--jobs", "2") == 1
    told = capsys.readouterr()
    assert re.search(r"^\[[12]/2] broken FAILED after \d+\.\d s: ZeroDivisionError: division by zero\n  ", told.err)
    head, line, hint, count, failed, verdicts = told.out.splitlines()
    assert head == f"2 notebooks, profile smoke, results in {paths.shown(root / 'results' / 'smoke')}"
    assert re.fullmatch(r"\[[12]/2] plain \d+\.\d s(, about \d+ s left)?", line)
    assert hint.endswith("make report PROFILE=smoke") and count.startswith("1 of 2 notebooks ran in ")
    assert [failed, verdicts] == ["FAILED: broken", "values by verdict: 2 agrees, 1 differs"]


def test_what_reads_the_records_of_others_runs_when_all_are_finished_or_failed(root, capsys):
    """Its name comes first in the alphabet; what it finds is where results go, not its own work folder."""
    found = "from earlib import paths\nprint(sorted(file.name for file in (paths.records() / profile).glob('*.json')))"
    write_notebook(root, "claims", found)
    write_notebook(root, "slow", "import time\ntime.sleep(1)", RECORD.replace("{name}", "slow"))
    write_notebook(root, "zz_broken", "1 / 0")
    assert list(notebooks.sources()) == ["plain", "slow", "zz_broken", "claims"]
    assert run("all", "--jobs", "2") == 1
    assert outputs(root / "results" / "smoke" / "claims.ipynb") == "['plain.json', 'slow.json']\n"
    assert "[4/4] claims " in capsys.readouterr().out


def test_records_can_be_read_from_another_place_than_results_go_to(root, monkeypatch, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("records")
    monkeypatch.setenv("EARLIB_RECORDS", str(elsewhere))
    assert printed(root, "from earlib import paths\nprint(paths.records())", name="claims") == f"{elsewhere}\n"


def test_a_single_value_of_a_list_is_a_list_of_one(root):
    """By the profile's defaults, which notebooks of one and of several share, its entry, or the command line."""
    parameters = PARAMETERS.replace('encoder: str = "minilm"', 'encoder: list[str] = ["gte", "minilm"]')
    write_notebook(root, "several", "1", parameters=parameters)
    write_profile(root, "title: x\ndefaults: {encoder: stella}\n")
    alone, several = profiles.make_plans(["all"], "smoke", {})
    assert (alone.parameters["encoder"], several.parameters["encoder"]) == ("stella", ["stella"])
    for typed, end, found in (("minilm", "minilm", ["minilm"]), ("[minilm, gte]", "minilm+gte", ["minilm", "gte"])):
        made = plan(f"encoder={typed}", name="several")
        assert (made.name, made.parameters["encoder"]) == (f"several--encoder-{end}", found)
    write_profile(root, "title: x\nnotebooks: {several: {encoder: gte}}\n")
    assert plan(name="several").every.items() >= {"encoder": ["gte"], "sizes": [1, 2]}.items()


@pytest.mark.parametrize("given", ["[]", "[minilm, minilm]", "[minilm, minlm]"])
def test_an_empty_list_of_encoders_and_one_named_twice_are_refused(root, capsys, given):
    parameters = PARAMETERS.replace('encoder: str = "minilm"', 'encoder: list[str] = ["minilm"]  # frozen ones')
    write_notebook(root, "plain", "1", parameters=parameters)
    assert run("plain", "-p", "encoder", given) == 2
    told = capsys.readouterr().err
    assert "command line: encoder" in told
    assert ("did you mean 'minilm'" if "minlm" in given else "expected one name or several, each once, got") in told


def test_what_a_profile_makes_can_be_committed_and_a_reader_s_own_runs_cannot():
    def ignored(name):
        command = ["git", "-C", str(REPOSITORY), "check-ignore", "--quiet", "--no-index", f"results/{name}"]
        return subprocess.run(command).returncode == 0

    if subprocess.run(["git", "-C", str(REPOSITORY), "rev-parse"], capture_output=True).returncode:
        pytest.skip("not a git checkout")
    planned = [f"{profile}/{name}" for profile in PROFILES for name in notebooks.sources()]
    files = [f"{name}{end}" for name in planned for end in (".json", ".png", "_calls.png")]
    files += [f"{name}.ipynb" for name in planned if name.startswith(("smoke/", "laptop/"))]
    assert [file for file in files if ignored(file)] == []
    own = ["laptop/tab02.svg", "laptop-large/claims.ipynb", "paper/claims.ipynb", "laptop/controls--seeds-5.json"]
    own += ["laptop/controls--dataset-toy.png", "paper/a--encoder-gte--seeds-5.json"]
    assert [file for file in own if not ignored(file)] == []


@pytest.fixture
def without_locomo(root, monkeypatch, tmp_path_factory):
    """One notebook that has a dataset; LoCoMo is neither on this machine nor to be downloaded."""
    monkeypatch.setenv("EARLIB_DATA", str(tmp_path_factory.mktemp("data")))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    write_notebook(root, "plain", "print(profile, dataset)", parameters=PARAMETERS + '\ndataset: str = "toy"')
    return root


def test_a_profile_none_of_whose_data_can_be_had_runs_smoke(without_locomo, capsys):
    write_profile(without_locomo, "title: Real\ndefaults: {dataset: locomo}\n", "laptop")
    write_notebook(without_locomo, "free", "1")  # a notebook that needs no data changes nothing
    assert runner.main(["all"]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    why = "on made dialogues (profile smoke), not laptop: locomo10.json cannot be had: "
    assert first.startswith(f"running {why}") and last.startswith(f"this run was {why}")
    assert outputs(without_locomo / "results" / "smoke" / "plain.ipynb") == "smoke toy\n"
    assert not (without_locomo / "results" / "laptop").exists()
    assert runner.main(["plain"]) == 2  # asked for by name, not in a group
    assert "nothing can run as it was asked for:\n- locomo10.json cannot be had: " in capsys.readouterr().err


@pytest.mark.parametrize("names", [["all"], ["plain", "several"]])
def test_a_dataset_that_cannot_be_had_costs_the_notebooks_that_have_no_other(without_locomo, capsys, names):
    write_notebook(without_locomo, "several", "1", parameters=PARAMETERS + '\ndataset: list[str] = ["toy"]')
    entry = "{several: {dataset: [locomo, toy]}}"
    write_profile(without_locomo, f"title: x\ndefaults: {{dataset: locomo}}\nnotebooks: {entry}\n", "laptop")
    assert runner.main(names) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("missing: locomo10.json cannot be had: ")
    assert first.endswith(". Left out: plain. Without some values: several")
    assert second.startswith("1 notebook, profile laptop")
    assert [file.stem for file in (without_locomo / "results" / "laptop").iterdir()] == ["several"]


def test_list_shows_titles_and_parameters(root, capsys):
    assert runner.main(["--list"]) == 0
    shown = capsys.readouterr().out
    assert "plain: The title of plain" in shown
    assert "precision: float = 88.0" in shown and "target precision of the critic, %" in shown


def test_one_interrupt_ends_a_run_of_several_notebooks(root, start):
    """Notebooks that had not begun never start, and the command does not wait for them."""
    pid = root / "pid"
    hang = f"import os, pathlib, time\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\ntime.sleep(60)"
    write_notebook(root, "plain", hang)
    for name in ("second", "third"):
        write_notebook(root, name, RECORD)
    process = start("second", "third")
    wait_until(lambda: pid.exists() and pid.read_text())
    process.send_signal(signal.SIGINT)
    out, message = process.communicate(timeout=300)
    assert process.returncode == 130 and message.splitlines()[-1] == "interrupted; older results are as they were"
    assert "second" not in out and gone(int(pid.read_text()))


def test_two_runs_at_once_do_not_disturb_each_other(root, start):
    other = start("-p", "seeds", "4")
    assert run("plain", "-p", "seeds", "5") == 0 == other.wait(timeout=300)
    names = {file.name for file in (root / "results" / "smoke").iterdir()}
    assert names == {f"plain--seeds-{seeds}.{kind}" for seeds in (4, 5) for kind in ("ipynb", "json")}


def test_a_profile_names_the_device_of_its_kernels_unless_the_environment_does(root, monkeypatch):
    told = "import os\nprint(os.environ.get('EARLIB_DEVICE'), os.environ.get('EARLIB_PRECISION'))\n" + RECORD
    write_profile(root, "title: x\ndevice: cpu\nprecision: mixed\n")
    assert "cpu mixed" in printed(root, told)
    monkeypatch.setenv("EARLIB_PRECISION", "full")
    assert "cpu full" in printed(root)


@pytest.mark.parametrize("jobs", [1, 2])
def test_side_by_side_the_longest_begin_first(root, monkeypatch, jobs):
    for name in notebooks.LONGEST:
        write_notebook(root, name)
    plans, begun = profiles.make_plans(["all"], "smoke", {}), []
    monkeypatch.setattr(runner.Runner, "_run", lambda self, plan: None)
    monkeypatch.setattr(runner.Runner, "_stays", lambda self, plan: begun.append(plan.name) or True)
    runner.Runner(jobs).run(plans)
    in_order = [plan.name for plan in plans]
    longest = [name for name in in_order if name in notebooks.LONGEST]
    others = [name for name in in_order if name not in longest]
    assert len(longest) == 2 and in_order != longest + others
    assert begun == (in_order if jobs == 1 else longest + others)
