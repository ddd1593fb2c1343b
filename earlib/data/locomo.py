"""LoCoMo (Maharana et al., 2024): ten long conversations with all their turns, observations and questions.

Irregular entries of the source are repaired by stated rules and listed in `Benchmark.audit`; none is dropped silently.
The image search terms (`query` of a turn) leak answers and are never read. Labels are read as published: an audit by
others (dial481/locomo-audit) reports 99 that are wrong enough to change scores, 57 of them wrong evidence.
"""

import re
from typing import Annotated, Literal

from pydantic import Strict

from earlib.data.benchmarks import ADVERSARIAL, Memory, Query, turn_text
from earlib.data.fields import Answer, Part, Reader, Text, checked

FILE = "locomo10.json"
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: ADVERSARIAL}


class Turn(Part):
    """A turn of a session."""

    dia_id: Text
    speaker: Text
    text: Text
    blip_caption: Text | None = None


class Question(Part):
    """A question; the dialogue does not answer an adversarial one without `answer`."""

    question: Text
    category: Literal[tuple(CATEGORIES)]
    evidence: list[Text]
    answer: Answer = ""


class Sample(Part):
    """A conversation; an observation is a pair of its text and the turns that it was drawn from."""

    sample_id: Text
    conversation: dict[str, object]  # `session_N`: a list of turns, and `session_N_date_time`
    observation: dict[str, dict[Text, list[Annotated[tuple[Text, Text | list[Text]], Strict(False)]]]]
    qa: list[Question]


def read(file=FILE, captions=True, dates=False):
    """Read LoCoMo, or the path of a file in its format: with corrected labels, for instance; see `benchmarks.load`.

    Memory ids are `{sample}/D{session}:{turn}` and `{sample}/S{session}/O/{speaker}/{number}`, query ids
    `{sample}/Q{number}`; observations and questions are numbered from 0. A ValueError names the file, the field and
    what was expected.
    """
    reader = _Reader(file, captions, dates)
    for _, sample in reader.entries(Sample):
        reader.sample(sample)
    return reader.benchmark("LoCoMo" if reader.path.name == FILE else f"LoCoMo ({reader.path.name})")


def parse_evidence(entry):
    """Dialogue ids in one evidence entry, in order, in the form `D{session}:{turn}` without leading zeros.

    Reads several ids joined by anything ("D8:6; D9:17"), a colon too many ("D:11:26") and leading zeros ("D30:05");
    what remains ("D") names no turn.
    """
    return [f"D{int(session)}:{int(turn)}" for session, turn in re.findall(r"D:?([0-9]{1,9}):([0-9]{1,9})", entry)]


class _Reader(Reader):
    def sample(self, sample):
        scope, conversation = sample.sample_id, sample.conversation
        numbers = sorted(int(key[8:]) for key in conversation if re.fullmatch(r"session_[0-9]+", key))
        dates = {number: self.session(scope, number, conversation) for number in numbers}
        self.turns = {memory.id for memory in self.memories if memory.store == "dialogue"}
        for number, date in dates.items():
            self.observations(scope, number, date, sample.observation)
        for key, date in conversation.items():
            dated = re.fullmatch(r"session_([0-9]+)_date_time", key)
            if dated and int(dated[1]) not in dates:
                self.note(f"{scope} conversation.{key}", "date without session", str(date), "nothing")
        self.questions(scope, sample.qa)

    def session(self, scope, number, conversation):
        """Add the turns of a session; returns its date."""
        place, key = f"{scope} conversation.session_{number}", f"session_{number}"
        date = checked(Text, conversation.get(f"{key}_date_time", ""), f"{self.path}: {place}_date_time")
        if not date:
            self.note(place, "session without date", "", "an empty date")
        for at, turn in enumerate(checked(list[Turn], conversation[key], f"{self.path}: {place}")):
            if not turn.text.strip():
                kept = "its caption" if turn.blip_caption else "the speaker's name"
                self.note(f"{place}[{at}].text", "empty turn", repr(turn.text), kept)
            caption = turn.blip_caption if self.captions else None
            text = turn_text(turn.speaker, turn.text, caption, date if self.dates else None)
            self.memories.append(Memory(f"{scope}/{turn.dia_id}", scope, "dialogue", f"S{number}", date, text))
        return date

    def observations(self, scope, number, date, observation):
        key = f"session_{number}_observation"
        place = f"{scope} observation.{key}"
        if key not in observation:
            self.note(place, "session without observations", "no such key", "none")
        for speaker, pairs in observation.get(key, {}).items():
            for at, (text, named) in enumerate(pairs):
                entries = named if isinstance(named, list) else [named]
                sources = self.named(scope, entries, f"{place}.{speaker}[{at}][1]", "source")
                name = f"{scope}/S{number}/O/{speaker}/{at}"
                self.memories.append(Memory(name, scope, "observation", f"S{number}", date, text, sources))

    def named(self, scope, entries, place, kind):
        """Ids of the turns that the entries name, each once; an entry that is not exactly one known id is noted."""
        kept = []
        for entry in entries:
            names = parse_evidence(entry)
            known = [name for name in names if f"{scope}/{name}" in self.turns]
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
        for number, question in enumerate(questions):
            place, category = f"{scope} qa[{number}]", CATEGORIES[question.category]
            if not question.evidence:
                self.note(f"{place}.evidence", "no evidence", "[]", "the question, without gold")
            gold = self.named(scope, question.evidence, f"{place}.evidence", "evidence")
            earlier = first.setdefault(question.question, number)
            if earlier < number:
                kind = "repeated question" if question == questions[earlier] else "question asked in two ways"
                self.note(place, kind, f"as qa[{earlier}]", "both")
            answer = self.answer(question, place)
            self.queries.append(Query(f"{scope}/Q{number}", scope, question.question, answer, category, gold))
