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
from earlib.memory.context import beside

PARTS = ("date", "neighbours", "turns", "session", "words", "features")
PART_OF = {"date": "date", "before": "neighbours", "after": "neighbours", "window": "neighbours"}  # by a score's words
PART_OF |= {"turns": "turns", "session": "session", "words:": "words"}
FEATURES = ("length", "first of the session", "question", "question before", "digits", "picture", "when", "speaker")
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
    values: dict  # [N, T] float32 by name, as "words: window and date" or one of FEATURES
    vectors: dict  # [M, d] by name

    @property
    def parts(self):
        """The parts that its scores need."""
        return tuple(part for part in PARTS if any(part in needs(name) for name in self.values))

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


def needs(name):
    """The parts that a score needs; one that needs none is in every combination."""
    return {"features"} if name in FEATURES else {PART_OF[word] for word in name.split() if word in PART_OF}


def sessions(memories):
    """Number of the session of each memory, from 0 on."""
    return np.unique([f"{one.scope}\n{one.session}" for one in memories], return_inverse=True)[1]


def around(turns):
    """Numbers of the turn before each one in its session, of itself, and of the one after; -1 if there is none."""
    before, after = beside(np.append(0, sessions(turns) + 1), np.ones(len(turns) + 1, bool))[:, 1:] - 1
    return np.stack([before, np.arange(len(turns)), after])


def texts(memories, said=None):
    """Search texts of each memory of one store by name; `session` is the same for all memories of one.

    `said` has the texts of the turns by id, for observations.
    """
    own, session, held = [one.text for one in memories], sessions(memories).tolist(), defaultdict(list)
    for number, text in zip(session, own, strict=True):
        held[number].append(text)
    if said is None:
        read = {"turn": own, "date": own, "before": _joined(own, around(memories)[:2])}
        read |= dict.fromkeys(("window", "window and date"), _joined(own, around(memories)))
    else:
        turns = ["\n".join(said[id] for id in one.sources) for one in memories]
        read = {"observation": own, "date": own, "turns": turns}
        read |= dict.fromkeys(("with turns", "with turns and date"), list(map("{}\n{}".format, own, turns)))
    for name in read:
        if name.endswith("date"):
            pairs = zip(memories, read[name], strict=True)
            read[name] = [f"[{one.date}] {text}" if one.date else text for one, text in pairs]
    return read | {"session": ["\n".join(held[number]) for number in session]}


def _joined(own, rows):
    return ["\n".join(own[row] for row in some if row >= 0) for some in rows.T.tolist()]


def features(turns, queries):
    """Plain features of each question and turn by name, `[n, m]`."""
    speaker, said = zip(*(turn.text.partition(": ")[::2] for turn in turns), strict=True)
    spoken, before = [one.partition(" [shares ")[0] for one in said], around(turns)[0]
    asks = np.array(["?" in one for one in spoken])
    when = [query.text.lower().startswith("when") for query in queries]
    people = [set(re.findall(r"\w+", one.lower())) or {""} for one in speaker]
    asked = [set(re.findall(r"\w+", query.text.lower())) for query in queries]
    found = {
        "length": np.log1p([len(one.split()) for one in spoken]),
        "first of the session": before < 0,
        "question": asks,
        "question before": asks[before] & (before >= 0),
        "digits": [any(map(str.isdigit, one)) for one in spoken],
        "picture": [" [shares " in one for one in said],
        "when": np.outer(when, [bool(RELATIVE.search(one)) for one in spoken]),
        "speaker": [[name <= words for name in people] for words in asked],
    }
    return {name: np.zeros((len(queries), len(turns))) + of for name, of in found.items()}


def context(setting, encoded=("date", "window")):
    """The `Context` of the memories of a setting's store; `encoded` are the texts that have vectors beside their own.

    The vector of an observation's turns is the mean of theirs.
    """
    searched = settings.benchmark(setting.dataset, setting.captions)
    rows = [row for row, one in enumerate(searched.memories) if one.store == setting.store]
    memories = tuple(searched.memories[row] for row in rows)
    plain = settings.candidates_of(setting, Config().slate_size)
    vectors, said, session = {"turn": plain.bank[rows]}, None, sessions(memories)
    if setting.store == "observation":
        said = {one.id: one.text for one in searched.memories if one.store == "dialogue"}
        place = {one.id: row for row, one in enumerate(searched.memories)}
        pairs = torch.tensor([(number, place[id]) for number, one in enumerate(memories) for id in one.sources])
        vectors = {"observation": plain.bank[rows], "turns": _means(*pairs.T, plain.bank, len(rows))}
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
        own = {name: plain.query[at].double() @ of[held].double().T for name, of in vectors.items()}
        said_here = {name: [of[row] for row in held] for name, of in read.items()}
        among = [memories[row] for row in held], [searched.asked[number] for number in at]
        for name, scores in _scores(own, said_here, *among).items():
            values[name][block] = torch.as_tensor(scores).float()
    held = index >= 0
    found = first_stage.chosen(replace(searched, memories=memories), index.clamp(min=0), setting.store)
    found["gold"] &= held
    return Context(replace(plain, bank=plain.bank[rows], **found, stores=()), held, dict(values), vectors)


def _means(group, rows, bank, count):
    """Means of the vectors of `count` groups, of unit length, from pairs of a group and a row of the bank."""
    sums = torch.zeros(count, bank.shape[1]).index_add_(0, group, bank[rows])
    return torch.nn.functional.normalize(sums, dim=-1)


def _scores(cosines, read, memories, queries):
    """All scores of the memories of a conversation for its questions, `[n, m]` by name; `read` are their texts."""
    made, alive = {f"vector: {name}": of for name, of in cosines.items()}, np.ones(len(memories), bool)
    if "turn" in read:
        before, _, after = (torch.from_numpy(rows) for rows in around(memories))
        for name, other in (("before", before), ("after", after)):
            made[f"vector: {name}"] = made["vector: turn"][:, other] * (other >= 0)
    for name, of in read.items():
        words = Words()
        words.append(of)
        scores = torch.from_numpy(np.stack([words.scores(query.text, alive) for query in queries]))
        made[f"words: {name}"] = first_stage.of_largest(scores)
    if "turn" in read:
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
