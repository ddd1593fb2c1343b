"""Files of data, checked against pydantic types; an error names the file, the place and what was expected."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from earlib.data.benchmarks import Benchmark, Irregularity
from earlib.data.download import FILES, fetch

_BUFFER = 1 << 20  # characters read at a time


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
    if (text[1:] + file.read()).strip():
        raise json.JSONDecodeError("Extra data", text, 1)


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
