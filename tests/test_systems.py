"""Other systems: the package without what Windows lacks, and names that every file system takes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from earlib.harness.profiles import slug
from earlib.memory import EARMemory

ROOT = Path(__file__).parent.parent
LIFE = """
import importlib, json, os, pkgutil, signal, sys
import distributed  # which needs another system's module
sys.modules["fcntl"] = None
example = sys.stdin.readline()
exec(json.loads(example), {})
del os.fork, os.sched_getaffinity, signal.SIGKILL, signal.SIGALRM, signal.SIGHUP  # which torch has needed until here
import earlib
for module in pkgutil.walk_packages(earlib.__path__, "earlib."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:  # of LangChain, LlamaIndex and the server
        if "pip install 'earlib[" not in str(error):
            raise
held = earlib.memory.EARMemory.load("memory")
try:
    earlib.memory.EARMemory.load("memory")
except BlockingIOError as error:
    print("refused:", error)
print(len([name for name in sys.modules if name.startswith("earlib.")]), flush=True)
sys.stdin.read()
"""


def test_without_what_windows_lacks_everything_is_imported_and_a_memory_lives(tmp_path):
    page = (ROOT / "docs" / "memory.md").read_text("utf-8")
    example = re.search(r"```python\n(.*?EARMemory\(\).*?)```", page, re.DOTALL)[1]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "EARLIB_ROOT": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", LIFE]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=tmp_path, env=environment) as other:
        print(json.dumps(example), file=other.stdin, flush=True)
        shown, refused, counted = (other.stdout.readline() for _ in range(3))
        assert "1 of 500 experiences, folder" in shown and "[0, 1] Ada plays the cello True" in shown
        assert re.search(r"refused: .*memory: open in another memory; close\(\) that one first", refused), refused
        assert (
            int(counted) >= len(list((ROOT / "earlib").rglob("*.py"))) - 4
        )  # all but the package itself and the above
        other.kill()
    with EARMemory.load(tmp_path / "memory") as again:
        assert again.ids() == [0]
    assert [file.name for file in (tmp_path / "memory").iterdir()] == ["memory.sqlite"]


ODD = ["NUL.txt", "a.", "a ", "a:b", "..", ".", "", " "]


@given(st.one_of(st.sampled_from(ODD), st.text(), st.floats(), st.integers(), st.lists(st.sampled_from(ODD))))
def test_names_made_of_values_suit_every_file_system(value):
    name = slug(value)
    assert re.fullmatch(r"[A-Za-z0-9._+-]*[A-Za-z0-9_+-]", name) and len(name) <= 60 * max(1, len(str(value)))
