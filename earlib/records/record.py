"""The record of what a notebook measured, its verdicts against the paper, and its comparison with the committed one.

A record is tidy: every row is one value, named by its keys (dataset, encoder, variant, metric and further ones such as
rounds or category). Tables, figures, the README and the claims are drawn from records alone.
"""

import json
import math
import subprocess
from importlib import metadata

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from statsmodels.stats.multitest import multipletests

from earlib import __version__, devices, paper, paths

PACKAGES = ("torch", "numpy", "scipy", "pandas", "sentence-transformers", "transformers")
SEES_GOLD = "the critic sees test gold (noisy)"
FORM = ConfigDict(strict=True, allow_inf_nan=False)


class Row(BaseModel, extra="allow", **FORM):
    """One value: what was measured, what the paper reports, and the verdict. Further keys are allowed."""

    dataset: str
    encoder: str | None = None
    variant: str | None = None
    metric: str
    n_queries: int | None = Field(None, description="questions that the value is a mean over; the fewest of a seed")
    n_queries_most: int | None = Field(None, description="the most of a seed")
    excluded: int | None = Field(None, description="questions without any gold memory, left out; the most of a seed")
    unparsed: int | None = Field(None, description="replies of a language model that could not be read; not scored")
    refused: int | None = Field(None, description="and those in which it declined; not scored")
    seeds: int | None = Field(None, description="number of seeds")
    measured: float | None = None
    std: float | None = Field(None, description="standard deviation over seeds")
    low: float | None = Field(None, description="95 % interval over questions")
    high: float | None = None
    scope_low: float | None = Field(None, description="95 % interval over conversations")
    scope_high: float | None = None
    compared_with: dict | None = Field(None, description="keys of the row that the direction is judged against")
    difference: float | None = Field(None, description="measured here less measured there, paired by question")
    difference_low: float | None = None
    difference_high: float | None = None
    difference_scope_low: float | None = Field(None, description="95 % interval of the difference over conversations")
    difference_scope_high: float | None = None
    p: float | None = Field(None, description="paired permutation test of the difference over questions", ge=0, le=1)
    p_holm: float | None = Field(None, description="corrected for all tests of its `family`", ge=0, le=1)
    reported: float | None = None
    printed: str | None = Field(None, description="the reported number as the paper prints it")
    reported_dataset: str | None = Field(None, description="the setting of the reported number")
    reported_encoder: str | None = None
    reported_llm: str | None = Field(None, description="the language model of the reported number")
    headline: bool = Field(False, description="shown in the README")
    sees_gold: bool = Field(False, description=SEES_GOLD)
    varies: bool = Field(False, description="jumps between machines (a time, a first passage); never compared")
    verdict: str | None = None
    decided: str | None = Field(None, description="the verdict of a row that has rules of its own (a claim)")
    reported_verdict: str | None = Field(None, description="a claim's verdict on the paper's own numbers")
    reported_reason: str | None = None
    reason: str | None = Field(None, description="why there is no measured value; of a claim, why this verdict")

    @model_validator(mode="after")
    def _sound(self):
        if self.measured is None and not self.reason:
            raise ValueError("a row without a measured value needs a reason (`reason`)")
        if (self.reported is None) != (self.printed is None):
            raise ValueError("`reported` and `printed` go together; leave both to `against`")
        for low, high in (
            (self.low, self.high), (self.difference_low, self.difference_high),
            (self.scope_low, self.scope_high), (self.difference_scope_low, self.difference_scope_high),
        ):  # fmt: skip
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


SETTING = ("dataset", "encoder", "llm")
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
        "reported_llm": paper.LANGUAGE_MODEL if keys["metric"] in ("f1", "j") else None,
    }


def own_setting(row):
    """Whether a row was measured with the dataset, encoder and language model that the paper's number is for."""
    same = (row.get(f"reported_{key}") in (None, row.get(key)) for key in SETTING)
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


def key_of(row):
    """What names a row: its keys and their values, without what was measured."""
    return tuple(sorted((key, str(value)) for key, value in row.items() if key not in VALUES and value is not None))


def named(row):
    """The row's name in messages: "locomo/minilm/ear/recall@5/rounds=2"."""
    names = [str(row[key]) for key in KEYS if row.get(key) is not None]
    return "/".join(names + [f"{key}={value}" for key, value in further(row).items()])


def further(row):
    """What a row has beyond the fields that every row may have."""
    return {key: value for key, value in row.items() if key not in Row.model_fields}


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
    _judge(full, id)
    return {**raw, "rows": [_shortened(one) for one in full]}


def _judge(rows, id):
    """Give each row of a record its verdict and its corrected p."""
    by_key = {}
    for one in rows:
        if by_key.setdefault(key_of(one), one) is not one:
            raise ValueError(f"record {id}: two rows for {named(one)}; add the key that tells them apart")
    for one in rows:
        one["verdict"] = _verdict(one, by_key)
    families = {}
    for one in rows:
        if one["p"] is not None:
            families.setdefault(family(one), []).append(one)
    for tested in families.values():
        for one, p in zip(tested, multipletests([one["p"] for one in tested], method="holm")[1], strict=True):
            one["p_holm"] = float(f"{p:.6g}")


def family(row):
    """Which tests are corrected together (Holm): those of one metric and one table, told apart by these two keys."""
    return row["metric"], row.get("over"), row.get("control")


def _validated(raw, where):
    """The full rows of a raw record, or a ValueError that names the place, the field and what was expected."""
    try:
        return [one.model_dump() for one in Record.model_validate(raw).rows]
    except ValidationError as error:
        first = error.errors()[0]
        loc = first["loc"]
        field = ".".join(map(str, loc)) or "the whole"
        if loc[:1] == ("rows",) and len(loc) > 1 and isinstance(raw["rows"][loc[1]], dict):
            field += f" ({named(raw['rows'][loc[1]])})"
        raise ValueError(f"{where}: {field}: {first['msg']}, found {str(first['input'])[:80]}") from None


def _shortened(row):
    """The row in its fixed order of keys, without optional fields that are not set."""
    own = further(row)
    order = [*KEYS, *own, *VALUES]
    shown = (*KEYS, *own, *ALWAYS)
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
    if devices.default() != "cpu":
        more["device"] = devices.default()
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
    changed = _not_following(reference)
    if changed:
        return [f"the reference does not follow from its own numbers: {changed}; make it anew"]
    now, then = ({key_of(row): row for row in one["rows"] if not row.get("varies")} for one in (record, reference))
    pairs = [(now.get(key), then.get(key)) for key in dict.fromkeys((*now, *then))]
    pairs = [pair for pair in pairs if any(row is not None and row["measured"] is not None for row in pair)]
    off = [text for pair in pairs if (text := _off(*pair, tolerance))]
    units = {paper.unit(row["metric"]) for row in now.values()}
    within = f"{tolerance:g}{' points' if units == {'%'} else ''}"
    varying = sum(bool(row.get("varies")) for row in record["rows"])
    left_out = f"; {varying} that var{'y' if varying > 1 else 'ies'} between machines not compared" if varying else ""
    return [f"reference: {len(pairs) - len(off)} of {len(pairs)} values within {within}{left_out}", *off]


def _not_following(reference):
    """The first row whose verdict or corrected p is not what the record's numbers give; "" if there is none."""
    rows = _validated(reference, reference["id"])
    stored = [(row["verdict"], row["p_holm"]) for row in rows]
    _judge(rows, reference["id"])
    for row, (verdict, p_holm) in zip(rows, stored, strict=True):
        p = [math.inf if one is None else one for one in (row["p_holm"], p_holm)]
        if row["verdict"] != verdict or not math.isclose(*p, rel_tol=1e-3):
            return named(row)
    return ""


def _off(now, then, tolerance):
    """What is wrong with a row, None if it is within the tolerance of the reference.

    A difference moves when either of its two sides does, so twice as far.
    """
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
