"""A language model by its name: none, one of this machine's, or one of an OpenAI-compatible endpoint."""

import os
from functools import cache
from urllib.parse import urlsplit

from earlib.llm import NoModel, local
from earlib.llm.client import OPENAI, Client


@cache
def connect(name):
    """Client of a model; nothing is started or asked before a reply is needed that is not stored.

    Parameters
    ----------
    name : str
        "none"; a name of `local.MODELS`, whose server starts when it is needed; or a model of the endpoint in
        `OPENAI_BASE_URL`, by default OpenAI's.

    Returns
    -------
    Client
        The same one for the same name.

    Raises
    ------
    NoModel
        For "none", and by the client's `ask` if a reply is missing and no server is installed.
    ValueError
        As `Client`.
    """
    if name == "none":
        raise NoModel("no language model is asked in this profile (`llm: none`)")
    if name not in local.MODELS:
        return Client(name)
    address = local.address(name)
    served = os.environ.get("OPENAI_BASE_URL") == address  # by `python -m earlib.llm.local NAME COMMAND`
    start = None if served else local.Server(name).start
    # One call at a time: the server would only queue them. A key of the user's is not sent to it.
    return Client(name, address, "none", concurrency=1, timeout=600.0, price=(0.0, 0.0), start=start)


def row_name(name):
    """Name of a model in rows: with its host, unless that is the publisher's, since any server can take any name.

    The publisher's endpoints are OpenAI's and the one that the user declares in `EARLIB_LLM_PUBLISHER`.
    """
    if name == "none" or name in local.MODELS:
        return name
    endpoint = connect(name).endpoint
    declared = os.environ.get("EARLIB_LLM_PUBLISHER", "").strip().rstrip("/")
    return name if endpoint in (OPENAI, declared) else f"{name} at {urlsplit(endpoint).hostname}"


def endpoints(*names):
    """Hosts of models by name, for the provenance of a record; empty where no model is asked."""
    asked = [name for name in dict.fromkeys(names) if name != "none"]
    return {"endpoints": {name: urlsplit(connect(name).endpoint).hostname for name in asked}} if asked else {}


def find(name, **limits):
    """Raise what `ask` would if no reply of a model can be had; nothing is started or downloaded, and nothing costs.

    The limits are those of `Client`; a ValueError if they cannot be kept.
    """
    if name in local.MODELS:
        local.check(name)
    else:
        Client(name, **limits).try_endpoint()


def reply_tokens(name):
    """Initial maximum length of a reply: small models write on and on, others think before they answer."""
    return 128 if name in local.MODELS else 2048
