"""Readers' view of a memory: its contents at one moment, the first stage over them, and their scores."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from earlib.core.adapter import Adapter
from earlib.core.ordering import best
from earlib.data.candidates import of_largest, reciprocals
from earlib.data.search import stream
from earlib.data.words import Words
from earlib.memory.validation import check_distinct, check_features
from earlib.memory.weights import Cosine

POOL = 4  # memories that each ranking contributes to the fusion, per candidate wanted


class Found(NamedTuple):
    """A retrieved memory.

    Attributes
    ----------
    id : int or str
    text : str
    score : float
        By which the candidates are ranked: cosine similarity, adapted where the preset has an adapter, and the weighted
        score by words and features where it has those.
    """

    id: int | str
    text: str
    score: float


class Snapshot(NamedTuple):
    """Contents of a memory. The writer only appends behind the rows that a snapshot counts, so it never changes."""

    bank: torch.Tensor  # [M, d] float16; row 0 stands for no memory
    alive: np.ndarray  # [M] bool
    row: dict[int | str, int]  # by id, of removed memories too
    row_of_text: dict[str, int]  # one row of each text: equal texts share their embedding
    ids: list  # by row, as the next two
    texts: list[str]
    times: list[float]  # seconds since 1970, when each was added
    words: Words
    adapter: Adapter | Cosine
    weights: np.ndarray  # of the score by words, and of each feature
    features: Callable[[str, list[str]], np.ndarray] | None = None

    @property
    def size(self) -> int:
        """Number of living memories."""
        return int(np.count_nonzero(self.alive))

    def place(self, id) -> int | None:
        """Return the row of a memory, or None if no memory has this id."""
        row = self.row.get(id, 0)  # an unfinished addition may have left the row of another memory
        return row if row < len(self.alive) and self.alive[row] and self.ids[row] == id else None

    def rows_of_texts(self, texts) -> np.ndarray:
        """Return a row with the embedding of each text, `[n]`; 0 for texts that are not stored."""
        rows = np.array([self.row_of_text.get(text, 0) for text in texts], np.int64)
        for at in np.flatnonzero(rows):  # a later or an unfinished addition may have left other rows
            if rows[at] >= len(self.alive) or self.texts[rows[at]] != texts[at]:
                rows[at] = 0
        return rows

    def copy_stored(self, texts, vectors: np.ndarray) -> None:
        """Replace the embeddings of texts that are stored by the stored ones."""
        rows = self.rows_of_texts(texts)
        vectors[rows > 0] = self.bank[rows[rows > 0]].numpy()

    def candidates(self, query: str, vector: np.ndarray, depth: int, by_words: bool):
        """First stage: rows of the candidates, best first, and their scores by words as `candidates.word_scores`.

        With words, reciprocal rank fusion of cosine similarity and BM25: a memory's ranks r, counted from 1 among the
        first `POOL` K of each, contribute 1 / (60 + r); ties in the order of the bank.
        """
        depth, pool = min(depth, self.size), min(POOL * depth, self.size)
        if not by_words:
            return self.nearest(vector, depth), torch.zeros(depth, dtype=torch.float64)
        scores = self.words.scores(query, self.alive)
        matched = np.flatnonzero(scores)
        if len(matched) > pool:  # sorting only those that can be among the first
            matched = matched[scores[matched] >= np.partition(scores[matched], -pool)[-pool]]
        by_score = torch.from_numpy(matched)[best(torch.from_numpy(scores[matched]), pool)]
        rankings = self.nearest(vector, pool), by_score
        held, place = torch.cat(rankings).unique(return_inverse=True)
        share = torch.cat([reciprocals(len(one)) for one in rankings])
        rows = held[best(torch.zeros(len(held), dtype=torch.float64).index_add(0, place, share), depth)]
        return rows, of_largest(torch.from_numpy(scores)[rows].double())

    def nearest(self, vector: np.ndarray, k: int) -> torch.Tensor:
        """Return the k living rows of the highest cosine similarity, best first."""
        removed = len(self.alive) - self.size
        wanted = k + min(removed, k)
        while True:
            rows = stream(self.bank, torch.from_numpy(vector), min(wanted, len(self.bank)), "EARMemory")[1]
            rows = rows[torch.from_numpy(self.alive)[rows]]
            if len(rows) >= k:
                return rows[:k]
            wanted *= 4

    @torch.no_grad()
    def scores(self, query: str, vector: np.ndarray, rows: torch.Tensor, side: torch.Tensor):
        """Scores of candidates by the adapter, `[1, 1, K]`, and what `gram` needs; equal texts share one score."""
        dtype = self.adapter.parameters[0].dtype
        asked, memory = torch.from_numpy(vector).to(dtype), self.bank[rows].to(dtype)
        scores, adapted, length = self.adapter.score(asked[None, None], memory[None])
        if not scores.isfinite().all():
            raise FloatingPointError("the adapter diverged: scores are not finite; lower the learning rate")
        scores = scores + self.weights[0].item() * side.to(dtype)
        if self.weights[1:].any():
            scores = scores + torch.from_numpy(self.features_of(query, rows) @ self.weights[1:]).to(dtype)
        first: dict[str, int] = {}
        twin = [first.setdefault(self.texts[row], at) for at, row in enumerate(rows.tolist())]
        return scores[..., twin], adapted, length

    def features_of(self, query: str, rows: torch.Tensor) -> np.ndarray:
        """Features of memories for a question, `[n, F]`."""
        assert self.features is not None
        texts = [self.texts[row] for row in rows.tolist()]
        return check_features(self.features(query, texts), len(texts), len(self.weights) - 1)

    def without_removed(self):
        """Move the living memories together in their order; also the new row of each old one, 0 for removed ones."""
        rows = np.concatenate([[0], np.flatnonzero(self.alive)])
        number = torch.zeros(len(self.alive), dtype=torch.int64)
        number[torch.from_numpy(rows)] = torch.arange(len(rows))
        ids, texts, times = ([held[row] for row in rows.tolist()] for held in (self.ids, self.texts, self.times))
        moved = self._replace(
            bank=self.bank[torch.from_numpy(rows)],
            alive=np.arange(len(rows)) > 0,
            row={id: row for row, id in enumerate(ids[1:], 1)},
            row_of_text={text: row for row, text in enumerate(texts[1:], 1)},
            ids=ids,
            texts=texts,
            times=times,
            words=self.words.of_rows(rows),
        )
        return moved, number


def check_present(now: Snapshot, ids, name: str = "ids") -> None:
    for id in ids:
        if now.place(id) is None:
            raise ValueError(f"{name}: {id!r}: expected the id of a memory, and none has it (it may be removed)")
    check_distinct(ids)
