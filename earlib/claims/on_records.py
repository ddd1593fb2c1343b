"""Rules that find, in recorded runs, the values on which a claim depends; `claims.yaml` names them, and the regions."""

import math

from earlib import paper
from earlib.claims.evidence import early, gap, level, measured_rows, paired, part_of, passage, trajectory
from earlib.claims.rule import OPEN, SUPPORTED, Finding, Part, Undecidable, judged, less, listed, per
from earlib.core.config import Config

CATEGORIES = ("single-hop", "multi-hop", "temporal", "open-domain")
HALF_OF_SLATE = paper.value("hyperparameters", metric="slate_size") / 2


def _named(name, find, /, *given, **keys):
    """The part that `find` returns, by this name; an open finding where its evidence is missing."""
    try:
        part = find(*given, **keys)
    except Undecidable as error:
        return Finding(OPEN, str(error), name=name)
    return part._replace(name=name + (", not paired" if part.name.endswith("not paired") else ""))


def gaps(runs, of):
    """Recorded differences of two systems."""
    unnamed = ("id", "variant", "other", "metrics", "sign", "epochs")
    for one in of:
        for metric in one.get("metrics", ("recall@5",)):
            over = f"{paper.label(one['variant'])} over {paper.label(one['other'])}"
            named = [metric, over, *(value for key, value in one.items() if key not in unnamed)]
            keys = {key: value for key, value in one.items() if key != "metrics"}
            yield _named(", ".join(map(paper.label, named)), gap, runs, metric=metric, **keys)


def pairs(runs, of):
    """Recorded differences of rows to those that they are compared with."""
    for one in of:
        name = one["name"].format(**{key: paper.label(str(value)) for key, value in one.items()})
        yield _named(name, paired, runs, **one | {"name": name})


def at_end(runs, id, of, until=math.inf):
    """Curves compared with the retriever at the end of training, or at the last point within so many queries."""

    def end(**keys):
        within = [part for x, part in trajectory(runs, id, **keys).items() if x <= until]
        if not within:
            raise Undecidable(f"no evaluation within {until} queries")
        return within[-1]

    when = "end of training" if until == math.inf else f"within {until} queries"
    for one in of:
        critic = [f"critic {one['critic']}"] if "critic" in one else []
        yield _named(", ".join([paper.label(one["variant"]), when, *critic]), end, **one)


def begins(runs, id, variant, other=None):
    """A learner at first, over the retriever or another one."""
    part = early(runs, id, variant)
    yield less(part, early(runs, id, other), f"{part.name}, over {paper.label(other)}, not paired") if other else part


def _calls(runs, id, variant):
    """A curve of Figure 4, to the same number of calls: EAR in one pass, the baseline in as many as EAR has rounds."""
    epochs = 1 if variant == "ear_adapter" else Config().rounds
    return trajectory(runs, id, variant, "calls", epochs=epochs, fresh_slates=None)


def share_of_calls(runs, id):
    """The share of the RL baseline's critic calls that EAR's adapter saves until it stays above the retriever."""

    def saved(few, many):  # one that never passes saves nothing
        return -math.inf if math.isinf(few) else 100 * (1 - few / many)

    ear, rmm = (passage(_calls(runs, id, name), paper.label(name)) for name in ("ear_adapter", "rmm"))
    ends = saved(ear.value, rmm.value), saved(ear.high, rmm.low), saved(ear.low, rmm.high)
    found = judged(Part("share of calls saved", *ends), above=0)
    part = found.part if math.isfinite(ear.value) and math.isfinite(rmm.value) else None
    yield found._replace(reason=f"stays above after calls: {listed([ear, rmm])}", part=part, region=None)


def passes(runs, id, x):
    """The number of training queries, or of calls, after which EAR's adapter stays above the retriever."""
    points = _calls(runs, id, "ear_adapter") if x == "calls" else trajectory(runs, id, "ear_adapter")
    yield passage(points, f"{paper.label(x)} until it stays above the retriever")


def strongest_throughout(runs, id, curves, others):
    """EAR's adapter over the other learners at the end of training, and its mean curve everywhere."""
    yield from gaps(runs, [{"id": id, "variant": "ear_adapter", "other": other} for other in others])
    others = [trajectory(runs, curves, name) for name in others]
    ear = trajectory(runs, curves, "ear_adapter")
    best = [all(part.value >= other[x].value for other in others if x in other) for x, part in ear.items()]
    share = f"its mean curve is the highest at {sum(best)} of {len(best)} evaluations"
    # Single points, which no interval decides, are not against it.
    yield Finding(SUPPORTED if all(best) else OPEN, share, name="throughout")


def by_width(runs, id, encoders, value="measured", sign=1, against="narrowest"):
    """EAR's value, or its gain, with each encoder minus that with the narrowest one, or with the next narrower one."""
    held = {"id": id, "encoder": [row["encoder"] for row in runs.rows(id)]}
    rows = measured_rows(runs, variant="ear", metric="recall@5", **held)
    width = {row["encoder"]: row["measured"] for row in measured_rows(runs, metric="dimension", **held)}
    if lacking := [paper.label(row["encoder"]) for row in rows if row["encoder"] not in width]:
        raise Undecidable(f"the record of fig07_retrievers lacks the width of {', '.join(lacking)}")
    rows = sorted(rows, key=lambda row: width[row["encoder"]])
    if absent := [paper.label(one) for one in encoders if one not in [row["encoder"] for row in rows]]:
        told = f"not measured on {paper.label(runs.dataset)} with {', '.join(absent)}"
        yield Finding(OPEN, told, name=", ".join(absent))
    for at, row in enumerate(rows[1:]):
        one, other = [row, rows[0 if against == "narrowest" else at]][::sign]
        name = f"{paper.label(one['encoder'])} minus {paper.label(other['encoder'])}, not paired"
        yield less(part_of(one, value), part_of(other, value), name)


def adapters_by_width(runs, id, step):
    """The gain of EAR's adapter on the same embeddings in a wider space minus that in their own space."""
    widths = [row.get("width") for row in runs.rows(id)]
    found = measured_rows(runs, id, variant="ear_adapter", metric="recall@5", step=step, width=widths)
    (own, base), *rest = sorted((row["width"], part_of(row, "difference")) for row in found)
    if not rest:
        raise Undecidable("the record of fig07_retrievers has one width; this needs several")
    for width, part in rest:
        yield less(part, base, f"{width:,} dimensions minus {own:,}, not paired")


def still_rises(runs, id, **setting):
    """EAR's adapter at the end of training minus where it begins."""
    *_, end = trajectory(runs, id, "ear_adapter", **setting).values()
    begin = early(runs, id, "ear_adapter", **setting)
    yield less(end, begin, "end of training minus its beginning, not paired")


def _chosen(runs, id, variant, category):
    return level(runs, id, variant=variant, metric="observations", category=category)


def observations(runs, id):
    """Observations that the retriever returns, by the type of the question."""
    for category in CATEGORIES:
        yield _named(paper.label(category), _chosen, runs, id, "retriever", category)


def nearer_to_half(runs, id):
    """By how much EAR's number of observations is nearer to half of the slate than the retriever's."""

    def off_half(part):
        ends = [abs(end - HALF_OF_SLATE) for end in (part.low, part.high)]
        low = 0.0 if part.low <= HALF_OF_SLATE <= part.high else min(ends)
        return part._replace(value=abs(part.value - HALF_OF_SLATE), low=low, high=max(ends))

    def nearer(category):
        theirs, ours = (_chosen(runs, id, variant, category) for variant in ("retriever", "ear"))
        keys = {"metric": "observations", "category": category}
        if min(theirs.low, ours.low) > HALF_OF_SLATE:  # on one side their pair says how much nearer
            return gap(runs, id, "retriever", "ear", **keys)
        return less(off_half(theirs), off_half(ours), "not paired")._replace(place={"id": id, "variant": "ear", **keys})

    for category in CATEGORIES:
        yield _named(paper.label(category), nearer, category)


def _latency(runs, id, variant, **keys):
    return level(runs, id, variant=variant, metric="latency", **keys).value


def added_latency(runs, id, variant, other):
    """Latency that a system adds to another one's, in percent of it."""
    base = _latency(runs, id, other, storage="file")
    yield per(gap(runs, id, variant, other, "latency", storage="file"), base, 100)


def balance(runs, id, gains):
    """Points over the retriever by latency added, without the Explorer minus with it and its critic calls."""
    base, alone = (_latency(runs, id, one, storage="file") for one in ("retriever", "ear_adapter"))
    added = {"ear_adapter": alone - base, "ear": _latency(runs, id, "ear", llm=paper.LANGUAGE_MODEL) - base}
    rates = [per(gap(runs, gains, variant, "retriever"), seconds) for variant, seconds in added.items()]
    yield less(*rates, "points by latency added, without the Explorer minus with it, not paired")


def share_of_latency(runs, id):
    """The share of the Explorer's added latency that its critic calls take, in percent."""
    own, alone = (_latency(runs, id, one, storage="file") for one in ("ear", "ear_adapter"))
    whole = _latency(runs, id, "ear", llm=paper.LANGUAGE_MODEL)
    value = 100 * (whole - own) / (whole - alone)
    yield Part("critic calls, % of the added latency", value, value, value)
