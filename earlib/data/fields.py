"""Checked access to the fields of a benchmark's file: a wrong one is named with the file and what was expected."""

from pathlib import Path

from earlib.data.benchmarks import Finding

_KINDS = {
    dict: "an object", list: "a list", str: "a text", (str, int, float): "a text or a number", int: "a number",
    bool: "true or false",
}  # fmt: skip


class Fields:
    """A file that is being read, and what was odd in it so far; `place` is always where in the file a value lies."""

    def __init__(self, path):
        self.path, self.audit = Path(path), []

    def error(self, place, expected, found):
        """The ValueError to raise for a value that is not as expected."""
        hint = "compare with the publisher's file"
        return ValueError(f"{self.path}: {place}: expected {expected}, found {found}; {hint}")

    def check(self, value, kind, place):
        """The value itself if it is of the given type; true and false are no numbers."""
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise self.error(place, _KINDS[kind], f"{type(value).__name__} {str(value)[:40]!r}")
        return value

    def take(self, mapping, key, kind, place):
        """The value of a key that must be there and of the given type."""
        if key not in mapping:
            raise self.error(f"{place}.{key}", _KINDS[kind], "no such key")
        return self.check(mapping[key], kind, f"{place}.{key}")

    def note(self, place, kind, found, kept):
        """Add an irregular entry, and what was kept of it, to the audit."""
        self.audit.append(Finding(place, kind, str(found), str(kept)))

    def answer(self, question, place):
        """A question's answer as text; a number is noted."""
        answer = self.take(question, "answer", (str, int, float), place)
        if not isinstance(answer, str):
            self.note(f"{place}.answer", "answer is a number", answer, f"the text {str(answer)!r}")
        return str(answer)
