"""Rules that decide a claim on the numbers that the paper prints; `claims.yaml` names them with their arguments."""

import math
from itertools import product

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


def gaps(of, above=-math.inf, below=math.inf):
    """Every printed difference lies in a region."""
    return inside([part for one in of for part in _gaps(**one)], above, below)


def sums(keys, of, above=-math.inf, below=math.inf, note=""):
    """Sums of printed numbers, some with a minus, lie in a region; `{0}` in a name is the first number as printed."""
    parts = []
    for one in of:
        plus, minus = ([keys | more for more in one[side]] for side in ("plus", "minus"))
        name = one["name"].format(*(paper.printed(**number) for number in plus + minus))
        value = sum(paper.value(**number) for number in plus) - sum(paper.value(**number) for number in minus)
        parts.append(exact(name, value))
    found = inside(parts, above, below)
    return found._replace(reason=found.reason + note)


def as_stated(id, **keys):
    """Each gain that the text states is what a table gives, rounded."""
    found = {}
    for said in paper.reported("gain", **keys):
        same = {key: said[key] for key in ("dataset", "encoder", "variant")}
        (part,) = _gaps(id, other=said["compared_with"], metrics=(said["metric"],), **same)
        found[part.name] = rounds_to(part, said)
    return both(*found.values())


def largest_gain():
    said = paper.reported("gain", dataset="longmemeval", compared_with="retriever", metric="recall@5")[0]
    return rounds_to(max(_gaps("tab02", "ear", "retriever"), key=lambda part: part.value), said)


def over_rl():
    """The stated gains over the RL baseline, beside those of Table 3."""
    found = as_stated("tab02", compared_with="rmm", metric="recall@5")
    elsewhere = listed(_gaps("tab03", "ear", "rmm", dataset="longmemeval"))
    return found._replace(reason=f"{found.reason}. Table 3 has another baseline: {elsewhere}")


def share_of_calls():
    few, many = (paper.value("sample_efficiency", variant=name, metric="calls") for name in ("ear", "rmm"))
    (said,) = paper.reported("sample_efficiency", metric="fewer_feedback_steps")
    return rounds_to(exact(f"{few:,.0f} of {many:,.0f} calls, % fewer", 100 * (1 - few / many)), said)


def mixing_gain():
    """The stated gain against that on the same stores, with the gains over dialogues alone."""
    (said,) = paper.reported("mixing_gain", metric="j")
    found = rounds_to(*_gaps("tab04", "ear", "retriever", ("j",), store="both"), said)
    mixed = paper.value("tab04", variant="ear", store="both", metric="j")
    alone = {name: paper.value("tab04", variant=name, store="dialogue", metric="j") for name in ("ear", "retriever")}
    told = [f"over {paper.label(name)} on dialogues alone {mixed - value:.2f}" for name, value in alone.items()]
    return found._replace(reason="; ".join([f"on the same stores: {found.reason}", *told]))


def gains_translate():
    """F1 and J rise in each setting in which Recall@5 does."""
    parts = []
    for dataset, encoder in product(paper.DATASETS, paper.ENCODERS):
        keys = {"id": "tab02", "variant": "ear", "other": "retriever", "dataset": dataset, "encoder": encoder}
        (recall,) = _gaps(**keys)
        parts += _gaps(metrics=("f1", "j"), **keys) if recall.value > 0 else []
    return inside(parts, above=0)


def rl_below_retriever(metrics):
    """The RL baseline lies below the retriever with each encoder, and with the paper's default alone."""
    asked, usual = {"id": "tab02", "variant": "rmm", "other": "retriever", "metrics": metrics}, paper.DEFAULT_ENCODER
    found, own = (gaps([asked | keys], below=0) for keys in ({}, {"encoder": usual}))
    alone = f"with {paper.label(usual)}, of which the sentence before it speaks, {own.verdict}: {own.reason}"
    return found._replace(reason=f"{found.reason}. The sentence names no encoder; {alone}")


def balance():
    """Points over the retriever for a second added, without the Explorer and with it."""

    def points_a_second(name):
        points, seconds = (
            paper.value("tab08", variant=name, metric=one) - paper.value("tab08", variant="retriever", metric=one)
            for one in ("recall@5", "latency")
        )
        return points / seconds

    without, with_it = points_a_second("ear_adapter"), points_a_second("ear")
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


def added_latency(variant, other, above=-math.inf, below=math.inf):
    """The latency of a system in percent of another's, minus 100."""
    one, base = (paper.reported("tab08", variant=name, metric="latency")[0] for name in (variant, other))
    name = f"{one['printed']} s against {base['printed']} s, % more"
    return inside([exact(name, 100 * (one["value"] / base["value"] - 1))], above, below)
