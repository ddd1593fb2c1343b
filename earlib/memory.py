"""A memory that learns while it is used: what is retrieved, and what turns out useful, moves the next ranking.

    memory = EARMemory()
    memory.add(["Ada plays the cello", "Ben is allergic to nuts"])
    found = memory.retrieve("Which instrument does Ada play?", k=1)
    memory.feedback("Which instrument does Ada play?", [found[0].id], [True])
    memory.save("memory")

It is the system of the experiments with one replica and one query at a time (`online.OnlineLearner`), over memories
that come and go. Readers need no lock: each works on what was there when it began.
"""

import threading
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from earlib import devices, draws, embedding, encoders
from earlib.adapter import Adapter, gram
from earlib.candidates import of_largest, reciprocals, stream
from earlib.config import ASSIMILATION, HYBRID, Config
from earlib.critic import LLMCritic
from earlib.datasets import near
from earlib.explorer import explore, tallied
from earlib.journal import Journal
from earlib.online import OnlineLearner
from earlib.ranking import best
from earlib.replay import grown
from earlib.words import Words

POOL = 4  # memories of each ranking that are fused, for each candidate wanted
CHANGES = 500  # in the journal before the state is written anew: some seconds to do them again on loading
SPARSE = 1024  # rows that are gone before the others are moved together, if they are more than half


class Preset(NamedTuple):
    """A named configuration of a memory."""

    config: Config
    words: bool  # whether candidates are found by words too, and carry a score by words


PRESETS = {
    # The best known on LoCoMo, chosen on training questions.
    "best": Preset(Config(**ASSIMILATION, **HYBRID, learning_rate=1e-4, batch_size=1), words=True),
    # The paper's EAR, but for its batch: a memory in use learns from each query as it comes.
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
    ids: list  # by row, as the next two
    texts: list
    words: Words
    adapter: Adapter
    weight: float  # of the score by words


class EARMemory:
    """Memories that are retrieved by an adapter which learns from feedback.

    Parameters
    ----------
    encoder : str or callable
        One of `encoders.REGISTRY`, or `(texts, kind) -> [n, d]` with kind "memory" or "query".
    preset : str or Preset
        "best", "paper", or one of your own.
    critic : callable, optional
        `(query, ids, texts) -> critic` as in `earlib.critic` for this one query, whose K candidates are these memories;
        `by_model` makes one of a language model. It is asked where feedback has no label.
    seed : int
        Of all random numbers.
    dtype : torch.dtype
        Of the adapter and its updates. Embeddings of memories are kept in float16.

    Raises
    ------
    ValueError
        For an unknown encoder or preset, or one that learns a weight of words without looking for words.
    """

    def __init__(self, encoder="minilm", preset="best", critic=None, seed=0, dtype=torch.float32):
        if isinstance(preset, str) and preset not in PRESETS:
            raise ValueError(f"preset = {preset!r}{near(preset, PRESETS)}: expected one of {', '.join(PRESETS)}")
        self.config, self.by_words = PRESETS[preset] if isinstance(preset, str) else preset
        if (self.config.learned_side or self.config.side) and not self.by_words:
            raise ValueError("preset: words = False: expected True, since the configuration weighs a score by words")
        if self.config.batch_size != 1:
            raise ValueError(f"preset: batch_size = {self.config.batch_size}: expected 1, an update a feedback")
        self.encoder = encoder if callable(encoder) else encoders.get(encoder)
        self.critic, self.seed, self.dtype = critic, seed, dtype
        self._writing, self._encoding = threading.RLock(), threading.Lock()
        self._learner = self._now = self._journal = None
        self._room = None  # [capacity, d]: the bank, and room for what is still to come
        self._row, self._next = {}, 0  # row of each id; the next number that is given as an id

    def __len__(self):
        return len(self._row)

    @property
    def weight(self):
        """What a score by words weighs beside the adapter's, 0 before anything was learned."""
        return self._now.weight if self._now else 0.0

    # -- memories ------------------------------------------------------------------------------------------------------

    def add(self, texts, ids=None):
        """Add memories.

        Parameters
        ----------
        texts : sequence of str
            Equal ones are memories of their own.
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
            If an id is in use or comes twice, or there are more or fewer ids than texts.
        """
        texts = encoders._checked(texts)
        vectors = self._encode(texts, "memory").astype(np.float16)
        with self._writing:
            ids = [*range(self._next, self._next + len(texts))] if ids is None else list(ids)
            if len(ids) != len(texts):
                raise ValueError(f"ids: expected {len(texts)}, one a text, got {len(ids)}")
            _check_distinct(ids)
            for id in ids:
                if type(id) not in (int, str):
                    raise TypeError(f"ids: expected int or str, found {type(id).__name__} {id!r}")
                if id in self._row:
                    raise ValueError(f"ids: {id!r} is in use; expected an id of no memory")
            if texts:
                self._change("add", texts=texts, ids=ids, vectors=vectors)
        return ids

    def remove(self, ids):
        """Forget memories; they drop out of what is replayed too.

        Parameters
        ----------
        ids : sequence of int or str

        Raises
        ------
        ValueError
            For an id that no memory has, or one that comes twice; none is removed then.
        """
        with self._writing:
            ids = self._known(ids)
            if ids:
                self._change("remove", ids=ids)

    # -- retrieval -----------------------------------------------------------------------------------------------------

    def retrieve(self, query, k=5):
        """The memories that are ranked first for a query; asks no critic and changes nothing.

        Parameters
        ----------
        query : str
        k : int
            How many; fewer come back where there are fewer.

        Returns
        -------
        list of Found
            The best first; of equal scores the one that the first stage puts first.
        """
        if k < 1:
            raise ValueError(f"k = {k}: expected at least 1")
        now = self._now
        if now is None or not now.alive.any():
            return []
        vector = self._encode([query], "query")[0]
        rows, side = self._candidates(now, query, vector, max(k, self.config.depth))
        scores = self._scored(now, vector, rows, side)[0].flatten()
        order = best(scores, k)
        rows, scores = rows[order].tolist(), scores[order].tolist()
        return [Found(now.ids[row], now.texts[row], score) for row, score in zip(rows, scores, strict=True)]

    def candidates(self, query):
        """Ids of the K candidates that are ranked for a query, in the order of the first stage; it learns nothing."""
        now = self._now
        if now is None or not now.alive.any():
            return []
        rows, _ = self._candidates(now, query, self._encode([query], "query")[0], self.config.depth)
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
        return scores + now.weight * side.to(self.dtype), adapted, length

    # -- learning ------------------------------------------------------------------------------------------------------

    def feedback(self, query, ids, labels=None):
        """Say which memories were useful for a query; one update of the adapter.

        Parameters
        ----------
        query : str
        ids : sequence of int or str
            Memories that were shown, whether retrieved or not; at most K.
        labels : sequence, optional
            True or +1 for a useful one, False or -1 for another; None where the critic is to say, and left out for
            all. What the critic does not say, or there is no critic, counts as not shown.

        Raises
        ------
        ValueError
            For an id that no memory has or that comes twice, more ids than K, a number of labels that is not theirs, a
            label that is none of these, or where neither labels nor a critic are there.
        FloatingPointError
            If the adapter diverged.
        """
        ids = self._known(ids)
        labels = [None] * len(ids) if labels is None else [_label(one) for one in labels]
        if len(labels) != len(ids):
            raise ValueError(f"labels: expected {len(ids)}, one an id, got {len(labels)}")
        if all(label is None for label in labels) and self.critic is None:
            raise ValueError("labels: expected some, since the memory has no critic")
        if None in labels and self.critic is not None:
            unknown = [at for at, label in enumerate(labels) if label is None]
            for at, label in zip(unknown, self._asked(query, [ids[at] for at in unknown]), strict=True):
                labels[at] = label
        self._learn(query, [ids], [labels])

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
        ValueError
            If the memory has no critic, or is empty.
        """
        now, config = self._now, self.config
        if self.critic is None:
            raise ValueError("critic: expected one, to be asked about the Explorer's slates")
        if now is None or not now.alive.any():
            raise ValueError("reflect: the memory is empty; expected at least one memory")
        vector = self._encode([query], "query")[0]
        rows, side = self._candidates(now, query, vector, config.depth)
        scores, adapted, length = self._scored(now, vector, rows, side)
        similarity = gram(adapted, length, torch.arange(len(rows))[None, None])
        critic = self.critic(query, [now.ids[row] for row in rows], [now.texts[row] for row in rows])
        uniforms, asked = draws.live(config, self.seed, self._learner.known, config.depth), torch.zeros(1, 1).long()
        config = config.model_copy(update={"slate_size": min(config.slate_size, len(rows))})
        given = side.to(self.dtype)[None, None] if config.side else None

        def ask(t, slates):
            return critic(asked, slates, uniforms.critic[:, :, t])

        told = explore(config, scores, similarity, ask, config.rounds, given)
        slates = [[now.ids[row] for row in slate] for slate in rows[told.slates[0, 0]].tolist()]
        labels = torch.where(told.readable, told.citations, 0)[0, 0].tolist()
        self._learn(query, slates, [[label > 0 if label else None for label in one] for one in labels])
        shown, cited = told.shown.flatten(), told.cited.flatten()
        return {now.ids[rows[at]]: float(cited[at] / shown[at]) for at in shown.nonzero().flatten().tolist()}

    def _asked(self, query, ids):
        """What the critic says of some memories, in one slate: True, False, or None where it could not be read."""
        with self._writing:
            ids = self._known(ids)
            texts = [self._now.texts[self._row[id]] for id in ids]
        critic = self.critic(query, ids, texts)
        uniforms = draws.live(self.config, self.seed, self._learner.known, self.config.depth).critic[:, :, 0]
        citations, readable = critic(torch.zeros(1, 1).long(), torch.arange(len(ids))[None, None], uniforms)
        said = zip(citations.flatten().tolist(), readable.flatten().tolist(), strict=True)
        return [citation > 0 if whole else None for citation, whole in said]

    def _learn(self, query, slates, labels):
        vector = self._encode([query], "query")[0]
        with self._writing:
            ids = list(dict.fromkeys(id for slate in slates for id in slate))
            if len(ids) > self.config.depth:
                raise ValueError(f"ids: expected at most {self.config.depth} (K), got {len(ids)}")
            self._known(ids)  # again: a memory may be gone since
            self._change("feedback", query=query, vector=vector, slates=slates, labels=labels)

    def _told(self, now, query, vector, slates, labels):
        """Candidates of a query with those that a critic spoke of among them, filled up to K, and what it said."""
        K = self.config.depth
        rows, side = self._candidates(now, query, vector, K)
        spoken = list(dict.fromkeys(self._row[id] for slate in slates for id in slate))
        rows = _with(rows.tolist(), spoken, K)
        if self.by_words:
            side = _side(now.words.scores(query, now.alive), torch.tensor(rows))
        place = {row: at for at, row in enumerate(rows)}
        slate = torch.tensor([[place[self._row[id]] for id in one] for one in slates])
        said = torch.tensor([[0 if label is None else 2 * label - 1 for label in one] for one in labels])
        told = tallied(*(part[None, None] for part in (slate, said, said != 0)), torch.zeros(1, 1, K, dtype=self.dtype))
        padded = torch.zeros(K, dtype=torch.int64), torch.zeros(K, dtype=torch.float64)
        padded[0][: len(rows)], padded[1][: len(rows)] = torch.tensor(rows), side
        return *padded, told

    # -- changes -------------------------------------------------------------------------------------------------------

    def _change(self, kind, **what):
        """Make a change that was found sound: first in the journal, if there is one, then in memory."""
        undo = self._journal.append({"kind": kind, **what}) if self._journal else None
        try:
            self._make(kind, what)
        except BaseException:
            if undo:
                undo()
            raise
        if self._journal and self._journal.lines >= CHANGES:
            self._write(self._journal)

    def _make(self, kind, what):
        {"add": self._make_add, "remove": self._make_remove, "feedback": self._make_feedback}[kind](**what)

    def _make_add(self, texts, ids, vectors):
        now = self._now or self._begin(vectors.shape[1])
        start, stop = len(now.alive), len(now.alive) + len(texts)
        self._room = grown(self._room, start, stop)
        self._room[start:stop] = torch.from_numpy(vectors)
        now.words.append(texts)
        now.texts.extend(texts)
        now.ids.extend(ids)
        self._row |= {id: row for row, id in enumerate(ids, start)}
        self._next = max([self._next, *(id + 1 for id in ids if isinstance(id, int))])
        alive = np.concatenate([now.alive, np.ones(len(texts), bool)])
        self._show(now._replace(bank=self._room[:stop], alive=alive))

    def _make_remove(self, ids):
        alive = self._now.alive.copy()
        alive[[self._row.pop(id) for id in ids]] = False
        self._show(self._now._replace(alive=alive))
        gone = np.count_nonzero(~alive)
        if gone > max(SPARSE, len(alive) // 2):
            self._compact()

    def _make_feedback(self, query, vector, slates, labels):
        index, side, told = self._told(self._now, query, vector, slates, labels)
        self._learner.learn(torch.from_numpy(vector).to(self.dtype), index, side, told)
        self._show(self._now._replace(**self._ranking()))

    def _begin(self, dimension):
        """An empty memory whose embeddings have this width; row 0 is a unit vector that is never alive."""
        self._learner = OnlineLearner(self.config, dimension, self.seed, self.dtype)
        words = Words()
        words.append([""])
        self._room = torch.nn.functional.one_hot(torch.zeros(1).long(), dimension).half()
        self._now = _Snapshot(self._room, np.zeros(1, bool), [None], [""], words, **self._ranking())
        return self._now

    def _ranking(self):
        """The adapter and the weight of words as they are now, for readers."""
        learned = self._learner.adapter
        frozen = [part.detach() for part in learned.parameters]
        adapter = Adapter(frozen, self.config.adapter, self.config.normalise, self.dtype)
        return {"adapter": adapter, "weight": self._learner.side_weight.item()}

    def _show(self, now):
        """From here on readers see this; so does the learner."""
        self._now, self._learner.bank, self._learner.alive = now, now.bank, torch.from_numpy(now.alive)

    def _compact(self):
        """Move the memories that are alive together, in their order; readers keep what they have."""
        now = self._now
        kept = np.flatnonzero(now.alive)
        number = torch.zeros(len(now.alive), dtype=torch.int64)
        number[kept] = torch.arange(1, len(kept) + 1)
        self._learner.renumber(number)
        self._row = {id: int(number[row]) for id, row in self._row.items()}
        rows = [0, *kept.tolist()]
        texts, words = [now.texts[row] for row in rows], Words()
        words.append(texts)
        alive = np.arange(len(rows)) > 0
        self._room, ids = now.bank[rows], [now.ids[row] for row in rows]
        self._show(now._replace(bank=self._room, alive=alive, ids=ids, texts=texts, words=words))

    # -- on the disk ---------------------------------------------------------------------------------------------------

    def save(self, path):
        """Write the memory into a folder, and from then on every change, before it takes effect.

        A kill at any moment leaves a folder that `load` reads; at most the change that was being made is missing.

        Parameters
        ----------
        path : str or Path
            The state that lies there is replaced, never a part of it.

        Raises
        ------
        OSError
            If the folder cannot be written, or is open in another memory; what lay there stays.
        """
        with self._writing:
            if self._journal and self._journal.path.resolve() == Path(path).resolve():
                self._write(self._journal)
                return
            journal = Journal(path)
            try:
                self._write(journal)
            except BaseException:
                journal.close()
                raise
            self.close()
            self._journal = journal

    def _write(self, journal):
        if self._now is not None and not self._now.alive[1:].all():
            self._compact()
        plain = {
            "config": self.config.model_dump(),
            "words": self.by_words,
            "encoder": None if callable(self.encoder) else encoders.fingerprint(self.encoder.name),
            "encoder_name": None if callable(self.encoder) else self.encoder.name,
            "seed": self.seed,
            "dtype": str(self.dtype).partition(".")[2],
            "next": self._next,
            "ids": self._now.ids[1:] if self._now else [],
            "texts": self._now.texts[1:] if self._now else [],
        }
        tensors = {"bank": self._now.bank[1:].contiguous()} if self._now else {}
        if self._now:
            tensors |= {f"learner.{name}": values for name, values in self._learner.state().items()}
        journal.write(plain, tensors)

    @classmethod
    def load(cls, path, encoder=None, critic=None):
        """The memory that a folder holds; its changes are kept there from then on.

        Parameters
        ----------
        path : str or Path
        encoder : callable, optional
            The same as before, where it was none of the registry's.
        critic : callable, optional
            As for a new memory.

        Returns
        -------
        EARMemory

        Raises
        ------
        ValueError
            If the folder holds no memory, one of another version or a damaged one, or the encoder is another.
        BlockingIOError
            If it is open in another memory.
        """
        journal = Journal(path)
        try:
            plain, tensors, changes = journal.read()
            if (plain["encoder_name"] is None) != (encoder is not None):
                wanted = plain["encoder_name"] or "the callable that the memory was made with"
                raise ValueError(f"encoder: expected {wanted} ({path}), got {encoder or 'none'}")
            preset = Preset(Config(**plain["config"]), plain["words"])
            encoder = encoder or plain["encoder_name"]
            memory = cls(encoder, preset, critic, plain["seed"], getattr(torch, plain["dtype"]))
            if not callable(encoder) and encoders.fingerprint(encoder) != plain["encoder"]:
                raise ValueError(f"{path}: the memories were encoded by other weights of {encoder}; encode them anew")
            memory._restore(plain, tensors)
            for change in changes:
                memory._make(change.pop("kind"), change)
        except BaseException:
            journal.close()
            raise
        memory._journal = journal
        return memory

    def _restore(self, plain, tensors):
        if tensors:
            self._begin(tensors["bank"].shape[1])
            self._make_add(plain["texts"], plain["ids"], tensors.pop("bank").numpy())
            self._learner.restore({name.removeprefix("learner."): values for name, values in tensors.items()})
            self._show(self._now._replace(**self._ranking()))
        self._next = plain["next"]

    def close(self):
        """Let another memory open the folder; this one goes on in memory alone."""
        with self._writing:
            if self._journal:
                self._journal.close()
                self._journal = None

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _encode(self, texts, kind):
        """Unit embeddings, `[n, d]` float32; one thread at a time, since tokenizers bear no more."""
        texts = encoders._checked(texts)
        with self._encoding:
            if callable(self.encoder):
                vectors = np.asarray(self.encoder(texts, kind), np.float32)
            elif texts:
                model = embedding.embedder(
                    self.encoder, devices.default(), devices.precision(), encoders.trusted(self.encoder.name)
                )
                prompt = self.encoder.memory_prompt if kind == "memory" else self.encoder.query_prompt
                pieces = [texts[at : at + encoders.PIECE] for at in range(0, len(texts), encoders.PIECE)]
                vectors = np.concatenate(list(model(pieces, prompt)))
            else:
                vectors = np.zeros((0, self.encoder.dimension), np.float32)
        width = vectors.shape[-1] if self._now is None else self._now.bank.shape[1]
        if vectors.shape != (len(texts), width):
            raise ValueError(f"encoder: expected embeddings [{len(texts)}, {width}], got {list(vectors.shape)}")
        length = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not (np.isfinite(vectors).all() and (length > 0).all()):
            raise ValueError("encoder: expected embeddings that are finite and not 0; check the texts")
        return vectors / length

    def _known(self, ids):
        """The ids of memories as they were given when these were added, each once."""
        ids = list(ids)
        with self._writing:  # rows may be moved
            for id in ids:
                if id not in self._row:
                    raise ValueError(f"ids: {id!r}: expected the id of a memory, and none has it (it may be removed)")
            _check_distinct(ids)
            return [self._now.ids[self._row[id]] for id in ids]


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


def _check_distinct(ids):
    if len(set(ids)) < len(ids):
        twice = next(id for at, id in enumerate(ids) if id in ids[:at])
        raise ValueError(f"ids: {twice!r} comes twice; expected each id once")


def _label(label):
    """True, False or None of what a caller may say."""
    if label is None or isinstance(label, (bool, np.bool_)):
        return None if label is None else bool(label)
    if isinstance(label, (int, np.integer)) and label in (1, -1):
        return bool(label > 0)
    raise ValueError(f"labels: {label!r}: expected True, False, 1, -1 or None")


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
