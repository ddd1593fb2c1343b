"""A memory that learns while it is used: feedback on what was retrieved moves the next ranking.

    memory = EARMemory()
    memory.add(["Ada plays the cello", "Ben is allergic to nuts"])
    found = memory.retrieve("Which instrument does Ada play?", k=1)
    memory.feedback("Which instrument does Ada play?", [found[0].id], [True])
    memory.save("memory")

It learns a few weights (`weights.WeightLearner`), or an adapter: the system of the experiments with one replica and one
query at a time (`online.OnlineLearner`), over memories that come and go. Readers need no lock: each works on the
snapshot that it began with. A change is made as a whole or not at all: it runs in a thread of its own (`writer.Writer`)
and takes effect by one assignment.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from earlib.core.adapter import gram
from earlib.core.explorer import explore
from earlib.core.ordering import best
from earlib.data.encoders import sequence
from earlib.memory.critics import Replies
from earlib.memory.critics import ask as ask_critic
from earlib.memory.snapshot import Found, Memory, check_free, check_present
from earlib.memory.stored_memory import Id, StoredMemory, Where
from earlib.memory.validation import (
    as_citations,
    as_condition,
    as_json,
    as_label,
    as_labels,
    as_number,
    check_count,
    check_distinct,
    check_id,
    check_ids,
    check_text,
    own_copy,
)

Metadata = Sequence[dict[str, Any] | None]
Shown = Sequence[Id | Found]


class EARMemory(StoredMemory):
    """Memories whose ranking learns from feedback, and is served only while it is better than before.

    Parameters
    ----------
    encoder : str, callable or object
        What `encoders.resolve` takes: a name, the folder of a sentence-transformers model, or OWNER/NAME@REVISION of
        the hub. Or a callable `(texts) -> [n, d]`, or `(texts, kind) -> [n, d]` with kind "memory" or "query"; or the
        `Embeddings` of LangChain. `save` has these embed a sentence of its own, by which `load` recognises them.
    preset : str or Preset
        "best", which learns a few weights; "adapter", "paper", which learn an adapter; or one of your own.
    critic : callable, optional
        `(query, texts) -> labels`: which memories were useful for a query, True, False or None where it cannot tell;
        `by_model` makes one of a language model. It is asked where feedback has no label.
    seed : int
        Of all random numbers, at least 0.
    dtype : torch.dtype
        Of the adapter and its updates, torch.float32 or torch.float64. Embeddings of memories are kept in float16.
    experiences : int
        Number of feedbacks kept for replay by an adapter, the newest. Weights are learned from at most 500.
    features : callable, optional
        `(query, texts) -> [n, F]`: features of memories, of the order of one, whose weights are learned; default:
        `earlib.memory.plain_features`.
    context : str, optional
        Key of the metadata that tells sessions apart, as "session". Memories of one namespace with an equal value are
        each other's context, in the order of `list`: BM25 and cosine of the one before and of the one after have
        learned weights, from (0.2, 0.1) and (0.1, 0.1) on, and candidates come in by half of their BM25 too. A folder
        keeps the key.

    Raises
    ------
    TypeError, ValueError
        For another type, an unknown encoder or preset, a preset that learns a weight of words without looking for
        words, or a number that is too small.
    """

    @property
    def weight(self) -> float:
        """Weight of the score by words beside the adapter's; learned, from the configuration's start."""
        return float(self._state.now.weights[0])

    def add(
        self,
        texts: Sequence[str],
        ids: Sequence[Id] | None = None,
        namespace: str = "",
        metadata: Metadata | None = None,
    ) -> list[Id]:
        """Add memories, and return their ids.

        Parameters
        ----------
        texts : sequence of str
            Equal ones are memories of their own, retrieved in the order in which they were added.
        ids : sequence of int or str, optional
            Default: numbers that no memory has had. An id belongs to one memory of all namespaces, as a number or as
            its text.
        namespace : str
            Of a user or a conversation. What is learned from feedback is shared by all of them.
        metadata : sequence of dict, optional
            One a text, of what JSON can hold.

        Raises
        ------
        TypeError, ValueError
            For another type, an id that is in use or comes twice, more or fewer ids or metadata than texts, or half of
            a surrogate pair.
        """
        return self._add(texts, None if ids is None else check_ids(ids), namespace, metadata, replace=False)

    def upsert(
        self, texts: Sequence[str], ids: Sequence[Id], namespace: str = "", metadata: Metadata | None = None
    ) -> list[Id]:
        """Add memories, in the place of those that have their ids, in one change; as for `add`.

        A replaced memory keeps its time of creation and comes last in the order from then on; feedback on what it was
        is forgotten. An id of another namespace is refused.
        """
        return self._add(texts, check_ids(ids), namespace, metadata, replace=True)

    def _add(self, texts, given, namespace, metadata, replace):
        self._write.check_process()
        texts = [check_text(text, f"texts[{number}]") for number, text in enumerate(sequence(texts, "texts"))]
        namespace = check_text(namespace, "namespace")
        metadata = None if metadata is None else sequence(metadata, "metadata")
        for name, values in (("ids", given), ("metadata", metadata)):
            if values is not None and len(values) != len(texts):
                raise ValueError(f"{name}: expected {len(texts)}, one a text, got {len(values)}")
        metadata = [as_json(one or {}, f"metadata[{number}]") for number, one in enumerate(metadata or ())]
        about = {"namespace": namespace, "metadata": metadata, "replace": replace}
        check_distinct([as_number(id) for id in given or ()])
        if not texts:
            return []
        place = {text: at for at, text in enumerate(dict.fromkeys(texts))}
        vectors = self._encode.memories(list(place), self._state.now)

        def change():
            now = self._state.now
            for id in given or ():
                check_free(now, id, namespace, replace)
            ids = given or list(range(self._state.next, self._state.next + len(texts)))
            each, times = vectors[[place[text] for text in texts]], [time.time()] * len(texts)
            self._change("add", texts=texts, ids=ids, vectors=each, times=times, **about)
            return ids

        return self._write(change)

    def remove(self, ids: Iterable[Id | Memory | Found]) -> None:
        """Remove memories; they drop out of what is replayed too, and a model's replies about them are forgotten.

        In a folder their texts remain until the next snapshot is written, after some hundred changes or by `save`.
        A TypeError or ValueError for an id of another type, that no memory has or that comes twice; none is removed
        then.
        """
        gone = self._named(list(ids) if isinstance(ids, (set, frozenset)) else ids)  # in any order

        def change():
            check_present(self._state.now, gone)
            self._change("remove", ids=gone)

        if gone:
            self._write(change)

    def retrieve(self, query: str, k: int = 5, namespace: str = "", where: Where | None = None) -> list[Found]:
        """Return the memories that are ranked first for a query; no critic calls, and nothing changes.

        The K candidates of the configuration are ranked. Where more are wanted, others follow behind them in the order
        of the first stage, with scores that are at most those before them.

        Parameters
        ----------
        query : str
        k : int
            Number of memories; fewer come back where there are fewer.
        namespace : str
            Whose memories are searched, and no others.
        where : dict or callable, optional
            Equalities of metadata, or a condition on a `Memory`; what does not meet it is never a candidate.

        Returns
        -------
        list of Found
            The best first; of equal scores the one that the first stage puts first.

        Raises
        ------
        TypeError, ValueError
            If the query is no string, or k is no whole number from 1 on.
        RuntimeError
            In a process that was forked from the memory's.
        """
        k = check_count(k, "k", 1)
        now, vector, scope, rows, side = self._search(query, namespace, where)
        if not len(rows):
            return []
        scores = now.scores(query, vector, rows, side)[0].flatten()
        order = best(scores, k)
        rows, scores = rows[order], scores[order]
        if len(rows) < min(k, int(np.count_nonzero(scope))):
            more, side = now.candidates(query, vector, k, self.by_words, scope)
            new = torch.isin(more, rows, invert=True).nonzero().flatten()[: k - len(rows)]
            # Scored apart: a product of another size may round differently, and change what comes first.
            further = now.scores(query, vector, more[new], side[new])[0].flatten()
            rows, scores = torch.cat([rows, more[new]]), torch.cat([scores, further]).cummin(0).values
        found = (own_copy(now.memories[row]) for row in rows.tolist())
        return [Found(one.id, one.text, score, *one[2:]) for one, score in zip(found, scores.tolist(), strict=True)]

    def _search(self, query, namespace, where):
        """Return the snapshot that is searched, the query's embedding, the mask of what counts, and its candidates."""
        query, now = check_text(query, "query"), self._state.now
        scope, vector = now.scope(check_text(namespace, "namespace"), as_condition(where)), self._vector(query)
        return now, vector, scope, *now.candidates(query, vector, self.config.depth, self.by_words, scope)

    async def aretrieve(self, *args: Any, **options: Any) -> list[Found]:
        """As `retrieve`, in a thread of its own."""
        return await asyncio.to_thread(self.retrieve, *args, **options)

    def candidates(self, query: str, namespace: str = "", where: Where | None = None) -> list[Id]:
        """List the ids of the K candidates that are ranked for a query, in the order of the first stage."""
        now, _, _, rows, _ = self._search(query, namespace, where)
        return [now.memories[row].id for row in rows.tolist()]

    def feedback(
        self,
        query: str,
        ids: Shown | None = None,
        labels: Sequence[Any] | None = None,
        source: str | None = None,
        cited: Shown | None = None,
    ) -> int:
        """Learn which memories were useful for a query: one update, made as a whole or not at all.

        Where none is labelled as not useful, what ranks first and is not useful is the other side, in the namespaces of
        what was shown.

        Parameters
        ----------
        query : str
        ids : sequence of int, str or Found
            Memories that were shown, whether retrieved or not; at most K. What `upsert` has replaced since it was
            retrieved is not judged.
        labels : sequence, optional
            True or 1 for a useful one, False, 0 or -1 for another; None where the critic is asked. Left out, the critic
            is asked about all.
        source : str, optional
            Who says so. Of each source that is named only the newest 10 feedbacks count for the learned weights.
        cited : sequence of int, str or Found, optional
            In place of labels: those of the `ids` that were useful, and no others were. Without `ids` it is not known
            what else was shown.

        Returns
        -------
        int
            Number of memories with a label, but those removed or replaced while the critic answered.

        Raises
        ------
        TypeError, ValueError
            For another type, an id that no memory has or that comes twice, none or more ids than K, another number of
            labels, another label or citation, or where there are neither labels nor a critic.
        FloatingPointError
            If the adapter would diverge; it stays as it was.
        """
        query, now, K = check_text(query, "query"), self._state.now, self.config.depth
        ids, cited = (None if given is None else sequence(given, "ids or cited") for given in (ids, cited))
        slate = self._labelled(now, ids, labels, cited)
        source = None if source is None else str(check_id(source, "source"))
        if not 0 < len(slate) <= K:
            raise ValueError(f"ids: expected at least one and at most {K} (K), got {len(slate)}")
        unknown = [id for id, label in slate.items() if label is None]
        if self.critic is None and len(unknown) == len(slate):
            raise ValueError("labels: expected some, since the memory has no critic")
        if self.critic is not None and unknown:
            told = self._asker(query, unknown, now)(0, torch.arange(len(unknown))[None, None])
            slate |= zip(unknown, *as_labels(*told), strict=True)
        found = [one for one in (ids or []) + (cited or []) if isinstance(one, Found)]
        replaced = {one.id for one in found if now.memories[now.place(one.id)].text != one.text}
        return self._learn(query, [slate], now, source, replaced)

    def _labelled(self, now, ids, labels, cited):
        """Labels that a caller gives the memories that were shown, by id."""
        useful = [] if cited is None else self._named(cited)
        shown = useful if ids is None else self._named(ids)
        if cited is not None:
            if labels is not None or not set(useful) <= set(shown):
                raise ValueError("cited: expected some of the ids, and no labels beside them")
            labels = [id in useful for id in shown]
        said = [as_label(one) for one in sequence([None] * len(shown) if labels is None else labels, "labels")]
        if len(said) != len(shown):
            raise ValueError(f"labels: expected {len(shown)}, one an id, got {len(said)}")
        check_present(now, shown)
        return dict(zip(shown, said, strict=True))

    async def afeedback(self, *args: Any, **options: Any) -> int:
        """As `feedback`, in a thread of its own."""
        return await asyncio.to_thread(self.feedback, *args, **options)

    def reflect(self, query: str, namespace: str = "", where: Where | None = None) -> dict[Id, float]:
        """Exploratory Reflection: the critic judges the Explorer's T slates, then the adapter is updated once.

        Parameters
        ----------
        query, namespace, where : str, str and dict or callable
            As for `retrieve`.

        Returns
        -------
        dict
            Mean citation of each memory that was shown, -1 to 1, by its id.

        Raises
        ------
        TypeError, ValueError
            If the query is no string, the memory is empty or has no critic, or the critic's answer has another type,
            size or citation than -1 and 1.
        FloatingPointError
            If the adapter would diverge; it stays as it was.
        """
        now, vector, _, rows, side = self._search(query, namespace, where)
        if not len(rows):
            raise ValueError("reflect: nothing is remembered there; expected at least one memory")
        if self.critic is None:
            raise ValueError("critic: expected one, to be asked about the Explorer's slates")
        config = self.config.model_copy(update={"slate_size": min(self.config.slate_size, len(rows))})
        ids = [now.memories[row].id for row in rows.tolist()]
        scores, adapted, length = now.scores(query, vector, rows, side)
        similarity = gram(adapted, length, torch.arange(len(rows))[None, None])
        given = side.to(self.dtype).reshape(len(rows), now.sides)[None, None, :, 0] if config.side else None
        told = explore(config, scores, similarity, self._asker(query, ids, now), config.rounds, given)
        said = zip(told.slates[0, 0].tolist(), as_labels(told.citations, told.readable), strict=True)
        self._learn(query, [{ids[at]: label for at, label in zip(*one, strict=True)} for one in said], now)
        shown, cited = told.shown.flatten(), told.cited.flatten()
        return {ids[at]: float(cited[at] / shown[at]) for at in shown.nonzero().flatten().tolist()}

    def _named(self, given):
        """Ids of memories; other packages carry a number as text."""
        return [id if id in self else as_number(id) for id in check_ids(given)]

    def _vector(self, query):
        self._write.check_process()
        return self._encode.query(query)

    def _asker(self, query, ids, now):
        """`ask(t, slates)` of the Explorer, which asks the critic about places in a list of ids."""

        def ask(t, slates):
            shown = [ids[at] for at in slates.flatten().tolist()]
            replies = Replies(self._state, partial(self._keep, shown, now), self._folder and self._folder.path)
            labels = ask_critic(self.critic, query, [now.get(id).text for id in shown], replies)
            citations = torch.tensor(as_citations(labels)).view(slates.shape)
            return citations, citations != 0

        return ask

    def _keep(self, ids, then, key, fields):
        """Keep a model's reply about memories, unless one of them was removed or replaced meanwhile."""

        def change():
            if all(self._state.now.get(id) == then.get(id) for id in ids):
                self._change("answer", key=key, ids=ids, fields=fields)

        self._write(change)

    def _learn(self, query, slates, then, source=None, replaced=()):
        """Learn from the labels of some slates, by id; the number of memories that have one."""
        vector = self._vector(query)

        def change():
            # A memory may have been removed or replaced since it was shown: it becomes None, and so does its label.
            now, shown = self._state.now, {id for slate in slates for id in slate}
            kept = {id for id in shown.difference(replaced) if now.get(id) == then.get(id)}
            if kept:
                present = [[id if id in kept else None for id in slate] for slate in slates]
                labels = [[label if id in kept else None for id, label in slate.items()] for slate in slates]
                told = {"slates": present, "labels": labels, "source": source}
                told |= self._state.considered(query, vector, present)
                self._change("feedback", query=query, vector=vector, **told)
            return sum(any(slate.get(id) is not None for slate in slates) for id in kept)

        return self._write(change)
