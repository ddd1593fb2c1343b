"""The record of what a notebook measured, its verdicts against the paper, and how both are shown.

A record is tidy: every row is one value, named by its keys (dataset, encoder, variant, metric and further ones such as
rounds or category). Tables, figures, the README and the claims are drawn from records alone.
"""

import argparse
import html as escape
import json
import math
import re
import subprocess
import sys
from collections import Counter
from importlib import metadata

import numpy as np
import pandas as pd
from IPython.display import HTML
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from . import __version__, paper, paths

PACKAGES = ("torch", "numpy", "scipy", "pandas", "sentence-transformers", "transformers")
SEES_GOLD = "the critic sees test gold (noisy)"
FORM = ConfigDict(strict=True, allow_inf_nan=False)


class Row(BaseModel, extra="allow", **FORM):
    """One value: what was measured, what the paper reports, and the verdict. Further keys are allowed."""

    dataset: str
    encoder: str | None = None
    variant: str | None = None
    metric: str
    n_queries: int | None = Field(None, description="questions that the value is a mean over")
    excluded: int | None = Field(None, description="questions without any gold turn, left out")
    seeds: int | None = Field(None, description="number of seeds")
    measured: float | None = None
    std: float | None = Field(None, description="standard deviation over seeds")
    low: float | None = Field(None, description="95 % interval over questions")
    high: float | None = None
    compared_with: dict | None = Field(None, description="keys of the row that the direction is judged against")
    difference: float | None = Field(None, description="measured here less measured there, paired by question")
    difference_low: float | None = None
    difference_high: float | None = None
    reported: float | None = None
    printed: str | None = Field(None, description="the reported number as the paper prints it")
    reported_dataset: str | None = Field(None, description="the setting of the reported number")
    reported_encoder: str | None = None
    headline: bool = Field(False, description="shown in the README")
    sees_gold: bool = Field(False, description=SEES_GOLD)
    varies: bool = Field(False, description="jumps between machines (a time, a first passage); never compared")
    verdict: str | None = None
    reason: str | None = Field(None, description="why there is no measured value")

    @model_validator(mode="after")
    def _sound(self):
        if self.measured is None and not self.reason:
            raise ValueError("a row without a measured value needs a reason (`reason`)")
        if (self.reported is None) != (self.printed is None):
            raise ValueError("`reported` and `printed` go together; leave both to `against`")
        for low, high in ((self.low, self.high), (self.difference_low, self.difference_high)):
            if (low is None) != (high is None) or (low is not None and low > high):
                raise ValueError(f"an interval needs both ends, the lower first, not {low} to {high}")
        return self


class Record(BaseModel, extra="forbid", **FORM):
    """The results of one notebook with one set of parameters."""

    id: str = Field(pattern=r"^[a-z0-9_]+(--[\w.,=+-]+)?$")
    title: str
    profile: str = Field(pattern=r"^[\w.-]+$")
    parameters: dict
    provenance: dict
    rows: list[Row]


KEYS = ("dataset", "encoder", "variant", "metric")
VALUES = tuple(name for name in Row.model_fields if name not in KEYS)
ALWAYS = ("n_queries", "seeds", "measured", "std", "low", "high", "reported", "verdict", "reason")


# -- rows and verdicts -------------------------------------------------------------------------------------------------


def row(dataset, encoder, variant, metric, *, against=None, compared_with=None, **values):
    """One row of a record; `record` adds its verdict.

    Parameters
    ----------
    dataset, encoder, variant, metric : str
        What was measured; encoder and variant may be None where they mean nothing.
    against : dict, optional
        Where the paper reports it: the `id` of `earlib.paper.reported`, and every key in which the paper's row has
        another value than this one ({"id": "tab03", "dataset": "longmemeval", "encoder": "contriever"}) or a further
        key. A number that the paper lacks stays empty.
    compared_with : str or dict, optional
        The row that the direction is judged against: its variant, or the keys in which it differs ({"rounds": 4}).
    **values
        Fields of `Row`, and further keys that tell rows apart (rounds=2, category="temporal", queries=40).

    Returns
    -------
    dict
    """
    keys = {"dataset": dataset, "encoder": encoder, "variant": variant, "metric": metric}
    if isinstance(compared_with, str):
        compared_with = {"variant": compared_with}
    return {**keys, **values, **_reported(keys, against or {}), "compared_with": compared_with}


def missing(id, rows, dataset, encoder):
    """Rows for the numbers of a paper's table that were not measured: a dash each, with the reason.

    Parameters
    ----------
    id : str
        As in `earlib.paper.reported`.
    rows : list of dict
        What was measured, as `row` returns it.
    dataset, encoder : str
        The setting that was run.

    Returns
    -------
    list of dict
    """
    held = {(one.get("reported_dataset"), one.get("reported_encoder"), one["variant"], one["metric"]) for one in rows}
    made = []
    for one in paper.reported(id):
        keys = [one.get(key) for key in KEYS]
        if tuple(keys) in held:
            continue
        if one["metric"] in ("f1", "j"):
            reason = "F1 and J need a language model, which this version does not run yet"
        else:
            absent = one["dataset"] if one["dataset"] != dataset else one.get("encoder")
            reason = f"{paper.label(absent)} is not run in this profile"
        made.append(row(*keys, against={"id": id}, measured=None, reason=reason))
    return made


def _reported(keys, against):
    asked = {key: value for key, value in {**keys, **against}.items() if value is not None}
    printed = paper.printed(**asked) if against else None
    if printed is None:
        return {}
    found = paper.reported(**asked)[0]
    return {
        "reported": found["value"],
        "printed": printed,
        "reported_dataset": found.get("dataset"),
        "reported_encoder": found.get("encoder"),
    }


def own_setting(row):
    """Whether a row was measured on the dataset and with the encoder that the paper's number is for."""
    same = (row.get(f"reported_{key}") in (None, row.get(key)) for key in ("dataset", "encoder"))
    return all(same)


def closeness(measured, low, high, reported, printed):
    """The verdict on a value measured in the paper's own setting.

    Parameters
    ----------
    measured, low, high : float
        The mean and its 95 % interval; low and high are None for a count.
    reported : float
    printed : str
        The paper's number as printed, which tells how far it was rounded.

    Returns
    -------
    str
        "agrees": the interval holds the reported number, give or take half a unit of its last printed digit.
        "nearly": the number lies outside, but no farther from the measured one than sqrt(2) times the half of the
        interval on its side. The paper prints no intervals; if its own were as wide as ours, the interval of the
        difference would be that wide and hold 0.
        "differs": farther away. Without an interval only the printed digits count: "agrees" or "differs".
    """
    half_digit = 0.5 * 10.0 ** -len(printed.partition(".")[2]) * (1 + 1e-9)
    away = abs(reported - measured)
    side = 0.0 if low is None else high - measured if reported > measured else measured - low
    if away <= max(side, 0.0) + half_digit:
        return "agrees"
    return "nearly" if away <= math.sqrt(2) * side + half_digit else "differs"


def direction(low, high, reported_difference):
    """The verdict on a difference measured in another setting than the paper's: only its sign is compared.

    Parameters
    ----------
    low, high : float
        The 95 % interval of the measured difference.
    reported_difference : float

    Returns
    -------
    str
        "undecided" if the interval holds 0 or the paper reports no difference; else "same direction" or
        "other direction".
    """
    if low <= 0 <= high or reported_difference == 0:
        return "undecided"
    return "same direction" if (low > 0) == (reported_difference > 0) else "other direction"


def _verdict(row, rows):
    if row["measured"] is None:
        return "not run"
    if row["reported"] is None:
        return "not in the paper"
    if own_setting(row):
        return closeness(row["measured"], row["low"], row["high"], row["reported"], row["printed"])
    if row["compared_with"] is None:
        return "another setting"
    other = rows.get(_key({**row, **row["compared_with"]}))
    if other is None:
        raise ValueError(f"{_named(row)}: compared_with: the record has no row with {row['compared_with']}")
    if other["measured"] is None:
        return "another setting"
    if other["reported"] is None:
        return "not in the paper"
    if row["difference_low"] is None:
        raise ValueError(f"{_named(row)}: difference_low, difference_high: expected the interval of the difference")
    return direction(row["difference_low"], row["difference_high"], row["reported"] - other["reported"])


def _key(row):
    return tuple(sorted((key, str(value)) for key, value in row.items() if key not in VALUES and value is not None))


def _named(row):
    names = [str(row[key]) for key in KEYS if row.get(key) is not None]
    return "/".join(names + [f"{key}={value}" for key, value in row.items() if key not in Row.model_fields])


# -- the record --------------------------------------------------------------------------------------------------------


def record(id, title, profile, parameters, provenance, rows):
    """A record with its verdicts, in the form in which it is saved.

    Parameters
    ----------
    id : str
        The notebook's name; "--" and a suffix for a run with other parameters than the profile's.
    title, profile : str
    parameters : dict
        Those of the notebook.
    provenance : dict
        See `provenance`.
    rows : list of dict
        See `row`.

    Returns
    -------
    dict
        Floats are rounded to six significant digits.

    Raises
    ------
    ValueError
        Names the row and the field: a value missing without a reason, not a number, an interval with one end, two rows
        with the same keys, a comparison whose row or interval is missing.
    """
    raw = _plain(
        {"id": id, "title": title, "profile": profile, "parameters": parameters, "provenance": provenance, "rows": rows}
    )
    full = _validated(raw, f"record {id}")
    named = {}
    for one in full:
        if named.setdefault(_key(one), one) is not one:
            raise ValueError(f"record {id}: two rows for {_named(one)}; add the key that tells them apart")
    for one in full:
        one["verdict"] = _verdict(one, named)
    return {**raw, "rows": [_shortened(one) for one in full]}


def _validated(raw, where):
    """The full rows of a raw record, or a ValueError that names the place, the field and what was expected."""
    try:
        return [one.model_dump() for one in Record.model_validate(raw).rows]
    except ValidationError as error:
        first = error.errors()[0]
        loc = first["loc"]
        field = ".".join(map(str, loc)) or "the whole"
        if loc[:1] == ("rows",) and len(loc) > 1 and isinstance(raw["rows"][loc[1]], dict):
            field += f" ({_named(raw['rows'][loc[1]])})"
        raise ValueError(f"{where}: {field}: {first['msg']}, found {str(first['input'])[:80]}") from None


def _shortened(row):
    """The row in its fixed order of keys, without optional fields that are not set."""
    further = [key for key in row if key not in Row.model_fields]
    order = [*KEYS, *further, *VALUES]
    shown = (*KEYS, *further, *ALWAYS)
    return {key: row[key] for key in order if key in shown or (row[key] is not None and row[key] is not False)}


def _plain(value):
    """The value in JSON's types, floats at six significant digits."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return float(f"{value:.6g}") if isinstance(value, float) else value


def provenance(dataset, encoder, **more):
    """Where a result comes from: fingerprints of the data and the encoder, versions and the commit of the source.

    `commit` is the last commit that touched `earlib/` or `notebooks/`: a record can never name the commit that holds
    it, and the newest commit would change with every commit of results. It reads "<hash> and local changes" if the
    two folders were changed since, and is None where there is no git. Nothing else of the machine or the time is kept.

    Parameters
    ----------
    dataset, encoder : str or dict
        Fingerprint, or fingerprints by name.
    **more
        Anything else that identifies the result, such as the hash of the core's source.
    """
    versions = {name: _version(name) for name in PACKAGES}
    return {
        "dataset": dataset,
        "encoder": encoder,
        **more,
        "packages": {"earlib": __version__, **versions},
        "commit": _commit(),
    }


def _version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit():
    def git(*arguments):
        command = ["git", "-C", str(paths.ROOT), *arguments, "--", "earlib", "notebooks"]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()

    try:
        return git("log", "-1", "--format=%H") + (" and local changes" if git("status", "--porcelain") else "") or None
    except (OSError, subprocess.SubprocessError):
        return None


def save(record):
    """Write a record as `<results>/<profile>/<id>.json`, atomically; a row a line, so that changes can be read."""
    head = {key: value for key, value in record.items() if key != "rows"}
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in record["rows"]]
    top = json.dumps(head, ensure_ascii=False, allow_nan=False, indent=1)[:-2]
    text = top + ',\n "rows": [' + ",".join(f"\n  {line}" for line in lines) + "\n ]\n}\n"
    paths.write_atomically(_path(paths.results(), record["profile"], record["id"]), text)


def load(id, profile, folder=None):
    """Read a record.

    Parameters
    ----------
    id, profile : str
    folder : Path, optional
        Folder of the profiles' results; default `paths.results()`.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If it is not the record that its name says; the message names file and field.
    """
    path = _path(folder or paths.results(), profile, id)
    again = f"make it with `python -m earlib.run {id.partition('--')[0]} --profile {profile}`"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such record; {again}") from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); {again}") from None
    _validated(raw, path)
    if raw["id"] != id:
        raise ValueError(f"{path}: id: expected {id}, found {raw['id']}; {again}")
    return raw


def _path(folder, profile, id):
    return folder / profile / f"{id}.json"


def check(record, tolerance):
    """Print how the measured values compare with those of the committed record of the same name and parameters.

    The text depends on neither machine nor time, so that nbval can compare it. Call it before `save`, which may write
    over the reference. Rows marked `varies` are left out.

    Parameters
    ----------
    record : dict
    tolerance : float
        Largest difference that counts as none, in the unit of the values.
    """
    print("\n".join(_compared(record, tolerance)))


def _compared(record, tolerance):
    try:
        reference = load(record["id"], record["profile"], paths.reference())
    except FileNotFoundError:
        return ["no reference for these parameters"]
    version = reference["provenance"].get("packages", {}).get("earlib")
    for kind, there, here in (
        ("profile", reference["profile"], record["profile"]),
        ("version", version, record["provenance"].get("packages", {}).get("earlib")),
    ):
        if there != here:
            return [f"the reference is of {kind} {there}, this record of {here}: not compared; make the reference anew"]
    if reference["parameters"] != record["parameters"]:
        return ["no reference for these parameters"]
    now, then = ({_key(row): row for row in one["rows"] if not row.get("varies")} for one in (record, reference))
    pairs = [(now.get(key), then.get(key)) for key in dict.fromkeys((*now, *then))]
    pairs = [pair for pair in pairs if any(row is not None and row["measured"] is not None for row in pair)]
    off = [text for pair in pairs if (text := _off(*pair, tolerance))]
    units = {paper.unit(row["metric"]) for row in now.values()}
    within = f"{tolerance:g}{' points' if units == {'%'} else ''}"
    varying = sum(bool(row.get("varies")) for row in record["rows"])
    left_out = f"; {varying} that var{'y' if varying > 1 else 'ies'} between machines not compared" if varying else ""
    return [f"reference: {len(pairs) - len(off)} of {len(pairs)} values within {within}{left_out}", *off]


def _off(now, then, tolerance):
    """What is wrong with a value, None if it is within the tolerance of the reference."""
    name = f"  {_named(now or then)}: "
    if now is None or then is None:
        return name + ("in the reference only" if now is None else "not in the reference")
    here, there = now["measured"], then["measured"]
    if None not in (here, there) and abs(here - there) <= tolerance + 1e-9:
        return None
    shown = ["not run" if one is None else f"{one:.6g}" for one in (here, there)]
    return name + f"{shown[0]}, reference {shown[1]}"


# -- tables ------------------------------------------------------------------------------------------------------------


def frame(record, **where):
    """The rows of a record as a DataFrame; only those with this value, or one of a tuple of values, of each key."""
    return pd.DataFrame(_rows(record, where))


def _rows(record, where):
    wanted = {key: value if isinstance(value, tuple) else (value,) for key, value in where.items()}
    rows = [row for row in record["rows"] if all(row.get(key) in values for key, values in wanted.items())]
    if not rows:
        raise ValueError(f"record {record['id']}: no row has {where}")
    return rows


def table(record, index=("variant",), columns=("metric",), **where):
    """Measured values beside the paper's, with verdicts, for people to read.

    Parameters
    ----------
    record : dict
    index, columns : tuple of str
        Keys that name the lines and the columns; rows keep the record's order.
    **where
        Only rows with this value, or one of a tuple of values, of each key.

    Returns
    -------
    pandas.DataFrame
        Text; below each column key "measured" (mean ± deviation over seeds [95 % interval], * where the critic sees
        test gold, a dash where not run), "paper" and "verdict".

    Raises
    ------
    ValueError
        If two rows fall into one cell.
    """
    cells = {}
    for row in _rows(record, where):
        line = tuple(_label(row, key) for key in index)
        column = tuple(_label(row, key) for key in columns)
        cell = cells.setdefault(line, {})
        if (*column, "measured") in cell:
            raise ValueError(f"record {record['id']}: two rows in the cell of {_named(row)}; name a further key")
        texts = (_measured(row), row.get("printed") or "", "" if row["verdict"] == "not run" else row["verdict"])
        cell.update({(*column, name): text for name, text in zip(("measured", "paper", "verdict"), texts, strict=True)})
    heads = list(dict.fromkeys(column for cell in cells.values() for column in cell))
    body = [[cell.get(head, "") for head in heads] for cell in cells.values()]
    names = [key.replace("_", " ") for key in index]
    lines = pd.MultiIndex.from_tuples(cells, names=names)
    return pd.DataFrame(body, index=lines, columns=pd.MultiIndex.from_tuples(heads))


def differences(record, index=("variant",), **where):
    """What changed against what, for people to read: the paired difference, its interval, and the paper's.

    Parameters and result as in `table`, a line a row that has a difference.
    """
    lines = []
    for row in _rows(record, where):
        if row.get("difference") is None:
            continue
        against = row.get("compared_with")
        other = next((one for one in record["rows"] if against and _key(one) == _key({**row, **against})), {})
        theirs = [one.get("reported") for one in (row, other)]
        shown = f"{row['difference']:+.1f} [{row['difference_low']:+.1f}, {row['difference_high']:+.1f}]"
        lines.append({
            **{key.replace("_", " "): _label(row, key) for key in index},
            "against": _keys_named(against) if against else "",
            "difference (points)": shown,
            "in the paper": "" if None in theirs else f"{theirs[0] - theirs[1]:+.1f}",
            "verdict": row["verdict"],
        })  # fmt: skip
    return pd.DataFrame(lines).set_index([key.replace("_", " ") for key in index])


def _label(row, key):
    value = row.get(key)
    if key == "metric" and paper.unit(value):
        return f"{paper.label(value)} ({paper.unit(value)})"
    return "" if value is None else paper.label(value)


def _measured(row):
    if row["measured"] is None:
        return "–"
    text = _number(row["measured"], row["metric"])
    if row["std"] is not None:
        text += f" ± {_number(row['std'], row['metric'])}"
    if row["low"] is not None:
        text += f" [{_number(row['low'], row['metric'])}, {_number(row['high'], row['metric'])}]"
    return text + (" *" if row.get("sees_gold") else "")


def _number(value, metric):
    if paper.unit(metric) == "%":
        return f"{value:.1f}"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}"


def caption(record, **where):
    """What must stand under a table of these rows: setting, questions, seeds, what was left out or not run."""
    rows = _rows(record, where)
    run = [row for row in rows if row["measured"] is not None]
    against = _distinct(row["compared_with"] for row in run if row["verdict"] in ("same direction", "other direction"))
    counts = [
        _counted(run, "n_queries", "question{s}"),
        _counted(run, "seeds", "seed{s}"),
        _counted(run, "excluded", "question{s} without a gold turn left out"),
    ]
    spread = ["± standard deviation over seeds"] * any(row["std"] is not None for row in run)
    spread += ["[ ] 95 % interval over questions"] * any(row["low"] is not None for row in run)
    parts = [
        setting(rows),
        ", ".join(filter(None, counts)),
        ", ".join(spread),
        "Direction against " + _joined(_keys_named(keys) for keys in against) if against else "",
        f"* {SEES_GOLD}" if any(row.get("sees_gold") for row in run) else "",
        *(f"– {reason}" for reason in _distinct(row["reason"] for row in rows if row["measured"] is None)),
    ]
    return ". ".join(part.rstrip(".") for part in parts if part) + "."


def setting(rows):
    """Which dataset and encoder stand in for the paper's: "LoCoMo stands in for LongMemEval, MiniLM for Contriever"."""
    pairs = _distinct(
        (row[key], row[f"reported_{key}"])
        for key in ("dataset", "encoder")
        for row in rows
        if row["measured"] is not None and row.get(f"reported_{key}") not in (None, row[key])
    )
    said = [f"{paper.label(here)} for {paper.label(there)}" for here, there in pairs]
    return ", ".join(said).replace(" for ", " stands in for ", 1)


def _counted(rows, key, what):
    found = sorted({row[key] for row in rows if row.get(key) is not None})
    if not found:
        return ""
    span = f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"
    return f"{span} {what.format(s='' if found == [1] else 's')}"


def _keys_named(keys):
    return ", ".join(
        paper.label(value) if key == "variant" else f"{paper.label(key)} {value}" for key, value in keys.items()
    )


def _joined(words):
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _distinct(values):
    seen = []
    for value in values:
        if value is not None and value not in seen:
            seen.append(value)
    return seen


def html(frame, caption=""):
    """A table and its caption as HTML that is the same at every run."""
    body = frame.to_html(border=0, classes="earlib", index_names=False)
    return body + (f'\n<p class="caption">{escape.escape(caption)}</p>' if caption else "")


def show(record, index=("variant",), columns=("metric",), **where):
    """The table with its caption, for the output of a notebook cell; arguments as `table`."""
    return HTML(html(table(record, index, columns, **where), caption(record, **where)))


# -- README ------------------------------------------------------------------------------------------------------------


def readme_tables(folder):
    """The README's tables, in Markdown, from the records in a folder: headline rows, and all verdicts by notebook."""
    ids = sorted((path.stem for path in folder.glob("*.json") if "--" not in path.stem), key=_table_first)
    records = [load(id, folder.name, folder.parent) for id in ids]
    if not records:
        return "No results are recorded yet: run `make reproduce`."
    shown = [row for one in records for row in one["rows"] if row.get("headline")]
    lines = ["| | data, encoder | measured | paper | verdict |", "|---|---|---|---|---|"] if shown else []
    lines += [_headline(row) for row in shown]
    lines += [""] * bool(shown) + ["| notebook | | verdicts |", "|---|---|---|"]
    for one in records:
        counts = Counter(row["verdict"] for row in one["rows"])
        told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        lines.append(f"| [{one['id']}](results/{folder.name}/{one['id']}.ipynb) | {one['title']} | {told} |")
    marked = any(row.get("sees_gold") for row in shown)
    return "\n".join(lines) + (f"\n\n\\* {SEES_GOLD}" if marked else "")


def _headline(row):
    there = _place(row.get("reported_dataset"), row.get("reported_encoder"))
    reported = f"{row['printed']} ({there})" if row.get("printed") else "–"
    what = f"{_label(row, 'variant')}: {_label(row, 'metric')}" if row["variant"] else _label(row, "metric")
    measured = _measured(row).replace(" *", r" \*")
    return f"| {what} | {_place(row['dataset'], row['encoder'])} | {measured} | {reported} | {row['verdict']} |"


def _place(dataset, encoder):
    return ", ".join(paper.label(name) for name in (dataset, encoder) if name is not None)


def _table_first(id):
    return not id.startswith("tab"), not id.startswith("fig"), id


def filled(text, tables):
    """The README's text with these tables between its two marks."""
    pattern = re.compile(r"(<!-- results -->\n).*?(<!-- /results -->)", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError("README.md: expected one pair of lines <!-- results --> and <!-- /results -->; add them")
    return pattern.sub(lambda marks: f"{marks[1]}{tables}\n{marks[2]}", text)


def main(arguments=None):
    """`python -m earlib.report readme [--check]`: fill the README's tables, or say whether they are stale."""
    parser = argparse.ArgumentParser(prog="python -m earlib.report", description=main.__doc__)
    parser.add_argument("what", choices=["readme"])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the README is stale")
    options = parser.parse_args(arguments)
    path = paths.ROOT / "README.md"
    try:
        text = path.read_text(encoding="utf-8")
        fresh = filled(text, readme_tables(paths.reference() / "laptop"))
        if not options.check:
            paths.write_atomically(path, fresh)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    if options.check and fresh != text:
        sys.exit("README.md is stale: its tables are not those of results/laptop; run `python -m earlib.report readme`")


if __name__ == "__main__":
    main()
