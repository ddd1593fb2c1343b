"""Context of a memory: those before and after it in its session, whose scores are shifts of what a search computes.

The starting weights were chosen on LoCoMo with MiniLM, by the first 1,000 questions of each of ten random orders
(`agent_memory`), the share of the neighbours' words by the recall of the candidates over all its questions.
"""

import numpy as np
import torch

WORDS = 0.5  # of BM25 of the memory before and of the one after that count for a memory in the first stage
START = (0.2, 0.1, 0.1, 0.1)  # weights before any feedback: of words before and after, of cosine before and after


def beside(session: np.ndarray, scope: np.ndarray) -> np.ndarray:
    """Return the rows of the memories before and after each one in its session, `[2, M]`; 0 where there is none.

    `session` numbers the session of each row, 0 for none; other rows than those of the scope are as if never added.
    """
    rows = np.flatnonzero(scope & (session > 0))
    rows = rows[np.argsort(session[rows], kind="stable")]
    both = session[rows[1:]] == session[rows[:-1]]
    before, after, found = rows[:-1][both], rows[1:][both], np.zeros((2, len(session)), np.int64)
    found[0, after], found[1, before] = before, after
    return found


def cosines(bank: torch.Tensor, rows: np.ndarray, vector: np.ndarray) -> torch.Tensor:
    """Cosines of a question with rows of a bank, `[...]` float64; 0 for row 0."""
    memory = bank[torch.from_numpy(rows)].double()
    similarity = memory @ torch.from_numpy(vector).double() / memory.norm(dim=-1)
    return similarity * torch.from_numpy(rows > 0) / np.linalg.norm(vector.astype(float))
