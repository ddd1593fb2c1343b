"""Intervals and tests of measured values, and of paired differences between systems.

Values have the shape `[R, E]`, a seed and a question, with NaN for questions that do not count.
"""

from functools import lru_cache

import numpy as np
from scipy.stats import binomtest, monte_carlo_test, permutation_test
from scipy.stats import t as student

RESAMPLES = 2000
FEW = 20  # questions on which two systems differ, below which a bootstrap is too short
PERMUTATIONS = 10_000


def summary(values, queries, scopes=None, scale=100):
    """Mean over seeds, standard deviation between them, and the 95 % interval.

    All seeds have the same weight, and all questions of a seed. The interval is the wider of two: a percentile
    bootstrap over questions and seeds (2,000 resamples, fixed generator), and a t interval over conversations, whose
    variance is clustered by conversation and by seed (Cameron, Gelbach & Miller 2011).

    Parameters
    ----------
    values, queries : numpy.ndarray
        Values, NaN where a question does not count, and question numbers, -1 as padding, `[R, E]` each.
    scopes : numpy.ndarray, optional
        Number of each question's conversation, `[N]`; without it only questions and seeds are resampled.
    scale : float
        Unit of the result: 100 for shares, in percent; 1 for numbers.

    Returns
    -------
    dict
        `measured`, `std` (None for one seed), `low`, `high`; `n_queries` and `n_queries_most`, the fewest and the most
        that counted in a seed; `excluded`, the most that a seed left out; `seeds`.

    Raises
    ------
    ValueError
        If no question of a seed counts.
    """
    return _summary(values, queries, scopes, scale, _resampled, -1 if (values < 0).any() else 0)


def difference(values, others, queries, scopes=None, scale=100, tested=True):
    """Paired difference between two systems on the same questions, as from `summary`.

    Where the systems differ on fewer than `FEW` questions, an exact interval stands in place of the bootstrap, which is
    too short there. If tested, `p` is of a two-sided permutation test that swaps the systems at random, in all seeds of
    a question together; None if they differ on no question.
    """
    gap = values - others
    found = _summary(gap, queries, scopes, scale, _few_or_resampled, -1)
    return {**found, "p": _permuted(gap, queries)} if tested else found


def _summary(values, queries, scopes, scale, over_questions, least):
    """As `summary`; the interval of shares stays between `least` and 1."""
    counted = ~np.isnan(values)
    if not counted.any(1).all():
        raise ValueError("a seed evaluates no question with gold memories; choose more questions, or another part")
    by_seed = scale * np.nanmean(values, axis=1)
    intervals = [over_questions(*_by_unit(values, queries))]
    if scopes is not None and len(np.unique(scopes[queries[counted]])) > 1:
        intervals.append(_over_conversations(*_by_unit(values, scopes[queries])))
    low, high = max(intervals, key=lambda ends: ends[1] - ends[0])
    if scale == 100:
        low, high = max(low, least), min(high, 1)
    std = float(by_seed.std(ddof=1)) if len(by_seed) > 1 else None
    found = {"measured": float(by_seed.mean()), "std": std, "low": float(scale * low), "high": float(scale * high)}
    found |= {"n_queries": int(counted.sum(1).min()), "n_queries_most": int(counted.sum(1).max())}
    return found | {"excluded": int((~counted & (queries >= 0)).sum(1).max()), "seeds": len(values)}


def _by_unit(values, units):
    """Weighted sum and weight of the values of each seed and unit (a question, a conversation), `[R, U]` each.

    All seeds weigh the same.
    """
    counted = ~np.isnan(values)
    weight = np.broadcast_to(1 / counted.sum(1, keepdims=True), values.shape)[counted]
    _, unit = np.unique(units[counted], return_inverse=True)
    at = np.nonzero(counted)[0] * (unit.max() + 1) + unit
    sums = (np.bincount(at, one, len(values) * (unit.max() + 1)) for one in (weight * values[counted], weight))
    return [one.reshape(len(values), -1) for one in sums]


def _permuted(gap, queries):
    """p of the permutation test; questions without a difference are the same under every permutation."""
    total = _by_unit(gap, queries)[0].sum(0)
    total = total[np.abs(total) > 1e-12]
    if not len(total):
        return None
    if len(total) < 2:  # one change of sign leaves the size of the difference as it is
        return 1.0
    if 2 ** len(total) <= PERMUTATIONS:
        return float(permutation_test((total,), np.mean, permutation_type="samples", vectorized=True).pvalue)
    rng = np.random.default_rng(0)

    def changed(size):  # as permutation_test would, ten times as fast
        return (2 * rng.integers(0, 2, size, np.int8) - 1) * total

    sampled = {"n_resamples": PERMUTATIONS - 1, "batch": 500, "vectorized": True}
    return float(monte_carlo_test(total, changed, np.mean, **sampled).pvalue)


@lru_cache(maxsize=8)
def _draws(number, of):
    """How often each of so many seeds (`of` 0) or questions (1) occurs in each resample, `[RESAMPLES, number]`."""
    return np.random.default_rng(of).multinomial(number, np.full(number, 1 / number), RESAMPLES).astype(float)


def _resampled(total, weight):
    """Percentile bootstrap that draws questions and seeds, both with replacement."""
    mean = total.sum() / weight.sum()
    of_question = total.sum(0) / weight.sum(0)
    if np.ptp(of_question) < 1e-12 and np.ptp(total.sum(1)) < 1e-12:  # nothing to resample: all have the same value
        return mean, mean
    seeds, questions = _draws(len(total), 0), _draws(total.shape[1], 1)
    drawn = (np.concatenate([total, weight]) @ questions.T).reshape(2, len(total), RESAMPLES)
    sums, weights = np.einsum("urn,nr->un", drawn, seeds)
    return tuple(np.quantile(sums[weights > 0] / weights[weights > 0], (0.025, 0.975)))


def _few_or_resampled(total, weight):
    """The exact interval where few questions differ, with the sign of each as one trial; else the bootstrap."""
    gaps = total.sum(0)
    gaps = gaps[np.abs(gaps) > 1e-12]
    if not 0 < len(gaps) < FEW:
        return _resampled(total, weight)
    share = np.array(binomtest(int((gaps > 0).sum()), len(gaps)).proportion_ci())
    return tuple((2 * share - 1) * (np.abs(gaps).sum() / weight.sum()))


def _over_conversations(total, weight):
    """t interval of a ratio of sums that is clustered by conversation and by seed."""
    mean = total.sum() / weight.sum()
    away = total - mean * weight
    seeds, groups = away.shape
    variance = groups / (groups - 1) * (away.sum(0) ** 2).sum()
    if seeds > 1:
        between = seeds / (seeds - 1) * (away.sum(1) ** 2).sum()
        variance = max(variance, variance + between - (away**2).sum())
    half = student.ppf(0.975, groups - 1) * np.sqrt(variance) / weight.sum()
    return mean - half, mean + half
