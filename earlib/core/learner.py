"""Assimilating Reflection (Algorithm 3), with RMM's update as one of its configurations; and inference.

R replicas learn side by side, each with its own adapter, order of queries and random numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from earlib.core import adapter, randomness
from earlib.core.adapter import Adapter, gram
from earlib.core.explorer import Exploration, explore, select_slate, tallied
from earlib.core.objective import listwise_loss, log_likelihood, plackett_luce, ranking_loss
from earlib.core.optimizer import Optimizer
from earlib.core.ordering import best, distinct, gumbel, shared
from earlib.core.randomness import Uniforms
from earlib.core.replay import ExperienceBuffer


class Step(NamedTuple):
    """One update of R replicas on the Q queries that share it."""

    seen: int  # queries processed so far
    exploration: Exploration
    replayed: Tensor  # [R, Q, n] positions in the buffer
    replay_slates: Tensor  # [R, Q, n, s]; without members where the loss is one of all candidates
    current_loss: Tensor  # [R]
    replay_loss: Tensor  # [R]


class Learner:
    """An online reranker: it ranks, asks the critic, and adapts.

    Parameters
    ----------
    config : Config
    candidates : Candidates
        First-stage result: embeddings, K candidates a query, and where `config.side` is not 0 their side information.
    critic : callable
        As in `earlib.core.critic`.
    seeds : sequence of int
        One a replica.
    dtype : torch.dtype
        Of all floating-point work.

    Raises
    ------
    ValueError
        If side information has a weight and the candidates carry none.
    """

    def __init__(
        self, config, candidates, critic: Callable | None, seeds: Sequence[int], dtype: torch.dtype = torch.float32
    ):
        self.config, self.critic, self.seeds = config, critic, tuple(seeds)
        self.dtype, self.device = dtype, candidates.bank.device
        self.query, self.bank = candidates.query.to(dtype), candidates.bank.to(dtype)
        self.index = shared(candidates.bank, candidates.index)
        if (config.side or config.learned_side) and candidates.side is None:
            term = "learned_side" if config.learned_side else f"side (lambda_side = {config.side:g})"
            raise ValueError(f"{term}: the candidates carry no scores; name a reranker")
        self.side = candidates.side.to(dtype) if config.side or config.learned_side else None
        R, d = len(self.seeds), self.query.shape[1]
        start = adapter.start(config, self.seeds, d, self.device)
        self.adapter = Adapter(start, config.adapter, config.normalise, dtype, self.device)
        weight = torch.full((R,), config.side_start, dtype=dtype, device=self.device)
        self.side_weight = weight.requires_grad_(config.learned_side)
        self.buffer = ExperienceBuffer(config, self.query, R, self.index.shape[1], config.rounds)
        self.parameters, rates = [*self.adapter.parameters], [config.learning_rate] * len(self.adapter.parameters)
        if config.learned_side:
            self.parameters, rates = [*self.parameters, self.side_weight], [*rates, config.side_rate]
        self.optimizer = Optimizer(config.optimizer, self.parameters, rates)

    def train(self, order: Tensor, uniforms: Uniforms | None = None) -> Iterator[Step]:
        """Learn from a stream of queries, one update a batch, each of which yields a `Step`.

        Parameters
        ----------
        order : torch.Tensor
            Query numbers, `[R, N]`; a query may come again.
        uniforms : Uniforms, optional
            Default: drawn from the seeds.

        Raises
        ------
        FloatingPointError
            If the loss is no longer finite: nothing of a diverged adapter is ever ranked or reported.
        """
        if uniforms is None:
            K = self.index.shape[1]
            uniforms = randomness.draw(self.config, self.seeds, order, K, len(self.query), "train", self.device)
        for first in range(0, order.shape[1], self.config.batch_size):
            stop = min(first + self.config.batch_size, order.shape[1])
            yield self.update(order[:, first:stop], uniforms.part(first, stop))

    def update(self, queries: Tensor, uniforms: Uniforms) -> Step:
        """Update once from queries `[R, Q]` that share the update (Algorithm 3; its lines stand at the margin)."""
        Q = queries.shape[1]
        # Line 14, first, so that all embeddings of an update are adapted at once.
        positions, replayed = self.buffer.choose(queries, uniforms.choice)
        scores, adapted, length, place = self._score(torch.cat([queries, replayed.flatten(1)], 1))  # lines 1, 17
        self._check(scores, "scores")
        current, past = scores[:, :Q], scores[:, Q:]
        similarity = gram(adapted, length, place[:, :Q])
        exploration, noise = self._explore(queries, current.detach(), similarity, uniforms)  # lines 3-6
        self.buffer.add(queries, exploration.shown, exploration.cited)  # lines 10-13
        current_loss = self._current_loss(current, exploration, noise)  # lines 2, 7-9
        slates, replay_loss = self._replay_loss(past, positions, uniforms)  # lines 15-22
        total = current_loss + self.config.replay_weight * replay_loss  # Eq. 17
        self._check(total, "loss")
        gradients = torch.autograd.grad(total.sum(), self.parameters)  # replicas share nothing: each its own
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.contiguous()  # fused optimizers read memory, whatever the strides say
        self.optimizer.step()  # line 23, Eq. 18
        return Step(self.buffer.size, exploration, positions, slates, current_loss.detach(), replay_loss.detach())

    def _check(self, values, name):
        """Refuse numbers that are not finite: a comparison would take them for small ones."""
        if not values.isfinite().all():
            raise self._diverged(name)

    def _diverged(self, name):
        return FloatingPointError(
            f"the adapter diverged after {self.buffer.size} queries: {name} not finite "
            f"({self.config.optimizer}, learning rate {self.config.learning_rate:g}); lower the learning rate"
        )

    def _rows(self, queries):
        """Rows of the bank that are candidates of queries `[R, n]`, `[R, n K]`."""
        return self.index.index_select(0, queries.reshape(-1)).view(len(queries), -1)

    def _memories(self, queries):
        """The distinct ones of them, as of `distinct`."""
        return distinct(self._rows(queries))

    def _score(self, queries):
        """Adapted scores of queries `[R, n]`, `[R, n, K]`, and the arguments of `gram`.

        Questions of one conversation share candidates, and replayed ones most of them; each memory is adapted once.
        """
        (R, n), d = queries.shape, self.query.shape[1]
        query = self.query.index_select(0, queries.reshape(-1)).view(R, n, d)
        rows, place = self._memories(queries)
        memory = self.bank.index_select(0, rows.view(-1)).to(self.dtype).view(R, -1, d)
        scores, adapted, length = self.adapter.score(query, memory)
        place = place.view(R, n, -1)
        scores = scores.gather(-1, place)
        if self.config.learned_side:
            assert self.side is not None
            scores = scores + self.side_weight[:, None, None] * self.side[queries]
        return scores, adapted, length, place

    def _side(self, queries):
        """Side information of the Explorer on queries `[R, n]`, `[R, n, K]`; None where it has no weight."""
        return self.side[queries] if self.side is not None and self.config.side else None

    def _ask(self, queries, uniforms):
        """The critic as the Explorer calls it: `(round, slates) -> (citations, readable)`."""
        assert (critic := self.critic) is not None
        return lambda t, slates: critic(queries, slates, uniforms.critic[:, :, t])

    def _explore(self, queries, scores, similarity, uniforms):
        """The T slates of training (lines 3-6), and the Gumbel noise `[R, Q, T, K]` of RMM's, else None."""
        ask, kind, size = self._ask(queries, uniforms), self.config.training_slates, self.config.slate_size
        if kind == "explorer":
            return explore(self.config, scores, similarity, ask, self.config.rounds, self._side(queries)), None
        noise = gumbel(uniforms.slate).to(self.dtype)
        if kind == "all":
            slates = torch.arange(scores.shape[-1], device=self.device).expand(noise.shape)
        else:
            slates = best(noise if kind == "random" else scores.unsqueeze(2) + noise, size)
        answers = [ask(t, slate) for t, slate in enumerate(slates.unbind(2))]
        citations, readable = (torch.stack(parts, 2) for parts in zip(*answers, strict=True))
        return tallied(slates, citations, readable, scores), noise if kind == "gumbel" else None

    def _current_loss(self, scores, exploration, noise):
        """L_cur (Eq. 10), mean over the batch, `[R]`."""
        if self.config.objective != "reward":
            return self._listwise(scores, exploration.cited > 0, exploration.shown > 0).mean(-1)
        log_p = self._log_p(scores.unsqueeze(2), exploration.slates, noise)
        terms = log_p.flatten(2), exploration.citations.flatten(2), exploration.readable.flatten(2)
        return ranking_loss(*terms, self.config.baseline).mean(-1)

    def _listwise(self, scores, useful, observed):
        """A loss of all candidates, `[...]`, by which of them were cited, and observed at all."""
        scaled = scores / self.config.softmax_temperature
        return listwise_loss(self.config.objective, scaled, useful, self._counted(observed, scores))

    def _counted(self, observed, scores):
        """Candidates that count in a loss: all, or those that the critic was shown (`unseen`)."""
        return observed if self.config.unseen == "left out" else torch.ones_like(observed)

    def _replay_loss(self, scores, positions, uniforms):
        """Slates of the replayed experiences under the current adapter, and L_rep (Eq. 16; lines 15-22)."""
        count = positions.shape[-1]
        if not count:
            return positions, torch.zeros(len(positions), dtype=self.dtype, device=self.device)
        scores = scores.unflatten(1, positions.shape[1:])
        rewards, observed = self.buffer.recall(positions)
        if self.config.objective != "reward":
            return positions[..., None][..., :0], self._listwise(scores, rewards > 0, observed).mean(-1).mean(-1)
        slates, noise = self._replay_slates(scores.detach(), observed, uniforms, count)
        counted = self._counted(observed, scores).gather(-1, slates)
        log_p = self._log_p(scores, slates, noise)
        loss = ranking_loss(log_p, rewards.gather(-1, slates), counted, self.config.baseline)
        return slates, loss.mean(-1).mean(-1)

    def _replay_slates(self, scores, observed, uniforms, count):
        """Sample slates with the Gumbel trick (line 18; Appendix A.1)."""
        tau, noise = self.config.temperature, gumbel(uniforms.replay[:, :, :count]).to(self.dtype)
        if self.config.replay_slate == "gumbel":
            perturbed = scores + noise
        elif self.config.replay_slate == "scaled":
            perturbed = scores / tau + noise
        else:
            perturbed = (scores + noise) / tau + gumbel(uniforms.draw[:, :, :count]).to(self.dtype)
        if self.config.unseen == "left out":
            perturbed = perturbed.masked_fill(~observed, -torch.inf)
        return best(perturbed, self.config.slate_size), noise

    def _log_p(self, scores, slates, noise):
        """log p of the slate's members under the chosen reading; an Explorer's slate has no noise."""
        scores = scores / self.config.softmax_temperature
        if self.config.likelihood == "plackett-luce":
            return plackett_luce(scores, slates)
        if self.config.likelihood == "noisy" and noise is not None:
            scores = (scores + noise) / self.config.temperature
        return log_likelihood(scores, slates)

    @torch.no_grad()
    def retrieve(self, queries: Tensor, explorer: bool = False, uniforms: Uniforms | None = None) -> Tensor:
        """Final slates: adapter-only, or Explorer-assisted with T - 1 critic calls (Training and Inference).

        Parameters
        ----------
        queries : torch.Tensor
            Query numbers, `[R, E]`.
        explorer : bool
            Whether to explore, asking the critic.
        uniforms : Uniforms, optional
            Default: drawn from the seeds for testing.

        Returns
        -------
        torch.Tensor
            Candidate indices, `[R, E, s]`, best first.
        """
        config = self.config
        noisy = config.test_noise and not explorer
        if uniforms is None and (explorer or noisy):
            K = self.index.shape[1]
            uniforms = randomness.draw(config, self.seeds, queries, K, len(self.query), "test", self.device)
        scores, adapted, length, place = self._score(queries)
        if not scores.isfinite().all():
            raise FloatingPointError(f"the adapter diverged: scores are not finite; lower learning_rate in {config}")
        if not explorer:
            if noisy and uniforms is not None and uniforms.slate is not None:
                scores = scores + gumbel(uniforms.slate[:, :, 0]).to(self.dtype)
            return best(scores, config.slate_size)
        similarity, side, ask = gram(adapted, length, place), self._side(queries), self._ask(queries, uniforms)
        if config.test_slate == "after":  # the feedback of all T rounds: cited first, then by score
            found = explore(config, scores, similarity, ask, config.rounds, side)
            first = best(scores, scores.shape[-1])
            useful = (found.cited > 0).gather(-1, first)
            return first.gather(-1, best(useful.to(self.dtype), config.slate_size))
        found = explore(config, scores, similarity, ask, config.rounds - 1, side)
        shown, cited = found.shown, found.cited
        if config.statistics == "reset":
            shown, cited = torch.zeros_like(scores), torch.zeros_like(scores)
        return select_slate(config, scores, similarity, shown, cited, side)
