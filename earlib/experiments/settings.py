"""What a system is run on: benchmark, encoder, candidates, and which questions it learns from."""

from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field, field_validator

from earlib import devices
from earlib.core.config import Checked
from earlib.data import benchmarks
from earlib.data import candidates as first_stage

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


@lru_cache(maxsize=8)
def benchmark(dataset, captions=True, dates=False):
    """The benchmark of a setting, loaded once."""
    return benchmarks.load(dataset, captions=captions, dates=dates)


def candidates(dataset, encoder, depth, store="dialogue", captions=True, dates=False, device=None):
    """First-stage candidates of a setting, retrieved once; on the CPU, wherever their embeddings were made."""
    return _retrieved(dataset, encoder, depth, store, captions, dates, device or devices.default())


@lru_cache(maxsize=8)
def _retrieved(dataset, encoder, depth, store, captions, dates, device):
    return first_stage.retrieve(benchmark(dataset, captions, dates), encoder, depth, store, device)


@lru_cache(maxsize=2)
def on_device(device, found):
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


def beside(setting, reranker):
    """The setting with a reranker's scores beside the candidates; as it is with "none"."""
    return setting if reranker == "none" else setting.model_copy(update={"reranker": reranker})


def shares_gold(setting):
    """Which questions share a gold turn with a training question of a seed, bool `[R, N]`."""
    asked = benchmark(setting.dataset).asked
    shares = np.zeros((setting.seeds, len(asked)), bool)
    for seed in range(setting.seeds):
        train, _ = split([query.scope for query in asked], setting, seed)
        seen = {turn for number in train for turn in asked[number].gold}
        shares[seed] = [not seen.isdisjoint(query.gold) for query in asked]
    return shares
