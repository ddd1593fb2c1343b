"""Critics of a live memory: a language model, and the check of any critic's answer."""

from collections.abc import Callable
from typing import Any

import torch

from earlib.llm.critic import LLMCritic


def by_model(client: Any, tokens: int) -> Callable[..., LLMCritic]:
    """Make a language model the critic of a memory: it answers from the memories shown and cites those it used.

    Parameters
    ----------
    client : earlib.llm.client.Client
        From `earlib.llm.models.connect`.
    tokens : int
        Limit of a reply, from `earlib.llm.models.reply_tokens`.

    Returns
    -------
    callable
        The `critic` of an EARMemory.
    """

    def critic(query, ids, texts):
        return LLMCritic(client, [query], texts, torch.arange(len(texts))[None], tokens)

    return critic


def query_critic(
    critic: Callable[..., Any], query: str, ids: list[int | str], texts: list[str], uniforms: torch.Tensor
) -> Callable[[int, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Return `ask(t, slates)` of one query, which gives citations and a mask of those that could be read."""
    answer = critic(query, ids, texts)
    if not callable(answer):
        found = f"{type(answer).__name__} {str(answer)[:60]!r}"
        raise TypeError(f"critic: expected that it gives a critic of the query, a callable, got {found}")

    def ask(t, slates):
        return check_citations(answer(torch.zeros(1, 1).long(), slates, uniforms[:, :, t]), slates)

    return ask


def check_citations(answer: Any, slates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Check a critic's answer for slates `[1, 1, s]`: citations in {-1, +1}, and a mask of those that could be read."""
    if not (isinstance(answer, (tuple, list)) and len(answer) == 2 and all(map(torch.is_tensor, answer))):
        found = f"{type(answer).__name__} {str(answer)[:60]!r}"
        raise TypeError(f"critic: expected two tensors, citations and which of them could be read, got {found}")
    citations, readable = answer
    for part in answer:
        if part.shape != slates.shape:
            expected = f"{list(slates.shape)}, one a memory shown"
            raise ValueError(f"critic: expected citations and which could be read {expected}, got {list(part.shape)}")
    if readable.dtype != torch.bool:
        raise TypeError(f"critic: which could be read: expected torch.bool, got {readable.dtype}")
    odd = citations[readable & (citations.abs() != 1)]
    if len(odd):
        raise ValueError(f"critic: citations: expected 1 for a useful memory and -1 for another, got {odd[0].item():g}")
    return citations, readable
