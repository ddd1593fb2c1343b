"""Measures, intervals, and the controls that ask the same critic without learning anything.

Values are kept a question and a seed, `[R, E]`, with NaN where a question has no gold memory; everything that
is shown is a mean of them, in percent.
"""

import numpy as np
import torch
from scipy.stats import bootstrap

from earlib.ranking import best

MEASURES = ("recall@5", "hitrate@5", "fractional recall@5")
RESAMPLES = 2000


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


def summary(values, queries):
    """Mean over seeds, deviation between them, and a 95 % interval over questions.

    The interval resamples questions (percentile bootstrap, 2,000 resamples, fixed generator) after averaging each
    over the seeds that evaluated it; it is therefore the same whenever it is computed.

    Parameters
    ----------
    values : numpy.ndarray
        `[R, E]`, NaN where a question does not count.
    queries : numpy.ndarray
        Query numbers, `[R, E]`; -1 where a seed has fewer questions than another.

    Returns
    -------
    dict
        `measured`, `std` (None for one seed), `low`, `high` in percent; `n_queries` and `n_queries_most`, the fewest
        and the most that counted in a seed; `excluded`, the most that a seed left out; `seeds`.
    """
    counted = ~np.isnan(values)
    by_seed = 100 * np.nanmean(values, axis=1)
    low, high = _interval(values, queries)
    return {
        "measured": float(by_seed.mean()),
        "std": float(by_seed.std(ddof=1)) if len(by_seed) > 1 else None,
        "low": low,
        "high": high,
        "n_queries": int(counted.sum(1).min()),
        "n_queries_most": int(counted.sum(1).max()),
        "excluded": int((~counted & (queries >= 0)).sum(1).max()),
        "seeds": len(values),
    }


def difference(values, others, queries):
    """Paired difference between two systems on the same questions, in percentage points, with its interval.

    Parameters and result as in `summary`; `others` has the shape of `values`.
    """
    return summary(values - others, queries)


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


def _interval(values, queries):
    counted = ~np.isnan(values)
    _, question = np.unique(queries[counted], return_inverse=True)
    total = np.bincount(question, values[counted])
    times = np.bincount(question).astype(float)
    if np.ptp(total / times) == 0:  # nothing to resample: every question has the same value
        return (float(100 * total[0] / times[0]),) * 2

    def mean(total, times, axis):
        return 100 * total.sum(axis) / times.sum(axis)

    rng = np.random.default_rng(0)
    found = bootstrap((total, times), mean, paired=True, n_resamples=RESAMPLES, method="percentile", rng=rng, batch=200)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
