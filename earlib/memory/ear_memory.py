"""A memory that learns while it is used: feedback on what was retrieved moves the next ranking.

    memory = EARMemory()
    memory.add(["Ada plays the cello", "Ben is allergic to nuts"])
    found = memory.retrieve("Which instrument does Ada play?", k=1)
    memory.feedback("Which instrument does Ada play?", [found[0].id], [True])
    memory.save("memory")

It is the system of the experiments with one replica and one query at a time (`online.OnlineLearner`), over memories
that come and go. Readers need no lock: each works on the snapshot that it began with. A change is made as a whole or
not at all: it runs in a thread of its own (`writer.Writer`) and takes effect by one assignment.
"""

import os
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from earlib.core import randomness
from earlib.core.adapter import gram
from earlib.core.explorer import explore
from earlib.core.ordering import best
from earlib.data import encoders
from earlib.memory import validation
from earlib.memory.critics import query_critic
from earlib.memory.encoding import MemoryEncoder
from earlib.memory.folder import MemoryFolder, State
from earlib.memory.presets import PRESETS, Preset, resolve_preset
from earlib.memory.snapshot import Found
from earlib.memory.state import MemoryState
from earlib.memory.validation import check_ids, check_query
from earlib.memory.writer import Writer

CHANGES = 500  # behind a snapshot before the next is written: loading makes them again in some seconds
DTYPES = {"float32": torch.float32, "float64": torch.float64}


class EARMemory:
    """Memories that are retrieved by an adapter which learns from feedback.

    Parameters
    ----------
    encoder : str or callable
        One of `encoders.REGISTRY`, or `(texts, kind) -> [n, d]` with kind "memory" or "query", of any texts: `save`
        has it embed a sentence of its own, by which `load` recognises it. The last 1,000 queries are not encoded again.
    preset : str or Preset
        "best", "paper", or one of your own.
    critic : callable, optional
        `(query, ids, texts) -> critic` as in `earlib.core.critic` for this one query, whose K candidates are these
        memories; `by_model` makes one of a language model. It is asked where feedback has no label.
    seed : int
        Of all random numbers, at least 0.
    dtype : torch.dtype
        Of the adapter and its updates, torch.float32 or torch.float64. Embeddings of memories are kept in float16.
    experiences : int
        Number of feedbacks that are kept for replay; the oldest is dropped first. What was learned from it stays.

    Raises
    ------
    TypeError
        If an argument has another type.
    ValueError
        For an unknown encoder or preset, a preset that learns a weight of words without looking for words, or a number
        that is too small.
    """

    def __init__(
        self,
        encoder: str | Callable[..., Any] = "minilm",
        preset: str | Preset = "best",
        critic: Callable[..., Any] | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        experiences: int = 10_000,
    ):
        self.config, self.by_words = resolve_preset(preset)
        if not (isinstance(encoder, str) or callable(encoder)):
            raise TypeError(f"encoder: expected a name or a callable, found {type(encoder).__name__}")
        if not (critic is None or callable(critic)):
            raise TypeError(f"critic: expected a callable or None, found {type(critic).__name__}")
        if dtype not in DTYPES.values():
            raise ValueError(f"dtype = {dtype!r}: expected torch.float32 or torch.float64")
        self.encoder = encoder if callable(encoder) else encoders.get(encoder)
        self.critic, self.dtype = critic, dtype
        self.seed = validation.check_whole_number(seed, "seed", 0)
        self.experiences = validation.check_whole_number(experiences, "experiences", 1)
        self._encode, self._folder = MemoryEncoder(self.encoder), None
        self._state = MemoryState(self.config, self.by_words, self.seed, dtype, self.experiences)
        self._write = Writer()
        weakref.finalize(self, self._write.end).atexit = False  # until the very end a change may be made

    def __len__(self) -> int:
        return self._state.now.size if self._state.now else 0

    def __contains__(self, id: object) -> bool:
        now = self._state.now
        valid = isinstance(id, validation.ID_TYPES) and not isinstance(id, bool)
        return now is not None and valid and now.place(id) is not None

    def __repr__(self) -> str:
        name = getattr(self.encoder, "name", None) or getattr(self.encoder, "__name__", type(self.encoder).__name__)
        preset = next((name for name, one in PRESETS.items() if one == (self.config, self.by_words)), "of its own")
        held = self._state.learner.held if self._state.learner else 0
        return (
            f"<EARMemory: encoder {name}, preset {preset}, {len(self):,} memories, {held:,} of {self.experiences:,} "
            f"experiences, folder {self._folder.path if self._folder else 'none'}>"
        )

    def __enter__(self) -> "EARMemory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self):
        raise TypeError("an EARMemory cannot be pickled or copied; use save and load")

    @property
    def weight(self) -> float:
        """Weight of the score by words beside the adapter's; learned, from the configuration's start."""
        return self._state.now.weight if self._state.now else self.config.side_start

    def ids(self) -> list[int | str]:
        """List the ids of all memories, in the order in which they were added."""
        now = self._state.now
        return [now.ids[row] for row in np.flatnonzero(now.alive).tolist()] if now else []

    def get(self, id: int | str) -> str:
        """Return the text of a memory; a ValueError if no memory has this id."""
        id, state = validation.check_id(id), self._state
        state.check_present([id], "id")
        return state.now.texts[state.now.place(id)]

    def add(self, texts: Sequence[str], ids: Sequence[int | str] | None = None) -> list[int | str]:
        """Add memories.

        Parameters
        ----------
        texts : sequence of str
            Empty ones are memories too. Equal ones are memories of their own; they share an embedding and a score, and
            are retrieved in the order in which they were added.
        ids : sequence of int or str, optional
            Default: numbers that no memory has had.

        Returns
        -------
        list
            Their ids.

        Raises
        ------
        TypeError
            If a text or an id has another type.
        ValueError
            If an id is in use or comes twice, there are more or fewer ids than texts, or a text or an id holds half of
            a surrogate pair, which no encoder and no file takes.
        """
        texts = validation.check_memory_texts(texts)
        given = None if ids is None else check_ids(ids)
        if given is not None and len(given) != len(texts):
            raise ValueError(f"ids: expected {len(texts)}, one a text, got {len(given)}")
        if not texts:
            return []
        place = {text: at for at, text in enumerate(dict.fromkeys(texts))}
        distinct, places = list(place), [place[text] for text in texts]
        vectors = self._embedded(distinct)

        def change():
            now, chosen = self._state.now, given
            if now:  # another thread may have added the same texts meanwhile
                rows = now.rows_of_texts(distinct)
                vectors[rows > 0] = now.bank[rows[rows > 0]].numpy()
            if chosen is None:
                chosen = list(range(self._state.next, self._state.next + len(texts)))
            times = [time.time()] * len(texts)
            self._change("add", texts=texts, ids=chosen, vectors=vectors[places], times=times)
            return list(chosen)

        return self._write(change)

    def _embedded(self, distinct):
        """Embeddings of distinct texts, `[n, d]` float16; those that a memory has already are its own."""
        now = self._state.now
        rows = now.rows_of_texts(distinct) if now else np.zeros(len(distinct), np.int64)
        new = np.flatnonzero(rows == 0)
        encoded = self._encode([distinct[at] for at in new], "memory").astype(np.float16) if len(new) else None
        if len(new) == len(distinct):
            return encoded
        vectors = now.bank[rows].numpy()
        if len(new):
            vectors[new] = encoded
        return vectors

    def remove(self, ids: Sequence[int | str]) -> None:
        """Remove memories; they drop out of what is replayed too.

        In a folder their texts remain until the next snapshot is written, after some hundred changes or by `save`.

        Parameters
        ----------
        ids : sequence of int or str

        Raises
        ------
        TypeError
            If an id has another type.
        ValueError
            For an id that no memory has, or one that comes twice; none is removed then.
        """
        ids = check_ids(ids)
        if ids:
            self._write(lambda: self._change("remove", ids=ids))

    def retrieve(self, query: str, k: int = 5) -> list[Found]:
        """Return the memories that are ranked first for a query; no critic calls, and nothing changes.

        The K candidates of the configuration are ranked. Where more are wanted, others follow behind them in the order
        of the first stage, whatever their scores: what comes first does not depend on how many are asked for.

        Parameters
        ----------
        query : str
        k : int
            Number of memories; fewer come back where there are fewer.

        Returns
        -------
        list of Found
            The best first; of equal scores the one that the first stage puts first.

        Raises
        ------
        TypeError
            If the query is no string, or k no whole number.
        ValueError
            If k is below 1, or the query holds half of a surrogate pair.
        """
        query, k, now = check_query(query), validation.check_whole_number(k, "k", 1), self._state.now
        if now is None or not now.size:
            return []
        vector = self._encode.query(query)
        rows, side = now.candidates(query, vector, self.config.depth, self.by_words)
        scores = now.scores(vector, rows, side)[0].flatten()
        order = best(scores, k)
        rows, scores = rows[order], scores[order]
        if len(rows) < min(k, now.size):
            more, side = now.candidates(query, vector, k, self.by_words)
            new = torch.isin(more, rows, invert=True).nonzero().flatten()[: k - len(rows)]
            more, side = more[new], side[new]
            # Scored apart: a product of another size may round differently, and change what comes first.
            scores = torch.cat([scores, now.scores(vector, more, side)[0].flatten()])
            rows = torch.cat([rows, more])
        found = zip(rows.tolist(), scores.tolist(), strict=True)
        return [Found(now.ids[row], now.texts[row], score) for row, score in found]

    def candidates(self, query: str) -> list[int | str]:
        """List the ids of the K candidates that are ranked for a query, in the order of the first stage."""
        query, now = check_query(query), self._state.now
        if now is None or not now.size:
            return []
        rows, _ = now.candidates(query, self._encode.query(query), self.config.depth, self.by_words)
        return [now.ids[row] for row in rows.tolist()]

    def feedback(self, query: str, ids: Sequence[int | str], labels: Sequence[Any] | None = None) -> int:
        """Learn which memories were useful for a query: one update of the adapter, made as a whole or not at all.

        Parameters
        ----------
        query : str
        ids : sequence of int or str
            Memories that were shown, whether retrieved or not; at most K.
        labels : sequence, optional
            True or 1 for a useful one, False, 0 or -1 for another; None where the critic is asked. Left out, the critic
            is asked about all. A memory without a label from either counts as not shown.

        Returns
        -------
        int
            Number of memories with a label. One that was removed while the critic answered is not among them.

        Raises
        ------
        TypeError
            If the query, an id or the critic's answer has another type.
        ValueError
            For an id that no memory has or that comes twice, none or more ids than K, more or fewer labels than ids,
            another label or citation than these, or where there are neither labels nor a critic.
        FloatingPointError
            If the adapter would diverge; it stays as it was.
        """
        query, ids, now = check_query(query), check_ids(ids), self._state.now
        self._state.check_present(ids)
        if not ids:
            raise ValueError("ids: expected at least one")
        if len(ids) > self.config.depth:
            raise ValueError(f"ids: expected at most {self.config.depth} (K), got {len(ids)}")
        if labels is None:
            labels = [None] * len(ids)
        labels = [validation.check_label(one) for one in encoders.sequence(labels, "labels")]
        if len(labels) != len(ids):
            raise ValueError(f"labels: expected {len(ids)}, one an id, got {len(labels)}")
        if all(label is None for label in labels) and self.critic is None:
            raise ValueError("labels: expected some, since the memory has no critic")
        unknown = [at for at, label in enumerate(labels) if label is None]
        if unknown and self.critic is not None:
            asked = [ids[at] for at in unknown]
            ask = self._critic(query, asked, [now.texts[now.place(id)] for id in asked])
            citations, readable = (part.flatten().tolist() for part in ask(0, torch.arange(len(asked))[None, None]))
            for at, citation, could in zip(unknown, citations, readable, strict=True):
                labels[at] = citation > 0 if could else None
        return self._learn(query, [ids], [labels])

    def reflect(self, query: str) -> dict[int | str, float]:
        """Exploratory Reflection: the critic judges the Explorer's T slates, then the adapter is updated once.

        Parameters
        ----------
        query : str

        Returns
        -------
        dict
            Mean citation of each memory that was shown, -1 to 1, by its id.

        Raises
        ------
        TypeError
            If the query is no string, or the critic's answer has another type.
        ValueError
            If the memory is empty or has no critic, or the critic answers for another number of memories or something
            else than -1 and 1.
        FloatingPointError
            If the adapter would diverge; it stays as it was.
        """
        query, now, config = check_query(query), self._state.now, self.config
        if now is None or not now.size:
            raise ValueError("reflect: the memory is empty; expected at least one memory")
        if self.critic is None:
            raise ValueError("critic: expected one, to be asked about the Explorer's slates")
        vector = self._encode.query(query)
        rows, side = now.candidates(query, vector, config.depth, self.by_words)
        scores, adapted, length = now.scores(vector, rows, side)
        similarity = gram(adapted, length, torch.arange(len(rows))[None, None])
        ask = self._critic(query, [now.ids[row] for row in rows], [now.texts[row] for row in rows])
        config = config.model_copy(update={"slate_size": min(config.slate_size, len(rows))})
        given = side.to(self.dtype)[None, None] if config.side else None
        told = explore(config, scores, similarity, ask, config.rounds, given)
        slates = [[now.ids[row] for row in slate] for slate in rows[told.slates[0, 0]].tolist()]
        labels = torch.where(told.readable, told.citations, 0)[0, 0].tolist()
        self._learn(query, slates, [[label > 0 if label else None for label in one] for one in labels])
        shown, cited = told.shown.flatten(), told.cited.flatten()
        return {now.ids[rows[at]]: float(cited[at] / shown[at]) for at in shown.nonzero().flatten().tolist()}

    def _critic(self, query, ids, texts):
        uniforms = randomness.live(self.config, self.seed, self._state.learner.known, self.config.depth).critic
        return query_critic(self.critic, query, ids, texts, uniforms)

    def _learn(self, query, slates, labels):
        """Learn from the labels of some slates; the number of memories that have one."""
        vector = self._encode.query(query)

        def change():
            # A memory may have been removed since it was shown: it becomes None, and so does its label.
            present = [[id if id in self else None for id in slate] for slate in slates]
            known = [
                [label if id is not None else None for id, label in zip(*pair, strict=True)]
                for pair in zip(present, labels, strict=True)
            ]
            if any(id is not None for slate in present for id in slate):
                self._change("feedback", query=query, vector=vector, slates=present, labels=known)
            pairs = zip(sum(present, []), sum(known, []), strict=True)
            return len({id for id, label in pairs if label is not None})

        return self._write(change)

    def _change(self, kind, **change):
        """Make a change: first in the folder, if there is one, then in memory."""
        self._state.check(kind, change)
        if self._folder:
            self._folder.append(kind, change)
        try:
            self._state.make(kind, change)
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the memory into a folder, and from then on every change, before it takes effect.

        A kill at any moment leaves a folder that `load` reads; at most the change that was being made is missing. Later
        changes go to this folder alone: for a copy, save to another one, then to this one again.

        Parameters
        ----------
        path : str or Path
            The state that lies there is replaced, never a part of it. Texts that were removed are gone from it then.

        Raises
        ------
        TypeError
            If the path is none.
        ValueError
            If the folder holds something else than a memory.
        OSError
            If the folder cannot be written, or is open in another memory; what lay there stays.
        """
        self._encode.identity()  # before the change: the caller's encoder may take long, or fail
        path = validation.check_folder(path)

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
            self._folder = folder

        self._write(change)

    def _write_snapshot(self, folder):
        """Write the state without removed memories; once it is written, they are dropped here too."""
        state, number, memories = self._state, None, ()
        now, (plain, tensors) = state.now, self._encode.identity()
        if now is not None:
            if now.size < len(now.alive) - 1:
                now, number = now.without_removed()
            vectors = (vector.tobytes() for vector in now.bank[1:].numpy())
            rows = (held[1 : len(now.alive)] for held in (now.ids, now.texts, now.times))
            memories = zip(*rows, vectors, strict=True)
            tensors |= {f"learner.{name}": values for name, values in state.learner.state(number).items()}
        plain |= {
            "config": self.config.model_dump(),
            "words": self.by_words,
            "seed": self.seed,
            "dtype": str(self.dtype).partition(".")[2],
            "experiences": self.experiences,
            "dimension": now.bank.shape[1] if now else None,
            "known": state.learner.known if state.learner else 0,
            "next": state.next,
        }
        folder.write(plain, memories, tensors)
        if number is not None:
            state.move(now, number)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        encoder: str | Callable[..., Any] | None = None,
        critic: Callable[..., Any] | None = None,
    ) -> "EARMemory":
        """Return the memory that a folder holds; its changes are kept there from then on.

        Parameters
        ----------
        path : str or Path
        encoder : str or callable, optional
            The callable of before, where it was none of the registry's; else it may be left out.
        critic : callable, optional
            As for a new memory.

        Returns
        -------
        EARMemory

        Raises
        ------
        TypeError
            If the path is none.
        ValueError
            If the folder holds no memory, one of another version or a damaged one, or the encoder is another.
        BlockingIOError
            If it is open in another memory.
        OSError
            If the folder cannot be written.
        """
        folder = MemoryFolder(validation.check_folder(path))
        try:
            plain, bank, tensors, changes = folder.read()
            named = plain.encoder_name
            if not callable(encoder) if named is None else encoder not in (None, named):
                wanted = named or "the callable that the memory was made with"
                raise ValueError(f"encoder: expected {wanted} ({path}), got {encoder or 'none'}")
            preset = Preset(plain.config, plain.words)
            memory = cls(encoder or named, preset, critic, plain.seed, DTYPES[plain.dtype], plain.experiences)
            memory._encode.check_identity(plain.encoder, tensors.pop("probe", None), folder.file)
            memory._write(lambda: memory._restore(folder, plain, bank, tensors, changes))
        except BaseException:
            folder.close()
            raise
        return memory

    def _restore(self, folder, plain: State, bank, tensors, changes):
        """Become what a folder holds."""
        try:
            self._state.restore(plain, bank, tensors)
        except ValueError as error:
            raise ValueError(f"{folder.file}: {error}; put a copy of the folder there") from None
        for at, (kind, change) in enumerate(changes, 1):
            try:
                self._state.check(kind, change)
                self._state.make(kind, change)
            except ValueError as error:
                raise ValueError(f"{folder.place(at)}: {error}; put a copy of the folder there") from None
            except FloatingPointError:
                if at < len(changes):
                    raise
                folder.drop()  # killed before it was taken back: it never took effect
        self._folder = folder

    def close(self) -> None:
        """Let another memory open the folder; this one goes on in memory alone."""
        if not self._write.in_own_process():  # the folder is that process's, which goes on with it
            return

        def change():
            if self._folder:
                self._folder.close()
                self._folder = None

        self._write(change)
