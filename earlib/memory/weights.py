"""A few weights that are learned from what was shown, and served only while they rank better than what learned nothing.

With x the features of a memory for a question (its score as the memory ranks at first, its share of the score by words,
scores of its context if there is one, and the plain features), the weights u minimise, over pairs of a useful memory i
and another one j of a feedback,

    mean over pairs of log(1 + exp(-u . (x_i - x_j))), summed over feedbacks, + lambda / 2 (u_2^2 + u_3^2 + ...).

The scale u_1 is all but free: wrong labels that come at random lower it, and leave the order of memories as it was.
"""

import copy
from typing import NamedTuple

import numpy as np
import torch

from earlib.core.config import Config
from earlib.core.ordering import best

LAMBDA = np.array([1e-3, 2.0])  # of the scale and of all other weights
SCALE, LEAST = 20.0, 2.0  # u_1 at first, and at least
KEPT, TESTED = 500, 100  # feedbacks that are learned from, and those over which the two rankings are compared
UNNAMED, NONE_USEFUL = 0.5, 0.1  # weight of a feedback without explicit negatives, and of one with negatives alone
OPEN, CLOSE = 0.7, -1.5  # standard errors of the gain above which the learned ranking takes over, or stays
EACH = 10  # newest feedbacks in which one memory counts, and one named source


class Evidence(NamedTuple):
    """Feedbacks, the oldest first, and the memories that each compares: entries of `of`, in order."""

    of: np.ndarray  # [T] the feedback
    row: np.ndarray  # [T] the memory's
    sign: np.ndarray  # [T] 1 for a useful one, -1 for another
    x: np.ndarray  # [T, D]
    weight: np.ndarray  # [E]
    right: np.ndarray  # [E, 2] pairs in the right order by what was learned before it, and at first; -1 where none is
    source: np.ndarray  # [E] 0 where none is given


class Cosine:
    """The encoder's cosine similarity in the place of an adapter; arguments and result as of `Adapter.score`."""

    def __init__(self, dtype: torch.dtype):
        self.parameters = [torch.zeros(0, dtype=dtype)]

    def score(self, query: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        length = memory.norm(dim=-1)
        return (query / query.norm(dim=-1, keepdim=True)) @ (memory / length[..., None]).mT, memory, length


class WeightLearner:
    """Learner of a memory's few weights, with the same methods as `OnlineLearner`.

    Attributes
    ----------
    alive : torch.Tensor
        Mask of the rows that are still memories, `[M]` bool.
    known, held : int
        Number of feedbacks so far, and of those that are learned from.
    served : bool
        Whether the learned ranking is served.
    """

    def __init__(self, config: Config, features: int, dtype: torch.dtype, experiences: int, start: np.ndarray):
        self.slate, self.experiences = config.slate_size, min(experiences, KEPT)
        self.cosine = Cosine(dtype)
        none, D = np.zeros(0, np.int64), 1 + len(start) + features
        self.start = np.append(start, np.zeros(features))  # weights at first, without that of the cosine
        self.alive, self.bank, self.known, self.served = torch.zeros(0, dtype=torch.bool), None, 0, False
        self.u = np.eye(D)[0] * SCALE
        self.evidence = Evidence(none, none, none, np.zeros((0, D)), np.zeros(0), np.zeros((0, 2)), none)

    @property
    def held(self) -> int:
        return len(self.evidence.weight)

    @property
    def ranking(self) -> tuple[Cosine, np.ndarray]:
        """The cosine, and the weights that are served: of all features beside the cosine, that of words first."""
        weights = self.u[1:] / self.u[0] if self.served else np.zeros(len(self.u) - 1)
        return self.cosine, weights + self.start

    def learn(self, x: np.ndarray, index: np.ndarray, told, source: int) -> "WeightLearner":
        """Return the learner after one feedback on candidates; this one stays as it is.

        Features `[K, D]`, rows `[K]`, and the Exploration of a critic. Raises FloatingPointError if the weights would
        not be finite.
        """
        shown, cited = (part.flatten().numpy()[: len(index)] for part in (told.shown, told.cited))
        new = copy.copy(self)
        new.known += 1
        if not (shown > 0).any():
            return new
        sign, weight = np.where(shown > 0, np.where(cited > 0, 1, -1), 0), 1.0
        rest = np.flatnonzero(sign == 0)
        rest = rest[best(torch.from_numpy(x[rest] @ self._direction()), self.slate).numpy()]
        right = np.full(2, -1.0)
        if not (sign < 0).any():  # what stood first and was not named is the other side
            sign[rest], weight = -1, UNNAMED
        elif not (sign > 0).any():  # none of these: what would have come next, but for very little
            sign[rest], weight = 1, NONE_USEFUL
        if weight > NONE_USEFUL:
            gap = (x[sign > 0][:, None] - x[sign < 0]).reshape(-1, x.shape[1])
            gap = np.stack([gap @ self.u / self.u[0], gap[:, 0]], 1).round(9)
            right = (0.5 + np.sign(gap) / 2).mean(0) if len(gap) else right
        old, judged = self._recent(self.experiences - 1), sign != 0
        entries = np.full(judged.sum(), len(old.weight)), index[judged], sign[judged], x[judged]
        added = *entries, np.array([weight]), right[None], np.array([source])
        new.evidence = one = Evidence(*(np.concatenate(pair) for pair in zip(old, added, strict=True)))
        left, over, pairs = new._pairs(one)
        each = (one.weight / pairs.clip(1))[one.of[left]]
        new.u = fitted(self.u, one.x[left] - one.x[over], each, self.start[0])
        new.served = better(one.right[pairs > 0][-TESTED:], self.served)
        return new

    def _direction(self):
        return self.u / self.u[0] if self.served else np.eye(len(self.u))[0]

    def _recent(self, count):
        """The newest feedbacks."""
        one, drop = self.evidence, max(0, self.held - count)
        kept = one.of >= drop
        return Evidence(one.of[kept] - drop, *(part[kept] for part in one[1:4]), *(part[drop:] for part in one[4:]))

    def _pairs(self, one):
        """Entries of the useful and of the other memory of each pair that counts, and the pairs of each feedback."""
        counts = self.alive.numpy()[one.row] & ((one.source == 0) | newest(one.source, EACH))[one.of]
        counts[counts] = newest(one.row[counts], EACH)
        useful, others = (np.flatnonzero(counts & (one.sign == sign)) for sign in (1, -1))
        number = np.bincount(one.of[others], minlength=len(one.weight))[one.of[useful]]
        first = np.searchsorted(one.of[others], one.of[useful]) - (number.cumsum() - number)
        left = np.repeat(useful, number)
        over = others[np.arange(len(left)) + np.repeat(first, number)]
        return left, over, np.bincount(one.of[left], minlength=len(one.weight))

    def record(self) -> dict:
        """Return how the two rankings did on the pairs of the last feedbacks that count, and what was learned."""
        right = self.evidence.right[self._pairs(self.evidence)[2] > 0][-TESTED:]
        right = right[right[:, 0] >= 0]
        means = right.mean(0).tolist() if len(right) else [None, None]
        weights = self.u[1:] / self.u[0] + self.start
        told = {"served": "learned" if self.served else "at first", "tested": len(right)}
        return told | {"right": dict(zip(("learned", "at first"), means, strict=True)), "weights": weights.tolist()}

    def renumber(self, number: torch.Tensor) -> None:
        """Give memories their new rows, `[M]` by the old one; removed ones leave."""
        one = self.evidence._replace(row=number.numpy()[self.evidence.row])
        kept = one.row > 0
        self.evidence = one._replace(of=one.of[kept], row=one.row[kept], sign=one.sign[kept], x=one.x[kept])

    def state(self) -> dict[str, torch.Tensor]:
        """Return all that was learned, and from what, as tensors by name."""
        held = self.evidence._asdict()
        held |= {"index": held.pop("row"), "u": self.u, "served": np.array(self.served)}
        return {name: torch.from_numpy(np.array(values)) for name, values in held.items()}

    def restore(self, held: dict[str, torch.Tensor], known: int) -> None:
        """Become the learner of a `state`."""
        parts = {name: values.numpy().copy() for name, values in held.items()}
        self.u, self.served, self.known = parts.pop("u"), bool(parts.pop("served")), known
        self.evidence = Evidence(row=parts.pop("index"), **parts)


def better(right: np.ndarray, served: bool) -> bool:
    """Decide to serve what was learned: it takes over once it is better, and gives way once it is clearly worse.

    Shares of pairs in the right order by it and by what it is compared with, `[n, 2]`, each before it was learned from.
    """
    gain = right[:, 0] - right[:, 1]
    error = np.sqrt((gain**2).sum())
    return bool(error > 0 and gain.sum() > (CLOSE if served else OPEN) * error)


def newest(values: np.ndarray, count: int) -> np.ndarray:
    """Mask of the last `count` occurrences of each value."""
    order = np.argsort(values[::-1], kind="stable")
    ordered = values[::-1][order]
    place = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    mask = np.empty(len(values), bool)
    mask[order] = place < count
    return mask[::-1]


def fitted(u: np.ndarray, gap: np.ndarray, weight: np.ndarray, start: float) -> np.ndarray:
    """Weights by Newton's method, from those before: `[D]` from differences of features, `[P, D]`, and their weight."""
    penalty = LAMBDA[np.minimum(np.arange(len(u)), 1)]
    for _ in range(10):
        wrong = 1 / (1 + np.exp((gap @ u).clip(-50, 50)))
        gradient = penalty * (u - SCALE * np.eye(len(u))[0]) - (weight * wrong) @ gap
        step = np.linalg.solve((gap.T * (weight * wrong * (1 - wrong))) @ gap + np.diag(penalty), gradient)
        u = u - step
        u[0] = max(u[0], LEAST)
        u[1] = max(u[1], -start * u[0])  # the weight of words stays at or above 0
        if abs(step).max() < 1e-4:
            break
    if not np.isfinite(u).all():
        raise FloatingPointError("the weights diverged: not finite; give features of the order of one")
    return u
