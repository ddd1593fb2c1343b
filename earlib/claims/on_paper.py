"""Rules that find, in the numbers that the paper prints, the values on which a claim depends; as in `on_records`."""

from earlib import paper
from earlib.claims.rule import exact, rounds_to, turned

TOWARDS = {"semantic": 1, "episodic": -1}  # Delta grows towards semantic memories


def _gaps(id, variant, other, metrics=("recall@5",), other_id=None, sign=1, **keys):
    for metric in metrics:
        for row in paper.reported(id, variant=variant, metric=metric, **keys):
            same = {key: row[key] for key in ("dataset", "encoder", "store", "category") if key in row}
            against = paper.printed(other_id or id, variant=other, metric=metric, **same)
            if against is not None:
                names = ", ".join(paper.label(name) for name in (*same.values(), metric))
                part = exact(f"{names}: {row['printed']} - {against}", row["value"] - paper.number(against))
                yield turned(part, sign)


def gaps(of):
    """A variant minus another, a part for each setting in which the paper prints both."""
    for one in of:
        yield from _gaps(**one)


def sums(keys, of, stated=None):
    """Sums of printed numbers, some with a minus; in percent of a further one, if any (`per`); as the text `stated`.

    `{0}` in a name is the first number as it is printed.
    """
    for one in of:
        plus, minus, base = ([keys | more for more in one.get(side, ())] for side in ("plus", "minus", "per"))
        name = one["name"].format(*(paper.printed(**number) for number in plus + minus))
        value = sum(paper.value(**number) for number in plus) - sum(paper.value(**number) for number in minus)
        part = exact(name, 100 * value / paper.value(**base[0]) if base else value)
        yield rounds_to(part, *paper.reported(**stated)) if stated else part


def as_stated(id, stated, largest=False, **keys):
    """Each gain that the text states is what a table gives in its setting (`largest`: in any), rounded."""
    found = {}
    for said in paper.reported(**stated):
        place = {} if largest else {key: said[key] for key in ("dataset", "encoder") if key in said}
        pair = said["variant"], said.get("compared_with", "retriever"), [said["metric"]]
        part = max(_gaps(id, *pair, **place, **keys), key=lambda part: part.value)
        found[part.name] = rounds_to(part, said)
    return found.values()


def balance():
    """Points over the retriever for a second added, without the Explorer minus with it."""

    def over(name, metric):
        return paper.value("tab08", variant=name, metric=metric) - paper.value(
            "tab08", variant="retriever", metric=metric
        )

    without, with_it = (over(name, "recall@5") / over(name, "latency") for name in ("ear_adapter", "ear"))
    name = f"points a second: {without:.1f} without the Explorer minus {with_it:.1f} with it"
    yield exact(name, without - with_it)


def queries(separated=False):
    """Delta of each diagnostic query, towards the store that it requires: its move; or its end, and its growth."""
    for row in paper.reported("tab12", metric="delta_before"):
        name, after = f"query {row['query']}", paper.value("tab12", query=row["query"], metric="delta_after")
        before, after = (TOWARDS[row["memory"]] * value for value in (row["value"], after))
        yield exact(name, after if separated else after - before)
        if separated:
            yield exact(f"{name}, growth", abs(after) - abs(before))
