"""Benchmarks: memories of long dialogues and the questions asked of them, in one form for every dataset."""

from dataclasses import dataclass
from typing import NamedTuple


class Memory(NamedTuple):
    """One entry of a memory bank."""

    id: str  # unique in the benchmark
    scope: str  # the conversation or haystack it belongs to; retrieval never leaves a scope
    store: str  # "dialogue" (episodic) or "observation" (semantic)
    session: str
    date: str  # as printed in the source, "" if it has none
    text: str
    sources: tuple = ()  # of an observation: the ids of the dialogue turns it was drawn from


class Query(NamedTuple):
    """One question."""

    id: str
    scope: str
    text: str
    answer: str
    category: str
    gold: tuple  # ids of the dialogue turns that hold its evidence, each once, in the source's order


class Finding(NamedTuple):
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
        As shown to readers ("LoCoMo", "Toy").
    memories : tuple of Memory
    queries : tuple of Query
        All of them, in the source's order; `experiment` leaves the adversarial ones out.
    audit : tuple of Finding
        Malformed or odd entries of the source, each with the repair.
    """

    name: str
    memories: tuple
    queries: tuple
    audit: tuple = ()
