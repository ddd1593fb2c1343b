"""The content cache: whatever happens to a file, what is loaded is what was saved, or nothing."""

import warnings

import numpy as np
import pytest
from faults import full_disk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from earlib.data import cache

ARRAYS = {
    "vectors": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "turned": np.arange(6, dtype=np.int64).reshape(2, 3).T,
    "which": np.array([True, False]),
    "number": np.array(7.5),
    "none": np.empty((0, 4), np.float16),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def silently(kind, key):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return cache.load(kind, key)


def same(found, expected=ARRAYS):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)
    return True


def test_an_entry_comes_back_bit_for_bit(folder):
    assert silently("runs", "a") is None
    cache.save("runs", "a", ARRAYS)
    assert same(silently("runs", "a")) and silently("runs", "b") is None and silently("scores", "a") is None
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("*.*")] == ["runs/a.safetensors"]
    cache.save("runs", "a", {"one": np.ones(1)})
    assert same(silently("runs", "a"), {"one": np.ones(1)})


@pytest.mark.parametrize("length", [-1, 20, 0])
def test_a_file_cut_short_counts_as_missing(folder, length):
    cache.save("runs", "a", ARRAYS)
    path = folder / "runs" / "a.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.warns(UserWarning, match=rf"{path}: unusable \(.+\); its content is computed again"):
        assert cache.load("runs", "a") is None
    cache.save("runs", "a", ARRAYS)
    assert same(silently("runs", "a"))


@pytest.mark.parametrize("kind, key", [("runs", "b"), ("scores", "a")])
def test_another_entry_under_the_name_counts_as_missing(folder, kind, key):
    cache.save("runs", "a", ARRAYS)
    (folder / kind).mkdir(exist_ok=True)
    (folder / "runs" / "a.safetensors").rename(folder / kind / f"{key}.safetensors")
    with pytest.warns(UserWarning, match=f"{key}.safetensors: unusable .its header does not match its name"):
        assert cache.load(kind, key) is None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_flipped_bit_is_loaded(folder, place, bit):
    cache.save("runs", "a", ARRAYS)
    path = folder / "runs" / "a.safetensors"
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = cache.load("runs", "a")
    assert found is None or same(found)


def test_a_cache_that_cannot_be_written_costs_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"cannot write .*file/runs.*not kept.*EARLIB_CACHE"):
        cache.save("runs", "a", ARRAYS)
    with cache.lock("runs", "a", "running"):
        assert silently("runs", "a") is None


def test_a_full_disk_costs_nothing_else(folder):
    with full_disk(64), pytest.warns(UserWarning, match="cannot write .*not kept"):
        cache.save("runs", "a", ARRAYS)
    assert silently("runs", "a") is None and not list((folder / "runs").iterdir())


def test_parts_are_removed_without_their_entry(folder):
    for key in ("a", "a/0", "a/1", "ab/0"):
        cache.save("runs", key, ARRAYS)
    cache.remove_parts("runs", "a")
    cache.remove_parts("runs", "c")
    assert [same(silently("runs", key)) for key in ("a", "ab/0")] and not (folder / "runs" / "a").exists()
