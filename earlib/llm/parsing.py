"""Reading of replies: the final answer, the verdict of a judge, the citations of a critic.

A reply counts only by what the model itself states in the form that the prompt asks for. A reply that cannot be read is
unparsed (None), to be counted and shown, never a No and never "nothing cited". Before anything is read:

1. Thoughts between `<think>` and `</think>` are removed; a reply that ends inside them is empty.
2. Echoes are blanked. An echo is a run of four or more words that occurs in this order in a text that the model was
   given (case and punctuation aside), or the whole of a shorter text. `given` holds these texts: the question, the gold
   answer and the candidate of a judge, the question and the memories of a critic; the prompts are known. A text of one
   word, with or without labels (`Yes`, `Output: Yes`, `[NO_CITE]`), cannot be told from the model's own words and is no
   echo; its position decides then.
3. In verdicts and citations, quotations (in quotation marks, on one line) are blanked, except a bare statement in the
   position of one: `Output: "Yes"`.

Repeated statements must agree; otherwise the reply is unparsed. So it is where it was `cut` at its maximum length and
nothing follows the statement, whose end might be missing.
"""

import re
from itertools import dropwhile, takewhile
from typing import NamedTuple

from earlib.llm.prompts import template

RUN = 4  # words; shorter runs agree by chance
EXAMPLE_RUN = 15  # of the citations prompt: one more than "Output: Answer: I don't have ... Citations: [NO_CITE]"
BLANK = "\u25ae"  # replaces a blanked part: neither a word nor punctuation that may follow a verdict

_WORD = re.compile(r"[^\W_]+")
_LABELS = {"output", "answer", "verdict", "evaluation", "judgment", "judgement", "decision", "conclusion", "final"}
_LABELS |= {"citation", "citations", "cited"}


class Citations(NamedTuple):
    """Citations of a critic's reply."""

    indices: tuple | None  # positions in the slate, ascending, each once; () if none is useful; None if unparsed
    reason: str = ""  # why it is unparsed


_FINAL = re.compile(r"(?im)^[^\w\n]*(?:final[^\S\n]+)?answer[*_]*[^\S\n]*:[*_]*")
_MADE_UP = re.compile(r"(?im)^[^\w\n]*question[*_]*[^\S\n]*:")


def read_answer(reply, given=(), cut=False):
    """Final answer of a reply to the answer prompt; None if there is none.

    It is the first paragraph after the last label `Answer:` at the start of a line (bold or not, `Final Answer:` too),
    up to a label `Citations:`; text after a label `Question:` is a further question that the model invented. A reply
    without a label `Answer:` is the answer. A label inside an echo does not count, and `<final answer>` is the prompt's
    own. Quotations in the answer remain.
    """
    reply = _spoken(reply)
    echoes = _echoes(reply, given, "answer", RUN)
    labels = [
        label
        for label in _FINAL.finditer(reply)
        if not any(start < label.end() and label.start() < end for start, end in echoes)
        and not re.match(r"\s*<final answer>", reply[label.end() :], re.IGNORECASE)
    ]
    if labels:
        end = _MADE_UP.search(reply, labels[0].end())
        reply = reply[: end.start()] if end else reply
        last = max(label.end() for label in labels if label.end() <= len(reply))
        parts = re.split(r"(?im)\n\s*\n|^[^\w\n]*citations?\b[*_]*\s*:", reply[last:].strip(), maxsplit=1)
        reply, cut = parts[0], cut and not end and len(parts) == 1
    return None if cut else reply.strip(" \t\r\n*`_") or None


# A verdict word as a statement: at the end, or before punctuation or a reason. Not "No details are missing", "Yes/No",
# "Yes or no", "Yes, no", "No. 5", "No-one".
_SAYS = (
    r"(?P<said>yes|no)\b(?!-\w|\.\s*\d)(?=\s*(?:$|[^\w\s/|&" + BLANK + r"]|(?:because|since)\b))"
    r"(?![^\w.!?]*(?:(?:or|and)\b[^\w.!?]*)?(?:yes|no)\b)"
)
_LABEL = r"(?:(?:so|thus|hence|therefore|the|my|final|correct)\b,?\s+)*"
_OUTPUT = r"(?:output|verdict|evaluation|assessment|judge?ment|decision|conclusion|result)"
_IS = r"\s*(?:[:=]|\b(?:is|would be|should be)\b)"
_ANSWER = r"(?:(?:my|final)\s+)*(?:answer|final)"
_LABELLED = re.compile(rf"[^\w{BLANK}]*(?:(?:{_LABEL}{_OUTPUT}{_IS}|{_ANSWER}\s*:)[^\w{BLANK}]*)+{_SAYS}", re.I)
_LABEL_ALONE = re.compile(rf"(?im)^([^\w\n]*(?:{_LABEL}{_OUTPUT}|{_ANSWER})[^\S\n]*:)\s*\n\s*")
_OPENING = re.compile(_SAYS, re.I)
_ALONE = re.compile(r"[(\[{]*(?P<said>yes|no)[\W_]*$", re.I)
# Before a single word, a question that the model asked itself or another heading: then it is no verdict.
_LEADS_ELSEWHERE = re.compile(rf"[^{BLANK}\s]\s*\?$|^(?!.*\b{_OUTPUT}\b).*:$", re.I)
# The prompt's fields with their content, on the same line or on the next that is not empty.
_FIELDS = (
    r"question|response|candidate|ground[- ]truth|(?:ground[- ]truth|gold|correct|expected|reference|candidate|given|"
    r"generated|model(?:'s|-generated)?)\s+(?:answer|response)"
)
_FIELD = rf"(?im)^[^\w\n]*(?:{_FIELDS}{{}})[^\S\n]*:\s*.*"


def read_verdict(reply, given=(), cut=False):
    """Verdict of a reply to the judge prompt: True, False, or None if it states none or both.

    The following forms are read, in either case and with or without bold, bullets and code marks:

    a. a labelled verdict at the start of a line or a sentence, `Output: Yes`; also Verdict, Evaluation, Assessment,
       Judgment, Decision, Conclusion, Result (with `:` or "is"), `Answer:` and `Final:`;
    b. a line of one word, `No.`;
    c. the word that opens the reply before punctuation, "No, it was yesterday";
    d. a last sentence of one word.

    b and d do not count where they answer a question that the model asked itself ("Does it omit anything? No."), or
    follow another heading ("The candidate says:"). The prompt's own fields (`Question:`, `Ground-truth Answer:`,
    `Response:`) are left out with their content, and beside them `Answer:` too. All verdicts found must agree.
    "Correct" and "true" are no verdicts: the prompt asks for Yes or No.
    """
    own = _own(reply, given, "judge", RUN) + "x" * cut  # a last word that may go on is no verdict
    own = _plain(own, r"\W*(?:yes|no)\W*", r"(?:\A|[:=])\s*")
    own = re.sub(r"(?i)\A\s*[\"'\u201c](\W*(?:yes|no)\W*)\Z", r"\1", own)
    if re.search(_FIELD.format(""), own):
        own = re.sub(_FIELD.format("|answer"), BLANK, own)
    own = _LABEL_ALONE.sub(r"\1 ", own)
    lines = [line.strip(" \t\r>|#\u2022-") for line in own.split("\n")]
    said = {found["said"].casefold() for found in _verdicts([line for line in lines if line])}
    return said == {"yes"} if len(said) == 1 else None


def _verdicts(lines):
    """Every verdict that the lines of a reply state."""
    opening = next((number for number, line in enumerate(lines) if _WORD.search(line)), None)
    before = ""
    for number, line in enumerate(lines):
        sentences = re.split(r"(?<=[.!?])\s+", line)
        found = [_OPENING.match(line)] if number == opening else []
        for at, sentence in enumerate(sentences):
            found.append(_LABELLED.match(sentence))
            last = number == len(lines) - 1 and at == len(sentences) - 1
            if (last or len(sentences) == 1) and not _LEADS_ELSEWHERE.search(before):
                found.append(_ALONE.match(sentence))
            before = sentence
        yield from filter(None, found)


_GROUP = re.compile(r"\[([^\[\]]*)\]")
_NO_CITE = re.compile(r"\bno[ _-]*cite(?:s|d|ations?)?\b", re.I)
_NONE = re.compile(r"(?i)^[\[(\s]*(?:none|n/a)\b")
_STATED = re.compile(r"(?i)\bcit(?:ations?|ed)\b(?:\(s\)|\s+memor(?:y|ies))?[^\S\n]*:")


def read_citations(reply, size, given=(), cut=False):
    """Citations of a reply to the citations prompt, for a slate of `size` memories.

    The stated line decides: the text after `Citations:` on the same line or, if that is empty, on the next, with the
    lines directly below it that continue the list or begin with a bracket. There, lists in brackets count (`[0, 2]`,
    `[0][2]`, `[0] and [2]`, `[Memory 0]`), a bare list (`0, 2`), and as "none is useful" `[NO_CITE]`, `NO_CITE`,
    `None` and `[]`; any other bracket there makes the reply unparsed.

    A reply without that label is read by its brackets: every list of whole numbers is cited, `NO_CITE` cites none, and
    other brackets, years (1000 and above), headings (`Memory [0]:`, `[0]:`, a line `- Memory [0]`) and numbers without
    brackets ("Memory 2 says") are prose.

    A memory cited twice is cited once. An index beyond the slate makes the reply unparsed, since a model that counts
    from 1 would mean other memories by the rest too. So do citations beside `NO_CITE`, and stated lines that disagree.
    """
    own = _own(reply, given, "citations", EXAMPLE_RUN).translate({0x3010: "[", 0x3011: "]", ord("\\"): None})
    first, *stated = _STATED.split(_plain(own, r"\W*(?:[\d\s,]*|no_cite)\W*", r"cit\w+\s*:\s*"))
    if cut and not (stated and len(_list_of(stated[-1])[1]) > 1):  # a whole line is behind the list
        return Citations(None, "cut off")
    if not stated:
        return _checked(*_cited_in_prose(first), size)
    found = {_checked(*_cited_in_list(text), size) for text in stated}
    return found.pop() if len(found) == 1 else Citations(None, "stated lines disagree")


def _list_of(text):
    """Lines of the list after a label, and those that follow it."""
    first, *below = text.strip().split("\n")
    going_on = [first, *takewhile(lambda line: re.match(r"\W*\[", line) or _numbers(line), below)]
    return going_on, below[len(going_on) - 1 :]


def _cited_in_list(text):
    """Indices, whether none is stated to be useful, and the problem, after a label."""
    line = " ".join(_list_of(text)[0]).strip(" \t\r.\"'")
    if not re.search(r"\w|\[\s*\]", line):
        return [], False, "nothing behind the label"
    none = bool(_NO_CITE.search(line) or _NONE.match(line))
    line = _NONE.sub("", _NO_CITE.sub(" ", line))
    groups = _GROUP.findall(line)
    if none and not re.search(r"\d", line):
        return [], True, ""
    outside = _numbers(_GROUP.sub(" ", line).replace("[", " ").replace("]", " "))
    parts = [_numbers(group) for group in groups] if groups else [outside]
    if None in parts or (groups and outside):
        return [], none, "no list of indices behind the label"
    return sum(parts, []), none, ""


def _cited_in_prose(text):
    """Indices, whether none is stated to be useful, and the problem, in a reply without a label."""
    text = re.sub(r"(?im)\[[^\[\]]*\][^\S\n]*:|^[^\S\n]*-[^\S\n]*memory[^\S\n]*\[[^\[\]]*\][^\S\n]*$", BLANK, text)
    groups = _GROUP.findall(text)
    lists = [numbers for numbers in map(_numbers, groups) if numbers and min(numbers) < 1000]
    none = any(_NO_CITE.fullmatch(group.strip()) for group in groups) or bool(re.search(r"\bNO[_-]CITE\b", text))
    return sum(lists, []), none, "" if lists or none else "no citation in brackets"


def _checked(indices, none, problem, size):
    outside = [index for index in indices if not 0 <= index < size]
    if none and indices:
        problem = "citations beside NO_CITE"
    elif outside:
        problem = "an index that no memory has"
    return Citations(None, problem) if problem else Citations(tuple(sorted(set(indices))))


def _numbers(text):
    """The whole numbers of a list of them, [] for nothing, None for anything else."""
    text = re.sub(r"(?i)\b(?:memory|memories|and)\b|[#,;&()\u2022]|(?<=\d)\.(?!\d)|(?<!\S)-(?=\s)", " ", text)
    parts = text.split()
    return [int(part) for part in parts] if all(re.fullmatch(r"[+-]?[0-9]{1,9}", part) for part in parts) else None


def _spoken(reply):
    """A reply without the model's thoughts."""
    reply = re.sub(r"(?is)^.*</think(?:ing)?>", "", reply or "")
    return re.sub(r"(?is)<think(?:ing)?>.*$", "", reply)


def _own(reply, given, prompt, run):
    """A reply without thoughts and echoes."""
    reply = _spoken(reply)
    parts, end = [], 0
    for start, stop in _echoes(reply, given, prompt, run):
        parts += [reply[end:start], BLANK]
        end = stop
    return "".join([*parts, reply[end:]])


def _echoes(reply, given, prompt, run):
    """Start and end of every echo in a reply, in order."""
    if isinstance(given, str):
        raise TypeError("given: expected a sequence of texts, found one text; put it into a list")
    places = list(_WORD.finditer(reply))
    words = [place[0].casefold() for place in places]
    echoed = [False] * len(words)
    for text, length in [(template(prompt), run), *((text, RUN) for text in given)]:
        source = [word.casefold() for word in _WORD.findall(text)]
        stated = list(dropwhile(_LABELS.__contains__, source))
        if len(stated) < 2 or stated == ["no", "cite"]:
            continue
        length = min(length, len(source))
        runs = {tuple(source[at : at + length]) for at in range(len(source) - length + 1)}
        for at in range(len(words) - length + 1):
            if tuple(words[at : at + length]) in runs:
                echoed[at : at + length] = [True] * length
    found = []
    for at, place in enumerate(places):
        if echoed[at] and at and echoed[at - 1]:
            found[-1][1] = place.end()
        elif echoed[at]:
            found.append([place.start(), place.end()])
    return found


_QUOTATION = re.compile(r"\"[^\"\n]*\"|\u201c[^\u201d\n]*\u201d|(?<!\w)'(?:[^'\n]|(?<=\w)'(?=\w))*'(?!\w)")


def _plain(text, statement, place):
    """A text without bold, code and LaTeX marks, and without quotations other than bare statements in their place."""
    text = re.sub(r"[*`]+|(?<![^\W_])_+|_+(?![^\W_])", "", re.sub(r"(?m)^[^\S\n]*```\w*[^\S\n]*$", "", text))
    text = re.sub(r"\\(?:boxed|text)\{", "{", text)
    text = re.sub(r"[\"'](\w+)[\"']\s*:", r"\1:", text)  # a key of JSON

    def kept(found):
        bare = re.fullmatch(statement, found[0], re.I)
        return found[0] if bare and re.search(place + r"\Z", text[: found.start()][-20:], re.I) else BLANK

    return _QUOTATION.sub(kept, text)
