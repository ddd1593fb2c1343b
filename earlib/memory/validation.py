"""Validate arguments of callers, and what their functions return."""

import copy
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from earlib.data.encoders import sequence


def check_text(text: str, name: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{name}: expected a string, found {type(text).__name__} {text!r:.60}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: half of a surrogate pair, which no file takes ({error})") from None
    return text


def check_id(id: int | str, name: str = "id") -> int | str:
    """Return an id as Python's int or str; True and 1.0, which equal 1, are refused."""
    id = id.item() if isinstance(id, np.generic) else id
    if isinstance(id, bool) or not isinstance(id, (int, str)):
        raise TypeError(f"{name}: expected int or str, found {type(id).__name__} {id!r}")
    return id


def check_ids(ids: Iterable[Any], name: str = "ids") -> list[int | str]:
    """Return ids, or the ids of what carries one: a `Found`, a document of LangChain, a node of LlamaIndex."""
    return [check_id(getattr(one, "id", getattr(one, "node_id", one)), name) for one in sequence(ids, name)]


def as_number(id: int | str) -> int | str:
    """Return the number of an id that another package carries as text."""
    return int(id) if isinstance(id, str) and re.fullmatch("0|-?[1-9][0-9]{0,18}", id) else id


def check_distinct(ids: Sequence[int | str]) -> None:
    if len(set(ids)) < len(ids):
        raise ValueError(f"ids: {Counter(ids).most_common(1)[0][0]!r} comes twice; expected each id once")


def check_count(number: int, name: str, least: int) -> int:
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
        raise TypeError(f"{name} = {number!r}: expected a whole number, found {type(number).__name__}")
    if number < least:
        raise ValueError(f"{name} = {number}: expected at least {least}")
    return int(number)


def as_json(given: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a dict as JSON gives it back."""
    if not (isinstance(given, dict) and all(isinstance(key, str) for key in given)):
        raise TypeError(f"{name}: expected a dict whose keys are strings, found {given!r:.60}")
    try:
        return json.loads(json.dumps(given, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: expected what JSON can hold: {error}") from None


def as_condition(where: Any) -> Callable[[Any], Any] | None:
    """Return a condition on a memory: a caller's, or equalities of its metadata."""
    if where is None:
        return None
    if callable(where):
        return lambda memory: where(own_copy(memory))
    wanted = as_json(where, "where").items()
    return lambda memory: wanted <= memory.metadata.items()


def own_copy(memory: Any) -> Any:
    """Return a memory for a caller, who may change its metadata."""
    return memory._replace(metadata=copy.deepcopy(memory.metadata))


def as_label(label: Any, name: str = "labels") -> bool | None:
    """Return a label as True, False or None; NumPy's and torch's scalars count as Python's."""
    value = label.item() if getattr(label, "ndim", None) == 0 else label
    if isinstance(value, (bool, int, float)) and value in (1, 0, -1):
        return value > 0
    if value is not None:
        raise ValueError(f"{name}: {label!r}: expected True, False, 1, 0, -1 or None")
    return None


def as_citations(labels: list[bool | None]) -> list[int]:
    """Return labels as the core's citations, 1 or -1, and 0 for None."""
    return [0 if label is None else 2 * label - 1 for label in labels]


def as_labels(citations: torch.Tensor, readable: torch.Tensor) -> list[list[bool | None]]:
    """Return the labels of slates that a critic of the core gives, `[..., s]`."""
    said = torch.where(readable, citations, 0).flatten(0, -2).tolist()
    return [[citation > 0 if citation else None for citation in slate] for slate in said]


def as_matrix(made: Any, name: str, count: int, width: int | None = None, dtype: Any = np.float64) -> np.ndarray:
    """Return what a caller's function has made of some texts, a row of numbers for each; a tensor may need a gradient.

    A ValueError tells what was expected of the function of this name.
    """
    expected = f"{name}: expected finite numbers [{count}, {width or 'any'}], a row a text"
    try:
        values = np.asarray(made.detach().cpu().float() if isinstance(made, torch.Tensor) else made, dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{expected}: {error}") from None
    if values.ndim != 2 or values.shape != (count, width or values.shape[1]) or not np.isfinite(values).all():
        raise ValueError(f"{expected}, got {list(values.shape)} {str(values)[:60]!r}")
    return values
