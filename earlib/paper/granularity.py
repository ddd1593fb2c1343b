"""Printed percentages as counts of questions.

Recall@5, Hitrate@5 and J are 1 or 0 for a question, so that over n questions each is k/n, and its mean over three runs
on as many questions is k/(3n). Rounded to the printed digits, many numbers fit no k. The tables show what fits; why the
paper prints its numbers cannot be read from them.
"""

from fractions import Fraction
from math import ceil, floor

from earlib import extra, paper

with extra("paper"):
    import pandas as pd

COUNTED = ("recall@5", "hitrate@5", "j")  # F1 is a fraction already for one question
RUNS = int(paper.value("runs", table="tab02", metric="runs"))
# Questions without a gold turn: of all, and the most in the fifth kept for evaluation. Four of LoCoMo name no turn as
# evidence. Thirty of LongMemEval are abstentions (ids in _abs): six are expected in a fifth, more than twelve once in
# 400 samples.
WITHOUT_GOLD = {"locomo": (4, 4), "longmemeval": (30, 12)}


def possible_totals(dataset):
    """Numbers of questions of a dataset that a percentage could be over, with their descriptions.

    They are the whole benchmark and the fifth kept for evaluation, with and without questions that have no gold turn.
    """
    total = int(paper.value("datasets", dataset=dataset, metric="queries"))
    fifth = total - int(total * (1 - paper.value("datasets", metric="evaluation_share") / 100))
    lacking, most = WITHOUT_GOLD[dataset]
    found = {total: "all questions", total - lacking: f"all questions but the {lacking} without a gold turn"}
    found[fifth] = "the fifth kept for evaluation"
    return found | {fifth - left: f"that fifth, {left} without a gold turn left out" for left in range(1, most + 1)}


def matching_count(printed, n, runs=1):
    """The k nearest to a printed percentage for which 100 k / (n runs) rounds to it, up or down, or None."""
    value, half = Fraction(printed.replace(",", "")), Fraction(1, 2 * 10 ** len(printed.partition(".")[2]))
    of = n * runs
    if of == 0:
        return None
    lowest, highest = ceil((value - half) * of / 100), floor((value + half) * of / 100)
    k = min(max(round(value * of / 100), lowest), highest)
    return k if lowest <= k <= highest and 0 <= k <= of else None


def common_totals(printed, most):
    """All n up to `most` of which every printed percentage can be a count, for numbers over the same questions."""
    return [n for n in range(1, most + 1) if all(matching_count(one, n) is not None for one in printed)]


def fitting_counts():
    """Table of every printed percentage that counts questions, with the k/n and k/(3n) that fit; Table 5 apart."""
    lines = []
    for row in paper.reported():
        if row["metric"] not in COUNTED or not row["id"].startswith("tab") or "category" in row:
            continue
        names = [row.get(key) for key in ("dataset", "encoder", "variant", "store", "replay_choice")]
        names += [f"{paper.label(key)} {row[key]}" for key in ("rounds", "replay_size", "critic") if key in row]
        line = {"table": int(row["id"][3:]), "what": ", ".join(paper.label(name) for name in names if name)}
        line |= {"measure": paper.label(row["metric"]), "printed": row["printed"]}
        for head, runs in (("one run", 1), (f"mean of {RUNS} runs", RUNS)):
            found = {n: matching_count(row["printed"], n, runs) for n in possible_totals(row["dataset"])}
            line[head] = _listed([f"{k}/{n * runs}" for n, k in found.items() if k is not None])
        lines.append(line)
    return pd.DataFrame(lines).set_index("table")


def fitting_totals():
    """Table of the numbers of Table 5 by question type, with the n that fit all of them, and all but one.

    The paper does not print how many questions of a type were evaluated, so every n up to the questions kept is tried.
    """
    most = max(n for n, why in possible_totals("locomo").items() if "fifth" in why)
    lines = []
    for category in dict.fromkeys(row["category"] for row in paper.reported("tab05")):
        printed = [row["printed"] for row in paper.reported("tab05", category=category)]
        fits = common_totals(printed, most)
        rest = {one: common_totals([other for other in printed if other != one], most) for one in printed}
        more = [f"without {one}: {_listed(found)}" for one, found in rest.items() if found != fits]
        line = {"question type": paper.label(category), "printed": ", ".join(printed), "n that fit all": _listed(fits)}
        lines.append({**line, "n that fit all but one": "; ".join(more) or "the same"})
    return pd.DataFrame(lines).set_index("question type")


def _listed(found):
    more = f" and {len(found) - 6} more" if len(found) > 6 else ""
    return ", ".join(map(str, found[:6])) + more or "none"
