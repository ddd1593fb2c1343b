"""Context of a turn: neighbours, dates and features, the weights learned on them, and what may choose."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from faults import real_file
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from earlib.data import locomo
from earlib.data.benchmarks import Memory, Query
from earlib.experiments import runs, settings
from earlib.experiments.settings import Setting
from earlib.extensions import context, context_study

TOY = {"dataset": "toy", "seeds": 2, "dtype": "float64"}
LINES = st.sampled_from(["Ann: Was it 5?", "Bob: Yes, yesterday.", "Ann: Fine [shares a cat]", "no speaker", ""])
SESSIONS = st.lists(st.lists(LINES, min_size=1, max_size=5), min_size=1, max_size=6)


def turns_of(sessions):
    """Turns of conversations A and B, whose sessions have the same names."""
    return [
        Memory(f"{at}/{at}/{place}", "AB"[at % 2], "dialogue", f"S{at // 2}", f"day {at}", text)
        for at, said in enumerate(sessions)
        for place, text in enumerate(said)
    ]


@cache
def scored(store="dialogue"):
    return context.context(Setting(**TOY, store=store), ("date",) if store == "dialogue" else ())


@cache
def orders():
    return context.first_stages(scored(), 40)


@given(SESSIONS)
def test_a_neighbour_never_crosses_the_border_of_a_session(sessions):
    turns = turns_of(sessions)
    of = [turn.id.split("/")[:2] for turn in turns]
    for number, found in enumerate(context.around(turns).T):
        near = (number - 1, number, number + 1)
        assert found.tolist() == [at if 0 <= at < len(of) and of[at] == of[number] else -1 for at in near]


@given(SESSIONS)
def test_texts_hold_what_was_said_in_the_session_and_its_own_date(sessions):
    turns = turns_of(sessions)
    read = context.texts(turns)
    for number, turn in enumerate(turns):
        at, _, place = map(int, turn.id.split("/"))
        said, text = sessions[at], {name: of[number] for name, of in read.items()}
        assert text["turn"] == said[place] and text["date"] == f"[day {at}] {said[place]}"
        assert text["before"] == "\n".join(said[max(0, place - 1) : place + 1])
        assert text["window"] == "\n".join(said[max(0, place - 1) : place + 2])
        assert text["window and date"] == f"[day {at}] {text['window']}" and text["session"] == "\n".join(said)


def test_texts_of_an_observation_are_the_published_turns_it_was_drawn_from():
    memories = locomo.read(real_file(locomo.FILE)).memories
    said = {one.id: one.text for one in memories if one.store == "dialogue"}
    drawn = [one for one in memories if one.store == "observation"]
    read = context.texts(drawn, said)
    assert all(len(of) == len(drawn) == 2541 for of in read.values())
    two = next(number for number, one in enumerate(drawn) if len(one.sources) == 2)
    first, second = (said[id] for id in drawn[two].sources)
    assert read["turns"][two] == f"{first}\n{second}"
    number = [one.id for one in drawn].index("conv-26/S1/O/Caroline/0")
    turn = "Caroline: I went to a LGBTQ support group yesterday and it was so powerful."
    own = "Caroline attended an LGBTQ support group recently and found the transgender stories inspiring."
    text, date = {name: of[number] for name, of in read.items()}, "[1:56 pm on 8 May, 2023]"
    assert text["observation"] == own and text["date"] == f"{date} {own}" and text["turns"] == turn
    assert text["with turns"] == f"{own}\n{turn}" and text["with turns and date"] == f"{date} {own}\n{turn}"
    session = text["session"].split("\n")
    assert {own, drawn[number + 1].text} < set(session) and turn not in session


@pytest.mark.parametrize("store, text", [("dialogue", "turn"), ("observation", "observation")])
def test_a_memory_s_own_text_alone_is_the_retriever(store, text):
    setting, found = Setting(**TOY, store=store), scored(store)
    parts = [settings.split(found.found.scopes, setting, seed)[1] for seed in range(2)]
    order = context.first_stages(found, 5)[(text,), ""]
    alone = context_study.answers(found, [(part, order[part]) for part in parts])
    static = runs.answers(setting, "retriever")
    assert np.array_equal(alone.values, static.values, equal_nan=True)
    assert np.array_equal(alone.queries, static.queries)


def test_the_turns_of_an_observation_add_the_scores_of_the_turns():
    found = scored("observation")
    assert found.parts == ("date", "turns", "session", "words", "features") and len(found.combinations) == 32
    # Each toy observation was drawn from one turn, whose own scores are those by its turns.
    memories = settings.benchmark("toy").memories
    turns, drawn = ([one for one in memories if one.store == store] for store in ("dialogue", "observation"))
    row, of_turns = {one.id: number for number, one in enumerate(turns)}, scored()
    for number, held in enumerate(found.held):
        at = {turn: place for place, turn in enumerate(of_turns.found.index[number, of_turns.held[number]].tolist())}
        places = [at[row[drawn[one].sources[0]]] for one in found.found.index[number, held]]
        for name, same in {"vector: turns": "vector: turn", "when": "when", "speaker": "speaker"}.items():
            one, other = found.values[name][number, held], of_turns.values[same][number, places]
            assert torch.allclose(one, other, atol=1e-6)


@given(SESSIONS, st.sampled_from(["When did Ann go?", "Did Bob go?", "What is it", ""]))
def test_features_are_of_the_question_s_text_alone_and_equal_for_equal_turns(sessions, text):
    turns = turns_of(sessions)
    asked = [Query("q", "A", text, "", "temporal", ()), Query("r", "A", text, "5 May", "other", ("0/0/0",), "5 May")]
    found = context.features(turns, asked)
    assert list(found) == list(context.FEATURES)
    before = context.around(turns)[0]
    for number, turn in enumerate(turns):
        assert found["when"][0, number] == (text.startswith("When") and "yesterday" in turn.text)
        named = [name for name in ("Ann", "Bob") if name in text and turn.text.startswith(name)]
        assert found["speaker"][0, number] == len(named)
        assert found["question before"][0, number] == (before[number] >= 0 and "?" in turns[before[number]].text)
        assert found["picture"][0, number] == ("[shares" in turn.text)
        assert found["digits"][0, number] == ("5" in turn.text)
    for of in found.values():  # the same question, asked on another date and with another answer
        assert np.array_equal(of[0], of[1])


def test_turns_that_say_the_same_among_the_same_get_the_same_scores():
    found, asked = scored(), settings.benchmark("toy")
    texts = [one.text for one in asked.memories if one.store == "dialogue"]
    alone = [name for name in found.values if name.endswith("turn")]
    pairs = 0
    for number, (rows, held) in enumerate(zip(found.found.index.tolist(), found.held.tolist(), strict=True)):
        first = {}
        for place, row in enumerate(rows):
            twin = first.setdefault(texts[row], place) if held[place] else place
            pairs += twin != place
            assert all(found.values[name][number, twin] == found.values[name][number, place] for name in alone)
    assert len(alone) == 2 and pairs


def plain_loss(w, values, cited):
    total = context.RIDGE / 2 * w @ w
    for of, useful in zip(values, cited, strict=True):
        if useful.any() and not useful.all():
            total += logsumexp(of @ w) - (of @ w)[useful].mean()
    return total


@given(st.integers(0, 10**6))
def test_weights_are_the_minimum_whatever_the_order_of_candidates(seed):
    rng = np.random.default_rng(seed)
    values, cited = rng.normal(size=(9, 6, 4)), rng.random((9, 6)) < rng.random()
    values[..., 3] = 7.0  # the same for all: it ranks nothing
    counted = cited.any(1) & ~cited.all(1)
    w = context.learn(values, cited, [0, 2, 3])
    assert w.shape == (4,) and w[1] == w[3] == 0 and (counted.any() or not w.any())
    away = values[counted] - values[counted].mean(1, keepdims=True)
    scale = np.sqrt((away**2).mean((0, 1)))[[0, 2]] if counted.any() else np.ones(2)
    scaled, best = values[..., [0, 2]] / scale, w[[0, 2]] * scale
    least = plain_loss(best, scaled, cited)
    for _ in range(8):
        assert plain_loss(best + rng.normal(size=2) * 1e-3, scaled, cited) >= least
    order = rng.permutation(6)
    assert np.allclose(context.learn(values[:, order], cited[:, order], [0, 2, 3]), w, atol=1e-6)


@pytest.mark.parametrize("split", ["random", "conversation"])
def test_nothing_of_the_evaluation_questions_enters_what_is_chosen_and_learned(split):
    setting, found = Setting(**TOY, split=split), scored()
    training, evaluation = settings.split(found.found.scopes, setting, 0)
    gold = found.found.gold.clone()
    gold[evaluation] = gold[evaluation].roll(1, dims=1).roll(1, dims=0)
    other = found._replace(found=replace(found.found, gold=gold))
    one, same = (context_study.study(of, setting, 0, orders(), 2, (10,)) for of in (found, other))
    assert one[:5] == same[:5] and np.array_equal(one.evaluation, evaluation)
    assert all(torch.equal(slates, same.slates[name]) for name, slates in one.slates.items())
    gold = found.found.gold.clone()
    gold[training] = gold[training].roll(1, dims=1)
    wrong = context_study.study(found._replace(found=replace(found.found, gold=gold)), setting, 0, orders(), 2)
    assert wrong.reached != one.reached  # those of the training questions do


def test_an_adapter_starts_from_the_weights():
    found, order = scored(), orders()[("turn",), ""]
    of, numbers, asked = context_study.cite(found, order, 0), np.arange(30), np.arange(30, 60)
    parts = found.combinations[-1]
    made = dict(of.by_adapter(parts, numbers, asked, torch.float64))
    assert list(made) == list(context_study.STEPS)
    assert torch.equal(made[0], dict(of.by_weights(numbers, asked))[parts]) and not torch.equal(made[20], made[0])


def test_candidates_are_turns_of_the_conversation_and_no_more_than_the_shortest_holds():
    held = scored().held
    for order in context.first_stages(scored(), 1000).values():
        assert order.shape[1] == held.sum(1).min() and held.gather(1, order).all()
        assert all(len(set(one)) == len(one) for one in order.tolist())


def test_the_paper_s_systems_re_rank_the_candidates_of_each_seed_s_first_stage():
    setting, found = Setting(**TOY), scored()
    learned = [context_study.study(found, setting, seed, orders(), 2) for seed in range(2)]
    for name in ("rmm", "ear"):
        answered = context_study.with_candidates(found, setting, learned, orders(), name)
        for seed, one in enumerate(learned):
            held = answered.queries[seed] >= 0
            assert np.array_equal(answered.queries[seed, held], one.evaluation)
            among = orders()[one.form][one.evaluation, :20].tolist()
            slates = answered.slates[seed, held].tolist()
            assert all(set(slate) <= set(of) for slate, of in zip(slates, among, strict=True))
