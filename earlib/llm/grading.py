"""Scores of answers, and of judges that are language models.

Values are between 0 and 1 a question; a reply that could not be read is NaN, left out and counted, never scored.
Questions without gold turns count; adversarial ones do not.
"""

import string
from collections import Counter
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from earlib.data.benchmarks import ADVERSARIAL

REWORDED = "From the conversation, the answer is: {}."


class PlantedAnswer(NamedTuple):
    """An answer that is known to be right or wrong."""

    question: int  # its position in the list of questions
    kind: str  # "gold", "reworded" or "other"
    candidate: str
    right: bool


def normalise(text):
    """A text as SQuAD compares it: lower case, without ASCII punctuation, without a, an and the, single spaces."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(word for word in text.split() if word not in ("a", "an", "the"))


def f1(answers, golds):
    r"""Token F1 between answers and gold answers of any shape, as in SQuAD; NaN for an answer that is None.

    .. math:: F_1 = \frac{2 |A \cap G|}{|A| + |G|}

    A and G are the multisets of words of the normalised texts. Two texts without any word agree (1); one alone is wrong
    (0). LoCoMo's own script differs in four ways, not followed here, since the paper names only "F1-Score": it also
    drops "and", reduces words to their Porter stems, cuts open-domain gold answers at the first semicolon, and
    for multi-hop questions splits both texts at commas and averages, over the parts of the gold answer, the best F1 of
    a part of the answer. Its values are therefore higher on lists, and two empty texts score 0.
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
    """J of verdicts of any shape: 1 for Yes, 0 for No, NaN where the verdict is unparsed."""
    values = {True: 1.0, False: 0.0, None: np.nan}
    return np.vectorize(values.__getitem__, otypes=[float])(np.array(verdicts, dtype=object))


def constant_answer(golds):
    """The gold answer with the highest mean F1 against all gold answers: a floor for every answering model.

    `golds` are those of the training questions. Of equally good ones the first; ValueError if none has a word.
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
    """1 where the verdicts of two passes differ, 0 where they agree, NaN where either is unparsed."""
    return np.abs(judged(first) - judged(second))


def planted_answers(golds, categories, rng):
    """Right and wrong answers for testing a judge, in the order of the questions.

    Of each question: "gold", its gold answer; "reworded", the same in a sentence (`REWORDED`); and "other", the gold
    answer of another question of the same category, drawn among those that share no word with its own. A question
    without such a partner has no "other". ValueError for adversarial questions, which have no gold answer.
    """
    if ADVERSARIAL in categories:
        raise ValueError("adversarial questions have no gold answer; take Benchmark.asked, which leaves them out")
    words = [set(normalise(gold).split()) for gold in golds]
    made = []
    for at, (gold, category) in enumerate(zip(golds, categories, strict=True)):
        made.append(PlantedAnswer(at, "gold", gold, True))
        made.append(PlantedAnswer(at, "reworded", REWORDED.format(gold.rstrip(".")), True))
        of_type = [other for other, one in enumerate(categories) if one == category and words[other]]
        others = [golds[other] for other in of_type if words[at] and words[at].isdisjoint(words[other])]
        if others:
            made.append(PlantedAnswer(at, "other", others[rng.integers(len(others))], False))
    return made
