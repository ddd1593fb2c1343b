"""The feedback-weighted ranking loss (Eq. 10; Algorithm 3, lines 7 and 20), and others of the same citations."""

import torch
import torch.nn.functional as F
from torch import Tensor

from earlib.core.ordering import best


def log_likelihood(scores: Tensor, slates: Tensor) -> Tensor:
    """Log-probability, `[..., n]`, of each slate member under a softmax over all candidates (Eq. 4).

    Scores are `[..., K]`, where dimensions of size 1 serve all slates; slates are candidate indices, `[..., n]`.
    """
    return scores.log_softmax(-1).expand(*slates.shape[:-1], -1).gather(-1, slates)


def plackett_luce(scores: Tensor, slates: Tensor) -> Tensor:
    """Log-probability of each member given that those before it were drawn: sampling without replacement.

    Parameters and result as in `log_likelihood`; here the order of a slate matters.
    """
    scores = scores.expand(*slates.shape[:-1], -1)
    chosen = scores.gather(-1, slates)
    left_over = scores.scatter(-1, slates, -torch.inf).logsumexp(-1, keepdim=True)
    still_there = torch.cat([chosen, left_over], -1).flip(-1).logcumsumexp(-1).flip(-1)
    return chosen - still_there[..., :-1]


def ranking_loss(log_p: Tensor, citations: Tensor, counted: Tensor, baseline: float) -> Tensor:
    """Mean of -(y - b) log p over the citations that count (Eq. 10); 0 where none does.

    The log-probabilities, the citations y in {-1, +1} and which of them are counted are `[..., n]`, the loss `[...]`.
    """
    weight = counted.to(log_p.dtype)
    total = (weight * (citations - baseline) * log_p).sum(-1)
    return -total / weight.sum(-1).clamp(min=1)


def listwise_loss(kind: str, scores: Tensor, useful: Tensor, counted: Tensor) -> Tensor:
    """Loss over all candidates by whether they were cited, whatever slates showed them; 0 where none was.

    With P the candidates that were cited, N those that were not, and z the scores, the mean over i in P of

        softmax:        -z_i + log sum over l in P and N of exp z_l
        contrastive:    -z_i + log (exp z_i + sum over l in N of exp z_l)
        logistic:       mean over l in N of log (1 + exp(z_l - z_i))
        plackett-luce:  -z_i + log sum over l in N, and in P from i on, of exp z_l

    where the last one takes P in the order of its scores: the chance that it is drawn first, and in this order. The
    scores, which candidates were cited, and which are in P or N at all are `[..., K]`, the loss `[...]`.
    """
    absent = torch.finfo(scores.dtype).min  # exp of it is 0, and nothing flows back; infinities would make NaN of 0
    useful, others = useful & counted, counted & ~useful
    if kind == "softmax":
        terms = -scores.masked_fill(~counted, absent).log_softmax(-1)
    elif kind == "contrastive":
        terms = F.softplus(scores.masked_fill(~others, absent).logsumexp(-1, keepdim=True) - scores)
    elif kind == "logistic":
        pairs = F.softplus(scores.unsqueeze(-2) - scores.unsqueeze(-1)) * others.unsqueeze(-2)
        terms = pairs.sum(-1) / others.sum(-1, keepdim=True).clamp(min=1)
    else:
        order = best(scores.detach().masked_fill(~useful, -torch.inf), scores.shape[-1])
        scores, useful = scores.masked_fill(~counted, absent).gather(-1, order), useful.gather(-1, order)
        terms = scores.flip(-1).logcumsumexp(-1).flip(-1) - scores
    return (terms * useful).sum(-1) / useful.sum(-1).clamp(min=1)
