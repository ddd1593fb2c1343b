"""The diagnostic memories are sound, and distances, controls and tests are what they say."""

import itertools
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from earlib import paper, records
from earlib.data import benchmarks, encoders
from earlib.data.download import Unavailable
from earlib.experiments import geometry
from earlib.harness import figures

REQUIRES = np.array(["episodic"] * 5 + ["semantic"] * 5)
LONG = 5  # words in a row that make a paraphrase


@pytest.fixture(scope="module")
def diagnostic():
    return geometry.load_diagnostic()


@pytest.fixture(scope="module")
def before(diagnostic):
    return geometry.distances(diagnostic, "minilm")


def runs(text, length):
    """All runs of so many words of a text."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[at : at + length]) for at in range(len(words) - length + 1)}


def sentences(text):
    parts = (re.findall(r"\w+", part.lower()) for part in re.split(r"[.?!:]", text))
    return {" ".join(words) for words in parts if words}


# -- the memories ------------------------------------------------------------------------------------------------------


def test_queries_are_the_papers_and_each_names_memories_of_the_store_that_it_requires(diagnostic):
    assert list(diagnostic.queries) == [row["text"] for row in paper.reported("tab11")]
    assert diagnostic.requires.tolist() == REQUIRES.tolist()
    assert [(diagnostic.stores == kind).sum() for kind in geometry.KINDS] == [25, 25]
    assert len(set(diagnostic.memories)) == len(set(diagnostic.ids)) == 50
    assert diagnostic.gold.shape == (10, 50) and diagnostic.gold.any(1).all()
    for kind, gold in zip(diagnostic.requires, diagnostic.gold, strict=True):
        assert set(diagnostic.stores[gold]) == {kind}


def test_memories_have_the_two_forms_of_locomo_and_come_in_pairs(diagnostic):
    texts = dict(zip(diagnostic.ids, diagnostic.memories, strict=True))
    for number in range(1, 26):
        turn, observation = texts[f"e{number}"], texts[f"s{number}"]
        speaker = re.match(r"(\w+): [A-Z].*\.$", turn)[1]
        assert observation.startswith(f"{speaker} ") and ":" not in observation and observation.endswith(".")
        assert not re.search(r"\b(I|my|we|our)\b", observation)


def test_memories_and_queries_share_no_sentence_and_no_long_run_of_words(diagnostic):
    for query, memory in itertools.product(diagnostic.queries, diagnostic.memories):
        assert not sentences(query) & sentences(memory)
        assert not runs(query, LONG) & runs(memory, LONG), (query, memory)


def test_no_memory_is_taken_from_locomo(diagnostic):
    try:
        theirs = benchmarks.load("locomo").memories
    except Unavailable:
        pytest.skip("no locomo10.json; set EARLIB_DATA to its folder")
    known = set().union(*(runs(memory.text, 7) for memory in theirs))
    assert [memory for memory in diagnostic.memories if runs(memory, 7) & known] == []


def test_the_fingerprint_sees_every_change(diagnostic):
    swapped = diagnostic.gold.copy()
    swapped[0] = np.roll(swapped[0], 1)
    others = [diagnostic._replace(gold=swapped), diagnostic._replace(memories=diagnostic.memories[::-1])]
    assert len({one.fingerprint() for one in (diagnostic, *others)}) == 3


# -- distances ---------------------------------------------------------------------------------------------------------


def by_hand(diagnostic, W_q, W_m):
    """Cosine distances one by one, `[Q, M]`."""
    queries = encoders.encode(diagnostic.queries, "minilm", "query").astype(float)
    memories = encoders.encode(diagnostic.memories, "minilm", "memory").astype(float)
    found = np.empty((len(queries), len(memories)))
    for (i, q), (j, m) in itertools.product(enumerate(queries), enumerate(memories)):
        one, other = q + W_q @ q, m + W_m @ m
        found[i, j] = 1 - one @ other / math.sqrt(one @ one * (other @ other))
    return found


@pytest.fixture(scope="module")
def weights():
    return torch.from_numpy(np.random.default_rng(5).normal(0, 0.02, (2, 3, 384, 384))).float()


def test_distances_are_those_of_the_papers_equations(diagnostic, before, weights):
    for found, W in (
        (before, torch.zeros(2, 384, 384)),
        (geometry.distances(diagnostic, "minilm", weights), weights[:, 2]),
    ):
        distance = by_hand(diagnostic, *W.double().numpy())
        episodic = diagnostic.stores == "episodic"
        np.testing.assert_allclose(found.d_e[-1], distance[:, episodic].mean(1), atol=1e-6)
        np.testing.assert_allclose(found.d_s[-1], distance[:, ~episodic].mean(1), atol=1e-6)
        np.testing.assert_allclose(found.delta, found.d_e - found.d_s)
        first = np.argsort(distance, 1, kind="stable")[:, :5]
        all_found = [set(np.flatnonzero(gold)) <= set(five) for gold, five in zip(diagnostic.gold, first, strict=True)]
        assert found.recalled[-1].tolist() == all_found


def test_random_adapters_have_the_trained_norms_and_nothing_else_of_them(weights):
    scaled = weights * torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    made = geometry.random_like(scaled, 7)
    norms = torch.linalg.matrix_norm(scaled)
    torch.testing.assert_close(torch.linalg.matrix_norm(made), norms[:, [0, 1, 2, 0, 1, 2, 0]])
    flat = made.flatten(2).permute(1, 0, 2).reshape(7, -1)
    alike = torch.corrcoef(flat) - torch.eye(7)
    assert alike.abs().max() < 0.02  # no two of them alike
    torch.testing.assert_close(geometry.random_like(scaled, 2), made[:, :2])  # the same whatever their number


# -- separation --------------------------------------------------------------------------------------------------------

values = st.lists(st.floats(-1, 1), min_size=10, max_size=10).map(np.array)


@settings(max_examples=50, deadline=None)
@given(values, st.floats(-1, 1))
def test_a_move_that_all_queries_share_separates_nothing(start, shift):
    at_first = geometry.separation(start, REQUIRES)
    assert geometry.separation(start + shift, REQUIRES) == pytest.approx(at_first, abs=1e-12)
    assert geometry.separation(start, REQUIRES[::-1]) == pytest.approx(-at_first, abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(values)
def test_the_permutation_test_is_exact(change):
    change = change.round(3)
    splits = [np.isin(np.arange(10), chosen) for chosen in itertools.combinations(range(10), 5)]
    gaps = np.array([change[split].mean() - change[~split].mean() for split in splits])
    observed = geometry.over_questions(change, REQUIRES)
    beyond = [(gaps >= observed["difference"] - 1e-9).mean(), (gaps <= observed["difference"] + 1e-9).mean()]
    assert observed["p"] == pytest.approx(min(1, 2 * min(beyond)))


def test_what_separates_perfectly_has_the_smallest_p_and_what_does_not_move_the_largest():
    apart = np.where(REQUIRES == "semantic", 0.1, -0.1) + np.linspace(0, 0.01, 10)
    found = geometry.over_questions(apart, REQUIRES)
    assert found["p"] == pytest.approx(2 / 252) and found["difference_low"] > 0
    still = geometry.over_questions(np.zeros(10), REQUIRES)
    assert still == {"difference": 0, "difference_low": 0, "difference_high": 0, "p": 1}


def test_over_seeds_two_groups_are_told_apart_and_one_adapter_has_no_interval():
    some, many = np.array([0.1, 0.12, 0.11]), np.linspace(-0.01, 0.01, 60)
    assert geometry.with_interval(some, many)["difference_low"] > 0.05
    low, high = (geometry.with_interval(some)[f"difference_{end}"] for end in ("low", "high"))
    half = 4.302653 * some.std(ddof=1) / math.sqrt(3)  # quantile of t with two degrees of freedom
    assert (low, high) == pytest.approx((0.11 - half, 0.11 + half))
    assert geometry.with_interval(some[:1], many) == {
        "difference": pytest.approx(0.1), "difference_low": None, "difference_high": None
    }  # fmt: skip


# -- the record --------------------------------------------------------------------------------------------------------


def recorded(rows, **parameters):
    rows = [records.row("toy", "minilm", None, **row) for row in rows]
    return records.record("tab11_12_store_geometry", "title", "smoke", parameters, records.provenance("a", "b"), rows)


@pytest.fixture(scope="module", params=[1, 3])
def record(request, diagnostic, before, weights):
    """A record of made adapters; the trained ones move every query towards the store that it requires."""
    moved = np.where(REQUIRES == "semantic", 0.2, -0.1) + np.linspace(0, 0.01, request.param)[:, None]
    trained = geometry.Distances(before.d_e + moved, before.d_s + 0 * moved, np.ones_like(moved))
    after = {"trained": trained, "random": geometry.distances(diagnostic, "minilm", geometry.random_like(weights, 4))}
    rows = geometry.geometry_rows(diagnostic, before, after)
    for row in rows:
        if row["metric"] == "delta" and row.get("adapter", "trained") == "trained":
            held = {"id": "tab12", "dataset": None, "encoder": None, "query": row["query"]}
            row |= {"against": held | {"metric": f"delta_{row['stage']}"}, "decided": "another setting"}
    return recorded(rows, seeds=request.param)


def test_adapters_that_cannot_be_trained_have_a_dash_in_every_row(diagnostic, before, record):
    rows = geometry.missing_rows(diagnostic, ("trained", "random"), "no observations")
    lacking = recorded(geometry.geometry_rows(diagnostic, before, {}) + rows)
    assert {records.key_of(row) for row in lacking["rows"]} == {records.key_of(row) for row in record["rows"]}
    for row in lacking["rows"]:
        assert (row["measured"] is None) == (row.get("adapter") is not None) == (row["reason"] == "no observations")
    figures.moves(geometry.moved(lacking), "query", "requires", "adapter", "delta").draw_without_rendering()


def pick(record, **where):
    (row,) = [row for row in record["rows"] if all(row.get(key) == value for key, value in where.items())]
    return row


def test_rows_agree_with_each_other_and_stand_beside_the_paper(record):
    for number, kind in enumerate(REQUIRES.tolist(), 1):
        trained = {"query": number, "adapter": "trained"}
        start = pick(record, metric="delta", query=number, stage="before")
        change = pick(record, metric="delta_change", **trained)
        after, d_e, d_s = (pick(record, metric=name, stage="after", **trained) for name in ("delta", "d_e", "d_s"))
        assert after["measured"] - start["measured"] == pytest.approx(change["measured"], abs=1e-5)
        assert d_e["measured"] - d_s["measured"] == pytest.approx(after["measured"], abs=1e-5)
        assert {row["requires"] for row in (start, after, change)} == {kind}
        assert after["reported"] == paper.value("tab12", query=number, metric="delta_after")
        assert start["verdict"] == after["verdict"] == "another setting"
    over = {"adapter": "trained", "interval": "questions"}
    moved = pick(record, metric="separation_change", **over)["measured"]
    episodic, semantic = (
        pick(record, metric="delta_change", query=None, requires=kind, adapter="trained")["measured"]
        for kind in geometry.KINDS
    )
    assert moved == pytest.approx(semantic - episodic, abs=1e-5) and moved == pytest.approx(0.3, abs=1e-5)
    against = pick(record, **over | {"metric": "separation_change", "adapter": "random"})
    assert against["difference"] < -0.2 and against["p"] == pytest.approx(2 / 252, rel=1e-5)
    assert pick(record, metric="separation", **over)["difference"] == moved
    # only recall after training may vary between machines
    assert {(row["metric"], row["stage"]) for row in record["rows"] if row.get("varies")} == {("recall@5", "after")}


def test_the_tables_and_the_picture_hold_every_query_adapter_and_the_papers_numbers(record):
    table = geometry.separations(record, REQUIRES)
    seeds = record["parameters"]["seeds"]
    assert list(table.index) == [f"trained ({seeds})", "random (4)", "the paper's numbers"]
    theirs = geometry.separation(geometry.printed_delta("after") - geometry.printed_delta("before"), REQUIRES)
    assert table["change of the separation"]["mean"].tolist()[::2] == ["+0.300", f"{theirs:+.3f}"]
    frame = geometry.moved(record)
    assert frame.groupby("adapter", sort=False).size().to_dict() == {"paper": 10, "trained": 10, "random": 10}
    figure = figures.moves(frame, "query", "requires", "adapter", "delta", title="title")
    figure.draw_without_rendering()
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["paper", "trained", "random"]
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    for axes, (_, part) in zip(figure.axes, frame.groupby("adapter", sort=False), strict=True):
        low, high = axes.get_xlim()
        ends = [*part["before"], *(part["after"] - part["std"].fillna(0)), *(part["after"] + part["std"].fillna(0))]
        assert low <= min(ends) and max(ends) <= high
        drawn = np.array([x for line in axes.get_lines() for x in line.get_xdata()])
        assert all(np.abs(drawn - x).min() < 1e-6 for x in (*part["before"], *part["after"]))
    page, box = figure.bbox, figure.legends[0].get_window_extent()
    assert not any(box.overlaps(axes.get_tightbbox()) for axes in figure.axes)
    assert box.x0 >= page.x0 and box.x1 <= page.x1
