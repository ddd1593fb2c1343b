"""Every reply is kept in a file that only grows, so that a killed run goes on where it was and pays nothing twice."""

import errno
import fcntl
import hashlib
import json
import os
import threading
import warnings
from contextlib import contextmanager

from earlib.llm import STATUSES, Reply


def key(model, endpoint, request):
    """SHA-256 (hex) of all that decides a reply: model, endpoint, prompt and sampling parameters."""
    if request.temperature is not None:
        request = request._replace(temperature=request.temperature + 0.0)  # 0, 0.0 and -0.0 are the same
    return hashlib.sha256(json.dumps([model, endpoint, request._asdict()], sort_keys=True).encode()).hexdigest()


class Cache:
    """Replies by key, one JSON object a line; safe for threads, and for processes that share the file.

    A line is appended under a lock of the file, with one write, and lies on the disk before its reply is used. What
    a kill leaves of a line is left out with a warning, and cut off by the next append. If two lines hold the same
    key the first counts, in every process and in every later run.

    Parameters
    ----------
    path : Path
        The file; it and its folder are made by the first reply.

    Warns
    -----
    UserWarning
        If lines cannot be read: their requests are asked again.
    """

    def __init__(self, path):
        self.path = path
        self._replies = {}
        self._read = 0  # bytes of whole lines that were read
        self._size = 0  # of the file at the last look, half a line at its end included
        self._safe = 0  # bytes that lie on the disk
        self._lock = threading.Lock()
        self._flushing = threading.Lock()

    def get(self, key):
        """The reply of a key, also if another process has just kept it; None if there is none."""
        with self._lock:
            if key not in self._replies and self.path.exists() and self.path.stat().st_size != self._size:
                with open(self.path, "rb", buffering=0) as file, _locked(file, fcntl.LOCK_SH):
                    self._catch_up(file)
            return self._replies.get(key)

    def put(self, key, reply, **about):
        """Keep a reply; returns the one that counts, which is another process's if that was first.

        Parameters
        ----------
        key : str
        reply : Reply
            Not a failed one.
        **about
            Further fields of the line, for its reader.

        Raises
        ------
        OSError
            If the file cannot be written; the message names it and says how to go on.
        """
        kept = {name: getattr(reply, name) for name in ("status", "text", "prompt_tokens", "completion_tokens")}
        line = json.dumps({"key": key, **about, **kept}).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a+b", buffering=0) as file:
                with self._lock, _locked(file, fcntl.LOCK_EX):
                    self._catch_up(file)
                    if key in self._replies:
                        return self._replies[key]
                    self._append(file, line)
                    self._replies[key] = reply._replace(cached=True)
                    end = self._read
                self._flush(file, end)
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot keep a reply in {self.path}: {error.strerror}; free the disk or set EARLIB_CACHE to another "
                "folder",
            ) from error
        return reply

    def _append(self, file, line):
        file.truncate(self._read)  # half a line that a kill left; nobody writes now, so it will not be completed
        try:
            if file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.truncate(self._read)
            raise
        self._read = self._size = self._read + len(line)

    def _flush(self, file, end):
        """Wait until the disk has the file up to some byte; one flush serves all who wait for it."""
        with self._flushing:
            if self._safe < end:
                written = self._read
                os.fsync(file.fileno())
                self._safe = written

    def _catch_up(self, file):
        """Take up the lines that came since the last look."""
        size = file.seek(0, os.SEEK_END)
        if size < self._read:  # somebody emptied the file
            self._read = self._safe = 0
        file.seek(self._read)
        data = file.readall()  # all of it: what is left unread would be cut off as half a line
        *lines, rest = data.split(b"\n")
        replies = [_parsed(line) for line in lines]
        for found in filter(None, replies):
            self._replies.setdefault(*found)
        self._read += len(data) - len(rest)
        if None in replies:
            self._warn(f"{replies.count(None)} of {len(replies)} lines cannot be read and are left out")
        if rest and size != self._size:
            self._warn("the last line is half written, as a kill leaves it, and is dropped")
        self._size = size

    def _warn(self, problem):
        warnings.warn(f"{self.path}: {problem}; what is missing is asked again", stacklevel=5)


@contextmanager
def _locked(file, kind):
    """A lock among processes, which ends with the file or the process at the latest."""
    fcntl.flock(file, kind)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _parsed(line):
    """Key and reply of a line; None if it holds none."""
    try:
        found = json.loads(line)
        reply = Reply(found["text"], found["status"], found["prompt_tokens"], found["completion_tokens"], cached=True)
        kinds = [type(value) for value in (found["key"], *reply[:4])]
    except (ValueError, KeyError, TypeError):
        return None
    if kinds != [str, str, str, int, int] or reply.status not in STATUSES or reply.status == "failed":
        return None
    return found["key"], reply
