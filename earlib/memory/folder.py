"""The folder of a memory: a SQLite database with a snapshot of its state, and every change since.

A change is on the disk before it takes effect. A snapshot replaces the one before it, and the changes behind that, in
one transaction, so that a kill or a power cut at any moment leaves the old snapshot with its changes or the new one.
"""

import errno
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from filelock import FileLock, SoftFileLock, Timeout
from pydantic import Field, ValidationError

from earlib.core.config import Checked, Config
from earlib.memory.snapshot import Memory

NAME, LOCK, APPLICATION = "memory.sqlite", "memory.lock", 0x45415221  # "EAR!", in the file's header
VERSION, COLUMNS = 4, {3: 3, 4: 5}  # by the versions that can be read, how many columns a snapshot's checksum covers
OWN = {LOCK, *(NAME + ending for ending in ("", "-wal", "-shm", "-journal"))}
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
TENSORS = "SELECT name, content FROM tensors ORDER BY name"
CHANGES = "SELECT number, kind, plain, arrays, sha256 FROM changes ORDER BY number"


class Answer(Checked):
    """A language model's reply about memories, under the key of the client's request."""

    key: str
    ids: list[int | str]
    fields: dict[str, int | str]


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
    replies: list[Answer] = []
    snapshots: dict[str, int] = {}  # feedbacks that each had learned from
    context: str | None = None  # key of the metadata that tells sessions apart; left out where there is none


class Add(Checked, arbitrary_types_allowed=True):
    texts: list[str]
    ids: list[int | str]
    times: list[float]
    vectors: np.ndarray
    namespace: str = ""
    metadata: list[dict[str, Any]] = []  # none where all are empty
    replace: bool = False  # memories with these ids


class Remove(Checked):
    ids: list[int | str]


class Feedback(Checked, arbitrary_types_allowed=True):
    query: str
    vector: np.ndarray
    slates: list[list[int | str | None]]
    labels: list[list[bool | None]]
    source: str | None = None
    candidates: list[int | str | None] = []  # what is compared, so that loading need not search; earlier versions did
    side: np.ndarray | None = None  # their scores as of `Snapshot.side`


class Learning(Checked):
    """A change of all that was learned: keep it under a name, restore what has that name, or reset it."""

    action: Literal["keep", "restore", "reset"]
    name: str = ""


Change = Add | Remove | Feedback | Answer | Learning
KINDS: dict[str, type[Change]] = {one.__name__.lower(): one for one in (Add, Remove, Feedback, Answer, Learning)}
Memories = tuple[list[Memory], np.ndarray]  # all of them, and their embeddings [M, d]
Read = TypeVar("Read", bound=Checked)


class UnsavedError(ValueError):
    """A folder whose first save was cut off: it holds nothing."""


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
            foreign = sorted(set(os.listdir(path)) - OWN)
            if foreign and not self.file.exists():
                told = f"holds {foreign[0]!r} and no {NAME}; expected an empty folder, or one that `save` wrote"
                raise ValueError(f"{path}: {told}")
        elif not self.file.exists():
            raise ValueError(f"{path}: expected a folder that `save` has written; there is no {NAME}")
        if not all(os.access(at, os.W_OK) for at in (path, self.file) if at.exists()):
            told = "cannot be written; a memory keeps its changes in its folder: copy it to where it can be written"
            raise PermissionError(errno.EACCES, f"{path}: {told}, and choose that")
        with self._reading():
            self._connection = sqlite3.connect(self.file, isolation_level=None, check_same_thread=False)
        self._files: dict[Path, int] = {}
        self._lock = FileLock(path / LOCK, thread_local=False)  # let go in a forked process, and with this object
        try:
            self._claim()
            self._open(create)
        except BaseException:
            self.close()
            raise

    def _claim(self) -> None:
        """Lock the folder; a system without locks of its own writes the holder into the file instead."""
        file, marked = self.path / LOCK, isinstance(self._lock, SoftFileLock)
        told = f"{self.path}: open in another memory; close() that one first, or choose another folder"
        try:
            self._lock.acquire(blocking=False)
            if marked or not file.stat().st_size:
                return
            self._lock.release()
            told = f"{file}: a lock of another system, where a memory may have the folder open; close() that one first"
        except Timeout:
            pass
        except OSError as error:
            raise OSError(error.errno, f"cannot lock {file}: {error}; choose a folder on a local disk") from error
        holder = ""
        with suppress(OSError):  # it is gone by now, or cannot be read while it is locked
            holder = " of ".join(file.read_text(errors="replace").split()[:2])
        if marked or holder:
            told += f" ({LOCK} names process {holder or 'none'}; if no such process is running, remove that file)"
        raise BlockingIOError(errno.EAGAIN, told)

    def _open(self, create: bool) -> None:
        """Refuse a database that is no memory's, and let every later change be on the disk once it is made."""
        with self._reading():
            tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            [(application,), (version,)] = (self._pragma("application_id"), self._pragma("user_version"))
        if tables and application != APPLICATION:
            raise ValueError(f"{self.file}: not a memory's; expected an empty folder, or one that `save` wrote")
        if not (tables or create):
            raise UnsavedError(f"{self.path}: expected a folder that `save` has written; {NAME} is empty")
        if tables and version not in COLUMNS and not create:
            told = f"version {version}: expected {VERSION}; add the texts that it holds to a new memory"
            raise ValueError(f"{self.file}: {told}")
        with self._writing():
            for setting in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
                self._pragma(setting)
            self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # makes the log's file
        files = (self.path / LOCK, self.file, self.path / f"{NAME}-wal")
        self._files = {file: file.stat().st_ino for file in files}
        self._seen = self._pragma("data_version")  # which another's commit changes

    def write(self, plain: dict, memories: Memories, tensors: dict[str, torch.Tensor]):
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
        held, bank = memories
        state = json.dumps(plain, ensure_ascii=False)
        rows = [(json.dumps(one.id), one.text, one.created_at, one.namespace, _json(one.metadata)) for one in held]
        vectors, width = bank.tobytes(), bank.itemsize * bank.shape[1]
        each = (vectors[at : at + width] for at in range(0, len(vectors), width or 1))
        contents = [(name, safetensors.torch.save({name: tensors[name]})) for name in sorted(tensors)]
        with self._transaction():
            execute, many = self._connection.execute, self._connection.executemany
            for table, columns in SCHEMA.items():
                execute(f"DROP TABLE IF EXISTS {table}")
                execute(f"CREATE TABLE {table} ({columns})")
            insert = (
                "INSERT INTO memories (id, text, created_at, namespace, metadata, vector) VALUES (?, ?, ?, ?, ?, ?)"
            )
            many(insert, ((*row, vector) for row, vector in zip(rows, each, strict=True)))
            many("INSERT INTO tensors VALUES (?, ?)", contents)
            stored = snapshot_checksum(state, list(zip(*rows, strict=True)), vectors, contents)
            execute("INSERT INTO state VALUES (?, ?)", (state, stored))
            execute(f"PRAGMA application_id = {APPLICATION}")
            execute(f"PRAGMA user_version = {VERSION}")
        self.changes = 0
        with suppress(sqlite3.Error):  # the snapshot is on the disk already; else the next checkpoint moves it
            self._pragma("wal_checkpoint(TRUNCATE)")  # leaves no text of before in the log

    def read(self) -> tuple[State, Memories, dict[str, torch.Tensor], list[Change]]:
        """Return the snapshot (plain part, memories, tensors) and the changes since.

        Raises ValueError if something is damaged or missing; the file and the field or change are named.
        """
        with self._reading():
            [(plain, expected)], memories, contents, changes = (
                self._connection.execute(query).fetchall() for query in (STATE, MEMORIES, TENSORS, CHANGES)
            )
            *columns, each = zip(*memories, strict=True) if memories else 6 * ((),)
            vectors = bytearray().join(each)
            version = self._pragma("user_version")[0]
            if snapshot_checksum(plain, columns[: COLUMNS[version]], vectors, contents) != expected:
                raise ValueError("the checksum of its snapshot does not fit")
            ids, texts, times, namespaces, metadata = columns
            read = (json.loads(f"[{','.join(column)}]") for column in (ids, metadata))  # one call is faster than many
            held = list(map(Memory, next(read), texts, namespaces, next(read), times))
            bank = np.frombuffer(vectors, np.float16).reshape(len(held), -1 if held else 0)
            tensors = {name: safetensors.torch.load(content)[name] for name, content in contents}
            fields = json.loads(plain)
        self.changes = len(changes)
        state = _valid(State, fields, f"{self.file}: state")
        return state, (held, bank), tensors, [self._change(*change) for change in changes]

    def append(self, change: Change) -> None:
        """Put one change on the disk; it is there when this returns, and if this raises an OSError it is not."""
        arrays = {name: value for name, value in change if isinstance(value, np.ndarray)}
        plain = json.dumps(change.model_dump(exclude=set(arrays)), ensure_ascii=False)
        values = (type(change).__name__.lower(), plain, safetensors.numpy.save(arrays))
        row = (self.changes + 1, *values, checksum(*values), time.time())
        with self._transaction():
            self._connection.execute("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)", row)
        self.changes += 1

    def drop(self) -> None:
        """Take the last change back, which could not be made."""
        with self._transaction():
            self._connection.execute("DELETE FROM changes WHERE number = ?", (self.changes,))
        self.changes -= 1

    def close(self) -> None:
        """Let others open the folder."""
        self._connection.close()
        if self._lock.is_locked:
            with suppress(OSError):  # no process has to read what an empty file is for; some systems remove it
                if (self.path / LOCK).stat().st_ino == self._files.get(self.path / LOCK):  # and not another's
                    (self.path / LOCK).unlink()
            self._lock.release()

    def _change(self, number, kind, plain, arrays, expected):
        where = f"{self.file}: change {number} of {self.changes}"
        if checksum(kind, plain, arrays) != expected:
            raise ValueError(f"{where} is damaged (its checksum does not fit); put a copy of the file there")
        if kind not in KINDS:
            raise ValueError(f"{where}: kind: expected one of {', '.join(KINDS)}, found {kind!r}")
        return _valid(KINDS[kind], json.loads(plain) | safetensors.numpy.load(arrays), where)

    def _pragma(self, statement):
        return self._connection.execute(f"PRAGMA {statement}").fetchone()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what the block does, or nothing of it, if folder and database are still as this memory left them."""
        with self._writing(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            for file, inode in self._files.items():
                if not file.exists() or file.stat().st_ino != inode:
                    told = "was removed or replaced while the memory had it open; save to another folder"
                    raise OSError(errno.ESTALE, f"cannot write {file}: it {told}")
            if self._pragma("data_version") != self._seen:
                told = "another program has written it while the memory had it open; save to another folder"
                raise OSError(errno.ESTALE, f"cannot write {self.file}: {told}")
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
            raise OSError(errno.ENOSPC if full else errno.EIO, f"cannot write {self.file}: {error}") from error

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.file}: damaged ({error}); put a copy of it there") from None


def checksum(*parts: str | bytes | bytearray) -> str:
    """SHA-256 (hex) of some values, each behind its length."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(b"%d " % len(content))
        digest.update(content)
    return digest.hexdigest()


def _json(values: dict) -> str:
    return json.dumps(values, ensure_ascii=False) if values else "{}"


def snapshot_checksum(plain: str, columns, vectors: bytes | bytearray, tensors: list[tuple]) -> str:
    """Checksum of a snapshot: columns of its memories as `MEMORIES` reads them, and all embeddings as one value."""
    named = json.dumps([*(columns or 5 * [()]), [name for name, _ in tensors]])
    return checksum(plain, named, vectors, *(content for _, content in tensors))


def _valid(kind: type[Read], values: dict, where: str) -> Read:
    """Check what was read; a ValueError names the place, the field and what was expected."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or kind.__name__
        told = f"{where}: {field}: {first['msg']} ({error.error_count()} in all); put a copy of the folder there"
        raise ValueError(told) from None
