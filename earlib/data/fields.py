"""Checks of a file's content against pydantic types; an error names the file, the place and what was expected."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError


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
