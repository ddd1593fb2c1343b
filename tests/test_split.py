"""The fixed split: one held-out set for all seeds, of the size that the paper's numbers have."""

import hashlib
import json
import re
from collections import Counter

import made_longmemeval
import numpy as np
import pytest
from faults import real_file
from hypothesis import given
from hypothesis import strategies as st

from earlib import paper
from earlib.data import download, locomo, longmemeval
from earlib.experiments import comparisons, runs, settings
from earlib.experiments.settings import Setting

SIZE = made_longmemeval.Size(sessions=2000, turns=12_000, appearances=2200)  # all 500 questions, with little to read


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A function that makes a file the published one of its name; what was loaded before is forgotten."""

    def publish(path):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        monkeypatch.setitem(download.FILES, path.name, download.File("", content, "MIT"))
        monkeypatch.setenv("EARLIB_DATA", str(path.parent))
        settings.benchmark.cache_clear()

    yield publish
    settings.benchmark.cache_clear()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for role in made_longmemeval.LENGTHS:
            patch.setitem(made_longmemeval.LENGTHS, role, (20,) * len(made_longmemeval.LEVELS))
        return made_longmemeval.write(tmp_path_factory.mktemp("data") / longmemeval.FILE, SIZE)


def split_of(dataset, seed=0, **more):
    setting = Setting(dataset=dataset, split="fixed", **more)
    asked = settings.benchmark(dataset).asked
    return asked, *settings.split([query.scope for query in asked], setting, seed)


def assert_held_out(dataset):
    """Seeds share the evaluation questions in their order, and differ in the order of all others, which train."""
    asked, train, evaluation = split_of(dataset)
    for seed in (1, 2, 50):
        _, other, same = split_of(dataset, seed)
        assert np.array_equal(same, evaluation)
        assert not np.array_equal(other, train) and sorted(other) == sorted(train)
    assert sorted([*train, *evaluation]) == list(range(len(asked)))
    return [asked[number] for number in evaluation]


def test_on_locomo_the_numbers_by_type_are_those_of_table_5():
    real_file(locomo.FILE)
    held = assert_held_out("locomo")
    by_type = {"single-hop": 173, "multi-hop": 53, "temporal": 64, "open-domain": 18}
    assert Counter(query.category for query in held if query.gold) == by_type
    total, learned = (paper.value("datasets", dataset="locomo", metric=one) for one in ("queries", "training_queries"))
    assert len(held) == 308 == total - learned
    assert len({query.scope for query in held[:60]}) == 10  # a language model is asked about the first ones alone


def test_on_longmemeval_93_of_100_questions_count(made, published):
    published(made)
    held = assert_held_out("longmemeval")
    assert len(held) == 100 and sum(bool(query.gold) for query in held) == 93
    assert all(query.id.endswith(longmemeval.ABSTENTION) != bool(query.gold) for query in held)
    assert {query.category for query in held} == set(longmemeval.CATEGORIES)


@given(seed=st.integers(0, 2**31), used=st.none() | st.integers(1, 60), epochs=st.integers(1, 3))
def test_of_another_dataset_it_is_a_fifth(seed, used, epochs):
    asked, train, evaluation = split_of("toy", seed, train_queries=used, epochs=epochs)
    every = split_of("toy", seed)[1]
    assert len(evaluation) == len(asked) - int(0.8 * len(asked)) and not set(train) & set(evaluation)
    assert np.array_equal(evaluation, split_of("toy", 0)[2])
    assert np.array_equal(train[: len(train) // epochs], every[:used]) and len(train) == epochs * len(every[:used])
    _, learned, kept = split_of("toy", seed, validate_on_training=True)
    assert np.array_equal([*learned, *kept], every)


def test_runs_of_all_seeds_evaluate_the_same_questions():
    setting = Setting(dataset="toy", seeds=2, train_queries=24, split="fixed")
    (row, *_) = comparisons.compare(setting, ["ear_adapter"], "retriever")
    _, queries, _ = runs.answers(setting, "ear_adapter")
    assert np.array_equal(queries[0], queries[1]) and np.array_equal(queries[0], split_of("toy")[2])
    assert row["split"] == "fixed" and row["seeds"] == 2
    (reading,) = (one for one in comparisons.READINGS if one.setting == {"split": "fixed"})
    (there,) = comparisons.under(setting.model_copy(update={"split": "random"}), reading, ["ear_adapter"])
    assert there["measured"] == row["measured"]


@pytest.fixture
def altered(tmp_path, published):
    """A function that publishes another LoCoMo: the conversations that it makes of the published ones."""

    def alter(change):
        path = tmp_path / locomo.FILE
        path.write_text(json.dumps(change(json.loads(real_file(locomo.FILE).read_text(encoding="utf-8")))))
        published(path)

    return alter


def each(conversations, change):
    """The conversations with the questions of each changed."""
    return [one | {"qa": change(one["qa"])} for one in conversations]


@pytest.mark.parametrize(
    ("change", "few"),
    [
        (lambda every: every[:1], r"\d+ question.* 'single-hop', expected at least 173"),
        (
            lambda every: each(every, lambda asked: [one for one in asked if one["category"] != 3]),
            "0 question.* 'open-domain', expected at least 18",
        ),
    ],
)
def test_a_dataset_without_enough_questions_of_a_type_is_named(altered, change, few):
    altered(change)
    with pytest.raises(ValueError, match=f"split fixed: locomo has {few}"):
        split_of("locomo")


def test_a_dataset_without_gold_is_named(altered):
    altered(lambda every: each(every, lambda asked: [one | {"evidence": []} for one in asked]))
    expected = r"split fixed: none of the \d+ questions of locomo has a gold turn"
    with pytest.raises(ValueError, match=expected):
        split_of("locomo")
    rows = comparisons.compare(Setting(dataset="locomo", split="fixed"), ["ear_adapter"], "retriever")
    assert len(rows) == 3 and all(row["measured"] is None and re.match(expected, row["reason"]) for row in rows)
