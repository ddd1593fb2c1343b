"""Baseline for a learned term: the retriever's cosine plus a fixed weight of a reranker's score."""

import numpy as np
import torch

from earlib.core.config import Config
from earlib.core.ordering import best
from earlib.experiments import measures, runs, settings


def run_weighted(setting, depth, weights):
    """Rank K candidates by cosine + w p, where each seed chooses w on a held-out part of its training questions.

    p is the side information of the candidates (`Setting.reranker`), as with `Config.learned_side`; of equally good
    weights the first wins. Returns the `runs.Answers` and the weight of each seed.
    """
    found = settings.candidates_of(setting, depth)
    cosine = torch.einsum("nd,nkd->nk", found.query.double(), found.bank.double()[found.index])
    slates = torch.stack([best(cosine + w * found.side, Config().slate_size) for w in weights])
    reached = measures.measure(found, torch.arange(len(cosine)).expand(len(weights), -1), slates)[0]
    kept_apart, parts, chosen = setting.model_copy(update={"validate_on_training": True}), [], []
    for seed in range(setting.seeds):
        (_, evaluation), (_, part) = (settings.split(found.scopes, one, seed) for one in (setting, kept_apart))
        number = int(np.nanmean(reached[:, part], axis=1).argmax())
        chosen.append(weights[number])
        parts.append((torch.from_numpy(evaluation)[None], slates[None, number, evaluation]))
    return runs.answered(found, parts), chosen
