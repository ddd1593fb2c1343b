"""Validate arguments of callers and stored arrays."""

import copy
import errno
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from earlib.data import encoders

DEEP = 100  # levels of metadata; copying more may exceed Python's recursion limit
ID_TYPES = (int, str, np.integer)  # NumPy's integers become Python's, which have the same hash and value


def check_memory_texts(texts: Iterable[str]) -> list[str]:
    checked = encoders.check_texts(texts)
    for number, text in enumerate(checked):
        check_encodable(text, f"texts[{number}]")
    return checked


def as_number(id: int | str) -> int | str:
    """Return the number of an id that another package carries as text."""
    return int(id) if isinstance(id, str) and re.fullmatch("0|-?[1-9][0-9]{0,18}", id) else id


def check_text(text: str, name: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{name}: expected a string, found {type(text).__name__} {text!r:.60}")
    check_encodable(text, name)
    return text


def check_encodable(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"expected text without lone surrogates, found {text[error.start]!r} at {error.start}"
        raise ValueError(f"{name}: {found}; decode its source with errors='replace'") from None


def check_ids(ids: Iterable[Any], name: str = "ids") -> list[int | str]:
    """Return ids, or the ids of what carries one: a `Found`, a document of LangChain, a node of LlamaIndex."""
    carried = (getattr(one, "id", getattr(one, "node_id", one)) for one in encoders.sequence(ids, name))
    return [check_id(one, name) for one in carried]


def check_id(id: int | str, name: str = "id") -> int | str:
    """Return an id as Python's int or str; True and 1.0, which equal 1, are refused."""
    if isinstance(id, bool) or not isinstance(id, ID_TYPES):
        raise TypeError(f"{name}: expected int or str, found {type(id).__name__} {id!r}")
    if isinstance(id, str):
        check_encodable(id, f"{name}: {id!r}")
        return str.__str__(id)  # of an enumeration's member the value
    return int(id)


def check_metadata(metadata: Iterable[Any] | None, count: int) -> list[dict[str, Any]]:
    """Return a dict a text, as JSON gives it back; none where all are empty."""
    given = [] if metadata is None else encoders.sequence(metadata, "metadata")
    if metadata is not None and len(given) != count:
        raise ValueError(f"metadata: expected {count}, one a text, got {len(given)}")
    given = [{} if one is None else check_json(one, f"metadata[{number}]") for number, one in enumerate(given)]
    return given if any(given) else []


def check_json(given: Any, name: str) -> dict[str, Any]:
    """Return a dict as JSON gives it back."""
    if not (isinstance(given, dict) and all(isinstance(key, str) for key in given)):
        raise TypeError(f"{name}: expected a dict whose keys are strings, found {given!r:.60}")
    try:
        stored = json.dumps(given, ensure_ascii=False, allow_nan=False)
        level: list[Any] = [kept := json.loads(stored)]
        for _ in range(DEEP):
            level = [one for held in level for one in (held.values() if isinstance(held, dict) else held)]
            level = [one for one in level if isinstance(one, (dict, list))]
        if level:
            raise RecursionError(f"more than {DEEP} levels")
    except (TypeError, ValueError, RecursionError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: expected what JSON can hold, {DEEP} levels at most: {error}") from None
    check_encodable(stored, name)
    return kept


def check_where(where: Any) -> Callable[[Any], Any] | None:
    """Return a condition on a memory: a caller's, or equalities of its metadata."""
    if where is None:
        return None
    if callable(where):
        return lambda memory: where(own_copy(memory))
    if not isinstance(where, dict):
        raise TypeError(f"where: expected a dict or a callable, found {type(where).__name__} {where!r:.60}")
    wanted, missing = tuple(check_json(where, "where").items()), object()
    return lambda memory: all(memory.metadata.get(key, missing) == value for key, value in wanted)


def own_copy(memory: Any) -> Any:
    """Return a memory for a caller, who may change its metadata."""
    return memory._replace(metadata=copy.deepcopy(memory.metadata))


def check_distinct(ids: Sequence[int | str | None]) -> None:
    if len(set(ids)) < len(ids):
        repeated = next(id for id, times in Counter(ids).items() if times > 1)
        raise ValueError(f"ids: {repeated!r} comes twice; expected each id once")


def check_label(label: Any, name: str = "labels") -> bool | None:
    """Return a label as True, False or None; NumPy's and torch's scalars count as Python's."""
    value = label.item() if getattr(label, "ndim", None) == 0 else label
    if value is None or isinstance(value, (bool, int, float)) and value in (1, 0, -1):
        return None if value is None else value > 0
    raise ValueError(f"{name}: {label!r}: expected True, False, 1, 0, -1 or None")


def check_whole_number(number: int, name: str, least: int) -> int:
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
        raise TypeError(f"{name} = {number!r}: expected a whole number, found {type(number).__name__}")
    if number < least:
        raise ValueError(f"{name} = {number}: expected at least {least}")
    return int(number)


def check_folder(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a folder, which need not exist yet."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path: expected the name of a folder, found {type(path).__name__} {str(path)[:60]!r}")
    path = Path(path).expanduser().resolve()
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "path: expected a folder, found a file", str(path))
    return path


def check_embeddings(made: Any, count: int, width: int | None) -> np.ndarray:
    """Return what a caller's encoder made of some texts as float32, `[n, d]`; a tensor may need a gradient."""
    expected = f"encoder: expected embeddings [{count}, {width or 'd'}], one a text"
    if isinstance(made, torch.Tensor):
        made = made.detach().cpu().float().numpy()
    elif not isinstance(made, (np.ndarray, list, tuple)):
        raise TypeError(f"{expected}, as an array, a tensor or lists of numbers, got {type(made).__name__}")
    try:
        vectors = np.asarray(made)
    except (ValueError, TypeError, RuntimeError):  # lists of different lengths, or of what is no number
        sizes = sorted({len(one) if hasattr(one, "__len__") else 0 for one in made})
        raise ValueError(f"{expected} and all of one width, got lists of {', '.join(map(str, sizes))}") from None
    if vectors.dtype.kind not in "fiu":
        raise TypeError(f"{expected}, of real numbers, got {vectors.dtype} {list(vectors.shape)}")
    if vectors.ndim != 2 or vectors.shape != (count, width or vectors.shape[1]) or not vectors.size:
        raise ValueError(f"{expected}, got {list(vectors.shape)}")
    return vectors.astype(np.float32)


def check_features(made: Any, count: int, width: int | None = None) -> np.ndarray:
    """Return what a caller's features of some texts are as float64, `[n, F]`."""
    expected = f"features: expected finite numbers [{count}, {width or 'F'}], a row a text"
    try:
        values = np.asarray(made, float)
    except (TypeError, ValueError):
        raise TypeError(f"{expected}, got {type(made).__name__} {str(made)[:60]!r}") from None
    if values.ndim != 2 or values.shape != (count, width or values.shape[1]) or not np.isfinite(values).all():
        raise ValueError(f"{expected}, got {list(values.shape)} {str(values)[:60]!r}")
    return values
