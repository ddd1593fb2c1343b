"""Files of data, checked against pydantic types; an error names the file, the place and what was expected."""

import json
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from earlib.data.benchmarks import Benchmark, Irregularity

_BUFFER = 1 << 20  # characters read at a time
_SPACE = re.compile(r"[ \t\n\r]*")  # as JSON has it


def _in_unicode(text):
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("expected text that UTF-8 can hold, surrogates not allowed") from error
    return text


Text = Annotated[str, AfterValidator(_in_unicode)]
Answer = Text | int | float


class Part(BaseModel):
    """An object in a file, of whose fields those that are not declared are not read."""

    model_config = ConfigDict(strict=True)


class Reader:
    """The memories, queries and irregular entries read so far.

    The file is one of `download.FILES`, found by name and verified, or the path of another one, read as it is.
    """

    def __init__(self, file, captions, dates):
        from earlib.data.download import FILES, fetch  # brings a client for downloads, which a live memory never needs

        self.path, self.captions, self.dates = Path(fetch(file) if file in FILES else file), captions, dates
        self.memories, self.queries, self.audit = [], [], []

    def note(self, place, kind, found, kept):
        self.audit.append(Irregularity(place, kind, found, kept))

    def answer(self, question, place):
        """The answer to a question as a text."""
        answer = str(question.answer)
        if answer != question.answer:
            self.note(f"{place}.answer", "answer is a number", answer, f"the text {answer!r}")
        return answer

    def entries(self, kind):
        """Yield number and entry of a file that contains a list; each is checked against the type and then forgotten.

        A ValueError for a file that is not complete, contains no entry or one of another form.
        """
        number = 0
        try:
            with open(self.path, encoding="utf-8") as file:
                for number, entry in enumerate(_listed(file), start=1):
                    yield number - 1, checked(kind, entry, f"{self.path}: [{number - 1}]")
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            found = f"after {number} whole entries: {error}"
            raise ValueError(f"{self.path}: expected complete JSON, a list, but {found}; get the file again") from error
        if not number:
            raise ValueError(f"{self.path}: expected at least one {kind.__name__.lower()}, found an empty list")

    def benchmark(self, name, **options):
        return Benchmark(name, tuple(self.memories), tuple(self.queries), tuple(self.audit), **options)


def _listed(file):
    """Yield the entries of a list in a JSON file, read piece by piece; an error tells its place in the file."""
    decoder, text, passed, start, sign = json.JSONDecoder(), "", 0, 0, "["  # the sign that the next entry stands behind

    def wrong(told, at):
        file.seek(0)
        return json.JSONDecodeError(told, file.read(), passed + at)

    while True:
        try:
            at = _SPACE.match(text, start).end()
            if text.startswith("]", at) and sign == ",":
                break
            if not text.startswith(sign, at):
                raise json.JSONDecodeError(f"Expecting '{sign}'", text, at)
            at = _SPACE.match(text, at + 1).end()
            if text.startswith("]", at) and sign == "[":
                break
            entry, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:  # the entry goes on behind what was read, or is wrong
            more = file.read(max(_BUFFER, len(text) - start))
            if not more:
                raise wrong(error.msg, error.pos) from None
            passed, text, start = passed + start, text[start:] + more, 0
        else:
            yield entry
            start, sign = end, ","
    if (text[at + 1 :] + file.read()).strip():
        raise wrong("Extra data", at + 1)


def checked(kind, content, where):
    """Return content of a type as that type; `where` is the file and the place in it, for the ValueError."""
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        raise refusal(error, where) from None


def refusal(error, where):
    """ValueError of one line for the first of the faults that pydantic found."""
    fault = error.errors()[0]
    place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in fault["loc"])
    if fault["type"] == "missing":
        return ValueError(f"{where}{place}: expected this field, found none")
    told = fault["msg"].replace("Input should be", "expected").replace(" should ", " expected to ")
    told = told.removeprefix("Value error, ")
    return ValueError(f"{where}{place}: {told}, found {fault['input']!r:.60}")
