"""Prices of calls to language models, and limits that no call exceeds."""

import json
import threading
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from earlib import paths
from earlib.llm import NoModel

# US dollars for a million tokens in and out, at OpenAI's own endpoint.
PRICES = paths.read_yaml(resources.files("earlib.llm").joinpath("prices.yaml"))
CHARACTERS = 4  # per token of English text, approximately
FRAME = 64  # tokens, more than a chat template puts around a message


class LimitReached(NoModel):
    """The next call could exceed a limit, so it was not made."""


class Usage(NamedTuple):
    """Calls, tokens and cost so far."""

    calls: int  # requests sent, also those that were refused or got no answer
    cached: int  # replies that needed no call
    prompt_tokens: int
    completion_tokens: int
    cost: float | None  # US dollars; None if the prices are not known

    def __str__(self):
        return (
            f"{self.calls:,} calls, {self.cached:,} replies from the cache, {self.prompt_tokens:,} tokens in, "
            f"{self.completion_tokens:,} out, {dollars(self.cost)}"
        )


def dollars(cost):
    """A cost in US dollars as text; None if it is not known."""
    if not cost:
        return "cost unknown" if cost is None else "nothing to pay"
    return f"${cost:,.2f}" if cost >= 1 else f"${cost:.4f}"


class Ledger:
    """Totals that limits apply to; those in a file are shared by all clients of a run, in one process or several."""

    def __init__(self, path=None):
        self.path = path
        # Calls, US dollars, and the limit that stopped a call.
        self._totals = {"calls": 0, "unpriced": 0, "spent": 0.0, "held": 0.0, "reached": ""}

    @contextmanager
    def changing(self):
        """Lend the totals for a change; LimitReached if they cannot be read or written, since none could be checked."""
        if self.path is None:
            yield self._totals
            return
        file = Path(self.path)
        try:
            with FileLock(f"{file}.lock", poll_interval=0.001):
                totals = self._totals | (json.loads(file.read_text()) if file.exists() else {})
                yield totals
                written = file.with_suffix(".part")
                written.write_text(json.dumps(totals))
                written.replace(file)
        except (OSError, ValueError, TypeError) as error:
            raise LimitReached(
                f"EARLIB_LLM_LEDGER: calls cannot be counted in {file} ({error}); remove it, or name another file"
            ) from None


class Budget:
    """Counts calls, tokens and dollars, and stops each call that could exceed a limit before it is sent.

    `before` and `after` are hooks of the HTTP client, so that retries of the client library are calls too. `before`
    holds back the worst-case cost of the call; `settle` replaces it by the actual cost: nothing after an error of the
    server, the worst case after no answer, since it may still be billed. A thread has one open call at a time.
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
        return self.price and (self.price[0] * prompt_tokens + self.price[1] * completion_tokens) / 1e6

    def usage(self, cached):
        """Usage so far."""
        with self._changed:
            spent = None if self.price is None else self._spent
            return Usage(self._calls, cached, self._prompt_tokens, self._completion_tokens, spent)

    def expect(self, request, max_tokens):
        """Announce the next calls of this thread; no tokenizer makes more than one token of a byte."""
        most = sum(len(message["content"].encode()) + FRAME for message in request.messages)
        self._mine.bound = self.cost(most, max_tokens) or 0.0

    def before(self, request):
        """Admit a call of this thread or raise LimitReached; wait while the outcome of open calls decides."""
        if request.method == "GET":  # of the list of models, which costs nothing
            return
        self.settle()  # an earlier try that nothing answered
        bound = self._mine.bound
        with self._changed:
            while not self._admitted(bound):
                self._changed.wait()
            self._calls += 1
            self._open += 1
            self._mine.held = bound

    def _admitted(self, bound):
        with self._ledger.changing() as totals:
            taken = totals["spent"] + totals["held"]
            if self.max_calls is not None and totals["calls"] >= self.max_calls:
                reached = f"max_calls={self.max_calls} would be passed: {totals['calls']:,} were made"
            elif self.max_cost is not None and taken + bound > self.max_cost:
                if self._open:
                    return False
                # Amounts that other clients hold back count as spent: rather stop early than late.
                reached = f"max_cost={self.max_cost:g} would be passed: a call can cost ${bound:,.4f}, and "
                reached += f"${taken:,.4f} are spent or held back"
            else:
                totals["calls"] += 1
                totals["unpriced"] += self.price is None
                totals["held"] += bound
                return True
            totals["reached"] = reached
        raise LimitReached(reached)

    def after(self, response):
        """Settle a call that was answered by an error."""
        if response.status_code >= 400:
            self.settle(0, 0)

    def settle(self, prompt_tokens=None, completion_tokens=None):
        """Replace the worst case of this thread's open call, if there is one, by its actual cost."""
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
                totals["held"] = max(0.0, round(totals["held"] - held, 12))  # sums of floats leave a residue
            self._prompt_tokens += prompt_tokens or 0
            self._completion_tokens += completion_tokens or 0
            self._changed.notify_all()
