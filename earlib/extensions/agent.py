"""An agent's life with an `EARMemory`: it is asked one question after another, answers from its memory, and learns.

Each question is tested before it is learned from; or a stream of feedback is learned from, right or wrong, and other
questions are the test. The agent remembers every dialogue turn of a benchmark. Its feedback
is simulated, and sees gold.
"""

from collections import Counter
from collections.abc import Callable
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
    return _lived(np.stack(queries), returned, weight, gold)


def _lived(queries, returned, weight, gold):
    """The results of lives, from the ids that were returned for each question."""
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
    questions, asked = benchmark.asked, {}  # the current question, not told by its text: several may share it

    def critic(ids):
        return SimulatedCritic(way.preset.config, torch.tensor([[id in gold[asked["now"]] for id in ids]]))

    memory = _remembering(benchmark, encoder, way, critic, seed)
    returned = []
    for asked["now"] in order.tolist():
        text, relevant = questions[asked["now"]].text, gold[asked["now"]]
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


class _Simulated(EARMemory):
    """A memory whose `critic(ids)` gives one of the core, which draws from the memory's own numbers."""

    def _asker(self, query, ids, now):
        judge, number = self.critic(ids), torch.zeros(1, 1).long()
        uniforms = randomness.live(self.config, self.seed, self._state.learner.known, self.config.depth).critic
        return lambda t, slates: judge(number, slates, uniforms[:, :, t])


def _remembering(benchmark, encoder, way, critic, seed, apart=False):
    """A memory of every dialogue turn; `apart` gives each conversation a namespace."""
    memory = _Simulated(encoder, way.preset, critic, seed, getattr(torch, devices.dtype()), context=way.context)
    turns = [one for one in benchmark.memories if one.store == "dialogue"]
    for scope in dict.fromkeys(one.scope for one in turns):
        held = [one for one in turns if one.scope == scope]
        metadata = [{"session": f"{scope} {one.session}"} for one in held] if way.context else None
        memory.add([one.text for one in held], [one.id for one in held], scope if apart else "", metadata)
    return memory


def _where(query, apart):
    return {"namespace": query.scope} if apart else {}


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


class Stream(NamedTuple):
    """A stream of feedback: its length as a share of the usual one, and what is said of the memories shown."""

    length: float
    label: Callable  # (rng, useful, at) -> labels of the memories shown, None where nothing is said; `at` in [0, 1)


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
    "right, for one question in five": Stream(1, lambda rng, useful, at: useful if rng.random() < 0.2 else None),
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
        self.memory, self.encoder, self.cited, self.shown = memory, encoder, Counter(), Counter()

    def retrieve(self, query, k):
        found = self.memory.retrieve(query, self.memory.config.depth)
        scores = np.array([one.score for one in found]) + self.added(query, found)
        return [found[at] for at in np.argsort(-scores, kind="stable")[:k]]

    def added(self, query, found):
        rates = self.rates(query)
        return self.weight * np.array([rates.get(one.id, 0) for one in found])

    def rates(self, query):
        return {id: count / (1 + self.shown[id]) for id, count in self.cited.items()}

    def feedback(self, query, ids, labels):
        self.shown.update(ids)
        self.cited.update(id for id, label in zip(ids, labels, strict=True) if label)


class SimilarQuestions(CitationRate):
    """Another: the share of the five most similar past questions that cited a memory, each times its cosine."""

    def __init__(self, memory, encoder):
        super().__init__(memory, encoder)
        self.past, self.ids = [], []

    def rates(self, query):
        if not self.past:
            return {}
        cosine, found = np.stack(self.past) @ self.encoder([query], "query")[0], Counter()
        for at in np.argsort(-cosine, kind="stable")[:5]:
            found.update(dict.fromkeys(self.ids[at], max(0.0, float(cosine[at])) / 5))
        return found

    def feedback(self, query, ids, labels):
        self.past.append(self.encoder([query], "query")[0])
        self.ids.append([id for id, label in zip(ids, labels, strict=True) if label])


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
        self.W, self.right, self.served, self.last = np.zeros((width, width)), [], False, (None, [])

    def added(self, query, found):
        self.last = query, found
        return self.by_adapter(query, found)[0] if self.served else np.zeros(len(found))

    def by_adapter(self, query, found):
        q, memory = self.encoder([query], "query")[0], self.encoder([one.text for one in found], "memory")
        return memory @ (self.W @ q), q, memory

    def feedback(self, query, ids, labels):
        asked, found = self.last  # what it has retrieved for this question a moment ago
        if asked != query:
            found = self.memory.retrieve(query, self.memory.config.depth)
        held = {one.id: one for one in found}
        shown = [held[id] for id in ids if id in held]
        useful = np.array([bool(label) for id, label in zip(ids, labels, strict=True) if id in held])
        if useful.any() and not useful.all():
            self.learn(query, shown, useful)
        self.memory.feedback(query, ids, labels)
        self.last = None, []

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
    benchmark = settings.benchmark(setting.dataset)
    questions, encoder, gold, found = benchmark.asked, _lookup(benchmark, setting.encoder), _gold(benchmark), {}
    length = min(length, len(questions) // 3)
    used = WAYS["memory_still"] if way in RIVALS else (WAYS | CONTEXT)[way]
    for name in streams:
        tests, returned, weights = [], [], []
        for seed in range(setting.seeds):
            order = np.random.default_rng(seed).permutation(len(questions))
            memory = _remembering(benchmark, encoder, used, None, seed, apart)
            taught = RIVALS[way](memory, encoder) if way in RIVALS else memory
            if way in RIVALS or used.learns != "no":
                _teach(taught, benchmark, gold, order[: round(length * STREAMS[name].length)], name, seed, apart)
            tests.append(order[2 * length :])
            asked = [questions[number] for number in tests[-1]]
            every = [taught.retrieve(one.text, SHOWN, **_where(one, apart)) for one in asked]
            returned.append([[one.id for one in found] for found in every])
            weights.append(memory.weight)
        found[name] = _lived(np.stack(tests), returned, weights, gold)
    return found


def _teach(memory, benchmark, gold, order, name, seed, apart):
    """Give a memory a stream's feedback on the memories that it returns, or on one that has to do with none."""
    rng, stream, questions = np.random.default_rng([seed, 1]), STREAMS[name], benchmark.asked
    turns = [one.id for one in benchmark.memories if one.store == "dialogue"]
    unrelated = turns[rng.integers(len(turns))]
    for at, number in enumerate(order):
        text, where = questions[number].text, _where(questions[number], apart)
        if stream.label is None:
            memory.feedback(text, [unrelated], [True])
            continue
        ids = [one.id for one in memory.retrieve(text, SHOWN, **where)]
        labels = stream.label(rng, [id in gold[number] for id in ids], at / len(order))
        if labels is not None and any(label is not None for label in labels):
            memory.feedback(text, ids, labels)


def streamed(setting, lives, still, part="after a stream"):
    """Rows of Recall@5 after each stream, with the key `stream`, compared with a memory that does not learn; of other
    ways to learn than "memory_feedback" also with this one, with the key `over`.

    `lives` are results of `run_streams` by way, `still` those of "memory_still", of any one stream.
    """
    (base,) = still.values()
    made = _after(setting, "memory_still", base, part=part)
    for way, streams in lives.items():
        for name, life in streams.items():
            about = {"part": part} if way == "memory_context_still" else {"part": part, "stream": name}
            made += _after(setting, way, life, base, **about)
            if way not in ("memory_feedback", "memory_context_still"):
                made += _after(setting, way, life, lives["memory_feedback"][name], over="memory_feedback", **about)
    return made


def _after(setting, way, life, against=None, **about):
    (row,) = comparisons.rows(setting, way, life.values[:1], life.queries, against and against.values[:1], **about)
    row.pop("split")
    return [row]


def _lookup(benchmark, encoder):
    """An encoder for an EARMemory that looks up the cached embeddings of a benchmark's texts."""
    texts = {"memory": [one.text for one in benchmark.memories], "query": [one.text for one in benchmark.queries]}
    held = {kind: dict(zip(of, encode(of, encoder, kind), strict=True)) for kind, of in texts.items()}
    return lambda asked, kind: np.stack([held[kind][text] for text in asked])


def _gold(benchmark):
    """Ids of the gold turns of each question that a memory holds, as sets."""
    turns = {one.id for one in benchmark.memories if one.store == "dialogue"}
    return [turns.intersection(query.gold) for query in benchmark.asked]
