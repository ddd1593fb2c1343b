"""Comparison of a record with the committed one of the same name."""

import math
import re

from earlib import paper, paths
from earlib.records.files import load
from earlib.records.origin import departures, version_of
from earlib.records.rows import key_of, named

ENDS = ("low", "high", "difference_low", "difference_high")
COUNTS = ("unparsed", "refused", "answer_words")  # of replies
OF_CLAIMS = ("parts", "readings", "beside", "comparison", "corrected")
VARYING = {"measured", "std", "difference", *ENDS, "p", "verdict", "difference_verdict", "decided", *COUNTS, *OF_CLAIMS}


def compare_with_reference(record, tolerance):
    """Print how the measured values compare with those of the committed record of the same name.

    With other parameters than the committed ones, the values of both stand side by side.
    The text depends on neither machine nor time, so that nbval can compare it; rows marked `varies` are left out. Call
    it before `save`, which may overwrite the reference.

    Parameters
    ----------
    record : dict
    tolerance : float
        Largest difference that counts as none, in the unit of the values.
    """
    print("\n".join(_compared(record, tolerance)))


def _compared(record, tolerance):
    try:
        reference = load(record["id"].partition("--")[0], record["profile"], paths.reference())
    except FileNotFoundError:
        return ["a wheel has no results to compare with" if paths.INSTALLED else "no reference for these parameters"]
    if other := departures(reference, record["profile"], version_of(record)):
        return [f"the reference is {other[0]}: not compared; regenerate the reference"]
    if reference["parameters"] != record["parameters"]:
        return _side_by_side(record, reference)
    now, then = ({key_of(row): row for row in one["rows"] if not row.get("varies")} for one in (record, reference))
    pairs = [(now.get(key), then.get(key)) for key in now | then]
    pairs = [pair for pair in pairs if any(row and row["measured"] is not None for row in pair)]
    off = [text for pair in pairs if (text := _off(*pair, tolerance))]
    points = " points" if {paper.unit(row["metric"]) for row in now.values()} == {"%"} else ""
    varying = sum(bool(row.get("varies")) for row in record["rows"])
    left_out = f"; {varying} that var{'y' if varying > 1 else 'ies'} between machines not compared" if varying else ""
    told = f"reference: {len(pairs) - len(off)} of {len(pairs)} values within {tolerance:g}{points}{left_out}"
    return [told, *off]


def _side_by_side(record, reference):
    """Values of a record beside those of one with other parameters: the headline ones, where there are any."""
    then = {key_of(row): row for row in reference["rows"]}
    pairs = [(row, then[key_of(row)]) for row in record["rows"] if key_of(row) in then]
    pairs = [pair for pair in pairs if all(row["measured"] is not None for row in pair)]
    pairs = [pair for pair in pairs if pair[0].get("headline")] or pairs
    lines = [f"  {named(now)}: {now['measured']:.4g}, committed {old['measured']:.4g}" for now, old in pairs[:20]]
    return [f"the committed record has {other_parameters(record, reference)}", *lines]


def other_parameters(record, reference):
    """The parameters of a reference that differ from a record's, in words."""
    there = reference["parameters"]
    return ", ".join(f"{key} {there[key]}" for key in there if there[key] != record["parameters"].get(key))


def _off(now, then, tolerance):
    """How a row departs from the reference, None if within the tolerance (twice as large for a difference)."""
    name = f"  {named(now or then)}: "
    if now is None or then is None:
        return name + ("in the reference only" if now is None else "not in the reference")
    for field, far in (("measured", 1), ("difference", 2), ("difference_low", 2), ("difference_high", 2)):
        here, there = now.get(field), then.get(field)
        if (here is None) != (there is None) or (here is not None and abs(here - there) > far * tolerance + 1e-9):
            shown = ["not run" if one is None else f"{one:.6g}" for one in (here, there)]
            return name + ("" if field == "measured" else f"{field} ") + f"{shown[0]}, reference {shown[1]}"
    for field in ("printed", "decided"):
        if now.get(field) != then.get(field):
            return name + f"{field} {now.get(field)}, reference {then.get(field)}"
    return None


def changes(new, old, tolerance=None):
    """Words for what differs between two records of one name, for a reader; none where nothing that matters does.

    The commit and the versions of packages do not matter, but earlib's own does. Numbers are equal within the last of
    their six digits. Of rows marked `varies` (times, first passages, replies) the values may differ, and what follows
    from them (`VARYING`, the numbers in `reason`), but not whether there is a value, nor anything else. With a
    tolerance so may the values of the other rows, as far as `compare_with_reference` counts them as equal.

    Parameters
    ----------
    new, old : dict
    tolerance : float, optional
        In the unit of the values.

    Returns
    -------
    list of str
    """
    made = [{**one.get("provenance", {}), "packages": version_of(one), "commit": None} for one in (new, old)]
    heads = [{**one, "provenance": of} for one, of in zip((new, old), made, strict=True)]
    told = [field for field in heads[0] | heads[1] if field != "rows"]
    told = [field for field in told if not _equal(heads[0].get(field), heads[1].get(field))]
    now, then = ({key_of(row): _given(row) for row in one["rows"]} for one in (new, old))
    off = [key for key in now | then if not _same_row(now.get(key), then.get(key), tolerance)]
    if off:
        return [*told, f"{len(off)} of {len(now | then)} rows"]
    return told + ["order of rows"] * (list(now) != list(then))


def _given(row):
    """A row without what is null, which a file may leave out."""
    return {key: value for key, value in row.items() if value is not None}


def _same_row(now, then, tolerance):
    if now is None or then is None:
        return False
    varying = now.get("varies") and then.get("varies")
    if varying or (tolerance is not None and not _off(now, then, tolerance)):
        now, then = _steady(now), _steady(then)
    return _equal(now, then)


def _steady(row):
    """Part of a varying row that is the same on every machine."""
    kept = {key: value for key, value in row.items() if key not in VARYING}
    return {**kept, "reason": without_numbers(row.get("reason") or ""), "measured": row.get("measured") is not None}


def without_numbers(text):
    """Text with a sign in place of each number, to compare what is said about values that vary."""
    return re.sub(r"[-+−]?\d[\d.,]*(e[+-]?\d+)?", "#", text)


def _equal(here, there):
    """Equality of values as JSON has them, of floats within the last of six digits."""
    if isinstance(here, dict) and isinstance(there, dict):
        return here.keys() == there.keys() and all(_equal(value, there[key]) for key, value in here.items())
    if isinstance(here, list) and isinstance(there, list):
        return len(here) == len(there) and all(map(_equal, here, there))
    if isinstance(here, float) and isinstance(there, int | float):
        return math.isclose(here, there, rel_tol=1e-5, abs_tol=1e-9)
    return here == there
