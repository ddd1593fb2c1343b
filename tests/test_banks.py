"""Banks in files: exact search as in memory, whatever the blocks; an index; adapters folded in or applied."""

import os

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from earlib.core.adapter import Adapter
from earlib.core.config import VARIANTS, Config
from earlib.data.search import top_k
from earlib.experiments import banks, large_banks, runs
from earlib.experiments.banks import Bank
from earlib.experiments.settings import Setting, benchmark, candidates_of


def unit(rows, seed=0, width=48):
    rng = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(rows, width, generator=rng), dim=-1)


def write(path, rows):
    banks.write_bank(path, [part.numpy() for part in rows.split(7)], len(rows), rows.shape[1])
    return Bank(path)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bank.npy"


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    bank = write(tmp_path_factory.mktemp("banks") / "bank.npy", unit(4000))
    return bank, banks.build_index(bank, unit(50, seed=1))


def recall(found, expected):
    return banks.overlap(found, expected).mean().item()


def equal(one, other):
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


vectors = st.lists(st.integers(-2, 2), min_size=3, max_size=3).filter(any)


@settings(max_examples=200)
@given(st.lists(vectors, min_size=1, max_size=60), st.lists(vectors, min_size=1, max_size=3), st.data())
def test_a_stream_in_any_blocks_finds_what_memory_finds(tmp_path_factory, rows, queries, data):
    """Few directions, so that most memories tie; rounded to fp16 before they are compared."""
    rows, queries = (torch.nn.functional.normalize(torch.tensor(one).float(), dim=-1) for one in (rows, queries))
    k = data.draw(st.integers(1, len(rows)))
    bank = write(tmp_path_factory.mktemp("bank") / "bank.npy", rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(banks, "ROWS", data.draw(st.integers(1, 70)))
        for asked in (queries, queries[0]):
            assert equal(bank.search(asked, k), top_k(asked, rows.half().float(), k))


@pytest.mark.parametrize("block", [300, 1024, 2**16])
def test_equal_memories_tie_wherever_they_stand(path, monkeypatch, block):
    monkeypatch.setattr(banks, "ROWS", block)
    rows = unit(3000, width=384)
    rows[[5, 1023, 1024, 2999]] = rows[0].clone()
    rows[1500:1600] = rows[1400].clone()  # more than a block keeps
    bank = write(path, rows)
    for query in (rows[0], rows[1400], unit(1, 3, 384)[0], rows[[0, 1400]]):
        assert equal(bank.search(query, 20), top_k(query, bank.rows.float(), 20))
    assert bank.search(rows[0], 5)[1].tolist() == [0, 5, 1023, 1024, 2999]
    assert bank.search(rows[1400], 20)[1].tolist() == [1400, *range(1500, 1519)]


def test_products_that_differ_by_a_rounding_are_told_apart(path):
    """Rows that hold the same numbers in another order: float32 sums them otherwise, float64 as one."""
    rng = torch.Generator().manual_seed(0)
    base = unit(1, width=384)[0]
    order = torch.rand(5000, 384, generator=rng).argsort(1)
    bank = write(path, base[order])
    query = torch.ones(384) / 384**0.5
    assert equal(bank.search(query, 20), top_k(query, bank.rows.float(), 20))


def test_a_bank_is_a_numpy_file(path):
    rows = unit(30)
    bank = write(path, rows)
    assert np.array_equal(np.load(path, allow_pickle=False), rows.half().numpy())
    assert (len(bank), bank.dimension) == (30, 48) and [file.name for file in path.parent.iterdir()] == ["bank.npy"]


# -- the index ---------------------------------------------------------------------------------------------------------


def test_the_recall_of_an_index_is_measured_and_printed(path, capsys):
    bank, query = write(path, unit(4000)), unit(50, seed=1)
    index = banks.build_index(bank, query)
    lines = capsys.readouterr().out.splitlines()
    reached = recall(index.search(query, 20)[1], bank.search(query, 20)[1])
    assert f"{index.lists.nprobe} searched: recall@20 {reached:.4f}, at least " in lines[-1]
    surely = [float(line.split("at least ")[1].split()[0]) for line in lines]
    assert reached >= surely[-1] >= banks.AIM and all(low < banks.AIM for low in surely[:-1])
    assert [int(line.split()[2]) for line in lines[:-1]] == [2**n for n in range(len(lines) - 1)]


def test_with_all_lists_searched_it_is_exact(large):
    bank, index = large
    index.lists.nprobe, before = index.lists.nlist, index.lists.nprobe
    query = unit(30, seed=2)
    for asked in (query, query[0]):
        assert equal(index.search(asked, 20), bank.search(asked, 20))
    index.lists.nprobe = before


def test_few_memories_in_the_lists_searched(path):
    index = banks.build_index(write(path, unit(300)), unit(5))
    index.lists.nprobe = 1
    similarity, found = index.search(unit(9, seed=5), 50)
    assert (found >= 0).all() and torch.isfinite(similarity).all()
    assert all(len(set(row)) == 50 for row in found.tolist())


def test_an_index_in_its_file_outlives_no_bank(path):
    bank = write(path, unit(300))
    index = banks.build_index(bank, unit(5))
    read = banks.Index(bank, faiss.read_index(str(banks.index_path(path)), faiss.IO_FLAG_MMAP))
    assert read.lists.nprobe == index.lists.nprobe
    assert equal(read.search(unit(9, seed=2), 20), index.search(unit(9, seed=2), 20))
    write(path, unit(301))
    assert not banks.index_path(path).exists()


def test_recall_counts_what_was_found():
    assert recall(torch.tensor([[1, 2], [9, 3]]), torch.tensor([[2, 1], [3, 4]])) == 0.75


# -- the adapter -------------------------------------------------------------------------------------------------------


def weights(width=48, seed=0):
    return torch.randn(2, width, width, generator=torch.Generator().manual_seed(seed)) * 0.05


def test_an_adapter_folded_in_is_the_adapter_of_every_memory(path, monkeypatch):
    monkeypatch.setattr(banks, "ROWS", 64)
    W = weights()
    rows, query = unit(300), unit(6, seed=1)
    bank = write(path, rows)
    folded = large_banks.fold(bank, W[1], path.with_name("folded.npy"))
    scores, _, _ = Adapter(W[:, None]).score(query[None], bank.rows.float()[None])
    similarity, index = folded.search(large_banks.adapt(query, W[0]), 20)
    assert similarity.numpy() == pytest.approx(scores[0].detach().gather(1, index).numpy(), abs=1e-3)  # kept as fp16
    assert recall(index, scores[0].topk(20).indices) > 0.97
    exact = (bank.rows.float() + bank.rows.float() @ W[1].T).double()
    exact = exact / exact.norm(dim=1, keepdim=True)
    assert (folded.rows.double() - exact).abs().max() < 2**-11  # half a unit of the last digit below 1
    assert folded.rows.dtype == bank.rows.dtype


def test_candidates_are_reranked_as_the_adapter_scores_them():
    W = weights()
    rows, query = unit(90).view(3, 30, 48), unit(3, seed=1)
    order = large_banks.rerank(query, rows, W, 5)
    for one, memory, places in zip(query, rows, order, strict=True):
        scores, _, _ = Adapter(W[:, None]).score(one[None, None], memory[None])
        assert places.tolist() == scores[0, 0].topk(5).indices.tolist()


def test_both_uses_of_an_adapter_on_questions():
    setting, config = Setting(dataset="toy", seeds=2), Config(**VARIANTS["ear_adapter"].changes)
    values, queries, overlap = large_banks.quality_of_uses(setting)
    usual = runs.answers(setting, "ear_adapter")
    assert (queries == usual.queries).all() and overlap.shape == queries.shape
    assert np.nanmean(values["ear_adapter"] == usual.values) > 0.9  # sums in another order may turn a near tie
    assert np.array_equal(values["retriever"], runs.answers(setting, "retriever").values, equal_nan=True)
    found, searched = candidates_of(setting, config.depth), benchmark("toy")
    W = runs.trained_weights(setting, config)[:, 1]
    for number, value, shared in zip(queries[1], values[large_banks.FOLDED][0, 1], overlap[1], strict=True):
        held = [row for row, memory in enumerate(searched.memories)
                if (memory.scope, memory.store) == (found.scopes[number], "dialogue")]  # fmt: skip
        scores, _, _ = Adapter(W[:, None]).score(found.query[number][None, None], found.bank[held][None])
        slate = {found.memory_ids[held[place]] for place in scores[0, 0].topk(5).indices.tolist()}
        gold = set(searched.asked[number].gold)
        assert np.isnan(value) if not gold else value == (gold <= slate), number
        assert 0 <= shared <= 1


# -- a large bank made of a small one ----------------------------------------------------------------------------------


def test_resampled_memories_lie_as_far_from_real_ones_as_these_from_each_other():
    real = unit(40, width=64) + unit(1, seed=9, width=64)
    real = torch.nn.functional.normalize(real, dim=1)
    made = torch.from_numpy(np.concatenate(list(large_banks.resampled(real, 5000))))
    assert made.norm(dim=1).numpy() == pytest.approx(1, abs=1e-5) and made.shape == (5000, 64)
    nearest = top_k(real, real, 2)[0][:, 1]
    away = (made @ real.T).unsqueeze(-1) - nearest  # of each made one, real one and real neighbour
    assert (away.abs().amin(dim=(1, 2)) < 1e-5).all()
    few = np.concatenate(list(large_banks.resampled(real, 700)))
    assert np.array_equal(few, made[:700].numpy())


def test_both_uses_are_measured_in_a_bank_that_goes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path))
    W, query = weights(), unit(20, seed=3)
    measured = large_banks.cost_of_uses(unit(60), query, W, 900)
    assert list(tmp_path.iterdir()) == [] and capsys.readouterr().out.count("recall@20") >= 2
    every = [large_banks.USES, ("exact", "approximate")]
    assert set(measured.seconds) == {(search, use) for search in every[1] for use in every[0]}
    assert all((seconds > 0).all() and len(seconds) == 10 for seconds in (measured.read, *measured.seconds.values()))
    rows = torch.from_numpy(np.concatenate(list(large_banks.resampled(unit(60), 900)))).half().float()
    _, index = top_k(query[10:], rows, 20)
    applied = index.gather(1, large_banks.rerank(query[10:], rows[index], W, 5))
    _, folded = top_k(large_banks.adapt(query[10:], W[0]), large_banks.adapt(rows, W[1]).half().float(), 5)
    assert measured.overlap == pytest.approx([np.isin(*pair).mean() for pair in zip(folded, applied, strict=True)])
    made = large_banks.cost_rows(measured, dataset="resampled_memories", encoder="minilm", memories=900)
    assert sum(row["metric"] == "latency" for row in made) == 5
    (disk,) = {row["measured"] for row in made if row["metric"] == "disk"}  # as large whatever is stored
    assert disk > 900 * 48 * 3 / 1e9
    assert {row["metric"] for row in made if not row.get("varies")} == {"disk", "overlap"}


# -- files that are not whole ------------------------------------------------------------------------------------------


def cut_short(path, left):
    write(path, unit(30))
    os.truncate(path, left(path.stat().st_size))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: cut_short(path, lambda size: 20), r"not a whole bank \(.*\); write the bank anew"),
        (lambda path: cut_short(path, lambda size: size // 2), r"not a whole bank \(.*\); write the bank anew"),
        (lambda path: cut_short(path, lambda size: size - 1), r"not a whole bank \(.*\); write the bank anew"),
        (lambda path: np.save(path, np.ones(5, np.float16)), "expected rows of float16, found"),
        (lambda path: np.save(path, np.ones((5, 2), int)), "expected rows of float16, found"),
        (lambda path: np.save(path, np.ones((5, 2), np.float16, order="F")), "expected rows of float16, found"),
        (lambda path: np.save(path, np.array([{}], object), allow_pickle=True), "not a whole bank .*Python objects"),
        (lambda path: path.write_text("text"), "not a whole bank"),
    ],
)
def test_a_file_that_is_no_bank_or_cut_short_is_named(path, spoil, message):
    spoil(path)
    with pytest.raises(ValueError, match=f"bank.npy: {message}"):
        Bank(path)


def broken(rows):
    yield rows[:10]
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("blocks", "error", "message"),
    [
        (lambda rows: broken(rows), KeyboardInterrupt, None),
        (lambda rows: [rows[:20]], ValueError, "expected 30 memories, got 20"),
        (lambda rows: [rows, rows[:1]], ValueError, "expected 30 memories, got 31"),
        (lambda rows: [rows[:, :40]], ValueError, r"expected 48 dimensions, got a block of shape \(30, 40\)"),
        (lambda rows: [rows[:10], rows[10:] * np.float32(1e9)], ValueError, "memory 10 is not finite"),
        (lambda rows: [rows + np.float32(np.nan)], ValueError, "memory 0 is not finite"),
    ],
)
def test_an_interrupted_write_leaves_no_half_bank(path, blocks, error, message):
    for there in (False, True):
        before = [write(path, unit(5)).path.read_bytes()] if there else []
        with pytest.raises(error, match=message):
            banks.write_bank(path, blocks(unit(30).numpy()), 30, 48)
        assert [file.read_bytes() for file in path.parent.iterdir()] == before
