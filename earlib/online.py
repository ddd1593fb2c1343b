"""A learner whose queries, memories and citations come one after another: one replica, one query an update.

All that it computes is `learner.Learner`; here its arrays grow, and memories may go.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F

from earlib import draws
from earlib.learner import ABSENT, Learner
from earlib.replay import ExperienceBuffer, grown


class OnlineLearner(Learner):
    """A reranker that learns from what it is told.

    Parameters
    ----------
    config : Config
    dimension : int
        d.
    seed : int
    dtype : torch.dtype

    Attributes
    ----------
    bank : torch.Tensor
        Embeddings of the memories, `[M, d]`, of any precision. Row 0 is none, and stands where a candidate is missing.
    alive : torch.Tensor
        Which rows are memories still, `[M]` bool. Who changes either sets both.
    known : int
        Queries so far; the next one has this number.
    """

    def __init__(self, config, dimension, seed, dtype=torch.float32):
        none = torch.zeros(0, config.depth)
        empty = SimpleNamespace(
            query=torch.zeros(0, dimension), bank=torch.zeros(0, dimension), index=none.long(), side=none
        )
        super().__init__(config, empty, None, (seed,), dtype)
        self.buffer = _GrowingBuffer(config, self.query, 1, config.depth, config.rounds)
        self.alive, self.known = torch.zeros(0, dtype=torch.bool), 0

    def learn(self, query, index, side, told):
        """One update for one query.

        Parameters
        ----------
        query : torch.Tensor
            Its embedding, `[d]`.
        index : torch.Tensor
            Rows of its candidates, `[K]`; 0 where there are fewer.
        side : torch.Tensor
            Their scores by words, `[K]`.
        told : Exploration
            What a critic said of them, `[1, 1, ..]`.

        Returns
        -------
        Step
        """
        self._append(query[None], index[None], side[None])
        number = self.known - 1
        uniforms = draws.live(self.config, self.seeds[0], number, self.config.depth)
        return self.update(torch.tensor([[number]]), uniforms, told)

    def _append(self, query, index, side):
        start, self.known = self.known, self.known + len(query)
        new = {"query": query, "index": index} | ({} if self.side is None else {"side": side})
        for name, values in new.items():
            stored = grown(getattr(self, name), start, self.known)
            stored[start : self.known] = values
            setattr(self, name, stored)
        self.buffer.append(query)

    def _score(self, queries):
        scores, *rest = super()._score(queries)
        return scores.masked_fill(~self.alive[self.index[queries]], ABSENT), *rest

    def renumber(self, number):
        """Give candidates their new rows, `[M]` int64 by the old one; those that are gone become row 0."""
        self.index[: self.known] = number[self.index[: self.known]]

    def state(self):
        """All that was learned, and from what, as tensors by name."""
        held = {"query": self.query, "index": self.index} | ({} if self.side is None else {"side": self.side})
        held = {name: values[: self.known] for name, values in held.items()}
        held |= {name: getattr(self.buffer, name)[0, : self.known] for name in ("shown", "cited")}
        held |= {f"parameter.{number}": values.detach() for number, values in enumerate(self._learned())}
        for number, entries in self.optimizer.state_dict()["state"].items():
            held |= {f"optimizer.{number}.{name}": value for name, value in entries.items() if value is not None}
        return {name: values.contiguous().clone() for name, values in held.items()}

    def restore(self, held):
        """Become the learner whose `state` this is; it must have learned nothing yet."""
        self._append(held["query"], held["index"], held.get("side"))
        if self.known:
            numbers = torch.arange(self.known)[None]
            self.buffer.add(numbers, held["shown"][None], held["cited"][None])
        entries = {}
        for name, values in held.items():
            kind, _, rest = name.partition(".")
            if kind == "parameter":
                self._learned()[int(rest)].data.copy_(values)
            elif kind == "optimizer":
                number, _, entry = rest.partition(".")
                entries.setdefault(int(number), {})[entry] = values
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": entries})

    def _learned(self):
        return [*self.adapter.parameters, self.side_weight]


class _GrowingBuffer(ExperienceBuffer):
    """An Experience Buffer of queries that are not known beforehand; one replica, experiences in their order."""

    def __init__(self, config, query, replicas, depth, rounds):
        super().__init__(config, query, replicas, depth, rounds)
        self.unit, self.known = query.double(), 0

    def append(self, query):
        """Make queries known, by the next numbers, `[n, d]`."""
        start, self.known = self.known, self.known + len(query)
        self.unit = grown(self.unit, start, self.known)
        self.unit[start : self.known] = F.normalize(query.double(), dim=-1)

    def _closeness(self, queries, pool):
        similarity = self.unit[queries] @ self.unit[: self.known].T
        return similarity.round(decimals=9).gather(-1, pool)  # rounded, as everywhere, so that equal queries tie
