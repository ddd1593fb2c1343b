"""Asks a language model behind any OpenAI-compatible endpoint: many requests at once, each paid for once."""

import base64
import json
import math
import os
import re
import sys
import threading
import time
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager

import openai
from pydantic import SecretStr
from tqdm import tqdm

from earlib import paths
from earlib.llm import Reply, checks
from earlib.llm.budget import CHARACTERS, PRICES, Budget, LimitReached, Usage
from earlib.llm.replies import Cache, key

OPENAI = "https://api.openai.com/v1"
DOUBLINGS = 4  # of the budget of a reply that spent it without saying anything
CONNECT = 5.0  # seconds that an endpoint may take to be reached
PATIENCE = 10  # failures in a row after which the trouble is the endpoint's, not a request's
PAUSE = 5.0  # seconds between two lines about the progress
SMALL = 10  # requests that need no report when they are through
LEARNABLE = ("max_tokens", "temperature")  # parameters that models refuse, by their old names
REFUSALS = ("content_filter", "content_policy_violation", "invalid_prompt")  # codes of endpoints that refuse with a 400
SHORTEST_SECRET = 8  # characters; "none" and "EMPTY", as local servers are given, are no secrets
EXCERPT = 300  # characters shown of an endpoint's own message


class Client:
    """A model at an endpoint. Nothing is opened, and no key is needed, before a reply has to be asked for.

    Parameters
    ----------
    model : str, optional
        As the endpoint names it; from `EARLIB_LLM_MODEL` if not given.
    base_url : str, optional
        The endpoint up to `/v1`; from `OPENAI_BASE_URL`, or OpenAI's own. `user:password@` in it is sent as HTTP
        Basic authorization in the place of the key, and shown and kept nowhere.
    api_key : str, optional
        From `OPENAI_API_KEY`. Shown and kept nowhere. Only OpenAI's own endpoint must have one.
    concurrency : int
        Calls that are open at once, at most.
    max_calls : int, optional
        Calls, at most; each try is one. 0: from the cache alone. From `EARLIB_LLM_MAX_CALLS` if not given.
    max_cost : float, optional
        US dollars, at most; from `EARLIB_LLM_MAX_COST` if not given. Both limits are those of this client alone,
        unless `EARLIB_LLM_LEDGER` names a file: then all clients that share it count together.
    price : tuple of float, optional
        US dollars for a million tokens in and out; needed for `max_cost` where `budget.PRICES` has none.
    timeout : float
        Seconds without a sign of the endpoint after which a try is given up.
    max_retries : int
        Further tries of the client library after a timeout, a lost connection, a 408, 409, 429 or 5xx.
    start : callable, optional
        Called before the first reply is asked for, and again if the endpoint has to be opened anew: it makes the
        endpoint ready. What it raises, `ask` raises.

    Attributes
    ----------
    estimating : bool
        Whether nothing is to be asked (`EARLIB_LLM_ESTIMATE` names a file): `ask` notes there what it would take, a
        line a request, and gives failed replies for what the cache does not hold.

    Raises
    ------
    ValueError
        For a missing model, an address, a key or a number that cannot be used.
    """

    def __init__(
        self,
        model=None,
        base_url=None,
        api_key=None,
        *,
        concurrency=16,
        max_calls=None,
        max_cost=None,
        price=None,
        timeout=60.0,
        max_retries=6,
        start=None,
    ):
        # Some tracebacks show variables: from here on none holds a secret in plain text, and this object has a name.
        api_key = SecretStr(api_key or os.environ.get("OPENAI_API_KEY") or "")
        base_url = SecretStr(base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI)
        self.model, self.endpoint = model or os.environ.get("EARLIB_LLM_MODEL"), None
        if not self.model:
            raise ValueError("model: expected a name, found none; give one or set EARLIB_LLM_MODEL")
        self.endpoint, self._login = checks.address(base_url)
        self._key = checks.api_key(api_key)
        checks.number("concurrency", concurrency, least=1, whole=True)
        checks.number("max_retries", max_retries, least=0, whole=True)
        checks.number("timeout", timeout, least=0.001)
        max_calls, max_cost = _limit("max_calls", max_calls, int), _limit("max_cost", max_cost, float)
        if price is None and self.endpoint == OPENAI:
            price = PRICES.get(self.model)
        if price is not None:
            for name, value in zip(("price in", "price out"), price, strict=True):
                checks.number(name, value, least=0)
        if max_cost is not None and price is None:
            raise ValueError(
                f"max_cost (or EARLIB_LLM_MAX_COST): the price of {self.model} at {self.endpoint} is not known; give "
                "price=(US dollars for a million tokens in, out), or bound the run by max_calls"
            )
        self.concurrency, self.timeout, self.max_retries = concurrency, timeout, max_retries
        self.refused = frozenset()  # parameters that the model turned out not to take; what it does instead is its own
        self._budget = Budget(max_calls, max_cost, price, os.environ.get("EARLIB_LLM_LEDGER"))
        self._cache = Cache(paths.cache() / "llm" / "replies.jsonl")
        self._start = start
        self._estimates = os.environ.get("EARLIB_LLM_ESTIMATE")
        self.estimating = bool(self._estimates)
        self._api = None  # the library's client, made at the first call
        self._turn = threading.Lock()
        self._from_cache = 0
        self._shown = time.monotonic()

    def __repr__(self):
        return f"Client({self.model!r} at {self.endpoint})"

    @property
    def usage(self):
        """What this client took so far, as a Usage."""
        return self._budget.usage(self._from_cache)

    def estimate(self, requests):
        """What `ask` would take, as a Usage; calls nothing.

        Tokens in are estimated from the number of characters, tokens out are the requests' whole budgets: no more is
        needed unless a reply must be asked for again.
        """
        wanted = {key(self.model, self.endpoint, request): request for request in checks.checked(requests)}
        kept = {name for name in wanted if self._cache.get(name)}
        missing = [request for name, request in wanted.items() if name not in kept]
        characters = sum(len(message["content"]) for request in missing for message in request.messages)
        tokens_in = math.ceil(characters / CHARACTERS)
        tokens_out = sum(request.max_tokens for request in missing)
        return Usage(len(missing), len(kept), tokens_in, tokens_out, self._budget.cost(tokens_in, tokens_out))

    def ask(self, requests):
        """Reply to each request, in order.

        What the cache holds is not asked again, and equal requests are asked once. A reply is kept as soon as it is
        there. An empty reply that spent its budget is asked for again with twice the budget, `DOUBLINGS` times.

        Parameters
        ----------
        requests : sequence of Request

        Returns
        -------
        list of Reply

        Raises
        ------
        LimitReached
            If the next call could pass `max_calls` or `max_cost`.
        ConnectionError
            If the endpoint refuses the key or does not know the model, cannot be reached, or fails `PATIENCE` times
            in a row.
        OSError
            If a reply cannot be kept.
        ValueError
            For a request that cannot be sent, or a missing key.

        All of them leave the calls that are open to end, say what is kept, and how to go on.

        Warns
        -----
        UserWarning
            If the model takes no `max_tokens` or `temperature`, or if requests failed.
        """
        requests = checks.checked(requests)
        names = [key(self.model, self.endpoint, request) for request in requests]
        wanted = dict(zip(names, requests, strict=True))
        with self._turn:  # two threads must not ask the same
            replies = {name: reply for name in wanted if (reply := self._cache.get(name))}
            self._from_cache += len(replies)
            missing = {name: request for name, request in wanted.items() if name not in replies}
            if self.estimating:
                replies |= self._estimate(wanted, missing)
            elif missing:
                replies |= self._fetch(missing)
        return [replies[name] for name in names]

    def _estimate(self, wanted, missing):
        """Note what would be asked; replies that stand for those that are missing."""
        lines = []
        for name, request in wanted.items():
            _, _, tokens_in, tokens_out, cost = self.estimate([request])
            told = {"key": name, "cached": name not in missing, "in": tokens_in, "out": tokens_out, "cost": cost}
            lines.append(json.dumps(told) + "\n")
        with open(self._estimates, "ab", buffering=0) as file:  # one write, so that other clients' lines stay whole
            file.write("".join(lines).encode())
        return dict.fromkeys(missing, Reply("", "failed", reason="only estimated"))

    def _fetch(self, missing):
        """Replies to requests that the cache does not hold, by key; the first goes ahead and shows what to expect."""
        self._open()
        replies, trouble, in_a_row = {}, None, 0
        halt = threading.Event()
        names = list(missing)
        with ThreadPoolExecutor(self.concurrency) as pool, self._progress(len(missing)) as show:
            try:
                for group in (names[:1], names[1:]):
                    futures = {pool.submit(self._one, name, missing[name], halt): name for name in group}
                    for future in as_completed(futures):
                        outcome = future.result()
                        if isinstance(outcome, Reply):
                            replies[futures[future]] = outcome
                            show(len(replies))
                            self._from_cache += outcome.cached
                            in_a_row = in_a_row + 1 if outcome.status == "failed" else 0
                            if in_a_row == PATIENCE:
                                outcome = ConnectionError(f"{PATIENCE} failures in a row, the last: {outcome.reason}")
                        if isinstance(outcome, Exception):
                            trouble = trouble or outcome
                            halt.set()
            finally:
                halt.set()  # after an interrupt, too, the open calls end and are kept, and no other starts
        self._report(missing, replies, trouble)
        return replies

    def _report(self, missing, replies, trouble):
        """Raise what stopped a run, as a new exception that knows nothing of the call; warn of what failed."""
        failed = [reply for reply in replies.values() if reply.status == "failed"]
        if trouble is not None:
            raise type(trouble)(
                f"{trouble}. {self!r}: {self.usage}; of {len(missing)} replies {len(replies) - len(failed)} came and "
                f"are kept in {self._cache.path}. Run again, with a higher limit if one was reached: only the rest is "
                "asked"
            )
        if failed:
            warnings.warn(
                f"{self!r}: {len(failed)} of {len(missing)} requests failed, the last: {failed[-1].reason}; they are "
                "not kept, and the next run asks them again",
                stacklevel=4,
            )

    def _one(self, name, request, halt):
        """Reply to a request and keep it. What must stop the run is returned; None if it has stopped."""
        if halt.is_set():
            return None
        try:
            reply = self._cache.get(name) or self._converse(request)  # another process may have asked meanwhile
            if not isinstance(reply, Reply) or reply.cached or reply.status == "failed":
                return reply
            return self._cache.put(name, reply, model=self.model, endpoint=self.endpoint)
        except (LimitReached, OSError) as error:
            return error

    def _converse(self, request):
        """Reply to a request, with larger budgets if need be; an exception, not raised, if the endpoint is no good."""
        paid = (0, 0)
        for doubling in range(DOUBLINGS + 1):
            try:
                response = self._send(request, request.max_tokens << doubling)
            except LimitReached:
                raise
            except Exception as error:  # of the client library and of those below it: their objects know the key
                self._budget.settle()
                return self._explained(error)
            tokens = _tokens(response)
            self._budget.settle(*tokens)
            paid = tuple(before + (new or 0) for before, new in zip(paid, tokens, strict=True))
            status, text, finish = _read(response)
            if status != "empty" or finish != "length":
                break
        return Reply(self._clean(text), status, *paid, reason="" if status != "failed" else "the reply is unreadable")

    def _send(self, request, max_tokens):
        """One reply as the library gives it, without the parameters that the model refuses.

        What a refusal teaches is remembered when the call without the parameter succeeds. The old name of the budget
        goes first: models that want the new one say so, while some servers that know the old one alone leave the new
        one out of account without a word, and write on and on.
        """
        self._budget.expect(request, max_tokens)
        refused = self.refused
        while True:
            parameters = self._parameters(request, max_tokens, refused)
            try:
                response = self._api.chat.completions.create(**parameters)
            except openai.APIStatusError as error:
                refused_now = _refused_parameter(error, parameters)
                if refused_now is None:
                    raise
                refused |= {refused_now}
                continue
            if "temperature" in refused - self.refused:
                warnings.warn(f"{self!r} refuses a temperature; the model's own is used", stacklevel=2)
            self.refused |= refused
            return response

    def _parameters(self, request, max_tokens, refused):
        name = "max_completion_tokens" if "max_tokens" in refused else "max_tokens"
        parameters = {"model": self.model, "messages": request.messages, name: max_tokens}
        if request.temperature is not None and "temperature" not in refused:
            parameters["temperature"] = request.temperature
        return parameters

    def _open(self):
        """Make the library's client; a run that the cache serves does without it, and without a key."""
        if self._start is not None:
            self._start()
        if self._api is not None:
            return
        key, login = self._key.get_secret_value(), self._login.get_secret_value()
        if not key and self.endpoint == OPENAI:
            raise ValueError(f"api_key: {OPENAI} needs one, found none; set OPENAI_API_KEY")
        # A login goes into a header, not into the address, which the HTTP library writes to its log.
        headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
        hooks = {"request": [self._budget.before], "response": [self._budget.after]}
        self._api = openai.OpenAI(
            api_key=key or "none",
            base_url=self.endpoint,
            timeout=openai.Timeout(self.timeout, connect=min(CONNECT, self.timeout)),
            max_retries=self.max_retries,
            default_headers=headers,
            http_client=openai.DefaultHttpxClient(event_hooks=hooks),
        )
        weakref.finalize(self, self._api.close)

    def _explained(self, error):
        """What an error of the library means, in words that hold no secret: a reply, or what must stop the run."""
        if isinstance(error, openai.APIStatusError):
            if error.status_code in (401, 403):  # some endpoints show a part of the key in this message
                return ConnectionError(f"{self.endpoint} refuses the key ({error.status_code}); check OPENAI_API_KEY")
            said = self._clean(error.message)[:EXCERPT]
            if error.status_code == 404:
                return ConnectionError(f"{self.endpoint} does not know {self.model!r} or the address ({said})")
            return Reply("", "refused" if error.code in REFUSALS else "failed", reason=said)
        if isinstance(error, openai.APITimeoutError):
            return Reply("", "failed", reason=f"no reply within {self.timeout:g} s")
        if isinstance(error, openai.APIConnectionError):
            cause = type(error.__cause__).__name__
            if cause == "ConnectError":  # of the HTTP library: nobody is there
                return ConnectionError(f"{self.endpoint} cannot be reached; is the server running?")
            return Reply("", "failed", reason=f"the connection was lost ({cause})")
        return Reply("", "failed", reason=f"the reply is unreadable ({type(error).__name__})")

    def _clean(self, text):
        """Text of an endpoint that can be shown and written: no secret of ours, nothing that is not Unicode."""
        key, login = self._key.get_secret_value(), self._login.get_secret_value()
        for secret in (key, login, login.partition(":")[2], base64.b64encode(login.encode()).decode()):
            if len(secret) >= SHORTEST_SECRET:
                text = text.replace(secret, "[secret]")
        return text.encode(errors="replace").decode()

    @contextmanager
    def _progress(self, total):
        """A function that is told how many replies are there: a bar on a terminal, else a line now and then."""
        began = time.monotonic()
        if sys.stderr.isatty() and total > SMALL:
            with tqdm(total=total, desc=f"asking {self.model}", unit=" replies") as bar:

                def show(done):
                    bar.set_postfix_str(str(self.usage), refresh=False)
                    bar.update(done - bar.n)

                yield show
            return

        def show(done):
            now = time.monotonic()
            if now - self._shown >= PAUSE or (done == total > SMALL):
                self._shown = now
                line = f"asking {self.model}: {done:,} of {total:,} replies, {now - began:.0f} s; {self.usage}"
                print(line, file=sys.stderr, flush=True)

        yield show


def _limit(name, given, kind):
    """A limit as it was given, or else as the environment has it; None if there is none."""
    variable = f"EARLIB_LLM_{name.upper()}"
    value = checks.limit(variable, kind) if given is None else given
    if value is not None:
        checks.number(f"{name} (or {variable})", value, least=0, whole=kind is int)
    return value


def _tokens(response):
    """Tokens in and out as the endpoint counted them; None for what it does not say."""
    usage = getattr(response, "usage", None)
    counts = (getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None))
    return tuple(count if type(count) is int and count >= 0 else None for count in counts)


def _read(response):
    """Status, text and finish reason of a reply in whatever form it came."""
    try:
        choice = response.choices[0]
        content, refusal, finish = choice.message.content, choice.message.refusal, choice.finish_reason
    except (AttributeError, IndexError, KeyError, TypeError):
        return "failed", "", None
    if refusal or finish == "content_filter":
        return "refused", str(refusal or content or ""), finish
    if content is not None and not isinstance(content, str):
        return "failed", "", finish
    return ("ok", content, finish) if content and content.strip() else ("empty", "", finish)


def _refused_parameter(error, parameters):
    """The parameter that a 400 or 422 is about, by its old name; None if it is about something else."""
    sent = [name for name in LEARNABLE if name in parameters]
    if error.status_code not in (400, 422) or error.code == "context_length_exceeded":
        return None
    if error.param:
        return error.param if error.param in sent else None
    words = re.findall(r"\w+", str(error.body))
    return next((word for word in words if word in sent), None)
