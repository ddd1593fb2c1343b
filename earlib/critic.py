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
        Which candidates of each query are gold, `[N, K]` bool.
    calibration : torch.Tensor, optional
        For `errors = "global"`: query numbers, `[R, N]`, whose retriever slates fix a replica's one rate for all.
    """

    def __init__(self, config, gold, calibration=None):
        self.gold = gold
        self.recall, self.precision = config.recall / 100, config.precision / 100
        hits = torch.arange(config.slate_size + 1, device=gold.device).double()
        self.rates = false_positive_rate(hits, config.slate_size - hits, self.recall, self.precision)
        self.rate = None
        if config.errors == "global":
            hits = gold[calibration][..., : config.slate_size].double().flatten(1)
            self.rate = false_positive_rate(hits.sum(1), (1 - hits).sum(1), self.recall, self.precision)[:, None, None]

    def __call__(self, queries, slates, uniforms):
        """Cite the memories of each slate; every citation can be read."""
        is_gold = self.gold[queries].gather(-1, slates)
        rate = self.rates[is_gold.sum(-1, keepdim=True)] if self.rate is None else self.rate
        cited = uniforms.gather(-1, slates) < torch.where(is_gold, self.recall, rate)
        return torch.where(cited, 1, -1), torch.ones_like(cited)
