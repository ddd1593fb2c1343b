"""Faults in a JSON document, for the tests of the loaders: a value changed or removed, or of a wrong type anywhere."""

import copy

KINDS = {dict: "an object", list: "a list", str: "a text", int: "a number", bool: "true or false"}


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
    if way:
        yield way, written
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        at = f"{written}[{key}]" if isinstance(key, int) else f"{written}.{key}"
        if at.lstrip(".") not in skipped:
            yield from places(inner, skipped, (*way, key), at.lstrip("."))


def of_wrong_type(document, skipped):
    """Documents with a value of a wrong type, for all places and types, and the error's words for it."""
    for place, written in places(document, skipped):
        kind = document
        for key in place:
            kind = kind[key]
        for value in 3, 2.5, True, "x y", [7], {"a": 1}:
            if type(value) is not type(kind):
                yield changed(document, place, value), f"{written}: expected {KINDS[type(kind)]}, found"
