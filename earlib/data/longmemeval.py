"""LongMemEval_S (Wu et al., 2025): 500 questions, each with its own haystack of about 50 chat sessions.

A haystack is a scope, named by its question; its memories are the turns of the user and of the assistant. A session
repeated within a haystack is kept once. Irregular entries are listed in `Benchmark.audit`. The file is read question
by question, and equal texts are one object, so that it is never in memory whole.
"""

import re
from pathlib import Path

from earlib import extra
from earlib.data.benchmarks import Benchmark, Memory, Query, turn_text
from earlib.data.download import FILES, fetch
from earlib.data.fields import Fields

with extra("paper"):
    import ijson

FILE = "longmemeval_s_cleaned.json"
ORIGINAL = "longmemeval_s.json"
SINGLE_SESSION = ("single-session-user", "single-session-assistant", "single-session-preference")
CATEGORIES = (*SINGLE_SESSION, "multi-session", "temporal-reasoning", "knowledge-update")
ROLES = ("user", "assistant")
ABSTENTION = "_abs"  # ends the id of a question that the haystack does not answer

LISTS = ("haystack_session_ids", "haystack_dates", "haystack_sessions")
_BUFFER = 1 << 20  # bytes read at a time
# An escaped half of a surrogate pair without the other half, which the fast parser reads as "?".
_HALF = re.compile(rb"\\u[dD](?:[89abAB]\w\w(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]\w\w\\u[dD])[c-fC-F])")


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
        with open(path, "rb") as file:
            start = file.read(_BUFFER).lstrip()
            if start and not start.startswith(b"["):  # would be read as a list without questions
                raise reader.error("the whole file", "a list", f"{start[:40].decode(errors='replace')!r}")
            parser = ijson.get_backend("python") if _halved(file) else ijson
            file.seek(0)
            for number, question in enumerate(parser.items(file, "item", buf_size=_BUFFER, use_float=True)):
                reader.question(reader.check(question, dict, f"[{number}]"), f"[{number}]")
    except (ijson.JSONError, UnicodeDecodeError) as error:
        line = " ".join(str(error).split("\n")[0].split())
        found = f"after {len(reader.queries)} whole questions: {line}"
        raise ValueError(f"{path}: expected complete JSON, but {found}; get the file again") from error
    if not reader.queries:
        raise reader.error("the whole file", "at least one question", "an empty list")
    name = "LongMemEval_S" if Path(path).name == FILE else f"LongMemEval ({Path(path).name})"
    return Benchmark(name, tuple(reader.memories), tuple(reader.queries), tuple(reader.audit), shared_sessions=True)


def _halved(file):
    """Return True for a file with half a surrogate pair; only the slow parser keeps it, so that its place is named."""
    file.seek(0)
    rest = b""
    while block := file.read(_BUFFER):
        whole, _, rest = (rest + block).rpartition(b'"')  # neither a pair nor an escaped backslash contains it
        if _HALF.search(whole.replace(rb"\\", b"//")):
            return True
    return False


class _Reader(Fields):
    """The questions read so far."""

    def __init__(self, path, dates):
        super().__init__(path)
        self.dates = dates
        self.memories, self.queries, self.scopes = [], [], set()
        self.texts = {}  # one object for all equal texts

    def question(self, question, place):
        (scope,) = self.take(question, place, question_id=str)
        at = f"{place}.question_id"
        self.require(re.fullmatch(r"[^\s/]+", scope), at, "an id without spaces and slashes", scope)
        self.require(scope not in self.scopes, at, "an id that occurs once", scope)
        self.scopes.add(scope)
        place = f"{place} {scope}"
        (category,) = self.take(question, place, question_type=str)
        self.require(category in CATEGORIES, f"{place}.question_type", f"one of {', '.join(CATEGORIES)}", category)
        text, asked = self.take(question, place, question=str, question_date=str)
        answer = self.answer(question, place)
        gold = self.haystack(scope, question, place)
        abstention = scope.endswith(ABSTENTION)
        if abstention:
            self.note(place, "abstention question", f"{len(gold)} turns marked", "the question, without gold")
            gold = []
        elif not gold:
            self.note(place, "no turn marked", "no has_answer", "the question, without gold")
        latest = max(question["haystack_dates"], default="")
        if asked < latest:  # year first, so that the order of texts is that of time
            self.note(f"{place}.question_date", "asked before the last session", f"{asked} < {latest}", "all sessions")
        category = self.texts.setdefault(category, category)
        self.queries.append(Query(scope, scope, text, answer, category, tuple(gold), asked, abstention))

    def haystack(self, scope, question, place):
        """Add the memories of all sessions, each once; returns the ids of the marked turns."""
        lists = self.take(question, place, **dict.fromkeys(LISTS, list))
        if len({len(entries) for entries in lists}) > 1:
            lengths = "{}, {} and {} entries".format(*map(len, lists))
            raise self.error(f"{place}.{LISTS[0]}", f"as many entries as in {' and '.join(LISTS[1:])}", lengths)
        fields = zip(lists, (str, str, list), LISTS, strict=True)
        checked = (self.entries(entries, kind, f"{place}.{key}") for entries, kind, key in fields)
        held, gold = {}, []
        for (name, _), (date, _), (turns, at) in zip(*checked, strict=True):
            said = self.turns(turns, at)
            if said in held.get(name, ()):
                self.note(at, "repeated session", name, "once")
                continue
            held.setdefault(name, []).append(said)
            if len(held[name]) > 1:
                first, name = name, f"{name}#{len(held[name])}"
                self.note(at, "session of the same name with other turns", first, f"both, this one as {name}")
            name, date = (self.texts.setdefault(text, text) for text in (name, date))
            for number, (role, content, marked) in enumerate(said, start=1):
                turn, text = f"{scope}/{name}:{number}", turn_text(role, content, None, date if self.dates else None)
                self.memories.append(Memory(turn, scope, "dialogue", name, date, self.texts.setdefault(text, text)))
                gold += [turn] * marked
        return gold

    def turns(self, turns, place):
        """Role, content and mark of each turn."""
        if not turns:
            self.note(place, "empty session", "[]", "nothing")
        said = []
        for turn, at in self.entries(turns, dict, place):
            role, content = self.take(turn, at, role=str, content=str)
            self.require(role in ROLES, f"{at}.role", " or ".join(ROLES), role)
            if not content.strip():
                self.note(f"{at}.content", "empty turn", repr(content), "the role")
            marked = turn.get("has_answer")
            said.append((role, content, marked is not None and self.check(marked, bool, f"{at}.has_answer")))
        return said
