"""A memory's encoder, state and folder: how it begins, how each change is made, and how it is saved and loaded."""

import os
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from earlib.data import encoders
from earlib.memory.encoding import PROBE, MemoryEncoder, as_function, registered
from earlib.memory.features import plain_features
from earlib.memory.folder import MemoryFolder, State
from earlib.memory.presets import PRESETS, Preset, resolve_preset
from earlib.memory.state import MemoryState
from earlib.memory.validation import as_matrix, check_count
from earlib.memory.writer import Writer

CHANGES = 500  # behind a snapshot before the next is written: loading makes them again in some seconds
DTYPES = {"float32": torch.float32, "float64": torch.float64}
FolderPath = str | os.PathLike[str]
_OPEN: weakref.WeakValueDictionary[Path, "StoredMemory"] = weakref.WeakValueDictionary()  # of this process, by folder
Function = Callable[..., Any]


class StoredMemory:
    """The part of `EARMemory` that makes changes one after another, in memory and in its folder."""

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
        self.preset = resolve_preset(preset)
        self.config, self.by_words = self.preset.config, self.preset.words
        function = None if isinstance(encoder, str) else as_function(encoder)
        if not (isinstance(encoder, str) or function):
            raise TypeError(f"encoder: expected a name, a callable or embeddings, found {type(encoder).__name__}")
        if not (critic is None or callable(critic)):
            raise TypeError(f"critic: expected a callable or None, found {type(critic).__name__}")
        if dtype not in DTYPES.values():
            raise ValueError(f"dtype = {dtype!r}: expected torch.float32 or torch.float64")
        if features is not None and not (callable(features) and self.preset.weights):
            raise TypeError("features: expected a callable, and a preset that learns weights of them")
        if context is not None and not (isinstance(context, str) and context and self.preset.weights):
            raise TypeError("context: expected the name of a key of the metadata, and a preset that learns weights")
        self.encoder: Any = registered(encoder) if isinstance(encoder, str) else encoder
        self.critic, self.dtype, self._given = critic, dtype, (encoder, critic, features)  # as for `load`
        self.seed, self.experiences = check_count(seed, "seed", 0), check_count(experiences, "experiences", 1)
        self._encode, self._write = MemoryEncoder(function or self.encoder), Writer()
        self._folder: MemoryFolder | None = None
        weakref.finalize(self, self._write.end).atexit = False  # until the very end a change may be made
        self.features = (features or plain_features) if self.preset.weights else None
        self._of_probe: list[float] = []  # by which `load` recognises them
        if self.features is not None:
            self._of_probe = as_matrix(self.features(PROBE, [PROBE]), "features", 1)[0].tolist()
        parts = self.preset, self.features, len(self._of_probe), self.seed, dtype, self.experiences, context
        self._state: MemoryState = self._write(lambda: MemoryState(*parts))  # tensors in the thread's modes

    def __repr__(self) -> str:
        name = getattr(self.encoder, "name", None) or getattr(self.encoder, "__name__", type(self.encoder).__name__)
        preset = next((name for name, one in PRESETS.items() if one == self.preset), "of its own")
        return (
            f"<EARMemory: encoder {name}, preset {preset}, {self._state.now.size:,} memories, "
            f"{self._state.learner.held:,} of {self._state.learner.experiences:,} experiences, "
            f"folder {self._folder.path if self._folder else 'none'}>"
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

    def _change(self, kind: str, **given: Any) -> None:
        """Make a change: first in the folder, if there is one, then in memory."""
        if self._folder:
            self._folder.append(kind, given)
        try:
            self._state.make(kind, given)
        except BaseException:
            if self._folder:
                self._folder.drop()
            raise
        if self._folder and self._folder.changes % CHANGES == 0:  # and again as many later, if it fails
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
            if self._folder:
                self._folder.close()
            self._take(folder)

        self._write(change)

    def _write_snapshot(self, folder):
        """Write the state, from which removed memories are dropped first."""
        self._state.move(self._state.now)
        identity, tensors = self._encode.identity()
        plain, memories, learned = self._state.parts()
        folder.write(plain | identity | {"features": self._of_probe}, memories, tensors | learned)

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

        Returns
        -------
        EARMemory

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
            preset = Preset(plain.config, plain.words, plain.weights)
            given = plain.seed, DTYPES[plain.dtype], plain.experiences, features, plain.context
            memory = cls(encoder, preset, critic, *given)
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

    def _restore(self, folder, plain: State, memories, tensors, changes):
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

    def _take(self, folder):
        self._folder = folder
        _OPEN[folder.path] = self

    def close(self) -> None:
        """Let another memory open the folder; this one goes on in memory alone."""
        if not self._write.in_own_process():  # the folder is that process's, which goes on with it
            return

        def change():
            if self._folder:
                self._folder.close()
                self._folder = None

        self._write(change)
