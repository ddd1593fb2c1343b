"""Publishers' files, found in the search path or downloaded, and never used without their checksum."""

import os
import sys
from importlib import resources
from typing import NamedTuple

import pooch

from earlib import paths
from earlib.data import own
from earlib.data.proxies import respect_proxies


class Unavailable(OSError):
    """A data file that is neither on this machine nor downloadable; one line gives the reason and the next step."""


class File(NamedTuple):
    """A file as its publisher gives it out."""

    url: str
    sha256: str
    licence: str


FILES = paths.read_yaml(resources.files("earlib.data").joinpath("files.yaml"))
FILES = {name: File(**entry) for name, entry in FILES.items()}


def fetch(name, timeout=5.0):
    """Path of one of `FILES`, its checksum verified: from the search path, else downloaded to its last folder.

    An unknown name, or a file on this machine with another checksum (neither used nor overwritten), is a ValueError;
    a failed download is `Unavailable`. There is one attempt; the server may be silent for `timeout` seconds at a time.
    """
    if name not in FILES:
        raise own.unknown("data file", name, FILES)
    return obtain(name, FILES[name], paths.data_folders(), "EARLIB_DATA", timeout)


def obtain(name, file, folders, variable, timeout=5.0):
    """Path of any `File` in the folders, as `fetch`; the message names the variable that sets the first of them."""
    for folder in folders:
        path = folder / name
        if path.exists():
            own.verify(path, file.sha256, file.url)
            return path
    # pooch writes to a temporary file in the same folder, checks the hash, and only then renames it.
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=1 << 18, timeout=timeout)
    pooch.get_logger().setLevel("WARNING")  # the line below replaces its own
    try:
        respect_proxies()
        pooch.retrieve(file.url, f"sha256:{file.sha256}", fname=name, path=folders[-1], downloader=downloader)
        os.chmod(folders[-1] / name, 0o644)
        print(f"downloaded {name} ({file.licence}) from {file.url}", file=sys.stderr)
    except (OSError, ValueError) as error:  # of requests, of the disk, or for bytes with another checksum
        known = " or ".join(str(folder) for folder in folders)
        raise Unavailable(
            f"{name} cannot be had: {error}. Put the file from {file.url} (SHA-256 {file.sha256}) into {known}, "
            f"or name its folder in the environment variable {variable}"
        ) from error
    return folders[-1] / name


def main():
    """`python -m earlib.data.download`: fetch all files and print their paths."""
    try:
        for name in FILES:
            print(fetch(name), flush=True)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
