"""One family of figures: the same colour, line and marker for a system everywhere, told apart without colour too.

Figures are drawn from plain frames whose columns carry the names of a record's fields, and belong to no global state.
"""

import io
import math
import textwrap

import matplotlib
import numpy as np
import PIL.Image
import seaborn
from IPython.display import Image
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from earlib import paper, paths

COLOURS = seaborn.color_palette("colorblind").as_hex()
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (6, 3)), (0, (1, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
HATCHES = ("", "///", "...", "xxx", "\\\\\\")
GREY = "#555555"
HOLLOW = {"markersize": 7, "markerfacecolor": "none", "markeredgecolor": GREY}
WHISKER = {"ecolor": "#222222", "capsize": 2, "error_kw": {"elinewidth": 1}}
WIDTH = 6.3  # inches: the text width of a page

# Colour, line style and marker of the paper's systems; what is not listed takes the next free ones in order.
STYLES = {
    "ear": (COLOURS[4], (0, (8, 1.5)), "P"),
    "ear_adapter": (COLOURS[0], "-", "o"),
    "rmm": (COLOURS[3], "--", "s"),
    "explorer_training": (COLOURS[2], "-.", "^"),
    "buffer_training": (COLOURS[1], (0, (5, 1, 1, 1)), "D"),
    "explorer_test": (COLOURS[5], (0, (3, 1.5, 1, 1.5)), "v"),
    "retriever": (GREY, (0, (1, 1.5)), "x"),
}

# Colour and hatch of the verdicts on claims.
VERDICT_STYLES = {
    "supported": (COLOURS[0], ""), "not supported": (COLOURS[3], "///"), "not decidable": ("#cccccc", "..."),
}  # fmt: skip

LOOK = {
    # A reader's own settings never change a committed figure.
    **{key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith("backend")},
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
}


def axis(name):
    """Label of an axis: the paper's name, and the unit where there is one ("Recall@5 (%)")."""
    return f"{paper.label(name)} ({paper.unit(name)})" if paper.unit(name) else paper.label(name)


def styles(names):
    """Colour, line style and marker of each name; those of the paper's systems are fixed, the rest follow in order."""
    names = list(dict.fromkeys(names))
    found = {name: STYLES[name] for name in names if name in STYLES}
    colours, lines, markers = (
        [one for one in every if one not in {style[part] for style in found.values()}]
        for part, every in enumerate((COLOURS, LINES, MARKERS))
    )
    for count, name in enumerate(name for name in names if name not in found):
        found[name] = tuple(free[count % len(free)] for free in (colours, lines, markers))
    return found


def curves(
    frame, x, metric="recall@5", y="measured", band="std", by="variant", panel=None, static=None, labels=None, title="",
    log=False,
):  # fmt: skip
    """Curves of a measure, one a system: the mean as a line, mean ± band as an area.

    Parameters
    ----------
    frame : pandas.DataFrame
        One line a point, with the columns named here.
    x : str
        Column of the horizontal axis; names its label.
    metric : str
        Names the vertical axis.
    y, band : str
        Columns of the mean and of the deviation drawn around it; a missing deviation draws no area.
    by : str
        Column of the systems.
    panel : str, optional
        Column whose values get a panel each, side by side.
    static : dict or pandas.DataFrame, optional
        Value of each system that does not learn, drawn as a level line: {"retriever": 32.1}; as a frame with the
        columns `by`, `y` and, with panels, `panel`.
    labels : dict, optional
        Names for the legend where they differ from `paper.label`.
    title : str, optional
        What the picture shows, for readers who meet it alone.
    log : bool
        Whether the horizontal axis is logarithmic.

    Returns
    -------
    matplotlib.figure.Figure
    """
    if isinstance(static, dict):
        static = [(None, name, level) for name, level in static.items()]
    elif static is not None:
        static = list(zip(static[panel] if panel else [None] * len(static), static[by], static[y], strict=True))
    static = static or []
    names = list(dict.fromkeys([*frame[by], *(name for _, name, _ in static)]))
    style = styles(names)
    with matplotlib.rc_context(LOOK):
        figure, panels = _panels(frame, panel, height=3.3, share=True)
        for key, (axes, part) in panels.items():
            for name, line in part.groupby(by, sort=False):
                _curve(axes, line.sort_values(x, kind="stable"), x, y, band, style[name], _label(name, labels))
            for where, name, level in static:
                if where in (None, key):
                    colour, dash, _ = style[name]
                    axes.axhline(level, color=colour, linestyle=dash, label=_label(name, labels), zorder=2)
            axes.set_xlabel(axis(x))
            if log:
                axes.set_xscale("log")
            else:
                whole = bool((frame[x] % 1 == 0).all())
                axes.xaxis.set_major_locator(MaxNLocator(6 if len(panels) < 3 else 4, integer=whole))
            axes.margins(x=0.02)
        next(iter(panels.values()))[0].set_ylabel(axis(metric))
        _title(figure, title)
        _legend(figure, panels)
    return figure


def _title(figure, title):
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=LOOK["font.size"], fontweight="bold")


def _curve(axes, line, x, y, band, style, label):
    colour, dash, marker = style
    at, mean = line[x].to_numpy(), line[y].to_numpy(float)
    every = math.ceil(len(line) / 12)  # no more than a dozen markers a line
    axes.plot(at, mean, color=colour, linestyle=dash, marker=marker, markevery=every, label=label, zorder=3)
    if band in line and line[band].notna().any():
        spread = line[band].fillna(0).to_numpy(float)
        axes.fill_between(at, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0, zorder=1)


def intervals(
    frame, y="variant", panel=None, by=None, metric=None, labels=None, paper_label="paper", title="", zero=False
):
    """Measured values with their intervals, a system a line, and the paper's values as hollow marks beside them.

    A system whose inference asks a critic that sees test gold (column `sees_gold`) has a star.

    Parameters
    ----------
    frame : pandas.DataFrame
        Rows of a record: measured, low, high, reported and the columns named here. What was not run has its line,
        marked so.
    y : str
        Column that names the lines, from top to bottom.
    panel : str, optional
        Column whose values get a panel each ("metric", "dataset").
    by : str, optional
        Column that splits a line into marks of their own (encoders, splits).
    metric : str, optional
        Names the horizontal axis; default: the panel, where it is the metric, or the frame's only metric.
    labels : dict, optional
        Names where they differ from `paper.label`.
    paper_label : str
        Legend of the hollow marks, with the setting if it is another one.
    title : str, optional
        What the picture shows, for readers who meet it alone.
    zero : bool
        Whether a line marks zero, for differences.

    Returns
    -------
    matplotlib.figure.Figure
    """
    names = list(dict.fromkeys(frame[y]))
    groups = list(dict.fromkeys(frame[by])) if by else [None]
    style = styles(groups) if by else {None: (COLOURS[0], "-", "o")}
    star, star_by = _stars(frame, y), _stars(frame, by)
    offsets = dict(zip(groups, (np.arange(len(groups)) - (len(groups) - 1) / 2) * 0.7 / len(groups), strict=True))
    with matplotlib.rc_context(LOOK):
        height = 0.9 + len(names) * max(0.32, 0.26 * len(groups))
        figure, panels = _panels(frame, panel, height, share=True)
        for key, (axes, part) in panels.items():
            rows = [(row, names.index(row[y]) + offsets[row[by] if by else None]) for _, row in part.iterrows()]
            for row, place in rows:
                label = "measured, 95 % interval" if by is None else _label(row[by], labels) + star_by.get(row[by], "")
                _interval(axes, row, place, style[row[by] if by else None], label, paper_label)
            axes.margins(x=0.08)
            if zero:
                axes.axvline(0, color=GREY, linestyle="--", linewidth=1, zorder=1)
            for row, place in rows:
                if math.isnan(_float(row["measured"])):
                    _not_run(axes, _float(row.get("reported")), place)
            axes.set_yticks(range(len(names)), [_label(name, labels) + star.get(name, "") for name in names])
            axes.set_ylim(len(names) - 0.5, -0.5)
            axes.grid(axis="y", visible=False)
            axes.set_xlabel(axis(metric or (key if panel == "metric" else part["metric"].iloc[0])))
            if panel == "metric":
                axes.set_title("")  # the axis says it
        _title(figure, title)
        _legend(figure, panels, last=paper_label)
    return figure


def _interval(axes, row, place, style, label, paper_label):
    colour, _, marker = style
    measured, low, high, reported = (_float(row.get(key)) for key in ("measured", "low", "high", "reported"))
    if not math.isnan(reported):
        axes.plot(reported, place, "o", label=paper_label, zorder=2, **HOLLOW)
    if not math.isnan(measured):
        sides = None if math.isnan(low) else [[max(measured - low, 0)], [max(high - measured, 0)]]
        axes.errorbar(measured, place, xerr=sides, color=colour, marker=marker, linestyle="", label=label, zorder=3)


def _not_run(axes, reported, place):
    """Says so in the half of the line in which the paper's mark does not lie."""
    left, right = axes.get_xlim()
    at_left = math.isnan(reported) or reported > (left + right) / 2
    axes.text(
        0.02 if at_left else 0.98, place, "not run", transform=axes.get_yaxis_transform(), color=GREY, fontsize=7.5,
        ha="left" if at_left else "right", va="center", fontstyle="italic",
    )  # fmt: skip


def bars(frame, x, metric, y="measured", by="variant", panel=None, static=None, labels=None, title=""):
    """Grouped bars with their intervals, told apart by hatching too.

    A system whose inference asks a critic that sees test gold (column `sees_gold`) has a star.

    Parameters
    ----------
    frame : pandas.DataFrame
        One line a bar: x, y, by and, if it has them, low and high. What was not run has no bar.
    x, metric, y, by, panel, labels, title
        As in `curves`; `x` holds names.
    static : dict, optional
        Levels to compare the bars with, drawn as lines: {"chance": 2.5}.

    Returns
    -------
    matplotlib.figure.Figure
    """
    names, groups = list(dict.fromkeys(frame[x])), list(dict.fromkeys(frame[by]))
    style, width = styles(groups), 0.8 / len(groups)
    star = _stars(frame, by)
    with matplotlib.rc_context(LOOK):
        figure, panels = _panels(frame, panel, height=3.1, share=True)
        for axes, part in panels.values():
            for count, group in enumerate(groups):
                rows = part[part[by] == group]
                look = {"color": style[group][0], "edgecolor": "white", "hatch": HATCHES[count % len(HATCHES)]}
                places = np.array([names.index(name) for name in rows[x]]) + (count - (len(groups) - 1) / 2) * width
                label, tall = _label(group, labels) + star.get(group, ""), rows[y].astype(float)
                axes.bar(places, tall, width * 0.92, yerr=_sides(rows, y), label=label, **look, **WHISKER)
            for count, (name, level) in enumerate((static or {}).items()):
                axes.axhline(level, color="black", linestyle=LINES[count + 1], label=_label(name, labels), zorder=3)
            for place, name in enumerate(names):
                if part.loc[part[x] == name, y].isna().all():
                    look = {"color": GREY, "fontsize": 7.5, "fontstyle": "italic", "ha": "center"}
                    axes.text(place, 0.02, "not run", transform=axes.get_xaxis_transform(), **look)
            axes.set_xticks(range(len(names)), [textwrap.fill(_label(name, labels), 12) for name in names])
            axes.set_xlim(-0.5, len(names) - 0.5)
            axes.grid(axis="x", visible=False)
        next(iter(panels.values()))[0].set_ylabel(axis(metric))
        _title(figure, title)
        _legend(figure, panels, last=_label([*static][-1], labels) if static else None)
    return figure


def moves(frame, y, by, panel, metric, labels=None, title=""):
    """Where values move: a hollow mark before, a filled one after with its deviation, and a pale bar between.

    Parameters
    ----------
    frame : pandas.DataFrame
        One line a move: y, by, panel, `before`, `after` and `std`, the deviation of `after`, which may be missing.
    y : str
        Column that names the lines, from top to bottom.
    by : str
        Column of the groups, told apart by colour and marker.
    panel : str
        Column whose values get a panel each, side by side and on one scale.
    metric : str
        Names the horizontal axes.
    labels : dict, optional
        Names where they differ from `paper.label`.
    title : str, optional
        What the picture shows, for readers who meet it alone.

    Returns
    -------
    matplotlib.figure.Figure
    """
    names, style = list(dict.fromkeys(frame[y])), styles(frame[by])
    with matplotlib.rc_context(LOOK):
        figure, panels = _panels(frame, panel, 1.3 + 0.22 * len(names), share=True)
        for key, (axes, part) in panels.items():
            for group, rows in part.groupby(by, sort=False):
                colour, _, marker = style[group]
                at = [names.index(name) for name in rows[y]]
                axes.hlines(at, rows["before"], rows["after"], color=colour, linewidth=4, alpha=0.3, zorder=2)
                look = {"marker": marker, "linestyle": "", "color": colour}
                axes.plot(rows["before"], at, **look, markerfacecolor="white", zorder=3)
                look |= {"elinewidth": 0.8, "capsize": 2, "label": f"{_label(group, labels)}, after"}
                axes.errorbar(rows["after"], at, xerr=rows["std"].astype(float).fillna(0), **look, zorder=4)
            axes.plot([], [], "o", label="before", **HOLLOW)
            axes.axvline(0, color=GREY, linewidth=0.8, zorder=1)
            axes.set_title(_label(key, labels))
            axes.set_xlabel(axis(metric))
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.grid(axis="y", visible=False)
        all_axes = [axes for axes, _ in panels.values()]
        low, high = zip(*(axes.get_xlim() for axes in all_axes), strict=True)
        for axes in all_axes:
            axes.set_xlim(min(low), max(high))
        all_axes[0].set_yticks(range(len(names)), [_label(name, labels) for name in names])
        all_axes[0].set_ylim(len(names) - 0.5, -0.5)
        all_axes[0].set_ylabel(axis(y))
        _title(figure, title)
        _legend(figure, panels, last="before")
    return figure


def _sides(rows, y):
    if not {"low", "high"} <= set(rows) or rows["low"].isna().all():
        return None
    return np.array([rows[y] - rows["low"], rows["high"] - rows[y]], float).clip(min=0)


def strips(frame, y, x, by="verdict", panel=None, title=""):
    """Counts laid end to end, a strip a line, with the number in each piece; told apart by hatching too.

    Parameters
    ----------
    frame : pandas.DataFrame
        One line a piece: the columns y, x, by and panel.
    y : str
        Column that names the strips, from top to bottom.
    x : str
        Column of the counts; names the axis.
    by : str
        Column of the pieces, names in `VERDICT_STYLES`, laid in its order.
    panel : str, optional
        Column whose values get a panel each, side by side.
    title : str, optional

    Returns
    -------
    matplotlib.figure.Figure
    """
    names = list(dict.fromkeys(frame[y]))
    with matplotlib.rc_context(LOOK):
        figure, panels = _panels(frame, panel, height=0.9 + 0.3 * len(names), share=True)
        for axes, part in panels.values():
            count = part.pivot_table(x, y, by, "sum", fill_value=0).reindex(names, fill_value=0)
            end = np.zeros(len(names))
            for name, (colour, hatch) in VERDICT_STYLES.items():
                length = count[name].to_numpy(float) if name in count else np.zeros(len(names))
                look = {"color": colour, "edgecolor": "white", "hatch": hatch, "label": name}
                pieces = axes.barh(range(len(names)), length, 0.75, end, **look)
                told = [f"{piece:g}" if piece else "" for piece in length]
                box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
                for label in axes.bar_label(pieces, told, label_type="center", fontsize=8):
                    label.set_bbox(box if label.get_text() else None)
                end += length
            axes.set_yticks(range(len(names)), [paper.label(name) for name in names])
            axes.set_ylim(len(names) - 0.5, -0.5)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axes.grid(axis="y", visible=False)
            axes.set_xlabel(axis(x))
        _title(figure, title)
        _legend(figure, panels)
    return figure


def _stars(frame, key):
    """A star for each name in a column all of whose measured rows ask a critic that sees test gold."""
    if key is None or "sees_gold" not in frame:
        return {}
    run = frame[frame["measured"].notna()] if "measured" in frame else frame
    seen = run["sees_gold"].eq(True).groupby(run[key]).all()
    return {name: " *" for name in seen.index[seen]}


def _float(value):
    return math.nan if value is None else float(value)


def _label(name, labels):
    return (labels or {}).get(name) or paper.label(name)


def _panels(frame, panel, height, share):
    """A figure, and its axes and part of the frame by panel; None is the key of the only one."""
    keys = list(dict.fromkeys(frame[panel])) if panel else [None]
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    all_axes = figure.subplots(1, len(keys), sharey=share, squeeze=False)[0]
    panels = {}
    for key, axes in zip(keys, all_axes, strict=True):
        panels[key] = (axes, frame[frame[panel] == key] if panel else frame)
        axes.set_title("" if key is None else "\n".join(textwrap.wrap(paper.label(key), 54 // len(keys))))
    return figure, panels


def _legend(figure, panels, last=None):
    """One legend for all panels below them, where it covers no data."""
    shown = {}
    for axes, _ in panels.values():
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    names = sorted(shown, key=lambda label: label == last)
    columns, handles = _columns(names), [shown[name] for name in names]
    figure.legend(handles, names, loc="outside lower center", ncols=columns, handlelength=3)
    lines = math.ceil(len(names) / columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * max(0, lines - 4))  # inches: no panel is paid with for them


def _columns(names):
    """Columns of a legend: equally wide ones, but where those make more than four lines as many as fit side by side."""
    alike = max(1, min(len(names), int(WIDTH / (0.065 * max(map(len, names), default=1) + 0.5))))
    if len(names) <= 4 * alike:
        return alike
    widest = {count: [max(map(len, part)) for part in np.array_split(names, count)] for count in range(2, len(names))}
    fits = [count for count, chars in widest.items() if 0.06 * sum(chars) + 0.75 * count < WIDTH]
    return max(fits, default=alike)


def save(figure, id, profile):
    """Write a figure as `<results>/<profile>/<id>.png`, the same bytes each time.

    Its colours are reduced to 128, which makes the file a third as large.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    id, profile : str

    Returns
    -------
    IPython.display.Image
        The picture, so that a notebook cell that ends with this call shows what was written.
    """
    drawn, written = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context(LOOK):
        figure.savefig(drawn, format="png", dpi=160)
    picture = PIL.Image.open(drawn).convert("RGB")
    picture.quantize(128, dither=PIL.Image.Dither.NONE).save(written, format="png", optimize=True)
    paths.write_atomically(paths.results() / profile / f"{id}.png", written.getvalue())
    return Image(written.getvalue(), width=round(100 * figure.get_figwidth()))
