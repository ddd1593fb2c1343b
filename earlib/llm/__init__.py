"""Language models behind any OpenAI-compatible endpoint: requests, replies, critic, answers and judge."""

from typing import NamedTuple


class Request(NamedTuple):
    """A question to a model; equal requests are one question."""

    messages: list[dict[str, str]]  # of the chat API, each with a role and its content
    max_tokens: int = 512  # of the reply, a reasoning model's thoughts included
    temperature: float | None = 0.0  # None: the model's default
    sample: int = 0  # another number asks the same question again


class Reply(NamedTuple):
    """The reply to a request; only the text of one with status "ok" or "cut" may be scored."""

    text: str
    status: str  # "ok", "cut" at its maximum length, "refused", "empty", or "failed": no reply that could be read
    prompt_tokens: int = 0  # all that was paid for this reply, also for attempts with too small a token budget
    completion_tokens: int = 0
    cached: bool = False  # true if it cost nothing this time
    reason: str = ""  # of the failure

    def read(self, reader, *given):
        """Result of one of the readers in `earlib.llm.parsing`; None without a text that may be scored."""
        return reader(self.text, *given, cut=self.status == "cut") if self.status in ("ok", "cut") else None


class NoModel(RuntimeError):
    """A reply cannot be had: no model, key or budget. The message's first sentence is the reason; it is one line."""


class Unreachable(NoModel, ConnectionError):
    """The endpoint cannot be reached, refuses the key, does not know the model, or keeps failing."""
