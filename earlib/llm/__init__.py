"""Language models behind any OpenAI-compatible endpoint: what is asked and what comes back."""

from typing import NamedTuple

STATUSES = ("ok", "refused", "empty", "failed")  # only the first may be scored; the others are counted apart


class Request(NamedTuple):
    """One question to a model; equal requests are one question."""

    messages: list  # of the chat API: [{"role": "user", "content": "..."}]
    max_tokens: int = 512  # of the reply, a reasoning model's thoughts included
    temperature: float | None = 0.0  # None: the model's own default
    sample: int = 0  # another number asks the same again: a second pass


class Reply(NamedTuple):
    """What came back."""

    text: str  # of a reply that is not "ok": never to be scored
    status: str  # of STATUSES; "failed": no reply that could be read
    prompt_tokens: int = 0  # all that was paid for this reply, also for its tries with too small a budget
    completion_tokens: int = 0
    cached: bool = False  # true if it cost nothing this time
    reason: str = ""  # why it failed


class NoModel(RuntimeError):
    """There is no language model to ask; the message is one line: the reason, and the next step."""
