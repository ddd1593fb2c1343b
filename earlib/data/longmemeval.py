"""LongMemEval_S (Wu et al., 2025): 500 questions, each with its own haystack of about 50 chat sessions.

A haystack is a scope, named by its question; its memories are the turns of the user and of the assistant. A session
repeated within a haystack is kept once. Irregular entries are listed in `Benchmark.audit`. The file is read question
by question, and equal texts are one object, so that it is never in memory whole.
"""

import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from earlib.data.benchmarks import Benchmark, Irregularity, Memory, Query, turn_text
from earlib.data.download import FILES, fetch
from earlib.data.fields import Answer, Part, Text, checked

FILE = "longmemeval_s_cleaned.json"
ORIGINAL = "longmemeval_s.json"
SINGLE_SESSION = ("single-session-user", "single-session-assistant", "single-session-preference")
CATEGORIES = (*SINGLE_SESSION, "multi-session", "temporal-reasoning", "knowledge-update")
ROLES = ("user", "assistant")
ABSTENTION = "_abs"  # ends the id of a question that the haystack does not answer

LISTS = ("haystack_session_ids", "haystack_dates", "haystack_sessions")
_BUFFER = 1 << 20  # characters read at a time


class Turn(Part):
    """A turn of a session."""

    role: Literal[ROLES]
    content: Text
    has_answer: bool | None = None


class Question(Part):
    """A question and its haystack."""

    question_id: Text = Field(pattern=r"^[^\s/]+$")
    question_type: Literal[CATEGORIES]
    question: Text
    question_date: Text
    answer: Answer
    haystack_session_ids: list[Text]
    haystack_dates: list[Text]
    haystack_sessions: list[list[Turn]]


def load(captions=True, dates=False, file=FILE):
    """Read LongMemEval_S from the search path or its publisher; see `earlib.data.benchmarks.load`.

    `captions` has no effect, since no turn shares an image. `file` is `FILE` (cleaned by the authors) or `ORIGINAL`
    (as first published), found by name and verified, or the path of another file in the same format, read as it is.
    """
    return read(fetch(file) if file in FILES else file, dates)


def read(path, dates=False):
    """Read a file in LongMemEval's format; a ValueError names the file, the question, the field and what was expected.

    Query ids and scopes are the file's question ids, memory ids `{question}/{session}:{turn}`, turns from 1. An
    abstention question has no gold; any other has the turns marked `has_answer`.
    """
    reader = _Reader(path, dates)
    try:
        with open(path, encoding="utf-8") as file:
            for number, question in enumerate(_entries(file)):
                reader.question(checked(Question, question, f"{path}: [{number}]"), f"[{number}]")
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        found = f"after {len(reader.queries)} whole questions: {error}"
        raise ValueError(f"{path}: expected complete JSON, a list, but {found}; get the file again") from error
    if not reader.queries:
        raise ValueError(f"{path}: expected at least one question, found an empty list")
    name = "LongMemEval_S" if Path(path).name == FILE else f"LongMemEval ({Path(path).name})"
    return Benchmark(name, tuple(reader.memories), tuple(reader.queries), tuple(reader.audit), shared_sessions=True)


def _entries(file):
    """Yield the entries of a list in a JSON file, which is read piece by piece."""
    decoder, text = json.JSONDecoder(), file.read(_BUFFER).lstrip()
    if not text.startswith("["):
        raise json.JSONDecodeError("Expecting '['", text, 0)
    text = text[1:].lstrip()
    while not text.startswith("]"):
        try:
            entry, end = decoder.raw_decode(text)
        except json.JSONDecodeError:  # the entry goes on behind what was read, or is wrong
            more = file.read(max(_BUFFER, len(text)))
            if not more:
                raise
            text = text.lstrip() + more
        else:
            yield entry
            text = text[end:].lstrip(" \t\r\n,")


class _Reader:
    """The questions read so far."""

    def __init__(self, path, dates):
        self.path, self.dates = path, dates
        self.memories, self.queries, self.audit = [], [], []
        self.texts = {}  # one object for all equal texts

    def note(self, place, kind, found, kept):
        self.audit.append(Irregularity(place, kind, found, kept))

    def one(self, text):
        return self.texts.setdefault(text, text)

    def question(self, question, place):
        scope, asked = question.question_id, question.question_date
        place, answer = f"{place} {scope}", str(question.answer)
        if answer != question.answer:
            self.note(f"{place}.answer", "answer is a number", answer, f"the text {answer!r}")
        gold = self.haystack(scope, question, place)
        abstention = scope.endswith(ABSTENTION)
        if abstention:
            self.note(place, "abstention question", f"{len(gold)} turns marked", "the question, without gold")
            gold = []
        elif not gold:
            self.note(place, "no turn marked", "no has_answer", "the question, without gold")
        latest = max(question.haystack_dates, default="")
        if asked < latest:  # year first, so that the order of texts is that of time
            self.note(f"{place}.question_date", "asked before the last session", f"{asked} < {latest}", "all sessions")
        category = self.one(question.question_type)
        self.queries.append(Query(scope, scope, question.question, answer, category, tuple(gold), asked, abstention))

    def haystack(self, scope, question, place):
        """Add the memories of all sessions, each once; returns the ids of the marked turns."""
        lists = [getattr(question, key) for key in LISTS]
        if len({len(entries) for entries in lists}) > 1:
            lengths = "{}, {} and {} entries".format(*map(len, lists))
            raise ValueError(f"{self.path}: {place}: expected as many {', '.join(LISTS)}, found {lengths}")
        held, gold = {}, []
        for number, (name, date, turns) in enumerate(zip(*lists, strict=True)):
            at = f"{place}.haystack_sessions[{number}]"
            said = [(turn.role, turn.content, bool(turn.has_answer)) for turn in turns]
            self.note_empty(said, at)
            if said in held.get(name, ()):
                self.note(at, "repeated session", name, "once")
                continue
            held.setdefault(name, []).append(said)
            if len(held[name]) > 1:
                first, name = name, f"{name}#{len(held[name])}"
                self.note(at, "session of the same name with other turns", first, f"both, this one as {name}")
            name, date = self.one(name), self.one(date)
            for turn, (role, content, marked) in enumerate(said, start=1):
                id, text = f"{scope}/{name}:{turn}", turn_text(role, content, None, date if self.dates else None)
                self.memories.append(Memory(id, scope, "dialogue", name, date, self.one(text)))
                gold += [id] * marked
        return gold

    def note_empty(self, said, place):
        if not said:
            self.note(place, "empty session", "[]", "nothing")
        for number, (_, content, _) in enumerate(said):
            if not content.strip():
                self.note(f"{place}[{number}].content", "empty turn", repr(content), "the role")
