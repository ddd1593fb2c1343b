"""Memories and the learner that ranks them, as one writer changes them."""

import hashlib
import json
from typing import Any

import numpy as np
import torch

from earlib.core.explorer import tallied
from earlib.core.replay import grown
from earlib.data.words import Words
from earlib.memory.context import START
from earlib.memory.folder import Memories, State
from earlib.memory.online import OnlineLearner
from earlib.memory.presets import Preset
from earlib.memory.snapshot import Memory, Snapshot
from earlib.memory.validation import as_citations, as_number
from earlib.memory.weights import WeightLearner

REPLIES = 1000  # of a language model that are kept, the newest
SPARSE = 1024  # removed rows above which the others are moved together, if more than half are removed

Kept = tuple[dict[str, torch.Tensor], int]  # what was learned, and from how many feedbacks


class MemoryState:
    """All that a memory's changes change; each change takes effect by one assignment to `now`, or not at all.

    Attributes
    ----------
    now : Snapshot
        What readers see.
    learner : OnlineLearner or WeightLearner
    width : int
        d; 0 before the first memory, when it is not yet known.
    next : int
        The next number that is given as an id.
    """

    def __init__(self, preset: Preset, features, width: int, seed: int, dtype: torch.dtype, experiences: int, context):
        self.preset, self.config, self.by_words = preset, preset.config, preset.words
        self.seed, self.dtype, self.experiences = seed, dtype, experiences
        self.features, self._features = features, width  # and how many there are
        self.context: str | None = context  # key of the metadata that tells sessions apart
        self._start = np.array([self.config.side_start, *(START if context else ())])
        self.next = 0
        self.kept: dict[str, Kept] = {}  # by name
        self.replies: dict[str, dict[str, Any]] = {}  # of a language model, by key: arguments of `answer`
        self.begin(0)

    def begin(self, width: int) -> None:
        """Show an empty memory whose embeddings have this width; row 0 is a unit vector that is never alive."""
        words, none, self.width = Words(), np.zeros(1, np.int32), width
        words.append([""])
        self.learner = self._new_learner()
        self._room = torch.eye(1, width or 1).half()  # the bank, and room for more
        adapter, weights = self.learner.ranking
        empty = Snapshot(self._room, none, {}, {}, {}, [Memory("", "")], words, adapter, weights, self.features)
        self._show(empty._replace(session=none if self.context else None, sessions={}))

    def _new_learner(self) -> OnlineLearner | WeightLearner:
        if self.preset.weights:
            return WeightLearner(self.config, self._features, self.dtype, self.experiences, self._start)
        return OnlineLearner(self.config, self.width or 1, self.seed, self.dtype, self.experiences)

    def _show(self, now: Snapshot) -> None:
        """Let readers and the learner see this from here on, ranked by what was learned."""
        adapter, weights = self.learner.ranking
        now = now._replace(adapter=adapter, weights=weights)
        self.learner.bank, self.learner.alive, self.now = now.bank, torch.from_numpy(now.alive), now

    def make(self, kind: str, given: dict[str, Any]) -> None:
        """Make a change that fits the memory."""
        assert kind in ("add", "remove", "answer", "feedback", "learning")
        getattr(self, kind)(**given)

    # Changes; defaults are of folders of earlier versions.

    def add(self, texts, ids, vectors, times, namespace="", metadata=(), replace=False) -> None:
        """Append memories; with `replace`, in the place of those with their ids, whose time of creation they keep."""
        if not self.width:
            self.begin(vectors.shape[1])
        now, space, row = self.now, self.now.space, self.now.row
        old = {id: memory.created_at for id in ids if replace and (memory := now.get(id))}
        if old:
            times = [old.get(id, time) for id, time in zip(ids, times, strict=True)]
            space = space.copy()
            space[[now.place(id) for id in old]] = 0
        if not row.keys().isdisjoint(ids):  # also of removed ones; readers go on with the old rows
            row = row.copy()
        columns = ids, texts, len(texts) * [namespace], metadata or [{} for _ in texts], times
        self._append([Memory(*one) for one in zip(*columns, strict=True)], vectors, space, row)
        self._forget(old)

    def _append(self, memories: list[Memory], vectors: np.ndarray, space: np.ndarray, row: dict) -> None:
        now, texts = self.now, [one.text for one in memories]
        start, stop = len(space), len(space) + len(memories)
        self._room = grown(self._room, start, stop)
        self._room[start:stop] = torch.from_numpy(vectors)
        now.memories[start:] = memories  # over what a failed change has left
        now.words.append(texts)
        row.update((one.id, at) for at, one in enumerate(memories, start))
        stored = now.rows_of_texts(texts)
        now.row_of_text.update((text, at) for at, text in enumerate(texts, start) if not stored[at - start])
        ids = (as_number(one.id) for one in memories)
        self.next = max([self.next, *(id + 1 for id in ids if isinstance(id, int))])
        numbers = [now.spaces.setdefault(one.namespace, len(now.spaces) + 1) for one in memories]
        space = np.concatenate([space, np.array(numbers, np.int32)])
        if now.session is not None:
            now = now._replace(session=np.concatenate([now.session, np.array(self._sessions(memories), np.int32)]))
        self._settle(now._replace(bank=self._room[:stop], space=space, row=row))

    def _sessions(self, memories: list[Memory]) -> list[int]:
        """Numbers of the sessions of memories, 0 where the metadata tell none."""
        known, numbers = self.now.sessions, []
        for one in memories:
            value = one.metadata.get(self.context or "")
            key = json.dumps([one.namespace, value], sort_keys=True)
            numbers.append(0 if value is None else known.setdefault(key, len(known) + 1))
        return numbers

    def remove(self, ids: list) -> None:
        space = self.now.space.copy()
        space[[self.now.place(id) for id in ids]] = 0
        self._settle(self.now._replace(space=space))
        self._forget(ids)

    def answer(self, key: str, ids: list, fields: dict) -> None:
        """Keep a language model's reply about memories until one of them goes."""
        kept = {"key": key, "ids": ids, "fields": fields}
        self.replies = dict([*self.replies.items(), (key, kept)][-REPLIES:])

    def _forget(self, ids) -> None:
        self.replies = {key: kept for key, kept in self.replies.items() if not set(ids) & set(kept["ids"])}

    def _settle(self, now: Snapshot) -> None:
        """Show memories, moved together if most were removed."""
        if np.count_nonzero(now.space == 0) > max(SPARSE, len(now.space) // 2):
            self.move(now)
        else:
            self._show(now)

    def move(self, now: Snapshot) -> None:
        """Show memories, the living ones moved together; readers keep what they have."""
        if now.size < len(now.space) - 1:
            now, number = now.without_removed()
            self.learner.renumber(number)
            for held, _ in self.kept.values():
                held["index"] = number[held["index"]]
            self._room = now.bank
        self._show(now)

    def considered(self, query: str, vector: np.ndarray, slates: list[list]) -> dict[str, Any]:
        """Memories that a feedback compares: the query's candidates in the namespaces of those shown, and all shown.

        Returns their ids, None for one that is gone, and their scores by words.
        """
        now, K = self.now, self.config.depth
        wanted = [now.place(id) for id in dict.fromkeys(sum(slates, []))]
        scope = now.alive & np.isin(now.space, now.space[wanted])
        found, side = now.candidates(query, vector, K, self.by_words, scope)
        rows = found.tolist()
        missing, others = [row for row in wanted if row not in rows], [row for row in rows if row not in wanted]
        dropped = others[len(others) - max(0, len(rows) + len(missing) - K) :]  # the last ones make room
        rows = [row for row in rows if row not in dropped] + missing
        if missing and self.by_words:
            side = now.side(vector, torch.tensor(rows), *now.score_words(query, scope))
        elif missing:
            side = torch.zeros(len(rows), dtype=torch.float64)
        return {"candidates": [now.memories[row].id if row else None for row in rows], "side": side.numpy()}

    def feedback(self, query, vector, slates, labels, source=None, candidates=(), side=None) -> None:
        """Learn which of the candidates that were shown were useful."""
        if side is None:
            return self.feedback(query, vector, slates, labels, source, **self.considered(query, vector, slates))
        now, K, side = self.now, self.config.depth, torch.from_numpy(side)
        rows, shown = list(map(now.place, candidates)), [list(map(now.place, one)) for one in slates]
        place = {row: at for at, row in enumerate(rows)}
        slate = torch.tensor([[place[row] for row in one] for one in shown])
        citations = torch.tensor([as_citations(one) for one in labels])[None, None]
        told = tallied(slate[None, None], citations, citations != 0, torch.zeros(1, 1, K, dtype=self.dtype))
        if isinstance(self.learner, WeightLearner):
            asked, memory = torch.from_numpy(vector).to(self.dtype), now.bank[rows].to(self.dtype)
            cosine = self.learner.cosine.score(asked[None, None], memory[None])[0]
            first = cosine.flatten().double() + side.reshape(len(rows), -1) @ torch.from_numpy(self._start)
            x = np.column_stack([first, side, now.features_of(query, torch.tensor(rows))])
            self.learner = self.learner.learn(x, np.array(rows), told, source_number(source))
        else:
            index, padded = torch.zeros(K, dtype=torch.int64), torch.zeros(K, dtype=torch.float64)
            index[: len(rows)], padded[: len(rows)] = torch.tensor(rows), side
            self.learner = self.learner.learn(torch.from_numpy(vector).to(self.dtype), index, padded, told)
        self._show(now)

    def learning(self, action: str, name: str) -> None:
        """Keep what was learned, or change it as a whole."""
        if action == "keep":
            self.kept = self.kept | {name: (self.learner.state(), self.learner.known)}
            return
        learner = self._new_learner()
        if action == "restore":
            learner.restore(*self.kept[name])
        self.learner = learner
        self._show(self.now)

    def parts(self) -> tuple[dict, Memories, dict[str, torch.Tensor]]:
        """Return the state as a folder keeps it; the removed memories must have been dropped."""
        now = self.now
        plain = {"config": self.config.model_dump(), "words": self.by_words, "weights": self.preset.weights}
        plain |= {"seed": self.seed, "dtype": str(self.dtype).partition(".")[2], "experiences": self.experiences}
        plain |= {"dimension": self.width or None, "known": self.learner.known, "next": self.next}
        plain |= {"snapshots": {name: known for name, (_, known) in self.kept.items()}}
        plain |= {"replies": [*self.replies.values()]}
        plain |= {"context": self.context} if self.context else {}
        learned = self.learner.state() if self.width else {}
        tensors = {f"learner.{name}": values for name, values in learned.items()}
        for at, (held, _) in enumerate(self.kept.values()):
            tensors |= {f"snapshot {at}.{name}": values for name, values in held.items()}
        return plain, (now.memories[1 : len(now.space)], now.bank[1:].numpy()), tensors

    def restore(self, plain: State, memories: Memories, tensors: dict[str, torch.Tensor]) -> None:
        """Become the memory of a folder's snapshot; nothing may have been added yet."""

        def learned(start):
            return {name.removeprefix(start): one for name, one in tensors.items() if name.startswith(start)}

        if plain.dimension is not None:
            self.begin(plain.dimension)
            if memories[0]:
                self._append(*memories, self.now.space, self.now.row)
            kept = enumerate(plain.snapshots.items())
            self.kept = {name: (learned(f"snapshot {at}."), known) for at, (name, known) in kept}
            self.learner.restore(learned("learner."), plain.known)
            self._show(self.now)
        self.next = plain.next
        for one in plain.replies:
            self.answer(**one)


def source_number(source: str | None) -> int:
    """Number by which feedback's source is told from others; 0 where none is given."""
    return 0 if source is None else 1 + int.from_bytes(hashlib.sha256(source.encode()).digest()[:7])
