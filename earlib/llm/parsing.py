"""Reading of replies: the final answer, the verdict of a judge, the citations of a critic.

A reply counts only by what the model itself states in the form that the prompt asks for. A reply that cannot be read is
unparsed (None), to be counted and shown, never a No and never "nothing cited". Before anything is read, thoughts
between `<think>` and `</think>` are removed; a reply that ends inside them is empty. In verdicts and citations echoes
are blanked: runs of four or more words that occur in this order in a text that the model was given, case and
punctuation aside. `given` holds these texts: the question, the gold answer and the candidate of a judge, the question
and the memories of a critic; the prompts are known.

Repeated statements must agree; otherwise the reply is unparsed. So it is where it was `cut` at its maximum length and
nothing follows the statement, whose end might be missing.
"""

import re
from typing import NamedTuple

from earlib.llm.prompts import template

RUN = 4  # words; shorter runs agree by chance
EXAMPLE_RUN = 15  # of the citations prompt: one more than "Output: Answer: I don't have ... Citations: [NO_CITE]"
BLANK = "\u25ae"  # replaces what is blanked: neither a word nor punctuation that may follow a verdict

_WORD = re.compile(r"[^\W_]+")


class Citations(NamedTuple):
    """Citations of a critic's reply."""

    indices: tuple | None  # positions in the slate, ascending, each once; () if none is useful; None if unparsed
    reason: str = ""  # why it is unparsed


_ANSWER = re.compile(r"(?im)^[^\w\n]*(?:final[^\S\n]+)?answer[*_]*[^\S\n]*:[*_]*")
_QUESTION = re.compile(r"(?im)^[^\w\n]*question[*_]*[^\S\n]*:")
_BEHIND = re.compile(r"(?im)\n\s*\n|^[^\w\n]*(?:citations?|question)[*_]*\s*:")


def read_answer(reply, given=(), cut=False):
    """Final answer of a reply to the answer prompt; None if there is none.

    It is the first paragraph after the last label `Answer:` at the start of a line (bold or not, `Final Answer:` too),
    up to a label `Citations:`; text after a label `Question:` is a further question that the model invented. A reply
    without a label `Answer:` is the answer.
    """
    text, *labelled = _ANSWER.split(_spoken(reply))
    behind = []
    for said in labelled:
        text, *behind = _BEHIND.split(said.strip(), maxsplit=1)
        if _QUESTION.search(said):
            break
    return None if cut and not behind else text.strip(" \t\r\n*`_") or None


# A verdict word as a statement: at the end, or before punctuation or a reason. Not "No details are missing", "Yes/No",
# "Yes or no", "Yes, no", "Yes. No.", "No. 5", "No-one", '"Yes" is what it says'.
_SAYS = (
    rf"[^\w\n{BLANK}]*(?P<said>yes|no)\b(?!-\w|\.\s*\d)(?=\s*(?:$|[^\w\s/|&{BLANK}]|(?:because|since)\b))"
    r"(?![^\w.!?]*(?:(?:or|and)\b[^\w.!?]*)?(?:yes|no)\b|[^\w\n]*(?:yes|no)\W*$|[\"']\s*\w)"
)
_LABEL = r"(?:final\s+)?(?:output|evaluation|verdict|judge?ment|assessment|decision|result)|final(?:\s+answer)?"
_LABELLED = re.compile(rf"(?im)^[^\w\n{BLANK}]*(?:{_LABEL})\W*:\s*{_SAYS}")
_OPENING = re.compile(_SAYS, re.I)
_ALONE = re.compile(r"(?i)\W*(?P<said>yes|no)\W*")


def read_verdict(reply, given=(), cut=False):
    """Verdict of a reply to the judge prompt: True, False, or None if it states none or both.

    The lines with a label decide: `Output: Yes`, also Verdict, Judgement and the like, with or without Final, bold,
    bullets and code marks. A reply without one is read by the word that opens it before punctuation, "No, it was
    yesterday", and by a last line of one word, unless that follows a question or a heading.
    """
    own = re.sub(r"[*`_]", "", _own(reply, given, "judge", RUN)) + "x" * cut  # a last word that may go on is no verdict
    found = list(_LABELLED.finditer(own))
    if not found:
        first, *further = [line.strip() for line in own.split("\n") if _WORD.search(line)] or [""]
        found = [_OPENING.match(first)]
        if further and not "".join([first, *further][-2:-1]).endswith((":", "?")):
            found.append(_ALONE.fullmatch(further[-1]))
    said = {one["said"].lower() for one in found if one}
    return said == {"yes"} if len(said) == 1 else None


_STATED = re.compile(r"(?i)\bcit(?:ations?|ed)\b(?:\(s\)|\s+memor(?:y|ies))?[\"']?[^\S\n]*:")
_LIST = re.compile(r"\s*.*(?:\n\W*\[.*)*")  # the line behind the label, or the next, and those that go on with brackets
_GROUP = re.compile(r"\[([^\[\]]*)\]")
_NO_CITE = re.compile(r"(?i)\bno[ _-]*cite\b")
_NONE = re.compile(r"(?i)\bno[ _-]*cite\b|\bnone\b|\bn/a\b")
_HEADING = re.compile(r"(?im)\[[^\[\]]*\][^\S\n]*:|^[^\S\n]*-[^\S\n]*memory[^\S\n]*\[[^\[\]]*\][^\S\n]*$")


def read_citations(reply, size, given=(), cut=False):
    """Citations of a reply to the citations prompt, for a slate of `size` memories.

    What stands behind `Citations:` decides: lists in brackets count (`[0, 2]`, `[0][2]`, `[Memory 0]`), a bare list
    (`0, 2`), and as "none is useful" `[NO_CITE]`, `None` and `[]`; any other bracket there makes the reply unparsed.
    A reply without that label is read by its brackets: every list of whole numbers is cited, `NO_CITE` cites none, and
    other brackets, headings (`Memory [0]:`, `[0]:`, a line `- Memory [0]`) and numbers without brackets are prose.

    A memory cited twice is cited once. An index beyond the slate makes the reply unparsed, since a model that counts
    from 1 would mean other memories by the rest too. So do citations beside `NO_CITE`, and stated lines that disagree.
    """
    own = re.sub(r"[*`\\]", "", _own(reply, given, "citations", EXAMPLE_RUN))
    prose, *stated = _STATED.split(own)
    lists = [_LIST.match(text) for text in stated]
    if cut and not (lists and _WORD.search(stated[-1], lists[-1].end())):  # a list may go on
        return Citations(None, "cut off")
    if not stated:
        return _cited_in_prose(_HEADING.sub(BLANK, prose), size)
    found = {_cited_in_list(one[0], size) for one in lists}
    return found.pop() if len(found) == 1 else Citations(None, "stated lines disagree")


def _cited_in_list(line, size):
    none, rest = bool(_NONE.search(line)), _NONE.sub(" ", line)
    if not re.search(r"\w|\[\s*\]", line):
        return Citations(None, "nothing behind the label")
    if none and not re.search(r"\d", rest):
        return Citations(())
    lists = [_numbers(part) for part in _GROUP.findall(rest) or [rest]]
    return Citations(None, "no list of indices behind the label") if None in lists else _checked(lists, none, size)


def _cited_in_prose(text, size):
    lists, none = list(filter(None, map(_numbers, _GROUP.findall(text)))), bool(_NO_CITE.search(text))
    return _checked(lists, none, size) if lists or none else Citations(None, "no citation in brackets")


def _checked(lists, none, size):
    indices = sorted(set(sum(lists, [])))
    if none and indices:
        return Citations(None, "citations beside NO_CITE")
    if indices and indices[-1] >= size:
        return Citations(None, "an index that no memory has")
    return Citations(tuple(indices))


def _numbers(text):
    """The whole numbers of a list of them, None for anything else."""
    parts = re.sub(r"(?i)\b(?:memory|memories|and)\b|[#,;&()\"']", " ", text).strip(" .\n").split()
    return [int(part) for part in parts] if all(re.fullmatch("[0-9]{1,9}", part) for part in parts) else None


def _spoken(reply):
    """A reply without the model's thoughts."""
    reply = re.sub(r"(?is)^.*</think(?:ing)?>", "", reply or "")
    return re.sub(r"(?is)<think(?:ing)?>.*$", "", reply)


def _own(reply, given, prompt, run):
    """A reply without thoughts, and without runs of words from the texts that the model was given."""
    reply = _spoken(reply)
    places = list(_WORD.finditer(reply))
    words, characters = [place[0].casefold() for place in places], list(reply)
    for text, length in [(template(prompt), run), *((text, RUN) for text in given)]:
        source = [word.casefold() for word in _WORD.findall(text)]
        runs = {tuple(source[at : at + length]) for at in range(len(source) - length + 1)}
        for at in range(len(words) - length + 1):
            if tuple(words[at : at + length]) in runs:
                start, end = places[at].start(), places[at + length - 1].end()
                characters[start:end] = BLANK * (end - start)
    return "".join(characters)
