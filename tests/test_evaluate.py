"""Measures, intervals and controls."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, ttest_1samp

from earlib.core.config import Config
from earlib.core.randomness import Uniforms
from earlib.experiments import intervals, measures

CONFIG = Config(slate_size=2, depth=6)


def found(gold, count=None):
    gold = torch.tensor(gold, dtype=torch.bool)
    count = gold.sum(-1) if count is None else torch.tensor(count)
    return SimpleNamespace(gold=gold, gold_count=count, index=torch.zeros(gold.shape))


def from_zero(values, queries=None, **more):
    """The paired difference of values, `[R, E]`, from zeros."""
    queries = np.tile(np.arange(values.shape[1]), (len(values), 1)) if queries is None else queries
    return intervals.difference(values, np.zeros_like(values), queries, **more)


def test_strict_any_and_fractional_recall():
    candidates = found([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]], count=[2, 2, 0, 1])
    slates = torch.tensor([[[0, 3], [0, 1], [0, 1], [0, 1]]])
    strict, hit, fraction = measures.measure(candidates, torch.arange(4)[None], slates)
    np.testing.assert_equal(strict, [[0, 0, np.nan, 0]])  # the second question's other gold memory is no candidate
    np.testing.assert_equal(hit, [[1, 1, np.nan, 0]])
    np.testing.assert_equal(fraction, [[0.5, 0.5, np.nan, 0]])


def control(labels, calls):
    """The control's slate for one query whose critic cites exactly these candidates; and what the critic was shown."""
    shown = []

    def critic(queries, slates, uniforms):
        shown.append(slates[0, 0].tolist())
        citations = torch.tensor(labels)[slates]
        return citations, torch.ones_like(citations, dtype=torch.bool)

    noise = Uniforms(torch.zeros(1, 1, calls, 6))
    slate = measures.equal_calls(CONFIG, found([[0] * 6]), critic, torch.tensor([[0]]), calls, noise)
    return slate[0, 0].tolist(), shown


@pytest.mark.parametrize(
    ("labels", "calls", "expected"),
    [
        ([-1, -1, -1, 1, 1, 1], 2, [3, 4]),  # cited, then the next unseen
        ([-1, -1, -1, -1, 1, 1], 2, [4, 5]),  # nothing cited: the unseen by rank
        ([-1, 1, -1, -1, -1, 1], 3, [1, 5]),  # all seen: the cited, by rank
        ([-1, -1, -1, -1, -1, -1], 3, [0, 1]),  # all rejected: by rank
    ],
)
def test_the_equal_call_control_puts_cited_then_unseen_then_rejected(labels, calls, expected):
    slate, shown = control(labels, calls)
    assert slate == expected
    assert shown == [[2 * call, 2 * call + 1] for call in range(calls)]


def test_the_equal_call_control_refuses_to_show_more_than_there_is():
    with pytest.raises(ValueError, match="4 calls of 2 memories need 8 candidates, K is 6"):
        control([1] * 6, 4)


def test_a_summary_by_hand():
    values = np.array([[1, 0, np.nan], [1, 1, 0]])
    told = intervals.summary(values, np.array([[0, 1, 2], [3, 1, 4]]))
    assert told["measured"] == pytest.approx((50 + 100 * 2 / 3) / 2)
    assert told["std"] == pytest.approx(np.std([50, 100 * 2 / 3], ddof=1))
    assert (told["n_queries"], told["excluded"], told["seeds"]) == (2, 1, 2)
    assert told["low"] <= told["measured"] <= told["high"]
    wider = np.pad(values, [(0, 0), (0, 2)], constant_values=np.nan)
    assert intervals.summary(wider, np.array([[0, 1, 2, -1, -1]] * 2))["excluded"] == 1  # padding is no question


def test_an_interval_covers_the_truth_as_often_as_it_says():
    rng, told = np.random.default_rng(1), []
    for _ in range(200):
        told.append(intervals.summary((rng.random((1, 80)) < 0.4).astype(float), np.arange(80)[None]))
    inside = sum(one["low"] <= 40 <= one["high"] for one in told)
    assert 180 <= inside <= 199  # 95 % of 200 is 190; percentile intervals are a little short


def test_the_difference_of_a_system_from_itself_is_nothing_and_pairs_by_question():
    values = np.random.default_rng(0).random((2, 50))
    queries = np.tile(np.arange(50), (2, 1))
    same = intervals.difference(values, values, queries)
    assert (same["measured"], same["low"], same["high"]) == (0, 0, 0)
    shifted = intervals.difference(values + 0.1, values, queries)
    assert shifted["low"] == pytest.approx(10) and shifted["high"] == pytest.approx(10)


def width(told):
    return told["high"] - told["low"]


def test_the_interval_is_the_wider_one_where_questions_of_a_conversation_agree():
    rng = np.random.default_rng(2)
    scopes = np.repeat(np.arange(10), 30)
    values = np.repeat(rng.random(10) < 0.5, 30).astype(float)[None]  # all of a conversation or nothing of it
    told, alone = (intervals.summary(values, np.arange(300)[None], *given) for given in ([scopes], []))
    assert width(told) > 3 * width(alone) and told["low"] < told["measured"] < told["high"]
    assert intervals.summary(values, np.arange(300)[None], np.zeros(300, int)) == alone  # one conversation
    ends = ttest_1samp(100 * values[0, ::30], 0).confidence_interval()
    assert (told["low"], told["high"]) == pytest.approx((max(ends.low, 0), min(ends.high, 100)))


def test_the_interval_of_shares_stays_within_what_shares_can_be():
    values, scopes = np.repeat([[1.0, 0.0]], 20, axis=1), np.repeat([0, 1], 20)
    told = intervals.summary(values, np.arange(40)[None], scopes)
    assert (told["low"], told["high"]) == (0, 100)
    gap = intervals.difference(values, 1 - values, np.arange(40)[None], scopes)
    assert (gap["low"], gap["high"]) == (-100, 100)
    assert intervals.summary(-values, np.arange(40)[None], scopes)["low"] == -100  # a difference, given as a value


def test_seeds_are_resampled_with_the_questions():
    same = np.tile((np.random.default_rng(5).random(400) < 0.5).astype(float), (4, 1))
    queries = np.tile(np.arange(400), (4, 1))
    apart = (same + [[-0.3], [-0.1], [0.1], [0.3]]).clip(0, 1)  # seeds that differ say how little one of them says
    assert width(intervals.summary(apart, queries)) > 1.5 * width(intervals.summary(same, queries))


@given(st.integers(1, intervals.FEW - 1), st.data())
def test_few_questions_that_differ_have_the_exact_interval(number, data):
    better = data.draw(st.integers(0, number))
    gaps = np.repeat([1.0, -1.0, 0.0], [better, number - better, 60 - number])[None]
    told = from_zero(gaps, tested=False)
    ends = [100 * (2 * end - 1) * number / 60 for end in binomtest(better, number).proportion_ci()]
    assert (told["low"], told["high"]) == pytest.approx(ends)


def test_the_permutation_test_is_that_of_all_sign_changes():
    gaps = np.array([[3, 1, -1, 2, 2, 0, 5]]) / 10
    signs = np.array(list(itertools.product([1, -1], repeat=7)))
    exact = np.mean(np.abs((signs * gaps).sum(1)) >= abs(gaps.sum()) - 1e-12)
    assert from_zero(gaps)["p"] == pytest.approx(exact)
    assert from_zero(0 * gaps)["p"] is None  # nothing to test
    assert from_zero(np.eye(7)[:1])["p"] == 1


def test_the_permutation_test_is_wrong_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(intervals, "PERMUTATIONS", 1000)
    rng = np.random.default_rng(3)
    gaps = [rng.choice([-1.0, 0.0, 1.0], 60)[None] for _ in range(150)]
    found = np.array([from_zero(one)["p"] for one in gaps])
    assert 0 <= np.mean(found < 0.1) <= 0.2
    seeds = np.tile(gaps[-1], (3, 1))  # seeds that say the same thrice are no further evidence
    assert from_zero(seeds)["p"] == pytest.approx(found[-1], abs=0.03)


def test_a_part_of_the_questions_stands_as_if_no_others_had_been_asked():
    values, queries = np.array([[1.0, 0.0, np.nan, np.nan]]), np.array([[4, 2, 3, -1]])
    part, numbers = measures.only(values, queries, np.array([False, False, False, True, True]))
    np.testing.assert_equal(part, [[1, np.nan, np.nan, np.nan]])
    assert numbers.tolist() == [[4, -1, 3, -1]]
    told = intervals.summary(part, numbers)
    assert (told["measured"], told["n_queries"], told["excluded"]) == (100, 1, 1)
    with pytest.raises(ValueError, match="no question with gold"):
        intervals.summary(*measures.only(values, queries, np.zeros(5, bool)))


@pytest.mark.parametrize(
    ("means", "expected"),
    [([5, 6, 7], 0), ([3, 6, 3, 7, 8], 3), ([3, 3, 5], None), ([5, 6, 4], None)],
)
def test_when_a_curve_passes_a_level_for_good(means, expected):
    level = {0: 4}.get(expected, 5)
    assert measures.first_above(range(len(means)), means, level) == expected
