"""Pictures of the system itself: the three paradigms, and one query's way through candidates, rounds and slates.

Figures of measures are in `earlib.harness.figures`, whose look these share. A candidate is named by its rank with the retriever,
from 1 to K; a star marks gold.
"""

import matplotlib
import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch, Rectangle
from matplotlib.path import Path

from earlib.harness.figures import COLOURS, GREY, LOOK, WIDTH

STAR = "★"
INK = "#222222"
SHADE = "#eeeeee"  # behind gold candidates
CITED, REFUSED = COLOURS[0], "#f4dcae"  # dark and light, so that they differ in print too

# Fill, border and line of a box: what it is can be told without colour by its border.
KINDS = {
    "frozen": ("#eeeeee", GREY, "--"),
    "learns": (to_rgba(COLOURS[0], 0.22), COLOURS[0], "-"),
    "query-local": (to_rgba(COLOURS[2], 0.22), COLOURS[2], "-."),
    "asked": (to_rgba(COLOURS[1], 0.22), COLOURS[1], ":"),
    "plain": ("white", INK, "-"),
}
KIND_NAMES = {
    "frozen": "frozen", "learns": "learns over queries", "query-local": "learns within a query", "asked": "critic",
}  # fmt: skip

# Parts of Eq. 7: column, name, colour, hatch.
PARTS = (
    ("relevance", r"$\lambda_{rel}\, z$", COLOURS[0], ""),
    ("exploration", r"$\lambda_{exp}\, U$", COLOURS[1], "///"),
    ("redundancy", r"$-\lambda_{div}\, D$", COLOURS[2], "..."),
)

# Scores of a candidate: column, name, marker, whether it is filled.
SCORES = (
    ("retriever", "retriever (cosine)", "x", True),
    ("before", "adapter, before this query's update", "o", False),
    ("after", "adapter, after it", "o", True),
)


# -- the three paradigms -----------------------------------------------------------------------------------------------

COLUMNS = {"query": (6, 10), "retriever": (26, 17), "ranker": (50, 17), "slate": (73, 17), "critic": (93, 13)}
HALF = 5.4  # of the height of a box
DROP = 11  # from the middle of a lane to the line that comes back


def paradigms():
    """The three paradigms of the paper's Figure 1, in a design of our own.

    Returns
    -------
    matplotlib.figure.Figure
        Three lanes, from the query at the left to the critic at the right; what comes back runs below a lane.
    """
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(WIDTH, 4.3), layout="constrained")
        axes = figure.subplots()
        axes.set(xlim=(0, 100), ylim=(-21, 81))
        axes.axis("off")
        _static(axes, 67)
        _rewarded(axes, 40)
        _exploring(axes, 5.5)
        handles = [_patch(kind, name) for kind, name in KIND_NAMES.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), handlelength=2, fontsize=8)
    return figure


def _chain(axes, y):
    """The arrows from the query to the critic, box after box."""
    for one, other in (("query", "retriever"), ("retriever", "ranker"), ("ranker", "slate"), ("slate", "critic")):
        _along(axes, y, one, other)


def _static(axes, y):
    _lane(axes, y, "(a) Static: retriever, and a reranker tuned once")
    _boxes(axes, y, ranker=("Reranker", "tuned offline", "frozen"), slate=("Slate", "first $s$", "plain"))
    _box(axes, "critic", y, "LLM", "answers", "plain")
    _chain(axes, y)


def _rewarded(axes, y):
    _lane(axes, y, "(b) Reranker with RL update: one slate a query, then forgotten")
    _boxes(axes, y, ranker=("Reranker", "$z$ + noise", "learns"), slate=("Slate", "one a query", "plain"))
    _box(axes, "critic", y, "LLM", "answers, cites", "asked")
    _chain(axes, y)
    _back(axes, y, "critic", "ranker")
    _note(axes, 71, y - DROP, "citations of this slate: REINFORCE")


def _exploring(axes, y):
    _lane(axes, y, "(c) EAR: several slates a query, and each experience used again")
    _boxes(axes, y, ranker=("Adapter", "$z$", "learns"), slate=("Explorer", "UCB, diversity", "query-local"))
    _box(axes, "critic", y, "LLM", "cites, answers", "asked")
    for one, other in (("query", "retriever"), ("retriever", "ranker"), ("ranker", "slate")):
        _along(axes, y, one, other)
    _along(axes, y + 2.6, "slate", "critic")
    _along(axes, y - 2.6, "critic", "slate")
    _note(axes, 88, y + 9.5, "$T$ rounds, then $S^{(T)}$")
    low, middle, width = y - 18, 62, 24
    down, up = COLUMNS["slate"][0] + 4, COLUMNS["ranker"][0] - 3
    _put(axes, middle, low, width, "Experience Buffer", "queries, mean citations", "plain")
    _arrow(axes, (down, y - HALF), (down, low), (middle + width / 2 + 0.4, low))
    _note(axes, 85, low, "all $T$ rounds")
    _arrow(axes, (middle - width / 2 - 0.4, low), (up, low), (up, y - HALF - 0.4))
    _note(axes, 32, low, "update: this query and\nsimilar past ones, replayed")


def _lane(axes, y, title):
    axes.text(0, y + 10, title, fontweight="bold", va="center")
    _box(axes, "query", y, "Query", "", "plain")


def _boxes(axes, y, **boxes):
    _box(axes, "retriever", y, "Retriever", "first $K$", "frozen")
    for column, (title, below, kind) in boxes.items():
        _box(axes, column, y, title, below, kind)


def _box(axes, column, y, title, below, kind):
    x, width = COLUMNS[column]
    _put(axes, x, y, width, title, below, kind)


def _put(axes, x, y, width, title, below, kind):
    fill, edge, line = KINDS[kind]
    look = {"boxstyle": "round,pad=0,rounding_size=1.2", "facecolor": fill, "edgecolor": edge, "linestyle": line}
    axes.add_patch(FancyBboxPatch((x - width / 2, y - HALF), width, 2 * HALF, linewidth=1.3, **look))
    axes.text(x, y + 2.1 * bool(below), title, ha="center", va="center", fontsize=8)
    axes.text(x, y - 2.6, below, ha="center", va="center", fontsize=6.8, color=GREY)


def _along(axes, y, one, other):
    """An arrow between two neighbours of a lane."""
    (here, width), (there, other_width) = COLUMNS[one], COLUMNS[other]
    side = np.sign(there - here)
    _arrow(axes, (here + side * (width / 2 + 0.4), y), (there - side * (other_width / 2 + 0.4), y))


def _back(axes, y, one, other):
    """An arrow that comes back below the lane."""
    here, there = COLUMNS[one][0], COLUMNS[other][0]
    _arrow(axes, (here, y - HALF), (here, y - DROP), (there, y - DROP), (there, y - HALF - 0.4))


def _arrow(axes, *points):
    look = {"arrowstyle": "-|>", "mutation_scale": 8, "color": INK, "linewidth": 1.1, "joinstyle": "miter"}
    axes.add_patch(FancyArrowPatch(path=Path(points), **look))


def _note(axes, x, y, text):
    axes.text(x, y, text, ha="center", va="center", fontsize=7, color=INK, backgroundcolor="white")


def _patch(kind, name):
    fill, edge, line = KINDS[kind]
    return Patch(facecolor=fill, edgecolor=edge, linestyle=line, linewidth=1.3, label=name)


# -- one query's way ---------------------------------------------------------------------------------------------------


def candidate_scores(frame, title=""):
    """Scores of the candidates with the retriever and with the adapter before and after an update.

    Parameters
    ----------
    frame : pandas.DataFrame
        A line a candidate, in the retriever's order: `candidate` (1 to K), `gold` (bool) and the scores `retriever`,
        `before` and `after`.
    title : str, optional
        What the picture shows, for readers who meet it alone.

    Returns
    -------
    matplotlib.figure.Figure
    """
    at = frame["candidate"].to_numpy()
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
        axes = figure.subplots()
        _candidate_axis(axes, len(frame), set(frame.loc[frame["gold"], "candidate"]))
        for (column, label, marker, filled), colour in zip(SCORES, (GREY, COLOURS[0], COLOURS[0]), strict=True):
            face = {"markerfacecolor": colour if filled else "white"}
            axes.plot(at, frame[column], marker, color=colour, label=label, markersize=5.5, zorder=3, **face)
        ends = frame[[column for column, *_ in SCORES]]
        axes.vlines(at, ends.min(axis=1), ends.max(axis=1), color="#aaaaaa", linewidth=1, zorder=2)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("Score $z$")
        _finish(figure, [axes], title)
    return figure


def exploration(frame, depth, gold, title=""):
    """The slates of all rounds with their citations, and what each choice was made of (Eq. 7).

    Parameters
    ----------
    frame : pandas.DataFrame
        A line a choice, in the order of choosing: `round` (from 1), `candidate` (1 to K), the parts `relevance`,
        `exploration` and `redundancy` of its value, with their weights and signs, and `citation` (+1 or -1).
    depth : int
        K.
    gold : set of int
        Candidates that are gold.
    title : str, optional

    Returns
    -------
    matplotlib.figure.Figure
        Above, rounds by candidates, + cited, - not cited, and pulls N and mean feedback after the last round. Below,
        the parts of each chosen candidate's value, stacked, with their sum.
    """
    rounds = int(frame["round"].max())
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(WIDTH, 3.3 + 0.27 * (rounds + 2)), layout="constrained")
        grid, parts = figure.subplots(2, height_ratios=(0.27 * (rounds + 2), 1.7))
        _slate_grid(grid, frame, rounds, depth, gold)
        _stacks(parts, frame, gold)
        _finish(figure, [grid, parts], title)
    return figure


def _slate_grid(axes, frame, rounds, depth, gold):
    for row in frame.itertuples():
        cited = row.citation > 0
        look = {"facecolor": CITED if cited else REFUSED, "edgecolor": INK, "linewidth": 0.7}
        axes.add_patch(Rectangle((row.candidate - 0.42, row.round - 0.42), 0.84, 0.84, zorder=2, **look))
        sign, ink = ("+", "white") if cited else ("−", INK)
        axes.text(row.candidate, row.round, sign, ha="center", va="center_baseline", color=ink, fontweight="bold")
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
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)


def _signed(value):
    """Two characters or so, which is what a column has room for: +1, −.3, 0."""
    text = f"{value:+.1f}".replace("-", "−").replace("0.", ".")
    return {"+.0": "0", "−.0": "0"}.get(text, text.removesuffix(".0"))


def _stacks(axes, frame, gold):
    """A bar a choice: positive parts upwards from 0, negative ones downwards; the sum as a mark."""
    slot = np.arange(len(frame)) + frame["round"].to_numpy()  # a gap between rounds
    up, down = np.zeros(len(frame)), np.zeros(len(frame))
    for column, label, colour, hatch in PARTS:
        height = frame[column].to_numpy(float)
        bottom = np.where(height >= 0, up, down)
        axes.bar(slot, height, 0.8, bottom=bottom, label=label, color=colour, hatch=hatch, edgecolor="white", zorder=2)
        up, down = up + height.clip(min=0), down + height.clip(max=0)
    total = sum(frame[column].to_numpy(float) for column, *_ in PARTS)
    axes.plot(slot, total, "D", color=INK, markersize=4, label="value $A$", zorder=3, linestyle="")
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.use_sticky_edges = False  # bars of no height at the top would hold the limit there
    axes.margins(y=0.08)
    axes.set_xticks(slot, [f"{one}\n{STAR}" if one in gold else f"{one}" for one in frame["candidate"]], fontsize=7)
    axes.set_xlabel("Chosen candidates, in the order of choosing, round after round")
    axes.set_ylabel("Parts of Eq. 7")
    for t, middle in frame.assign(slot=slot).groupby("round")["slot"].mean().items():
        axes.annotate(f"round {t}", (middle, 1), (0, 3), axes.get_xaxis_transform(), "offset points", ha="center")
    axes.grid(axis="x", visible=False)
    axes.tick_params(axis="x", length=0)


def slates(chosen, gold, count, title=""):
    """Several slates for one query below each other, with their gold candidates marked.

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
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(WIDTH, 0.7 + 0.36 * len(chosen)), layout="constrained")
        axes = figure.subplots()
        for line, members in enumerate(chosen.values()):
            for place, candidate in enumerate(members, 1):
                hit = candidate in gold
                look = {"facecolor": COLOURS[0] if hit else "white", "edgecolor": INK, "linewidth": 0.8}
                axes.add_patch(Rectangle((place - 0.46, line - 0.4), 0.92, 0.8, **look))
                name, ink = (f"{candidate} {STAR}", "white") if hit else (f"{candidate}", INK)
                axes.text(place, line, name, ha="center", va="center_baseline", color=ink)
            found = len(gold & set(members))
            axes.text(size + 0.7, line, f"{found} of {count} gold", va="center_baseline")
        axes.set(xlim=(0.5, size + 2.1), ylim=(len(chosen) - 0.5, -0.5))
        axes.set_yticks(range(len(chosen)), list(chosen))
        axes.set_xticks(range(1, size + 1))
        axes.set_xlabel(f"Place in the slate; in the boxes the candidates ({STAR} gold)")
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        _finish(figure, [], title)
    return figure


def _candidate_axis(axes, depth, gold):
    """Candidates 1 to K side by side; gold ones are shaded and have a star."""
    for candidate in gold:
        axes.axvspan(candidate - 0.5, candidate + 0.5, color=SHADE, zorder=0)
    names = [f"{one}\n{STAR}" if one in gold else f"{one}" for one in range(1, depth + 1)]
    axes.set_xticks(range(1, depth + 1), names, fontsize=7)
    axes.set_xlim(0.4, depth + 0.6)
    axes.set_xlabel(f"Candidate: its rank with the retriever ({STAR} gold)")


def _finish(figure, all_axes, title):
    """The title above, and one legend below, where it covers no data."""
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=LOOK["font.size"], fontweight="bold")
    for axes in all_axes:
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
