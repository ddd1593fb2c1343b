"""Benchmarks: memories of long dialogues and the queries asked of them, in one form for all datasets."""

import hashlib
import importlib
import json
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from earlib.data import own

NAMES = ("locomo", "longmemeval", "toy")  # each a module of this folder with a function read
FORMAT = "docs/own-data.md shows the format"
ADVERSARIAL = "adversarial"


class Memory(NamedTuple):
    """One entry of a memory bank."""

    id: str  # unique in the benchmark
    scope: str  # its conversation or haystack; retrieval never leaves a scope
    store: str  # "dialogue" (episodic) or "observation" (semantic)
    session: str
    date: str  # as printed in the source, "" if it has none
    text: str
    sources: tuple = ()  # ids of the dialogue turns that an observation was drawn from

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
    date: str = ""  # on which it was asked, as printed in the source, "" if it has none
    abstention: bool = False  # right is to say that the memories do not answer it; `answer` says why


class Irregularity(NamedTuple):
    """One irregular entry of the source and its repair."""

    place: str
    kind: str
    found: str
    kept: str


@dataclass(frozen=True)
class Benchmark:
    """Memories and queries of one dataset, and the irregular entries of its source.

    Attributes
    ----------
    name : str
        As shown to readers ("LoCoMo", "Toy (made by the package)").
    memories : tuple of Memory
    queries : tuple of Query
        All queries in the source's order; `asked` leaves the adversarial ones out.
    audit : tuple of Irregularity
        Malformed or odd entries of the source, each with its repair.
    shared_sessions : bool
        True if sessions of the same name in different scopes are the same session.
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
        """SHA-256 (hex) of all memories and queries in order; two runs with equal ones see the same data."""
        unset = tuple(Query._field_defaults.values())  # fields that came later are left out where they are not set
        queries = [query[: -len(unset)] if query[-len(unset) :] == unset else query for query in self.queries]
        return hashlib.sha256(json.dumps([self.memories, queries], separators=(",", ":")).encode()).hexdigest()


def load(name, captions=True, dates=False, **options):
    """Load a benchmark by name.

    Parameters
    ----------
    name : str
        As from `resolve`.
    captions : bool
        Append ` [shares {caption}]` to the text of a turn that shares an image.
    dates : bool
        Prepend `[{session date}] ` to the text of a turn.
    **options
        Specific to the dataset: `seed` and `conversations` of the toy benchmark, `file` of LoCoMo and LongMemEval.

    Returns
    -------
    Benchmark

    Raises
    ------
    ValueError
        For an unknown name (close matches are suggested) or a malformed source.
    earlib.data.download.Unavailable
        If the file is neither on this machine nor downloadable.
    """
    if path := own.place(name):
        lines = importlib.import_module("earlib.data.lines")
        if own.named(path.name, own.file_hash(path)) != name:
            raise ValueError(f"{path}: changed since it was named {name}; run again")
        return lines.read(path, dates)
    if name in NAMES:
        return importlib.import_module(f"earlib.data.{name}").read(captions=captions, dates=dates, **options)
    if name in own.packaged("datasets"):
        return own.load_packaged("datasets", name)(captions=captions, dates=dates, **options)
    raise _unknown(name)


def resolve(text):
    """Name of a dataset, for `load` and `Setting`: itself, or of a file of lines `LABEL@HASH`, which says no place.

    Parameters
    ----------
    text : str
        One of `NAMES`, a dataset of an installed package, or a path NAME.jsonl (docs/own-data.md), relative to the
        current directory.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        For an unknown name, or a file that is not of this form: file, line, field and what was expected.
    OSError
        If the file cannot be read.
    """
    if text in NAMES or text in own.packaged("datasets") or own.place(text):
        return text
    path = own.absolute(text)
    if not (own.looks_like_a_path(text) or path.suffix):
        raise _unknown(text)
    if path.suffix.lower() != ".jsonl":
        found = path.suffix or "no suffix"
        raise ValueError(f"{text}: expected a file NAME.jsonl with a JSON object a line, found {found}; {FORMAT}")
    name = own.named(path.name, own.file_hash(path))
    if not own.place(name):  # the content that has a name was read before
        importlib.import_module("earlib.data.lines").read(path)
    return own.remember(name, path)


def _unknown(name):
    """ValueError for a name that no dataset has."""
    return own.unknown("dataset", name, [*NAMES, *own.packaged("datasets")], "or a file NAME.jsonl (docs/own-data.md)")


def lacking(benchmark, store, least=1):
    """Reason why no slate comes from a store ("LongMemEval_S has no observations"); "" if it has enough memories.

    Of a store that has any, each conversation with questions has to have `least`.
    """
    held = Counter(memory.scope for memory in benchmark.memories if memory.store == store)
    if not held:
        return f"{benchmark.name} has no {store}s"
    fewest = min(held[query.scope] for query in benchmark.asked)
    return "" if fewest >= least else f"a conversation of {benchmark.name} has {fewest} {store}s: fewer than {least}"


def turn_text(speaker, text, caption=None, date=None):
    """Text of a dialogue turn as a memory: `[{date}] {speaker}: {text} [shares {caption}]`, without what it lacks."""
    parts = [date and f"[{date}]", speaker and f"{speaker}:", text.strip(), caption and f"[shares {caption}]"]
    return " ".join(filter(None, parts))


def statistics(benchmark):
    """Counts of a benchmark as in the paper's Table 1; adversarial queries are not counted.

    Returns
    -------
    dict
        "queries", "with_gold" (queries with at least one gold turn), "conversations", "sessions", "turns",
        "observations" (int each) and "categories" ({category: queries}, adversarial ones included). With shared
        sessions, "haystacks" replaces "conversations", "sessions" and "turns" count each session once, and
        "haystack_sessions" and "haystack_turns" count it in each haystack.
    """
    turns = [memory for memory in benchmark.memories if memory.store == "dialogue"]
    scopes, sessions = len({turn.scope for turn in turns}), len({(turn.scope, turn.session) for turn in turns})
    counts = {"conversations": scopes, "sessions": sessions, "turns": len(turns)}
    if benchmark.shared_sessions:
        different = {turn.id.removeprefix(turn.scope): turn.session for turn in turns}
        counts = {"haystacks": scopes, "sessions": len(set(different.values())), "turns": len(different)}
        counts |= {"haystack_sessions": sessions, "haystack_turns": len(turns)}
    return {
        "queries": len(benchmark.asked),
        "with_gold": sum(bool(query.gold) for query in benchmark.asked),
        **counts,
        "observations": len(benchmark.memories) - len(turns),
        "categories": dict(Counter(query.category for query in benchmark.queries)),
    }
