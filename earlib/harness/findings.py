"""The result of each notebook in one sentence, worded from its record by `findings.yaml`."""

import os
from functools import cache
from html import escape
from importlib import resources
from string import Formatter

from IPython.display import HTML

from earlib import paper, paths
from earlib.harness import tables
from earlib.records import key_of, load, matching, other_parameters

SIDES = {"above": 1, "below": -1}


def told(rows, form):
    """Rows of a record in one of the forms that `findings.yaml` explains.

    Raises
    ------
    LookupError
        If a difference is asked for that was not measured; the message is the reason.
    """
    compared = [row for row in rows if row.get("difference") is not None]
    if form == "rows":
        return f"{len(rows)}"
    if form in SIDES:
        return f"{sum(_side(row) == SIDES[form] for row in compared)} of {len(compared)}"
    if form == "better":
        return f"{sum(row.get('beside', '').startswith('better') for row in rows)} of {len(rows)}"
    if form == "higher":
        pairs = [(row["measured"], row["than"]) for row in rows if row.get("compared_with")]
        return f"{sum(value > other for value, other in pairs)} of {len(pairs)}"
    if form == "count":
        return f"{rows[0]['measured']:,.0f}"
    if form == "level":
        return _with_interval(rows[0], ("measured", "low", "high"))
    if form == "time":
        return _in_ms(rows[0], ("measured", "low", "high"))
    if rows[0].get("difference") is None:
        raise LookupError(rows[0].get("reason") or "it has no difference")
    if form == "ms":
        return _in_ms(rows[0], ("difference", "difference_low", "difference_high"))
    if form:
        return form.split("|")[1 - _side(rows[0])]
    return _with_interval(rows[0], ("difference", "difference_low", "difference_high"), "+")


def _side(row):
    """1 where the interval of a difference lies above 0, -1 where it lies below, else 0."""
    return (row["difference_low"] > 0) - (row["difference_high"] < 0)


def _in_ms(row, fields):
    return "{:.1f} [{:.1f}, {:.1f}] ms".format(*(1000 * row[field] for field in fields))


def _with_interval(row, fields, sign=""):
    digits = 1 if paper.unit(row["metric"]) == "%" else 2
    value, *ends = (row.get(field) for field in fields)
    shown = _rounded(value, digits, sign)
    if None in ends:
        return shown
    # A bound that would round to zero has one digit more, since its sign decides.
    digits = [digits + (round(end, digits) == 0 != round(end, digits + 1)) for end in ends]
    return f"{shown} [{', '.join(_rounded(end, many, sign) for end, many in zip(ends, digits, strict=True))}]"


def _rounded(value, digits, sign):
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"  # plus zero: a value that rounds to zero has no minus


@cache
def source():
    """Content of `findings.yaml`: by notebook the sentence and the rows that it names."""
    return paths.read_yaml(resources.files("earlib.harness").joinpath("findings.yaml"))


def _entry(record):
    return source().get(record["id"].partition("--")[0])


def finding(record):
    """The sentence of a record; where a value was not measured, the reason; "" for a notebook without one."""
    entry = _entry(record)
    return _worded(entry["says"], entry["rows"], record) if entry else ""


def show(record):
    """The sentence of a record and what it was measured on, as the first output of its notebook."""
    rows, entry = [], _entry(record)
    for name in dict.fromkeys(name for _, name, _, _ in Formatter().parse(entry["says"]) if name):
        try:
            rows += _rows(record, entry["rows"][name])[:1]
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
    entry = _entry(record)
    sentences = [_worded(one, entry["rows"], record) for one in entry["concludes"]]
    return HTML(f'<p class="conclusion">{escape(" ".join(dict.fromkeys(sentences)))}</p>')


def five(folder):
    """The findings of the README, each a sentence, from a folder with the records of both laptop profiles."""
    return [_worded(entry["says"], entry["rows"], folder=folder) for entry in source()["five"]]


def _worded(sentence, rows, record=None, folder=None):
    """The sentence with its values, a dash for each that was not measured, and why; the first reason alone if none was.

    Its rows are those of a record, or, in a folder, each of the record that it names.
    """
    words, lacking, measured = "", {}, False
    for text, name, form, _ in Formatter().parse(sentence):
        words += text
        if name is None:
            continue
        where = {"profile": "laptop", **rows[name]}
        try:
            found = record or load(where["record"], where["profile"], folder)
            words += told(_rows(found, rows[name]), form)
            measured = True
        except (LookupError, FileNotFoundError) as error:
            words += "–"
            lacking[error.args[-1]] = True
    if lacking and not measured:
        return f"Not measured: {next(iter(lacking))}."
    return f"{words} (–: {'; '.join(lacking)}.)" if lacking else words


def _rows(record, where):
    """Rows of the main split that fit, the profile's own encoder first; of points of a curve the first or the last."""
    wanted = {"metric": "recall@5", "over": None, "split": record["parameters"].get("split", "random")} | where
    first, last, than = (wanted.pop(key, None) for key in ("first", "last", "than"))
    wanted = {key: one for key, one in wanted.items() if one != "any" and key not in ("record", "profile")}
    split = wanted["split"]
    wanted["split"] = [*(split if isinstance(split, list) else [split]), None]  # rows without one belong to every one
    main = _main_encoder(record["profile"])
    rows = sorted(matching(record["rows"], wanted), key=lambda row: row["encoder"] != main)
    if along := first or last:
        points = sorted((row for row in rows if row.get(along) is not None), key=lambda row: row[along])
        rows = points[:1] if first else points[-1:]
    if not rows and "decided" not in where:  # none of the claims may have this verdict
        raise LookupError(f"no row of {', '.join(f'{key} {one}' for key, one in where.items())}")
    if rows and rows[0]["measured"] is None and not rows[0].get("decided"):
        raise LookupError(rows[0]["reason"].rstrip("."))
    if than:
        values = {key_of(row): row["measured"] for row in record["rows"]}
        rows = [{**row, "than": values[key_of({**row, **than})]} for row in rows]
    return rows


@cache
def _main_encoder(profile):
    """The encoder of a profile, of several the first; read plainly, since its checks take seconds to import."""
    defaults = paths.read_yaml(paths.profiles() / f"{profile}.yaml").get("defaults", {})
    encoder = defaults.get("encoder")
    return encoder[0] if isinstance(encoder, list) else encoder
