"""The simulated critic against its targets."""

import pytest
import torch

from earlib.config import Config
from earlib.critic import SimulatedCritic

SLATE, DRAWS = 5, 40_000


def cite(gold_in_slate, **changes):
    """Citations of many slates with this many gold memories; which positions are gold differs from slate to slate."""
    rng = torch.Generator().manual_seed(gold_in_slate)
    order = torch.rand(DRAWS, 20, generator=rng).argsort(-1)
    slates = order[:, :SLATE]
    gold = torch.zeros(DRAWS, 20, dtype=torch.bool).scatter_(-1, slates[:, :gold_in_slate], True)
    critic = SimulatedCritic(Config(**changes), gold)
    uniforms = torch.rand(1, DRAWS, 20, generator=rng, dtype=torch.float64)
    shuffled = slates.gather(-1, torch.rand(DRAWS, SLATE, generator=rng).argsort(-1))
    citations, readable = critic(torch.arange(DRAWS)[None], shuffled[None], uniforms)
    assert readable.all() and set(citations.unique().tolist()) <= {-1, 1}
    return citations[0] > 0, gold.gather(-1, shuffled)


def realised(cited, gold):
    """Precision and recall in percent, micro-averaged over all slates."""
    hits = (cited & gold).sum()
    return (100 * hits / cited.sum()).item(), (100 * hits / gold.sum()).item()


UNCLIPPED = [(88, 86, n) for n in (1, 2, 3, 4)] + [(80, 80, n) for n in (1, 2, 3, 4)] + [(70, 70, n) for n in (1, 2, 3)]


@pytest.mark.parametrize(("precision", "recall", "gold_in_slate"), UNCLIPPED)
def test_realised_precision_and_recall_meet_their_targets(precision, recall, gold_in_slate):
    cited, gold = cite(gold_in_slate, precision=precision, recall=recall)
    found = realised(cited, gold)
    assert found == pytest.approx((precision, recall), abs=0.8)  # about four standard errors at the fewest citations


def test_a_slate_without_gold_has_no_false_positive():
    cited, _ = cite(0)
    assert not cited.any()


def test_a_slate_of_gold_only_can_have_none():
    cited, gold = cite(5)
    assert gold.all()
    assert 100 * cited.float().mean().item() == pytest.approx(86, abs=0.5)


def test_a_false_positive_rate_above_one_is_clipped():
    """Four gold, precision 40: p_fp would be 5.16. Every other memory is cited, and precision exceeds its target."""
    cited, gold = cite(4, precision=40)
    assert cited[~gold].all()
    precision, recall = realised(cited, gold)
    assert recall == pytest.approx(86, abs=0.5)
    assert precision == pytest.approx(100 * 4 * 0.86 / (4 * 0.86 + 1), abs=0.5)


def test_a_global_rate_falls_on_slates_without_gold_too():
    gold = torch.zeros(4, 20, dtype=torch.bool)
    gold[:2, 0] = True  # in the retriever's slates of two queries of four: p_fp = 2 r (1 - p) / (18 p)
    critic = SimulatedCritic(Config(errors="global"), gold, calibration=torch.arange(4)[None])
    expected = 2 * 0.86 * 0.12 / (18 * 0.88)
    assert critic.rate.item() == pytest.approx(expected)
    slate = torch.arange(5).expand(1, 1, 5)
    for u, cited in ((expected * 0.99, 1), (expected * 1.01, -1)):
        citations, _ = critic(torch.tensor([[3]]), slate, torch.full((1, 1, 20), u, dtype=torch.float64))
        assert (citations == cited).all()
