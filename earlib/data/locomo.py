"""LoCoMo (Maharana et al., 2024): ten long conversations with all their turns, observations and questions.

Irregular entries of the source are repaired by stated rules and listed in `Benchmark.audit`; none is dropped silently.
The image search terms (`query` of a turn) leak answers and are never read. Labels are read as published: an audit by
others (dial481/locomo-audit) reports 99 that are wrong enough to change scores, 57 of them wrong evidence.
"""

import json
import re
from pathlib import Path

from earlib.data.benchmarks import ADVERSARIAL, Benchmark, Memory, Query, turn_text
from earlib.data.download import FILES, fetch
from earlib.data.fields import Fields

FILE = "locomo10.json"
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: ADVERSARIAL}


def load(captions=True, dates=False, file=FILE):
    """Read LoCoMo from the search path or its publisher; see `earlib.data.benchmarks.load`.

    Another `file` is the path of one in the same format, read as it is: with corrected labels, for instance.
    """
    return read(fetch(file) if file in FILES else file, captions, dates)


def read(path, captions=True, dates=False):
    """Read a file in LoCoMo's format; a ValueError names the file, the field and what was expected.

    Memory ids are `{sample}/D{session}:{turn}` and `{sample}/S{session}/O/{speaker}/{number}`, query ids
    `{sample}/Q{number}`; observations and questions are numbered from 0.
    """
    path = Path(path)
    try:
        samples = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected complete JSON, but {error}; get the file again") from error
    reader = _Reader(path, captions, dates)
    for sample, place in reader.entries(reader.check(samples, list, "the whole file"), dict, ""):
        reader.sample(sample, place)
    name = "LoCoMo" if path.name == FILE else f"LoCoMo ({path.name})"
    return Benchmark(name, tuple(reader.memories.values()), tuple(reader.queries), tuple(reader.audit))


def parse_evidence(entry):
    """Dialogue ids in one evidence entry, in order, in the form `D{session}:{turn}` without leading zeros.

    Reads several ids joined by anything ("D8:6; D9:17"), a colon too many ("D:11:26") and leading zeros ("D30:05");
    what remains ("D") names no turn.
    """
    return [f"D{int(session)}:{int(turn)}" for session, turn in re.findall(r"D:?([0-9]{1,9}):([0-9]{1,9})", entry)]


class _Reader(Fields):
    """The samples read so far."""

    def __init__(self, path, captions, dates):
        super().__init__(path)
        self.captions, self.dates = captions, dates
        self.memories, self.queries = {}, []

    def add(self, place, *fields):
        memory = Memory(*fields)
        self.require(memory.id not in self.memories, place, "an id that occurs once", memory.id)
        self.memories[memory.id] = memory

    def sample(self, sample, place):
        (scope,) = self.take(sample, place, sample_id=str)
        conversation, observation, questions = self.take(sample, scope, conversation=dict, observation=dict, qa=list)
        numbers = sorted(int(key[8:]) for key in conversation if re.fullmatch(r"session_[0-9]+", key))
        dates = [self.session(scope, number, conversation) for number in numbers]
        for number, date in zip(numbers, dates, strict=True):
            self.observations(scope, number, date, observation)
        for key in conversation:
            dated = re.fullmatch(r"session_([0-9]+)_date_time", key)
            if dated and int(dated[1]) not in numbers:
                self.note(f"{scope} conversation.{key}", "date without session", conversation[key], "nothing")
        self.questions(scope, questions)

    def session(self, scope, number, conversation):
        """Add the turns of a session; returns its date."""
        place, key, date = f"{scope} conversation", f"session_{number}_date_time", ""
        if key in conversation:
            (date,) = self.take(conversation, place, **{key: str})
        if not date:
            self.note(f"{place}.session_{number}", "session without date", "", "an empty date")
        (turns,) = self.take(conversation, place, **{f"session_{number}": list})
        for turn, at in self.entries(turns, dict, f"{place}.session_{number}"):
            name, speaker, text = self.take(turn, at, dia_id=str, speaker=str, text=str)
            numbered = re.fullmatch(rf"D{number}:[1-9][0-9]*", name)
            self.require(numbered, f"{at}.dia_id", f"D{number}: and the number of the turn", name)
            caption = turn.get("blip_caption")
            if caption is not None:
                self.check(caption, str, f"{at}.blip_caption")
            if not text.strip():
                self.note(f"{at}.text", "empty turn", repr(text), "its caption" if caption else "the speaker's name")
            text = turn_text(speaker, text, caption if self.captions else None, date if self.dates else None)
            self.add(at, f"{scope}/{name}", scope, "dialogue", f"S{number}", date, text)
        return date

    def observations(self, scope, number, date, observation):
        key, place = f"session_{number}_observation", f"{scope} observation"
        if key not in observation:
            self.note(f"{place}.{key}", "session without observations", "no such key", "none")
            return
        (spoken,) = self.take(observation, place, **{key: dict})
        for speaker, pairs in spoken.items():
            for index, (pair, at) in enumerate(self.entries(pairs, list, f"{place}.{key}.{speaker}")):
                if len(pair) != 2:
                    raise self.error(at, "a pair of a text and dialogue ids", f"{len(pair)} entries")
                text = self.check(pair[0], str, f"{at}[0]")
                sources = self.turns(scope, pair[1] if isinstance(pair[1], list) else [pair[1]], f"{at}[1]", "source")
                name = f"{scope}/S{number}/O/{speaker}/{index}"
                self.add(at, name, scope, "observation", f"S{number}", date, text, sources)

    def turns(self, scope, entries, place, kind):
        """Ids of the turns that the entries name, each once; an entry that is not exactly one known id is noted."""
        kept = []
        for entry in entries:
            names = parse_evidence(self.check(entry, str, place))
            known = [name for name in names if f"{scope}/{name}" in self.memories]
            if names != [entry]:
                self.note(place, f"malformed {kind}", entry, " ".join(known) or "nothing")
            elif not known:
                self.note(place, f"{kind} without a turn", entry, "nothing")
            for name in known:
                if f"{scope}/{name}" in kept:
                    self.note(place, f"repeated {kind}", name, "once")
                else:
                    kept.append(f"{scope}/{name}")
        return tuple(kept)

    def questions(self, scope, questions):
        first = {}  # number of the first question with a text
        for number, (question, place) in enumerate(self.entries(questions, dict, f"{scope} qa")):
            text, category, entries = self.take(question, place, question=str, category=int, evidence=list)
            self.require(category in CATEGORIES, f"{place}.category", "a number from 1 to 5", category)
            if not entries:
                self.note(f"{place}.evidence", "no evidence", "[]", "the question, without gold")
            gold = self.turns(scope, entries, f"{place}.evidence", "evidence")
            earlier = first.setdefault(text, number)
            if earlier < number:
                kind = "repeated question" if question == questions[earlier] else "question asked in two ways"
                self.note(place, kind, f"as qa[{earlier}]", "both")
            told = CATEGORIES[category] != ADVERSARIAL or "answer" in question  # else the dialogue does not say
            answer = self.answer(question, place) if told else ""
            self.queries.append(Query(f"{scope}/Q{number}", scope, text, answer, CATEGORIES[category], gold))
