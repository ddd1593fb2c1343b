"""An agent's life with an `EARMemory`: it is asked one question after another, answers from its memory, and learns.

Each question is tested before it is learned from. The agent remembers every dialogue turn of a benchmark. Its feedback
is simulated, and sees gold.
"""

from typing import NamedTuple

import numpy as np
import torch

from earlib import devices
from earlib.core.critic import SimulatedCritic
from earlib.data.encoders import encode
from earlib.experiments import comparisons, measures, settings
from earlib.memory import PRESETS, EARMemory, Preset

SHOWN = 5  # memories returned for a question
STILL = 1e-12  # a learning rate that moves nothing
WEIGHTS = (0.15, 0.3, 0.45, 0.6, 0.9)  # of the score by words, for `run_fixed`
_BEST = PRESETS["best"]


class Way(NamedTuple):
    """A way to use a memory."""

    preset: Preset
    learns: str  # "no"; "feedback": the critic cites among the memories returned; "reflection": the Explorer's slates
    order: str = "learned"  # of the candidates; "fused": the first stage's own; "gold": gold first


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
    """Results on each question when it was new; R lives, one a seed, of N questions each."""

    queries: np.ndarray  # [R, N] question numbers, in the order in which they came
    values: np.ndarray  # [3, R, N] in the order of measures.MEASURES
    returned: list  # of each life, for each question, the ids of the memories
    weight: list  # of each life, the final weight of the score by words


def run_lives(setting, way, questions=None):
    """Let a memory live through the questions of a benchmark, once for each seed; returns a `Life`.

    Parameters
    ----------
    setting : Setting
        Dataset, encoder and seeds; a seed has its own order of the questions and its own errors of the critic.
    way : str or Way
        One of `WAYS`, or its name.
    questions : int, optional
        Questions of each life; default: all.
    """
    way = WAYS[way] if isinstance(way, str) else way
    benchmark = settings.benchmark(setting.dataset)
    encoder, gold, lives = _lookup(benchmark, setting.encoder), _gold(benchmark), []
    for seed in range(setting.seeds):
        order = np.random.default_rng(seed).permutation(len(benchmark.asked))[:questions]
        lives.append((order, *_life(benchmark, encoder, gold, order, way, seed)))
    queries, returned, weight = zip(*lives, strict=True)
    queries = np.stack(queries)
    found, count = np.zeros(queries.shape, int), np.array([len(one) for one in gold])
    for at, number in np.ndenumerate(queries):
        found[at] = len(gold[number].intersection(returned[at[0]][at[1]]))
    return Life(queries, measures.shares(found, count[queries]), returned, weight)


def run_fixed(setting, questions=None):
    """Lives of a memory that only chooses a weight of the score by words, the best over its own first half.

    The second half is held out. Parameters and result as in `run_lives`.
    """
    tried = [run_lives(setting, Way(_changed(side_start=weight), "no"), questions) for weight in WEIGHTS]
    half = tried[0].queries.shape[1] // 2
    best = np.nanmean([one.values[0, :, :half] for one in tried], axis=2).argmax(0)  # the smallest of equally good ones
    values = np.stack([tried[at].values[:, seed] for seed, at in enumerate(best)], 1)
    returned = [tried[at].returned[seed] for seed, at in enumerate(best)]
    return Life(tried[0].queries, values, returned, [WEIGHTS[at] for at in best])


def _life(benchmark, encoder, gold, order, way, seed):
    """The memories returned to each question of one life, and the final weight of words."""
    asked = {}  # the current question, which is not told by its text: several may share it

    def critic(query, ids, texts):
        return SimulatedCritic(way.preset.config, torch.tensor([[id in gold[asked["now"]] for id in ids]]))

    memory = EARMemory(encoder, way.preset, critic, seed, getattr(torch, devices.dtype()))
    turns = [one for one in benchmark.memories if one.store == "dialogue"]
    memory.add([one.text for one in turns], [one.id for one in turns])
    returned = []
    for asked["now"] in order.tolist():
        text, relevant = benchmark.asked[asked["now"]].text, gold[asked["now"]]
        if way.order == "learned":
            ids = [one.id for one in memory.retrieve(text, SHOWN)]
        else:
            ids = memory.candidates(text)
            ids = (sorted(ids, key=lambda id: id not in relevant) if way.order == "gold" else ids)[:SHOWN]  # noqa: B023
        returned.append(ids)
        if way.learns == "feedback":
            memory.feedback(text, ids)
        elif way.learns == "reflection":
            memory.reflect(text)
    return returned, memory.weight


def along(setting, lives, every):
    """Rows of a record: Recall@5 of each way along a life, compared with the memory that does not learn.

    A stretch has `every` questions; an incomplete one at the end is left out. The key `asked` counts the questions
    until the end of the stretch.
    """
    made, length = [], lives["memory_still"].queries.shape[1]
    if every > length:
        raise ValueError(f"every = {every}: expected at most {length}, the questions of a life")
    for stop in range(every, length + 1, every):
        made += _rows(setting, lives, slice(stop - every, stop), "memory_still", asked=stop, tested=False)
    return made


def second_half(setting, lives, baseline):
    """Rows of Recall@5 over the second half of each life, with the keys `part` and `over`; parameters as in `along`."""
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
    """Describe the last `count` questions of the first life that the second way found, and as many that it lost.

    Ids stand for texts, which the licence of the benchmark does not allow to copy. Gold memories are marked *.
    """
    benchmark, lines = settings.benchmark(setting.dataset), []
    gold, first, second = _gold(benchmark), before.values[0, 0], after.values[0, 0]
    for name, changed in (("found", second > first), ("lost", second < first)):
        lines.append(f"-- {name}: {changed.sum()} of {len(first)}, the last of them")
        for at in np.flatnonzero(changed)[-count:]:
            number = before.queries[0, at]
            lines.append(f"{at + 1}. {benchmark.asked[number].id}")
            for which, life in (("before", before), ("after", after)):
                shown = ", ".join(f"{id}{'*' if id in gold[number] else ''}" for id in life.returned[0][at])
                lines.append(f"     {which:6} {shown}")
    return "\n".join(lines)


def _lookup(benchmark, encoder):
    """An encoder for an EARMemory that looks up the cached embeddings of a benchmark's texts."""
    texts = {"memory": [one.text for one in benchmark.memories], "query": [one.text for one in benchmark.queries]}
    held = {kind: dict(zip(of, encode(of, encoder, kind), strict=True)) for kind, of in texts.items()}
    return lambda asked, kind: np.stack([held[kind][text] for text in asked])


def _gold(benchmark):
    """Ids of the gold turns of each question that a memory holds, as sets."""
    turns = {one.id for one in benchmark.memories if one.store == "dialogue"}
    return [turns.intersection(query.gold) for query in benchmark.asked]
