"""Exploratory Reflection (Eqs. 5 to 9, Algorithm 2): a query-local bandit that composes slates of candidates."""

from typing import NamedTuple

import torch

from earlib.core.ordering import comparable


class Exploration(NamedTuple):
    """What the rounds of one or many queries brought; `[...]` are the leading dimensions of the scores."""

    slates: torch.Tensor  # [..., T, s] candidate indices, in the order of selection
    citations: torch.Tensor  # [..., T, s] +1 or -1
    readable: torch.Tensor  # [..., T, s] bool; what could not be read enters neither statistics nor loss
    shown: torch.Tensor  # [..., K] readable citations a candidate received: its pulls N_i
    cited: torch.Tensor  # [..., K] their sum


def tallied(slates, citations, readable, scores):
    """What was shown and said, counted for each candidate.

    Parameters
    ----------
    slates, citations, readable : torch.Tensor
        `[..., T, s]`, as in `Exploration`.
    scores : torch.Tensor
        Of all candidates, `[..., K]`.

    Returns
    -------
    Exploration
    """
    weight = readable.to(scores.dtype)
    members = slates.flatten(-2)
    shown, cited = (
        torch.zeros_like(scores).scatter_add(-1, members, w.flatten(-2)) for w in (weight, weight * citations)
    )
    return Exploration(slates, citations, readable, shown, cited)


def upper_confidence(config, shown, cited):
    """U_i of Eq. 5.

    Parameters
    ----------
    config : Config
        Gives alpha.
    shown, cited : torch.Tensor
        Pulls N_i and the sum of their citations, `[..., K]`.

    Returns
    -------
    torch.Tensor
        `[..., K]`: mean feedback and the exploration bonus.
    """
    total = shown.sum(-1, keepdim=True)
    return cited / shown.clamp(min=1) + config.ucb * (torch.log1p(total) / (1 + shown)).sqrt()


def select_slate(config, scores, gram, shown, cited, side=None):
    """Compose one slate greedily (Eqs. 6 to 8); of equal candidates the one ranked first by the retriever wins.

    With the scores p_i of a reranker as side information, Eq. 7 has a term that is not the paper's, lambda_side p_i:

        A_i = lambda_rel z_i + lambda_side p_i - lambda_div D_i + lambda_exp U_i.

    Parameters
    ----------
    config : Config
        Gives s and the weights of relevance, side information, diversity and exploration.
    scores : torch.Tensor
        Adapted relevance, `[..., K]`.
    gram : torch.Tensor
        Similarity between adapted candidates, `[..., K, K]`.
    shown, cited : torch.Tensor
        Bandit statistics, `[..., K]`.
    side : torch.Tensor, optional
        Scores of a reranker, `[..., K]`; needed where their weight is not 0.

    Returns
    -------
    torch.Tensor
        `[..., s]` candidate indices, in the order of selection.
    """
    return _compose(config, *_weighted(config, scores, gram, side), shown, cited)


def _weighted(config, scores, gram, side):
    """The parts of Eq. 7 that no feedback changes: lambda_rel z + lambda_side p, and lambda_div times the similarities.

    The similarities have a row for each candidate, with infinity for itself: it is gone once it is chosen.
    """
    penalties = config.diversity * gram
    penalties.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    value = config.relevance * scores
    if config.side:
        value = torch.add(value, side, alpha=config.side)
    return value, penalties.reshape(-1, gram.shape[-1])


def _compose(config, relevance, penalties, shown, cited):
    K = relevance.shape[-1]
    value = torch.add(relevance, upper_confidence(config, shown, cited), alpha=config.exploration).view(-1, K)
    first_row = torch.arange(0, len(penalties), K, device=value.device)
    picks = [comparable(value).argmax(-1)]  # argmax takes the first of equals
    redundancy = penalties.index_select(0, first_row + picks[0])
    while len(picks) < config.slate_size:
        picks.append(comparable(value - redundancy).argmax(-1))
        redundancy = torch.maximum(redundancy, penalties.index_select(0, first_row + picks[-1]))
    return torch.stack(picks, -1).view(*relevance.shape[:-1], -1)


def explore(config, scores, gram, ask, rounds, side=None):
    """Run exploration rounds: a slate, its citations, the statistics (Algorithm 2, lines 4 to 19).

    Parameters
    ----------
    config : Config
    scores, gram : torch.Tensor
        `[..., K]` and `[..., K, K]`.
    ask : callable
        `(round, slates) -> (citations, readable)`, each `[..., s]`: the critic.
    rounds : int
        Rounds with feedback; with 0 the statistics come back empty.
    side : torch.Tensor, optional
        As in `select_slate`.

    Returns
    -------
    Exploration
    """
    shown, cited = torch.zeros_like(scores), torch.zeros_like(scores)
    unknown, weighted = torch.zeros_like(scores), _weighted(config, scores, gram, side)
    slates, citations, readable = [], [], []
    for t in range(rounds):
        statistics = (shown, cited) if config.statistics == "kept" else (unknown, unknown)
        slate = _compose(config, *weighted, *statistics)
        citation, mask = ask(t, slate)
        weight = mask.to(scores.dtype)
        shown = shown.scatter_add(-1, slate, weight)
        cited = cited.scatter_add(-1, slate, weight * citation)
        slates.append(slate), citations.append(citation), readable.append(mask)
    if not rounds:
        return Exploration(None, None, None, shown, cited)
    return Exploration(torch.stack(slates, -2), torch.stack(citations, -2), torch.stack(readable, -2), shown, cited)
