"""What calls cost, and limits that are never passed."""

import threading
from typing import NamedTuple

# US dollars for a million tokens in and out, as OpenAI listed them in March 2026; they hold for its own endpoint.
PRICES = {
    "gpt-5": (1.25, 10.0),
    "gpt-5-mini": (0.25, 2.0),
    "gpt-5-nano": (0.05, 0.4),
    "gpt-4.1": (2.0, 8.0),
    "gpt-4.1-mini": (0.4, 1.6),
    "gpt-4o-mini": (0.15, 0.6),
}
CHARACTERS = 4  # a token of English text, about
FRAME = 64  # tokens, more than a chat template puts around a message


class LimitReached(RuntimeError):
    """The next call could pass a limit, so it was not made."""


class Usage(NamedTuple):
    """What a run took, or would take."""

    calls: int  # requests sent, also those that were refused or got no answer
    cached: int  # replies that needed no call
    prompt_tokens: int
    completion_tokens: int
    cost: float | None  # US dollars; None if the prices are not known

    def __str__(self):
        cost = "cost unknown" if self.cost is None else dollars(self.cost)
        return (
            f"{self.calls:,} calls, {self.cached:,} replies from the cache, {self.prompt_tokens:,} tokens in, "
            f"{self.completion_tokens:,} out, {cost}"
        )


def dollars(amount):
    """An amount as it is shown."""
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.4f}"


def worst_case(request, max_tokens):
    """Most tokens that a call can take, in and out: no tokenizer makes more than one token of a byte."""
    return sum(len(message["content"].encode()) + FRAME for message in request.messages), max_tokens


class Budget:
    """Counts calls, tokens and dollars, and stops each call that could pass a limit before it is sent.

    `before` and `after` are hooks of the HTTP client, so that the retries of the client library are calls too. From
    `before` on the call's worst case is held back; `settle` replaces it by what the call took. A call that an error
    of the server answers costs nothing; one that nothing answers may still be billed and costs its worst case. A
    thread has one call open at a time.

    Parameters
    ----------
    max_calls : int or None
    max_cost : float or None
        US dollars.
    price : tuple of float or None
        US dollars for a million tokens in and out; None if it is not known.
    """

    def __init__(self, max_calls=None, max_cost=None, price=None):
        self.max_calls, self.max_cost, self.price = max_calls, max_cost, price
        self._changed = threading.Condition()
        self._calls = self._open = self._prompt_tokens = self._completion_tokens = 0
        self._spent = self._held = 0.0
        self._mine = threading.local()

    def cost(self, prompt_tokens, completion_tokens):
        """US dollars for so many tokens; None if the price is not known."""
        if self.price is None:
            return None
        return (self.price[0] * prompt_tokens + self.price[1] * completion_tokens) / 1e6

    def usage(self, cached):
        """What was taken so far, as a Usage."""
        with self._changed:
            spent = None if self.price is None else self._spent
            return Usage(self._calls, cached, self._prompt_tokens, self._completion_tokens, spent)

    def expect(self, request, max_tokens):
        """Say what the next calls of this thread are."""
        self._mine.bound = self.cost(*worst_case(request, max_tokens)) or 0.0

    def before(self, _):
        """Let a call of this thread through, or raise LimitReached; waits while what others hold back decides it."""
        self.settle()  # an earlier try that nothing answered
        bound = self._mine.bound
        with self._changed:
            while True:
                if self.max_calls is not None and self._calls >= self.max_calls:
                    raise LimitReached(f"max_calls={self.max_calls} would be passed")
                if self.max_cost is None or self._spent + self._held + bound <= self.max_cost:
                    break
                if not self._open:
                    raise LimitReached(f"max_cost={self.max_cost} would be passed: a call can cost {dollars(bound)}")
                self._changed.wait()
            self._calls += 1
            self._open += 1
            self._held += bound
            self._mine.held = bound

    def after(self, response):
        """Settle a call that was answered by an error."""
        if response.status_code >= 400:
            self.settle(0, 0)

    def settle(self, prompt_tokens=None, completion_tokens=None):
        """Put what this thread's open call took, if there is one, in the place of its worst case."""
        held, self._mine.held = getattr(self._mine, "held", None), None
        if held is None:
            return
        with self._changed:
            self._open -= 1
            self._held = self._held - held if self._open else 0.0
            unknown = prompt_tokens is None or completion_tokens is None
            self._spent += held if unknown else self.cost(prompt_tokens, completion_tokens) or 0.0
            self._prompt_tokens += prompt_tokens or 0
            self._completion_tokens += completion_tokens or 0
            self._changed.notify_all()
