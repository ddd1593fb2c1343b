"""An agent's life with a memory, and what is told of it."""

import json
from pathlib import Path

import numpy as np
import pytest

from earlib import paths
from earlib.data import benchmarks
from earlib.experiments import settings
from earlib.extensions import agent, context
from earlib.memory.context import beside

TOY = settings.Setting(dataset="toy", seeds=2)
RESULTS = Path(__file__).parent.parent / "results"


@pytest.fixture(scope="module")
def fixed():
    return agent.run_fixed(TOY, 60)


def test_a_life_learns_from_made_dialogues():
    setting = settings.Setting(dataset="toy", seeds=1)
    still, learned = (agent.run_lives(setting, way) for way in ("memory_still", "memory_feedback"))
    assert np.array_equal(still.queries, learned.queries) and still.values.shape == learned.values.shape
    half = still.queries.shape[1] // 2
    assert np.nanmean(learned.values[0, :, half:]) > np.nanmean(still.values[0, :, half:]) + 0.1
    assert learned.weight[0] != 0.4 and still.weight[0] == pytest.approx(0.4)
    lives = {"memory_still": still, "memory_feedback": learned}
    made = agent.along(setting, lives, every=60)
    values = learned.values[0, 0, 60:120]
    (row,) = (row for row in made if row["variant"] == "memory_feedback" and row.get("asked") == 120)
    assert row["measured"] == pytest.approx(100 * np.nanmean(values)) and row["difference"] > 0
    (_, row) = agent.second_half(setting, lives, "memory_still")
    assert row["measured"] == pytest.approx(100 * np.nanmean(learned.values[0, 0, half:])) and row["p"] < 0.01


def test_a_fixed_weight_is_the_best_of_a_life_s_own_first_half(fixed):
    tried = []
    for weight in agent.WEIGHTS:
        way = agent.Way(agent._changed(side_start=weight), "no")
        tried.append(agent.run_lives(TOY, way, 60).values[0])
    for seed, weight in enumerate(fixed.weight):
        first = [np.nanmean(values[seed, :30]) for values in tried]
        assert first[agent.WEIGHTS.index(weight)] == max(first)
        assert np.array_equal(fixed.values[0, seed], tried[agent.WEIGHTS.index(weight)][seed], equal_nan=True)


def test_the_ceiling_is_reached_by_no_order_of_the_same_candidates(fixed):
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
    one, taught = settings.Setting(dataset="toy", seeds=1), []
    teach = agent._teach

    def noted(memory, benchmark, gold, order, *others):
        taught.append(order)
        teach(memory, benchmark, gold, order[:20], *others)

    monkeypatch.setattr(agent, "_teach", noted)
    still = agent.run_streams(one, "memory_still", ["right"], 1000)
    names = ["right, a fifth as many", "inverted, then right", "one unrelated memory, a tenth as many"]
    lives = {"memory_feedback": agent.run_streams(one, "memory_feedback", names, 1000)}
    count = len(settings.benchmark("toy").asked) // 3  # of 1,000 no more than a third of all
    assert [len(order) for order in taught] == [round(count / 5), 2 * count, round(count / 10)]
    tested = still["right"].queries[0]
    assert not set(tested) & set(taught[1]) and len(tested) + 2 * count == len(settings.benchmark("toy").asked)
    base, *rows = agent.streamed(one, lives, still)
    assert "stream" not in base and [row["stream"] for row in rows] == names
    for row in rows:
        assert row["difference"] == pytest.approx(row["measured"] - base["measured"])


@pytest.mark.parametrize("apart", [False, True])
def test_context_is_that_of_a_turns_own_session(monkeypatch, apart):
    one, memories, benchmark = settings.Setting(dataset="toy", seeds=1), [], settings.benchmark("toy")
    make = agent._remembering
    monkeypatch.setattr(agent, "_remembering", lambda *given: memories.append(make(*given)) or memories[-1])
    ways = ("memory_still", "memory_context_still", "memory_feedback", "memory_context")
    lives = {way: agent.run_streams(one, way, ["right"], 60, apart) for way in ways}
    turns = [turn for turn in benchmark.memories if turn.store == "dialogue"]
    now = memories[1]._state.now
    before, after = context.beside(turns, -1), context.beside(turns, 1)
    assert (beside(now.session, now.alive)[:, 1:] == np.stack([before, after]) + 1).all() and memories[0].ids() == [
        turn.id for turn in turns
    ]
    scope = {turn.id: turn.scope for turn in turns}
    life = lives["memory_context"]["right"]
    for number, found in zip(life.queries[0], life.returned[0], strict=True):
        assert not apart or {scope[id] for id in found} == {benchmark.asked[number].scope}
    still = lives.pop("memory_still")
    rows = agent.streamed(one, lives, still, part="here")
    told = [(row["variant"], row.get("stream"), row.get("over")) for row in rows]
    assert told[:3] == [
        ("memory_still", None, None), ("memory_context_still", None, None), ("memory_feedback", "right", None)
    ] and told[3:] == [("memory_context", "right", None), ("memory_context", "right", "memory_feedback")]  # fmt: skip
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


def test_a_memory_s_own_rate_of_citations_is_added_to_its_score():
    benchmark = settings.benchmark("toy")
    encoder, query = agent._lookup(benchmark, "minilm"), benchmark.asked[0].text
    held = agent._remembering(benchmark, encoder, agent.WAYS["memory_still"], None, 0)
    rated, similar = agent.CitationRate(held, encoder), agent.SimilarQuestions(held, encoder)
    found = rated.retrieve(query, 10)
    assert found == held.retrieve(query, 10)
    for _ in range(60):
        rated.feedback(query, [found[0].id, found[1].id], [False, True])
    assert rated.retrieve(query, 10)[0] == found[1] or found[0].score - found[1].score > rated.weight
    assert similar.retrieve(query, 10) == found
    for one in benchmark.asked[:10]:  # the question itself is its most similar one
        similar.feedback(one.text, [found[0].id, found[1].id], [False, one.text == query])
    assert similar.rates(query) == {found[1].id: pytest.approx(0.2, abs=1e-6)}


def test_an_adapter_on_top_is_served_while_it_ranks_better_than_the_weights_alone():
    benchmark = settings.benchmark("toy")
    encoder = agent._lookup(benchmark, "minilm")
    memory = agent._remembering(benchmark, encoder, agent.WAYS["memory_feedback"], None, 0)
    on_top, query = agent.AdapterOnTop(memory, encoder), benchmark.asked[0].text
    found = memory.retrieve(query, 5)
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
        cells = json.loads(file.read_text())["cells"]
        shown = "\n".join(_strings([output for cell in cells for output in cell.get("outputs", [])]))
        held = pieces.intersection(shown[at : at + 60] for at in range(len(shown)))
        assert not held, f"{file.name} holds {sorted(held)[:1]}"


def _strings(value):
    """All strings within lists and dicts, without images; lists of strings, as notebooks keep texts, are joined."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ["".join(value)]
    if isinstance(value, dict):
        value = [one for key, one in value.items() if not key.startswith("image/")]
    return [text for one in value for text in _strings(one)] if isinstance(value, list) else []
