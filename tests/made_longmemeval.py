"""A synthetic file in the form of LongMemEval_S, of full size or smaller, from a seed.

It has the known counts of the publisher's cleaned file (questions by type, sessions and turns with and without
repetition, abstentions, numeric answers, gold on the assistant's turns alone), and the lengths of texts, and the share
with letters of two bytes in memory, of some of its questions. Words are random; a gold turn holds two rare words that
its question asks for.
"""

import hashlib
import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from earlib.data import longmemeval

TYPES = dict(zip(longmemeval.CATEGORIES, (70, 56, 30, 133, 133, 78), strict=True))
LEVELS = (0, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995, 1)
LENGTHS = {  # characters of a turn at these levels
    "user": (4, 47, 123, 184, 282, 369, 429, 573, 942, 1962, 76560),
    "assistant": (1, 472, 1209, 1860, 2478, 2909, 3206, 3485, 3685, 3894, 4712),
}
TURNS, SHARES = (2, 6, 8, 10, 12, 14), (0.09, 0.07, 0.08, 0.06, 0.62, 0.08)  # of a session, and how often
WIDE = {"user": 0.006, "assistant": 0.032}  # turns with a letter that needs two bytes in memory
TEXT = 4_000_000  # characters from which every turn is cut
EVIDENCE = 2  # sessions of a haystack that stand in no other


# One question in LongMemEval's form; each error case of the tests spoils one thing in it.
QUESTION = {
    "question_id": "q1",
    "question_type": "multi-session",
    "question": "What did I buy?",
    "answer": "a boat",
    "question_date": "2023/05/30 (Tue) 23:40",
    "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 03:24"],
    "haystack_session_ids": ["s1", "answer_1"],
    "haystack_sessions": [
        [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello."}],
        [
            {"role": "user", "content": " I bought a boat. ", "has_answer": True},
            {"role": "assistant", "content": "Nice!", "has_answer": False},
            {"role": "user", "content": "Hello."},
        ],
    ],
    "answer_session_ids": ["answer_1"],
}


class Size(NamedTuple):
    """How much there is of everything; the defaults are the publisher's cleaned file."""

    questions: int = 500
    sessions: int = 19_195  # different ones
    turns: int = 199_509  # in these
    appearances: int = 23_867  # sessions of all haystacks
    abstentions: int = 30
    repeated: int = 13  # haystacks that hold a filler session twice
    numbers: int = 32  # answers that are numbers
    assistant_only: int = 51  # questions with gold on turns of the assistant alone


FULL = Size()


def write(path, size=FULL, seed=0):
    """Write the file question by question, in the publisher's form; returns its path."""
    with open(path, "w", encoding="utf-8") as file:
        for number, entry in enumerate(entries(size, seed)):
            file.write(",\n" if number else "[\n")
            json.dump(entry, file, ensure_ascii=False, indent=0)
        file.write("\n]\n")
    return path


def entries(size, seed=0):
    """The questions one after another, each with its haystack."""
    rng = np.random.default_rng(seed)
    lengths = _session_lengths(rng, size)
    abstains, answered = np.split(rng.permutation(size.questions), [size.abstentions])
    numbers, assistant_only = (rng.permutation(answered)[:count] for count in (size.numbers, size.assistant_only))
    repeats = rng.permutation(size.questions)[: size.repeated]
    types = np.repeat(list(TYPES), [-(-count * size.questions // FULL.questions) for count in TYPES.values()])
    for number, (evidence, fillers) in enumerate(_haystacks(rng, size)):
        scope = f"made{number}{longmemeval.ABSTENTION * (number in abstains)}"
        if number in repeats:
            fillers = [*fillers, fillers[0]]
        sessions = {f"answer_{one}": _session(seed, one, lengths[one], f"{scope} {one}") for one in evidence}
        role = 1 if number in assistant_only else 0
        for turns in sessions.values():
            for place, turn in enumerate(turns):
                turn["has_answer"] = number not in abstains and place == role
        held = [*sessions, *(f"filler_{one}" for one in fillers)]
        said = [*sessions.values(), *(_session(seed, one, lengths[one]) for one in fillers)]
        yield {
            "question_id": scope,
            "question_type": str(types[number]),
            "question": "What was it about " + " and ".join(_rare(f"{scope} {one}") for one in evidence) + "?",
            "answer": number if number in numbers else f"the answer {number}",
            "question_date": "2023/12/31 (Sun) 10:00",
            "haystack_dates": [f"2023/{1 + n // 28:02}/{1 + n % 28:02} (Mon) 10:00" for n in range(len(held))],
            "haystack_session_ids": held,
            "haystack_sessions": said,
            "answer_session_ids": list(sessions),
        }


def _session_lengths(rng, size):
    """Turns of each session, in all as many as wanted."""
    lengths = rng.choice(TURNS, size.sessions, p=SHARES)
    while missing := int(size.turns - lengths.sum()):
        at = rng.permutation(size.sessions)[: max(1, abs(missing) // 2)]
        lengths[at] = np.maximum(2, lengths[at] + np.sign(missing) * min(2, abs(missing)))
    return lengths.tolist()


def _haystacks(rng, size):
    """Numbers of the sessions of each haystack: its evidence; and fillers, new ones and those of earlier haystacks."""
    new = np.full(size.questions, size.sessions // size.questions)
    new[: size.sessions - new.sum()] += 1
    others = size.questions - 1
    again = rng.multinomial(size.appearances - size.sessions - size.repeated, np.full(others, 1 / others))
    start, known = 0, []
    for count, more in zip(new.tolist(), [0, *again.tolist()], strict=True):
        evidence, fresh = range(start, start + EVIDENCE), range(start + EVIDENCE, start + count)
        yield evidence, [*fresh, *(known[at] for at in rng.choice(len(known), more, replace=False))]
        known += fresh
        start += count


def _session(seed, number, turns, about=None):
    """The turns of a session, the same whenever it is asked for."""
    rng, text = np.random.default_rng([seed, number]), _text()
    said = []
    for place in range(turns):
        role = longmemeval.ROLES[place % 2]
        length = int(np.interp(rng.random(), LEVELS, LENGTHS[role]))
        start = int(rng.integers(TEXT - length))
        content = text[start : start + length]
        if about and place < 2:
            content = f"It was about {_rare(about)}. {content}"
        said.append({"role": role, "content": content + " –" * (rng.random() < WIDE[role])})
    return said


def _rare(about):
    """Two words that no other session holds."""
    rng = np.random.default_rng(list(about.encode()))
    return " ".join("".join(rng.choice(list("bcfghjklmpqvwxyz"), 7)) for _ in range(2))


@lru_cache(maxsize=1)
def _text():
    """Random words, one after another."""
    rng = np.random.default_rng(0)
    return " ".join(rng.choice(words(rng), TEXT // 5))[:TEXT]


def words(rng=None):
    """Random words of two to nine letters."""
    rng = rng or np.random.default_rng(0)
    return ["".join(rng.choice(list("aaeeeinorstlhdu"), length)) for length in rng.integers(2, 10, 4000)]


def measured(path):
    """Seconds and peak resident bytes of a process that loads the file, its checksum verified, and ends."""
    content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    code = f"""
import resource, time
from earlib.data import download, longmemeval
from earlib.data.benchmarks import load
download.FILES[longmemeval.FILE] = download.File("", {content!r}, "")
start = time.perf_counter()
load("longmemeval")
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10)
"""
    # A new process takes over the peak of the one that starts it: here of a shell, not of one that loaded torch.
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", code]
    found = {"EARLIB_DATA": str(Path(path).parent), "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(command, env=os.environ | found, check=True, capture_output=True, text=True).stdout
    seconds, peak = map(float, told.split())
    return seconds, peak
