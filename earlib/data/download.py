"""The publishers' files: found in the search path or downloaded, and never used without their checksum."""

import contextlib
import os
import sys
import threading
from dataclasses import dataclass
from urllib.parse import urlsplit

import pooch
import requests

from earlib import paths
from earlib.core.config import near


class Unavailable(OSError):
    """A data file is neither at hand nor to be had; the message is one line with the reason and the next step."""


@dataclass(frozen=True)
class File:
    """A file as its publisher gives it out."""

    url: str
    sha256: str
    licence: str


FILES = {
    "locomo10.json": File(
        url="https://raw.githubusercontent.com/snap-research/locomo/"
        "3eb6f2c585f5e1699204e3c3bdf7adc5c28cb376/data/locomo10.json",
        sha256="79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4",
        licence="CC BY-NC 4.0",
    ),
    "longmemeval_s_cleaned.json": File(
        url="https://huggingface.co/datasets/xiaowu0162/longmemeval-cleaned/resolve/"
        "98d7416c24c778c2fee6e6f3006e7a073259d48f/longmemeval_s_cleaned.json",
        sha256="d6f21ea9d60a0d56f34a05b609c79c88a451d2ae03597821ea3d5a9678c3a442",
        licence="MIT",
    ),
    "longmemeval_s.json": File(  # its publisher calls it longmemeval_s
        url="https://huggingface.co/datasets/xiaowu0162/longmemeval/resolve/"
        "2ec2a557f339b6c0369619b1ed5793734cc87533/longmemeval_s",
        sha256="08d8dad4be43ee2049a22ff5674eb86725d0ce5ff434cde2627e5e8e7e117894",
        licence="MIT",
    ),
}


def fetch(name, timeout=5.0):
    """Path of a data file with the pinned checksum: from the search path, else downloaded to its last folder.

    Parameters
    ----------
    name : str
        One of `FILES`.
    timeout : float
        Seconds that the publisher's server may stay silent, at first contact and later; there is one attempt.

    Returns
    -------
    Path

    Raises
    ------
    ValueError
        For an unknown name, or a file at hand with another checksum (it is neither used nor overwritten).
    Unavailable
        If it has to be downloaded and cannot be: no network, no answer, wrong bytes, a folder without room.
    """
    if name not in FILES:
        raise ValueError(f"unknown data file {name!r}{near(name, FILES)}; known: {', '.join(FILES)}")
    return obtain(name, FILES[name], paths.data_folders(), "EARLIB_DATA", timeout)


def obtain(name, file, folders, variable, timeout=5.0):
    """Path of any publisher's file; as `fetch`, which says what is raised.

    Parameters
    ----------
    name : str
        As it is called in the folders.
    file : File
    folders : list of Path
        Searched in order; the last one receives a download.
    variable : str
        The environment variable that names the first of them, for the message.
    timeout : float
        Seconds, as in `fetch`.
    """
    for folder in folders:
        if (folder / name).exists():
            return _verified(folder / name, file)
    try:
        return _download(name, file, folders[-1], timeout)
    except OSError as error:
        known = " or ".join(str(folder) for folder in folders)
        raise Unavailable(
            f"{name} cannot be had: {error}. Put the file from {file.url} (SHA-256 {file.sha256}) into {known}, "
            f"or name its folder in the environment variable {variable}"
        ) from error


def _verified(path, file):
    try:
        found = pooch.file_hash(str(path), alg="sha256")
    except OSError as error:
        raise OSError(error.errno, f"cannot read {path}: {error.strerror}") from error
    if found != file.sha256:
        raise ValueError(
            f"{path}: wrong checksum: expected SHA-256 {file.sha256}, found {found}; "
            f"remove the file to download it again, or put the one from {file.url} in its place"
        )
    return path


def _download(name, file, folder, timeout):
    # pooch writes to a temporary file in the same folder, checks the hash, and only then renames it.
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=1 << 18, timeout=timeout)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        in_time(lambda: requests.head(file.url, timeout=timeout).close(), timeout)
        print(f"downloading {name} ({file.licence}) from {file.url}", file=sys.stderr)
        with _quiet(pooch.get_logger()):
            pooch.retrieve(file.url, f"sha256:{file.sha256}", fname=name, path=folder, downloader=downloader)
        os.chmod(folder / name, 0o644)
    except (requests.RequestException, TimeoutError) as error:
        raise Unavailable(_reason(error, file.url, timeout)) from error
    except ValueError as error:
        raise Unavailable(f"the bytes received do not have the SHA-256 {file.sha256}; nothing was kept") from error
    except OSError as error:
        raise Unavailable(f"cannot write to the folder {folder}: {error.strerror or error}") from error
    return folder / name


def in_time(ask, seconds):
    """Call, and raise what it raises, or a TimeoutError once the time is up.

    The timeout of a connection covers neither the look-up of a name nor a host with many addresses, so the question
    is asked in a thread that may be left behind.
    """
    outcome = [TimeoutError(f"no answer within {seconds:g} s")]

    def answer():
        try:
            ask()
            outcome[0] = None
        except Exception as error:
            outcome[0] = error

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    thread.join(seconds)
    failure = outcome[0]
    if failure:
        raise failure


@contextlib.contextmanager
def _quiet(logger):
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)


def _reason(error, url, timeout):
    host = urlsplit(url).hostname
    if isinstance(error, requests.HTTPError):
        return f"{host} answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout | TimeoutError):
        return f"no answer from {host} within {timeout:g} s"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return f"the download from {host} broke off; nothing was kept"
    if "timed out" in str(error):  # a stall in the body is reported as a plain ConnectionError
        return f"{host} stopped sending for {timeout:g} s; nothing was kept"
    return f"no connection to {host} ({_root(error)})"


def _root(error):
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return getattr(error, "strerror", None) or error


def main():
    """`python -m earlib.data.download`: fetch every file and say where it lies."""
    try:
        for name in FILES:
            print(fetch(name), flush=True)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
