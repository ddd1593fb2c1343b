"""Settings: the data that a system is run on, and the questions that it learns from."""

from collections import Counter
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field, field_validator

from earlib import devices
from earlib.core.config import Checked
from earlib.data import benchmarks
from earlib.data import candidates as first_stage

TRAINED_SHARE = 0.8
HELD_OUT_SEED = 308  # of the one permutation from which the fixed split takes its evaluation questions
# How many it takes of each kind, which is the type of a question with a gold turn: the numbers that the paper's
# percentages are over (`one_held_out_set` in earlib/paper/readings.yaml). None: a type that the paper does not name.
ANY_TYPE, WITHOUT_GOLD = "any type", "without a gold turn"
HELD_OUT = {
    "locomo": {"single-hop": 173, "multi-hop": 53, "temporal": 64, "open-domain": 18},
    "longmemeval": {ANY_TYPE: 93, WITHOUT_GOLD: 7},
}


class Setting(Checked):
    """The data of a run: benchmark, encoder, candidates, split and seeds.

    Raises
    ------
    pydantic.ValidationError
        For an unknown name, a wrong type, or a value out of range.
    """

    dataset: str = "locomo"
    encoder: str = "minilm"
    store: Literal["dialogue", "observation", "both"] = "dialogue"  # memories that are searched
    first_stage: Literal["dense", "hybrid"] = "dense"  # candidates by cosine, or by its ranking fused with BM25's
    # Evaluation questions: a random fifth of each seed's own; a fifth of the conversations; the same for all seeds.
    split: Literal["random", "conversation", "fixed"] = "random"
    reranker: Literal["none", "bm25", "monot5"] = "none"  # its scores are side information of the Explorer
    seeds: int = Field(3, ge=1)  # seeds 0 to seeds - 1
    captions: bool = True  # the text of a turn includes the caption of a shared image
    dates: bool = False  # the text of a turn begins with its date
    width: int | None = Field(None, ge=1)  # dimensions into which embeddings are rotated; None: as encoded
    train_queries: int | None = Field(None, ge=1)  # training queries seen; all if None
    epochs: int = Field(1, ge=1)  # passes over the training queries
    evaluate_every: int | None = Field(None, ge=1)  # training queries between evaluations; None: at each pass's end
    validate_on_training: bool = False  # evaluate on a fifth of the training queries, to choose hyper-parameters
    device: str = Field(default_factory=devices.default)  # where tensors live: cpu, cuda or cuda:N
    dtype: Literal[devices.DTYPES] = Field(default_factory=devices.dtype)  # in which adapters learn and score

    @field_validator("device")
    @classmethod
    def _known_device(cls, name):
        return devices.check(name)


@lru_cache(maxsize=8)
def benchmark(dataset, captions=True, dates=False):
    """Load a benchmark, once for each process; parameters and result as in `earlib.data.benchmarks.load`."""
    return benchmarks.load(dataset, captions=captions, dates=dates)


def candidates_of(setting, depth):
    """Retrieve the K = `depth` first-stage candidates of a setting, once for each process; they lie on the CPU."""
    of_candidates = {"dataset", "encoder", "store", "captions", "dates", "device", "first_stage", "width", "reranker"}
    return _candidates(Setting(**setting.model_dump(include=of_candidates)), depth)


@lru_cache(maxsize=8)
def _candidates(setting, depth):
    """Candidates by the last stage that the setting asks for, made from those of the stages before it."""
    searched = benchmark(setting.dataset, setting.captions, setting.dates)

    def without(**stage):
        return _candidates(setting.model_copy(update=stage), depth)

    if setting.reranker != "none":
        found = without(reranker="none")
        return first_stage.with_side(searched, found, setting.reranker, setting.store, setting.device)
    if setting.width is not None:
        return without(width=None).rotated(setting.width)
    if setting.first_stage == "hybrid":
        return first_stage.fused(searched, without(first_stage="dense"), depth, setting.store)
    return first_stage.retrieve(searched, setting.encoder, depth, setting.store, setting.device)


def split(scopes, setting, seed):
    """Split questions into a training and an evaluation set.

    Seed i uses `numpy.random.default_rng(i)`. Random: the first 80 % of a permutation train, in that order. By
    conversation: a random fifth of the conversations is held out, and the other questions train, permuted. Fixed: the
    questions of `held_out` are evaluated, and the others train, permuted. Later epochs permute the training questions
    again. With `validate_on_training` the last fifth of the training questions, or a random fifth of the training
    conversations, replaces the evaluation set and is not trained on.

    Parameters
    ----------
    scopes : sequence of str
        The conversation of each question of the setting's dataset; ValueError if there are too few to train on.
    setting : Setting
    seed : int

    Returns
    -------
    train, evaluation : numpy.ndarray
        Question numbers, the former in training order.
    """
    names, scope = np.unique(np.asarray(scopes), return_inverse=True)
    rng = np.random.default_rng(seed)

    def cut(order):
        return np.split(order, [int(TRAINED_SHARE * len(order))])

    def is_held_out(questions):  # a random fifth of their conversations, at least one
        present = np.unique(scope[questions])
        drawn = rng.choice(present, max(1, round((1 - TRAINED_SHARE) * len(present))), replace=False)
        return np.isin(scope[questions], drawn)

    if setting.split == "conversation":
        apart = is_held_out(np.arange(len(scope)))
        learned, kept = rng.permutation(np.flatnonzero(~apart)), np.flatnonzero(apart)
        if setting.validate_on_training:
            apart = is_held_out(learned)
            learned, kept = learned[~apart], learned[apart]
    else:
        if setting.split == "fixed":
            kept = held_out(setting)
            learned = rng.permutation(np.setdiff1d(np.arange(len(scope)), kept))
        else:
            learned, kept = cut(rng.permutation(len(scope)))
        if setting.validate_on_training:
            learned, kept = cut(learned)
    if not len(learned):
        found = f"{len(scope)} question(s) of {len(names)} conversation(s)"
        raise ValueError(f"split {setting.split}: {found} leave none to learn from; expected more of them")
    learned = learned[: setting.train_queries]
    return np.concatenate([learned, *(rng.permutation(learned) for _ in range(setting.epochs - 1))]), kept


def held_out(setting):
    """Evaluation questions of the fixed split, `[E]`: the same, in the same order, whatever the seed.

    They are the first of one permutation: as many of each kind as `HELD_OUT` says of the dataset, else the last fifth.

    Raises
    ------
    ValueError
        If no question of the dataset has a gold turn, or if it has fewer questions of a kind than wanted.
    """
    asked = benchmark(setting.dataset, setting.captions, setting.dates).asked
    if not any(query.gold for query in asked):
        raise ValueError(
            f"split fixed: none of the {len(asked)} questions of {setting.dataset} has a gold turn, so that retrieval "
            "cannot be evaluated; name gold turns in the dataset"
        )
    order = np.random.default_rng(HELD_OUT_SEED).permutation(len(asked))
    wanted = HELD_OUT.get(setting.dataset)
    if wanted is None:
        return order[int(TRAINED_SHARE * len(order)) :]
    kept, taken = [], Counter()
    for number in order:
        query = asked[number]
        kind = (ANY_TYPE if ANY_TYPE in wanted else query.category) if query.gold else WITHOUT_GOLD
        if taken[kind] < wanted.get(kind, 0):
            taken[kind] += 1
            kept.append(number)
    for kind, count in wanted.items():
        if taken[kind] < count:
            raise ValueError(
                f"split fixed: {setting.dataset} has {taken[kind]} question(s) of the kind {kind!r}, expected at least "
                f"{count}; use the published file, or split random"
            )
    return np.array(kept)


def beside(setting, reranker):
    """The setting with a reranker's scores as side information; unchanged for "none"."""
    return setting if reranker == "none" else setting.model_copy(update={"reranker": reranker})


def shares_gold(setting):
    """Mark the questions that share a gold turn with a training question of a seed, bool `[R, N]`."""
    asked = benchmark(setting.dataset).asked
    shares = np.zeros((setting.seeds, len(asked)), bool)
    for seed in range(setting.seeds):
        train, _ = split([query.scope for query in asked], setting, seed)
        seen = {turn for number in train for turn in asked[number].gold}
        shares[seed] = [not seen.isdisjoint(query.gold) for query in asked]
    return shares
