"""Latency: banks that leave nothing behind, the same results from file and memory, and rows that say what was timed."""

import numpy as np
import pytest
import torch

from earlib.core.config import Config
from earlib.data.benchmarks import Benchmark, Memory
from earlib.experiments import latency, settings

METHODS = ("retriever", "rmm", "ear_adapter", "ear", "equal_calls_3")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def drawn(*of):
    return np.concatenate(list(latency.random_unit(*of)))


def test_a_stored_bank_is_mapped_as_written_and_has_no_name(cache):
    (block,) = latency.random_unit(40, 6, "memories")
    with latency.stored([block[:25], block[25:]], 6) as bank:
        assert (bank(40) == torch.from_numpy(block)).all() and bank(3).shape == (3, 6)
        changed = bank(40)
        changed += 1  # stays in this process
        assert (bank(40) == torch.from_numpy(block)).all()
        assert list(cache.iterdir()) == []
    assert list(cache.iterdir()) == []


def test_random_banks_are_unit_vectors_and_begin_alike(monkeypatch):
    monkeypatch.setattr(latency, "RANDOM_ROWS", 8)
    few, many, others = (drawn(*of) for of in ((16, 5, "memories"), (30, 5, "memories"), (30, 5, "queries")))
    assert many.shape == (30, 5) and many.dtype == np.float32
    assert (few == many[:16]).all() and not (many == others).any()
    assert np.linalg.norm(many, axis=1) == pytest.approx(1, abs=1e-6)


def test_each_question_searches_its_own_conversation():
    memories = [("b", "dialogue"), ("a", "dialogue"), ("b", "observation"), ("b", "dialogue"), ("a", "dialogue")]
    memories = tuple(Memory(str(row), scope, store, "", "", "") for row, (scope, store) in enumerate(memories))
    found = type("Found", (), {"scopes": ("a", "b", "a")})
    order, spans = latency.conversations(Benchmark("Drawn", memories, ()), found, np.array([1, 2]))
    assert order.tolist() == [0, 3, 1, 4] and spans == [(0, 2), (2, 4)]


def test_one_question_at_a_time_is_answered_as_in_one_batch():
    benchmark, setting = settings.benchmark("toy"), settings.Setting(dataset="toy")
    found = settings.candidates_of(setting, Config().depth)
    asked = np.arange(12, 0, -1)
    times, batched = latency.time_questions(benchmark, found, asked, METHODS)
    assert list(times) == ["file", "memory"]
    order, _ = latency.conversations(benchmark, found, asked)
    assert (order[batched["retriever"]] == found.index[asked, :5]).all()
    for taken in times.values():
        assert min(latency.agreement(taken.slates, batched).values()) >= 90  # sums in another order may turn a tie
        assert taken.calls == {"retriever": 0, "rmm": 0, "ear_adapter": 0, "ear": 3, "equal_calls_3": 3}
        assert all((seconds >= 0).all() and len(seconds) == 12 for seconds in taken.seconds.values())
        assert (taken.read > 0).all() and not torch.equal(taken.slates["ear"], taken.slates["ear_adapter"])
    assert set(latency.agreement(times["file"].slates, times["memory"].slates).values()) == {100.0}


def test_a_smaller_random_bank_is_the_first_part_of_the_larger(cache):
    found = {(count, place): one for count, place, one in latency.time_random([50, 300], 16, 4, METHODS)}
    assert list(found) == [(50, "file"), (300, "file"), (50, "memory"), (300, "memory")]
    query, bank = drawn(4, 16, "queries"), drawn(300, 16, "memories")
    for (count, _), taken in found.items():
        best = np.argsort(-(query @ bank[:count].T), axis=1, kind="stable")[:, :5]
        assert taken.slates["retriever"].tolist() == best.tolist()
    assert list(cache.iterdir()) == []


def test_a_bank_of_more_than_4_GiB_is_refused():
    with pytest.raises(ValueError, match="memories: expected at most 1,398,101 of 768 dimensions .*, got 2,000,000"):
        next(latency.time_random([2 * 10**6], 768, 1, METHODS))


def test_rows_say_what_was_timed():
    seconds = {name: np.array([0.1, 0.2, 0.9]) + more for more, name in enumerate(METHODS)}
    taken = latency.Times(np.array([1.0, 2.0, 5.0]), seconds, {}, {})
    rows = latency.latency_rows(taken, dataset="toy", storage="file")
    assert all(row["varies"] and (row["dataset"], row["storage"]) == ("toy", "file") for row in rows)
    by_key = {(row["variant"], row["metric"]): row for row in rows}
    assert len(by_key) == len(rows) == 4 * (len(METHODS) + 1) + 1
    ear = by_key["ear", "latency"]
    assert ear["measured"] == pytest.approx(3.4) and ear["low"] < 3.4 < ear["high"] and ear["n_queries"] == 3
    assert [ear[key] for key in ("difference", "difference_low", "difference_high")] == pytest.approx([3, 3, 3])
    assert "difference" not in by_key["retriever", "latency"]
    assert by_key["ear", "latency_p50"]["measured"] == pytest.approx(3.2)
    assert by_key["read_once", "latency"]["measured"] == pytest.approx(8 / 3)
    assert by_key["ear_adapter", "read_ratio"]["measured"] == pytest.approx(2.2 / 2)


def test_agreement_counts_whole_slates():
    here = {"ear": torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])}
    assert latency.agreement(here, {"ear": torch.tensor([[1, 2], [3, 4], [6, 5], [7, 8]])}) == {"ear": 75.0}


def test_the_encoder_is_timed_on_each_text_alone():
    taken = latency.encoding("minilm", ["Where does Anna live?", "What did Bo adopt?"])
    assert taken.shape == (2,) and (taken > 0).all()


def test_the_machine_is_named():
    processor, *rest = latency.machine().rsplit(", ", 3)
    assert processor and [one.split()[-1] for one in rest[:2]] == ["cores", "thread(s)"]
    assert rest[2] == f"torch {torch.__version__}"
