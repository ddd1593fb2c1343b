"""LongMemEval_S: what is read, counted, kept once and left out; every fault named; on real questions and made ones."""

import contextlib
import copy
import hashlib
import json
import socket
import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import made_longmemeval
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earlib import paths
from earlib.core.config import Config
from earlib.data import candidates, download, longmemeval
from earlib.data.benchmarks import ADVERSARIAL, Benchmark, Memory, Query, lacking, load, statistics
from earlib.experiments import comparisons, measures, runs, settings

REAL = "longmemeval_sample.json"
SIZE = made_longmemeval.Size(
    questions=40, sessions=160, turns=1441, appearances=190, abstentions=3, repeated=2, numbers=3, assistant_only=4
)

# One question in LongMemEval's form; each error case spoils one thing in it.
QUESTION = {
    "question_id": "q1",
    "question_type": "multi-session",
    "question": "What did I buy?",
    "answer": "a boat",
    "question_date": "2023/05/30 (Tue) 23:40",
    "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 03:24"],
    "haystack_session_ids": ["s1", "answer_1"],
    "haystack_sessions": [
        [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello."}],
        [
            {"role": "user", "content": " I bought a boat. ", "has_answer": True},
            {"role": "assistant", "content": "Nice!", "has_answer": False},
            {"role": "user", "content": "Hello."},
        ],
    ],
    "answer_session_ids": ["answer_1"],
}
SESSIONS = "haystack_sessions"
REQUIRED = [key for key in QUESTION if key != "answer_session_ids"]


def changed(place, value=None, question=QUESTION):
    """The question with another value at a place, or without it."""
    *way, last = place
    question = inner = copy.deepcopy(question)
    for key in way:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return question


def written(folder, *questions):
    path = folder / "made.json"
    path.write_text(json.dumps(questions), encoding="utf-8")
    return path


def publish(monkeypatch, path, url=""):
    """Take the file for the publisher's."""
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(download.FILES, longmemeval.FILE, download.File(url, content, "MIT"))


@pytest.fixture(scope="module")
def real():
    for folder in paths.data_folders():
        if (folder / REAL).exists():
            return folder / REAL
    pytest.skip(f"{REAL} is in none of {[str(folder) for folder in paths.data_folders()]}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data folder that holds a small made file; turns are short, so that it is encoded soon."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        for role, lengths in made_longmemeval.LENGTHS.items():
            patch.setitem(made_longmemeval.LENGTHS, role, tuple(min(length, 40) for length in lengths))
        made_longmemeval.write(folder / longmemeval.FILE, SIZE)
    return folder


@pytest.fixture(scope="module")
def made(folder):
    return longmemeval.read(folder / longmemeval.FILE)


# -- what is read ------------------------------------------------------------------------------------------------------


def test_small_file_is_read_whole(tmp_path):
    small = longmemeval.read(written(tmp_path, QUESTION))
    first, second = QUESTION["haystack_dates"]
    assert small.memories == (
        Memory("q1/s1:1", "q1", "dialogue", "s1", first, "user: Hello."),
        Memory("q1/s1:2", "q1", "dialogue", "s1", first, "assistant: Hello."),
        Memory("q1/answer_1:1", "q1", "dialogue", "answer_1", second, "user: I bought a boat."),
        Memory("q1/answer_1:2", "q1", "dialogue", "answer_1", second, "assistant: Nice!"),
        Memory("q1/answer_1:3", "q1", "dialogue", "answer_1", second, "user: Hello."),
    )
    assert small.queries == (Query("q1", "q1", "What did I buy?", "a boat", "multi-session", ("q1/answer_1:1",)),)
    assert small.audit == ()
    assert small.shared_sessions


def test_real_questions_are_read_as_they_stand(real):
    """Every turn of the source, found again; nothing besides."""
    source, benchmark = json.loads(real.read_text(encoding="utf-8")), longmemeval.read(real)
    expected, gold = {}, {}
    for question in source:
        scope, marked = question["question_id"], []
        for name, turns in zip(question["haystack_session_ids"], question[SESSIONS], strict=True):
            for number, turn in enumerate(turns, 1):
                expected[f"{scope}/{name}:{number}"] = f"{turn['role']}: {turn['content'].strip()}"
                marked += [f"{scope}/{name}:{number}"] * bool(turn.get("has_answer"))
        gold[scope] = tuple(dict.fromkeys(marked))
    assert {memory.id: memory.text for memory in benchmark.memories} == expected
    assert len(benchmark.memories) == len(expected)
    assert {query.id: query.gold for query in benchmark.queries} == {
        scope: () if scope.endswith("_abs") else marked for scope, marked in gold.items()
    }
    assert [query.answer for query in benchmark.queries] == [str(question["answer"]) for question in source]
    assert [query.category for query in benchmark.queries] == [question["question_type"] for question in source]


def test_real_haystacks_are_those_of_the_publisher(real):
    counted = statistics(longmemeval.read(real))
    assert counted["haystacks"] == counted["queries"] and counted["observations"] == 0
    assert counted["sessions"] <= counted["haystack_sessions"]
    assert set(counted["categories"]) <= set(longmemeval.CATEGORIES)


def test_dates_come_first_where_asked(tmp_path):
    path = written(tmp_path, QUESTION)
    plain, dated = longmemeval.read(path), longmemeval.read(path, dates=True)
    assert [one.text for one in dated.memories] == [f"[{one.date}] {one.text}" for one in plain.memories]
    assert dated.fingerprint() != plain.fingerprint()
    assert load("longmemeval", dates=True, file=path) == dated
    assert load("longmemeval", captions=False, file=path) == plain


def test_equal_texts_are_one_object(tmp_path):
    other = changed(["question_id"], "q2")
    memories = longmemeval.read(written(tmp_path, QUESTION, other)).memories
    by_id = {memory.id: memory for memory in memories}
    assert by_id["q1/s1:1"].text is by_id["q1/answer_1:3"].text is by_id["q2/s1:1"].text
    for field in ("session", "date"):
        assert getattr(by_id["q1/s1:1"], field) is getattr(by_id["q2/s1:2"], field)


def test_made_file_has_its_counts(made):
    counted = statistics(made)
    assert sum(counted.pop("categories").values()) == SIZE.questions
    assert counted.pop("haystack_turns") > counted["turns"]
    assert counted == {
        "queries": SIZE.questions,
        "with_gold": SIZE.questions - SIZE.abstentions,
        "haystacks": SIZE.questions,
        "sessions": SIZE.sessions,
        "turns": SIZE.turns,
        "haystack_sessions": SIZE.appearances - SIZE.repeated,
        "observations": 0,
    }
    kinds = Counter(finding.kind for finding in made.audit)
    assert kinds == {
        "repeated session": SIZE.repeated,
        "abstention question": SIZE.abstentions,
        "answer is a number": SIZE.numbers,
    }
    gold = {memory for query in made.queries for memory in query.gold}
    roles = Counter(memory.text.partition(":")[0] for memory in made.memories if memory.id in gold)
    assert set(roles) == set(longmemeval.ROLES)
    assert roles["assistant"] == SIZE.assistant_only * made_longmemeval.EVIDENCE


# -- what is odd -------------------------------------------------------------------------------------------------------


def twice(turns):
    """The question with a third session under the name of the first."""
    question = copy.deepcopy(QUESTION)
    for key, value in zip(longmemeval.LISTS, ("s1", "2023/05/22 (Mon) 10:00", turns), strict=True):
        question[key].append(value)
    return question


def test_repeated_session_is_held_once(tmp_path):
    again = longmemeval.read(written(tmp_path, twice(QUESTION[SESSIONS][0])))
    assert again.memories == longmemeval.read(written(tmp_path, QUESTION)).memories
    assert [(one.place, one.kind, one.kept) for one in again.audit] == [
        ("[0] q1.haystack_sessions[2]", "repeated session", "once")
    ]


def test_two_sessions_of_one_name_are_both_kept(tmp_path):
    question = twice([{"role": "user", "content": "Bye.", "has_answer": True}])
    both = longmemeval.read(written(tmp_path, question))
    assert [memory.id for memory in both.memories][-1] == "q1/s1#2:1"
    assert both.queries[0].gold == ("q1/answer_1:1", "q1/s1#2:1")
    assert len({memory.id for memory in both.memories}) == 6
    assert [one.kind for one in both.audit] == ["session of the same name with other turns"]
    assert statistics(both)["sessions"] == 3


def test_a_session_of_several_haystacks_counts_once(tmp_path):
    other = changed(["question_id"], "q2")
    counted = statistics(longmemeval.read(written(tmp_path, QUESTION, other)))
    assert {key: counted[key] for key in ("sessions", "turns", "haystack_sessions", "haystack_turns")} == {
        "sessions": 2, "turns": 5, "haystack_sessions": 4, "haystack_turns": 10,
    }  # fmt: skip


MARKED = (SESSIONS, 1, 0, "has_answer")


@pytest.mark.parametrize(
    "place, value, finding, answer, gold",
    [
        (["question_id"], "q1_abs", ("[0] q1_abs", "abstention question", "1 turns marked"), "a boat", 0),
        (MARKED, False, ("[0] q1", "no turn marked", "no has_answer"), "a boat", 0),
        (MARKED, None, ("[0] q1", "no turn marked", "no has_answer"), "a boat", 0),
        (["answer"], 3, ("[0] q1.answer", "answer is a number", "3"), "3", 1),
        (["answer"], 2.5, ("[0] q1.answer", "answer is a number", "2.5"), "2.5", 1),
        ((SESSIONS, 0), [], ("[0] q1.haystack_sessions[0]", "empty session", "[]"), "a boat", 1),
        ((SESSIONS, 0, 1, "content"), " ", ("[0] q1.haystack_sessions[0][1].content", "empty turn", "' '"),
         "a boat", 1),
        (["question_date"], "2023/05/20 (Sat) 02:22",
         ("[0] q1.question_date", "asked before the last session", "2023/05/20 (Sat) 02:22 < 2023/05/21 (Sun) 03:24"),
         "a boat", 1),
    ],
)  # fmt: skip
def test_odd_entry_is_kept_and_noted(tmp_path, place, value, finding, answer, gold):
    odd = longmemeval.read(written(tmp_path, changed(place, value)))
    assert [one[:3] for one in odd.audit] == [finding]
    (query,) = odd.queries
    assert (query.answer, len(query.gold)) == (answer, gold)


# -- what is wrong -----------------------------------------------------------------------------------------------------


def refused(path, *words):
    with pytest.raises(ValueError) as caught:
        longmemeval.read(path)
    for word in (str(path), "expected", *words):
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_key_is_named(tmp_path, key):
    place = "[1].question_id" if key == "question_id" else f"[1] q2.{key}"
    question = changed([key], question=changed(["question_id"], "q2"))
    refused(written(tmp_path, QUESTION, question), place, "no such key")


@pytest.mark.parametrize(
    "place, value, words",
    [
        (["question_id"], 7, ["[0].question_id", "a text", "int"]),
        (["question_id"], "a b", ["[0].question_id", "without spaces", "'a b'"]),
        (["question_id"], "a/b", ["[0].question_id", "slashes", "'a/b'"]),
        (["question_type"], "single-hop", ["q1.question_type", "one of single-session-user", "'single-hop'"]),
        (["question"], ["What?"], ["q1.question", "a text", "list"]),
        (["answer"], True, ["q1.answer", "a text or a number", "bool"]),
        (["question_date"], 2023, ["q1.question_date", "a text", "int"]),
        (["haystack_dates"], "2023", ["q1.haystack_dates", "a list", "str"]),
        (["haystack_dates"], ["2023/05/20 (Sat) 02:21"], ["q1.haystack_session_ids", "as many entries", "2, 1 and 2"]),
        (["haystack_session_ids"], ["a", "b", "c"], ["q1.haystack_session_ids", "as many entries", "3, 2 and 2"]),
        (["haystack_session_ids", 1], 5, ["q1.haystack_session_ids[1]", "a text", "int"]),
        (["haystack_dates", 0], {}, ["q1.haystack_dates[0]", "a text", "dict"]),
        ((SESSIONS, 0), {}, ["q1.haystack_sessions[0]", "a list", "dict"]),
        ((SESSIONS, 0, 1), "Hello.", ["q1.haystack_sessions[0][1]", "an object", "str"]),
        ((SESSIONS, 0, 1, "role"), None, ["q1.haystack_sessions[0][1].role", "no such key"]),
        ((SESSIONS, 0, 1, "role"), "system", ["q1.haystack_sessions[0][1].role", "user or assistant", "'system'"]),
        ((SESSIONS, 0, 1, "content"), None, ["q1.haystack_sessions[0][1].content", "no such key"]),
        ((SESSIONS, 0, 1, "content"), 3, ["q1.haystack_sessions[0][1].content", "a text", "int"]),
        (MARKED, "yes", ["q1.haystack_sessions[1][0].has_answer", "true or false", "str"]),
        (MARKED, 1, ["q1.haystack_sessions[1][0].has_answer", "true or false", "int"]),
    ],
)
def test_bad_field_is_named_with_file_and_question(tmp_path, place, value, words):
    refused(written(tmp_path, changed(place, value)), *words)


def test_question_that_occurs_twice_is_named(tmp_path):
    refused(written(tmp_path, QUESTION, QUESTION), "[1].question_id", "occurs once", "'q1'")


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", ["complete JSON", "after 0 whole questions"]),
        (b"[]", ["the whole file", "at least one question"]),
        (b"{}", ["the whole file", "a list"]),
        (b'"text"', ["the whole file", "a list"]),
        (b"[7]", ["[0]", "an object", "int"]),
        (b"[{]", ["complete JSON"]),
        (b"[\xff]", ["complete JSON"]),
        (b'[{"question_id": "\xff"}]', ["complete JSON"]),
    ],
)
def test_file_of_another_form_is_named(tmp_path, content, words):
    path = tmp_path / "made.json"
    path.write_bytes(content)
    refused(path, *words)


@given(st.floats(0, 1, exclude_max=True))
def test_file_that_is_cut_off_anywhere_is_named(tmp_path_factory, share):
    whole = json.dumps([QUESTION, changed(["question_id"], "q2")]).encode()
    path = tmp_path_factory.mktemp("cut") / "made.json"
    path.write_bytes(whole[: int(share * len(whole))])
    refused(path, "complete JSON", "whole questions", "get the file again")


def places(value, way=()):
    """Where something lies in a question."""
    yield way
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        if key not in ("answer_session_ids", "answer"):
            yield from places(inner, (*way, key))


@given(st.sampled_from([one for one in places(QUESTION) if one]), st.sampled_from([3, 2.5, "x y", [7], {"a": 1}]))
def test_any_value_of_a_wrong_type_is_named(tmp_path_factory, place, value):
    inner = QUESTION
    for key in place:
        inner = inner[key]
    if isinstance(value, type(inner)):
        return  # another value of the right type
    path = written(tmp_path_factory.mktemp("wrong"), changed(place, value))
    refused(path, str(place[0]), "compare with the publisher's file")


TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(longmemeval.ROLES), "content": st.text(st.characters(codec="utf-8"), max_size=8)},
    optional={"has_answer": st.booleans()},
)
HAYSTACK = st.lists(st.tuples(st.sampled_from("abc"), st.lists(TURN, max_size=3)), max_size=5)


@given(st.lists(HAYSTACK, min_size=1, max_size=3))
def test_every_turn_is_kept_once_in_its_own_haystack(tmp_path_factory, haystacks):
    questions = [
        QUESTION | {
            "question_id": f"q{number}",
            "haystack_session_ids": [name for name, _ in haystack],
            "haystack_dates": ["2023/05/20 (Sat) 02:21"] * len(haystack),
            SESSIONS: [turns for _, turns in haystack],
        }
        for number, haystack in enumerate(haystacks)
    ]  # fmt: skip
    benchmark = longmemeval.read(written(tmp_path_factory.mktemp("any"), *questions))
    assert len({memory.id for memory in benchmark.memories}) == len(benchmark.memories)
    for query, haystack in zip(benchmark.queries, haystacks, strict=True):
        held = [memory for memory in benchmark.memories if memory.scope == query.scope]
        different = {json.dumps([name, [turn | {"has_answer": bool(turn.get("has_answer"))} for turn in turns]],
                                sort_keys=True): turns for name, turns in haystack}  # fmt: skip
        said = [f"{turn['role']}: {turn['content'].strip()}".strip() for turns in different.values() for turn in turns]
        assert [memory.text for memory in held] == said
        marked = [bool(turn.get("has_answer")) for turns in different.values() for turn in turns]
        assert query.gold == tuple(memory.id for memory, gold in zip(held, marked, strict=True) if gold)


# -- the file from its publisher ---------------------------------------------------------------------------------------


@pytest.fixture
def server(folder):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/{longmemeval.FILE}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A project folder of its own, and nothing found elsewhere."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.delenv("EARLIB_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "data"


def test_file_is_downloaded_checked_and_read(server, folder, made, home, monkeypatch):
    publish(monkeypatch, folder / longmemeval.FILE, server)
    assert load("longmemeval") == made
    assert [entry.name for entry in home.iterdir()] == [longmemeval.FILE]
    assert made.name == "LongMemEval_S"


def test_other_bytes_than_the_publishers_are_not_read(server, folder, home, monkeypatch, tmp_path):
    publish(monkeypatch, written(tmp_path, QUESTION), server)
    with pytest.raises(download.Unavailable, match="do not have the SHA-256"):
        load("longmemeval")
    assert not (home / longmemeval.FILE).exists()
    home.mkdir(exist_ok=True)
    (home / longmemeval.FILE).write_bytes((folder / longmemeval.FILE).read_bytes())
    with pytest.raises(ValueError, match="wrong checksum"):
        load("longmemeval")


@pytest.mark.parametrize("name", [longmemeval.FILE, longmemeval.ORIGINAL])
def test_without_network_it_says_where_to_put_the_file(name, home, monkeypatch):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as closed:
        port = closed.getsockname()[1]
    digest = download.FILES[name].sha256
    monkeypatch.setitem(download.FILES, name, download.File(f"http://127.0.0.1:{port}/", digest, ""))
    with pytest.raises(download.Unavailable, match=f"{name} cannot be had.*refused.*{digest}.*EARLIB_DATA"):
        load("longmemeval", file=name)


def test_loading_needs_less_memory_than_the_file_whole(tmp_path):
    """A fortieth of the full file: in proportion far within 2 GiB, which `make bench` measures on all of it."""
    few, many = (
        made_longmemeval.Size(n, 40 * n, 400 * n, 47 * n, abstentions=1, repeated=1, numbers=1, assistant_only=1)
        for n in (2, 24)
    )
    sizes, peaks = [], []
    for size in (few, many):
        path = made_longmemeval.write(tmp_path / longmemeval.FILE, size)
        sizes.append(path.stat().st_size)
        peaks.append(made_longmemeval.measured(path)[1])
    limit, full = 2 * 2**30, made_longmemeval.FULL.turns
    a_turn = (peaks[1] - peaks[0]) / (many.turns - few.turns)
    assert peaks[0] + a_turn * full < limit
    assert peaks[1] - peaks[0] < 2.5 * (sizes[1] - sizes[0])  # as objects a parsed whole takes more


# -- retrieval and evaluation ------------------------------------------------------------------------------------------


def test_retrieval_stays_in_the_questions_own_haystack(made):
    found = candidates.retrieve(made, depth=10)
    scopes = np.array([memory.scope for memory in made.memories])
    assert (scopes[found.index.numpy()] == np.array(found.scopes)[:, None]).all()
    gold = {query.id: set(query.gold) for query in made.queries}
    for number, row in enumerate(found.index.tolist()):
        held = [found.memory_ids[at] in gold[found.ids[number]] for at in row]
        assert found.gold[number].tolist() == held
    assert found.gold_count.tolist() == [len(query.gold) for query in made.queries]


def test_it_has_no_observations(made):
    assert lacking(made, "observation") == "LongMemEval_S has no observations"
    assert lacking(made, "dialogue") == ""


def test_gold_of_a_made_file_is_found_by_its_rare_words(made):
    found = candidates.retrieve(made, depth=5)
    ranked = candidates.by_words(made, found, 5)
    answered = ranked.gold_count > 0
    assert (ranked.gold.sum(1) == ranked.gold_count)[answered].double().mean() > 0.9


def test_a_small_experiment_runs_from_the_data_folder(folder, monkeypatch):
    publish(monkeypatch, folder / longmemeval.FILE)
    monkeypatch.setenv("EARLIB_DATA", str(folder))
    setting = settings.Setting(dataset="longmemeval", seeds=1)
    with forgotten():
        result = runs.run(setting, Config())
        (row, *_) = comparisons.rows(setting, "ear_adapter", result.adapter[-1], result.queries)
        without = [not query.gold for query in settings.benchmark("longmemeval").queries]
    assert result.adapter.shape == (2, len(measures.MEASURES), 1, 8)
    assert np.isnan(result.adapter[-1, 0, 0]).tolist() == [without[at] for at in result.queries[0]]
    assert (row["n_queries"], row["excluded"]) == (8 - row["excluded"], sum(without[at] for at in result.queries[0]))


@contextlib.contextmanager
def forgotten():
    """Benchmarks are loaded once a process; here from a folder of the test alone."""
    known = (settings.benchmark, settings._retrieved, settings.scopes)
    for one in known:
        one.cache_clear()
    try:
        yield
    finally:
        for one in known:
            one.cache_clear()


def test_questions_without_gold_are_left_out_and_counted(tmp_path):
    """100 questions, 5 of them abstentions and 2 with nothing marked: recall is a mean over 93, as in the paper."""
    questions = []
    for number in range(100):
        question = changed(["question_id"], f"q{number}" + longmemeval.ABSTENTION * (number < 5))
        questions.append(changed(MARKED, False, question) if number in (5, 6) else question)
    benchmark = longmemeval.read(written(tmp_path, *questions))
    assert statistics(benchmark)["with_gold"] == 93
    assert len(benchmark.asked) == 100 and ADVERSARIAL not in {query.category for query in benchmark.asked}
    values, queries = measures.ranking(candidates.retrieve(benchmark, depth=5), 5)
    told = measures.summary(values[0], queries)
    assert (told["n_queries"], told["excluded"]) == (93, 7)
    assert told["measured"] == 100  # five turns, all among the five


def test_statistics_of_another_dataset_count_conversations():
    memory = Memory("a/1", "a", "dialogue", "S1", "", "text")
    counted = statistics(Benchmark("b", (memory,), ()))
    assert counted["conversations"] == 1 and "haystacks" not in counted
