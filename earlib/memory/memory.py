"""A memory that learns while it is used: what is retrieved, and what turns out useful, moves the next ranking.

    memory = EARMemory()
    memory.add(["Ada plays the cello", "Ben is allergic to nuts"])
    found = memory.retrieve("Which instrument does Ada play?", k=1)
    memory.feedback("Which instrument does Ada play?", [found[0].id], [True])
    memory.save("memory")

It is the system of the experiments with one replica and one query at a time (`online.OnlineLearner`), over memories
that come and go. Readers need no lock: each works on what was there when it began. A change is made or not made: it
runs in a thread of its own (`alone.Alone`), takes effect by one assignment, and what it cannot finish it takes back.
"""

import threading
import warnings
import weakref
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from earlib import devices
from earlib.core import randomness
from earlib.core.adapter import Adapter, gram
from earlib.core.config import ASSIMILATION, HYBRID, Config, near
from earlib.core.explorer import explore, tallied
from earlib.core.ordering import best
from earlib.core.replay import grown
from earlib.data import embedding, encoders
from earlib.data.candidates import of_largest, reciprocals
from earlib.data.search import stream
from earlib.data.words import Words
from earlib.llm.critic import LLMCritic
from earlib.memory.alone import Alone
from earlib.memory.checks import (
    IDS,
    check_array,
    check_distinct,
    check_text,
    folder_of,
    id_of,
    ids_of,
    label_of,
    question,
    sequence,
    whole_number,
)
from earlib.memory.journal import Journal
from earlib.memory.online import OnlineLearner

POOL = 4  # memories of each ranking that are fused, for each candidate wanted
QUESTIONS = 1000  # whose embeddings are kept, since most feedback is about what was just retrieved
CHANGES = 500  # in the journal before the state is written anew: some seconds to do them again on loading
PROBE = "What an encoder makes of this sentence tells it from others."
SAME = 0.999  # cosine of two embeddings of it above which they are one encoder's, however it rounds
DTYPES = {"float32": torch.float32, "float64": torch.float64}
SPARSE = 1024  # rows that are gone before the others are moved together, if they are more than half


class Preset(NamedTuple):
    """A named configuration of a memory."""

    config: Config
    words: bool  # whether candidates are found by words too, and carry a score by words


PRESETS = {
    # The best known on LoCoMo, chosen on training questions. On those a fixed weight of words between 0.3 and 0.5 ranks
    # best; it starts there, and is learned in large steps, since words may mislead where other questions are asked.
    "best": Preset(Config(**ASSIMILATION, **HYBRID, learning_rate=1e-4, batch_size=1, side_start=0.4), words=True),
    # The paper's EAR, but for two things: a memory in use learns from each query as it comes, and the update rule is
    # the package's Adam, where the paper prints a plain gradient step (optimizer = "sgd").
    "paper": Preset(Config(batch_size=1), words=False),
}


class Found(NamedTuple):
    """A memory that was retrieved."""

    id: int | str
    text: str
    score: float


class _Snapshot(NamedTuple):
    """All that a reader needs; nothing in it is ever changed, only appended to behind what it says it holds."""

    bank: torch.Tensor  # [M, d] float16; row 0 is none
    alive: np.ndarray  # [M] bool
    row: dict  # of each id; also of ids that are gone
    ids: list  # by row, as the next two
    texts: list
    words: Words
    adapter: Adapter
    weight: float  # of the score by words

    def place(self, id):
        """Row of a memory; None if there is none with this id."""
        row = self.row.get(id)
        return row if row is not None and row < len(self.alive) and self.alive[row] else None


class EARMemory:
    """Memories that are retrieved by an adapter which learns from feedback.

    Parameters
    ----------
    encoder : str or callable
        One of `encoders.REGISTRY`, or `(texts, kind) -> [n, d]` with kind "memory" or "query", of any texts: `save`
        has it embed a sentence of its own, by which `load` knows it again. It is asked once about a question that
        comes again among the last 1,000.
    preset : str or Preset
        "best", "paper", or one of your own.
    critic : callable, optional
        `(query, ids, texts) -> critic` as in `earlib.core.critic` for this one query, whose K candidates are these memories;
        `by_model` makes one of a language model. It is asked where feedback has no label.
    seed : int
        Of all random numbers, at least 0.
    dtype : torch.dtype
        Of the adapter and its updates, torch.float32 or torch.float64. Embeddings of memories are kept in float16.
    experiences : int
        How many feedbacks are kept to be replayed; the oldest is dropped first. What was learned from it stays.

    Raises
    ------
    TypeError
        If an argument has another type.
    ValueError
        For an unknown encoder or preset, one that learns a weight of words without looking for words, or a number that
        is too small.
    """

    def __init__(self, encoder="minilm", preset="best", critic=None, seed=0, dtype=torch.float32, experiences=10_000):
        if isinstance(preset, str) and preset not in PRESETS:
            raise ValueError(f"preset = {preset!r}{near(preset, PRESETS)}: expected one of {', '.join(PRESETS)}")
        self.config, self.by_words = _preset(preset)
        if (self.config.learned_side or self.config.side) and not self.by_words:
            raise ValueError("preset: words = False: expected True, since the configuration weighs a score by words")
        if self.config.batch_size != 1:
            raise ValueError(f"preset: batch_size = {self.config.batch_size}: expected 1, an update a feedback")
        if not (isinstance(encoder, str) or callable(encoder)):
            raise TypeError(f"encoder: expected a name or a callable, found {type(encoder).__name__}")
        if not (critic is None or callable(critic)):
            raise TypeError(f"critic: expected a callable or None, found {type(critic).__name__}")
        if dtype not in DTYPES.values():
            raise ValueError(f"dtype = {dtype!r}: expected torch.float32 or torch.float64")
        self.encoder = encoder if callable(encoder) else encoders.get(encoder)
        self.critic, self.dtype = critic, dtype
        self.seed, self.experiences = whole_number(seed, "seed", 0), whole_number(experiences, "experiences", 1)
        self._encoding, self._alone = threading.Lock(), Alone()
        weakref.finalize(self, self._alone.end).atexit = False  # until the very end a change may be made
        self._learner = self._now = self._journal = self._probe = None
        self._asked_about = {}  # embeddings of the last questions, by their texts
        self._room = None  # [capacity, d]: the bank, and room for what is still to come
        self._next = 0  # the next number that is given as an id

    def __len__(self):
        return int(np.count_nonzero(self._now.alive)) if self._now else 0

    def __contains__(self, id):
        now = self._now
        return now is not None and isinstance(id, IDS) and not isinstance(id, bool) and now.place(id) is not None

    def __repr__(self):
        name = getattr(self.encoder, "name", None) or getattr(self.encoder, "__name__", type(self.encoder).__name__)
        preset = next((name for name, one in PRESETS.items() if one == (self.config, self.by_words)), "of its own")
        held, folder = self._learner.held if self._learner else 0, self._journal.path if self._journal else "none"
        return (
            f"<EARMemory: encoder {name}, preset {preset}, {len(self):,} memories, {held:,} of {self.experiences:,} "
            f"experiences, folder {folder}>"
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce__(self):
        raise TypeError("an EARMemory cannot be pickled or copied; use save and load")

    @property
    def weight(self):
        """What a score by words weighs beside the adapter's: at first what the configuration starts it from."""
        return self._now.weight if self._now else self.config.side_start

    def ids(self):
        """The ids of all memories, in the order in which they were added."""
        now = self._now
        return [now.ids[row] for row in np.flatnonzero(now.alive).tolist()] if now else []

    def get(self, id):
        """The text of a memory.

        Parameters
        ----------
        id : int or str

        Returns
        -------
        str

        Raises
        ------
        ValueError
            If no memory has this id.
        """
        now, id = self._now, id_of(id)
        _check_there(now, [id], "id")
        return now.texts[now.place(id)]

    # -- memories ------------------------------------------------------------------------------------------------------

    def add(self, texts, ids=None):
        """Add memories.

        Parameters
        ----------
        texts : sequence of str
            Equal ones are memories of their own, and empty ones are memories too.
        ids : sequence of int or str, optional
            Default: numbers that no memory has had.

        Returns
        -------
        list
            Their ids.

        Raises
        ------
        TypeError
            If a text or an id has another type.
        ValueError
            If an id is in use or comes twice, there are more or fewer ids than texts, or a text or an id holds half of
            a surrogate pair, which no encoder and no file takes.
        """
        texts = encoders.check_texts(texts)
        for number, text in enumerate(texts):
            check_text(text, f"texts[{number}]")
        given = None if ids is None else ids_of(ids)
        if given is not None and len(given) != len(texts):
            raise ValueError(f"ids: expected {len(texts)}, one a text, got {len(given)}")
        if not texts:
            return []
        vectors = self._encode(texts, "memory").astype(np.float16)

        def change():
            chosen = [*range(self._next, self._next + len(texts))] if given is None else given
            self._change("add", texts=texts, ids=chosen, vectors=vectors)
            return list(chosen)

        return self._alone(change)

    def remove(self, ids):
        """Forget memories; they drop out of what is replayed too.

        In a folder their texts stand until the state is written anew, after some hundred changes or by `save`.

        Parameters
        ----------
        ids : sequence of int or str

        Raises
        ------
        TypeError
            If an id has another type.
        ValueError
            For an id that no memory has, or one that comes twice; none is removed then.
        """
        ids = ids_of(ids)
        if ids:
            self._alone(lambda: self._change("remove", ids=ids))

    # -- retrieval -----------------------------------------------------------------------------------------------------

    def retrieve(self, query, k=5):
        """The memories that are ranked first for a query; asks no critic and changes nothing.

        The K candidates of the configuration are ranked. Where more are wanted, others follow behind them in the order
        of the first stage, whatever their scores: what comes first does not depend on how many are asked for.

        Parameters
        ----------
        query : str
        k : int
            How many; fewer come back where there are fewer.

        Returns
        -------
        list of Found
            The best first; of equal scores the one that the first stage puts first.

        Raises
        ------
        TypeError
            If the query is no string, or k no whole number.
        ValueError
            If k is below 1, or the query holds half of a surrogate pair.
        """
        query, k, now = question(query), whole_number(k, "k", 1), self._now
        if now is None or not now.alive.any():
            return []
        vector = self._embedded(query)
        rows, side = self._candidates(now, query, vector, self.config.depth)
        scores = self._scored(now, vector, rows, side)[0].flatten()
        order = best(scores, k)
        rows, scores = rows[order], scores[order]
        if len(rows) < min(k, np.count_nonzero(now.alive)):
            more, side = self._candidates(now, query, vector, k)
            new = torch.isin(more, rows, invert=True).nonzero().flatten()[: k - len(rows)]
            more, side = more[new], side[new]
            # Scored apart: a product of another size may round differently, and change what comes first.
            scores = torch.cat([scores, self._scored(now, vector, more, side)[0].flatten()])
            rows = torch.cat([rows, more])
        found = zip(rows.tolist(), scores.tolist(), strict=True)
        return [Found(now.ids[row], now.texts[row], score) for row, score in found]

    def candidates(self, query):
        """Ids of the K candidates that are ranked for a query, in the order of the first stage; it learns nothing."""
        query, now = question(query), self._now
        if now is None or not now.alive.any():
            return []
        rows, _ = self._candidates(now, query, self._embedded(query), self.config.depth)
        return [now.ids[row] for row in rows.tolist()]

    def _candidates(self, now, query, vector, depth):
        """First stage: rows of the candidates, best first, and their scores by words as `candidates.word_scores`.

        With words, the ranking by cosine and that by BM25 are fused: of a memory's two ranks r, counted from 1, among
        the first `POOL` K of either, 1 / (60 + r) is summed; ties in the order of the bank.
        """
        count = int(np.count_nonzero(now.alive))
        depth, pool = min(depth, count), min(POOL * depth, count)
        if not self.by_words:
            return self._nearest(now, vector, depth), torch.zeros(depth, dtype=torch.float64)
        scores = now.words.scores(query, now.alive)
        rankings = self._nearest(now, vector, pool), _highest(scores, pool)
        held, place = torch.cat(rankings).unique(return_inverse=True)
        share = torch.cat([reciprocals(len(one)) for one in rankings])
        rows = held[best(torch.zeros(len(held), dtype=torch.float64).index_add(0, place, share), depth)]
        return rows, _side(scores, rows)

    def _nearest(self, now, vector, k):
        """The k rows alive that are closest, best first; more are searched where some are gone."""
        gone = len(now.alive) - int(np.count_nonzero(now.alive))
        wanted = k + min(gone, k)
        while True:
            rows = stream(now.bank, torch.from_numpy(vector), min(wanted, len(now.bank)), "EARMemory")[1]
            rows = rows[torch.from_numpy(now.alive)[rows]]
            if len(rows) >= k:
                return rows[:k]
            wanted *= 4

    @torch.no_grad()
    def _scored(self, now, vector, rows, side):
        """Scores of candidates by the adapter, `[1, 1, K]`, and what `gram` needs."""
        query, memory = torch.from_numpy(vector).to(self.dtype), now.bank[rows].to(self.dtype)
        scores, adapted, length = now.adapter.score(query[None, None], memory[None])
        if not scores.isfinite().all():
            raise FloatingPointError(f"the adapter diverged: scores are not finite; lower learning_rate, {self.config}")
        scores, first = scores + now.weight * side.to(self.dtype), {}
        twin = [first.setdefault(now.texts[row], at) for at, row in enumerate(rows.tolist())]
        return scores[..., twin], adapted, length  # equal texts have one score, wherever in a product they stand

    # -- learning ------------------------------------------------------------------------------------------------------

    def feedback(self, query, ids, labels=None):
        """Say which memories were useful for a query; one update of the adapter, made as a whole or not at all.

        Parameters
        ----------
        query : str
        ids : sequence of int or str
            Memories that were shown, whether retrieved or not; at most K.
        labels : sequence, optional
            True or 1 for a useful one, False, 0 or -1 for another; None where the critic is to say, and left out for
            all. What the critic does not say, or there is no critic, counts as not shown.

        Returns
        -------
        int
            Memories on which something was said. One that was removed while the critic answered is not among them.

        Raises
        ------
        TypeError
            If the query or an id has another type, or what the critic answers.
        ValueError
            For an id that no memory has or that comes twice, none or more ids than K, a number of labels that is not
            theirs, a label or a citation that is none of these, or where neither labels nor a critic are there.
        FloatingPointError
            If the adapter would diverge; it stays as it was.
        """
        query, ids, now = question(query), ids_of(ids), self._now
        _check_there(now, ids)
        if not ids:
            raise ValueError("ids: expected at least one")
        if len(ids) > self.config.depth:
            raise ValueError(f"ids: expected at most {self.config.depth} (K), got {len(ids)}")
        labels = [None] * len(ids) if labels is None else [label_of(one) for one in sequence(labels, "labels")]
        if len(labels) != len(ids):
            raise ValueError(f"labels: expected {len(ids)}, one an id, got {len(labels)}")
        if all(label is None for label in labels) and self.critic is None:
            raise ValueError("labels: expected some, since the memory has no critic")
        if None in labels and self.critic is not None:
            unknown = [at for at, label in enumerate(labels) if label is None]
            for at, label in zip(unknown, self._asked(now, query, [ids[at] for at in unknown]), strict=True):
                labels[at] = label
        return self._learn(query, [ids], [labels])

    def reflect(self, query):
        """Exploratory Reflection: the Explorer's slates are shown to the critic, T of them; one update of the adapter.

        Parameters
        ----------
        query : str

        Returns
        -------
        dict
            Mean citation of each memory that was shown, -1 to 1, by its id.

        Raises
        ------
        TypeError
            If the query is no string, or the critic answers in another type.
        ValueError
            If the memory is empty or has no critic, or the critic answers for another number of memories or something
            else than -1 and 1.
        FloatingPointError
            If the adapter would diverge; it stays as it was.
        """
        query, now, config = question(query), self._now, self.config
        if now is None or not now.alive.any():
            raise ValueError("reflect: the memory is empty; expected at least one memory")
        if self.critic is None:
            raise ValueError("critic: expected one, to be asked about the Explorer's slates")
        vector = self._embedded(query)
        rows, side = self._candidates(now, query, vector, config.depth)
        scores, adapted, length = self._scored(now, vector, rows, side)
        similarity = gram(adapted, length, torch.arange(len(rows))[None, None])
        ask = self._critic_of(query, [now.ids[row] for row in rows], [now.texts[row] for row in rows])
        config = config.model_copy(update={"slate_size": min(config.slate_size, len(rows))})
        given = side.to(self.dtype)[None, None] if config.side else None
        told = explore(config, scores, similarity, ask, config.rounds, given)
        slates = [[now.ids[row] for row in slate] for slate in rows[told.slates[0, 0]].tolist()]
        labels = torch.where(told.readable, told.citations, 0)[0, 0].tolist()
        self._learn(query, slates, [[label > 0 if label else None for label in one] for one in labels])
        shown, cited = told.shown.flatten(), told.cited.flatten()
        return {now.ids[rows[at]]: float(cited[at] / shown[at]) for at in shown.nonzero().flatten().tolist()}

    def _asked(self, now, query, ids):
        """What the critic says of some memories, in one slate: True, False, or None where it could not be read."""
        ask = self._critic_of(query, ids, [now.texts[now.place(id)] for id in ids])
        citations, readable = ask(0, torch.arange(len(ids))[None, None])
        said = zip(citations.flatten().tolist(), readable.flatten().tolist(), strict=True)
        return [citation > 0 if whole else None for citation, whole in said]

    def _critic_of(self, query, ids, texts):
        """The critic of one query: `ask(t, slates)` gives its citations of round t, and which could be read."""
        critic = self.critic(query, ids, texts)
        if not callable(critic):
            found = f"{type(critic).__name__} {str(critic)[:60]!r}"
            raise TypeError(f"critic: expected that it gives a critic of the query, a callable, got {found}")
        uniforms = randomness.live(self.config, self.seed, self._learner.known, self.config.depth).critic

        def ask(t, slates):
            return _said(critic(torch.zeros(1, 1).long(), slates, uniforms[:, :, t]), slates)

        return ask

    def _learn(self, query, slates, labels):
        """Learn what was said of some slates; the memories on which something was said, how many."""
        vector = self._embedded(query)

        def change():
            # A memory may be gone since it was shown: none stands in its place, of which nothing is said.
            left = [[id if self._now.place(id) is not None else None for id in slate] for slate in slates]
            said = [
                [label if id is not None else None for id, label in zip(*pair, strict=True)]
                for pair in zip(left, labels, strict=True)
            ]
            if any(id is not None for slate in left for id in slate):
                self._change("feedback", query=query, vector=vector, slates=left, labels=said)
            pairs = zip(sum(left, []), sum(said, []), strict=True)
            return len({id for id, label in pairs if label is not None})

        return self._alone(change)

    def _told(self, now, query, vector, slates, labels):
        """Candidates of a query with those that a critic spoke of among them, filled up to K, and what it said."""
        K = self.config.depth
        rows, side = self._candidates(now, query, vector, K)
        shown = [[0 if id is None else now.place(id) for id in slate] for slate in slates]
        rows = _with(rows.tolist(), list(dict.fromkeys(sum(shown, []))), K)
        if self.by_words:
            side = _side(now.words.scores(query, now.alive), torch.tensor(rows))
        place = {row: at for at, row in enumerate(rows)}
        slate = torch.tensor([[place[row] for row in one] for one in shown])
        said = torch.tensor([[0 if label is None else 2 * label - 1 for label in one] for one in labels])
        told = tallied(*(part[None, None] for part in (slate, said, said != 0)), torch.zeros(1, 1, K, dtype=self.dtype))
        padded = torch.zeros(K, dtype=torch.int64), torch.zeros(K, dtype=torch.float64)
        padded[0][: len(rows)], padded[1][: len(rows)] = torch.tensor(rows), side
        return *padded, told

    # -- changes -------------------------------------------------------------------------------------------------------

    def _change(self, kind, **what):
        """Make a change: first in the journal, if there is one, then in memory."""
        self._check(kind, what)
        if self._journal:
            self._journal.append(kind, what)
        try:
            self._make(kind, what)
        except BaseException:
            if self._journal:
                self._journal.drop()
            raise
        if self._journal and self._journal.lines % CHANGES == 0:  # and again as many later, if it fails
            try:
                self._write(self._journal)
            except Exception as error:
                told = f"{self._journal.path}: the state could not be written anew ({error}); every change is in the "
                warnings.warn(told + f"journal, and after {CHANGES} more it is tried again", stacklevel=2)

    def _check(self, kind, what):
        """Refuse what does not fit the memory as it is: a caller's change, or one that a folder tells of."""
        width = self._now.bank.shape[1] if self._now else None
        if kind == "add":
            check_distinct(what["ids"])
            used = next((id for id in what["ids"] if id in self), None)
            if used is not None:
                raise ValueError(f"ids: {used!r} is in use; expected an id of no memory")
            count = len(what["texts"])
            if len(what["ids"]) != count:
                raise ValueError(f"ids: expected {count}, one a text, found {len(what['ids'])}")
            width = width or what["vectors"].size // max(1, count)
            check_array("vectors", what["vectors"], np.float16, (count, width))
        elif kind == "remove":
            _check_there(self._now, what["ids"])
        else:
            shown = list(dict.fromkeys(id for slate in what["slates"] for id in slate))
            there = [id for id in shown if id is not None]
            _check_there(self._now, there)
            sizes = [[len(one) for one in what[name]] for name in ("slates", "labels")]
            if sizes[0] != sizes[1] or len(set(sizes[0])) != 1 or not there or len(shown) > self.config.depth:
                raise ValueError(f"slates, labels: expected as many of each, of 1 to {self.config.depth} memories")
            check_array("vector", what["vector"], np.float32, (width,))

    def _make(self, kind, what):
        {"add": self._make_add, "remove": self._make_remove, "feedback": self._make_feedback}[kind](**what)

    def _make_add(self, texts, ids, vectors):
        now = self._now or self._begin(vectors.shape[1])
        start, stop = len(now.alive), len(now.alive) + len(texts)
        alive = np.concatenate([now.alive, np.ones(len(texts), bool)])
        self._room = grown(self._room, start, stop)
        self._room[start:stop] = torch.from_numpy(vectors)
        now.texts[start:], now.ids[start:] = texts, ids  # also in the place of what a failed change has left there
        now.words.append(texts)
        now.row.update((id, row) for row, id in enumerate(ids, start))
        self._next = max([self._next, *(id + 1 for id in ids if isinstance(id, int))])
        self._show(now._replace(bank=self._room[:stop], alive=alive))

    def _make_remove(self, ids):
        alive = self._now.alive.copy()
        alive[[self._now.place(id) for id in ids]] = False
        now = self._now._replace(alive=alive)
        if np.count_nonzero(~alive) > max(SPARSE, len(alive) // 2):
            self._move(*_compacted(now))
        else:
            self._show(now)

    def _make_feedback(self, query, vector, slates, labels):
        index, side, told = self._told(self._now, query, vector, slates, labels)
        self._learner.learn(torch.from_numpy(vector).to(self.dtype), index, side, told)
        self._show_ranking()

    def _begin(self, dimension):
        """An empty memory whose embeddings have this width; row 0 is a unit vector that is never alive."""
        learner, words = OnlineLearner(self.config, dimension, self.seed, self.dtype, self.experiences), Words()
        words.append([""])
        self._room = torch.nn.functional.one_hot(torch.zeros(1).long(), dimension).half()
        self._learner, alive = learner, np.zeros(1, bool)
        self._show(_Snapshot(self._room, alive, {}, [None], [""], words, *learner.ranking))
        return self._now

    def _show(self, now):
        """From here on readers see this; so does the learner."""
        self._learner.bank, self._learner.alive, self._now = now.bank, torch.from_numpy(now.alive), now

    def _show_ranking(self):
        adapter, weight = self._learner.ranking
        self._show(self._now._replace(adapter=adapter, weight=weight))

    def _move(self, now, number):
        """Show memories that were moved together; readers keep what they have."""
        self._learner.renumber(number)
        self._room = now.bank
        self._show(now)

    # -- on the disk ---------------------------------------------------------------------------------------------------

    def save(self, path):
        """Write the memory into a folder, and from then on every change, before it takes effect.

        A kill at any moment leaves a folder that `load` reads; at most the change that was being made is missing. What
        comes later goes to this folder alone: for a copy, save to another one, then to this one again.

        Parameters
        ----------
        path : str or Path
            The state that lies there is replaced, never a part of it. Texts that were removed are gone from it then.

        Raises
        ------
        TypeError
            If the path is none.
        ValueError
            If the folder holds something else than a memory.
        OSError
            If the folder cannot be written, or is open in another memory; what lay there stays.
        """
        if callable(self.encoder) and self._probe is None:
            self._probe = self._encode([PROBE], "memory")[0]

        path = folder_of(path)

        def change():
            if self._journal and self._journal.path == path:
                self._write(self._journal)
                return
            journal = Journal(path, make=True)
            try:
                self._write(journal)
            except BaseException:
                journal.close()
                raise
            if self._journal:
                self._journal.close()
            self._journal = journal

        self._alone(change)

    def _write(self, journal):
        """Write the state without the memories that are gone; once it is there, they are gone here too."""
        now, number, tensors = self._now, None, {}
        if now is not None:
            if not now.alive[1:].all():
                now, number = _compacted(now)
            tensors = {"bank": now.bank[1:].contiguous()}
            tensors |= {f"learner.{name}": values for name, values in self._learner.state(number).items()}
        if self._probe is not None:
            tensors["probe"] = torch.from_numpy(self._probe)
        plain = {
            "config": self.config.model_dump(),
            "words": self.by_words,
            "encoder": None if callable(self.encoder) else encoders.fingerprint(self.encoder.name),
            "encoder_name": None if callable(self.encoder) else self.encoder.name,
            "seed": self.seed,
            "dtype": str(self.dtype).partition(".")[2],
            "experiences": self.experiences,
            "known": self._learner.known if self._learner else 0,
            "next": self._next,
            "ids": now.ids[1 : len(now.alive)] if now else [],
            "texts": now.texts[1 : len(now.alive)] if now else [],
        }
        journal.write(plain, tensors)
        if number is not None:
            self._move(now, number)

    @classmethod
    def load(cls, path, encoder=None, critic=None):
        """The memory that a folder holds; its changes are kept there from then on.

        Parameters
        ----------
        path : str or Path
        encoder : str or callable, optional
            The callable of before, where it was none of the registry's; else it may be left out.
        critic : callable, optional
            As for a new memory.

        Returns
        -------
        EARMemory

        Raises
        ------
        TypeError
            If the path is none.
        ValueError
            If the folder holds no memory, one of another version or a damaged one, or the encoder is another.
        BlockingIOError
            If it is open in another memory.
        OSError
            If the folder cannot be written.
        """
        journal = Journal(folder_of(path))
        try:
            state, tensors, changes = journal.read()
            named = state.encoder_name
            if not callable(encoder) if named is None else encoder not in (None, named):
                wanted = named or "the callable that the memory was made with"
                raise ValueError(f"encoder: expected {wanted} ({path}), got {encoder or 'none'}")
            encoder, preset = encoder or named, Preset(state.config, state.words)
            memory = cls(encoder, preset, critic, state.seed, DTYPES[state.dtype], state.experiences)
            if not callable(encoder) and encoders.fingerprint(encoder) != state.encoder:
                raise ValueError(f"{path}: the memories were encoded by other weights of {encoder}; encode them anew")
            probe = tensors.pop("probe", None)
            if callable(encoder):
                memory._check_probe(probe, journal.tensors_file)
            memory._alone(lambda: memory._restore(journal, state, tensors, changes))
        except BaseException:
            journal.close()
            raise
        return memory

    def _check_probe(self, probe, file):
        """Refuse a callable that is not the one by which the memories were encoded."""
        if probe is None or probe.dtype != torch.float32 or probe.dim() != 1:
            raise ValueError(f"{file}: probe: expected an embedding; put a copy of the file there")
        mine, probe = self._encode([PROBE], "memory")[0], probe.numpy()
        told = f"{len(probe)} wide, got {len(mine)}"
        if len(mine) == len(probe):
            told = f"like the one kept, cosine above {SAME}, got {mine @ probe:.3f}"
        if len(mine) != len(probe) or mine @ probe < SAME:
            raise ValueError(f"encoder: not the one of {file}: expected an embedding of a fixed sentence {told}")
        self._probe = probe

    def _restore(self, journal, state, tensors, changes):
        """Become what a folder holds."""
        try:
            self._restore_state(state, tensors)
        except ValueError as error:
            raise ValueError(f"{journal.tensors_file}: {error}; put a copy of the folder there") from None
        for at, (kind, what) in enumerate(changes, 1):
            try:
                self._check(kind, what)
                self._make(kind, what)
            except ValueError as error:
                raise ValueError(f"{journal.place(at)}: {error}; put a copy of the folder there") from None
            except FloatingPointError:
                if at < len(changes):
                    raise
                journal.drop()  # killed before it was taken back: it never took effect
        self._journal = journal

    def _restore_state(self, state, tensors):
        bank = tensors.pop("bank", None)
        if bank is None and (tensors or state.ids or state.known):
            raise ValueError("bank: expected one, since there are ids or something that was learned")
        if bank is not None:
            if bank.dim() != 2 or bank.shape[1] == 0:
                raise ValueError(f"bank: expected [{len(state.ids)}, d], found {list(bank.shape)}")
            check_array("bank", bank.numpy(), np.float16, (len(state.ids), bank.shape[1]))
            self._begin(bank.shape[1])
            self._make_add(state.texts, state.ids, bank.numpy())
            odd = next((name for name in tensors if not name.startswith("learner.")), None)
            if odd:
                raise ValueError(f"{odd}: expected no tensor of this name")
            held = {name.removeprefix("learner."): values for name, values in tensors.items()}
            self._learner.restore(held, state.known)
            self._show_ranking()
        self._next = state.next

    def close(self):
        """Let another memory open the folder; this one goes on in memory alone."""
        if not self._alone.mine():  # the folder is that process's, which goes on with it
            return

        def change():
            if self._journal:
                self._journal.close()
                self._journal = None

        self._alone(change)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _embedded(self, query):
        """The unit embedding of a question, `[d]` float32; encoded once, while it is among the last `QUESTIONS`."""
        vector = self._asked_about.get(query)
        if vector is None:
            vector = self._encode([query], "query")[0]
            with self._encoding:
                self._asked_about[query] = vector
                if len(self._asked_about) > QUESTIONS:
                    del self._asked_about[next(iter(self._asked_about))]
        return vector

    def _encode(self, texts, kind):
        """Unit embeddings, `[n, d]` float32; one thread at a time, since tokenizers bear no more."""
        with self._encoding:
            if callable(self.encoder):
                vectors = np.asarray(self.encoder(texts, kind), np.float32)
            else:
                model = embedding.embedder(
                    self.encoder, devices.default(), devices.precision(), encoders.trusted(self.encoder.name)
                )
                prompt = self.encoder.memory_prompt if kind == "memory" else self.encoder.query_prompt
                pieces = [texts[at : at + encoders.PIECE] for at in range(0, len(texts), encoders.PIECE)]
                vectors = np.concatenate(list(model(pieces, prompt)))
        width = vectors.shape[-1] if self._now is None else self._now.bank.shape[1]
        if vectors.shape != (len(texts), width):
            raise ValueError(f"encoder: expected embeddings [{len(texts)}, {width}], got {list(vectors.shape)}")
        with np.errstate(over="ignore"):
            length = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not (np.isfinite(length).all() and (length > 0).all()):  # not finite too where a square overflows
            raise ValueError("encoder: expected embeddings that are finite and not 0; check the texts")
        return vectors / length


def by_model(client, tokens):
    """A language model as the critic of a memory: it answers from the memories shown, and says which it used.

    Parameters
    ----------
    client : earlib.llm.client.Client
        As `earlib.llm.models.connect` makes it.
    tokens : int
        That a reply may have, `earlib.llm.models.reply_tokens`.

    Returns
    -------
    callable
        The `critic` of an EARMemory.
    """
    return partial(_model_critic, client, tokens)


def _model_critic(client, tokens, query, ids, texts):
    return LLMCritic(client, [query], texts, torch.arange(len(texts))[None], tokens)


def _said(answer, slates):
    """Citations and readable of a caller's critic for slates `[1, 1, s]`, as `earlib.core.critic` has them, in {-1, +1}."""
    if not (isinstance(answer, (tuple, list)) and len(answer) == 2 and all(map(torch.is_tensor, answer))):
        found = f"{type(answer).__name__} {str(answer)[:60]!r}"
        raise TypeError(f"critic: expected two tensors, citations and which of them could be read, got {found}")
    citations, readable = answer
    for part in answer:
        if part.shape != slates.shape:
            expected = f"{list(slates.shape)}, one a memory shown"
            raise ValueError(f"critic: expected citations and which could be read {expected}, got {list(part.shape)}")
    if readable.dtype != torch.bool:
        raise TypeError(f"critic: which could be read: expected torch.bool, got {readable.dtype}")
    odd = citations[readable & (citations.abs() != 1)]
    if len(odd):
        raise ValueError(f"critic: citations: expected 1 for a useful memory and -1 for another, got {odd[0].item():g}")
    return citations, readable


def _preset(preset):
    """The configuration and words of a preset, or of the name of one."""
    preset = PRESETS[preset] if isinstance(preset, str) else preset
    kinds = isinstance(preset, Preset) and (type(preset.config), type(preset.words))
    if kinds != (Config, bool):
        raise TypeError(f"preset: expected one of {', '.join(PRESETS)} or a Preset(Config, bool), found {preset!r}")
    return preset


def _check_there(now, ids, name="ids"):
    for id in ids:
        if now is None or now.place(id) is None:
            raise ValueError(f"{name}: {id!r}: expected the id of a memory, and none has it (it may be removed)")
    check_distinct(ids)


def _compacted(now):
    """The memories that are alive moved together, in their order, and the new row of each old one, 0 for the others."""
    rows = np.concatenate([[0], np.flatnonzero(now.alive)])
    number = torch.zeros(len(now.alive), dtype=torch.int64)
    number[torch.from_numpy(rows)] = torch.arange(len(rows))
    ids, texts = ([held[row] for row in rows.tolist()] for held in (now.ids, now.texts))
    places = {id: row for row, id in enumerate(ids[1:], 1)}
    words = now.words.of_rows(rows)
    alive = np.arange(len(rows)) > 0
    bank = now.bank[torch.from_numpy(rows)]
    return now._replace(bank=bank, alive=alive, row=places, ids=ids, texts=texts, words=words), number


def _highest(scores, count):
    """As `ranking.best` of the rows above 0, of which there are many: those below the last one wanted stay unsorted."""
    rows = np.flatnonzero(scores)
    if len(rows) > count:
        rows = rows[scores[rows] >= np.partition(scores[rows], -count)[-count]]
    return torch.from_numpy(rows)[best(torch.from_numpy(scores[rows]), count)]


def _side(scores, rows):
    """BM25 of candidates, as in `candidates.word_scores`."""
    return of_largest(torch.from_numpy(scores)[rows].double())


def _with(rows, wanted, count):
    """Rows with all those wanted among them: what is missing takes the last places, of those that are not wanted."""
    missing = [row for row in wanted if row not in rows]
    spare = count - len(rows)
    for at in range(len(rows) - 1, -1, -1):
        if len(missing) <= spare:
            break
        if rows[at] not in wanted:
            del rows[at]
            spare += 1
    return rows + missing
