"""What a caller gives a memory, and a folder tells it: in Python's own types, or an error that tells the expected."""

import errno
import os
from collections import Counter
from pathlib import Path

import numpy as np

from earlib.data.encoders import sequence

IDS = (int, str, np.integer)  # an id of NumPy's is taken for Python's, whose hash and value are the same


def ids_of(ids):
    """Ids of a caller, as `id_of`."""
    return [id_of(id, "ids") for id in sequence(ids, "ids")]


def id_of(id, name="id"):
    """An id of a caller, in Python's own types: True and 1.0 equal 1, and are another thing."""
    if isinstance(id, bool) or not isinstance(id, IDS):
        raise TypeError(f"{name}: expected int or str, found {type(id).__name__} {id!r}")
    if isinstance(id, str):
        check_text(id, f"{name}: {id!r}")
    return str(id) if isinstance(id, str) else int(id)


def folder_of(path):
    """A folder that a caller names, there or not."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path: expected the name of a folder, found {type(path).__name__} {str(path)[:60]!r}")
    path = Path(path).resolve()
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "path: expected a folder, found a file", str(path))
    return path


def question(query):
    if not isinstance(query, str):
        raise TypeError(f"query: expected a string, found {type(query).__name__} {str(query)[:60]!r}")
    check_text(query, "query")
    return query


def whole_number(number, name, least):
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
        raise TypeError(f"{name} = {number!r}: expected a whole number, found {type(number).__name__}")
    if number < least:
        raise ValueError(f"{name} = {number}: expected at least {least}")
    return int(number)


def check_text(text, name):
    try:
        text.encode()
    except UnicodeEncodeError as error:
        told = f"expected text without lone surrogates, found {text[error.start]!r} at {error.start}"
        raise ValueError(f"{name}: {told}; decode its source with errors='replace'") from None


def check_array(name, values, dtype, shape):
    if values.dtype != dtype or values.shape != shape:
        expected = f"{np.dtype(dtype)} {list(shape)}"
        raise ValueError(f"{name}: expected {expected}, found {values.dtype} {list(values.shape)}")


def check_distinct(ids):
    if len(set(ids)) < len(ids):
        twice = next(id for id, times in Counter(ids).items() if times > 1)
        raise ValueError(f"ids: {twice!r} comes twice; expected each id once")


def label_of(label):
    """True, False or None of what a caller may say."""
    said = label.item() if getattr(label, "ndim", None) == 0 else label  # of NumPy or torch
    if said is None or isinstance(said, (bool, int, float)) and said in (1, 0, -1):
        return None if said is None else said > 0
    raise ValueError(f"labels: {label!r}: expected True, False, 1, 0, -1 or None")
