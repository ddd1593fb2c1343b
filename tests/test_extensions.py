"""Parts of the extensions beyond the paper: fused candidates, hyper-parameters of each seed, streams of questions."""

import json

import numpy as np
import pytest
import torch

from earlib import records
from earlib.core.config import ASSIMILATION, HYBRID, Config
from earlib.core.learner import Learner
from earlib.data import candidates
from earlib.experiments import comparisons, runs, settings
from earlib.experiments.settings import Setting
from earlib.extensions import drift
from earlib.harness import notebooks, profiles, readme

TOY = {"dataset": "toy", "seeds": 2}
CHOICES = [{"learning_rate": 1e-4}, {"learning_rate": 1e-3}]


def test_fused_candidates_are_those_of_a_plain_loop():
    benchmark, found = settings.benchmark("toy"), settings.candidates_of(settings.Setting(dataset="toy"), 20)
    fused = candidates.fused(benchmark, found, 20)
    words = list(candidates._scored_by_words(benchmark, "dialogue"))
    for number in range(0, len(found.query), 7):
        rows, scores = (part.tolist() for part in words[number])
        cosine = (found.bank[rows].double() @ found.query[number].double()).float().tolist()

        def place(values, row):
            ahead = [(value, -at) for at, value in enumerate(values)]
            return sum(one > ahead[row] for one in ahead) + 1  # noqa: B023

        points = [1 / (60 + place(cosine, at)) + (1 / (60 + place(scores, at)) if scores[at] > 0 else 0)
                  for at in range(len(rows))]  # fmt: skip
        expected = sorted(range(len(rows)), key=lambda at: (-points[at], at))[:20]  # noqa: B023
        assert fused.index[number].tolist() == [rows[at] for at in expected]
    assert torch.equal(fused.gold_count, found.gold_count) and fused.side is None
    gold = [{memory for memory, is_gold in zip(*pair, strict=True) if is_gold}
            for pair in zip(fused.index.tolist(), fused.gold.tolist(), strict=True)]  # fmt: skip
    turns = {turn: row for row, memory in enumerate(benchmark.memories) for turn in memory.turns
             if memory.store == "dialogue"}  # fmt: skip
    for query, found_gold, rows in zip(benchmark.asked, gold, fused.index.tolist(), strict=True):
        assert found_gold == {turns[turn] for turn in query.gold} & set(rows)


def test_a_hybrid_setting_has_fused_candidates_with_the_scores_of_words():
    setting = Setting(**TOY, first_stage="hybrid", reranker="bm25")
    found = settings.candidates_of(setting, 30)
    assert found.index.shape == found.side.shape == (len(found.query), 30)
    assert torch.equal(found.index, candidates.fused(settings.benchmark("toy"), found, 30).index)
    answers = runs.answers(setting, "ear_adapter", **ASSIMILATION, **HYBRID | {"depth": 30})
    assert np.nanmean(answers.values[0]) > np.nanmean(runs.answers(setting, "retriever").values[0])


def test_a_seed_runs_with_what_it_chose():
    setting = Setting(**TOY, split="conversation")  # seeds that evaluate different numbers of questions
    chosen = [CHOICES[1], CHOICES[0]]
    mixed = runs.answers(setting, "ear_adapter", chosen, **ASSIMILATION)
    for seed, choice in enumerate(chosen):
        alone = runs.answers(setting, "ear_adapter", **ASSIMILATION, **choice)
        held = mixed.queries[seed] >= 0
        assert np.array_equal(mixed.queries[seed, held], alone.queries[seed][alone.queries[seed] >= 0])
        assert np.array_equal(mixed.values[:, seed, held], alone.values[:, seed][:, alone.queries[seed] >= 0], True)
        assert np.array_equal(mixed.slates[seed, held], alone.slates[seed][alone.queries[seed] >= 0])


def test_a_curve_of_a_seed_is_that_of_what_it_chose():
    """Each seed follows its own choice, and the end of the curve is what `answers` returns."""
    setting, chosen = Setting(**TOY, evaluate_every=80), [CHOICES[1], CHOICES[0]]
    points = comparisons.curve(setting, "ear_adapter", chosen, **ASSIMILATION)
    alone = [runs.run(setting, Config(**ASSIMILATION, **choice)).adapter[:, 0, seed]
             for seed, choice in enumerate(chosen)]  # fmt: skip
    expected = 100 * np.nanmean(alone, axis=2).mean(0)
    assert [row["measured"] for row in points] == pytest.approx(expected)
    same, swapped = (comparisons.curve(setting, "ear_adapter", one, **ASSIMILATION)[-1]["measured"]
                     for one in (None, chosen[::-1]))  # fmt: skip
    assert len({points[-1]["measured"], same, swapped}) == 3
    values, *_ = runs.answers(setting, "ear_adapter", chosen, **ASSIMILATION)
    assert points[-1]["measured"] == pytest.approx(100 * np.nanmean(values[0], axis=1).mean())


def test_a_choice_is_made_on_training_questions_alone(monkeypatch):
    """The questions of a choice exclude the evaluation questions of its seed, and the best on them is chosen."""
    setting, seen = Setting(**TOY), []
    plain = runs.run
    monkeypatch.setattr(runs, "run", lambda *request: seen.append(plain(*request)) or seen[-1])
    chosen, reached = runs.tuned(setting, "ear_adapter", CHOICES, **ASSIMILATION)
    scopes = settings.candidates_of(settings.Setting(dataset="toy"), 20).scopes
    for seed in range(2):
        _, evaluation = settings.split(scopes, setting, seed)
        assert all(not set(evaluation) & set(result.queries[seed]) for result in seen)
        assert reached[CHOICES.index(chosen[seed])][seed] == max(recall[seed] for recall in reached.values())


def test_the_number_of_passes_is_chosen_with_the_rest(monkeypatch):
    """One run of the most passes tells what fewer reach, and each seed trains for as many as it chose."""
    setting = Setting(**TOY, train_queries=160)
    choices = [{"learning_rate": rate, "epochs": passes} for rate in (1e-4, 1e-3) for passes in (1, 2)]
    plain, ran = runs.run, []
    monkeypatch.setattr(runs, "run", lambda *request: ran.append(request) or plain(*request))
    chosen, reached = runs.tuned(setting, "ear_adapter", choices, **ASSIMILATION)
    assert {one.epochs for one, _ in ran} == {2} and len(reached) == 4
    for number, choice in enumerate(choices):
        where = Setting(**TOY, train_queries=160, validate_on_training=True, epochs=choice["epochs"])
        alone = plain(where, Config(**ASSIMILATION, learning_rate=choice["learning_rate"]))
        assert reached[number] == pytest.approx(100 * np.nanmean(alone.adapter[-1, 0], axis=1))
    answers = runs.answers(setting, "ear_adapter", [choices[0], choices[1]], **ASSIMILATION)
    for seed in range(2):
        alone = plain(Setting(**TOY, train_queries=160, epochs=seed + 1), Config(**ASSIMILATION, learning_rate=1e-4))
        assert np.array_equal(answers.values[:, seed], alone.adapter[-1, :, seed], equal_nan=True)


def test_a_choice_that_diverges_is_never_made():
    choices = [{"learning_rate": 1e30, "optimizer": "sgd"}, CHOICES[0]]
    chosen, reached = runs.tuned(Setting(**TOY), "ear_adapter", choices)
    assert chosen == [CHOICES[0]] * 2 and list(reached) == [1]
    with pytest.raises(FloatingPointError, match="diverges with every choice of"):
        runs.tuned(Setting(**TOY), "ear_adapter", choices[:1])


def test_conversations_arrive_one_after_the_other():
    scopes = ["b"] * 3 + ["a"] * 2 + ["c"] * 4
    orders = [drift.arrivals(scopes, seed) for seed in range(20)]
    for order, place in orders:
        assert sorted(order) == list(range(9)) and (np.diff(place) >= 0).all() and place.max() == 2
        assert len({(scopes[number], int(at)) for number, at in zip(order, place, strict=True)}) == 3
    assert len({tuple(order) for order, _ in orders}) == 20
    assert all(np.array_equal(*pair) for pair in zip(orders[3], drift.arrivals(scopes, 3), strict=True))


def test_a_stream_is_answered_before_it_is_learned_from():
    """Test-then-learn by hand: a learner that is stopped before each batch answers it as the stream says."""
    setting, config = Setting(**TOY), Config(**ASSIMILATION, learning_rate=1e-3, batch_size=4)
    found = settings.candidates_of(settings.Setting(dataset="toy"), 20)
    streamed = drift.run_stream(setting, config)
    order = torch.from_numpy(streamed.queries[[1]])
    for stop in (0, 4, 40):
        learner = Learner(config, found, runs.critic_of(config, found, (1,), order), (1,))
        steps = learner.train(order)
        for _ in range(stop // 4):
            next(steps)
        batch = order[:, stop : stop + 4]
        recall = runs.measures.measure(found, batch, learner.retrieve(batch))[0]
        assert np.array_equal(streamed.first[1, stop : stop + 4], recall[0], equal_nan=True)
    assert np.array_equal(streamed.first[:, :4], streamed.static[:, :4], equal_nan=True)
    last = streamed.place == streamed.place.max()
    assert np.array_equal(streamed.after[last], streamed.end[last], equal_nan=True)
    assert not np.array_equal(streamed.after, streamed.end, equal_nan=True)
    assert np.nanmean(streamed.first) > np.nanmean(streamed.static) + 0.1


def test_a_conversation_is_asked_again_as_soon_as_its_last_question_was_learned_from():
    """By hand: a learner stopped at the first update that reaches the end of a conversation, and not one later."""
    config = Config(**ASSIMILATION, learning_rate=1e-4)
    found, streamed = (
        settings.candidates_of(settings.Setting(dataset="toy"), 20),
        drift.run_stream(Setting(**TOY), config),
    )
    order, place = torch.from_numpy(streamed.queries[[1]]), streamed.place[1]
    learner = Learner(config, found, runs.critic_of(config, found, (1,), order), (1,))
    steps, in_time, late = learner.train(order), [], []

    def recall(at):
        return runs.measures.measure(found, order[:, at], learner.retrieve(order[:, at]))[0, 0]

    for conversation in range(place.max() + 1):
        at = np.flatnonzero(place == conversation)
        while learner.buffer.size <= at[-1]:
            next(steps)
        in_time.append(recall(at))
        for _ in range(2):
            next(steps, None)
        late.append(recall(at))
    assert np.array_equal(streamed.after[1], np.concatenate(in_time), equal_nan=True)
    assert not np.array_equal(streamed.after[1], np.concatenate(late), equal_nan=True)  # eight questions more do show


def test_the_groups_of_notebooks_share_none():
    known = notebooks.sources()
    paper, further = (profiles.chosen([group], known) for group in ("reproduction", "extensions"))
    assert "ext01_objective" in further and "tab02_main_results" in paper and "claims" in paper
    assert sorted(paper + further) == sorted(known) == sorted(profiles.chosen(["all"], known))
    assert profiles.chosen(["claims", "reproduction"], known)[0] == "claims"
    with pytest.raises(notebooks.Unusable, match="extension"):
        profiles.chosen(["extension"], known)


def test_extensions_stand_apart_in_the_results(tmp_path):
    def shown(*larger):
        return readme.results_tables(readme.both_kinds(tmp_path / "smoke"), "smoke", *larger)

    row = {"dataset": "toy", "encoder": "minilm", "variant": "ear_adapter", "metric": "recall@5"}
    row |= {"objective": "softmax", "split": "random", "headline": True, "n_queries": 9}
    row |= {"measured": 50.0, "std": 1.0, "low": 48.0, "high": 52.0}
    row |= {"seeds": 2, "difference": 8.0, "difference_low": 6.0, "difference_high": 10.0}
    for id in ("tab02_main_results", "ext01_objective"):
        record = experiment_record(id, row)
        (tmp_path / "smoke").mkdir(exist_ok=True)
        (tmp_path / "smoke" / f"{id}.json").write_text(json.dumps(record))
    before, _, after = shown().partition("### Beyond the paper")
    assert "tab02_main_results" in before and "ext01" not in before and "tab02" not in after
    line = "| EAR adapter (softmax) | toy dialogues, MiniLM, random | 50.0 ± 1.0 [48.0, 52.0] |"
    assert f"{line} +8.0 [+6.0, +10.0] |" in after
    del row["split"]  # a stream has none, and is not said to have one
    record = experiment_record("ext05_drift", row)
    (tmp_path / "smoke" / "ext05_drift.json").write_text(json.dumps(record))
    assert "(softmax) | toy dialogues, MiniLM | 50.0" in shown()
    assert "MPNet" not in shown()
    (tmp_path / "laptop-large").mkdir()
    for id in ("tab02_main_results", "ext01_objective"):
        record = experiment_record(id, row | {"encoder": "mpnet"}) | {"profile": "laptop-large"}
        (tmp_path / "laptop-large" / f"{id}.json").write_text(json.dumps(record))
    both = shown(readme.both_kinds(tmp_path / "laptop-large"))
    assert both.count("MPNet") == 1 and "(softmax) | toy dialogues, MPNet | 50.0" in both.partition("### Beyond")[2]


def experiment_record(id, row):
    return records.record(id, "made", "smoke", {}, {}, [records.row(**row)])
