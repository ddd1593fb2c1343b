"""The live memory: the same algorithm as the batched learner, memories that come and go, threads, kills, the disk."""

import asyncio
import atexit
import contextlib
import copy
import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

import bm25s
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from scripted_server import ScriptedServer, says

from earlib.core import randomness
from earlib.core.config import Config
from earlib.core.critic import SimulatedCritic
from earlib.core.learner import Learner
from earlib.data.candidates import Candidates
from earlib.data.words import Words, content_words
from earlib.llm.client import Client
from earlib.memory import (
    PRESETS,
    EARMemory,
    Preset,
    by_model,
    encoding,
    folder,
    state,
    stored_memory,
    validation,
    writer,
)
from earlib.memory.context import beside
from earlib.memory.online import ABSENT

WIDTH = 24
KILLS = int(os.environ.get("EARLIB_TEST_KILLS", 8))
ADJECTIVES = ["red", "green", "old", "quiet", "wooden", "café", "日本", "heavy"]
NOUNS = ["cello", "garden", "letter", "river", "nut", "garage", "window", "song"]


def text(number):
    return f"{ADJECTIVES[number % 8]} {NOUNS[number // 8 % 8]} number{number % 5}"


def encoder(texts, kind):
    """Embeddings that depend on the words: a sum of a vector for each, and some noise of its own for the whole text."""

    def vector(content):
        return np.random.default_rng(zlib.crc32(content.encode())).normal(size=WIDTH)

    made = [sum((vector(word) for word in one.split()), 0.3 * vector(one)) for one in texts]
    return np.array(made, np.float32).reshape(len(texts), WIDTH)


def preset(name="adapter", **changes):
    config = PRESETS[name].config.model_copy(update=changes)
    return PRESETS[name]._replace(config=config)


def made(count=150, name="adapter", dtype=torch.float32, kind=EARMemory, **options):
    held = kind(encoder, name, dtype=dtype, **options)
    held.add([text(number) for number in range(count)])
    return held


def told(held, count=12, start=0):
    """Some feedback about texts that the memory holds; every third memory that is returned was useful."""
    for number in range(start, start + count):
        shown = held.retrieve(text(number) + "?")
        held.feedback(text(number) + "?", [one.id for one in shown], [number % 3 == at % 3 for at in range(len(shown))])


def answers(held, count=20):
    return [[one[:3] for one in held.retrieve(text(number) + "!", 7)] for number in range(count)]


def edit_snapshot(path, *statements, **changes):
    """Change the database of a folder by SQL, and fields of its state, None to take one away; its checksums fit."""
    with contextlib.closing(sqlite3.connect(path / "memory.sqlite")) as database:
        plain = json.loads(database.execute("SELECT plain FROM state").fetchone()[0]) | changes
        plain = json.dumps({name: value for name, value in plain.items() if value is not None or name not in changes})
        for statement in statements:
            database.execute(*statement)
        memories, tensors = (database.execute(query).fetchall() for query in (folder.MEMORIES, folder.TENSORS))
        version = database.execute("PRAGMA user_version").fetchone()[0]
        stored = folder.snapshot_checksum(plain, memories, tensors, version)
        database.execute("UPDATE state SET plain = ?, sha256 = ?", (plain, stored))
        for number, *values in database.execute("SELECT number, kind, plain, arrays FROM changes").fetchall():
            database.execute("UPDATE changes SET sha256 = ? WHERE number = ?", (folder.checksum(*values), number))
        database.commit()


# -- words -------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([*NOUNS, "the", "a", "x"]), max_size=6).map(" ".join), min_size=1, max_size=12),
    st.lists(st.sampled_from([*NOUNS, "unheard"]), min_size=1, max_size=5).map(" ".join),
    st.data(),
)
def test_words_score_as_the_package_does_however_they_were_added_and_whatever_is_gone(texts, question, data):
    alive = np.array(data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts))))
    cut = data.draw(st.integers(0, len(texts)))
    index = Words()
    index.append(texts[:cut])
    index.append(texts[cut:])
    index.append(["cello garden"])  # of a later writer: a reader that began before does not see it
    assert content_words(texts) == bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False)
    kept = [one for one, living in zip(texts, alive, strict=True) if living]
    expected = np.zeros(len(texts), np.float32)
    if any(content_words(kept)) if kept else False:
        plain = bm25s.BM25()
        plain.index(content_words(kept), show_progress=False)
        known = [word for word in content_words([question])[0] if word in plain.vocab_dict]
        if known:
            expected[alive] = plain.get_scores(known)
    assert np.array_equal(index.scores(question, alive), expected)
    rows = np.flatnonzero(alive)
    moved = index.of_rows(rows)
    assert np.array_equal(moved.scores(question, np.ones(len(rows), bool)), index.scores(question, alive)[rows])
    moved.append(texts[:1])  # goes on as an index of its own
    index.append(["garden"])
    again = Words()
    again.append([*kept, texts[0]])
    every = np.ones(len(rows) + 1, bool)
    assert np.array_equal(moved.scores(question, every), again.scores(question, every))


# -- the same algorithm ------------------------------------------------------------------------------------------------


def batched(held, config, queries):
    """The candidates of some queries in the memory, as the experiments hold them."""
    now = held._state.now
    ids = tuple(str(one.id) for one in now.memories)
    vectors = held._encode(queries, "query")
    found = [now.candidates(*one, config.depth, held.by_words, now.alive) for one in zip(queries, vectors, strict=True)]
    index, side = (torch.stack(parts) for parts in zip(*found, strict=True))
    gold = torch.rand(index.shape, generator=torch.Generator().manual_seed(1)) < 0.2
    names = tuple(map(str, range(len(queries))))
    return Candidates(
        torch.from_numpy(vectors), now.bank.float(), index, gold, gold.sum(1), names, ids, names,
        names, side=side if held.by_words else None,
    )  # fmt: skip


class Simulated(EARMemory):
    """A memory whose critic is one of the core, `critic(query)`, and draws from the memory's own numbers."""

    def _asker(self, query, ids, now):
        uniforms = randomness.live(self.config, self.seed, self._state.learner.known, self.config.depth).critic
        return lambda t, slates: self.critic(query)(torch.zeros(1, 1).long(), slates, uniforms[:, :, t])


@pytest.mark.parametrize("name", ["adapter", "paper"])
@pytest.mark.parametrize(
    "changes",
    [
        {}, {"unseen": "left out"}, {"replay_choice": "reward"}, {"replay_choice": "random"}, {"replay_size": 0},
        {"adapter": "low-rank", "rank": 4}, {"optimizer": "sgd", "learning_rate": 0.1}, {"normalise": False},
    ],
    ids=str,
)  # fmt: skip
def test_it_learns_what_the_batched_learner_learns(name, changes):
    used = preset(name, depth=20, **changes)
    queries = [text(number) + "?" for number in range(25)]
    held = made(name=used, dtype=torch.float64, kind=Simulated)
    found = batched(held, used.config, queries)
    place = {query: number for number, query in enumerate(queries)}
    held.critic = lambda query: SimulatedCritic(used.config, found.gold[place[query]][None])
    parts = [randomness.live(used.config, 0, number, 20) for number in range(len(queries))]
    uniforms = randomness.Uniforms(*(None if one[0] is None else torch.cat(one, 1) for one in zip(*parts, strict=True)))
    learner = Learner(used.config, found, SimulatedCritic(used.config, found.gold), (0,), torch.float64)
    order = torch.arange(len(queries))[None]
    for query, step in zip(queries, learner.train(order, uniforms), strict=True):
        held.reflect(query)
        assert held._state.learner.buffer.cited[0, step.seen - 1].equal(learner.buffer.cited[0, step.seen - 1])
    for mine, theirs in zip(held._state.learner.parameters, learner.parameters, strict=True):
        assert mine.detach() == pytest.approx(theirs.detach(), rel=1e-6, abs=1e-10)
        assert mine.abs().max() > 0
    slates = learner.retrieve(order)[0]
    for number, query in enumerate(queries):
        assert [one.id for one in held.retrieve(query)] == (found.index[number, slates[number]] - 1).tolist()


def test_feedback_on_all_candidates_is_an_update_on_all_candidates():
    used = preset(depth=12, training_slates="all", rounds=1, precision=100.0, recall=100.0)
    queries = [text(number) + "?" for number in range(10)]
    held = made(name=used, dtype=torch.float64)
    found = batched(held, used.config, queries)
    learner = Learner(used.config, found, SimulatedCritic(used.config, found.gold), (0,), torch.float64)
    for number, (query, _) in enumerate(zip(queries, learner.train(torch.arange(10)[None]), strict=True)):
        held.feedback(query, (found.index[number] - 1).tolist(), found.gold[number].numpy())
    for mine, theirs in zip(held._state.learner.parameters, learner.parameters, strict=True):
        assert mine.detach() == pytest.approx(theirs.detach(), rel=1e-6, abs=1e-10)


def test_it_gets_better_on_what_it_was_told():
    held = made(name=preset(learning_rate=1e-3))
    query = text(3) + "?"
    wanted = held.retrieve(query, 10)[8].id
    for _ in range(30):
        held.feedback(query, [wanted], [True])
    assert held.retrieve(query, 1)[0].id == wanted
    before = held.retrieve(query, 10)
    for _ in range(30):
        held.feedback(query, [wanted, before[1].id], [-1, 1])
    assert held.retrieve(query, 1)[0].id == before[1].id


# -- memories come and go ----------------------------------------------------------------------------------------------


def test_the_first_stage_is_the_fusion_of_two_plain_rankings():
    held = made(200, preset(depth=10))
    now, query = held._state.now, text(5) + " garden"
    vector = held._encode([query], "query")[0]
    rows, side = now.candidates(query, vector, 10, True, now.alive)
    cosine = now.bank.double().numpy() @ vector.astype(np.float64)
    by_words = now.words.scores(query, now.alive)
    dense = sorted(range(1, 201), key=lambda row: (-np.float32(cosine[row]), row))[:40]
    wordy = sorted((row for row in range(1, 201) if by_words[row] > 0), key=lambda row: (-by_words[row], row))[:40]
    fused = {}
    for ranking in (dense, wordy):
        for rank, row in enumerate(ranking, 1):
            fused[row] = fused.get(row, 0) + 1 / (60 + rank)
    assert held.candidates(query) == [row - 1 for row in rows.tolist()] and EARMemory(encoder).candidates("x") == []
    assert rows.tolist() == sorted(fused, key=lambda row: (-fused[row], row))[:10]
    assert side.numpy() == pytest.approx(by_words[rows] / by_words[rows].max())


def test_removed_memories_drop_out_of_what_is_replayed():
    held = made(60, preset(depth=10))
    query = text(1) + "?"
    first, second = (one.id for one in held.retrieve(query, 2))
    held.feedback(query, [first, second], [True, True])
    held.remove([first])
    scores = held._state.learner._score(torch.tensor([[0]]))[0]
    gone = held._state.learner.index[0] == first + 1
    assert (scores[0, 0] == ABSENT).tolist() == gone.tolist() and gone.sum() == 1
    held.remove([second])
    before = held._state.learner.adapter.parameters[0].detach().clone()
    held._state.learner.optimizer.state.clear()  # no momentum
    other = text(2) + "?"
    held.feedback(other, [held.retrieve(other, 1)[0].id], [False])  # nothing useful, and of what was nothing is left
    assert held._state.learner.adapter.parameters[0].equal(before)


def test_moving_memories_together_changes_nothing(monkeypatch):
    used = preset(depth=10)
    kept, moved = made(120, used), made(120, used)
    for held in (kept, moved):
        told(held, 8)
        monkeypatch.setattr(state, "SPARSE", 10 if held is moved else 10**9)
        held.remove(range(0, 120, 2))
        held.remove(range(1, 40, 2))
    assert len(moved._state.now.alive) < len(kept._state.now.alive) and len(moved) == len(kept)
    assert answers(moved) == answers(kept)
    for held in (kept, moved):
        told(held, 8, start=20)
        held.add(["something new"])
    first, second = answers(moved), answers(kept)
    assert [[one[0] for one in line] for line in first] == [[one[0] for one in line] for line in second]
    for mine, theirs in zip(kept._state.learner.parameters, moved._state.learner.parameters, strict=True):
        assert mine.detach() == pytest.approx(theirs.detach(), abs=1e-5)


def test_a_memory_that_was_emptied_goes_on(monkeypatch):
    monkeypatch.setattr(state, "SPARSE", 10)
    held = made(30)
    told(held, 3)
    held.remove(range(30))
    assert held.retrieve("garden") == [] and len(held) == 0 and len(held._state.now.alive) == 1
    assert held.add(["a red garden"]) == [30]
    held.feedback("garden", [30], [True])  # what is replayed has lost all its memories
    assert [one.text for one in held.retrieve("garden")] == ["a red garden"]


def test_edges_of_the_interface():
    held = EARMemory(encoder)
    assert held.retrieve("anything") == [] and len(held) == 0 and held.add([]) == []
    ids = held.add(["one", "one", '日本 ✓ "quoted"\n\u2028'])
    assert ids == [0, 1, 2]
    assert [one.id for one in held.retrieve("one", 99)] == [0, 1, 2]  # equal texts in their order
    assert held.add(["named"], ["a name"]) == ["a name"] and held.add(["far"], [10]) == [10]
    assert held.add(["next"]) == [11]
    held.remove([11])
    assert held.add(["after"]) == [12]  # an id is never given twice
    held.feedback("one", [1, 0], [True, None])
    held.feedback("one", [np.int64(1), 0], np.array([1, -1]))
    held.feedback("unheard of", ["a name"], [True])


def noisy(texts, kind):
    """An encoder whose rounding depends on the batch, and on the place in it."""
    rng = np.random.default_rng(len(texts))
    return encoder(texts, kind) * (1 + 1e-3 * rng.normal(size=(len(texts), WIDTH)).astype(np.float32))


@pytest.mark.parametrize("name", ["best", "paper"])
@pytest.mark.parametrize("batches", [[3], [60], [1, 7, 20, 2, 30], [20, 20, 20]])
def test_equal_texts_come_in_the_order_in_which_they_were_added(tmp_path, batches, name):
    held, count = EARMemory(noisy, name), sum(batches)
    for at, size in enumerate(batches):
        held.add([f"other {at}", *(size * ["the cello is loud"]), f"another {at}"])
    held.save(tmp_path)
    equal = [id for id in held.ids() if held.get(id) == "the cello is loud"]
    for one in (held, EARMemory.load(copied(tmp_path), encoder)):
        found = [one for one in one.retrieve("the cello?", len(held)) if one.text == "the cello is loud"]
        assert [one.id for one in found] == equal and len({one.score for one in found[:50]}) == 1
        assert len(found) == count
        one.close()


def copied(path):
    shutil.copytree(path, path / "copy")
    return path / "copy"


def test_a_text_is_encoded_once():
    asked = []

    def counted(texts, kind):
        asked.extend(texts if kind == "memory" else [])
        return noisy(texts, kind)

    held = EARMemory(counted)
    held.add(["a", "b", "a", "c", "b"])
    assert held.add(["c", "d", "a"]) == [5, 6, 7] and asked == ["a", "b", "c", "d"]
    held.remove([0, 2, 7])
    held.add(["a"])  # its embedding is still there
    assert asked == ["a", "b", "c", "d"]
    now = held._state.now
    for text in "abcd":
        rows = [row for row, one in enumerate(now.memories) if one.text == text]
        assert (now.bank[rows] == now.bank[rows[0]]).all()


def test_a_question_is_encoded_once_for_its_retrieval_feedback_and_reflection(monkeypatch):
    asked = []

    def counted(texts, kind):
        asked.extend(texts if kind == "query" else [])
        return encoder(texts, kind)

    def all_useful(query, texts):
        return [True for _ in texts]

    monkeypatch.setattr(encoding, "QUESTIONS", 2)
    held = EARMemory(counted, critic=all_useful)
    held.add([text(number) for number in range(30)])
    for query in ("river", "song", "river"):
        shown = held.retrieve(query)
        held.feedback(query, [one.id for one in shown], [True] * len(shown))
        held.reflect(query)
    assert asked == ["river", "song"]
    held.retrieve("nut")  # the one that was not asked for longest has to make room
    assert held.retrieve("river") and held.retrieve("song") and asked == ["river", "song", "nut", "song"]


def labelled(held, number=0):
    """Sums of the citations of an experience, by memory."""
    index, cited = held._state.learner.index[number].tolist(), held._state.learner.buffer.cited[0, number].tolist()
    return {row - 1: citation for row, citation in zip(index, cited, strict=True) if row}


def test_the_callers_labels_win_over_the_critics():
    asked = []

    def critic(query, texts):
        asked.append(texts)
        return [True, False, None]  # the third cannot be read

    held = made(40, critic=critic)
    shown = [one.id for one in held.retrieve("garden", 5)]
    held.feedback("garden", shown, [False, None, True, None, None])
    assert asked == [[held.get(shown[at]) for at in (1, 3, 4)]]
    said = labelled(held)
    assert [said[id] for id in shown] == [-1, 1, 1, -1, 0]


# -- namespaces, metadata, keys ----------------------------------------------------------------------------------------


def about_cellos(memory):
    return "cello" in memory.text


@pytest.mark.parametrize("name", ["best", "paper"])
@pytest.mark.parametrize("where", [None, {"kind": "a"}, {"kind": "a", "n": 1}, about_cellos], ids=range(4))
@pytest.mark.parametrize("spaces", [1, 2, 12])
def test_what_lies_outside_a_search_is_as_if_it_had_never_been_there(name, where, spaces):
    """Cosine and BM25 see the namespace and what meets the condition alone, whether it is much or little of all."""
    held, bare = EARMemory(encoder, name), EARMemory(encoder, name)
    for number in range(120):
        about = {"kind": "ab"[number % 2], "n": number % 3}
        held.add([text(number)], namespace=str(number % spaces), metadata=[about])
        (added,) = held.list()[-1:]
        if added.namespace == "0" and (
            where is None or (where(added) if callable(where) else where.items() <= about.items())
        ):
            bare.add([text(number)], [number])
    for number in range(8):
        found = held.retrieve(text(number) + "!", 9, "0", where)
        assert [one[:3] for one in found] == [one[:3] for one in bare.retrieve(text(number) + "!", 9)]
        assert held.candidates(text(number), "0", where) == bare.candidates(text(number))
    assert held.retrieve("cello") == [] == held.retrieve("cello", namespace="another")
    assert [one.id for one in held.list("0", where)] == bare.ids()


def test_what_one_namespace_teaches_holds_for_all():
    held, other = EARMemory(encoder), EARMemory(encoder)
    for one in (held, other):
        for space in "ab":
            songs = [f"a song number{number}" + " of a long day by the river" * (number % 2) for number in range(40)]
            one.add(songs, namespace=space)
    for number in range(30):
        query = f"which song is number{number}?"
        for one, space in ((held, "a"), (other, "b")):
            shown = one.retrieve(query, 5, space)
            one.feedback(query, shown, cited=[memory for memory in shown if "long" in memory.text])
    assert held.stats()["served"] == "learned" and held.stats()["weights"] == pytest.approx(other.stats()["weights"])


def test_upsert_is_one_change_under_a_key(tmp_path):
    held = EARMemory(encoder)
    held.add(["a red cello", "a nut"], ["a", "b"], "user", [{"n": 1}, None])
    held.save(tmp_path)
    before = held.list()
    about = [{"n": [2, {"deep": True}]}, None]
    assert held.upsert(["a green garden", "a river"], ["a", "c"], "user", about) == ["a", "c"]
    assert kept(tmp_path) == ["add"] and held.ids() == ["b", "a", "c"]
    first = held.list(where={"n": [2, {"deep": True}]})
    assert first == [("a", "a green garden", "user", {"n": [2, {"deep": True}]}, before[0].created_at)]
    first[0].metadata["n"].append("of the caller's copy")
    held.list()[0].metadata["new"] = 1
    held.feedback("a garden", ["a", "b"], [True, False])
    held.remove(["b"])
    held.add(["a nut"], ["b"], "another")
    every, ranked = held.list(), held.retrieve("a garden", 3, "user")
    assert [one.id for one in ranked] == ["a", "c"]
    assert every[-1].namespace == "another" and every[-1].created_at > before[1].created_at
    held.close()
    with EARMemory.load(tmp_path, encoder) as again:
        assert again.list() == every and again.retrieve("a garden", 3, "user") == ranked
        again.save(tmp_path)
        again.export(tmp_path.parent / "memories.jsonl", "user")
    with EARMemory.load(tmp_path, encoder) as again:
        assert again.list() == every and again.retrieve("a garden", 3, "user") == ranked
    lines = (tmp_path.parent / "memories.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [one._asdict() for one in every if one.namespace == "user"]


def test_conditions_are_of_json_and_given_copies(tmp_path):
    held = EARMemory(encoder)
    held.add(["a cello"], metadata=[{"tags": (1, [2])}])
    assert held.list(where={"tags": (1, (2,))}) == held.list(where=lambda one: one.metadata["tags"].pop()) != []
    held.export(tmp_path / "kept")
    with pytest.raises(TypeError, match="namespace"):
        held.export(tmp_path / "kept", namespace=1)
    assert json.loads((tmp_path / "kept").read_text(encoding="utf-8"))["metadata"] == {"tags": [1, [2]]}


def test_a_folder_without_namespaces_opens_as_one_namespace(tmp_path):
    """As version 3 wrote it: a checksum of three columns, and changes without the newer fields."""
    with made(20) as held:
        held.save(tmp_path)
        held.add(["later"])
        before = answers(held)
    gone = ', "namespace": "", "metadata": [], "replace": false'
    edit_snapshot(tmp_path, ("PRAGMA user_version = 3",), (f"UPDATE changes SET plain = replace(plain, '{gone}', '')",))
    with EARMemory.load(tmp_path, encoder) as again:
        assert answers(again) == before and {one.namespace for one in again.list()} == {""}
        again.add(["more"], namespace="a", metadata=[{"n": 1}])
    with EARMemory.load(tmp_path, encoder) as again:
        assert [one.text for one in again.list("a", {"n": 1})] == ["more"]
        again.save(tmp_path)
    EARMemory.load(tmp_path, encoder).close()


def test_feedback_takes_what_was_retrieved_and_what_of_it_was_cited():
    held, other = made(40), made(40)
    shown = held.retrieve("red cello")
    assert held.feedback("red cello", shown, cited=[shown[1], shown[3].id]) == 5
    assert other.feedback("red cello", [one.id for one in shown], [at in (1, 3) for at in range(5)]) == 5
    assert held.feedback("river", cited=[7]) == 1 == other.feedback("river", [7], [True])
    assert answers(held) == answers(other)
    held.remove(shown[:2])
    assert shown[0].id not in held


def test_the_async_calls_are_the_plain_ones():
    async def life(held):
        shown = await held.aretrieve("red cello", k=3)
        count = await held.afeedback("red cello", shown, cited=shown[:1])
        return shown, count

    held = made(40)
    expected = held.retrieve("red cello", 3)
    assert asyncio.run(life(held)) == (expected, 3)


class Embeddings:
    """Shaped as those of LangChain."""

    def embed_documents(self, texts):
        return encoder(texts, "memory").tolist()

    def embed_query(self, text):
        return encoder([text], "query")[0].tolist()


@pytest.mark.parametrize("given", [lambda texts: encoder(texts, "memory"), Embeddings()])
def test_encoders_of_other_shapes(tmp_path, given):
    with EARMemory(given) as held:
        held.add([text(number) for number in range(20)])
        held.save(tmp_path)
        plain = EARMemory(encoder)
        plain.add([text(number) for number in range(20)])
        assert answers(held) == answers(plain)
    with EARMemory.load(tmp_path, given) as again:
        assert answers(again) == answers(plain)


def test_a_memory_with_a_folder_is_pickled_as_its_place(tmp_path):
    held = made(10)
    held.save(tmp_path)
    stored = pickle.dumps(held)
    assert pickle.loads(stored) is held is copy.deepcopy(held)
    held.close()
    with pickle.loads(stored) as again:
        assert answers(again) == answers(held) and again is not held


class Random(RuleBasedStateMachine):
    """A thousand random operations: a memory beside a plain list of what it should hold."""

    words = st.sampled_from([text(number) for number in range(40)])
    spaces, metadata = st.sampled_from(["", "a", "b"]), st.sampled_from([{}, {"n": 1}, {"n": 2, "x": None}])
    keys = st.lists(st.sampled_from("uvwxyz"), min_size=1, max_size=3, unique=True)
    context = None

    def __init__(self):
        super().__init__()
        self.place = tempfile.TemporaryDirectory()
        self.held, self.model = EARMemory(encoder, context=self.context), {}  # text, namespace, metadata by id
        self.held.save(self.place.name)

    def teardown(self):
        self.held.close()
        self.place.cleanup()

    @rule(texts=st.lists(words, max_size=4), space=spaces, about=metadata)
    def add(self, texts, space, about):
        for id, one in zip(self.held.add(texts, None, space, [about] * len(texts)), texts, strict=True):
            assert id not in self.model
            self.model[id] = one, space, about

    @rule(keys=keys, one=words, space=spaces, about=metadata)
    def upsert(self, keys, one, space, about):
        keys = [key for key in keys if key not in self.model or self.model[key][1] == space]
        self.held.upsert([one] * len(keys), keys, space, [about] * len(keys))
        for key in keys:
            self.model.pop(key, None)
            self.model[key] = one, space, about

    @rule(data=st.data())
    def remove(self, data):
        gone = data.draw(st.lists(st.sampled_from([*self.model, None]), unique=True, max_size=4))
        gone = [id for id in gone if id is not None]
        self.held.remove(gone)
        for id in gone:
            del self.model[id]

    @rule(query=words, space=spaces, data=st.data())
    def feedback(self, query, space, data):
        if shown := self.held.retrieve(query, 5, space):
            labels = data.draw(st.lists(st.sampled_from([True, False, None]), min_size=len(shown), max_size=len(shown)))
            if any(label is not None for label in labels):
                self.held.feedback(query, shown, labels)

    @rule(close=st.booleans())
    def reopen(self, close):
        self.held.close() if close else self.held.save(self.place.name)
        if close:
            self.held = EARMemory.load(self.place.name, encoder)

    @rule(query=words, space=spaces, where=st.sampled_from([None, {"n": 1}, {"x": None}]), k=st.integers(1, 60))
    def search(self, query, space, where, k):
        kept = {
            id: (one, about)
            for id, (one, its, about) in self.model.items()
            if its == space and (where is None or where.items() <= about.items())
        }
        wanted = [(id, one) for id, (one, _) in kept.items()]
        bare = EARMemory(encoder, context=self.context)
        bare.add([one for _, one in wanted], list(kept), metadata=[about for _, about in kept.values()])
        assert self.held.candidates(query, space, where) == bare.candidates(query)
        found = self.held.retrieve(query, k, space, where)
        assert len(found) == min(k, len(wanted)) and {(one.id, one.text) for one in found} <= set(wanted)

    @invariant()
    def holds_what_it_was_given(self):
        assert {one.id: one[1:4] for one in self.held.list()} == self.model
        assert self.held.ids() == list(self.model)
        assert self.held.stats()["namespaces"] == len({space for _, space, _ in self.model.values()})


class RandomWithContext(Random):
    """The same, where memories have neighbours."""

    context = "n"

    @invariant()
    def neighbours_stand_next_to_each_other(self):
        now, last, expected = self.held._state.now, {}, {id: [None, None] for id in self.model}
        for id, (_, space, about) in self.model.items():
            if (session := about.get("n")) is not None:
                if (other := last.get((space, session))) is not None:
                    expected[id][0], expected[other][1] = other, id
                last[space, session] = id
        found = beside(now.session, now.alive)
        ids = [one.id if row else None for row, one in enumerate(now.memories)]
        assert {id: [ids[row] for row in found[:, now.place(id)]] for id in self.model} == expected


TestRandom, TestRandomWithContext = Random.TestCase, RandomWithContext.TestCase
TestRandom.settings = TestRandomWithContext.settings = settings(max_examples=20, stateful_step_count=50, deadline=None)


# -- context -----------------------------------------------------------------------------------------------------------


def talk(count=120, **options):
    """A memory of sessions of six turns, every fifth turn in none."""
    held = EARMemory(encoder, **options)
    about = [{} if number % 5 == 4 else {"session": number // 6} for number in range(count)]
    held.add([text(number) for number in range(count)], metadata=about)
    return held


def test_what_stands_only_in_the_turn_before_finds_the_turn():
    turns = [f"nothing {number}" for number in range(200)]
    turns[150:152] = "do you still play the cello?", "yes, every day"
    found, candidates = {}, {}
    for key in ("session", None):
        held = EARMemory(lambda texts, kind: np.ones((len(texts), 4)), context=key)
        held.add(turns, metadata=[{"session": number // 3} for number in range(200)])
        found[key] = [one.id for one in held.retrieve("who plays the cello: play", 2)]
        candidates[key] = held.candidates("who plays the cello: play")
    assert found == {"session": [150, 151], None: [150, 0]}
    assert 151 in candidates["session"] and 151 not in candidates[None]


def test_scores_of_the_context_are_those_of_the_memories_beside():
    held, query = talk(context="session"), text(3) + " river?"
    held.remove([7, 60])
    shown = held.retrieve(query, 5)
    now, vector = held._state.now, held._encode([query], "query")[0]
    rows, side = now.candidates(query, vector, 50, True, now.alive)
    alone, at = now.words.scores(query, now.alive), {row: place for place, row in enumerate(rows.tolist())}
    before, after = beside(now.session, now.alive)
    assert before[9] == 7 and after[7] == 9  # row 8 is gone
    assert before[6] == 4 and before[5] == after[5] == 0 == before[7]  # row 5 is in no session, row 7 begins one
    total = {row: alone[row] + (alone[before[row]] + alone[after[row]]) / 2 for row in range(1, 121)}
    wordy = sorted((row for row in total if total[row] > 0), key=lambda row: (-total[row], row))
    assert set(wordy[:20]) <= set(at)
    vectors = now.bank.double().numpy()
    cosine = vectors @ vector / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vector)
    cosine[0] = 0
    largest = max(alone[[row, before[row], after[row]]].max() for row in at)
    expected = [
        [alone[row] / largest, alone[before[row]] / largest, alone[after[row]] / largest, cosine[before[row]],
         cosine[after[row]]] for row in at
    ]  # fmt: skip
    assert side.numpy() == pytest.approx(np.array(expected), abs=1e-6)
    first = cosine[rows] + side.numpy() @ [0.4, 0.2, 0.1, 0.1, 0.1]
    best = np.argsort(-first, kind="stable")[:5]
    assert [one.id for one in shown] == [rows[place].item() - 1 for place in best]
    assert [one.score for one in shown] == pytest.approx(first[best], abs=1e-5)
    other = next(id for id in held.ids() if id + 1 not in at)  # one that the search has not found
    held.feedback(query, [shown[1].id, other], [True, False])
    learned = held._state.learner.evidence
    assert (learned.row == [shown[1].id + 1, other + 1]).all() or (learned.row == [other + 1, shown[1].id + 1]).all()
    mine = learned.x[learned.row == shown[1].id + 1][0]
    assert mine[:6] == pytest.approx([first[best[1]], *expected[best[1]]], abs=1e-5) and len(mine) == 11
    assert held.config.side == 0
    held.critic = lambda query, texts: [True] * len(texts)
    assert len(held.reflect(query)) >= 5


def test_context_without_sessions_is_no_context():
    plain, held = talk(), talk(context="another key")
    assert answers(held) == answers(plain)
    for one in (plain, held):
        told(one, 12)
    weights = held.stats()["weights"]
    assert weights[1:5] == [0.2, 0.1, 0.1, 0.1]  # nothing moves them
    assert weights[:1] + weights[5:] == pytest.approx(plain.stats()["weights"], abs=1e-6)


def test_what_the_turn_before_tells_is_learned_and_kept(tmp_path):
    held = EARMemory(encoder, context="talk")
    turns = [said for number in range(60) for said in (f"who saw number{number} there?", f"it was {text(number)}")]
    held.add(turns, metadata=[{"talk": [number // 2]} for number in range(120)])  # of anything that JSON can hold
    held.save(tmp_path)
    for number in range(40):
        shown = held.retrieve(f"about number{number}")
        held.feedback(f"about number{number}", shown, cited=[one for one in shown if one.text.startswith("it was")])
    stats, expected = held.stats(), answers(held)
    assert stats["served"] == "learned" and stats["weights"][1] > 0.2 and len(stats["weights"]) == 10
    for save in (False, True):
        if save:
            held.save(tmp_path)
        held.close()
        held = EARMemory.load(tmp_path, encoder)
        assert held.stats() == stats and answers(held) == expected
    held.close()


def test_a_snapshot_keeps_its_neighbours_while_others_come_and_go():
    held = talk(context="session")
    now, query = held._state.now, text(3)
    vector = held._encode([query], "query")[0]

    def seen():
        rows, side = now.candidates(query, vector, 50, True, now.alive)
        return rows.tolist(), side.tolist(), beside(now.session, now.alive).tolist()

    before = seen()
    held.add([query] * 3, metadata=3 * [{"session": 19}])
    held.remove(range(0, 120, 7))
    held.upsert([query], [1], metadata=[{"session": 0}])
    assert seen() == before


# -- threads -----------------------------------------------------------------------------------------------------------


def test_readers_see_whole_states_while_another_writes():
    """Each memory's text is that of its id; a reader never sees a half-made one, and what it gets is in order."""
    held = made(100, preset(depth=10))
    stop, problems, reads = threading.Event(), [], []

    def read(number):
        try:
            while not stop.is_set():
                found = held.retrieve(text(number) + "?", 6)
                assert len(found) == 6 and len({one.id for one in found}) == 6
                assert all(one.text == text(one.id) for one in found)
                assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
                reads.append(number)
        except BaseException as error:
            problems.append(error)

    readers = [threading.Thread(target=read, args=(number,)) for number in range(3)]
    for thread in readers:
        thread.start()
    number = 100
    while (number < 130 or len(reads) < 25) and not problems:
        held.add([text(number), text(number + 1)])
        held.remove([number - 100, number - 99])
        told(held, 1, start=number)
        number += 2
    stop.set()
    for thread in readers:
        thread.join()
    assert not problems and len(held) == 100


def test_writers_wait_for_each_other():
    held = made(50, preset(depth=10))
    writers = [threading.Thread(target=told, args=(held, 10, start)) for start in (0, 20, 40)]
    writers += [threading.Thread(target=lambda: [held.add(["more"]) for _ in range(20)])]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    assert held._state.learner.known == 30 and len(held) == 70


# -- all or nothing ----------------------------------------------------------------------------------------------------


def learned(held):
    """All that feedback changes, copied."""
    return held._state.learner.known, {name: value.clone() for name, value in held._state.learner.state().items()}


def same(before, after):
    return (
        before[0] == after[0]
        and before[1].keys() == after[1].keys()
        and all(value.equal(after[1][name]) for name, value in before[1].items())
    )


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_torchs_modes_of_the_caller_change_nothing(tmp_path, mode):
    plain, under = made(40, preset(depth=10)), EARMemory(encoder, preset(depth=10))
    with mode():
        under.add([text(number) for number in range(40)])
        told(under, 2)
        under.save(tmp_path)
    for held in (plain, under):
        told(held, 4 if held is plain else 2, start=0 if held is plain else 2)
    under.close()
    with mode():
        again = EARMemory.load(tmp_path, encoder)
    for held in (plain, again):
        told(held, 2, start=9)
    assert same(learned(plain), learned(again)) and answers(plain) == answers(again)
    again.close()


def failing_step(patch, held, error):
    def step(*_, **__):
        for parameter in held._state.learner.parameters:
            parameter.data.add_(1)
        raise error

    patch.setattr(held._state.learner.optimizer, "step", step)


@pytest.mark.parametrize("told_before", [0, 3])
@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()])
def test_a_feedback_that_fails_is_not_made(tmp_path, monkeypatch, error, told_before):
    held, other = made(40, preset(depth=10)), made(40, preset(depth=10))
    for one in (held, other):
        told(one, told_before)
    held.save(tmp_path)
    before, ranked = learned(held), answers(held)
    with monkeypatch.context() as patch:
        failing_step(patch, held, error)
        with pytest.raises(type(error)):
            told(held, 1, start=20)
    assert same(before, learned(held)) and answers(held) == ranked and held._state.learner.buffer.size == told_before
    assert held._folder.changes == 0 and kept(tmp_path) == []
    for one in (held, other):
        told(one, 3, start=20)
    assert same(learned(held), learned(other)) and answers(held) == answers(other)
    held.close()


@pytest.mark.parametrize(("objective", "rate"), [("softmax", 1e30), ("reward", 1e38)])
def test_a_divergence_leaves_the_memory_able_to_go_on(objective, rate):
    held = made(40, preset(depth=10, learning_rate=rate, side_rate=1e-3, objective=objective))
    ranked, before = answers(held), learned(held)
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="diverged.*lower the learning rate"):
            told(held, 3)
        assert answers(held) == ranked and same(before, learned(held))
    held._state.learner.optimizer.rates[:] = [1e-4] * 2 + [1e-3]
    told(held, 3)
    assert held._state.learner.known == 3


@pytest.mark.parametrize(("of", "name"), [(Words, "append"), (state.Snapshot, "_replace")])
def test_an_add_that_fails_halfway_is_not_made(tmp_path, monkeypatch, of, name):
    held = made(40, preset(depth=10))
    held.save(tmp_path)
    before, ids = answers(held), held.ids()
    with monkeypatch.context() as patch:
        patch.setattr(of, name, lambda *_, **__: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            held.add(["garden garden"], ["new"])
    assert answers(held) == before and held.ids() == ids
    held.save(tmp_path)  # writes nothing of it
    held.close()
    with EARMemory.load(tmp_path, encoder) as again:
        assert again.ids() == ids and answers(again) == before


class Alarm(Exception):
    pass


@pytest.mark.parametrize("name", ["best", "adapter"])
def test_signals_that_raise_leave_whole_changes(tmp_path, monkeypatch, name):
    """Whatever an alarm cuts short, what is in memory is what the folder holds, and every change is whole."""
    monkeypatch.setattr(stored_memory, "CHANGES", 7)
    monkeypatch.setattr(state, "SPARSE", 20)
    held, rng = made(30, preset(name, depth=8), experiences=20), np.random.default_rng(0)
    armed, hits = [False], 0
    held.save(tmp_path)

    def ring(*_):
        if armed[0]:
            raise Alarm

    def change(number):
        ids = held.ids()
        if number % 3 == 0:
            held.add([text(number), text(number + 1)], [f"{number} a", f"{number} b"])
        elif number % 3 == 1 and len(ids) > 20:
            held.remove(ids[:3])
        else:
            held.feedback(text(number) + "?", ids[-4:], [True, False, None, False])

    old = signal.signal(signal.SIGALRM, ring)
    try:
        for number in range(150):
            try:
                armed[0] = True
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 8e-3))
                try:
                    change(number)
                finally:
                    armed[0] = False
            except Exception as error:  # libraries may raise their own from it, as numpy does
                if not isinstance(error.__cause__ or error, Alarm):
                    raise
                hits += 1
                armed[0] = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    names = {id.split()[0] for id in held.ids() if isinstance(id, str)}
    adds = [id for id in held.ids() if isinstance(id, str)]
    assert hits > 3 and len(names) > 3 and len(adds) == len(set(adds))
    before = answers(held)
    held.close()
    with EARMemory.load(tmp_path, encoder) as again:
        assert again.list() == held.list()
        assert same(learned(held), learned(again)) and answers(again) == before
        for one in (held, again):
            told(one, 3, start=50)
        assert answers(again) == answers(held)


def test_a_signal_is_raised_once_the_change_is_over():
    held, add = made(30, preset(depth=8)), None

    def interrupted(**change):
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(0.05)
        add(**change)

    def ring(*_):
        raise Alarm

    add, held._state.add = held._state.add, interrupted
    old = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(Alarm):
            held.add(["late"], ["late"])
    finally:
        signal.signal(signal.SIGALRM, old)
    assert "late" in held  # at once: nothing goes on behind the caller's back


def test_a_memorys_thread_ends_with_it(monkeypatch):
    real, ended = writer.serve, []
    monkeypatch.setattr(writer, "serve", lambda calls: (real(calls), ended.append(True)))
    held = made(20, preset(depth=5))
    told(held, 2)
    del held
    deadline = time.monotonic() + 10
    while not ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended


# -- what is kept to be replayed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["similarity", "random"])
def test_of_experiences_the_oldest_is_dropped_first(tmp_path, choice):
    used = preset(depth=10, replay_choice=choice)
    held = made(60, used, experiences=5)
    told(held, 3)
    held.save(tmp_path)
    told(held, 9, start=3)
    queries = [text(number) + "?" for number in range(7, 12)]
    unit = held._encode(queries, "query")
    assert held._state.learner.known == 12 and held._state.learner.held == 5 == held._state.learner.buffer.size
    assert held._state.learner.query[:5].numpy() == pytest.approx(unit)
    assert held._state.learner.buffer.unit[:5].numpy() == pytest.approx(unit, abs=1e-6)
    positions, numbers = held._state.learner.buffer.choose(torch.tensor([[4]]), torch.full((1, 1, 4), 0.5))
    assert positions.equal(numbers) and numbers.max() < 5
    held.close()
    with EARMemory.load(tmp_path, encoder) as again:
        assert again.experiences == 5 and same(learned(held), learned(again))
        told(again, 1, start=12)
        told(held, 1, start=12)
        again.save(tmp_path)
    with EARMemory.load(tmp_path, encoder) as again:
        for one in (held, again):
            told(one, 140, start=13)  # the arrays are moved once more
        assert same(learned(held), learned(again)) and answers(held) == answers(again)


# -- what callers may give ---------------------------------------------------------------------------------------------


REFUSED = {
    TypeError: [
        (lambda held: held.add("one string"), "texts: expected a sequence, found str 'one string'"),
        (lambda held: held.add([3]), r"texts\[0\]: expected a string, found int"),
        (lambda held: held.add(["a"], {"b": 1}), "ids: expected a sequence, found dict"),
        (lambda held: held.get(None), "^id: expected int or str, found NoneType"),
        (lambda held: held.remove("12"), "ids: expected a sequence, found str '12'"),
        (lambda held: held.feedback("x", {1, 2}, [True, False]), "ids or cited: expected a sequence, found set"),
        (lambda held: held.feedback("x", [1], "1"), "labels: expected a sequence"),
        (lambda held: held.feedback("x", [True], [True]), "ids: expected int or str, found bool True"),
        (lambda held: held.add(["a"], [np.float64(3)]), "ids: expected int or str, found float"),
        (lambda held: held.add(["a"], metadata={"n": 1}), "metadata: expected a sequence, found dict"),
        (lambda held: held.add(["a"], metadata=[{1: 1}]), r"metadata\[0\]: expected a dict whose keys are strings"),
        (lambda held: held.add(["a"], metadata=[{"n": {1}}]), r"metadata\[0\]: expected what JSON can hold"),
        (lambda held: held.retrieve("x", 1, 7), "namespace: expected a string, found int 7"),
        (lambda held: held.list(where="n"), "where: expected a dict whose keys are strings, found 'n'"),
        (lambda held: held.retrieve(["x"]), "query: expected a string, found list"),
        (lambda held: held.retrieve("x", 2.0), "k = 2.0: expected a whole number, found float"),
        (lambda held: held.retrieve("x", True), "k = True: expected a whole number, found bool"),
        (lambda held: EARMemory(encoder, experiences="9"), "experiences = '9': expected a whole number"),
        (lambda held: EARMemory(encoder, PRESETS["best"].config), "preset: expected one of best, adapter, paper or a"),
        (lambda held: EARMemory(encoder, context=3), "context: expected the name of a key of the metadata"),
        (lambda held: EARMemory(encoder, "paper", context="n"), "context: .*a preset that learns weights"),
        (lambda held: EARMemory(encoder, critic="gpt"), "critic: expected a callable or None, found str"),
        (lambda held: EARMemory(3), "encoder: expected a name, a callable or embeddings, found int"),
    ],
    ValueError: [
        (lambda held: held.add(["half \ud83d"]), r"texts\[0\]: half of a surrogate pair"),
        (lambda held: held.retrieve("half \ud83d"), "query: half of a surrogate pair"),
        (lambda held: EARMemory(encoder, seed=-1), "seed = -1: expected at least 0"),
        (lambda held: EARMemory(encoder, dtype=torch.float16), "dtype = torch.float16: expected torch.float32 or"),
        (lambda held: EARMemory("minlm"), "unknown encoder 'minlm'"),
        (lambda held: EARMemory(encoder, "bset"), "preset = 'bset'"),
        (lambda held: EARMemory(encoder, Preset(PRESETS["best"].config, False)), "words = False: expected True"),
        (lambda held: EARMemory(encoder, Preset(Config(), False)), "batch_size = 4: expected 1"),
        (lambda held: held.get(99), "^id: 99: expected the id of a memory"),
        (lambda held: held.retrieve("x", 0), "k = 0: expected at least 1"),
        (lambda held: held.feedback("x", []), "ids: expected at least one"),
        (lambda held: held.feedback("x", [999], [True]), "ids: 999: expected the id of a memory"),
        (lambda held: held.feedback("x", [0, 1], [True]), "labels: expected 2, one an id, got 1"),
        (lambda held: held.feedback("x", [0, 0], [True, True]), "ids: 0 comes twice"),
        (lambda held: held.feedback("x", range(51), [True] * 51), r"at most 50 \(K\), got 51"),
        (lambda held: held.feedback("x", [1], [float("nan")]), "labels: nan: expected True"),
        (lambda held: held.feedback("x", [1], ["yes"]), "labels: 'yes': expected True"),
        (lambda held: held.feedback("x", [1], cited=[2]), "cited: expected some of the ids, and no labels"),
        (lambda held: held.feedback("x", [1], [True], cited=[1]), "cited: expected some of the ids, and no labels"),
        (lambda held: held.feedback("x", cited=[]), "ids: expected at least one"),
        (lambda held: held.remove([3, 999]), "ids: 999: expected the id"),
        (lambda held: held.add(["a"], [0]), "ids: 0 is in use"),
        (lambda held: held.add(["a", "b"], [200, 200]), "ids: 200 comes twice"),
        (lambda held: held.add(["a"], [200, 201]), "ids: expected 1, one a text, got 2"),
        (lambda held: held.add(["a"], metadata=[{}, {}]), "metadata: expected 1, one a text, got 2"),
        (lambda held: held.add(["a"], metadata=[{"n": float("nan")}]), r"metadata\[0\]: expected what JSON can hold"),
        (lambda held: held.upsert(["a"], [0], "b"), "ids: 0 is in use in another namespace"),
        (lambda held: held.list(where={"n": float("nan")}), "where: expected what JSON can hold"),
    ],
}


@pytest.mark.parametrize(("error", "call", "message"), [(kind, *one) for kind, rows in REFUSED.items() for one in rows])
def test_what_cannot_be_meant_is_refused_before_anything_is_asked(tmp_path, error, call, message):
    with made(60, critic=lambda *_: pytest.fail("the critic was asked")) as held:
        held.save(tmp_path)
        with pytest.raises(error, match=message):
            call(held)
        assert held.ids() == list(range(60)) and held._folder.changes == 0


def test_without_a_critic_something_must_be_labelled():
    with pytest.raises(ValueError, match="no critic"):
        made(5).feedback("x", [0])
    with pytest.raises(ValueError, match="critic: expected one"):
        made(5).reflect("x")


@pytest.mark.parametrize(
    "answer",
    [None, {"a": [1.0]}, [[1.0, 2.0], [1.0]], ["a", "b"], np.ones(WIDTH), np.ones((3, WIDTH)), np.ones((2, 0)),
     np.full((2, WIDTH), 1e25), np.zeros((2, WIDTH)), np.full((2, WIDTH), np.nan)],
)  # fmt: skip
def test_an_encoder_that_gives_no_embeddings_is_told_what_was_expected(answer):
    held = EARMemory(lambda texts, kind: answer)
    with pytest.raises(ValueError, match=r"encoder: expected (finite numbers \[2, any\]|embeddings that are finite)"):
        held.add(["a", "b"])
    assert len(held) == 0


def test_an_encoder_may_give_tensors_of_any_precision_but_keeps_its_width():
    def of_torch(texts, kind):
        width = WIDTH if kind == "memory" else WIDTH - 1
        return torch.ones(len(texts), width, dtype=torch.bfloat16, requires_grad=True)

    held = EARMemory(of_torch)
    assert held.add(["a", "b"]) == [0, 1]
    with pytest.raises(ValueError, match=rf"encoder: expected finite numbers \[1, {WIDTH}\], .*got \[1, {WIDTH - 1}\]"):
        held.retrieve("a")


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (None, TypeError, "critic: expected a sequence, found NoneType"),
        ([True], ValueError, "critic: expected 5 labels, one a memory shown, got 1"),
        ([5] * 5, ValueError, "critic: 5: expected True, False, 1, 0, -1 or None"),
        (torch.full((5,), torch.nan), ValueError, "critic: tensor.nan.: expected True"),
    ],
)
@pytest.mark.parametrize("way", ["feedback", "reflect"])
def test_a_critic_that_answers_otherwise_is_told_what_was_expected(answer, error, message, way):
    held = made(60, critic=lambda *_: answer)
    with pytest.raises(error, match=message):
        held.feedback("x", [0, 1, 2, 3, 4]) if way == "feedback" else held.reflect("x")
    assert held._state.learner.known == 0
    held.critic = lambda query, texts: [None for _ in texts]  # it cannot tell
    assert held.feedback("x", [0, 1]) == 0


def test_labels_of_all_kinds():
    held = made(10)
    useful = [True, 1, 1.0, np.True_, np.int8(1), np.float32(1), torch.tensor(1), torch.tensor(True), np.array(1)]
    for label in useful:
        assert validation.as_label(label) is True
    for label in (False, 0, -1, 0.0, -1.0, np.False_, np.int8(-1), np.float64(0), torch.tensor(-1.0)):
        assert validation.as_label(label) is False
    assert held.feedback("x", np.array([1, 2, 3]), torch.tensor([1, 0, -1])) == 3
    assert held.feedback("x", [1, 2], [True, None]) == 1
    said = labelled(held)
    assert [said[id] for id in (1, 2, 3)] == [1, -1, -1]


def test_numpys_ids_are_pythons(tmp_path):
    held = made(3)
    assert [type(id) for id in held.add(["a", "b"], np.array([7, 8]))] == [int, int]
    assert held.add(["c"], np.array(["c"])) == ["c"] and type(held.ids()[-1]) is str
    held.remove(np.array([8]))
    assert held.get(np.int32(7)) == "a" and np.int64(7) in held and True not in held and 1.0 not in held
    held.save(tmp_path)
    held.close()
    assert EARMemory.load(tmp_path, encoder).ids() == [0, 1, 2, 7, "c"]
    assert EARMemory(encoder, seed=np.int64(3)).seed == 3


def test_a_memory_replaced_while_the_critic_answers_learns_nothing_of_it():
    def critic(query, texts):
        held.upsert(["another"], [0])
        held.remove([1])
        held.add(["another"], [1])
        return [True for _ in texts]

    held = made(40, critic=critic)
    then = held._state.now
    assert held.feedback("garden", [0, 1, 2]) == 1 and [then.get(id).text for id in (0, 1)] == [text(0), text(1)]
    assert {row for row, said in labelled(held).items() if said} == {2}


def test_feedback_on_what_was_replaced_since_it_was_retrieved_is_not_the_new_text_s():
    held, untouched = made(40), made(40)
    found = held.retrieve("red cello", 3)
    held.upsert(["another"], [found[0].id])
    assert held.feedback("red cello", found, [True, False, False]) == 2
    judged = {row for row, said in labelled(held).items() if said}
    assert judged == {one.id for one in found[1:]}
    assert held.feedback("red cello", found[:1], cited=found[:1]) == 0
    held.upsert([found[0].text], [found[0].id])  # as it was
    assert [one.feedback("red cello", found, cited=found[:1]) for one in (held, untouched)] == [3, 3]


def test_ids_as_other_packages_carry_them():
    held = EARMemory(encoder)
    held.add(["one", "two", "three"], [-3, 7, "a"])
    for unknown in ("007", "+7", "7 "):
        with pytest.raises(ValueError, match="expected the id of a memory"):
            held.remove([unknown])
    for ids in (["7"], [-1, "-1"], ["-3"]):  # a document of LangChain could be about either
        with pytest.raises(ValueError, match="is in use as|comes twice"):
            held.add(["four"] * len(ids), ids)
    held.remove(["-3", "7", "a"])
    assert held.add(["four"], ["30"]) == ["30"] and held.add(["five"]) == [31]


def test_a_change_within_a_change_is_refused():
    def features(query, texts):
        return [[bool(asked) and held.stats()["memories"]] for _ in texts]

    asked = []
    held = EARMemory(encoder, features=features)
    held.add(["a cello"])
    asked.append(held)
    with pytest.raises(RuntimeError, match="may read the memory and nothing else"):
        held.feedback("a cello", [0], [True])


def test_a_memory_removed_while_the_critic_answers_is_dropped_from_what_it_said(tmp_path):
    gone = []

    def critic(query, texts):
        held.remove(gone)
        return [True for _ in texts]

    held = made(40, preset(depth=10), critic=critic)
    held.save(tmp_path)
    shown = [one.id for one in held.retrieve("garden", 5)]
    gone[:] = shown[1:2]
    assert held.feedback("garden", shown) == 4
    assert {id for id, said in labelled(held).items() if said} == set(shown) - {shown[1]}
    gone[:] = shown[2:4]
    assert held.feedback("garden", shown[2:4]) == 0 and held._state.learner.known == 1  # nothing is left to learn from
    ranked = answers(held)
    held.close()
    with EARMemory.load(tmp_path, encoder) as again:
        assert answers(again) == ranked


def test_what_comes_first_does_not_depend_on_how_many_are_asked_for():
    held = made(200, preset(depth=10))
    told(held, 5)
    for number in range(8):
        query = text(number) + "!"
        every = held.retrieve(query, 150)
        assert [one.id for one in every[:10]] == [one.id for one in held.retrieve(query, 10)]
        assert [one.score for one in every[:10]] == [one.score for one in held.retrieve(query, 10)]
        assert sorted(one.id for one in every[:10]) == sorted(held.candidates(query))
        assert len({one.id for one in every}) == 150
        assert [one.id for one in held.retrieve(query, 4)] == [one.id for one in every[:4]]
        now, vector = held._state.now, held._encode([query], "query")[0]
        rows = now.candidates(query, vector, 150, True, now.alive)[0].tolist()
        order = [now.memories[row].id for row in rows]
        assert [one.id for one in every[10:]] == [id for id in order if id not in held.candidates(query)][:140]
        assert len(held.retrieve(query, 500)) == 200
        assert [one.score for one in every] == sorted((one.score for one in every), reverse=True)


def test_a_cold_memory_weighs_words_as_its_preset_says():
    """Cosine plus 0.4 times the share of the score by words, among the candidates."""
    held, query = made(), "river song number2"
    now = held._state.now
    rows, side = now.candidates(query, held._encode([query], "query")[0], 50, True, now.alive)
    scores = held._state.now.bank[rows].double().numpy() @ held._encode([query], "query")[0].astype(float)
    scores += 0.4 * side.numpy()
    found = {one.id: one.score for one in held.retrieve(query, 50)}
    expected = {now.memories[row].id: score for row, score in zip(rows.tolist(), scores, strict=True)}
    assert held.weight == pytest.approx(0.4) and found == pytest.approx(expected, abs=1e-3)
    assert EARMemory(encoder).weight == pytest.approx(0.4) and EARMemory(encoder, "paper").weight == 0


def test_what_else_a_memory_tells(tmp_path):
    with made(3) as held:
        held.add(["named"], ["a"])
        held.remove([1])
        assert held.ids() == [0, 2, "a"] and held.get("a") == "named" and "a" in held and 1 not in held
        assert None not in held and True not in held
        told(held, 2)
        held.save(tmp_path)
        shown = f"<EARMemory: encoder encoder, preset adapter, 3 memories, 2 of 10,000 experiences, folder {tmp_path}>"
        assert repr(held) == shown
    assert "folder none" in repr(held) and "preset of its own" in repr(EARMemory(encoder, preset(depth=9)))
    EARMemory.load(tmp_path, encoder).close()  # the block has closed it
    empty = EARMemory("sentence-transformers/all-MiniLM-L6-v2")
    assert "encoder minilm" in repr(empty) and empty.ids() == [] and 0 not in empty and len(empty) == 0
    for copied in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(TypeError, match="use save and load"):
            copied(held)


def test_removed_texts_are_gone_from_the_folder_after_a_save(tmp_path):
    held = EARMemory(encoder)
    held.add(["a secret", "b"])
    held.save(tmp_path)
    held.remove([0])
    held.save(tmp_path)
    held.close()
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.iterdir())


# -- on the disk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["best", "adapter", "paper"])
def test_what_is_loaded_retrieves_and_learns_bit_for_bit_the_same(tmp_path, name):
    held = made(name=name)
    told(held)
    held.remove([3, 5])
    held.save(tmp_path / "a")
    told(held, 5, start=30)
    held.add(["日本 ✓\n", "x"], ["名前", "b"])
    held.remove(["b", 7])
    before = answers(held)
    held.close()
    with EARMemory.load(tmp_path / "a", encoder) as again:
        assert answers(again) == before and len(again) == len(held)
        for one in (held, again):
            told(one, 5, start=60)
        assert answers(again) == answers(held)
        again.save(tmp_path / "b")
    with EARMemory.load(tmp_path / "b", encoder) as last:
        assert answers(last) == answers(held) and last.add(["new"]) == held.add(["new"])


def test_an_empty_memory_is_kept_too(tmp_path):
    held = EARMemory(encoder)
    held.save(tmp_path)
    held.add(["first"])
    held.close()
    with EARMemory.load(tmp_path, encoder) as again:
        assert [one.text for one in again.retrieve("first")] == ["first"]
        again.remove([0])
        again.save(tmp_path)
    with EARMemory.load(tmp_path, encoder) as again:  # emptied, and of a known width
        assert again.add(["second"]) == [1]


def kept(folder):
    """Kinds of the changes that a folder holds behind its snapshot."""
    with contextlib.closing(sqlite3.connect(folder / "memory.sqlite")) as database:
        return [kind for (kind,) in database.execute("SELECT kind FROM changes ORDER BY number")]


def test_many_changes_become_a_snapshot(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_memory, "CHANGES", 4)
    held = made(40, preset(depth=10))
    held.save(tmp_path)
    told(held, 10)
    before = answers(held)
    assert kept(tmp_path) == 2 * ["feedback"]
    held.close()
    assert [path.name for path in tmp_path.iterdir()] == ["memory.sqlite"]
    with EARMemory.load(tmp_path, encoder) as again:
        assert answers(again) == before


def test_every_cut_of_the_log_loses_the_last_change_alone(tmp_path):
    """A power cut may leave a part of what was being written."""
    held = made(40, preset(depth=10))
    held.save(tmp_path / "m")
    told(held, 2)
    before, log = answers(held), tmp_path / "m" / "memory.sqlite-wal"
    size = log.stat().st_size
    told(held, 1, start=20)
    after = answers(held)
    for cut in [*range(size, log.stat().st_size, 1499), log.stat().st_size - 1]:
        copy = tmp_path / f"cut at {cut}"
        shutil.copytree(tmp_path / "m", copy)
        os.truncate(copy / log.name, cut)
        with EARMemory.load(copy, encoder) as again:
            assert answers(again) == before
            told(again, 1, start=20)
        with EARMemory.load(copy, encoder) as again:
            assert answers(again) == after
    held.close()


def test_a_folder_serves_one_memory_at_a_time(tmp_path):
    held = made(10)
    held.save(tmp_path)
    with pytest.raises(BlockingIOError, match="open in another memory"):
        EARMemory.load(tmp_path, encoder)
    with pytest.raises(BlockingIOError, match="open in another memory"):
        made(5).save(tmp_path)
    held.close()
    with pytest.raises(ValueError, match="encoder: expected the callable"):
        EARMemory.load(tmp_path)


def test_a_change_that_cannot_be_written_is_not_made(tmp_path):
    held, done = made(40, preset(depth=10)), 0
    held.save(tmp_path)
    pages = held._folder._value("PRAGMA page_count")
    held._folder._value(f"PRAGMA max_page_count = {pages + 1}")  # a disk that is full
    with pytest.raises(OSError, match="cannot write .*memory.sqlite: database or disk is full"):
        while done < 100:
            before = answers(held)
            told(held, 1, start=done)
            done += 1
    assert answers(held) == before and held._state.learner.known == done
    held._folder._value(f"PRAGMA max_page_count = {2**31}")
    told(held, 3)
    before = answers(held)
    held.close()
    with EARMemory.load(tmp_path, encoder) as again:
        assert answers(again) == before


# -- processes ---------------------------------------------------------------------------------------------------------

FORKS = """
import os, sys, threading
sys.path.insert(0, {tests!r})
import test_memory, torch, tqdm
tqdm.tqdm.set_lock(threading.RLock())  # its own lock is shared by all forks, and a killed one may hold it
torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # imports some parts of torch
for line in sys.stdin:
    child = os.fork()
    if not child:
        name, folder = line.rstrip().split(" ", 1)
        print(os.getpid(), flush=True)
        getattr(test_memory, name)(folder)
        sys.exit()
    os.waitpid(child, 0)
    print("over", flush=True)
"""


@pytest.fixture(scope="module")
def forks():
    """`forks(name, folder)` lets a process of its own, which has no other threads, call a function of this module."""
    code = FORKS.format(tests=str(Path(__file__).parent))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True, env=environment) as parent:

        def call(name, folder):
            print(name, folder, file=parent.stdin, flush=True)
            return int(parent.stdout.readline()), parent.stdout

        yield call
        parent.stdin.close()


def digest(held):
    return hashlib.sha256(repr(answers(held, 3)).encode()).hexdigest()


def live(folder):  # of either kind of learner
    stored_memory.CHANGES = 7
    held = EARMemory.load(folder, encoder)
    start = held._state.learner.known
    print(start, digest(held), flush=True)
    for number in range(start, 100000):
        told(held, 1, number)
        print(number + 1, flush=True)


@pytest.mark.parametrize("name", ["best", "adapter"])
def test_a_kill_at_any_moment_loses_no_acknowledged_feedback(tmp_path, forks, name):
    """Each life loads the folder and learns until it is killed, some moments after it acknowledged some feedbacks."""
    with made(60, preset(name, depth=10)) as held:
        held.save(tmp_path)
    straight, rng, acknowledged = made(60, preset(name, depth=10)), np.random.default_rng(0), 0
    for _ in range(KILLS + 1):
        child, output = forks("live", tmp_path)
        known, found = output.readline().split()
        assert acknowledged <= int(known) <= acknowledged + 1
        told(straight, int(known) - straight._state.learner.known, start=straight._state.learner.known)
        assert found == digest(straight)  # bit for bit what it would be without any kill
        for _ in range(rng.integers(1, 6)):
            acknowledged = int(output.readline())
        time.sleep(rng.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        while (line := output.readline()) != "over\n":
            acknowledged = int(line)
    assert acknowledged > KILLS


def change_at_the_end(folder):
    held = made(5)
    held.save(folder)
    atexit.register(lambda: (held.add(["last"], ["last"]), held.close()))


def leave_a_child(folder):
    held = made(5)
    held.save(folder)
    held.add(["last"], ["last"])
    if not (child := os.fork()):
        signal.pause()
    (Path(folder).parent / "child").write_text(str(child))
    os._exit(0)


@pytest.mark.parametrize("life", [change_at_the_end, leave_a_child])
def test_every_change_of_a_life_is_kept(tmp_path, forks, life):
    """A change may be made at the very end; and a child that outlives its parent does not hold the folder."""
    (tmp_path / "m").mkdir()
    child, output = forks(life.__name__, tmp_path / "m")
    assert output.readline() == "over\n"
    with EARMemory.load(tmp_path / "m", encoder) as held:
        assert held.ids() == [0, 1, 2, 3, 4, "last"]
    if life is leave_a_child:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


# -- real parts --------------------------------------------------------------------------------------------------------


def test_with_the_real_encoder_it_remembers_across_a_restart(tmp_path):
    held = EARMemory()
    held.add(["Ada plays the cello", "Ben is allergic to nuts", "The cat sleeps in the garage"])
    assert held.retrieve("Which instrument does Ada play?", 1)[0].text == "Ada plays the cello"
    held.feedback("Which instrument does Ada play?", [0, 1], [True, False])
    held.save(tmp_path)
    before = held.retrieve("What must Ben not eat?")
    held.close()
    with EARMemory.load(tmp_path) as again:
        assert again.retrieve("What must Ben not eat?") == before and before[0].id == 1
    edit_snapshot(tmp_path, encoder="of other weights")
    with pytest.raises(ValueError, match="expected minilm .*, got one of other weights"):
        EARMemory.load(tmp_path)


def reads(body):
    """A model's reply by a rule: it cites the memories about a cello."""
    shown = re.findall(r"- Memory \[(\d+)\]:\n (.*)", body["messages"][-1]["content"].split("**Input**")[-1])
    return says(f"Answer: so.\nCitations: [{', '.join(at for at, told in shown if 'cello' in told) or 'NO_CITE'}]")


def test_the_readmes_examples_run_as_they_stand(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pages = [
        (Path(__file__).parent.parent / name).read_text(encoding="utf-8") for name in ("README.md", "docs/memory.md")
    ]
    (lives,), (again, spaces, asks) = (re.findall(r"```python\n(.*?)```", page, re.DOTALL) for page in pages)
    exec(lives, {})
    assert capsys.readouterr().out == "Ada plays the cello\n"
    shutil.rmtree("memory")
    exec(again, {})
    said = capsys.readouterr().out
    assert re.search(r"2 memories, 1 of [0-9,]+ experiences, folder .*> \[0, 1\] Ada plays the cello True\n", said)
    with EARMemory.load("memory") as kept:
        assert kept.ids() == [0]
    exec(spaces, {})
    assert capsys.readouterr().out == "0 I moved to Lyon {'topic': 'home'}\ndrink I like green tea {}\n"
    with ScriptedServer(rule=reads) as server:
        for name, value in (("OPENAI_BASE_URL", server.url), ("OPENAI_API_KEY", "k"), ("EARLIB_CACHE", str(tmp_path))):
            monkeypatch.setenv(name, value)
        held = {}
        exec(asks, held)
        assert len(server.requests) >= 2 and held["memory"]._state.learner.known == 2


def test_a_language_model_may_be_the_critic(tmp_path, monkeypatch):
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path))
    with ScriptedServer(rule=reads) as server:
        held = made(40, critic=by_model(Client("m", server.url), 64))
        seen = held.reflect("a garden, a cello?")
        assert len(server.requests) == 4 and len(seen) >= 5
        assert seen == {id: 1.0 if "cello" in text(id) else -1.0 for id in seen} and set(seen.values()) == {1.0, -1.0}
        shown = [one.id for one in held.retrieve("river cello", 5)]
        held.feedback("river cello", shown)
    said = labelled(held, 1)
    assert [said[id] for id in shown] == [1.0 if "cello" in text(id) else -1.0 for id in shown]


def test_replies_about_memories_lie_in_the_folder_and_go_with_them(tmp_path, monkeypatch):
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "cache"))
    with ScriptedServer(rule=reads) as server:
        critic = by_model(Client("m", server.url), 64)
        held = made(40, critic=critic)
        held.save(tmp_path / "m")
        assert held.feedback("a cello?", [0, 1]) == held.feedback("a cello?", [0, 2]) == 2
        held.close()
        held = EARMemory.load(tmp_path / "m", encoder, critic)
        assert held.feedback("a cello?", [0, 1]) == 2 and len(server.requests) == 2  # paid for once
        held.save(tmp_path / "m")
        assert b"Answer: so." in (tmp_path / "m" / "memory.sqlite").read_bytes()
        held.remove([1])
        held.upsert(["another"], [2])
        held.save(tmp_path / "m")
        held.feedback("a cello?", [0, 2])
        assert len(server.requests) == 3
        held.remove([0])
        held.close()
        with EARMemory.load(tmp_path / "m", encoder, critic) as again:
            again.save(tmp_path / "m")
        assert not any(b"Answer: so." in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
