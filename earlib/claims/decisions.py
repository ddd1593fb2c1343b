"""Both verdicts on each claim: on the numbers that the paper prints, and on recorded runs."""

import math
from functools import cache

from earlib import paper, records
from earlib.claims import on_paper, on_records
from earlib.claims.evidence import gap
from earlib.claims.rule import OPEN, Finding, Undecidable, both, listed
from earlib.core.config import Config

STEADY = ("gain", "observations", "delta_moved")  # metrics that machines agree on; passages and times vary


@cache
def claim_texts():
    """The claims of `claims.yaml` by id, each with its section."""
    usual, sections = {"metric": "gain", "number": None}, paper.claims_source()["claims"].items()
    return {id: {"section": section, **usual, **one} for section, ones in sections for id, one in ones.items()}


def _ask(rules, question, *given):
    """The finding of a rule with its arguments, of all of several, or that a claim is not decidable for a reason."""
    if isinstance(question, str):
        return Finding(OPEN, question)
    if isinstance(question, list):
        return both(*(_ask(rules, one, *given) for one in question))._replace(part=None)
    return getattr(rules, question["rule"])(*given, **{key: question[key] for key in question if key != "rule"})


def decide(id, runs):
    """Findings on a claim: on the printed numbers, and on the runs (on toy dialogues values without a verdict).

    Where the deciding part sees gold, the reason gives the difference to the equal-call control.
    """
    claim = claim_texts()[id]
    try:
        here = _ask(on_records, claim["measured"], runs)
    except Undecidable as error:
        here = Finding(OPEN, str(error))
    if here.part is not None and here.part.sees_gold:
        here = here._replace(reason=f"{here.reason}. Beside it: {_control(runs, here.part)}")
    if runs.dataset not in paper.DATASETS:
        here = here._replace(verdict=OPEN, reason=f"made dialogues; {here.reason}")
    return _ask(on_paper, claim["printed"]), here


def _control(runs, part):
    """In words, the system that sees gold minus the equal-call control."""
    try:
        if part.place:
            return listed([gap(runs, other=f"equal_calls_{Config().rounds - 1}", **part.place)])
    except Undecidable:
        pass
    return "no equal-call control is recorded"


def claim_rows(runs):
    """Rows of a record, one for each claim (key `claim`) with both verdicts, from what `read_runs` returned."""
    made = []
    for id, text in claim_texts().items():
        printed, here = decide(id, runs)
        values = {"decided": here.verdict, "reported_verdict": printed.verdict, "reported_reason": printed.reason}
        values |= {"reason": here.reason, **_values(here.part)}
        if text["number"] and runs.dataset in paper.DATASETS:
            values["against"] = {"dataset": None, "encoder": None, **text["number"]}
        about = {"claim": id, "varies": text["metric"] not in STEADY}
        made.append(records.row(runs.dataset, runs.encoder, None, text["metric"], **about, **values))
    return made


def _values(part):
    """The part as fields of a row; what is never reached has no value, and infinite ends make no interval."""
    if part is None or math.isinf(part.value):
        return {"measured": None}
    whole = part.low < part.high and math.isfinite(part.low) and math.isfinite(part.high)
    ends = {"low": part.low, "high": part.high} if whole else {}
    return {"measured": part.value, "sees_gold": part.sees_gold, **ends}
