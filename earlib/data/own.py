"""The user's own datasets and encoders: names that identify their content without their place, and entry points.

A file or a folder is named `LABEL@HASH`, with the first digits of the SHA-256 of its content, a model of the hub
`OWNER/NAME@COMMIT`. Their places stand in `EARLIB_OWN`, which the processes that this one starts inherit. An unknown
name, or a file with another checksum than the one on record, is refused here, whoever published it.
"""

import hashlib
import json
import os
from functools import cache
from importlib import metadata
from pathlib import Path

from earlib.core.config import near

VARIABLE = "EARLIB_OWN"


def place(name):
    """Path of the file or folder that this process, or one that started it, gave a name; None if none has it."""
    path = _places().get(name)
    return path and Path(path)


def remember(name, path):
    """The name, by which this process and those that it starts find the path from now on."""
    os.environ[VARIABLE] = json.dumps(_places() | {name: str(path)})
    return name


def _places():
    return json.loads(os.environ.get(VARIABLE) or "{}")


def named(label, digest):
    """The name of a content, by its label and its SHA-256."""
    return f"{label}@{digest[:12]}"


def label(name):
    """The part of a name that people gave."""
    return name.rpartition("@")[0]


def looks_like_a_path(text):
    """True for what a command line means as a file or a folder, not as a name that the package knows."""
    return "/" in text or os.sep in text or absolute(text).exists()


def absolute(text):
    """The absolute path that a command line means; a link keeps its own name, by which people know its content."""
    path = Path(os.path.expanduser(text)).absolute()
    return path.resolve() if path.name == ".." else path


def file_hash(path):
    """SHA-256 (hex) of a file; one that was not written to meanwhile is read once in a process."""
    status = os.stat(path)
    return _file_hash(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@cache
def _file_hash(path, *_):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(path, expected, source):
    """Refuse a file with another SHA-256 than the expected one; `source` says where the right one comes from."""
    if (found := file_hash(path)) != expected:
        told = f"{path}: wrong checksum: expected SHA-256 {expected} ({source}), found {found}"
        raise ValueError(f"{told}; remove the file to download it again, or put the publisher's there")


@cache
def packaged(group):
    """Entry points `earlib.GROUP` ("datasets" or "encoders") of the installed packages, by name."""
    return {one.name: one for one in metadata.entry_points(group=f"earlib.{group}")}


def unknown(what, name, known, *further):
    """ValueError for a name that nothing has: those that resemble it, all that are known, and what else could be."""
    return ValueError(f"unknown {what} {name!r}{near(name, known)}; known: {', '.join([*known, *further])}")


def load_packaged(group, name):
    """Function that an installed package offers under a name; a ValueError names the package that cannot be loaded."""
    entry = packaged(group)[name]
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name} of the package {entry.dist.name} ({entry.value}): {error}") from error
