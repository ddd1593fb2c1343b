"""The files that set a machine up say the same, and nothing in the repository belongs to one machine."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import earlib
from earlib.harness import notebooks

ROOT = Path(earlib.__file__).resolve().parent.parent
OF_EXTRAS = {"langchain_core": "langchain", "llama_index": "llamaindex"}  # imported by who asks for them
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DIRECT = [
    Requirement(line)
    for line in PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["test"]
]
# What plain pip adds to torch on a machine with CUDA; the build's own metadata pins it.
CUDA = re.compile(r"nvidia-|cuda-|triton")


def locked():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!]+)", line) for line in lines if not line.startswith("#")]
    assert all(pins), "every line of requirements.lock is `name==version`, without local tag, path or address"
    return {canonicalize_name(pin[1]): pin[2] for pin in pins}


def test_the_model_server_is_pinned_and_kept_out_of_the_lock():
    lines = [line for line in (ROOT / "requirements-llm.lock").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line) for line in lines)
    server = [line for line in lines if line.startswith("llama_cpp_python==")]
    assert len(server) == 1 and "llama-cpp-python" not in locked()


def test_the_extras_are_pinned_as_declared_and_kept_out_of_the_lock():
    """`make test-integrations` tests the versions that `pip install earlib[langchain]` brings."""
    lines = [line for line in (ROOT / "requirements-extras.lock").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line) for line in lines)
    declared = [line for name in OF_EXTRAS.values() for line in PROJECT["project"]["optional-dependencies"][name]]
    assert len(declared) == 2 and set(declared) <= set(lines)
    assert not {canonicalize_name(line.partition("==")[0]) for line in lines} & set(locked())


def needed(names):
    """All packages that these need on this machine, the names themselves included."""
    found, open_ends = set(), [(canonicalize_name(one.name), frozenset(one.extras)) for one in names]
    while open_ends:
        name, extras = open_ends.pop()
        if (name, extras) in found or CUDA.match(name):
            continue
        found.add((name, extras))
        for line in metadata.requires(name) or []:
            other = Requirement(line)
            if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in extras | {""}):
                open_ends.append((canonicalize_name(other.name), frozenset(other.extras)))
    return {name for name, _ in found}


def test_the_lock_is_what_is_installed():
    installed = {name: metadata.version(name).partition("+")[0] for name in locked()}
    assert installed == locked()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems need a few other packages; the lock is of Linux")
def test_the_lock_holds_what_the_direct_dependencies_need_and_no_more():
    assert needed(DIRECT) == set(locked())


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda one: one.name)
def test_a_direct_dependency_allows_its_locked_version(requirement):
    assert requirement.specifier.contains(Version(locked()[canonicalize_name(requirement.name)]))


def test_what_the_package_imports_is_declared():
    providers = metadata.packages_distributions()
    imported = set()
    for file in (ROOT / "earlib").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(node.module.partition(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - {"earlib"} - set(OF_EXTRAS)
    assert set(OF_EXTRAS.values()) < set(PROJECT["project"]["optional-dependencies"])
    declared = {canonicalize_name(Requirement(line).name) for line in PROJECT["project"]["dependencies"]}
    assert {"torch", "yaml"} <= foreign
    assert {name for name in foreign if not {canonicalize_name(one) for one in providers[name]} & declared} == set()


def test_every_dependency_has_its_reason():
    text = (ROOT / "pyproject.toml").read_text()
    for requirement in DIRECT:
        assert re.search(rf'^    "{re.escape(requirement.name)}[<>=][^"]*", +# \w', text, re.M), requirement.name


def test_conda_gets_the_same_versions():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    python = Requirement(conda[0].replace("=", "==", 1) + ".*").specifier
    assert str(python) == PROJECT["project"]["requires-python"] == f"=={sys.version_info[0]}.{sys.version_info[1]}.*"
    assert conda[1:] == ["pip"]
    assert pip == {"pip": ["-r requirements.lock", "-e ."]}


def make(*arguments, folder=ROOT, **environment):
    outer = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PROFILE", "ARGS")  # of a `make test` that runs this
    environment = {key: value for key, value in os.environ.items() if key not in outer} | environment
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_every_notebook_is_a_target_of_make():
    for name in notebooks.sources():
        done = make("--dry-run", name, "ARGS=-p precision 70", "PROFILE=smoke")
        assert f"-m earlib.run {name} --profile smoke -p precision 70\n" in done.stdout, done.stderr


@pytest.mark.parametrize("option, jobs", [([], 1), (["-j2"], 2), (["-j"], 1)])
def test_make_hands_its_jobs_on(option, jobs):
    assert f"run reproduction --profile laptop --jobs {jobs}" in make("--dry-run", *option, "reproduce").stdout


def test_make_builds_the_model_server_in_an_environment_of_its_own():
    told = make("--dry-run", "--always-make", "llm").stdout
    assert ".venv-llm/bin/python -m pip install --requirement requirements-llm.lock" in told
    assert told.rstrip().endswith("-m earlib.llm.local")
    assert "EARLIB_TEST_LLM=1 .venv/bin/python -m pytest -m llm" in make("--dry-run", "test-llm").stdout
    assert "run all --profile paper --estimate" in make("--dry-run", "estimate", "PROFILE=paper").stdout


def test_work_by_hand_does_not_touch_the_committed_results():
    assert f'EARLIB_RESULTS="{ROOT}/build/lab" ' in make("--dry-run", "lab").stdout
    assert "build/lab" in next(line for line in make("help").stdout.splitlines() if line.startswith("  make lab"))


@pytest.fixture
def fresh(tmp_path):
    """The repository's set-up files without an environment, and an empty lock so that installing is quick."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "requirements.lock").write_text("# nothing\n")
    return tmp_path


def test_an_install_that_fails_leaves_no_stamp(fresh):
    (fresh / "requirements.lock").write_text("./missing\n")
    for _ in range(2):
        done = make(".venv/installed", folder=fresh)
        assert done.returncode != 0 and "missing" in done.stderr
        assert (fresh / ".venv" / "bin" / "python").exists() and not (fresh / ".venv" / "installed").exists()


def test_without_python_3_11_make_says_so(fresh):
    tools = fresh / "tools"
    tools.mkdir()
    for tool in ("rm", "sh", "bash", "make"):
        (tools / tool).symlink_to(shutil.which(tool))
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")  # as another version answers the question
    (tools / "python3").chmod(0o755)
    done = make(".venv/installed", folder=fresh, PATH=str(tools))
    assert done.returncode != 0 and "earlib needs Python 3.11" in done.stderr
    assert not (fresh / ".venv").exists()


def tracked():
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a git checkout: {error}")
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize(
    "kind, pattern",
    [
        ("a folder of one machine", r"(?<![\w.<$])/(?:root|home|Users|work|private)/\w"),
        ("a package registry", r"pypi\.org|python[h]osted|pytorch\.org/whl|registry\.npm"),
        ("this very folder", re.escape(str(ROOT)) + r"\b"),
    ],
)
def test_no_tracked_file_holds(kind, pattern):
    found = []
    for file in tracked():
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{file.relative_to(ROOT)}: {match[0]}" for match in re.finditer(pattern, text)]
    assert found == [], kind


def test_only_the_ci_knows_what_lies_beside_the_repository():
    beside = re.compile(r"\.\./shared")
    knowing = [file.relative_to(ROOT) for file in tracked() if beside.search(file.read_text(errors="replace"))]
    assert knowing == [Path(".ci/run")]
