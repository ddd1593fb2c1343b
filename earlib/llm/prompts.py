"""The paper's three prompts, word for word, and how texts are put into them.

The prompts are the files in `prompts/`: the LaTeX of the section "Prompts Used" with its markup removed (bold is `**`),
line by line. Each has two variants:

`paper`
    The prompt as printed. The texts of a question, of memories and of answers stand in it as they are, so that an
    instruction in a text looks like a part of the prompt.
`marked`
    The same prompt after a notice (`marked.txt`), with every text between a line `<data>` and a line `</data>`. No
    text can close its marks from inside: if one contains `data>` (in either case, with spaces or line breaks), the
    marks of the whole prompt are `<data1>` and `</data1>`, and so on.

Texts are inserted at once and never searched for placeholders; in both variants they are verbatim and in the order
given. Functions return the messages of the chat API: one, of the user. They raise a ValueError for an unknown variant,
and a TypeError for a text that is no string or for memories that are one.
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


def answer_prompt(question, memories, variant="paper"):
    """Messages that ask for the answer to a question, given retrieved texts, best first."""
    memories = _listed(memories)

    def values(mark):
        return {"question": mark(question), "List of Retrieved Texts": "".join(f"\n- {mark(one)}" for one in memories)}

    return _prompt("answer", variant, [question, *memories], values)


def judge_prompt(question, gold, candidate, variant="paper"):
    """Messages that ask if a candidate answers a question as the gold answer does."""

    def values(mark):
        return {"question": mark(question), "gold_answer": mark(gold), "answer": mark(candidate)}

    return _prompt("judge", variant, [question, gold, candidate], values)


def citation_prompt(question, memories, variant="paper"):
    """Messages that ask which memories of a slate are useful for a question; `- Memory [i]:` counts from 0."""
    memories = _listed(memories)

    def values(mark):
        slate = "".join(f"\n- Memory [{i}]:\n {mark(one)}" for i, one in enumerate(memories))
        return {"query": mark(question), "memories": slate}

    return _prompt("citations", variant, [question, *memories], values)


def _listed(memories):
    if isinstance(memories, str):
        raise TypeError("memories: expected a sequence of texts, found one text; put it into a list")
    return list(memories)


def _prompt(name, variant, texts, values):
    """Messages of a prompt; `values` maps a function that marks a text to the values of the placeholders."""
    if variant not in VARIANTS:
        raise ValueError(f"unknown variant {variant!r} of a prompt{near(variant, VARIANTS)}; known: {VARIANTS}")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"prompt {name!r}: expected texts, found {type(text).__name__} {str(text)[:40]!r}")
    if variant == "paper":
        content = _filled(template(name), values(str))
    else:  # the first marks, by number, that occur in none of the texts, whatever their spacing and capitals
        joined = " ".join("".join(text.split()).casefold() for text in texts)
        tags = (f"data{number or ''}" for number in count())
        tag = next(tag for tag in tags if f"{tag}>" not in joined)
        notice = _filled(template("marked"), {"opening": f"<{tag}>", "closing": f"</{tag}>"})
        content = _filled(template(name), values(lambda text: f"\n<{tag}>\n{text}\n</{tag}>"))
        content = f"{notice}\n\n{content}"
    return [{"role": "user", "content": content}]


def _filled(text, values):
    """Replace `{placeholders}` by values, each once; inserted values are not searched."""
    parts = re.split("{(" + "|".join(map(re.escape, values)) + ")}", text)
    return "".join(values[part] if at % 2 else part for at, part in enumerate(parts))
