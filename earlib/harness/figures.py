"""Figures of measures: one colour, line and marker a system, distinguishable without colour.

Figures are drawn from frames whose columns are named after the fields of a record, and leave no global state.
"""

import io
import math
import textwrap
from contextlib import contextmanager

import matplotlib
import numpy as np
import pandas as pd
import PIL.Image
from IPython.display import Image
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath
from matplotlib.ticker import MaxNLocator

from earlib import paper, paths
from earlib.harness.look import DRAWN, GREY, INK, LINES, LOOK, VERDICT_STYLES, of_system, styles

PLAIN = (INK, "-", "o")  # of what is no system
HOLLOW = {"marker": "o", "linestyle": "", "markersize": 7, "markerfacecolor": "none", "markeredgecolor": GREY}
NOT_RUN = {"s": "not run", "color": GREY, "fontsize": 7.5, "fontstyle": "italic"}
WIDTH = 6.3  # inches: the text width of a page


def axis(name):
    """Label of an axis: the paper's name, and the unit where there is one ("Recall@5 (%)")."""
    return f"{paper.label(name)} ({paper.unit(name)})" if paper.unit(name) else paper.label(name)


@contextmanager
def canvas(height, title="", last=None, heading=None):
    """An empty figure in the common look; on leaving, its title is set above and one legend of all axes below.

    The legend has as many columns as fit side by side and the title `heading`; the label `last` comes last.
    """
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=LOOK["font.size"], fontweight="bold")
        shown = {}
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                shown.setdefault(label, handle)
        if shown:
            names, columns = sorted(shown, key=lambda label: label == last), 1
            drawn = [TextPath((0, 0), name, size=LOOK["font.size"]) for name in names]
            inches = np.array([text.get_extents().width / 72 + 0.73 for text in drawn])  # with handle and spaces
            for count in range(2, len(names) + 1):
                columns = count if sum(map(max, np.array_split(inches, count))) < WIDTH else columns
            handles = [shown[name] for name in names]
            look = {"title": heading, "title_fontsize": LOOK["font.size"], "alignment": "left"}
            figure.legend(handles, names, loc="outside lower center", ncols=columns, handlelength=3, **look)
            more = max(0, math.ceil(len(names) / columns) - 4) + bool(heading)
            figure.set_figheight(height + 0.2 * more)  # panels keep their height


def _heading(by, labels, error=""):
    """Title of a legend: what its names are, and what the areas or bars around the values are."""
    name = _label(by, labels)
    return name[:1].upper() + name[1:] + (f" ({error})" if error else "")


def curves(
    frame, x, metric="recall@5", y="measured", band="std", by="variant", panel=None, static=None, labels=None, title=""
):
    """Curves of a measure, one a system: the mean as a line, mean ± band as an area.

    Curves of one or two points have no line, and bars side by side in place of areas. Ticks at whole
    numbers are measured points.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row a point, with the columns named here.
    x, metric : str
        Column of the horizontal axis, and name of the vertical one.
    y, band : str
        Columns of the mean and of the deviation drawn around it, or of the two ends of an interval (a pair of names);
        where it is missing no area is drawn.
    by, panel : str
        Columns of the systems and of the panels side by side.
    static : dict or pandas.DataFrame, optional
        Values of systems that do not learn, drawn as level lines: {"retriever": 32.1}; as a frame with the columns
        `by`, `y` and, with panels, `panel`.
    labels : dict, optional
        Names where they differ from `paper.label`; that of `by` is the title of the legend.
    title : str, optional

    Returns
    -------
    matplotlib.figure.Figure
    """
    if isinstance(band, tuple):
        frame = frame.assign(low=frame[band[0]], high=frame[band[1]])
    else:
        spread = frame.get(band, math.nan)
        frame = frame.assign(low=frame[y] - spread, high=frame[y] + spread)
    if not isinstance(static, pd.DataFrame):
        static = pd.DataFrame((static or {}).items(), columns=[by, y])
    style = styles([*frame[by], *static[by]])
    few = frame.groupby([key for key in (by, panel) if key], sort=False)[x].size().max() < 3
    what = "95 % interval" if isinstance(band, tuple) else "± standard deviation over seeds"
    error = f"{'bar' if few else 'area'}: {what}" if frame["low"].notna().any() else ""
    with canvas(3.3, title, heading=_heading(by, labels, error)) as figure:
        panels = _panels(figure, frame, panel)
        for key, axes, part in panels:
            shift = 0.03 * np.ptp(part[x]) if few else 0  # bars side by side
            for count, (name, line) in enumerate(part.groupby(by, sort=False), -1):
                line = line.sort_values(x, kind="stable")
                _curve(axes, line, line[x] + count * shift, line[y].astype(float), style[name], _label(name, labels))
            levels = static[static[panel] == key] if panel in static else static
            for name, level in zip(levels[by], levels[y], strict=True):
                axes.axhline(level, color=style[name][0], linestyle=style[name][1], label=_label(name, labels))
            axes.set_xlabel(axis(x))
            parts = 5 if len(panels) < 3 else 3
            if (part[x] % 1 == 0).all():  # numbers that were chosen, not means
                axes.set_xticks(_apart(part[x], parts))
            else:
                axes.xaxis.set_major_locator(MaxNLocator(parts))
            axes.margins(x=0.1 if few else 0.02)
        figure.axes[0].set_ylabel(axis(metric))
    return figure


def _apart(values, parts):
    """Some of the values, of which any two are about a part of the axis or more away from each other."""
    values = np.unique(values)
    ticks = list(values[:1])
    for value in values[1:]:
        if value - ticks[-1] >= 0.95 * np.ptp(values) / parts:
            ticks.append(value)
    return ticks


def _curve(axes, line, at, mean, style, label):
    colour, dash, marker = style
    few, every = len(line) < 3, math.ceil(len(line) / 12)  # at most a dozen markers a line
    look = {"color": colour, "linestyle": "" if few else dash, "marker": marker, "label": label, "zorder": 3}
    axes.plot(at, mean, markevery=every, **look)
    ends = [line[end].astype(float).fillna(mean) for end in ("low", "high")]
    if line["low"].isna().all():
        return
    if few:
        axes.vlines(at, *ends, color=colour, linewidth=1, zorder=2)
    else:
        axes.fill_between(at, *ends, facecolor=(colour, 0.1), edgecolor=(colour, 0.5), linewidth=0.6, zorder=1)


def gains(frame, x, **look):
    """Curves of the gain over each seed's own retriever, its 95 % interval around it; keywords as in `curves`.

    What the seeds' evaluation questions differ in is no part of them: the columns are the rows' paired differences.
    """
    ends = {"y": "difference", "band": ("difference_low", "difference_high"), "metric": "gain"}
    return curves(frame, x, **ends, static={"retriever": 0.0}, **look)


def intervals(
    frame, y="variant", panel=None, by=None, metric=None, labels=None, paper_label="paper", title="", zero=False
):
    """Measured values with their intervals, a system a line, and the paper's values as hollow marks.

    Without `by` a line has its system's colour and marker; what is no system has a common one. A star marks a system
    whose inference asks a critic that sees test gold (column `sees_gold`).

    Parameters
    ----------
    frame : pandas.DataFrame
        Rows of a record: measured, low, high, reported and the columns named here. What was not run has its line,
        marked so.
    y : str
        Column that names the lines, from top to bottom.
    panel, by : str, optional
        Columns of the panels and of the marks into which a line is split (encoders, splits).
    metric, labels, title : str, dict, str, optional
        As in `curves`; the metric is by default the panel, where it is one, or the frame's only metric.
    paper_label : str
        Legend of the hollow marks, with the setting if it is another one.
    zero : bool
        Mark zero with a line, for differences.

    Returns
    -------
    matplotlib.figure.Figure
    """
    frame = _floats(frame, "measured", "low", "high", "reported")
    names, groups = _names(frame, y, labels), _names(frame, by, labels) if by else {}
    style = styles(groups) if by else {name: of_system(name) or PLAIN for name in names}
    height = 0.9 + len(names) * max(0.32, 0.26 * len(groups))
    heading = _heading(by, labels, "95 % interval") if by else "Values"
    with canvas(height, title, last=paper_label, heading=heading) as figure:
        for key, axes, part in _panels(figure, frame, panel):
            place = part[y].map([*names].index)
            if by:
                place += (part[by].map([*groups].index) - (len(groups) - 1) / 2) * 0.7 / len(groups)
            for at, rows in part.assign(place=place).groupby(part[by or y].map([*style].index), sort=False):
                group = [*style][at]  # by number, since rows without a group are drawn too
                _interval(axes, rows, style[group], groups.get(group), paper_label)
            if not by:
                axes.plot([], [], color=INK, marker="o", label="measured, 95 % interval")
            axes.margins(x=0.08)
            if zero:
                axes.axvline(0, color=GREY, linestyle="--", linewidth=1, zorder=1)
            missing = part["measured"].isna()
            for at, reported in zip(place[missing], part.loc[missing, "reported"], strict=True):
                left = not reported <= sum(axes.get_xlim()) / 2  # where the paper's mark is not
                look = NOT_RUN | {"ha": "left" if left else "right", "va": "center"}
                axes.text(0.02 if left else 0.98, at, **look, transform=axes.get_yaxis_transform())
            _name_lines(axes, names.values())
            axes.set_xlabel(axis(metric or (key if panel == "metric" else part["metric"].iloc[0])))
            if panel == "metric":
                axes.set_title("")  # the axis says it
    return figure


def _interval(axes, rows, style, label, paper_label):
    theirs, ours = (rows[rows[key].notna()] for key in ("reported", "measured"))
    if len(theirs):
        axes.plot(theirs["reported"], theirs["place"], label=paper_label, zorder=2, **HOLLOW)
    if len(ours):
        look = {"color": style[0], "marker": style[2], "linestyle": ""}
        axes.errorbar(ours["measured"], ours["place"], xerr=_sides(ours), label=label, zorder=3, **look)


def _sides(rows):
    """Lengths of the two sides of the intervals around measured values, None if there is none."""
    sides = [rows["measured"] - rows["low"], rows["high"] - rows["measured"]]
    return np.array(sides).clip(min=0) if rows["low"].notna().any() else None


def bars(frame, x, metric, by="variant", static=None, title=""):
    """Grouped bars with their intervals, distinguished by hatching too; stars as in `intervals`.

    Parameters and result as in `curves`, with one row a bar: names in `x`, values in `measured`, groups in `by`, and,
    if the frame has them, intervals in `low` and `high`. `static` is a dict of levels drawn as lines: {"chance": 2.5}.
    """
    frame, static = _floats(frame, "measured", "low", "high"), static or {}
    names, groups = list(dict.fromkeys(frame[x])), _names(frame, by)
    style, width = styles(groups), 0.8 / len(groups)
    error = "bar: 95 % interval" if frame["low"].notna().any() else ""
    last = paper.label([*static][-1]) if static else None
    with canvas(3.1, title, last=last, heading=_heading(by, None, error)) as figure:
        axes = figure.subplots()
        for count, (group, label) in enumerate(groups.items()):
            rows = frame[frame[by] == group]
            places = rows[x].map(names.index) + (count - (len(groups) - 1) / 2) * width
            look = {"color": style[group][0], "edgecolor": "white", "hatch": DRAWN["hatches"][count % 5]}
            look |= {"yerr": _sides(rows), "ecolor": INK, "capsize": 2, "error_kw": {"elinewidth": 1}}
            axes.bar(places, rows["measured"], width * 0.92, label=label, **look)
        for count, (name, level) in enumerate(static.items(), 1):
            axes.axhline(level, color="black", linestyle=LINES[count], label=paper.label(name), zorder=3)
        for place, name in enumerate(names):
            if frame.loc[frame[x] == name, "measured"].isna().all():
                axes.text(place, 0.02, **NOT_RUN, ha="center", transform=axes.get_xaxis_transform())
        axes.set_xticks(range(len(names)), [textwrap.fill(paper.label(name), 12) for name in names])
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel(axis(metric))
    return figure


def moves(frame, y, by, panel, metric, labels=None, title=""):
    """Changes of values: a hollow mark before, a filled one after with its deviation, and a pale bar between.

    Parameters and result as in `curves`, with one row a change: its line in `y`, its group in `by`, the values in
    `before` and `after`, and in `std` the deviation of `after`, which may be missing.
    """
    names, style = _names(frame, y, labels), styles(frame[by])
    error = "bar: ± standard deviation over adapters" if frame["std"].notna().any() else ""
    with canvas(1.3 + 0.22 * len(names), title, last="before", heading=_heading(by, labels, error)) as figure:
        for key, axes, part in _panels(figure, frame, panel, sharex=True):
            axes.set_title(_label(key, labels))
            for group, rows in part.groupby(by, sort=False):
                colour, _, marker = style[group]
                at = rows[y].map([*names].index)
                look = {"marker": marker, "linestyle": "", "color": colour}
                axes.hlines(at, rows["before"], rows["after"], color=colour, linewidth=4, alpha=0.3, zorder=2)
                axes.plot(rows["before"], at, **look, markerfacecolor="white", zorder=3)
                look |= {"elinewidth": 0.8, "capsize": 2, "label": f"{_label(group, labels)}, after"}
                axes.errorbar(rows["after"], at, xerr=rows["std"].astype(float).fillna(0), **look, zorder=4)
            axes.plot([], [], label="before", **HOLLOW)
            axes.axvline(0, color=GREY, linewidth=0.8, zorder=1)
            axes.set_xlabel(axis(metric))
            axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
            axes.xaxis.set_major_formatter("{x:g}")
            _name_lines(axes, names.values())
        figure.axes[0].set_ylabel(axis(y))
    return figure


def strips(frame, y, x, by="verdict", panel=None, title=""):
    """Counts laid end to end, a strip a line, with the number in each piece; distinguished by hatching too.

    Parameters and result as in `curves`, with one row a piece: its strip in `y`, its count in `x`, and in `by` its
    name, one of `VERDICT_STYLES`, in whose order the pieces are laid.
    """
    names = _names(frame, y)
    with canvas(0.9 + 0.3 * len(names), title, heading="Verdict") as figure:
        for _, axes, part in _panels(figure, frame, panel):
            counts = part.pivot_table(x, y, by, "sum", fill_value=0)
            counts = counts.reindex(index=[*names], columns=list(VERDICT_STYLES), fill_value=0).astype(float)
            ends = counts.cumsum(axis=1) - counts
            for name, (colour, hatch) in VERDICT_STYLES.items():
                look = {"color": colour, "edgecolor": "white", "hatch": hatch, "label": name}
                pieces = axes.barh(range(len(names)), counts[name], 0.75, ends[name], **look)
                told = [f"{piece:g}" if piece else "" for piece in counts[name]]
                for label in axes.bar_label(pieces, told, label_type="center", fontsize=8):
                    if label.get_text():
                        label.set_bbox({"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"})
            _name_lines(axes, names.values())
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axes.set_xlabel(axis(x))
    return figure


def _panels(figure, frame, panel, sharex=False):
    """Key, axes and part of the frame of each panel, side by side; one of key None where nothing is split."""
    parts = list(frame.groupby(panel, sort=False)) if panel else [(None, frame)]
    all_axes = figure.subplots(1, len(parts), sharex=sharex, sharey=True, squeeze=False)[0]
    for axes, (key, _) in zip(all_axes, parts, strict=True):
        name = "" if key is None else paper.label(key)
        axes.set_title(textwrap.fill(f"Split: {name}" if panel == "split" else name, 54 // len(parts)))
    return [(key, axes, part) for axes, (key, part) in zip(all_axes, parts, strict=True)]


def _name_lines(axes, names):
    """Names at the left, the first one on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def _names(frame, key, labels=None):
    """Names in a column with their labels, and a star where all measured rows ask a critic that sees test gold."""
    seen = {}
    if {"sees_gold", "measured"} <= set(frame):
        run = frame[frame["measured"].notna()]
        seen = run["sees_gold"].eq(True).groupby(run[key]).all()
    return {name: _label(name, labels) + (" *" if seen.get(name) else "") for name in dict.fromkeys(frame[key])}


def _floats(frame, *keys):
    """The frame with these columns as numbers, NaN where they or their values are missing."""
    return frame.assign(**frame.reindex(columns=list(keys)).astype(float))


def _label(name, labels):
    return (labels or {}).get(name) or paper.label(name)


def save(figure, id, profile):
    """Write a figure as `<profile>/<id>.png` with `paths.save_result`, in 64 colours to make it small.

    The same values make the same bytes.

    Returns
    -------
    IPython.display.Image
        The picture, which a notebook cell that ends with this call shows.
    """
    drawn, written = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context(LOOK):
        figure.savefig(drawn, format="png", dpi=160)
    picture = PIL.Image.open(drawn).convert("RGB")
    few = picture.quantize(64, PIL.Image.Quantize.MAXCOVERAGE, dither=PIL.Image.Dither.NONE)  # others shift thin lines
    few.save(written, format="png", optimize=True)
    paths.save_result(f"{profile}/{id}.png", written.getvalue())
    return Image(written.getvalue(), width=round(100 * figure.get_figwidth()))
