"""Critic calls spent by a posterior and in turn, each against plain loops over its definition."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from earlib.core import randomness
from earlib.core.config import Config
from earlib.core.critic import SimulatedCritic
from earlib.core.explorer import explore, select_slate
from earlib.core.ordering import best
from earlib.experiments import measures, runs
from earlib.experiments.settings import Setting, candidates_of, split
from earlib.extensions import bandits
from earlib.extensions.bandits import Prior

RECALL, PRECISION = QUALITY = 0.86, 0.88
SETTING, CONFIG, PRIOR = Setting(dataset="toy", seeds=2), Config(), Prior(0.06, (0.3, 0.6, 0.1))
KEPT_APART = SETTING.model_copy(update={"validate_on_training": True})
SETS = bandits.hypotheses(CONFIG.depth)
RATES = [{"learning_rate": 1e-3}, {"learning_rate": 5e-4}]  # one a seed


def equal(one, other):
    return np.array_equal(one, other, equal_nan=True)


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
    n = sum(i in gold for i in slate)
    wrong = n * RECALL * (1 - PRECISION) / (max(1, len(slate) - n) * PRECISION)
    wrong = min(max(wrong, bandits.UNEXPECTED), 1 - bandits.UNEXPECTED)
    rates = [RECALL if i in gold else wrong for i in slate]
    return math.prod(rate if said else 1 - rate for rate, said in zip(rates, cited, strict=True))


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


SCORES = st.lists(st.floats(-1, 1), min_size=5, max_size=6)
PRIORS = st.builds(Prior, st.sampled_from([0.05, 0.3, 1.0]), st.just((0.3, 0.5, 0.2)))


@settings(max_examples=60)
@given(SCORES, PRIORS, st.integers(0, 99), st.integers(0, 3))
def test_the_posterior_is_that_of_a_plain_enumeration(z, prior, seed, rounds):
    rng = np.random.default_rng(seed)
    asked = [(rng.permutation(len(z))[:3].tolist(), (rng.random(3) < 0.4).tolist()) for _ in range(rounds)]
    sets = bandits.hypotheses(len(z))
    assert [tuple(np.flatnonzero(one)) for one in sets.numpy()] == plain_sets(len(z))
    total = bandits.log_prior(prior, torch.tensor([z]).double(), sets)
    for slate, cited in asked:
        citations = torch.where(torch.tensor([cited]), 1, -1)
        total = total + bandits.citation_likelihood(torch.tensor([slate]), citations, sets, *QUALITY)
    expected = torch.tensor([plain_posterior(prior, z, asked)]).double()
    torch.testing.assert_close(total.softmax(-1), expected, rtol=1e-5, atol=1e-9)


@settings(max_examples=25)
@given(SCORES, PRIORS)
def test_the_slate_asked_about_is_the_one_expected_to_help_most(z, prior):
    likely, K, size = plain_prior(prior, z), len(z), 2
    now, held = plain_worth(likely, K, size)
    order = sorted(range(K), key=lambda i: (-round(held[i], 9), i))
    values = []
    for start in range(K - size + 1):
        slate, value = order[start : start + size], 0.0
        for cited in itertools.product((False, True), repeat=size):
            joint = [w * plain_likelihood(gold, slate, cited) for w, gold in zip(likely, plain_sets(K), strict=True)]
            value += plain_worth(joint, K, size)[0]
        values.append(value)
    sets, weights = bandits.hypotheses(K), torch.tensor([likely], dtype=torch.float64)
    slates, expected = bandits.outlook(weights, sets, size, *QUALITY)
    assert expected.item() == pytest.approx(max(values), abs=1e-4)
    assert values[order.index(slates[0, 0].item())] == pytest.approx(max(values), abs=1e-4)
    assert bandits.worth(weights, sets, size).item() == pytest.approx(now, abs=1e-9)
    assert expected.item() >= now - 1e-4  # to ask never costs anything but the call


@pytest.fixture(scope="module")
def found():
    return candidates_of(SETTING, CONFIG.depth)


@pytest.fixture(scope="module")
def queries(found):
    return split(found.scopes, SETTING, 0)[1]


@pytest.fixture(scope="module")
def ranked(found, queries):
    return bandits.scored(found, None, queries)


@pytest.fixture
def asker(found, queries):
    """A function that makes the critic of seed 0 for some calls."""
    return lambda calls: bandits.asker(CONFIG, found.gold, 0, queries, "test", calls)


def noting(ask, asked):
    """The critic, which also notes the slates that it is asked about."""
    return lambda call, slates: asked.append(slates) or ask(call, slates)


def test_a_static_ranking_has_the_scores_of_the_retriever(found, queries, ranked):
    memory = found.memory[queries]
    expected = torch.einsum("nd,nkd->nk", found.query[queries], memory), memory @ memory.mT
    torch.testing.assert_close(ranked, expected, rtol=0, atol=1e-5)


def test_in_turn_is_the_equal_call_control_until_all_were_shown(found, queries, ranked, asker):
    numbers = torch.from_numpy(queries)[None]
    spent = bandits.in_turn(CONFIG, ranked[0], asker(6), 6)
    rounds = CONFIG.model_copy(update={"rounds": 6})
    uniforms = randomness.draw(rounds, (0,), numbers, CONFIG.depth, len(found.query), "test")
    for calls in range(1, 5):
        critic = SimulatedCritic(CONFIG, found.gold)
        expected = measures.equal_calls(CONFIG, found, critic, numbers, calls, uniforms)
        assert torch.equal(spent.slates[calls], expected[0])
    assert torch.equal(spent.slates[0], torch.arange(5).expand(len(queries), -1))
    assert not torch.equal(spent.slates[4], spent.slates[6])  # the top was asked about once more


def test_from_the_sixth_on_the_first_are_asked_about_last(queries, ranked, asker):
    asked, ask = [], asker(5)
    spent = bandits.in_turn(CONFIG, ranked[0], noting(ask, asked), 5, first=5)
    shown = torch.stack(asked, 1).flatten(1)
    assert torch.equal(shown, torch.arange(5, 30).remainder(20).expand(len(queries), -1))
    cited = ask(0, asked[0])[0] > 0
    for slate, useful in zip(spent.slates[1].tolist(), cited, strict=True):  # the cited ones, then the first
        assert slate == [*(5 + np.flatnonzero(useful)), *range(5)][:5]


def test_the_explorer_is_the_paper_s(ranked, asker):
    spent = bandits.by_confidence(CONFIG, *ranked, asker(5), 5)
    for calls in (0, 2, 5):
        explored = explore(CONFIG, *ranked, asker(5), calls)
        assert torch.equal(spent.slates[calls], select_slate(CONFIG, *ranked, explored.shown, explored.cited))


def test_the_gain_of_a_call_is_measured_from_what_is_held_by_then(ranked, asker):
    asked, ask, scores = [], asker(2), ranked[0]
    spent = bandits.by_posterior(CONFIG, PRIOR, scores, noting(ask, asked), 2)
    total = bandits.log_prior(PRIOR, scores.double(), SETS)
    for call in range(3):
        likely = total.softmax(-1)
        slate, expected = bandits.outlook(likely, SETS, CONFIG.slate_size, *QUALITY)
        torch.testing.assert_close(spent.gain[call], expected - bandits.worth(likely, SETS, CONFIG.slate_size))
        if call < 2:
            assert torch.equal(asked[call], slate)
            total = total + bandits.citation_likelihood(slate, ask(call, slate)[0], SETS, *QUALITY)
    assert not torch.equal(spent.gain[0], spent.gain[2])


def test_a_prior_is_found_again_from_citations_alone():
    """Questions whose gold is drawn from a known prior: its shares and temperature come out; no gold label is read."""
    rng, K, N = np.random.default_rng(0), 10, 3000
    scores = torch.from_numpy(rng.normal(0, 0.1, (N, K))).sort(descending=True).values
    true, sets, config = Prior(0.08, (0.3, 0.6, 0.1)), bandits.hypotheses(K), Config(depth=K)
    chance = bandits.log_prior(true, scores, sets).exp().numpy()
    gold = sets[[rng.choice(len(sets), p=one / one.sum()) for one in chance]]
    critic, asked = SimulatedCritic(config, gold), []
    for slate in torch.arange(K).expand(N, K).split(config.slate_size, dim=1):
        uniforms = torch.from_numpy(rng.random((1, N, K)))
        asked.append((slate, critic(torch.arange(N)[None], slate[None], uniforms)[0][0]))
    fitted = bandits.fit_prior(scores, asked, *QUALITY)
    assert fitted.shares == pytest.approx(true.shares, abs=0.05)
    assert abs(math.log2(fitted.temperature / true.temperature)) <= 0.5


@pytest.mark.parametrize("bound, calls", [(0.1, [2, 0, 2]), (0.25, [1, 0, 2]), (0.0, [2, 2, 2])])
def test_questions_stop_when_little_is_expected_of_a_call(bound, calls):
    gain = torch.tensor([[0.5, 0.01, 0.3], [0.2, 0.9, 0.3], [0.01, 0.9, 0.3]])
    assert bandits.stopped(gain, bound).tolist() == calls


@settings(max_examples=50)
@given(seed=st.integers(0, 999), share=st.floats(0.3, 1))
def test_a_bound_keeps_to_its_share_of_calls_and_is_the_smallest_that_does(seed, share):
    gain = torch.from_numpy(np.random.default_rng(seed).random((5, 40)) ** 3 * 0.16)

    def asked(bound):
        return np.mean([next((c for c in range(4) if gain[c, n] < bound), 4) for n in range(40)]) / 4

    cheap = [bound for bound in bandits.BOUNDS if asked(bound) <= share]
    if cheap:
        assert bandits.thrift(bandits.Spent(None, gain), share) == min(cheap)
    else:
        with pytest.raises(ValueError, match="share"):
            bandits.thrift(bandits.Spent(None, gain), share)


def test_what_cannot_be_read_says_nothing(ranked, asker):
    """A critic that is never readable leaves the prior; a slate read in part says what its readable part says."""
    ask = asker(2)
    spent = bandits.by_posterior(CONFIG, PRIOR, ranked[0], lambda *asked: (ask(*asked)[0], torch.tensor(False)), 2)
    assert torch.equal(spent.slates[0], spent.slates[2]) and torch.equal(spent.gain[0], spent.gain[2])
    slates, citations = torch.arange(5)[None], torch.tensor([[1, 0, -1, 0, 1]])
    n = SETS[:, :5].sum(1, keepdim=True)
    rate = (n * RECALL * (1 - PRECISION) / PRECISION / (5 - n)).clamp(bandits.UNEXPECTED, 1 - bandits.UNEXPECTED)
    chance = torch.where(SETS[:, :5], RECALL, rate)
    expected = (chance[:, 0] * (1 - chance[:, 2]) * chance[:, 4]).log()
    likelihood = bandits.citation_likelihood(slates, citations, SETS, *QUALITY)[0]
    torch.testing.assert_close(likelihood, expected.double(), rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def critics():
    """Seed, questions and purpose of each critic of `spending`."""
    return []


@pytest.fixture(scope="module")
def spending(critics):
    plain = bandits.asker
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bandits, "asker", lambda *of, **more: critics.append(of[2:5]) or plain(*of, **more))
        return bandits.spend_calls(SETTING, CONFIG, None, 6, 4, repeats=2)


@pytest.mark.parametrize("bound", [0.0, 0.02, 0.1, 1.0, None])  # None: by one who is told
def test_stopping_early_asks_at_most_as_often_and_answers_with_the_slate_it_had(spending, bound):
    told, recall = bound is None, spending.values["posterior"]
    enough = recall == 1 if told else spending.gain < bound
    reached = bandits.informed(spending, 4) if told else bandits.early(spending, [bound] * 2, 4)
    counted = ~np.isnan(reached.values)
    assert np.array_equal(counted, ~np.isnan(reached.calls)) and np.nanmax(reached.calls) <= 4
    for of in np.argwhere(counted).tolist():
        calls = [next((c for c in range(4) if enough[(c, critic, *of)]), 4) for critic in range(2)]
        assert reached.calls[*of] == np.mean(calls)
        assert reached.values[*of] == np.mean([recall[(c, critic, *of)] for critic, c in enumerate(calls)])
    assert bound != 1.0 or np.nanmax(reached.calls) == 0
    assert not told or np.nanmean(reached.values) >= np.nanmean(recall[4])


def test_nothing_is_fitted_to_evaluation_questions(found, spending, critics):
    fitted = [questions for _, questions, purpose in critics if purpose == "train"]
    for seed, part in enumerate(fitted):
        train, evaluation = split(found.scopes, SETTING, seed)
        assert set(part) <= set(train) - set(evaluation)
    assert spending.values["posterior"].shape == (7, 2, 2, len(spending.queries[0])) == spending.gain.shape
    assert [practice.gain.shape for practice in spending.practice] == [(5, len(part)) for part in fitted]
    static = runs.answers(SETTING, "retriever").values[:1]
    assert equal(spending.reached("posterior", 0), static) and equal(spending.reached(bandits.CONTROL, 0), static)


@pytest.fixture(scope="module")
def taught():
    """Weights of the adapters of each rate, trained on all training questions and on four fifths of them."""
    configs = [CONFIG.model_copy(update=rate) for rate in RATES]
    return [[runs.trained_weights(one, config) for config in configs] for one in (SETTING, KEPT_APART)]


@pytest.fixture(scope="module")
def trained():
    return bandits.spend_calls(SETTING, CONFIG, RATES, 4, 4, repeats=2)


def test_each_seed_s_ranking_is_that_of_its_own_adapter_with_the_rate_it_chose(found, taught, trained):
    answered = runs.answers(SETTING, "ear_adapter", RATES)
    assert equal(trained.reached(bandits.CONTROL, 0), answered.values[:1])
    reached, queries = {}, trained.queries[[1]]
    for seed, rate in itertools.product(range(2), range(2)):
        scores, _ = bandits.scored(found, taught[0][rate][:, [seed]], queries[0])
        reached[seed, rate] = measures.measure(found, queries, best(scores, 5)[None])[0, 0]
    own = reached.pop((1, 1))
    assert equal(trained.reached("posterior", 0)[0, 1], own)
    assert not any(equal(own, other) for other in reached.values())


def test_what_is_practised_is_ranked_by_an_adapter_that_was_not_taught_it(found, taught, trained):
    """Its prior from the one pass of answers, its calls from another: the critic errs independently."""
    for seed, practice in enumerate(trained.practice):
        part = split(found.scopes, KEPT_APART, seed)[1]
        ask_of = partial(bandits.asker, CONFIG, found.gold, seed, part)
        for weights, own in ((taught[1], True), (taught[0], False)):
            scores, _ = bandits.scored(found, weights[seed][:, [seed]], part)
            shown, ask = best(scores, CONFIG.depth).split(5, dim=-1), ask_of("train", 4)
            prior = bandits.fit_prior(scores, [(one, ask(c, one)[0]) for c, one in enumerate(shown)], *QUALITY)
            for purpose in ("test", "train"):
                again = bandits.by_posterior(CONFIG, prior, scores, ask_of(purpose, 4), 4)
                assert torch.equal(again.gain, practice.gain) == (own and purpose == "test")


def test_every_seed_and_repeat_has_errors_of_its_own(spending, critics):
    evaluated = [seed for seed, _, purpose in critics if purpose == "test"]
    assert evaluated == [0, 0, 2, 1, 1, 3]  # practice, then each repeat, whose critic all bandits ask
    for bandit in bandits.BANDITS:
        first, second = spending.values[bandit][2, :, 0]
        assert not equal(first, second)
        assert equal(spending.reached(bandit, 2)[0], spending.values[bandit][2].mean(0))


@pytest.mark.parametrize("given", [{"calls": 3}, {"repeats": 0}])
def test_too_few_calls_or_critics_are_named(given):
    ((name, value),) = given.items()
    with pytest.raises(ValueError, match=f"{name} = {value}: expected at least"):
        bandits.spend_calls(SETTING, CONFIG, None, **{"calls": 4, "most": 4, **given})


def test_one_seed_is_enough(trained):
    """The results of seed 0 with its first critic depend on no other seed or critic."""
    alone = bandits.spend_calls(SETTING.model_copy(update={"seeds": 1}), CONFIG, RATES[:1], 4, 4)
    assert all(equal(alone.values[name][:, 0, 0], trained.values[name][:, 0, 0]) for name in bandits.BANDITS)


@pytest.mark.parametrize("errors", ["global", "persistent"])
def test_a_critic_may_err_in_every_way(errors):
    spent = bandits.spend_calls(SETTING, CONFIG, None, 2, 2, critic=CONFIG.model_copy(update={"errors": errors}))
    assert np.nanmean(spent.values["posterior"][2]) > np.nanmean(spent.values["posterior"][0])


def test_a_critic_that_errs_otherwise_changes_what_is_asked_of_it_alone(spending):
    worse = bandits.spend_calls(SETTING, CONFIG, None, 6, 4, 2, CONFIG.model_copy(update={"recall": 20.0}))
    before, after = spending.values, worse.values
    assert all(equal(before[name][0], after[name][0]) for name in bandits.BANDITS)
    assert np.nanmean(after["posterior"][4]) < np.nanmean(before["posterior"][4])
