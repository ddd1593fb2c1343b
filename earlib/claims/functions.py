"""What the paper claims, decided twice: on the numbers that it prints, and on the records of the notebooks.

`claims.yaml` holds each claim's words, place and region. Here each is a small function of the recorded runs; above it
stands the same question put to the printed numbers. Thresholds that the paper's words leave open are named below.
"""

import math
from functools import cache
from importlib import resources

import yaml

from earlib import paper, records
from earlib.claims.evidence import (
    OPEN,
    REFUTED,
    SUPPORTED,
    Finding,
    Part,
    Undecidable,
    as_stated,
    at,
    at_budget,
    beside,
    both,
    curve,
    difference,
    exact,
    gap,
    inside,
    less,
    level,
    lowest,
    over_queries,
    passage,
    printed,
    read,
    rounds_to,
    rows,
    sources,
    told,
    turned,
    value_of,
)
from earlib.core.config import READINGS, Config

__all__ = ["FUNCTIONS", "decide", "measured", "read", "sources", "texts"]

RETRIEVAL, ALL_MEASURES = ("recall@5", "hitrate@5"), ("recall@5", "hitrate@5", "f1", "j")
COVERED = "covered@5"  # over both stores, Recall@5 asks for all turns and all their observations in five places
CATEGORIES = ("single-hop", "multi-hop", "temporal", "open-domain")
LEARNERS = ("rmm", "explorer_training", "buffer_training")  # beside EAR's adapter
MARGIN = 2.0  # points that `maintains` and `remains unchanged` allow
MARGINAL = 10.0  # percent of a latency that `marginally` and `equivalent` allow
ASKS_A_MODEL = "it needs the time of a call to the paper's language model, which is not asked in this profile"

FUNCTIONS = {}  # id: (a function of nothing, on the printed numbers; a function of the runs)


def claim(on_paper):
    """Registers a function of the runs under its name, with the same question to the printed numbers."""

    def register(function):
        FUNCTIONS[function.__name__] = on_paper, function
        return function

    return register


def prints(id, *pairs, metrics=("recall@5",), **keys):
    """Asks whether the first of each pair is above the second in every number that a table prints of both."""
    return lambda: inside([part for pair in pairs for part in printed(id, *pair, metrics, **keys)], above=0)


def shows(runs, id, *pairs, metrics=("recall@5",), **where):
    """Whether the first of each pair is above the second in a record."""
    return inside([gap(runs, id, *pair, metric, **where) for pair in pairs for metric in metrics], above=0)


def unprinted(reason):
    """Where the paper prints no number to ask."""
    return lambda: Finding(OPEN, reason)


def in_figure(n):
    return unprinted(f"shown in Figure {n}, without numbers")


# -- abstract ----------------------------------------------------------------------------------------------------------


def _largest_gain():
    said = paper.reported("gain", dataset="longmemeval", compared_with="retriever", metric="recall@5")[0]
    return rounds_to(max(printed("tab02", "ear", "retriever"), key=lambda part: part.value), said)


@claim(_largest_gain)
def up_to_over_retriever(runs):
    return shows(runs, "tab02", ("ear", "retriever"))


@claim(prints("tab03", ("explorer_test", "retriever"), other_id="tab02"))
def high_at_once(runs):
    return shows(runs, "tab03", ("explorer_test", "retriever"))


@claim(in_figure(3))
def sample_efficient(runs):
    most = paper.value("budget", metric="training_queries")
    return inside([at_budget(curve(runs, "fig03", "ear_adapter"), most)], above=0)


@claim(in_figure(5))
def robust(runs):
    critics = dict.fromkeys(row["critic"] for row in rows(runs, "fig05", variant="ear_adapter", metric="recall@5"))
    return inside([_with_critic(runs, one) for one in critics], above=0)


def _with_critic(runs, critic):
    """EAR's adapter at the end of training with a critic ("70/70")."""
    part = curve(runs, "fig05", "ear_adapter", critic=critic)[-1][1]
    return part._replace(name=f"{part.name}, critic {critic}")


# -- introduction and contributions ------------------------------------------------------------------------------------


@claim(lambda: as_stated("tab02", compared_with="retriever", metric="recall@5"))
def gains_on_both(runs):
    return _around_stated(runs, "tab02", "retriever")


def _around_stated(runs, id, other):
    """Above 0 and, where data and encoder are the paper's, not excluding the gain that it states."""
    found = shows(runs, id, ("ear", other))
    keys = {"dataset": runs.dataset, "encoder": runs.encoder, "metric": "recall@5", "compared_with": other}
    stated = paper.value("gain", variant="ear", **keys)
    if stated is not None and found.verdict == SUPPORTED and not found.part.low <= stated <= found.part.high:
        return found._replace(verdict=REFUTED, reason=f"{found.reason} excludes the stated {stated}")
    return found


def _share_of_calls():
    few, many = (paper.value("sample_efficiency", variant=name, metric="calls") for name in ("ear", "rmm"))
    (said,) = paper.reported("sample_efficiency", metric="fewer_feedback_steps")
    return rounds_to(exact(f"{few:,.0f} of {many:,.0f} calls, % fewer", 100 * (1 - few / many)), said)


@claim(_share_of_calls)
def fewer_steps(runs):
    ear, rmm = (passage(_calls(runs, name), paper.label(name)) for name in ("ear_adapter", "rmm"))
    ends = _fewer(ear.value, rmm.value), _fewer(ear.high, rmm.low), _fewer(ear.low, rmm.high)
    found = inside([Part("share of calls saved", *ends)], above=0)
    both_pass = math.isfinite(ear.value) and math.isfinite(rmm.value)
    return found._replace(reason=f"stays above after calls: {told([ear, rmm])}", part=found.part if both_pass else None)


def _fewer(few, many):
    """Percent of calls saved; one that never passes saves nothing."""
    if math.isinf(few):
        return -math.inf
    return 100.0 if math.isinf(many) else 100 * (1 - few / many)


def _calls(runs, variant):
    """A curve of Figure 4, to the same number of calls: EAR in one pass, the baseline in as many as EAR has rounds."""
    epochs = 1 if variant == "ear_adapter" else Config().rounds
    return curve(runs, "fig04", variant, "calls", epochs=epochs, fresh_slates=None)


@claim(prints("tab04", ("ear", "retriever"), metrics=("f1", "j"), store="both"))
def mixes_stores(runs):
    return shows(runs, "tab04", ("ear", "retriever"), metrics=(COVERED,), store="both")


@claim(unprinted("no optimum is defined, and none is printed to compare with"))
def optimal_mixture(runs):
    return shows(runs, "tab04", ("ear", "ceiling"), store="both")


def _mixing():
    (said,) = paper.reported("mixing_gain", metric="j")
    (alike,) = printed("tab04", "ear", "retriever", ("j",), store="both")
    mixed = paper.value("tab04", variant="ear", store="both", metric="j")
    others = [
        f"over {paper.label(name)} on dialogues alone {mixed - paper.value('tab04', variant=name, **alone):.2f}"
        for alone in [{"store": "dialogue", "metric": "j"}] for name in ("ear", "retriever")
    ]  # fmt: skip
    found = rounds_to(alike, said)
    return found._replace(reason="; ".join([f"on the same stores: {found.reason}", *others]))


@claim(_mixing)
def mixing_gain(runs):
    return shows(runs, "tab04", ("ear", "retriever"), metrics=("j",), store="both")


# -- performance comparison --------------------------------------------------------------------------------------------


@claim(prints("tab02", ("ear", "retriever"), ("ear", "rmm"), metrics=ALL_MEASURES))
def consistently_outperforms(runs):
    pairs = [("tab02", "retriever"), ("tab03", "rmm")]
    parts = [gap(runs, id, "ear", other, metric) for id, other in pairs for metric in RETRIEVAL]
    return inside(parts, above=0)


def _over_rl():
    found = as_stated("tab02", compared_with="rmm", metric="recall@5")
    elsewhere = told(printed("tab03", "ear", "rmm", dataset="longmemeval"))
    return found._replace(reason=f"{found.reason}. Table 3 has another baseline: {elsewhere}")


@claim(_over_rl)
def over_rl(runs):
    return _around_stated(runs, "tab03", "rmm")


@claim(unprinted("the paper prints neither intervals nor tests"))
def significantly_over_rl(runs):
    return shows(runs, "tab03", ("ear", "rmm"), metrics=RETRIEVAL)


@claim(lambda: as_stated("tab02", compared_with="retriever", metric="j"))
def answers_over_retriever(runs):
    return shows(runs, "tab02", ("ear", "retriever"), metrics=("j",))


@claim(lambda: as_stated("tab02", compared_with="rmm", metric="j"))
def answers_over_rl(runs):
    return shows(runs, "tab02", ("ear", "rmm"), metrics=("j",))


def _translated():
    settings = [(data, encoder) for data in paper.DATASETS for encoder in paper.ENCODERS]
    parts = []
    for data, encoder in settings:
        keys = {"dataset": data, "encoder": encoder}
        (recall,) = printed("tab02", "ear", "retriever", **keys)
        parts += printed("tab02", "ear", "retriever", ("f1", "j"), **keys) if recall.value > 0 else []
    return inside(parts, above=0)


@claim(_translated)
def gains_translate(runs):
    return shows(runs, "tab02", ("ear", "retriever"), metrics=("f1", "j"))


def _rl_below():
    every, own = (
        inside(printed("tab02", "rmm", "retriever", ALL_MEASURES, **keys), below=0)
        for keys in ({}, {"encoder": paper.DEFAULT_ENCODER})
    )
    alone = f"with {paper.label(paper.DEFAULT_ENCODER)}, of which the sentence before it speaks, {own.verdict}"
    return every._replace(reason=f"{every.reason}. The sentence names no encoder; {alone}: {own.reason}")


@claim(_rl_below)
def rl_below_retriever(runs):
    return inside([gap(runs, "tab02", "rmm", "retriever", metric) for metric in RETRIEVAL], below=0)


def _by_width(dataset):
    """Printed Recall@5 of EAR, and its gain over the retriever, with each encoder from narrow to wide."""
    found = []
    for name in sorted(paper.ENCODERS, key=lambda name: paper.value("encoders", encoder=name, metric="dimension")):
        keys = {"dataset": dataset, "encoder": name, "metric": "recall@5"}
        ear, retriever = (paper.value("tab02", variant=variant, **keys) for variant in ("ear", "retriever"))
        found.append((paper.label(name), ear, ear - retriever))
    return found


def _wider(dataset, sign):
    """EAR with each wider encoder less EAR with the narrowest, or the other way round."""
    (first, base, _), *rest = _by_width(dataset)
    name = f"{paper.label(dataset)}, {first} {base}"
    return inside([exact(f"{name}, {wider} {ear}", sign * (ear - base)) for wider, ear, _ in rest], above=0)


def _by_encoder(runs, of):
    """What holds of EAR with each encoder of Figure 7, `of` a row, from the narrowest encoder to the widest."""
    if "fig07" not in runs.records:
        raise Undecidable(runs.absent["fig07"])
    every = {"encoder": tuple(runs.records["fig07"]["parameters"]["encoders"]), "training_queries": None}
    width = {row["encoder"]: row["measured"] for row in rows(runs, "fig07", metric="dimension", **every)}
    found = rows(runs, "fig07", variant="ear", metric="recall@5", **every)
    if lacking := [paper.label(row["encoder"]) for row in found if row["encoder"] not in width]:
        raise Undecidable(f"the record of fig07_retrievers lacks the width of {', '.join(lacking)}")
    if len(found) < 2:
        raise Undecidable(f"one encoder is run, {paper.label(found[0]['encoder'])}; this needs several widths")
    return [(paper.label(row["encoder"]), of(row)) for row in sorted(found, key=lambda row: width[row["encoder"]])]


def _wider_here(runs, dataset, sign):
    if runs.dataset != dataset and runs.dataset in paper.DATASETS:
        raise Undecidable(f"{paper.label(dataset)} is not run in this profile")
    (first, base), *rest = _by_encoder(runs, value_of)
    return inside([turned(less(part, base, f"{name} against {first}"), sign) for name, part in rest], above=0)


@claim(lambda: _wider("locomo", 1))
def larger_need_more(runs):
    return _wider_here(runs, "locomo", 1)


@claim(lambda: _wider("longmemeval", -1))
def smaller_best_with_few(runs):
    return _wider_here(runs, "longmemeval", -1)


def _diminishing():
    parts = []
    for dataset in paper.DATASETS:
        gains = _by_width(dataset)
        for (narrow, _, more), (wide, _, fewer) in zip(gains[:-1], gains[1:], strict=True):
            named = f"{paper.label(dataset)}, gain with {narrow} less that with {wide}"
            parts.append(exact(named, more - fewer))
    return inside(parts, above=0)


@claim(_diminishing)
def larger_gain_less(runs):
    gains = _by_encoder(runs, difference)
    return inside([
        less(more, fewer, f"gain with {narrow} less {wide}")
        for (narrow, more), (wide, fewer) in zip(gains[:-1], gains[1:], strict=True)
    ], above=0)  # fmt: skip


@claim(prints("tab10", ("monot5_ear", "monot5")))
def adds_to_rerankers(runs):
    return shows(runs, "tab10", ("monot5_ear", "monot5"))


# -- sample efficiency -------------------------------------------------------------------------------------------------


@claim(in_figure(3))
def strongest_throughout(runs):
    found = shows(runs, "tab03", *(("ear_adapter", other) for other in LEARNERS))
    curves = {name: dict(curve(runs, "fig03", name)) for name in LEARNERS}
    ear = curve(runs, "fig03", "ear_adapter")
    best = [all(part.value >= other[x].value for other in curves.values() if x in other) for x, part in ear]
    share = f"its mean curve is the highest at {sum(best)} of {len(best)} evaluations"
    if found.verdict == SUPPORTED and not all(best):  # a single point that no interval decides
        found = found._replace(verdict=OPEN)
    return found._replace(reason=f"at the end of training: {found.reason}; {share}")


def _drop(runs, variant):
    """How far the lowest point of a mean curve lies below the retriever."""
    return turned(lowest(curve(runs, "fig03", variant))[1], -1)


@claim(in_figure(3))
def rl_drops_first(runs):
    found = inside([_drop(runs, "rmm")], above=0)
    stated = paper.value("sample_efficiency", variant="rmm", metric="initial_drop")
    theirs = (runs.dataset, runs.encoder) == ("longmemeval", paper.DEFAULT_ENCODER)
    if theirs and found.verdict == SUPPORTED and not found.part.low <= stated <= found.part.high:
        return found._replace(verdict=REFUTED, reason=f"{found.reason} excludes the stated drop")
    return found


@claim(in_figure(3))
def drop_limited(runs):
    most = paper.value("sample_efficiency", variant="ear", metric="initial_drop")
    return inside([_drop(runs, "ear_adapter")], below=most)


def _early(points, x):
    most = paper.value("sample_efficiency", variant="ear", metric=x)
    return inside([passage(points, f"{paper.label(x)} until it stays above the retriever")], below=most + 1)


@claim(in_figure(3))
def surpasses_soon(runs):
    return _early(curve(runs, "fig03", "ear_adapter"), "training_queries")


@claim(lambda: inside(
    printed("tab02", "rmm", "retriever", dataset="longmemeval", encoder=paper.DEFAULT_ENCODER)
    + printed("tab08", "rmm", "retriever"), below=0,
))  # fmt: skip
def rl_below_in_one_pass(runs):
    most = paper.value("budget", metric="training_queries")
    return inside([at_budget(curve(runs, "fig03", "rmm"), most)], below=0)


@claim(in_figure(4))
def rl_overtakes_late(runs):
    points = _calls(runs, "rmm")
    found = inside([points[-1][1]], above=0)
    return found._replace(reason=f"{found.reason}; {told([passage(points, 'stays above after calls')])}")


@claim(in_figure(4))
def ear_overtakes_early(runs):
    return _early(_calls(runs, "ear_adapter"), "calls")


@claim(in_figure(4))
def stable_lead(runs):
    return shows(runs, "fig04", ("ear_adapter", "rmm"), epochs=1)


@claim(in_figure(3))
def explorer_against_cold_start(runs):
    x, rmm = lowest(curve(runs, "fig03", "rmm"))
    explorer = at_budget(curve(runs, "fig03", "explorer_training"), x)
    name = f"Explorer alone over the RL baseline after {x:,.0f} queries, not paired"
    return inside([less(explorer, rmm, name)], above=0)


@claim(prints("tab03", ("ear_adapter", "explorer_training"), ("buffer_training", "rmm")))
def buffer_accelerates(runs):
    return shows(runs, "tab03", ("ear_adapter", "explorer_training"), ("buffer_training", "rmm"))


@claim(in_figure(3))
def both_weaknesses_resolved(runs):
    return both(drop_limited(runs), surpasses_soon(runs))._replace(part=None)


# -- feedback quality --------------------------------------------------------------------------------------------------


@claim(in_figure(5))
def works_with_noise(runs):
    critic = "/".join(f"{paper.value('noise', metric=metric):g}" for metric in ("precision", "recall"))
    return inside([_with_critic(runs, critic)], above=0)


@claim(unprinted("the paper varies how many errors the critic makes, not whether averaging can remove them"))
def averaging_helps(runs):
    (read_so,) = (one for one in READINGS if one.changes == {"errors": "persistent"})
    keys = {"option": read_so.option, "choice": read_so.choice, "variant": "ear_adapter", "metric": "recall@5"}
    return inside([difference(rows(runs, "sensitivity", **keys)[0])], below=0)


def _smallest_effect():
    """The smallest difference in Recall@5 that the paper reads as the effect of a choice, on the same data."""
    tables = [[row["value"] for row in paper.reported(id, metric="recall@5")] for id in ("tab06", "tab07")]
    return min(round(max(values) - value, 6) for values in tables for value in values if value < max(values))


def _real_critic():
    values = {row["critic"]: row["value"] for row in paper.reported("tab09", metric="recall@5")}
    bound = _smallest_effect()
    found = inside([exact("GPT 5 Mini less simulated", values["gpt-5-mini"] - values["simulated"])], -bound, bound)
    return found._replace(reason=f"{found.reason} (one run); Tables 6 and 7 read {bound:.1f} points as an effect")


@claim(_real_critic)
def simulated_like_real(runs):
    critics = dict.fromkeys(row["critic"] for row in paper.reported("tab09") if row["critic"] != "simulated")
    found = rows(runs, "tab09", metric="recall@5", critic=tuple(critics))
    return inside([difference(row) for row in found], above=-_smallest_effect(), below=_smallest_effect())


# -- ablation ----------------------------------------------------------------------------------------------------------


@claim(prints("tab03", ("explorer_training", "rmm"), ("buffer_training", "rmm")))
def each_part_helps(runs):
    return shows(runs, "tab03", ("explorer_training", "rmm"), ("buffer_training", "rmm"))


@claim(prints("tab03", ("ear_adapter", "explorer_training"), ("ear_adapter", "buffer_training")))
def complementary(runs):
    return shows(runs, "tab03", ("ear_adapter", "explorer_training"), ("ear_adapter", "buffer_training"))


@claim(prints("tab03", ("ear_adapter", "retriever"), other_id="tab02"))
def adapter_suffices(runs):
    return shows(runs, "tab03", ("ear_adapter", "retriever"))


def _points_a_second(name):
    recall, latency = (
        [paper.value("tab08", variant=one, metric=metric) for one in (name, "retriever")]
        for metric in ("recall@5", "latency")
    )
    return (recall[0] - recall[1]) / (latency[0] - latency[1])


def _balance():
    without, with_it = _points_a_second("ear_adapter"), _points_a_second("ear")
    name = f"points a second: {without:.1f} without the Explorer less {with_it:.1f} with it"
    return inside([exact(name, without - with_it)], above=0)


@claim(_balance)
def best_balance(runs):
    return Finding(OPEN, ASKS_A_MODEL)


@claim(prints("tab03", ("ear", "explorer_test")))
def adapter_helps_explorer(runs):
    return shows(runs, "tab03", ("ear", "explorer_test"))


# -- several stores ----------------------------------------------------------------------------------------------------


def _mixed_over_single():
    parts = []
    for row in paper.reported("tab04", store="both"):
        for store in ("dialogue", "observation"):
            single = paper.value("tab04", variant=row["variant"], metric=row["metric"], store=store)
            what = f"{paper.label(row['variant'])}, {paper.label(row['metric'])}, both over {paper.label(store)}"
            parts.append(exact(what, row["value"] - single))
    return inside(parts, above=0)


@claim(_mixed_over_single)
def both_stores_help(runs):
    keys = {"metric": COVERED, "store": "both"}
    parts = []
    for variant in ("retriever", "ear"):
        (row, *_) = rows(runs, "tab04", variant=variant, over="dialogue", **keys)
        part = difference(row)._replace(name=f"{paper.label(variant)}, both over {paper.label('dialogue')}")
        parts.append(at(part, "tab04", variant=variant, **keys))
    return inside(parts, above=0)


def _half_of_slate():
    return paper.value("hyperparameters", metric="slate_size") / 2


def _chosen(runs, variant):
    found = [level(runs, "fig06", variant=variant, metric="observations", category=one) for one in CATEGORIES]
    return [part._replace(name=paper.label(one)) for part, one in zip(found, CATEGORIES, strict=True)]


@claim(in_figure(6))
def retriever_takes_observations(runs):
    return inside(_chosen(runs, "retriever"), above=_half_of_slate())


@claim(in_figure(6))
def ear_balances(runs):
    parts = []
    for category, theirs, ours in zip(CATEGORIES, _chosen(runs, "retriever"), _chosen(runs, "ear"), strict=True):
        if min(theirs.low, ours.low) > _half_of_slate():  # on one side their pair says how much nearer
            nearer = gap(runs, "fig06", "retriever", "ear", "observations", category=category)
            parts.append(nearer._replace(name=theirs.name))
        else:
            part = less(_off_half(theirs), _off_half(ours), f"{theirs.name}, not paired")
            parts.append(at(part, "fig06", variant="ear", metric="observations", category=category))
    return inside(parts, above=0)


def _off_half(part):
    """How far a number of observations lies from half of the slate, with its interval."""
    half = _half_of_slate()
    low, high = sorted(abs(end - half) for end in (part.low, part.high))
    return part._replace(value=abs(part.value - half), low=0.0 if part.low <= half <= part.high else low, high=high)


def _by_type(runs, store):
    return [gap(runs, "tab05", "ear", "retriever", category=one, store=store) for one in CATEGORIES]


@claim(prints("tab05", ("ear", "retriever"), store="dialogue"))
def dialogue_recall_rises(runs):
    return inside(_by_type(runs, "dialogue"), above=0)


@claim(lambda: inside(printed("tab05", "ear", "retriever", store="observation"), above=-MARGIN))
def observation_recall_kept(runs):
    return inside(_by_type(runs, "observation"), above=-MARGIN)


@claim(prints("tab05", ("ear", "retriever"), metrics=("j",), category="temporal"))
def temporal_answers(runs):
    return shows(runs, "tab05", ("ear", "retriever"), metrics=("j",), category="temporal")


@claim(unprinted("no row of the paper differs in the number of observations alone"))
def observations_not_enough(runs):
    return Finding(OPEN, "no run differs in the number of observations alone")


@claim(lambda: both(
    inside(printed("tab05", "ear", "retriever", category="open-domain", store="dialogue"), above=0),
    inside(printed("tab05", "ear", "retriever", ("j",), category="open-domain"), above=-MARGIN, below=MARGIN),
))  # fmt: skip
def open_domain_unchanged(runs):
    found = shows(runs, "tab05", ("ear", "retriever"), category="open-domain", store="dialogue")
    if found.verdict == REFUTED:
        return found
    return found._replace(verdict=OPEN, reason=f"{found.reason}; J is not measured")


def _printed_moves():
    """Printed Delta of each diagnostic query before and after, towards the store that the query requires."""
    for row in paper.reported("tab12", metric="delta_before"):
        after = paper.value("tab12", query=row["query"], metric="delta_after")
        yield f"query {row['query']}", *(_towards(row["memory"]) * value for value in (row["value"], after))


def _towards(store):
    """Delta grows towards semantic memories and falls towards episodic ones."""
    return 1 if store == "semantic" else -1


def _towards_store(runs, metric, **where):
    """Values of the diagnostic queries, towards the store that each requires, by that store and the query."""
    queries = tuple(row["query"] for row in paper.reported("tab11"))
    found = {"episodic": {}, "semantic": {}}
    for row in rows(runs, "tab11", metric=metric, query=queries, **where):
        if row["query"] in found[row["requires"]]:
            raise Undecidable(f"several rows of tab11_12_store_geometry fit query {row['query']}")
        found[row["requires"]][row["query"]] = _towards(row["requires"]) * row["measured"]
    if not all(len(values) > 1 for values in found.values()):
        raise Undecidable("the record of tab11_12_store_geometry lacks queries of one kind")
    return found


@claim(lambda: inside([exact(name, after - before) for name, before, after in _printed_moves()], above=0))
def queries_move(runs):
    moved = _towards_store(runs, "delta_change", adapter="trained")
    parts = [over_queries(list(values.values()), f"{store} queries") for store, values in moved.items()]
    found = inside(parts, above=0)
    keys = {"metric": "separation_change", "adapter": "shuffled"}
    farther = [turned(difference(row), -1) for row in rows(runs, "tab11", **keys)]
    control = told([part._replace(name="farther apart than after shuffled citations") for part in farther[:1]])
    return found._replace(reason=f"{found.reason}. Beside it: {control}")


@claim(lambda: both(
    inside([exact(name, after) for name, _, after in _printed_moves()], above=0),
    inside([exact(f"{name}, growth", abs(after) - abs(before)) for name, before, after in _printed_moves()], above=0),
))  # fmt: skip
def separated_after(runs):
    before = _towards_store(runs, "delta", stage="before")
    after = _towards_store(runs, "delta", stage="after", adapter="trained")
    if any(before[store].keys() != after[store].keys() for store in after):
        raise Undecidable("the record of tab11_12_store_geometry lacks a query before or after training")
    consistent = [over_queries(list(values.values()), f"{store} queries, after") for store, values in after.items()]
    pairs = [(before[store][query], now) for store, values in after.items() for query, now in values.items()]
    growth = over_queries([abs(now) - abs(then) for then, now in pairs], "growth in size")
    return inside([*consistent, growth], above=0)


# -- additional results ------------------------------------------------------------------------------------------------


CHOICES = ("rounds", "replay_size", "replay_choice")


def _others_of(id, key):
    """The rows of a table that differ from the paper's defaults in one hyper-parameter, and the row of the defaults."""
    usual = Config().model_dump()
    fixed = [one for one in CHOICES if one != key]
    found = [row for row in paper.reported(id) if all(row.get(one, usual[one]) == usual[one] for one in fixed)]
    (best,) = (row for row in found if row[key] == usual[key])
    return [row for row in found if row is not best], best


def usual_is_best(id, key):
    """Asks whether a table prints more for the default of a hyper-parameter than for each other choice."""

    def on_paper():
        others, best = _others_of(id, key)
        return inside([
            exact(f"{best['printed']} less {row['printed']} with {row[key]}", best["value"] - row["value"])
            for row in others
        ], above=0)  # fmt: skip

    return on_paper


def _usual_is_best_in(runs, record, id, key):
    """The same of a record, whose rows are compared with the defaults."""
    usual, parts = Config().model_dump(), []
    for other in _others_of(id, key)[0]:
        keys = {one: (None, usual[one]) for one in CHOICES} | {key: other[key]}
        (row, *_) = rows(runs, record, variant="ear_adapter", metric="recall@5", **keys)
        parts.append(turned(difference(row), -1)._replace(name=f"{usual[key]} less {other[key]}"))
    return inside(parts, above=0)


@claim(usual_is_best("tab06", "rounds"))
def rounds_tradeoff(runs):
    return _usual_is_best_in(runs, "tab06", "tab06", "rounds")


@claim(usual_is_best("tab06", "replay_size"))
def replay_size_tradeoff(runs):
    return _usual_is_best_in(runs, "tab06", "tab06", "replay_size")


@claim(usual_is_best("tab07", "replay_choice"))
def similar_best(runs):
    return _usual_is_best_in(runs, "tab07", "tab07", "replay_choice")


def _slower(variant, other):
    one, against = (paper.reported("tab08", variant=name, metric="latency")[0] for name in (variant, other))
    more = 100 * (one["value"] / against["value"] - 1)
    return exact(f"{one['printed']} s against {against['printed']} s, % more", more)


def _slower_here(runs, variant, other):
    """Added latency in percent of the other's, the embeddings in a file as in the paper."""
    base = level(runs, "tab08", variant=other, metric="latency", storage="file").value
    added = gap(runs, "tab08", variant, other, "latency", storage="file")
    return added._replace(value=100 * added.value / base, low=100 * added.low / base, high=100 * added.high / base)


@claim(lambda: inside([_slower("ear_adapter", "retriever")], below=MARGINAL))
def adapter_latency_marginal(runs):
    return inside([_slower_here(runs, "ear_adapter", "retriever")], below=MARGINAL)


@claim(lambda: inside([_slower("ear_adapter", "rmm")], above=-MARGINAL, below=MARGINAL))
def same_inference_cost(runs):
    return inside([_slower_here(runs, "ear_adapter", "rmm")], above=-MARGINAL, below=MARGINAL)


@claim(unprinted("the added latency is printed as a whole, not by its parts"))
def calls_cost_most(runs):
    return Finding(OPEN, ASKS_A_MODEL)


@claim(prints("tab03", ("ear_adapter", "rmm")))
def better_adapter(runs):
    return shows(runs, "tab03", ("ear_adapter", "rmm"))


@claim(lambda: as_stated("tab03", compared_with="ear_adapter"))
def explorer_at_test_time(runs):
    return shows(runs, "tab03", ("ear", "ear_adapter"))


def _gte():
    parts = [turned(*printed("tab02", "ear", "retriever", dataset=data, encoder="gte"), sign)
             for data, sign in (("longmemeval", -1), ("locomo", 1))]  # fmt: skip
    return inside(parts, above=0)


@claim(_gte)
def gte_needs_queries(runs):
    return Finding(OPEN, "GTE is not run in this profile")


@claim(in_figure(7))
def gte_still_rising(runs):
    return Finding(OPEN, "GTE is not run in this profile")


# -- all of them -------------------------------------------------------------------------------------------------------


@cache
def texts():
    """The claims by id: section, said (place and quote), what, region, metric and number, as in `claims.yaml`."""
    source = yaml.safe_load(resources.files("earlib.paper").joinpath("claims.yaml").read_text(encoding="utf-8"))
    usual = {"metric": "gain", "number": None}
    return {id: {"section": section, **usual, **one} for section, ones in source.items() for id, one in ones.items()}


def decide(id, runs):
    """Both verdicts on a claim.

    Parameters
    ----------
    id : str
        A key of `texts`.
    runs : Runs
        See `evidence.read`.

    Returns
    -------
    on_paper, here : Finding
        On made dialogues nothing is decided; the values are those that would be. Where the deciding part sees gold,
        its reason says what the same critic gives with as many calls, without learning or bandit.
    """
    on_paper, function = FUNCTIONS[id]
    try:
        here = function(runs)
    except Undecidable as error:
        here = Finding(OPEN, str(error))
    if here.part is not None and here.part.sees_gold:
        control = beside(runs, here.part, f"equal_calls_{Config().rounds - 1}") or "no equal-call control is recorded"
        here = here._replace(reason=f"{here.reason}. Beside it: {control}")
    if runs.dataset not in paper.DATASETS:
        here = here._replace(verdict=OPEN, reason=f"made dialogues; {here.reason}")
    return on_paper(), here


def measured(runs):
    """A row of a record for each claim, with its verdicts.

    Parameters
    ----------
    runs : Runs

    Returns
    -------
    list of dict
        Rows as `earlib.records.row` returns them, with the key `claim`.
    """
    made = []
    for id, text in texts().items():
        on_paper, here = decide(id, runs)
        values = {"decided": here.verdict, "reported_verdict": on_paper.verdict, "reported_reason": on_paper.reason}
        values |= {"reason": here.reason, **_values(here.part)}
        if text["number"] and runs.dataset in paper.DATASETS:
            values["against"] = {"dataset": None, "encoder": None, **text["number"]}
        steady = text["metric"] in ("gain", "observations", "delta_moved")  # passages and times are not
        about = {"claim": id, "varies": not steady}
        made.append(records.row(runs.dataset, runs.encoder, None, text["metric"], **about, **values))
    return made


def _values(part):
    """The part as fields of a row; what is never reached has no value, and ends at infinity make no interval."""
    if part is None or math.isinf(part.value):
        return {"measured": None}
    ends = {"low": part.low, "high": part.high} if part.low < part.high else {}
    if any(map(math.isinf, ends.values())):
        ends = {}
    return {"measured": part.value, "sees_gold": part.sees_gold, **ends}
