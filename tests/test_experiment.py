"""Runs: splits, the cache, and what variants share. On the package's own dialogues, with the real encoder."""

import dataclasses
import itertools
import shutil
from typing import get_args

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from earlib import paths
from earlib.core.config import VARIANTS, Config
from earlib.data import cache
from earlib.data import candidates as first_stage
from earlib.experiments import comparisons, intervals, measures, runs, settings
from earlib.experiments.comparisons import READINGS
from earlib.experiments.settings import Setting

SCOPES = [f"c{i % 5}" for i in range(83)]
SMALL = {"dataset": "toy", "seeds": 2, "train_queries": 24}


def test_the_random_split_is_the_stated_one():
    train, evaluation = settings.split(SCOPES, Setting(), 3)
    order = np.random.default_rng(3).permutation(83)
    assert np.array_equal(train, order[:66]) and np.array_equal(evaluation, order[66:])


def test_epochs_repeat_the_training_questions_in_a_new_order():
    once, passes = (settings.split(SCOPES, Setting(epochs=n, train_queries=20), 0)[0].reshape(n, 20) for n in (1, 3))
    assert np.array_equal(passes[:1], once) and not np.array_equal(passes[0], passes[1])
    assert (np.sort(passes) == np.sort(once)).all()


@pytest.mark.parametrize("seed", range(5))
def test_choices_are_made_on_training_questions_alone(seed):
    train, evaluation = settings.split(SCOPES, Setting(), seed)
    learned, kept = settings.split(SCOPES, Setting(validate_on_training=True), seed)
    assert np.array_equal([*learned, *kept], train)
    assert len(kept) == pytest.approx(len(train) / 5, abs=1) and not set(kept) & set(evaluation)


@pytest.mark.parametrize("seed", range(5))
def test_splits_by_conversation_share_none(seed):
    """The part kept for choices is like the evaluation: whole conversations, of which nothing was seen."""
    train, evaluation = settings.split(SCOPES, Setting(split="conversation"), seed)
    learned, kept = settings.split(SCOPES, Setting(split="conversation", validate_on_training=True), seed)
    parts = [{SCOPES[i] for i in part} for part in (learned, kept, evaluation)]
    assert [len(part) for part in parts[1:]] == [1, 1] and sorted([*train, *evaluation]) == list(range(83))
    assert sum(map(len, parts)) == len(set(SCOPES)) == len(set.union(*parts))
    assert [i for i in train if i in set(learned)] == list(learned) and sorted([*learned, *kept]) == sorted(train)


@pytest.mark.parametrize(("split", "few"), [("conversation", ["a", "b"]), ("random", ["a"])])
def test_too_few_conversations_or_questions_are_told(split, few):
    with pytest.raises(ValueError, match=rf"{len(few)} question.* of {len(few)} conversation.* leave none"):
        settings.split(few, Setting(split=split, validate_on_training=True), 0)


@pytest.mark.parametrize("name", ["retriever", "ear_adapter", "ear", "explorer_test", "equal_calls_2"])
def test_answers_hold_the_slates_that_were_measured(name):
    setting = Setting(**SMALL, split="conversation")
    values, queries, slates = runs.answers(setting, name)
    found = settings.candidates_of(Setting(dataset="toy"), 20)
    asked = queries >= 0
    again = measures.measure(found, torch.from_numpy(queries), torch.from_numpy(slates).long().clamp(min=0))
    np.testing.assert_array_equal(again[:, asked], values[:, asked])
    assert (slates[~asked] == -1).all()


def test_bm25_ranks_by_words():
    """Asked in the very words of a gold turn, it puts a gold turn of the question's own conversation first."""
    benchmark, found = settings.benchmark("toy"), settings.candidates_of(Setting(dataset="toy"), 20)
    texts = {memory.id: memory.text for memory in benchmark.memories}
    asked = [query._replace(text=texts[query.gold[0]]) for query in benchmark.asked if query.gold]
    ranked = first_stage.by_words(dataclasses.replace(benchmark, queries=tuple(asked)), found, 5)
    assert ranked.gold[:, 0].double().mean() > 0.95  # turns may say the same
    scopes = {memory.id: memory.scope for memory in benchmark.memories}
    first = [scopes[ranked.memory_ids[row]] for row in ranked.index[:, 0]]
    assert first == [query.scope for query in asked]


def test_a_reading_changes_those_whom_it_concerns():
    setting = Setting(**SMALL)
    by = {reading.choice: reading for reading in READINGS}
    rmm, adapter = (runs.answers(setting, name) for name in ("rmm", "ear_adapter"))

    def under(choice, name, **baseline):
        (row,) = comparisons.under(setting, by[choice], [name], **baseline)
        return row

    def mean(values, queries=rmm.queries):
        return intervals.summary(values, queries)["measured"]

    for name, found in (("rmm", rmm), ("ear_adapter", adapter)):
        row = under(READINGS[0].choice, name)
        assert row["measured"] == mean(found.values[0]) and "difference" not in row
    row, noisy = (
        under("with Gumbel noise", "ear_adapter", baseline="rmm"),
        runs.answers(setting, "rmm", test_noise=True),
    )
    assert row["measured"] == mean(adapter.values[0])
    assert row["difference"] == pytest.approx(mean(adapter.values[0] - noisy.values[0]))
    values, queries, _ = runs.answers(setting, "equal_calls_2", errors="persistent")
    assert under("once per query and memory", "equal_calls_2")["measured"] == mean(values[0], queries)
    row = under("by conversation", "rmm")
    assert row["split"] == "conversation" and "difference" not in row  # other questions
    hit, pair = under("any gold turn is enough", "rmm"), under("any gold turn is enough", "ear_adapter", baseline="rmm")
    assert hit["metric"] == "hitrate@5" and hit["measured"] == mean(rmm.values[1])
    assert hit["difference"] == pytest.approx(mean(rmm.values[1] - rmm.values[0]))
    assert pair["difference"] == pytest.approx(mean(adapter.values[1] - rmm.values[1]))


def test_readings_are_found_by_the_question_they_answer():
    default, some = comparisons.readings(["replay slate"])
    assert default is READINGS[0] and [one.choice for one in some] == ["z / tau + g", "from softmax((z + g) / tau)"]
    assert comparisons.readings(["all"])[1] == list(READINGS[1:])
    with pytest.raises(ValueError, match="unknown 'replay slat', did you mean 'replay slate'"):
        comparisons.readings(["replay slat"])


def test_a_reading_leaves_those_alone_whom_it_does_not_concern():
    """Systems that are not named would be shown as unmoved by it."""
    setting, systems = Setting(**SMALL), ("rmm", "explorer_training", "buffer_training", "explorer_test", "ear_adapter")
    apart = ("over T rounds", "with Gumbel noise", "as RMM prints it")  # the last two are the baseline's by definition
    readings = [one for one in READINGS[1:] if not one.rates and not one.setting and one.choice not in apart]
    for reading, name in itertools.product(readings, systems):
        if name not in reading.concerns:
            found, usual = (runs.answers(setting, name, **changes) for changes in (reading.changes, {}))
            assert equal(found, usual), (reading.choice, name)


def test_every_option_with_another_reading_is_among_the_readings():
    """A choice of `Config` that no reading shows would be missing from the sensitivity notebook."""
    shown = {(name, value) for reading in READINGS for name, value in reading.changes.items()}
    controls = {"training_slates", "replay_choice"}  # Tables 3 and 7, and the controls
    controls |= {"adapter", "objective"}  # the extensions: no readings of the paper
    for name, field in Config.model_fields.items():
        for value in get_args(field.annotation) if name not in controls else ():
            if isinstance(value, str) and value not in (field.default, "shuffled"):
                assert (name, value) in shown, (name, value)
    assert {reading.measure for reading in READINGS} == set(measures.MEASURES)
    for reading in READINGS:
        assert set(reading.concerns) <= set(VARIANTS)
        Config(**reading.changes), Setting(**reading.setting)


def test_shared_gold_is_found_turn_by_turn():
    setting = Setting(**SMALL)
    shares, asked = settings.shares_gold(setting), settings.benchmark("toy").asked
    for seed in range(2):
        train, evaluation = settings.split([query.scope for query in asked], setting, seed)
        assert all(shares[seed, number] for number in train if asked[number].gold)
        for number in evaluation[:20]:
            assert shares[seed, number] == any(
                turn in asked[other].gold for other in train for turn in asked[number].gold
            )


def test_trained_weights_are_those_of_the_run():
    setting, config = Setting(**SMALL, split="conversation"), Config()
    weights = runs.trained_weights(setting, config)
    assert weights.shape == (2, 2, 384, 384)
    found = settings.candidates_of(Setting(dataset="toy"), 20)
    _, queries, slates = runs.answers(setting, "ear_adapter")
    for seed in range(2):
        asked = queries[seed][queries[seed] >= 0]
        q = found.query[asked] @ (torch.eye(384) + weights[0, seed]).T
        m = found.bank[found.index[asked]] @ (torch.eye(384) + weights[1, seed]).T
        scores = torch.einsum("ed,ekd->ek", q, torch.nn.functional.normalize(m, dim=-1))
        first = scores.argmax(-1).numpy()
        assert (first == slates[seed, : len(asked), 0]).mean() > 0.99  # a tie may be rounded the other way
    assert torch.equal(runs.trained_weights(setting, config), weights)
    key = runs._key(setting, config, found)
    assert torch.equal(torch.from_numpy(cache.load("adapters", key)["weights"]), weights)


@pytest.fixture(scope="module")
def kept():
    """A run, its job, and the file that holds it."""
    result, job = runs.run(Setting(**SMALL), Config()), runs.job(Setting(**SMALL), Config())
    return result, job, paths.cache() / "runs" / f"{job.key}.safetensors"


def equal(one, other):
    return all(np.array_equal(*parts, equal_nan=True) for parts in zip(one, other, strict=True))


def test_a_run_is_the_same_from_the_cache_and_computed_again(kept):
    result, job, path = kept
    served = runs.cached(job)
    assert [part.dtype for part in served] == [part.dtype for part in result] and equal(served, result)
    path.unlink()
    assert equal(runs.run(Setting(**SMALL), Config()), result) and path.exists()


@pytest.mark.parametrize(
    ("file", "old", "new", "stale"),
    [
        ("core/objective.py", "(citations - baseline)", "(citations + baseline)", True),
        ("core/explorer.py", "0.0", "0.0", False),
        ("core/objective.py", '"""Mean of', '"""The mean of', False),  # a docstring
        ("core/config.py", "# K: candidates", "# K candidates", False),  # a description
    ],
)
def test_a_changed_algorithm_never_serves_old_runs_and_a_changed_text_does(tmp_path, file, old, new, stale):
    shutil.copytree(runs.PACKAGE, tmp_path / "earlib", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    before = runs.algorithm(runs.PACKAGE)
    changed = tmp_path / "earlib" / file
    source = changed.read_text()
    assert old in source or old == new
    changed.write_text(source.replace(old, new) + "\n# a comment\n")
    assert (runs.algorithm(tmp_path / "earlib") != before) is stale


def test_a_configuration_is_part_of_a_key_by_its_values():
    assert len({runs.job(Setting(**SMALL), Config(ucb=ucb)).key for ucb in (Config().ucb, 0.5, 0.6)}) == 2


@pytest.mark.parametrize("split", ["random", "conversation"])
def test_a_seed_s_run_does_not_depend_on_the_others(split):
    alone, among = (runs.run(Setting(**SMALL | {"split": split, "seeds": n}), Config()) for n in (1, 3))
    width = alone.queries.shape[1]
    np.testing.assert_array_equal(alone.queries[0], among.queries[0, :width])
    np.testing.assert_allclose(alone.adapter[-1, :, 0], among.adapter[-1, :, 0, :width])
    np.testing.assert_allclose(alone.explorer[:, 0], among.explorer[:, 0, :width])


def test_no_variant_passes_the_ceiling():
    ceiling = runs.answers(Setting(**SMALL), "ceiling").values[0]
    for name, variant in VARIANTS.items():
        if variant.reranker != "monot5":  # its weights may not be at hand; tests/test_rerankers.py has a tiny one
            values = runs.answers(Setting(**SMALL), name).values[0]
            assert (values <= ceiling)[~np.isnan(values)].all(), name


def test_rows_compare_on_the_same_questions():
    rows = comparisons.compare(Setting(**SMALL), ["retriever", "ear", "equal_calls_3"], baseline="retriever")
    retriever, ear, control = (row for row in rows if row["metric"] == "recall@5")
    assert ear["difference"] == pytest.approx(ear["measured"] - retriever["measured"], abs=1e-6)
    assert ear["sees_gold"] and control["sees_gold"] and not retriever["sees_gold"]
    assert "difference" not in retriever


def test_varied_hyper_parameters_are_compared_with_the_usual_ones():
    usual = {"replay_size": 4}
    rows = comparisons.vary(Setting(**SMALL), "ear_adapter", [usual, {"replay_size": 0}, usual], usual)
    recall = [row for row in rows if row["metric"] == "recall@5"]
    assert [row["replay_size"] for row in recall] == [4, 0]
    assert "difference" not in recall[0]
    without = comparisons.compare(Setting(**SMALL), ["explorer_training"], baseline="ear_adapter")[0]
    assert (recall[1]["measured"], recall[1]["difference"]) == (without["measured"], without["difference"])


@pytest.mark.parametrize(("every", "points"), [(8, [0, 8, 16, 24]), (10, [0, 12, 20, 24])])
def test_a_curve_starts_at_the_retriever_and_ends_at_the_variant(every, points):
    """An odd distance between evaluations is kept as well as batches of four queries allow."""
    setting = Setting(**SMALL, evaluate_every=every)
    rows = comparisons.curve(setting, "ear_adapter")
    assert [row["training_queries"] for row in rows] == points and {row["metric"] for row in rows} == {"recall@5"}
    for name, row in (("ear_adapter", rows[-1]), ("retriever", rows[0])):
        values, queries, _ = runs.answers(setting, name)
        assert row["measured"] == intervals.summary(values[0], queries)["measured"]


@pytest.mark.parametrize("objective", ["reward", "softmax", "contrastive", "logistic", "plackett-luce"])
@pytest.mark.parametrize("rate", [1e8, 1e300])
def test_training_that_diverges_is_an_error_and_never_a_result(objective, rate):
    """Whatever the loss: a comparison with a score that is no number is False, and leaves a loss that is finite."""
    config = Config(normalise=False, optimizer="sgd", objective=objective, learning_rate=rate)
    with pytest.raises(FloatingPointError, match="the adapter diverged"):
        runs.run(Setting(**SMALL), config)


@pytest.mark.parametrize("changes", [{}, {"init": "normal"}, {"test_noise": True}])
def test_the_retriever_is_the_first_stage_under_every_option(changes):
    values, queries, _ = runs.answers(Setting(**SMALL), "retriever", **changes)
    found = settings.candidates_of(Setting(dataset="toy"), 20)
    expected = measures.measure(found, torch.from_numpy(queries), torch.arange(5).expand(*queries.shape, 5))
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("name", ["eer", "equal_cals_2", "equal_calls_", "ceilin"])
def test_an_unknown_variant_or_control_is_named(name):
    with pytest.raises(ValueError, match=f"unknown variant or control '{name}'"):
        comparisons.compare(Setting(**SMALL), [name], baseline="retriever")


def test_evaluating_on_the_way_changes_nothing():
    often, once = (runs.run(Setting(**SMALL, evaluate_every=every), Config()) for every in (8, None))
    np.testing.assert_array_equal(often.adapter[-1], once.adapter[-1])
    np.testing.assert_array_equal(often.explorer, once.explorer)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Config(roundz=3), "unknown parameter 'roundz', did you mean 'rounds'"),
        (lambda: Config(rounds=0), r"rounds\n.*greater than or equal to 1"),
        (lambda: Config(slate_size=21), r"slate_size \(s = 21\) exceeds depth \(K = 20\)"),
        (lambda: Config(likelihood="clear"), r"likelihood\n.*'clean', 'noisy' or 'plackett-luce'"),
        (lambda: Config(rounds=True), r"rounds\n.*valid integer"),
        (lambda: Config(learning_rate=float("inf")), r"learning_rate\n.*finite number"),
        (lambda: Setting(encodr="minilm"), "unknown parameter 'encodr', did you mean 'encoder'"),
    ],
)
def test_a_bad_parameter_is_named(build, message):
    with pytest.raises(ValidationError, match=message):
        build()


def test_hyper_parameters_go_in_pairs():
    pairs = [{"precision": 88, "recall": 86}, {"precision": 70, "recall": 86}]
    assert comparisons.paired(precision=[88, 70], recall=[86]) == pairs
    with pytest.raises(ValueError, match="precision has 2, recall has 3"):
        comparisons.paired(precision=[1, 2], recall=[1, 2, 3])
