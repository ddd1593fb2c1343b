"""Runs: a configuration trained and evaluated in a setting, all seeds side by side, cached by content."""

import ast
import hashlib
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from earlib import devices
from earlib.core import captured, randomness
from earlib.core.config import VARIANTS, Config, near
from earlib.core.critic import SimulatedCritic
from earlib.core.ordering import best
from earlib.data import cache
from earlib.data import candidates as first_stage
from earlib.experiments import measures
from earlib.experiments.settings import Setting, benchmark, beside, candidates_of, split

PACKAGE = Path(__file__).parent.parent
# The code that a run depends on. `core/config.py` is not among it: its values are part of the key.
ALGORITHM = (
    *(f"core/{name}.py" for name in ("adapter", "captured", "critic", "explorer", "learner", "objective", "optimizer")),
    *(f"core/{name}.py" for name in ("ordering", "randomness", "replay")),
    *("data/candidates.py", "data/search.py", "data/words.py"),
    *(f"experiments/{name}.py" for name in ("measures", "settings", "runs")),
)
RERANKED = {"monot5": "monot5", "bm25_reranked": "bm25"}  # control: reranker whose scores alone order the K candidates


class Run(NamedTuple):
    """Measures of a configuration, from 0 to 1; NaN for questions without gold; NaN and -1 pad shorter seeds."""

    seen: np.ndarray  # [P] training queries (times epochs) before each evaluation; the first is 0
    queries: np.ndarray  # [R, E] numbers of the evaluation questions
    adapter: np.ndarray  # [P, 3, R, E] adapter-only inference, in the order of measures.MEASURES
    explorer: np.ndarray  # [3, R, E] Explorer-assisted inference with the final adapter
    untrained_explorer: np.ndarray  # [3, R, E] and with the adapter before training
    slates: np.ndarray  # [3, s, R, E] candidate indices that these three returned in the end


class Answers(NamedTuple):
    """Slates that a system returned for the evaluation questions, and their measures."""

    values: np.ndarray  # [3, R, E] in the order of measures.MEASURES
    queries: np.ndarray  # [R, E] question numbers
    slates: np.ndarray  # [R, E, s] candidate indices, best first


class Job(NamedTuple):
    """A run before it is computed; equal keys mean equal runs."""

    setting: Setting
    config: Config  # with irrelevant options reset to their defaults
    found: first_stage.Candidates
    splits: dict  # by seed: numbers of the training questions, in order, and of the evaluation questions
    key: str


# -- one run -----------------------------------------------------------------------------------------------------------


def run(setting, config, only=None):
    """Train and evaluate one configuration with the seeds of a setting, or `only` some, or load the cached Run.

    A smaller batch of seeds may round differently.
    """
    wanted = job(setting, config, only)
    result = cached(wanted)
    if result is None:
        result = compute_run(setting, wanted.config, wanted.found, wanted.splits)
        keep(wanted, result)
    return result


def job(setting, config, only=None):
    """Describe the run that `run` would compute."""
    if not config.replay_size:  # nothing is replayed: configurations that differ in how are the same system
        replay = ("replay_weight", "replay_choice", "replay_current", "replay_slate", "unseen", "aggregate")
        config = config.model_copy(update={name: Config.model_fields[name].default for name in replay})
    found = candidates_of(setting, config.depth)
    splits = {seed: split(found.scopes, setting, seed) for seed in (range(setting.seeds) if only is None else only)}
    return Job(setting, config, found, splits, _key(setting, config, found, only))


def cached(job):
    """The cached Run of a job, or None."""
    stored = cache.load("runs", job.key)
    return stored and Run(**stored)


def keep(job, result):
    """Cache the Run of a job."""
    cache.save("runs", job.key, result._asdict())


def compute_run(setting, config, found, splits):
    """Train and evaluate as `run` does, without the cache; fields of a Job, of whose candidates tensors are enough."""
    groups, parts = {}, {}
    for seed, (train, evaluation) in splits.items():  # those whose splits have the same sizes run side by side
        groups.setdefault((len(train), len(evaluation)), []).append((seed, train, evaluation))
    for group in groups.values():
        alike, train, evaluation = zip(*group, strict=True)
        parts |= _by_seed(_run_group(setting, config, found, alike, np.stack(train), np.stack(evaluation)), alike)
    return _merged([parts[seed] for seed in splits])


def _run_group(setting, config, found, seeds, train, evaluation):
    """The Run of several seeds whose splits have the same sizes."""
    found = found.to(devices.ready(setting.device))
    order, kept = (torch.from_numpy(part).to(found.bank.device) for part in (train, evaluation))
    learner = captured.learner(
        config, found, critic_of(config, found, seeds, order), seeds, getattr(torch, setting.dtype)
    )
    noise = randomness.draw(config, seeds, kept, config.depth, len(found.query), "test", found.bank.device)

    def answer(explorer=False):
        slates = learner.retrieve(kept, explorer, noise)
        return measures.measure(found, kept, slates), slates.permute(2, 0, 1).to(torch.int16).cpu().numpy()

    untrained, points = answer(explorer=True), {0: answer()}
    every = setting.evaluate_every or order.shape[1] // setting.epochs
    for step in learner.train(order):  # evaluated at the first update that reaches a multiple, and at the end
        if step.seen == order.shape[1] or step.seen // every > (step.seen - config.batch_size) // every:
            points[step.seen] = answer()
    ends, along = (points[step.seen], answer(explorer=True), untrained), np.stack([one for one, _ in points.values()])
    return Run(np.array([*points]), evaluation, along, ends[1][0], untrained[0], np.stack([one for _, one in ends]))


def critic_of(config, found, seeds, training):
    """The simulated critic of some seeds, whose training questions are `training`, `[R, N]`."""
    gold = randomness.shuffled(found.gold, seeds) if config.errors == "shuffled" else found.gold
    return SimulatedCritic(config, gold, calibration=training if config.errors == "global" else None)


def learners(setting, config, critic=None, only=None):
    """Yield an untrained learner of each seed, its training questions, `[1, N]`, and the gold labels, `[N, K]`."""
    found = candidates_of(setting, config.depth).to(devices.ready(setting.device))
    for seed in range(setting.seeds) if only is None else only:
        order = torch.from_numpy(split(found.scopes, setting, seed)[0])[None].to(found.bank.device)
        cites = critic or critic_of(config, found, (seed,), order)
        yield captured.learner(config, found, cites, (seed,), getattr(torch, setting.dtype)), order, found.gold


def trained_weights(setting, config, only=None):
    """Train the adapters of a configuration, for all seeds or `only` some, or load the cached ones.

    Returns W_q and W_m, `[2, R, d, d]`.
    """
    key = _key(setting, config, candidates_of(setting, config.depth), only)
    stored = cache.load("adapters", key)
    if stored is not None:
        return torch.from_numpy(stored["weights"])
    parts = []
    for learner, order, _ in learners(setting, config, only=only):
        for _ in learner.train(order):
            pass
        parts.append(torch.stack([W.detach().cpu() for W in learner.adapter.matrices]))
    weights = torch.cat(parts, 1)
    cache.save("adapters", key, {"weights": weights.numpy()})
    return weights


def _by_seed(result, seeds):
    """The Run of each seed alone, without padding."""
    held = [queries >= 0 for queries in result.queries]
    return {
        seed: Run(result.seen, *(part[..., [at], :][..., held[at]] for part in result[1:]))
        for at, seed in enumerate(seeds)
    }


def _merged(runs):
    """One Run of several seeds; where their evaluations differ in number, the last of all is that at the end."""
    points = min(len(run.seen) for run in runs)
    last = [[*range(points - 1), len(run.seen) - 1] for run in runs]
    runs = [run._replace(seen=run.seen[at], adapter=run.adapter[at]) for run, at in zip(runs, last, strict=True)]
    return Run(runs[0].seen, *map(_side_by_side, [*zip(*runs, strict=True)][1:]))


def _side_by_side(parts):
    """Arrays of several seeds, `[..., R, E]`, as one; NaN and -1 pad those of fewer questions."""
    missing, width = -1 if parts[0].dtype.kind == "i" else np.nan, max(part.shape[-1] for part in parts)
    wide = [np.full((*part.shape[:-1], width), missing, part.dtype) for part in parts]
    for whole, part in zip(wide, parts, strict=True):
        whole[..., : part.shape[-1]] = part
    # in one memory layout, since a mean depends on it in its last digits
    return np.ascontiguousarray(np.concatenate(wide, axis=-2))


# -- the key of a run --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def algorithm(root=PACKAGE):
    """SHA-256 (hex) of the syntax trees that a run depends on, without docstrings, comments and layout."""
    digest = hashlib.sha256()
    for name in ALGORITHM:
        tree = ast.parse((root / name).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()


_fingerprint = lru_cache(maxsize=8)(first_stage.Candidates.fingerprint)


def _key(setting, config, found, only=None):
    """SHA-256 (hex) of everything that a run depends on."""
    inputs = {
        "setting": setting.model_dump(),
        "config": config.model_dump(),
        "candidates": _fingerprint(found),
        "algorithm": algorithm(),
        "torch": torch.__version__,
        "seeds": list(range(setting.seeds) if only is None else only),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


# -- systems by name ---------------------------------------------------------------------------------------------------


def answers(setting, name, chosen=None, **changes):
    """Run one of the paper's variants, or a control that learns nothing; returns `Answers`.

    The controls are `retriever`, the ranking of the first stage; `bm25`, which ranks all memories by their words;
    `monot5` and `bm25_reranked`, which re-rank the candidates, ties in the retriever's order; `ceiling`, which places
    the gold memories among the candidates first; and `equal_calls_C`, which is `measures.equal_calls` with C calls.

    Parameters
    ----------
    setting : Setting
    name : str
        A key of `config.VARIANTS`, or a control; ValueError for an unknown name.
    chosen : list of dict, optional
        Further hyper-parameters of each seed of a variant, as returned by `tuned`.
    **changes
        Hyper-parameters that differ from the paper's defaults.
    """
    if name not in VARIANTS or name == "retriever":
        return _control(setting, name, **changes)
    variant, result = VARIANTS[name], variant_run(setting, name, chosen, **changes)
    values = [result.adapter[-1], result.explorer, result.untrained_explorer]
    which = int(variant.explorer) if variant.learns else 2
    return Answers(values[which], result.queries, np.moveaxis(result.slates[which], 0, -1))


def variant_run(setting, name, chosen=None, **changes):
    """The Run of a variant; parameters as in `answers`. Seeds with equal hyper-parameters run side by side."""
    variant, parts = VARIANTS[name], {}
    chosen = chosen or [{}] * setting.seeds
    for choice in distinct_choices(chosen):
        more, seeds = dict(choice), [seed for seed, one in enumerate(chosen) if one == choice]
        where = beside(setting, variant.reranker).model_copy(update={"epochs": more.pop("epochs", setting.epochs)})
        parts |= _by_seed(run(where, Config(**{**variant.changes, **changes, **more}), seeds), seeds)
    return _merged([parts[seed] for seed in range(setting.seeds)])


def distinct_choices(choices):
    """The distinct choices of hyper-parameters, in order of first occurrence."""
    return [choice for at, choice in enumerate(choices) if choice not in choices[:at]]


def _control(setting, name, **changes):
    """Answers of a control."""
    asked = re.fullmatch(r"equal_calls_(\d+)", name)
    if not asked and name not in ("retriever", "bm25", "ceiling", *RERANKED):
        known = [*VARIANTS, "bm25", *RERANKED, "ceiling", "equal_calls_3"]
        raise ValueError(f"unknown variant or control {name!r}{near(name, known)}")
    calls = int(asked[1]) if asked else 1
    config = Config(**{**changes, "rounds": calls})
    found = candidates_of(beside(setting, RERANKED[name]) if name in RERANKED else setting, config.depth)
    if name == "bm25":
        searched = benchmark(setting.dataset, setting.captions, setting.dates)
        found = first_stage.by_words(searched, found, config.depth, setting.store)
    parts = []
    for seed in range(setting.seeds):
        train, evaluation = (torch.from_numpy(part)[None] for part in split(found.scopes, setting, seed))
        if name in ("retriever", "bm25"):
            slates = torch.arange(config.slate_size).expand(*evaluation.shape, -1)
        elif name in RERANKED:
            slates = best(found.side[evaluation], config.slate_size)
        elif name == "ceiling":
            slates = best(found.gold[evaluation].double(), config.slate_size)
        else:
            critic = critic_of(config, found, (seed,), train)
            noise = randomness.draw(config, (seed,), evaluation, config.depth, len(found.query), "test")
            slates = measures.equal_calls(config, found, critic, evaluation, calls, noise)
        parts.append((evaluation, slates))
    return answered(found, parts)


def answered(found, parts):
    """Answers from question numbers, `[1, E]`, and slates, `[1, E, s]`, of each seed."""
    values = _side_by_side([measures.measure(found, *part) for part in parts])
    slates = _side_by_side([slates.permute(2, 0, 1).to(torch.int16).numpy() for _, slates in parts])
    return Answers(values, _side_by_side([queries.numpy() for queries, _ in parts]), np.moveaxis(slates, 0, -1))


def tuned(setting, name, choices, **changes):
    """Choose hyper-parameters for each seed by adapter-only Recall@5 on a held-out part of its training questions.

    Parameters
    ----------
    setting : Setting
    name : str
        A key of `config.VARIANTS`.
    choices : list of dict
        Hyper-parameters, among them `epochs` for that of the setting; of equally good ones the first wins.
    **changes
        Other hyper-parameters that differ from the paper's defaults.

    Returns
    -------
    chosen : list of dict
        The choice of each seed, for `answers` and `comparisons.curve`.
    reached : dict of int to numpy.ndarray
        Recall@5 in percent on the held-out parts, `[R]`, by the number of the choice, unless an adapter diverges with
        it; FloatingPointError if one diverges with every choice.
    """
    passes = [choice.get("epochs", setting.epochs) for choice in choices]
    where = {"validate_on_training": True, "epochs": max(passes), "evaluate_every": None}
    kept_apart, reached = setting.model_copy(update=where), {}
    for number, choice in enumerate(choices):  # one run for all numbers of passes: it is evaluated after each
        more = {name: value for name, value in choice.items() if name != "epochs"}
        try:
            result = run(kept_apart, Config(**{**VARIANTS[name].changes, **changes, **more}))
        except FloatingPointError:
            continue
        reached[number] = 100 * np.nanmean(result.adapter[passes[number], 0], axis=1)
    if not reached:
        raise FloatingPointError(f"{name} diverges with every choice of {choices}; add a smaller learning rate")
    return [choices[max(reached, key=lambda at: reached[at][seed])] for seed in range(setting.seeds)], reached
