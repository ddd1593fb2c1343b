"""Store of replies: a killed run continues where it was and pays for nothing twice."""

import hashlib
import json
import sqlite3
import threading
from contextlib import contextmanager

from earlib.llm import Reply

WAIT = 60.0  # seconds that a process waits for another one's write
TABLE = """CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, model TEXT, endpoint TEXT, status TEXT NOT NULL,
    text TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL) WITHOUT ROWID"""
INSERT = "INSERT OR IGNORE INTO replies VALUES (?, ?, ?, ?, ?, ?, ?)"
SELECT = "SELECT text, status, prompt_tokens, completion_tokens FROM replies WHERE key = ?"


def reply_key(model, endpoint, request):
    """SHA-256 (hex) of all that determines a reply: model, endpoint, prompt and sampling parameters."""
    if request.temperature is not None:
        request = request._replace(temperature=request.temperature + 0.0)  # 0, 0.0 and -0.0 are the same
    return hashlib.sha256(json.dumps([model, endpoint, request._asdict()], sort_keys=True).encode()).hexdigest()


class ReplyStore:
    """Replies by key in an SQLite file, shared by threads and by processes of one machine.

    Each reply is on disk before it is used. Of two replies with the same key the first counts, in every process and
    every later run. The file is created by the first reply. Errors are OSErrors that name the file and the next step.
    """

    def __init__(self, path):
        self.path = path
        self._database, self._lock = None, threading.Lock()

    def get(self, key):
        """Reply of a key; None if there is none."""
        if self._database is None and not self.path.exists():
            return None
        with self._opened() as database:
            found = database.execute(SELECT, (key,)).fetchone()
        return Reply(*found, cached=True) if found else None

    def put(self, key, reply, model=None, endpoint=None):
        """Keep a reply that has not failed, and return the one that counts: another process may have been first."""
        row = key, model, endpoint, reply.status, reply.text, reply.prompt_tokens, reply.completion_tokens
        with self._opened() as database:
            added = database.execute(INSERT, row).rowcount
        return reply if added else self.get(key)

    @contextmanager
    def _opened(self):
        try:
            with self._lock:
                if self._database is None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self._database = sqlite3.connect(self.path, WAIT, isolation_level=None, check_same_thread=False)
                    for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", TABLE):
                        self._database.execute(statement)
                yield self._database
        except (sqlite3.Error, OSError) as error:
            step = "free the disk, restore the file, or set EARLIB_CACHE to another folder"
            raise OSError(f"cannot read or keep a reply in {self.path}: {error}; {step}") from error
