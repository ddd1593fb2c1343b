"""Verdicts on the rows of a record against the paper: on a value, and on its difference to another one."""

import math
from collections import Counter

from earlib.records.rows import SETTING, key_of, named

WIDEST = 20.0  # width of an interval, in percentage points, above which it cannot agree with a number
NEVER_JUDGED = ("latency", "added_latency", "model_size")  # properties of a machine or of a program, not of a method


def closeness(measured, low, high, reported, half_digit):
    """Verdict on a value (and its interval, if it has one) measured in the paper's own setting.

    "agrees" if the interval contains the reported number, give or take half a unit of its last printed digit. The
    paper prints no intervals; if its own were as wide, that of the difference would be sqrt(2) times as wide: "nearly"
    if it would contain 0, else "differs". "too few questions" in place of the first two if the interval is wider than
    `WIDEST`. Without an interval only the printed digits count.
    """
    away = abs(reported - measured)
    side = 0.0 if low is None else high - measured if reported > measured else measured - low
    half_digit *= 1 + 1e-9
    if away > math.sqrt(2) * side + half_digit:
        return "differs"
    if low is not None and high - low > WIDEST:
        return "too few questions"
    return "agrees" if away <= max(side, 0.0) + half_digit else "nearly"


def direction(low, high, reported_difference):
    """Verdict on a difference measured in another setting than the paper's, of which only the sign is compared."""
    if low <= 0 <= high or reported_difference == 0:
        return "undecided"
    return "same direction" if (low > 0) == (reported_difference > 0) else "other direction"


def own_setting(row):
    """True if a row was measured with the dataset, encoder and language model of the paper's number."""
    return all(row.get(f"reported_{key}") in (None, row.get(key)) for key in SETTING)


def shown(row):
    """The verdict of a row in words, that on its difference after that on its value."""
    return row["verdict"] + (f"; difference {row['difference_verdict']}" if row.get("difference_verdict") else "")


def tally(rows):
    """Verdicts of rows with their counts; each number that the paper prints counts once, by its first row.

    A printed Recall@5 with which both definitions are compared counts by the strict one.
    """
    keys = ("reported_dataset", "reported_encoder", "variant", "metric", "printed")
    first = {}
    for row in rows:
        number = tuple(str(row.get(key)).removeprefix("fractional ") for key in keys)
        first.setdefault(number if row.get("printed") else key_of(row), row)
    found = (verdict for row in first.values() for verdict in (row["verdict"], row.get("difference_verdict")))
    return Counter(filter(None, found))


def judge(rows, id):
    """Set the verdicts of each row of a record."""
    by_key = {}
    for one in rows:
        if by_key.setdefault(key_of(one), one) is not one:
            raise ValueError(f"record {id}: two rows for {named(one)}; add the key that distinguishes them")
    for one in rows:
        one["verdict"], one["difference_verdict"] = _verdicts(one, by_key)


def _verdicts(row, rows):
    """The verdicts on a row's value, or on its difference in another setting, and on its difference in the paper's."""
    if row["decided"] is not None:
        return row["decided"], None
    if row["measured"] is None:
        return "not run", None
    if row["reported"] is None:
        return "not in the paper", None
    if row["metric"] in NEVER_JUDGED:
        return "not judged", None
    own, other = own_setting(row), _other(row, rows)
    if other is None:
        return (_on_value(row) if own else "another setting"), None
    if not own and other["reported"] is None:
        return "not in the paper", None
    ends = row["difference"], row["difference_low"], row["difference_high"]
    if ends[1] is None:
        raise ValueError(f"{named(row)}: difference_low, difference_high: expected the interval of the difference")
    if other["reported"] is None:
        return _on_value(row), None
    theirs = row["reported"] - other["reported"]
    if not own:
        return direction(*ends[1:], theirs), None
    return _on_value(row), closeness(*ends, theirs, _half_digit(row) + _half_digit(other))


def _other(row, rows):
    """The measured row that this one is compared with; None if there is none."""
    if row["compared_with"] is None:
        return None
    other = rows.get(key_of({**row, **row["compared_with"]}))
    if other is None:
        raise ValueError(f"{named(row)}: compared_with: the record has no row with {row['compared_with']}")
    return other if other["measured"] is not None else None


def _half_digit(row):
    return 0.5 * 10.0 ** -len(row["printed"].partition(".")[2])


def _on_value(row):
    if row["low"] is None and row["seeds"] is not None:
        return "not judged"  # a count or a first passage over seeds, without an interval
    return closeness(row["measured"], row["low"], row["high"], row["reported"], _half_digit(row))
