"""Experience Buffer (Eqs. 11 to 16): past queries with their citations, and the choice of those to replay."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from earlib.core.ordering import best


class ExperienceBuffer:
    """Experiences of R replicas, in the order in which their queries came.

    An experience is a query (by number; its embedding is that before the adapter), how often each of its K candidates
    was shown, and the sum of the citations that it received.
    """

    def __init__(self, config, query: Tensor, replicas: int, depth: int, rounds: int):
        self.config, self.rounds, self.size = config, rounds, 0
        if config.replay_choice == "similarity":
            unit = F.normalize(query.double(), dim=-1)
            self.similarity = unit @ unit.T
        self.queries = torch.zeros(replicas, 0, dtype=torch.int64, device=query.device)
        self.shown = query.new_zeros(replicas, 0, depth)
        self.cited = query.new_zeros(replicas, 0, depth)
        self.reward = query.new_zeros(replicas, 0)

    def add(self, queries: Tensor, shown: Tensor, cited: Tensor) -> None:
        """Store one experience a query (Algorithm 3, lines 10 to 13): numbers `[R, Q]`, statistics `[R, Q, K]`."""
        start, self.size = self.size, self.size + queries.shape[1]
        for name, values in self._entries(queries, shown, cited).items():
            stored = grown(getattr(self, name), start, self.size, axis=1)
            stored[:, start : self.size] = values
            setattr(self, name, stored)

    def _entries(self, queries, shown, cited):
        """Entries of new experiences in the buffer's arrays, by name."""
        reward = {"reward": self._reward(shown, cited)} if self.config.replay_choice == "reward" else {}
        return {"queries": queries, "shown": shown, "cited": cited} | reward

    def _closeness(self, queries, pool):
        """Similarity of queries to those of a pool, `[R, Q]` and `[R, Q, P]` to `[R, Q, P]`."""
        return self.similarity[queries].gather(-1, pool)

    def _reward(self, shown, cited):
        """Mean aggregated citation of an experience (Eq. 12, averaged over O^(n))."""
        over = shown.clamp(min=1) if self.config.aggregate == "shown" else self.rounds
        observed = (shown > 0).to(shown.dtype)
        return (cited / over).sum(-1) / observed.sum(-1).clamp(min=1)

    def choose(self, queries: Tensor, uniforms: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Choose the experiences that each query of a batch, `[R, Q]`, replays (Eq. 15; Appendix B.2).

        Queries that share an update do not replay each other: past experiences are replayed, and the query's own where
        the configuration says so. Returns positions in the buffer, and the query numbers there, `[R, Q, min(B, pool)]`.
        """
        (R, Q), past = queries.shape, self.size
        pool = self.queries[:, None, :past].expand(R, Q, past)
        if self.config.replay_current:
            pool = torch.cat([pool, queries[..., None]], -1)
        count = min(self.config.replay_size, pool.shape[-1])
        if not count:
            return pool[..., :0], pool[..., :0]
        if self.config.replay_choice == "random":
            assert uniforms is not None
            column = without_replacement(uniforms[..., :count], pool.shape[-1])
        elif self.config.replay_choice == "reward":
            column = best(-self.reward[:, None, :past].expand(R, Q, past), count)
        else:
            column = best(self._closeness(queries, pool), count)
        own = past + torch.arange(Q, device=queries.device)[:, None]
        return torch.where(column < past, column, own), pool.gather(-1, column)

    def recall(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rewards and observed candidates of experiences at positions `[R, ...]`, both `[R, ..., K]`.

        The reward is +1 for a mean citation above 0 and -1 otherwise (Appendix A.1); observed are O^(n) of Eq. 11.
        """
        replica = torch.arange(len(positions), device=positions.device).view(-1, *[1] * (positions.dim() - 1))
        cited, shown = self.cited[replica, positions], self.shown[replica, positions]
        return torch.where(cited > 0, 1, -1), shown > 0


def grown(stored, used: int, needed: int, axis: int = 0, least: int = 64):
    """A tensor or array with room for `needed` entries; one that must grow is copied into twice the room."""
    if needed <= stored.shape[axis]:
        return stored
    shape, kept = list(stored.shape), (slice(None),) * axis + (slice(used),)
    shape[axis] = max(least, 2 * needed)
    larger = np.zeros(shape, stored.dtype) if isinstance(stored, np.ndarray) else stored.new_zeros(shape)
    larger[kept] = stored[kept]
    return larger


def without_replacement(uniforms, pool):
    """Draw distinct columns of a pool: pick j takes the floor(u_j (m - j))-th of those not yet taken."""
    picks: list[Tensor] = []
    for j in range(uniforms.shape[-1]):
        pick = (uniforms[..., j] * (pool - j)).long()
        if picks:
            for earlier in torch.stack(picks, -1).sort(-1).values.unbind(-1):
                pick = pick + (pick >= earlier)
        picks.append(pick)
    return torch.stack(picks, -1)
