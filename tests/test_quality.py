"""Realised quality of citations, on the made dialogues."""

import numpy as np
import pytest
import torch

from earlib import quality
from earlib.config import Config
from earlib.experiment import Setting
from earlib.explorer import Exploration

SETTING = Setting(dataset="toy", seeds=2)


def test_counts_are_those_of_a_slate_counted_by_hand():
    gold = torch.tensor([[[True, False, True, False, False, False]]])  # one question, six candidates
    slates = torch.tensor([[[[0, 1, 2], [3, 4, 5]]]])
    citations = torch.tensor([[[[1, 1, -1], [-1, -1, 1]]]])
    shown = Exploration(slates, citations, torch.ones_like(citations, dtype=torch.bool), None, None)
    assert quality._counted(gold, shown).tolist() == [1, 3, 2, 1, 6, 2, 2]


def test_a_critic_without_errors_is_measured_as_one():
    found = quality.learned(SETTING, Config(precision=100, recall=100)).quality
    assert np.all(found.precision == 100) and np.all(found.recall == 100)
    assert np.all((found.no_gold > 0) & (found.no_gold < 100))


@pytest.mark.parametrize(("precision", "recall"), [(88, 86), (60, 70)])
def test_what_is_realised_is_near_the_targets(precision, recall):
    """Some hundred citations: three standard deviations are 8 points at most."""
    found = quality.learned(SETTING, Config(precision=precision, recall=recall)).quality
    assert found.precision == pytest.approx([precision] * 2, abs=8)
    assert found.recall == pytest.approx([recall] * 2, abs=8)


def test_a_critic_with_other_labels_is_refused():
    with pytest.raises(ValueError, match="errors = 'shuffled': expected 'slate' or 'persistent'"):
        quality.learned(SETTING, Config(errors="shuffled"))
