"""A run: dataset x encoder x configuration x seeds, all seeds side by side, cached by content."""

import hashlib
import io
import json
import re
import warnings
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import safetensors.torch
import torch
from pydantic import Field, field_validator
from safetensors import SafetensorError

from earlib import candidates as first_stage
from earlib import datasets, devices, draws, evaluate, paths
from earlib.config import READINGS, VARIANTS, Checked, Config
from earlib.critic import SimulatedCritic
from earlib.learner import Learner
from earlib.ranking import best

CORE = (
    "adapter",
    "candidates",
    "config",
    "critic",
    "draws",
    "evaluate",
    "experiment",
    "explorer",
    "learner",
    "objective",
    "ranking",
    "replay",
    "words",
)  # a change in any of these makes every cached run stale
TRAINED_SHARE = 0.8


class Setting(Checked):
    """What a system is run on.

    Raises
    ------
    pydantic.ValidationError
        For an unknown name, a wrong type, or a value out of range.
    """

    dataset: str = Field("locomo", description="benchmark")
    encoder: str = Field("minilm", description="frozen encoder")
    store: Literal["dialogue", "observation", "both"] = Field("dialogue", description="memories that can be retrieved")
    first_stage: Literal["dense", "hybrid"] = Field(
        "dense", description="what brings the candidates: cosine, or its ranking fused with that of BM25"
    )
    split: Literal["random", "conversation"] = Field("random", description="how questions are kept for evaluation")
    reranker: Literal["none", "bm25", "monot5"] = Field(
        "none", description="whose scores the candidates carry as side information of the Explorer"
    )
    seeds: int = Field(3, description="seeds 0 to seeds - 1", ge=1)
    captions: bool = Field(True, description="the text of a turn tells the caption of the picture shared in it")
    dates: bool = Field(False, description="the text of a turn begins with its date")
    width: int | None = Field(None, description="dimensions into which embeddings are rotated; None: as encoded", ge=1)
    train_queries: int | None = Field(None, description="training queries seen; all if None", ge=1)
    epochs: int = Field(1, description="passes over the training queries", ge=1)
    evaluate_every: int | None = Field(
        None, description="training queries between evaluations; None: at the end of each pass", ge=1
    )
    validate_on_training: bool = Field(
        False, description="a seed evaluates on a fifth kept from its training questions, and trains on the others"
    )
    device: str = Field(default_factory=devices.default, description="where tensors live: cpu, cuda or cuda:N")

    dtype: Literal[devices.DTYPES] = Field(
        default_factory=devices.dtype, description="in which adapters learn and score"
    )

    @field_validator("device")
    @classmethod
    def _known_device(cls, name):
        return devices.check(name)


class Run(NamedTuple):
    """What a configuration reached; values between 0 and 1, NaN for questions without gold memories.

    Where seeds evaluate different numbers of questions, the shorter are filled up with NaN, and numbers with -1.
    """

    seen: np.ndarray  # [P] training queries (times epochs) before each evaluation; the first is 0
    queries: np.ndarray  # [R, E] numbers of the evaluation questions
    adapter: np.ndarray  # [P, 3, R, E] adapter-only inference, measures as in evaluate.MEASURES
    explorer: np.ndarray  # [3, R, E] Explorer-assisted inference with the final adapter
    untrained_explorer: np.ndarray  # [3, R, E] and with the adapter before training
    slates: np.ndarray  # [3, s, R, E] candidate indices that these three returned in the end


class Answers(NamedTuple):
    """What a system answered to the evaluation questions."""

    values: np.ndarray  # [3, R, E] measures as in evaluate.MEASURES
    queries: np.ndarray  # [R, E] question numbers
    slates: np.ndarray  # [R, E, s] candidate indices, best first


@lru_cache(maxsize=8)
def benchmark(dataset, captions=True, dates=False):
    """The benchmark of a setting, loaded once."""
    return datasets.load(dataset, captions=captions, dates=dates)


def candidates(dataset, encoder, depth, store="dialogue", captions=True, dates=False, device=None):
    """First-stage candidates of a setting, retrieved once; on the CPU, wherever their embeddings were made."""
    return _retrieved(dataset, encoder, depth, store, captions, dates, device or devices.default())


@lru_cache(maxsize=8)
def _retrieved(dataset, encoder, depth, store, captions, dates, device):
    return first_stage.retrieve(benchmark(dataset, captions, dates), encoder, depth, store, device)


@lru_cache(maxsize=2)
def _on(device, found):
    """Candidates on a device, moved once."""
    return found.to(devices.ready(device))


@lru_cache(maxsize=8)
def scopes(dataset):
    """Number of each question's conversation, `[N]`."""
    return np.unique([query.scope for query in benchmark(dataset).asked], return_inverse=True)[1]


@lru_cache(maxsize=4)
def _fused(found, depth, dataset, store, captions, dates):
    return first_stage.fused(benchmark(dataset, captions, dates), found, depth, store)


@lru_cache(maxsize=2)
def _rotated(found, width):
    return found.rotated(width)


@lru_cache(maxsize=4)
def _with_side(found, reranker, dataset, store, captions, dates, device):
    return first_stage.with_side(benchmark(dataset, captions, dates), found, reranker, store, device)


def candidates_of(setting, depth):
    """First-stage candidates of a setting, as `candidates`, with the ranking, width and scores that it asks for."""
    of_text = setting.store, setting.captions, setting.dates
    found = candidates(setting.dataset, setting.encoder, depth, *of_text, setting.device)
    if setting.first_stage == "hybrid":
        found = _fused(found, depth, setting.dataset, *of_text)
    if setting.width is not None:
        found = _rotated(found, setting.width)
    if setting.reranker == "none":
        return found
    return _with_side(found, setting.reranker, setting.dataset, *of_text, setting.device)


def split(scopes, setting, seed):
    """Training and evaluation questions of one seed.

    Seed i takes `numpy.random.default_rng(i)`. Random: its permutation of the questions, the first 80 % to train,
    in that order. By conversation: its choice of a fifth of the conversations to evaluate; the questions of the
    others, permuted, to train. A later epoch permutes the training questions anew. With `validate_on_training` a part
    kept from training takes the place of the evaluation questions, which the seed does not see then. It is kept as
    they are: the last fifth of the training questions, or by conversation a fifth of the training conversations.

    Parameters
    ----------
    scopes : sequence of str
        The conversation of each question.
    setting : Setting
    seed : int

    Returns
    -------
    train, evaluation : numpy.ndarray
        Question numbers, those to train in the order of training.

    Raises
    ------
    ValueError
        If there are too few questions or conversations for each part to have one.
    """
    names, scope = np.unique(np.asarray(scopes), return_inverse=True)
    rng = np.random.default_rng(seed)
    if setting.split == "random":
        order = rng.permutation(len(scope))
        cut = int(TRAINED_SHARE * len(scope))
        learned, kept = order[:cut], order[cut:]
    else:
        is_kept = _of_a_fifth(scope, rng)
        learned, kept = rng.permutation(np.flatnonzero(~is_kept)), np.flatnonzero(is_kept)
    if setting.validate_on_training and setting.split == "random":
        cut = int(TRAINED_SHARE * len(learned))
        learned, kept = learned[:cut], learned[cut:]
    elif setting.validate_on_training:
        is_kept = _of_a_fifth(scope[learned], rng)
        learned, kept = learned[~is_kept], learned[is_kept]
    if not len(learned):
        asked = f"{len(scope)} question(s) of {len(names)} conversation(s)"
        raise ValueError(f"split {setting.split}: {asked} leave none to learn from; expected more of them")
    learned = learned[: setting.train_queries]
    return np.concatenate([learned, *(rng.permutation(learned) for _ in range(setting.epochs - 1))]), kept


def _of_a_fifth(scope, rng):
    """Which questions are of a random fifth of the conversations, at least one."""
    names = np.unique(scope)
    return np.isin(scope, rng.choice(names, max(1, round((1 - TRAINED_SHARE) * len(names))), replace=False))


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
    found = _on(setting.device, found)
    order, kept = (torch.from_numpy(part).to(found.bank.device) for part in (train, evaluation))
    learner = Learner(config, found, _critic(config, found, seeds, order), seeds, getattr(torch, setting.dtype))
    noise = draws.draw(config, seeds, kept, config.depth, len(found.query), "test", found.bank.device)

    def answer(explorer=False):
        return learner.retrieve(kept, explorer, noise)

    def score(slates):
        return evaluate.measure(found, kept, slates)

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


def _critic(config, found, seeds, training):
    """The simulated critic of some seeds; `training` are their training questions, `[R, N]`."""
    gold = draws.shuffled(found.gold, seeds) if config.errors == "shuffled" else found.gold
    return SimulatedCritic(config, gold, calibration=training if config.errors == "global" else None)


def learners(setting, config, critic=None, only=None):
    """One learner a seed, not trained yet, with what it is to learn from.

    Parameters
    ----------
    setting : Setting
    config : Config
    critic : callable, optional
        As in `earlib.critic`; default: the simulated one of the configuration.
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
    found = _on(setting.device, candidates_of(setting, config.depth))
    for seed in range(setting.seeds) if only is None else only:
        order = torch.from_numpy(split(found.scopes, setting, seed)[0])[None].to(found.bank.device)
        cites = critic or _critic(config, found, (seed,), order)
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


def _key(setting, config, found, only=None):
    """Everything that a run depends on; equal keys mean equal runs."""
    core = hashlib.sha256()
    for module in CORE:
        core.update((Path(__file__).parent / f"{module}.py").read_bytes())
    inputs = {
        "setting": setting.model_dump(),
        "config": config.model_dump(),
        "candidates": _fingerprint(found),
        "core": core.hexdigest(),
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
        raise ValueError(f"unknown variant {name!r}{datasets.near(name, VARIANTS)}")
    variant = VARIANTS[name]
    return _answers(name, run(beside(setting, variant.reranker), Config(**{**variant.changes, **changes})))


def _answers(name, result):
    """What a variant answers, of all that a Run holds."""
    variant, answered = VARIANTS[name], [result.adapter[-1], result.explorer, result.untrained_explorer]
    which = 2 if not variant.learns else int(variant.explorer)
    return Answers(answered[which], result.queries, np.moveaxis(result.slates[which], 0, -1))


def beside(setting, reranker):
    """The setting with a reranker's scores beside the candidates; as it is with "none"."""
    return setting if reranker == "none" else setting.model_copy(update={"reranker": reranker})


RERANKED = {"monot5": "monot5", "bm25_reranked": "bm25"}  # control: whose scores alone order the K candidates


def run_control(setting, name, **changes):
    """Run a control that learns nothing.

    They are `retriever`, `bm25`, those of `RERANKED`, `ceiling`, and `equal_calls_C` with C calls a question. The
    retriever's ranking is the first stage's, whatever adapter a configuration starts from. BM25 ranks all memories by
    their words; MonoT5 and `bm25_reranked` only the candidates, of equal scores the retriever's first. The ceiling puts
    the gold memories among the candidates first: no reranker can exceed it. The equal-call control is
    `evaluate.equal_calls`, with the same critic as the variants. Result as in `run_variant`.
    """
    asked = re.fullmatch(r"equal_calls_(\d+)", name)
    if not asked and name not in ("retriever", "bm25", "ceiling", *RERANKED):
        known = [*VARIANTS, "bm25", *RERANKED, "ceiling", "equal_calls_3"]
        raise ValueError(f"unknown variant or control {name!r}{datasets.near(name, known)}")
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
            critic = _critic(config, found, (seed,), train)
            noise = draws.draw(config, (seed,), evaluation, config.depth, len(found.query), "test")
            slates = evaluate.equal_calls(config, found, critic, evaluation, calls, noise)
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
        values = evaluate.measure(found, evaluation, slates)
        chosen = slates.permute(2, 0, 1)[None].to(torch.int16).numpy()
        runs.append(Run(np.zeros(1), evaluation.numpy(), values[None], values, values, chosen))
    merged = _merge(runs)
    return Answers(merged.explorer, merged.queries, np.moveaxis(merged.slates[0], 0, -1))


def answers(setting, name, **changes):
    """Answers of a variant or a control; parameters as in `run_variant` and `run_control`."""
    return (run_variant if name in VARIANTS else run_control)(setting, name, **changes)


def compare(setting, names, baseline, **changes):
    """Run variants and controls, each against the same baseline on the same questions.

    Parameters
    ----------
    setting : Setting
    names : sequence of str
        Keys of `config.VARIANTS`, "ceiling", or "equal_calls_2" and the like.
    baseline : str
        The one that all are compared with.
    **changes
        Hyper-parameters that differ from the paper's defaults, for all.

    Returns
    -------
    list of dict
        Rows as in `rows`; those of the baseline come without a difference.
    """
    reached = {name: answers(setting, name, **changes) for name in (baseline, *names)}
    values = {name: one.values for name, one in reached.items()}
    return compared(setting, values, reached[baseline].queries, baseline, names)


def compared(setting, values, queries, baseline, names=None, **keys):
    """Rows of several systems, each against the same baseline on the same questions.

    Parameters
    ----------
    setting : Setting
    values : dict of str to numpy.ndarray
        Of each system, the baseline among them, as in `rows`.
    queries : numpy.ndarray
        Question numbers, `[R, E]`.
    baseline : str
    names : sequence of str, optional
        The systems that get rows; default: all.
    **keys
        As in `rows`.

    Returns
    -------
    list of dict
        Those of the baseline come without a difference.
    """
    made = []
    for name in names or values:
        asks = name.startswith("equal_calls") or (name in VARIANTS and VARIANTS[name].explorer)
        against = None if name == baseline else values[baseline]
        made += rows(setting, name, values[name], queries, against, sees_gold=asks, **keys)
    return made


def by_category(setting, values, queries, baseline, categories, **keys):
    """Rows as in `compared` of all questions, with the key `category` "all types", and of each type of question alone.

    Parameters as in `compared`; `categories` are types of questions.
    """
    types = np.array([query.category for query in benchmark(setting.dataset).asked])
    made = []
    for category in ("all types", *categories):
        wanted = np.full(len(types), True) if category == "all types" else types == category
        part = {name: evaluate.only(one, queries, wanted)[0] for name, one in values.items()}
        kept = evaluate.only(values[baseline], queries, wanted)[1]
        made += compared(setting, part, kept, baseline, category=category, **keys)
    return made


def vary(setting, name, choices, usual):
    """Run a variant with other hyper-parameters, each against the usual ones on the same questions.

    Parameters
    ----------
    setting : Setting
    name : str
        A key of `config.VARIANTS`.
    choices : list of dict
        Hyper-parameters; equal ones are run and shown once.
    usual : dict
        The hyper-parameters that all are compared with.

    Returns
    -------
    list of dict
        Rows as in `rows`, with the hyper-parameters as further keys; those of the usual ones have no difference.
    """
    against = run_variant(setting, name, **usual).values
    made = []
    for choice in distinct(choices):
        values, queries, _ = run_variant(setting, name, **choice)
        made += rows(setting, name, values, queries, None if choice == usual else against, **choice)
    return made


def paired(**grid):
    """Combinations of hyper-parameters: lists of equal length go together, a single value goes with every other.

    >>> paired(precision=[88, 70], recall=[86])
    [{'precision': 88, 'recall': 86}, {'precision': 70, 'recall': 86}]

    Raises
    ------
    ValueError
        If two lists have different lengths and neither has one value.
    """
    length = max(map(len, grid.values()))
    if any(len(values) not in (1, length) for values in grid.values()):
        told = ", ".join(f"{name} has {len(values)}" for name, values in grid.items())
        raise ValueError(f"expected lists of equal length, or single values: {told}")
    return [{name: values[at % len(values)] for name, values in grid.items()} for at in range(length)]


def curve(setting, name, chosen=None, **changes):
    """Recall@5 of adapter-only inference along training, each point against the untrained adapter.

    Only the last difference is tested: the others are its way there.

    Parameters
    ----------
    setting : Setting
        `evaluate_every` says how often.
    name : str
        A key of `config.VARIANTS`.
    chosen : list of dict, optional
        Hyper-parameters that each seed has for itself.
    **changes
        Hyper-parameters that differ from the paper's defaults.

    Returns
    -------
    list of dict
        Rows as in `rows`, with the further key `training_queries`.
    """
    result = _chosen(setting, name, chosen or [{}] * setting.seeds, **changes)
    made, start = [], result.adapter[0, :1]
    for point, (seen, values) in enumerate(zip(result.seen, result.adapter, strict=True), 1):
        at = {"tested": point == len(result.seen), "training_queries": int(seen)}
        made += rows(setting, name, values[:1], result.queries, start, **at)
    return made


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
    return _answers(name, _chosen(setting, name, chosen, **changes))


def _chosen(setting, name, chosen, **changes):
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


class Stream(NamedTuple):
    """What was answered to a stream of questions that a learner is taught by, one after the other.

    Recall@5 as in `evaluate.measure`, `[R, N]` in the order of the stream; NaN for questions without gold memories.
    """

    queries: np.ndarray  # [R, N] numbers of the questions
    place: np.ndarray  # [R, N] how many conversations came before
    static: np.ndarray  # [R, N] by the adapter as it starts
    first: np.ndarray  # [R, N] test-then-learn: each before anything was learned from it or those after it
    after: np.ndarray  # [R, N] each when the last of its conversation was learned from
    end: np.ndarray  # [R, N] each at the end of the stream


def arrivals(scopes, seed):
    """Questions in the order of a stream: conversations in a random order, the questions of each permuted.

    Parameters
    ----------
    scopes : sequence of str
        The conversation of each question.
    seed : int
        Of `numpy.random.default_rng`.

    Returns
    -------
    order, place : numpy.ndarray
        Question numbers, `[N]`, and how many conversations came before each.
    """
    names, scope = np.unique(np.asarray(scopes), return_inverse=True)
    rng = np.random.default_rng(seed)
    coming = rng.permutation(len(names))
    order = np.concatenate([rng.permutation(np.flatnonzero(scope == name)) for name in coming])
    return order, np.argsort(coming)[scope[order]]


def stream(setting, config):
    """Answer, score, then learn from every question of a benchmark, conversation after conversation.

    Parameters
    ----------
    setting : Setting
        Its split is not used: every question is answered before anything is learned from it.
    config : Config

    Returns
    -------
    Stream
    """
    found = _on(setting.device, candidates_of(setting, config.depth))
    parts = []
    for seed in range(setting.seeds):
        order, place = arrivals(found.scopes, seed)
        asked = torch.from_numpy(order)[None].to(found.bank.device)
        learner = Learner(config, found, _critic(config, found, (seed,), asked), (seed,), getattr(torch, setting.dtype))
        parts.append(Stream(order[None], place[None], *_streamed(learner, found, asked, place, config.batch_size)))
    return Stream(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def _streamed(learner, found, asked, place, batch):
    """Recall@5 of one seed, `[1, N]` each: static, test-then-learn, after its conversation, at the end."""

    def recall(queries):
        return evaluate.measure(found, queries, learner.retrieve(queries))[0]

    ends = np.flatnonzero(np.diff(place, append=place[-1] + 1)) + 1  # after the last question of each conversation
    static, first, after = recall(asked), [recall(asked[:, :batch])], []
    for step in learner.train(asked):
        coming = asked[:, step.seen : step.seen + batch]
        if coming.shape[1]:
            first.append(recall(coming))
        while len(after) < len(ends) and step.seen >= ends[len(after)]:
            start = ends[len(after) - 1] if after else 0
            after.append(recall(asked[:, start : ends[len(after)]]))
    return static, np.concatenate(first, 1), np.concatenate(after, 1), recall(asked)


def readings(options):
    """The readings of some questions that the paper leaves open, the default reading first.

    Parameters
    ----------
    options : list of str
        Their names, or "all".

    Raises
    ------
    ValueError
        For a name that no reading has.
    """
    default, *others = READINGS
    known = list(dict.fromkeys(reading.option for reading in others))
    for option in options:
        if option != "all" and option not in known:
            told = ", ".join(known)
            raise ValueError(f"options: unknown {option!r}{datasets.near(option, known)}; known: all, {told}")
    return default, [reading for reading in others if "all" in options or reading.option in options]


def shares_gold(setting):
    """Which questions share a gold turn with a training question of a seed, bool `[R, N]`."""
    asked = benchmark(setting.dataset).asked
    shares = np.zeros((setting.seeds, len(asked)), bool)
    for seed in range(setting.seeds):
        train, _ = split([query.scope for query in asked], setting, seed)
        seen = {turn for number in train for turn in asked[number].gold}
        shares[seed] = [not seen.isdisjoint(query.gold) for query in asked]
    return shares


def under(setting, reading, names, baseline=None):
    """Recall@5 of some systems under one reading of the paper, each against the same system under the default one.

    A reading of Recall@5 itself gives other values of the same slates.

    Parameters
    ----------
    setting : Setting
    reading : config.Reading
    names : sequence of str
        Keys of `config.VARIANTS`, or controls. Those that the reading does not concern stay as they are, but for the
        setting and the critic, which are the same for all.
    baseline : str, optional
        Compare with this system under the same reading instead.

    Returns
    -------
    list of dict
        Rows as in `rows`, with the further keys `option` and `choice`. A system that diverges under the reading has
        a row without a value. Where the questions differ from the default's (another split) there is no difference.
    """
    of_reading = Setting(**{**setting.model_dump(), **reading.setting})
    keys = {"option": reading.option, "choice": reading.choice}

    def reached(name, reading, setting):
        if name not in VARIANTS:
            critic = {"errors": reading.changes["errors"]} if "errors" in reading.changes else {}
            return run_control(setting, name, **critic)
        if name not in reading.concerns:
            return run_variant(setting, name)
        if reading.rates:
            return run_tuned(setting, name, reading.rates, **reading.changes)
        return run_variant(setting, name, **reading.changes)

    made = []
    for name in names:
        try:
            values, queries, _ = reached(name, reading, of_reading)
            against = reached(baseline, reading, of_reading) if baseline else reached(name, READINGS[0], setting)
        except FloatingPointError as error:
            reason = str(error).partition(" (")[0]
            told = {"dataset": setting.dataset, "encoder": setting.encoder, "split": of_reading.split, "variant": name}
            made.append({**told, "metric": reading.measure, **keys, "measured": None, "reason": reason})
            continue
        compares = reading != READINGS[0] or baseline
        same = compares and np.array_equal(queries, against.queries)
        measure = evaluate.MEASURES.index(reading.measure)
        theirs = measure if baseline else evaluate.MEASURES.index(READINGS[0].measure)
        told = {"sees_gold": name in VARIANTS and VARIANTS[name].explorer, "measures": (reading.measure,), **keys}
        other = against.values[[theirs]] if same else None
        made += rows(of_reading, name, values[[measure]], queries, other, **told)
    return made


def rows(
    setting, variant, values, queries, baseline=None, *, measures=evaluate.MEASURES, scale=100, tested=True, **keys
):
    """Rows of a record: one a measure, with its interval and the paired difference to a baseline.

    Parameters
    ----------
    setting : Setting
    variant : str
    values, queries : numpy.ndarray
        As `run_variant` returns them.
    baseline : numpy.ndarray, optional
        Values of the baseline on the same questions.
    measures : sequence of str
        Names of the measures; as many of them as there are values.
    scale : float
        The unit in which they are told, as in `evaluate.summary`.
    tested : bool
        Whether the difference has a permutation test.
    **keys
        Further keys and fields of the rows.

    Returns
    -------
    list of dict
    """
    made = []
    of_scope = scopes(setting.dataset)
    for number, measure in enumerate(measures[: len(values)]):
        row = {"dataset": setting.dataset, "encoder": setting.encoder, "split": setting.split, "variant": variant}
        row |= {"metric": measure, **keys, **evaluate.summary(values[number], queries, of_scope, scale)}
        if baseline is not None:
            gap = evaluate.difference(values[number], baseline[number], queries, of_scope, scale, tested)
            told = ("low", "high", "scope_low", "scope_high")
            row |= {f"difference_{end}": gap[end] for end in told if end in gap}
            row |= {"difference": gap["measured"], "p": gap.get("p")}
        made.append(row)
    return made
