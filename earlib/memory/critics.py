"""Critics of a live memory: a language model, and where its replies are kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from earlib.data.encoders import sequence
from earlib.llm import Reply
from earlib.llm.critic import LLMCritic
from earlib.memory.validation import check_label

Critic = Callable[..., Sequence[Any]]  # (query, texts) -> labels


def by_model(client: Any, tokens: int) -> Critic:
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
        The `critic` of an EARMemory, which keeps the replies, in its folder, until a memory that they are about is
        removed.
    """

    return _ByModel(client, tokens)


@dataclass(frozen=True)
class _ByModel:
    client: Any
    tokens: int

    def __call__(self, query: str, texts: list[str], replies: Any = None) -> list[bool | None]:
        kept = SimpleNamespace(ask=partial(self.client.ask, store=replies), estimating=self.client.estimating)
        ask = LLMCritic(kept, [query], texts, torch.arange(len(texts))[None], self.tokens)
        citations, readable = ask(torch.zeros(1, 1).long(), torch.arange(len(texts))[None, None])
        pairs = zip(citations.flatten().tolist(), readable.flatten().tolist(), strict=True)
        return [citation > 0 if could else None for citation, could in pairs]


class Replies(NamedTuple):
    """A store of replies about some memories, as `earlib.llm.replies.ReplyStore`."""

    state: Any  # of the memory; its `replies` are ids and fields by key
    keep: Callable[[str, dict], None]
    path: str

    def get(self, key: str) -> Reply | None:
        kept = self.state.replies.get(key)
        return kept and Reply(**kept[1], cached=True)

    def put(self, key: str, reply: Reply, model: str, endpoint: str) -> Reply:
        self.keep(
            key, {name: getattr(reply, name) for name in ("text", "status", "prompt_tokens", "completion_tokens")}
        )
        return reply


def ask(critic: Critic, query: str, texts: list[str], replies: Replies) -> list[bool | None]:
    """A critic's labels of the memories that it is shown."""
    given = critic(query, texts, replies) if isinstance(critic, _ByModel) else critic(query, texts)
    labels = [check_label(one, "critic") for one in sequence(given, "critic")]
    if len(labels) != len(texts):
        raise ValueError(f"critic: expected {len(texts)} labels, one a memory shown, got {len(labels)}")
    return labels
