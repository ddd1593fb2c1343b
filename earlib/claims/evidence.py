"""Evidence for claims: values of recorded runs, and differences that the paper prints."""

import math
from contextlib import suppress
from itertools import product
from operator import itemgetter
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
            found = [*reversed(self.more.get(short, ())), {"rows": self.rows(short)}]
            rows = sorted((row for one in found for row in one["rows"]), key=lambda row: row["measured"] is not None)
            joined[short] = {"rows": [*{records.key_of(row): row for row in rows}.values()]}
        return self._replace(records=joined)

    def rows(self, id):
        """All rows of a record, none of an absent one."""
        return self.records.get(id, {"rows": ()})["rows"]


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
    for short, notebook in RECORDS.items():
        try:
            runs.records[short] = _usable(notebook, profile, present, folder or paths.records())
        except Undecidable as error:
            runs.absent[short] = f"{error}; make it with `python -m earlib.run {notebook} --profile {profile}`"
        for one in also:
            with suppress(Undecidable):
                record = _usable(notebook, one, present, folder or paths.records())
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
    where = {"dataset": runs.dataset, "encoder": runs.encoder, **where}
    alone = runs.split == UNSEEN and where["dataset"] != "longmemeval"
    asked = {"split": (None, "conversation") if alone else (None, "random", "fixed"), "over": None, **where}
    held = [row for row in records.matching(runs.rows(id), asked) if row["measured"] is not None]
    if own := records.matching(held, {"llm": (None, paper.LANGUAGE_MODEL)}):
        return own
    if held:
        models = paper.label(held[0]["llm"]), paper.label(paper.LANGUAGE_MODEL)
        raise Undecidable("answers by the language model {} say nothing of those by {}".format(*models))
    if alone and not records.matching(runs.rows(id), {"split": "conversation"}):
        raise Undecidable(f"{RECORDS[id]} has no split by conversation")
    for keys in (asked, records.KEYS, [key for key in records.KEYS if key != "encoder"]):
        for row in records.matching(runs.rows(id), {key: asked[key] for key in keys if key in asked}):
            if row["measured"] is None:
                raise Undecidable(row["reason"])
    told = [value for value in where.values() if isinstance(value, str | float | int)] + ["conversation"] * alone
    raise Undecidable(f"{RECORDS[id]} has no row of {', '.join(map(paper.label, told))}")


def one_row(runs, id, name="", **where):
    """The one measured row of a record that fits."""
    row, *more = measured_rows(runs, id, **where)
    if more:
        raise Undecidable(f"{len(more) + 1} rows of {RECORDS[id]} fit {name or where}")
    return row


def level(runs, id, **where):
    """The value of the one row of a record that fits."""
    return part_of(one_row(runs, id, **where))


def part_of(row, value="measured", **more):
    """A row's value or its paired `difference`, with its interval."""
    if row.get(value) is None:
        raise Undecidable(f"no {value} is recorded for {records.named(row)}")
    before = "" if value == "measured" else f"{value}_"
    low, high = (row[value] if row.get(f"{before}{end}") is None else row[f"{before}{end}"] for end in ("low", "high"))
    sampled = {None: "", "conversation": "conversations"}.get(row.get("split"), "questions")
    n = row.get("n_queries") if sampled == "questions" else None
    usual = {"name": "", "sees_gold": bool(row.get("sees_gold")), "sampled": sampled, "n": n, "p": row.get("p")}
    return Part(value=row[value], low=low, high=high, **usual | more)


def gap(runs, id, variant, other, metric="recall@5", sign=1, **where):
    """A variant minus another: their recorded pair or, without one, the range that their two intervals allow."""
    name = ", ".join([paper.label(metric), f"{paper.label(variant)} over {paper.label(other)}"])
    place = {"id": id, "metric": metric, **where}
    ways = ((variant, other, sign), (other, variant, -sign))
    for (one, against, turn), further in product(ways, (True, False)):
        rows = []
        with suppress(Undecidable):
            rows = measured_rows(runs, variant=one, over=against if further else None, **place)
        rows = [row for row in rows if (row.get("compared_with") or {}).get("variant") == against]
        rows = [row for row in rows if row.get("difference") is not None]
        if len(rows) == 1:
            alone = metric == "recall@5" and where.keys() <= {"dataset", "encoder"}
            about = {"place": place | {"variant": one}, "comparison": _comparison(*rows, variant, other, **where)}
            about["pair"] = (one, against, 1) if alone else None
            return turned(part_of(*rows, "difference", name=name, **about), turn)
    one, against = (level(runs, variant=each, **place) for each in (variant, other))
    place["variant"] = variant if one.sees_gold else other
    return turned(less(one, against, f"{name}, not paired"), sign)._replace(place=place)


def paired(runs, name, sign=1, **where):
    """The recorded difference of the one row that fits to the row that it is compared with."""
    row = one_row(runs, name=name, **where)
    same = ", ".join(filter(None, [row["dataset"], row["encoder"], row.get("split"), row["variant"], name]))
    place = {key: value for key, value in where.items() if key != "over"}
    return turned(part_of(row, "difference", place=place, comparison=same), sign)


def _comparison(row, variant, other, **where):
    """Name of a paired difference that is the same in every record that holds it, whatever its sign."""
    about = (row["dataset"], row["encoder"], row.get("split"), row["metric"], " and ".join(sorted((variant, other))))
    keys = [key for key in sorted(where) if where[key] != USUAL.get(key) and key not in records.KEYS]
    return ", ".join([*filter(None, about), *(f"{key} {where[key]}" for key in keys)])


def trajectory(runs, id, variant, x="training_queries", **where):
    """The points of a curve after its start, in order: by x the difference to the start, which is the retriever."""
    found = [row for row in measured_rows(runs, id, variant=variant, metric="recall@5", **where) if row.get(x)]
    points = {row[x]: part_of(row, "difference") for row in sorted(found, key=itemgetter(x))}
    if len(points) < len(found) or not found:
        raise Undecidable(f"{RECORDS[id]} has no single curve of {paper.label(variant)} over {paper.label(x)}")
    # The end the tables have too: the trained system over the retriever.
    (last,) = (row for row in found if row[x] == max(points))
    of = {key: value for key, value in where.items() if key != "fresh_slates" and (key, value) != ("epochs", 1)}
    return points | {last[x]: points[last[x]]._replace(comparison=_comparison(last, variant, "retriever", **of))}


def passage(points, name):
    """Where the curves of the means, the upper and the lower ends pass their start for good; infinite if never."""
    ends = ([getattr(part, end) for part in points.values()] for end in ("value", "high", "low"))
    found = (first_above([*points], values, 0.0) for values in ends)
    return Part(name, *(math.inf if one is None else float(one) for one in found))


def early(runs, id, variant, **where):
    """How a learner begins: the mean of its curve after 40 and after 80 training queries, over the retriever."""
    points = trajectory(runs, id, variant, **where)
    if lacking := [x for x in EARLY if x not in points]:
        raise Undecidable(f"{RECORDS[id]} has no evaluation of {paper.label(variant)} after {lacking[0]} queries")
    parts, name = [points[x] for x in EARLY], f"{paper.label(variant)}, mean after {EARLY[0]} and {EARLY[1]} queries"
    # The mean of the intervals is at least as wide as that of the mean would be.
    value, low, high = (sum(part[field] for part in parts) / len(parts) for field in (1, 2, 3))
    return Part(name, value, low, high, sampled=parts[0].sampled, n=parts[0].n)
