"""Updates as CUDA graphs: `Learner.update` in fixed shapes, recorded once and replayed.

An update is about four hundred short kernels, which a GPU runs several times faster than Python launches them. A graph
launches them together. What it records must not depend on the host: the buffer counts on the device and has room for
the whole stream, and the distinct memories of an update are padded, with one graph for each of the few widths.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from earlib.core import randomness
from earlib.core.critic import SimulatedCritic
from earlib.core.explorer import Exploration
from earlib.core.learner import Learner, Step
from earlib.core.ordering import best, distinct
from earlib.core.randomness import Uniforms
from earlib.core.replay import ExperienceBuffer, grown, without_replacement

CHECKS = "scores", "loss"  # of an update, in its order
WARM = 2  # updates before the first recorded one, in which libraries and optimizer allocate what they keep
WIDTH = 128  # distinct memories of an update are padded to a multiple of it, the tile of a large product


def learner(config, candidates, critic, seeds, dtype=torch.float32) -> Learner:
    """A `Learner`; where its candidates lie on a GPU and its critic is simulated, one that records its updates.

    A language model answers on the host: with it, and on a CPU, each operation is launched by itself.
    """
    recorded = candidates.bank.is_cuda and isinstance(critic, SimulatedCritic)
    return (CapturedLearner if recorded else Learner)(config, candidates, critic, seeds, dtype)


class CapturedLearner(Learner):
    """A `Learner` that trains by replaying its own update; only roundings differ.

    The first updates and a last one of fewer queries are computed by `Learner`. On a CPU nothing is recorded, and the
    same fixed shapes are computed: this holds them to `Learner` on any machine.
    """

    _width: int | None = None  # of the update that is recorded
    _status: Tensor  # [3] distinct memories of the next update, and whether its predecessor's CHECKS were passed
    _distinct: tuple[Tensor, Tensor]  # these memories, with the places of candidates

    def train(self, order: Tensor, uniforms: Uniforms | None = None) -> Iterator[Step]:
        """Learn from a stream of queries, as `Learner.train` does."""
        (_, N), Q, K = order.shape, self.config.batch_size, self.index.shape[1]
        if uniforms is None:
            uniforms = randomness.draw(self.config, self.seeds, order, K, len(self.query), "train", self.device)
        needed = self.config.replay_size - self.buffer.size  # experiences, before each query replays as many as it can
        first = min(Q * max(WARM, -(-needed // Q)), N)
        last = N - (N - first) % Q
        yield from super().train(order[:, :first], uniforms.part(0, first))
        if first < last:
            yield from self._replay(order[:, first:last], uniforms.part(first, last))
        yield from super().train(order[:, last:], uniforms.part(last, N))

    def _replay(self, order, uniforms):
        """The steps of a stream whose updates are all alike."""
        plain, Q = self.buffer, self.config.batch_size
        most = Q * (1 + self.config.replay_size) * self.index.shape[1]  # memories of an update, none of them shared
        self.buffer = fixed = FixedBuffer(plain, order.shape[1])
        self._status = torch.ones(1 + len(CHECKS), dtype=torch.int64, device=self.device)
        columns = torch.arange(Q, device=self.device) - plain.size

        def part():
            """Queries and uniforms of the next update."""
            at = fixed.stored + columns
            return order.index_select(1, at), Uniforms(*(u if u is None else u.index_select(1, at) for u in uniforms))

        def plan():
            """Choose what the next update replays (Algorithm 3, line 14), and find its distinct memories."""
            queries, drawn = part()
            replayed = fixed.plan(queries, drawn.choice)
            self._distinct = distinct(self._rows(torch.cat([queries, replayed.flatten(1)], 1)), most)
            self._status[0] = self._distinct[1].amax() + 1

        def learn(width):
            self._width = width
            try:
                return self.update(*part())
            finally:
                self._width = None

        try:
            planned, learned = self._recorded(plan), dict[int, Callable]()
            planned()
            found = int(self._status[0])
            for stop in range(Q, order.shape[1] + 1, Q):
                width = min(-(-found // WIDTH) * WIDTH, most)
                if width not in learned:
                    learned[width] = self._recorded(partial(learn, width))
                step = learned[width]()
                kept = Exploration(*map(torch.clone, step.exploration)), *map(torch.clone, step[2:])
                if stop < order.shape[1]:
                    planned()
                found, scores, loss = self._status.tolist()  # the one time that the host waits
                if not scores:
                    raise self._diverged("scores")
                fixed.size += Q
                if not loss:
                    raise self._diverged("loss")
                yield Step(fixed.size, *kept)
        finally:
            vars(plain).update({name: vars(fixed)[name] for name in vars(plain)})
            self.buffer = plain

    def _recorded(self, work):
        """A function that replays some work; its results are overwritten each time."""
        if self.device.type != "cuda":
            return work
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = work()

        def replay():
            graph.replay()
            return results

        return replay

    def _memories(self, queries):
        if self._width is None:
            return super()._memories(queries)
        numbers, place = self._distinct
        return numbers[:, : self._width].contiguous(), place

    def _check(self, values, name):
        if self._width is None:
            super()._check(values, name)
        else:
            self._status[1 + CHECKS.index(name)] = values.isfinite().all()


class FixedBuffer(ExperienceBuffer):
    """An Experience Buffer with room for `more` experiences; how many it holds is known on the device, as `stored`.

    It must hold B experiences before any are chosen, which is done by `plan`. `size` is left to the caller.
    """

    def __init__(self, buffer: ExperienceBuffer, more: int):
        vars(self).update(vars(buffer))
        self.room = buffer.size + more
        for name in ("queries", "shown", "cited", *(["reward"] if self.config.replay_choice == "reward" else [])):
            setattr(self, name, grown(getattr(buffer, name), buffer.size, self.room, axis=1))
        self.stored = torch.tensor(buffer.size, device=self.queries.device)

    def add(self, queries: Tensor, shown: Tensor, cited: Tensor) -> None:
        """Store one experience a query, as `ExperienceBuffer.add` does."""
        at = self.stored + torch.arange(queries.shape[1], device=queries.device)
        for name, values in self._entries(queries, shown, cited).items():
            getattr(self, name).index_copy_(1, at, values)
        self.stored += queries.shape[1]

    def choose(self, queries: Tensor, uniforms: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the experiences that were planned for these queries."""
        return self.planned

    def plan(self, queries: Tensor, uniforms: Tensor | None) -> Tensor:
        """Choose as `ExperienceBuffer.choose` does, from a pool whose empty room comes last; the queries chosen."""
        (R, Q), room, count = queries.shape, self.room, self.config.replay_size
        pool = self.queries[:, None, :room].expand(R, Q, room)
        known = torch.arange(room, device=queries.device) < self.stored
        if self.config.replay_current:  # the query itself stands behind the room
            pool, known = torch.cat([pool, queries[..., None]], -1), torch.cat([known, known.new_ones(1)])
        if not count:
            column = pool[..., :0]
        elif self.config.replay_choice == "random":
            assert uniforms is not None
            column = without_replacement(uniforms[..., :count], known.sum())
            column = torch.where(column < self.stored, column, room)
        else:
            by_reward = self.config.replay_choice == "reward"
            value = -self.reward[:, None, :room].expand(R, Q, room) if by_reward else self._closeness(queries, pool)
            column = best(value.masked_fill(~known, -torch.inf), count)
        own = self.stored + torch.arange(Q, device=queries.device)[:, None]
        self.planned = torch.where(column < room, column, own), pool.gather(-1, column)
        return self.planned[1]
