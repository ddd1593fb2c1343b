"""Measures of slates, and the control that asks the same critic without learning.

Values have the shape `[R, E]`, a seed and a question, with NaN for questions without gold memories; means of them are
shown in percent.
"""

import numpy as np
import torch

from earlib.core.config import near
from earlib.core.ordering import best

MEASURES = ("recall@5", "hitrate@5", "fractional recall@5")


def measure(candidates, queries, slates):
    """Recall@s (all gold in the slate), Hitrate@s (any), and the fraction of the gold in the slate.

    Query numbers, `[R, E]`, and candidate indices, `[R, E, s]`, to `[3, R, E]` in the order of `MEASURES`, between 0
    and 1; NaN for questions without gold.
    """
    found = candidates.gold[queries].gather(-1, slates).sum(-1)
    return shares(found.cpu().numpy(), candidates.gold_count[queries].cpu().numpy())


def shares(found, count, counted=True):
    """The three measures of found and all gold memories; NaN if there are none, or if not counted."""
    values = np.stack([found == count, found > 0, found / np.maximum(count, 1)]).astype(float)
    return np.where(counted & (count > 0), values, np.nan)


def of_first_stage(candidates, cut):
    """Measures of the first `cut` candidates of every question, `[3, 1, N]`, and question numbers, `[1, N]`."""
    queries = torch.arange(len(candidates.query))[None]
    slates = torch.arange(cut).expand(1, len(candidates.query), cut)
    return measure(candidates, queries, slates), queries.numpy()


def of_store(candidates, queries, slates, store):
    """Measures of the gold memories of one store, `[3, R, E]`, of the queries and slates of `runs.Answers`.

    NaN for questions without gold in it, and for padding.
    """
    gold = candidates.gold.numpy() & _in_store(candidates, store)
    found = np.take_along_axis(gold[queries], slates, -1).sum(-1)
    return shares(found, candidates.gold_in_store[store].numpy()[queries], queries >= 0)


def covered(benchmark, candidates, queries, slates, store=None):
    """Measures of the gold turns that a slate covers, by the turns themselves or by observations drawn from them.

    One of several observations of a turn covers it, whereas `of_store` requires all. With a store, only its memories
    cover turns. Turns that no memory of the stores holds do not count. Otherwise as `of_store`.
    """
    stores = (store,) if store else tuple(candidates.gold_in_store)
    turns = [set(memory.turns) if memory.store in stores else set() for memory in benchmark.memories]
    held, asked, index = set().union(*turns), benchmark.asked, candidates.index.numpy()
    found, count = np.zeros(queries.shape, int), np.zeros(queries.shape, int)
    for at, number in np.ndenumerate(queries):
        gold = held.intersection(asked[number].gold)
        seen = set().union(*(turns[row] for row in index[number, slates[at]]))
        found[at], count[at] = len(gold & seen), len(gold)
    return shares(found, count, queries >= 0)


def members_of_store(candidates, queries, slates, store):
    """Number of memories of each slate that come from one store, `[1, R, E]`; parameters as in `of_store`."""
    number = np.take_along_axis(_in_store(candidates, store)[queries], slates, -1).sum(-1)
    return np.where(queries >= 0, number, np.nan)[None]


def _in_store(candidates, store):
    """Candidates of a store, bool `[N, K]`."""
    if store not in candidates.gold_in_store:
        hint = near(store, candidates.gold_in_store)
        raise ValueError(f"store {store!r} was not searched{hint}; searched: {', '.join(candidates.gold_in_store)}")
    return np.array([one == store for one in candidates.stores])[candidates.index.numpy()]


def equal_calls(config, candidates, critic, queries, calls, uniforms):
    """Control without adapter and bandit: show the retriever's ranking to the critic, s memories a call.

    Cited memories come first, then those not shown, then the rejected ones, each in the retriever's order: candidate
    indices, `[R, E, s]`, of queries, `[R, E]`. ValueError if more would be shown than there are candidates.
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
    """Restrict values, `[..., R, E]`, and question numbers, `[R, E]`, to wanted questions; others become NaN and -1.

    `wanted` is bool by number, `[N]`, or by seed and number, `[R, N]`.
    """
    of_seed = np.broadcast_to(wanted, (len(queries), wanted.shape[-1]))
    kept = np.take_along_axis(of_seed, queries.clip(min=0), 1) & (queries >= 0)
    return np.where(kept, values, np.nan), np.where(kept, queries, -1)


def first_above(seen, means, level):
    """Training queries, `seen`, before the first evaluation from which a curve stays above a level; None if none."""
    below = [at for at, mean in enumerate(means) if mean <= level]
    first = below[-1] + 1 if below else 0
    return int(seen[first]) if first < len(means) else None
