"""Exploratory Reflection (Eqs. 5 to 9, Algorithm 2): a query-local bandit that composes slates of candidates."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from earlib.core.ordering import comparable


class Exploration(NamedTuple):
    """Slates of one or many queries with their citations; `[...]` are the leading dimensions of the scores."""

    slates: Tensor  # [..., T, s] candidate indices, in the order of selection
    citations: Tensor  # [..., T, s] +1 or -1
    readable: Tensor  # [..., T, s] bool; unreadable citations enter neither statistics nor loss
    shown: Tensor  # [..., K] readable citations a candidate received: its pulls N_i
    cited: Tensor  # [..., K] their sum


def tallied(slates: Tensor, citations: Tensor, readable: Tensor, scores: Tensor) -> Exploration:
    """Count for each candidate, `[..., K]`, how often it was shown, and its citations."""
    weight, members = readable.to(scores.dtype), slates.flatten(-2)
    shown = torch.zeros_like(scores).scatter_add(-1, members, weight.flatten(-2))
    cited = torch.zeros_like(scores).scatter_add(-1, members, (weight * citations).flatten(-2))
    return Exploration(slates, citations, readable, shown, cited)


def upper_confidence(config, shown: Tensor, cited: Tensor) -> Tensor:
    """U_i of Eq. 5, `[..., K]`: mean feedback and the exploration bonus, from pulls N_i and the sum of citations."""
    total = shown.sum(-1, keepdim=True)
    return cited / shown.clamp(min=1) + config.ucb * (torch.log1p(total) / (1 + shown)).sqrt()


def select_slate(
    config, scores: Tensor, gram: Tensor, shown: Tensor, cited: Tensor, side: Tensor | None = None
) -> Tensor:
    """Compose one slate greedily (Eqs. 6 to 8).

    With the scores p_i of a reranker as side information, Eq. 7 gains a term that is not the paper's, lambda_side p_i:

        A_i = lambda_rel z_i + lambda_side p_i - lambda_div D_i + lambda_exp U_i.

    Parameters
    ----------
    config : Config
        For s and the weights of relevance, side information, diversity and exploration.
    scores : torch.Tensor
        Adapted relevance, `[..., K]`.
    gram : torch.Tensor
        Similarity between adapted candidates, `[..., K, K]`.
    shown, cited : torch.Tensor
        Bandit statistics, `[..., K]`.
    side : torch.Tensor, optional
        Scores of a reranker, `[..., K]`; required where their weight is not 0.

    Returns
    -------
    torch.Tensor
        Candidate indices in the order of selection, `[..., s]`; of equal candidates the retriever's first.
    """
    relevance, penalties = _weighted(config, scores, gram, side)
    return _compose(config, relevance, penalties, shown, cited)


def _weighted(config, scores, gram, side):
    """The parts of Eq. 7 that no feedback changes: lambda_rel z + lambda_side p, and lambda_div times the similarities.

    The similarities have a row for each candidate, with infinity for itself: once chosen, it is never chosen again.
    """
    penalties = config.diversity * gram
    penalties.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    value = config.relevance * scores
    if config.side:
        value = torch.add(value, side, alpha=config.side)
    return value, penalties.reshape(-1, gram.shape[-1])


def _compose(config, relevance, penalties, shown, cited):
    """Algorithm 2, lines 4 to 14, with the redundancy D of all candidates kept along."""
    K = relevance.shape[-1]
    value = torch.add(relevance, upper_confidence(config, shown, cited), alpha=config.exploration).view(-1, K)
    first_row = torch.arange(0, len(penalties), K, device=value.device)
    picks = [comparable(value).argmax(-1)]  # argmax takes the first of equals
    redundancy = penalties.index_select(0, first_row + picks[0])
    while len(picks) < config.slate_size:
        picks.append(comparable(value - redundancy).argmax(-1))
        redundancy = torch.maximum(redundancy, penalties.index_select(0, first_row + picks[-1]))
    return torch.stack(picks, -1).view(*relevance.shape[:-1], -1)


def explore(
    config,
    scores: Tensor,
    gram: Tensor,
    ask: Callable[[int, Tensor], tuple[Tensor, Tensor]],
    rounds: int,
    side: Tensor | None = None,
) -> Exploration:
    """Run exploration rounds: a slate, its citations, the statistics (Algorithm 2, lines 4 to 19).

    Parameters as in `select_slate`; `ask` is the critic, `(round, slates) -> (citations, readable)`, each `[..., s]`.
    """
    shown, cited = torch.zeros_like(scores), torch.zeros_like(scores)
    unknown, (relevance, penalties) = torch.zeros_like(scores), _weighted(config, scores, gram, side)
    none = scores.new_zeros(*scores.shape[:-1], 0, config.slate_size)
    slates, citations, readable = [none.long()], [none.long()], [none.bool()]
    for t in range(rounds):
        pulls, feedback = (shown, cited) if config.statistics == "kept" else (unknown, unknown)
        slate = _compose(config, relevance, penalties, pulls, feedback)
        citation, mask = ask(t, slate)
        weight = mask.to(scores.dtype)
        shown = shown.scatter_add(-1, slate, weight)
        cited = cited.scatter_add(-1, slate, weight * citation)
        for kept, new in ((slates, slate), (citations, citation), (readable, mask)):
            kept.append(new.unsqueeze(-2))
    return Exploration(torch.cat(slates, -2), torch.cat(citations, -2), torch.cat(readable, -2), shown, cited)
