"""Quality of a critic's citations on the slates shown in training, and of the adapter that learns from them."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from earlib import devices
from earlib.data import cache
from earlib.experiments import comparisons, measures, runs, settings

UNREAD = "no citation could be read, or nothing was cited"


class Quality(NamedTuple):
    """Realised quality of the citations of a training run, in percent, a value a seed."""

    precision: np.ndarray  # [R] gold among the cited memories; NaN if none was cited
    recall: np.ndarray  # [R] cited among the gold memories that were shown
    no_gold: np.ndarray  # [R] slates without any gold memory
    base_rate: np.ndarray  # [R] gold among the memories that were shown: the precision of citing them all
    unparsed: np.ndarray  # [R] slates whose citations could not be read; the other values leave them out


class Taught(NamedTuple):
    """Results of training with a critic."""

    quality: Quality
    queries: np.ndarray  # [R, E] evaluation questions
    adapter: np.ndarray  # [3, R, E] adapter-only inference, in the order of measures.MEASURES
    assisted: np.ndarray  # [3, R, n] Explorer-assisted inference, which asks the same critic, on the first n of them


def teach(setting, config, critic=None, assisted=0):
    """Train once with a critic, count its citations, and answer the evaluation questions; returns `Taught`.

    With a simulated critic the counts and answers are cached.

    Parameters
    ----------
    setting : Setting
    config : Config
    critic : callable, optional
        As in `earlib.core.critic`; default: the simulated critic of the configuration.
    assisted : int
        n, evaluation questions of a seed on which the Explorer asks the critic.

    Raises
    ------
    ValueError
        For a simulated critic whose errors are calibrated on a run, or concern other labels than the true ones.
    """
    if critic is None and config.errors not in ("slate", "persistent"):
        raise ValueError(f"errors = {config.errors!r}: expected 'slate' or 'persistent'")
    code = Path(__file__).read_text(encoding="utf-8")
    key = cache.content_hash([runs.job(setting, config).key, assisted, code])
    kept = cache.load("citations", key) if critic is None else None
    if kept is None:
        kept = _teach(setting, config, critic, assisted)
        if critic is None:
            cache.save("citations", key, kept)
    return Taught(_quality(kept.pop("counts")), **kept)


def _teach(setting, config, critic, assisted):
    """Train, and return the counts of each seed, `[R, 7]`, and the other fields of `Taught` by their names."""
    found, parts = settings.candidates_of(setting, config.depth).to(devices.ready(setting.device)), []
    for seed, (learner, order, gold) in enumerate(runs.learners(setting, config, critic)):
        steps = zip(order.split(config.batch_size, 1), learner.train(order), strict=True)
        counts = sum(_counted(gold[queries], step.exploration) for queries, step in steps)
        kept = torch.from_numpy(settings.split(found.scopes, setting, seed)[1])[None].to(order.device)
        few = kept[:, :assisted]
        values = measures.measure(found, kept, learner.retrieve(kept))
        asked = measures.measure(found, few, learner.retrieve(few, explorer=True)) if assisted else values[..., :0]
        parts.append((counts, kept.cpu().numpy(), values, asked))
    counts, kept, values, asked = zip(*parts, strict=True)
    joined = {"queries": np.concatenate(kept), "adapter": np.concatenate(values, 1)}
    return {"counts": np.array(counts, float), **joined, "assisted": np.concatenate(asked, 1)}


def quality_rows(setting, taught, sees_gold=True, **keys):
    """Rows of a record, with further keys: a critic's quality, and Recall@5 compared with the static retriever."""
    about = {"dataset": setting.dataset, "encoder": setting.encoder, "split": setting.split, "variant": "ear_adapter"}
    counted, made = {"n_queries": setting.train_queries, "seeds": setting.seeds}, []
    for metric, by_seed in taught.quality._asdict().items():
        known = np.isfinite(by_seed).all()
        value = {"measured": float(by_seed.mean())} if known else {"measured": None, "reason": UNREAD}
        made.append({**about, "metric": metric, **keys, **counted, **value})
    static = runs.answers(setting, "retriever").values[:1]
    for variant, values in (("ear_adapter", taught.adapter), ("ear", taught.assisted)):
        queries, against = taught.queries[:, : values.shape[-1]], static[..., : values.shape[-1]]
        keys["sees_gold"] = variant == "ear" and sees_gold
        made += comparisons.rows(setting, variant, values[:1], queries, against, **keys)
    return made


def _quality(counts):
    both, cited, gold, empty, shown, read, slates = counts.T
    with np.errstate(invalid="ignore", divide="ignore"):  # nothing cited, or nothing read: NaN
        parts = ((both, cited), (both, gold), (empty, read), (gold, shown), (slates - read, slates))
        return Quality(*(100 * part / whole for part, whole in parts))


def _counted(gold, exploration):
    """Counts of an update: memories gold and cited, cited, gold, slates without gold, memories, slates; all slates."""
    slates, read = exploration.slates, exploration.readable
    is_gold = gold.unsqueeze(2).expand(*slates.shape[:3], -1).gather(-1, slates) & read
    cited, whole = (exploration.citations > 0) & read, read.any(-1)
    empty = ~is_gold.any(-1) & whole
    parts = (is_gold & cited, cited, is_gold, empty, read, whole, torch.ones_like(whole))
    return np.array([int(part.sum()) for part in parts])
