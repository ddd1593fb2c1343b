"""The one way to order scores, the Gumbel noise that perturbs them, and the distinct rows of a bank.

Tie rule: scores are compared after rounding to 1e-9 in float64 and to 1e-5 in float32. Of equal ones the first in the
candidates' order wins; equal texts share one embedding, and stand in the order in which they were added.
"""

import torch

DECIMALS = {torch.float64: 9, torch.float32: 5}  # of scores that are compared; integers are compared as they are


def comparable(scores):
    """Scores as they are compared: what differs by rounding errors alone is equal."""
    decimals = DECIMALS.get(scores.dtype)
    return scores if decimals is None else scores.round(decimals=decimals)


def best(scores, count):
    """Indices of the highest scores, best first, by the module's tie rule.

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
    order = comparable(scores).sort(dim=-1, descending=True, stable=True).indices
    return order[..., :count]


def gumbel(uniforms):
    """Gumbel noise g = -log(-log u) (Appendix A.1) from uniforms in (0, 1)."""
    return -torch.log(-torch.log(uniforms))


def shared(bank, index):
    """Candidates' rows, each replaced by the first of them whose embedding is the same: equal texts have one score.

    Parameters
    ----------
    bank : torch.Tensor
        `[M, d]`.
    index : torch.Tensor
        Rows of the bank, of any shape.
    """
    rows = index.unique()
    first, seen = torch.arange(len(bank)), {}
    for row, embedding in zip(rows.tolist(), bank[rows].cpu().numpy(), strict=True):
        first[row] = seen.setdefault(embedding.tobytes(), row)
    return first.to(index.device)[index]


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
