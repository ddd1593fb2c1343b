"""The one cache: named arrays that can be computed again, by kind and key; no entry is trusted unless verified.

An entry is the file `KIND/KEY.safetensors` of the cache folder; its header contains its key and the SHA-256 of its
content.
"""

import hashlib
import json
import shutil
import sys
import warnings
from contextlib import contextmanager

import numpy as np
import safetensors.numpy
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open

from earlib import paths


def content_hash(content):
    """SHA-256 (hex) of values that JSON can represent, which serves as a key."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def load(kind, key):
    """The arrays of an entry, `{name: array}`; None if it is missing, or unusable, which is a warning."""
    if not holds(kind, key):
        return None
    try:
        with safe_open(_place(kind, key), framework="numpy") as file:
            header, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if header != _header(kind, key, arrays):
            raise ValueError("its header does not match its name or its content")
        return arrays
    except Exception as error:  # a damaged file makes the reader raise errors of many types
        warnings.warn(f"{_place(kind, key)}: unusable ({error}); its content is computed again", stacklevel=3)
        return None


def holds(kind, key):
    """True if there is an entry, which may yet be unusable."""
    return _place(kind, key).exists()


def save(kind, key, arrays):
    """Write an entry; a cache that cannot be written is a warning."""
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        with paths.replacing(_place(kind, key)) as file:  # written from where the arrays lie: a copy may be gigabytes
            safetensors.numpy.save_file(arrays, file.name, _header(kind, key, arrays))
    except (OSError, SafetensorError) as error:
        problem = error if isinstance(error, OSError) else f"cannot write {_place(kind, key)}: {error}"
        message = f"{problem}; its content is used but not kept; free the disk or set EARLIB_CACHE to another folder"
        warnings.warn(message, stacklevel=3)


def remove_parts(kind, key):
    """Remove all entries whose keys are KEY/..., which hold parts of an entry while it is unfinished."""
    shutil.rmtree(_place(kind, key).with_suffix(""), ignore_errors=True)


@contextmanager
def lock(kind, key, doing):
    """Let one process at a time compute an entry; where the cache cannot be locked, none waits for another.

    `doing` describes the work in the message that is printed while waiting.
    """
    held = FileLock(paths.cache() / "locks" / f"{kind}-{key}.lock")  # the library leaves the empty file there
    try:
        held.acquire(blocking=False)
    except Timeout:
        print(f"{doing}: another process is at the same work; waiting for it", file=sys.stderr, flush=True)
        held.acquire()
    except OSError:
        pass
    try:
        yield
    finally:
        held.release()


def _place(kind, key):
    return paths.cache() / kind / f"{key}.safetensors"


def _header(kind, key, arrays):
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array)
    return {"key": f"{kind}/{key}", "content": digest.hexdigest()}
