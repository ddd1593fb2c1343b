"""What a claim is decided on: values of recorded runs, values that the paper prints, and one rule for both."""

import math
from typing import NamedTuple

import numpy as np
from scipy.stats import ttest_1samp

from earlib import __version__, paper, paths, records
from earlib.experiments import measures
from earlib.harness import profiles

SUPPORTED, REFUTED, OPEN = "supported", "not supported", "not decidable"
VERDICTS = (SUPPORTED, REFUTED, OPEN)

RECORDS = {
    id.partition("_")[0]: id
    for id in (
        "tab02_main_results", "tab03_ablation", "tab04_memory_types", "tab05_query_types", "tab06_hyperparameters",
        "tab07_replay_sampling", "tab08_latency", "tab09_llm_critic", "tab10_rerankers", "tab11_12_store_geometry",
        "fig03_sample_efficiency", "fig04_llm_calls", "fig05_noise_robustness", "fig06_store_balance",
        "fig07_retrievers", "sensitivity",
    )
}  # fmt: skip


class Part(NamedTuple):
    """One value that a claim stands on, with its 95 % interval; a printed number is its own interval.

    `place` is where a measured value that sees gold stands: `id`, `variant`, `metric` and the further keys of its row.
    """

    name: str
    value: float
    low: float
    high: float
    sees_gold: bool = False
    place: dict | None = None


class Finding(NamedTuple):
    """A verdict, why, and the part on which it hangs: the one nearest to the edge of the region, or farthest beyond."""

    verdict: str
    reason: str
    part: Part | None = None


class Runs(NamedTuple):
    """The records that claims are decided on, by the first part of their ids ("tab03"); why each other is not used."""

    profile: str
    dataset: str
    encoder: str
    records: dict
    absent: dict


class Undecidable(Exception):
    """What a claim needs is not there; the message says what, and how it is made."""


# -- recorded runs -----------------------------------------------------------------------------------------------------


def read(profile, dataset, encoder, present, folder=None):
    """Read the records of a profile.

    Parameters
    ----------
    profile : str
    dataset, encoder : str
        The setting whose rows are used.
    present : dict of str to str
        The fingerprints of this dataset and this encoder as they are now: `dataset` and `encoder`.
    folder : Path, optional
        Folder of finished records; default `paths.records()`.

    Returns
    -------
    Runs
        In a profile with a grid the records are those of the combination with this dataset and encoder. A record of
        another version or profile, or made of another dataset or encoder of the same name, is not used.
    """
    found, absent = {}, {}
    names = _names(profile, dataset, encoder)
    for short, source in RECORDS.items():
        id = names.get(source, source)
        again = f"make it with `python -m earlib.run {source} --profile {profile}`"
        try:
            record = records.load(id, profile, folder or paths.records())
        except FileNotFoundError:
            absent[short] = f"there is no record of {id}; {again}"
            continue
        except ValueError:
            absent[short] = f"the record of {id} cannot be read; {again}"
            continue
        version = record["provenance"].get("packages", {}).get("earlib")
        for what, there, here in (("profile", record["profile"], profile), ("version", version, __version__)):
            if there != here:
                absent[short] = f"the record of {id} is of {what} {there}, not {here}, and is not used; {again}"
        for what, name in (("dataset", dataset), ("encoder", encoder)):
            there = record["provenance"].get(what)
            there = there.get(name) if isinstance(there, dict) else there  # one of several, by name
            if isinstance(there, str) and there != present[what]:
                other = f"another {what} {name} than the present one"
                absent[short] = f"the record of {id} is of {other}, and is not used; {again}"
        if short not in absent:
            found[short] = record
    return Runs(profile, dataset, encoder, found, absent)


def _names(profile, dataset, encoder):
    """The results of a profile in this setting by the notebooks that make them; those without a say in it included."""
    here = {"dataset": dataset, "encoder": encoder}
    return {
        name.partition("--")[0]: name
        for name, given in reversed(profiles.own_names(profile).items())  # of several the first
        if all(given.get(key, value) == value for key, value in here.items())
    }


def sources(runs):
    """Whether the records come from one and the same source, in words."""
    if not runs.records:
        return "No source is to be compared."
    commits = [record["provenance"].get("commit") or "" for record in runs.records.values()]
    unknown = sum(not one or " " in one for one in commits)  # no git, or "<hash> and local changes"
    kinds = len(set(commits))
    told = "one and the same source" if kinds == 1 else f"{kinds} different sources: make them anew together"
    note = f" So far as commits tell: {unknown} of them were made by a source that no commit holds." if unknown else ""
    return f"They were made by {told}.{note}"


def rows(runs, id, **where):
    """Measured rows of a record in the setting of the runs.

    Parameters
    ----------
    runs : Runs
    id : str
        The first part of the record's ("tab03").
    **where
        The value of each key, or several in a tuple; None where it must be absent. Rows of pairs beside a table
        (`over`) and of other splits than the paper's are left out unless asked for.

    Raises
    ------
    Undecidable
        If there is no such record or no such row, or none that was measured without another language model than the
        paper's.
    """
    if id not in runs.records:
        raise Undecidable(runs.absent[id])
    setting = {"dataset": runs.dataset, "encoder": runs.encoder}
    where = {"split": (None, "random"), "over": None, **where}
    found = _matching(runs, id, {**setting, **where})
    held = [row for row in found if row["measured"] is not None]
    own = [row for row in held if row.get("llm") in (None, paper.LANGUAGE_MODEL)]
    if own:
        return own
    if held:
        told = paper.label(held[0]["llm"]), paper.label(paper.LANGUAGE_MODEL)
        raise Undecidable("answers by the language model {} say nothing of those by {}".format(*told))
    for row in [*found, *_matching(runs, id, {key: value for key, value in where.items() if key not in setting})]:
        if row["measured"] is None:
            raise Undecidable(row["reason"])
    named = ", ".join(str(value) for value in {**setting, **where}.values() if isinstance(value, str | float | int))
    raise Undecidable(f"{RECORDS[id]} has no row of {named}")


def _matching(runs, id, where):
    wanted = {key: value if isinstance(value, tuple) else (value,) for key, value in where.items()}
    return [row for row in runs.records[id]["rows"] if all(row.get(key) in values for key, values in wanted.items())]


def level(runs, id, **where):
    """One value of a record; where several fit, none is chosen."""
    found = rows(runs, id, **where)
    if len(found) > 1:
        raise Undecidable(f"{len(found)} rows of {RECORDS[id]} fit {where}")
    return value_of(found[0])


def value_of(row):
    """The value of a row."""
    return _part(row, "measured", ("low", "high"), ("scope_low", "scope_high"))


def difference(row):
    """The paired difference of a row to the one that it is compared with."""
    if row.get("difference") is None:
        raise Undecidable(f"no difference is recorded for {records.named(row)}")
    over_questions = ("difference_low", "difference_high")
    return _part(row, "difference", over_questions, ("difference_scope_low", "difference_scope_high"))


def _part(row, value, *intervals):
    """A value with the wider of its intervals, over questions and over conversations, on each side."""
    held = [[row[end] for end in ends] for ends in intervals if row.get(ends[0]) is not None] or [[row[value]] * 2]
    unnamed = (*records.VALUES, *records.KEYS, "split", "over")
    further = [_named(key, row[key]) for key in row if key not in unnamed and row[key] is not None]
    named = [paper.label(row["metric"]), paper.label(row["variant"] or ""), *further]
    ends = min(low for low, _ in held), max(high for _, high in held)
    return Part(", ".join(filter(None, named)), row[value], *ends, bool(row.get("sees_gold")))


def _named(key, value):
    return f"{paper.label(key)} {paper.label(value)}"


def gap(runs, id, variant, other, metric="recall@5", **where):
    """A variant less another: their recorded pair or, without one, what their two own intervals leave open."""
    named = [paper.label(metric), f"{paper.label(variant)} over {paper.label(other)}"]
    name = ", ".join(named + [paper.label(one) for one in where.values() if isinstance(one, str)])
    for one, against, sign in ((variant, other, 1), (other, variant, -1)):
        for over in (against, None):
            where_over = {"variant": one, "metric": metric, "over": over, **where}
            pairs = [row for row in _any(runs, id, where_over) if _compared_with(row) == against]
            if len(pairs) == 1:
                part = turned(difference(pairs[0]), sign)._replace(name=name)
                return at(part, id, variant=one, metric=metric, **where)
    one, against = (level(runs, id, variant=each, metric=metric, **where) for each in (variant, other))
    part = less(one, against, f"{name}, not paired")
    return at(part, id, variant=variant if one.sees_gold else other, metric=metric, **where)


def at(part, id, **keys):
    """The part with its place, from which its control is found."""
    return part._replace(place={"id": id, **keys})


def _any(runs, id, where):
    try:
        return rows(runs, id, **where)
    except Undecidable:
        return []


def _compared_with(row):
    return (row.get("compared_with") or {}).get("variant") if row.get("difference") is not None else None


def turned(part, sign):
    """The part, or its negative."""
    return part if sign > 0 else part._replace(value=-part.value, low=-part.high, high=-part.low)


def less(one, other, name):
    """A difference of two parts that were not paired: its interval holds 0 where theirs overlap."""
    ends = one.low - other.high, one.high - other.low
    return Part(name, one.value - other.value, *ends, one.sees_gold or other.sees_gold)


def beside(runs, part, control):
    """In words, what a control gives that asks the same critic: the system that sees gold, less the control."""
    try:
        return told([gap(runs, other=control, **part.place)] if part.place else [])
    except Undecidable:
        return ""


def curve(runs, id, variant, x="training_queries", **where):
    """The points of a curve after its start, (x, difference to the start), in order; the start is the retriever."""
    found = [row for row in rows(runs, id, variant=variant, metric="recall@5", **where) if row.get(x)]
    points = [(row[x], difference(row)._replace(name=_at(row, x))) for row in sorted(found, key=lambda row: row[x])]
    if len({at for at, _ in points}) < len(points) or not points:
        raise Undecidable(f"{RECORDS[id]} has no single curve of {paper.label(variant)} over {paper.label(x)}")
    return points


def _at(row, x):
    return f"{paper.label(row['variant'])} after {row[x]:,.0f} {paper.label(x)}"


def lowest(points):
    """The point of a curve that lies lowest, (x, difference)."""
    return min(points, key=lambda point: point[1].value)


def passage(points, name):
    """Where a curve passes its start for good: that of the mean, and an interval from the intervals of the points.

    It cannot have passed before the upper ends stay above 0, and has passed when the lower ends do; infinite if never.
    """
    at = [x for x, _ in points]
    ends = [[getattr(part, end) for _, part in points] for end in ("value", "high", "low")]
    found = [measures.first_above(at, values, 0.0) for values in ends]
    return Part(name, *(math.inf if one is None else float(one) for one in found))


def at_budget(points, most):
    """The last point of a curve that does not lie beyond so many training queries, or critic calls."""
    reached = [part for x, part in points if x <= most]
    if not reached:
        raise Undecidable(f"no evaluation at or before {most:,.0f}")
    return reached[-1]


def over_queries(values, name):
    """The mean of the values of a few queries with Student's interval over them."""
    ends = ttest_1samp(values, 0).confidence_interval(0.95)
    return Part(name, float(np.mean(values)), float(ends.low), float(ends.high))


# -- the paper's own numbers -------------------------------------------------------------------------------------------


def exact(name, value):
    """A printed number, or what follows from printed numbers, as a part."""
    return Part(name, *[round(value, 6)] * 3)


def printed(id, variant, other, metrics=("recall@5",), other_id=None, **keys):
    """A variant less another in the paper's own numbers, a part for each setting in which it prints both."""
    found = []
    for metric in metrics:
        for row in paper.reported(id, variant=variant, metric=metric, **keys):
            same = {key: row[key] for key in ("dataset", "encoder", "store", "category") if key in row}
            against = paper.printed(other_id or id, variant=other, metric=metric, **same)
            if against is not None:
                names = ", ".join(paper.label(name) for name in (*same.values(), metric))
                found.append(exact(f"{names}: {row['printed']} - {against}", row["value"] - paper.number(against)))
    return found


def as_stated(id, **keys):
    """Whether each gain that the text states is what a table gives, rounded."""
    found = {}
    for said in paper.reported("gain", **keys):
        same = {"dataset": said["dataset"], "encoder": said["encoder"]}
        (part,) = printed(id, said["variant"], said["compared_with"], (said["metric"],), **same)
        found[part.name] = rounds_to(part, said)
    return both(*found.values())


def rounds_to(part, said):
    """Whether a value rounds to a stated number, a row of `paper.reported`."""
    half = 0.5 * 10.0 ** -len(said["printed"].partition(".")[2]) + 1e-9
    found = inside([part], above=said["value"] - half, below=said["value"] + half)
    return found._replace(reason=f"{part.name} = {part.value:.2f}, stated {said['printed']}")


# -- the rule ----------------------------------------------------------------------------------------------------------


def inside(parts, above=-math.inf, below=math.inf):
    """The verdict on a claim that all its parts lie in a region.

    Parameters
    ----------
    parts : list of Part
    above, below : float
        The ends of the region, which do not belong to it.

    Returns
    -------
    Finding
        Supported if every interval lies inside, not supported if one lies outside, else not decidable.
    """

    def room(part):
        return min(part.value - above, below - part.value)

    if not parts:
        raise Undecidable("there is nothing to compare")
    outside = sorted((part for part in parts if part.high < above or part.low > below), key=room)
    if outside:
        return Finding(REFUTED, told(outside), outside[0])
    across = sorted((part for part in parts if part.low <= above or part.high >= below), key=room)
    if across:
        return Finding(OPEN, f"across the edge: {told(across)}", across[0])
    tightest = min(parts, key=room)
    return Finding(SUPPORTED, told([tightest]) + (f" (the least of {len(parts)})" if parts[1:] else ""), tightest)


def both(*findings):
    """All of several findings: one not supported is enough against them."""
    for verdict in (REFUTED, OPEN, SUPPORTED):
        decisive = [found for found in findings if found.verdict == verdict]
        if decisive:
            return Finding(verdict, "; ".join(found.reason for found in decisive), decisive[0].part)
    raise Undecidable("there is nothing to compare")


def told(parts, most=4):
    """Parts in words, the first few of them."""
    each = [f"{part.name}: {shown(part)}" for part in parts]
    return "; ".join(each[:most]) + (f"; and {len(each) - most} more" if len(each) > most else "")


def shown(part):
    """Value and interval of a part: counts whole, measured values with a digit, printed and small ones with more."""
    values = [part.value] if part.low == part.high else [part.value, part.low, part.high]
    finite = [value for value in values if math.isfinite(value)]
    digits = 1 if len(values) > 1 else 2
    if max(map(abs, finite), default=0) < 0.5:
        digits = 3
    if all(float(value).is_integer() for value in finite):
        digits = 0
    first, *ends = [f"{value:,.{digits}f}" if math.isfinite(value) else "never" for value in values]
    return first + (f" [{', '.join(ends)}]" if ends else "")
