"""Plain features of a memory in view of a question, each of which gets a learned weight."""

import re
from functools import lru_cache

import numpy as np

NAMES = ("length", "question mark", "digits", "named first", "date for when")
_WORD, _DIGIT = re.compile(r"\w+"), re.compile(r"\d")
_WHEN = ("when", "how long", "what time", "what date", "what day", "what month", "what year", "which year")
_DATE = re.compile(
    r"\b(today|yesterday|tomorrow|tonight|last|next|ago|weeks?|weekend|months?|years?|spring|summer|fall|winter|"
    r"(mon|tues|wednes|thurs|fri|satur|sun)day|january|february|march|april|may|june|july|august|september|october|"
    r"november|december)\b",
    re.IGNORECASE,
)


def plain_features(query: str, texts: list[str]) -> np.ndarray:
    """Return features of texts in view of a question, `[n, 5]`, of the order of one.

    Length (its logarithm); whether the text asks; whether it holds a digit; whether the question holds its first word,
    as the name of a speaker; and whether it speaks of a date where the question asks for one.
    """
    asked, when = set(_WORD.findall(query.lower())), query.lower().startswith(_WHEN)
    rows = []
    for text in texts:
        *of, first, dated = _of_text(text)
        rows.append((*of, first in asked, when and dated))
    return np.array(rows, float).reshape(len(texts), len(NAMES))


@lru_cache(maxsize=2**16)
def _of_text(text):
    """Plain features that do not depend on the question: length, question mark, digit, first word or None, date."""
    words = _WORD.findall(text.lower())
    first = words[0] if words else None
    return np.log1p(len(words)) / 3, "?" in text, bool(_DIGIT.search(text)), first, bool(_DATE.search(text))
