"""For the tests of the loaders: JSON documents with a value changed, missing or of a wrong type, and the real files."""

import copy
import json
import resource
from contextlib import contextmanager

import pytest

from earlib import paths


def changed(document, place, value=None):
    """Copy of the document with another value at a place, or without it."""
    *way, last = place
    document = inner = copy.deepcopy(document)
    for key in way:
        inner = inner[key]
    inner[last] = value
    if value is None:
        del inner[last]
    return document


def places(value, skipped, way=(), written=""):
    """Places of all values in the document but the skipped ones, as a path and as an error writes it."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        at = f"{written}[{key}]" if isinstance(key, int) else f"{written}.{key}".lstrip(".")
        if at not in skipped:
            yield (*way, key), at, type(inner)
            yield from places(inner, skipped, (*way, key), at)


def faults(document, skipped, optional):
    """Documents with one value missing or of a wrong type, for all places and types, and the place in the error."""
    for place, at, kind in places(document, skipped):
        if isinstance(place[-1], str) and at not in optional:
            yield changed(document, place), f"{at}: expected this field, found none"
        for value in 3, 2.5, True, "x y", [7], {"a": 1}:
            if type(value) is not kind:
                yield changed(document, place, value), at


@contextmanager
def full_disk(size):
    """Let no file grow beyond so many bytes: the write itself fails, half done; Python ignores the signal with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def written(folder, *entries):
    """Path of a file that contains these entries."""
    path = folder / "made.json"
    path.write_text(json.dumps(entries), encoding="utf-8")
    return path


def real_file(name):
    """Path of a publisher's file where there is one; the test is skipped elsewhere."""
    for folder in paths.data_folders():
        if (folder / name).exists():
            return folder / name
    pytest.skip(f"{name} is in none of {[str(folder) for folder in paths.data_folders()]}")


def refused(read, path, *words):
    """Check that reading a file is refused in one line that names it, what was expected, and these words."""
    with pytest.raises(ValueError) as caught:
        read(path)
    told = str(caught.value)
    assert "\n" not in told and not [word for word in (str(path), "expected", *words) if word not in told], told
