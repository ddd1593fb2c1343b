"""Evidence for claims: values of recorded runs, and differences that the paper prints."""

import math
from typing import NamedTuple

import numpy as np
from scipy.stats import ttest_1samp

from earlib import __version__, paper, paths, records
from earlib.claims.rule import Part, Undecidable, less, turned
from earlib.experiments.measures import first_above

RECORDS = {id.partition("_")[0]: id for id in paper.claims_source()["records"]}


class Runs(NamedTuple):
    """Records by the first part of their ids ("tab03"), and for each record not used the reason."""

    profile: str
    dataset: str
    encoder: str
    records: dict
    absent: dict


def read_runs(profile, dataset, encoder, present, folder=None):
    """Read the records of a profile in one setting, from `paths.records()` or another folder, as `Runs`.

    Records of another version or profile, or made with other data or another encoder of the same name than those of the
    fingerprints in `present` (`dataset` and `encoder`), are absent.
    """
    runs = Runs(profile, dataset, encoder, {}, {})
    for short, notebook in RECORDS.items():
        try:
            runs.records[short] = _usable(notebook, runs, present, folder or paths.records())
        except Undecidable as error:
            runs.absent[short] = f"{error}; make it with `python -m earlib.run {notebook} --profile {profile}`"
    return runs


def _usable(notebook, runs, present, folder):
    setting = {"dataset": runs.dataset, "encoder": runs.encoder}
    ends = {key: f"--{key}-{value}" for key, value in setting.items()}  # of the names of a grid's combinations
    names = [notebook + end for end in ("", ends["encoder"], ends["dataset"], ends["dataset"] + ends["encoder"])]
    for id in names:
        try:
            record = records.load(id, runs.profile, folder)
        except FileNotFoundError:
            continue
        except ValueError:
            raise Undecidable(f"the record of {id} cannot be read") from None
        if all(record["parameters"].get(key, value) == value for key, value in setting.items()):
            break
    else:
        where = f"{paper.label(runs.dataset)} with {paper.label(runs.encoder)}"
        raise Undecidable(f"there is no record of {notebook} on {where}")
    version = record["provenance"].get("packages", {}).get("earlib")
    for what, there, here in (("profile", record["profile"], runs.profile), ("version", version, __version__)):
        if there != here:
            raise Undecidable(f"the record of {id} is of {what} {there}, not {here}, and is not used")
    for what, name in setting.items():
        there = record["provenance"].get(what)
        there = there.get(name) if isinstance(there, dict) else there  # one of several, by name
        if isinstance(there, str) and there != present[what]:
            raise Undecidable(f"the record of {id} is of another {what} {name} than the present one, and is not used")
    return record


def same_source(runs):
    """Sentence that says whether the records were made by one and the same source."""
    if not runs.records:
        return "No source is to be compared."
    commits = [record["provenance"].get("commit") or "" for record in runs.records.values()]
    unknown = sum(not one or " " in one for one in commits)  # no git, or "<hash> and local changes"
    kinds = len(set(commits))
    made_by = "one and the same source" if kinds == 1 else f"{kinds} different sources: regenerate them together"
    note = f" As far as commits tell: {unknown} of them were made by a source that is in no commit." if unknown else ""
    return f"They were made by {made_by}.{note}"


def measured_rows(runs, id, **where):
    """Measured rows of a record in the setting of the runs, with one of the given values (or None: absent) of each key.

    Rows of further pairs (`over`) and of other splits than the paper's are left out unless asked for.
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
        models = paper.label(held[0]["llm"]), paper.label(paper.LANGUAGE_MODEL)
        raise Undecidable("answers by the language model {} say nothing of those by {}".format(*models))
    for row in [*found, *_matching(runs, id, {key: value for key, value in where.items() if key not in setting})]:
        if row["measured"] is None:
            raise Undecidable(row["reason"])
    asked = ", ".join(str(value) for value in {**setting, **where}.values() if isinstance(value, str | float | int))
    raise Undecidable(f"{RECORDS[id]} has no row of {asked}")


def _matching(runs, id, where):
    wanted = {key: value if isinstance(value, tuple | list) else (value,) for key, value in where.items()}
    return [row for row in runs.records[id]["rows"] if all(row.get(key) in values for key, values in wanted.items())]


def level(runs, id, **where):
    """The value of the one row of a record that fits."""
    found = measured_rows(runs, id, **where)
    if len(found) > 1:
        raise Undecidable(f"{len(found)} rows of {RECORDS[id]} fit {where}")
    return part_of(found[0])


def part_of(row, value="measured"):
    """A row's value or its paired `difference`, with the wider of the intervals over questions and conversations."""
    if row.get(value) is None:
        raise Undecidable(f"no {value} is recorded for {records.named(row)}")
    before = "" if value == "measured" else f"{value}_"
    lows, highs = ([row[key] for kind in ("", "scope_") if row.get(key := f"{before}{kind}{end}") is not None]
                   or [row[value]] for end in ("low", "high"))  # fmt: skip
    unnamed = (*records.VALUES, *records.KEYS, "split", "over")
    keys = [f"{paper.label(key)} {paper.label(row[key])}" for key in row if key not in unnamed and row[key] is not None]
    names = filter(None, [paper.label(row["metric"]), paper.label(row["variant"] or ""), *keys])
    return Part(", ".join(names), row[value], min(lows), max(highs), bool(row.get("sees_gold")))


def gap(runs, id, variant, other, metric="recall@5", **where):
    """A variant minus another: their recorded pair or, without one, the range that their two intervals allow."""
    names = [paper.label(metric), f"{paper.label(variant)} over {paper.label(other)}"]
    name = ", ".join(names + [paper.label(one) for one in where.values() if isinstance(one, str)])
    for one, against, sign in ((variant, other, 1), (other, variant, -1)):
        for over in (against, None):
            try:
                found = measured_rows(runs, id, variant=one, metric=metric, over=over, **where)
            except Undecidable:
                continue
            found = [row for row in found if row.get("difference") is not None]
            pairs = [row for row in found if (row.get("compared_with") or {}).get("variant") == against]
            if len(pairs) == 1:
                place = {"id": id, "variant": one, "metric": metric, **where}
                return turned(part_of(pairs[0], "difference"), sign)._replace(name=name, place=place)
    one, against = (level(runs, id, variant=each, metric=metric, **where) for each in (variant, other))
    place = {"id": id, "variant": variant if one.sees_gold else other, "metric": metric, **where}
    return less(one, against, f"{name}, not paired")._replace(place=place)


def trajectory(runs, id, variant, x="training_queries", **where):
    """The points of a curve after its start, (x, difference to the start), in order; the start is the retriever."""
    found = [row for row in measured_rows(runs, id, variant=variant, metric="recall@5", **where) if row.get(x)]
    if len({row[x] for row in found}) < len(found) or not found:
        raise Undecidable(f"{RECORDS[id]} has no single curve of {paper.label(variant)} over {paper.label(x)}")
    name = f"{paper.label(variant)} after {{:,.0f}} {paper.label(x)}"
    points = sorted(found, key=lambda row: row[x])
    return [(row[x], part_of(row, "difference")._replace(name=name.format(row[x]))) for row in points]


def passage(points, name):
    """Where the curves of the means, the upper and the lower ends pass their start for good; infinite if never."""
    at = [x for x, _ in points]
    ends = [[getattr(part, end) for _, part in points] for end in ("value", "high", "low")]
    found = [first_above(at, values, 0.0) for values in ends]
    return Part(name, *(math.inf if one is None else float(one) for one in found))


def at_budget(points, most):
    """The last point of a curve within so many training queries, or critic calls."""
    reached = [part for x, part in points if x <= most]
    if not reached:
        raise Undecidable(f"no evaluation at or before {most:,.0f}")
    return reached[-1]


def over_queries(values, name):
    """The mean over a few queries, with Student's interval."""
    ends = ttest_1samp(values, 0).confidence_interval(0.95)
    return Part(name, float(np.mean(values)), float(ends.low), float(ends.high))
