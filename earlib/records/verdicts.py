"""Verdicts on the rows of a record against the paper, and p-values corrected for multiple tests."""

import math

import numpy as np

from earlib.records.rows import SETTING, key_of, named


def closeness(measured, low, high, reported, printed):
    """Verdict on a value (and its interval, if it has one) measured in the paper's own setting.

    "agrees" if the interval contains the reported number, give or take half a unit of its last printed digit. The
    paper prints no intervals; if its own were as wide, that of the difference would be sqrt(2) times as wide: "nearly"
    if it would contain 0, else "differs". Without an interval only the printed digits count.
    """
    half_digit = 0.5 * 10.0 ** -len(printed.partition(".")[2]) * (1 + 1e-9)
    away = abs(reported - measured)
    side = 0.0 if low is None else high - measured if reported > measured else measured - low
    if away <= max(side, 0.0) + half_digit:
        return "agrees"
    return "nearly" if away <= math.sqrt(2) * side + half_digit else "differs"


def direction(low, high, reported_difference):
    """Verdict on a difference measured in another setting than the paper's, of which only the sign is compared."""
    if low <= 0 <= high or reported_difference == 0:
        return "undecided"
    return "same direction" if (low > 0) == (reported_difference > 0) else "other direction"


def own_setting(row):
    """True if a row was measured with the dataset, encoder and language model of the paper's number."""
    return all(row.get(f"reported_{key}") in (None, row.get(key)) for key in SETTING)


def family(row):
    """Tests corrected together (Holm): those of one metric and one table, which these two keys distinguish."""
    return row["metric"], row.get("over"), row.get("control")


def holm(p):
    """Holm's step-down correction of the p-values of one family (Holm 1979)."""
    order = np.argsort(p)
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1)).clip(max=1)
    return corrected


def judge(rows, id):
    """Set the verdict and the corrected p of each row of a record."""
    by_key, families = {}, {}
    for one in rows:
        if by_key.setdefault(key_of(one), one) is not one:
            raise ValueError(f"record {id}: two rows for {named(one)}; add the key that distinguishes them")
        if one["p"] is not None:
            families.setdefault(family(one), []).append(one)
    for one in rows:
        one["verdict"] = _verdict(one, by_key)
    for tested in families.values():
        for one, p in zip(tested, holm([one["p"] for one in tested]), strict=True):
            one["p_holm"] = float(f"{p:.6g}")


def _verdict(row, rows):
    if row["decided"] is not None:
        return row["decided"]
    if row["measured"] is None:
        return "not run"
    if row["reported"] is None:
        return "not in the paper"
    if own_setting(row):
        return closeness(row["measured"], row["low"], row["high"], row["reported"], row["printed"])
    if row["compared_with"] is None:
        return "another setting"
    other = rows.get(key_of({**row, **row["compared_with"]}))
    if other is None:
        raise ValueError(f"{named(row)}: compared_with: the record has no row with {row['compared_with']}")
    if other["measured"] is None:
        return "another setting"
    if other["reported"] is None:
        return "not in the paper"
    if row["difference_low"] is None:
        raise ValueError(f"{named(row)}: difference_low, difference_high: expected the interval of the difference")
    return direction(row["difference_low"], row["difference_high"], row["reported"] - other["reported"])
