"""The batched core against the plain transcription of the paper, along whole trajectories."""

from itertools import count, product
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, get_args, get_origin

import pytest
import reference
import torch
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from earlib.core import randomness
from earlib.core.adapter import Adapter, plain_scores, start
from earlib.core.config import VARIANTS, Config
from earlib.core.critic import SimulatedCritic
from earlib.core.explorer import select_slate
from earlib.core.learner import Learner
from earlib.core.objective import listwise_loss
from earlib.core.ordering import best, shared

SMALL = {"depth": 8, "slate_size": 3, "rounds": 3, "replay_size": 3, "batch_size": 2, "learning_rate": 0.02}
TABLE = yaml.safe_load(Path(__file__).with_name("trajectories.yaml").read_text())


def small(name="EAR", **changes):
    """A configuration of the table, or an own one, at the size of these tests."""
    options = {**TABLE[name], **changes}
    variant = options.pop("variant", "ear_adapter")
    return Config(**{**SMALL, **VARIANTS[variant].changes, **options})


def problem(seed, queries=30, memories=60, depth=8, width=8, dtype=torch.float64):
    """Random unit embeddings; candidates overlap between queries, and some queries have no gold."""
    rng = torch.Generator().manual_seed(seed)
    bank, query = (normalize(torch.randn(n, width, generator=rng, dtype=dtype), dim=-1) for n in (memories, queries))
    index = torch.stack([torch.randperm(memories, generator=rng)[:depth] for _ in range(queries)])
    gold = torch.rand(queries, depth, generator=rng) < 0.2
    side = torch.rand(queries, depth, generator=rng, dtype=dtype)
    return SimpleNamespace(query=query, bank=bank, index=index, gold=gold, side=side)


def orders(seeds, queries, length):
    """Every query comes several times, in an order of its own for each seed."""
    return torch.stack([torch.randint(queries, (length,), generator=torch.Generator().manual_seed(s)) for s in seeds])


def named(uniforms, replica):
    """One replica's uniforms under the reference's names."""
    return {name: u[replica] for name, u in uniforms._asdict().items() if u is not None}


def both(config, found, seeds, order, readable=None):
    """Train core and reference on the same numbers; the core's steps and the reference's trajectories."""
    shuffled = config.errors == "shuffled"
    told = randomness.shuffled(found.gold, seeds) if shuffled else found.gold.repeat(len(seeds), 1, 1)
    critic = SimulatedCritic(config, told, calibration=order if config.errors == "global" else None)
    calls = count()

    def ask(queries, slates, uniforms):  # batch by batch, round by round
        citations, every = critic(queries, slates, uniforms)
        batch, t = divmod(next(calls), config.rounds)
        first = batch * config.batch_size
        return citations, every if readable is None else readable[:, first : first + queries.shape[1], t]

    learner = Learner(config, found, ask, seeds, found.bank.dtype)
    uniforms = randomness.draw(config, seeds, order, found.index.shape[1], len(found.query), "train")
    start = [[W[r].detach().clone() for W in learner.adapter.parameters] for r in range(len(seeds))]
    rates = critic.rate.flatten().tolist() if config.errors == "global" else [None] * len(seeds)
    steps = []
    for step in learner.train(order, uniforms):
        gradients = [W.grad.clone() for W in learner.adapter.parameters]
        steps.append((step, gradients, [W.detach().clone() for W in learner.adapter.parameters]))
    memory, plain = found.bank[found.index], []
    for r, read in enumerate([None] * len(seeds) if readable is None else readable):
        given = found.query, memory, told[r], order[r].tolist(), named(uniforms, r), *start[r]
        plain.append(reference.train(config, *given, rates[r], read, found.side))
    return learner, steps, plain, rates, told


def assert_same(steps, plain, tolerance=1e-9):
    """Every choice of an update is the reference's; losses, gradients and adapters up to rounding."""
    close = {"rtol": tolerance, "atol": tolerance}
    for r, expected in enumerate(plain):
        for number, (step, gradients, weights) in enumerate(steps):
            batch = slice(step.seen - step.exploration.slates.shape[1], step.seen)
            assert step.exploration.slates[r].tolist() == expected.slates[batch], number
            assert step.exploration.citations[r].tolist() == expected.citations[batch], number
            assert step.replayed[r].tolist() == expected.replayed[batch], number
            assert step.replay_slates[r].tolist() == expected.replay_slates[batch], number
            losses = step.current_loss[r].item(), step.replay_loss[r].item()
            assert losses == pytest.approx(expected.losses[number], rel=tolerance, abs=tolerance)
            torch.testing.assert_close([W[r] for W in gradients], [*expected.gradients[number]], **close)
            torch.testing.assert_close([W[r] for W in weights], [*expected.weights[number]], **close)


def trained(config, found, seeds, order, dtype=torch.float64):
    """Slates of training, Explorer-assisted slates of all queries, and the adapter's parameters."""
    critic = SimulatedCritic(config, found.gold, calibration=order)
    learner = Learner(config, found, critic, seeds, dtype)
    slates = torch.cat([step.exploration.slates for step in learner.train(order)], 1)
    queries = torch.arange(len(found.query)).expand(len(seeds), -1)
    return slates, learner.retrieve(queries, explorer=True), *learner.adapter.parameters


@pytest.mark.parametrize("name", TABLE)
def test_trajectory_is_the_reference_s(name):
    config = small(name)
    found, seeds = problem(1), (3, 11)
    order = orders(seeds, len(found.query), 30 * config.batch_size + (config.batch_size > 1))
    learner, steps, plain, rates, told = both(config, found, seeds, order)
    assert len(steps) >= 30
    assert_same(steps, plain)

    queries = torch.arange(len(found.query)).expand(len(seeds), -1)
    noise = randomness.draw(config, seeds, queries, config.depth, len(found.query), "test")
    for explorer in (False, True):
        slates = learner.retrieve(queries, explorer, noise)
        for r, x in product(range(len(seeds)), range(len(found.query))):
            asked = reference.question(found.query[x], found.bank[found.index[x]], told[r, x], found.side[x])
            u = noise.critic[r, x] if explorer else None
            h = reference.beside(config, global_rate=rates[r])
            expected = reference.retrieve(h, plain[r].weights[-1], asked, u, noise.slate[r, x, 0])
            assert slates[r, x].tolist() == expected


@pytest.mark.parametrize("name", ["EAR", "RMM", "only the Explorer", "only the buffer"])
def test_the_annotated_notebook_as_it_stands_is_the_core(name):
    """Without the readings of reference.py: slates, citations, losses, weights, and the slates that answer."""
    config, alone = small(name, batch_size=4), reference.transcription()
    found, seed = problem(7), 5
    order = orders((seed,), len(found.query), 61)
    learner, steps, _, _, _ = both(config, found, (seed,), order)
    drawn = randomness.draw(config, (seed,), order, config.depth, len(found.query), "train")
    asked = list(map(reference.question, found.query, found.bank[found.index], found.gold))
    uniforms = {"replay": torch.zeros(len(order[0]), 0)} | named(drawn, 0)
    stream = [(asked[x], {name: u[n] for name, u in uniforms.items()}) for n, x in enumerate(order[0])]
    W = [torch.zeros(2 * found.query.shape[1:], dtype=torch.float64, requires_grad=True) for _ in "qm"]
    for (step, _, weights), (batch, losses) in zip(steps, alone.train(config, W, stream), strict=True):
        assert step.exploration.slates[0].tolist() == [e.slates for e in batch]
        assert step.exploration.citations[0].tolist() == [[y.tolist() for y in e.citations] for e in batch]
        assert step.replay_slates[0].tolist() == [e.replay_slates for e in batch]
        assert losses == pytest.approx((step.current_loss.item(), step.replay_loss.item()), abs=1e-12)
        torch.testing.assert_close([one[0] for one in weights], [one.detach() for one in W], rtol=1e-9, atol=1e-12)
    queries = torch.arange(len(asked))[None]
    noise = randomness.draw(config, (seed,), queries, config.depth, len(asked), "test")
    for explorer in (False, True):
        critic = noise.critic[0] if explorer else [None] * len(asked)
        expected = [alone.retrieve(config, W, x, u) for x, u in zip(asked, critic, strict=True)]
        assert learner.retrieve(queries, explorer, noise)[0].tolist() == expected


@pytest.mark.parametrize("name", ["EAR", "RMM", "cited first", "reward replay", "statistics reset"])
def test_equal_memories_tie_as_in_the_reference(name):
    config = small(name)
    found, seeds = problem(2), (3, 11)
    found.bank = found.bank[torch.arange(len(found.bank)) // 4 * 4]  # each embedding four times
    assert len(shared(found.bank, found.index).unique()) == len(found.bank) // 4
    order = orders(seeds, len(found.query), 40)
    _, steps, plain, _, _ = both(config, found, seeds, order)
    assert_same(steps, plain)


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=12), st.integers(0, 2**32 - 1), st.sampled_from([32, 64]))
def test_scores_that_differ_by_rounding_alone_tie(steps, seed, bits):
    dtype, step, error = (torch.float64, 1e-9, 1e-13) if bits == 64 else (torch.float32, 1e-5, 1e-7)
    exact = torch.tensor(steps).double() * step
    noise = torch.rand(len(steps), generator=torch.Generator().manual_seed(seed)).double() - 0.5
    expected = sorted(range(len(steps)), key=lambda i: (-steps[i], i))
    assert best((exact + error * noise).to(dtype), len(steps)).tolist() == expected


@pytest.mark.parametrize("normalise", [True, False])
def test_fused_scores_and_gradients_are_the_plain_ones(normalise):
    rng = torch.Generator().manual_seed(0)
    query, memory, toward = (torch.randn(2, n, 6, generator=rng, dtype=torch.float64) for n in (3, 9, 3))
    start = 0.3 * torch.randn(2, 2, 6, 6, generator=rng, dtype=torch.float64)
    adapter, toward = Adapter(start, normalise=normalise, dtype=torch.float64), toward @ memory.mT  # any gradient

    def fused(W_q, W_m):
        adapter.parameters = [W_q, W_m]
        return adapter.score(query, memory)[0]

    weights, gradients = [[W.clone().requires_grad_() for W in start] for _ in range(2)], []
    scores = fused(*weights[0]), plain_scores(*weights[1], query, memory, normalise)
    torch.testing.assert_close(*scores, rtol=0, atol=1e-12)
    for one, parameters in zip(scores, weights, strict=True):
        gradients.append(torch.autograd.grad((one * toward).sum(), parameters))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-10)
    assert torch.autograd.gradcheck(fused, weights[0])


READINGS = {
    name: st.sampled_from(get_args(field.annotation))
    for name, field in Config.model_fields.items()
    if get_origin(field.annotation) is Literal and name not in ("adapter", "test_slate")
}
FIELDS = READINGS | {
    "normalise": st.booleans(),
    "rounds": st.integers(1, 4),
    "softmax_temperature": st.sampled_from([0.1, 1.0, 2.0]),
    "replay_size": st.integers(0, 4),
    "replay_current": st.booleans(),
    "batch_size": st.integers(1, 5),
    "slate_size": st.integers(1, 8),
    "side": st.sampled_from([0.0, 0.3, 2.0]),
}


@settings(max_examples=40, deadline=None)
@given(options=st.fixed_dictionaries({}, optional=FIELDS), masked=st.booleans(), seed=st.integers(0, 99))
def test_any_combination_is_the_reference_s(options, masked, seed):
    assume(not (options.get("replay_current") and options.get("replay_choice") == "reward"))
    config = small(**options)
    found, seeds, length = problem(seed), (seed,), 13
    order = orders(seeds, len(found.query), length)
    rng = torch.Generator().manual_seed(seed)
    shown = config.depth if config.training_slates == "all" else config.slate_size
    readable = torch.rand(1, length, config.rounds, shown, generator=rng) < 0.6 if masked else None
    _, steps, plain, *_ = both(config, found, seeds, order, readable)
    assert_same(steps, plain)


def test_the_printed_baseline_learns_by_the_formulas_of_rmm():
    """Its loss is a mean over the slate and RMM's a sum, so that its rate is s times as large for the same step."""
    config = small(variant="rmm_printed_p", optimizer="sgd", batch_size=1, learning_rate=0.3, init="normal")
    found, seeds, length = problem(9), (4,), 25
    order = orders(seeds, len(found.query), length)
    learner, steps, _, _, _ = both(config, found, seeds, order)
    uniforms = randomness.draw(config, seeds, order, config.depth, len(found.query), "train")
    weights = [W[0].double() for W in start(config, seeds, found.query.shape[1])]
    for n, (step, _, after) in enumerate(steps):
        x = order[0, n]
        said = step.exploration.citations[0, 0, 0].tolist()
        given = found.query[x], found.bank[found.index[x]], uniforms.slate[0, n, 0], lambda slate: said  # noqa: B023
        slate, *weights = reference.rmm_update(*weights, *given, config.slate_size, eta=0.3 / config.slate_size)
        assert step.exploration.slates[0, 0, 0].tolist() == slate
        torch.testing.assert_close([W[0] for W in after], weights, rtol=1e-9, atol=1e-12)
    assert (weights[0] - learner.adapter.parameters[0][0].detach()).abs().max() < 1e-9 < weights[0].std()


def test_under_the_defaults_the_gumbel_temperature_acts_nowhere():
    """Appendix A.1 prints tau = 0.5; it enters where a slate is drawn, or p is taken, after a division by it."""
    found, seeds = problem(5), (0,)
    order = orders(seeds, len(found.query), 40)

    def differ(**changes):
        one, other = (trained(small(**changes, temperature=tau), found, seeds, order) for tau in (0.5, 3.0))
        return any(not torch.equal(*parts) for parts in zip(one, other, strict=True))

    assert not any(differ(variant=name) for name in ("rmm", "explorer_training", "buffer_training", "ear"))
    assert differ(variant="rmm_printed_p") and differ(replay_slate="scaled") and differ(replay_slate="softmax")


def test_one_update_in_float32_is_the_reference_s():
    config = small(optimizer="sgd", learning_rate=1.0)
    found = problem(2, width=64)
    order = orders((5,), len(found.query), 8)
    single = SimpleNamespace(**{**vars(found), "query": found.query.float(), "bank": found.bank.float()})
    _, steps, *_ = both(config, single, (5,), order[:, :4])
    _, _, plain, *_ = both(config, found, (5,), order[:, :4])
    step, _, weights = steps[0]
    assert step.exploration.slates[0].tolist() == plain[0].slates[:2]
    torch.testing.assert_close([W[0].double() for W in weights], [*plain[0].weights[0]], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["EAR", "RMM", "random replay", "persistent errors", "global false positives"])
def test_a_seed_is_the_same_alone_as_among_five(name):
    config = small(name)
    found, seeds = problem(3), (0, 1, 2, 3, 4)
    order = orders(seeds, len(found.query), 60)

    among, alone = trained(config, found, seeds, order), trained(config, found, (2,), order[[2]])
    assert torch.equal(among[0][2], alone[0][0])
    assert torch.equal(among[1][2], alone[1][0])
    torch.testing.assert_close(among[3][2], alone[3][0], rtol=1e-12, atol=1e-14)


FORMS = ("full", "low-rank", "diagonal", "query")


@pytest.mark.parametrize("kind", FORMS)
def test_an_untrained_adapter_ranks_as_the_retriever(kind):
    found = problem(4)
    similarity = torch.einsum("nd,nkd->nk", found.query, found.bank[found.index])
    learner = Learner(small(adapter=kind, learned_side=True), found, None, (0,), torch.float64)
    queries = torch.arange(len(found.query))[None]
    expected = similarity.argsort(-1, descending=True)[None, :, : SMALL["slate_size"]]
    assert torch.equal(learner.retrieve(queries), expected)


@pytest.mark.parametrize("kind", FORMS[1:])
def test_an_adapter_of_another_form_learns_by_the_gradient_of_its_matrices(kind):
    """One plain step of its parameters is the chain rule over the gradient of the full matrices, here by hand."""
    config = small(optimizer="sgd", learning_rate=0.5, adapter=kind, rank=2)
    found, seeds = problem(6), (0, 7)
    order = orders(seeds, len(found.query), 2)
    critic = SimulatedCritic(config, found.gold)
    full = Learner(config.model_copy(update={"adapter": "full"}), found, critic, seeds, torch.float64)
    other = Learner(config, found, critic, seeds, torch.float64)
    before = [part.detach().clone() for part in other.adapter.parameters]
    next(full.train(order)), next(other.train(order))
    G_q, G_m = (W.grad for W in full.adapter.parameters)
    after = [part.detach() for part in other.adapter.parameters]
    if kind == "low-rank":  # B starts at zero: A stays, B moves along G A'
        expected = [*before[:2], *(-0.5 * G @ A.mT for G, A in zip((G_q, G_m), before[:2], strict=True))]
    elif kind == "diagonal":
        expected = [-0.5 * G.diagonal(dim1=-2, dim2=-1) for G in (G_q, G_m)]
    else:
        expected = [-0.5 * G_q]
    assert G_q.abs().max() > 1e-4
    torch.testing.assert_close(after, expected, rtol=1e-9, atol=1e-12)
    W_q, W_m = (W.detach() for W in other.adapter.matrices)
    assert W_q.shape == W_m.shape == (2, 8, 8)
    assert torch.linalg.matrix_rank(W_q).max() <= (2 if kind == "low-rank" else 8)
    assert (W_m == 0).all() or kind != "query"


def test_the_start_of_a_low_rank_adapter_is_a_seed_s_own():
    config = Config(adapter="low-rank", rank=3)
    among, alone = start(config, (0, 4), 5), start(config, (4,), 5)
    assert all(torch.equal(one[[1]], other) for one, other in zip(among, alone, strict=True))
    assert not torch.equal(among[0][0], among[0][1])
    with pytest.raises(ValueError, match="init = normal: expected with a full adapter, not low-rank"):
        Config(adapter="low-rank", init="normal")
    with pytest.raises(ValueError, match="side_start = 0.1: expected 0 where no weight is learned"):
        Config(side_start=0.1)


@pytest.mark.parametrize(("rank", "dimension"), [(16, 400), (64, 100)])
def test_a_low_rank_adapter_starts_at_the_scale_of_its_width(rank, dimension):
    """A keeps the length of what it is applied to, up to the share r / d of the directions; B is zero."""
    *directions, B_q, B_m = start(Config(adapter="low-rank", rank=rank), (0, 1), dimension)
    assert not torch.equal(*directions) and not B_q.any() and not B_m.any()
    for A in directions:
        assert A.shape == (2, rank, dimension)
        assert A.std().item() == pytest.approx(dimension**-0.5, rel=0.03)
        assert abs(A.mean().item()) < 0.05 * dimension**-0.5


@pytest.mark.parametrize("start", [0.0, 0.3])
def test_a_learned_term_follows_its_gradient(start):
    """The weight w of side information: one plain step by finite differences of the loss, and scores that show it."""
    config = small(replay_size=0, optimizer="sgd", learned_side=True, side_rate=0.5, side_start=start)
    found = problem(7)
    order = orders((0,), len(found.query), 2)
    learner = Learner(config, found, SimulatedCritic(config, found.gold), (0,), torch.float64)
    step = next(learner.train(order))
    z = torch.einsum("qd,qkd->qk", found.query[order[0]], found.bank[found.index[order[0]]])

    def loss(w):
        scores = (z + w * found.side[order[0]])[None]
        return learner._current_loss(scores, step.exploration, None).item()

    slope = (loss(start + 1e-6) - loss(start - 1e-6)) / 2e-6
    assert abs(slope) > 1e-3
    assert learner.side_weight.item() == pytest.approx(start - 0.5 * slope, rel=1e-6)
    scores, *_ = learner._score(order)
    untold = learner.side_weight.detach() * found.side[order[0]]
    bare, *_ = learner.adapter.score(found.query[order], found.bank[None])
    torch.testing.assert_close(scores.detach()[0] - untold, bare.detach()[0].gather(1, found.index[order[0]]))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 999), K=st.integers(1, 6), kind=st.sampled_from(["softmax", "contrastive", "logistic"]))
def test_a_listwise_loss_has_finite_gradients_whatever_was_cited(seed, K, kind):
    rng = torch.Generator().manual_seed(seed)
    scores = (20 * torch.randn(3, K, generator=rng)).requires_grad_()
    useful, counted = torch.rand(2, 3, K, generator=rng) < 0.5
    loss = listwise_loss(kind, scores, useful, counted)
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    assert loss.isfinite().all() and gradient.isfinite().all()
    assert (loss[~(useful & counted).any(-1)] == 0).all()
    assert (gradient[~counted] == 0).all()  # what does not count teaches nothing
    if kind != "softmax":  # where two share the mass, the likelier one gives some away
        assert (gradient[useful & counted] <= 0).all()  # what was cited is never pushed down


def test_side_information_without_weight_changes_no_bit():
    config, seeds = small(), (0, 1)
    found = problem(5, dtype=torch.float32)
    order = orders(seeds, len(found.query), 40)

    nowhere = torch.full_like(found.side, torch.nan)
    without, *others = (
        trained(config, SimpleNamespace(**{**vars(found), "side": side}), seeds, order, torch.float32)
        for side in (None, found.side, nowhere)
    )
    assert all(torch.equal(a, b) for other in others for a, b in zip(other, without, strict=True))


def test_side_information_enters_the_value_of_a_candidate():
    """Eq. 7 by hand: nothing shown yet and nothing similar, so that the slate is the order of its first two terms."""
    config = small(slate_size=4, relevance=0.4, side=0.7, diversity=0.0)
    z, p = torch.tensor([0.9, 0.1, 0.5, 0.3]), torch.tensor([0.0, 1.0, 0.2, 0.6])
    value = [0.4 * 0.9, 0.4 * 0.1 + 0.7, 0.4 * 0.5 + 0.14, 0.4 * 0.3 + 0.42]
    nothing = torch.zeros(4)
    slate = select_slate(config, z, torch.eye(4), nothing, nothing, p)
    assert slate.tolist() == sorted(range(4), key=lambda i: -value[i]) == [1, 3, 0, 2]
    assert select_slate(config.model_copy(update={"side": 0.0}), z, torch.eye(4), nothing, nothing, p)[0] == 0


def test_a_weight_without_scores_is_refused():
    found = SimpleNamespace(**{**vars(problem(5)), "side": None})
    with pytest.raises(ValueError, match=r"^side \(lambda_side = 0.3\): the candidates carry no scores"):
        Learner(small(side=0.3), found, None, (0,))
    with pytest.raises(ValueError, match="learned_side: the candidates carry no scores; name a reranker"):
        Learner(small(learned_side=True), found, None, (0,))
