"""BM25 over memories that are added one after another, without indexing the earlier ones again.

Scores are to the last bit those of the `bm25s` package, Lucene's variant with its usual constants, over the active
memories:

    score(q, m) = sum over words t of q:  log(1 + (N - n_t + 1/2) / (n_t + 1/2))  f / (f + k1 (1 - b + b l_m / l))

with f the occurrences of t in m, n_t the memories that contain t, l_m the words of m and l their mean.
"""

import math
import re

import numpy as np
from bm25s.stopwords import STOPWORDS_EN

from earlib.core.replay import grown

K1, B = 1.5, 0.75
_WORD, _STOP = re.compile(r"\b\w\w+\b"), frozenset(STOPWORDS_EN)
_NONE = np.zeros((2, 0), np.int32)


def content_words(texts):
    """The words of each text, as lists, without English stop words and single letters: those of `bm25s.tokenize`.

    A script without spaces (Chinese, Japanese, Thai) gives a word a clause, which hardly ever matches.
    """
    words = (_WORD.findall(text.lower()) for text in texts)
    return [[word for word in one if word not in _STOP] for one in words]


class Words:
    """An inverted index: which rows contain which word, how often; rows are only ever appended.

    A reader states which of the rows that existed when it began are active. Rows appended meanwhile lie behind those,
    so that readers beside the one writer see an index that does not change.
    """

    def __init__(self):
        self._postings = {}  # word -> [2, capacity] rows and occurrences, and how many of them are in use
        self._lengths, self._rows = np.zeros(64, np.int32), 0

    def append(self, texts):
        """Index the next rows; a row without words (an empty text) is never found."""
        added = content_words(list(texts)) if len(texts) else []
        start, stop = self._rows, self._rows + len(added)
        lengths = grown(self._lengths, start, stop)
        lengths[start:stop] = [len(one) for one in added]
        flat = [word for one in added for word in one]
        number = {word: at for at, word in enumerate(dict.fromkeys(flat))}
        place = np.array([number[word] for word in flat], np.int64) * (stop + 1)
        places, counts = np.unique(place + np.repeat(np.arange(start, stop), lengths[start:stop]), return_counts=True)
        rows, ends = places % (stop + 1), np.searchsorted(places, np.arange(1, len(number) + 1) * (stop + 1)).tolist()
        new = {}
        for word, first, last in zip(number, [0, *ends], ends, strict=False):
            stored, size = self._postings.get(word, (_NONE, 0))
            stored = grown(stored, size, size + last - first, axis=1, least=2)
            stored[:, size : size + last - first] = rows[first:last], counts[first:last]
            new[word] = stored, size + last - first
        # Nothing above takes effect before these lines: texts that cannot be indexed leave the index as it was.
        self._postings.update(new)
        self._lengths, self._rows = lengths, stop

    def of_rows(self, rows):
        """The index of some rows alone (int64, ascending), numbered from 0 on; no text is read again."""
        number = np.full(self._rows, -1, np.int32)
        number[rows] = np.arange(len(rows))
        parts = [_NONE, *(stored[:, :size] for stored, size in self._postings.values())]
        held = np.concatenate(parts, axis=1)  # one word behind the other
        ends = np.cumsum([part.shape[1] for part in parts])
        kept = number[held[0]] >= 0
        ends = np.concatenate([[0], np.cumsum(kept)])[ends].tolist()
        held = np.stack([number[held[0, kept]], held[1, kept]])
        new = Words()
        new._lengths, new._rows = self._lengths[rows], len(rows)
        for word, start, stop in zip(self._postings, ends, ends[1:], strict=False):
            if stop > start:
                new._postings[word] = held[:, start:stop], stop - start
        return new

    def scores(self, text, alive):
        """BM25 of every row for a question, `[M]` float32.

        `alive` tells which of the first M rows count, `[M]` bool; the others enter no statistics and score 0, as do
        rows that share no word with the question.
        """
        rows, found = len(alive), np.zeros(len(alive), np.float32)
        lengths, count = self._lengths[:rows], np.count_nonzero(alive)
        mean = lengths.sum(where=alive) / max(1, count)
        for word in content_words([text])[0]:
            stored, size = self._postings.get(word, (_NONE, 0))
            held, occurrences = stored[:, : np.searchsorted(stored[0, :size], rows)]
            living = alive[held]
            held, occurrences = held[living], occurrences[living]
            # Rounded where the package rounds, so that scores are equal to the last bit.
            rarity = np.float32(math.log(1 + (count - len(held) + 0.5) / (len(held) + 0.5)))
            weight = K1 * (1 - B + B * lengths[held] / mean) if len(held) else 1
            found[held] += (rarity * (occurrences / (occurrences + weight))).astype(np.float32)
        return found
