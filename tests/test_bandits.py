"""Critic calls spent by a posterior, by Thompson sampling and in turn, each against plain loops over its definition."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from earlib import bandits, draws, evaluate, experiment
from earlib.bandits import Prior
from earlib.config import Config
from earlib.critic import SimulatedCritic
from earlib.explorer import explore, select_slate

RECALL, PRECISION = 0.86, 0.88


def plain_sets(K):
    return [(), *((i,) for i in range(K)), *itertools.combinations(range(K), 2)]


def plain_prior(prior, z):
    q = [math.exp(one / prior.temperature) for one in z]
    weights = []
    for gold in plain_sets(len(z)):
        of_size = sum(math.prod(q[i] for i in other) for other in plain_sets(len(z)) if len(other) == len(gold))
        weights.append(prior.shares[len(gold)] * math.prod(q[i] for i in gold) / of_size)
    return weights


def plain_likelihood(gold, slate, cited):
    n, chance = sum(i in gold for i in slate), 1.0
    for i, is_cited in zip(slate, cited, strict=True):
        if i in gold:
            rate = RECALL
        else:
            rate = n * RECALL * (1 - PRECISION) / ((len(slate) - n) * PRECISION)
            rate = min(max(rate, bandits.UNEXPECTED), 1 - bandits.UNEXPECTED)
        chance *= rate if is_cited else 1 - rate
    return chance


def plain_posterior(prior, z, asked):
    weights = plain_prior(prior, z)
    for slate, cited in asked:
        pairs = zip(weights, plain_sets(len(z)), strict=True)
        weights = [weight * plain_likelihood(gold, slate, cited) for weight, gold in pairs]
    return [w / sum(weights) for w in weights]


def plain_worth(weights, K, size):
    held = [sum(w for w, gold in zip(weights, plain_sets(K), strict=True) if i in gold) for i in range(K)]
    kept = sorted(range(K), key=lambda i: (-round(held[i], 9), i))[:size]
    return sum(w for w, gold in zip(weights, plain_sets(K), strict=True) if set(gold) <= set(kept)), held


QUESTIONS = st.fixed_dictionaries({
    "z": st.lists(st.floats(-1, 1), min_size=5, max_size=6),
    "temperature": st.sampled_from([0.05, 0.3, 1.0]),
    "seed": st.integers(0, 99),
})


@settings(max_examples=60)
@given(question=QUESTIONS, rounds=st.integers(0, 3))
def test_the_posterior_is_that_of_a_plain_enumeration(question, rounds):
    z, rng = question["z"], np.random.default_rng(question["seed"])
    prior = Prior(question["temperature"], (0.3, 0.5, 0.2))
    asked = [(rng.permutation(len(z))[:3].tolist(), (rng.random(3) < 0.4).tolist()) for _ in range(rounds)]
    sets = bandits.hypotheses(len(z))
    assert [tuple(np.flatnonzero(one)) for one in sets.numpy()] == plain_sets(len(z))
    total = bandits.log_prior(prior, torch.tensor([z]).double(), sets)
    for slate, cited in asked:
        citations = torch.where(torch.tensor([cited]), 1, -1)
        total = total + bandits.log_likelihood(torch.tensor([slate]), citations, sets, RECALL, PRECISION)
    expected = torch.tensor([plain_posterior(prior, z, asked)]).double()
    torch.testing.assert_close(total.softmax(-1), expected, rtol=1e-5, atol=1e-9)


@settings(max_examples=25)
@given(question=QUESTIONS)
def test_the_slate_asked_about_is_the_one_expected_to_help_most(question):
    z, size = question["z"], 2
    prior, K = Prior(question["temperature"], (0.3, 0.5, 0.2)), len(z)
    likely = plain_prior(prior, z)
    now, held = plain_worth(likely, K, size)
    order = sorted(range(K), key=lambda i: (-round(held[i], 9), i))
    values = []
    for start in range(K - size + 1):
        slate, value = order[start : start + size], 0.0
        for cited in itertools.product((False, True), repeat=size):
            joint = [w * plain_likelihood(gold, slate, cited) for w, gold in zip(likely, plain_sets(K), strict=True)]
            value += plain_worth(joint, K, size)[0]
        values.append(value)
    sets = bandits.hypotheses(K)
    slates, expected = bandits.outlook(torch.tensor([likely], dtype=torch.float64), sets, size, RECALL, PRECISION)
    assert expected.item() == pytest.approx(max(values), abs=1e-4)
    assert values[order.index(slates[0, 0].item())] == pytest.approx(max(values), abs=1e-4)
    assert bandits.worth(torch.tensor([likely], dtype=torch.float64), sets, size).item() == pytest.approx(now, abs=1e-9)
    assert expected.item() >= now - 1e-4  # to ask never costs anything but the call


@pytest.fixture(scope="module")
def toy():
    setting, config = experiment.Setting(dataset="toy", seeds=2), Config()
    found = experiment.candidates_of(setting, config.depth)
    queries = experiment.split(found.scopes, setting, 0)[1]
    scores, similarity = bandits.scored(found, None, queries)
    return setting, config, found, queries, scores, similarity


def asker(toy, calls, seed=0):
    _, config, found, queries, *_ = toy
    return bandits._critic(config, found, seed, queries, "test", calls)


def test_a_static_ranking_has_the_scores_of_the_retriever(toy):
    _, _, found, queries, scores, similarity = toy
    memory = found.memory[queries]
    torch.testing.assert_close(scores, torch.einsum("nd,nkd->nk", found.query[queries], memory), rtol=0, atol=1e-5)
    torch.testing.assert_close(similarity, memory @ memory.mT, rtol=0, atol=1e-5)


def test_in_turn_is_the_equal_call_control_until_all_were_shown(toy):
    _, config, found, queries, scores, _ = toy
    numbers = torch.from_numpy(queries)[None]
    spent = bandits.in_turn(config, scores, asker(toy, 6), 6)
    for calls in range(1, 5):
        rounds = config.model_copy(update={"rounds": 6})
        uniforms = draws.draw(rounds, (0,), numbers, config.depth, len(found.query), "test")
        critic = SimulatedCritic(config, found.gold)
        expected = evaluate.equal_calls(config, found, critic, numbers, calls, uniforms)
        assert torch.equal(spent.slates[calls], expected[0])
    assert torch.equal(spent.slates[0], torch.arange(5).expand(len(queries), -1))
    assert not torch.equal(spent.slates[4], spent.slates[6])  # the top was asked about once more


def test_the_explorer_is_the_paper_s(toy):
    _, config, _, _, scores, similarity = toy
    spent = bandits.by_confidence(config, scores, similarity, asker(toy, 5), 5)
    for calls in (0, 2, 5):
        found = explore(config, scores, similarity, asker(toy, 5), calls)
        assert torch.equal(spent.slates[calls], select_slate(config, scores, similarity, found.shown, found.cited))


def test_thompson_draws_from_the_posterior_of_each_candidate():
    up, down = torch.tensor([1.0, 4.0, 1.0]), torch.tensor([1.0, 1.0, 6.0])
    uniforms = torch.from_numpy(np.random.default_rng(0).random((20_000, 3)))
    drawn = bandits._beta(uniforms, up.expand(20_000, -1), down.expand(20_000, -1))
    torch.testing.assert_close(drawn.mean(0), (up / (up + down)).double(), rtol=0.02, atol=0)
    variance = up * down / ((up + down) ** 2 * (up + down + 1))
    torch.testing.assert_close(drawn.var(0), variance.double(), rtol=0.05, atol=0)


def test_thompson_sampling_explores_by_its_numbers_and_learns(toy):
    _, config, found, queries, scores, similarity = toy
    uniforms = torch.from_numpy(np.random.default_rng(1).random((len(queries), 8, config.depth)))
    one, same, other = (
        bandits.by_thompson(config, scores, similarity, asker(toy, 8), 8, numbers).slates
        for numbers in (uniforms, uniforms, 1 - uniforms)
    )
    assert torch.equal(one, same) and not torch.equal(one, other)
    reached = bandits._recall(found, queries, one).nanmean(1)
    assert reached[-1] > reached[0] + 0.2


def test_a_prior_is_found_again_from_citations_alone():
    """Questions whose gold is drawn from a known prior: its shares and temperature come out; no gold label is read."""
    rng, K, N = np.random.default_rng(0), 10, 3000
    scores = torch.from_numpy(rng.normal(0, 0.1, (N, K))).sort(descending=True).values
    true = Prior(0.08, (0.3, 0.6, 0.1))
    sets = bandits.hypotheses(K)
    chance = bandits.log_prior(true, scores, sets).exp().numpy()
    gold = sets[[rng.choice(len(sets), p=one / one.sum()) for one in chance]]
    critic, config = SimulatedCritic(Config(depth=K), gold), Config(depth=K)
    asked = []
    for slate in torch.arange(K).expand(N, K).split(config.slate_size, dim=1):
        uniforms = torch.from_numpy(rng.random((1, N, K)))
        asked.append((slate, critic(torch.arange(N)[None], slate[None], uniforms)[0][0]))
    found = bandits.fit(scores, asked, RECALL, PRECISION)
    assert found.shares == pytest.approx(true.shares, abs=0.05)
    assert abs(math.log2(found.temperature / true.temperature)) <= 0.5


def test_questions_stop_when_little_is_expected_of_a_call():
    gain = torch.tensor([[0.5, 0.01, 0.3], [0.2, 0.9, 0.3], [0.01, 0.9, 0.3]])
    assert bandits.stopped(gain, 0.1).tolist() == [2, 0, 2]
    assert bandits.stopped(gain, 0.25).tolist() == [1, 0, 2]
    assert bandits.stopped(gain, 0.0).tolist() == [2, 2, 2]


def test_patience_is_the_least_that_keeps_the_recall():
    recall = torch.tensor([[0.0, 1.0, torch.nan], [1.0, 1.0, torch.nan], [1.0, 1.0, torch.nan]])
    gain = torch.tensor([[0.5, 0.01, 0.0], [0.001, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert bandits.patience(recall, gain) == max(bandits.BOUNDS)
    late = torch.tensor([[0.001, 0.01, 0.0], [0.001, 0.0, 0.0], [0.0, 0.0, 0.0]])  # it stops the first one too early
    assert bandits.patience(recall, late) == 0.0


def test_on_questions_nothing_is_fitted_to_evaluation_questions(toy, monkeypatch):
    setting, config, found, *_ = toy
    fitted, plain = [], bandits._fitted
    monkeypatch.setattr(bandits, "_fitted", lambda *given: fitted.append(given) or plain(*given))
    spent = bandits.on_questions(setting, config, False, 4, 3)
    for seed, told in enumerate(fitted):
        assert not set(told[4]) & set(experiment.split(found.scopes, setting, seed)[1])
    assert spent.values["posterior"].shape == (5, 2, len(spent.queries[0]))
    assert 0 < spent.calls.mean() < 4
    assert np.nanmean(spent.early) > np.nanmean(spent.values["posterior"][0])
    static = experiment.run_control(setting, "retriever")
    assert np.array_equal(spent.values["posterior"][0], static.values[0], equal_nan=True)
    assert np.array_equal(spent.values[bandits.CONTROL][0], static.values[0], equal_nan=True)
