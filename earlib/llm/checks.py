"""What comes from outside - requests, an address, a key, numbers - checked before anything is sent."""

import math
import os
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from earlib.llm import Request


def checked(requests):
    """The requests as a list, if each can be sent."""
    if isinstance(requests, Request):
        raise ValueError("requests: expected a sequence of Request, found a single one; put it into a list")
    requests = list(requests)
    for position, request in enumerate(requests):
        place = f"requests[{position}]"
        if not isinstance(request, Request):
            raise ValueError(f"{place}: expected a Request, found {type(request).__name__}")
        if not isinstance(request.messages, list) or not request.messages:
            raise ValueError(f"{place}.messages: expected a list of messages, found {str(request.messages)[:60]!r}")
        for message in request.messages:
            if not isinstance(message, dict) or message.keys() != {"role", "content"} or not _are_texts(message):
                raise ValueError(
                    f"{place}.messages: expected a role and a content, both text, found {ascii(message)[:120]}"
                )
        number(f"{place}.max_tokens", request.max_tokens, least=1, whole=True)
        number(f"{place}.sample", request.sample, least=0, whole=True)
        if request.temperature is not None:
            number(f"{place}.temperature", request.temperature, least=0)
    return requests


def _are_texts(message):
    try:
        return all(isinstance(text, str) and text.encode() is not None for text in message.values())
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def number(name, value, least, whole=False):
    """Raise a ValueError unless a value is a number from some least one on."""
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < math.inf:
        raise ValueError(f"{name}: expected {'a whole number' if whole else 'a number'} from {least}, found {value!r}")


def limit(variable, kind):
    """A limit from the environment; None if it is not set."""
    text = os.environ.get(variable)
    try:
        return kind(text) if text else None
    except ValueError:
        raise ValueError(f"{variable}: expected a number, found {text!r}") from None


def address(base_url):
    """Endpoint without credentials, and the credentials, "user:password" or ""; all but the endpoint as a SecretStr."""
    found = _split(base_url)
    if found is None:
        raise ValueError(
            "base_url (or OPENAI_BASE_URL): expected an address such as http://127.0.0.1:8000/v1, without a query; "
            "what was found is not shown, since it may hold a password"
        )
    return found


def _split(base_url):
    try:
        parts = urlsplit(base_url.get_secret_value().strip())
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            return None
    except ValueError:  # its message may hold the password
        return None
    if parts.query or parts.fragment:
        return None
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    endpoint = f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}{parts.path.rstrip('/')}"
    return endpoint, SecretStr(login)


def api_key(key):
    """A key that can stand in a header, as a SecretStr."""
    key = SecretStr(key.get_secret_value().strip())
    if not all("!" <= character <= "~" for character in key.get_secret_value()):
        raise ValueError("api_key (or OPENAI_API_KEY): expected printable ASCII without spaces, found something else")
    return key
