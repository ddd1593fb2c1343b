"""A learner whose queries, memories and citations come one after another: one replica, one query per update.

`learner.Learner` computes all of it; here its arrays grow, memories may be removed, and an update makes a new learner.
"""

import copy
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from earlib.core import randomness
from earlib.core.learner import Learner
from earlib.core.replay import ExperienceBuffer, grown

ABSENT = -1e4  # score of a missing or removed candidate: never chosen, and nothing flows from or to it


class OnlineLearner(Learner):
    """A reranker that learns from citations as they come.

    Attributes
    ----------
    bank : torch.Tensor
        Embeddings of the memories, `[M, d]`, of any precision. Row 0 is no memory; it stands for a missing candidate.
    alive : torch.Tensor
        Mask of the rows that are still memories, `[M]` bool; set together with `bank`.
    known, held : int
        Number of queries so far, and of those kept for replay, at most `experiences`, numbered from 0 by age.
    """

    def __init__(self, config, dimension, seed, dtype=torch.float32, experiences=10_000):
        none = torch.zeros(0, config.depth)
        empty = SimpleNamespace(
            query=torch.zeros(0, dimension), bank=torch.zeros(0, dimension), index=none.long(), side=none
        )
        super().__init__(config, empty, None, (seed,), dtype)
        self.buffer = _GrowingBuffer(config, self.query, 1, config.depth, config.rounds)
        self.alive, self.experiences, self.known = torch.zeros(0, dtype=torch.bool), experiences, 0
        self._arrays = ("query", "index") if self.side is None else ("query", "index", "side")  # an entry a query

    @property
    def held(self):
        return self.buffer.size

    @property
    def ranking(self):
        """The adapter, and the weight of the scores by words."""
        return self.adapter, self.side_weight.detach().numpy()

    def learn(self, query, index, side, told):
        """Return the learner after one update for one query; this one stays as it is, for readers and after any error.

        The query's embedding is `[d]`, its candidates are rows `[K]` (0 where there are fewer) with their scores by
        words `[K]`, and `told` is the Exploration of a critic, `[1, 1, ..]`. Raises FloatingPointError if the update
        would lead to numbers that are not finite.
        """
        new = copy.copy(self)  # which shares the arrays: entries behind those that are held do not count
        new.buffer = copy.copy(self.buffer)
        updated = self.adapter, self.side_weight, self.parameters, self.optimizer
        new.adapter, new.side_weight, new.parameters, new.optimizer = copy.deepcopy(updated)
        new._append(query[None], index[None], side[None])
        uniforms = randomness.live(self.config, self.seeds[0], self.known, self.config.depth)
        new.known, new._told = self.known + 1, told
        new.update(torch.tensor([[self.held]]), uniforms)
        new._check_learned(self.held)
        for parameter in new.parameters:
            parameter.grad = None  # which the next copy has no use for
        if new.held > self.experiences:
            new._drop_oldest()
        return new

    @torch.no_grad()
    def _check_learned(self, number):
        """Refuse an update from finite numbers that leaves, or leads to, numbers that are not finite."""
        left = [*self.parameters, *(value for one in self.optimizer.state.values() for value in one.values())]
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

    def _drop_oldest(self):
        """Let the arrays begin one entry later; once they are full, `grown` moves the rest into new ones."""
        for name in self._arrays:
            setattr(self, name, getattr(self, name)[1:])
        self.buffer.drop_oldest()

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
        for at, parameter in enumerate(self.parameters):
            moments = self.optimizer.state.get(parameter, {})
            held |= {f"optimizer.{at}.{name}": value for name, value in moments.items()}
        return {name: values.contiguous().clone() for name, values in held.items()}

    def restore(self, held, known):
        """Become the learner of a `state`; nothing may have been learned yet."""
        self._append(held["query"], held["index"], held.get("side"))
        self.buffer.add(torch.arange(len(held["query"]))[None], held["shown"][None], held["cited"][None])
        self.known = known
        for at, parameter in enumerate(self._learned()):
            parameter.data.copy_(held[f"parameter.{at}"])
        for name, values in held.items():
            if name.startswith("optimizer."):
                _, at, entry = name.split(".")  # its own copy, in this thread's mode
                self.optimizer.state.setdefault(self.parameters[int(at)], {})[entry] = values.clone()

    def _learned(self):
        return [*self.adapter.parameters, self.side_weight]


class _GrowingBuffer(ExperienceBuffer):
    """An Experience Buffer of queries that come one after another; one replica, experiences in their order."""

    def __init__(self, config, query, replicas, depth, rounds):
        super().__init__(config, query, replicas, depth, rounds)
        self.unit = query.double()

    def append(self, query):
        """Give the next numbers to queries, `[n, d]`, whose experiences are added next."""
        start, stop = self.size, self.size + len(query)
        self.unit = grown(self.unit, start, stop)
        self.unit[start:stop] = F.normalize(query.double(), dim=-1)

    def drop_oldest(self):
        """Drop the first experience; the numbers of all others become one less."""
        self.unit, self.size = self.unit[1:], self.size - 1
        for name in ("shown", "cited", "reward"):  # the queries' numbers are 0, 1, .. as before
            setattr(self, name, getattr(self, name)[:, 1:])

    def _closeness(self, queries, pool):
        similarity = self.unit[queries] @ self.unit[: self.size + 1].T
        return similarity.gather(-1, pool)
