"""The toy benchmark: determined by its seed alone, complete, and worded in two ways on purpose."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from earlib.data import toy
from earlib.data.benchmarks import load, statistics

seeds = st.integers(0, 2**32)


def test_default_size():
    counted = statistics(load("toy"))
    assert counted["conversations"] == 6
    assert counted["sessions"] == 6 * toy.SESSIONS
    assert counted["with_gold"] == 6 * 35
    assert counted["queries"] == counted["with_gold"] + 6  # one question a conversation has no answer in it
    assert 6 * 45 <= counted["turns"] <= 6 * 80
    assert set(counted["categories"]) == {"single-hop", "multi-hop", "temporal", "open-domain", "adversarial"}
    assert counted["categories"]["adversarial"] == 6 * toy.TELLERS.count((0,))


@settings(max_examples=10)
@given(seeds, seeds)
def test_the_seed_decides_everything(seed, other):
    made = load("toy", seed=seed, conversations=2)
    assert made == load("toy", seed=seed, conversations=2)
    if other != seed:
        assert made.fingerprint() != load("toy", seed=other, conversations=2).fingerprint()


def test_more_conversations_leave_the_first_ones_alone():
    few, many = load("toy", conversations=2), load("toy", conversations=3)
    assert many.memories[: len(few.memories)] == few.memories
    assert many.queries[: len(few.queries)] == few.queries


@settings(max_examples=20)
@given(seeds)
def test_structure(seed):
    made = load("toy", seed=seed, conversations=2)
    memories = {memory.id: memory for memory in made.memories}
    assert len(memories) == len(made.memories)
    assert len({query.id for query in made.queries}) == len(made.queries)
    for scope in {memory.scope for memory in made.memories}:
        for store in ("dialogue", "observation"):
            assert sum((memory.scope, memory.store) == (scope, store) for memory in made.memories) > 20
        assert len({memory.text.split(":")[0] for memory in made.memories if memory.id.startswith(f"{scope}/D")}) == 2
    sessions = {}
    for memory in made.memories:
        if memory.store == "dialogue":
            sessions.setdefault((memory.scope, memory.session), []).append(memory.text.split(":")[0])
        assert memory.date and memory.text and "{" not in memory.text
        assert bool(memory.sources) == (memory.store == "observation")
    assert len(sessions) == 2 * toy.SESSIONS
    for speakers in sessions.values():  # alternate
        assert all(one != other for one, other in zip(speakers, speakers[1:], strict=False))
    for query in made.queries:
        assert all(memories[name].scope == query.scope and memories[name].store == "dialogue" for name in query.gold)
        assert "{" not in query.text
        assert len(query.gold) in {"multi-hop": (2, 3), "open-domain": (0, 1)}.get(query.category, (1,))


@settings(max_examples=10)
@given(seeds)
def test_answers_are_in_the_gold_turns_and_the_questions_word_is_not(seed):
    made = load("toy", seed=seed, conversations=2)
    texts = {memory.id: memory.text for memory in made.memories}
    words = {topic["word"] for topic in toy.WORDING["topics"]}
    elsewhere = 0
    for query in made.queries:
        (word,) = words & set(re.findall("[a-z]+", query.text))
        assert all(word not in texts[name] for name in query.gold)
        elsewhere += any(f" {word}" in text for name, text in texts.items() if name.startswith(f"{query.scope}/D"))
        if query.category in ("single-hop", "multi-hop"):
            details = query.answer.split(", ")
            assert all(detail.lower() in texts[name].lower() for detail, name in zip(details, query.gold, strict=True))
    assert elsewhere > len(made.queries) / 3  # distractors hold it


def test_captions_and_dates_are_options():
    plain, full = load("toy", captions=False), load("toy", dates=True)
    assert not any("[shares " in memory.text for memory in plain.memories)
    assert any(" [shares a photo" in memory.text for memory in full.memories)
    assert all(m.text.startswith(f"[{m.date}] ") for m in full.memories if m.store == "dialogue")
