"""The one way to rank: the best first, ties in memory order; and the Gumbel noise that perturbs scores."""

import torch


def best(scores, count):
    """Indices of the highest scores, best first; of equal scores the lowest index comes first.

    Parameters
    ----------
    scores : torch.Tensor
        `[..., K]`.
    count : int
        How many to take, at most K.

    Returns
    -------
    torch.Tensor
        `[..., count]`, int64.
    """
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    return order[..., :count]


def gumbel(uniforms):
    """Gumbel noise g = -log(-log u) (Appendix A.1) from uniforms in (0, 1)."""
    return -torch.log(-torch.log(uniforms))
