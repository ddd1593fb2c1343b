"""Measures of answers and of judges that are language models, each beside what a useless one would reach.

Values are kept a question, between 0 and 1, with NaN where a reply could not be read, so that `evaluate.summary` and
`experiment.rows` take them as they are: an unparsed reply is left out and counted, never scored. All questions that are
evaluated count here, those without gold turns too; the adversarial ones stay out, as everywhere.
"""

import string
from collections import Counter
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from earlib.data.benchmarks import ADVERSARIAL

REWORDED = "From the conversation, the answer is: {}."  # the rule by which a right answer is worded anew


class Planted(NamedTuple):
    """An answer of which it is known whether it is right."""

    question: int  # its place in the list of questions
    kind: str  # "gold", "reworded" or "other"
    candidate: str
    right: bool


def normalise(text):
    """A text as SQuAD compares it: lower case, without ASCII punctuation, without a, an and the, single spaces."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(word for word in text.split() if word not in ("a", "an", "the"))


def f1(answers, golds):
    r"""Token F1 between answers and gold answers, as question answering defines it (SQuAD).

    .. math:: F_1 = \frac{2 |A \cap G|}{|A| + |G|}

    A and G are the multisets of words of the normalised texts. Two texts without any word agree (1); one without is
    wrong (0).

    LoCoMo's own script differs in four ways, none of which is followed here, since the paper names only "F1-Score":
    it also drops "and", reduces words to their Porter stems, cuts open-domain gold answers at the first semicolon, and
    for multi-hop questions splits both texts at commas and averages, over the parts of the gold answer, the best F1
    that a part of the answer reaches. Its values are therefore higher on lists, and two empty texts score 0.

    Parameters
    ----------
    answers : array_like of str or None
        Final answers, of any shape, such as `[R, E]`; None where the reply is unparsed.
    golds : array_like of str
        Gold answers, of the same shape or one that is broadcast to it.

    Returns
    -------
    numpy.ndarray
        From 0 to 1; NaN where unparsed.
    """
    return np.vectorize(_f1, otypes=[float])(np.array(answers, dtype=object), np.array(golds, dtype=object))


def _f1(answer, gold):
    if answer is None:
        return np.nan
    said, right = (Counter(normalise(text).split()) for text in (answer, gold))
    if not said or not right:
        return float(said == right)
    return 2 * (said & right).total() / (said.total() + right.total())


def judged(verdicts):
    """J, question by question: 1 for Yes, 0 for No, NaN where the verdict is unparsed; of any shape."""
    values = {True: 1.0, False: 0.0, None: np.nan}
    return np.vectorize(values.__getitem__, otypes=[float])(np.array(verdicts, dtype=object))


def constant_answer(golds):
    """The one answer that would do best if it were given to every question: the floor under any answering model.

    Parameters
    ----------
    golds : sequence of str
        Gold answers of the training questions; the answer is chosen on these alone.

    Returns
    -------
    str
        The one among them with the highest mean F1 against all of them, as it is written first; of equally good ones
        the first.

    Raises
    ------
    ValueError
        If no gold answer has a word.
    """
    words = [Counter(normalise(gold).split()) for gold in golds]
    rows = [at for at, found in enumerate(words) for _ in range(found.total())]
    if not rows:
        raise ValueError("a constant answer is chosen among gold answers, and none of these has a word")
    # A column a word and its first, second, ... occurrence: their product is the size of the multisets' intersection.
    columns = [(word, time) for found in words for word, times in found.items() for time in range(times)]
    number = {column: at for at, column in enumerate(dict.fromkeys(columns))}
    which = [number[column] for column in columns]
    occurs = csr_matrix((np.ones(len(rows)), (rows, which)), shape=(len(words), len(number)))
    both = (occurs @ occurs.T).tocoo()
    length = occurs.sum(1).A1
    scores = np.bincount(both.row, 2 * both.data / (length[both.row] + length[both.col]), minlength=len(words))
    return golds[int(np.argmax(np.round(scores, 9)))]  # rounded: equal sums in another order are a tie


def flips(first, second):
    """Where two passes of a judge over the same answers disagree: its flip rate, question by question.

    Parameters
    ----------
    first, second : array_like of bool or None
        Verdicts.

    Returns
    -------
    numpy.ndarray
        1 where they differ, 0 where they agree, NaN where either is unparsed.
    """
    return np.abs(judged(first) - judged(second))


def planted(golds, categories, rng):
    """Right and wrong answers to try a judge on: who always says Yes is right on the first two kinds only.

    Of each question: "gold", its gold answer; "reworded", the same in a sentence (`REWORDED`); and "other", the gold
    answer of another question of the same category, drawn among those that share no word with its own, and wrong for
    that reason. A question without such a partner has no "other". Wrong answers of this kind are plain; a judge that
    passes them may still fail on subtle ones.

    Parameters
    ----------
    golds, categories : sequence of str
        Gold answer and category of each question.
    rng : numpy.random.Generator

    Returns
    -------
    list of Planted
        In the order of the questions.

    Raises
    ------
    ValueError
        If an adversarial question is among them: it has no gold answer.
    """
    if ADVERSARIAL in categories:
        raise ValueError("adversarial questions have no gold answer; take Benchmark.asked, which leaves them out")
    words = [set(normalise(gold).split()) for gold in golds]
    made = []
    for at, (gold, category) in enumerate(zip(golds, categories, strict=True)):
        made.append(Planted(at, "gold", gold, True))
        made.append(Planted(at, "reworded", REWORDED.format(gold.rstrip(".")), True))
        of_type = [other for other, one in enumerate(categories) if one == category and words[other]]
        others = [golds[other] for other in of_type if words[at] and words[at].isdisjoint(words[other])]
        if others:
            made.append(Planted(at, "other", others[rng.integers(len(others))], False))
    return made
