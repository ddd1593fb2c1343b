"""LoCoMo (Maharana et al., 2024): ten long conversations, every turn, observation and question of them.

The source has irregular entries; each is repaired by a stated rule and listed in `Benchmark.audit`, none is dropped
in silence. The image search terms (`query` of a turn) leak answers and are never read.
"""

import json
import re
from pathlib import Path

from earlib.data.benchmarks import ADVERSARIAL, Benchmark, Memory, Query, turn_text
from earlib.data.download import fetch
from earlib.data.fields import Fields

FILE = "locomo10.json"
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}


def load(captions=True, dates=False):
    """LoCoMo from the search path or its publisher; see `earlib.data.benchmarks.load`."""
    return read(fetch(FILE), captions, dates)


def read(path, captions=True, dates=False):
    """Read a file in LoCoMo's form.

    Parameters
    ----------
    path : Path
    captions, dates : bool
        As in `earlib.data.benchmarks.load`.

    Returns
    -------
    Benchmark
        Memory ids are `{sample}/D{session}:{turn}` and `{sample}/S{session}/O/{speaker}/{number}`, query ids
        `{sample}/Q{number}`, numbers of questions and observations from 0.

    Raises
    ------
    ValueError
        If it is no valid JSON, or a field is missing or has the wrong type; names the file, the field and what
        was expected.
    """
    path = Path(path)
    try:
        samples = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected complete JSON, but {error}; get the file again") from error
    reader = _Reader(path, captions, dates)
    reader.check(samples, list, "the whole file")
    for number, sample in enumerate(samples):
        reader.sample(reader.check(sample, dict, f"[{number}]"), f"[{number}]")
    return Benchmark("LoCoMo", tuple(reader.memories.values()), tuple(reader.queries), tuple(reader.audit))


def parse_evidence(entry):
    """Dialogue ids in one evidence entry, in order, in the form `D{session}:{turn}` without leading zeros.

    Reads several ids joined by anything ("D8:6; D9:17"), a colon too many ("D:11:26") and leading zeros ("D30:05");
    what remains ("D") names no turn.
    """
    return [f"D{int(session)}:{int(turn)}" for session, turn in re.findall(r"D:?([0-9]{1,9}):([0-9]{1,9})", entry)]


class _Reader(Fields):
    """What has been read so far."""

    def __init__(self, path, captions, dates):
        super().__init__(path)
        self.captions, self.dates = captions, dates
        self.memories, self.queries = {}, []

    def add(self, memory, place):
        if memory.id in self.memories:
            raise self.error(place, "an id that occurs once", repr(memory.id))
        self.memories[memory.id] = memory

    def sample(self, sample, place):
        scope = self.take(sample, "sample_id", str, place)
        conversation = self.take(sample, "conversation", dict, scope)
        observation = self.take(sample, "observation", dict, scope)
        questions = self.take(sample, "qa", list, scope)
        numbers = sorted(int(key[8:]) for key in conversation if re.fullmatch(r"session_[0-9]+", key))
        for number in numbers:
            self.session(scope, number, conversation)
        for number in numbers:
            self.observations(scope, number, conversation, observation)
        for key in conversation:
            dated = re.fullmatch(r"session_([0-9]+)_date_time", key)
            if dated and int(dated[1]) not in numbers:
                self.note(f"{scope} conversation.{key}", "date without session", conversation[key], "nothing")
        self.questions(scope, questions)

    def date(self, scope, number, conversation):
        key = f"session_{number}_date_time"
        return self.take(conversation, key, str, f"{scope} conversation") if key in conversation else ""

    def session(self, scope, number, conversation):
        date = self.date(scope, number, conversation)
        if not date:
            self.note(f"{scope} conversation.session_{number}", "session without date", "", "an empty date")
        turns = self.take(conversation, f"session_{number}", list, f"{scope} conversation")
        for index, turn in enumerate(turns):
            place = f"{scope} conversation.session_{number}[{index}]"
            self.check(turn, dict, place)
            name = self.take(turn, "dia_id", str, place)
            if not re.fullmatch(rf"D{number}:[1-9][0-9]*", name):
                raise self.error(f"{place}.dia_id", f"D{number}: and the number of the turn", repr(name))
            speaker, text = (self.take(turn, key, str, place) for key in ("speaker", "text"))
            caption = self.take(turn, "blip_caption", str, place) if turn.get("blip_caption") is not None else ""
            if not text.strip():
                self.note(f"{place}.text", "empty turn", repr(text), "its caption" if caption else "the speaker's name")
            text = turn_text(speaker, text, caption if self.captions else None, date if self.dates else None)
            self.add(Memory(f"{scope}/{name}", scope, "dialogue", f"S{number}", date, text), place)

    def observations(self, scope, number, conversation, observation):
        date, key = self.date(scope, number, conversation), f"session_{number}_observation"
        if key not in observation:
            self.note(f"{scope} observation.{key}", "session without observations", "no such key", "none")
            return
        for speaker, pairs in self.take(observation, key, dict, f"{scope} observation").items():
            for index, pair in enumerate(self.check(pairs, list, f"{scope} observation.{key}.{speaker}")):
                place = f"{scope} observation.{key}.{speaker}[{index}]"
                if len(self.check(pair, list, place)) != 2:
                    raise self.error(place, "a pair of a text and dialogue ids", f"{len(pair)} entries")
                text = self.check(pair[0], str, f"{place}[0]")
                entries = pair[1] if isinstance(pair[1], list) else [pair[1]]
                sources = self.turns(scope, entries, f"{place}[1]", "source")
                name = f"{scope}/S{number}/O/{speaker}/{index}"
                self.add(Memory(name, scope, "observation", f"S{number}", date, text, sources), place)

    def turns(self, scope, entries, place, kind):
        """Ids of the turns that the entries name, each once; whatever is not one plain id of a turn is noted."""
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
        first = {}
        for index, question in enumerate(questions):
            place = f"{scope} qa[{index}]"
            self.check(question, dict, place)
            text = self.take(question, "question", str, place)
            number = self.take(question, "category", int, place)
            if number not in CATEGORIES:
                raise self.error(f"{place}.category", "a number from 1 to 5", number)
            entries = self.take(question, "evidence", list, place)
            if not entries:
                self.note(f"{place}.evidence", "no evidence", "[]", "the question, without gold")
            gold = self.turns(scope, entries, f"{place}.evidence", "evidence")
            if text in first:
                earlier = first[text]
                kind = "repeated question" if question == questions[earlier] else "question asked in two ways"
                self.note(place, kind, f"as qa[{earlier}]", "both")
            first.setdefault(text, index)
            told = CATEGORIES[number] != ADVERSARIAL or "answer" in question  # else the dialogue does not say
            answer = self.answer(question, place) if told else ""
            self.queries.append(Query(f"{scope}/Q{index}", scope, text, answer, CATEGORIES[number], gold))
