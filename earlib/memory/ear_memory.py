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
import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from earlib import paths
from earlib.core.adapter import gram
from earlib.core.explorer import explore
from earlib.core.ordering import best
from earlib.data.encoders import sequence
from earlib.memory.critics import Replies
from earlib.memory.critics import ask as ask_critic
from earlib.memory.folder import Add, Answer, Feedback, Learning, Remove
from earlib.memory.snapshot import Found, Memory, check_present
from earlib.memory.stored_memory import FolderPath, StoredMemory
from earlib.memory.validation import (
    ID_TYPES,
    as_number,
    check_distinct,
    check_id,
    check_ids,
    check_label,
    check_memory_texts,
    check_metadata,
    check_text,
    check_where,
    check_whole_number,
    own_copy,
)
from earlib.memory.weights import WeightLearner

Id = int | str
Ids = list[Id]  # in the class, `list` is a method
Memories = list[Memory]
Ranked = list[Found]
Metadata = dict[str, Any]
Where = Metadata | Callable[[Memory], Any]


class EARMemory(StoredMemory):
    """Memories whose ranking learns from feedback, and is served only while it is better than before.

    Parameters
    ----------
    encoder : str, callable or object
        What `encoders.resolve` takes: a name, the folder of a sentence-transformers model, or OWNER/NAME@REVISION of
        the hub, without a revision where the registry has one ("sentence-transformers/all-MiniLM-L6-v2"). Or a
        callable `(texts) -> [n, d]`, or `(texts, kind) -> [n, d]` with kind "memory" or "query"; or the `Embeddings` of
        LangChain. `save` has these embed a sentence of its own, by which `load` recognises them. The last 1,000
        queries are not encoded again.
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
        Number of feedbacks that are kept, for replay by an adapter; the oldest is dropped first. Weights are learned
        from at most 500.
    features : callable, optional
        `(query, texts) -> [n, F]`: features of memories, of the order of one, whose weights are learned; default:
        `earlib.memory.plain_features`.
    context : str, optional
        Key of the metadata that tells sessions apart, as "session". Memories of one namespace with an equal value are
        each other's context, in the order of `list`, whatever was added between them: BM25 and cosine of the one
        before and of the one after have learned weights, from (0.2, 0.1) and (0.1, 0.1) on, and candidates come in by
        half of their BM25 too. Nothing is encoded for it. Where one is removed, its neighbours become each other's;
        one that is replaced comes last; what does not meet `where` is as if never added. A folder keeps the key.

    Raises
    ------
    TypeError, ValueError
        For another type, an unknown encoder or preset, a preset that learns a weight of words without looking for
        words, or a number that is too small.
    """

    def __len__(self) -> int:
        return self._state.now.size

    def __contains__(self, id: object) -> bool:
        return isinstance(id, ID_TYPES) and not isinstance(id, bool) and self._state.now.place(id) is not None

    @property
    def weight(self) -> float:
        """Weight of the score by words beside the adapter's; learned, from the configuration's start."""
        return float(self._state.now.weights[0])

    def ids(self) -> Ids:
        """List the ids of all memories, in the order in which they were added."""
        now = self._state.now
        return [now.memories[row].id for row in np.flatnonzero(now.space).tolist()]

    def get(self, id: Id) -> str:
        """Return the text of a memory; a ValueError if no memory has this id."""
        id, now = check_id(id), self._state.now
        check_present(now, [id], "id")
        return now.memories[now.place(id) or 0].text

    def add(
        self,
        texts: Sequence[str],
        ids: Sequence[Id] | None = None,
        namespace: str = "",
        metadata: Sequence[Metadata | None] | None = None,
    ) -> Ids:
        """Add memories.

        Parameters
        ----------
        texts : sequence of str
            Empty ones are memories too. Equal ones are memories of their own; they share an embedding and a score, and
            are retrieved in the order in which they were added.
        ids : sequence of int or str, optional
            Default: numbers that no memory has had. An id belongs to one memory of all namespaces, as a number or as
            its text.
        namespace : str
            Of a user or a conversation. What is learned from feedback is shared by all of them.
        metadata : sequence of dict, optional
            One a text, of what JSON can hold.

        Returns
        -------
        list
            Their ids.

        Raises
        ------
        TypeError, ValueError
            For another type, an id that is in use or comes twice, more or fewer ids or metadata than texts, or half of
            a surrogate pair, which no encoder and no file takes.
        """
        return self._add(texts, None if ids is None else check_ids(ids), namespace, metadata, replace=False)

    def upsert(
        self,
        texts: Sequence[str],
        ids: Sequence[Id],
        namespace: str = "",
        metadata: Sequence[Metadata | None] | None = None,
    ) -> Ids:
        """Add memories, in the place of those that have their ids, in one change; parameters as for `add`.

        A replaced memory keeps its time of creation. It comes last in the order from then on, and feedback on what it
        was is forgotten as by `remove`. An id of another namespace is refused.
        """
        return self._add(texts, check_ids(ids), namespace, metadata, replace=True)

    def _add(self, texts, given, namespace, metadata, replace):
        self._write.check_process()
        texts, namespace = check_memory_texts(texts), check_text(namespace, "namespace")
        if given is not None and len(given) != len(texts):
            raise ValueError(f"ids: expected {len(texts)}, one a text, got {len(given)}")
        check_distinct([as_number(id) for id in given or ()])
        about = {"namespace": namespace, "metadata": check_metadata(metadata, len(texts)), "replace": replace}
        if not texts:
            return []
        place = {text: at for at, text in enumerate(dict.fromkeys(texts))}
        vectors = self._encode.memories(list(place), self._state.now)

        def change():
            self._state.now.copy_stored(list(place), vectors)  # another thread may have added the same texts meanwhile
            ids = list(range(self._state.next, self._state.next + len(texts)) if given is None else given)
            for id in given or ():
                one, twin = self._state.now.get(id), str(id) if isinstance(id, int) else as_number(id)
                if replace and one and one.namespace != namespace:
                    raise ValueError(f"ids: {id!r} is in use in another namespace; expected another id, or remove it")
                if not one and twin in self:  # other packages carry both as one text
                    raise ValueError(f"ids: {id!r} is in use as {twin!r}; expected another id, or that")
            each, times = vectors[[place[text] for text in texts]], [time.time()] * len(texts)
            self._change(Add(texts=texts, ids=ids, vectors=each, times=times, **about))
            return ids

        return self._write(change)

    def remove(self, ids: Iterable[Id | Memory | Found]) -> None:
        """Remove memories; they drop out of what is replayed too, and a model's replies about them are forgotten.

        In a folder their texts remain until the next snapshot is written, after some hundred changes or by `save`.

        Parameters
        ----------
        ids : sequence of int, str, Memory or Found

        Raises
        ------
        TypeError, ValueError
            For an id of another type, that no memory has or that comes twice; none is removed then.
        """
        gone = self._named(list(ids) if isinstance(ids, (set, frozenset)) else ids)  # in any order
        if gone:
            self._write(lambda: self._change(Remove(ids=gone)))

    def retrieve(self, query: str, k: int = 5, namespace: str = "", where: Where | None = None) -> Ranked:
        """Return the memories that are ranked first for a query; no critic calls, and nothing changes.

        The K candidates of the configuration are ranked. Where more are wanted, others follow behind them in the order
        of the first stage, with scores that are at most those before them: what comes first does not depend on how many
        are asked for.

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
            If the query is no string or holds half of a surrogate pair, or k is no whole number from 1 on.
        RuntimeError
            In a process that was forked from the memory's.
        """
        query, k, now = check_text(query, "query"), check_whole_number(k, "k", 1), self._state.now
        scope = now.scope(check_text(namespace, "namespace"), check_where(where))
        size = int(np.count_nonzero(scope))
        if not size:
            return []
        vector = self._vector(query)
        rows, side = now.candidates(query, vector, self.config.depth, self.by_words, scope)
        scores = now.scores(query, vector, rows, side)[0].flatten()
        order = best(scores, k)
        rows, scores = rows[order], scores[order]
        if len(rows) < min(k, size):
            more, side = now.candidates(query, vector, k, self.by_words, scope)
            new = torch.isin(more, rows, invert=True).nonzero().flatten()[: k - len(rows)]
            more, side = more[new], side[new]
            # Scored apart: a product of another size may round differently, and change what comes first.
            scores = torch.cat([scores, now.scores(query, vector, more, side)[0].flatten()]).cummin(0).values
            rows = torch.cat([rows, more])
        found = (own_copy(now.memories[row]) for row in rows.tolist())
        return [Found(one.id, one.text, score, *one[2:]) for one, score in zip(found, scores.tolist(), strict=True)]

    async def aretrieve(self, *args: Any, **options: Any) -> Ranked:
        """As `retrieve`, in a thread of its own."""
        return await asyncio.to_thread(self.retrieve, *args, **options)

    def candidates(self, query: str, namespace: str = "", where: Where | None = None) -> Ids:
        """List the ids of the K candidates that are ranked for a query, in the order of the first stage."""
        query, now = check_text(query, "query"), self._state.now
        scope = now.scope(check_text(namespace, "namespace"), check_where(where))
        if not scope.any():
            return []
        rows, _ = now.candidates(query, self._vector(query), self.config.depth, self.by_words, scope)
        return [now.memories[row].id for row in rows.tolist()]

    def feedback(
        self,
        query: str,
        ids: Sequence[Id | Found] | None = None,
        labels: Sequence[Any] | None = None,
        source: str | None = None,
        cited: Sequence[Id | Found] | None = None,
    ) -> int:
        """Learn which memories were useful for a query: one update, made as a whole or not at all.

        Where none is labelled as not useful, what stands first and is not among the useful ones is the other side, in
        the namespaces of what was shown.

        Parameters
        ----------
        query : str
        ids : sequence of int, str or Found
            Memories that were shown, whether retrieved or not; at most K. What `retrieve` returned and `upsert` has
            replaced since is not judged.
        labels : sequence, optional
            True or 1 for a useful one, False, 0 or -1 for another; None where the critic is asked. Left out, the critic
            is asked about all. A memory without a label from either counts as not judged.
        source : str, optional
            Who says so. Of each source that is named only the newest 10 feedbacks count for the learned weights.
        cited : sequence of int, str or Found, optional
            In place of labels: those of the `ids` that were useful, and no others were. Without `ids` it is not known
            what else was shown.

        Returns
        -------
        int
            Number of memories with a label. One removed or replaced while the critic answered is not among them.

        Raises
        ------
        TypeError, ValueError
            For another type, an id that no memory has or that comes twice, none or more ids than K, more or fewer
            labels than ids, another label or citation, or where there are neither labels nor a critic.
        FloatingPointError
            If the adapter would diverge; it stays as it was.
        """
        query, now = check_text(query, "query"), self._state.now
        replaced = {
            one.id for one in (*_found(ids), *_found(cited)) if (held := now.get(one.id)) and held.text != one.text
        }
        if cited is not None:
            useful = self._named(cited, "cited")
            ids = useful if ids is None else self._named(ids)
            if labels is not None or not set(useful) <= set(ids):
                raise ValueError("cited: expected some of the ids, and no labels beside them")
            labels = [id in useful for id in ids]
        shown = self._named([] if ids is None else ids)
        source = None if source is None else str(check_id(source, "source"))
        check_present(now, shown)
        if not shown:
            raise ValueError("ids: expected at least one")
        if len(shown) > self.config.depth:
            raise ValueError(f"ids: expected at most {self.config.depth} (K), got {len(shown)}")
        said = [check_label(one) for one in sequence([None] * len(shown) if labels is None else labels, "labels")]
        if len(said) != len(shown):
            raise ValueError(f"labels: expected {len(shown)}, one an id, got {len(said)}")
        if all(label is None for label in said) and self.critic is None:
            raise ValueError("labels: expected some, since the memory has no critic")
        unknown = [at for at, label in enumerate(said) if label is None]
        if unknown and self.critic is not None:
            ask = self._asker(query, [shown[at] for at in unknown], now)
            citations, readable = ask(0, torch.arange(len(unknown))[None, None])
            told = torch.where(readable, citations, 0).flatten().tolist()
            for at, citation in zip(unknown, told, strict=True):
                said[at] = citation > 0 if citation else None
        return self._learn(query, [shown], [said], now, source, replaced)

    async def afeedback(self, *args: Any, **options: Any) -> int:
        """As `feedback`, in a thread of its own."""
        return await asyncio.to_thread(self.feedback, *args, **options)

    def reflect(self, query: str, namespace: str = "", where: Where | None = None) -> dict[Id, float]:
        """Exploratory Reflection: the critic judges the Explorer's T slates, then the adapter is updated once.

        Parameters
        ----------
        query : str
        namespace, where : str and dict or callable
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
        query, now, config = check_text(query, "query"), self._state.now, self.config
        scope = now.scope(check_text(namespace, "namespace"), check_where(where))
        if not scope.any():
            raise ValueError("reflect: nothing is remembered there; expected at least one memory")
        if self.critic is None:
            raise ValueError("critic: expected one, to be asked about the Explorer's slates")
        vector = self._vector(query)
        rows, side = now.candidates(query, vector, config.depth, self.by_words, scope)
        ids = [now.memories[row].id for row in rows.tolist()]
        scores, adapted, length = now.scores(query, vector, rows, side)
        similarity = gram(adapted, length, torch.arange(len(rows))[None, None])
        ask = self._asker(query, ids, now)
        config = config.model_copy(update={"slate_size": min(config.slate_size, len(rows))})
        given = side.to(self.dtype).reshape(len(rows), now.sides)[None, None, :, 0] if config.side else None
        told = explore(config, scores, similarity, ask, config.rounds, given)
        slates = [[ids[at] for at in slate] for slate in told.slates[0, 0].tolist()]
        labels = torch.where(told.readable, told.citations, 0)[0, 0].tolist()
        self._learn(query, slates, [[label > 0 if label else None for label in one] for one in labels], now)
        shown, cited = told.shown.flatten(), told.cited.flatten()
        return {ids[at]: float(cited[at] / shown[at]) for at in shown.nonzero().flatten().tolist()}

    def list(self, namespace: str | None = None, where: Where | None = None) -> Memories:
        """List memories in the order in which they were added: those of a namespace, by default of all.

        Parameters
        ----------
        namespace : str, optional
        where : dict or callable, optional
            As for `retrieve`.

        Returns
        -------
        list of Memory
        """
        now = self._state.now
        scope = now.scope(None if namespace is None else check_text(namespace, "namespace"), check_where(where))
        return [own_copy(now.memories[row]) for row in np.flatnonzero(scope).tolist()]

    def export(self, path: FolderPath, namespace: str | None = None, where: Where | None = None) -> None:
        """Write memories into a file of JSON lines, each an object with the fields of `Memory`; as for `list`."""
        file = Path(path).expanduser()
        if self._folder and file.resolve().parent == self._folder.path.resolve():
            raise ValueError(f"{file}: the folder holds the memory itself; name a file outside it")
        lines = [json.dumps(one._asdict(), ensure_ascii=False) + "\n" for one in self.list(namespace, where)]
        paths.write_atomically(file, "".join(lines))

    def reset_learning(self) -> None:
        """Forget all that was learned from feedback; the memories stay, and so do snapshots."""
        self._write(lambda: self._change(Learning(action="reset")))

    def keep_learning(self, name: str) -> None:
        """Keep a snapshot of what was learned so far, in the memory and its folder; an earlier one of the name goes."""
        self._write(lambda: self._change(Learning(action="keep", name=check_text(name, "name"))))

    def restore_learning(self, name: str) -> None:
        """Go back to what `keep_learning` kept under a name; a ValueError if there is no such snapshot."""
        self._write(lambda: self._change(Learning(action="restore", name=check_text(name, "name"))))

    def stats(self) -> dict[str, Any]:
        """Tell how much was learned from, and how well.

        Returns
        -------
        dict
            Numbers of `memories`, `namespaces` and `feedbacks`, and names of `snapshots`. With learned weights also
            which ranking is `served`; on how many of the last hundred feedbacks that count both were `tested`; what
            share of the pairs of a useful memory and another one was in the `right` order by each, "learned" and "at
            first"; and the learned `weights`: of words, with context of words before and after and of cosine before and
            after, and of the features.
        """
        return self._write(self._stats)

    def _stats(self):
        state = self._state
        told = {"memories": state.now.size, "namespaces": len(np.unique(state.now.space[state.now.alive]))}
        told |= {"feedbacks": state.learner.known, "snapshots": list(state.kept)}
        return told | (state.learner.record() if isinstance(state.learner, WeightLearner) else {})

    def _named(self, given, name="ids"):
        """Ids of memories; other packages carry a number as text."""
        ids = check_ids(given, name)
        return [id if id in self else as_number(id) for id in ids]

    def _vector(self, query):
        self._write.check_process()
        return self._encode.query(query)

    def _asker(self, query, ids, now):
        """`ask(t, slates)` of the Explorer, which asks the critic about places in a list of ids."""

        def ask(t, slates):
            shown = [ids[at] for at in slates.flatten().tolist()]
            keep = partial(self._keep, shown, now)
            replies = Replies(self._state, keep, self._folder.path if self._folder else "the memory")
            labels = ask_critic(self.critic, query, [now.memories[now.place(id)].text for id in shown], replies)
            citations = torch.tensor([0 if label is None else 2 * label - 1 for label in labels]).view(slates.shape)
            return citations, citations != 0

        return ask

    def _is_as_in(self, then, id):
        """Tell whether a memory that was shown has neither been removed nor replaced since."""
        return self._state.now.get(id) == then.get(id)

    def _keep(self, ids, then, key, fields):
        """Keep a model's reply about memories, unless one of them was removed or replaced meanwhile."""

        def change():
            if all(self._is_as_in(then, id) for id in ids):
                self._change(Answer(key=key, ids=ids, fields=fields))

        self._write(change)

    def _learn(self, query, slates, labels, then, source=None, replaced=()):
        """Learn from the labels of some slates; the number of memories that have one."""
        vector = self._vector(query)

        def change():
            # A memory may have been removed or replaced since it was shown: it becomes None, and so does its label.
            kept = {id for id in sum(slates, []) if id not in replaced and self._is_as_in(then, id)}
            present = [[id if id in kept else None for id in slate] for slate in slates]
            known = [
                [label if id is not None else None for id, label in zip(*pair, strict=True)]
                for pair in zip(present, labels, strict=True)
            ]
            if any(id is not None for slate in present for id in slate):
                told = {"slates": present, "labels": known, "source": source}
                told |= self._state.considered(query, vector, present)
                self._change(Feedback(query=query, vector=vector, **told))
            pairs = zip(sum(present, []), sum(known, []), strict=True)
            return len({id for id, label in pairs if label is not None})

        return self._write(change)


def _found(given):
    """What `retrieve` returned, among ids."""
    return [one for one in given if isinstance(one, Found)] if isinstance(given, (list, tuple)) else []
