"""The doors between the rooms of the package: the contracts hold, and a planted violation breaks each of them."""

import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp

import earlib

ROOT = Path(earlib.__file__).resolve().parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
PLANTED = {  # in a file: a line that opens a door, and the contract that it breaks
    "paths.py": ("from earlib.core import config", "paths and devices know no room"),
    "core/adapter.py": ("from earlib.data import benchmarks", "core knows no other module of the package"),
    "data/locomo.py": ("from earlib.experiments import settings", "data knows the core at most"),
    "paper/granularity.py": ("from earlib import records", "paper knows the core at most"),
    "records/rows.py": ("from earlib.experiments import runs", "records know paper, core and data at most"),
    "experiments/runs.py": ("from earlib.llm import models", "experiments know data, core and paper"),
    "llm/answers.py": ("from earlib import memory", "llm knows experiments and what lies below"),
    "llm/critic.py": ("from earlib.llm import answers", "the critic and its client know no experiment"),
    "memory/online.py": ("from earlib.llm import models", "memory knows data, core and the critic of llm"),
    "claims/evidence.py": ("from earlib.experiments import runs", "claims know paper, records and measures"),
    "extensions/drift.py": ("from earlib import records", "extensions know experiments, memory and what lies below"),
    "llm/models.py": ("import papermill", "only the harness knows papermill"),
}


def contracts(folder):
    """Exit status and output of import-linter on the package in a folder."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_contracts_hold():
    status, told = contracts(ROOT)
    assert status == 0, told


def test_a_planted_violation_breaks_each_contract(tmp_path):
    assert sorted(name for _, name in PLANTED.values()) == sorted(contract["name"] for contract in CONTRACTS)
    shutil.copytree(ROOT / "earlib", tmp_path / "earlib", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, (line, _) in PLANTED.items():
        with (tmp_path / "earlib" / file).open("a") as module:
            module.write(f"\n{line}\n")
    status, told = contracts(tmp_path)
    assert status == 1 and f"Contracts: 0 kept, {len(CONTRACTS)} broken" in told, told


def test_the_core_imports_torch_numpy_and_pydantic_alone():
    graph = grimp.build_graph("earlib", include_external_packages=True, cache_dir=None)
    imported = set().union(*map(graph.find_modules_directly_imported_by, graph.find_descendants("earlib.core")))
    foreign = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names) - {"earlib"}
    assert foreign == {"torch", "numpy", "pydantic"}


def test_what_a_module_says_it_offers_is_there():
    rooms = [earlib.__name__, *(f"earlib.{one.name}" for one in pkgutil.iter_modules(earlib.__path__) if one.ispkg)]
    offering = [importlib.import_module(name) for name in rooms]
    for room in offering:
        assert not [name for name in getattr(room, "__all__", ()) if not hasattr(room, name)], room
    assert any(hasattr(room, "__all__") for room in offering)
