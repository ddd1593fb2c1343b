"""An agent's life with an `EARMemory`: it is asked one question after another, answers from its memory, and learns.

Each question is tested before it is learned from; or a stream of feedback is learned from, right or wrong, and other
questions are the test. The agent remembers every dialogue turn of a benchmark; its feedback is simulated and sees gold.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from earlib import devices
from earlib.core import randomness
from earlib.core.critic import SimulatedCritic
from earlib.data.encoders import encode
from earlib.experiments import comparisons, measures, settings
from earlib.memory import PRESETS, EARMemory, Preset
from earlib.memory.weights import SCALE, TESTED, better

SHOWN = 5  # memories returned for a question
STILL = 1e-12  # a learning rate that moves nothing
WEIGHTS = (0.15, 0.3, 0.45, 0.6, 0.9)  # of the score by words, for `run_fixed`
_BEST = PRESETS["best"]


class Way(NamedTuple):
    """A way to use a memory."""

    preset: Preset
    learns: str  # "no"; "feedback": the critic cites among the memories returned; "reflection": the Explorer's slates
    order: str = "learned"  # of the candidates; "fused": the first stage's own; "gold": gold first
    context: str | None = None  # "session": what stands before and after a turn in its session counts as well


def _changed(**changes):
    """The best preset with an adapter, and other hyper-parameters."""
    return Preset(_BEST.config.model_copy(update=changes), words=True)


WAYS = {
    "memory_still": Way(_BEST, "no"),
    "memory_fused": Way(_BEST, "no", order="fused"),
    "memory_ceiling": Way(_BEST, "no", order="gold"),
    "memory_words": Way(_changed(learning_rate=STILL, side_start=0.0), "feedback"),
    "memory_paper": Way(PRESETS["paper"], "feedback"),
    "memory_adapter": Way(PRESETS["adapter"], "feedback"),
    "memory_feedback": Way(_BEST, "feedback"),
    "memory_reflection": Way(_BEST, "reflection"),
}
CONTEXT = {
    "memory_context_still": Way(_BEST, "no", context="session"),
    "memory_context": Way(_BEST, "feedback", context="session"),
}


class Life(NamedTuple):
    """Results on each question when it was new; R lives, one a seed, of N questions each."""

    queries: np.ndarray  # [R, N] question numbers, in the order in which they came
    values: np.ndarray  # [3, R, N] in the order of measures.MEASURES
    returned: list  # of each life, for each question, the ids of the memories
    weight: list  # of each life, the final weight of the score by words


class _Dialogues:
    """The questions of a benchmark and their gold turns; memories of all its dialogue turns.

    `apart` gives each conversation a namespace, which alone is searched for its questions.
    """

    def __init__(self, setting, apart=False):
        benchmark, self.apart = settings.benchmark(setting.dataset), apart
        self.asked, self.turns = benchmark.asked, [one for one in benchmark.memories if one.store == "dialogue"]
        held = {one.id for one in self.turns}
        self.gold = [held.intersection(query.gold) for query in self.asked]
        texts = {"memory": [one.text for one in benchmark.memories], "query": [one.text for one in benchmark.queries]}
        self.vectors = {
            kind: dict(zip(of, encode(of, setting.encoder, kind), strict=True)) for kind, of in texts.items()
        }

    def encode(self, texts, kind):
        """Look up the cached embeddings of some texts."""
        return np.stack([self.vectors[kind][text] for text in texts])

    def order(self, seed):
        """The question numbers in the order of a seed."""
        return np.random.default_rng(seed).permutation(len(self.asked)).tolist()

    def memory(self, way, seed, critic=None):
        """A memory of every turn, whose sessions are each other's context where the way asks for it."""
        memory = _Simulated(self.encode, way.preset, critic, seed, getattr(torch, devices.dtype()), context=way.context)
        for scope in dict.fromkeys(one.scope for one in self.turns):
            held = [one for one in self.turns if one.scope == scope]
            sessions = [{"session": f"{scope} {one.session}"} for one in held] if way.context else None
            memory.add([one.text for one in held], [one.id for one in held], scope if self.apart else "", sessions)
        return memory

    def shown(self, memory, number):
        """Ids of the memories that are returned to a question."""
        query = self.asked[number]
        where = {"namespace": query.scope} if self.apart else {}
        return [one.id for one in memory.retrieve(query.text, SHOWN, **where)]

    def lived(self, lives):
        """The `Life` of all seeds, from the questions of each, the ids that were returned and the final weight."""
        queries, returned, weight = zip(*lives, strict=True)
        found, count = np.zeros(np.shape(queries), int), np.array([len(one) for one in self.gold])
        for (life, at), number in np.ndenumerate(queries):
            found[life, at] = len(self.gold[number].intersection(returned[life][at]))
        return Life(np.stack(queries), measures.shares(found, count[np.stack(queries)]), returned, weight)


class _Simulated(EARMemory):
    """A memory whose critic is one of the core: it sees the gold ids `relevant`, and errs by the memory's numbers."""

    relevant = frozenset()

    def _asker(self, query, ids, now):
        judge, number = self.critic(torch.tensor([[id in self.relevant for id in ids]])), torch.zeros(1, 1).long()
        uniforms = randomness.live(self.config, self.seed, self._state.learner.known, self.config.depth).critic
        return lambda t, slates: judge(number, slates, uniforms[:, :, t])


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
    dialogues, lives = _Dialogues(setting), []
    for seed in range(setting.seeds):
        memory = dialogues.memory(way, seed, partial(SimulatedCritic, way.preset.config))
        order, returned = dialogues.order(seed)[:questions], []
        for number in order:
            text, memory.relevant = dialogues.asked[number].text, dialogues.gold[number]
            if way.order == "learned":
                ids = dialogues.shown(memory, number)
            else:
                first = memory.relevant if way.order == "gold" else ()
                ids = sorted(memory.candidates(text), key=lambda id: id not in first)[:SHOWN]  # noqa: B023
            returned.append(ids)
            if way.learns == "feedback":
                memory.feedback(text, ids)
            elif way.learns == "reflection":
                memory.reflect(text)
        lives.append((order, returned, memory.weight))
    return dialogues.lived(lives)


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


def along(setting, lives, every):
    """Rows of a record: Recall@5 of each way along a life, compared with the memory that does not learn.

    A stretch has `every` questions; an incomplete one at the end is left out. The key `asked` counts the questions
    until the end of the stretch.
    """
    made, length = [], lives["memory_still"].queries.shape[1]
    if every > length:
        raise ValueError(f"every = {every}: expected at most {length}, the questions of a life")
    for stop in range(every, length + 1, every):
        made += _rows(setting, lives, "memory_still", slice(stop - every, stop), asked=stop, tested=False)
    return made


def second_half(setting, lives, baseline):
    """Rows of Recall@5 over the second half of each life, with the keys `part` and `over`; parameters as in `along`."""
    half = slice(lives[baseline].queries.shape[1] // 2, None)
    return _rows(setting, lives, baseline, half, part="second half", over=baseline)


def _rows(setting, lives, baseline, stretch, **about):
    others = ((way, life, None if way == baseline else lives[baseline]) for way, life in lives.items())
    return [_row(setting, *one, stretch, **about) for one in others]


def _row(setting, way, life, against=None, stretch=slice(None), **about):
    base = None if against is None else against.values[:1, :, stretch]
    (row,) = comparisons.rows(setting, way, life.values[:1, :, stretch], life.queries[:, stretch], base, **about)
    row.pop("split")  # nothing is split: every question is asked once, and counts
    return row


class Stream(NamedTuple):
    """A stream of feedback: its length as a share of the usual one, and what is said of the memories shown."""

    length: float
    label: Callable  # (rng, useful, at) -> labels, None or none where nothing is said; `at` in [0, 1)


def _flipped(share):
    return lambda rng, useful, at: [one != (rng.random() < share) for one in useful]


def _wrong_click(rng, useful, at):
    """For 30 % of the questions one useless memory is clicked, and no other."""
    others = [place for place, one in enumerate(useful) if not one]
    if rng.random() >= 0.3 or not others:
        return useful
    clicked = rng.choice(others)
    return [place == clicked for place in range(len(useful))]


STREAMS = {
    "right": Stream(1, lambda rng, useful, at: useful),
    "right, a fifth as many": Stream(0.2, lambda rng, useful, at: useful),
    "only the useful ones named": Stream(1, lambda rng, useful, at: [one or None for one in useful]),
    "right, for one question in five": Stream(1, lambda rng, useful, at: useful if rng.random() < 0.2 else []),
    "10 % flipped": Stream(1, _flipped(0.1)),
    "a wrong click for 30 % of the questions": Stream(1, _wrong_click),
    "30 % flipped": Stream(1, _flipped(0.3)),
    "always the first": Stream(1, lambda rng, useful, at: [place == 0 for place in range(len(useful))]),
    "inverted, then right": Stream(2, lambda rng, useful, at: useful if at >= 0.5 else [not one for one in useful]),
    "one unrelated memory, a tenth as many": Stream(0.1, None),
    "one unrelated memory, two fifths as many": Stream(0.4, None),
}


class CitationRate:
    """A rival that users know: a memory's own rate of citations is added to its score."""

    weight = 0.1  # within the streams' questions larger ones ranked worse

    def __init__(self, memory, encoder):
        self.memory, self.encoder, self.told = memory, encoder, []  # of each feedback: query, ids shown, ids cited

    def retrieve(self, query, k):
        found = self.memory.retrieve(query, self.memory.config.depth)
        scores = np.array([one.score for one in found]) + self.added(query, found)
        return [found[at] for at in np.argsort(-scores, kind="stable")[:k]]

    def added(self, query, found):
        rates = self.rates(query)
        return self.weight * np.array([rates.get(one.id, 0) for one in found])

    def rates(self, query):
        shown, cited = (Counter(chain.from_iterable(told[at] for told in self.told)) for at in (1, 2))
        return {id: count / (1 + shown[id]) for id, count in cited.items()}

    def feedback(self, query, ids, labels):
        self.told.append((query, ids, [id for id, label in zip(ids, labels, strict=True) if label]))


class SimilarQuestions(CitationRate):
    """Another: the share of the five most similar past questions that cited a memory, each times its cosine."""

    def rates(self, query):
        found = Counter()
        if self.told:
            past, (vector,) = (self.encoder(asked, "query") for asked in ([told[0] for told in self.told], [query]))
            cosine = past @ vector
            for at in np.argsort(-cosine, kind="stable")[:5]:
                found.update(dict.fromkeys(self.told[at][2], max(0.0, float(cosine[at])) / 5))
        return found


class AdapterOnTop(CitationRate):
    """The memory with its weights, and an adapter of the query on top: (W q) . m is added to a memory's score.

    Each feedback is one gradient step on log(1 + exp(-20 (s_i - s_j))), the mean over pairs of a useful memory i and
    another one j. As the memory serves its weights, the adapter is served while it ranks the pairs of the last hundred
    feedbacks better than the weights alone, each tested before it is learned from.
    """

    rate = 0.5

    def __init__(self, memory, encoder):
        super().__init__(memory, encoder)
        width = encoder([memory.get(memory.ids()[0])], "memory").shape[1]
        self.W, self.right, self.served, self.last = np.zeros((width, width)), [], False, {}

    def added(self, query, found):
        self.last = {query: found}
        return self.by_adapter(query, found)[0] if self.served else np.zeros(len(found))

    def by_adapter(self, query, found):
        (q,), memory = self.encoder([query], "query"), self.encoder([one.text for one in found], "memory")
        return memory @ (self.W @ q), q, memory

    def feedback(self, query, ids, labels):
        found = self.last.get(query) or self.memory.retrieve(query, self.memory.config.depth)
        self.last.clear()
        held = {one.id: one for one in found}
        told = {id: bool(label) for id, label in zip(ids, labels, strict=True) if id in held}
        if len({*told.values()}) == 2:
            self.learn(query, [held[id] for id in told], np.array([*told.values()]))
        self.memory.feedback(query, ids, labels)

    def learn(self, query, shown, useful):
        added, q, memory = self.by_adapter(query, shown)
        plain = np.array([one.score for one in shown])
        gaps = [(one[useful][:, None] - one[~useful]).round(9) for one in (plain + added, plain)]
        self.right = [*self.right, [(0.5 + np.sign(gap) / 2).mean() for gap in gaps]][-TESTED:]
        wrong = 1 / (1 + np.exp(SCALE * gaps[0])) / gaps[0].size
        self.W += self.rate * np.outer(wrong.sum(1) @ memory[useful] - wrong.sum(0) @ memory[~useful], q)
        self.served = better(np.array(self.right), self.served)


RIVALS = {"memory_rate": CitationRate, "memory_similar": SimilarQuestions, "memory_on_top": AdapterOnTop}


def run_streams(setting, way, streams=tuple(STREAMS), length=500, apart=False):
    """Let a memory learn from streams of feedback, then test it on other questions.

    Parameters
    ----------
    setting : Setting
        Dataset, encoder and seeds; a seed has its own order of the questions. The first 2 `length` may be learned from,
        the others are the test.
    way : str
        One of `RIVALS`, or one of `WAYS` or `CONTEXT` that learns from feedback or not at all.
    streams : sequence of str
        Names in `STREAMS`.
    length : int
        Questions of a stream of usual length, at most a third of all.
    apart : bool
        Whether each conversation is a namespace, which alone is searched for its questions; for no rival.

    Returns
    -------
    dict of Life
        By stream.
    """
    dialogues, found = _Dialogues(setting, apart), {}
    length = min(length, len(dialogues.asked) // 3)
    used = WAYS["memory_still"] if way in RIVALS else (WAYS | CONTEXT)[way]
    for name in streams:
        lives = []
        for seed in range(setting.seeds):
            order, memory = dialogues.order(seed), dialogues.memory(used, seed)
            taught = RIVALS[way](memory, dialogues.encode) if way in RIVALS else memory
            if way in RIVALS or used.learns != "no":
                _teach(taught, dialogues, order[: round(length * STREAMS[name].length)], STREAMS[name], seed)
            tests = order[2 * length :]
            lives.append((tests, [dialogues.shown(taught, number) for number in tests], memory.weight))
        found[name] = dialogues.lived(lives)
    return found


def _teach(memory, dialogues, order, stream, seed):
    """Give a memory a stream's feedback on the memories that it returns, or on one that has to do with none."""
    rng = np.random.default_rng([seed, 1])
    unrelated = dialogues.turns[rng.integers(len(dialogues.turns))].id
    for at, number in enumerate(order):
        ids, labels = [unrelated], [True]
        if stream.label:
            ids = dialogues.shown(memory, number)
            labels = stream.label(rng, [id in dialogues.gold[number] for id in ids], at / len(order))
        if any(label is not None for label in labels):
            memory.feedback(dialogues.asked[number].text, ids, labels)


def streamed(setting, lives, still, part="after a stream"):
    """Rows of Recall@5 after each stream, with the key `stream`, compared with a memory that does not learn; of other
    ways to learn than "memory_feedback" also with this one, with the key `over`.

    `lives` are results of `run_streams` by way, `still` those of "memory_still", of any one stream.
    """
    (base,) = still.values()
    made = [_row(setting, "memory_still", base, part=part)]
    for way, streams in lives.items():
        for name, life in streams.items():
            about = {"part": part} if way == "memory_context_still" else {"part": part, "stream": name}
            made.append(_row(setting, way, life, base, **about))
            if way not in ("memory_feedback", "memory_context_still"):
                made.append(_row(setting, way, life, lives["memory_feedback"][name], over="memory_feedback", **about))
    return made
