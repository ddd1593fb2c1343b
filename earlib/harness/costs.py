"""Costs of language models in a run of notebooks: those it took, and those it would take."""

import json

import pandas as pd

from earlib.llm.budget import dollars

ASSUMED = (
    "A request of several notebooks counts in the first. Tokens in: a quarter of the characters; tokens out: the most",
    "that a reply may have at first. What depends on earlier replies (verdicts, rounds of exploration) is estimated.",
)


def took(totals):
    """Calls and cost of a `budget.Ledger`; what a killed kernel held back counts as spent."""
    cost = totals["spent"] + totals["held"]
    if totals["unpriced"] in (0, totals["calls"]):
        return f"{totals['calls']:,} calls, {dollars(None if totals['unpriced'] else cost)}"
    return f"{totals['calls']:,} calls, of {totals['unpriced']:,} the cost is unknown, of the others {dollars(cost)}"


def estimated(folder, outcomes):
    """Table of the requests that notebooks noted in a folder; one of several notebooks counts in the first."""
    lines, total = {}, {}
    for plan, _, error, *_ in outcomes:
        file = folder / f"{plan.name}.jsonl"
        notes = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        fresh = {note["key"]: note for note in notes if note["key"] not in total}
        total |= fresh
        lines[plan.name + (" (FAILED, as far as it came)" if error else "")] = _summed(fresh.values())
    lines["in all"] = _summed(total.values())
    heads = ["calls", "in the cache", "tokens in", "tokens out", "cost"]
    return "\n".join([pd.DataFrame.from_dict(lines, orient="index", columns=heads).to_string(), *ASSUMED])


def _summed(notes):
    asked = [note for note in notes if not note["cached"]]
    costs = [note["cost"] for note in asked]
    counts = len(asked), len(notes) - len(asked), sum(note["in"] for note in asked), sum(note["out"] for note in asked)
    return *(f"{count:,}" for count in counts), dollars(None if None in costs else sum(costs))
