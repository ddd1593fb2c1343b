"""Context: a turn is found by its date, its neighbours, its session, their words and plain features, each weighted.

The memory that is returned stays the turn. First stages learn nothing: the vectors of one text or of two, and at most
one text read by BM25, fused by reciprocal rank. The weights of the scores are learned from citations.
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

PARTS = ("date", "neighbours", "session", "words", "features")
COMBINATIONS = tuple(frozenset(of) for n in range(len(PARTS) + 1) for of in itertools.combinations(PARTS, n))
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
}
FEATURES = ("length", "first of the session", "question", "question before", "digits", "picture", "when", "speaker")
NEEDS |= {name: ("features",) for name in FEATURES}
RELATIVE = re.compile(
    r"\b(yesterday|today|tonight|tomorrow|ago|last|next|week(end)?|month|year|recently|just|(mon|tues|wednes|thurs|fri"
    r"|satur|sun)day)\b",
    re.IGNORECASE,
)
RIDGE = 1.0  # penalty of the squared weights, each of a score of deviation 1, against the sum over questions


class Context(NamedTuple):
    """Scores of all turns of each question's conversation; shorter conversations are padded to T turns."""

    found: first_stage.Candidates  # its bank holds the turns alone; index [N, T]
    held: torch.Tensor  # [N, T] bool; False: padding
    values: dict  # [N, T] float32 by the names of NEEDS
    vectors: dict  # [M, d] by name

    def mean(self):
        """The mean of the vectors of a turn's own texts, of unit length, `[M, d]`."""
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


def texts(turns):
    """Search texts of each turn by name; `session` is the same for all turns of one."""
    before, after, sessions = beside(turns, -1), beside(turns, 1), {}

    def joined(number, *others):
        return "\n".join(turns[one].text for one in sorted((number, *others)) if one >= 0)

    for turn in turns:
        sessions.setdefault((turn.scope, turn.session), []).append(turn.text)
    made = {"turn": [turn.text for turn in turns], "date": [_dated(turn, turn.text) for turn in turns]}
    made["before"] = [joined(number, before[number]) for number in range(len(turns))]
    made["window"] = [joined(number, before[number], after[number]) for number in range(len(turns))]
    made["window and date"] = [_dated(turn, text) for turn, text in zip(turns, made["window"], strict=True)]
    return made | {"session": ["\n".join(sessions[turn.scope, turn.session]) for turn in turns]}


def _dated(turn, text):
    return f"[{turn.date}] {text}" if turn.date else text


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
    """The `Context` of a setting's dialogue turns; `encoded` are the texts that have vectors beside the turn itself."""
    searched = settings.benchmark(setting.dataset, setting.captions)
    rows = [row for row, memory in enumerate(searched.memories) if memory.store == "dialogue"]
    searched = replace(searched, memories=tuple(searched.memories[row] for row in rows))
    plain, turns = settings.candidates_of(setting, Config().slate_size), searched.memories
    vectors, read, session = {"turn": plain.bank[rows]}, texts(turns), _sessions(turns)
    for name in encoded:
        if name == "date":
            dated = setting.model_copy(update={"dates": True})
            vectors[name] = settings.candidates_of(dated, Config().slate_size).bank[rows]
        else:
            vectors[name] = torch.from_numpy(encode(read[name], setting.encoder, device=setting.device))
    sums = torch.zeros(session.max() + 1, plain.bank.shape[1]).index_add_(0, torch.from_numpy(session), vectors["turn"])
    vectors["session"] = torch.nn.functional.normalize(sums, dim=-1)[session]
    scope, asked = (np.array([one.scope for one in many]) for many in (turns, searched.asked))
    shape = len(asked), np.unique(scope, return_counts=True)[1].max()
    values, index = defaultdict(lambda: torch.zeros(shape)), torch.full(shape, -1)
    for one in dict.fromkeys(asked):
        at, held = np.flatnonzero(asked == one), np.flatnonzero(scope == one)
        block = np.ix_(at, np.arange(len(held)))
        index[block] = torch.from_numpy(held).expand(len(at), -1)
        own = {name: of[held].double() for name, of in vectors.items()}
        among = [turns[row] for row in held], [searched.asked[number] for number in at]
        for name, scores in _scores(plain.query[at].double(), own, *among).items():
            values[name][block] = torch.as_tensor(scores).float()
    found, held = first_stage.chosen(searched, index.clamp(min=0), "dialogue"), index >= 0
    found["gold"] &= held
    return Context(replace(plain, bank=vectors["turn"], **found, stores=()), held, dict(values), vectors)


def _scores(query, vectors, turns, queries):
    """Scores of NEEDS of all turns of a conversation for its questions, `[n, m]` by name."""
    made, alive = {f"vector: {name}": query @ of.T for name, of in vectors.items()}, np.ones(len(turns), bool)
    for name, step in (("before", -1), ("after", 1)):
        other = torch.from_numpy(beside(turns, step))
        made[f"vector: {name}"] = made["vector: turn"][:, other] * (other >= 0)
    for name, read in texts(turns).items():
        words = Words()
        words.append(read)
        scores = torch.from_numpy(np.stack([words.scores(query.text, alive) for query in queries]))
        made[f"words: {name}"] = first_stage.of_largest(scores)
    return made | features(turns, queries)


# -- the first stage, which learns nothing -----------------------------------------------------------------------------


def forms(context):
    """First stages to choose from: the vectors of one or of two texts (their mean), with or without a text of words."""
    names = [name for name in context.vectors if name != "session"]
    dense = [(name,) for name in names] + list(itertools.combinations(names[1:], 2)) + [("turn", "before", "after")]
    words = ["", *(name.removeprefix("words: ") for name in NEEDS if name.startswith("words: "))]
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
