"""One parameter moves training to another device; what it learns stays the same but for rounding."""

import dataclasses

import numpy as np
import pytest
import torch
from test_encoders import checkpoint, tiny  # noqa: F401 (fixtures)
from torch.nn.functional import normalize

from earlib import devices, records
from earlib.core import captured, randomness
from earlib.core.config import VARIANTS, Config
from earlib.core.critic import SimulatedCritic
from earlib.core.learner import Learner
from earlib.data import embedding, encoders
from earlib.data.candidates import Candidates
from earlib.experiments import critic_quality, measures, runs
from earlib.experiments.settings import Setting

N, K, D, SEEDS = 120, 20, 32, (0, 1, 2)
TRAINED = [name for name, variant in VARIANTS.items() if variant.learns and not variant.changes.get("side")]
RECORDED = [(name, {}) for name in TRAINED] + [
    ("ear", changes)
    for changes in (
        {"replay_choice": "random"},
        {"replay_choice": "random", "replay_current": True},
        {"replay_choice": "reward"},
        {"replay_current": True, "batch_size": 1},
        {"objective": "softmax", "unseen": "left out"},
        {"optimizer": "sgd", "learning_rate": 1.0},
    )
]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def found():
    """Candidates whose gold is found by a linear map that the retriever does not know."""
    rng = torch.Generator().manual_seed(0)

    def unit(*shape):
        return normalize(torch.randn(*shape, generator=rng, dtype=torch.float64), dim=-1)

    bank, turn = unit(400, D), torch.linalg.qr(torch.randn(D, D, generator=rng, dtype=torch.float64)).Q
    gold_rows = torch.randint(400, (N,), generator=rng)
    query = normalize(bank[gold_rows] @ (torch.eye(D) + 0.7 * turn) + 0.05 * unit(N, D), dim=-1)
    index = (query @ bank.T).topk(K).indices
    gold = index == gold_rows[:, None]
    ids = tuple(map(str, range(N)))
    return Candidates(query, bank, index, gold, torch.ones(N, dtype=torch.int64), ids, (), (), ids, (), {})


def prepared(found, name, dtype, device, seeds=SEEDS, kinds=(Learner,), **changes):
    """The candidates on a device, an order of them for each seed, and a learner of each kind."""
    config, there = Config(**{**VARIANTS[name].changes, **changes}), found.to(torch.device(device))
    order = torch.stack([torch.from_numpy(np.random.default_rng(seed).permutation(N)) for seed in seeds]).to(device)
    gold = randomness.shuffled(there.gold, seeds) if config.errors == "shuffled" else there.gold
    return there, order, *(kind(config, there, SimulatedCritic(config, gold), seeds, dtype) for kind in kinds)


def updates(found, name, dtype=torch.float64, device="cpu", seeds=SEEDS, **changes):
    """A learner, its steps over all but the last forty questions, its slates for those, and their measures."""
    there, order, learner = prepared(found, name, dtype, device, seeds, **changes)
    train, kept = order[:, :-40], order[:, -40:]
    steps = list(learner.train(train))
    slates = learner.retrieve(kept, VARIANTS[name].explorer)
    return learner, steps, slates, measures.measure(there, kept, slates)


def assert_same_steps(steps, others):
    """Slates, citations and replays are equal, and losses up to rounding."""
    for a, b in zip(steps, others, strict=True):
        ours, theirs = ([one.exploration.slates, one.exploration.citations, *one[2:]] for one in (a, b))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9, check_device=False)


@needs_gpu
@pytest.mark.parametrize("name", TRAINED)
def test_the_first_updates_are_those_of_the_processor(found, name):
    here, there = (updates(found, name, device=device) for device in ("cpu", "cuda"))
    assert_same_steps(here[1][:12], there[1][:12])
    ours, theirs = here[0].adapter.parameters, there[0].adapter.parameters
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6, check_device=False)


@needs_gpu
@pytest.mark.parametrize("name", TRAINED)
def test_the_final_measures_lie_within_the_seeds_spread(found, name):
    seeds = tuple(range(6))
    here, there = (updates(found, name, torch.float32, device, seeds)[3] for device in ("cpu", "cuda"))
    by_seed = np.nanmean(here[0], -1), np.nanmean(there[0], -1)
    assert abs(by_seed[0].mean() - by_seed[1].mean()) <= max(by_seed[0].std(), 1 / 40)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
@pytest.mark.parametrize("name, changes", RECORDED)
def test_recorded_updates_are_those_of_the_learner(found, name, changes, device):
    kinds = Learner, captured.CapturedLearner
    _, order, *learners = prepared(found, name, torch.float64, device, kinds=kinds, **changes)
    for part in order[:, :59].split([30, 29], 1):  # the second one goes on, and each ends with a batch of its own size
        plain, recorded = ([*one.train(part)] for one in learners)
        assert [step.seen for step in plain] == [step.seen for step in recorded]
        assert_same_steps(plain, recorded)
    ours, theirs = ([*one.parameters, *vars(one.buffer).values()] for one in learners)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(a, torch.Tensor):
            a, b = (one[:, :59] if one.dim() > 1 else one for one in (a, b))
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    assert learners[0].retrieve(order[:, :9], explorer=True).equal(learners[1].retrieve(order[:, :9], explorer=True))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_a_recorded_update_that_diverges_is_refused(found, device):
    config, there, said = Config(), found.to(torch.device(device)), []
    for kind in (Learner, captured.CapturedLearner):
        learner = kind(config, there, SimulatedCritic(config, there.gold), SEEDS)
        steps = learner.train(torch.arange(N, device=device).expand(len(SEEDS), N))
        assert [next(steps).seen for _ in range(4)] == [4, 8, 12, 16]
        learner.adapter.parameters[0].data.fill_(torch.nan)
        with pytest.raises(FloatingPointError) as error:
            next(steps)
        said.append(str(error.value))
    assert said[0] == said[1] and "after 16 queries: scores not finite" in said[0]


def test_updates_are_recorded_where_tensors_and_critic_are_on_a_gpu(found):
    there = "cuda" if torch.cuda.is_available() else "cpu"
    config, moved = Config(), found.to(torch.device(there))
    simulated = captured.learner(config, moved, SimulatedCritic(config, moved.gold), (0,))
    assert isinstance(simulated, captured.CapturedLearner) == (there == "cuda")
    assert type(captured.learner(config, moved, lambda *asked: None, (0,))) is Learner


@needs_gpu
def test_a_run_takes_the_device_as_one_parameter(monkeypatch, tmp_path):
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path))
    results = [runs.run(Setting(dataset="toy", device=device), Config()) for device in ("cpu", "cuda")]
    here, there = (np.nanmean(result.explorer[0], -1) for result in results)
    assert abs(here.mean() - there.mean()) <= max(here.std(), 0.03)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_citations_are_counted_where_an_adapter_learns(device):
    setting = Setting(dataset="toy", device=device, seeds=2, train_queries=8)
    taught = critic_quality.teach(setting, Config(precision=100, recall=100), assisted=3)
    assert (taught.quality.precision == 100).all() and taught.assisted.shape == (3, 2, 3)


def test_candidates_move_whole(found):
    moved = dataclasses.replace(found, gold_in_store={"dialogue": found.gold_count}).to(torch.device("meta"))
    tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 5 and all(one.device.type == "meta" for one in tensors)
    assert moved.gold_in_store["dialogue"].device.type == "meta" and moved.ids == found.ids
    assert found.to(torch.device("cpu")).fingerprint() == found.fingerprint()


def test_the_environment_names_the_device_of_all_that_name_none(monkeypatch):
    assert Setting().device == "cpu" and "device" not in records.provenance("a", "b")
    monkeypatch.setenv("EARLIB_DEVICE", "cuda:1")
    assert Setting().device == "cuda:1" and Setting(device="cpu").device == "cpu"
    assert records.provenance("a", "b")["device"] == "cuda:1"
    monkeypatch.setenv("EARLIB_DEVICE", "tpu")
    with pytest.raises(ValueError, match="device: expected cpu, cuda or cuda:N, got 'tpu'"):
        Setting()
    with pytest.raises(ValueError, match="device: expected cpu, cuda or cuda:N, got 'gpu'"):
        encoders.encode(["cat"], device="gpu")


def test_a_device_that_is_missing_is_named_before_anything_is_computed(tiny):  # noqa: F811
    setting = Setting(dataset="toy", encoder="tiny", device=f"cuda:{torch.cuda.device_count()}")
    with pytest.raises(ValueError, match="this machine offers .*EARLIB_DEVICE=cpu"):
        runs.run(setting, Config())
    assert devices.ready("cpu").type == "cpu" and encoders.encode(["dog"], "tiny", device="cpu").shape == (1, 32)


@needs_gpu
def test_a_real_lack_of_memory_is_survived(tiny):  # noqa: F811
    model, texts = embedding.Embedder(tiny, "cuda"), ["red cat " * 30] * 4096
    (expected,) = model([texts], "")
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + 2e7) / total)
    try:
        model.tokens = before = 2**20
        (found,) = model([texts], "")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert model.tokens < before
    np.testing.assert_allclose(found, expected, atol=1e-5)
