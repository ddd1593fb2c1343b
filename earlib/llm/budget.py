"""What calls cost, and limits that are never passed."""

import fcntl
import json
import os
import threading
from contextlib import contextmanager
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
        return (
            f"{self.calls:,} calls, {self.cached:,} replies from the cache, {self.prompt_tokens:,} tokens in, "
            f"{self.completion_tokens:,} out, {shown(self.cost)}"
        )


def dollars(amount):
    """An amount as it is shown."""
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.4f}"


def shown(cost):
    """A cost in US dollars as it is shown; None if it is not known."""
    return "cost unknown" if cost is None else dollars(cost) if cost else "nothing to pay"


def worst_case(request, max_tokens):
    """Most tokens that a call can take, in and out: no tokenizer makes more than one token of a byte."""
    return sum(len(message["content"].encode()) + FRAME for message in request.messages), max_tokens


class Ledger:
    """Calls made, those of unknown price among them, dollars spent and held back: what limits are held against.

    Parameters
    ----------
    path : str, optional
        A file that all clients of a run share, in one process or several. What a killed process held back stays
        counted. Default: the ledger is its owner's alone.
    """

    WIDTH = 200  # bytes of the file, always: it is written over in one go and never empty in between

    def __init__(self, path=None):
        self.path = path
        self._totals = {"calls": 0, "unpriced": 0, "spent": 0.0, "held": 0.0}

    @contextmanager
    def changing(self):
        """The totals, to be changed while nobody else can; an exception leaves them as they were.

        Raises
        ------
        LimitReached
            If the file cannot be read or written: nobody could say then whether a call passes a limit.
        """
        if self.path is None:
            yield self._totals
            return
        try:
            with open(self.path, "r+b", buffering=0, opener=_made) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                totals = self._totals | json.loads(file.read() or b"{}")
                yield totals
                os.pwrite(file.fileno(), json.dumps(totals).encode().ljust(self.WIDTH), 0)
        except (OSError, ValueError, TypeError) as error:
            raise LimitReached(
                f"EARLIB_LLM_LEDGER: calls cannot be counted in {self.path} ({error}); remove it, or name another file"
            ) from None


def _made(path, flags):
    return os.open(path, flags | os.O_CREAT, 0o644)


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
    ledger : str, optional
        File of the totals that the limits are held against; default: the limits are this budget's alone.
    """

    def __init__(self, max_calls=None, max_cost=None, price=None, ledger=None):
        self.max_calls, self.max_cost, self.price = max_calls, max_cost, price
        self._changed = threading.Condition()
        self._ledger = Ledger(ledger)
        self._calls = self._open = self._prompt_tokens = self._completion_tokens = 0
        self._spent = 0.0
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
        """Let a call of this thread through, or raise LimitReached; waits while its owner's open calls decide it."""
        self.settle()  # an earlier try that nothing answered
        bound = self._mine.bound
        with self._changed:
            while not self._take(bound):
                self._changed.wait()
            self._calls += 1
            self._open += 1
            self._mine.held = bound

    def _take(self, bound):
        """Enter a call into the ledger; False if open calls of ours must end first."""
        with self._ledger.changing() as totals:
            if self.max_calls is not None and totals["calls"] >= self.max_calls:
                raise LimitReached(f"max_calls={self.max_calls} would be passed: {totals['calls']:,} were made")
            taken = totals["spent"] + totals["held"]
            if self.max_cost is not None and taken + bound > self.max_cost:
                if self._open:
                    return False
                # What others hold back counts as spent: rather stop early than late.
                raise LimitReached(
                    f"max_cost={self.max_cost} would be passed: a call can cost {dollars(bound)}, and "
                    f"{dollars(taken)} are spent or held back"
                )
            totals["calls"] += 1
            totals["unpriced"] += self.price is None
            totals["held"] += bound
        return True

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
            unknown = prompt_tokens is None or completion_tokens is None
            spent = held if unknown else self.cost(prompt_tokens, completion_tokens) or 0.0
            self._spent += spent
            with self._ledger.changing() as totals:
                totals["spent"] += spent
                totals["held"] = max(0.0, round(totals["held"] - held, 12))  # sums of floats leave dust
            self._prompt_tokens += prompt_tokens or 0
            self._completion_tokens += completion_tokens or 0
            self._changed.notify_all()
