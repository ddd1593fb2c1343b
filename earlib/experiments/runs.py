"""A run: dataset x encoder x configuration x seeds, all seeds side by side, cached by content."""

import ast
import hashlib
import io
import json
import re
import warnings
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from earlib import paths
from earlib.core import randomness
from earlib.core.config import VARIANTS, Config, near
from earlib.core.critic import SimulatedCritic
from earlib.core.learner import Learner
from earlib.core.ordering import best
from earlib.data import candidates as first_stage
from earlib.experiments import measures
from earlib.experiments.settings import Setting, benchmark, beside, candidates_of, on_device, split

ROOT = Path(__file__).parent.parent
# The code that a run depends on. `core/config.py` is not among it: what it says enters a key by value.
ALGORITHM = (
    *(f"core/{name}.py" for name in ("adapter", "critic", "explorer", "learner", "objective", "ordering")),
    *(f"core/{name}.py" for name in ("randomness", "replay")),
    "data/candidates.py", "data/words.py", "experiments/measures.py", "experiments/settings.py", "experiments/runs.py",
)  # fmt: skip


class Run(NamedTuple):
    """What a configuration reached; values between 0 and 1, NaN for questions without gold memories.

    Where seeds evaluate different numbers of questions, the shorter are filled up with NaN, and numbers with -1.
    """

    seen: np.ndarray  # [P] training queries (times epochs) before each evaluation; the first is 0
    queries: np.ndarray  # [R, E] numbers of the evaluation questions
    adapter: np.ndarray  # [P, 3, R, E] adapter-only inference, measures as in measures.MEASURES
    explorer: np.ndarray  # [3, R, E] Explorer-assisted inference with the final adapter
    untrained_explorer: np.ndarray  # [3, R, E] and with the adapter before training
    slates: np.ndarray  # [3, s, R, E] candidate indices that these three returned in the end


class Answers(NamedTuple):
    """What a system answered to the evaluation questions."""

    values: np.ndarray  # [3, R, E] measures as in measures.MEASURES
    queries: np.ndarray  # [R, E] question numbers
    slates: np.ndarray  # [R, E, s] candidate indices, best first


def run(setting, config, only=None):
    """Train and evaluate one configuration with the seeds of a setting; served from the cache if it ran before.

    Parameters
    ----------
    setting : Setting
    config : Config
    only : sequence of int, optional
        Those of the seeds that are run; default: all. Fewer side by side may round otherwise.

    Returns
    -------
    Run
    """
    wanted = job(setting, config, only)
    result = cached(wanted)
    if result is None:
        result = compute(setting, wanted.config, wanted.found, only)
        keep(wanted, packed(wanted.key, result))
    return result


class Job(NamedTuple):
    """A run before it is computed; equal keys mean equal runs."""

    setting: Setting
    config: Config  # without the choices that say nothing
    found: first_stage.Candidates
    key: str


def job(setting, config, only=None):
    """What `run` would compute, with the key by which it is kept."""
    config, found = _relevant(config), candidates_of(setting, config.depth)
    return Job(setting, config, found, _key(setting, config, found, only))


def compute(setting, config, found, only=None):
    """Train and evaluate with the seeds of a setting, whatever is in the cache; parameters and result as in `run`."""
    seeds, groups = range(setting.seeds) if only is None else only, {}
    for seed in seeds:  # those whose splits have the same sizes run side by side
        train, evaluation = split(found.scopes, setting, seed)
        groups.setdefault((len(train), len(evaluation)), []).append((seed, train, evaluation))
    parts = {}
    for group in groups.values():
        alike, train, evaluation = zip(*group, strict=True)
        finished = _run_group(setting, config, found, alike, np.stack(train), np.stack(evaluation))
        parts |= dict(zip(alike, finished, strict=True))
    return _merge([parts[seed] for seed in seeds])


def cached(job):
    """The Run of a job that ran before, None if there is none or none to be trusted."""
    return _load(_place(job), job.key)


def keep(job, content):
    """Put what `packed` made of a job's Run into the cache."""
    _write(_place(job), content)


def _place(job):
    return paths.cache() / "runs" / f"{job.key}.npz"


def _relevant(config):
    """The configuration without the choices that say nothing where nothing is replayed: equal systems run once."""
    if config.replay_size:
        return config
    silent = ("replay_weight", "replay_choice", "replay_current", "replay_slate", "unseen", "aggregate")
    return config.model_copy(update={name: Config.model_fields[name].default for name in silent})


def _run_group(setting, config, found, seeds, train, evaluation):
    """Runs of several seeds whose splits have the same sizes; a Run with R = 1 for each."""
    found = on_device(setting.device, found)
    order, kept = (torch.from_numpy(part).to(found.bank.device) for part in (train, evaluation))
    learner = Learner(config, found, critic_of(config, found, seeds, order), seeds, getattr(torch, setting.dtype))
    noise = randomness.draw(config, seeds, kept, config.depth, len(found.query), "test", found.bank.device)

    def answer(explorer=False):
        return learner.retrieve(kept, explorer, noise)

    def score(slates):
        return measures.measure(found, kept, slates)

    untrained = answer(explorer=True)
    seen, adapter = [0], [score(answer())]
    every = setting.evaluate_every or order.shape[1] // setting.epochs
    for step in learner.train(order):  # evaluated at the first update that reaches a multiple, and at the end
        if step.seen == order.shape[1] or step.seen // every > (step.seen - config.batch_size) // every:
            seen.append(step.seen)
            adapter.append(score(answer()))
    last = [answer(), answer(explorer=True), untrained]
    explorer, untrained_explorer = (score(slates) for slates in last[1:])
    slates = torch.stack(last).permute(0, 3, 1, 2).to(torch.int16).cpu().numpy()
    return [
        Run(
            np.array(seen), evaluation[[r]], np.stack(adapter)[:, :, [r]], explorer[:, [r]], untrained_explorer[:, [r]],
            slates[:, :, [r]],
        )
        for r in range(len(seeds))
    ]  # fmt: skip


def critic_of(config, found, seeds, training):
    """The simulated critic of some seeds; `training` are their training questions, `[R, N]`."""
    gold = randomness.shuffled(found.gold, seeds) if config.errors == "shuffled" else found.gold
    return SimulatedCritic(config, gold, calibration=training if config.errors == "global" else None)


def learners(setting, config, critic=None, only=None):
    """One learner a seed, not trained yet, with what it is to learn from.

    Parameters
    ----------
    setting : Setting
    config : Config
    critic : callable, optional
        As in `earlib.core.critic`; default: the simulated one of the configuration.
    only : sequence of int, optional
        Those of the seeds that are wanted; default: all.

    Yields
    ------
    learner : Learner
    order : torch.Tensor
        The seed's training questions, `[1, N]`.
    gold : torch.Tensor
        Which candidates of each question are gold, `[N, K]` bool.
    """
    found = on_device(setting.device, candidates_of(setting, config.depth))
    for seed in range(setting.seeds) if only is None else only:
        order = torch.from_numpy(split(found.scopes, setting, seed)[0])[None].to(found.bank.device)
        cites = critic or critic_of(config, found, (seed,), order)
        yield Learner(config, found, cites, (seed,), getattr(torch, setting.dtype)), order, found.gold


def trained_weights(setting, config, only=None):
    """The adapters that a configuration learns; served from the cache if it learned them before.

    Parameters
    ----------
    setting : Setting
    config : Config
    only : sequence of int, optional
        Those of the seeds that are wanted; default: all.

    Returns
    -------
    torch.Tensor
        W_q and W_m of each seed, `[2, R, d, d]`.
    """
    key = _key(setting, config, candidates_of(setting, config.depth), only)
    path = paths.cache() / "weights" / f"{key}.safetensors"
    try:
        return safetensors.torch.load_file(path)["weights"]
    except (OSError, KeyError, SafetensorError):  # none yet, or cut short: it is learned again
        pass
    parts = []
    for learner, order, _ in learners(setting, config, only=only):
        for _ in learner.train(order):
            pass
        parts.append(torch.stack([W.detach().cpu() for W in learner.adapter.matrices]))
    weights = torch.cat(parts, 1)
    _write(path, safetensors.torch.save({"weights": weights}))
    return weights


def _merge(runs):
    """One Run of several seeds; where they evaluate different numbers of questions, NaN fills up the shorter."""
    points = min(len(run.seen) for run in runs)
    width = max(run.queries.shape[1] for run in runs)
    last = [[*range(points - 1), len(run.seen) - 1] for run in runs]  # the last evaluation is that at the end

    def filled(values, missing):
        return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, width - values.shape[-1])], constant_values=missing)

    return Run(
        runs[0].seen[last[0]],
        np.concatenate([filled(run.queries, -1) for run in runs]),
        np.concatenate([filled(run.adapter[at], np.nan) for run, at in zip(runs, last, strict=True)], axis=2),
        np.concatenate([filled(run.explorer, np.nan) for run in runs], axis=1),
        np.concatenate([filled(run.untrained_explorer, np.nan) for run in runs], axis=1),
        np.concatenate([filled(run.slates, -1) for run in runs], axis=2),
    )


@lru_cache(maxsize=8)
def _fingerprint(found):
    """That of candidates which many runs share, taken once."""
    return found.fingerprint()


@lru_cache(maxsize=1)
def algorithm(root=ROOT):
    """SHA-256 (hex) of the syntax trees that a run depends on, without docstrings, comments and layout."""
    digest = hashlib.sha256()
    for name in ALGORITHM:
        tree = ast.parse((root / name).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()


def _key(setting, config, found, only=None):
    """Everything that a run depends on; equal keys mean equal runs."""
    inputs = {
        "setting": setting.model_dump(),
        "config": config.model_dump(),
        "candidates": _fingerprint(found),
        "algorithm": algorithm(),
        "torch": torch.__version__,
        "seeds": list(range(setting.seeds) if only is None else only),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def packed(key, result):
    """The content of a file that holds a Run, which tells its key."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, key=np.array(key), **result._asdict())
    return buffer.getvalue()


def _write(path, content):
    try:
        paths.write_atomically(path, content)
    except OSError as error:  # a cache that cannot be written must not lose the run
        warnings.warn(f"the run is not cached: {error.strerror}", stacklevel=2)


def _load(path, key):
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            if str(stored["key"]) != key:
                raise ValueError("it belongs to another run")
            return Run(**{name: stored[name] for name in Run._fields})
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        warnings.warn(f"cached run {path} cannot be read ({error}); it is computed again", stacklevel=2)
        return None


def run_variant(setting, name, **changes):
    """Run one of the paper's variants.

    Parameters
    ----------
    setting : Setting
    name : str
        A key of `config.VARIANTS`.
    **changes
        Hyper-parameters that differ from the paper's defaults.

    Returns
    -------
    Answers
    """
    if name == "retriever":
        return run_control(setting, name, **changes)
    if name not in VARIANTS:
        raise ValueError(f"unknown variant {name!r}{near(name, VARIANTS)}")
    variant = VARIANTS[name]
    return _answers(name, run(beside(setting, variant.reranker), Config(**{**variant.changes, **changes})))


def _answers(name, result):
    """What a variant answers, of all that a Run holds."""
    variant, answered = VARIANTS[name], [result.adapter[-1], result.explorer, result.untrained_explorer]
    which = 2 if not variant.learns else int(variant.explorer)
    return Answers(answered[which], result.queries, np.moveaxis(result.slates[which], 0, -1))


RERANKED = {"monot5": "monot5", "bm25_reranked": "bm25"}  # control: whose scores alone order the K candidates


def run_control(setting, name, **changes):
    """Run a control that learns nothing.

    They are `retriever`, `bm25`, those of `RERANKED`, `ceiling`, and `equal_calls_C` with C calls a question. The
    retriever's ranking is the first stage's, whatever adapter a configuration starts from. BM25 ranks all memories by
    their words; MonoT5 and `bm25_reranked` only the candidates, of equal scores the retriever's first. The ceiling puts
    the gold memories among the candidates first: no reranker can exceed it. The equal-call control is
    `measures.equal_calls`, with the same critic as the variants. Result as in `run_variant`.
    """
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
    """Answers of several seeds.

    Parameters
    ----------
    found : Candidates
    parts : sequence of (evaluation, slates)
        Of each seed: question numbers, `[1, E]`, and candidate indices, `[1, E, s]`.

    Returns
    -------
    Answers
    """
    runs = []
    for evaluation, slates in parts:
        values = measures.measure(found, evaluation, slates)
        chosen = slates.permute(2, 0, 1)[None].to(torch.int16).numpy()
        runs.append(Run(np.zeros(1), evaluation.numpy(), values[None], values, values, chosen))
    merged = _merge(runs)
    return Answers(merged.explorer, merged.queries, np.moveaxis(merged.slates[0], 0, -1))


def answers(setting, name, **changes):
    """Answers of a variant or a control; parameters as in `run_variant` and `run_control`."""
    return (run_variant if name in VARIANTS else run_control)(setting, name, **changes)


def tuned(setting, name, choices, **changes):
    """The choice of each seed whose adapter has the best Recall@5 on a part of its training questions.

    A seed chooses for itself, on a part that it kept for that: another seed's part holds its evaluation questions.

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
    chosen : list of int
        Number of the choice, one a seed.
    reached : dict of int to numpy.ndarray
        Recall@5 in percent on the parts kept, `[R]`, by choice; one with which an adapter diverges has none.
    """
    passes = [choice.get("epochs", setting.epochs) for choice in choices]
    where = {"validate_on_training": True, "epochs": max(passes), "evaluate_every": None}
    kept_apart, reached = setting.model_copy(update=where), {}
    for number, choice in enumerate(choices):  # one run for all numbers of passes: it is evaluated after each
        _, more = _chosen_for(setting, choice)
        try:
            result = run(kept_apart, Config(**{**VARIANTS[name].changes, **changes, **more}))
        except FloatingPointError:
            continue
        reached[number] = 100 * np.nanmean(result.adapter[passes[number], 0], axis=1)
    if not reached:
        raise FloatingPointError(f"{name} diverges with every choice of {choices}; add a smaller learning rate")
    return [max(reached, key=lambda number: reached[number][seed]) for seed in range(setting.seeds)], reached


def _chosen_for(setting, choice):
    """The setting and the hyper-parameters of a choice, which may hold the setting's `epochs`."""
    return (
        setting.model_copy(update={"epochs": choice.get("epochs", setting.epochs)}),
        {name: value for name, value in choice.items() if name != "epochs"},
    )


def distinct(choices):
    """The choices of hyper-parameters that differ, in the order in which they first come."""
    return [choice for at, choice in enumerate(choices) if choice not in choices[:at]]


def run_chosen(setting, name, chosen, **changes):
    """Run a variant as `run_variant`, with hyper-parameters that each seed has for itself: `chosen`, a dict a seed."""
    return _answers(name, chosen_run(setting, name, chosen, **changes))


def chosen_run(setting, name, chosen, **changes):
    """The Run of a variant each of whose seeds has hyper-parameters of its own; equal ones run side by side."""
    parts, variant = [None] * setting.seeds, VARIANTS[name]
    for choice in distinct(chosen):
        where, more = _chosen_for(beside(setting, variant.reranker), choice)
        seeds = [seed for seed, one in enumerate(chosen) if one == choice]
        result = run(where, Config(**{**variant.changes, **changes, **more}), seeds)
        for place, seed in enumerate(seeds):
            parts[seed] = _alone(result, place)
    return _merge(parts)


def _alone(result, place):
    """The Run of one seed of several, without what fills up a shorter one."""
    held = result.queries[place] >= 0
    return Run(
        result.seen, result.queries[[place]][:, held],
        *(part[..., place, :][..., None, held] for part in result[2:]),
    )  # fmt: skip


def tuned_rates(setting, name, rates, **changes):
    """The learning rate that each seed chose among some, and the recall of each: `tuned`, by rate."""
    chosen, reached = tuned(setting, name, [{"learning_rate": rate} for rate in rates], **changes)
    return [rates[number] for number in chosen], {rates[number]: recall for number, recall in reached.items()}


def run_tuned(setting, name, rates, **changes):
    """Run a variant with the learning rate that each seed chose: `tuned_rates`, with the result of `run_variant`."""
    chosen, _ = tuned_rates(setting, name, rates, **changes)
    return run_chosen(setting, name, [{"learning_rate": rate} for rate in chosen], **changes)
