"""The folder of a memory: a SQLite database with a snapshot of its state, and every change since.

A change is on the disk before it takes effect. A snapshot replaces the one before it, and the changes behind that, in
one transaction, so that a kill or a power cut at any moment leaves the old snapshot with its changes or the new one.
"""

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from filelock import FileLock, Timeout
from pydantic import Field

from earlib.core.config import Checked, Config
from earlib.memory.snapshot import Memory

NAME, LOCK, APPLICATION = "memory.sqlite", "memory.lock", 0x45415221  # "EAR!", in the file's header
VERSION, COLUMNS = 4, {3: 3, 4: 5}  # columns that the checksum of a snapshot covers, by the versions that can be read
SCHEMA = {
    "state": "plain TEXT NOT NULL, sha256 TEXT NOT NULL",
    "memories": "position INTEGER PRIMARY KEY, id TEXT NOT NULL, text TEXT NOT NULL, vector BLOB NOT NULL, "
    "namespace TEXT NOT NULL DEFAULT '', metadata TEXT NOT NULL DEFAULT '{}', created_at REAL NOT NULL",
    "tensors": "name TEXT PRIMARY KEY, content BLOB NOT NULL",
    "changes": "number INTEGER PRIMARY KEY, kind TEXT NOT NULL, plain TEXT NOT NULL, arrays BLOB NOT NULL, "
    "sha256 TEXT NOT NULL, created_at REAL NOT NULL",
}
STATE = "SELECT plain, sha256 FROM state"
MEMORIES = "SELECT id, text, created_at, namespace, metadata, vector FROM memories ORDER BY position"
INSERT = "INSERT INTO memories (id, text, created_at, namespace, metadata, vector) VALUES (?, ?, ?, ?, ?, ?)"
TENSORS = "SELECT name, content FROM tensors ORDER BY name"
CHANGES = "SELECT number, kind, plain, arrays, sha256 FROM changes ORDER BY number"


class State(Checked):
    """The part of a snapshot beside memories and tensors."""

    config: Config
    words: bool
    encoder: str | None  # fingerprint and name of one of the registry; none of a callable
    encoder_name: str | None
    seed: int = Field(ge=0)
    dtype: Literal["float32", "float64"]
    experiences: int = Field(ge=1)
    dimension: int | None  # d; none before the first memory
    known: int = Field(ge=0)
    next: int = Field(ge=0)
    # What folders of earlier versions lack: they hold memories with an adapter, and no snapshots of what was learned.
    weights: bool = False
    features: list[float] | None = None  # of a fixed question and text, by which the callable is recognised
    replies: list[dict[str, Any]] = []  # arguments of `MemoryState.answer`
    snapshots: dict[str, int] = {}  # feedbacks that each had learned from
    context: str | None = None  # key of the metadata that tells sessions apart; left out where there is none


Memories = tuple[list[Memory], np.ndarray]  # all of them, and their embeddings [M, d]
Change = tuple[str, dict[str, Any]]  # the name of a method of `MemoryState`, and its arguments


class UnsavedError(ValueError):
    """No memory was ever saved in the folder to its end."""


class MemoryFolder:
    """The folder of one memory, which no other memory may have open at the same time.

    Raises ValueError if it holds no memory or something else, BlockingIOError if it is open already, and OSError if it
    cannot be written.

    Attributes
    ----------
    changes : int
        Number of changes since the snapshot.
    """

    def __init__(self, path: Path, create: bool = False):
        self.path, self.file, self.changes = path, path / NAME, 0
        if create:
            path.mkdir(parents=True, exist_ok=True)
            foreign = sorted(set(os.listdir(path)) - {LOCK})
            if foreign and not self.file.exists():
                told = f"holds {foreign[0]!r} and no {NAME}; expected an empty folder, or one that `save` wrote"
                raise ValueError(f"{path}: {told}")
        elif not self.file.exists():
            raise UnsavedError(f"{path}: expected a folder that `save` has written; there is no {NAME}")
        self._files: dict[Path, int] = {}  # inodes of the files that this memory opened
        self._lock = FileLock(path / LOCK, thread_local=False)  # let go in a forked process, and with this object
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            told = "open in another memory; close() that one first, or choose another folder"
            raise BlockingIOError(f"{path}: {told}") from None
        self._connection = sqlite3.connect(self.file, isolation_level=None, check_same_thread=False)
        try:
            self._open(create)
        except BaseException:
            self.close()
            raise

    def _open(self, create: bool) -> None:
        """Refuse a database that is no memory's, and let every later change be on the disk once it is made."""
        with self._reading():
            tables = self._value("SELECT count(*) FROM sqlite_master")
            application, version = self._value("PRAGMA application_id"), self._value("PRAGMA user_version")
        if tables and application != APPLICATION:
            raise ValueError(f"{self.file}: not a memory's; expected an empty folder, or one that `save` wrote")
        if not (tables or create):
            raise UnsavedError(f"{self.path}: expected a folder that `save` has written; {NAME} is empty")
        if tables and version not in COLUMNS and not create:
            told = f"version {version}: expected {VERSION}; add the texts that it holds to a new memory"
            raise ValueError(f"{self.file}: {told}")
        with self._writing():
            for setting in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
                self._connection.execute(f"PRAGMA {setting}")
            self._value("SELECT count(*) FROM sqlite_master")  # makes the log's file
        files = (self.path / LOCK, self.file, self.path / f"{NAME}-wal")
        self._files = {file: file.stat().st_ino for file in files}
        self._seen = self._value("PRAGMA data_version")  # which another's commit changes

    def write(self, plain: dict, memories: Memories, tensors: dict[str, torch.Tensor]) -> None:
        """Replace the snapshot, and drop the changes behind it.

        Parameters
        ----------
        plain : dict
            As `State`.
        memories : tuple
            All of them, and their embeddings, `[M, d]` float16.
        tensors : dict of torch.Tensor

        Raises
        ------
        OSError
            If it cannot be written; the snapshot and changes of before stay.
        """
        state = json.dumps(plain, ensure_ascii=False)
        rows = [
            (json.dumps(one.id), one.text, one.created_at, one.namespace, json.dumps(one.metadata), vector.tobytes())
            for one, vector in zip(*memories, strict=True)
        ]
        contents = [(name, safetensors.torch.save({name: tensors[name]})) for name in sorted(tensors)]
        with self._transaction() as database:
            for table, columns in SCHEMA.items():
                database.execute(f"DROP TABLE IF EXISTS {table}")
                database.execute(f"CREATE TABLE {table} ({columns})")
            database.executemany(INSERT, rows)
            database.executemany("INSERT INTO tensors VALUES (?, ?)", contents)
            database.execute("INSERT INTO state VALUES (?, ?)", (state, snapshot_checksum(state, rows, contents)))
            database.execute(f"PRAGMA application_id = {APPLICATION}")
            database.execute(f"PRAGMA user_version = {VERSION}")
        self.changes = 0
        with suppress(sqlite3.Error):  # the snapshot is on the disk already; else the next checkpoint moves it
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # leaves no text of before in the log

    def read(self) -> tuple[State, Memories, dict[str, torch.Tensor], list[Change]]:
        """Return the snapshot (plain part, memories, tensors) and the changes since.

        Raises ValueError if something is damaged or missing; the file and the field or change are named.
        """
        with self._reading():
            [(plain, expected)], rows, contents, changes = (
                self._connection.execute(query).fetchall() for query in (STATE, MEMORIES, TENSORS, CHANGES)
            )
            if snapshot_checksum(plain, rows, contents, self._value("PRAGMA user_version")) != expected:
                raise ValueError("the checksum of its snapshot does not fit")
            state = State.model_validate_json(plain)
            ids, texts, times, namespaces, metadata, vectors = zip(*rows, strict=True) if rows else 6 * [()]
            read = (json.loads(f"[{','.join(column)}]") for column in (ids, metadata))  # one call is faster than many
            held = list(map(Memory, next(read), texts, namespaces, next(read), times))
            bank = np.frombuffer(bytearray().join(vectors), np.float16).reshape(len(held), state.dimension or 0)
            tensors = {name: safetensors.torch.load(content)[name] for name, content in contents}
        self.changes = len(changes)
        return state, (held, bank), tensors, [self._change(*change) for change in changes]

    def _change(self, number, kind, plain, arrays, expected) -> Change:
        with self._reading(f"change {number} of {self.changes}"):
            if checksum(kind, plain, arrays) != expected:
                raise ValueError("its checksum does not fit")
            return kind, json.loads(plain) | safetensors.numpy.load(arrays)

    def append(self, kind: str, given: dict[str, Any]) -> None:
        """Put one change on the disk; it is there when this returns, and if this raises an OSError it is not."""
        arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
        plain = {name: value for name, value in given.items() if name not in arrays}
        values = kind, json.dumps(plain, ensure_ascii=False), safetensors.numpy.save(arrays)
        row = (self.changes + 1, *values, checksum(*values), time.time())
        with self._transaction() as database:
            database.execute("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)", row)
        self.changes += 1

    def drop(self) -> None:
        """Take the last change back, which could not be made."""
        with self._transaction() as database:
            database.execute("DELETE FROM changes WHERE number = ?", (self.changes,))
        self.changes -= 1

    def close(self) -> None:
        """Let others open the folder."""
        self._connection.close()
        if self._is_own(self.path / LOCK):
            with suppress(OSError):  # some systems keep a file that is open
                (self.path / LOCK).unlink()
        self._lock.release()

    def _is_own(self, file):
        return file.exists() and file.stat().st_ino == self._files.get(file)

    def _value(self, query):
        return self._connection.execute(query).fetchone()[0]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit what the block does, or nothing of it, if folder and database are still as this memory left them."""
        with self._writing(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            for file in self._files:
                if not self._is_own(file):
                    told = "was removed or replaced while the memory had it open; save to another folder"
                    raise OSError(f"cannot write {file}: it {told}")
            if self._files and self._value("PRAGMA data_version") != self._seen:
                told = "another program has written it while the memory had it open; save to another folder"
                raise OSError(f"cannot write {self.file}: {told}")
            yield self._connection

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise OSError(f"cannot write {self.file}: {error}") from error

    @contextmanager
    def _reading(self, part: str = "") -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
            where = f"{self.file}: {part}" if part else str(self.file)
            raise ValueError(f"{where}: damaged ({error}); put a copy of the file there") from None


def checksum(*parts: str | bytes) -> str:
    """SHA-256 (hex) of some values, each behind its length."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(b"%d " % len(content))
        digest.update(content)
    return digest.hexdigest()


def snapshot_checksum(plain: str, memories: list[tuple], tensors: list[tuple], version: int = VERSION) -> str:
    """Checksum of a snapshot: rows as `MEMORIES` and `TENSORS` read them, all embeddings as one value."""
    *columns, vectors = zip(*memories, strict=True) if memories else 6 * [()]
    named = json.dumps([*columns[: COLUMNS[version]], [name for name, _ in tensors]])
    return checksum(plain, named, b"".join(vectors), *(content for _, content in tensors))
