"""The one way to order scores, the Gumbel noise that perturbs them, and the distinct rows of a bank.

Tie rule: scores are compared after rounding to 1e-9 in float64 and to 1e-5 in float32. Of equal ones the first in the
candidates' order wins; equal texts share one embedding, and stand in the order in which they were added.
"""

import torch
from torch import Tensor

DECIMALS = {torch.float64: 9, torch.float32: 5}  # of compared scores; integers are compared exactly


def comparable(scores: Tensor) -> Tensor:
    """Round scores for comparison, so that those which differ by rounding errors alone are equal."""
    decimals = DECIMALS.get(scores.dtype)
    return scores if decimals is None else scores.round(decimals=decimals)


def best(scores: Tensor, count: int) -> Tensor:
    """Indices of the `count` highest scores, best first, by the module's tie rule: `[..., K]` to `[..., count]`."""
    return comparable(scores).sort(dim=-1, descending=True, stable=True).indices[..., :count]


def gumbel(uniforms: Tensor) -> Tensor:
    """Gumbel noise g = -log(-log u) (Appendix A.1) from uniforms in (0, 1)."""
    return -torch.log(-torch.log(uniforms))


def shared(bank: Tensor, index: Tensor) -> Tensor:
    """Rows of a bank `[M, d]`, each replaced by the first with its embedding: equal texts share a score."""
    rows, place = index.unique(return_inverse=True)
    group = bank[rows].unique(dim=0, return_inverse=True)[1]
    first = rows.new_full((len(rows),), len(bank)).scatter_reduce(0, group, rows, "amin")
    return first[group][place]


def distinct(rows: Tensor, width: int | None = None) -> tuple[Tensor, Tensor]:
    """Distinct numbers of each line of `[R, n]`, ascending, and the places at which `gather` finds the line in them.

    The numbers are `[R, U]`, where U is the most that a line has, or a `width` that is not less; shorter ones are
    padded with 0.
    """
    ordered, order = rows.sort(dim=1)
    slot = torch.zeros_like(rows)
    slot[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
    width = int(slot[:, -1].max()) + 1 if width is None else width
    numbers = rows.new_zeros(len(rows), width).scatter_(1, slot, ordered)
    return numbers, torch.empty_like(rows).scatter_(1, order, slot)
