"""Checked access to the fields of a benchmark's file; an error names the file, the field and what was expected."""

from pathlib import Path

from earlib.data.benchmarks import Irregularity

_KINDS = {dict: "an object", list: "a list", str: "a text", int: "a number", bool: "true or false"}
_KINDS[str, int, float] = "a text or a number"


class Fields:
    """A file being read and its irregular entries so far; `place` is the position of a value in the file."""

    def __init__(self, path):
        self.path, self.audit = Path(path), []

    def error(self, place, expected, found):
        told = f"expected {expected}, found {found}; compare with the publisher's file"
        return ValueError(f"{self.path}: {place}: {told}")

    def require(self, condition, place, expected, value):
        """Raise the error unless the condition holds."""
        if not condition:
            raise self.error(place, expected, repr(value))

    def check(self, value, kind, place):
        """Return a value of the given type, texts in Unicode; true and false are not numbers."""
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise self.error(place, _KINDS[kind], f"{type(value).__name__} {str(value)[:40]!r}")
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                near = value[max(0, error.start - 20) : error.end + 20]
                raise self.error(place, "a text in Unicode", f"half a surrogate pair in {near!r}") from None
        return value

    def entries(self, values, kind, place):
        """Entries of a list, all of one type, each with its place."""
        for number, value in enumerate(self.check(values, list, place)):
            at = f"{place}[{number}]"
            yield self.check(value, kind, at), at

    def take(self, mapping, place, **kinds):
        """Values of required keys, each of its type."""
        for key, kind in kinds.items():
            if key not in mapping:
                raise self.error(f"{place}.{key}", _KINDS[kind], "no such key")
            self.check(mapping[key], kind, f"{place}.{key}")
        return [mapping[key] for key in kinds]

    def note(self, place, kind, found, kept):
        """Add an irregular entry, and how it was repaired, to the audit."""
        self.audit.append(Irregularity(place, kind, str(found), str(kept)))

    def answer(self, question, place):
        """Answer to a question as text; a number is noted."""
        (answer,) = self.take(question, place, answer=(str, int, float))
        if not isinstance(answer, str):
            self.note(f"{place}.answer", "answer is a number", answer, f"the text {str(answer)!r}")
        return str(answer)
