"""Store of replies: a killed run continues where it was and pays for nothing twice."""

import hashlib
import json
import os
import sqlite3
import threading
from contextlib import contextmanager
from typing import Literal

from pydantic import BaseModel

from earlib.llm import Reply

WAIT = 60.0  # seconds that a process waits for another one's write
TABLE = """CREATE TABLE replies (key TEXT PRIMARY KEY, model TEXT, endpoint TEXT, status TEXT NOT NULL,
    text TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL) WITHOUT ROWID"""
INSERT = (
    "INSERT OR IGNORE INTO replies VALUES (:key, :model, :endpoint, :status, :text, :prompt_tokens, :completion_tokens)"  # noqa: E501
)
SELECT = "SELECT text, status, prompt_tokens, completion_tokens FROM replies WHERE key = ?"


class Entry(BaseModel, strict=True):
    """A row of the store."""

    key: str
    model: str | None = None
    endpoint: str | None = None
    status: Literal["ok", "cut", "refused", "empty"]
    text: str
    prompt_tokens: int
    completion_tokens: int


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
        with self._opened("read") as database:
            found = database.execute(SELECT, (key,)).fetchone()
        return Reply(*found, cached=True) if found else None

    def put(self, key, reply, model=None, endpoint=None):
        """Keep a reply that has not failed, and return the one that counts: another process may have been first."""
        entry = Entry(key=key, model=model, endpoint=endpoint, **reply._asdict())
        with self._opened("keep") as database:
            added = database.execute(INSERT, entry.model_dump()).rowcount
        return reply if added else self.get(key)

    @contextmanager
    def _opened(self, purpose):
        try:
            with self._lock:
                if self._database is None:
                    self._database = self._open()
                yield self._database
        except (sqlite3.Error, OSError) as error:
            step = "free the disk or set EARLIB_CACHE to another folder"
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                step = "restore the file, or move it away: what it held is then asked again"
            raise OSError(f"cannot {purpose} a reply in {self.path}: {error}; {step}") from error

    def _open(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        writable = os.access(self.path.parent, os.W_OK)
        address = self.path.absolute().as_uri() + ("" if writable else "?immutable=1")
        database = sqlite3.connect(address, timeout=WAIT, isolation_level=None, check_same_thread=False, uri=True)
        if writable:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("BEGIN IMMEDIATE")
            if not database.execute("PRAGMA user_version").fetchone()[0]:
                database.execute(TABLE)
                database.execute("PRAGMA user_version = 1")
            database.execute("COMMIT")
        return database
