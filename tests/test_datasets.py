"""LoCoMo: the counts of the paper's Table 1, the irregular entries of the source, and clear errors for bad files."""

import json
from collections import Counter

import pytest
from faults import changed, faults, real_file, refused, written
from hypothesis import given
from hypothesis import strategies as st
from made_longmemeval import QUESTION as ASKED

from earlib.data import locomo, longmemeval
from earlib.data.benchmarks import Benchmark, Memory, Query, load, statistics

# As printed in the paper and contained in the file.
COUNTS = {"queries": 1540, "with_gold": 1536, "conversations": 10, "sessions": 272, "turns": 5882, "observations": 2541}
CATEGORIES = {"multi-hop": 282, "temporal": 321, "open-domain": 96, "single-hop": 841, "adversarial": 446}
MALFORMED = """
conv-26 qa[37].evidence | D8:6; D9:17 | D8:6 D9:17
conv-42 qa[58].evidence | D10:19 | nothing
conv-42 qa[88].evidence | D | nothing
conv-43 qa[18].evidence | D:11:26 | D11:26
conv-47 qa[38].evidence | D4:36 | nothing
conv-49 qa[31].evidence | D9:1 D4:4 D4:6 | D9:1 D4:4 D4:6
conv-49 qa[38].evidence | D22:1 D22:2 D9:10 D9:11 | D22:1 D22:2 D9:10 D9:11
conv-49 qa[46].evidence | D21:18 D21:22 D11:15 D11:19 | D21:18 D21:22 D11:15 D11:19
conv-50 qa[69].evidence | D30:05 | D30:5
"""
OTHER_KINDS = {"no evidence": 4, "repeated evidence": 1, "repeated question": 11, "question asked in two ways": 1}
OTHER_KINDS |= {"date without session": 16, "answer is a number": 6, "malformed source": 5}
SOURCES = {"Deborah has two cats": ("conv-48/D22:21", "conv-48/D22:23")}
SOURCES |= {"James is learning to play": ("conv-47/D3:2", "conv-47/D3:6")}


@pytest.fixture(scope="module")
def file():
    return real_file(locomo.FILE)


@pytest.fixture(scope="module")
def benchmark(file):
    return load("locomo")


def test_counts_are_those_of_the_paper(benchmark):
    assert statistics(benchmark) == COUNTS | {"categories": CATEGORIES}
    assert len(benchmark.queries) == 1986
    assert sum(1 <= len(query.gold) <= 5 for query in benchmark.asked) == 1513


def test_audit_lists_everything_irregular(benchmark):
    evidence, others = set(), Counter()
    for place, kind, found, kept in benchmark.audit:
        if kind in ("malformed evidence", "evidence without a turn"):
            evidence.add(f"{place} | {found} | {kept}")
        else:
            others[kind] += 1
    assert evidence == set(MALFORMED.strip().splitlines())
    assert others == OTHER_KINDS
    assert len(benchmark.audit) == 9 + sum(OTHER_KINDS.values())


def test_repaired_evidence_is_gold(benchmark):
    gold = {query.id: query.gold for query in benchmark.queries}
    assert gold["conv-26/Q37"] == ("conv-26/D8:6", "conv-26/D9:17")
    assert gold["conv-42/Q88"] == ("conv-42/D1:18", "conv-42/D1:20")
    assert "conv-43/D11:26" in gold["conv-43/Q18"]
    assert gold["conv-50/Q5"] == ("conv-50/D4:5", "conv-50/D5:5")
    assert gold["conv-50/Q69"] == ("conv-50/D30:5",)
    observations = [memory for memory in benchmark.memories if memory.store == "observation"]
    assert all(observation.sources for observation in observations)
    for start, sources in SOURCES.items():  # joined in one text, and as a list
        assert [one.sources for one in observations if one.text.startswith(start)] == [sources]


def test_ids_are_unique_and_every_reference_stays_in_its_scope(benchmark):
    memories = {memory.id: memory for memory in benchmark.memories}
    assert len(memories) == len(benchmark.memories)
    assert len({query.id for query in benchmark.queries}) == len(benchmark.queries)
    for entry, names in [(q, q.gold) for q in benchmark.queries] + [(m, m.sources) for m in benchmark.memories]:
        assert len(set(names)) == len(names)
        assert {(memories[name].scope, memories[name].store) for name in names} <= {(entry.scope, "dialogue")}


def test_text_of_a_turn_and_its_options(file, benchmark):
    plain, dated = locomo.read(file, captions=False), locomo.read(file, dates=True)
    assert len({load("locomo").fingerprint(), *(one.fingerprint() for one in (benchmark, plain, dated))}) == 3
    texts = [{memory.id: memory.text for memory in made.memories} for made in (benchmark, plain, dated)]
    dates = {memory.id: memory.date for memory in benchmark.memories}
    shared = 0
    for sample in json.loads(file.read_text()):
        for turn in (turn for turns in sample["conversation"].values() if isinstance(turns, list) for turn in turns):
            name = f"{sample['sample_id']}/{turn['dia_id']}"
            said = f"{turn['speaker']}: {turn['text'].strip()}"
            full = said + (f" [shares {turn['blip_caption']}]" if "blip_caption" in turn else "")
            assert [known[name] for known in texts] == [full, said, f"[{dates[name]}] {full}"]
            shared += full != said
    assert shared == 1226


def test_fingerprint_sees_every_field():
    memory = Memory("m", "s", "dialogue", "S1", "", "text")
    query = Query("q", "s", "text", "answer", "temporal", ("m",))
    bases = [Benchmark("b", (memory,), (query,))]
    bases += [Benchmark("b", (memory._replace(**{key: "other"}),), (query,)) for key in memory._fields]
    bases += [Benchmark("b", (memory,), (query._replace(**{key: "other"}),)) for key in query._fields]
    assert bases[0].fingerprint()[:8] == "daef1189"  # as records hold it since questions had no dates
    assert len({benchmark.fingerprint() for benchmark in bases}) == len(bases)
    assert all(len(benchmark.fingerprint()) == 64 for benchmark in bases)


numbers = st.tuples(st.integers(1, 99), st.integers(1, 999))
forms = st.sampled_from(["D{}:{}", "D{}:0{}", "D0{}:{}", "D:{}:{}", " D{}:{} ", "(D{}:{})"])


@given(st.lists(st.tuples(numbers, forms), min_size=1), st.sampled_from(["; ", " ", ", ", ","]))
def test_evidence_parser_reads_joined_and_misspelt_ids(entries, separator):
    joined = separator.join(form.format(*number) for number, form in entries)
    assert locomo.parse_evidence(joined) == [f"D{session}:{turn}" for (session, turn), _ in entries]


@given(st.one_of(st.text(), st.text(alphabet="D:0123456789;, ")))
def test_evidence_parser_never_fails_and_is_idempotent(entry):
    names = locomo.parse_evidence(entry)
    assert locomo.parse_evidence(" ".join(names)) == names


# One small conversation in LoCoMo's form; each error case spoils one thing in it.
SAMPLE = {
    "sample_id": "conv-1",
    "conversation": {
        "speaker_a": "Ann",
        "speaker_b": "Bob",
        "session_1_date_time": "1:00 pm on 2 May, 2023",
        "session_1": [
            {"speaker": "Ann", "dia_id": "D1:1", "text": "I bought a boat."},
            {"speaker": "Bob", "dia_id": "D1:2", "text": "Nice!", "blip_caption": "a boat", "query": "red boat"},
        ],
    },
    "observation": {"session_1_observation": {"Ann": [["Ann bought a boat.", "D1:1"]], "Bob": []}},
    "qa": [{"question": "What did Ann buy?", "answer": "a boat", "evidence": ["D1:1"], "category": 4}],
}
TURN, QUESTION = ("conversation", "session_1", 0), ("qa", 0)
DATE, OBSERVED = ("conversation", "session_1_date_time"), ("observation", "session_1_observation")


def test_small_file_is_read_whole(tmp_path):
    small = locomo.read(written(tmp_path, SAMPLE))
    texts = [memory.text for memory in small.memories]
    assert texts == ["Ann: I bought a boat.", "Bob: Nice! [shares a boat]", "Ann bought a boat."]
    query = Query("conv-1/Q0", "conv-1", "What did Ann buy?", "a boat", "single-hop", ("conv-1/D1:1",))
    assert small.queries == (query,)
    assert small.audit == ()
    assert "red boat" not in repr(small)


MARKED, ROLE, CONTENT = (("haystack_sessions", *at) for at in ((1, 0, "has_answer"), (0, 1, "role"), (0, 1, "content")))


@pytest.mark.parametrize(
    "place, value, words",
    [
        ((*QUESTION, "answer"), True, ["qa[0].answer", "expected a valid string, found True"]),
        ((*QUESTION, "category"), 6, ["qa[0].category", "expected 1, 2, 3, 4 or 5, found 6"]),
        ((*QUESTION, "evidence"), [7], ["qa[0].evidence[0]", "found 7"]),
        ((*OBSERVED, "Ann", 0, 1), 7, ["Ann[0][1]", "found 7"]),
        ((*OBSERVED, "Ann"), [["Ann bought a boat."]], ["Ann[0][1]: expected this field, found none"]),
        ((*TURN, "text"), "a boat \ud83d!", ["conv-1 conversation.session_1[0].text: ", "surrogates not allowed"]),
        (["question_id"], "a/b", ["[0].question_id", "expected to match pattern", "'a/b'"]),
        (["question_type"], "single-hop", ["[0].question_type", "'single-session-user'", "'single-hop'"]),
        (["answer"], True, ["[0].answer", "expected a valid string, found True"]),
        (["haystack_dates"], ["2023/05/20"], ["q1", "as many haystack_session_ids,", "2, 1 and 2"]),
        (ROLE, "system", ["[0].haystack_sessions[0][1].role", "expected 'user' or 'assistant', found 'system'"]),
        (CONTENT, "so \ud83d", ["[0].haystack_sessions[0][1].content", "surrogates not allowed", r"'so \ud83d'"]),
        (["question"], "\ud83d\ud83d\ude00?", ["[0].question: ", "surrogates not allowed"]),
    ],
)
def test_bad_field_is_named_with_the_file_and_what_was_expected(tmp_path, place, value, words):
    module, whole = (locomo, SAMPLE) if place[0] in SAMPLE else (longmemeval, ASKED)
    refused(module.read, written(tmp_path, changed(whole, place, value), whole), *words)


def test_missing_and_mistyped_values_are_named(tmp_path):
    unread = ["conversation.speaker_a", "conversation.speaker_b", "conversation.session_1[1].query"]
    elsewhere = ["qa[0].answer", "qa[0].category", "qa[0].evidence[0]", "observation.session_1_observation.Ann[0][1]"]
    optional = ["conversation.session_1", "conversation.session_1_date_time", "conversation.session_1[1].blip_caption"]
    observed = [f"observation.session_1_observation{speaker}" for speaker in ("", ".Ann", ".Bob")]
    marks = [f"haystack_sessions[1][{turn}].has_answer" for turn in (0, 1)]
    for module, found in (
        (locomo, faults(SAMPLE, [*unread, *elsewhere], [*optional, *observed])),
        (longmemeval, faults(ASKED, skipped=["answer", "answer_session_ids"], optional=marks)),
    ):
        for entry, words in found:
            refused(module.read, written(tmp_path, entry), words)


@pytest.mark.parametrize(
    "place, value, finding",
    [
        ((*QUESTION, "evidence"), [], ("conv-1 qa[0].evidence", "no evidence")),
        ((*QUESTION, "evidence"), ["D1:9"], ("conv-1 qa[0].evidence", "evidence without a turn")),
        ((*QUESTION, "answer"), 3, ("conv-1 qa[0].answer", "answer is a number")),
        ((*TURN, "text"), " ", ("conv-1 conversation.session_1[0].text", "empty turn")),
        (DATE, None, ("conv-1 conversation.session_1", "session without date")),
        (OBSERVED, None, ("conv-1 observation.session_1_observation", "session without observations")),
    ],
)
def test_odd_entry_is_kept_and_noted(tmp_path, place, value, finding):
    small = locomo.read(written(tmp_path, changed(SAMPLE, place, value)))
    assert [(place, kind) for place, kind, _, _ in small.audit] == [finding]
    assert len(small.queries) == 1
    assert sum(memory.store == "dialogue" for memory in small.memories) == 2


def test_empty_turn_keeps_the_speaker_and_the_caption(tmp_path):
    empty = changed(SAMPLE, (*TURN, "text"), "")
    assert locomo.read(written(tmp_path, empty)).memories[0].text == "Ann:"
    captioned = changed(empty, (*TURN, "blip_caption"), "a boat")
    assert locomo.read(written(tmp_path, captioned)).memories[0].text == "Ann: [shares a boat]"


def test_a_corrected_file_is_read_under_its_own_name(tmp_path):
    path = written(tmp_path, changed(SAMPLE, (*QUESTION, "evidence"), ["D1:2"]))
    corrected = load("locomo", file=path)
    assert corrected.name == "LoCoMo (made.json)" and corrected.queries[0].gold == ("conv-1/D1:2",)


@pytest.mark.parametrize("module", [locomo, longmemeval])
@pytest.mark.parametrize(
    "content, words",
    [
        (b"", ["complete JSON", "after 0 whole entries"]),
        (b"[", ["complete JSON"]),
        (b"[]", ["at least one "]),
        (b"{}", ["complete JSON, a list"]),
        (b"[7]", ["[0]: ", ", found 7"]),
        (b"[{]", ["complete JSON"]),
        (b"[\xff]", ["complete JSON"]),
        (b"[%(one)s %(one)s]", ["after 1 whole entries: Expecting ','"]),
        (b"[%(one)s,]", ["after 1 whole entries"]),
        (b'[\n%(one)s,\n{"a" 1}]', ["after 1 whole entries", "line 3 column 6"]),
    ],
)
def test_file_of_another_form_is_named(tmp_path, module, content, words):
    path = tmp_path / "made.json"
    one = json.dumps(SAMPLE if module is locomo else ASKED)
    path.write_bytes(content.replace(b"%(one)s", one.encode()))
    refused(module.read, path, *words)
    path.write_text(f"[{one}]]")
    refused(module.read, path, "complete JSON", "Extra data", "get the file again")


@pytest.mark.parametrize("length", [1000, 2_000_000])
def test_the_real_file_cut_short_is_named(file, tmp_path, length):
    path = tmp_path / locomo.FILE
    path.write_bytes(file.read_bytes()[:length])
    refused(locomo.read, path, "expected complete JSON")


def test_unknown_names_are_answered_with_the_near_ones():
    with pytest.raises(
        ValueError, match="unknown dataset 'lokomo', did you mean 'locomo'.*known: locomo, longmemeval, toy"
    ):
        load("lokomo")
