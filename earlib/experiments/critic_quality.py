"""How good a critic's citations turn out to be, on the slates that it is shown in training, and what is learned."""

from typing import NamedTuple

import numpy as np
import torch

from earlib.experiments import comparisons, measures, runs, settings
from earlib.llm import NoModel
from earlib.llm.answers import dash
from earlib.llm.critic import LLMCritic
from earlib.llm.models import connect, reply_tokens

UNREAD = "no citation could be read, or nothing was cited"


class Quality(NamedTuple):
    """Realised quality of the citations of a training run, in percent, a value a seed."""

    precision: np.ndarray  # [R] gold among the memories that were cited; NaN if none was
    recall: np.ndarray  # [R] cited among the gold memories that were shown
    no_gold: np.ndarray  # [R] slates without any gold memory
    base_rate: np.ndarray  # [R] gold among the memories that were shown: the precision of citing them all
    unparsed: np.ndarray  # [R] slates whose citations could not be read; the other values leave them out


class Learned(NamedTuple):
    """What a critic made of an adapter."""

    quality: Quality
    queries: np.ndarray  # [R, E] evaluation questions
    adapter: np.ndarray  # [3, R, E] measures of adapter-only inference, as in measures.MEASURES
    assisted: np.ndarray  # [3, R, n] of Explorer-assisted inference, which asks the same critic, on the first of them


def llm_critic(setting, config, name):
    """A language model as the critic of a setting.

    Parameters
    ----------
    setting : settings.Setting
    config : Config
    name : str
        As in `earlib.llm.models.connect`.

    Raises
    ------
    NoModel
        For "none".
    """
    benchmark = settings.benchmark(setting.dataset, setting.captions, setting.dates)
    questions = [query.text for query in benchmark.asked]
    memories = [memory.text for memory in benchmark.memories]
    index = settings.candidates_of(setting, config.depth).index
    return LLMCritic(connect(name), questions, memories, index, reply_tokens(name))


def learned(setting, config, critic=None, assisted=0):
    """Train once with a critic, count what it cited in training, and answer the evaluation questions.

    Parameters
    ----------
    setting : settings.Setting
    config : Config
    critic : callable, optional
        As in `earlib.core.critic`; default: the simulated one, whose targets are the configuration's precision and recall.
        Its errors must be about the true gold labels ("slate", "persistent").
    assisted : int
        Evaluation questions of a seed that the Explorer asks the critic about.

    Returns
    -------
    Learned

    Raises
    ------
    ValueError
        For a simulated critic that is calibrated on a run, or told other labels than the true ones.
    NoModel
        If the critic is a language model and there is none to ask.
    """
    if critic is None and config.errors not in ("slate", "persistent"):
        raise ValueError(f"errors = {config.errors!r}: expected 'slate' or 'persistent'")
    found, parts = settings.candidates_of(setting, config.depth), []
    for seed, (learner, order, gold) in enumerate(runs.learners(setting, config, critic)):
        steps = zip(order.split(config.batch_size, 1), learner.train(order), strict=True)
        counts = sum(_counted(gold[queries], step.exploration) for queries, step in steps)
        kept = torch.from_numpy(settings.split(found.scopes, setting, seed)[1])[None]
        few = kept[:, :assisted]
        values = measures.measure(found, kept, learner.retrieve(kept))
        asked = measures.measure(found, few, learner.retrieve(few, explorer=True)) if assisted else values[..., :0]
        parts.append((counts, kept.numpy(), values, asked))
    counts, kept, values, asked = zip(*parts, strict=True)
    joined = [np.concatenate(one, axis) for one, axis in ((kept, 0), (values, 1), (asked, 1))]
    return Learned(_quality(np.array(counts, float)), *joined)


def rows(setting, config, assisted, llm=None, **keys):
    """Rows of one critic: the quality of its citations, and Recall@5 of what it taught, against the static retriever.

    Parameters
    ----------
    setting, config, assisted
        As in `learned`.
    llm : str, optional
        A language model, as in `earlib.llm.models.connect`; default: the simulated critic of the configuration.
    **keys
        Further keys of the rows.

    Returns
    -------
    list of dict
        Those of a language model count in `unparsed` and `refused` all slates, of training and of evaluation, whose
        citations are masked. Without a model to ask, rows without a value, with the reason.
    """
    about = {"dataset": setting.dataset, "encoder": setting.encoder}
    try:
        critic = llm_critic(setting, config, llm) if llm else None
        found = learned(setting, config, critic, assisted)
    except NoModel as error:
        wanted = [("ear_adapter", metric) for metric in (*Quality._fields, "recall@5")] + [("ear", "recall@5")]
        return [dash(setting, variant, metric, error, llm=llm, **keys) for variant, metric in wanted]
    if llm:
        refused = critic.unread["refused"]
        keys |= {"llm": llm, "varies": True, "unparsed": critic.unread.total() - refused, "refused": refused}
    made = []
    for metric, by_seed in found.quality._asdict().items():
        value = {"n_queries": setting.train_queries, "seeds": setting.seeds}
        if np.isfinite(by_seed).all():
            value |= {"measured": float(by_seed.mean())}
        else:
            value |= {"measured": None, "reason": UNREAD}
        made.append({**about, "variant": "ear_adapter", "metric": metric, **keys, **value})
    static = runs.answers(setting, "retriever").values[:1]
    for variant, values in (("ear_adapter", found.adapter), ("ear", found.assisted)):
        asked = values.shape[-1]
        told = {"sees_gold": variant == "ear" and not llm, **keys}
        made += comparisons.rows(setting, variant, values[:1], found.queries[:, :asked], static[..., :asked], **told)
    return made


def _quality(counts):
    both, cited, gold, empty, shown, read, slates = counts.T
    with np.errstate(invalid="ignore", divide="ignore"):  # nothing cited, or nothing read: NaN
        parts = ((both, cited), (both, gold), (empty, read), (gold, shown), (slates - read, slates))
        return Quality(*(100 * part / whole for part, whole in parts))


def _counted(gold, exploration):
    """What an update showed and what was cited; `gold` is `[R, Q, K]`.

    Returns
    -------
    numpy.ndarray
        Of the slates that could be read: gold and cited, cited, gold, slates without gold, memories, slates; and all
        slates.
    """
    slates, read = exploration.slates, exploration.readable
    is_gold = gold.unsqueeze(2).expand(*slates.shape[:3], -1).gather(-1, slates) & read
    cited = (exploration.citations > 0) & read
    whole = read.any(-1)
    empty = ~is_gold.any(-1) & whole
    parts = (is_gold & cited, cited, is_gold, empty, read, whole, torch.ones_like(whole))
    return np.array([int(part.sum()) for part in parts])
