"""Can a printed percentage be a count of questions?

Recall@5, Hitrate@5 and J are 1 or 0 for a question, so that over n questions each is k/n, and its mean over three runs
on as many questions is k/(3n). Rounded to the printed digits, many numbers fit no k. What fits is shown; why the paper
prints what it prints cannot be read from it.
"""

from fractions import Fraction
from math import ceil, floor

import pandas as pd

from earlib import paper

COUNTED = ("recall@5", "hitrate@5", "j")  # F1 is a fraction already for one question
RUNS = int(paper.value("runs", table="tab02", metric="runs"))
LOCOMO_WITHOUT_GOLD = 4  # of all its questions: they name no turn as evidence
ABSTENTIONS = 30  # of all questions of LongMemEval: their ids end in _abs, and no turn answers them
MOST_ABSTENTIONS = 12  # of these in a fifth of the questions: 6 are expected, and more than 12 come once in 400 samples


def candidates(dataset):
    """Numbers of questions that a percentage of the paper could be over, each with its reason.

    Parameters
    ----------
    dataset : str
        "locomo" or "longmemeval".

    Returns
    -------
    dict of int to str
        The whole benchmark and the fifth that is kept for evaluation, each with and without the questions that have
        no gold turn.
    """
    total = int(paper.value("datasets", dataset=dataset, metric="queries"))
    fifth = total - int(total * (1 - paper.value("datasets", metric="evaluation_share") / 100))
    lacking, most = {
        "locomo": (LOCOMO_WITHOUT_GOLD, LOCOMO_WITHOUT_GOLD),
        "longmemeval": (ABSTENTIONS, MOST_ABSTENTIONS),
    }[dataset]
    found = {total: "all questions", total - lacking: f"all questions but the {lacking} without a gold turn"}
    found[fifth] = "the fifth kept for evaluation"
    return found | {fifth - left: f"that fifth, {left} without a gold turn left out" for left in range(1, most + 1)}


def count(printed, n, runs=1):
    """The k for which 100 k / (n runs) rounds to a printed percentage.

    Parameters
    ----------
    printed : str
        The number as printed; its digits tell how far it was rounded.
    n : int
        Questions.
    runs : int
        Runs that the number is the mean of, each over n questions.

    Returns
    -------
    int or None
        The k nearest to the printed number, None if there is none. A number that lies in the middle between two
        printed ones may have been rounded to either. Over no questions there is none.
    """
    value, half = Fraction(printed.replace(",", "")), Fraction(1, 2 * 10 ** len(printed.partition(".")[2]))
    of = n * runs
    if of == 0:
        return None
    lowest, highest = ((value + away) * of / 100 for away in (-half, half))
    k = min(max(round(value * of / 100), ceil(lowest)), floor(highest))
    return k if ceil(lowest) <= k <= floor(highest) and 0 <= k <= of else None


def common(printed, most):
    """All n up to `most` of which every printed percentage can be a count, for numbers over the same questions."""
    return [n for n in range(1, most + 1) if all(count(one, n) is not None for one in printed)]


def findings():
    """Every printed percentage that counts questions, and the candidates that it fits.

    Returns
    -------
    pandas.DataFrame
        Text, a line a number of a table: k/n for a single run, and k/(3n) for the mean of three. A number that is
        printed again for the same system in another table has its line there too. Table 5 is `by_category`'s.
    """
    lines = []
    for row in paper.reported():
        if row["metric"] not in COUNTED or not row["id"].startswith("tab") or "category" in row:
            continue
        names = [row.get(key) for key in ("dataset", "encoder", "variant", "store", "replay_choice")]
        names += [f"{paper.label(key)} {row[key]}" for key in ("rounds", "replay_size", "critic") if key in row]
        line = {"table": int(row["id"][3:]), "what": ", ".join(paper.label(name) for name in names if name)}
        line |= {"measure": paper.label(row["metric"]), "printed": row["printed"]}
        for head, runs in (("one run", 1), (f"mean of {RUNS} runs", RUNS)):
            line[head] = _fitting(row["printed"], candidates(row["dataset"]), runs)
        lines.append(line)
    return pd.DataFrame(lines).set_index("table")


def by_category():
    """The numbers of Table 5 by question type: the n that fit all of them, and all but one.

    How many questions of a type were evaluated is not printed, so that every n up to the questions kept is tried.

    Returns
    -------
    pandas.DataFrame
    """
    most = max(n for n, why in candidates("locomo").items() if "fifth" in why)
    lines = []
    for category in dict.fromkeys(row["category"] for row in paper.reported("tab05")):
        printed = [row["printed"] for row in paper.reported("tab05", category=category)]
        line = {"question type": paper.label(category), "printed": ", ".join(printed)}
        line["n that fit all"] = _listed(common(printed, most))
        rest = {one: common([other for other in printed if other != one], most) for one in dict.fromkeys(printed)}
        told = [f"without {one}: {_listed(fits)}" for one, fits in rest.items() if fits != common(printed, most)]
        lines.append({**line, "n that fit all but one": "; ".join(told) or "the same"})
    return pd.DataFrame(lines).set_index("question type")


def _fitting(printed, over, runs):
    found = {n: count(printed, n, runs) for n in over}
    return _listed([f"{k}/{n * runs}" for n, k in found.items() if k is not None])


def _listed(found, most=6):
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(map(str, found[:most])) + more or "none"
