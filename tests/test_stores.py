"""Slates drawn from two stores: what they find of each store's gold, which gold turns they cover, how they mix."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from earlib.data import candidates as first_stage
from earlib.data.benchmarks import Benchmark, Memory, Query
from earlib.experiments import comparisons, measures, runs, settings
from earlib.experiments.settings import Setting
from earlib.harness import figures

# Turns a to d; x and y were drawn from a, z from b and c; nothing was observed of d.
TURNS = [Memory(name, "s", "dialogue", "S1", "", name) for name in "abcd"]
OBSERVED = [
    Memory(name, "s", "observation", "S1", "", name, sources)
    for name, sources in (("x", ("a",)), ("y", ("a",)), ("z", ("b", "c")))
]
NAMES = "abcdxyz"
GOLD = {"one turn": "a", "two turns": "bc", "seen and unseen": "ad", "unseen": "d", "nothing": ""}
SMALL = Benchmark(
    "small", (*TURNS, *OBSERVED), tuple(Query(name, "s", name, "", "kind", tuple(gold)) for name, gold in GOLD.items())
)


def found(benchmark=SMALL, store="both"):
    """Every memory is a candidate of every question, in the benchmark's order; gold as the first stage labels it."""
    index = torch.arange(len(benchmark.memories)).expand(len(benchmark.queries), -1)
    stores = tuple(memory.store for memory in benchmark.memories)
    return SimpleNamespace(stores=stores, **first_stage.chosen(benchmark, index, store))


def slates(*chosen):
    """One seed's questions and slates: a string of memories each, None for a question that the seed does not have."""
    queries = np.array([[-1 if names is None else number for number, names in enumerate(chosen)]])
    index = [[-1] * 3 if names is None else [NAMES.index(name) for name in names] for names in chosen]
    return queries, np.array([index], np.int16)


of_store, members_of_store, covered = measures.of_store, measures.members_of_store, partial(measures.covered, SMALL)
NOT = [np.nan] * 3


@pytest.mark.parametrize(
    ("chosen", "measure", "expected"),
    [
        (
            ("axz", "bxz", "adz", "dxz", "abc"),
            (of_store, "dialogue"),
            [[1, 1, 1], [0, 1, 0.5], [1] * 3, [1] * 3, NOT],
        ),
        (("axz", "bxz", "adz", "dxz", "abc"), (of_store, "observation"), [[0, 1, 0.5], [1] * 3, [0] * 3, NOT, NOT]),
        # x covers a, though y was drawn from it too; of a and d only a can be covered; d cannot, and is left out
        (("xbz", "zxy", "xbz", "abc", "abc"), (covered, "observation"), [[1] * 3, [1] * 3, [1] * 3, NOT, NOT]),
        (("xbz", "zxy", "xbz", "abc", "abc"), (covered,), [[1] * 3, [1] * 3, [0, 1, 0.5], [0] * 3, NOT]),
        # an observation of another turn covers nothing
        (("zbc", "abx"), (covered, "observation"), [[0] * 3, [0] * 3]),
        (("abc", "axy", "xyz"), (members_of_store, "observation"), [[0], [2], [3]]),
        # questions that a seed does not have count nowhere
        ((None, "bxz", None), (of_store, "dialogue"), [NOT, [0, 1, 0.5], NOT]),
        ((None, "bxz", None), (covered,), [NOT, [1] * 3, NOT]),
        ((None, "bxz", None), (members_of_store, "observation"), [[np.nan], [2], [np.nan]]),
    ],
)
def test_slates_by_hand(chosen, measure, expected):
    function, *store = measure
    np.testing.assert_equal(function(found(), *slates(*chosen), *store)[:, 0].T, expected)


@pytest.mark.parametrize(
    ("function", "searched", "store", "message"),
    [
        (of_store, "both", "observations", "'observations' was not searched, did you mean 'observation'"),
        (members_of_store, "dialogue", "observation", "'observation' was not searched; searched: dialogue"),
    ],
)
def test_a_store_that_was_not_searched_is_refused(function, searched, store, message):
    with pytest.raises(ValueError, match=message):
        function(found(store=searched), *slates("abc"), store)


@given(st.lists(st.permutations(NAMES), min_size=5, max_size=5))
def test_the_readings_are_ordered(orders):
    asked = slates(*("".join(order[:3]) for order in orders))
    linked, seen = (function(found(), *asked, "observation") for function in (of_store, covered))
    counted = ~np.isnan(linked)
    assert np.array_equal(counted, ~np.isnan(seen))  # the two readings count the same questions
    assert (seen[0][counted[0]] >= linked[0][counted[0]]).all()  # all linked observations cover all their turns
    turns, either = of_store(found(), *asked, "dialogue"), covered(found(), *asked)
    np.testing.assert_array_equal(turns, covered(found(), *asked, "dialogue"))
    assert (either[2][~np.isnan(turns[2])] >= turns[2][~np.isnan(turns[2])]).all()
    assert (sum(members_of_store(found(), *asked, store) for store in ("dialogue", "observation")) == 3).all()


@pytest.fixture(scope="module")
def answered():
    setting = Setting(dataset="toy", store="both", seeds=2, split="conversation")
    return setting, settings.candidates_of(setting, 20), runs.answers(setting, "retriever")


def test_both_stores_together_are_the_measure_of_the_run(answered):
    _, of_toy, (values, queries, chosen) = answered
    each = np.stack([measures.of_store(of_toy, queries, chosen, store) for store in ("dialogue", "observation")])
    for whole, number in ((each.min(0), 0), (each.max(0), 1)):  # all of both, any of either; NaN where one has none
        np.testing.assert_array_equal(whole[number], values[number])


def test_one_store_alone_is_searched_alone():
    setting = Setting(dataset="toy", store="observation", seeds=2)
    of_toy = settings.candidates_of(setting, 20)
    values, queries, chosen = runs.answers(setting, "retriever")
    np.testing.assert_array_equal(measures.of_store(of_toy, queries, chosen, "observation"), values)
    assert (measures.members_of_store(of_toy, queries, chosen, "observation") == 5).all()


def test_types_of_questions_make_up_all_of_them(answered):
    setting, of_toy, (_, queries, chosen) = answered
    numbers = {"retriever": measures.members_of_store(of_toy, queries, chosen, "observation")}
    types = sorted(set(of_toy.categories))
    keys = {"measures": ("observations",), "scale": 1}
    whole, *parts = comparisons.by_category(setting, numbers, queries, "retriever", types, **keys)
    assert (whole["category"], [row["category"] for row in parts]) == ("all types", types)
    assert {row["metric"] for row in (whole, *parts)} == {"observations"}
    assert whole["low"] <= whole["measured"] <= whole["high"] and 0 <= whole["measured"] <= 5
    for row in parts:
        of_type = (np.array(of_toy.categories) == row["category"])[queries] & (queries >= 0)
        by_hand = [one[kept].mean() for one, kept in zip(numbers["retriever"][0], of_type, strict=True)]
        assert row["measured"] == pytest.approx(np.mean(by_hand))
        assert (row["n_queries"], row["n_queries_most"]) == (of_type.sum(1).min(), of_type.sum(1).max())


def test_a_baseline_is_compared_with_and_not_shown_unless_named(answered):
    setting, of_toy, (values, queries, _) = answered
    better = np.where(np.isnan(values), np.nan, 1.0)
    reached = {"retriever": values, "ear": better}
    rows = comparisons.compared(setting, reached, queries, "retriever", ["ear"], store="both")
    assert {(row["variant"], row["store"], row["sees_gold"]) for row in rows} == {("ear", "both", True)}
    assert rows[0]["difference"] == pytest.approx(100 - 100 * np.nanmean(values[0], 1).mean())
    both = comparisons.compared(setting, reached, queries, "retriever")
    assert ["difference" in row for row in both] == [False] * 3 + [True] * 3


def test_pictures_tell_who_asks_the_critic_and_what_chance_gives():
    frame = pd.DataFrame({
        "category": ["single-hop", "temporal"] * 2, "variant": ["retriever"] * 2 + ["ear"] * 2,
        "sees_gold": [None, None, True, True], "measured": [3.4, 3.6, 2.5, 2.2], "metric": ["observations"] * 4,
    })  # fmt: skip
    figure = figures.bars(frame, "category", "observations", static={"chance": 2.5})
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["Retriever", "EAR *", "By chance"]
    assert any(set(line.get_ydata()) == {2.5} for line in figure.axes[0].lines)
    figure = figures.intervals(frame, y="category", by="variant")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Retriever", "EAR *"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["Single Hop", "Temporal"]
    figure = figures.intervals(frame[frame["category"] == "temporal"], y="variant")
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["Retriever", "EAR *"]
