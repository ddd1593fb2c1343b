"""Publishers' files, found in the search path or downloaded, and never used without their checksum."""

import os
import sys
from concurrent.futures import Future, wait
from importlib import resources
from threading import Thread
from typing import NamedTuple
from urllib.parse import urlsplit

import pooch
import requests
import yaml

from earlib import paths
from earlib.core.config import near
from earlib.data.proxies import respect_proxies


class Unavailable(OSError):
    """A data file that is neither on this machine nor downloadable; one line gives the reason and the next step."""


class File(NamedTuple):
    """A file as its publisher gives it out."""

    url: str
    sha256: str
    licence: str


FILES = yaml.safe_load(resources.files("earlib.data").joinpath("files.yaml").read_text(encoding="utf-8"))
FILES = {name: File(**entry) for name, entry in FILES.items()}


def fetch(name, timeout=5.0):
    """Path of one of `FILES`, its checksum verified: from the search path, else downloaded to its last folder.

    An unknown name, or a file on this machine with another checksum (neither used nor overwritten), is a ValueError;
    a failed download is `Unavailable`. There is one attempt; the server may be silent for `timeout` seconds at a time.
    """
    if name not in FILES:
        raise ValueError(f"unknown data file {name!r}{near(name, FILES)}; known: {', '.join(FILES)}")
    return obtain(name, FILES[name], paths.data_folders(), "EARLIB_DATA", timeout)


def obtain(name, file, folders, variable, timeout=5.0):
    """Path of any `File` in the folders, as `fetch`; the message names the variable that sets the first of them."""
    for folder in folders:
        path = folder / name
        if path.exists():
            found = pooch.file_hash(str(path), alg="sha256")
            if found != file.sha256:
                raise ValueError(
                    f"{path}: wrong checksum: expected SHA-256 {file.sha256}, found {found}; "
                    f"remove the file to download it again, or replace it with the one from {file.url}"
                )
            return path
    try:
        return _download(name, file, folders[-1], timeout)
    except OSError as error:
        known = " or ".join(str(folder) for folder in folders)
        raise Unavailable(
            f"{name} cannot be had: {error}. Put the file from {file.url} (SHA-256 {file.sha256}) into {known}, "
            f"or name its folder in the environment variable {variable}"
        ) from error


def _download(name, file, folder, timeout):
    # pooch writes to a temporary file in the same folder, checks the hash, and only then renames it.
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=1 << 18, timeout=timeout)
    pooch.get_logger().setLevel("WARNING")  # the line below replaces its own
    respect_proxies("pysocks")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        in_time(lambda: requests.head(file.url, timeout=timeout).close(), timeout)
        print(f"downloading {name} ({file.licence}) from {file.url}", file=sys.stderr)
        pooch.retrieve(file.url, f"sha256:{file.sha256}", fname=name, path=folder, downloader=downloader)
        os.chmod(folder / name, 0o644)
    except (requests.RequestException, TimeoutError) as error:
        raise Unavailable(_reason(error, urlsplit(file.url).hostname, timeout)) from error
    except ValueError as error:
        raise Unavailable(f"the bytes received do not have the SHA-256 {file.sha256}; nothing was kept") from error
    except OSError as error:
        raise Unavailable(f"cannot write to the folder {folder}: {error.strerror or error}") from error
    return folder / name


def in_time(call, seconds):
    """Result of a call, or a TimeoutError.

    The timeout of a connection covers neither name resolution nor a host with several addresses, hence a thread, which
    is left behind.
    """
    answer = Future()

    def ask():
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    Thread(target=ask, daemon=True).start()
    if wait([answer], seconds).not_done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answer.result()


def _reason(error, host, timeout):
    if isinstance(error, requests.HTTPError):
        return f"{host} answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout | TimeoutError):
        return f"no answer from {host} within {timeout:g} s"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return f"the download from {host} broke off; nothing was kept"
    if "timed out" in str(error):  # a stall in the body is reported as a plain ConnectionError
        return f"{host} stopped sending for {timeout:g} s; nothing was kept"
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return f"no connection to {host} ({getattr(error, 'strerror', None) or error})"


def main():
    """`python -m earlib.data.download`: fetch all files and print their paths."""
    try:
        for name in FILES:
            print(fetch(name), flush=True)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
