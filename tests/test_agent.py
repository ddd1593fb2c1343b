"""An agent's life with a memory, and what is told of it."""

from pathlib import Path

import nbformat
import numpy as np
import pytest

from earlib import paths
from earlib.data import benchmarks
from earlib.experiments import settings
from earlib.extensions import agent, context
from earlib.memory.context import beside

TOY, ONE = settings.Setting(dataset="toy", seeds=2), settings.Setting(dataset="toy", seeds=1)
RESULTS = Path(__file__).parent.parent / "results"


@pytest.fixture(scope="module")
def fixed():
    return agent.run_fixed(TOY, 60)


@pytest.fixture(scope="module")
def dialogues():
    return agent._Dialogues(ONE)


def test_a_life_learns_from_made_dialogues():
    lives = {way: agent.run_lives(ONE, way) for way in ("memory_still", "memory_feedback")}
    still, learned = lives.values()
    assert np.array_equal(still.queries, learned.queries) and still.values.shape == learned.values.shape
    half = still.queries.shape[1] // 2
    assert np.nanmean(learned.values[0, :, half:]) > np.nanmean(still.values[0, :, half:]) + 0.1
    assert learned.weight[0] != 0.4 and still.weight[0] == pytest.approx(0.4)
    made = agent.along(ONE, lives, every=60)
    (row,) = (row for row in made if row["variant"] == "memory_feedback" and row.get("asked") == 120)
    assert row["measured"] == pytest.approx(100 * np.nanmean(learned.values[0, 0, 60:120])) and row["difference"] > 0
    (_, row) = agent.second_half(ONE, lives, "memory_still")
    assert row["measured"] == pytest.approx(100 * np.nanmean(learned.values[0, 0, half:])) and row["p"] < 0.01


def test_a_fixed_weight_is_the_best_of_a_life_s_own_first_half(fixed):
    ways = [agent.Way(agent._changed(side_start=weight), "no") for weight in agent.WEIGHTS]
    tried = [agent.run_lives(TOY, way, 60).values[0] for way in ways]
    for seed, weight in enumerate(fixed.weight):
        first = [np.nanmean(values[seed, :30]) for values in tried]
        assert first[agent.WEIGHTS.index(weight)] == max(first)
        assert np.array_equal(fixed.values[0, seed], tried[agent.WEIGHTS.index(weight)][seed], equal_nan=True)


def test_the_ceiling_is_reached_by_no_order_of_the_same_candidates():
    ways = ("memory_ceiling", "memory_still", "memory_fused")
    top, still, fused = (agent.run_lives(TOY, way, 60).values[0] for way in ways)
    assert (top >= still)[~np.isnan(top)].all() and (top >= fused)[~np.isnan(top)].all()
    assert np.nanmean(top) > np.nanmean(still)


def test_a_stretch_is_no_longer_than_a_life(fixed):
    lives = {"memory_still": fixed}
    assert {row["asked"] for row in agent.along(TOY, lives, 60)} == {60}
    with pytest.raises(ValueError, match="every = 61: expected at most 60"):
        agent.along(TOY, lives, 61)


def test_a_stream_teaches_what_is_tested_on_other_questions(monkeypatch):
    taught, teach = [], agent._teach

    def noted(memory, dialogues, order, *others):
        taught.append(order)
        teach(memory, dialogues, order[:20], *others)

    monkeypatch.setattr(agent, "_teach", noted)
    still = agent.run_streams(ONE, "memory_still", ["right"], 1000)
    names = ["right, a fifth as many", "inverted, then right", "one unrelated memory, a tenth as many"]
    lives = {"memory_feedback": agent.run_streams(ONE, "memory_feedback", names, 1000)}
    every = len(settings.benchmark("toy").asked)
    count = every // 3  # of 1,000 no more than a third of all
    assert [len(order) for order in taught] == [round(count / 5), 2 * count, round(count / 10)]
    tested = still["right"].queries[0]
    assert not set(tested) & set(taught[1]) and len(tested) + 2 * count == every
    base, *rows = agent.streamed(ONE, lives, still)
    assert "stream" not in base and [row["stream"] for row in rows] == names
    assert [row["difference"] for row in rows] == pytest.approx([row["measured"] - base["measured"] for row in rows])


@pytest.mark.parametrize("apart", [False, True])
def test_context_is_that_of_a_turns_own_session(monkeypatch, apart):
    memories, benchmark, make = [], settings.benchmark("toy"), agent._Dialogues.memory
    monkeypatch.setattr(agent._Dialogues, "memory", lambda *given: memories.append(make(*given)) or memories[-1])
    ways = ("memory_still", "memory_context_still", "memory_feedback", "memory_context")
    lives = {way: agent.run_streams(ONE, way, ["right"], 60, apart) for way in ways}
    turns = [turn for turn in benchmark.memories if turn.store == "dialogue"]
    now = memories[1]._state.now
    assert (beside(now.session, now.alive)[:, 1:] == context.around(turns)[[0, 2]] + 1).all()
    assert memories[0].ids() == [turn.id for turn in turns]
    scope, life = {turn.id: turn.scope for turn in turns}, lives["memory_context"]["right"]
    for number, found in zip(life.queries[0], life.returned[0], strict=True):
        assert not apart or {scope[id] for id in found} == {benchmark.asked[number].scope}
    rows = agent.streamed(ONE, lives, lives.pop("memory_still"), part="here")
    assert [(row["variant"], row.get("stream"), row.get("over")) for row in rows] == [
        ("memory_still", None, None),
        ("memory_context_still", None, None),
        ("memory_feedback", "right", None),
        ("memory_context", "right", None),
        ("memory_context", "right", "memory_feedback"),
    ]
    assert {row["part"] for row in rows} == {"here"}
    assert rows[4]["difference"] == pytest.approx(rows[3]["measured"] - rows[2]["measured"])


def test_streams_say_what_their_names_say():
    rng, useful = np.random.default_rng(0), [False, True, False, False, False]
    said = {
        name: np.array([stream.label(rng, useful, 0.2) for _ in range(400)], object)
        for name, stream in agent.STREAMS.items()
        if stream.label and name != "right, for one question in five"
    }
    assert (said["right"] == useful).all() and (said["inverted, then right"] != useful).all()
    assert (said["always the first"] == [True, False, False, False, False]).all()
    assert set(said["only the useful ones named"].flatten()) == {True, None}
    assert (said["30 % flipped"] != useful).mean() == pytest.approx(0.3, abs=0.05)
    clicks = said["a wrong click for 30 % of the questions"]
    assert (clicks.sum(1) == 1).all() and (~clicks[:, 1].astype(bool)).mean() == pytest.approx(0.3, abs=0.08)
    assert agent.STREAMS["inverted, then right"].label(rng, useful, 0.5) == useful


def test_a_memory_s_own_rate_of_citations_is_added_to_its_score(dialogues):
    held, query = dialogues.memory(agent.WAYS["memory_still"], 0), dialogues.asked[0].text
    rated, similar = (rival(held, dialogues.encode) for rival in (agent.CitationRate, agent.SimilarQuestions))
    found = held.retrieve(query, 10)
    assert rated.retrieve(query, 10) == found == similar.retrieve(query, 10)
    for _ in range(60):
        rated.feedback(query, [found[0].id, found[1].id], [False, True])
    assert rated.retrieve(query, 10)[0] == found[1] or found[0].score - found[1].score > rated.weight
    for one in dialogues.asked[:10]:  # the question itself is its most similar one
        similar.feedback(one.text, [found[0].id, found[1].id], [False, one.text == query])
    assert similar.rates(query) == {found[1].id: pytest.approx(0.2, abs=1e-6)}


def test_an_adapter_on_top_is_served_while_it_ranks_better_than_the_weights_alone(dialogues):
    memory, query = dialogues.memory(agent.WAYS["memory_feedback"], 0), dialogues.asked[0].text
    on_top, found = agent.AdapterOnTop(memory, dialogues.encode), memory.retrieve(query, 5)
    assert on_top.retrieve(query, 5) == found
    on_top.feedback(query, [one.id for one in found], [False] * 5)  # no pair: nothing is learned by the adapter
    assert not on_top.W.any()
    useful = [False, False, True, False, False]
    for _ in range(8):
        found = memory.retrieve(query, 5)
        on_top.feedback(query, [one.id for one in found], useful)
    with_it, alone = np.array(on_top.right).T
    assert on_top.served and with_it.sum() > alone.sum()
    plain = {one.id: one.score for one in memory.retrieve(query, 50)}
    added = on_top.by_adapter(query, memory.retrieve(query, 50))[0]
    expected = sorted(zip(plain, np.array([*plain.values()]) + added, strict=True), key=lambda pair: -pair[1])
    assert [one.id for one in on_top.retrieve(query, 5)] == [id for id, _ in expected[:5]]
    on_top.right = [[0.0, 1.0]] * 99  # it was worse for long
    on_top.feedback(query, [one.id for one in found], useful)
    assert not on_top.served and on_top.retrieve(query, 5) == memory.retrieve(query, 5)


def test_no_committed_result_holds_text_of_locomo():
    """The dialogues are under CC BY-NC: no result tells a stretch of them."""
    if not any((place / "locomo10.json").exists() for place in paths.data_folders()):
        pytest.skip("LoCoMo is not at hand")
    benchmark = benchmarks.load("locomo")
    pieces = {text[:60] for one in (*benchmark.memories, *benchmark.queries) if len(text := one.text) >= 60}
    for file in sorted(RESULTS.glob("*/*.ipynb")):
        shown = "\n".join(_strings([cell.get("outputs", []) for cell in nbformat.read(file, 4).cells]))
        held = pieces.intersection(shown[at : at + 60] for at in range(len(shown)))
        assert not held, f"{file.name} holds {sorted(held)[:1]}"


def _strings(value):
    """All strings within lists and dicts, without images."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = [one for key, one in value.items() if not key.startswith("image/")]
    return [text for one in value for text in _strings(one)] if isinstance(value, list) else []
