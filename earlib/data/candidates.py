"""First stage: the K memories of a question's own scope that are closest to it by cosine."""

import hashlib
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from earlib.core import randomness
from earlib.core.config import near
from earlib.core.ordering import best
from earlib.data import rerankers
from earlib.data.benchmarks import ADVERSARIAL
from earlib.data.encoders import encode
from earlib.data.search import top_k
from earlib.data.words import Words

RANK_OFFSET = 60  # of reciprocal rank fusion, as its authors chose it (Cormack et al., 2009)
STORES = {"dialogue": ("dialogue",), "observation": ("observation",), "both": ("dialogue", "observation")}


@dataclass(frozen=True, eq=False)
class Candidates:
    """Candidates of N questions from a bank of M memories."""

    query: torch.Tensor  # embeddings of the questions, [N, d]
    bank: torch.Tensor  # embeddings of all memories of the benchmark, in its order, [M, d]
    index: torch.Tensor  # rows of the bank, the best first, [N, K] int64
    gold: torch.Tensor  # which candidates are gold, [N, K] bool
    gold_count: torch.Tensor  # gold memories of a question in the searched stores, found or not, [N] int64
    ids: tuple  # of the questions, N
    memory_ids: tuple  # of the memories, M
    categories: tuple  # of the questions, N
    scopes: tuple  # of the questions, N
    stores: tuple = ()  # of the memories, M
    gold_in_store: dict = field(default_factory=dict)  # gold_count for each searched store alone
    side: torch.Tensor | None = None  # a reranker's score of each candidate, 0 to 1, [N, K] float64, for the Explorer

    @property
    def memory(self):
        """Embeddings of the candidates, `[N, K, d]`."""
        return self.bank[self.index]

    def to(self, device):
        """The same candidates with all tensors on a device."""
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)}
        counts = {store: count.to(device) for store, count in self.gold_in_store.items()}
        return replace(self, **moved, gold_in_store=counts)

    def fingerprint(self):
        """SHA-256 (hex) over all tensors, ids and labels; equal exactly when a run would see the same candidates."""
        digest = hashlib.sha256()
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
                digest.update(value.contiguous().cpu().numpy())
            else:
                plain = {key: count.tolist() for key, count in value.items()} if isinstance(value, dict) else value
                digest.update(json.dumps([name, plain]).encode())
        return digest.hexdigest()

    def rotated(self, width, seed=0):
        """The same candidates with all embeddings rotated at random into a space of `width` dimensions, at least d.

        The rotation is the Q of a Gaussian matrix, signs included, so that no direction is preferred.
        """
        d = self.query.shape[1]
        if width < d:
            raise ValueError(f"width = {width}: expected at least {d}, the width of the embeddings")
        gaussian = torch.from_numpy(randomness.generator(seed, "rotation").normal(size=(width, d)))
        orthonormal, triangle = torch.linalg.qr(gaussian)
        orthonormal *= triangle.diagonal().sign()  # of a QR alone, signs depend on the algorithm
        turned = (embeddings.double() @ orthonormal.T for embeddings in (self.query, self.bank))
        query, bank = (embeddings.to(self.bank.dtype) for embeddings in turned)
        return replace(self, query=query, bank=bank)


def retrieve(benchmark, encoder="minilm", depth=20, store="dialogue", device=None):
    """Candidates of every question of a benchmark that is not adversarial.

    "both" takes K/2 memories from each store, as in the paper's section on heterogeneous memory, and orders all K by
    cosine. Ties are broken by memory order. A dialogue turn is gold if it is evidence of the question, an observation
    if it was drawn from such a turn. ValueError for an unknown store or encoder, a K that is not positive (and even,
    for "both"), or one that exceeds the memories of a scope, and for ids that do not fit (a memory's occurs twice, a
    gold id names no turn of the question's scope). Texts are encoded on the device; the search is on the CPU.
    """
    _check_ids(benchmark)
    if store not in STORES:
        raise ValueError(f"unknown store {store!r}{near(store, STORES)}; known: {', '.join(STORES)}")
    if depth < 1 or depth % len(STORES[store]):
        raise ValueError(
            f"depth (K = {depth}): expected a positive multiple of {len(STORES[store])} for store {store!r}"
        )
    memories, queries = benchmark.memories, benchmark.asked
    bank = torch.from_numpy(encode([memory.text for memory in memories], encoder, "memory", device))
    every = torch.from_numpy(encode([query.text for query in benchmark.queries], encoder, "query", device))
    query = every[[query.category != ADVERSARIAL for query in benchmark.queries]]
    return Candidates(
        query=query,
        bank=bank,
        **chosen(benchmark, nearest(benchmark, query, bank, store, depth), store),
        ids=tuple(query.id for query in queries),
        memory_ids=tuple(memory.id for memory in memories),
        categories=tuple(query.category for query in queries),
        scopes=tuple(query.scope for query in queries),
        stores=tuple(memory.store for memory in memories),
    )


def _check_ids(benchmark):
    """Raise a ValueError that names a memory id that occurs twice, or a gold id that is no turn of its scope."""
    for id, times in Counter(memory.id for memory in benchmark.memories).items():
        if times > 1:
            raise ValueError(f"{benchmark.name}: memory id {id!r}: expected to occur once, found {times} times")
    turns = defaultdict(set)
    for memory in benchmark.memories:
        turns[memory.scope].update(memory.turns)
    for query in benchmark.queries:
        for id in query.gold:
            if id not in turns[query.scope]:
                expected = f"the id of a dialogue memory in scope {query.scope!r}{near(id, sorted(turns[query.scope]))}"
                raise ValueError(f"{benchmark.name}: question {query.id!r}: gold id {id!r}: expected {expected}")


def by_words(benchmark, found, depth=20, store="dialogue"):
    """Candidates of the same benchmark ranked by BM25 over all memories of a question's scope; ties in memory order."""
    return _reranked(benchmark, found, _scored_by_words(benchmark, store), depth, store)


def fused(benchmark, found, depth=20, store="dialogue"):
    """Candidates of a hybrid first stage: the rankings by cosine and by BM25, fused by reciprocal rank.

    A memory i has the score 1 / (60 + a_i) + 1 / (60 + b_i), with its ranks a_i and b_i, from 1 on, among all memories
    of the question's scope; the second term only if it shares a word with the question. Ties in memory order.
    """

    def scored():
        for query, (rows, words) in zip(found.query, _scored_by_words(benchmark, store), strict=True):
            similarity = found.bank[rows].double() @ query.double()
            yield rows, _reciprocal_rank(similarity) + _reciprocal_rank(words).where(words > 0, 0)

    return _reranked(benchmark, found, scored(), depth, store)


def _reranked(benchmark, found, scored, depth, store):
    """The candidates replaced by the best `depth` of each question's scored rows; ties in order."""
    index = torch.stack([rows[best(scores, depth)] for rows, scores in scored])
    return replace(found, side=None, **chosen(benchmark, index, store))


def reciprocals(count):
    """Contribution of each rank, from 1 on, to reciprocal rank fusion: 1 / (60 + rank), `[count]` float64."""
    return 1 / torch.arange(RANK_OFFSET + 1, RANK_OFFSET + 1 + count, dtype=torch.float64)


def _reciprocal_rank(scores):
    worth = torch.empty(len(scores), dtype=torch.float64)
    worth[best(scores, len(scores))] = reciprocals(len(scores))
    return worth


def word_scores(benchmark, found, store="dialogue"):
    """BM25 of each candidate over all memories of its question's scope, divided by the largest of the question's K.

    `[N, K]` float64, 0 to 1; zeros for a question that shares no word with its candidates.
    """
    scored = zip(found.index, _scored_by_words(benchmark, store), strict=True)
    return of_largest(torch.stack([scores[torch.searchsorted(rows, of)].double() for of, (rows, scores) in scored]))


def of_largest(scores):
    """Scores of a question's candidates as shares of the largest of them, `[..., K]`; zeros where all are 0."""
    largest = scores.max(-1, keepdim=True).values
    return scores / torch.where(largest > 0, largest, 1)


def with_side(benchmark, found, reranker, store="dialogue", device=None):
    """The same candidates with the scores of one of `rerankers.NAMES` as side information, between 0 and 1.

    MonoT5's are the probability of "true", exp(s) of `rerankers.score`; BM25's those of `word_scores`.
    """
    if reranker == rerankers.WORDS:
        return replace(found, side=word_scores(benchmark, found, store))
    asked = zip(benchmark.asked, found.index.tolist(), strict=True)
    pairs = [(query.text, benchmark.memories[row].text) for query, rows in asked for row in rows]
    scores = torch.from_numpy(rerankers.score(pairs, reranker, device)).double()
    return replace(found, side=scores.exp().view(found.index.shape))


def _numbers(entries, *fields):
    """Numbers of the entries with the same values of some fields, by these values."""
    numbers = defaultdict(list)
    for number, entry in enumerate(entries):
        numbers[tuple(getattr(entry, field) for field in fields)].append(number)
    return {key: torch.tensor(of_key) for key, of_key in numbers.items()}


def _scored_by_words(benchmark, store):
    """For each question asked, the rows of its scope's memories and their scores by BM25."""
    rows, indexes = defaultdict(lambda: torch.empty(0, dtype=torch.int64)), defaultdict(Words)
    for (scope, one), held in _numbers(benchmark.memories, "scope", "store").items():
        if one in STORES[store]:
            rows[scope] = torch.cat([rows[scope], held]).sort().values
    for scope, held in rows.items():
        indexes[scope].append([benchmark.memories[row].text for row in held])
    for query in benchmark.asked:
        held = rows[query.scope]
        yield held, torch.from_numpy(indexes[query.scope].scores(query.text, np.ones(len(held), bool)))


def nearest(benchmark, query, bank, store, depth):
    """Rows of the bank closest to each question asked, in its scope and store, `[N, K]`; one product for each."""
    share, rows = depth // len(STORES[store]), _numbers(benchmark.memories, "scope", "store")
    index = torch.empty(len(query), depth, dtype=torch.int64)
    for (scope,), numbers in _numbers(benchmark.asked, "scope").items():
        parts = []
        for one in STORES[store]:
            held = rows.get((scope, one), torch.empty(0))
            if share > len(held):
                half = f" (K/2 = {share} from each store)" if share < depth else ""
                few = f"scope {scope!r} holds {len(held)} {one} memories, fewer than K = {depth}{half}"
                raise ValueError(f"{benchmark.name}: {few}; choose a smaller depth")
            similarity, places = top_k(query[numbers], bank[held], share)
            parts.append((similarity, held[places]))
        similarity, found = (torch.cat(part, -1) for part in zip(*parts, strict=True))
        found, order = found.sort(-1)  # in memory order, which breaks ties between stores
        index[numbers] = found.gather(-1, best(similarity.gather(-1, order), depth))
    return index


def chosen(benchmark, index, store):
    """Fields of `Candidates` that depend on which memories were chosen, `[N, K]`: index, gold and their counts."""
    holding = defaultdict(set)  # dialogue turn -> rows of the memories that hold it
    for row, memory in enumerate(benchmark.memories):
        for turn in memory.turns if memory.store in STORES[store] else ():
            holding[turn].add(row)
    of_query = [set().union(*(holding.get(turn, ()) for turn in query.gold)) for query in benchmark.asked]
    gold = torch.tensor([[row in rows for row in held] for held, rows in zip(index.tolist(), of_query, strict=True)])
    in_store = {
        one: torch.tensor([sum(benchmark.memories[row].store == one for row in rows) for rows in of_query])
        for one in STORES[store]
    }
    return {"index": index, "gold": gold, "gold_count": sum(in_store.values()), "gold_in_store": in_store}
