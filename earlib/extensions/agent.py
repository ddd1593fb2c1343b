"""An agent's life with an `EARMemory`: it is asked one question after another, answers from its memory, and learns.

Each question is a test before it is a lesson: what counts is what the memory returned when the question was new. The
agent took part in all conversations of a benchmark and remembers every turn. Its feedback is simulated, and sees gold.
"""

from typing import NamedTuple

import numpy as np
import torch

from earlib import devices
from earlib.core.critic import SimulatedCritic
from earlib.data.encoders import encode
from earlib.experiments import comparisons, measures, settings
from earlib.memory import PRESETS, EARMemory, Preset

SHOWN = 5  # memories that a question brings before the agent
STILL = 1e-12  # a learning rate that moves nothing
WEIGHTS = (0.15, 0.3, 0.45, 0.6, 0.9)  # of the score by words, among which a memory that learns nothing has one
_BEST = PRESETS["best"]


class Way(NamedTuple):
    """A way to use a memory."""

    preset: Preset
    learns: str  # "no"; "feedback": the critic cites among the memories returned; "reflection": the Explorer's slates
    order: str = "learned"  # in which the candidates are returned; "fused": the first stage's own; "gold": gold first


def _changed(**changes):
    """The best preset with other hyper-parameters."""
    return Preset(_BEST.config.model_copy(update=changes), words=True)


WAYS = {
    "memory_still": Way(_BEST, "no"),
    "memory_fused": Way(_BEST, "no", order="fused"),
    "memory_ceiling": Way(_BEST, "no", order="gold"),
    "memory_words": Way(_changed(learning_rate=STILL, side_start=0.0), "feedback"),
    "memory_paper": Way(PRESETS["paper"], "feedback"),
    "memory_feedback": Way(_BEST, "feedback"),
    "memory_reflection": Way(_BEST, "reflection"),
}


class Life(NamedTuple):
    """What a memory returned to each question when it was new; R lives, one a seed, of N questions each."""

    queries: np.ndarray  # [R, N] question numbers, in the order in which they came
    values: np.ndarray  # [3, R, N] measures as in measures.MEASURES
    returned: list  # of each life, for each question, the ids of the memories
    weight: list  # of each life, the weight of the score by words that it ended with


def live(setting, way, questions=None):
    """Let a memory live through the questions of a benchmark, once for each seed of a setting.

    Parameters
    ----------
    setting : settings.Setting
        Dataset, encoder and seeds; a seed has its own order of the questions and its own errors of the critic.
    way : str
        One of `WAYS`.
    questions : int, optional
        How many each life has; default: all.

    Returns
    -------
    Life
    """
    return _live(setting, WAYS[way], questions)


def fixed(setting, questions=None):
    """Lives of a memory that learns nothing but one weight of the score by words, the best over its own first half.

    What counts is the second half, over which nothing was chosen. Parameters and result as those of `live`; the weight
    of a life is that which it took.
    """
    tried = [_live(setting, Way(_changed(side_start=weight), "no"), questions) for weight in WEIGHTS]
    half = tried[0].queries.shape[1] // 2
    best = np.nanmean([one.values[0, :, :half] for one in tried], axis=2).argmax(0)  # the smallest of equally good ones
    seeds = range(setting.seeds)
    values = np.stack([tried[best[seed]].values[:, seed] for seed in seeds], 1)
    returned = [tried[best[seed]].returned[seed] for seed in seeds]
    return Life(tried[0].queries, values, returned, [WEIGHTS[best[seed]] for seed in seeds])


def _live(setting, way, questions):
    benchmark, encoder = settings.benchmark(setting.dataset), _known(setting.dataset, setting.encoder)
    gold, lives = _gold(benchmark), []
    for seed in range(setting.seeds):
        order = np.random.default_rng(seed).permutation(len(benchmark.asked))[:questions]
        lives.append(_life(benchmark, encoder, gold, order, way, seed))
    queries, returned, weight = zip(*lives, strict=True)
    queries = np.stack(queries)
    found, count = np.zeros(queries.shape, int), np.array([len(one) for one in gold])
    for at, number in np.ndenumerate(queries):
        found[at] = len(gold[number].intersection(returned[at[0]][at[1]]))
    return Life(queries, measures._shares(found, count[queries]), returned, weight)


def _life(benchmark, encoder, gold, order, way, seed):
    """The questions of one life, what each brought, and the weight of words in the end."""
    asked = {}  # the question that is being asked: its text may be that of others too

    def critic(query, ids, texts):
        return SimulatedCritic(way.preset.config, torch.tensor([[id in gold[asked["now"]] for id in ids]]))

    memory = EARMemory(encoder, way.preset, critic, seed, getattr(torch, devices.dtype()))
    turns = [one for one in benchmark.memories if one.store == "dialogue"]
    memory.add([one.text for one in turns], [one.id for one in turns])
    returned = []
    for asked["now"] in order.tolist():
        text = benchmark.asked[asked["now"]].text
        ids = _answer(memory, text, way.order, gold[asked["now"]])
        returned.append(ids)
        if way.learns == "feedback":
            memory.feedback(text, ids)
        elif way.learns == "reflection":
            memory.reflect(text)
    return order, returned, memory.weight


def _answer(memory, text, order, gold):
    """Ids of the memories that a question brings before the agent."""
    if order == "learned":
        return [one.id for one in memory.retrieve(text, SHOWN)]
    ids = memory.candidates(text)
    return (sorted(ids, key=lambda id: id not in gold) if order == "gold" else ids)[:SHOWN]


def along(setting, lives, every, baseline="memory_still"):
    """Rows of a record: Recall@5 of each way along a life, against the memory that learns nothing.

    Parameters
    ----------
    setting : settings.Setting
    lives : dict of Life
        By way.
    every : int
        Questions of a stretch; what is left at the end is not a stretch.
    baseline : str
        A way.

    Returns
    -------
    list of dict
        With the key `asked`, the questions asked until the end of the stretch.

    Raises
    ------
    ValueError
        If a life is shorter than a stretch.
    """
    made, length = [], lives[baseline].queries.shape[1]
    if every > length:
        raise ValueError(f"every = {every}: expected at most {length}, the questions of a life")
    for stop in range(every, length + 1, every):
        made += _rows(setting, lives, slice(stop - every, stop), baseline, asked=stop, tested=False)
    return made


def second_half(setting, lives, baseline):
    """Rows of Recall@5 over the second half of each life; parameters as for `along`.

    Returns
    -------
    list of dict
        With the keys `part` and `over`, the way that all are compared with.
    """
    half = slice(lives[baseline].queries.shape[1] // 2, None)
    return _rows(setting, lives, half, baseline, part="second half", over=baseline)


def _rows(setting, lives, stretch, baseline, **about):
    made, against = [], lives[baseline].values[:1, :, stretch]
    for way, life in lives.items():
        values, queries = life.values[:1, :, stretch], life.queries[:, stretch]
        (row,) = comparisons.rows(setting, way, values, queries, None if way == baseline else against, **about)
        row.pop("split")  # nothing is split: every question is asked once, and counts
        made.append(row)
    return made


def moments(setting, before, after, count=3):
    """Questions of the first life, as late as there are, that one way answered from the right memory and one did not.

    No text of the benchmark is told, since its licence is not that of this package: ids stand for them.

    Parameters
    ----------
    setting : settings.Setting
    before, after : Life
        Of the same setting.
    count : int
        Of those that the second found, and of those that it lost.

    Returns
    -------
    str
        Each question, and the memories that each way returned, the gold ones marked *.
    """
    benchmark, lines = settings.benchmark(setting.dataset), []
    gold, first, second = _gold(benchmark), before.values[0, 0], after.values[0, 0]
    for told, changed in (("found", second > first), ("lost", second < first)):
        lines.append(f"-- {told}: {changed.sum()} of {len(first)}, the last of them")
        for at in np.flatnonzero(changed)[-count:]:
            number = before.queries[0, at]
            lines.append(f"{at + 1}. {benchmark.asked[number].id}")
            for name, life in (("before", before), ("after", after)):
                shown = ", ".join(f"{id}{'*' if id in gold[number] else ''}" for id in life.returned[0][at])
                lines.append(f"     {name:6} {shown}")
    return "\n".join(lines)


def _known(dataset, encoder):
    """An encoder for an EARMemory that looks the texts of a benchmark up, whose embeddings are kept on the disk."""
    benchmark = settings.benchmark(dataset)
    texts = {"memory": [one.text for one in benchmark.memories], "query": [one.text for one in benchmark.queries]}
    held = {kind: dict(zip(of, encode(of, encoder, kind), strict=True)) for kind, of in texts.items()}
    return lambda asked, kind: np.stack([held[kind][text] for text in asked])


def _gold(benchmark):
    """Ids of the gold turns of each question that a memory holds, as sets."""
    turns = {one.id for one in benchmark.memories if one.store == "dialogue"}
    return [turns.intersection(query.gold) for query in benchmark.asked]
