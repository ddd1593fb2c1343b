"""Readers' view of a memory: its contents at one moment, the first stage over them, and their scores."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from earlib.core.adapter import Adapter
from earlib.core.ordering import best
from earlib.data.candidates import of_largest, reciprocals
from earlib.data.search import stream
from earlib.data.words import Words
from earlib.memory.context import START, WORDS, beside, cosines
from earlib.memory.validation import as_matrix, as_number, check_distinct
from earlib.memory.weights import Cosine

POOL = 4  # memories that each ranking contributes to the fusion, per candidate wanted


class Memory(NamedTuple):
    """A memory, as `EARMemory.list` gives it.

    Attributes
    ----------
    id, text, namespace, metadata : int or str, str, str and dict
    created_at : float
        Seconds since 1970.
    """

    id: int | str
    text: str
    namespace: str = ""
    metadata: dict[str, Any] = {}
    created_at: float = 0.0


class Found(NamedTuple):
    """A retrieved memory: the fields of `Memory`, and its score.

    Attributes
    ----------
    score : float
        By which the candidates are ranked: cosine similarity, adapted where the preset has an adapter, and the weighted
        score by words and features where it has those.
    """

    id: int | str
    text: str
    score: float
    namespace: str = ""
    metadata: dict[str, Any] = {}
    created_at: float = 0.0


class Snapshot(NamedTuple):
    """Contents of a memory. The writer only appends behind the rows that a snapshot counts, so it never changes."""

    bank: torch.Tensor  # [M, d] float16; row 0 stands for no memory
    space: np.ndarray  # [M] int32, the number of each memory's namespace; 0 where there is no memory any more
    spaces: dict[str, int]  # number of each namespace, from 1
    row: dict[int | str, int]  # by id, of removed memories too
    row_of_text: dict[str, int]  # one row of each text: equal texts share their embedding
    memories: list[Memory]  # by row
    words: Words
    adapter: Adapter | Cosine
    weights: np.ndarray  # of the score by words, of each score of the context if there is one, and of each feature
    features: Callable[[str, list[str]], np.ndarray] | None = None
    session: np.ndarray | None = None  # [M] int32, the number of each memory's session, 0 for none; None: no context
    sessions: dict[str, int] = {}  # number of each session, from 1

    @property
    def alive(self) -> np.ndarray:
        """Mask of the rows that are memories, `[M]`."""
        return self.space > 0

    @property
    def size(self) -> int:
        """Number of living memories."""
        return int(np.count_nonzero(self.space))

    def place(self, id) -> int:
        """Return the row of a memory, or 0 if no memory has this id."""
        row = self.row.get(id, 0)  # an unfinished addition may have left the row of another memory
        return row if row < len(self.space) and self.space[row] and self.memories[row].id == id else 0

    def get(self, id) -> Memory | None:
        """Return a memory, or None if no memory has this id."""
        return self.memories[row] if (row := self.place(id)) else None

    def scope(self, namespace: str | None, where: Callable[[Memory], Any] | None = None) -> np.ndarray:
        """Mask of the memories of a namespace, or of all, that meet a condition, `[M]`."""
        mask = self.alive if namespace is None else self.space == self.spaces.get(namespace, -1)
        if where is not None:
            rows = np.flatnonzero(mask)
            mask[rows] = [bool(where(self.memories[row])) for row in rows.tolist()]
        return mask

    def rows_of_texts(self, texts) -> np.ndarray:
        """Return a row with the embedding of each text, `[n]`; 0 for texts that are not stored."""
        rows = np.array([self.row_of_text.get(text, 0) for text in texts], np.int64)
        for at in np.flatnonzero(rows):  # a later or an unfinished addition may have left other rows
            if rows[at] >= len(self.space) or self.memories[rows[at]].text != texts[at]:
                rows[at] = 0
        return rows

    def candidates(self, query: str, vector: np.ndarray, depth: int, by_words: bool, scope: np.ndarray):
        """First stage over a scope: rows of the candidates, best first, and their scores as by `side`.

        With words, reciprocal rank fusion of cosine similarity and BM25: a memory's ranks r, counted from 1 among the
        first `POOL` K of each, contribute 1 / (60 + r); ties in the order of the bank. With context, BM25 is a memory's
        own and half of both neighbours'. Other memories than those of the scope count in nothing.
        """
        size = int(np.count_nonzero(scope))
        depth, pool = min(depth, size), min(POOL * depth, size)
        if not by_words or not size:
            return self.nearest(vector, depth, scope), torch.zeros(depth, dtype=torch.float64)
        scores, near = self.score_words(query, scope)
        total = scores if near is None else scores + np.float32(WORDS) * scores[near].sum(0)
        matched = np.flatnonzero(total)
        if len(matched) > pool:  # sorting only those that can be among the first
            matched = matched[total[matched] >= np.partition(total[matched], -pool)[-pool]]
        by_score = torch.from_numpy(matched)[best(torch.from_numpy(total[matched]), pool)]
        rankings = self.nearest(vector, pool, scope), by_score
        held, place = torch.cat(rankings).unique(return_inverse=True)
        share = torch.cat([reciprocals(len(one)) for one in rankings])
        rows = held[best(torch.zeros(len(held), dtype=torch.float64).index_add(0, place, share), depth)]
        return rows, self.side(vector, rows, scores, near)

    def score_words(self, query: str, scope: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """BM25 of every row, `[M]`, and with context the rows beside each one, `[2, M]`."""
        near = None if self.session is None else beside(self.session, scope)
        return self.words.scores(query, scope), near

    def side(self, vector: np.ndarray, rows: torch.Tensor, scores: np.ndarray, near: np.ndarray | None) -> torch.Tensor:
        """Scores of candidates beside their cosine, `[K]`: BM25 as by `candidates.word_scores`.

        With context `[K, 5]`: behind it BM25 of the memories before and after, all as shares of the largest of the
        three, and their cosines.
        """
        own = torch.from_numpy(scores)[rows].double()
        if near is None:
            return of_largest(own)
        near = near[:, rows.numpy()]
        shares = torch.cat([own, torch.from_numpy(scores[near]).double().flatten()])
        return torch.cat([of_largest(shares).view(3, -1), cosines(self.bank, near, vector)]).T.contiguous()

    @property
    def sides(self) -> int:
        """Number of scores beside the cosine."""
        return 1 if self.session is None else 1 + len(START)

    def nearest(self, vector: np.ndarray, k: int, scope: np.ndarray) -> torch.Tensor:
        """Return the k rows of a scope of the highest cosine similarity, best first."""
        others = len(scope) - int(np.count_nonzero(scope))
        query, within = torch.from_numpy(vector), torch.from_numpy(scope)
        if not k:
            return torch.zeros(0, dtype=torch.int64)
        if others > len(scope) // 2:  # a small part is copied
            rows = within.nonzero().flatten()
            return rows[stream(self.bank[rows], query, k, "EARMemory")[1]]
        wanted = k + min(others, k)
        while True:
            rows = stream(self.bank, query, min(wanted, len(self.bank)), "EARMemory")[1]
            rows = rows[within[rows]]
            if len(rows) >= k:
                return rows[:k]
            wanted *= 4

    @torch.no_grad()
    def scores(self, query: str, vector: np.ndarray, rows: torch.Tensor, side: torch.Tensor):
        """Scores of candidates by the adapter, `[1, 1, K]`, and what `gram` needs.

        Equal texts share one score but for their context.
        """
        dtype = self.adapter.parameters[0].dtype
        asked, memory = torch.from_numpy(vector).to(dtype), self.bank[rows].to(dtype)
        scores, adapted, length = self.adapter.score(asked[None, None], memory[None])
        if not scores.isfinite().all():
            raise FloatingPointError("the adapter diverged: scores are not finite; lower the learning rate")
        own, *around = side.to(dtype).reshape(len(rows), self.sides).unbind(1)
        scores = scores + self.weights[0].item() * own
        if self.weights[self.sides :].any():
            scores = scores + torch.from_numpy(self.features_of(query, rows) @ self.weights[self.sides :]).to(dtype)
        first: dict[str, int] = {}
        twin = [first.setdefault(self.memories[row].text, at) for at, row in enumerate(rows.tolist())]
        scores = scores[..., twin]
        for weight, values in zip(self.weights[1 : self.sides].tolist(), around, strict=True):
            scores = scores + weight * values
        return scores, adapted, length

    def features_of(self, query: str, rows: torch.Tensor) -> np.ndarray:
        """Features of memories for a question, `[n, F]`."""
        assert self.features is not None
        texts = [self.memories[row].text for row in rows.tolist()]
        return as_matrix(self.features(query, texts), "features", len(texts), len(self.weights) - self.sides)

    def without_removed(self):
        """Move the living memories together in their order; also the new row of each old one, 0 for removed ones."""
        rows = np.concatenate([[0], np.flatnonzero(self.space)])
        number = torch.zeros(len(self.space), dtype=torch.int64)
        number[torch.from_numpy(rows)] = torch.arange(len(rows))
        memories = [self.memories[row] for row in rows.tolist()]
        moved = self._replace(
            bank=self.bank[torch.from_numpy(rows)],
            space=self.space[rows],
            row={one.id: row for row, one in enumerate(memories[1:], 1)},
            row_of_text={one.text: row for row, one in enumerate(memories[1:], 1)},
            memories=memories,
            words=self.words.of_rows(rows),
            session=None if self.session is None else self.session[rows],
        )
        return moved, number


def check_present(now: Snapshot, ids, name: str = "ids") -> None:
    """Refuse ids that no memory has, or that come twice."""
    for id in ids:
        if not now.place(id):
            raise ValueError(f"{name}: {id!r}: expected the id of a memory, and none has it (it may be removed)")
    check_distinct(ids)


def check_free(now: Snapshot, id, namespace: str, replace: bool) -> None:
    """Refuse the id of another memory than the one that is to be replaced, also as a number or as its text."""
    one, twin = now.get(id), str(id) if isinstance(id, int) else as_number(id)
    if one and not replace:
        raise ValueError(f"ids: {id!r} is in use; expected an id of no memory, or upsert")
    if one and one.namespace != namespace:
        raise ValueError(f"ids: {id!r} is in use in another namespace; expected another id, or remove it")
    if not one and now.get(twin):  # other packages carry both as one text
        raise ValueError(f"ids: {id!r} is in use as {twin!r}; expected another id, or that")
