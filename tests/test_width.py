"""Embeddings rotated into more dimensions: the same scores; under a plain gradient step the same learning."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_devices import TRAINED, assert_same_steps, found, updates  # noqa: F401 (one is a fixture)
from torch.nn.functional import normalize

from earlib.core.config import Config
from earlib.data.candidates import Candidates
from earlib.experiments import runs, settings
from earlib.experiments.settings import Setting

SGD = {"optimizer": "sgd", "learning_rate": 1.0}  # large enough that the plain step moves slates, too


@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 5))
def test_scores_stay_and_candidates_too(d, more, seed):
    rng = torch.Generator().manual_seed(seed)
    query, bank = (normalize(torch.randn(n, d, generator=rng, dtype=torch.float64), dim=-1) for n in (5, 9))
    index = (query @ bank.T).topk(4).indices
    plain = Candidates(query, bank, index, index == 0, torch.ones(5, dtype=torch.int64), (), (), (), ())
    turned = plain.rotated(d + more, seed)
    assert turned.query.shape == (5, d + more) and turned.bank.shape == (9, d + more)
    torch.testing.assert_close(turned.query @ turned.bank.T, query @ bank.T, rtol=0, atol=1e-12)
    assert turned.index is plain.index and turned.gold is plain.gold


def test_the_map_prefers_no_axis_is_its_seeds_own_and_keeps_the_dtype(found):  # noqa: F811
    turned = found.rotated(256)
    again, other = found.rotated(256), found.rotated(256, seed=1)
    assert (turned.bank == again.bank).all() and not torch.allclose(turned.bank, other.bank)
    assert turned.bank.square().mean(0).max() < 20 / 256  # the weight of a row is spread over all axes
    single = dataclasses.replace(found, query=found.query.float(), bank=found.bank.float()).rotated(64)
    assert single.query.dtype == single.bank.dtype == torch.float32


def test_fewer_dimensions_are_refused(found):  # noqa: F811
    with pytest.raises(ValueError, match="width = 31: expected at least 32, the width of the embeddings"):
        found.rotated(31)


@pytest.mark.parametrize("name", [name for name in TRAINED if name != "shuffled_citations"])
def test_the_plain_gradient_step_learns_the_same_update_by_update(found, name):  # noqa: F811
    plain, turned = (updates(one, name, seeds=(0, 1), **SGD) for one in (found, found.rotated(96)))
    assert_same_steps(plain[1], turned[1])
    assert (plain[2] == turned[2]).all() and np.array_equal(plain[3], turned[3])
    assert plain[0].adapter.parameters[0].abs().max() > 1e-3  # and it did learn


def test_under_adam_the_step_depends_on_the_axes(found):  # noqa: F811
    plain, turned = (updates(one, "ear_adapter", seeds=(0, 1))[1] for one in (found, found.rotated(96)))
    parted = [(a.current_loss - b.current_loss).abs().max() for a, b in zip(plain, turned, strict=True)]
    assert parted[0] < 1e-9 < 1e-5 < parted[-1]


def test_a_setting_asks_for_a_width_and_its_run_is_another(monkeypatch, tmp_path):
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path))
    narrow = Setting(dataset="toy", seeds=1, train_queries=8)
    wide = narrow.model_copy(update={"width": 400})
    assert settings.candidates_of(wide, 20).bank.shape[1] == 400
    sgd = Config(optimizer="sgd")
    assert np.array_equal(runs.run(narrow, sgd).adapter, runs.run(wide, sgd).adapter, equal_nan=True)
    assert len(list((tmp_path / "runs").iterdir())) == 2
    with pytest.raises(ValueError, match="width = 100: expected at least 384"):
        settings.candidates_of(narrow.model_copy(update={"width": 100}), 20)
