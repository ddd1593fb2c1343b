"""An agent's life with an `EARMemory`: it is asked one question after another, answers from its memory, and learns.

Each question is a test before it is a lesson: what counts is what the memory returned when the question was new. The
agent took part in all conversations of a benchmark and remembers every turn. Its feedback is simulated, and sees gold.
"""

from typing import NamedTuple

import numpy as np
import torch

from earlib import evaluate, experiment
from earlib.critic import SimulatedCritic
from earlib.encoders import encode
from earlib.memory import PRESETS, EARMemory

SHOWN = 5  # memories that a question brings before the agent


class Life(NamedTuple):
    """What a memory returned to each question when it was new; R lives, one a seed, of N questions each."""

    queries: np.ndarray  # [R, N] question numbers, in the order in which they came
    values: np.ndarray  # [3, R, N] measures as in evaluate.MEASURES
    returned: list  # of each life, for each question, the ids of the memories
    weight: list  # of each life, the weight of the score by words that it ended with


def known(dataset, encoder):
    """An encoder for an EARMemory that looks the texts of a benchmark up, whose embeddings are kept on the disk.

    Parameters
    ----------
    dataset, encoder : str

    Returns
    -------
    callable
        `(texts, kind) -> [n, d]`.
    """
    benchmark = experiment.benchmark(dataset)
    texts = {"memory": [one.text for one in benchmark.memories], "query": [one.text for one in benchmark.queries]}
    held = {kind: dict(zip(of, encode(of, encoder, kind), strict=True)) for kind, of in texts.items()}
    return lambda asked, kind: np.stack([held[kind][text] for text in asked])


def live(setting, learns, preset="best", questions=None):
    """Let a memory live through the questions of a benchmark, once for each seed of a setting.

    Parameters
    ----------
    setting : experiment.Setting
        Dataset, encoder and seeds; a seed has its own order of the questions and its own errors of the critic.
    learns : {"no", "feedback", "reflection"}
        Nothing is learned; the critic cites among the five memories returned; or the Explorer shows it T slates.
    preset : str
        Of `memory.PRESETS`.
    questions : int, optional
        How many each life has; default: all.

    Returns
    -------
    Life
    """
    benchmark, encoder = experiment.benchmark(setting.dataset), known(setting.dataset, setting.encoder)
    gold = _gold(benchmark)
    lives = []
    for seed in range(setting.seeds):
        order = np.random.default_rng(seed).permutation(len(benchmark.asked))[:questions]
        lives.append(_life(benchmark, encoder, gold, order, learns, preset, seed))
    queries, returned, weight = zip(*lives, strict=True)
    queries = np.stack(queries)
    found, count = np.zeros(queries.shape, int), np.array([len(one) for one in gold])
    for at, number in np.ndenumerate(queries):
        found[at] = len(gold[number].intersection(returned[at[0]][at[1]]))
    return Life(queries, evaluate._shares(found, count[queries]), returned, weight)


def _life(benchmark, encoder, gold, order, learns, preset, seed):
    """The questions of one life, what each brought, and the weight of words in the end."""
    asked = {}  # the question that is being asked: its text may be that of others too

    def critic(query, ids, texts):
        return SimulatedCritic(PRESETS[preset].config, torch.tensor([[id in gold[asked["now"]] for id in ids]]))

    memory = EARMemory(encoder, preset, critic, seed)
    turns = [one for one in benchmark.memories if one.store == "dialogue"]
    memory.add([one.text for one in turns], [one.id for one in turns])
    returned = []
    for asked["now"] in order.tolist():
        text = benchmark.asked[asked["now"]].text
        ids = [one.id for one in memory.retrieve(text, SHOWN)]
        returned.append(ids)
        if learns == "feedback":
            memory.feedback(text, ids)
        elif learns == "reflection":
            memory.reflect(text)
    return order, returned, memory.weight


def _gold(benchmark):
    """Ids of the gold turns of each question that a memory holds, as sets."""
    turns = {one.id for one in benchmark.memories if one.store == "dialogue"}
    return [turns.intersection(query.gold) for query in benchmark.asked]
