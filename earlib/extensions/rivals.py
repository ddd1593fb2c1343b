"""Rivals of an adapter that users know: terms added to the cosine, learned from the citations that it learned from.

A term is the score by words, a memory's own rate of citations, or the citations of the most similar other questions.
Its weight is chosen by folds of the training questions, where the same citations are the labels.
"""

from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array

from earlib.core.config import VARIANTS, Config
from earlib.core.ordering import best
from earlib.data import cache
from earlib.experiments import runs, settings
from earlib.extensions.folds import folds, recall_of_cited

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5)  # of a term, whose values are between 0 and 1
NEIGHBOURS = (1, 5, 20)  # most similar questions
TERMS = {"words": ("words",), "rate": ("rate",), "neighbours": NEIGHBOURS}  # each with what is chosen beside its weight


class Said(NamedTuple):
    """Candidates of each training question that the critic cited and saw, bool `[R, N, K]`; none of other questions."""

    cited: np.ndarray
    shown: np.ndarray


def said(setting, name, chosen, **changes):
    """Citations that the adapters of a variant learned from; parameters as in `runs.answers`."""
    config = Config(**{**VARIANTS[name].changes, **changes})
    shape = setting.seeds, len(settings.candidates_of(setting, config.depth).query), config.depth
    found = Said(np.zeros(shape, bool), np.zeros(shape, bool))
    for seed, choice in enumerate(chosen):
        where = setting.model_copy(update={"epochs": choice.get("epochs", setting.epochs)})
        own = config.model_copy(update={key: value for key, value in choice.items() if key != "epochs"})
        key = cache.content_hash([runs.job(where, own, [seed]).key, "said"])
        stored = cache.load("said", key)
        if stored is None:
            ((learner, order, _),) = runs.learners(where, own, only=[seed])
            for _ in learner.train(order):
                pass
            held = {part: getattr(learner.buffer, part)[0, : order.shape[1]] > 0 for part in found._fields}
            stored = {part: of.cpu().numpy() for part, of in {**held, "queries": order[0]}.items()}
            cache.save("said", key, stored)
        for part, whole in found._asdict().items():
            np.logical_or.at(whole[seed], stored["queries"], stored[part])  # a question may have come twice
    return found


def run(setting, depth, learned_from, terms, count):
    """Rank K candidates by their cosine and weighted terms, whose weights each seed chooses by folds.

    Parameters
    ----------
    setting : Setting
        With the reranker "bm25" where the words are a term.
    depth : int
        K.
    learned_from : Said
    terms : sequence of str
        Keys of `TERMS`.
    count : int
        Folds of the training questions.

    Returns
    -------
    answers : runs.Answers
    chosen : list of tuple
        Of each seed the weight and the kind of each term.
    """
    found, parts, chosen = settings.candidates_of(setting, depth), [], []
    choices = list(product(*(product(WEIGHTS, TERMS[term]) for term in terms)))  # of equally good ones the first wins
    for seed in range(setting.seeds):
        training, evaluation = settings.split(found.scopes, setting, seed)
        cited, shown = (whole[seed] for whole in learned_from)
        reached = []
        for part in folds(found.scopes, setting, training, count):
            rest = np.setdiff1d(training, part)
            slates = _slates(found, choices, terms, rest, part, cited, shown)
            reached.append(recall_of_cited(cited[part], slates))
        at = int(np.nanmean(np.concatenate(reached, 1), axis=1).argmax())
        chosen.append(choices[at])
        slates = _slates(found, choices[at : at + 1], terms, training, evaluation, cited, shown)
        parts.append((torch.from_numpy(evaluation)[None], torch.from_numpy(slates)))
    return runs.answered(found, parts), chosen


def _slates(found, choices, terms, training, asked, cited, shown):
    """Slates of the asked questions by each choice of weights, `[C, n, s]`, learned from the training questions."""
    cosine = torch.einsum("nd,nkd->nk", found.query[asked].double(), found.bank[found.index[asked]].double())
    kinds = [(term, kind) for term in terms for kind in TERMS[term]]
    values = torch.stack([_term(found, *of, training, asked, cited, shown) for of in kinds])
    weights = torch.zeros(len(choices), len(kinds), dtype=torch.double)
    for at, choice in enumerate(choices):
        for term, (weight, kind) in zip(terms, choice, strict=True):
            weights[at, kinds.index((term, kind))] = weight
    return best(cosine + torch.einsum("ct,tnk->cnk", weights, values), Config().slate_size).numpy()


def _term(found, term, kind, training, asked, cited, shown):
    """Values of a term of the candidates of the asked questions, `[n, K]`."""
    if term == "words":
        return found.side[asked].double()
    index = found.index.numpy()
    if term == "rate":
        counts = (np.bincount(index[training][of[training]], minlength=len(found.bank)) for of in (cited, shown))
        of_memory = next(counts) / (1 + next(counts))
        return torch.from_numpy(of_memory[index[asked]])
    unit = torch.nn.functional.normalize(found.query.double(), dim=-1)
    cosine = unit[asked] @ unit[training].T
    nearest = best(cosine, kind)
    near = cosine.gather(1, nearest).clamp(min=0).numpy() / kind
    rows = np.arange(len(asked)).repeat(kind), nearest.numpy().ravel()
    similar = csr_array((near.ravel(), rows), shape=(len(asked), len(training)))
    at, place = np.nonzero(cited[training])
    cites = csr_array((np.ones(len(at)), (at, index[training][at, place])), shape=(len(training), len(found.bank)))
    return torch.from_numpy(np.take_along_axis((similar @ cites).toarray(), index[asked], 1))
