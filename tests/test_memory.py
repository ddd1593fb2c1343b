"""The live memory as its callers see it: what they may give, what comes back, and what else it tells."""

import asyncio
import copy
import json
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from made_memory import WIDTH, answers, edit_snapshot, encoder, kept, labelled, made, preset, reopened, text, told
from scripted_server import ScriptedServer, says

from earlib.core.config import Config
from earlib.llm.client import Client
from earlib.memory import PRESETS, EARMemory, Preset, by_model, encoding, plain_features, validation
from earlib.memory.context import beside


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
    for _ in range(2):
        found = [one for one in held.retrieve("the cello?", len(held)) if one.text == "the cello is loud"]
        assert [one.id for one in found] == equal and len({one.score for one in found[:50]}) == 1
        assert len(found) == count
        held.close()
        held = EARMemory.load(tmp_path, encoder)
    held.close()


def counting(kind, asked):
    """An encoder that notes what it is asked for."""

    def counted(texts, its):
        asked.extend(texts if its == kind else [])
        return noisy(texts, its)

    return counted


def test_a_text_is_encoded_once():
    asked = []
    held = EARMemory(counting("memory", asked))
    held.add(["a", "b", "a", "c", "b"])
    assert held.add(["c", "d", "a"]) == [5, 6, 7] and asked == ["a", "b", "c", "d"]
    held.remove([0, 2, 7])
    held.add(["a"])  # its embedding is still there
    assert asked == ["a", "b", "c", "d"]
    now = held._state.now
    for letter in "abcd":
        rows = [row for row, one in enumerate(now.memories) if one.text == letter]
        assert (now.bank[rows] == now.bank[rows[0]]).all()


def test_a_question_is_encoded_once_for_its_retrieval_feedback_and_reflection(monkeypatch):
    asked = []
    monkeypatch.setattr(encoding, "QUESTIONS", 2)
    held = EARMemory(counting("query", asked), critic=lambda query, texts: [True for _ in texts])
    held.add([text(number) for number in range(30)])
    for query in ("river", "song", "river"):
        shown = held.retrieve(query)
        held.feedback(query, shown, [True] * len(shown))
        held.reflect(query)
    assert asked == ["river", "song"]
    held.retrieve("nut")  # the one that was not asked for longest has to make room
    assert held.retrieve("river") and held.retrieve("song") and asked == ["river", "song", "nut", "song"]


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
    with reopened(held, tmp_path) as again:
        assert again.retrieve("a garden", 3, "user") == ranked
        again.save(tmp_path)
        again.export(tmp_path.parent / "memories.jsonl", "user")
        with reopened(again, tmp_path) as last:
            assert last.retrieve("a garden", 3, "user") == ranked
    lines = (tmp_path.parent / "memories.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [one._asdict() for one in every if one.namespace == "user"]


def test_conditions_are_of_json_and_given_copies(tmp_path):
    held = EARMemory(encoder)
    held.add(["a cello"], metadata=[{"tags": (1, [2])}])
    assert held.list(where={"tags": (1, (2,))}) == held.list(where=lambda one: one.metadata["tags"].pop()) != []
    held.export(tmp_path / "kept")
    assert json.loads((tmp_path / "kept").read_text(encoding="utf-8"))["metadata"] == {"tags": [1, [2]]}


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
    held, plain = EARMemory(given), EARMemory(encoder)
    for one in (held, plain):
        one.add([text(number) for number in range(20)])
    held.save(tmp_path)
    with reopened(held, tmp_path, given) as again:
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
        (lambda held: EARMemory(encoder, features="x"), "features: expected a callable"),
        (lambda held: EARMemory(encoder, "paper", features=plain_features), "a preset that learns weights"),
        (lambda held: held.feedback("x", [1], [True], source=[1]), "source: expected int or str, found list"),
        (lambda held: held.keep_learning(3), "name: expected a string, found int 3"),
        (lambda held: held.export("never", namespace=1), "namespace: expected a string, found int 1"),
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
        (lambda held: made(5).feedback("x", [0]), "labels: expected some, since the memory has no critic"),
        (lambda held: made(5).reflect("x"), "critic: expected one"),
        (
            lambda held: EARMemory(encoder, features=lambda query, texts: None),
            r"features: .* numbers \[1, any\], a row",
        ),
        (
            lambda held: EARMemory(encoder, features=lambda query, texts: [[np.nan]]),
            "features: expected finite numbers",
        ),
        (lambda held: EARMemory(encoder, features=lambda query, texts: [[1.0]] * 3), r"features: .*got \[3, 1\]"),
        (lambda held: held.restore_learning("good"), "name: 'good': expected one of those kept .none."),
        (lambda held: EARMemory(encoder).keep_learning("good"), "the memory is empty"),
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


@pytest.mark.parametrize("way", ["remove", "upsert", "remove and add"])
def test_a_memory_removed_or_replaced_while_the_critic_answers_is_dropped_from_what_it_said(tmp_path, way):
    def critic(query, texts):
        held.upsert(["another"] * len(gone), gone) if way == "upsert" else held.remove(gone)
        held.add(["another"] * len(gone), gone) if way == "remove and add" else None
        return [True for _ in texts]

    held, gone = made(40, preset(depth=10), critic=critic), []
    held.save(tmp_path)
    shown, then = [one.id for one in held.retrieve("garden", 5)], held._state.now
    gone[:] = shown[1:2]
    assert held.feedback("garden", shown) == 4 and then.get(shown[1]).text == text(shown[1])
    assert {id for id, said in labelled(held).items() if said} == set(shown) - {shown[1]}
    gone[:] = shown[2:4]
    assert held.feedback("garden", shown[2:4]) == 0 and held._state.learner.known == 1  # nothing is left to learn from
    reopened(held, tmp_path).close()


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


def test_a_change_within_a_change_is_refused():
    def features(query, texts):
        return [[bool(asked) and held.stats()["memories"]] for _ in texts]

    asked = []
    held = EARMemory(encoder, features=features)
    held.add(["a cello"])
    asked.append(held)
    with pytest.raises(RuntimeError, match="may read the memory and nothing else"):
        held.feedback("a cello", [0], [True])


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
    named = type("Vectors", (), {"__call__": lambda self, texts: encoder(texts), "name": "my vectors"})()
    assert "encoder my vectors," in repr(EARMemory(named))
    EARMemory.load(tmp_path, encoder).close()  # the block has closed it
    empty = EARMemory("sentence-transformers/all-MiniLM-L6-v2")
    assert "encoder minilm" in repr(empty) and empty.ids() == [] and 0 not in empty and len(empty) == 0
    for copied in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(TypeError, match="use save and load"):
            copied(held)


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


def test_a_memory_brings_no_client_for_downloads():
    told = "import sys, earlib.memory; print('pooch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True).stdout == "False\n"
