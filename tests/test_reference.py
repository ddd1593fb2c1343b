"""The annotated notebook and its readings in reference.py, checked wherever the paper allows it by other means."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from earlib import paths
from earlib.core.config import Config

SMALL = {"depth": 6, "slate_size": 3, "rounds": 2, "replay_size": 2, "batch_size": 2}
seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=30, deadline=None)


def small(**changes):
    return Config(**{**SMALL, **changes})


def world(config, seed=0, n_queries=6, length=6, d=3, dtype=torch.float64):
    """Arguments of `train` after the configuration: random embeddings, gold, uniforms and adapters."""
    rng = np.random.default_rng(seed)
    K, B, T = config.depth, max(config.replay_size, 1), config.rounds

    def normal(*shape):
        return torch.from_numpy(rng.normal(size=shape)).to(dtype)

    shapes = {"critic": (T, K), "slate": (T, K), "choice": (B,), "replay": (B, K), "draw": (B, K)}
    uniforms = {name: torch.from_numpy(rng.uniform(size=(length, *shape))) for name, shape in shapes.items()}
    order = [i % n_queries for i in range(length)]
    gold = torch.from_numpy(rng.uniform(size=(n_queries, K)) < 0.4)
    return normal(n_queries, d), normal(n_queries, K, d), gold, order, uniforms, 0.3 * normal(d, d), 0.3 * normal(d, d)


def adapted(config, W_q, W_m, query, memories):
    """z and the similarities between candidates, as the reference computes them."""
    return reference.scores(config, (W_q, W_m), reference.question(query, memories, None))


def test_the_notebook_is_plain_and_short_and_has_the_papers_values():
    cells = json.loads((paths.notebooks() / "annotated_ear.ipynb").read_text(encoding="utf-8"))["cells"]
    code = {"reference": [], "seen": [], "folded": []}
    for cell in cells:
        about, kind = cell["metadata"], "seen"
        if cell["cell_type"] == "code":
            if "reference" in about.get("tags", []):
                kind = "reference"
            elif about.get("jupyter") or "parameters" in about.get("tags", []):
                kind = "folded"
            code[kind] += [line for line in map(str.strip, cell["source"]) if line and line[0] not in '#"']
    assert not any("earlib.core" in line for lines in code.values() for line in lines)
    assert not any("earlib" in line for line in code["reference"])
    assert len(code["reference"]) <= 100 and len(code["reference"] + code["seen"]) <= 150
    assert {name: vars(Config())[name] for name in reference.paper.PAPER} == reference.paper.PAPER


# ------------------------------------------------------------------------------------------- gradients and losses


@pytest.mark.parametrize("training_slates, unseen", [("explorer", "negative"), ("gumbel", "left out")])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("likelihood", ["clean", "noisy", "plackett-luce"])
def test_gradient_is_the_slope_of_the_batch_loss(likelihood, normalise, training_slates, unseen):
    # The step is too small to change W, so the loss of the second batch (with replay) is a function of the start.
    options = {"likelihood": likelihood, "normalise": normalise, "training_slates": training_slates, "unseen": unseen}
    config = small(**options, replay_weight=0.7, optimizer="sgd", learning_rate=1e-300)
    *data, W_q, W_m = world(config, n_queries=4, length=4)
    base = reference.train(config, *data, W_q, W_m)
    assert base.losses[1][1] != 0, "the second batch replays"
    slopes, h = torch.zeros(2, 3, 3, dtype=torch.float64), 1e-6

    def total(run):
        return run.losses[1][0] + config.replay_weight * run.losses[1][1]

    for entry in np.ndindex(2, 3, 3):
        step = torch.zeros_like(slopes)
        step[entry] = h
        ends = [reference.train(config, *data, *(torch.stack([W_q, W_m]) + sign * step)) for sign in (+1, -1)]
        assert all((end.slates, end.replay_slates) == (base.slates, base.replay_slates) for end in ends)
        slopes[entry] = (total(ends[0]) - total(ends[1])) / (2 * h)
    assert (slopes.abs().amax((1, 2)) > 1e-3).all()
    torch.testing.assert_close(torch.stack(base.gradients[1]), slopes, rtol=1e-6, atol=1e-7)


def noise(u):
    return -np.log(-np.log(u.numpy()))


def similarities(config, W_q, W_m, query, memories):
    """z and the similarities between candidates, by matrix products."""
    eye = torch.eye(len(query), dtype=query.dtype)
    u, U = (eye + W_q) @ query, memories @ (eye + W_m).T
    if config.normalise:
        u, U = torch.nn.functional.normalize(u, dim=0), torch.nn.functional.normalize(U, dim=1)
    return (U @ u).numpy(), (U @ U.T).numpy()


@pytest.mark.parametrize("normalise", [True, False])
def test_scores(normalise):  # Eqs. 3, 4 and 6
    config = small(normalise=normalise)
    queries, memories, *_, W_q, W_m = world(config)
    given = config, W_q, W_m, queries[0], memories[0]
    for ours, expected in zip(adapted(*given), similarities(*given), strict=True):
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-12, atol=1e-14)


def slate_loss(config, z, slate, y, g):
    if config.likelihood == "plackett-luce":
        logp = [z[i] - np.log(np.exp(np.delete(z, slate[:j])).sum()) for j, i in enumerate(slate)]
    elif config.likelihood == "noisy" and g is not None:
        logp = log_softmax((z + g) / config.temperature)[slate]
    else:
        logp = log_softmax(z)[slate]
    return -np.mean((np.array(y) - config.baseline) * logp)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("training_slates", ["explorer", "gumbel", "random", "all"])
@pytest.mark.parametrize("likelihood", ["clean", "noisy", "plackett-luce"])
def test_losses_follow_from_the_recorded_slates_and_citations(likelihood, training_slates, normalise):
    options = {"likelihood": likelihood, "training_slates": training_slates, "normalise": normalise}
    config = small(**options, replay_weight=0.7, optimizer="sgd", learning_rate=0.1)
    queries, memories, gold, order, uniforms, W_q, W_m = world(config, length=5)  # the last batch is short
    got = reference.train(config, queries, memories, gold, order, uniforms, W_q, W_m)
    for b, weights in enumerate([(W_q, W_m), *got.weights[:-1]]):
        z = [similarities(config, *weights, queries[x], memories[x])[0] for x in order]
        L_cur, L_rep = [], []
        for n in range(2 * b, min(2 * b + 2, 5)):
            g = noise(uniforms["slate"][n]) if training_slates == "gumbel" else [None] * config.rounds
            drawn = {"gumbel": [z[n] + g_t for g_t in g if g_t is not None], "random": noise(uniforms["slate"][n])}
            for S, perturbed in zip(got.slates[n], drawn.get(training_slates, ()), strict=False):
                assert np.argsort(-perturbed)[:3].tolist() == S
            triples = zip(got.slates[n], got.citations[n], g, strict=True)
            L_cur.append(np.mean([slate_loss(config, z[n], S, y, g_t) for S, y, g_t in triples]))
            terms = []
            for k, r in enumerate(got.replayed[n]):
                assert r < 2 * b, "queries of a batch do not replay each other"
                S, g = got.replay_slates[n][k], noise(uniforms["replay"][n, k])
                assert np.argsort(-(z[r] + g))[:3].tolist() == S
                cited = np.zeros(config.depth)
                np.add.at(cited, np.ravel(got.slates[r]), np.ravel(got.citations[r]))
                terms.append(slate_loss(config, z[r], S, np.where(cited > 0, 1, -1)[S], g))
            L_rep.append(np.mean(terms) if terms else 0.0)
        L_cur, L_rep = np.mean(L_cur), np.mean(L_rep)
        assert got.losses[b] == pytest.approx((L_cur, L_rep), abs=1e-12)


# ------------------------------------------------------------------------------------------- Explorer


def random_bandit(seed, K, d=4):
    rng = np.random.default_rng(seed)
    M = torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(K, d))), dim=1)
    return lambda t, slate: torch.from_numpy(rng.choice([-1.0, 1.0], len(slate))), M @ M[0], M @ M.T, rng


@quick
@given(seeds, st.integers(1, 9), st.integers(1, 5), st.data())
def test_incremental_mean_is_the_mean(seed, K, T, data):  # Eq. 9 against Eq. 12
    config = Config(depth=K, slate_size=data.draw(st.integers(1, K)), rounds=T)
    ask, z, gram, rng = random_bandit(seed, K)
    readable = rng.uniform(size=(T, config.slate_size)) < 0.8
    said = [ask(t, range(config.slate_size)) for t in range(T)]
    masked = [y.masked_fill(torch.from_numpy(~read), torch.nan) for y, read in zip(said, readable, strict=True)]
    h = reference.beside(config, readable=readable)
    slates, citations, counts, means = reference.explore(h, z, gram, lambda t, slate: masked[t], T)
    assert all(len(set(slate)) == config.slate_size for slate in slates)
    for i in range(K):
        seen = (np.array(slates) == i) & readable
        assert counts[i] == seen.sum()
        assert means[i] == pytest.approx(np.array(said)[seen].mean() if seen.any() else 0.0, abs=1e-12)
    expected = torch.where(counts > 0, means, torch.nan)
    torch.testing.assert_close(reference.aggregate(config, slates, citations, K), expected, equal_nan=True)


@quick
@given(seeds, st.lists(st.sampled_from([-0.5, 0.0, 0.25, 0.75]), min_size=3, max_size=8))
def test_relevance_alone_is_top_s(seed, z):  # equal scores: the lowest index first
    config = Config(depth=len(z), slate_size=3, diversity=0, exploration=0)
    ask, _, gram, _ = random_bandit(seed, len(z))
    slates, *_ = reference.explore(config, torch.tensor(z), gram, ask, config.rounds)
    assert slates == [np.argsort(-np.array(z), kind="stable")[:3].tolist()] * config.rounds


@pytest.mark.parametrize("gap, second", [(0.8414, 1), (0.8415, 0)])
def test_ucb_by_hand(gap, second):
    # Round 1: N = 0, U = 0, so arm 0 is shown; citation -1, hence N_0 = 1, mu_0 = -1. Round 2, total N = 1:
    #   U_0 = -1 + 0.5 sqrt(log 2 / 2) = -1 + 0.5 * 0.588705 = -0.705647;  U_1 = 0.5 sqrt(log 2) = 0.416277
    #   arm 0 again, if 0.4 (z_0 - z_1) > 0.3 (U_1 - U_0) = 0.3 * 1.121925, that is z_0 - z_1 > 0.841444
    config = Config(depth=2, slate_size=1, rounds=2)
    z = torch.tensor([gap, 0.0], dtype=torch.float64)
    cite = lambda t, slate: torch.tensor([-1.0 if t == 0 else 1.0])  # noqa: E731
    slates, _, counts, means = reference.explore(config, z, torch.eye(2), cite, 2)
    assert slates == [[0], [second]]
    assert (counts.tolist(), means.tolist()) == (([1, 1], [-1, 1]) if second else ([2, 0], [0, 0]))


def test_redundancy_by_hand():
    # After candidate 0: A_1 = 0.4 * 0.8 - 0.3 * 0.9 = 0.05 < A_2 = 0.4 * 0.7 - 0.3 * 0.5 = 0.13. After 2, the larger
    # similarity counts: A_1 as before > A_3 = 0.4 * 0.85 - 0.3 * max(1.0, 0.0) = 0.04, though 3 is unlike 2.
    gram = torch.tensor([[1, 0.9, 0.5, 1.0], [0.9, 1, 0.2, 0], [0.5, 0.2, 1, 0], [1.0, 0, 0, 1]])
    config = Config(depth=4, slate_size=3, rounds=1)
    slates, *_ = reference.explore(config, torch.tensor([0.95, 0.8, 0.7, 0.85]), gram, lambda *_: torch.ones(3), 1)
    assert slates == [[0, 2, 1]]


def test_reset_statistics_show_the_same_slate_every_round():  # Algorithm 2 line 3
    _, z, gram, _ = random_bandit(1, 8)
    for statistics, distinct in ("reset", 1), ("kept", 3):
        config = Config(depth=8, slate_size=2, rounds=3, statistics=statistics)
        slates, _, counts, _ = reference.explore(config, z, gram, lambda t, slate: -torch.ones(2), 3)
        assert len(set(map(tuple, slates))) == distinct
        assert sum(counts) == 6


# ------------------------------------------------------------------------------------------- Critic


def cited(gold, u, slate, **options):
    cite = reference.critic(Config(**options), torch.tensor(gold), torch.tensor([u], dtype=torch.float64))
    return cite(0, slate).tolist()


def test_false_positive_rate_by_hand():
    # n = 2, s = 5: 2 * 0.86 * 0.12 / (3 * 0.88) = 0.2064 / 2.64 = 0.07818182
    gold = [True, True, False, False, False]
    assert cited(gold, [0.5, 0.9, 0.0781818, 0.0781819, 0.9], [0, 1, 2, 3, 4]) == [1, -1, 1, -1, -1]
    # n = 4: 8.03, so that every false positive is cited
    assert cited([True] * 4 + [False], [0.9] * 4 + [0.999999], [0, 1, 2, 3, 4], precision=30.0) == [-1] * 4 + [1]


def test_each_candidate_has_its_own_uniform():
    gold, u = [False, False, False, True, True], [0.99, 0.5, 0.01, 0.86, 0.859]
    # slate 4, 3, 2: n = 2, u = 1, p_fp = 2 * 0.86 * 0.12 / 0.88 = 0.2345
    for slate, expected in ([4, 3, 2], [1, -1, 1]), ([0, 1, 2], [-1, -1, -1]):
        assert cited(gold, u, slate) == expected


# ------------------------------------------------------------------------------------------- Replay


Z = torch.tensor([0.8, 0.1, -0.4, 0.3], dtype=torch.float64)


@pytest.mark.parametrize("reading, tau", [("gumbel", 1.0), ("scaled", 0.25), ("softmax", 0.5)])
def test_replay_slates_are_draws_without_replacement(reading, tau):
    # The Gumbel trick: the top 2 of z / tau + g are a draw without replacement from softmax(z / tau).
    config = Config(depth=4, slate_size=2, replay_slate=reading, temperature=tau)
    u = torch.from_numpy(np.random.default_rng(3).uniform(size=(20_000, 4)))
    pairs, fixed = np.zeros((4, 4)), np.array([0.2, -0.5, 1.0, 0.0]) * (reading == "softmax")
    for row in u:
        first = torch.exp(-torch.exp(-torch.from_numpy(fixed))) if reading == "softmax" else row
        a, b = reference.replay_slate(config, Z, first, row, None)
        pairs[a, b] += 1
    p = softmax((Z.numpy() + fixed) / tau)  # tau is 1 for "gumbel"
    np.testing.assert_allclose(pairs.sum(1) / len(u), p, atol=0.015)
    ordered = p[:, None] * p[None] / (1 - p[:, None])
    np.fill_diagonal(ordered, 0)
    np.testing.assert_allclose(pairs / len(u), ordered, atol=0.015)


def test_temperature_after_the_noise_changes_no_slate():
    u = torch.tensor([0.3, 0.6, 0.9, 0.1])
    for tau in 0.1, 0.5, 2.0:
        config = Config(depth=4, temperature=tau, slate_size=4)
        assert reference.replay_slate(config, Z, u, None, None) == np.argsort(-(Z.numpy() + noise(u))).tolist()


def test_candidates_never_shown():
    u, nan = torch.tensor([0.1, 0.9, 0.95, 0.5]), math.nan
    far_below = Z - torch.tensor([0, 0, 0, 1e6])  # observed all the same
    left_out = Config(depth=4, slate_size=2, unseen="left out")
    assert reference.replay_slate(left_out, far_below, u, None, torch.tensor([nan, nan, nan, 1])) == [3, 0]
    y_bar = torch.tensor([0.5, nan, nan, 0.0])
    for unseen, slate, rewards in ("negative", [2, 1, 3], [-1, -1, -1]), ("left out", [3, 0, 1], [-1, 1, nan]):
        config = Config(depth=4, slate_size=3, unseen=unseen)
        assert reference.replay_slate(config, Z, u, None, y_bar) == slate
        np.testing.assert_equal(reference.replay_reward(config, slate, y_bar).tolist(), rewards)
    # the mean is over the two that remain: -(-1.5 log p_3 + 0.5 log p_0) / 2
    logp = log_softmax(Z.numpy())
    loss = reference.ranking_loss(config, Z, [slate], [torch.tensor(rewards)])
    assert float(loss) == pytest.approx(-(-1.5 * logp[3] + 0.5 * logp[0]) / 2)
    assert float(reference.ranking_loss(config, Z, [slate], [torch.tensor([nan] * 3)])) == 0


def test_aggregated_citations():
    slates = [[0, 1], [1, 2], [1, 0], [3, 0]]
    citations = [torch.tensor(y) for y in ([1.0, 1], [-1.0, -1], [1.0, 1], [math.nan, -1])]
    for reading, expected in ("shown", [1 / 3, 1 / 3, -1]), ("rounds", [1 / 4, 1 / 4, -1 / 4]):  # Eq. 12; Algorithm 1
        y_bar = reference.aggregate(Config(aggregate=reading), slates, citations, 4)
        assert y_bar.tolist() == pytest.approx([*expected, math.nan], nan_ok=True)


def test_choice_of_experiences():
    angles, means = [0.9, 0.2, -0.2, 0.5, 3.0], [0.5, -1.0, 0.1 + 0.2, -1.0, 0.3]
    directions = [torch.tensor([math.cos(a), math.sin(a)]) for a in angles]
    pool = [
        SimpleNamespace(n=n, q=(n + 1) * direction, y_bar=torch.tensor([mean, math.nan]))
        for n, (direction, mean) in enumerate(zip(directions, means, strict=True))
    ]

    def choose(query=(2.0, 0.1), u=None, n=None, **options):
        h = reference.beside(Config(**options), u_choice=u)
        return [e.n for e in reference.similar(h, torch.tensor(query), pool[:n])]

    assert choose(replay_size=3) == [1, 2, 3]  # by cosine, whatever the length
    assert choose(replay_size=4, replay_choice="reward") == [1, 3, 2, 4]  # equal rewards: the earlier first
    assert choose(n=2, replay_size=4) == [1, 0]
    assert choose(n=0) == []
    assert choose(replay_size=0) == []
    # 0.5 * 5 -> index 2; of 0, 1, 3, 4 0.99 * 4 -> index 3; of 0, 1, 3 0.0 -> index 0
    u = torch.tensor([0.5, 0.99, 0.0])
    assert choose(u=u, replay_size=3, replay_choice="random") == [2, 4, 0]
    pool[0].y_bar = torch.full((2,), math.nan)  # nothing of it was read: 0
    assert choose(replay_size=3, replay_choice="reward") == [1, 3, 0]


@pytest.mark.parametrize("choice", ["similarity", "reward", "random"])
def test_who_is_replayed_when(choice):
    config = small(replay_size=3, replay_choice=choice)
    got = reference.train(config, *world(config))
    assert [len(J) for J in got.replayed] == [len(set(J)) for J in got.replayed] == [0, 0, 2, 2, 3, 3]
    with_current = config.model_copy(update={"replay_current": True})
    got = reference.train(with_current, *world(config))
    assert [len(J) for J in got.replayed] == [1, 1, 3, 3, 3, 3]
    assert all(r < n - n % 2 or r == n for n, J in enumerate(got.replayed) for r in J)
    if choice == "similarity":
        assert [J[0] for J in got.replayed] == list(range(6)), "nothing is nearer to a query than itself"


# ------------------------------------------------------------------------------------------- Update and training


@pytest.mark.parametrize("rate", [1e-4, 1e-3, 0.1])
def test_adam_is_the_formula(rate):
    config = small(learning_rate=rate)
    *data, W_q, W_m = world(config)
    got, weights = reference.train(config, *data, W_q, W_m), torch.stack([W_q, W_m])
    first, second = torch.zeros_like(weights), torch.zeros_like(weights)
    for t, (gradients, after) in enumerate(zip(got.gradients, got.weights, strict=True), 1):
        G = torch.stack(gradients)
        first, second = 0.9 * first + 0.1 * G, 0.999 * second + 0.001 * G**2
        weights = weights - rate * (first / (1 - 0.9**t)) / (torch.sqrt(second / (1 - 0.999**t)) + 1e-8)
        torch.testing.assert_close(torch.stack(after), weights, rtol=1e-10, atol=1e-12)


def test_printed_step():
    config = small(batch_size=1, optimizer="sgd", learning_rate=0.5)
    *data, W_q, W_m = world(config)
    got = reference.train(config, *data, W_q, W_m)
    assert len(got.weights) == 6
    before = (W_q, W_m)
    for gradients, after in zip(got.gradients, got.weights, strict=True):
        assert all(torch.equal(V, W - 0.5 * G) for W, G, V in zip(before, gradients, after, strict=True))
        before = after


def test_training_lowers_a_loss_that_can_be_lowered():
    # A perfect critic, one query again and again: the probability of cited memories must rise.
    config = small(batch_size=1, precision=100, recall=100, learning_rate=0.01)
    *data, W_q, W_m = world(config, seed=2, n_queries=1, length=60)
    queries, memories, gold = data[:3]

    def share_of_gold(W_q, W_m):
        z, _ = adapted(config, W_q, W_m, queries[0], memories[0])
        return float(torch.softmax(z, 0)[gold[0]].sum())

    got = reference.train(config, *data, W_q, W_m)
    assert 0 < gold[0].sum() < config.depth
    assert share_of_gold(*got.weights[-1]) > share_of_gold(W_q, W_m) + 0.05


def test_unread_citations_teach_nothing():
    config = small(replay_choice="reward", unseen="left out", optimizer="sgd")
    *data, W_q, W_m = world(config)
    nothing = torch.zeros(6, config.rounds, config.slate_size, dtype=torch.bool)
    got = reference.train(config, *data, W_q, W_m, readable=nothing)
    assert got.losses == [(0, 0)] * 3
    torch.testing.assert_close(got.weights[-1][0], W_q, rtol=0, atol=0)
    assert all(a == b for a, b in got.slates), "no statistics, so the same slate again"
    everything = reference.train(config, *data, W_q, W_m, readable=~nothing)
    assert everything.losses == reference.train(config, *data, W_q, W_m).losses

    first = nothing.clone()
    first[:, 0, 0] = True  # one citation a query: the loss is that term alone
    got = reference.train(config, *data, W_q, W_m, readable=first)
    queries, memories = data[:2]
    terms = []
    for n in (0, 1):
        z, _ = adapted(config, W_q, W_m, queries[n], memories[n])
        terms.append(-(got.citations[n][0][0] - 0.5) * log_softmax(z.numpy())[got.slates[n][0][0]])
    assert got.losses[0][0] == pytest.approx(np.mean(terms))


def test_rmm_shows_one_slate_and_the_last_batch_may_be_short():
    config = small(batch_size=4, replay_size=0, rounds=1, training_slates="gumbel")
    got = reference.train(config, *world(config))
    assert [len(slates) for slates in got.slates] == [1] * 6
    assert [replay for _, replay in got.losses] == [0, 0]
    assert got.multiply_adds == 2 * 6 * (1 + 6) * 3**2


@pytest.mark.parametrize(
    "options, needed",
    [
        ({}, {"replay"}),
        ({"replay_choice": "random"}, {"replay", "choice"}),
        ({"replay_slate": "softmax"}, {"replay", "draw"}),
        ({"training_slates": "gumbel", "replay_size": 0, "replay_choice": "random"}, {"slate"}),
    ],
)
def test_only_the_uniforms_that_are_needed(options, needed):
    config = small(**options)
    *data, uniforms, W_q, W_m = world(config)
    some = {name: uniforms[name] for name in needed | {"critic"}}
    got, all_given = (reference.train(config, *data, given, W_q, W_m) for given in (some, uniforms))
    assert got.losses == all_given.losses
    for name in some:
        with pytest.raises(KeyError, match=name):
            reference.train(config, *data, {other: some[other] for other in some if other != name}, W_q, W_m)


def test_multiply_adds_count_replayed_experiences():
    config = small()
    got = reference.train(config, *world(config))
    assert got.multiply_adds == 2 * (6 + sum(map(len, got.replayed))) * (1 + 6) * 3**2


# ------------------------------------------------------------------------------------------- Inference


def test_inference():
    config = small(rounds=3, precision=100, recall=100)
    queries, memories, gold, _, uniforms, *W = world(config, seed=4)
    for x in range(6):
        asked = reference.question(queries[x], memories[x], gold[x])
        z, gram = adapted(config, *W, queries[x], memories[x])
        ranking = np.argsort(-z.numpy()).tolist()
        assert reference.retrieve(config, W, asked) == ranking[:3]

        u = uniforms["critic"][x]
        slates, _, counts, _ = reference.explore(config, z, gram, reference.critic(config, gold[x], u), 3)
        assert reference.retrieve(config, W, asked, u[:2]) == slates[2]  # T - 1 calls are enough

        after = config.model_copy(update={"test_slate": "after"})
        cited_first = sorted(ranking, key=lambda i: not (gold[x][i] and counts[i]))  # noqa: B023 (called at once)
        assert reference.retrieve(after, W, asked, u) == cited_first[:3]

        noisy = config.model_copy(update={"test_noise": True})
        u_slate = uniforms["slate"][x][0]
        got = reference.retrieve(noisy, W, asked, u_slate=u_slate)
        assert got == np.argsort(-(z.numpy() + noise(u_slate)))[:3].tolist()


def test_one_round_at_test_time_asks_nobody():
    config = small(rounds=1, diversity=0)
    queries, memories, gold, _, _, *W = world(config)
    asked = reference.question(queries[0], memories[0], gold[0])
    assert reference.retrieve(config, W, asked, torch.empty(0, 6)) == reference.retrieve(config, W, asked)
