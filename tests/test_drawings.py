"""The pictures of the system: the given values are drawn, and nothing overlaps."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from earlib.harness import drawings, figures, look

DEPTH, SIZE = 20, 5
GOLD = {4, 11, 13}


def candidates():
    rng = np.random.default_rng(0)
    cosine = np.sort(rng.uniform(0.3, 0.6, DEPTH))[::-1]
    before = cosine + rng.normal(-0.1, 0.1, DEPTH)
    columns = {"retriever": cosine, "before": before, "after": before + rng.normal(0, 0.02, DEPTH)}
    return pd.DataFrame({"candidate": range(1, DEPTH + 1), **columns}).assign(gold=lambda f: f["candidate"].isin(GOLD))


def choices(rounds=4, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "round": np.repeat(range(1, rounds + 1), SIZE),
            "candidate": np.concatenate([rng.permutation(DEPTH)[:SIZE] + 1 for _ in range(rounds)]),
            "relevance": rng.normal(0.1, 0.1, rounds * SIZE),
            "exploration": rng.normal(0.1, 0.2, rounds * SIZE),
            "redundancy": rng.normal(-0.1, 0.1, rounds * SIZE),
            "citation": rng.choice([-1, 1], rounds * SIZE),
        }
    )
    frame.loc[frame["round"] == 1, "exploration"] = 0.0
    return frame


SLATES = {"Retriever": [1, 2, 3, 4, 5], "EAR: last slate": [13, 19, 10, 16, 11], "Equal calls": [4, 11, 13, 1, 2]}
PICTURES = {
    "paradigms": drawings.paradigms,
    "candidates": lambda: drawings.candidate_scores(candidates(), "LoCoMo, MiniLM: query conv-43/Q0, scores"),
    "exploration": lambda: drawings.exploration(choices(), DEPTH, GOLD, "LoCoMo, MiniLM: query conv-43/Q0, 4 rounds"),
    "rounds": lambda: drawings.exploration(
        drawings.choices([[0, 1, 4], [2, 3, 4]], [[1, -1, 1], [-1, -1, 1]]), DEPTH, GOLD, "LoCoMo, question conv-43/Q0"
    ),
    "bars": lambda: drawings.bars(np.linspace(0.5, -0.1, DEPTH), GOLD, "Score $z$", "LoCoMo, question conv-43/Q0"),
    "slates": lambda: drawings.slates(SLATES, GOLD, 3, "LoCoMo, MiniLM: query conv-43/Q0, slates"),
}


def texts(figure):
    """Every text that is shown, with its place on the page; of an axis those in view."""
    figure.draw_without_rendering()
    found = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    if figure._suptitle is not None and figure._suptitle not in found:
        found.append(figure._suptitle)
    for axes in figure.axes:
        found += [*axes.texts, axes.title, axes._left_title]
        if axes.axison:
            found += [axes.xaxis.label, axes.yaxis.label]
            for one in (axes.xaxis, axes.yaxis):
                low, high = sorted(one.get_view_interval())
                found += [tick.label1 for tick in one.get_major_ticks() if low <= tick.get_loc() <= high]
    return [(text, text.get_window_extent()) for text in found if text.get_text()]


def boxes(axes, kind):
    return [patch for patch in axes.patches if type(patch) is kind]


@pytest.mark.parametrize("name", PICTURES)
def test_no_text_covers_another_or_leaves_the_page(name):
    figure = PICTURES[name]()
    placed = texts(figure)
    assert len(placed) > 5
    for (one, box), (other, other_box) in itertools.combinations(placed, 2):
        assert not box.overlaps(other_box), (one.get_text(), other.get_text())
    for text, box in placed:
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1
        assert inside, text.get_text()
    assert figure.get_figwidth() == figures.WIDTH


def test_a_text_of_the_paradigms_lies_within_a_box_or_outside_of_all():
    figure = drawings.paradigms()
    (axes,) = figure.axes
    placed = [(text, box) for text, box in texts(figure) if text in axes.texts]
    extents = [patch.get_window_extent() for patch in boxes(axes, FancyBboxPatch)]
    for text, box in placed:
        touched = [extent for extent in extents if box.overlaps(extent)]
        within = [e for e in touched if e.x0 <= box.x0 and box.x1 <= e.x1 and e.y0 <= box.y0 and box.y1 <= e.y1]
        assert touched == within and len(touched) <= 1, text.get_text()
    assert not any(a.overlaps(b) for a, b in itertools.combinations(extents, 2))


def test_what_comes_back_tells_the_paradigms_apart():
    """Against the direction of a lane nothing runs in (a), one way back in (b), and in (c) two and the buffer's own."""
    (axes,) = drawings.paradigms().axes
    titles = {text.get_text()[:3]: text.get_position()[1] for text in axes.texts if text.get_text()[:1] == "("}
    backward = dict.fromkeys(titles, 0)
    for arrow in boxes(axes, FancyArrowPatch):
        vertices = arrow._path_original.vertices
        lane = min((y - vertices[0, 1], name) for name, y in titles.items() if y > vertices[0, 1])[1]
        backward[lane] += bool(vertices[-1, 0] < vertices[0, 0])
    assert backward == {"(a)": 0, "(b)": 1, "(c)": 3}


def test_kinds_of_boxes_are_told_apart_without_colour():
    borders = [line for _, _, line, meaning in look.DRAWN["boxes"].values() if meaning != "_"]
    assert len(set(borders)) == len(borders)


def test_candidate_scores_are_those_given():
    frame = candidates()
    (axes,) = drawings.candidate_scores(frame).axes
    drawn = {line.get_label(): line.get_xydata() for line in axes.get_lines()}
    for column, label, *_ in drawings.SCORES:
        assert np.array_equal(drawn[label], frame[["candidate", column]])
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert {int(name.split("\n")[0]) for name in names if drawings.STAR in name} == GOLD


@settings(max_examples=4)
@given(rounds=st.integers(1, 5), seed=st.integers(0, 1000))
def test_exploration_draws_every_choice(rounds, seed):
    frame = choices(rounds, seed)
    grid, parts = drawings.exploration(frame, DEPTH, GOLD).axes
    cells = [patch for patch in boxes(grid, Rectangle) if patch.get_width() < 0.9]
    places = [(round(cell.get_x() + 0.42), round(cell.get_y() + 0.42)) for cell in cells]
    assert places == list(zip(frame["candidate"], frame["round"], strict=True))
    cited = [cell.get_facecolor() == to_rgba(drawings.CITED) for cell in cells]
    assert cited == list(frame["citation"] > 0)
    shown = {text.get_position(): text.get_text() for text in grid.texts}
    for candidate, given_to in frame.groupby("candidate")["citation"]:
        assert shown[candidate, rounds + 1] == str(len(given_to))
    bars = np.array([[bar.get_height() for bar in container] for container in parts.containers])
    assert np.allclose(bars, frame[[column for column, *_ in drawings.TERMS]].T)
    (total,) = [line for line in parts.get_lines() if line.get_label() == "value $A$"]
    assert np.allclose(total.get_ydata(), bars.sum(0))
    low, high = parts.get_ylim()
    up, down = np.where(bars > 0, bars, 0).sum(0).max(), np.where(bars < 0, bars, 0).sum(0).min()
    assert low < down and high > max(up, total.get_ydata().max())  # nothing is cut off, the marks included
    for stack in zip(*parts.containers, strict=True):  # nor covered
        spans = sorted(sorted((bar.get_y(), bar.get_y() + bar.get_height())) for bar in stack)
        assert all(above[0] >= below[1] - 1e-9 for below, above in itertools.pairwise(spans))


def test_choices_are_named_by_rank_and_bars_have_their_values():
    frame = drawings.choices([[0, 4], [2, 0]], [[1, -1], [-1, 1]])
    assert frame.to_numpy().tolist() == [[1, 1, 1], [1, 5, -1], [2, 3, -1], [2, 1, 1]]
    (axes,) = drawings.bars(np.array([0.5, -0.1, 0.2]), {2}, "z").axes
    assert [bar.get_height() for container in axes.containers for bar in container] == [0.5, -0.1, 0.2]


def test_signed_means_fit_a_column():
    assert [drawings._signed(value) for value in (1, -1, 0, 1 / 3, -0.5, -0.02)] == ["+1", "−1", "0", "+.3", "−.5", "0"]


def test_slates_mark_and_count_the_gold():
    (axes,) = drawings.slates(SLATES, GOLD, 4).axes
    names = [text.get_text() for text in axes.texts]
    assert names[:6] == ["1", "2", "3", f"4 {drawings.STAR}", "5", "1 of 4 gold"]
    assert [name for name in names if name.endswith("gold")] == ["1 of 4 gold", "2 of 4 gold", "3 of 4 gold"]
    filled = [patch.get_facecolor() == to_rgba(look.COLOURS[0]) for patch in boxes(axes, Rectangle)]
    assert filled == [candidate in GOLD for members in SLATES.values() for candidate in members]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(SLATES)
