"""A learner whose queries, memories and citations come one after another: one replica, one query per update.

`learner.Learner` computes all of it; here its arrays grow, memories may be removed, and an update is all or nothing.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F

from earlib.core import randomness
from earlib.core.adapter import Adapter
from earlib.core.learner import Learner
from earlib.core.replay import ExperienceBuffer, grown

ABSENT = -1e4  # score of a missing or removed candidate: never chosen, and nothing flows from or to it


class OnlineLearner(Learner):
    """A reranker that learns from citations as they come.

    Parameters
    ----------
    config : Config
    dimension : int
        d.
    seed : int
    dtype : torch.dtype
    experiences : int
        Number that is kept for replay; the oldest is dropped first.

    Attributes
    ----------
    bank : torch.Tensor
        Embeddings of the memories, `[M, d]`, of any precision. Row 0 is no memory; it stands for a missing candidate.
    alive : torch.Tensor
        Mask of the rows that are still memories, `[M]` bool; set together with `bank`.
    known, held : int
        Number of queries so far, and of those that are kept, numbered from 0, the oldest first.
    ranking : tuple of Adapter and float
        For readers, whom learning must not disturb: the adapter, and the weight of the scores by words.
    """

    def __init__(self, config, dimension, seed, dtype=torch.float32, experiences=10_000):
        none = torch.zeros(0, config.depth)
        empty = SimpleNamespace(
            query=torch.zeros(0, dimension), bank=torch.zeros(0, dimension), index=none.long(), side=none
        )
        super().__init__(config, empty, None, (seed,), dtype)
        self.buffer = _GrowingBuffer(config, self.query, 1, config.depth, config.rounds)
        self.alive, self.experiences = torch.zeros(0, dtype=torch.bool), experiences
        self.known = self.held = 0
        self._arrays = ("query", "index") if self.side is None else ("query", "index", "side")  # an entry a query
        self.ranking = self._ranking()

    def learn(self, query, index, side, told):
        """Update once for one query; after any error the learner is as it was.

        The query's embedding is `[d]`, its candidates are rows `[K]` (0 where there are fewer) with their scores by
        words `[K]`, and `told` is the Exploration of a critic, `[1, 1, ..]`. Raises FloatingPointError if the update
        would lead to numbers that are not finite.
        """
        moments = [{name: value.clone() for name, value in one.items()} for one in self._moments()]
        before = self.known, self.held, moments
        try:
            self._append(query[None], index[None], side[None])
            uniforms = randomness.live(self.config, self.seeds[0], self.known - 1, self.config.depth)
            self._told = told
            self.update(torch.tensor([[self.held - 1]]), uniforms)
            self._check_learned(self.held - 1)
            self.ranking = self._ranking()
        except BaseException:
            self._put_back(*before)
            raise
        if self.held > self.experiences:
            self._drop_oldest()

    def _ranking(self):
        frozen = [part.detach() for part in self.adapter.parameters]
        return Adapter(frozen, self.config.adapter, self.config.normalise, self.dtype), self.side_weight.item()

    def _put_back(self, known, held, moments):
        self.known, self.held, self.buffer.size, self.buffer.known = known, held, held, held
        adapter, weight = self.ranking
        for parameter, values in zip(self.adapter.parameters, adapter.parameters, strict=True):
            parameter.data.copy_(values)
        self.side_weight.data.fill_(weight)
        self.optimizer.state.clear()
        self.optimizer.state.update((one, kept) for one, kept in zip(self.parameters, moments, strict=True) if kept)

    def _moments(self):
        """The optimizer's state of each parameter, tensors by name; empty before the first update."""
        return [self.optimizer.state.get(parameter, {}) for parameter in self.parameters]

    @torch.no_grad()
    def _check_learned(self, number):
        """Refuse an update from finite numbers that leaves, or leads to, numbers that are not finite."""
        left = [*self.parameters, *(value for one in self._moments() for value in one.values())]
        # A sum is not finite where a summand is not, and takes a fifth of the time of checking each.
        self._check(torch.stack([values.sum().to(self.dtype) for values in left]), "what an update left")
        memory = self.bank[self.index[number]].to(self.dtype)
        self._check(self.adapter.score(self.query[number].view(1, 1, -1), memory[None])[0], "scores after an update")

    def _append(self, query, index, side):
        start, stop = self.held, self.held + len(query)
        for name, values in zip(self._arrays, (query, index, side), strict=False):
            stored = grown(getattr(self, name), start, stop)
            stored[start:stop] = values
            setattr(self, name, stored)
        self.buffer.append(query)
        self.known, self.held = self.known + len(query), stop

    def _drop_oldest(self):
        """Let the arrays begin one entry later; once they are full, `grown` moves the rest into new ones."""
        for name in self._arrays:
            setattr(self, name, getattr(self, name)[1:])
        self.buffer.drop_oldest()
        self.held -= 1

    def _score(self, queries):
        scores, *rest = super()._score(queries)
        return scores.masked_fill(~self.alive[self.index[queries]], ABSENT), *rest

    def _explore(self, queries, scores, similarity, uniforms):
        """Return the citations that came before the update."""
        return self._told, None

    def _counted(self, observed, scores):
        """Mask of candidates that count in a loss; missing and removed ones do not."""
        return super()._counted(observed, scores) & (scores > ABSENT)

    def renumber(self, number):
        """Give candidates their new rows, `[M]` int64 by the old one; removed ones become row 0."""
        self.index[: self.held] = number[self.index[: self.held]]

    def state(self):
        """Return all that was learned, and from what, as tensors by name."""
        held = {name: getattr(self, name)[: self.held] for name in self._arrays}
        held |= {name: getattr(self.buffer, name)[0, : self.held] for name in ("shown", "cited")}
        held |= {f"parameter.{at}": values.detach() for at, values in enumerate(self._learned())}
        for at, moments in enumerate(self._moments()):
            held |= {f"optimizer.{at}.{name}": value for name, value in moments.items()}
        return {name: values.contiguous().clone() for name, values in held.items()}

    def restore(self, held, known):
        """Become the learner of a `state`; nothing may have been learned yet."""
        self._append(held["query"], held["index"], held.get("side"))
        if self.held:
            numbers = torch.arange(self.held)[None]
            self.buffer.add(numbers, held["shown"][None], held["cited"][None])
        self.known = known
        for at, parameter in enumerate(self._learned()):
            parameter.data.copy_(held[f"parameter.{at}"])
        for name, values in held.items():
            if name.startswith("optimizer."):
                _, at, entry = name.split(".")  # its own copy, in this thread's mode
                self.optimizer.state.setdefault(self.parameters[int(at)], {})[entry] = values.clone()
        self.ranking = self._ranking()

    def _learned(self):
        return [*self.adapter.parameters, self.side_weight]


class _GrowingBuffer(ExperienceBuffer):
    """An Experience Buffer of queries that come one after another; one replica, experiences in their order."""

    def __init__(self, config, query, replicas, depth, rounds):
        super().__init__(config, query, replicas, depth, rounds)
        self.unit, self.known = query.double(), 0

    def append(self, query):
        """Give the next numbers to queries, `[n, d]`."""
        start, stop = self.known, self.known + len(query)
        self.unit = grown(self.unit, start, stop)
        self.unit[start:stop] = F.normalize(query.double(), dim=-1)
        self.known = stop

    def drop_oldest(self):
        """Drop the first experience; the numbers of all others become one less."""
        self.unit = self.unit[1:]
        for name in ("shown", "cited", "reward"):
            setattr(self, name, getattr(self, name)[:, 1:])
        self.size, self.known = self.size - 1, self.known - 1  # the queries' numbers are 0, 1, .. as before

    def _closeness(self, queries, pool):
        similarity = self.unit[queries] @ self.unit[: self.known].T
        return similarity.gather(-1, pool)
