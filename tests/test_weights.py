"""The few learned weights: what they learn from, what bounds them, and when they are served."""

import numpy as np
import pytest
from made_memory import answers, encoder, made, preset, reopened, text, told

from earlib.memory import EARMemory, plain_features, state, weights
from earlib.memory.weights import fitted, newest

SHORT, LONG = "a river {}", "a river {} that was seen by many people who came from far away to see it"


def river(**options):
    """Short and long memories that are equally near; users like the long ones."""
    held = EARMemory(encoder, **options)
    held.add([form.format(f"number{number}") for number in range(40) for form in (SHORT, LONG)])
    return held


def liked(held, count, label=None, start=0, **options):
    """Feedback on the first five of some questions, whose long memories are useful, or by `label(place, is_long)`."""
    label = label or (lambda place, is_long: is_long)
    for number in range(start, start + count):
        query = f"which river is number{number % 40}?"
        shown = held.retrieve(query)
        held.feedback(query, shown, [label(*one) for one in enumerate(map(is_long, shown))], **options)


def is_long(found):
    return "people" in found.text


def share_of_long(held):
    found = [one for number in range(40) for one in held.retrieve(f"which river is number{number}?")]
    return np.mean([is_long(one) for one in found])


def u(held):
    return held._state.learner.u


def test_what_was_useful_is_learned_by_its_features_and_holds_for_new_questions():
    held = river()
    before = share_of_long(held)
    liked(held, 30)
    stats = held.stats()
    assert stats["served"] == "learned" and stats["right"]["learned"] > stats["right"]["at first"]
    assert stats["feedbacks"] == 30 and 0 < stats["tested"] <= 30 and stats["weights"][1] > 0
    assert share_of_long(held) > before + 0.2


def test_explicit_negatives_count_and_negatives_alone_change_something():
    said = {}
    for name, labels in {"named": [True, None, None], "others": [True, False, False], "none": [False] * 3}.items():
        held = river()
        start = u(held).copy()
        for number in range(51):
            query = f"which river is number{number % 40}?"
            held.feedback(query, [one.id for one in held.retrieve(query, 3)], labels)
        said[name] = u(held)
        assert not np.allclose(u(held), start)
    assert not np.allclose(said["named"], said["others"])


@pytest.mark.parametrize(
    "label",
    [
        lambda place, _: place == 0,  # always the first, whatever it is
        lambda place, _: place == 4,
    ],
)
def test_clicks_by_place_never_make_the_learned_ranking_harm_much(label):
    held = river()
    before = answers(held)
    liked(held, 60, label)
    if label(0, None):  # which the ranking at first has always right
        assert held.stats()["served"] == "at first" and answers(held) == before
    assert held.weight >= 0


def test_the_weight_of_words_stays_at_or_above_zero():
    held = EARMemory(encoder)
    held.add([text(number) for number in range(60)])
    for number in range(60):  # whatever shares a word is wrong
        query = text(number)
        shown = held.retrieve(query, 10)
        words = [bool(set(query.split()) & set(one.text.split())) for one in shown]
        held.feedback(query, shown, [not shares for shares in words])
        assert held.weight >= 0 and held.stats()["weights"][0] >= -1e-12


def test_one_memory_counts_in_its_newest_feedbacks_alone():
    few, many = river(), river()
    for held, count in ((few, weights.EACH), (many, 5 * weights.EACH)):
        for number in range(count):
            held.feedback(f"which river is number{number % 40}?", [79], [True])
    learner = many._state.learner
    assert (learner._pairs(learner.evidence)[2] > 0).sum() <= weights.EACH < learner.held
    assert abs(u(many) / u(many)[0] - u(few) / u(few)[0]).max() < 0.2


def test_one_source_counts_in_its_newest_feedbacks_alone():
    held = river()
    liked(held, 40)
    kept = share_of_long(held)
    liked(held, 150, lambda _, is_long: not is_long, source="an enemy")
    learner = held._state.learner
    counted = learner._pairs(learner.evidence)[2] > 0
    assert counted[learner.evidence.source > 0].sum() <= weights.EACH
    assert share_of_long(held) > kept - 0.2


def test_wrong_labels_at_random_leave_the_order_of_memories():
    """They lower the scale, which orders nothing: the weights are those of right labels, in proportion."""
    rng = np.random.default_rng(0)
    truth, gap = np.array([10.0, 2.0, 5.0]), rng.normal(size=(20000, 3)) / 5
    better = rng.random(20000) < 1 / (1 + np.exp(-gap @ truth))
    sign = np.where(better, 1, -1)
    noisy = np.where(rng.random(20000) < 0.3, -sign, sign)
    right, wrong = (fitted(np.array([20.0, 0, 0]), gap * one[:, None], np.ones(20000), 0.4) for one in (sign, noisy))
    assert wrong[0] < 0.5 * right[0] and right == pytest.approx(truth, rel=0.2)
    assert wrong / wrong[0] == pytest.approx(right / right[0], abs=0.1)


def test_newest_marks_the_last_of_each():
    assert newest(np.array([3, 5, 3, 3, 5, 0]), 2).tolist() == [False, True, True, True, True, True]


@pytest.mark.parametrize("name", ["best", "adapter"])
def test_learning_can_be_reset_and_brought_back(tmp_path, monkeypatch, name):
    monkeypatch.setattr(state, "SPARSE", 5)
    held = made(60, preset(name, depth=10))
    cold = answers(held)
    told(held, 12)
    held.save(tmp_path)
    held.keep_learning("good")
    good = answers(held)
    told(held, 12, start=30)
    later = answers(held)
    with pytest.raises(ValueError, match="name: 'bad': expected one of good"):
        held.restore_learning("bad")
    held.reset_learning()
    assert answers(held) == cold and held.stats()["feedbacks"] == 0 and held.stats()["snapshots"] == ["good"]
    held.restore_learning("good")
    assert answers(held) == good and held.stats()["feedbacks"] == 12
    told(held, 12, start=30)
    assert answers(held) == later
    with reopened(held, tmp_path) as again:  # from the changes, then from a snapshot
        again.remove(range(40, 60))
        again.save(tmp_path)
        again.restore_learning("good")
        with reopened(again, tmp_path) as last:
            told(last, 3, start=50)


def shouting(query, texts):
    return [[one.isupper()] for one in texts]


def test_features_may_be_ones_own(tmp_path):
    held = EARMemory(encoder, features=shouting)
    held.add([text(number).upper() if number % 2 else text(number) for number in range(60)])
    for number in range(60):
        shown = held.retrieve(f"song number{number % 5}")
        held.feedback(f"song number{number % 5}", shown, [one.text.isupper() for one in shown])
    assert len(held.stats()["weights"]) == 2 and held.stats()["weights"][1] > 0
    held.save(tmp_path)
    reopened(held, tmp_path, encoder, None, shouting).close()
    for other in (None, lambda query, texts: [[2.0]] * len(texts), lambda query, texts: [[0.0, 1.0]] * len(texts)):
        with pytest.raises(ValueError, match="features: expected those that .* was made with"):
            EARMemory.load(tmp_path, encoder, features=other)


def test_features_that_fail_later_change_nothing(tmp_path):
    held = EARMemory(encoder, features=lambda query, texts: [[1.0]] if len(texts) == 1 else [[1.0, 2.0]] * len(texts))
    held.add(["a", "b", "c"])
    held.save(tmp_path)
    with pytest.raises(ValueError, match=r"features: expected finite numbers \[3, 1\]"):
        held.feedback("a", [0, 1], [True, False])
    assert held.stats()["feedbacks"] == 0 and held._folder.changes == 0
    held.close()


def test_feedbacks_beyond_those_kept_leave(monkeypatch):
    monkeypatch.setattr(weights, "KEPT", 8)
    held = river()
    liked(held, 20)
    learner = held._state.learner
    assert learner.held == 8 and learner.known == 20 and learner.evidence.of.max() == 7
    held.remove([id for id in held.ids() if id % 2])
    assert np.isfinite(u(held)).all() and held.retrieve("river")
    held.feedback("river", held.ids()[:2], [True, False])


def test_plain_features_say_what_they_say():
    found = plain_features("When did Ada play?", ["Ada: last Friday at 7", "Ben: why?", ""])
    assert found[:, 1:].tolist() == [[0, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]] and found[2, 0] == 0
    assert plain_features("Who?", ["Ada: last Friday"])[0, -1] == 0 and plain_features("x", []).shape == (0, 5)
