"""A folder that keeps what changes: a state, and behind it a journal of every change since.

    state.json                 the plain part; names the generation of the other two, so that writing it is the commit
    state-<g>.safetensors      the tensors
    journal-<g>.jsonl          one change a line, on the disk before it takes effect

A kill or a power cut at any moment leaves the old state with its journal or the new one with an empty journal; of a
journal at most the last line is cut short, and that change had not taken effect.
"""

import base64
import fcntl
import json
import os
import warnings
from pathlib import Path

import numpy as np
import safetensors.torch
from safetensors import SafetensorError

from earlib import paths

VERSION = 1


class Journal:
    """The folder of one memory, which no other process may have open at the same time.

    Parameters
    ----------
    path : Path
        Made if it is missing.

    Raises
    ------
    BlockingIOError
        If it is open already.
    """

    def __init__(self, path):
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.path / "lock", "w")  # noqa: SIM115 (open for as long as this is)
        self._file, self.lines = None, 0
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
            In JSON's types.
        tensors : dict of torch.Tensor
        """
        old = self._known()
        generation = old.get("generation", 0) + 1
        paths.write_atomically(self._tensors(generation), safetensors.torch.save(tensors))
        paths.write_atomically(self._changes(generation), b"")
        _sync(self.path)
        told = {"version": VERSION, "generation": generation, **plain}
        paths.write_atomically(self.path / "state.json", json.dumps(told, ensure_ascii=False))
        _sync(self.path)
        self._open(generation)
        for left in (*self.path.glob("state-*.safetensors"), *self.path.glob("journal-*.jsonl")):
            if left not in (self._tensors(generation), self._changes(generation)):
                left.unlink()

    def read(self):
        """The state and all whole changes since.

        Returns
        -------
        plain : dict
        tensors : dict of torch.Tensor
        changes : list of dict
            As they were appended.

        Raises
        ------
        ValueError
            If there is no state, it is of another version or damaged, or a line before the last cannot be read.

        Warns
        -----
        UserWarning
            If the last line was cut short; it is dropped.
        """
        plain = self._known()
        if not plain:
            raise ValueError(f"{self.path}: expected a folder that `save` has written; there is no state.json")
        if plain.get("version") != VERSION:
            raise ValueError(f"{self.path / 'state.json'}: version {plain.get('version')!r}: expected {VERSION}")
        generation = plain["generation"]
        try:
            tensors = safetensors.torch.load_file(self._tensors(generation))
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{self._tensors(generation)}: damaged or missing ({error})") from None
        changes = self._changes_of(generation)
        self._open(generation)
        self.lines = len(changes)
        return plain, tensors, changes

    def append(self, change):
        """Put one change on the disk; it is there when this returns.

        Parameters
        ----------
        change : dict
            In JSON's types and NumPy arrays.

        Returns
        -------
        callable
            Takes the line back, for a change that could not be made.

        Raises
        ------
        OSError
            If it cannot be written; the journal is as it was.
        """
        before = self._file.seek(0, os.SEEK_END)

        def undo():
            self._file.truncate(before)
            self.lines -= 1

        self.lines += 1
        try:
            line = memoryview(json.dumps(change, ensure_ascii=False, default=_packed).encode() + b"\n")
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            undo()
            raise OSError(error.errno, f"cannot write {self._file.name}: {error.strerror}") from error
        return undo

    def close(self):
        """Let others open the folder."""
        if self._file:
            self._file.close()
        self._lock.close()

    def _known(self):
        file = self.path / "state.json"
        if not file.exists():
            return {}
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{file}: damaged ({error}); put a copy of it there") from None

    def _changes_of(self, generation):
        """The whole lines of a journal, which is cut to them."""
        file = self._changes(generation)
        lines = file.read_bytes().split(b"\n")
        changes = []
        for number, line in enumerate(lines):
            try:
                if number == len(lines) - 1:
                    raise ValueError("no end of line")
                changes.append(json.loads(line, object_hook=_unpacked))
            except ValueError as error:
                if number < len(lines) - 2:
                    raise ValueError(f"{file}: line {number + 1} of {len(lines) - 1} is damaged ({error})") from None
                if line:
                    warnings.warn(f"{file}: the last line was cut short; that change is lost", stacklevel=4)
                break
        os.truncate(file, sum(len(line) + 1 for line in lines[: len(changes)]))
        return changes

    def _open(self, generation):
        if self._file:
            self._file.close()
        self._file = open(self._changes(generation), "ab", buffering=0)  # noqa: SIM115
        self.lines = 0

    def _tensors(self, generation):
        return self.path / f"state-{generation}.safetensors"

    def _changes(self, generation):
        return self.path / f"journal-{generation}.jsonl"


def _sync(folder):
    """Put a folder's entries on the disk, so that a new file is there after a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def _packed(value):
    if not isinstance(value, np.ndarray):
        raise TypeError(f"expected JSON's types and arrays, found {type(value).__name__}")
    return {"array": base64.b64encode(value.tobytes()).decode(), "dtype": str(value.dtype), "shape": value.shape}


def _unpacked(value):
    if "array" not in value:
        return value
    return np.frombuffer(base64.b64decode(value["array"]), value["dtype"]).reshape(value["shape"]).copy()
