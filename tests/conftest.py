"""Settings of all tests: one thread, own folders, working interrupts, all examples with `HYPOTHESIS_PROFILE=full`."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings
from made_notebooks import RECORD, write_notebook, write_profile

from earlib import paths

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: sums of more threads round otherwise
SHORT = 4  # by which the number of generated examples is divided
settings.register_profile("full", deadline=None, derandomize=True, database=None)
settings.register_profile("short", settings.get_profile("full"), max_examples=100 // SHORT)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "short")
settings.load_profile(PROFILE)

# A shell that starts the tests in the background ignores Ctrl-C, and all that they start would do so too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Run the long tests first, so that all workers end at the same time, and shorten those with many examples.

    That is those that state a number of their own, each once however often it is parametrised.
    """
    items.sort(key=lambda item: item.path.stem != "test_notebooks")
    tests = {getattr(item, "obj", None) for item in items} if PROFILE == "short" else ()
    for test in {getattr(test, "__func__", test) for test in tests}:
        stated = getattr(test, "_hypothesis_internal_use_settings", None)
        if stated is not None and hasattr(test, "_hypothesis_internal_settings_applied"):
            fewer = settings(stated, max_examples=max(5, stated.max_examples // SHORT))
            test._hypothesis_internal_use_settings = fewer


@pytest.fixture(scope="session", autouse=True)
def own_places(tmp_path_factory):
    """One empty cache for the whole session, which subprocesses share, so that no test reads an older run."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("EARLIB_CACHE", "EARLIB_RESULTS", "EARLIB_BUILD"):
            patch.setenv(variable, str(tmp_path_factory.mktemp(variable.removeprefix("EARLIB_").lower())))
        patch.setenv("EARLIB_RUNNING", "1")  # what is saved goes to results, as in a notebook that the runner started
        yield


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Results and the committed reference, each in a folder of its own."""
    monkeypatch.setenv("EARLIB_RESULTS", str(tmp_path / "new"))
    monkeypatch.setattr(paths, "reference", lambda: tmp_path / "results")
    return tmp_path


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """An empty cache, no setting of language models from the environment; a function that reads the stored replies."""
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "cache"))
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", *filter(lambda name: name.startswith("EARLIB_LLM_"), os.environ)):
        monkeypatch.delenv(name, raising=False)

    def read(path=tmp_path / "cache" / "llm" / "replies.sqlite"):
        if not path.exists():
            return []
        with closing(sqlite3.connect(path)) as database:
            database.row_factory = sqlite3.Row
            return database.execute("SELECT * FROM replies").fetchall()

    return read


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty cache of the model hub and of embeddings, and no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EARLIB_MODELS", str(tmp_path / "folder"))
    return tmp_path / "hub"


@pytest.fixture(scope="session")
def latex():
    """LaTeX source of the paper."""
    path = os.environ.get("EARLIB_PAPER")
    if not path or not Path(path).is_file():
        pytest.skip("EARLIB_PAPER does not name the paper's LaTeX source")
    return Path(path).read_text(encoding="utf-8")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository with one notebook, `plain`, and one profile, `smoke`."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    for variable in ("EARLIB_RESULTS", "EARLIB_BUILD", "EARLIB_RECORDS"):
        monkeypatch.delenv(variable, raising=False)
    write_notebook(tmp_path, "plain", RECORD)
    write_profile(tmp_path, "title: Small\n")
    return tmp_path


@pytest.fixture
def start(root):
    """Starts the command in a process of its own, which a test that fails does not leave behind."""
    environment = {key: value for key, value in os.environ.items() if key not in ("EARLIB_RESULTS", "EARLIB_BUILD")}
    started = []

    def process(*arguments, **options):
        started.append(subprocess.Popen(
            [sys.executable, "-m", "earlib.run", "plain", *arguments, "--profile", "smoke"],
            env=environment | {"EARLIB_ROOT": str(root)}, cwd=Path(paths.__file__).parent.parent, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        ))  # fmt: skip
        return started[-1]

    yield process
    for one in started:  # its workers and kernels end with it
        one.kill()
        one.communicate()
