"""The figures: the given values are drawn, and can be read."""

import itertools
import math

import matplotlib
import numpy as np
import pandas as pd
import pytest

from earlib.harness import figures, look

SYSTEMS = ("rmm", "explorer_training", "buffer_training", "ear_adapter")


def trajectory(points=31):
    rng = np.random.default_rng(0)
    seen = 40 * np.arange(points)
    rows = [(name, at, 30 + 3 * i + rng.normal(), 1.0 + i) for i, name in enumerate(SYSTEMS) for at in seen]
    return pd.DataFrame(rows, columns=["variant", "training_queries", "measured", "std"])


def rows():
    """Rows of a record: two measures of three systems; one system was not run."""
    table = [("rmm", 31.0, 25.97), ("ear", 45.0, 55.06), ("monot5", None, 61.46), ("equal_calls_2", 40.0, None)]
    found = [
        {"variant": name, "metric": metric, "measured": value, "reported": reported if metric == "recall@5" else None}
        for metric in ("recall@5", "hitrate@5")
        for name, value, reported in table
    ]
    return pd.DataFrame(found).assign(low=lambda f: f["measured"] - 4, high=lambda f: f["measured"] + 5)


def lines(axes):
    return {line.get_label(): line for line in axes.get_lines()}


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def assert_readable(figure):
    """The legend covers no axes, no two tick labels of an axis overlap, and nothing leaves the page."""
    figure.draw_without_rendering()
    page, box = figure.bbox, figure.legends[0].get_window_extent()
    for axes in figure.axes:
        assert not box.overlaps(axes.get_tightbbox())
        for one in (axes.xaxis, axes.yaxis):
            boxes = [label.get_window_extent() for label in one.get_ticklabels() if label.get_text()]
            assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))
        extent = axes.get_tightbbox()
        assert extent.x0 >= page.x0 - 1 and extent.x1 <= page.x1 + 1 and extent.y1 <= page.y1 + 1
    assert box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0


def test_curves_draw_mean_and_band():
    frame = trajectory()
    figure = figures.curves(frame.sample(frac=1, random_state=1), "training_queries", static={"retriever": 32.1})
    (axes,) = figure.axes
    for name, label in [("rmm", "RL baseline"), ("ear_adapter", "EAR adapter")]:
        given = frame[frame["variant"] == name]
        assert np.array_equal(lines(axes)[label].get_xydata(), given[["training_queries", "measured"]])
    assert set(lines(axes)["Retriever"].get_ydata()) == {32.1}
    band = axes.collections[legend(figure).index("EAR adapter")].get_paths()[0].vertices
    given = frame[frame["variant"] == "ear_adapter"]
    assert math.isclose(band[:, 1].max(), (given["measured"] + given["std"]).max())
    assert math.isclose(band[:, 1].min(), (given["measured"] - given["std"]).min())
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Training queries", "Recall@5 (%)")
    assert len(legend(figure)) == 5
    assert_readable(figure)


def learning(count=31):
    """A trajectory with its paired differences."""
    return trajectory(count).assign(difference=1.0, difference_low=-2.0, difference_high=5.0)


@pytest.mark.parametrize("count", [5, 10])
def test_a_legend_of_many_names_leaves_the_panel_its_height(count):
    """One long name made each a line of its own: eight of them left the panel 0.8 inches."""
    names = [*(f"low-rank, r = {2**number}" for number in range(count - 1)), "ceiling"]
    points = [(name, at, 30.0 + at) for name in names for at in (0, 1)]
    frame = pd.DataFrame(points, columns=["form", "training_queries", "measured"])
    figure = figures.curves(frame, "training_queries", by="form", title="Learning")
    assert_readable(figure)
    assert len(legend(figure)) == count
    assert figure.axes[0].get_window_extent().height / figure.dpi > 1.6


def test_two_points_have_no_line_and_ticks_are_where_something_was_measured():
    (axes,) = figures.gains(learning(2), "training_queries").axes
    assert list(axes.get_xticks()) == [0, 40]
    assert {lines(axes)[name].get_linestyle() for name in ("RL baseline", "EAR adapter")} == {"None"}
    long = figures.curves(trajectory(), "training_queries")
    assert list(long.axes[0].get_xticks()) == [0, 240, 480, 720, 960, 1200]
    title = long.legends[0].get_title().get_text()
    assert title == "System (area: ± standard deviation over seeds)"


def test_curves_keep_the_line_readable():
    line = lines(figures.curves(trajectory(100), "training_queries").axes[0])["RL baseline"]
    assert len(range(0, 100, line.get_markevery())) <= 12
    figure = figures.curves(trajectory().assign(std=np.nan), "training_queries", labels={"ear_adapter": "EAR"})
    assert not figure.axes[0].collections
    assert "EAR" in legend(figure)


def test_gains_are_drawn_with_their_interval_around_the_level_of_the_retriever():
    (axes,) = figures.gains(learning(), "training_queries").axes
    assert "points" in axes.get_ylabel() and lines(axes)["Retriever"].get_ydata() == [0, 0]
    assert set(lines(axes)["RL baseline"].get_ydata()) == {1.0}
    assert {y for area in axes.collections for y in area.get_paths()[0].vertices[:, 1]} == {-2.0, 5.0}


def test_panels_of_curves():
    frame = pd.concat([trajectory().assign(dataset=name) for name in ("locomo", "longmemeval")])
    static = pd.DataFrame({"dataset": ["locomo", "longmemeval"], "variant": "retriever", "measured": [32.1, 62.0]})
    figure = figures.curves(frame, "training_queries", panel="dataset", static=static)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["LoCoMo", "LongMemEval"]
    assert [set(lines(axes)["Retriever"].get_ydata()) for axes in figure.axes] == [{32.1}, {62.0}]
    assert len(legend(figure)) == 5
    assert_readable(figure)


def test_intervals_show_measured_beside_the_paper():
    figure = figures.intervals(rows(), panel="metric", paper_label="paper (Contriever)")
    recall, hitrate = figure.axes
    names = [label.get_text() for label in recall.get_yticklabels()]
    assert names == ["RL baseline", "EAR", "MonoT5", "Equal-call control, 2 calls"]
    bars = {bar.lines[0].get_xydata()[0, 1]: bar for bar in recall.containers}
    assert sorted(bars) == [0, 1, 3]
    assert bars[1].lines[0].get_xydata()[0, 0] == 45
    assert np.allclose(bars[1].lines[2][0].get_segments()[0], [[41, 1], [50, 1]])
    hollow = {tuple(line.get_xydata()[0]) for line in recall.get_lines() if line.get_markerfacecolor() == "none"}
    assert hollow == {(25.97, 0), (55.06, 1), (61.46, 2)}
    (text,) = recall.texts
    figure.draw_without_rendering()
    mark = recall.transData.transform((61.46, 2))  # the paper's
    assert text.get_text() == "not run" and not text.get_window_extent().contains(*mark)
    assert (recall.get_xlabel(), hitrate.get_xlabel()) == ("Recall@5 (%)", "Hitrate@5 (%)")
    assert recall.get_ylim()[0] > recall.get_ylim()[1]  # the first system is on top
    assert legend(figure) == ["measured, 95 % interval", "paper (Contriever)"]
    assert_readable(figure)


def test_intervals_by_encoder():
    frame = pd.concat([rows().assign(encoder=name) for name in ("minilm", "mpnet")])
    figure = figures.intervals(frame[frame["metric"] == "recall@5"], by="encoder")
    assert legend(figure) == ["MiniLM", "MPNet", "paper"]
    places = [place for bar in figure.axes[0].containers for place in bar.lines[0].get_ydata()]
    assert len(set(places)) == len(places) == 6
    assert_readable(figure)


def test_intervals_without_a_group_are_drawn_too():
    frame = rows().assign(store=["both", None] * 4)
    for named in ({"by": "store"}, {"y": "store"}):
        (axes,) = figures.intervals(frame[frame["metric"] == "recall@5"], **named).axes
        drawn = [value for bar in axes.containers for value in bar.lines[0].get_xdata()]
        assert len(drawn) == 3


def test_bars():
    frame = pd.DataFrame({
        "category": ["single-hop", "temporal"] * 2, "variant": ["retriever"] * 2 + ["ear"] * 2,
        "measured": [3.4, 3.6, 2.5, 2.2], "low": [3.2, 3.4, 2.3, 2.0], "high": [3.6, 3.8, 2.7, 2.4],
    })  # fmt: skip
    figure = figures.bars(frame, "category", "observations in the top 5")
    (axes,) = figure.axes
    assert [round(float(bar.get_height()), 6) for bar in axes.patches] == [3.4, 3.6, 2.5, 2.2]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["Single Hop", "Temporal"]
    assert len({bar.get_hatch() for bar in axes.patches}) == 2
    assert axes.get_ylabel() == "observations in the top 5"
    assert legend(figure) == ["Retriever", "EAR"]
    assert_readable(figure)


def test_what_was_not_run_has_no_bar():
    frame = pd.DataFrame({"category": ["single-hop"] * 2, "variant": ["retriever", "ear"], "measured": [None, None]})
    figure = figures.bars(frame, "category", "observations in the top 5", static={"chance": 2.5})
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches if bar.get_height() > 0] == []
    assert [text.get_text() for text in axes.texts] == ["not run"]
    assert legend(figure) == ["Retriever", "EAR", "By chance"]
    assert_readable(figure)


def test_systems_are_told_apart_by_colour_line_and_marker():
    for names in (look.STYLES, [*SYSTEMS, "retriever", "a", "b"], ["88/86", "80/80", "70/70", "60/60", "retriever"]):
        found = look.styles(names)
        assert list(found) and set(found) == set(names)
        for part in range(3):
            assert len({style[part] for style in found.values()}) == len(found)
    assert look.styles(["ear", "new"])["ear"] == look.styles(["ear"])["ear"]
    assert look.styles(["equal_calls_3"])["equal_calls_3"] == look.STYLES["equal_calls"]
    assert look.styles(["new"])["new"][0] not in {colour for colour, *_ in look.STYLES.values()}


def test_saved_figures_repeat_to_the_byte(tmp_path, monkeypatch):
    monkeypatch.setenv("EARLIB_RESULTS", str(tmp_path))
    saved = []
    for own in ({}, {"font.size": 20, "axes.grid": False, "savefig.dpi": 30}):  # a reader's own settings
        with matplotlib.rc_context(own):
            shown = figures.save(figures.curves(trajectory(5), "training_queries"), "fig03", "smoke")
        saved.append((tmp_path / "smoke" / "fig03.png").read_bytes())
    assert saved[0] == saved[1] == shown.data
    assert saved[0].startswith(b"\x89PNG") and b"Software" not in saved[0]
    assert [path.name for path in (tmp_path / "smoke").iterdir()] == ["fig03.png"]
