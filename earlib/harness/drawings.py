"""Pictures of the system: the three paradigms, and one query's candidates, rounds and slates.

A candidate is named by its rank with the retriever, from 1 to K; a star marks gold.
"""

from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path

from earlib.harness.figures import canvas
from earlib.harness.look import COLOURS, DRAWN, GREY, INK

STAR = "★"
CITED, REFUSED = COLOURS[0], "#f4dcae"  # dark and light, so that they differ in print too
SCORES, TERMS = DRAWN["scores"], DRAWN["terms"]
HALF = 5.4  # of the height of a box


def paradigms():
    """The three paradigms of the paper's Figure 1 in a design of our own: lanes from the query to the critic."""
    with canvas(4.3) as figure:
        axes = figure.subplots()
        axes.set(xlim=(0, 100), ylim=(-21, 81))
        axes.axis("off")
        columns, lanes = DRAWN["columns"], DRAWN["lanes"]
        gaps = [(x + width / 2 + 0.4, to - half / 2 - 0.4) for (x, width), (to, half) in pairwise(columns)]
        for lane in lanes:
            y = lane["height"]
            axes.text(0, y + 10, lane["title"], fontweight="bold", va="center")
            for (x, width), box in zip(columns, lane["boxes"], strict=True):
                _box(axes, x, y, width, *box)
            for start, end in gaps if lane is not lanes[-1] else gaps[:-1]:
                _arrow(axes, (start, y), (end, y))
        _box(axes, *DRAWN["buffer"])
        for points in DRAWN["arrows"]:
            _arrow(axes, *points)
        for x, y, text in DRAWN["notes"]:
            axes.text(x, y, text, ha="center", va="center", fontsize=7, color=INK, backgroundcolor="white")
    return figure


def _box(axes, x, y, width, title, subtitle, kind):
    fill, edge, line, meaning = DRAWN["boxes"][kind]
    look = {"facecolor": fill, "edgecolor": edge, "linestyle": line, "linewidth": 1.3, "label": meaning}
    shape = "round,pad=0,rounding_size=1.2"
    axes.add_patch(FancyBboxPatch((x - width / 2, y - HALF), width, 2 * HALF, boxstyle=shape, **look))
    axes.text(x, y + 2.1 * bool(subtitle), title, ha="center", va="center", fontsize=8)
    axes.text(x, y - 2.6, subtitle, ha="center", va="center", fontsize=6.8, color=GREY)


def _arrow(axes, *points):
    look = {"arrowstyle": "-|>", "mutation_scale": 8, "color": INK, "linewidth": 1.1, "joinstyle": "miter"}
    axes.add_patch(FancyArrowPatch(path=Path(points), **look))


def candidate_scores(frame, title=""):
    """Scores of the candidates with the retriever and with the adapter before and after an update.

    The frame has one row a candidate, in the retriever's order: `candidate` (1 to K), `gold` (bool) and the scores
    `retriever`, `before` and `after`.
    """
    at = frame["candidate"].to_numpy()
    with canvas(3.2, title) as figure:
        axes = figure.subplots()
        _candidate_axis(axes, len(frame), set(frame.loc[frame["gold"], "candidate"]))
        for column, label, colour, marker, fill in SCORES:
            look = {"color": colour, "markerfacecolor": fill, "markersize": 5.5}
            axes.plot(at, frame[column], marker, label=label, zorder=3, **look)
        ends = frame[[column for column, *_ in SCORES]]
        axes.vlines(at, ends.min(axis=1), ends.max(axis=1), color="#aaaaaa", linewidth=1, zorder=2)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("Score $z$")
    return figure


def bars(values, gold, label, title=""):
    """A value of each candidate as a bar, in the retriever's order; gold (1 to K) is marked and hatched."""
    with canvas(2.4, title) as figure:
        axes = figure.subplots()
        _candidate_axis(axes, len(values), gold)
        at = range(1, len(values) + 1)
        looks = [(COLOURS[0], "///", "gold") if one in gold else ("#bbbbbb", "", "other") for one in at]
        look = dict(zip(("color", "hatch", "label"), zip(*looks, strict=True), strict=True))
        axes.bar(at, values, 0.8, zorder=2, edgecolor="white", **look)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel(label)
    return figure


def choices(slates, citations):
    """Frame of the choices of some rounds for `exploration`, from candidate indices (from 0) and citations."""
    given = [(t, *pair) for t, pair in enumerate(zip(slates, citations, strict=True), 1)]
    told = [(t, i + 1, float(y)) for t, slate, cited in given for i, y in zip(slate, cited, strict=True)]
    return pd.DataFrame(told, columns=["round", "candidate", "citation"])


def exploration(frame, depth, gold, title=""):
    """Slates of all rounds with their citations, and below them the terms of each choice (Eq. 7), if any, stacked.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row a choice, in the order of choosing: `round` (from 1), `candidate` (1 to K), the terms `relevance`,
        `exploration` and `redundancy` of its value, with their weights and signs, and `citation` (+1 or -1).
    depth : int
        K.
    gold : set of int
        Candidates that are gold.
    title : str, optional

    Returns
    -------
    matplotlib.figure.Figure
    """
    rounds, terms = int(frame["round"].max()), "relevance" in frame
    height = 0.27 * (rounds + 2)
    with canvas(height + (3.3 if terms else 1.1), title) as figure:
        grid, *stacks = figure.subplots(1 + terms, squeeze=False, height_ratios=(height, 1.7)[: 1 + terms])[:, 0]
        _slate_grid(grid, frame, rounds, depth, gold)
        if terms:
            _stacks(*stacks, frame, gold)
    return figure


def _slate_grid(axes, frame, rounds, depth, gold):
    for row in frame.itertuples():
        sign, *colours = ("+", CITED, "white") if row.citation > 0 else ("−", REFUSED, INK)
        _tile(axes, row.candidate, row.round, 0.42, 0.42, 0.7, sign, *colours, fontweight="bold")
    for candidate, given in frame.groupby("candidate")["citation"]:
        for below, text in ((1, f"{len(given)}"), (2, _signed(given.mean()))):
            axes.text(candidate, rounds + below, text, ha="center", va="center_baseline", fontsize=7)
    names = [f"round {t}" for t in range(1, rounds + 1)] + ["pulls $N$", r"mean $\hat\mu$"]
    axes.set_yticks(range(1, rounds + 3), names)
    axes.set_ylim(rounds + 2.5, 0.5)
    axes.axhline(rounds + 0.5, color=INK, linewidth=0.8)
    _candidate_axis(axes, depth, gold)
    axes.grid(visible=False)
    axes.set_title("Slates and citations: + cited, − not cited")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _signed(value):
    """A mean in the two characters that fit a column: +1, −.3, 0."""
    text = f"{value:+.1f}".replace("-", "−").replace("0.", ".")
    return {"+.0": "0", "−.0": "0"}.get(text, text.removesuffix(".0"))


def _stacks(axes, frame, gold):
    slot = np.arange(len(frame)) + frame["round"].to_numpy()  # a gap between rounds
    terms = frame[[column for column, *_ in TERMS]].to_numpy(float).T
    stacked = np.where(terms >= 0, terms.clip(min=0).cumsum(0), terms.clip(max=0).cumsum(0))  # up, and down from zero
    for height, bottom, (_, label, colour, hatch) in zip(terms, stacked - terms, TERMS, strict=True):
        look = {"label": label, "color": colour, "hatch": hatch, "edgecolor": "white"}
        axes.bar(slot, height, 0.8, bottom, zorder=2, **look)
    axes.plot(slot, terms.sum(0), "D", color=INK, markersize=4, label="value $A$", zorder=3, linestyle="")
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.use_sticky_edges = False  # bars of no height at the top would hold the limit there
    axes.margins(y=0.08)
    axes.set_xticks(slot, [f"{one}\n{STAR}" if one in gold else f"{one}" for one in frame["candidate"]], fontsize=7)
    axes.set_xlabel("Chosen candidates, in the order of choosing, round after round")
    axes.set_ylabel("Terms of Eq. 7")
    for t, middle in frame.assign(slot=slot).groupby("round")["slot"].mean().items():
        axes.annotate(f"round {t}", (middle, 1), (0, 3), axes.get_xaxis_transform(), "offset points", ha="center")
    axes.grid(axis="x", visible=False)
    axes.tick_params(axis="x", length=0)


def slates(chosen, gold, count, title=""):
    """Several slates for one query, with their gold candidates marked.

    Parameters
    ----------
    chosen : dict
        Name of a slate to its candidates (1 to K), the best first.
    gold : set of int
        Candidates that are gold.
    count : int
        Gold memories of the query, among the candidates or not.
    title : str, optional

    Returns
    -------
    matplotlib.figure.Figure
    """
    size = max(map(len, chosen.values()))
    with canvas(0.7 + 0.36 * len(chosen), title) as figure:
        axes = figure.subplots()
        for line, members in enumerate(chosen.values()):
            for place, one in enumerate(members, 1):
                shown = (f"{one} {STAR}", COLOURS[0], "white") if one in gold else (f"{one}", "white", INK)
                _tile(axes, place, line, 0.46, 0.4, 0.8, *shown)
            found = len(gold & set(members))
            axes.text(size + 0.7, line, f"{found} of {count} gold", va="center_baseline")
        axes.set(xlim=(0.5, size + 2.1), ylim=(len(chosen) - 0.5, -0.5))
        axes.set_yticks(range(len(chosen)), list(chosen))
        axes.set_xticks(range(1, size + 1))
        axes.set_xlabel(f"Place in the slate; in the boxes the candidates ({STAR} gold)")
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure


def _tile(axes, x, y, side, half, border, text, fill, ink, **font):
    """A box around its middle, and a text in it."""
    look = {"facecolor": fill, "edgecolor": INK, "linewidth": border}
    axes.add_patch(Rectangle((x - side, y - half), 2 * side, 2 * half, zorder=2, **look))
    axes.text(x, y, text, ha="center", va="center_baseline", color=ink, **font)


def _candidate_axis(axes, depth, gold):
    for candidate in gold:
        axes.axvspan(candidate - 0.5, candidate + 0.5, color="#eeeeee", zorder=0)
    names = [f"{one}\n{STAR}" if one in gold else f"{one}" for one in range(1, depth + 1)]
    axes.set_xticks(range(1, depth + 1), names, fontsize=7)
    axes.set_xlim(0.4, depth + 0.6)
    axes.set_xlabel(f"Candidate: its rank with the retriever ({STAR} gold)")
