"""The user's own dataset: a file with one JSON object a line, a memory or a question each (docs/own-data.md)."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from earlib.core.config import near
from earlib.data.benchmarks import ADVERSARIAL, FORMAT, Benchmark, Irregularity, Memory, Query, turn_text

Text = Annotated[str, StringConstraints(pattern=r"\S")]
Id = Text | int


class Line(BaseModel):
    """A line; the descriptions of its fields are what an error expects."""

    model_config = ConfigDict(extra="forbid", strict=True)

    conversation: Id = Field("all", description="a text or a whole number that names its conversation")


class MemoryLine(Line):
    """A turn of a conversation, or with `sources` an observation drawn from turns."""

    memory: Text = Field(description="a text that is not empty")
    id: Id = Field(description="a text or a whole number, once in a conversation")
    session: Id = Field("", description="a text or a whole number")
    date: str = Field("", description="a text")
    speaker: str = Field("", description="a text")
    sources: list[Id] = Field([], description="a list of ids of memories of the same conversation")


class QuestionLine(Line):
    """A question about a conversation."""

    question: Text = Field(description="a text that is not empty")
    answer: str | int | float = Field("", description="a text or a number")
    evidence: list[Id] = Field([], description="a list of ids of memories of the same conversation")
    category: Text = Field("question", description="a text that is not empty")


KINDS = {"memory": MemoryLine, "question": QuestionLine}


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
    lines = list(_lines(path))
    memories = _memories(path, lines, dates)
    turns = {name for name, memory in memories.items() if memory.store == "dialogue"}
    scopes, asked, queries, audit = {memory.scope for memory in memories.values()}, set(), {}, []
    for number, line in lines:
        scope, field = str(line.conversation), "evidence" if isinstance(line, QuestionLine) else "sources"
        named = [f"{scope}/{one}" for one in getattr(line, field)]
        times = Counter(named)
        for name, one in zip(named, getattr(line, field), strict=True):
            if name not in turns:
                expected = f"the id of a memory of conversation {scope!r} that has no sources itself"
                raise _error(path, number, field, expected, one)
            if times[name] > 1:
                raise _error(path, number, field, "each id once", one)
        if field == "sources":
            continue
        if scope not in scopes:
            raise _error(path, number, "conversation", f"one with memories{near(scope, scopes)}", scope)
        if (scope, line.question) in asked:
            audit.append(Irregularity(f"line {number}", "repeated question", line.question, "both"))
        asked.add((scope, line.question))
        if not named:
            audit.append(Irregularity(f"line {number}", "no evidence", "[]", "the question, without gold"))
        name = f"{scope}/Q{number}"
        queries[name] = Query(name, scope, line.question, str(line.answer), line.category, tuple(named))
    for what, found in (("memory", memories), ("question", queries)):
        if not found:
            raise ValueError(f"{path}: expected at least one {what}, found none; {FORMAT}")
    found = Benchmark(path.name, tuple(memories.values()), tuple(queries.values()), tuple(audit))
    if not any(query.gold for query in found.asked):
        expected = f"the evidence of at least one question that is not {ADVERSARIAL}"
        raise ValueError(f"{path}: expected {expected}, found none, so nothing could be scored; {FORMAT}")
    return found


def _memories(path, lines, dates):
    """The memories among the lines, by id."""
    memories = {}
    for number, line in lines:
        if isinstance(line, MemoryLine):
            scope = str(line.conversation)
            name, store = f"{scope}/{line.id}", "observation" if line.sources else "dialogue"
            if name in memories:
                raise _error(path, number, "id", "an id that occurs once in its conversation", line.id)
            text = turn_text(line.speaker, line.memory, date=line.date if dates else None)
            sources = tuple(f"{scope}/{one}" for one in line.sources)
            memories[name] = Memory(name, scope, store, str(line.session), line.date, text, sources)
    return memories


def _lines(path):
    """Number and `MemoryLine` or `QuestionLine` of each line that is not blank."""
    for number, raw in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        where = f"{path}: line {number}"
        try:
            text = raw.decode().strip()
        except UnicodeDecodeError as error:
            found = f"the byte 0x{raw[error.start]:02x}"
            raise ValueError(f"{where}: expected UTF-8, found {found}; save the file as UTF-8") from None
        if not text:
            continue
        content = _content(text, where)
        kinds = [kind for key, kind in KINDS.items() if isinstance(content, dict) and key in content]
        if len(kinds) != 1:
            raise ValueError(f"{where}: expected an object with a memory or a question, found {text[:60]!r}")
        try:
            yield number, kinds[0].model_validate(content)
        except ValidationError as error:
            field, fields = error.errors()[0]["loc"][0], kinds[0].model_fields
            if field not in fields:
                expected = f"{', '.join(fields)} alone{near(field, fields)}"
                raise ValueError(f"{where}: expected the fields {expected}, found {field!r}") from None
            found = [content[field]] if field in content else []
            raise _error(path, number, field, fields[field].description, *found) from None


def _content(text, where):
    """Content of a line, which could be written as JSON again; other parsers refuse what could not."""
    try:
        content = json.loads(text, object_pairs_hook=_fields)
        json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
        return content
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at character {error.pos + 1}"
    except UnicodeEncodeError as error:
        reason = f"{error.object[error.start]!r} is a lone surrogate"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:  # of a field that is repeated, a number that is not finite or too long
        reason = str(error).partition(";")[0]
    raise ValueError(f"{where}: expected one whole JSON object, found {text[:40]!r} ({reason})")


def _fields(pairs):
    """An object of JSON as a dict; a ValueError for a field that comes twice."""
    fields = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"the field {name!r} comes twice")
        fields[name] = value
    return fields


def _error(path, number, field, expected, *found):
    shown = json.dumps(*found, ensure_ascii=False)[:60] if found else "no such field"
    return ValueError(f"{path}: line {number}: {field}: expected {expected}, found {shown}")
