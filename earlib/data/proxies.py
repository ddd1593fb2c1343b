"""The proxies that the environment names, for the clients of data, weights and language models."""

import importlib.util
import os

PROXIES = ("http_proxy", "https_proxy", "all_proxy")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
MODULES = {"pysocks": "socks", "socksio": "socksio"}  # for SOCKS: of requests, and of the hub's and OpenAI's clients


def respect_proxies(package=None):
    """Prepare a client for the proxies that the environment names, which HTTP libraries read themselves.

    The loopback never goes through one. A ConnectionError if there is a SOCKS proxy and not the `package` by which the
    client's library speaks to it; a client of the loopback alone needs none.
    """
    named = {name: os.environ[name] for name in os.environ if name.lower() in PROXIES and os.environ[name]}
    for variable, address in named.items():
        scheme = address.partition(":")[0].lower()
        if package and scheme.startswith("socks") and importlib.util.find_spec(MODULES[package]) is None:
            raise ConnectionError(f"{variable} names a {scheme} proxy, which needs a package: pip install {package}")
    spared = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if named and spared.strip() != "*":
        hosts = [one.strip() for one in spared.split(",") if one.strip()]
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*hosts, *LOOPBACK]))
