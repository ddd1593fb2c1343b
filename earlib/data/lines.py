"""The user's own dataset: a file with one JSON object a line, a memory or a question each (docs/own-data.md)."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Discriminator, Tag, TypeAdapter, ValidationError

from earlib.core.config import Checked, near
from earlib.data.benchmarks import ADVERSARIAL, FORMAT, Benchmark, Irregularity, Memory, Query, turn_text
from earlib.data.fields import refusal


def _filled(text):
    if not text.strip():
        raise ValueError("expected a text that is not empty")
    return text


Text = Annotated[str, AfterValidator(_filled)]
Id = Annotated[Text, BeforeValidator(lambda value: str(value) if type(value) is int else value)]


class MemoryLine(Checked):
    """A turn of a conversation, or with `sources` an observation drawn from turns."""

    memory: Text
    id: Id
    conversation: Id = "all"
    session: Id = ""
    date: str = ""
    speaker: str = ""
    sources: list[Id] = []


class QuestionLine(Checked):
    """A question about a conversation."""

    question: Text
    conversation: Id = "all"
    answer: str | int | float = ""
    evidence: list[Id] = []
    category: Text = "question"


def _kind(line):
    kinds = [kind for kind in ("memory", "question") if isinstance(line, dict) and kind in line]
    return kinds[0] if len(kinds) == 1 else None


KIND = Discriminator(_kind, custom_error_type="line", custom_error_message="expected either a memory or a question")
LINE = TypeAdapter(Annotated[Annotated[MemoryLine, Tag("memory")] | Annotated[QuestionLine, Tag("question")], KIND])


def read(path, dates=False):
    """Read a file of lines as a `Benchmark` with the file's name.

    Memory ids are `{conversation}/{id}`, query ids `{conversation}/Q{line}`. Captions are not part of the format.

    Parameters
    ----------
    path : str or Path
    dates : bool
        Prepend `[{date}] ` to the text of a turn.

    Raises
    ------
    ValueError
        For a line that is wrong by itself or beside the others; names file, line, field and what was expected.
    """
    path = Path(path)
    lines = [*_lines(path)]
    for what, kind in (("memory", MemoryLine), ("question", QuestionLine)):
        if not any(isinstance(line, kind) for _, line in lines):
            raise ValueError(f"{path}: expected at least one {what}, found none; {FORMAT}")
    memories = _memories(path, lines, dates)
    benchmark = Benchmark(path.name, memories, *_questions(path, lines, memories))
    if not any(query.gold for query in benchmark.asked):
        expected = f"the evidence of at least one question that is not {ADVERSARIAL}"
        raise ValueError(f"{path}: expected {expected}, found none, so nothing could be scored; {FORMAT}")
    return benchmark


def _lines(path):
    """Yield number and `MemoryLine` or `QuestionLine` of each line that is not blank."""
    try:
        texts = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8, but {error}; save the file as UTF-8") from None
    for number, text in enumerate(texts, start=1):
        try:
            if text.strip():
                yield number, LINE.validate_json(text)
        except ValidationError as error:
            raise refusal(error, f"{path}: line {number}") from None


def _memories(path, lines, dates):
    memories = {}
    for number, line in (one for one in lines if isinstance(one[1], MemoryLine)):
        scope, name = line.conversation, f"{line.conversation}/{line.id}"
        if name in memories:
            raise ValueError(f"{path}: line {number}: id: expected to occur once in {scope!r}, found {line.id!r} again")
        text = turn_text(line.speaker, line.memory, date=line.date if dates else None)
        store, sources = "observation" if line.sources else "dialogue", tuple(f"{scope}/{id}" for id in line.sources)
        memories[name] = Memory(name, scope, store, line.session, line.date, text, sources)
    return tuple(memories.values())


def _questions(path, lines, memories):
    """Queries, and what is odd about them; the conversation and the turns that any line names have to exist."""
    scopes, turns = {one.scope for one in memories}, {one.id for one in memories if not one.sources}
    before, queries, audit = set(), [], []
    for number, line in lines:
        scope, where = line.conversation, f"{path}: line {number}"
        if scope not in scopes:
            raise ValueError(f"{where}: conversation: expected one with memories{near(scope, scopes)}, found {scope!r}")
        field, named = ("sources", line.sources) if isinstance(line, MemoryLine) else ("evidence", line.evidence)
        for id in named:
            if f"{scope}/{id}" not in turns:
                expected = f"the id of a memory of conversation {scope!r} that has no sources itself"
                raise ValueError(f"{where}: {field}: expected {expected}, found {id!r}")
        if isinstance(line, MemoryLine):
            continue
        if (scope, line.question) in before:
            audit.append(Irregularity(f"line {number}", "repeated question", line.question, "both"))
        if not line.evidence:
            audit.append(Irregularity(f"line {number}", "no evidence", "[]", "the question, without gold"))
        before.add((scope, line.question))
        gold = tuple(dict.fromkeys(f"{scope}/{id}" for id in line.evidence))
        queries.append(Query(f"{scope}/Q{number}", scope, line.question, str(line.answer), line.category, gold))
    return tuple(queries), tuple(audit)
