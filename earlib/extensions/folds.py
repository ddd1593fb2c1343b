"""Choices of each seed by folds of its training questions, where the critic's citations are the labels that choose."""

import numpy as np
import torch

from earlib import devices
from earlib.core import captured, randomness
from earlib.core.config import VARIANTS, Config
from earlib.core.critic import SimulatedCritic
from earlib.data import cache
from earlib.experiments import runs, settings


def folds(scopes, setting, training, count):
    """Parts of the training questions, `count` at most: of whole conversations where the split is by conversation."""
    if setting.split != "conversation":
        return np.array_split(training, count)
    of = np.asarray(scopes)[training]
    names = np.array(list(dict.fromkeys(of)))
    return [training[np.isin(of, some)] for some in np.array_split(names, min(count, len(names)))]


def asker(config, gold, seed, queries, purpose, calls, train=None):
    """The simulated critic of a seed for some questions: `ask(call, slates) -> (citations, readable)`, each `[n, s]`.

    It knows the gold labels, `[N, K]`; a global rate of false positives is set on the questions `train`.
    """
    calibration = torch.from_numpy(train)[None] if config.errors == "global" else None
    critic, numbers = SimulatedCritic(config, gold, calibration), torch.from_numpy(queries)[None]
    rounds, (N, depth) = config.model_copy(update={"rounds": max(1, calls)}), gold.shape
    uniforms = randomness.draw(rounds, (seed,), numbers, depth, N, purpose).critic

    def ask(call, slates):
        citations, readable = critic(numbers, slates[None], uniforms[:, :, call])
        return citations[0], readable[0]

    return ask


def citations(gold, seed):
    """The critic's citations of each question's first candidates, bool `[N, shown]`, from their gold labels, `[N, K]`.

    They are shown five at a time in the retriever's order, with as many calls as EAR makes in training.
    """
    config, (N, depth) = Config(), gold.shape
    shown = min(config.rounds * config.slate_size, depth // config.slate_size * config.slate_size)
    ask = asker(config, gold[:, :shown], seed, np.arange(N), "train", config.rounds)
    slates = torch.arange(shown).expand(N, -1).split(config.slate_size, -1)
    return torch.cat([ask(call, slate)[0] > 0 for call, slate in enumerate(slates)], -1).numpy()


def recall_of_cited(cited, numbers, slates):
    """Share of the cited candidates, bool `[N, K]`, that are in the slates of some questions, `[n, s]`.

    NaN where none is cited.
    """
    cited = cited[numbers]
    found, count = np.take_along_axis(cited, slates, -1).sum(-1), cited.sum(-1)
    return np.where(count > 0, found / np.maximum(count, 1), np.nan)


def on_folds(training, parts, answer, score):
    """Mean score in percent of each choice over all folds, each answered by what was learned from the others.

    `answer(rest, part)` yields each choice and its slates; `score(part, slates)` is `[n]`, NaN for questions that do
    not count.
    """
    found = {}
    for part in parts:
        for choice, slates in answer(np.setdiff1d(training, part), part):
            found.setdefault(choice, []).append(score(part, slates))
    return {choice: 100 * np.nanmean(np.concatenate(values)) for choice, values in found.items()}


def tuned(setting, name, choices, count, **changes):
    """Choose hyper-parameters for each seed by the citations that an adapter finds on folds that it did not learn from.

    Parameters and result as in `runs.tuned`, which scores one held-out part by its gold labels; `count` is the number
    of folds, each of which is answered by an adapter that learned from the others.
    """
    found, reached = settings.candidates_of(setting, Config(**changes).depth), {}
    trained = [settings.split(found.scopes, setting, seed)[0] for seed in range(setting.seeds)]
    said = [citations(found.gold[one], seed) for seed, one in enumerate(trained)]
    for number, choice in enumerate(choices):
        slates = held_out(setting, Config(**{**VARIANTS[name].changes, **changes, **choice}), count)
        pairs = zip(said, trained, slates, strict=True)
        reached[number] = np.array([100 * np.nanmean(recall_of_cited(one, ..., of[part])) for one, part, of in pairs])
    return [choices[max(reached, key=lambda at: reached[at][seed])] for seed in range(setting.seeds)], reached


def held_out(setting, config, count):
    """Slates that adapters return for the training questions of the fold that they did not learn from, `[R, N, s]`.

    The adapter ranks alone. Evaluation questions have -1.
    """
    key = cache.content_hash([runs.job(setting, config).key, "folds", count])
    stored = cache.load("folds", key)
    if stored is not None:
        return stored["slates"]
    found, groups = settings.candidates_of(setting, config.depth), {}
    slates = np.full((setting.seeds, len(found.query), config.slate_size), -1)
    for seed in range(setting.seeds):
        training, _ = settings.split(found.scopes, setting, seed)
        for part in folds(found.scopes, setting, training, count):
            rest = training[~np.isin(training, part)]
            groups.setdefault((len(rest), len(part)), []).append((seed, rest, part))
    found = found.to(devices.ready(setting.device))
    for group in groups.values():  # those of the same sizes side by side
        seeds, *parts = zip(*group, strict=True)
        order, kept = (torch.from_numpy(np.stack(part)).to(found.bank.device) for part in parts)
        critic = runs.critic_of(config, found, seeds, order)
        learner = captured.learner(config, found, critic, seeds, getattr(torch, setting.dtype))
        for _ in learner.train(order):
            pass
        slates[np.array(seeds)[:, None], np.stack(parts[1])] = learner.retrieve(kept).cpu().numpy()
    cache.save("folds", key, {"slates": slates})
    return slates


def of_each_seed(answered, which):
    """The `runs.Answers` of several that each seed takes, by number; all of them are of the same questions."""
    values = np.stack([answered[at].values[:, seed] for seed, at in enumerate(which)], 1)
    slates = np.stack([answered[at].slates[seed] for seed, at in enumerate(which)])
    return runs.Answers(values, answered[0].queries, slates)
