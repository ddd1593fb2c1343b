"""A live memory ranks and learns by the same algorithm as the batched learner, while memories come and go."""

import bm25s
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_memory import NOUNS, answers, encoder, first_stage, learned, made, preset, reopened, text, told

from earlib.core import randomness
from earlib.core.critic import SimulatedCritic
from earlib.core.learner import Learner
from earlib.data.candidates import Candidates
from earlib.data.words import Words, content_words
from earlib.memory import EARMemory, state
from earlib.memory.context import beside
from earlib.memory.online import ABSENT


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


def batched(held, config, queries):
    """The candidates of some queries in the memory, as the experiments hold them."""
    (now, *_), *_ = found = [first_stage(held, query, config.depth) for query in queries]
    ids, vectors = tuple(str(one.id) for one in now.memories), np.stack([one[1] for one in found])
    index, side = (torch.stack([one[part] for one in found]) for part in (2, 3))
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


def test_the_first_stage_is_the_fusion_of_two_plain_rankings():
    held = made(200, preset(depth=10))
    query = text(5) + " garden"
    now, vector, rows, side = first_stage(held, query, 10)
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


def test_what_comes_first_does_not_depend_on_how_many_are_asked_for():
    held = made(200, preset(depth=10))
    told(held, 5)
    for number in range(8):
        query = text(number) + "!"
        every = held.retrieve(query, 150)
        assert every[:10] == held.retrieve(query, 10) and every[:4] == held.retrieve(query, 4)
        assert sorted(one.id for one in every[:10]) == sorted(held.candidates(query))
        assert len({one.id for one in every}) == 150
        now, _, rows, _ = first_stage(held, query, 150)
        order = [now.memories[row].id for row in rows.tolist()]
        assert [one.id for one in every[10:]] == [id for id in order if id not in held.candidates(query)][:140]
        assert len(held.retrieve(query, 500)) == 200
        assert [one.score for one in every] == sorted((one.score for one in every), reverse=True)


def test_a_cold_memory_weighs_words_as_its_preset_says():
    """Cosine plus 0.4 times the share of the score by words, among the candidates."""
    held, query = made(), "river song number2"
    now, vector, rows, side = first_stage(held, query)
    scores = now.bank[rows].double().numpy() @ vector.astype(float) + 0.4 * side.numpy()
    found = {one.id: one.score for one in held.retrieve(query, 50)}
    expected = {now.memories[row].id: score for row, score in zip(rows.tolist(), scores, strict=True)}
    assert held.weight == pytest.approx(0.4) and found == pytest.approx(expected, abs=1e-3)
    assert EARMemory(encoder).weight == pytest.approx(0.4) and EARMemory(encoder, "paper").weight == 0


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


@pytest.mark.parametrize("choice", ["similarity", "random"])
def test_of_experiences_the_oldest_is_dropped_first(tmp_path, choice):
    held = made(60, preset(depth=10, replay_choice=choice), experiences=5)
    told(held, 3)
    held.save(tmp_path)
    told(held, 9, start=3)
    learner, unit = held._state.learner, held._encode([text(number) + "?" for number in range(7, 12)], "query")
    assert learner.known == 12 and learner.held == 5 == learner.buffer.size
    assert learner.query[:5].numpy() == pytest.approx(unit)
    assert learner.buffer.unit[:5].numpy() == pytest.approx(unit, abs=1e-6)
    positions, numbers = learner.buffer.choose(torch.tensor([[4]]), torch.full((1, 1, 4), 0.5))
    assert positions.equal(numbers) and numbers.max() < 5
    with reopened(held, tmp_path) as again:
        assert again.experiences == 5
        for one in (again, held):
            told(one, 1, start=12)
        again.save(tmp_path)
    with EARMemory.load(tmp_path, encoder) as again:
        for one in (held, again):
            told(one, 140, start=13)  # the arrays are moved once more
        assert learned(held) == learned(again) and answers(held) == answers(again)


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
    now, vector, rows, side = first_stage(held, query)
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
    stats = held.stats()
    assert stats["served"] == "learned" and stats["weights"][1] > 0.2 and len(stats["weights"]) == 10
    for save in (False, True):
        if save:
            held.save(tmp_path)
        held = reopened(held, tmp_path)
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
