"""Who says which memories of a slate were useful.

A critic is called as `critic(queries, slates, uniforms)` with query numbers `[R, Q]`, candidate indices
`[R, Q, s]` and, for critics that draw, uniforms `[R, Q, K]`, one a candidate. It returns citations in {-1, +1} and
a mask of those that could be read, both `[R, Q, s]`.
"""

import torch


def false_positive_rate(gold, others, recall, precision):
    """p_fp of Appendix A.2: n r (1 - p) / (u p), clipped at 1; none possible where u = 0.

    Parameters
    ----------
    gold : torch.Tensor
        n, gold memories in the slate.
    others : torch.Tensor
        u, the rest of the slate.
    recall, precision : float
        Targets r and p, as fractions.
    """
    return (gold * (recall * (1 - precision) / precision) / others.clamp(min=1)).clamp(max=1)


class SimulatedCritic:
    """Probabilistic citations with a target precision and recall (Appendix A.2).

    Gold memories are cited with probability r, others with p_fp. It knows the gold labels: used at test time, it
    sees test gold.

    Parameters
    ----------
    config : Config
        Gives precision, recall and the kind of errors.
    gold : torch.Tensor
        Which candidates of each query are gold, `[N, K]` bool; `[R, N, K]` where each replica is told another thing.
    calibration : torch.Tensor, optional
        For `errors = "global"`: query numbers, `[R, N]`, whose retriever slates fix a replica's one rate for all.
    """

    def __init__(self, config, gold, calibration=None):
        self.gold = gold if gold.dim() == 3 else gold[None]
        self.recall, self.precision = config.recall / 100, config.precision / 100
        self.rates = {}  # by the slate's length and the gold in it
        self.rate = None
        if config.errors == "global":
            hits = self._told(calibration)[..., : config.slate_size].double().flatten(1)
            self.rate = false_positive_rate(hits.sum(1), (1 - hits).sum(1), self.recall, self.precision)[:, None, None]

    def __call__(self, queries, slates, uniforms):
        """Cite the memories of each slate; every citation can be read."""
        is_gold = self._told(queries).gather(-1, slates)
        rate = self._rate(slates.shape[-1])[is_gold.sum(-1, keepdim=True)] if self.rate is None else self.rate
        cited = uniforms.gather(-1, slates) < torch.where(is_gold, self.recall, rate)
        return torch.where(cited, 1, -1), torch.ones_like(cited)

    def _told(self, queries):
        """Which candidates of each query the critic takes for gold, `[R, Q, K]`."""
        return self.gold[torch.arange(len(self.gold), device=queries.device)[:, None], queries]

    def _rate(self, size):
        """p_fp by the number of gold memories in a slate of some size."""
        if size not in self.rates:
            hits = torch.arange(size + 1, device=self.gold.device).double()
            self.rates[size] = false_positive_rate(hits, size - hits, self.recall, self.precision)
        return self.rates[size]
