"""The verdicts on each claim: on the numbers that the paper prints, and on recorded runs, on both splits."""

import math
from contextlib import suppress
from functools import cache

from earlib import paper, records
from earlib.claims import on_paper, on_records, rule
from earlib.claims.evidence import MAIN, RECORDS, SPLITS, gap, part_of
from earlib.claims.rule import OPEN, OPPOSITE, Finding, Undecidable
from earlib.core.config import Config

STEADY = ("gain", "observations", "delta_moved")  # metrics that machines agree on; passages and times vary
EDGES = ("above", "below")
NO_READINGS = ("default", "by conversation")  # choices that are the usual one, and another split


@cache
def claim_texts():
    """The claims of `claims.yaml` by id, each with its section."""
    source = paper.claims_source()
    sections = source["claims"].items()
    return {
        id: {"section": section, **source["usual"], **one} for section, ones in sections for id, one in ones.items()
    }


def decide(id, runs):
    """Findings on a claim: on the printed numbers, on the runs of the main split, and on those by conversation.

    A claim of several settings is judged in each; all have to be decided, and one against it is enough.
    """
    claim = claim_texts()[id]
    if claim["encoders"] or claim["together"]:
        runs = runs.together()
    main, unseen = (_measured(claim, runs._replace(split=split)) for split in SPLITS)
    return _ask(on_paper, claim["printed"]), main, unseen


def _ask(rules, question, *given, around=None):
    """The finding on the parts that a rule finds with its arguments, on all of several, or why there is none."""
    if isinstance(question, str):
        return Finding(OPEN, question)
    if isinstance(question, list):
        return rule.both(*(_ask(rules, one, *given) for one in question))
    edges = {key: question[key] for key in EDGES if key in question}
    keys = {key: value for key, value in question.items() if key not in ("rule", "around", "note", *EDGES)}
    try:
        found = getattr(rules, question["rule"])(*given, **keys)
        found = [one if isinstance(one, Finding) else rule.judged(one, **edges, around=around) for one in found]
        whole = rule.both(*found)
    except Undecidable as error:
        return Finding(OPEN, str(error))
    return whole._replace(reason=whole.reason + question.get("note", ""))


def _measured(claim, runs):
    found, places, question = [], _places(claim, runs), claim["measured"]
    stated = question.get("around", {}) if isinstance(question, dict) else {}
    for dataset, encoder in places:
        here = runs._replace(dataset=dataset, encoder=encoder)
        around = stated.get(dataset) if encoder == paper.DEFAULT_ENCODER else None
        where = ", ".join(paper.label(name) for name in (dataset, encoder) if name)
        for piece in rule.both(_ask(on_records, question, here, around=around)).pieces:
            piece = _read(piece, here) if runs.split == MAIN else piece
            if dataset not in (None, *paper.DATASETS):
                piece = piece._replace(verdict=OPEN, reason=f"made dialogues; {piece.reason}")
            if piece.part:
                place = {"dataset": dataset, "encoder": encoder, **(piece.part.place or {})}
                told = f"{where}, " if len(places) > 1 else ""
                piece = piece._replace(part=piece.part._replace(place=place), reason=told + piece.reason)
            found.append(piece._replace(name=", ".join(filter(None, [where, piece.name]))))
    return rule.both(*found)


def _places(claim, runs):
    """Settings in which a claim is judged: those that its words name, and those of its records."""
    rows = [row for short in RECORDS if f"'{short}'" in str(claim["measured"]) for row in runs.rows(short)]
    rows = [row for row in rows if row["measured"] is not None and row["metric"] not in ("dimension", "model_size")]
    held = dict.fromkeys((row["dataset"], row["encoder"]) for row in rows if row["encoder"])
    datasets, encoders = dict.fromkeys([*(dataset for dataset, _ in held), *claim["datasets"]]), claim["encoders"]
    if made := [dataset for dataset in datasets if dataset not in paper.DATASETS]:  # they stand for all
        datasets, encoders = made, []
    usual = [encoder for _, encoder in held][:1] or [None]
    for dataset in datasets:
        if encoders or dataset not in dict(held):
            held |= dict.fromkeys((dataset, encoder) for encoder in encoders or usual)
    chosen = [place for place in held if place[0] in datasets] or [(None, None)]
    apart = [key in claim["apart"] for key in ("dataset", "encoder")]
    return [*dict.fromkeys((one[0] if apart[0] else None, one[1] if apart[1] else None) for one in chosen)]


def _read(piece, runs):
    """The finding on a part with the readings under which it stands; what one decides the other way depends on it."""
    if piece.region is None or piece.part.pair is None:
        return piece
    (variant, other, sign), tried = piece.part.pair, {}
    own = {"dataset": runs.dataset, "encoder": runs.encoder}
    for row in records.matching(runs.rows("sensitivity"), own):
        turn = {(variant, other): sign, (other, variant): -sign}.get((row["variant"], row.get("over")))
        if turn and row.get("difference") is not None and row["choice"] not in NO_READINGS:
            part = rule.turned(part_of(row, "difference"), turn)
            tried[f"{row['option']}: {row['choice']}"] = rule.judged(part, *piece.region).verdict
    same, opposite = [*tried.values()].count(piece.verdict), OPPOSITE.get(piece.verdict)
    piece = piece._replace(readings=f"{same} of {len(tried)}" if tried else None)
    against = ", ".join(one for one, verdict in tried.items() if verdict == opposite)
    told = f"{piece.reason}; {opposite} under {against}"
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
            if found.part and found.part.sees_gold:
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
    parts = [piece.part for found in findings for piece in found.pieces if piece.part]
    raw = {part.comparison: part.p for part in reversed(parts) if part.comparison and part.p is not None}
    return dict(zip(raw, map(float, rule.holm([*raw.values()])), strict=True))


def _values(part, tested):
    """The part as fields of a row; what is never reached has no value, and infinite ends make no interval."""
    if part is None or math.isinf(part.value):
        return {"measured": None}
    ends = {"low": part.low, "high": part.high} if -math.inf < part.low < part.high < math.inf else {}
    compared = {"comparison": part.comparison, "corrected": tested.get(part.comparison)}
    return {"measured": part.value, "sees_gold": part.sees_gold, **ends, **compared}
