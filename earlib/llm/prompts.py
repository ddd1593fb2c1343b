"""The paper's three prompts, word for word, and how texts are put into them.

The prompts are the files in `prompts/`: the LaTeX of the section "Prompts Used" with its markup removed (bold is `**`),
line by line. The texts of a question, of memories and of answers stand in a prompt as they are and in the order given;
they are inserted at once and never searched for placeholders. Functions return the messages of the chat API: one, of
the user.
"""

import re
from functools import cache
from importlib import resources


@cache
def template(name):
    """Text of a prompt file, with its placeholders in braces: "answer", "judge" or "citations"."""
    return resources.files("earlib.llm").joinpath("prompts", f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


def answer_prompt(question, memories):
    """Messages that ask for the answer to a question, given retrieved texts, best first."""
    texts = "".join(f"\n- {text}" for text in memories)
    return _filled("answer", {"question": question, "List of Retrieved Texts": texts})


def judge_prompt(question, gold, candidate):
    """Messages that ask if a candidate answers a question as the gold answer does."""
    return _filled("judge", {"question": question, "gold_answer": gold, "answer": candidate})


def citation_prompt(question, memories):
    """Messages that ask which memories of a slate are useful for a question; `- Memory [i]:` counts from 0."""
    texts = "".join(f"\n- Memory [{at}]:\n {text}" for at, text in enumerate(memories))
    return _filled("citations", {"query": question, "memories": texts})


def _filled(name, values):
    """Messages of a prompt whose `{placeholders}` are replaced."""
    content = re.sub("{(.*?)}", lambda found: values[found[1]], template(name))
    return [{"role": "user", "content": content}]
