"""Benchmarks: memories of long dialogues and the questions asked of them, in one form for every dataset."""

import hashlib
import importlib
import inspect
import json
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from earlib.core.config import near

NAMES = ("locomo", "longmemeval", "toy")  # each a module here with a function load(captions, dates, ...)
ADVERSARIAL = "adversarial"


class Memory(NamedTuple):
    """One entry of a memory bank."""

    id: str  # unique in the benchmark
    scope: str  # the conversation or haystack it belongs to; retrieval never leaves a scope
    store: str  # "dialogue" (episodic) or "observation" (semantic)
    session: str
    date: str  # as printed in the source, "" if it has none
    text: str
    sources: tuple = ()  # of an observation: the ids of the dialogue turns it was drawn from

    @property
    def turns(self):
        """Ids of the dialogue turns whose content it holds."""
        return (self.id,) if self.store == "dialogue" else self.sources


class Query(NamedTuple):
    """One question."""

    id: str
    scope: str
    text: str
    answer: str
    category: str
    gold: tuple  # ids of the dialogue turns that hold its evidence, each once, in the source's order


class Irregularity(NamedTuple):
    """One irregularity of the source and what was done about it."""

    place: str
    kind: str
    found: str
    kept: str


@dataclass(frozen=True)
class Benchmark:
    """Memories and queries of one dataset, with what its source had wrong.

    Attributes
    ----------
    name : str
        As shown to readers ("LoCoMo", "Toy (made by the package)").
    memories : tuple of Memory
    queries : tuple of Query
        All of them, in the source's order; `asked` leaves the adversarial ones out.
    audit : tuple of Irregularity
        Malformed or odd entries of the source, each with the repair.
    shared_sessions : bool
        Whether scopes share sessions: one of the same name is then the same in all of them.
    """

    name: str
    memories: tuple
    queries: tuple
    audit: tuple = ()
    shared_sessions: bool = False

    @property
    def asked(self):
        """The queries that are evaluated, in order: all but the adversarial ones."""
        return tuple(query for query in self.queries if query.category != ADVERSARIAL)

    def fingerprint(self):
        """SHA-256 (hex) of all memories and queries, in order; equal exactly when a run would see the same data."""
        digest, encode = hashlib.sha256(), json.JSONEncoder(separators=(",", ":")).encode
        for start, rows in ("[[", self.memories), ("],[", self.queries):  # never all of it as one text
            digest.update(start.encode())
            for number, row in enumerate(rows):
                digest.update(f"{',' if number else ''}{encode(row)}".encode())
        digest.update(b"]]")
        return digest.hexdigest()


def load(name, captions=True, dates=False, **options):
    """Load a benchmark by name.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    captions : bool
        Add ` [shares {caption}]` to the text of a turn that shares an image.
    dates : bool
        Put `[{session date}] ` in front of the text of a turn.
    **options
        Of the dataset alone, such as `seed` and `conversations` of the toy.

    Returns
    -------
    Benchmark

    Raises
    ------
    ValueError
        For an unknown name or option (the near matches are named) or a malformed source.
    earlib.data.download.Unavailable
        If the file is neither at hand nor to be had from its publisher.
    """
    if name not in NAMES:
        raise ValueError(f"unknown dataset {name!r}{near(name, NAMES)}; known: {', '.join(NAMES)}")
    loader = importlib.import_module(f"earlib.data.{name}").load
    known = list(inspect.signature(loader).parameters)
    for option in options:
        if option not in known:
            raise ValueError(f"dataset {name!r} has no option {option!r}{near(option, known)}; it has {known}")
    return loader(captions=captions, dates=dates, **options)


def lacking(benchmark, store):
    """Why nothing can be retrieved from a store, "LongMemEval_S has no observations"; "" where it holds memories."""
    return "" if any(memory.store == store for memory in benchmark.memories) else f"{benchmark.name} has no {store}s"


def turn_text(speaker, text, caption=None, date=None):
    """Text of a dialogue turn as a memory: `{speaker}: {text}`, then ` [shares {caption}]`; a date comes first."""
    parts = [f"[{date}]" if date else "", f"{speaker}:", text.strip(), f"[shares {caption}]" if caption else ""]
    return " ".join(part for part in parts if part)


def statistics(benchmark):
    """Counts of a benchmark as in the paper's Table 1; queries are counted without the adversarial ones.

    Returns
    -------
    dict
        "queries", "with_gold" (those with at least one gold turn), "conversations", "sessions", "turns",
        "observations" (int each) and "categories" ({category: queries}, the adversarial ones included). Where scopes
        share sessions, "haystacks" stands for "conversations", sessions and their turns are counted once, however many
        haystacks hold them, and "haystack_sessions" and "haystack_turns" count them in each.
    """
    turns = [memory for memory in benchmark.memories if memory.store == "dialogue"]
    scopes, sessions = len({turn.scope for turn in turns}), len({(turn.scope, turn.session) for turn in turns})
    counted = {"conversations": scopes, "sessions": sessions, "turns": len(turns)}
    if benchmark.shared_sessions:
        counted = {
            "haystacks": scopes,
            "sessions": len({turn.session for turn in turns}),
            "turns": len({turn.id.removeprefix(turn.scope) for turn in turns}),
            "haystack_sessions": sessions,
            "haystack_turns": len(turns),
        }
    return {
        "queries": len(benchmark.asked),
        "with_gold": sum(bool(query.gold) for query in benchmark.asked),
        **counted,
        "observations": len(benchmark.memories) - len(turns),
        "categories": dict(Counter(query.category for query in benchmark.queries)),
    }
