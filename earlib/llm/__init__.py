"""Language models behind any OpenAI-compatible endpoint: requests, replies, critic, answers and judge."""

from typing import Annotated, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field
from typing_extensions import TypedDict

# Half a surrogate pair cannot be sent: encoding it raises a ValueError.
Text = Annotated[str, AfterValidator(lambda text: text.encode().decode())]


class Message(TypedDict):
    """A message of the chat API."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    role: Text
    content: Text


class Request(NamedTuple):
    """A question to a model; equal requests are one question."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, strict=True)] = 512  # of the reply, a reasoning model's thoughts included
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = 0.0  # None: the model's default
    sample: Annotated[int, Field(ge=0, strict=True)] = 0  # another number asks the same question again


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
