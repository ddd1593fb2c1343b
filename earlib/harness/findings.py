"""The result of each notebook in one sentence, worded from its record by `findings.yaml`."""

import os
from functools import cache
from html import escape
from importlib import resources
from string import Formatter
from typing import NamedTuple

import yaml
from IPython.display import HTML

from earlib import paper, paths
from earlib.harness import profiles, tables
from earlib.records import key_of, load, matching, other_parameters


class Value(NamedTuple):
    """Rows of a record that a sentence speaks of, and their counterparts; how they are shown states `findings.yaml`."""

    rows: list
    others: list = ()

    def __format__(self, form):
        if form == "rows":
            return str(len(self.rows))
        if form in ("above", "below"):
            run = [one for one in self.rows if one.get("difference") is not None]
            clear = [one["difference_low"] > 0 if form == "above" else one["difference_high"] < 0 for one in run]
            return f"{sum(clear)} of {len(run)}"
        if form == "better":
            return f"{sum(one.get('beside', '').startswith('better') for one in self.rows)} of {len(self.rows)}"
        if form == "higher":
            pairs = [pair for pair in zip(self.rows, self.others, strict=True) if pair[0].get("compared_with")]
            return f"{sum(one['measured'] > other['measured'] for one, other in pairs)} of {len(pairs)}"
        row = self.rows[0]
        if form == "count":
            return f"{row['measured']:,.0f}"
        if form == "level":
            return _with_interval(row, "measured", "low", "high", "")
        if form == "time":
            return _in_ms(row["measured"], row["low"], row["high"])
        if row.get("difference") is None:
            raise LookupError(row.get("reason") or "it has no difference")
        low, high = row["difference_low"], row["difference_high"]
        if form == "ms":
            return _in_ms(row["difference"], low, high)
        if form:
            better, level, worse = form.split("|")
            return better if low > 0 else worse if high < 0 else level
        return _with_interval(row, "difference", "difference_low", "difference_high", "+")


def _in_ms(*seconds):
    return "{:.1f} [{:.1f}, {:.1f}] ms".format(*(1000 * one for one in seconds))


def _with_interval(row, *fields):
    *fields, sign = fields
    digits = 1 if paper.unit(row["metric"]) == "%" else 2
    value, low, high = (row.get(one) for one in fields)
    told = _rounded(value, digits, sign)
    return told if low is None else f"{told} [{_bound(low, digits, sign)}, {_bound(high, digits, sign)}]"


def _rounded(value, digits, sign):
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"  # plus zero: a value that rounds to zero has no minus


def _bound(value, digits, sign):
    """A bound with one digit more where it would round to zero, since its sign decides."""
    return _rounded(value, digits + (round(value, digits) == 0 != round(value, digits + 1)), sign)


@cache
def source():
    """Content of `findings.yaml`: by notebook the sentence and the rows that it names."""
    return yaml.safe_load(resources.files("earlib.harness").joinpath("findings.yaml").read_text(encoding="utf-8"))


def finding(record):
    """The sentence of a record; where a value was not measured, the reason; "" for a notebook without one."""
    entry = source().get(record["id"].partition("--")[0])
    return _worded(entry, lambda where: (record, where)) if entry else ""


def show(record):
    """The sentence of a record and what it was measured on, as the first output of its notebook."""
    rows = []
    entry = source()[record["id"].partition("--")[0]]
    for name in _named(entry["says"]):
        try:
            rows += _value(record, entry["rows"][name]).rows[:1]
        except LookupError:  # the sentence says so
            continue
    scope = f'\n<p class="caption">{escape(tables.scope(rows))}</p>' if rows else ""
    return HTML(f'<p class="result"><strong>{escape(finding(record))}</strong></p>{scope}{_committed(record)}')


def _committed(record):
    """The committed result, below that of a run with parameters of the reader's own; "" below others."""
    if os.environ.get("EARLIB_RUNNING") and "--" not in record["id"]:  # what the runner makes may be committed itself
        return ""
    try:
        reference = load(record["id"].partition("--")[0], record["profile"], paths.reference())
    except (FileNotFoundError, ValueError):
        return ""
    if reference["parameters"] == record["parameters"]:
        return ""
    other = escape(other_parameters(record, reference))
    return f'\n<p class="caption">The committed result, with {other}: {escape(finding(reference))}</p>'


def conclude(record):
    """Conclusion of two or three sentences from a record's numbers, as the output of a notebook cell."""
    entry = source()[record["id"].partition("--")[0]]
    told = [_worded({"says": one, "rows": entry["rows"]}, lambda where: (record, where)) for one in entry["concludes"]]
    return HTML(f'<p class="conclusion">{escape(" ".join(dict.fromkeys(told)))}</p>')


def five(folder):
    """The findings of the README, each a sentence, from a folder with the records of both laptop profiles."""

    def place(where):
        where = {"profile": "laptop"} | where
        return load(where.pop("record"), where.pop("profile"), folder), where

    return [_worded(entry, place) for entry in source()["five"]]


def _named(sentence):
    return list(dict.fromkeys(name for _, name, _, _ in Formatter().parse(sentence) if name))


def _worded(entry, place):
    """The sentence with its values, a dash for each that was not measured, and why; the reason alone if none was."""
    told, values, lacking, measured = "", {}, [], False
    for text, name, form, _ in Formatter().parse(entry["says"]):
        told += text
        if name is None:
            continue
        try:
            values[name] = values.get(name) or _value(*place(entry["rows"][name]))
            told += format(values[name], form)
            measured = True
        except (LookupError, FileNotFoundError) as error:
            told += "–"
            lacking.append(f"{error.args[-1]}")
    why = "; ".join(dict.fromkeys(lacking))
    return f"Not measured: {why}." if lacking and not measured else f"{told} (–: {why}.)" if lacking else told


def _value(record, where):
    """Rows of the main split that fit, the profile's own encoder first; of points of a curve the first or the last."""
    wanted = {"metric": "recall@5", "over": None, "split": record["parameters"].get("split", "random")} | where
    ends = {at: wanted.pop(end) for end, at in (("first", 0), ("last", -1)) if end in wanted}
    than = wanted.pop("than", None)
    wanted = {key: one for key, one in wanted.items() if one != "any"}
    split = wanted["split"]
    wanted["split"] = [*(split if isinstance(split, list) else [split]), None]  # rows without one belong to every one
    main = _main_encoder(record["profile"])
    rows = sorted(matching(record["rows"], wanted), key=lambda row: row["encoder"] != main)
    for at, along in ends.items():
        points = sorted((row for row in rows if row.get(along) is not None), key=lambda row: row[along])
        rows = [points[at]] if points else []
    if not rows and "decided" not in where:  # none of the claims may have this verdict
        raise LookupError(f"no row of {', '.join(f'{key} {one}' for key, one in where.items())}")
    if rows and rows[0]["measured"] is None and not rows[0].get("decided"):
        raise LookupError(rows[0]["reason"].rstrip("."))
    return Value(rows, _counterparts(record, rows, than) if than else [])


@cache
def _main_encoder(profile):
    """The encoder of a profile, of several the first; None for one of which there is no file any more."""
    try:
        encoder = profiles.load_profile(profile).defaults.get("encoder")
    except profiles.Unusable:
        return None
    return encoder[0] if isinstance(encoder, list) else encoder


def _counterparts(record, rows, keys):
    found = {key_of(row): row for row in record["rows"]}
    return [found[key_of({**row, **keys})] for row in rows]
