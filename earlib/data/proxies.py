"""The proxies that the environment names, for the clients of data, weights and language models."""

import os
from urllib.parse import urlsplit

PROXIES = ("http_proxy", "https_proxy", "all_proxy")
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def respect_proxies(local=False):
    """Prepare a client for the proxies that the environment names, which HTTP libraries read themselves.

    The loopback never goes through one. Unless the client is of the loopback alone, an address that is none, which a
    library would show with its password, is a ConnectionError.
    """
    named = {name: os.environ[name] for name in os.environ if name.lower() in PROXIES and os.environ[name]}
    for variable, address in named.items():
        if not local and not _is_address(address):
            expected = "scheme://[user:password@]host:port, with special characters percent-encoded"
            raise ConnectionError(f"{variable}: expected {expected} (# is %23, / is %2F)")
    spared = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if named and spared.strip() != "*":
        hosts = [one.strip() for one in spared.split(",") if one.strip()]
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*hosts, *LOOPBACK]))


def _is_address(text):
    """True unless a part of a password would be read as the host, the port or what follows them."""
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        behind = parts.path + parts.query + parts.fragment
        return bool(parts.hostname) and parts.port != 0 and "@" not in behind and "\\" not in text
    except ValueError:
        return False
