"""Rules that decide a claim on recorded runs; `claims.yaml` names them, and says what each claim measures."""

import math

from earlib import paper
from earlib.claims.evidence import at_budget, gap, level, measured_rows, over_queries, part_of, passage, trajectory
from earlib.claims.on_paper import TOWARDS
from earlib.claims.rule import OPEN, REFUTED, SUPPORTED, Part, Undecidable, inside, less, listed, turned
from earlib.core.config import Config

CATEGORIES = ("single-hop", "multi-hop", "temporal", "open-domain")
GEOMETRY = "the record of tab11_12_store_geometry"
HALF_OF_SLATE = paper.value("hyperparameters", metric="slate_size") / 2


def _gaps(runs, metrics=("recall@5",), **keys):
    return [gap(runs, metric=metric, **keys) for metric in metrics]


def gaps(runs, of, above=-math.inf, below=math.inf):
    """Every recorded difference lies in a region."""
    return inside([part for one in of for part in _gaps(runs, **one)], above, below)


def pairs(runs, of, above=-math.inf, below=math.inf):
    """Recorded differences of rows to those that they are compared with lie in a region."""
    parts = []
    for one in of:
        keys = {key: value for key, value in one.items() if key not in ("name", "sign")}
        for row in measured_rows(runs, **keys):
            part = turned(part_of(row, "difference"), one.get("sign", 1))
            name = one.get("name", part.name).format(**{key: paper.label(str(keys[key])) for key in keys})
            place = {key: value for key, value in keys.items() if key != "over"}
            parts.append(part._replace(name=name, place=place))
    return inside(parts, above, below)


def around_stated(runs, id, other):
    """EAR is above another system by, in the paper's own setting, about as much as the paper states."""
    found = gaps(runs, [{"id": id, "variant": "ear", "other": other}], above=0)
    keys = {"dataset": runs.dataset, "encoder": runs.encoder, "metric": "recall@5", "compared_with": other}
    value = paper.value("gain", variant="ear", **keys)
    return _unless_excluded(found, value, f"the stated {value}")


def _unless_excluded(found, value, name):
    if value is None or found.verdict != SUPPORTED or found.part.low <= value <= found.part.high:
        return found
    return found._replace(verdict=REFUTED, reason=f"{found.reason} excludes {name}")


def within_budget(runs, variant, above=-math.inf, below=math.inf):
    """A learner compared with the retriever after as many training queries as LongMemEval has."""
    most = paper.value("budget", metric="training_queries")
    return inside([at_budget(trajectory(runs, "fig03", variant), most)], above, below)


def with_critics(runs, critics=None):
    """EAR's adapter is above the retriever at the end of training with these critics ("70/70"), or with each."""
    if critics is None:
        found = measured_rows(runs, "fig05", variant="ear_adapter", metric="recall@5")
        critics = dict.fromkeys(row["critic"] for row in found)
    ends = {critic: trajectory(runs, "fig05", "ear_adapter", critic=critic)[-1][1] for critic in critics}
    return inside([part._replace(name=f"{part.name}, critic {critic}") for critic, part in ends.items()], above=0)


def _calls(runs, variant):
    """A curve of Figure 4, to the same number of calls: EAR in one pass, the baseline in as many as EAR has rounds."""
    epochs = 1 if variant == "ear_adapter" else Config().rounds
    return trajectory(runs, "fig04", variant, "calls", epochs=epochs, fresh_slates=None)


def share_of_calls(runs):
    def saved(few, many):  # one that never passes saves nothing
        return -math.inf if math.isinf(few) else 100 * (1 - few / many)

    ear, rmm = (passage(_calls(runs, name), paper.label(name)) for name in ("ear_adapter", "rmm"))
    ends = saved(ear.value, rmm.value), saved(ear.high, rmm.low), saved(ear.low, rmm.high)
    found = inside([Part("share of calls saved", *ends)], above=0)
    part = found.part if math.isfinite(ear.value) and math.isfinite(rmm.value) else None
    return found._replace(reason=f"stays above after calls: {listed([ear, rmm])}", part=part)


def _by_encoder(runs, value="measured"):
    """EAR's value or difference with each encoder of Figure 7, from the narrowest to the widest."""
    if "fig07" not in runs.records:
        raise Undecidable(runs.absent["fig07"])
    every = {"encoder": tuple(runs.records["fig07"]["parameters"]["encoders"]), "training_queries": None}
    width = {row["encoder"]: row["measured"] for row in measured_rows(runs, "fig07", metric="dimension", **every)}
    found = measured_rows(runs, "fig07", variant="ear", metric="recall@5", **every)
    if lacking := [paper.label(row["encoder"]) for row in found if row["encoder"] not in width]:
        raise Undecidable(f"the record of fig07_retrievers lacks the width of {', '.join(lacking)}")
    if len(found) < 2:
        raise Undecidable(f"one encoder is run, {paper.label(found[0]['encoder'])}; this needs several widths")
    found = sorted(found, key=lambda row: width[row["encoder"]])
    return [(paper.label(row["encoder"]), part_of(row, value)) for row in found]


def wider(runs, dataset, sign):
    """EAR with each wider encoder minus EAR with the narrowest, or the other way round."""
    if runs.dataset != dataset and runs.dataset in paper.DATASETS:
        raise Undecidable(f"{paper.label(dataset)} is not run in this profile")
    (first, base), *rest = _by_encoder(runs)
    return inside([turned(less(part, base, f"{name} against {first}"), sign) for name, part in rest], above=0)


def gains_diminish(runs):
    gains = _by_encoder(runs, "difference")
    steps = zip(gains[:-1], gains[1:], strict=True)
    return inside([less(more, fewer, f"gain with {one} less {wide}") for (one, more), (wide, fewer) in steps], above=0)


def strongest_throughout(runs, others):
    """EAR's adapter is above the other learners at the end of training, and its mean curve everywhere."""
    found = gaps(runs, [{"id": "tab03", "variant": "ear_adapter", "other": other} for other in others], above=0)
    curves = [dict(trajectory(runs, "fig03", name)) for name in others]
    ear = trajectory(runs, "fig03", "ear_adapter")
    best = [all(part.value >= other[x].value for other in curves if x in other) for x, part in ear]
    share = f"its mean curve is the highest at {sum(best)} of {len(best)} evaluations"
    if found.verdict == SUPPORTED and not all(best):  # a single point, which no interval decides
        found = found._replace(verdict=OPEN)
    return found._replace(reason=f"at the end of training: {found.reason}; {share}")


def _lowest(runs, variant):
    """The lowest point of a mean curve, (training queries, difference to the retriever)."""
    return min(trajectory(runs, "fig03", variant), key=lambda point: point[1].value)


def rl_drops(runs):
    """The RL baseline first drops below the retriever, in the paper's own setting by about as much as stated."""
    value = paper.value("sample_efficiency", variant="rmm", metric="initial_drop")
    theirs = (runs.dataset, runs.encoder) == ("longmemeval", paper.DEFAULT_ENCODER)
    found = inside([turned(_lowest(runs, "rmm")[1], -1)], above=0)
    return _unless_excluded(found, value if theirs else None, "the stated drop")


def drop_limited(runs):
    most = paper.value("sample_efficiency", variant="ear", metric="initial_drop")
    return inside([turned(_lowest(runs, "ear_adapter")[1], -1)], below=most)


def passes_early(runs, x):
    """EAR's adapter stays above the retriever after at most the stated number of training queries, or calls."""
    points = _calls(runs, "ear_adapter") if x == "calls" else trajectory(runs, "fig03", "ear_adapter")
    most = paper.value("sample_efficiency", variant="ear", metric=x)
    return inside([passage(points, f"{paper.label(x)} until it stays above the retriever")], below=most + 1)


def rl_passes_late(runs):
    """The RL baseline is above the retriever at the end of its several passes."""
    points = _calls(runs, "rmm")
    found = inside([points[-1][1]], above=0)
    return found._replace(reason=f"{found.reason}; {listed([passage(points, 'stays above after calls')])}")


def explorer_at_lowest(runs):
    """Training with the Explorer alone is above the RL baseline where the latter's mean curve is lowest."""
    x, rmm = _lowest(runs, "rmm")
    explorer = at_budget(trajectory(runs, "fig03", "explorer_training"), x)
    name = f"Explorer alone over the RL baseline after {x:,.0f} queries, not paired"
    return inside([less(explorer, rmm, name)], above=0)


def _chosen(runs, variant):
    found = {one: level(runs, "fig06", variant=variant, metric="observations", category=one) for one in CATEGORIES}
    return [part._replace(name=paper.label(one)) for one, part in found.items()]


def mostly_observations(runs):
    return inside(_chosen(runs, "retriever"), above=HALF_OF_SLATE)


def nearer_to_half(runs):
    """EAR's number of observations is nearer to half of the slate than the retriever's."""
    half, parts = HALF_OF_SLATE, []

    def off_half(part):
        low, high = sorted(abs(end - half) for end in (part.low, part.high))
        return part._replace(value=abs(part.value - half), low=0.0 if part.low <= half <= part.high else low, high=high)

    for category, theirs, ours in zip(CATEGORIES, _chosen(runs, "retriever"), _chosen(runs, "ear"), strict=True):
        keys = {"metric": "observations", "category": category}
        if min(theirs.low, ours.low) > half:  # on one side their pair says how much nearer
            parts.append(gap(runs, "fig06", "retriever", "ear", **keys)._replace(name=theirs.name))
        else:
            part = less(off_half(theirs), off_half(ours), f"{theirs.name}, not paired")
            parts.append(part._replace(place={"id": "fig06", "variant": "ear", **keys}))
    return inside(parts, above=0)


def answers_unchanged(runs, of):
    found = gaps(runs, of, above=0)
    if found.verdict == REFUTED:
        return found
    return found._replace(verdict=OPEN, reason=f"{found.reason}; J is not measured")


def _towards_store(runs, metric, **where):
    """Values of the diagnostic queries, towards the store that each requires, by that store and the query."""
    queries = tuple(row["query"] for row in paper.reported("tab11"))
    found = {"episodic": {}, "semantic": {}}
    for row in measured_rows(runs, "tab11", metric=metric, query=queries, **where):
        if row["query"] in found[row["requires"]]:
            raise Undecidable(f"several rows of tab11_12_store_geometry fit query {row['query']}")
        found[row["requires"]][row["query"]] = TOWARDS[row["requires"]] * row["measured"]
    if not all(len(values) > 1 for values in found.values()):
        raise Undecidable(f"{GEOMETRY} lacks queries of one kind")
    return found


def queries_move(runs):
    moved = _towards_store(runs, "delta_change", adapter="trained")
    found = inside([over_queries([*values.values()], f"{store} queries") for store, values in moved.items()], above=0)
    row = measured_rows(runs, "tab11", metric="separation_change", adapter="shuffled")[0]
    control = turned(part_of(row, "difference"), -1)._replace(name="farther apart than after shuffled citations")
    return found._replace(reason=f"{found.reason}. Beside it: {listed([control])}")


def queries_separated(runs):
    before = _towards_store(runs, "delta", stage="before")
    after = _towards_store(runs, "delta", stage="after", adapter="trained")
    if any(before[store].keys() != after[store].keys() for store in after):
        raise Undecidable(f"{GEOMETRY} lacks a query before or after training")
    consistent = [over_queries([*values.values()], f"{store} queries, after") for store, values in after.items()]
    pairs = [(before[store][query], now) for store, values in after.items() for query, now in values.items()]
    growth = over_queries([abs(now) - abs(then) for then, now in pairs], "growth in size")
    return inside([*consistent, growth], above=0)


def added_latency(runs, variant, other, above=-math.inf, below=math.inf):
    base = level(runs, "tab08", variant=other, metric="latency", storage="file").value
    more = gap(runs, "tab08", variant, other, "latency", storage="file")
    more = more._replace(value=100 * more.value / base, low=100 * more.low / base, high=100 * more.high / base)
    return inside([more], above, below)
