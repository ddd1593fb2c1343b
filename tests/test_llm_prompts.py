"""The prompts against the LaTeX of the paper, and texts that are inserted unchanged."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from earlib.llm import prompts

TITLES = {
    "answer": "Prompt For Answer Generation",
    "judge": "Prompt For LLM-As-a-Judge",
    "citations": "Prompt For LLM Based Citations",
}
PLACEHOLDERS = {
    "answer": ["question", "List of Retrieved Texts"],
    "judge": ["question", "gold_answer", "answer"],
    "citations": ["query", "memories"],
}


@pytest.mark.parametrize("name", TITLES)
def test_a_prompt_is_the_papers_word_for_word(name):
    path = os.environ.get("EARLIB_PAPER")
    if not path or not Path(path).is_file():
        pytest.skip("EARLIB_PAPER does not name the paper's LaTeX source")
    latex = Path(path).read_text(encoding="utf-8")
    printed = latex.split(f"title={TITLES[name]}]")[1]
    text = re.sub(r"\\textbf\{((?:[^{}\\]|\\.)*)\}", r"**\1**", printed.split(r"\end{tcolorbox}")[0])
    text = re.sub(r"(?m)\s*?\\\\\s*?$", "", text)
    text = re.sub(r"\\([_{}])", r"\1", text)
    assert "\\" not in text
    assert [line.rstrip() for line in text.strip().split("\n")] == prompts.template(name).split("\n")


@pytest.mark.parametrize("name", TITLES)
def test_the_placeholders_are_those_that_are_filled(name):
    assert re.findall(r"\{(.*?)\}", prompts.template(name)) == PLACEHOLDERS[name]


def test_the_prompts_are_installed_with_the_package():
    """The build takes every text file of every folder of the package, this one included."""
    from setuptools import find_namespace_packages

    root = Path(prompts.__file__).parent.parent.parent
    assert "earlib.llm.prompts" in find_namespace_packages(str(root), include=["earlib*"])
    assert {file.stem for file in (root / "earlib/llm/prompts").glob("*.txt")} == set(TITLES)


def asked(messages):
    assert [sorted(message) for message in messages] == [["content", "role"]]
    assert messages[0]["role"] == "user"
    return messages[0]["content"]


def around(name):
    """Parts of a prompt before, between and after its placeholders."""
    return re.split("{" + "}|{".join(PLACEHOLDERS[name]) + "}", prompts.template(name))


TEXTS = st.one_of(
    st.text(min_size=1),
    st.sampled_from([
        "{question}", "{List of Retrieved Texts}", "{memories} {query}", "{0} {} {{x}} %s %(a)s $question ${answer}",
        "\\1 \\g<0> \\textbf{x}", "- Memory [7]:\n Ann: x", "[0]", "a\r\nb\x0b\x00\u2028c",
    ]),
)  # fmt: skip


@given(TEXTS, st.lists(TEXTS, max_size=5))
@example("{List of Retrieved Texts}", ["{question}", "$&", "a\nb"])
def test_the_papers_prompts_hold_the_texts_and_nothing_else_changes(question, memories):
    before, between, behind = around("answer")
    texts = "".join("\n- " + memory for memory in memories)
    assert asked(prompts.answer_prompt(question, memories)) == before + question + between + texts + behind
    before, between, behind = around("citations")
    slate = "".join(f"\n- Memory [{i}]:\n {memory}" for i, memory in enumerate(memories))
    assert asked(prompts.citation_prompt(question, memories)) == before + question + between + slate + behind


@given(TEXTS, TEXTS, TEXTS)
def test_the_papers_judge_gets_question_gold_and_candidate(question, gold, candidate):
    parts = around("judge")
    expected = parts[0] + question + parts[1] + gold + parts[2] + candidate + parts[3]
    assert asked(prompts.judge_prompt(question, gold, candidate)) == expected
