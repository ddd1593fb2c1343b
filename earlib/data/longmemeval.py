"""LongMemEval_S (Wu et al., 2025): 500 questions, each with its own haystack of about 50 chat sessions.

A haystack is a scope, named by its question; its memories are the turns of the user and of the assistant. A session
repeated within a haystack is kept once. Irregular entries are listed in `Benchmark.audit`. The file is read question
by question, and equal texts are one object, so that it is never in memory whole.
"""

from collections import defaultdict
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from earlib.data.benchmarks import Memory, Query, turn_text
from earlib.data.fields import Answer, Part, Reader, Text

FILE = "longmemeval_s_cleaned.json"
ORIGINAL = "longmemeval_s.json"
SINGLE_SESSION = ("single-session-user", "single-session-assistant", "single-session-preference")
CATEGORIES = (*SINGLE_SESSION, "multi-session", "temporal-reasoning", "knowledge-update")
ROLES = ("user", "assistant")
ABSTENTION = "_abs"  # ends the id of a question that the haystack does not answer

LISTS = ("haystack_session_ids", "haystack_dates", "haystack_sessions")


class Turn(Part):
    """A turn of a session."""

    role: Literal[ROLES]
    content: Text
    has_answer: Annotated[bool, BeforeValidator(lambda mark: False if mark is None else mark)] = False


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


def read(file=FILE, captions=True, dates=False):
    """Read LongMemEval_S, as cleaned or first published, or the path of a file in its format; see `benchmarks.load`.

    `captions` has no effect, since no turn shares an image. Query ids and scopes are the file's question ids, memory
    ids `{question}/{session}:{turn}`, turns from 1. An abstention question has no gold; any other has the turns marked
    `has_answer`. A ValueError names the file, the question, the field and what was expected.
    """
    reader = _Reader(file, captions, dates)
    for number, question in reader.entries(Question):
        reader.question(question, f"[{number}] {question.question_id}")
    name = "LongMemEval_S" if reader.path.name == FILE else f"LongMemEval ({reader.path.name})"
    return reader.benchmark(name, shared_sessions=True)


class _Reader(Reader):
    def __init__(self, *given):
        super().__init__(*given)
        self.texts = {}  # one object for all equal texts

    def one(self, text):
        return self.texts.setdefault(text, text)

    def question(self, question, place):
        scope, asked, answer = question.question_id, question.question_date, self.answer(question, place)
        gold, abstention = self.haystack(scope, question, place), scope.endswith(ABSTENTION)
        if abstention:
            self.note(place, "abstention question", f"{len(gold)} turns marked", "the question, without gold")
            gold = ()
        elif not gold:
            self.note(place, "no turn marked", "no has_answer", "the question, without gold")
        latest = max(question.haystack_dates, default="")
        if asked < latest:  # year first, so that the order of texts is that of time
            self.note(f"{place}.question_date", "asked before the last session", f"{asked} < {latest}", "all sessions")
        category = question.question_type
        self.queries.append(Query(scope, scope, question.question, answer, category, gold, asked, abstention))

    def haystack(self, scope, question, place):
        """Add the memories of all sessions, each once; returns the ids of the marked turns."""
        lists = [getattr(question, key) for key in LISTS]
        if len({len(entries) for entries in lists}) > 1:
            lengths = "{}, {} and {} entries".format(*map(len, lists))
            raise ValueError(f"{self.path}: {place}: expected as many {', '.join(LISTS)}, found {lengths}")
        held, gold = defaultdict(list), []
        for number, (name, date, turns) in enumerate(zip(*lists, strict=True)):
            at = f"{place}.haystack_sessions[{number}]"
            if not turns:
                self.note(at, "empty session", "[]", "nothing")
            for empty in (turn for turn, said in enumerate(turns) if not said.content.strip()):
                self.note(f"{at}[{empty}].content", "empty turn", repr(turns[empty].content), "the role")
            if turns in held[name]:
                self.note(at, "repeated session", name, "once")
                continue
            held[name].append(turns)
            if len(held[name]) > 1:
                first, name = name, f"{name}#{len(held[name])}"
                self.note(at, "session of the same name with other turns", first, f"both, this one as {name}")
            name, date = self.one(name), self.one(date)
            for turn, said in enumerate(turns, start=1):
                id, text = f"{scope}/{name}:{turn}", turn_text(said.role, said.content, date=date if self.dates else "")
                self.memories.append(Memory(id, scope, "dialogue", name, date, self.one(text)))
                gold += [id] * said.has_answer
        return tuple(gold)
