"""LongMemEval_S: what is read, counted, kept once and left out, with every fault named; real and synthetic."""

import hashlib
import json
from collections import Counter

import made_longmemeval
import numpy as np
import pytest
from faults import changed, real_file, refused, written
from hypothesis import given
from hypothesis import strategies as st
from made_longmemeval import QUESTION

from earlib.core.config import Config
from earlib.data import candidates, download, fields, longmemeval
from earlib.data.benchmarks import Benchmark, Memory, Query, lacking, load, statistics
from earlib.experiments import comparisons, measures, runs, settings

SIZE = made_longmemeval.Size(10, 40, 401, 50, abstentions=2, repeated=2, numbers=3, assistant_only=3)

SESSIONS = "haystack_sessions"
MARKED, CONTENT = (SESSIONS, 1, 0, "has_answer"), (SESSIONS, 0, 1, "content")
SECOND = QUESTION | {"question_id": "q2"}
EARLY = "2023/05/20 < 2023/05/21 (Sun) 03:24"


@pytest.fixture
def read(tmp_path):
    return lambda *questions: longmemeval.read(written(tmp_path, *questions))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data folder that holds a small synthetic file; turns are short, so that it is encoded soon."""
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
    path = written(tmp_path, QUESTION)
    small, dated = longmemeval.read(path), longmemeval.read(path, dates=True)
    turns = [("s1:1", "user: Hello."), ("s1:2", "assistant: Hello."), ("answer_1:1", "user: I bought a boat.")]
    turns += [("answer_1:2", "assistant: Nice!"), ("answer_1:3", "user: Hello.")]
    dates = dict(zip(QUESTION["haystack_session_ids"], QUESTION["haystack_dates"], strict=True))
    held = [(turn, turn.split(":")[0], text) for turn, text in turns]
    assert small.memories == tuple(
        Memory(f"q1/{turn}", "q1", "dialogue", session, dates[session], text) for turn, session, text in held
    )
    asked = ("q1", "q1", "What did I buy?", "a boat", "multi-session", ("q1/answer_1:1",), "2023/05/30 (Tue) 23:40")
    assert small.queries == (Query(*asked),)
    assert small.audit == () and small.shared_sessions
    assert [one.text for one in dated.memories] == [f"[{one.date}] {one.text}" for one in small.memories]
    assert dated.fingerprint() != small.fingerprint()
    assert load("longmemeval", dates=True, file=path) == dated
    assert load("longmemeval", captions=False, file=path) == small


def test_real_questions_are_read_as_they_stand():
    """Every turn of the source is found again, and no other."""
    real = real_file("longmemeval_sample.json")
    source, benchmark = json.loads(real.read_text(encoding="utf-8")), longmemeval.read(real)
    expected, gold = {}, {}
    for question in source:
        scope, marked = question["question_id"], []
        for name, turns in zip(question["haystack_session_ids"], question[SESSIONS], strict=True):
            for number, turn in enumerate(turns, 1):
                expected[f"{scope}/{name}:{number}"] = f"{turn['role']}: {turn['content'].strip()}"
                marked += [f"{scope}/{name}:{number}"] * bool(turn.get("has_answer"))
        gold[scope] = () if scope.endswith("_abs") else tuple(dict.fromkeys(marked))
    assert {memory.id: memory.text for memory in benchmark.memories} == expected
    assert len(benchmark.memories) == len(expected)
    assert {query.id: query.gold for query in benchmark.queries} == gold
    assert [query.answer for query in benchmark.queries] == [str(question["answer"]) for question in source]
    assert [query.category for query in benchmark.queries] == [question["question_type"] for question in source]
    counted = statistics(benchmark)
    assert counted["haystacks"] == counted["queries"] and counted["observations"] == 0
    assert counted["sessions"] <= counted["haystack_sessions"]
    assert set(counted["categories"]) <= set(longmemeval.CATEGORIES)


def test_equal_texts_are_one_object_and_shared_sessions_count_once(read):
    both = read(QUESTION, SECOND)
    by_id = {memory.id: memory for memory in both.memories}
    assert by_id["q1/s1:1"].text is by_id["q1/answer_1:3"].text is by_id["q2/s1:1"].text
    for field in ("session", "date"):
        assert getattr(by_id["q1/s1:1"], field) is getattr(by_id["q2/s1:2"], field)
    counted = statistics(both)
    assert [counted[key] for key in ("sessions", "turns", "haystack_sessions", "haystack_turns")] == [2, 5, 4, 10]
    counted = statistics(Benchmark("b", both.memories, ()))
    assert counted["conversations"] == 2 and "haystacks" not in counted


def test_made_file_has_its_counts(made):
    counted = statistics(made)
    assert sum(counted.pop("categories").values()) == counted.pop("queries") == SIZE.questions
    assert counted.pop("haystack_turns") > counted["turns"]
    found = {"haystacks": SIZE.questions, "sessions": SIZE.sessions, "turns": SIZE.turns, "observations": 0}
    found |= {"with_gold": SIZE.questions - SIZE.abstentions, "haystack_sessions": SIZE.appearances - SIZE.repeated}
    assert counted == found
    kinds = Counter(finding.kind for finding in made.audit)
    odd = {"repeated session": SIZE.repeated, "abstention question": SIZE.abstentions}
    assert kinds == odd | {"answer is a number": SIZE.numbers}
    gold = {memory for query in made.queries for memory in query.gold}
    roles = Counter(memory.text.partition(":")[0] for memory in made.memories if memory.id in gold)
    assert set(roles) == set(longmemeval.ROLES)
    assert roles["assistant"] == SIZE.assistant_only * made_longmemeval.EVIDENCE
    assert lacking(made, "observation") == "LongMemEval_S has no observations"
    assert lacking(made, "dialogue") == ""
    fewest = min(Counter(one.scope for one in made.memories).values())
    assert lacking(made, "dialogue", fewest) == ""
    expected = f"a conversation of LongMemEval_S has {fewest} dialogues: fewer than {fewest + 1}"
    assert lacking(made, "dialogue", fewest + 1) == expected


# -- what is odd -------------------------------------------------------------------------------------------------------


def twice(turns):
    """The question with a third session under the name of the first."""
    third = zip(longmemeval.LISTS, ("s1", "2023/05/22 (Mon) 10:00", turns), strict=True)
    return QUESTION | {key: [*QUESTION[key], value] for key, value in third}


def test_repeated_session_is_held_once(read):
    again = read(twice(QUESTION[SESSIONS][0]))
    assert again.memories == read(QUESTION).memories
    assert again.audit == (("[0] q1.haystack_sessions[2]", "repeated session", "s1", "once"),)


def test_two_sessions_of_one_name_are_both_kept(read):
    both = read(twice([{"role": "user", "content": "Bye.", "has_answer": True}]))
    assert [memory.id for memory in both.memories][-1] == "q1/s1#2:1"
    assert both.queries[0].gold == ("q1/answer_1:1", "q1/s1#2:1")
    assert len({memory.id for memory in both.memories}) == 6
    assert [one.kind for one in both.audit] == ["session of the same name with other turns"]
    assert statistics(both)["sessions"] == 3


@pytest.mark.parametrize(
    "place, value, finding, answer, gold",
    [
        (["question_id"], "q1_abs", " q1_abs | abstention question | 1 turns marked", "a boat", 0),
        (MARKED, False, " q1 | no turn marked | no has_answer", "a boat", 0),
        (MARKED, None, " q1 | no turn marked | no has_answer", "a boat", 0),
        (["answer"], 3, " q1.answer | answer is a number | 3", "3", 1),
        (["answer"], 2.5, " q1.answer | answer is a number | 2.5", "2.5", 1),
        ((SESSIONS, 0), [], " q1.haystack_sessions[0] | empty session | []", "a boat", 1),
        (CONTENT, " ", " q1.haystack_sessions[0][1].content | empty turn | ' '", "a boat", 1),
        (["question_date"], "2023/05/20", " q1.question_date | asked before the last session | " + EARLY, "a boat", 1),
    ],
)
def test_odd_entry_is_kept_and_noted(read, place, value, finding, answer, gold):
    odd = read(changed(QUESTION, place, value))
    assert [" | ".join(one[:3]) for one in odd.audit] == [f"[0]{finding}"]
    (query,) = odd.queries
    assert (query.answer, len(query.gold)) == (answer, gold)
    assert query.abstention == query.id.endswith("_abs")


# -- how a file is read ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_a_file_is_read_alike_wherever_it_is_divided(tmp_path, monkeypatch, size):
    whole = longmemeval.read(path := written(tmp_path, QUESTION, SECOND))
    monkeypatch.setattr(fields, "_BUFFER", size)
    assert longmemeval.read(path) == whole


@pytest.mark.parametrize("form", ["[{}, {}]", "[{},{}]", "[{}\n,\n{}\n]\n"])
def test_a_piece_may_end_between_entries(tmp_path, monkeypatch, form):
    path = tmp_path / longmemeval.FILE
    path.write_text(text := form.format(*map(json.dumps, (QUESTION, SECOND))), encoding="utf-8")
    whole, last = longmemeval.read(path), text.index(json.dumps(SECOND))
    for size in (*range(len(json.dumps(QUESTION)), last + 1), *range(last + len(json.dumps(SECOND)), len(text))):
        monkeypatch.setattr(fields, "_BUFFER", size)
        assert longmemeval.read(path) == whole


@given(st.floats(0, 1, exclude_max=True))
def test_file_that_is_cut_off_anywhere_is_named(tmp_path_factory, share):
    path = written(tmp_path_factory.getbasetemp(), QUESTION, SECOND)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    refused(longmemeval.read, path, "complete JSON", "whole entries", "get the file again")


TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(longmemeval.ROLES), "content": st.text(st.characters(codec="utf-8"), max_size=8)},
    optional={"has_answer": st.booleans()},
)
HAYSTACK = st.lists(st.tuples(st.sampled_from("abc"), st.lists(TURN, max_size=3)), max_size=5)


@given(st.lists(HAYSTACK, min_size=1, max_size=3))
def test_every_turn_is_kept_once_in_its_own_haystack(tmp_path_factory, haystacks):
    questions = []
    for number, haystack in enumerate(haystacks):
        # the names serve as dates too
        lists = {key: [value[at] for value in haystack] for key, at in zip(longmemeval.LISTS, (0, 0, 1), strict=True)}
        questions.append(QUESTION | {"question_id": f"q{number}"} | lists)
    benchmark = longmemeval.read(written(tmp_path_factory.getbasetemp(), *questions))
    assert len({memory.id for memory in benchmark.memories}) == len(benchmark.memories)
    for query, haystack in zip(benchmark.queries, haystacks, strict=True):
        held = [memory for memory in benchmark.memories if memory.scope == query.scope]
        different = dict.fromkeys(
            (name, tuple((turn["role"], turn["content"], bool(turn.get("has_answer"))) for turn in turns))
            for name, turns in haystack
        )
        said = [turn for _, turns in different for turn in turns]
        assert [memory.text for memory in held] == [f"{role}: {content.strip()}".strip() for role, content, _ in said]
        assert query.gold == tuple(memory.id for memory, turn in zip(held, said, strict=True) if turn[2])


def test_loading_needs_less_memory_than_the_file_whole(tmp_path):
    """A fortieth of the full file: in proportion far within 2 GiB, which `make bench` measures on all of it."""
    sizes, peaks, turns = [], [], (800, 9600)
    for questions in (2, 24):
        size = made_longmemeval.Size(questions, 40 * questions, 400 * questions, 47 * questions, 1, 1, 1, 1)
        path = made_longmemeval.write(tmp_path / longmemeval.FILE, size)
        sizes.append(path.stat().st_size)
        peaks.append(made_longmemeval.measured(path)[1])
    a_turn = (peaks[1] - peaks[0]) / (turns[1] - turns[0])
    assert peaks[0] + a_turn * made_longmemeval.FULL.turns < 2 * 2**30
    assert peaks[1] - peaks[0] < 2.5 * (sizes[1] - sizes[0])  # as objects a parsed whole takes more


# -- retrieval and evaluation ------------------------------------------------------------------------------------------


def test_retrieval_stays_in_the_questions_own_haystack(made):
    found = candidates.retrieve(made, depth=10)
    scopes = np.array([memory.scope for memory in made.memories])
    assert (scopes[found.index.numpy()] == np.array(found.scopes)[:, None]).all()
    gold = {query.id: set(query.gold) for query in made.queries}
    for number, row in enumerate(found.index.tolist()):
        assert found.gold[number].tolist() == [found.memory_ids[at] in gold[found.ids[number]] for at in row]
    assert found.gold_count.tolist() == [len(query.gold) for query in made.queries]
    ranked = candidates.by_words(made, found, 5)  # a gold turn holds rare words that its question asks for
    answered = ranked.gold_count > 0
    assert (ranked.gold.sum(1) == ranked.gold_count)[answered].double().mean() > 0.9


def test_a_small_experiment_runs_from_the_data_folder(folder, monkeypatch):
    content = hashlib.sha256((folder / longmemeval.FILE).read_bytes()).hexdigest()
    monkeypatch.setitem(download.FILES, longmemeval.FILE, download.File("", content, "MIT"))
    monkeypatch.setenv("EARLIB_DATA", str(folder))
    known = (settings.benchmark, settings._candidates)  # loaded once a process; here for this test alone
    setting = settings.Setting(dataset="longmemeval", seeds=1)
    for one in known:
        one.cache_clear()
    try:
        result = runs.run(setting, Config())
        (row, *_) = comparisons.rows(setting, "ear_adapter", result.adapter[-1], result.queries)
        without = [not query.gold for query in settings.benchmark("longmemeval").queries]
    finally:
        for one in known:
            one.cache_clear()
    assert result.adapter.shape == (2, len(measures.MEASURES), 1, 2)
    assert np.isnan(result.adapter[-1, 0, 0]).tolist() == [without[at] for at in result.queries[0]]
    assert (row["n_queries"], row["excluded"]) == (2 - row["excluded"], sum(without[at] for at in result.queries[0]))
