"""Measures, intervals, and the controls that ask the same critic without learning anything.

Values are kept a question and a seed, `[R, E]`, with NaN where a question has no gold memory; everything that
is shown is a mean of them, in percent.
"""

import numpy as np
import torch
from scipy.stats import bootstrap, permutation_test

from earlib.core.config import near
from earlib.core.ordering import best

MEASURES = ("recall@5", "hitrate@5", "fractional recall@5")
RESAMPLES = 2000
PERMUTATIONS = 10_000


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
    found = candidates.gold[queries].gather(-1, slates).sum(-1)
    return _shares(found.cpu().numpy(), candidates.gold_count[queries].cpu().numpy())


def _shares(found, count, counted=True):
    """All of the gold, any, and the fraction of it; NaN where there is none, or where it is not to be counted."""
    values = np.stack([found == count, found > 0, found / np.maximum(count, 1)]).astype(float)
    return np.where(counted & (count > 0), values, np.nan)


def of_store(candidates, queries, slates, store):
    """Recall, hit rate and fraction as in `measure`, of the gold of one store alone; slates may hold others' memories.

    Parameters
    ----------
    candidates : Candidates
    queries : numpy.ndarray
        Question numbers, `[R, E]`; -1 where a seed has fewer questions than another.
    slates : numpy.ndarray
        Candidate indices, `[R, E, s]`.
    store : str
        One of those searched.

    Returns
    -------
    numpy.ndarray
        `[3, R, E]`; NaN for questions without gold in this store.
    """
    gold = candidates.gold.numpy() & _in_store(candidates, store)
    found = np.take_along_axis(gold[queries], slates, -1).sum(-1)
    return _shares(found, candidates.gold_in_store[store].numpy()[queries], queries >= 0)


def covered(benchmark, candidates, queries, slates, store=None):
    """All, any, and the fraction of a question's gold turns that its slate covers: by a turn itself, or an observation.

    Of several observations drawn from one turn, one covers it, where `of_store` asks for all. Turns that no memory of
    the store holds do not count.

    Parameters
    ----------
    benchmark : Benchmark
    candidates, queries, slates
        As in `of_store`; the candidates are of this benchmark.
    store : str, optional
        Only this store's memories cover turns; default: all that were searched.

    Returns
    -------
    numpy.ndarray
        `[3, R, E]`; NaN for questions none of whose gold turns is held by the store.
    """
    stores = (store,) if store else tuple(candidates.gold_in_store)
    turns = [set(memory.turns) if memory.store in stores else set() for memory in benchmark.memories]
    held, asked, index = set().union(*turns), benchmark.asked, candidates.index.numpy()
    found, count = np.zeros(queries.shape, int), np.zeros(queries.shape, int)
    for at, number in np.ndenumerate(queries):
        gold = held.intersection(asked[number].gold)
        seen = set().union(*(turns[row] for row in index[number, slates[at]]))
        found[at], count[at] = len(gold & seen), len(gold)
    return _shares(found, count, queries >= 0)


def chosen(candidates, queries, slates, store):
    """How many memories of each slate come from one store; parameters as in `of_store`.

    Returns
    -------
    numpy.ndarray
        `[1, R, E]`, from 0 to s.
    """
    number = np.take_along_axis(_in_store(candidates, store)[queries], slates, -1).sum(-1)
    return np.where(queries >= 0, number, np.nan)[None]


def _in_store(candidates, store):
    """Which candidates come from a store, bool `[N, K]`."""
    if store not in candidates.gold_in_store:
        hint = near(store, candidates.gold_in_store)
        raise ValueError(f"store {store!r} was not searched{hint}; searched: {', '.join(candidates.gold_in_store)}")
    return np.array([one == store for one in candidates.stores])[candidates.index.numpy()]


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
        Which questions, bool by number, `[N]`, or by seed and number, `[R, N]`.

    Returns
    -------
    values, queries : numpy.ndarray
        Of the same shapes, with NaN and -1 in the place of the others.
    """
    of_seed = np.broadcast_to(wanted, (len(queries), wanted.shape[-1]))
    kept = np.take_along_axis(of_seed, queries.clip(min=0), 1) & (queries >= 0)
    return np.where(kept, values, np.nan), np.where(kept, queries, -1)


def summary(values, queries, scopes=None, scale=100):
    """Mean over seeds, deviation between them, and 95 % intervals over questions and over conversations.

    Every seed counts alike, and within it every question. An interval resamples questions, each in all its seeds at
    once, or whole conversations (percentile bootstrap, 2,000 resamples, fixed generator); it is therefore the same
    whenever it is computed. Conversations are few, and percentile intervals over few are somewhat too short.

    Parameters
    ----------
    values : numpy.ndarray
        `[R, E]`, NaN where a question does not count.
    queries : numpy.ndarray
        Query numbers, `[R, E]`; -1 where a seed has fewer questions than another.
    scopes : numpy.ndarray, optional
        Number of each question's conversation, `[N]`.
    scale : float
        The unit in which values are told: 100 for shares, in percent; 1 for numbers.

    Returns
    -------
    dict
        `measured`, `std` (None for one seed), `low`, `high` in this unit, and with scopes `scope_low`, `scope_high`;
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
    by_seed = scale * np.nanmean(values, axis=1)
    low, high = _interval(values, queries, scale)
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
        told["scope_low"], told["scope_high"] = _interval(values, scopes[queries], scale)
    return told


def difference(values, others, queries, scopes=None, scale=100, tested=True):
    """Paired difference between two systems on the same questions, with its intervals.

    Parameters as in `summary`; `others` has the shape of `values`.

    Returns
    -------
    dict
        As `summary`, and if it is to be tested `p` of a two-sided paired permutation test: the two systems change
        places at random, in all seeds of a question together. None if they differ on no question: nothing to test.
    """
    gap = values - others
    told = summary(gap, queries, scopes, scale)
    return {**told, "p": _permuted(gap, queries)} if tested else told


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
    """Weighted sum and weight of the values of each unit (a question, a conversation), every seed of weight 1."""
    counted = ~np.isnan(values)
    weight = np.broadcast_to(1 / counted.sum(1, keepdims=True), values.shape)[counted]
    _, unit = np.unique(units[counted], return_inverse=True)
    return np.bincount(unit, weight * values[counted]), np.bincount(unit, weight)


def _permuted(gap, queries):
    """p of the permutation test; questions without a difference are the same under every permutation."""
    total, _ = _totals(gap, queries)
    total = total[np.abs(total) > 1e-12]
    if not len(total):
        return None
    if len(total) < 2:  # one change of sign leaves the size of the difference as it is
        return 1.0

    def mean(total, axis):
        return total.mean(axis)

    rng = np.random.default_rng(0)
    resamples = {"n_resamples": PERMUTATIONS - 1, "batch": 500, "rng": rng}
    return float(permutation_test((total,), mean, permutation_type="samples", vectorized=True, **resamples).pvalue)


def _interval(values, units, scale):
    total, times = _totals(values, units)
    if np.ptp(total / times) < 1e-12:  # nothing to resample: all have the same value
        return (float(scale * total[0] / times[0]),) * 2

    def mean(total, times, axis):
        return scale * total.sum(axis) / times.sum(axis)

    rng = np.random.default_rng(0)
    found = bootstrap((total, times), mean, paired=True, n_resamples=RESAMPLES, method="percentile", rng=rng, batch=200)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
