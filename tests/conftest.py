"""Settings of all tests: caches, results and unfinished work lie in a folder of the session, never in the tree."""

import pytest
from hypothesis import settings

from earlib import paths

settings.register_profile("earlib", deadline=None, derandomize=True, database=None)
settings.load_profile("earlib")


@pytest.fixture(scope="session", autouse=True)
def own_places(tmp_path_factory):
    """One empty cache for the whole session, which subprocesses share, so that no test reads an older run."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("EARLIB_CACHE", "EARLIB_RESULTS", "EARLIB_BUILD"):
            patch.setenv(variable, str(tmp_path_factory.mktemp(variable.removeprefix("EARLIB_").lower())))
        yield


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Results and the committed reference, each in a folder of its own."""
    monkeypatch.setenv("EARLIB_RESULTS", str(tmp_path / "new"))
    monkeypatch.setattr(paths, "reference", lambda: tmp_path / "results")
    return tmp_path
