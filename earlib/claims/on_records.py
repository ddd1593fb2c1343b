"""Rules that decide a claim on recorded runs; `claims.yaml` names them, and says what each claim measures."""

import math

from earlib import paper
from earlib.claims.evidence import early, gap, level, measured_rows, paired, part_of, passage, trajectory
from earlib.claims.rule import OPEN, REFUTED, SUPPORTED, Finding, Part, Undecidable, both, inside, less, listed
from earlib.core.config import Config

CATEGORIES = ("single-hop", "multi-hop", "temporal", "open-domain")
HALF_OF_SLATE = paper.value("hyperparameters", metric="slate_size") / 2
INF = math.inf


def _judge(name, above, below, find, /, *given, **keys):
    """The finding on the part that `find` returns, open where its evidence is missing."""
    try:
        part = find(*given, **keys)
    except Undecidable as error:
        return Finding(OPEN, str(error), name=name)
    alone = ", not paired" if part.name.endswith("not paired") else ""
    return inside([part._replace(name=name + alone)], above, below)


def gaps(runs, of, above=-INF, below=INF):
    """Every recorded difference of two systems lies in a region."""
    found = []
    for one in of:
        keys = {key: value for key, value in one.items() if key != "metrics"}
        for metric in one.get("metrics", ("recall@5",)):
            named = [metric, f"{paper.label(one['variant'])} over {paper.label(one['other'])}"]
            named += [one[key] for key in one if key not in ("id", "variant", "other", "metrics", "sign", "epochs")]
            name = ", ".join(paper.label(value) for value in named)
            found.append(_judge(name, above, below, gap, runs, metric=metric, **keys))
    return both(*found)


def pairs(runs, of, above=-INF, below=INF):
    """Recorded differences of rows to those that they are compared with lie in a region."""
    found = []
    for one in of:
        named = one | {"name": one["name"].format(**{key: paper.label(str(one[key])) for key in one})}
        found.append(_judge(named["name"], above, below, paired, runs, **named))
    return both(*found)


def around_stated(runs, id, other):
    """EAR is above another system by, in the paper's own setting, about as much as the paper states."""
    found = gaps(runs, [{"id": id, "variant": "ear", "other": other}], above=0)
    keys = {"dataset": runs.dataset, "encoder": runs.encoder, "metric": "recall@5", "compared_with": other}
    return _unless_excluded(found, paper.value("gain", variant="ear", **keys))


def _unless_excluded(found, stated):
    if stated is None or found.verdict != SUPPORTED or found.part.low <= stated <= found.part.high:
        return found
    return found.alone(verdict=REFUTED, reason=f"{found.reason} excludes the stated {stated}")


def at_end(runs, id, of, above=-INF, below=INF, until=INF):
    """Curves compared with the retriever at the end of training, or at the last point within so many queries."""

    def end(**keys):
        within = [part for x, part in trajectory(runs, id, **keys) if x <= until]
        if not within:
            raise Undecidable(f"no evaluation within {until} queries")
        return within[-1]

    found = []
    for one in of:
        name = f"{paper.label(one['variant'])}, {'end of training' if until == INF else f'within {until} queries'}"
        name += f", critic {one['critic']}" if "critic" in one else ""
        found.append(_judge(name, above, below, end, **one))
    return both(*found)


def begins(runs, id, variant, other=None, above=-INF, below=INF, stated=None):
    """A learner at first, over the retriever or another one; in the paper's own setting by about as much as stated."""
    part = early(runs, id, variant)
    if other:
        part = less(part, early(runs, id, other), f"{part.name}, over {paper.label(other)}, not paired")
    theirs = (runs.dataset, runs.encoder) == ("longmemeval", paper.DEFAULT_ENCODER)
    return _unless_excluded(inside([part], above, below), stated if theirs else None)


def _calls(runs, id, variant):
    """A curve of Figure 4, to the same number of calls: EAR in one pass, the baseline in as many as EAR has rounds."""
    epochs = 1 if variant == "ear_adapter" else Config().rounds
    return trajectory(runs, id, variant, "calls", epochs=epochs, fresh_slates=None)


def share_of_calls(runs, id):
    def saved(few, many):  # one that never passes saves nothing
        return -INF if math.isinf(few) else 100 * (1 - few / many)

    ear, rmm = (passage(_calls(runs, id, name), paper.label(name)) for name in ("ear_adapter", "rmm"))
    ends = saved(ear.value, rmm.value), saved(ear.high, rmm.low), saved(ear.low, rmm.high)
    found = inside([Part("share of calls saved", *ends)], above=0)
    part = found.part if math.isfinite(ear.value) and math.isfinite(rmm.value) else None
    return found.alone(reason=f"stays above after calls: {listed([ear, rmm])}", part=part)


def passes_early(runs, id, x):
    """EAR's adapter stays above the retriever after at most the stated number of training queries, or calls."""
    points = _calls(runs, id, "ear_adapter") if x == "calls" else trajectory(runs, id, "ear_adapter")
    most = paper.value("sample_efficiency", variant="ear", metric=x)
    return inside([passage(points, f"{paper.label(x)} until it stays above the retriever")], below=most + 1)


def strongest_throughout(runs, id, curves, others):
    """EAR's adapter is above the other learners at the end of training, and its mean curve everywhere."""
    found = gaps(runs, [{"id": id, "variant": "ear_adapter", "other": other} for other in others], above=0)
    others = [dict(trajectory(runs, curves, name)) for name in others]
    ear = trajectory(runs, curves, "ear_adapter")
    best = [all(part.value >= other[x].value for other in others if x in other) for x, part in ear]
    share = f"its mean curve is the highest at {sum(best)} of {len(best)} evaluations"
    # Single points, which no interval decides, are not against it.
    return both(found, Finding(SUPPORTED if all(best) else OPEN, share, name="throughout"))


def by_width(runs, id, encoders, value="measured", sign=1, against="narrowest"):
    """EAR's value, or its gain, with each encoder minus that with the narrowest one, or with the next narrower one."""
    held = {row["encoder"]: 0 for row in runs.records.get(id, {"rows": ()})["rows"]}
    rows = measured_rows(runs, id, variant="ear", metric="recall@5", encoder=(*held,))
    wide = measured_rows(runs, id, metric="dimension", encoder=(*held,))
    width = {row["encoder"]: row["measured"] for row in wide}
    if lacking := [paper.label(row["encoder"]) for row in rows if row["encoder"] not in width]:
        raise Undecidable(f"the record of fig07_retrievers lacks the width of {', '.join(lacking)}")
    rows = sorted(rows, key=lambda row: width[row["encoder"]])
    absent = [paper.label(one) for one in encoders if one not in [row["encoder"] for row in rows]]
    told = f"not measured on {paper.label(runs.dataset)} with {', '.join(absent)}"
    found = [Finding(OPEN, told, name=", ".join(absent))] if absent else []
    for at, row in enumerate(rows[1:]):
        one, other = [row, rows[0 if against == "narrowest" else at]][::sign]
        name = f"{paper.label(one['encoder'])} minus {paper.label(other['encoder'])}, not paired"
        found.append(inside([less(part_of(one, value), part_of(other, value), name)], above=0))
    return both(*found)


def adapters_by_width(runs, id, step):
    """The gain of EAR's adapter on the same embeddings in a wider space minus that in their own space."""
    widths = {row.get("width"): 0 for row in runs.records.get(id, {"rows": ()})["rows"]}
    found = measured_rows(runs, id, variant="ear_adapter", metric="recall@5", step=step, width=(*widths,))
    (own, base), *rest = sorted((row["width"], part_of(row, "difference")) for row in found)
    if not rest:
        raise Undecidable("the record of fig07_retrievers has one width; this needs several")
    parts = [less(part, base, f"{width:,} dimensions minus {own:,}, not paired") for width, part in rest]
    return inside(parts, below=0)


def still_rises(runs, id, **setting):
    """EAR's adapter at the end of training minus where it begins."""
    (_, end), begin = trajectory(runs, id, "ear_adapter", **setting)[-1], early(runs, id, "ear_adapter", **setting)
    return inside([less(end, begin, "end of training minus its beginning, not paired")], above=0)


def _chosen(runs, id, variant, category):
    return level(runs, id, variant=variant, metric="observations", category=category)


def mostly_observations(runs, id):
    """The retriever returns more observations than half of the slate, whatever the type of the question."""
    names = [(paper.label(one), one) for one in CATEGORIES]
    return both(*(_judge(name, HALF_OF_SLATE, INF, _chosen, runs, id, "retriever", one) for name, one in names))


def nearer_to_half(runs, id):
    """EAR's number of observations is nearer to half of the slate than the retriever's."""

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

    return both(*(_judge(paper.label(one), 0, INF, nearer, one) for one in CATEGORIES))


def _latency(runs, id, variant, **keys):
    return level(runs, id, variant=variant, metric="latency", **keys).value


def added_latency(runs, id, variant, other, above=-INF, below=INF):
    base = _latency(runs, id, other, storage="file")
    more = gap(runs, id, variant, other, "latency", storage="file")
    more = more._replace(value=100 * more.value / base, low=100 * more.low / base, high=100 * more.high / base)
    return inside([more], above, below)


def balance(runs, id, gains):
    """Points over the retriever by latency added, without the Explorer minus with it and its critic calls."""
    base, alone = (_latency(runs, id, one, storage="file") for one in ("retriever", "ear_adapter"))
    whole, rates = _latency(runs, id, "ear", llm=paper.LANGUAGE_MODEL), []
    for variant, seconds in (("ear_adapter", alone - base), ("ear", whole - base)):
        part = gap(runs, gains, variant, "retriever")
        rates.append(part._replace(value=part.value / seconds, low=part.low / seconds, high=part.high / seconds))
    return inside([less(*rates, "points by latency added, without the Explorer minus with it, not paired")], above=0)


def share_of_latency(runs, id):
    """The share of the Explorer's added latency that its critic calls take, in percent."""
    own, alone = (_latency(runs, id, one, storage="file") for one in ("ear", "ear_adapter"))
    whole = _latency(runs, id, "ear", llm=paper.LANGUAGE_MODEL)
    value = 100 * (whole - own) / (whole - alone)
    return inside([Part("critic calls, % of the added latency", value, value, value)], above=50)
