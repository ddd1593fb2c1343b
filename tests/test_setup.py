"""The files that set a machine up say the same, and nothing in the repository belongs to one machine."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import grimp
import pytest
import pythons
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import earlib
from earlib.harness import notebooks

ROOT = Path(earlib.__file__).resolve().parent.parent
OF_EXTRAS = {"langchain_core": "langchain", "llama_index": "llamaindex", "mcp": "mcp"}  # imported by who asks for them
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CORE = list(map(Requirement, PROJECT["project"]["dependencies"]))
EXTRAS = {name: list(map(Requirement, of)) for name, of in PROJECT["project"]["optional-dependencies"].items()}
DIRECT = [one for one in CORE + EXTRAS["paper"] + EXTRAS["llm"] + EXTRAS["test"] if one.name != "earlib"]
# What the build of torch with CUDA needs besides, pinned by its own metadata.
CUDA = re.compile(r"nvidia-|cuda-|triton")
SYSTEMS = [{"sys_platform": "linux", "os_name": "posix"}, {"sys_platform": "darwin", "os_name": "posix"}]
SYSTEMS += [{"sys_platform": "win32", "os_name": "nt"}]


def locked(**machine):
    """Name and version of what the lock holds for this machine, or another."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    form = re.compile(r"[a-z0-9.-]+==[a-z0-9.!]+( ; .+)?")
    assert all(map(form.fullmatch, lines)), "`name==version`, without local tag, path or address, and a marker at most"
    pins = [one for one in map(Requirement, lines) if one.marker is None or one.marker.evaluate(machine)]
    versions = {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in pins}
    assert len(versions) == len(pins), "one version of a package"
    return versions


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda one: one["sys_platform"])
@pytest.mark.parametrize("version", ["3.11.2", *(f"3.{minor}.5" for minor in pythons.supported())])
def test_the_lock_is_of_every_supported_python_and_system(version, system):
    """In the same versions, but for one package before Python 3.11.5; and without what only a CUDA build needs."""
    there = locked(python_full_version=version, python_version=version.rpartition(".")[0], **system)
    here = locked()
    assert {canonicalize_name(one.name) for one in DIRECT} <= set(there)
    assert {name for name in there.keys() & here.keys() if there[name] != here[name]} <= {"soupsieve"}
    assert not [name for name in there if CUDA.match(name)]


def pinned(extras):
    """Name and version of what the lock of some extras holds."""
    lines = (ROOT / f"requirements-{extras}.lock").read_text().splitlines()
    pins = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!]+)", line) for line in lines if not line.startswith("#")]
    return [(canonicalize_name(pin[1]), pin[2]) for pin in pins]


def test_the_model_server_is_pinned_and_kept_out_of_the_lock():
    assert [name for name, _ in pinned("llm")].count("llama-cpp-python") == 1 and "llama-cpp-python" not in locked()


def test_the_extras_are_pinned_as_declared_and_kept_out_of_the_lock():
    """`make test-integrations` tests the versions that `pip install earlib[langchain]` brings."""
    declared = {
        (canonicalize_name(one.name), str(one.specifier)) for name in OF_EXTRAS.values() for one in EXTRAS[name]
    }
    pins = dict(pinned("extras"))
    assert len(declared) == 3 and declared <= {(name, f"=={version}") for name, version in pins.items()}
    assert {name: locked()[name] for name in pins if name in locked()}.items() <= pins.items()


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


def provided(requirements):
    """Modules that these requirements bring, not counting what they need themselves."""
    names = {canonicalize_name(one.name) for one in requirements}
    return {module for module, of in metadata.packages_distributions().items() if names & {*map(canonicalize_name, of)}}


def test_what_the_package_imports_is_declared():
    imported = set()
    for file in (ROOT / "earlib").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(node.module.partition(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - {"earlib"} - set(OF_EXTRAS)
    assert set(OF_EXTRAS.values()) < set(EXTRAS) and {"torch", "yaml", "openai"} <= foreign
    assert foreign <= provided(CORE + EXTRAS["paper"] + EXTRAS["llm"])


@pytest.mark.parametrize("module, allowed", [("earlib.memory", CORE), ("earlib.llm.models", CORE + EXTRAS["llm"])])
def test_a_memory_and_its_critic_import_nothing_of_the_paper_s_extra(module, allowed):
    """Not even in a function: along all imports of the package that start there."""
    graph = grimp.build_graph("earlib", include_external_packages=True, cache_dir=None)
    above = graph.find_upstream_modules(module, as_package=True)
    foreign = {name for name in above if not name.startswith("earlib.")} - set(sys.stdlib_module_names) - {"earlib"}
    assert {"pydantic", "yaml"} <= foreign - set(OF_EXTRAS) <= provided(allowed)


@pytest.fixture(scope="module")
def without_extras(tmp_path_factory):
    """Runs a program in a Python that has only what the core needs, as if nothing else were installed."""
    folder = tmp_path_factory.mktemp("core")
    cuda = {canonicalize_name(one.name) for one in metadata.distributions() if CUDA.match(canonicalize_name(one.name))}
    for name in needed(CORE) | cuda:
        for file in metadata.files(name):
            top = folder / file.parts[0]
            if file.parts[0] != ".." and not top.exists():
                top.symlink_to(Path(file.locate()).parents[len(file.parts) - 1] / file.parts[0])

    def run(program, place):
        environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
        command = [sys.executable, "-S", "-W", "ignore", "-c", program]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


MEMORY = re.search(r"## A memory that learns\n.*?```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
IMPORT_ALL = """
import importlib, pkgutil, earlib
for module in pkgutil.walk_packages(earlib.__path__, "earlib."):
    try:
        importlib.import_module(module.name)
    except (ModuleNotFoundError, SystemExit) as error:
        print(module.name, error)
"""


def test_a_memory_works_without_the_extras(without_extras, tmp_path):
    assert "Ada plays the cello" in without_extras(MEMORY, tmp_path) and (tmp_path / "memory").is_dir()


def test_what_lacks_an_extra_names_it(without_extras, tmp_path):
    told = dict(line.split(" ", 1) for line in without_extras(IMPORT_ALL, tmp_path).splitlines())
    assert {name: line for name, line in told.items() if "pip install 'earlib[" not in line} == {}
    assert "earlib[llm]" in told["earlib.llm.models"] and "earlib[paper]" in told["earlib.harness"]
    assert {name for name in told if name.split(".")[1] in ("core", "memory", "paths", "devices", "records")} == {
        f"earlib.memory.{name}" for name in ("for_langchain", "for_llamaindex", "serve")
    }


def test_conda_gets_the_same_versions():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    assert Requirement(conda[0]).specifier == SpecifierSet(PROJECT["project"]["requires-python"])
    assert conda[1:] == ["pip"]
    assert pip == {"pip": ["-r requirements.lock", "-e ."]}


def make(*arguments, folder=ROOT, **environment):
    # Of a `make test` that runs this, and of the shell that it runs in.
    outer = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PROFILE", "ARGS", "VENV", "INTERPRETER")
    outer += ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")
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


@pytest.fixture
def fresh(tmp_path):
    """The repository's set-up files without an environment, and an empty lock so that installing is quick."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "requirements.lock").write_text("# nothing\n")
    return tmp_path


def test_make_clean_keeps_what_took_hours_or_money_and_clean_cache_says_what_goes(fresh):
    for name in ("cache/embeddings/a", "cache/llm/replies.sqlite", "cache/scores/a", "cache/runs/a", "build/a"):
        (fresh / name).parent.mkdir(parents=True)
        (fresh / name).write_text("x")
    for name in ("earlib", "tests"):
        (fresh / name).mkdir()
    for _ in range(2):
        assert make("clean", folder=fresh).returncode == 0
        assert sorted(one.name for one in (fresh / "cache").iterdir()) == ["embeddings", "llm", "scores"]
        assert not (fresh / "build").exists()
    told = make("clean-cache", folder=fresh)
    assert re.search(r"^[\d.]+[KMG]?\tcache/llm$", told.stdout, re.M) and not (fresh / "cache").exists()
    assert make("clean", "clean-cache", folder=fresh).returncode == 0


def tools(folder, **scripts):
    """A folder for the PATH with a shell, make and these scripts."""
    folder = folder / "tools"
    folder.mkdir()
    for tool in ("rm", "sh", "bash", "make", "touch"):
        (folder / tool).symlink_to(shutil.which(tool))
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_the_first_python_that_fits_is_taken_and_an_install_that_fails_leaves_no_stamp(fresh):
    refusing, fitting = "exit 1", f'exec {sys.executable} "$@"'  # as another version, or pyenv's shim, answers
    path = tools(fresh, python3=refusing, python=refusing, **{"python3.12": fitting})
    (fresh / "requirements.lock").write_text("./missing\n")
    for _ in range(2):
        done = make(".venv/installed", folder=fresh, PATH=path)
        assert done.returncode != 0 and "missing" in done.stderr
        assert (fresh / ".venv" / "bin" / "python").exists() and not (fresh / ".venv" / "installed").exists()


def test_without_a_python_that_fits_make_says_which_and_whence(fresh):
    done = make(".venv/installed", folder=fresh, PATH=tools(fresh, python3="exit 1"))
    assert done.returncode != 0 and "earlib needs Python 3.11 to 3.14" in done.stderr
    assert all(f"`{way}" in done.stderr for way in ("uv python install", "pyenv install", "conda create"))
    assert not (fresh / ".venv").exists()


def test_uv_installs_where_there_is_one(fresh):
    path = tools(fresh, uv="exit 1")
    told = make("--dry-run", ".venv/installed", folder=fresh, PATH=path).stdout
    assert f"{path}/uv venv" in told and "-m pip" not in told
    assert f"{path}/uv pip install --python .venv/bin/python --requirement requirements.lock" in told


@pytest.mark.parametrize(
    "active, used",
    [
        ({"VIRTUAL_ENV": "/mine"}, "/mine"),
        ({"CONDA_PREFIX": "/conda/envs/mine", "CONDA_DEFAULT_ENV": "mine"}, "/conda/envs/mine"),
        ({"VIRTUAL_ENV": "/mine", "CONDA_PREFIX": "BASE"}, "/mine"),
        ({"CONDA_PREFIX": "BASE", "CONDA_DEFAULT_ENV": "BASE"}, None),
        ({}, None),
    ],
)
def test_the_active_environment_is_used_on_request_but_never_conda_s_base(active, used, tmp_path):
    (tmp_path / "condabin").mkdir()
    active = {name: value.replace("BASE", str(tmp_path)) for name, value in active.items()}
    done = make("--dry-run", "reproduce", "VENV=active", **active)
    if used is None:
        assert done.returncode == 2 and "VENV=active: no environment is active but conda's base at most" in done.stderr
    else:
        assert f"\n{used}/bin/python -m earlib.run reproduction" in done.stdout and "-m venv" in done.stdout
        assert ".venv/bin" not in done.stdout
    told = make("--dry-run", "reproduce", **active).stdout
    assert told.splitlines()[-1].startswith(".venv/bin/python -m earlib.run")


@pytest.mark.parametrize("place", [".", "thesis", "thesis/", "thesis other", "/ a"])
def test_a_folder_that_is_no_environment_is_left_alone(place, fresh):
    """Making an environment clears its folder: never one that holds anything else."""
    (fresh / "thesis").mkdir()
    (fresh / "thesis" / "chapter.txt").write_text("years of work")
    before = sorted(fresh.rglob("*"))
    done = make("reproduce", f"VENV={place}", folder=fresh)
    assert done.returncode == 2 and ("left as it is" in done.stderr or "without blanks" in done.stderr), done.stderr
    assert sorted(fresh.rglob("*")) == before


def test_an_unknown_target_is_answered_with_similar_names():
    installed = f"--assume-old={sys.prefix}/installed"
    done = make("tab2", installed, "VENV=active", VIRTUAL_ENV=sys.prefix)
    assert done.returncode == 2 and "did you mean 'tab02_main_results'?" in done.stderr
    assert "`make help`" in done.stderr
    quoted = make("a;echo b", installed, "VENV=active", VIRTUAL_ENV=sys.prefix)
    assert quoted.returncode == 2 and "b" not in quoted.stdout.split()
    for file in ("Makefile", "requirements.lock", "pyproject.toml"):
        assert "earlib.run" not in make("--dry-run", file).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The folder in which a wheel of this repository is unpacked, as if it were site-packages."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in ("earlib", "notebooks"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = "from setuptools import build_meta; build_meta.build_wheel('built')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (file,) = (source / "built").glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(site)
    return site


def listed(folder):
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_a_wheel_has_every_file_of_the_package_and_the_notebooks(wheel):
    files = {str(file.relative_to(ROOT)) for file in tracked()}
    package = {name for name in files if name.startswith("earlib/")}
    beside = {f"earlib/{name}" for name in files if name.startswith("notebooks/")}
    assert {name for name in listed(wheel) if name.startswith("earlib/")} == package | beside


def test_a_wheel_keeps_to_the_working_directory_and_the_user_s_cache(wheel, tmp_path):
    before, here = listed(wheel), tmp_path / "here"
    here.mkdir()
    own = {name: value for name, value in os.environ.items() if not name.startswith("EARLIB_")}
    own |= {"PYTHONPATH": str(wheel), "PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(tmp_path / "cached")}

    def run(*arguments):
        done = subprocess.run([sys.executable, *arguments], cwd=here, env=own, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    run("-m", "earlib.run", "tab01_dataset_stats", "--profile", "smoke")
    record, notebook = (here / "results" / "smoke" / f"tab01_dataset_stats.{kind}" for kind in ("json", "ipynb"))
    assert record.exists() and '"commit": null' in record.read_text()
    assert "a wheel has no results to compare with" in notebook.read_text()
    assert run("-c", "from earlib import paths; print(paths.cache())") == [str(tmp_path / "cached" / "earlib")]
    assert {file.name for file in here.iterdir()} == {"results", "build"}
    assert listed(wheel) == before


def tracked():
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a git checkout: {error}")
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize(
    "kind, pattern, but",
    [
        ("a folder of one machine", r"(?<![\w.<$])/(?:root|home|Users|work|private)/\w", set()),
        ("a package registry", r"pypi\.org|python[h]osted|(?<!download\.)pytorch\.org/whl|registry\.npm", set()),
        ("this very folder", re.escape(str(ROOT)) + r"\b", set()),
        ("what lies beside the repository", r"\.\./shared", {".ci/run"}),
    ],
)
def test_no_tracked_file_holds(kind, pattern, but):
    texts = {file.relative_to(ROOT): file.read_text("utf-8", errors="replace") for file in tracked()}
    found = {str(name): match[0] for name, text in texts.items() for match in re.finditer(pattern, text)}
    assert found.keys() == but, (kind, found)
