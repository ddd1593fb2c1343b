"""A user's view of a terminal: a line a notebook, the time left, and at Ctrl-C nothing but that it stopped."""

import io
import os
import re
import sys
import time

import pytest
from made_notebooks import RECORD, write_notebook

from earlib import paths
from earlib.harness import runner

pexpect = pytest.importorskip("pexpect", reason="no terminals of this kind here")


@pytest.fixture
def typed(root):
    """Runs notebooks in a terminal and types Ctrl-C `times` when `sign` is on it; returns its lines and the exit."""
    for name in ("plain", "other", "third"):
        write_notebook(root, name, "import time, sys\nprint('begun', file=sys.stderr)", "time.sleep(2)", RECORD)

    def run(*arguments, sign=None, times=1, wait=0.0):
        source = str(paths.__file__).removesuffix("/earlib/paths.py")
        places = {"EARLIB_ROOT": str(root), "PYTHONPATH": source}
        environment = {key: value for key, value in os.environ.items() if key not in ("EARLIB_RESULTS", "EARLIB_BUILD")}
        command, screen = ["-m", "earlib.run", *arguments, "--profile", "smoke"], io.StringIO()
        look = {"timeout": 300, "encoding": "utf-8", "codec_errors": "replace", "dimensions": (30, 100)}
        terminal = pexpect.spawn(sys.executable, command, env=environment | places, cwd=str(root), **look)
        terminal.logfile_read = screen
        if sign is not None:
            terminal.expect_exact(sign)
            time.sleep(wait)
            for _ in range(times):
                terminal.sendintr()
                time.sleep(0.1)
        terminal.expect(pexpect.EOF)
        exit = terminal.wait()
        lines = [line.rpartition("\r")[2] for line in screen.getvalue().replace("\r\n", "\n").splitlines()]
        return [line for line in lines if line.strip()], exit

    return run


@pytest.mark.parametrize(
    "jobs, sign, times, wait",
    [
        ("2", "", 1, 0.3),  # while modules are imported
        ("2", "results in", 1, 0.0),  # while kernels start
        ("1", "begun", 4, 0.5),  # while cells run, by an impatient user
        ("2", "[1/3]", 1, 0.0),  # between two notebooks
    ],
)
def test_ctrl_c_says_that_it_stopped_and_nothing_else(typed, root, jobs, sign, times, wait):
    lines, exit = typed("all", "--jobs", jobs, sign=sign, times=times, wait=wait)
    assert exit == 130, lines
    *before, last = [line.replace("^C", "") for line in lines]
    # The key may be hit before the end of a line that is being printed.
    assert last.endswith("interrupted; older results are as they were"), lines
    expected = r"|begun|3 notebooks, profile smoke, results in results/smoke|\[\d/3] \w+ [\d.]+ s(, about \d+ s left)?"
    assert [line for line in before if not re.fullmatch(expected, line) and "cell/s" not in line] == []
    assert not [one for one in (root / "build" / "smoke").glob("*") if one.is_dir()]


def test_a_run_tells_each_notebook_in_a_line_and_in_the_last_what_stayed(typed, root, capsys):
    for name in ("plain", "other", "third"):
        write_notebook(root, name, RECORD)
    lines, exit = typed("all", "--jobs", "2")
    assert exit == 0 and lines[0] == "3 notebooks, profile smoke, results in results/smoke"
    ends = [line for line in lines if line.startswith("[")]
    assert [line[:5] for line in ends] == ["[1/3]", "[2/3]", "[3/3]"] and len(lines) == 7, lines
    assert all(" left" in line for line in ends[:2]) and " left" not in ends[2]

    def again(*arguments):
        assert runner.main(["plain", "--profile", "smoke", *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    *_, told, _, stayed = again()
    places = (paths.shown(root / place / "smoke" / "plain.ipynb") for place in ("results", "build/unchanged"))
    assert re.fullmatch(r"\[1/1] plain [\d.]+ s, unchanged", told)
    assert stayed == "unchanged: {}; as this run made them: {} (--rewrite puts them in place)".format(*places)
    assert not any("unchanged" in line for line in again("--rewrite"))
    (root / "results" / "smoke" / "plain.json").write_text('{"rows": [], "precision": 88.0}')
    assert again()[-2].endswith(" s, changed: 4 of 4 rows")


@pytest.mark.parametrize(
    "seconds, told", [(0.2, "1 s"), (89, "89 s"), (240, "4 min"), (5390, "90 min"), (5400, "1.5 h")]
)
def test_durations_are_told_in_one_unit(seconds, told):
    assert runner.rounded(seconds) == told
