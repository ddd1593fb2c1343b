"""LongMemEval_S (Wu et al., 2025): 500 questions, each with a haystack of its own of some 50 chat sessions.

A haystack is a scope, named by its question. Its memories are the turns of the user and of the assistant. Most sessions
stand in one haystack only, some in several; a session that one haystack repeats is held once. Irregular entries are
listed in `Benchmark.audit`. The file is read question by question, and equal texts are one object, so that it never
lies in memory whole.
"""

import re
from pathlib import Path

import ijson

from earlib.data.benchmarks import Benchmark, Memory, Query, turn_text
from earlib.data.download import FILES, fetch
from earlib.data.fields import Fields

FILE = "longmemeval_s_cleaned.json"
ORIGINAL = "longmemeval_s.json"
CATEGORIES = (
    "single-session-user", "single-session-assistant", "single-session-preference", "multi-session",
    "temporal-reasoning", "knowledge-update",
)  # fmt: skip
ROLES = ("user", "assistant")
ABSTENTION = "_abs"  # ends the id of a question that the haystack does not answer

_LISTS = ("haystack_session_ids", "haystack_dates", "haystack_sessions")
_BUFFER = 1 << 20  # bytes read at a time


def load(captions=True, dates=False, file=FILE):
    """LongMemEval_S from the search path or its publisher; see `earlib.data.benchmarks.load`.

    Parameters
    ----------
    captions : bool
        Without effect: no turn shares an image.
    dates : bool
    file : str or Path
        `FILE`, cleaned by the authors, or `ORIGINAL`, as they first gave it out: looked for by name and held to its
        checksum. Any other is the path of a file in the same form, and is read as it is.
    """
    return read(fetch(file) if file in FILES else file, dates)


def read(path, dates=False):
    """Read a file in LongMemEval's form.

    Parameters
    ----------
    path : Path
    dates : bool
        As in `earlib.data.benchmarks.load`.

    Returns
    -------
    Benchmark
        Query ids and scopes are the file's question ids, memory ids `{question}/{session}:{turn}`, turns from 1. An
        abstention question has no gold; any other has the turns marked `has_answer`.

    Raises
    ------
    ValueError
        If it is no valid JSON, or a field is missing or has the wrong type; names the file, the question, the field
        and what was expected.
    """
    reader = _Reader(path, dates)
    try:
        with open(path, "rb") as file:
            _check_list(file, reader)
            for number, question in enumerate(ijson.items(file, "item", buf_size=_BUFFER, use_float=True)):
                reader.question(question, f"[{number}]")
    except (ijson.JSONError, UnicodeDecodeError) as error:
        read = f"after {len(reader.queries)} whole questions"
        raise ValueError(f"{path}: expected complete JSON, but {read}: {_line(error)}; get the file again") from error
    if not reader.queries:
        raise reader.error("the whole file", "at least one question", "an empty list")
    name = "LongMemEval_S" if Path(path).name == FILE else f"LongMemEval ({Path(path).name})"
    return Benchmark(name, tuple(reader.memories), tuple(reader.queries), tuple(reader.audit), shared_sessions=True)


def _check_list(file, reader):
    """A file that holds no list would be read as one without questions."""
    start = file.read(_BUFFER).lstrip()
    if start and not start.startswith(b"["):
        raise reader.error("the whole file", "a list", f"{start[:40].decode(errors='replace')!r}")
    file.seek(0)


def _line(error):
    return " ".join(str(error).split("\n")[0].split())


class _Reader(Fields):
    """What has been read so far."""

    def __init__(self, path, dates):
        super().__init__(path)
        self.dates = dates
        self.memories, self.queries, self.names = [], [], set()
        self.texts = {}  # each text that several memories may share, by itself

    def shared(self, text):
        """The one object of all equal texts."""
        return self.texts.setdefault(text, text)

    def question(self, question, place):
        self.check(question, dict, place)
        scope = self.take(question, "question_id", str, place)
        if not re.fullmatch(r"[^\s/]+", scope):
            raise self.error(f"{place}.question_id", "an id without spaces and slashes", repr(scope))
        if scope in self.names:
            raise self.error(f"{place}.question_id", "an id that occurs once", repr(scope))
        self.names.add(scope)
        place = f"{place} {scope}"
        category = self.take(question, "question_type", str, place)
        if category not in CATEGORIES:
            raise self.error(f"{place}.question_type", f"one of {', '.join(CATEGORIES)}", repr(category))
        text, asked = (self.take(question, key, str, place) for key in ("question", "question_date"))
        answer = self.answer(question, place)
        gold = self.found(scope, self.haystack(scope, question, place), place)
        latest = max(question["haystack_dates"], default="")
        if asked < latest:  # year first, so that the order of texts is that of time
            self.note(f"{place}.question_date", "asked before the last session", f"{asked} < {latest}", "all sessions")
        self.queries.append(Query(scope, scope, text, answer, self.shared(category), gold))

    def found(self, scope, gold, place):
        """The gold that counts: an abstention question has none, whatever is marked."""
        if scope.endswith(ABSTENTION):
            self.note(place, "abstention question", f"{len(gold)} turns marked", "the question, without gold")
            return ()
        if not gold:
            self.note(place, "no turn marked", "no has_answer", "the question, without gold")
        return tuple(gold)

    def haystack(self, scope, question, place):
        """Add the memories of all sessions, each once; ids of the turns that are marked."""
        names, dates, sessions = (self.take(question, key, list, place) for key in _LISTS)
        if not len(names) == len(dates) == len(sessions):
            lengths = f"{len(names)}, {len(dates)} and {len(sessions)} entries"
            raise self.error(f"{place}.{_LISTS[0]}", f"as many entries as in {' and '.join(_LISTS[1:])}", lengths)
        held, gold = {}, []
        for number, (name, date, turns) in enumerate(zip(names, dates, sessions, strict=True)):
            for key, value, kind in zip(_LISTS, (name, date, turns), (str, str, list), strict=True):
                self.check(value, kind, f"{place}.{key}[{number}]")
            at = f"{place}.{_LISTS[2]}[{number}]"
            said = self.turns(turns, at)
            if said in held.get(name, ()):
                self.note(at, "repeated session", name, "once")
                continue
            held.setdefault(name, []).append(said)
            if len(held[name]) > 1:
                other = f"{name}#{len(held[name])}"
                self.note(at, "session of the same name with other turns", name, f"both, this one as {other}")
                name = other
            gold += self.session(scope, self.shared(name), self.shared(date), said)
        return gold

    def turns(self, turns, place):
        """Role, content and mark of each turn."""
        if not turns:
            self.note(place, "empty session", "[]", "nothing")
        said = []
        for number, turn in enumerate(turns):
            at = f"{place}[{number}]"
            self.check(turn, dict, at)
            role, content = (self.take(turn, key, str, at) for key in ("role", "content"))
            if role not in ROLES:
                raise self.error(f"{at}.role", " or ".join(ROLES), repr(role))
            if not content.strip():
                self.note(f"{at}.content", "empty turn", repr(content), "the role")
            marked = turn.get("has_answer") is not None and self.take(turn, "has_answer", bool, at)
            said.append((role, content, marked))
        return said

    def session(self, scope, name, date, said):
        """Add the memories of a session; ids of the turns that are marked."""
        gold = []
        for number, (role, content, marked) in enumerate(said, start=1):
            turn = f"{scope}/{name}:{number}"
            text = self.shared(turn_text(role, content, None, date if self.dates else None))
            self.memories.append(Memory(turn, scope, "dialogue", name, date, text))
            gold += [turn] * marked
        return gold
