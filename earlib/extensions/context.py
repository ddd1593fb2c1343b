"""Context: a turn is found by its date, its neighbours, its session, their words and plain features, each weighted.

The memory that is returned stays the turn, or an observation, whose neighbours are the turns that it was drawn from.
First stages learn nothing: the vectors of one text or of two, and at most one text read by BM25, fused by reciprocal
rank. The weights of the scores are learned from citations.
"""

import itertools
import re
from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from earlib.core.config import Config
from earlib.core.ordering import best
from earlib.data import candidates as first_stage
from earlib.data.encoders import encode
from earlib.data.words import Words
from earlib.experiments import measures, settings

PARTS = ("date", "neighbours", "turns", "session", "words", "features")
# The parts that a score needs; one that needs none is in every combination. The last ones are features of a turn.
NEEDS = {
    "vector: turn": (),
    "vector: date": ("date",),
    "vector: window": ("neighbours",),
    "vector: before": ("neighbours",),
    "vector: after": ("neighbours",),
    "vector: session": ("session",),
    "words: turn": ("words",),
    "words: date": ("words", "date"),
    "words: before": ("words", "neighbours"),
    "words: window": ("words", "neighbours"),
    "words: window and date": ("words", "neighbours", "date"),
    "words: session": ("words", "session"),
    "vector: observation": (),
    "vector: turns": ("turns",),
    "vector: with turns": ("turns",),
    "vector: with turns and date": ("turns", "date"),
    "words: observation": ("words",),
    "words: turns": ("words", "turns"),
    "words: with turns": ("words", "turns"),
    "words: with turns and date": ("words", "turns", "date"),
}
FEATURES = ("length", "first of the session", "question", "question before", "digits", "picture", "when", "speaker")
NEEDS |= {name: ("features",) for name in FEATURES}
OF_A_PLACE = ("first of the session", "question before")  # of a turn in its session; not used for observations
RELATIVE = re.compile(
    r"\b(yesterday|today|tonight|tomorrow|ago|last|next|week(end)?|month|year|recently|just|(mon|tues|wednes|thurs|fri"
    r"|satur|sun)day)\b",
    re.IGNORECASE,
)
RIDGE = 1.0  # penalty of the squared weights, each of a score of deviation 1, against the sum over questions


class Context(NamedTuple):
    """Scores of all memories of each question's conversation; shorter conversations are padded to T memories."""

    found: first_stage.Candidates  # its bank holds the memories of one store; index [N, T]
    held: torch.Tensor  # [N, T] bool; False: padding
    values: dict  # [N, T] float32 by the names of NEEDS
    vectors: dict  # [M, d] by name

    @property
    def parts(self):
        """The parts that its scores need."""
        return tuple(part for part in PARTS if any(part in NEEDS[name] for name in self.values))

    @property
    def combinations(self):
        """All subsets of its parts, each a frozenset; the last is the whole."""
        of = self.parts
        return tuple(frozenset(one) for n in range(len(of) + 1) for one in itertools.combinations(of, n))

    def mean(self):
        """The mean of the vectors of a memory's own texts, of unit length, `[M, d]`."""
        own = sum(of for name, of in self.vectors.items() if name != "session")
        return torch.nn.functional.normalize(own, dim=-1)


# -- texts and scores --------------------------------------------------------------------------------------------------


def beside(turns, step):
    """Number of the turn so many before (negative) or behind each turn of its session; -1 if there is none."""
    session, number = _sessions(turns), np.arange(len(turns)) + step
    inside = (number >= 0) & (number < len(turns))
    return np.where(inside & (session[number.clip(0, len(turns) - 1)] == session), number, -1)


def _sessions(turns):
    return np.unique([f"{turn.scope}\n{turn.session}" for turn in turns], return_inverse=True)[1]


def texts(memories, said=None):
    """Search texts of each memory of one store by name; `session` is the same for all memories of one.

    `said` has the texts of the turns by id, for observations.
    """
    own, sessions = [one.text for one in memories], {}
    for one in memories:
        sessions.setdefault((one.scope, one.session), []).append(one.text)
    made = {_own(memories): own, "date": _dated(memories, own)}
    made |= _beside_turns(memories) if said is None else _of_turns(memories, said)
    return made | {"session": ["\n".join(sessions[one.scope, one.session]) for one in memories]}


def _own(memories):
    return "turn" if memories[0].store == "dialogue" else memories[0].store


def _beside_turns(turns):
    before, after = beside(turns, -1), beside(turns, 1)

    def joined(number, *others):
        return "\n".join(turns[one].text for one in sorted((number, *others)) if one >= 0)

    window = [joined(number, before[number], after[number]) for number in range(len(turns))]
    made = {"before": [joined(number, before[number]) for number in range(len(turns))]}
    return made | {"window": window, "window and date": _dated(turns, window)}


def _of_turns(observations, said):
    drawn_from = ["\n".join(said[id] for id in one.sources) for one in observations]
    both = [f"{one.text}\n{text}" for one, text in zip(observations, drawn_from, strict=True)]
    return {"turns": drawn_from, "with turns": both, "with turns and date": _dated(observations, both)}


def _dated(memories, read):
    return [f"[{one.date}] {text}" if one.date else text for one, text in zip(memories, read, strict=True)]


def features(turns, queries):
    """Plain features of each question and turn by name, `[n, m]`."""
    speaker, said = zip(*(turn.text.partition(": ")[::2] for turn in turns), strict=True)
    spoken, before = [one.partition(" [shares ")[0] for one in said], beside(turns, -1)
    asks = np.array(["?" in one for one in spoken], float)
    asked = [set(re.findall(r"\w+", query.text.lower())) for query in queries]
    people = {one: set(re.findall(r"\w+", one.lower())) or {""} for one in set(speaker)}
    named = {one: np.array([words <= of for of in asked], float) for one, words in people.items()}
    when = np.array([query.text.lower().startswith("when") for query in queries], float)
    relative = np.array([bool(RELATIVE.search(one)) for one in spoken], float)
    of_turn = {
        "length": np.log1p([len(one.split()) for one in spoken]),
        "first of the session": (before < 0).astype(float),
        "question": asks,
        "question before": np.where(before < 0, 0, asks[before]),
        "digits": np.array([any(map(str.isdigit, one)) for one in spoken], float),
        "picture": np.array([" [shares " in one for one in said], float),
    }
    of_turn = {name: np.tile(of, (len(queries), 1)) for name, of in of_turn.items()}
    return of_turn | {"when": np.outer(when, relative), "speaker": np.stack([named[one] for one in speaker], 1)}


def context(setting, encoded=("date", "window")):
    """The `Context` of the memories of a setting's store; `encoded` are the texts that have vectors beside their own.

    The vector of an observation's turns is the mean of theirs.
    """
    searched = settings.benchmark(setting.dataset, setting.captions)
    rows = [row for row, one in enumerate(searched.memories) if one.store == setting.store]
    memories = tuple(searched.memories[row] for row in rows)
    plain, said = settings.candidates_of(setting, Config().slate_size), None
    vectors, session = {_own(memories): plain.bank[rows]}, _sessions(memories)
    if setting.store == "observation":
        said = {one.id: one.text for one in searched.memories if one.store == "dialogue"}
        place = {one.id: row for row, one in enumerate(searched.memories)}
        pairs = [(number, place[id]) for number, one in enumerate(memories) for id in one.sources]
        vectors["turns"] = _means(*torch.tensor(pairs).T, plain.bank, len(rows))
    read = texts(memories, said)
    for name in encoded:
        if name == "date" and not said:
            dated = setting.model_copy(update={"dates": True})
            vectors[name] = settings.candidates_of(dated, Config().slate_size).bank[rows]
        else:
            vectors[name] = torch.from_numpy(encode(read[name], setting.encoder, device=setting.device))
    vectors["session"] = _means(torch.from_numpy(session), rows, plain.bank, session.max() + 1)[session]
    scope, asked = (np.array([one.scope for one in many]) for many in (memories, searched.asked))
    shape = len(asked), np.unique(scope, return_counts=True)[1].max()
    values, index = defaultdict(lambda: torch.zeros(shape)), torch.full(shape, -1)
    for one in dict.fromkeys(asked):
        at, held = np.flatnonzero(asked == one), np.flatnonzero(scope == one)
        block = np.ix_(at, np.arange(len(held)))
        index[block] = torch.from_numpy(held).expand(len(at), -1)
        own = {name: of[held].double() for name, of in vectors.items()}
        among = [memories[row] for row in held], [searched.asked[number] for number in at], said
        for name, scores in _scores(plain.query[at].double(), own, *among).items():
            values[name][block] = torch.as_tensor(scores).float()
    searched, held = replace(searched, memories=memories), index >= 0
    found = first_stage.chosen(searched, index.clamp(min=0), setting.store)
    found["gold"] &= held
    return Context(replace(plain, bank=plain.bank[rows], **found, stores=()), held, dict(values), vectors)


def _means(group, rows, bank, count):
    """Means of the vectors of `count` groups, of unit length, from pairs of a group and a row of the bank."""
    sums = torch.zeros(count, bank.shape[1]).index_add_(0, group, bank[rows])
    return torch.nn.functional.normalize(sums, dim=-1)


def _scores(query, vectors, memories, queries, said):
    """Scores of NEEDS of all memories of a conversation for its questions, `[n, m]` by name."""
    made, alive = {f"vector: {name}": query @ of.T for name, of in vectors.items()}, np.ones(len(memories), bool)
    for name, step in () if said else (("before", -1), ("after", 1)):
        other = torch.from_numpy(beside(memories, step))
        made[f"vector: {name}"] = made["vector: turn"][:, other] * (other >= 0)
    read = texts(memories, said)
    for name, of in read.items():
        words = Words()
        words.append(of)
        scores = torch.from_numpy(np.stack([words.scores(query.text, alive) for query in queries]))
        made[f"words: {name}"] = first_stage.of_largest(scores)
    if not said:
        return made | features(memories, queries)
    turns = [one._replace(text=text) for one, text in zip(memories, read["turns"], strict=True)]
    return made | {name: of for name, of in features(turns, queries).items() if name not in OF_A_PLACE}


# -- the first stage, which learns nothing -----------------------------------------------------------------------------


def forms(context):
    """First stages to choose from: the vectors of one or of two texts (their mean), with or without a text of words."""
    names = [name for name in context.vectors if name != "session"]
    with_own = [("turn", "before", "after")] if names[0] == "turn" else [(names[0], name) for name in names[1:]]
    dense = [(name,) for name in names] + list(itertools.combinations(names[1:], 2)) + with_own
    words = ["", *(name.removeprefix("words: ") for name in context.values if name.startswith("words: "))]
    return list(itertools.product(dense, words))


def first_stages(context, depth):
    """Turns in the order of each of the `forms`, `[N, depth]` places among T: cosines, or their ranks and BM25's.

    No more than the shortest conversation holds.
    """
    depth = min(depth, int(context.held.sum(1).min()))
    dense = {of: sum(context.values[f"vector: {name}"].double() for name in of) for of, _ in forms(context)}
    read = {word: context.values[f"words: {word}"].double() for _, word in forms(context) if word}
    worth = {of: _reciprocals(context, scores) for of, scores in dense.items()}
    worth |= {word: _reciprocals(context, scores).where(scores > 0, 0) for word, scores in read.items()}

    def score(of, word):
        return worth[of] + worth[word] if word else dense[of]

    return {form: best(score(*form).masked_fill(~context.held, -torch.inf), depth) for form in forms(context)}


def _reciprocals(context, scores):
    order = best(scores.masked_fill(~context.held, -torch.inf), scores.shape[1])
    return torch.zeros_like(scores).scatter(1, order, first_stage.reciprocals(scores.shape[1]).expand_as(order))


def recall(context, numbers, slates):
    """Strict Recall@5 of questions by number, 0 or 1, from their slates `[n, s]`; NaN without gold."""
    return measures.measure(context.found, torch.as_tensor(numbers)[None], slates[None])[0, 0]


# -- the weights -------------------------------------------------------------------------------------------------------


def learn(values, cited, at):
    """Weights of all scores, 0 but for those numbered `at`: Newton's method on the softmax loss with a ridge.

    Scores of the candidates that were shown, `[n, K, F]`, and which of them were cited, `[n, K]`; the mean over the
    cited ones i of a question is -z_i + log sum over the shown ones l of exp z_l. Scores are scaled to deviation 1.
    """
    counted, width = cited.any(1) & ~cited.all(1), values.shape[-1]
    values, target = values[counted][..., at], cited[counted] / cited[counted].sum(1, keepdims=True)
    scale = np.sqrt(((values - values.mean(1, keepdims=True)) ** 2).sum((0, 1)) / max(1, target.size))
    scale[scale < 1e-9] = np.inf  # the same for all candidates: it ranks nothing
    scaled = values / scale
    w, wanted = np.zeros(len(at)), (scaled * target[..., None]).sum((0, 1))

    def loss(w):
        z = scaled @ w
        top = z.max(1, keepdims=True, initial=-np.inf)
        weight = np.exp(z - top)
        return (np.log(weight.sum(1)) + top[:, 0]).sum() - wanted @ w + RIDGE / 2 * w @ w, weight

    now, weight = loss(w)
    for _ in range(30):
        p = weight / weight.sum(1, keepdims=True)
        mean = np.einsum("nk,nkf->nf", p, scaled)
        flat = (scaled * np.sqrt(p)[..., None]).reshape(-1, len(w))
        slope = mean.sum(0) - wanted + RIDGE * w
        step = np.linalg.solve(flat.T @ flat - mean.T @ mean + RIDGE * np.eye(len(w)), slope)
        while (tried := loss(w - step))[0] > now + 1e-9 and np.abs(step).max() > 1e-9:
            step /= 2
        w, (now, weight) = w - step, tried
        if np.abs(step).max() < 1e-6:
            break
    whole = np.zeros(width)
    whole[at] = w / scale
    return whole
