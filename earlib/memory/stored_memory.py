"""A memory's contents and folder: how it begins, how each change is made, and how it is saved and loaded."""

import json
import os
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from earlib import paths
from earlib.data import encoders
from earlib.memory.encoding import PROBE, MemoryEncoder
from earlib.memory.features import plain_features
from earlib.memory.folder import MemoryFolder
from earlib.memory.presets import PRESETS, Preset, resolve_preset
from earlib.memory.snapshot import Memory, check_present
from earlib.memory.state import MemoryState
from earlib.memory.validation import as_condition, as_matrix, check_count, check_id, check_text, own_copy
from earlib.memory.weights import WeightLearner
from earlib.memory.writer import Writer

CHANGES = 500  # behind a snapshot before the next is written: loading makes them again in some seconds
FolderPath = str | os.PathLike[str]
Function = Callable[..., Any]
Id = int | str
Ids = list[Id]  # in the class, `list` is a method
Memories = list[Memory]
Where = dict[str, Any] | Callable[[Memory], Any]
_OPEN: weakref.WeakValueDictionary[Path, "StoredMemory"] = weakref.WeakValueDictionary()  # of this process, by folder


class StoredMemory:
    """The part of `EARMemory` that keeps memories and what was learned, changes them as a whole, and saves them."""

    def __init__(
        self,
        encoder: str | Function = "minilm",
        preset: str | Preset = "best",
        critic: Function | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        experiences: int = 10_000,
        features: Function | None = None,
        context: str | None = None,
    ):
        self.preset, self._encode = resolve_preset(preset), MemoryEncoder(encoder)
        self.config, self.by_words = self.preset.config, self.preset.words
        if not (critic is None or callable(critic)):
            raise TypeError(f"critic: expected a callable or None, found {type(critic).__name__}")
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype = {dtype!r}: expected torch.float32 or torch.float64")
        if features is not None and not (callable(features) and self.preset.weights):
            raise TypeError("features: expected a callable, and a preset that learns weights of them")
        if context is not None and not (isinstance(context, str) and context and self.preset.weights):
            raise TypeError("context: expected the name of a key of the metadata, and a preset that learns weights")
        self.critic, self.dtype, self._given = critic, dtype, (encoder, critic, features)  # as for `load`
        self.seed, self.experiences = check_count(seed, "seed", 0), check_count(experiences, "experiences", 1)
        self._of_probe: list[float] = []  # features, by which `load` recognises them
        if self.preset.weights:
            features = features or plain_features
            self._of_probe = as_matrix(features(PROBE, [PROBE]), "features", 1)[0].tolist()
        parts = self.preset, features, len(self._of_probe), self.seed, dtype, self.experiences, context
        self._write = Writer()
        self._folder: MemoryFolder | None = None
        weakref.finalize(self, self._write.end).atexit = False  # until the very end a change may be made
        self._state: MemoryState = self._write(lambda: MemoryState(*parts))  # tensors in the thread's modes

    def __repr__(self) -> str:
        preset = next((name for name, one in PRESETS.items() if one == self.preset), "of its own")
        learner, folder = self._state.learner, self._folder.path if self._folder else "none"
        return (
            f"<EARMemory: encoder {self._encode.label}, preset {preset}, {len(self):,} memories, "
            f"{learner.held:,} of {learner.experiences:,} experiences, folder {folder}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self):
        """Give the place of its folder, which holds all of it."""
        if not self._folder:
            raise TypeError("an EARMemory without a folder cannot be pickled or copied; use save and load")
        return type(self)._opened, (self._folder.path, *self._given)

    @classmethod
    def _opened(cls, path, *given):
        """The memory that this process has open in a folder, or that the folder holds."""
        held = _OPEN.get(path)
        here = held is not None and held._folder and held._folder.path == path and held._write.in_own_process()
        return held if here else cls.load(path, *given)

    def __len__(self) -> int:
        return self._state.now.size

    def __contains__(self, id: object) -> bool:
        return not isinstance(id, (bool, float)) and self._state.now.place(id) > 0

    def ids(self) -> Ids:
        """List the ids of all memories, in the order in which they were added."""
        now = self._state.now
        return [now.memories[row].id for row in np.flatnonzero(now.space).tolist()]

    def get(self, id: Id) -> str:
        """Return the text of a memory; a ValueError if no memory has this id."""
        now = self._state.now
        check_present(now, [check_id(id)], "id")
        return now.memories[now.place(id)].text

    def list(self, namespace: str | None = None, where: Where | None = None) -> Memories:
        """List memories in the order in which they were added: of a namespace or of all, `where` as for `retrieve`."""
        now = self._state.now
        scope = now.scope(None if namespace is None else check_text(namespace, "namespace"), as_condition(where))
        return [own_copy(now.memories[row]) for row in np.flatnonzero(scope).tolist()]

    def export(self, path: FolderPath, namespace: str | None = None, where: Where | None = None) -> None:
        """Write memories into a file of JSON lines, each an object with the fields of `Memory`; as for `list`."""
        lines = [json.dumps(one._asdict(), ensure_ascii=False) + "\n" for one in self.list(namespace, where)]
        paths.write_atomically(Path(path).expanduser(), "".join(lines))

    def stats(self) -> dict[str, Any]:
        """Tell how much was learned from, and how well.

        Returns
        -------
        dict
            Numbers of `memories`, `namespaces` and `feedbacks`, and names of `snapshots`. With learned weights also
            which ranking is `served`; on how many of the last hundred feedbacks both were `tested`; what share of the
            pairs of a useful memory and another one was in the `right` order by each, "learned" and "at first"; and the
            learned `weights`: of words, of the context (words before and after, cosine before and after), of features.
        """
        now, learner = self._state.now, self._state.learner
        told: dict[str, Any] = {"memories": now.size, "namespaces": len(np.unique(now.space[now.alive]))}
        told |= {"feedbacks": learner.known, "snapshots": [*self._state.kept]}
        return told | (self._write(learner.record) if isinstance(learner, WeightLearner) else {})

    def reset_learning(self) -> None:
        """Forget all that was learned from feedback; the memories stay, and so do snapshots."""
        self._change_learning("reset", "")

    def keep_learning(self, name: str) -> None:
        """Keep a snapshot of what was learned so far, in the memory and its folder; an earlier one of the name goes."""
        self._change_learning("keep", check_text(name, "name"))

    def restore_learning(self, name: str) -> None:
        """Go back to what `keep_learning` kept under a name; a ValueError if there is no such snapshot."""
        self._change_learning("restore", check_text(name, "name"))

    def _change_learning(self, action, name):
        def change():
            kept = self._state.kept
            if action == "restore" and name not in kept:
                raise ValueError(f"name: {name!r}: expected one of {', '.join(kept) or 'those kept (none)'}")
            if not self._state.width:
                raise ValueError("the memory is empty: expected at least one memory, before which nothing is learned")
            self._change("learning", action=action, name=name)

        self._write(change)

    def _change(self, kind: str, **given: Any) -> None:
        """Make a change: first in the folder, if there is one, then in memory."""
        if not self._folder:
            self._state.make(kind, given)
            return
        self._folder.append(kind, given)
        try:
            self._state.make(kind, given)
        except BaseException:
            self._folder.drop()
            raise
        if self._folder.changes % CHANGES == 0:  # and again as many later, if it fails
            try:
                self._write_snapshot(self._folder)
            except Exception as error:
                told = f"{self._folder.path}: the state could not be written again ({error}); every change is kept, "
                warnings.warn(told + f"and after {CHANGES} more it is tried again", stacklevel=2)

    def save(self, path: FolderPath) -> None:
        """Write the memory into a folder, and from then on every change, before it takes effect.

        A kill at any moment leaves a folder that `load` reads; at most the change that was being made is missing. Later
        changes go to this folder alone: for a copy, save to another one, then to this one again.

        Parameters
        ----------
        path : str or Path
            The state that lies there is replaced, never a part of it. Texts that were removed are gone from it then.

        Raises
        ------
        TypeError, ValueError
            If the path is none, or the folder holds something else than a memory.
        OSError
            If the folder cannot be written, or is open in another memory; what lay there stays.
        """
        self._encode.identity()  # before the change: the caller's encoder may take long, or fail
        path = Path(path).expanduser().resolve()

        def change():
            if self._folder and self._folder.path == path:
                self._write_snapshot(self._folder)
                return
            folder = MemoryFolder(path, create=True)
            try:
                self._write_snapshot(folder)
            except BaseException:
                folder.close()
                raise
            self._take(folder)

        self._write(change)

    def _write_snapshot(self, folder):
        """Write the state, from which removed memories are dropped first."""
        self._state.move(self._state.now)
        identity, tensors = self._encode.identity()
        plain, memories, learned = self._state.parts()
        folder.write(plain | identity | {"features": self._of_probe}, memories, tensors | learned)

    def _take(self, folder):
        """Keep changes in this folder from here on, in place of another, or in none."""
        if self._folder:
            self._folder.close()
        self._folder = folder
        if folder:
            _OPEN[folder.path] = self

    @classmethod
    def load(
        cls,
        path: FolderPath,
        encoder: str | Function | None = None,
        critic: Function | None = None,
        features: Function | None = None,
    ) -> Self:
        """Return the memory that a folder holds; its changes are kept there from then on.

        Parameters
        ----------
        path : str or Path
        encoder : str or callable, optional
            The callable or the folder of before; the folder may lie elsewhere or have another name. What the registry
            or an installed package has may be left out.
        critic : callable, optional
            As for a new memory.
        features : callable, optional
            The callable of before, if there was one.

        Raises
        ------
        TypeError, ValueError
            If the path is none, the folder holds no memory, one of another version or a damaged one, or the encoder or
            the features are others.
        OSError
            If the folder cannot be written; a BlockingIOError if it is open in another memory.
        """
        folder = MemoryFolder(Path(path).expanduser().resolve())
        try:
            plain, memories, tensors, changes = folder.read()
            if (encoder is None or isinstance(encoder, str)) == (plain.encoder_name is None):
                wanted = plain.encoder_name or "the callable that the memory was made with"
                raise ValueError(f"encoder: expected {wanted} ({path}), got {encoder or 'none'}")
            try:
                encoder = encoder or encoders.resolve(plain.encoder_name)
            except ValueError as error:
                told = f'{path}: {error}; give its folder: load(path, encoder="path/to/folder")'
                raise ValueError(told) from None
            preset, dtype = Preset(plain.config, plain.words, plain.weights), getattr(torch, plain.dtype)
            memory = cls(encoder, preset, critic, plain.seed, dtype, plain.experiences, features, plain.context)
            mine, theirs = memory._of_probe, plain.features or []
            if len(mine) != len(theirs) or not np.allclose(mine, theirs):
                told = f"those that {path} was made with, which make {theirs} of a fixed text"
                raise ValueError(f"features: expected {told}, found others; give load(path, features=...)")
            memory._encode.check_identity(plain, tensors.pop("probe", None), folder.file)
            memory._write(lambda: memory._restore(folder, plain, memories, tensors, changes))
        except BaseException:
            folder.close()
            raise
        return memory

    def _restore(self, folder, plain, memories, tensors, changes):
        """Become what a folder holds."""
        self._state.restore(plain, memories, tensors)
        for number, change in enumerate(changes, 1):
            try:
                self._state.make(*change)
            except FloatingPointError:
                if number < len(changes):
                    raise
                folder.drop()  # killed before it was taken back: it never took effect
        self._take(folder)

    def close(self) -> None:
        """Let another memory open the folder; this one goes on in memory alone."""
        if self._write.in_own_process():  # in a forked one, the folder is its parent's, which goes on with it
            self._write(lambda: self._take(None))
