"""First stage: the right candidates in the right order, their gold, and the published calibration on LoCoMo."""

import dataclasses
import functools
import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from earlib import paths
from earlib.core.ordering import best
from earlib.data import benchmarks, candidates, search
from earlib.data.benchmarks import Benchmark, Memory, Query
from earlib.data.candidates import retrieve
from earlib.data.encoders import encode
from earlib.data.search import top_k
from earlib.data.words import Words

POOL = ["Anna moved to Oslo.", "The soup was salty.", "Bo adopted a cat.", "We went hiking.", "Take care, bye!", ""]
SEEN = ["Bo has a pet.", "Anna lives in Oslo.", "Anna likes hiking in Oslo."]


@functools.cache
def embeddings():
    texts = [*POOL, *SEEN, "Where does Anna live?"]
    return dict(zip(texts, encode(texts), strict=True))


def looked_up(texts, *options):
    return np.stack([embeddings()[text] for text in texts])


@pytest.fixture
def pool(monkeypatch):
    """The texts of these tests are encoded once."""
    monkeypatch.setattr(candidates, "encode", looked_up)


@pytest.fixture
def small(pool):
    """Two scopes; the first has four turns and three observations."""
    turns = [Memory(f"a/{i}", "a", "dialogue", "S1", "", POOL[i]) for i in range(4)]
    sources = [(), ("a/0",), ("a/0", "a/3")]
    seen = [Memory(f"a/o{i}", "a", "observation", "S1", "", SEEN[i], sources[i]) for i in range(3)]
    other = [Memory(f"b/{i}", "b", "dialogue", "S1", "", "Anna moved to Oslo.") for i in range(4)]
    queries = (
        Query("q0", "a", "Where does Anna live?", "Oslo", "single-hop", ("a/0", "a/2")),
        Query("q1", "b", "Where does Anna live?", "?", "adversarial", ("b/0",)),
        Query("q2", "b", "Where does Anna live?", "Oslo", "temporal", ()),
    )
    return Benchmark("Small", (*turns[:2], *other, *seen, *turns[2:]), queries)


def plain(query, rows, bank, k):
    """The k best rows for one query, one product at a time."""
    similarity = {row: np.float32(sum(a * b for a, b in zip(query, bank[row], strict=True))) for row in rows}
    return sorted(rows, key=lambda row: (-similarity[row], row))[:k]


vectors = st.lists(st.integers(-2, 2), min_size=3, max_size=3)


@given(st.lists(vectors, min_size=1, max_size=40), st.lists(vectors, min_size=1, max_size=5), st.data())
def test_top_k_orders_by_similarity_then_memory(bank, queries, data):
    k = data.draw(st.integers(1, len(bank)))
    similarity, index = top_k(torch.tensor(queries).float(), torch.tensor(bank).float(), k)
    for number, query in enumerate(queries):
        assert index[number].tolist() == plain(query, range(len(bank)), bank, k)
        assert similarity[number].tolist() == [np.dot(query, bank[row]) for row in index[number]]
        one = top_k(torch.tensor(query).float(), torch.tensor(bank).float(), k)  # an online bank
        assert (one[0] == similarity[number]).all() and (one[1] == index[number]).all()


def in_float64(query, bank, k):
    """All products in float64, sorted."""
    similarity = query.double() @ bank.double().T
    index = best(similarity, k)
    return similarity.gather(-1, index).float(), index


def on_a_grid(rows, bits):
    """Rows of nearly unit length, in multiples of 2^-bits: their products are exact in float64, not in float32."""
    return (torch.nn.functional.normalize(rows, dim=-1) * 2**bits).round() / 2**bits


def near_ties(rng, memories, steps, width):
    """A query whose product is the same with every row, which float32 sums otherwise for each; or nearly the same."""
    signs = torch.randint(0, 2, (width,), generator=rng) * 2.0 - 1
    base = on_a_grid(torch.randn(width, generator=rng) + 0.5, 28)
    order = torch.rand(memories, width, generator=rng).argsort(1)[torch.randint(memories, (memories,), generator=rng)]
    return signs / width**0.5, base[order] * signs + steps * torch.randint(-1, 2, order.shape, generator=rng) / 2**24


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 4), st.integers(0, 1), st.data())
def test_one_pass_in_float32_finds_what_float64_finds(seed, memories, queries, steps, data):
    rng = torch.Generator().manual_seed(seed)
    query, bank = near_ties(rng, memories, steps, 64)
    query = torch.cat([query[None], on_a_grid(torch.randn(queries, 64, generator=rng), 20)])
    k = data.draw(st.integers(1, memories))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "EXACT", data.draw(st.integers(1, 8)))
        patch.setattr(search, "PRODUCTS", data.draw(st.integers(1, 100)))
        for asked in (query, query[0]):
            found, expected = top_k(asked, bank, k), in_float64(asked, bank, k)
            assert found[1].tolist() == expected[1].tolist() and (found[0] == expected[0]).all()


@pytest.mark.parametrize("products", [2**10, 2**20])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_near_ties_in_large_banks(monkeypatch, products, steps):
    monkeypatch.setattr(search, "PRODUCTS", products)
    query, bank = near_ties(torch.Generator().manual_seed(steps), 8_000, steps, 1024)
    found, expected = top_k(query, bank, 20), in_float64(query, bank, 20)
    assert (found[1] == expected[1]).all() and (found[0] == expected[0]).all()


@pytest.mark.parametrize("count", [1, 40])
def test_large_banks_are_ranked_as_in_float64(count):
    rng = torch.Generator().manual_seed(count)
    bank = torch.nn.functional.normalize(torch.randn(30_000, 96, generator=rng), dim=1)
    query = torch.nn.functional.normalize(torch.randn(count, 96, generator=rng) + 10 * bank[0], dim=1)
    bank[[7, 20_000, 29_999]] = bank[0].clone()
    found, expected = top_k(query, bank, 20), in_float64(query, bank, 20)
    assert (found[1] == expected[1]).all() and (found[0] == expected[0]).all()
    assert found[1][0, :4].tolist() == [0, 7, 20_000, 29_999]


def test_where_every_memory_ties_the_first_win(monkeypatch):
    multiplied = []
    monkeypatch.setattr(search, "best", lambda scores, k: multiplied.append(scores.shape[1]) or best(scores, k))
    bank = torch.nn.functional.normalize(torch.ones(20_000, 33), dim=1)
    for query in (bank[0], -bank[:3]):
        _, index = top_k(query, bank, 20)
        assert (index == torch.arange(20)).all()
    assert max(multiplied) <= search.EXACT + 20  # no copy of the bank in float64, whatever ties


@pytest.mark.parametrize("k", [0, 4])
def test_top_k_out_of_range(k):
    with pytest.raises(ValueError, match=f"k = {k}: expected 1 to 3"):
        top_k(torch.ones(2), torch.ones(3, 2), k)


texts = st.sampled_from(POOL)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["dialogue", "observation"]), texts), max_size=30),
    st.lists(st.tuples(st.sampled_from("ab"), texts), min_size=1, max_size=4),
    st.sampled_from(["dialogue", "observation", "both"]),
)
def test_retrieve_equals_one_query_at_a_time(pool, memories, queries, store):
    # Two of each kind in each scope, so that K = 2 (and one from each store) always fits.
    for kind in ("dialogue", "observation"):
        memories = memories + [(scope, kind, text) for scope in "ab" for text in POOL[:2]]
    memories = tuple(Memory(str(i), scope, kind, "", "", text) for i, (scope, kind, text) in enumerate(memories))
    queries = tuple(Query(f"q{i}", scope, text, "", "temporal", ()) for i, (scope, text) in enumerate(queries))
    found = retrieve(Benchmark("Drawn", memories, queries), "minilm", 2, store)
    bank, asked = (looked_up([one.text for one in some]).astype(np.float64) for some in (memories, queries))
    for number, query in enumerate(queries):
        rows = []
        for kind in ("dialogue", "observation") if store == "both" else (store,):
            held = (query.scope, kind)
            of_kind = [row for row, memory in enumerate(memories) if (memory.scope, memory.store) == held]
            rows += plain(asked[number], of_kind, bank, 1 if store == "both" else 2)
        assert found.index[number].tolist() == plain(asked[number], sorted(rows), bank, 2)


def test_candidates_of_the_dialogue_store(small):
    found = retrieve(small, "minilm", 4)
    assert found.ids == ("q0", "q2")  # the adversarial question is left out
    assert (found.categories, found.scopes) == (("single-hop", "temporal"), ("a", "b"))
    assert found.memory_ids[6:9] == ("a/o0", "a/o1", "a/o2") and found.bank.shape == (11, 384)
    assert found.memory_ids[found.index[0, 0]] == "a/0"
    assert {found.memory_ids[row] for row in found.index[0]} == {"a/0", "a/1", "a/2", "a/3"}
    assert found.index[1].tolist() == [2, 3, 4, 5]  # four equal turns in memory order
    assert [found.memory_ids[row] in ("a/0", "a/2") for row in found.index[0]] == found.gold[0].tolist()
    assert found.gold_count.tolist() == [2, 0] and not found.gold[1].any()
    assert (found.memory[0, 1] == found.bank[found.index[0, 1]]).all() and found.memory.shape == (2, 4, 384)


def test_observations_are_gold_through_their_sources(small):
    alone = dataclasses.replace(small, queries=small.queries[:1])
    found = retrieve(alone, "minilm", 3, "observation")
    gold = {found.memory_ids[row] for row, is_gold in zip(found.index[0], found.gold[0], strict=True) if is_gold}
    assert gold == {"a/o1", "a/o2"} and found.gold_count.tolist() == [2]


def test_both_stores_take_half_of_the_candidates_each(small):
    found = retrieve(dataclasses.replace(small, queries=small.queries[:1]), "minilm", 4, "both")
    assert sorted(found.stores[row] for row in found.index[0]) == ["dialogue"] * 2 + ["observation"] * 2
    similarity = found.memory[0] @ found.query[0]
    assert (similarity.diff() <= 1e-6).all()
    assert found.gold_count.tolist() == [4]  # gold of both stores, found or not
    assert found.gold_in_store == {"dialogue": torch.tensor([2]), "observation": torch.tensor([2])}


@pytest.mark.parametrize("question", ["Is it that?", "", "Where is the unheard of?"])
@pytest.mark.parametrize("texts", [["The soup was salty.", ""], ["Is it that?", "so"], ["\U0001f600", ""]])
def test_without_common_words_bm25_scores_zero(small, question, texts):
    memories = [Memory(f"a/{i}", "a", "dialogue", "S1", "", text) for i, text in enumerate(texts)]
    asked = Benchmark("Small", tuple(memories), (small.queries[0]._replace(text=question, gold=("a/0",)),))
    ((rows, scores),) = candidates._scored_by_words(asked, "dialogue")
    index = Words()
    index.append(texts)
    assert rows.tolist() == [0, 1] and scores.tolist() == index.scores(question, np.ones(2, bool)).tolist() == [0, 0]
    assert list(candidates._scored_by_words(asked, "observation"))[0][1].tolist() == []


@pytest.mark.parametrize("gold", [("S1",), ("a/0", "a/00"), ("a/0", "S1"), ("b/0",), ("a/o1",)])
def test_gold_that_is_no_turn_of_its_scope_is_named(small, gold):
    wrong = dataclasses.replace(small, queries=(small.queries[0]._replace(gold=gold), *small.queries[1:]))
    with pytest.raises(ValueError, match=f"Small: question 'q0': gold id '{gold[-1]}': expected .* in scope 'a'"):
        retrieve(wrong, "minilm", 4)


def test_a_memory_id_that_occurs_twice_is_named(small):
    twice = dataclasses.replace(small, memories=(*small.memories, small.memories[3]._replace(text="Bo moved.")))
    with pytest.raises(ValueError, match=f"Small: memory id '{twice.memories[-1].id}': .* found 2 times"):
        retrieve(twice, "minilm", 4)


@pytest.mark.parametrize("depth, store, message", [
    (5, "dialogue", "Small: scope 'a' holds 4 dialogue memories, fewer than K = 5"),
    (8, "both", r"Small: scope 'a' holds 3 observation memories, .*K = 8 \(K/2 = 4"),
    (2, "both", "scope 'b' holds 0 observation memories"),
    (0, "dialogue", "K = 0.: expected a positive multiple"),
    (5, "both", "K = 5.: expected a positive multiple"),
    (2, "observations", "unknown store 'observations', did you mean 'observation'"),
])  # fmt: skip
def test_what_cannot_be_retrieved_is_named(small, depth, store, message):
    with pytest.raises(ValueError, match=message):
        retrieve(small, "minilm", depth, store)


def test_fingerprint_follows_content(small):
    found = retrieve(small, "minilm", 4)
    assert found.fingerprint() == retrieve(small, "minilm", 4).fingerprint()
    changes = {"gold": ~found.gold, "bank": found.bank + 1, "index": found.index.flip(1), "ids": ("q0", "q3")}
    others = {dataclasses.replace(found, **{name: value}).fingerprint() for name, value in changes.items()}
    assert len(others | {found.fingerprint()}) == 5


def test_static_retriever_on_locomo_is_calibrated():
    """On the turns of two conversations; on all of LoCoMo, which take minutes to encode, with the full profile."""
    if not any((folder / "locomo10.json").is_file() for folder in paths.data_folders()):
        pytest.skip(f"no locomo10.json in {' or '.join(map(str, paths.data_folders()))}; set EARLIB_DATA to its folder")
    locomo = benchmarks.load("locomo")
    number, expected = 1536, ((5, 32.1, 41.7), (20, 48.9, 62.0))
    if os.environ.get("HYPOTHESIS_PROFILE") != "full":
        number, expected = 231, ((5, 32.9, 41.1), (20, 51.1, 62.8))
        scopes = list(dict.fromkeys(query.scope for query in locomo.queries))[:2]
        memories = (one for one in locomo.memories if one.scope in scopes and one.store == "dialogue")
        queries = (query for query in locomo.queries if query.scope in scopes)
        locomo = dataclasses.replace(locomo, memories=tuple(memories), queries=tuple(queries))
    found = retrieve(locomo, "minilm", 20)
    asked = found.gold_count > 0
    assert int(asked.sum()) == number
    gold, count = found.gold[asked].int().cumsum(-1), found.gold_count[asked]
    for k, recall, hitrate in expected:
        assert 100 * (gold[:, k - 1] == count).double().mean() == pytest.approx(recall, abs=0.2)
        assert 100 * (gold[:, k - 1] > 0).double().mean() == pytest.approx(hitrate, abs=0.2)


@pytest.mark.parametrize("rows", [10, 3 * search.EXACT])
@pytest.mark.parametrize("where", ["query", "bank"])
def test_embeddings_that_are_not_finite_are_refused(rows, where):
    rng = torch.Generator().manual_seed(0)
    query, bank = (torch.nn.functional.normalize(torch.randn(n, 8, generator=rng), dim=-1) for n in (2, rows))
    (query if where == "query" else bank)[1, 3] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        top_k(query, bank, 3)
