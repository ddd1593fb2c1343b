"""A language model as the critic in training, beside the simulated critic."""

import time

import numpy as np
import torch

from earlib.experiments import critic_quality, settings
from earlib.llm import NoModel
from earlib.llm.answers import dash
from earlib.llm.critic import LLMCritic
from earlib.llm.models import connect, reply_tokens, row_name


def llm_critic(setting, config, name, **how):
    """The critic of a setting that asks a language model, as in `models.connect`; keywords as of `LLMCritic`."""
    benchmark = settings.benchmark(setting.dataset, setting.captions, setting.dates)
    questions, memories = ([one.text for one in texts] for texts in (benchmark.asked, benchmark.memories))
    index = settings.candidates_of(setting, config.depth).index
    return LLMCritic(connect(name), questions, memories, index, reply_tokens(name), **how)


def seconds_a_call(setting, config, name, questions):
    """Seconds in which a language model cites the retriever's slate, for each question `[n]`, one after the other.

    None is taken from the store, since a stored reply takes no time. NoModel, as of `earlib.llm.models.connect`.
    """
    critic = llm_critic(setting, config, name, sample=time.time_ns() // 10**6)
    slate, taken = torch.arange(config.slate_size)[None], []
    for number in questions:
        start = time.perf_counter()
        critic(torch.tensor([number]), slate)
        taken.append(time.perf_counter() - start)
    return np.array(taken)


def critic_rows(setting, config, assisted, llm=None, **keys):
    """Rows of one critic, as from `critic_quality.quality_rows`.

    Parameters
    ----------
    setting, config, assisted
        As in `critic_quality.teach`.
    llm : str, optional
        A language model, as in `earlib.llm.models.connect`; default: the simulated critic of the configuration.
    **keys
        Further keys of the rows.

    Returns
    -------
    list of dict
        Those of a language model count in `unparsed` and `refused` all slates whose citations are masked. Without a
        model they have no value, and Recall@5 has none with a model that cites no better than by chance.
    """
    try:
        critic = llm_critic(setting, config, llm) if llm else None
        taught = critic_quality.teach(setting, config, critic, assisted)
    except NoModel as error:
        wanted = [("ear_adapter", metric) for metric in (*critic_quality.Quality._fields, "recall@5")]
        return [dash(setting, *one, error, llm=row_name(llm), **keys) for one in [*wanted, ("ear", "recall@5")]]
    if llm:
        refused = critic.unread["refused"]
        keys |= {"llm": row_name(llm), "varies": True, "unparsed": critic.unread.total() - refused, "refused": refused}
    made = critic_quality.quality_rows(setting, taught, sees_gold=not llm, **keys)
    if llm and (reason := _by_chance(taught.quality)):
        made = [dash(setting, row["variant"], "recall@5", reason, **keys) if "low" in row else row for row in made]
    return made


def _by_chance(quality):
    """Reason why nothing that was learned from citations counts: their precision is that of citing everything."""
    precision, chance = quality.precision.mean(), quality.base_rate.mean()
    if precision > chance:
        return ""
    if np.isnan(precision):
        return critic_quality.UNREAD
    return f"of what the critic cites {precision:.1f} % is gold, of all that it is shown {chance:.1f} %"
