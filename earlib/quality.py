"""How good a simulated critic's citations turn out to be, on the slates that it is shown in training."""

from typing import NamedTuple

import numpy as np
import torch

from earlib import experiment


class Quality(NamedTuple):
    """Realised quality of the citations of a training run, in percent, a value a seed."""

    precision: np.ndarray  # [R] gold among the memories that were cited
    recall: np.ndarray  # [R] cited among the gold memories that were shown
    no_gold: np.ndarray  # [R] slates without any gold memory


def realised(setting, config):
    """Train once and count what the critic cited, over all slates of all training questions.

    Parameters
    ----------
    setting : experiment.Setting
    config : Config
        Its precision and recall are the targets. Errors must be about the true gold labels ("slate", "persistent").

    Returns
    -------
    Quality

    Raises
    ------
    ValueError
        For a critic that is calibrated on a run, or told other labels than the true ones.
    """
    if config.errors not in ("slate", "persistent"):
        raise ValueError(f"errors = {config.errors!r}: expected 'slate' or 'persistent'")
    counts = []
    for learner, order, gold in experiment.learners(setting, config):
        steps = zip(order.split(config.batch_size, 1), learner.train(order), strict=True)
        counts.append(sum(_counted(gold[queries], step.exploration) for queries, step in steps))
    both, cited, gold, empty, slates = np.array(counts, float).T
    return Quality(*(100 * part / whole for part, whole in ((both, cited), (both, gold), (empty, slates))))


def _counted(gold, exploration):
    """Gold and cited, cited, gold, slates without gold, and slates, of an update; `gold` is `[R, Q, K]`."""
    slates = exploration.slates
    is_gold = gold.unsqueeze(2).expand(*slates.shape[:3], -1).gather(-1, slates)
    cited = exploration.citations > 0
    empty = ~is_gold.any(-1)
    return np.array([int(part.sum()) for part in (is_gold & cited, cited, is_gold, empty, torch.ones_like(empty))])
