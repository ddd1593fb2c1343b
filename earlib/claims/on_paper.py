"""Rules that decide a claim on the numbers that the paper prints; `claims.yaml` names them with their arguments."""

import math

from earlib import paper
from earlib.claims.rule import both, exact, inside, listed, rounds_to, turned

TOWARDS = {"semantic": 1, "episodic": -1}  # Delta grows towards semantic memories


def _gaps(id, variant, other, metrics=("recall@5",), other_id=None, sign=1, **keys):
    """A variant minus another in the paper's own numbers, a part for each setting in which it prints both."""
    found = []
    for metric in metrics:
        for row in paper.reported(id, variant=variant, metric=metric, **keys):
            same = {key: row[key] for key in ("dataset", "encoder", "store", "category") if key in row}
            against = paper.printed(other_id or id, variant=other, metric=metric, **same)
            if against is not None:
                names = ", ".join(paper.label(name) for name in (*same.values(), metric))
                part = exact(f"{names}: {row['printed']} - {against}", row["value"] - paper.number(against))
                found.append(turned(part, sign))
    return found


def gaps(of, above=-math.inf, below=math.inf, note=""):
    """Every printed difference lies in a region."""
    found = inside([part for one in of for part in _gaps(**one)], above, below)
    return found._replace(reason=found.reason + note)


def _sums(keys, of):
    """Sums of printed numbers, some with a minus; in percent of a further one, if any (`per`).

    `{0}` in a name is the first number as it is printed.
    """
    for one in of:
        plus, minus, per = ([keys | more for more in one.get(side, ())] for side in ("plus", "minus", "per"))
        name = one["name"].format(*(paper.printed(**number) for number in plus + minus))
        value = sum(paper.value(**number) for number in plus) - sum(paper.value(**number) for number in minus)
        yield exact(name, 100 * value / paper.value(**per[0]) if per else value)


def sums(keys, of, above=-math.inf, below=math.inf, stated=None, note=""):
    """Sums of printed numbers lie in a region, or round to a number that the text states."""
    parts = [*_sums(keys, of)]
    found = rounds_to(*parts, *paper.reported(**stated)) if stated else inside(parts, above, below)
    return found._replace(reason=found.reason + note)


def as_stated(id, stated, largest=False, beside=None, **keys):
    """Each gain that the text states is what a table gives in its setting (`largest`: in any), rounded."""
    found = {}
    for said in paper.reported(**stated):
        place = {} if largest else {key: said[key] for key in ("dataset", "encoder") if key in said}
        pair = said["variant"], said.get("compared_with", "retriever"), [said["metric"]]
        part = max(_gaps(id, *pair, **place, **keys), key=lambda part: part.value)
        found[part.name] = rounds_to(part, said)
    whole = both(*found.values())
    told = f". {beside['words']}: {listed(_sums(beside['keys'], beside['of']))}" if beside else ""
    return whole._replace(reason=whole.reason + told)


def balance():
    """Points over the retriever for a second added, without the Explorer and with it."""

    def over(name, metric):
        ours, base = (paper.value("tab08", variant=one, metric=metric) for one in (name, "retriever"))
        return ours - base

    without, with_it = (over(name, "recall@5") / over(name, "latency") for name in ("ear_adapter", "ear"))
    name = f"points a second: {without:.1f} without the Explorer minus {with_it:.1f} with it"
    return inside([exact(name, without - with_it)], above=0)


def _moves():
    """Printed Delta of each diagnostic query before and after, towards the store that the query requires."""
    for row in paper.reported("tab12", metric="delta_before"):
        after = paper.value("tab12", query=row["query"], metric="delta_after")
        yield f"query {row['query']}", *(TOWARDS[row["memory"]] * value for value in (row["value"], after))


def queries_move():
    """Delta moves towards the store that each query requires."""
    return inside([exact(name, after - before) for name, before, after in _moves()], above=0)


def queries_separated():
    """Delta after training points to the store that each query requires, and has grown in size."""
    ends = [exact(name, after) for name, _, after in _moves()]
    growth = [exact(f"{name}, growth", abs(after) - abs(before)) for name, before, after in _moves()]
    return both(inside(ends, above=0), inside(growth, above=0))
