"""The verdicts on each claim: on the numbers that the paper prints, and on recorded runs, on both splits."""

import math
from contextlib import suppress
from functools import cache

from earlib import paper, records
from earlib.claims import on_paper, on_records, rule
from earlib.claims.evidence import MAIN, RECORDS, SPLITS, gap, under_readings
from earlib.claims.rule import OPEN, OPPOSITE, Finding, Undecidable
from earlib.core.config import Config

STEADY = ("gain", "observations", "delta_moved")  # metrics that machines agree on; passages and times vary
USUAL = {"metric": "gain", "number": None, "together": False, "datasets": [], "encoders": []}
USUAL["apart"] = ["dataset", "encoder"]


@cache
def claim_texts():
    """The claims of `claims.yaml` by id, each with its section."""
    sections = paper.claims_source()["claims"].items()
    return {id: {"section": section, **USUAL, **one} for section, ones in sections for id, one in ones.items()}


def _ask(rules, question, *given):
    """The finding of a rule with its arguments, of all of several, or that a claim is not decidable for a reason."""
    if isinstance(question, str):
        return Finding(OPEN, question)
    if isinstance(question, list):
        return rule.both(*(_ask(rules, one, *given) for one in question))
    try:
        return getattr(rules, question["rule"])(*given, **{key: question[key] for key in question if key != "rule"})
    except Undecidable as error:
        return Finding(OPEN, str(error))


def decide(id, runs):
    """Findings on a claim: on the printed numbers, on the runs of the main split, and on those by conversation.

    A claim of several settings is judged in each; all have to be decided, and one against it is enough.
    """
    claim = claim_texts()[id]
    if claim["encoders"] or claim["together"]:
        runs = runs.together()
    main, unseen = (_measured(claim, runs._replace(split=split)) for split in SPLITS)
    return _ask(on_paper, claim["printed"]), main, unseen


def _measured(claim, runs):
    found, places = [], _places(claim, runs)
    for dataset, encoder in places:
        here = runs._replace(dataset=dataset, encoder=encoder)
        one = _ask(on_records, claim["measured"], here)
        where = ", ".join(paper.label(name) for name in (dataset, encoder) if name)
        for piece in one.pieces or (one,):
            piece = _read(piece, here) if runs.split == MAIN else piece
            if dataset not in (None, *paper.DATASETS):
                piece = piece._replace(verdict=OPEN, reason=f"made dialogues; {piece.reason}")
            if piece.part is not None and piece.part.sees_gold:
                place = {"dataset": dataset, "encoder": encoder, **(piece.part.place or {})}
                piece = piece._replace(part=piece.part._replace(place=place))
            if piece.part is not None and len(places) > 1:
                piece = piece._replace(reason=f"{where}, {piece.reason}")
            found.append(piece._replace(name=", ".join(filter(None, [where, piece.name]))))
    return rule.both(*found)


def _places(claim, runs):
    """Settings in which a claim is judged: those that its words name, and those of its records."""
    held = {}
    for short in _ids(claim["measured"]):
        for row in runs.records.get(short, {"rows": ()})["rows"]:
            if row["measured"] is not None and row["encoder"] and row["metric"] not in ("dimension", "model_size"):
                held[row["dataset"], row["encoder"]] = True
    datasets = dict.fromkeys([*(dataset for dataset, _ in held), *claim["datasets"]])
    if set(datasets) - set(paper.DATASETS):  # made dialogues stand for all
        datasets = {dataset: None for dataset in datasets if dataset not in paper.DATASETS}
        claim = {**claim, "encoders": []}
    usual = [encoder for _, encoder in held][:1] or [None]
    for dataset in datasets:
        if claim["encoders"] or all(dataset != one for one, _ in held):
            held |= dict.fromkeys((dataset, encoder) for encoder in claim["encoders"] or usual)
    chosen = [place for place in held if place[0] in datasets] or [(None, None)]
    apart = [key in claim["apart"] for key in ("dataset", "encoder")]
    return [*dict.fromkeys((one[0] if apart[0] else None, one[1] if apart[1] else None) for one in chosen)]


def _ids(question):
    """First parts of the ids of the records that a rule reads."""
    if isinstance(question, dict | list):
        return [id for one in (question.values() if isinstance(question, dict) else question) for id in _ids(one)]
    return [question] if question in RECORDS else []


def _read(piece, runs):
    """The finding on a part with the readings under which it stands; what one decides the other way depends on it."""
    if piece.region is None or piece.part is None or piece.part.pair is None:
        return piece
    tried = under_readings(runs, piece.part.pair).items()
    tried = {": ".join(one): rule.judged(part, *piece.region).verdict for one, part in tried}
    same = sum(verdict == piece.verdict for verdict in tried.values())
    piece = piece._replace(readings=f"{same} of {len(tried)}" if tried else None)
    against = ", ".join(one for one, verdict in tried.items() if verdict == OPPOSITE.get(piece.verdict))
    told = f"{piece.reason}; {OPPOSITE.get(piece.verdict)} under {against}"
    return piece._replace(verdict=rule.DEPENDS, reason=told) if against else piece


def _beside(runs, part):
    """Verdict on a system that sees gold minus the equal-call control, and their difference."""
    calls, found = Config().rounds - 1, []
    for place in (part.place, part.place | {"id": "controls", "control": "equal calls", "calls": calls}):
        with suppress(TypeError, Undecidable):  # of encoders, compared with each other, there is no place
            found.append(gap(runs, other=f"equal_calls_{calls}", **place))
    if not found:
        return "no equal-call control is recorded"
    best = next((one for one in found if one.comparison), found[0])
    verdict = rule.against_control(best, paper.unit(part.place["metric"]) == "%")
    return f"{verdict}: {rule.value_text(best)}{'' if best.comparison else ', not paired'}"


def claim_rows(runs):
    """Rows of a record, two for each claim (keys `claim` and `split`), from what `read_runs` returned.

    The row of the main split has the verdict on the paper's own numbers too. Further fields are `parts`, the verdict on
    each part; `readings`, under how many of the readings of the paper it stands; `beside`, what sees gold against the
    equal-call control; `comparison`, the paired difference that decides, and `corrected`, its p corrected for all
    distinct comparisons of the ledger.
    """
    decided = {id: decide(id, runs) for id in claim_texts()}
    tested = _tested(found for _, *both_splits in decided.values() for found in both_splits)
    dataset, encoders = ", ".join(runs.present["dataset"]), [*runs.present["encoder"]]
    encoder = encoders[0] if len(encoders) == 1 else None
    splits = [record["parameters"].get("split") for record in runs.records.values()]
    names = {MAIN: next(filter(None, splits), "random")}
    every, made = runs.together(), []
    for id, (printed, *measured) in decided.items():
        text = claim_texts()[id]
        for split, found in zip(SPLITS, measured, strict=True):
            about = {"claim": id, "split": names.get(split, split), "varies": text["metric"] not in STEADY}
            values = {"decided": found.verdict, "reason": found.reason, **_values(found.part, tested)}
            if len(found.pieces) > 1:
                values["parts"] = {piece.name: piece.told for piece in found.pieces}
            if found.part is not None and found.part.sees_gold:
                values["beside"] = _beside(every._replace(split=split), found.part)
            if split == MAIN:
                values |= {"readings": found.readings, "reported_verdict": printed.verdict}
                values |= {"reported_reason": printed.reason}
                if text["number"] and set(runs.present["dataset"]) <= set(paper.DATASETS):
                    values["against"] = {"dataset": None, "encoder": None, **text["number"]}
            made.append(records.row(dataset, encoder, None, text["metric"], **about, **values))
    return made


def _tested(findings):
    """Corrected p (Holm) of each distinct comparison among the parts of the ledger."""
    parts = [piece.part for found in findings for piece in found.pieces if piece.part is not None]
    raw = {part.comparison: part.p for part in reversed(parts) if part.comparison and part.p is not None}
    return dict(zip(raw, map(float, rule.holm([*raw.values()])), strict=True))


def _values(part, tested):
    """The part as fields of a row; what is never reached has no value, and infinite ends make no interval."""
    if part is None or math.isinf(part.value):
        return {"measured": None}
    ends = {"low": part.low, "high": part.high} if -math.inf < part.low < part.high < math.inf else {}
    compared = {"comparison": part.comparison, "corrected": tested.get(part.comparison)}
    return {"measured": part.value, "sees_gold": part.sees_gold, **ends, **compared}
