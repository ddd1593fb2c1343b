"""The live memory: the same algorithm as the batched learner, memories that come and go, threads, kills, the disk."""

import json
import re
import signal
import subprocess
import sys
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
from scripted_server import ScriptedServer, says

from earlib import agent, draws, experiment, journal, memory
from earlib.candidates import Candidates
from earlib.config import Config
from earlib.critic import SimulatedCritic
from earlib.learner import ABSENT, Learner
from earlib.llm.client import Client
from earlib.memory import PRESETS, EARMemory, Preset
from earlib.words import Words, words

WIDTH = 24
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


def preset(name="best", **changes):
    config = PRESETS[name].config.model_copy(update=changes)
    return Preset(config, PRESETS[name].words)


def made(count=150, name="best", dtype=torch.float32, **options):
    held = EARMemory(encoder, name, dtype=dtype, **options)
    held.add([text(number) for number in range(count)])
    return held


def told(held, count=12, start=0):
    """Some feedback about texts that the memory holds; every third memory that is returned was useful."""
    for number in range(start, start + count):
        shown = held.retrieve(text(number) + "?")
        held.feedback(text(number) + "?", [one.id for one in shown], [number % 3 == at % 3 for at in range(len(shown))])


def answers(held, count=20):
    return [held.retrieve(text(number) + "!", 7) for number in range(count)]


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
    kept = [one for one, living in zip(texts, alive, strict=True) if living]
    expected = np.zeros(len(texts))
    if any(words(kept)) if kept else False:
        plain = bm25s.BM25()
        plain.index(words(kept), show_progress=False)
        known = [word for word in words([question])[0] if word in plain.vocab_dict]
        if known:
            expected[alive] = plain.get_scores(known)
    assert index.scores(question, alive) == pytest.approx(expected, abs=1e-5)


# -- the same algorithm ------------------------------------------------------------------------------------------------


def batched(held, config, queries):
    """The candidates of some queries in the memory, as the experiments hold them."""
    now = held._now
    vectors = held._encode(queries, "query")
    found = [held._candidates(now, *one, config.depth) for one in zip(queries, vectors, strict=True)]
    index, side = (torch.stack(parts) for parts in zip(*found, strict=True))
    gold = torch.rand(index.shape, generator=torch.Generator().manual_seed(1)) < 0.2
    names = tuple(map(str, range(len(queries))))
    return Candidates(
        torch.from_numpy(vectors), now.bank.float(), index, gold, gold.sum(1), names, tuple(map(str, now.ids)), names,
        names, side=side if held.by_words else None,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["best", "paper"])
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
    held = made(name=used, dtype=torch.float64)
    found = batched(held, used.config, queries)
    place = {query: number for number, query in enumerate(queries)}
    held.critic = lambda query, ids, texts: SimulatedCritic(used.config, found.gold[place[query]][None])
    parts = [draws.live(used.config, 0, number, 20) for number in range(len(queries))]
    uniforms = draws.Uniforms(*(None if one[0] is None else torch.cat(one, 1) for one in zip(*parts, strict=True)))
    learner = Learner(used.config, found, SimulatedCritic(used.config, found.gold), (0,), torch.float64)
    order = torch.arange(len(queries))[None]
    for query, step in zip(queries, learner.train(order, uniforms), strict=True):
        held.reflect(query)
        assert held._learner.buffer.cited[0, step.seen - 1].equal(learner.buffer.cited[0, step.seen - 1])
    for mine, theirs in zip(held._learner.parameters, learner.parameters, strict=True):
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
    for mine, theirs in zip(held._learner.parameters, learner.parameters, strict=True):
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
    now, query = held._now, text(5) + " garden"
    vector = held._encode([query], "query")[0]
    rows, side = held._candidates(now, query, vector, 10)
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


def test_without_feedback_it_ranks_by_cosine():
    held = made(name="paper")
    vectors = encoder([text(number) for number in range(150)], "memory")
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16).astype(float)
    query = encoder(["river song"], "query")[0]
    expected = np.argsort(-(vectors @ query), kind="stable")[:5]
    assert [one.id for one in held.retrieve("river song")] == expected.tolist()
    assert [one.text for one in held.retrieve("river song")] == [text(number) for number in expected]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_what_is_gone_is_as_if_it_had_never_been_there(data):
    gone = data.draw(st.sets(st.integers(0, 59), max_size=58))
    held, bare = EARMemory(encoder), EARMemory(encoder)
    held.add([text(number) for number in range(60)])
    held.remove(gone)
    left = [number for number in range(60) if number not in gone]
    bare.add([text(number) for number in left], left)
    assert len(held) == len(bare) == len(left)
    assert answers(held, 5) == answers(bare, 5)


def test_removed_memories_drop_out_of_what_is_replayed():
    held = made(60, preset(depth=10))
    query = text(1) + "?"
    first, second = (one.id for one in held.retrieve(query, 2))
    held.feedback(query, [first, second], [True, True])
    held.remove([first])
    scores = held._learner._score(torch.tensor([[0]]))[0]
    gone = held._learner.index[0] == first + 1
    assert (scores[0, 0] == ABSENT).tolist() == gone.tolist() and gone.sum() == 1
    held.remove([second])
    before = held._learner.adapter.parameters[0].detach().clone()
    held._learner.optimizer.state.clear()  # no momentum
    other = text(2) + "?"
    held.feedback(other, [held.retrieve(other, 1)[0].id], [False])  # nothing useful, and of what was nothing is left
    assert held._learner.adapter.parameters[0].equal(before)


def test_moving_memories_together_changes_nothing(monkeypatch):
    used = preset(depth=10)
    kept, moved = made(120, used), made(120, used)
    for held in (kept, moved):
        told(held, 8)
        monkeypatch.setattr(memory, "SPARSE", 10 if held is moved else 10**9)
        held.remove(range(0, 120, 2))
        held.remove(range(1, 40, 2))
    assert len(moved._now.alive) < len(kept._now.alive) and len(moved) == len(kept)
    assert answers(moved) == answers(kept)
    for held in (kept, moved):
        told(held, 8, start=20)
        held.add(["something new"])
    first, second = answers(moved), answers(kept)
    assert [[one.id for one in line] for line in first] == [[one.id for one in line] for line in second]
    for mine, theirs in zip(kept._learner.parameters, moved._learner.parameters, strict=True):
        assert mine.detach() == pytest.approx(theirs.detach(), abs=1e-5)


def test_a_memory_that_was_emptied_goes_on(monkeypatch):
    monkeypatch.setattr(memory, "SPARSE", 10)
    held = made(30)
    told(held, 3)
    held.remove(range(30))
    assert held.retrieve("garden") == [] and len(held) == 0 and len(held._now.alive) == 1
    assert held.add(["a red garden"]) == [30]
    held.feedback("garden", [30], [True])  # what is replayed has lost all its memories
    assert [one.text for one in held.retrieve("garden")] == ["a red garden"]


def test_a_diverged_adapter_ranks_nothing():
    held = made(30, preset(learning_rate=1e30))
    with pytest.raises(FloatingPointError, match="diverged"):
        told(held, 3)


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda held: held.feedback("x", [999], [True]), "ids: 999: expected the id of a memory"),
        (lambda held: held.feedback("x", [0, 1], [True]), "labels: expected 2, one an id, got 1"),
        (lambda held: held.feedback("x", [0, 0], [True, True]), "ids: 0 comes twice"),
        (lambda held: held.feedback("x", [0], [2]), "labels: 2: expected True, False, 1, -1 or None"),
        (lambda held: held.feedback("x", [0]), "no critic"),
        (lambda held: held.feedback("x", range(60), [True] * 60), r"ids: expected at most 50 \(K\), got 60"),
        (lambda held: held.reflect("x"), "critic: expected one"),
        (lambda held: held.remove([3, 999]), "ids: 999: expected the id"),
        (lambda held: held.add(["a"], [0]), "ids: 0 is in use"),
        (lambda held: held.add(["a", "b"], [200, 200]), "ids: 200 comes twice"),
        (lambda held: held.add(["a"], [200, 201]), "ids: expected 1, one a text, got 2"),
        (lambda held: held.retrieve("x", 0), "k = 0: expected at least 1"),
        (lambda held: EARMemory("minlm"), "unknown encoder 'minlm'"),
        (lambda held: EARMemory(encoder, "bset"), "preset = 'bset'"),
        (lambda held: EARMemory(encoder, Preset(PRESETS["best"].config, False)), "words = False: expected True"),
        (lambda held: EARMemory(encoder, Preset(Config(), False)), "batch_size = 4: expected 1"),
    ],
)
def test_errors_name_what_is_wrong_and_change_nothing(call, message):
    held = made()
    before = answers(held, 3)
    with pytest.raises(ValueError, match=message):
        call(held)
    assert answers(held, 3) == before and len(held) == 150


def test_texts_and_ids_of_other_types_are_refused():
    held = made(5)
    for call in (lambda: held.add("one string"), lambda: held.add([3]), lambda: held.add(["a"], [1.5])):
        with pytest.raises(TypeError, match="expected"):
            call()
    broken = EARMemory(lambda texts, kind: np.full((len(texts), 3), np.nan))
    with pytest.raises(ValueError, match="expected embeddings that are finite"):
        broken.add(["a"])


def test_the_callers_labels_win_over_the_critics():
    asked = []

    def critic(query, ids, texts):
        def cite(queries, slates, uniforms):
            asked.append(list(ids))
            return torch.tensor([1, -1, 1])[slates], slates != 2  # the third cannot be read

        return cite

    held = made(40, critic=critic)
    shown = [one.id for one in held.retrieve("garden", 5)]
    held.feedback("garden", shown, [False, None, True, None, None])
    assert asked == [[shown[1], shown[3], shown[4]]]
    index = held._learner.index[0].tolist()
    said = {index[at] - 1: held._learner.buffer.cited[0, 0, at].item() for at in range(len(index)) if index[at]}
    assert [said[id] for id in shown] == [-1, 1, 1, -1, 0]


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
    deadline, number = time.monotonic() + 4, 100
    while time.monotonic() < deadline and not problems:
        held.add([text(number), text(number + 1)])
        held.remove([number - 100, number - 99])
        told(held, 1, start=number)
        number += 2
    stop.set()
    for thread in readers:
        thread.join()
    assert not problems and len(held) == 100 and len(reads) > 20 and number > 120


def test_writers_wait_for_each_other():
    held = made(50, preset(depth=10))
    writers = [threading.Thread(target=told, args=(held, 10, start)) for start in (0, 20, 40)]
    writers += [threading.Thread(target=lambda: [held.add(["more"]) for _ in range(20)])]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    assert held._learner.known == 30 and len(held) == 70


# -- on the disk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["best", "paper"])
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
    again = EARMemory.load(tmp_path / "a", encoder)
    assert answers(again) == before and len(again) == len(held)
    for one in (held, again):
        told(one, 5, start=60)
    assert answers(again) == answers(held)
    again.save(tmp_path / "b")
    again.close()
    last = EARMemory.load(tmp_path / "b", encoder)
    assert answers(last) == answers(held) and last.add(["new"]) == held.add(["new"])
    last.close()


def test_an_empty_memory_is_kept_too(tmp_path):
    held = EARMemory(encoder)
    held.save(tmp_path)
    held.add(["first"])
    held.close()
    again = EARMemory.load(tmp_path, encoder)
    assert [one.text for one in again.retrieve("first")] == ["first"]
    again.close()


def test_a_long_journal_becomes_a_state(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CHANGES", 4)
    held = made(40, preset(depth=10))
    held.save(tmp_path)
    told(held, 10)
    before = answers(held)
    held.close()
    state = json.loads((tmp_path / "state.json").read_text())
    assert state["generation"] == 3
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["journal-3.jsonl", "lock", "state-3.safetensors", "state.json"]
    assert len((tmp_path / "journal-3.jsonl").read_text().splitlines()) == 2
    again = EARMemory.load(tmp_path, encoder)
    assert answers(again) == before
    again.close()


def test_every_cut_of_the_last_line_loses_that_change_alone(tmp_path):
    held = made(40, preset(depth=10))
    held.save(tmp_path)
    told(held, 2)
    before = answers(held)
    told(held, 1, start=20)
    after = answers(held)
    held.close()
    file = tmp_path / "journal-1.jsonl"
    content = file.read_bytes()
    last = content.rindex(b"\n", 0, -1) + 1
    for cut in [*range(last + 1, len(content), 97), len(content) - 1]:
        file.write_bytes(content[:cut])
        with pytest.warns(UserWarning, match="the last line was cut short"):
            again = EARMemory.load(tmp_path, encoder)
        assert answers(again) == before
        told(again, 1, start=20)  # what follows stands on a line of its own
        again.close()
        again = EARMemory.load(tmp_path, encoder)
        assert answers(again) == after
        again.close()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "state.json").unlink(), "there is no state.json"),
        (lambda folder: (folder / "state.json").write_text("{"), "state.json: damaged"),
        (lambda folder: (folder / "state.json").write_text('{"version": 9}'), "version 9: expected 1"),
        (lambda folder: (folder / "state-1.safetensors").write_bytes(b"x"), "state-1.safetensors: damaged or missing"),
        (lambda folder: (folder / "journal-1.jsonl").write_bytes(b"{}\n?\n{}\n"), "line 2 of 3 is damaged"),
    ],
)
def test_a_damaged_folder_is_named(tmp_path, damage, message):
    held = made(10)
    held.save(tmp_path)
    held.close()
    damage(tmp_path)
    with pytest.raises(ValueError, match=message):
        EARMemory.load(tmp_path, encoder)
    journal.Journal(tmp_path).close()  # and it is not left locked


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


def test_a_change_that_cannot_be_written_is_not_made(tmp_path, monkeypatch):
    held = made(40, preset(depth=10))
    held.save(tmp_path)
    before = answers(held)
    with monkeypatch.context() as patch:
        def full(handle):
            raise OSError(28, "No space left on device")

        patch.setattr(journal.os, "fsync", full)
        with pytest.raises(OSError, match="cannot write .*journal-1.jsonl: No space left"):
            told(held, 1)
    assert answers(held) == before
    told(held, 3)
    before = answers(held)
    held.close()
    again = EARMemory.load(tmp_path, encoder)
    assert answers(again) == before
    again.close()


CHILD = """
import sys
sys.path.insert(0, {tests!r})
import test_memory as t
from earlib import memory
memory.CHANGES = 7
held = memory.EARMemory.load({folder!r}, t.encoder)
start = held._learner.known
print("ready", start, flush=True)
for number in range(start, 100000):
    t.told(held, 1, number)
    print(number + 1, flush=True)
"""


def test_a_kill_at_any_moment_loses_at_most_the_feedback_in_flight(tmp_path):
    held = made(60, preset(depth=10))
    held.save(tmp_path)
    held.close()
    straight, rng = made(60, preset(depth=10)), np.random.default_rng(0)
    for _ in range(4):
        code = CHILD.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline().startswith("ready")
        time.sleep(rng.uniform(0.02, 0.4))
        child.send_signal(signal.SIGKILL)
        told_of = child.communicate()[0].split()
        acknowledged = int(told_of[-1]) if told_of else 0
        again = EARMemory.load(tmp_path, encoder)
        known = again._learner.known
        assert known >= acknowledged and known <= max(acknowledged, straight._learner.known) + 1
        told(straight, known - straight._learner.known, start=straight._learner.known)
        assert answers(again, 5) == answers(straight, 5)  # bit for bit what it would be without any kill
        again.close()
    assert known > 10


# -- real parts --------------------------------------------------------------------------------------------------------


def test_with_the_real_encoder_it_remembers_across_a_restart(tmp_path):
    held = EARMemory()
    held.add(["Ada plays the cello", "Ben is allergic to nuts", "The cat sleeps in the garage"])
    assert held.retrieve("Which instrument does Ada play?", 1)[0].text == "Ada plays the cello"
    held.feedback("Which instrument does Ada play?", [0, 1], [True, False])
    held.save(tmp_path)
    before = held.retrieve("What must Ben not eat?")
    held.close()
    again = EARMemory.load(tmp_path)
    assert again.retrieve("What must Ben not eat?") == before and before[0].id == 1
    again.close()
    (tmp_path / "state.json").write_text(
        json.dumps(json.loads((tmp_path / "state.json").read_text()) | {"encoder": "of other weights"})
    )
    with pytest.raises(ValueError, match="encoded by other weights of minilm"):
        EARMemory.load(tmp_path)


def reads(body):
    """A model's reply by a rule: it cites the memories about a cello."""
    shown = re.findall(r"- Memory \[(\d+)\]:\n (.*)", body["messages"][-1]["content"].split("**Input**")[-1])
    return says(f"Answer: so.\nCitations: [{', '.join(at for at, told in shown if 'cello' in told) or 'NO_CITE'}]")


def test_a_language_model_may_be_the_critic(tmp_path, monkeypatch):
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path))
    with ScriptedServer(rule=reads) as server:
        held = made(40, critic=memory.by_model(Client("m", server.url), 64))
        seen = held.reflect("a garden, a cello?")
        assert len(server.requests) == 4 and len(seen) >= 5
        assert seen == {id: 1.0 if "cello" in text(id) else -1.0 for id in seen} and set(seen.values()) == {1.0, -1.0}
        shown = [one.id for one in held.retrieve("river cello", 5)]
        held.feedback("river cello", shown)
    index = held._learner.index[1].tolist()
    said = {index[at] - 1: held._learner.buffer.cited[0, 1, at].item() for at in range(len(index)) if index[at]}
    assert [said[id] for id in shown] == [1.0 if "cello" in text(id) else -1.0 for id in shown]


def test_a_life_learns_from_made_dialogues():
    setting = experiment.Setting(dataset="toy", seeds=1)
    still, learned = (agent.live(setting, way) for way in ("memory_still", "memory_feedback"))
    assert np.array_equal(still.queries, learned.queries) and still.values.shape == learned.values.shape
    half = still.queries.shape[1] // 2
    assert np.nanmean(learned.values[0, :, half:]) > np.nanmean(still.values[0, :, half:]) + 0.1
    assert learned.weight[0] != 0 and still.weight[0] == 0
    lives = {"memory_still": still, "memory_feedback": learned}
    made = agent.along(setting, lives, every=60)
    values = learned.values[0, 0, 60:120]
    (row,) = (row for row in made if row["variant"] == "memory_feedback" and row.get("asked") == 120)
    assert row["measured"] == pytest.approx(100 * np.nanmean(values)) and row["difference"] > 0
    (_, row) = agent.second_half(setting, lives, "memory_still")
    assert row["measured"] == pytest.approx(100 * np.nanmean(learned.values[0, 0, half:])) and row["p"] < 0.01
    told = agent.moments(setting, still, learned, count=2)
    assert f"found: {(learned.values[0, 0] > still.values[0, 0]).sum()} of" in told and "lost:" in told
