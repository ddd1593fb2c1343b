"""Parts of the extensions beyond the paper: fused candidates, hyper-parameters of each seed, streams of questions."""

import json

import numpy as np
import pytest
import torch

from earlib import records
from earlib.core.config import ASSIMILATION, HYBRID, Config
from earlib.core.learner import Learner
from earlib.data import candidates
from earlib.experiments import comparisons, measures, runs, settings
from earlib.experiments.settings import Setting
from earlib.extensions import drift
from earlib.harness import notebooks, profiles, readme

TOY = {"dataset": "toy", "seeds": 2}
PLAIN = Setting(**TOY)
CHOICES = [{"learning_rate": 1e-4}, {"learning_rate": 1e-3}]


def equal(one, other):
    return np.array_equal(one, other, equal_nan=True)


@pytest.fixture(scope="module")
def found():
    return settings.candidates_of(PLAIN, 20)


def test_fused_candidates_are_those_of_a_plain_loop(found):
    benchmark = settings.benchmark("toy")
    fused = candidates.fused(benchmark, found, 20)
    words = list(candidates._scored_by_words(benchmark, "dialogue"))

    def place(values, row):
        ahead = [(value, -at) for at, value in enumerate(values)]
        return sum(one > ahead[row] for one in ahead) + 1

    for number in range(0, len(found.query), 7):
        rows, scores = (part.tolist() for part in words[number])
        cosine = (found.bank[rows].double() @ found.query[number].double()).float().tolist()
        points = [1 / (60 + place(cosine, at)) + (1 / (60 + place(scores, at)) if scores[at] > 0 else 0)
                  for at in range(len(rows))]  # fmt: skip
        expected = sorted(zip([-one for one in points], range(len(rows)), rows, strict=True))[:20]
        assert fused.index[number].tolist() == [row for *_, row in expected]
    assert torch.equal(fused.gold_count, found.gold_count) and fused.side is None
    turns = [memory.turns if memory.store == "dialogue" else () for memory in benchmark.memories]
    for query, is_gold, rows in zip(benchmark.asked, fused.gold.tolist(), fused.index.tolist(), strict=True):
        assert is_gold == [not set(query.gold).isdisjoint(turns[row]) for row in rows]


def test_a_hybrid_setting_has_fused_candidates_with_the_scores_of_words():
    setting = Setting(**TOY, first_stage="hybrid", reranker="bm25")
    found = settings.candidates_of(setting, 30)
    assert found.index.shape == found.side.shape == (len(found.query), 30)
    assert torch.equal(found.index, candidates.fused(settings.benchmark("toy"), found, 30).index)
    answers = runs.answers(setting, "ear_adapter", **ASSIMILATION, **HYBRID | {"depth": 30})
    assert np.nanmean(answers.values[0]) > np.nanmean(runs.answers(setting, "retriever").values[0])


def test_a_seed_runs_with_what_it_chose():
    setting = Setting(**TOY, split="conversation")  # seeds that evaluate different numbers of questions
    mixed = runs.answers(setting, "ear_adapter", CHOICES[::-1], **ASSIMILATION)
    for seed, choice in enumerate(CHOICES[::-1]):
        alone = runs.answers(setting, "ear_adapter", **ASSIMILATION, **choice)
        held, other = mixed.queries[seed] >= 0, alone.queries[seed] >= 0
        assert equal(mixed.queries[seed, held], alone.queries[seed, other])
        assert equal(mixed.values[:, seed, held], alone.values[:, seed, other])
        assert equal(mixed.slates[seed, held], alone.slates[seed, other])


def test_a_curve_of_a_seed_is_that_of_what_it_chose():
    """Each seed follows its own choice, and the end of the curve is what `answers` returns."""
    setting, chosen = Setting(**TOY, evaluate_every=80), CHOICES[::-1]
    points, same, swapped = (
        [row["measured"] for row in comparisons.curve(setting, "ear_adapter", one, **ASSIMILATION)]
        for one in (chosen, None, CHOICES)
    )
    alone = [runs.run(setting, Config(**ASSIMILATION, **choice)).adapter[:, 0, seed]
             for seed, choice in enumerate(chosen)]  # fmt: skip
    assert points == pytest.approx(100 * np.nanmean(alone, axis=2).mean(0))
    assert len({points[-1], same[-1], swapped[-1]}) == 3
    values = runs.answers(setting, "ear_adapter", chosen, **ASSIMILATION).values
    assert points[-1] == pytest.approx(100 * np.nanmean(values[0], axis=1).mean())


@pytest.fixture
def ran(monkeypatch):
    """Requests to `runs.run`, and their results."""
    noted, plain = [], runs.run
    monkeypatch.setattr(runs, "run", lambda *request: noted.append((request, plain(*request))) or noted[-1][1])
    return noted


def test_a_choice_is_made_on_training_questions_alone(found, ran):
    """The questions of a choice exclude the evaluation questions of its seed, and the best on them is chosen."""
    chosen, reached = runs.tuned(PLAIN, "ear_adapter", CHOICES, **ASSIMILATION)
    for seed in range(2):
        _, evaluation = settings.split(found.scopes, PLAIN, seed)
        assert all(not set(evaluation) & set(result.queries[seed]) for _, result in ran)
        assert reached[CHOICES.index(chosen[seed])][seed] == max(recall[seed] for recall in reached.values())


def test_the_number_of_passes_is_chosen_with_the_rest(ran):
    """One run of the most passes tells what fewer reach, and each seed trains for as many as it chose."""
    few = TOY | {"train_queries": 160}
    choices = [{"learning_rate": rate, "epochs": passes} for rate in (1e-4, 1e-3) for passes in (1, 2)]
    chosen, reached = runs.tuned(Setting(**few), "ear_adapter", choices, **ASSIMILATION)
    assert {setting.epochs for (setting, _), _ in ran} == {2} and len(reached) == 4
    for number, choice in enumerate(choices):
        where = Setting(**few, validate_on_training=True, epochs=choice["epochs"])
        alone = runs.run(where, Config(**ASSIMILATION, learning_rate=choice["learning_rate"]))
        assert reached[number] == pytest.approx(100 * np.nanmean(alone.adapter[-1, 0], axis=1))
    answers = runs.answers(Setting(**few), "ear_adapter", choices[:2], **ASSIMILATION)
    for seed in range(2):
        alone = runs.run(Setting(**few, epochs=seed + 1), Config(**ASSIMILATION, learning_rate=1e-4))
        assert equal(answers.values[:, seed], alone.adapter[-1, :, seed])


def test_a_choice_that_diverges_is_never_made():
    choices = [{"learning_rate": 1e30, "optimizer": "sgd"}, CHOICES[0]]
    chosen, reached = runs.tuned(PLAIN, "ear_adapter", choices)
    assert chosen == [CHOICES[0]] * 2 and list(reached) == [1]
    with pytest.raises(FloatingPointError, match="diverges with every choice of"):
        runs.tuned(PLAIN, "ear_adapter", choices[:1])


def test_conversations_arrive_one_after_the_other():
    scopes = ["b"] * 3 + ["a"] * 2 + ["c"] * 4
    orders = [drift.arrivals(scopes, seed) for seed in range(20)]
    for order, place in orders:
        assert sorted(order) == list(range(9)) and (np.diff(place) >= 0).all() and place.max() == 2
        assert len({(scopes[number], int(at)) for number, at in zip(order, place, strict=True)}) == 3
    assert len({tuple(order) for order, _ in orders}) == 20
    assert all(np.array_equal(*pair) for pair in zip(orders[3], drift.arrivals(scopes, 3), strict=True))


def streaming(found, config):
    """The stream of both seeds; the steps of a learner of seed 1, and its recall of some places of the stream."""
    streamed = drift.run_stream(PLAIN, config)
    order = torch.from_numpy(streamed.queries[[1]])
    learner = Learner(config, found, runs.critic_of(config, found, (1,), order), (1,))

    def recall(at):
        return measures.measure(found, order[:, at], learner.retrieve(order[:, at]))[0, 0]

    return streamed, learner.train(order), recall


def test_a_stream_is_answered_before_it_is_learned_from(found):
    """Test-then-learn by hand: a learner that is stopped before each batch answers it as the stream says."""
    config = Config(**ASSIMILATION, learning_rate=1e-3, batch_size=4)
    streamed, steps, recall = streaming(found, config)
    for stop in range(0, 44, 4):
        assert equal(streamed.first[1, stop : stop + 4], recall(slice(stop, stop + 4)))
        next(steps)
    assert equal(streamed.first[:, :4], streamed.static[:, :4])
    last = streamed.place == streamed.place.max()
    assert equal(streamed.after[last], streamed.end[last]) and not equal(streamed.after, streamed.end)
    assert np.nanmean(streamed.first) > np.nanmean(streamed.static) + 0.1


def test_a_conversation_is_asked_again_as_soon_as_its_last_question_was_learned_from(found):
    """By hand: a learner stopped at the first update that reaches the end of a conversation, and not one later."""
    (streamed, steps, recall), seen = streaming(found, Config(**ASSIMILATION, learning_rate=1e-4)), 0
    place, in_time, late = streamed.place[1], [], []
    for conversation in range(place.max() + 1):
        at = np.flatnonzero(place == conversation)
        while seen <= at[-1]:
            seen = next(steps).seen
        in_time.append(recall(at))
        for _ in range(2):
            seen = next(steps).seen if seen < len(place) else seen
        late.append(recall(at))
    assert equal(streamed.after[1], np.concatenate(in_time))
    assert not equal(streamed.after[1], np.concatenate(late))  # eight questions more do show


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

    def keep(id, profile="smoke", **keys):
        record = records.record(id, "made", profile, {}, {}, [records.row(**row | keys)])
        (tmp_path / profile).mkdir(exist_ok=True)
        (tmp_path / profile / f"{id}.json").write_text(json.dumps(record))

    row = {"dataset": "toy", "encoder": "minilm", "variant": "ear_adapter", "metric": "recall@5", "seeds": 2}
    row |= {"objective": "softmax", "headline": True, "n_queries": 9, "measured": 50.0, "std": 1.0, "low": 48.0}
    row |= {"high": 52.0, "difference": 8.0, "difference_low": 6.0, "difference_high": 10.0}
    for id in ("tab02_main_results", "ext01_objective"):
        keep(id, split="random")
    before, _, after = shown().partition("### Beyond the paper")
    assert "tab02_main_results" in before and "ext01" not in before and "tab02" not in after
    line = "| EAR adapter (softmax) | toy dialogues, MiniLM, random | 50.0 ± 1.0 [48.0, 52.0] |"
    assert f"{line} +8.0 [+6.0, +10.0] |" in after
    keep("ext05_drift")  # a stream has no split, and is not said to have one
    assert "(softmax) | toy dialogues, MiniLM | 50.0" in shown() and "MPNet" not in shown()
    for id in ("tab02_main_results", "ext01_objective"):
        keep(id, "laptop-large", encoder="mpnet")
    both = shown(readme.both_kinds(tmp_path / "laptop-large"))
    assert both.count("MPNet") == 1 and "(softmax) | toy dialogues, MPNet | 50.0" in both.partition("### Beyond")[2]
