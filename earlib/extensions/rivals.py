"""Rivals of an adapter that users know: terms added to the cosine, learned from the citations that it learned from.

A term is the score by words, a memory's own rate of citations, or the citations of the most similar other questions.
Its weight is chosen by folds of the training questions, where the same citations are the labels.
"""

from functools import partial
from itertools import product

import numpy as np
import torch
from scipy.sparse import csr_array

from earlib.core.config import VARIANTS, Config
from earlib.core.ordering import best
from earlib.data import cache
from earlib.experiments import runs, settings
from earlib.extensions.folds import folds, on_folds, recall_of_cited

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5)  # of a term, whose values are between 0 and 1
NEIGHBOURS = (1, 5, 20)  # most similar questions
TERMS = {"words": ("words",), "rate": ("rate",), "neighbours": NEIGHBOURS}  # each with what is chosen beside its weight


def said(setting, name, chosen, **changes):
    """Candidates of each training question that the critic cited, and that it saw, where adapters learned from them.

    Bool, `[2, R, N, K]`, none of other questions; parameters as in `runs.answers`.
    """
    config = Config(**{**VARIANTS[name].changes, **changes})
    questions = len(settings.candidates_of(setting, config.depth).query)
    found = np.zeros((2, setting.seeds, questions, config.depth), bool)
    for seed, choice in enumerate(chosen):
        where = setting.model_copy(update={"epochs": choice.get("epochs", setting.epochs)})
        own = config.model_copy(update={key: value for key, value in choice.items() if key != "epochs"})
        key = cache.content_hash([runs.job(where, own, [seed]).key, "said"])
        stored = cache.load("said", key)
        if stored is None:
            ((learner, order, _),) = runs.learners(where, own, only=[seed])
            for _ in learner.train(order):
                pass
            held = {part: getattr(learner.buffer, part)[0, : order.shape[1]] > 0 for part in ("cited", "shown")}
            stored = {part: of.cpu().numpy() for part, of in {**held, "queries": order[0]}.items()}
            cache.save("said", key, stored)
        for whole, part in zip(found[:, seed], ("cited", "shown"), strict=True):
            np.logical_or.at(whole, stored["queries"], stored[part])  # a question may have come twice
    return found


def run(setting, depth, learned_from, terms, count):
    """Rank K candidates by their cosine and weighted terms, whose weights each seed chooses by folds.

    Parameters
    ----------
    setting : Setting
        With the reranker "bm25" where the words are a term.
    depth : int
        K.
    learned_from : numpy.ndarray
        Result of `said`.
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
        answer, score = (
            partial(_slates, found, terms, *learned_from[:, seed]),
            partial(recall_of_cited, learned_from[0, seed]),
        )
        held = folds(found.scopes, setting, training, count)
        reached = on_folds(training, held, partial(answer, choices), score)
        chosen.append(max(reached, key=reached.get))
        ((_, slates),) = answer(chosen[-1:], training, evaluation)
        parts.append((torch.from_numpy(evaluation)[None], torch.from_numpy(slates)[None]))
    return runs.answered(found, parts), chosen


def _slates(found, terms, cited, shown, choices, training, asked):
    """Each choice of weights and its slates of the asked questions, `[n, s]`, learned from the training questions."""
    cosine = torch.einsum("nd,nkd->nk", found.query[asked].double(), found.bank[found.index[asked]].double())
    kinds = [(at, kind) for at, term in enumerate(terms) for kind in TERMS[term]]
    values = torch.stack([_term(found, terms[at], kind, training, asked, cited, shown) for at, kind in kinds])
    weights = [[choice[at][0] * (choice[at][1] == kind) for at, kind in kinds] for choice in choices]
    added = torch.einsum("ct,tnk->cnk", torch.tensor(weights, dtype=torch.double), values)
    return zip(choices, best(cosine + added, Config().slate_size).numpy(), strict=True)


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
