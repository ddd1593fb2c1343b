"""Measures, intervals, and the controls that ask the same critic without learning anything.

Values are kept a question and a seed, `[R, E]`, with NaN where a question has no gold memory; everything that
is shown is a mean of them, in percent.
"""

import numpy as np
import torch
from scipy.stats import bootstrap, permutation_test

from earlib.ranking import best

MEASURES = ("recall@5", "hitrate@5", "fractional recall@5")
RESAMPLES = 2000
PERMUTATIONS = 5000


def measure(candidates, queries, slates):
    """Recall@s (all gold in the slate), Hitrate@s (any), and the fraction of the gold that is in it.

    Parameters
    ----------
    candidates : Candidates
    queries : torch.Tensor
        Query numbers, `[R, E]`.
    slates : torch.Tensor
        Candidate indices, `[R, E, s]`.

    Returns
    -------
    numpy.ndarray
        `[3, R, E]` in the order of `MEASURES`, between 0 and 1; NaN for questions without gold.
    """
    found = candidates.gold[queries].gather(-1, slates).sum(-1).double()
    count = candidates.gold_count[queries].double()
    values = torch.stack([(found == count).double(), (found > 0).double(), found / count])
    return values.masked_fill(count == 0, torch.nan).cpu().numpy()


def ranking(candidates, cut):
    """Measures of the first-stage ranking itself, over all questions.

    Parameters
    ----------
    candidates : Candidates
    cut : int
        How many of the candidates count as retrieved; with K, what no reranker can exceed.

    Returns
    -------
    values : numpy.ndarray
        `[3, 1, N]` as in `measure`.
    queries : numpy.ndarray
        `[1, N]`.
    """
    queries = torch.arange(len(candidates.query))[None]
    slates = torch.arange(cut).expand(1, len(candidates.query), cut)
    return measure(candidates, queries, slates), queries.numpy()


def equal_calls(config, candidates, critic, queries, calls, uniforms):
    """Control without adapter and bandit: show the retriever's ranking to the critic, s memories a call.

    What was cited comes first, then what was not shown, then what was rejected, each in the retriever's order.

    Parameters
    ----------
    config : Config
    candidates : Candidates
    critic : callable
    queries : torch.Tensor
        `[R, E]`.
    calls : int
        Critic calls a query; calls * s may not exceed K.
    uniforms : Uniforms
        At least `calls` rounds.

    Returns
    -------
    torch.Tensor
        Candidate indices, `[R, E, s]`.

    Raises
    ------
    ValueError
        If there are fewer candidates than would be shown.
    """
    s, K = config.slate_size, candidates.index.shape[1]
    if calls * s > K:
        raise ValueError(f"equal-call control: {calls} calls of {s} memories need {calls * s} candidates, K is {K}")
    standing = torch.zeros(*queries.shape, K, device=queries.device)
    for call in range(calls):
        slate = torch.arange(call * s, (call + 1) * s, device=queries.device).expand(*queries.shape, s)
        citations, readable = critic(queries, slate, uniforms.critic[:, :, call])
        standing[..., call * s : (call + 1) * s] = (citations * readable).to(standing.dtype)
    return best(standing, s)


def only(values, queries, wanted):
    """Values and question numbers of some questions alone, as if no others had been asked.

    Parameters
    ----------
    values : numpy.ndarray
        `[..., R, E]`.
    queries : numpy.ndarray
        Question numbers, `[R, E]`.
    wanted : numpy.ndarray
        Which questions, bool by number, `[N]`.

    Returns
    -------
    values, queries : numpy.ndarray
        Of the same shapes, with NaN and -1 in the place of the others.
    """
    kept = wanted[queries] & (queries >= 0)
    return np.where(kept, values, np.nan), np.where(kept, queries, -1)


def summary(values, queries, scopes=None):
    """Mean over seeds, deviation between them, and 95 % intervals over questions and over conversations.

    An interval resamples questions, or whole conversations (percentile bootstrap, 2,000 resamples, fixed generator),
    after averaging each question over the seeds that evaluated it; it is therefore the same whenever it is computed.
    Conversations are few, and percentile intervals over few are somewhat too short.

    Parameters
    ----------
    values : numpy.ndarray
        `[R, E]`, NaN where a question does not count.
    queries : numpy.ndarray
        Query numbers, `[R, E]`; -1 where a seed has fewer questions than another.
    scopes : numpy.ndarray, optional
        Number of each question's conversation, `[N]`.

    Returns
    -------
    dict
        `measured`, `std` (None for one seed), `low`, `high` in percent, and with scopes `scope_low`, `scope_high`;
        `n_queries` and `n_queries_most`, the fewest and the most that counted in a seed; `excluded`, the most that a
        seed left out; `seeds`.

    Raises
    ------
    ValueError
        If a seed has no question that counts.
    """
    counted = ~np.isnan(values)
    if not counted.any(1).all():
        raise ValueError("a seed evaluates no question with gold memories; choose more questions, or another part")
    by_seed = 100 * np.nanmean(values, axis=1)
    low, high = _interval(values, queries)
    told = {
        "measured": float(by_seed.mean()),
        "std": float(by_seed.std(ddof=1)) if len(by_seed) > 1 else None,
        "low": low,
        "high": high,
        "n_queries": int(counted.sum(1).min()),
        "n_queries_most": int(counted.sum(1).max()),
        "excluded": int((~counted & (queries >= 0)).sum(1).max()),
        "seeds": len(values),
    }
    if scopes is not None and len(np.unique(scopes[queries[counted]])) > 1:
        told["scope_low"], told["scope_high"] = _interval(values, scopes[queries])
    return told


def difference(values, others, queries, scopes=None):
    """Paired difference between two systems on the same questions, in percentage points, with its intervals.

    Parameters as in `summary`; `others` has the shape of `values`.

    Returns
    -------
    dict
        As `summary`, and `p` of a two-sided paired permutation test: the two systems change places at random, in all
        seeds of a question together.
    """
    gap = values - others
    return {**summary(gap, queries, scopes), "p": _permuted(gap, queries)}


def first_above(seen, means, level):
    """The first evaluation from which a curve stays above a level.

    Parameters
    ----------
    seen, means : sequence
        Training queries before each evaluation, and the mean reached.
    level : float

    Returns
    -------
    int or None
        Training queries seen by then; None if the curve ends at or below the level.
    """
    below = [at for at, mean in enumerate(means) if mean <= level]
    first = below[-1] + 1 if below else 0
    return int(seen[first]) if first < len(means) else None


def _totals(values, units):
    """Sum and number of the values of each unit (a question, a conversation), over all seeds."""
    counted = ~np.isnan(values)
    _, unit = np.unique(units[counted], return_inverse=True)
    return np.bincount(unit, values[counted]), np.bincount(unit).astype(float)


def _permuted(gap, queries):
    """p of the permutation test; questions without a difference are the same under every permutation."""
    total, _ = _totals(gap, queries)
    total = total[np.abs(total) > 1e-12]
    if not len(total):
        return 1.0

    def mean(total, axis):
        return total.mean(axis)

    rng = np.random.default_rng(0)
    resamples = {"n_resamples": PERMUTATIONS - 1, "batch": 500, "rng": rng}
    return float(permutation_test((total,), mean, permutation_type="samples", vectorized=True, **resamples).pvalue)


def _interval(values, units):
    total, times = _totals(values, units)
    if np.ptp(total / times) == 0:  # nothing to resample: all have the same value
        return (float(100 * total[0] / times[0]),) * 2

    def mean(total, times, axis):
        return 100 * total.sum(axis) / times.sum(axis)

    rng = np.random.default_rng(0)
    found = bootstrap((total, times), mean, paired=True, n_resamples=RESAMPLES, method="percentile", rng=rng, batch=200)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
