"""The worth of context: first stage, weights and adapter of each seed, chosen by folds of its training questions.

The weights re-rank the candidates of the first stage. They are learned from the citations of the critic, which sees as
many slates of a training question as in EAR; the adapter of the query is learned on top, from the same citations.
"""

import time
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from earlib.core.config import VARIANTS, Config
from earlib.core.objective import listwise_loss
from earlib.core.ordering import best
from earlib.data.cache import content_hash
from earlib.data.words import Words, content_words
from earlib.experiments import runs, settings
from earlib.extensions.context import FEATURES, Context, learn, needs, recall, texts
from earlib.extensions.folds import citations, folds, on_folds

TEMPERATURE = 0.05  # by which cosines of the adapter are divided
STEPS = (0, 5, 10, 20)  # of the adapter's learning, to choose from
RATE = 3e-4  # step of Adam


class Cited(NamedTuple):
    """A first stage's candidates, what the critic says of the best of them, and what is learned from it."""

    context: Context
    order: torch.Tensor  # [N, depth] places among T
    values: np.ndarray  # [N, depth, F] float64, in the order of the context's
    cited: np.ndarray  # [N, shown] bool

    def slates(self, numbers, scores):
        """The five best candidates of some questions by scores `[n, depth]`, as places among T."""
        return self.order[numbers].gather(1, best(torch.from_numpy(scores), Config().slate_size))

    def weigh(self, combination, numbers, asked):
        """Scores of the candidates of the asked questions, `[n, depth]`, by weights learned from other questions."""
        at = [place for place, name in enumerate(self.context.values) if combination >= needs(name)]
        return self.values[asked] @ learn(self.values[numbers, : self.cited.shape[1]], self.cited[numbers], at)

    def by_weights(self, numbers, asked):
        """Each combination and its slates of the asked questions."""
        return ((one, self.slates(asked, self.weigh(one, numbers, asked))) for one in self.context.combinations)

    def by_adapter(self, combination, numbers, asked, dtype):
        """Each number of STEPS and its slates: (W q) . m / 0.05 is added to the scores of the weights.

        W is learned by full-batch Adam from 0 on, on the same loss of the same citations as the weights.
        """
        scores, cited = self.weigh(combination, numbers, np.concatenate([numbers, asked])), self.cited[numbers]
        (own, other), kept = np.split(scores, [len(numbers)]), cited.any(1) & ~cited.all(1)
        useful, start = torch.from_numpy(cited[kept]), torch.from_numpy(own[kept, : cited.shape[1]]).to(dtype)
        taught, tested = self.vectors(numbers[kept], cited.shape[1], dtype), self.vectors(asked, None, dtype)
        W = torch.zeros(taught[0].shape[1], taught[0].shape[1], dtype=dtype, requires_grad=True)
        optimizer = torch.optim.Adam([W], RATE)

        def moved(query, memory):
            return torch.einsum("nd,nkd->nk", query @ W.T, memory)

        for step in range(max(STEPS) + 1):
            if step in STEPS:
                yield step, self.slates(asked, other + moved(*tested).detach().double().numpy() / TEMPERATURE)
            z = start + moved(*taught) / TEMPERATURE
            loss = listwise_loss("softmax", z, useful, torch.ones_like(useful)).mean()
            (W.grad,) = torch.autograd.grad(loss, W)
            optimizer.step()

    def vectors(self, numbers, depth, dtype):
        """Vectors of some questions, `[n, d]`, and of their first candidates, `[n, depth, d]`."""
        found = self.context.found
        rows = found.index[numbers].gather(1, self.order[numbers, :depth])
        return found.query[numbers].to(dtype), self.context.mean()[rows].to(dtype)


def cite(context, order, seed):
    """Candidates in an order, with what the critic says of the first of each question."""
    values = np.stack([one.gather(1, order).double().numpy() for one in context.values.values()], -1)
    return Cited(context, order, values, citations(context.found.gold.gather(1, order), seed))


class Learned(NamedTuple):
    """Choices of one seed, and the slates of its evaluation questions `[E, s]`, places among T, by system."""

    form: tuple  # first stage
    parts: frozenset  # combination of weights
    simplest: frozenset  # of those within a point of it on the folds the one of fewest parts
    steps: int  # of the adapter
    reached: dict  # Recall@5 in percent on the folds, by combination
    evaluation: np.ndarray  # [E]
    # "nothing" and "vectors" (without words) learn nothing; each combination, "chosen", "simplest", "adapter", and
    # numbers of questions learned from
    slates: dict


def study(context, setting, seed, orders, count=3, learned_from=()):
    """Choose and learn with one seed, from the `first_stages`; gold labels of training questions alone choose."""
    training, evaluation = settings.split(context.found.scopes, setting, seed)
    first = {form: order[:, : Config().slate_size] for form, order in orders.items()}
    found = {one: np.nanmean(recall(context, training, slates[training])) for one, slates in first.items()}
    form, dense = max(found, key=found.get), max((one for one in found if not one[1]), key=found.get)
    of, parts = cite(context, orders[form], seed), folds(context.found.scopes, setting, training, count)
    on_parts = partial(on_folds, training, parts, score=partial(recall, context))
    reached = on_parts(of.by_weights)
    chosen = max(reached, key=reached.get)
    near = [one for one in context.combinations if reached[one] >= reached[chosen] - 1]
    simplest = max(near, key=lambda one: (-len(one), reached[one]))
    by_adapter = partial(of.by_adapter, chosen, dtype=getattr(torch, setting.dtype))
    steps = on_parts(by_adapter)
    step = max(steps, key=steps.get)
    slates = {"nothing": first[form][evaluation], "vectors": first[dense][evaluation]}
    slates |= dict(of.by_weights(training, evaluation))
    slates |= {"chosen": slates[chosen], "simplest": slates[simplest]}
    slates |= {"adapter": dict(by_adapter(training, evaluation))[step]}
    for number in learned_from:
        slates[number] = of.slates(evaluation, of.weigh(context.combinations[-1], training[:number], evaluation))
    return Learned(form, chosen, simplest, step, reached, evaluation, slates)


# -- the paper's systems, and the price --------------------------------------------------------------------------------


def with_candidates(context, setting, learned, orders, name):
    """Answers of a variant of the paper whose K candidates each seed's own first stage found, with the mean vectors."""
    variant, parts = VARIANTS[name], {}
    config = Config(**variant.changes)
    for form in dict.fromkeys(one.form for one in learned):
        seeds = [seed for seed, one in enumerate(learned) if one.form == form]
        order = orders[form][:, : config.depth]
        index, gold = context.found.index.gather(1, order), context.found.gold.gather(1, order)
        found = replace(context.found, bank=context.mean(), index=index, gold=gold)
        splits = {seed: settings.split(found.scopes, setting, seed) for seed in seeds}
        inputs = [found.fingerprint(), setting.model_dump(), config.model_dump(), seeds, runs.algorithm()]
        job = runs.Job(setting, config, found, splits, content_hash(inputs))
        result = runs.cached(job)
        if result is None:
            result = runs.compute_run(*job[:-1])
            runs.keep(job, result)
        for at, seed in enumerate(seeds):
            held = result.queries[at] >= 0
            asked, slates = result.queries[at][held], result.slates[int(variant.explorer)][:, at, held].T
            parts[seed] = asked, order[asked].gather(1, torch.from_numpy(slates.astype(np.int64)))
    return answers(context, [parts[seed] for seed in range(len(learned))])


def answers(context, parts):
    """`runs.Answers` from question numbers, `[E]`, and slates, `[E, s]`, of each seed."""
    return runs.answered(context.found, [(torch.from_numpy(asked)[None], slates[None]) for asked, slates in parts])


def price(context, setting, repeats=50):
    """Bytes a turn, milliseconds a question in the longest conversation, and learned numbers, by what is learned:
    nothing (the turn's vector alone), the weights of all parts, and an adapter on top; the question is encoded before.
    """
    searched = settings.benchmark(setting.dataset, setting.captions)
    scope, count = Counter(one.scope for one in searched.memories if one.store == "dialogue").most_common(1)[0]
    turns = [one for one in searched.memories if (one.scope, one.store) == (scope, "dialogue")]
    asked = [query.text for query in searched.asked if query.scope == scope][:repeats]
    vectors, read = [one[:count] for one in context.vectors.values()], texts(turns).values()
    indexes, alive, plain = [Words() for _ in read], np.ones(count, bool), np.zeros((count, len(FEATURES)))
    for words, of in zip(indexes, read, strict=True):
        words.append(of)
    weights, W = np.ones(len(context.values)), torch.eye(vectors[0].shape[1])

    def score(text, vector, parts):
        if not parts:
            return vectors[0] @ vector
        cosines = [one @ vector for one in vectors]
        cosines += [cosines[0].roll(step) for step in (1, -1)]  # of the neighbours
        total = np.column_stack([*cosines, *(words.scores(text, alive) for words in indexes), plain]) @ weights
        return torch.from_numpy(total) + (vectors[0] @ (W @ vector) if parts > 1 else 0)

    own = 4 * vectors[0].shape[1]
    postings = 8 * sum(len(set(words)) for of in read for words in content_words(of)) / count
    every = own * (len(vectors) - 1) + postings + 4 * len(FEATURES)
    systems = {"nothing": (own, 0), "weights": (every, len(weights))}
    systems["adapter and weights"] = every, len(weights) + W.numel()
    for parts, (name, (size, numbers)) in enumerate(systems.items()):
        spent = []
        for text, vector in zip(asked, context.found.query, strict=False):
            begun = time.perf_counter()
            best(score(text, vector, parts), Config().slate_size)
            spent.append(1000 * (time.perf_counter() - begun))
        systems[name] = size, float(np.median(spent)), numbers
    return systems
