"""The simplest thing beside a learned term: the retriever's cosine and a fixed weight of the score by words."""

import numpy as np
import torch

from earlib.core.config import Config
from earlib.core.ordering import best
from earlib.experiments import measures, runs, settings


def run_weighted(setting, depth, weights):
    """Rank candidates by cosine + w p, with the w of each seed that was best on a part of its training questions.

    p is the side information that candidates carry (`Setting.reranker`), in the place that `Config.learned_side`
    gives it. Nothing is learned, but for the choice among a few numbers.

    Parameters
    ----------
    setting : settings.Setting
        With a reranker.
    depth : int
        K.
    weights : sequence of float
        Of equally good ones the first wins.

    Returns
    -------
    answers : runs.Answers
    chosen : list of float
        The weight of each seed.
    """
    found = settings.candidates_of(setting, depth)
    cosine = torch.einsum("nd,nkd->nk", found.query.double(), found.bank.double()[found.index])
    scores = (cosine + w * found.side for w in weights)
    slates = torch.stack([best(one, Config().slate_size) for one in scores])
    reached = measures.measure(found, torch.arange(len(cosine)).expand(len(weights), -1), slates)[0]
    kept_apart, parts, chosen = setting.model_copy(update={"validate_on_training": True}), [], []
    for seed in range(setting.seeds):
        (_, evaluation), (_, part) = (settings.split(found.scopes, one, seed) for one in (setting, kept_apart))
        number = int(np.nanmean(reached[:, part], axis=1).argmax())
        chosen.append(weights[number])
        parts.append((torch.from_numpy(evaluation)[None], slates[None, number, evaluation]))
    return runs.answered(found, parts), chosen
