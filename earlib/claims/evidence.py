"""Evidence for claims: values of recorded runs, and differences that the paper prints."""

import math
from itertools import product
from typing import NamedTuple

from earlib import paper, paths, records
from earlib.claims.rule import Part, Undecidable, less, turned
from earlib.experiments.measures import first_above

RECORDS = {id.partition("_")[0]: id for id in paper.claims_source()["records"]}
MAIN, UNSEEN = SPLITS = ("main", "conversation")  # the main split of a profile is random, or fixed
EARLY = (40, 80)  # training queries at which a learner counts as having just begun
USUAL = {"critic": "88/86", "store": "dialogue"}  # what a comparison without this key was made with


class Runs(NamedTuple):
    """Records by the first part of their ids ("tab03"), for each record not used the reason, and what is asked of them.

    `more` are records of other profiles, for claims that need several encoders. The rules read the rows of one
    dataset, encoder and split.
    """

    profile: str
    present: dict
    records: dict
    absent: dict
    more: dict = {}
    dataset: str | None = None
    encoder: str | None = None
    split: str = MAIN

    def together(self):
        """The runs with the rows of the other profiles; where two have one row, this profile's counts."""
        joined = {}
        for short in {**self.records, **self.more}:
            found = [*reversed(self.more.get(short, ())), *filter(None, [self.records.get(short)])]
            rows = sum((record["rows"] for record in found), [])
            rows = sorted(rows, key=lambda row: row["measured"] is not None)
            joined[short] = {**found[-1], "rows": [*{records.key_of(row): row for row in rows}.values()]}
        return self._replace(records=joined)


def read_runs(profile, present, also=(), folder=None):
    """Read the records of a profile, and of further ones (`also`), from `paths.records()` or another folder.

    Parameters
    ----------
    profile : str
    present : dict
        Fingerprints by name of the datasets and of the encoders at hand: `{"dataset": {...}, "encoder": {...}}`.
        Records made with others of the same name, in another profile or by another version are absent; values of
        datasets and encoders that are not named are left out.
    also : sequence of str
    folder : pathlib.Path, optional

    Returns
    -------
    Runs
    """
    runs = Runs(profile, present, {}, {}, {})
    for one, (short, notebook) in product((profile, *also), RECORDS.items()):
        try:
            record = _usable(notebook, one, present, folder or paths.records())
        except Undecidable as error:
            if one == profile:
                runs.absent[short] = f"{error}; make it with `python -m earlib.run {notebook} --profile {profile}`"
        else:
            if one == profile:
                runs.records[short] = record
            else:
                runs.more.setdefault(short, []).append(record)
    return runs


def _usable(id, profile, present, folder):
    try:
        record = records.load(id, profile, folder)
    except (FileNotFoundError, ValueError):
        raise Undecidable(f"there is no record of {id} that can be read") from None
    for other in records.departures(record, profile):
        raise Undecidable(f"the record of {id} is {other}, and is not used")
    for what, known in present.items():
        there, named = record["provenance"].get(what), record["parameters"].get(what)
        named = [named] if isinstance(named, str) else named or []
        by_name = there if isinstance(there, dict) else dict.fromkeys(named, there) if len(named) == 1 else {}
        for name in by_name.keys() & known.keys():
            if by_name[name] != known[name]:
                other = f"another {what} {name} than the present one"
                raise Undecidable(f"the record of {id} is of {other}, and is not used")

    def is_known(row):
        known = row["dataset"] in present["dataset"] and row["encoder"] in (None, *present["encoder"])
        return known or row["measured"] is None

    return {**record, "rows": [row for row in record["rows"] if is_known(row)]}


def same_source(runs):
    """Sentence that says whether the records were made by one and the same source."""
    made = [*runs.records.values(), *(record for found in runs.more.values() for record in found)]
    kinds = len({record["provenance"].get("commit") for record in made})
    made_by = "one and the same source" if kinds == 1 else f"{kinds} different sources: regenerate them together"
    return f"They were made by {made_by}."


def measured_rows(runs, id, **where):
    """Measured rows of a record in the setting of the runs, with one of the given values (or None: absent) of each key.

    Rows of further pairs (`over`) and of another split than the one asked about are left out unless asked for. On
    LongMemEval each question has its own haystack: a random split is one by conversation.
    """
    if id not in runs.records:
        raise Undecidable(runs.absent[id])
    setting = {"dataset": runs.dataset, "encoder": runs.encoder, **where}
    alone = runs.split == UNSEEN and setting["dataset"] != "longmemeval"
    usual = {"split": (None, "conversation") if alone else (None, "random", "fixed"), "over": None}
    where = {**usual, **setting}
    rows = runs.records[id]["rows"]
    found = records.matching(rows, where)
    held = [row for row in found if row["measured"] is not None]
    own = [row for row in held if row.get("llm") in (None, paper.LANGUAGE_MODEL)]
    if own:
        return own
    if held:
        models = paper.label(held[0]["llm"]), paper.label(paper.LANGUAGE_MODEL)
        raise Undecidable("answers by the language model {} say nothing of those by {}".format(*models))
    if alone and not records.matching(rows, {"split": "conversation"}):
        raise Undecidable(f"{RECORDS[id]} has no split by conversation")
    kept = {key: where[key] for key in records.KEYS if key in where}
    elsewhere = [records.matching(rows, one) for one in (kept, {key: kept[key] for key in kept if key != "encoder"})]
    for row in sum(elsewhere, found):
        if row["measured"] is None:
            raise Undecidable(row["reason"])
    asked = [value for value in setting.values() if isinstance(value, str | float | int)] + ["conversation"] * alone
    raise Undecidable(f"{RECORDS[id]} has no row of {', '.join(paper.label(value) for value in asked)}")


def level(runs, id, **where):
    """The value of the one row of a record that fits."""
    found = measured_rows(runs, id, **where)
    if len(found) > 1:
        raise Undecidable(f"{len(found)} rows of {RECORDS[id]} fit {where}")
    return part_of(found[0])


def part_of(row, value="measured"):
    """A row's value or its paired `difference`, with its interval."""
    if row.get(value) is None:
        raise Undecidable(f"no {value} is recorded for {records.named(row)}")
    before = "" if value == "measured" else f"{value}_"
    low, high = (row[value] if row.get(f"{before}{end}") is None else row[f"{before}{end}"] for end in ("low", "high"))
    unnamed = (*records.VALUES, *records.KEYS, "split", "over")
    keys = [f"{paper.label(key)} {paper.label(row[key])}" for key in row if key not in unnamed and row[key] is not None]
    names = filter(None, [paper.label(row["metric"]), paper.label(row["variant"] or ""), *keys])
    sampled = "" if not row.get("split") else "conversations" if row["split"] == "conversation" else "questions"
    found = Part(", ".join(names), row[value], low, high, bool(row.get("sees_gold")), sampled=sampled)
    return found._replace(n=row.get("n_queries") if sampled == "questions" else None)


def gap(runs, id, variant, other, metric="recall@5", sign=1, **where):
    """A variant minus another: their recorded pair or, without one, the range that their two intervals allow."""
    name = ", ".join([paper.label(metric), f"{paper.label(variant)} over {paper.label(other)}"])
    for one, against, turn in ((variant, other, sign), (other, variant, -sign)):
        for over in (against, None):
            try:
                found = measured_rows(runs, id, variant=one, metric=metric, over=over, **where)
            except Undecidable:
                continue
            found = [row for row in found if row.get("difference") is not None]
            pairs = [row for row in found if (row.get("compared_with") or {}).get("variant") == against]
            if len(pairs) == 1:
                alone = metric == "recall@5" and where.keys() <= {"dataset", "encoder"}
                part = part_of(pairs[0], "difference")._replace(pair=(one, against, 1) if alone else None)
                same = _comparison(pairs[0], variant, other, **where)
                place = {"id": id, "variant": one, "metric": metric, **where}
                return turned(part, turn)._replace(name=name, place=place, p=pairs[0].get("p"), comparison=same)
    one, against = (level(runs, id, variant=each, metric=metric, **where) for each in (variant, other))
    place = {"id": id, "variant": variant if one.sees_gold else other, "metric": metric, **where}
    return turned(less(one, against, f"{name}, not paired"), sign)._replace(place=place)


def paired(runs, name, sign=1, **where):
    """The recorded difference of the one row that fits to the row that it is compared with."""
    row, *more = measured_rows(runs, **where)
    if more:
        raise Undecidable(f"{len(more) + 1} rows of {RECORDS[where['id']]} fit {name}")
    same = ", ".join(filter(None, [row["dataset"], row["encoder"], row.get("split"), row["variant"], name]))
    place = {key: value for key, value in where.items() if key != "over"}
    return turned(part_of(row, "difference"), sign)._replace(place=place, p=row.get("p"), comparison=same)


def _comparison(row, variant, other, **where):
    """Name of a paired difference that is the same in every record that holds it, whatever its sign."""
    keys = {key: str(where[key]) for key in sorted(where) if where[key] != USUAL.get(key) and key not in records.KEYS}
    about = (row["dataset"], row["encoder"], row.get("split"), row["metric"], " and ".join(sorted((variant, other))))
    return ", ".join(filter(None, [*map(str, filter(None, about)), *(f"{key} {value}" for key, value in keys.items())]))


def under_readings(runs, pair):
    """A paired difference under each reading of the paper (option, choice) that was tried on it; the split is none."""
    found, (variant, other, sign) = {}, pair
    for row in runs.records.get("sensitivity", {"rows": ()})["rows"]:
        turn = {(variant, other): sign, (other, variant): -sign}.get((row["variant"], row.get("over")))
        own = (row["dataset"], row["encoder"]) == (runs.dataset, runs.encoder)
        if own and turn and row.get("difference") is not None and row["choice"] not in ("default", "by conversation"):
            found[row["option"], row["choice"]] = turned(part_of(row, "difference"), turn)
    return found


def trajectory(runs, id, variant, x="training_queries", **where):
    """The points of a curve after its start, (x, difference to the start), in order; the start is the retriever."""
    found = [row for row in measured_rows(runs, id, variant=variant, metric="recall@5", **where) if row.get(x)]
    if len({row[x] for row in found}) < len(found) or not found:
        raise Undecidable(f"{RECORDS[id]} has no single curve of {paper.label(variant)} over {paper.label(x)}")
    name = f"{paper.label(variant)} after {{:,.0f}} {paper.label(x)}"
    points = sorted(found, key=lambda row: row[x])
    made = [(row[x], part_of(row, "difference")._replace(name=name.format(row[x]))) for row in points]
    at, last = made[-1]  # which the tables have too: the trained system over the retriever
    of = {key: value for key, value in where.items() if key != "fresh_slates" and (key, value) != ("epochs", 1)}
    made[-1] = at, last._replace(p=points[-1].get("p"), comparison=_comparison(points[-1], variant, "retriever", **of))
    return made


def passage(points, name):
    """Where the curves of the means, the upper and the lower ends pass their start for good; infinite if never."""
    at = [x for x, _ in points]
    ends = [[getattr(part, end) for _, part in points] for end in ("value", "high", "low")]
    found = [first_above(at, values, 0.0) for values in ends]
    return Part(name, *(math.inf if one is None else float(one) for one in found))


def early(runs, id, variant, **where):
    """How a learner begins: the mean of its curve after 40 and after 80 training queries, over the retriever."""
    points = dict(trajectory(runs, id, variant, **where))
    if lacking := [x for x in EARLY if x not in points]:
        raise Undecidable(f"{RECORDS[id]} has no evaluation of {paper.label(variant)} after {lacking[0]} queries")
    parts, name = [points[x] for x in EARLY], f"{paper.label(variant)}, mean after {EARLY[0]} and {EARLY[1]} queries"
    # The mean of the intervals is at least as wide as that of the mean would be.
    value, low, high = (sum(part[field] for part in parts) / len(parts) for field in (1, 2, 3))
    return Part(name, value, low, high, sampled=parts[0].sampled, n=parts[0].n)
