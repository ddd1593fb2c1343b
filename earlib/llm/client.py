"""Client of a language model behind any OpenAI-compatible endpoint: concurrent requests, each paid for once."""

import json
import math
import os
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, NonNegativeInt, PositiveFloat, PositiveInt, SecretStr
from tqdm import tqdm

from earlib import extra, paths
from earlib.data.proxies import LOOPBACK, respect_proxies
from earlib.llm import NoModel, Reply, Unreachable
from earlib.llm.budget import CHARACTERS, PRICES, Budget, LimitReached
from earlib.llm.replies import ReplyStore, reply_key

with extra("llm"):
    import openai

OPENAI = "https://api.openai.com/v1"
DOUBLINGS = 4  # of the token budget of a reply that spent it without any text
CONNECT = 5.0  # seconds that an endpoint may take to be reached
PATIENCE = 10  # failures in a row after which the endpoint is at fault, not a request
SMALL = 10  # requests that need no bar of their progress
LEARNABLE = ("max_tokens", "temperature")  # parameters that some models refuse, by their old names
REFUSALS = ("content_filter", "content_policy_violation", "invalid_prompt")  # codes of endpoints that refuse with a 400
SHORTEST_SECRET = 8  # characters; "none" and "EMPTY", as local servers are given, are no secrets
EXCERPT = 300  # characters shown of an endpoint's own message

Amount = Annotated[float, Field(ge=0)]


class Limits(BaseModel, allow_inf_nan=False, extra="forbid"):
    """How many calls a client makes at once, how long it waits, and what it may spend.

    The limits `max_calls` and `max_cost` are by default those of `EARLIB_LLM_MAX_CALLS` and `EARLIB_LLM_MAX_COST`.
    """

    concurrency: PositiveInt = 16  # open calls
    timeout: PositiveFloat = 60.0  # seconds without a sign of the endpoint
    max_retries: NonNegativeInt = 6  # further attempts after a timeout, a lost connection, a 408, 409, 429 or 5xx
    max_calls: NonNegativeInt | None = None  # attempts; 0: stored replies alone
    max_cost: Amount | None = None  # US dollars
    price: tuple[Amount, Amount] | None = None  # US dollars for a million tokens in and out; of OpenAI's, `PRICES`


class Client:
    """A model at an endpoint. Nothing is opened, and no key is needed, before a reply has to be asked for.

    Parameters
    ----------
    model, base_url, api_key : str, optional
        Defaults `EARLIB_LLM_MODEL`, `OPENAI_BASE_URL` (or OpenAI's endpoint) and `OPENAI_API_KEY`, which only OpenAI's
        endpoint requires. The key is shown and stored nowhere.
    start : callable, optional
        Makes the endpoint ready, before replies are asked for; `ask` raises what it raises.
    **limits
        Fields of `Limits`. Clients that share a file `EARLIB_LLM_LEDGER` count their calls and cost together.

    Attributes
    ----------
    estimating : bool
        True if `EARLIB_LLM_ESTIMATE` names a file: `ask` then calls nothing, appends the expected usage to the file, a
        line a request, and returns failed replies for those that the store lacks.
    """

    def __init__(self, model=None, base_url=None, api_key=None, *, start=None, **limits):
        self.model = model or os.environ.get("EARLIB_LLM_MODEL")
        if not self.model:
            raise ValueError("model: expected a name, found none; give one or set EARLIB_LLM_MODEL")
        self.endpoint = _address(base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI)
        self._key = SecretStr((api_key or os.environ.get("OPENAI_API_KEY") or "").strip())
        wanted = {name: os.environ.get(f"EARLIB_LLM_{name.upper()}") or None for name in ("max_calls", "max_cost")}
        wanted |= {name: value for name, value in limits.items() if value is not None}
        self.limits = limits = Limits(**wanted)
        price = limits.price or (PRICES.get(self.model) if self.endpoint == OPENAI else None)
        if limits.max_cost is not None and price is None:
            raise ValueError(
                f"max_cost (or EARLIB_LLM_MAX_COST): the price of {self.model} at {self.endpoint} is not known; give "
                "price=(US dollars for a million tokens in, out), or limit the run by max_calls"
            )
        self.refused = frozenset()  # parameters that the model turned out to refuse
        self._budget = Budget(limits.max_calls, limits.max_cost, price, os.environ.get("EARLIB_LLM_LEDGER"))
        self._store = ReplyStore(paths.cache() / "llm" / "replies.sqlite")
        self._start = start
        self._notes = os.environ.get("EARLIB_LLM_ESTIMATE")
        self.estimating = bool(self._notes)
        self._api = None  # the library's client, made at the first call
        self._turn = threading.Lock()
        self._from_store = 0

    def __repr__(self):
        return f"Client({self.model!r} at {self.endpoint})"

    @property
    def usage(self):
        """Usage of this client so far."""
        return self._budget.usage(self._from_store)

    def ask(self, requests, store=None):
        """Reply to each request, in order.

        Stored replies are not asked for again, and equal requests are asked once. A reply is stored as soon as it
        arrives. An empty reply that spent its tokens is asked for again with twice as many, `DOUBLINGS` times. Requests
        that fail, or a temperature that the model refuses, give a warning.

        Parameters
        ----------
        requests : sequence of Request
        store : object, optional
            Where replies are kept in place of the cache, with the methods of `ReplyStore`.

        Returns
        -------
        list of Reply

        Raises
        ------
        NoModel, OSError
            If a key is missing, the next call could exceed a limit (LimitReached), or the endpoint refuses the key,
            does not know the model, cannot be reached, or fails `PATIENCE` times in a row (Unreachable); if replies
            cannot be stored or read. Open calls end first and are stored; the message says how to continue.
        """
        names = [reply_key(self.model, self.endpoint, request) for request in requests]
        wanted, store = dict(zip(names, requests, strict=True)), store or self._store
        with self._turn:  # two threads must not ask the same
            replies = {name: reply for name in wanted if (reply := store.get(name))}
            self._from_store += len(replies)
            missing = {name: request for name, request in wanted.items() if name not in replies}
            if self.estimating:
                self._note(wanted, missing)
                replies |= dict.fromkeys(missing, Reply("", "failed", reason="only estimated"))
            elif missing:
                replies |= self._fetch(missing, store)
        return [replies[name] for name in names]

    def _note(self, wanted, missing):
        """Note the expected usage of requests: tokens in from the number of characters, tokens out their maxima."""
        lines = []
        for name, request in wanted.items():
            tokens_in = math.ceil(sum(len(message["content"]) for message in request.messages) / CHARACTERS)
            line = {"key": name, "cached": name not in missing, "in": tokens_in, "out": request.max_tokens}
            lines.append(json.dumps(line | {"cost": self._budget.cost(tokens_in, request.max_tokens)}) + "\n")
        with open(self._notes, "ab", buffering=0) as file:  # one write, so that other clients' lines stay whole
            file.write("".join(lines).encode())

    def _fetch(self, missing, store):
        """Replies that the store lacks, by key. The first request goes alone: it shows whether the others can."""
        if self._start is not None:
            self._start()
        self._open()
        replies, in_a_row, names, pool = {}, 0, list(missing), ThreadPoolExecutor(self.limits.concurrency)
        bar = tqdm(desc=f"asking {self.model}", total=len(missing), unit=" replies", disable=len(missing) <= SMALL)
        try:
            for group in (names[:1], names[1:]):
                futures = {pool.submit(self._one, name, missing[name], store): name for name in group}
                for future in as_completed(futures):
                    reply = replies[futures[future]] = future.result()
                    self._from_store += reply.cached
                    bar.set_postfix_str(str(self.usage), refresh=False)
                    bar.update()
                    in_a_row = in_a_row + 1 if reply.status == "failed" else 0
                    if in_a_row == PATIENCE:
                        raise Unreachable(f"{PATIENCE} failures in a row, the last: {reply.reason}")
        except (LimitReached, OSError) as error:
            pool.shutdown(cancel_futures=True)
            kept = sum(store.get(name) is not None for name in missing)
            raise type(error)(
                f"{error}. {self!r}: {self.usage}; of {len(missing)} replies {kept} came and are kept in "
                f"{store.path}. Run again, with a higher limit if one was reached: only the rest is asked"
            ) from None
        finally:  # also after an interrupt open calls end and are stored, and none starts
            pool.shutdown(cancel_futures=True)
            bar.close()
        failed = [reply for reply in replies.values() if reply.status == "failed"]
        if failed:
            warnings.warn(
                f"{self!r}: {len(failed)} of {len(missing)} requests failed, the last: {failed[-1].reason}; they are "
                "not kept, and the next run asks them again",
                stacklevel=3,
            )
        return replies

    def _one(self, name, request, store):
        if kept := store.get(name):  # another process may have asked meanwhile
            return kept
        reply = self._converse(request)
        return reply if reply.status == "failed" else store.put(name, reply, self.model, self.endpoint)

    def _converse(self, request):
        """Reply to a request, with more tokens if necessary."""
        paid = (0, 0)
        for doubling in range(DOUBLINGS + 1):
            try:
                response = self._send(request, request.max_tokens << doubling)
            except LimitReached:
                raise
            except Exception as error:  # of the client library and of those below it
                self._budget.settle()
                return self._failure(error)
            usage = getattr(response, "usage", None)
            tokens = [getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens")]
            self._budget.settle(*tokens)
            paid = [before + (new or 0) for before, new in zip(paid, tokens, strict=True)]
            status, text, finish = _read(response)
            if status != "empty" or finish != "length":
                break
        told = getattr(response, "error", response)  # some endpoints send an error as if it were a success
        reason = f"the reply is unreadable: {self._clean(str(told))[:EXCERPT]}" if status == "failed" else ""
        return Reply(self._clean(text), status, *paid, reason=reason)

    def _send(self, request, max_tokens):
        """Response to a call without the parameters that the model refuses; a refusal is remembered after a success."""
        self._budget.expect(request, max_tokens)
        refused = self.refused
        while True:
            # The old name goes first: some servers silently ignore the new one and never stop writing.
            name = "max_completion_tokens" if "max_tokens" in refused else "max_tokens"
            parameters = {"model": self.model, "messages": request.messages, name: max_tokens}
            if request.temperature is not None and "temperature" not in refused:
                parameters["temperature"] = request.temperature
            try:
                response = self._api.chat.completions.create(**parameters)
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                named = {name for name in LEARNABLE if name in parameters and name in f"{error} {error.body}"}
                if not named:
                    raise
                refused |= named
                continue
            if "temperature" in refused - self.refused:
                warnings.warn(f"{self!r} refuses a temperature; the model's own is used", stacklevel=2)
            self.refused |= refused
            return response

    def try_endpoint(self):
        """Ask the endpoint for its list of models, which costs nothing; a NoModel if no reply could be asked for."""
        self._open()
        try:
            self._api.with_options(max_retries=0, timeout=CONNECT).get("/models", cast_to=str)
        except openai.APIError as error:
            if getattr(error, "status_code", None) in (None, 401, 403):  # None: no answer
                self._failure(error)

    def _open(self):
        if self._api is not None:
            return
        local = urlsplit(self.endpoint).hostname in LOOPBACK  # such a client reads no proxies at all
        respect_proxies(local)
        key = self._key.get_secret_value()
        if not key and self.endpoint == OPENAI:
            raise NoModel(f"api_key: {OPENAI} needs one, found none; set OPENAI_API_KEY")
        hooks = {"request": [self._budget.before], "response": [self._budget.after]}
        self._api = openai.OpenAI(
            api_key=key or "none",
            base_url=self.endpoint,
            timeout=openai.Timeout(self.limits.timeout, connect=min(CONNECT, self.limits.timeout)),
            max_retries=self.limits.max_retries,
            http_client=openai.DefaultHttpxClient(event_hooks=hooks, trust_env=not local),
        )
        weakref.finalize(self, self._api.close)

    def _failure(self, error):
        """Failed reply for an error of the library, without secrets; Unreachable if the run must end."""
        reason, status = f"the reply is unreadable ({type(error).__name__})", "failed"
        if isinstance(error, openai.APIStatusError):
            if error.status_code in (401, 403):  # some endpoints show a part of the key in this message
                raise Unreachable(f"{self.endpoint} refuses the key ({error.status_code}); check OPENAI_API_KEY")
            reason = self._clean(error.message)[:EXCERPT]
            if error.status_code == 404:
                raise Unreachable(f"{self.endpoint} does not know {self.model!r} or the address ({reason})")
            status = "refused" if error.code in REFUSALS else "failed"
        elif isinstance(error, openai.APITimeoutError):
            reason = f"no reply within {self.limits.timeout:g} s"
        elif isinstance(error, openai.APIConnectionError):
            cause = type(error.__cause__).__name__
            if cause == "ConnectError":  # of the HTTP library
                raise Unreachable(f"{self.endpoint} cannot be reached; is the server running?")
            reason = f"the connection was lost ({cause})"
        return Reply("", status, reason=reason)

    def _clean(self, text):
        """Text of an endpoint without the key and without characters that are not Unicode."""
        key = self._key.get_secret_value()
        text = text.replace(key, "[secret]") if len(key) >= SHORTEST_SECRET else text
        return text.encode(errors="replace").decode()


def _address(base_url):
    """Endpoint as it is compared and shown."""
    parts = urlsplit(base_url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise ValueError(
            "base_url (or OPENAI_BASE_URL): expected an address such as http://127.0.0.1:8000/v1, without a login or a "
            "query; the value is not shown, since it may hold a password"
        )
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def _read(response):
    """Status, text and finish reason of a response of any form."""
    try:
        choice = response.choices[0]
        content, refusal, finish = choice.message.content, choice.message.refusal, choice.finish_reason
    except (AttributeError, IndexError, KeyError, TypeError):
        return "failed", "", None
    if refusal or finish == "content_filter":
        return "refused", str(refusal or content or ""), finish
    if content is not None and not isinstance(content, str):
        return "failed", "", finish
    if not content or not content.strip():
        return "empty", "", finish
    return "cut" if finish == "length" else "ok", content, finish
