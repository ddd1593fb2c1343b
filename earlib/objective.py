"""The feedback-weighted ranking loss (Eq. 10; Algorithm 3, lines 7 and 20)."""

import torch


def log_likelihood(scores, slates):
    """Log-probability of each slate member under a softmax over all candidates (Eq. 4).

    Parameters
    ----------
    scores : torch.Tensor
        `[..., K]`; dimensions of size 1 serve all slates.
    slates : torch.Tensor
        Candidate indices, `[..., n]`.

    Returns
    -------
    torch.Tensor
        `[..., n]`.
    """
    return scores.log_softmax(-1).expand(*slates.shape[:-1], -1).gather(-1, slates)


def plackett_luce(scores, slates):
    """Log-probability of each member given that those before it are gone: sampling without replacement.

    Parameters and result as in `log_likelihood`; here the order of a slate matters.
    """
    scores = scores.expand(*slates.shape[:-1], -1)
    chosen = scores.gather(-1, slates)
    left_over = scores.scatter(-1, slates, -torch.inf).logsumexp(-1, keepdim=True)
    still_there = torch.cat([chosen, left_over], -1).flip(-1).logcumsumexp(-1).flip(-1)
    return chosen - still_there[..., :-1]


def ranking_loss(log_p, citations, counted, baseline):
    """Mean of -(y - b) log p over the citations that count; 0 where none does.

    Parameters
    ----------
    log_p : torch.Tensor
        `[..., n]`.
    citations : torch.Tensor
        y in {-1, +1}, `[..., n]`.
    counted : torch.Tensor
        bool, `[..., n]`.
    baseline : float
        b, which depends on no action.

    Returns
    -------
    torch.Tensor
        `[...]`.
    """
    weight = counted.to(log_p.dtype)
    total = (weight * (citations - baseline) * log_p).sum(-1)
    return -total / weight.sum(-1).clamp(min=1)
