"""Run the core's tests on every other supported Python of this machine (`make test-pythons`).

Each gets an environment of its own below `build/`, made from the lock as the Makefile makes `.venv`, and removed again.
"""

import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent
ROOM = 12e9  # bytes: an environment with the CUDA build of torch takes 5.5 GB, and its downloads 3 GB on the way


def supported():
    """Minor versions of Python 3 that pyproject.toml allows."""
    allowed = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    return [minor for minor in range(50) if f"3.{minor}.99" in allowed]


def find(minor):
    """An interpreter of a minor version that runs, on the PATH, of pyenv or of uv; None if there is none."""
    name, home = f"python3.{minor}", Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    installed = [*pyenv.glob(f"*/bin/{name}"), *(home / ".local/share/uv/python").glob(f"*/bin/{name}")]
    for python in filter(None, (shutil.which(name), *map(str, installed))):  # pyenv's may not be switched on
        told = subprocess.run([python, "-c", "import ensurepip, sys; print(sys.version_info[1])"], capture_output=True)
        if told.stdout.strip() == str(minor).encode():
            return python
    return None


def main():
    failed = []
    for minor in supported():
        name, python = f"Python 3.{minor}", find(minor)
        if minor == sys.version_info[1]:
            continue
        if python is None:
            print(f"{name}: not on this machine, not tested", flush=True)
            continue
        if (free := shutil.disk_usage(ROOT).free) < ROOM:
            print(f"{name}: SKIPPED, {free / 1e9:.0f} GB of disk are free and it takes {ROOM / 1e9:.0f}", flush=True)
            continue
        print(f"{name}: {python}", flush=True)
        began, folder = time.monotonic(), f"build/python3.{minor}"
        shutil.rmtree(ROOT / folder, ignore_errors=True)  # what an interrupted run left
        environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS")}
        command = ["make", "--no-print-directory", "test-core", f"VENV={folder}", f"INTERPRETER={python}"]
        status = subprocess.run(command, cwd=ROOT, env=environment | {"PIP_NO_CACHE_DIR": "1"}).returncode
        shutil.rmtree(ROOT / folder, ignore_errors=True)
        print(f"{name}: {'FAILED' if status else 'passed'} in {time.monotonic() - began:.0f} s", flush=True)
        failed += [name] * bool(status)
    if failed:
        sys.exit(f"failed on {', '.join(failed)}")


if __name__ == "__main__":
    main()
