"""A folder that keeps what changes: a state, and behind it a journal of every change since.

    state.json                 the plain part; names the generation of the other two, so that writing it is the commit
    state-<g>.safetensors      the tensors, whose SHA-256 the plain part holds
    journal-<g>.jsonl          one change a line behind its CRC-32, on the disk before it takes effect

A kill or a power cut at any moment leaves the old state with its journal or the new one with an empty journal; of a
journal at most the last line is cut short, and that change had not taken effect.
"""

import base64
import fcntl
import hashlib
import json
import os
import re
import warnings
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
import safetensors.torch
from pydantic import Field, ValidationError, model_validator
from safetensors import SafetensorError

from earlib import paths
from earlib.core.config import Checked, Config

VERSION = 2
_FINISHED = re.compile(r"(?:state-([1-9]\d*)\.safetensors|journal-([1-9]\d*)\.jsonl)")
_UNFINISHED = re.compile(r"\.(?:state\.json|state-\d+\.safetensors|journal-\d+\.jsonl)\.\w+")  # of `paths.replacing`
_LINE = re.compile(rb'\["([0-9a-f]{8})", (.*)\]')


class State(Checked):
    """The plain part of a state."""

    version: Literal[VERSION]
    generation: int = Field(ge=1)
    sha256: str  # of the tensors' file
    config: Config
    words: bool
    encoder: str | None  # fingerprint and name, of the registry's; none of a callable
    encoder_name: str | None
    seed: int = Field(ge=0)
    dtype: Literal["float32", "float64"]
    experiences: int = Field(ge=1)
    known: int = Field(ge=0)
    next: int = Field(ge=0)
    ids: list[int | str]
    texts: list[str]

    @model_validator(mode="after")
    def _fits(self):
        if len(self.ids) != len(self.texts):
            raise ValueError(f"ids: expected {len(self.texts)}, one a text, found {len(self.ids)}")
        if len(set(self.ids)) < len(self.ids):
            raise ValueError("ids: expected each once")
        if any(id >= self.next for id in self.ids if isinstance(id, int)):
            raise ValueError(f"next: expected a number above all ids, found {self.next}")
        return self


class Add(Checked, arbitrary_types_allowed=True):
    """A change, as the next two; what it says is what the memory's method of that name has found sound."""

    kind: Literal["add"]
    texts: list[str]
    ids: list[int | str]
    vectors: np.ndarray


class Remove(Checked):
    kind: Literal["remove"]
    ids: list[int | str]


class Feedback(Checked, arbitrary_types_allowed=True):
    kind: Literal["feedback"]
    query: str
    vector: np.ndarray
    slates: list[list[int | str | None]]
    labels: list[list[bool | None]]


KINDS = {"add": Add, "remove": Remove, "feedback": Feedback}


class Journal:
    """The folder of one memory, which no other process may have open at the same time.

    Parameters
    ----------
    path : Path
    make : bool
        Whether to make what is missing, for a state that is to be written. Else there must be a state.

    Attributes
    ----------
    lines : int
        Changes since the state.

    Raises
    ------
    ValueError
        If there is no state but ought to be one, or the folder holds something else.
    BlockingIOError
        If it is open already.
    OSError
        If nothing can be written there.
    """

    def __init__(self, path, make=False):
        self.path = Path(path).resolve()
        if make:
            self.path.mkdir(parents=True, exist_ok=True)
            self._check_own()
        elif not self._state.is_file():
            raise ValueError(f"{self.path}: expected a folder that `save` has written; there is no state.json")
        self.generation = self._known().get("generation", 0) if make else 0
        self._file, self.lines, self._size, self._last = None, 0, 0, 0
        try:
            self._lock = open(self.path / "lock", "a")  # noqa: SIM115 (open for as long as this is)
        except OSError as error:
            told = f"{self.path}: cannot be written ({error.strerror}); a memory keeps its changes in its folder: copy "
            raise type(error)(error.errno, told + "it to where it can be written, and choose that") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            told = f"{self.path}: open in another memory; close() that one first, or choose another folder"
            raise BlockingIOError(error.errno, told) from None

    def write(self, plain, tensors):
        """Replace the state; the journal behind it is empty then.

        Parameters
        ----------
        plain : dict
            As `State`, less what is written here.
        tensors : dict of torch.Tensor

        Raises
        ------
        OSError
            If it cannot be written. The old state stays, and the journal goes on behind it, unless only the folder's
            own entries could not be put on the disk in the end: the new state stands then.
        """
        generation, content = self.generation + 1, safetensors.torch.save(tensors)
        about = {"version": VERSION, "generation": generation, "sha256": hashlib.sha256(content).hexdigest()}
        paths.write_atomically(self._tensors(generation), content)
        file = open(self._changes(generation), "wb", buffering=0)  # noqa: SIM115
        try:
            os.fsync(file.fileno())
            _sync(self.path)
            paths.write_atomically(self._state, json.dumps(about | plain, ensure_ascii=False))
        except BaseException:
            file.close()
            raise
        self._open(file, generation)  # before anything else can fail: a change behind the old state would be lost
        _sync(self.path)
        self._clear()

    def read(self):
        """The state and all whole changes since.

        Returns
        -------
        state : State
        tensors : dict of torch.Tensor
        changes : list of tuple
            Kind and content of each, as they were appended.

        Raises
        ------
        ValueError
            If the state is of another version, or something is damaged or missing; file and field or line are named.

        Warns
        -----
        UserWarning
            If the last line was cut short; it is dropped.
        """
        plain = self._known()
        if plain.get("version") != VERSION:
            told = f"version {plain.get('version')!r}: expected {VERSION}; add its texts to a new memory"
            raise ValueError(f"{self._state}: {told}")
        state = _valid(State, plain, self._state)
        file = self._tensors(state.generation)
        content = _content(file)
        if hashlib.sha256(content).hexdigest() != state.sha256:
            raise ValueError(f"{file}: damaged (its SHA-256 is not the one in state.json); put a copy of it there")
        try:
            tensors = safetensors.torch.load(content)
        except SafetensorError as error:
            raise ValueError(f"{file}: damaged ({error}); put a copy of it there") from None
        changes = self._read_changes(self._changes(state.generation), state.generation)
        return state, tensors, changes

    def append(self, kind, what):
        """Put one change on the disk; it is there when this returns.

        Parameters
        ----------
        kind : str
            One of `KINDS`.
        what : dict
            In JSON's types and NumPy arrays.

        Raises
        ------
        OSError
            If it cannot be written; the journal is as it was.
        """
        line, before = memoryview(_line({"kind": kind, **what})), self._size
        try:
            self._file.truncate(before)  # of a line that could not be taken back
            self._file.seek(before)
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
            os.fsync(self._file.fileno())
        except BaseException as error:
            with suppress(OSError):
                self._file.truncate(before)
            if isinstance(error, OSError):
                raise OSError(error.errno, f"cannot write {self._file.name}: {error.strerror}") from error
            raise
        self._last, self._size, self.lines = before, before + len(line), self.lines + 1

    def drop(self):
        """Take the last line back, once, for a change that could not be made."""
        self._size, self.lines = self._last, self.lines - 1
        self._file.truncate(self._size)

    def place(self, number):
        """Where a change stands, in messages; the first has number 1."""
        return f"{self._changes(self.generation)}: line {number}"

    @property
    def tensors_file(self):
        """Where the tensors stand, in messages."""
        return self._tensors(self.generation)

    def close(self):
        """Let others open the folder."""
        if self._file:
            self._file.close()
        fcntl.flock(self._lock, fcntl.LOCK_UN)  # a process that was forked meanwhile would hold it on
        self._lock.close()

    def _check_own(self):
        """Refuse to write a state between files that are not a memory's."""
        if self._state.exists():
            known = self._known()
            if not all(type(known.get(field)) is int for field in ("version", "generation")):
                raise ValueError(f"{self._state}: not a memory's; expected an empty folder, or one that `save` wrote")
            return
        for name in os.listdir(self.path):
            finished = _FINISHED.fullmatch(name)
            unfinished = _UNFINISHED.fullmatch(name) or finished and "1" in finished.groups()  # of a first state
            if name != "lock" and not unfinished:
                raise ValueError(
                    f"{self.path}: holds {name!r} and no state.json; expected an empty folder, or one that `save` wrote"
                )

    def _known(self):
        if not self._state.exists():
            return {}
        try:
            known = json.loads(self._state.read_text(encoding="utf-8"))
            if not isinstance(known, dict):
                raise ValueError(f"expected an object, found {type(known).__name__}")
        except ValueError as error:
            raise ValueError(f"{self._state}: damaged ({error}); put a copy of it there") from None
        return known

    def _read_changes(self, file, generation):
        """The whole lines of a journal, which is cut to them."""
        content = _content(file)
        *lines, rest = content.split(b"\n")
        changes = [_change(line, f"{file}: line {at} of {len(lines)}") for at, line in enumerate(lines, 1)]
        if rest:
            warnings.warn(f"{file}: the last line was cut short; that change is lost", stacklevel=4)
            os.truncate(file, len(content) - len(rest))
        self._open(open(file, "r+b", buffering=0), generation)  # noqa: SIM115
        self.lines, self._size = len(lines), len(content) - len(rest)
        self._last = self._size - len(lines[-1]) - 1 if lines else 0
        return changes

    def _open(self, file, generation):
        """Go on in the journal of a generation."""
        old, self._file, self.generation = self._file, file, generation
        self.lines = self._size = self._last = 0
        if old:
            old.close()

    def _clear(self):
        """Remove what earlier states have left, and nothing that is not a memory's."""
        for name in os.listdir(self.path):
            finished = _FINISHED.fullmatch(name)
            old = finished and int(finished[1] or finished[2]) < self.generation
            if old or _UNFINISHED.fullmatch(name):
                with suppress(OSError):  # the next state tries again
                    os.unlink(self.path / name)

    @property
    def _state(self):
        return self.path / "state.json"

    def _tensors(self, generation):
        return self.path / f"state-{generation}.safetensors"

    def _changes(self, generation):
        return self.path / f"journal-{generation}.jsonl"


def _sync(folder):
    """Put a folder's entries on the disk, so that a new file is there after a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _content(file):
    try:
        return file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file}: missing, or cannot be read ({error.strerror}); put a copy of it there") from None


def _valid(kind, values, where):
    """What was read, in its types; a ValueError names the file, the field, and what was expected."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or kind.__name__
        told = f"{where}: {field}: {first['msg']} ({error.error_count()} in all); put a copy of the folder there"
        raise ValueError(told) from None


def _line(change):
    payload = json.dumps(change, ensure_ascii=False, default=_packed).encode()
    return b'["%08x", %b]\n' % (zlib.crc32(payload), payload)


def _change(line, where):
    """Kind and content of a change."""
    found = _LINE.fullmatch(line)
    if not found or int(found[1], 16) != zlib.crc32(found[2]):
        told = "is damaged (its checksum does not fit); put a copy of the file there, or cut it before this line"
        raise ValueError(f"{where} {told}")
    try:
        change = json.loads(found[2], object_hook=_unpacked)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{where} is damaged ({error}); put a copy of the file there") from None
    kind = change.get("kind") if isinstance(change, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"{where}: kind: expected one of {', '.join(KINDS)}, found {kind!r}")
    valid = _valid(KINDS[kind], change, where)
    return kind, {name: getattr(valid, name) for name in KINDS[kind].model_fields if name != "kind"}


def _packed(value):
    if not isinstance(value, np.ndarray):
        raise TypeError(f"expected JSON's types and arrays, found {type(value).__name__}")
    return {"array": base64.b64encode(value.tobytes()).decode(), "dtype": str(value.dtype), "shape": value.shape}


def _unpacked(value):
    if "array" not in value:
        return value
    return np.frombuffer(base64.b64decode(value["array"]), value["dtype"]).reshape(value["shape"]).copy()
