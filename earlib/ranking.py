"""The one way to rank: the best first, ties in memory order; the Gumbel noise that perturbs scores; distinct rows."""

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


def distinct(rows):
    """The distinct numbers of each line, and where each number stands among them.

    Parameters
    ----------
    rows : torch.Tensor
        `[R, n]`, int64.

    Returns
    -------
    numbers : torch.Tensor
        `[R, U]`, ascending; U is the most that a line has, shorter ones are filled up with row 0.
    place : torch.Tensor
        `[R, n]`, such that `numbers.gather(1, place)` is `rows`.
    """
    ordered, order = rows.sort(dim=1)
    slot = torch.zeros_like(rows)
    slot[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
    numbers = rows.new_zeros(len(rows), int(slot[:, -1].max()) + 1).scatter_(1, slot, ordered)
    return numbers, torch.empty_like(rows).scatter_(1, order, slot)
