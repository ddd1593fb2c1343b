"""Scores compared with counts by hand and with exhaustive search, and judges without discernment."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earlib.data import benchmarks
from earlib.llm import grading


@pytest.mark.parametrize(("text", "normal"), [
    ("The Cat's  hat!", "cats hat"),
    ("a an the", ""),
    ("An apple, a day; the rest.", "apple day rest"),
    ("7 May, 2023", "7 may 2023"),
    ("well-known", "wellknown"),
    ("Theatre and answer", "theatre and answer"),
    ("", ""),
    ("?!", ""),
    ("  \n\t ", ""),
    ("caf\u00e9 \u2013 bar", "caf\u00e9 \u2013 bar"),  # only ASCII punctuation goes, as in SQuAD
])  # fmt: skip
def test_normalisation(text, normal):
    assert grading.normalise(text) == normal


@pytest.mark.parametrize(("answer", "gold", "expected"), [
    ("7 May 2023", "7 May 2023", 1),
    ("On 7 May, 2023.", "7 May 2023", 6 / 7),
    ("May 2023", "7 May 2023", 4 / 5),
    ("the cat", "a cat!", 1),
    ("cat cat", "cat", 2 / 3),
    ("cat cat", "cat cat dog", 4 / 5),
    ("cat", "dog", 0),
    ("", "", 1),
    ("The", "a.", 1),
    ("", "dog", 0),
    ("dog", "", 0),
    ("Insufficient information.", "dog", 0),
    ("pottery, camping", "camping, pottery", 1),
    ("dogs", "dog", 0),  # no stems
    ("salt pepper", "salt and pepper", 4 / 5),  # "and" is a word
])  # fmt: skip
def test_token_f1(answer, gold, expected):
    assert grading.f1([answer], [gold]) == pytest.approx([expected])


def test_f1_keeps_the_shape_and_leaves_out_what_is_unparsed():
    found = grading.f1([["cat", None, "dog"], [None, "a cat", ""]], ["cat", "cat", "cat"])
    np.testing.assert_array_equal(found, [[1, np.nan, 0], [np.nan, 1, 0]])
    assert grading.f1([], []).shape == (0,)


WORDS = st.lists(st.sampled_from(["cat", "dog", "the", "May", "7", "May,", "!"]), max_size=6).map(" ".join)


@given(WORDS, WORDS)
def test_f1_is_symmetric_between_0_and_1_and_the_harmonic_mean(answer, gold):
    (found,) = grading.f1([answer], [gold])
    assert found == grading.f1([gold], [answer])[0] and 0 <= found <= 1
    assert grading.f1([answer], [answer]) == [1]
    said, right = grading.normalise(answer).split(), grading.normalise(gold).split()
    same = (Counter(said) & Counter(right)).total()
    if same:
        precision, recall = same / len(said), same / len(right)
        assert found == pytest.approx(2 * precision * recall / (precision + recall))


def test_verdicts_that_cannot_be_read_are_no_no():
    values = grading.judged([[True, False, None], [None, True, True]])
    np.testing.assert_array_equal(values, [[1, 0, np.nan], [np.nan, 1, 1]])


@given(st.lists(WORDS, min_size=1, max_size=12))
def test_the_constant_answer_is_the_best_on_the_training_questions(golds):
    if not any(map(grading.normalise, golds)):
        with pytest.raises(ValueError, match="none of these has a word"):
            grading.constant_answer(golds)
        return
    counted = [gold for gold in golds if grading.normalise(gold)]
    reached = [round(float(grading.f1([gold] * len(counted), counted).sum()), 9) for gold in counted]
    assert grading.constant_answer(golds) == counted[reached.index(max(reached))]


def test_flips():
    found = grading.flips([True, True, False, None, None], [True, False, False, True, None])
    np.testing.assert_array_equal(found, [0, 1, 0, np.nan, np.nan])


GOLDS = ["7 May 2023", "the summer of 2022", "in June 2023", "red", "Red.", "a blue car", "yes"]
TYPES = ["temporal"] * 3 + ["single-hop"] * 3 + ["open-domain"]


def test_planted_answers_are_what_they_say():
    made = grading.planted_answers(GOLDS, TYPES, np.random.default_rng(0))
    assert made == grading.planted_answers(GOLDS, TYPES, np.random.default_rng(0))
    kinds = {at: [one.kind for one in made if one.question == at] for at in range(len(GOLDS))}
    assert kinds[6] == ["gold", "reworded"]  # no other question of its type
    assert kinds[0] == kinds[3] == ["gold", "reworded", "other"]
    for one in made:
        gold = GOLDS[one.question]
        assert one.right == (one.kind != "other")
        if one.kind == "other":
            assert one.candidate in GOLDS and TYPES[GOLDS.index(one.candidate)] == TYPES[one.question]
            assert grading.f1([one.candidate], [gold]) == 0
        else:
            assert gold.rstrip(".") in one.candidate
    (wrong,) = (one.candidate for one in made if one.question == 0 and one.kind == "other")
    assert wrong == "the summer of 2022"  # "in June 2023" shares a word
    drawn = {grading.planted_answers(GOLDS, TYPES, np.random.default_rng(seed))[-3].candidate for seed in range(9)}
    assert drawn == {"red", "Red."}


def test_adversarial_questions_have_no_planted_answers():
    with pytest.raises(ValueError, match="adversarial questions have no gold answer; take Benchmark.asked"):
        grading.planted_answers(["", "red"], [benchmarks.ADVERSARIAL, "single-hop"], np.random.default_rng(0))
