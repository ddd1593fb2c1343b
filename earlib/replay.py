"""Experience Buffer (Eqs. 11 to 16): past queries with their citations, and which of them to replay."""

import torch

from earlib.ranking import best


class ExperienceBuffer:
    """Experiences of R replicas, in the order in which their queries came.

    An experience is a query (by number; its embeddings are those before the adapter), how often each of its K
    candidates was shown, and the sum of the citations that it received.

    Parameters
    ----------
    config : Config
    replicas, depth, dimension : int
        R, K and d.
    rounds : int
        T, for citations averaged over rounds (Algorithm 1).
    dtype, device
        Of the embeddings.
    """

    def __init__(self, config, replicas, depth, dimension, rounds, dtype=torch.float32, device="cpu"):
        self.config, self.rounds, self.size = config, rounds, 0
        floats = {"dtype": dtype, "device": device}
        self.queries = torch.zeros(replicas, 0, dtype=torch.int64, device=device)
        self.unit = torch.zeros(replicas, 0, dimension, **floats)
        self.shown = torch.zeros(replicas, 0, depth, **floats)
        self.cited = torch.zeros(replicas, 0, depth, **floats)
        self.reward = torch.zeros(replicas, 0, **floats)

    def add(self, queries, unit, shown, cited):
        """Store one experience a query (Algorithm 3, line 13).

        Parameters
        ----------
        queries : torch.Tensor
            Query numbers, `[R, Q]`.
        unit : torch.Tensor
            Query embeddings before the adapter, of unit length, `[R, Q, d]`.
        shown, cited : torch.Tensor
            `[R, Q, K]`.
        """
        new = {"queries": queries, "unit": unit, "shown": shown, "cited": cited, "reward": self._reward(shown, cited)}
        start, self.size = self.size, self.size + queries.shape[1]
        for name, values in new.items():
            stored = getattr(self, name)
            if self.size > stored.shape[1]:  # doubled, so that adding stays cheap however long the stream
                grown = stored.new_zeros(stored.shape[0], max(64, 2 * self.size), *stored.shape[2:])
                grown[:, :start] = stored[:, :start]
                setattr(self, name, grown)
            getattr(self, name)[:, start : self.size] = values

    def _reward(self, shown, cited):
        """Mean aggregated citation of an experience; rounded, so that equal ones tie however they were summed."""
        over = shown.clamp(min=1) if self.config.aggregate == "shown" else self.rounds
        observed = (shown > 0).to(shown.dtype)
        return ((cited / over).sum(-1) / observed.sum(-1).clamp(min=1)).round(decimals=9)

    def choose(self, unit, past, uniforms=None):
        """Choose what each query of the newest batch replays (Eq. 15; Appendix B.2).

        Parameters
        ----------
        unit : torch.Tensor
            The batch's query embeddings before the adapter, of unit length, `[R, Q, d]`.
        past : int
            Experiences stored before the batch: queries that share an update do not replay each other.
        uniforms : torch.Tensor, optional
            `[R, Q, B]`, for the random choice.

        Returns
        -------
        torch.Tensor
            Positions in the buffer, `[R, Q, n]`, n = min(B, pool): as many as there are until B.
        """
        R, Q, _ = unit.shape
        own = past + torch.arange(Q, device=unit.device).view(1, Q, 1)
        pool = past + self.config.replay_current
        count = min(self.config.replay_size, pool)
        if self.config.replay_choice == "random":
            column = _without_replacement(uniforms[..., :count], pool)
        else:
            keys = self._similarity(unit, past) if self.config.replay_choice == "similarity" else -self.reward[
                :, None, :past
            ].expand(R, Q, past)
            if self.config.replay_current:
                keys = torch.cat([keys, self._own_keys(unit, past)], -1)
            column = best(keys, count)
        return torch.where(column < past, column, own)

    def _similarity(self, unit, past):
        return unit @ self.unit[:, :past].mT

    def _own_keys(self, unit, past):
        if self.config.replay_choice == "similarity":
            return unit.square().sum(-1, keepdim=True)
        return -self.reward[:, past : past + unit.shape[1], None]

    def recall(self, positions):
        """Look experiences up.

        Parameters
        ----------
        positions : torch.Tensor
            `[R, ...]`.

        Returns
        -------
        queries : torch.Tensor
            Query numbers, `[R, ...]`.
        rewards : torch.Tensor
            +1 for candidates whose mean citation is above 0, -1 for the others, `[R, ..., K]` (Appendix A.1).
        observed : torch.Tensor
            bool, `[R, ..., K]`: O^(n) of Eq. 11, the candidates that the critic was shown.
        """
        replica = torch.arange(len(positions), device=positions.device).view(-1, *[1] * (positions.dim() - 1))
        cited, shown = self.cited[replica, positions], self.shown[replica, positions]
        return self.queries[replica, positions], torch.where(cited > 0, 1, -1), shown > 0


def _without_replacement(uniforms, pool):
    """Draw distinct columns of a pool: pick j takes the floor(u_j (m - j))-th of those not yet taken."""
    taken = uniforms.new_zeros(*uniforms.shape[:-1], 0, dtype=torch.int64)
    picks = []
    for j in range(uniforms.shape[-1]):
        pick = (uniforms[..., j] * (pool - j)).long()
        for earlier in taken.sort(-1).values.unbind(-1):
            pick = pick + (pick >= earlier)
        picks.append(pick)
        taken = torch.stack(picks, -1)
    return torch.stack(picks, -1) if picks else taken
