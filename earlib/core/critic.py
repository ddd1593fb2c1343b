"""Critics: they say which memories of a slate were useful.

A critic is called as `critic(queries, slates, uniforms)` with query numbers `[R, Q]`, candidate indices `[R, Q, s]`
and, for critics that draw, uniforms `[R, Q, K]`, one a candidate. It returns citations in {-1, +1} and a mask of those
that could be read, both `[R, Q, s]`.
"""

import torch
from torch import Tensor


def false_positive_rate(gold: Tensor, others: Tensor, recall: float, precision: float) -> Tensor:
    """p_fp of Appendix A.2: n r (1 - p) / (u p), clipped at 1; none possible where u = 0.

    `gold` and `others` are n and u, the gold memories of a slate and the rest of it; r and p are fractions.
    """
    return (gold * (recall * (1 - precision) / precision) / others.clamp(min=1)).clamp(max=1)


class SimulatedCritic:
    """Probabilistic citations with a target precision and recall (Appendix A.2); it knows the gold labels.

    Gold memories are cited with probability r, others with p_fp.

    Parameters
    ----------
    config : Config
        For precision, recall and the kind of errors.
    gold : torch.Tensor
        Which candidates of each query are gold, `[N, K]` bool; `[R, N, K]` where replicas are told different things.
    calibration : torch.Tensor, optional
        For `errors = "global"`: query numbers, `[R, N]`, whose retriever slates fix a replica's one rate for all.
    """

    def __init__(self, config, gold: Tensor, calibration: Tensor | None = None):
        self.gold = gold if gold.dim() == 3 else gold[None]
        self.recall, self.precision = config.recall / 100, config.precision / 100
        self.rates: dict[int, Tensor] = {}  # p_fp by the slate's length: one for each number of gold memories in it
        self.rate: Tensor | None = None
        if config.errors == "global":
            if calibration is None:
                raise ValueError("errors = global: expected the queries that fix the rate (calibration), found none")
            hits = self._told(calibration)[..., : config.slate_size].double().flatten(1)
            self.rate = false_positive_rate(hits.sum(1), (1 - hits).sum(1), self.recall, self.precision)[:, None, None]

    def __call__(self, queries: Tensor, slates: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Cite the memories of each slate; every citation can be read."""
        is_gold, size = self._told(queries).gather(-1, slates), slates.shape[-1]
        if size not in self.rates:
            hits = torch.arange(size + 1, device=self.gold.device).double()
            self.rates[size] = false_positive_rate(hits, size - hits, self.recall, self.precision)
        rate = self.rates[size][is_gold.sum(-1, keepdim=True)] if self.rate is None else self.rate
        cited = uniforms.gather(-1, slates) < torch.where(is_gold, self.recall, rate)
        return torch.where(cited, 1, -1), torch.ones_like(cited)

    def _told(self, queries):
        """Which candidates of each query the critic takes for gold, `[R, Q, K]`."""
        return self.gold[torch.arange(len(self.gold), device=queries.device)[:, None], queries]
