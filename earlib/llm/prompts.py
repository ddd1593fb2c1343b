"""The paper's three prompts, word for word, and how texts are put into them.

The prompts are the files in `prompts/`: the LaTeX of the section "Prompts Used" with its markup removed (bold is `**`),
line by line. Each has two variants:

`paper`
    The prompt as printed. The texts of a question, of memories and of answers stand in it as they are, so that a text
    which gives orders looks like a part of the prompt.
`marked`
    The same prompt behind a notice (`marked.txt`), with every text between a line `<data>` and a line `</data>`. No
    text can close its marks from inside: if one holds `data>` (in either case, with spaces or line breaks in between),
    the marks of the whole prompt are `<data1>` and `</data1>`, and so on.

Texts are put in at one go and never searched for placeholders; braces, brackets, dollar signs and line breaks in them
mean nothing. In both variants they stand verbatim and in the order given.
"""

import re
from functools import cache
from importlib import resources
from itertools import count

from earlib.core.config import near

VARIANTS = ("paper", "marked")


@cache
def template(name):
    """Text of a prompt file, with its placeholders in braces: "answer", "judge", "citations" or "marked"."""
    return resources.files("earlib.llm").joinpath("prompts", f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


def answer(question, memories, variant="paper"):
    """Ask for the answer to a question, given retrieved texts.

    Parameters
    ----------
    question : str
    memories : sequence of str
        Retrieved texts, best first; each becomes a line `- text`.
    variant : str
        One of `VARIANTS`.

    Returns
    -------
    list of dict
        Messages of the chat API: one, of the user.

    Raises
    ------
    ValueError
        For an unknown variant; names the near matches.
    TypeError
        If a text is no string, or `memories` is one.
    """
    memories = _listed(memories)
    fenced, fill = _marks("answer", variant, [question, *memories])
    texts = "".join(f"\n- {fenced(text)}" for text in memories)
    return fill({"question": fenced(question), "List of Retrieved Texts": texts})


def judge(question, gold, candidate, variant="paper"):
    """Ask whether an answer is right.

    Parameters
    ----------
    question, gold, candidate : str
        The question, its ground-truth answer and the answer to be judged.
    variant : str
        One of `VARIANTS`.

    Returns
    -------
    list of dict
        As `answer`; so are the errors.
    """
    fenced, fill = _marks("judge", variant, [question, gold, candidate])
    return fill({"question": fenced(question), "gold_answer": fenced(gold), "answer": fenced(candidate)})


def citations(question, memories, variant="paper"):
    """Ask which memories of a slate are useful for a question.

    Parameters
    ----------
    question : str
    memories : sequence of str
        The slate; each is headed `- Memory [i]:`, i from 0, as in the prompt's examples.
    variant : str
        One of `VARIANTS`.

    Returns
    -------
    list of dict
        As `answer`; so are the errors.
    """
    memories = _listed(memories)
    fenced, fill = _marks("citations", variant, [question, *memories])
    slate = "".join(f"\n- Memory [{i}]:\n {fenced(text)}" for i, text in enumerate(memories))
    return fill({"query": fenced(question), "memories": slate})


def _listed(memories):
    if isinstance(memories, str):
        raise TypeError("memories: expected a sequence of texts, found one text; put it into a list")
    return list(memories)


def _marks(name, variant, texts):
    """How this prompt sets a text off, and how it is filled."""
    if variant not in VARIANTS:
        raise ValueError(f"unknown variant {variant!r} of a prompt{near(variant, VARIANTS)}; known: {VARIANTS}")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"prompt {name!r}: expected texts, found {type(text).__name__} {str(text)[:40]!r}")
    opening, closing = _fence(texts)

    def fenced(text):
        return text if variant == "paper" else f"\n{opening}\n{text}\n{closing}"

    def fill(values):
        content = _filled(template(name), values)
        if variant == "marked":
            content = _filled(template("marked"), {"opening": opening, "closing": closing}) + "\n\n" + content
        return [{"role": "user", "content": content}]

    return fenced, fill


def _fence(texts):
    """The first pair of marks, by number, that occurs in none of the texts however it is spaced or capitalised."""
    joined = " ".join("".join(text.split()).casefold() for text in texts)
    tags = ("data" + (str(number) if number else "") for number in count())
    tag = next(tag for tag in tags if f"{tag}>" not in joined)
    return f"<{tag}>", f"</{tag}>"


def _filled(text, values):
    """Put values in the place of `{placeholders}`, each once; what is put in is not looked at again."""
    parts = re.split("{(" + "|".join(map(re.escape, values)) + ")}", text)
    return "".join(values[part] if at % 2 else part for at, part in enumerate(parts))
