"""Critics of a live memory: a language model, and where its replies are kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from earlib.data.encoders import sequence
from earlib.llm import Reply
from earlib.llm.critic import citations, request
from earlib.memory.validation import as_label

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
        (reply,) = self.client.ask([request(query, texts, self.tokens)], replies)
        indices, _ = citations(reply, query, texts)
        return [None if indices is None else at in indices for at in range(len(texts))]


class Replies(NamedTuple):
    """A store of replies about some memories, as `earlib.llm.replies.ReplyStore`."""

    state: Any  # of the memory; its `replies` are arguments of `answer` by key
    keep: Callable[[str, dict], None]
    path: str

    def get(self, key: str) -> Reply | None:
        kept = self.state.replies.get(key)
        return kept and Reply(**kept["fields"], cached=True)

    def put(self, key: str, reply: Reply, model: str, endpoint: str) -> Reply:
        kept = ("text", "status", "prompt_tokens", "completion_tokens")
        self.keep(key, {name: getattr(reply, name) for name in kept})
        return reply


def ask(critic: Critic, query: str, texts: list[str], replies: Replies) -> list[bool | None]:
    """A critic's labels of the memories that it is shown."""
    given = critic(query, texts, replies) if isinstance(critic, _ByModel) else critic(query, texts)
    labels = [as_label(one, "critic") for one in sequence(given, "critic")]
    if len(labels) != len(texts):
        raise ValueError(f"critic: expected {len(texts)} labels, one a memory shown, got {len(labels)}")
    return labels
