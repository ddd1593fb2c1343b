"""First stage: the K memories of a question's own scope that are closest to it by cosine."""

import hashlib
import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace

import bm25s
import faiss
import numpy as np
import torch

from earlib.core import randomness
from earlib.data import rerankers
from earlib.data.benchmarks import ADVERSARIAL
from earlib.core.config import near
from earlib.data.encoders import encode
from earlib.core.ordering import best
from earlib.data.words import words as words_of

PRODUCTS = 2**20  # float32 products of queries and rows of a bank at a time
ROWS = 2**16  # rows of a bank that are made, read or searched at a time: 50 MB of 384 dimensions in fp16
EXACT = 2**8  # rows of a bank that are multiplied in float64 at a time
RANK_OFFSET = 60  # of reciprocal rank fusion, as its authors chose it (Cormack et al., 2009)
STORES = {"dialogue": ("dialogue",), "observation": ("observation",), "both": ("dialogue", "observation")}


@dataclass(frozen=True, eq=False)
class Candidates:
    """Candidates of N questions from a bank of M memories.

    Attributes
    ----------
    query : torch.Tensor
        Embeddings of the questions, `[N, d]`.
    bank : torch.Tensor
        Embeddings of all memories of the benchmark, in its order, `[M, d]`.
    index : torch.Tensor
        Rows of the bank, the best first, `[N, K]` int64.
    gold : torch.Tensor
        Which candidates are gold, `[N, K]` bool.
    gold_count : torch.Tensor
        Gold memories of a question in the searched stores, found or not, `[N]` int64.
    ids, categories, scopes : tuple of str
        Of the N questions.
    memory_ids, stores : tuple of str
        Of the M memories.
    gold_in_store : dict
        `gold_count` for each searched store alone, {store: `[N]` int64}.
    side : torch.Tensor, optional
        Score of each candidate by a reranker, 0 to 1, `[N, K]` float64: side information of the Explorer.
    """

    query: torch.Tensor
    bank: torch.Tensor
    index: torch.Tensor
    gold: torch.Tensor
    gold_count: torch.Tensor
    ids: tuple
    memory_ids: tuple
    categories: tuple
    scopes: tuple
    stores: tuple = ()
    gold_in_store: dict = field(default_factory=dict)
    side: torch.Tensor | None = None

    @property
    def memory(self):
        """Embeddings of the candidates, `[N, K, d]`."""
        return self.bank[self.index]

    def to(self, device):
        """The same candidates with all tensors on a device."""
        moved = {
            name: value
            for name in (entry.name for entry in fields(self))
            if isinstance(value := getattr(self, name), torch.Tensor)
        }
        counts = {store: count.to(device) for store, count in self.gold_in_store.items()}
        return replace(self, **{name: value.to(device) for name, value in moved.items()}, gold_in_store=counts)

    def fingerprint(self):
        """SHA-256 (hex) over all tensors, ids and labels; equal exactly when a run would see the same candidates."""
        digest = hashlib.sha256()
        for name in (entry.name for entry in fields(self)):
            value = getattr(self, name)
            if isinstance(value, torch.Tensor):
                digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
                digest.update(value.contiguous().cpu().numpy())
            else:
                plain = {key: count.tolist() for key, count in value.items()} if isinstance(value, dict) else value
                digest.update(json.dumps([name, plain]).encode())
        return digest.hexdigest()

    def rotated(self, width, seed=0):
        """The same candidates with all embeddings in another space, whose axes have nothing to do with the encoder's.

        x becomes Q x with a random Q of orthonormal columns, the Q of a Gaussian matrix, signs included, so that no
        direction is preferred. Scores stay what they are up to rounding; products are summed in float64 for that.

        Parameters
        ----------
        width : int
            Dimensions of that space, d or more.
        seed : int
            Of the random map.

        Returns
        -------
        Candidates

        Raises
        ------
        ValueError
            If the width is below d: no map into fewer dimensions keeps all scores.
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


def top_k(query, bank, k):
    """The k rows of a bank closest to each query by cosine; of equal ones the first in the bank.

    Products are summed in float64 and compared by the tie rule of `ranking`: sums in float32 depend on where in the
    bank a row stands and on how many queries share the product, so that equal memories would not tie. A large bank is read once and
    never copied: float32 products tell which rows can be among the k best, and only those are multiplied again in
    float64.

    Parameters
    ----------
    query : torch.Tensor
        Unit embeddings, `[..., d]` float32; one query or many.
    bank : torch.Tensor
        Unit embeddings, `[M, d]` float32, or kept as float16; may lie in a memory-mapped file.
    k : int

    Returns
    -------
    similarity : torch.Tensor
        Descending, `[..., k]` float32.
    index : torch.Tensor
        Rows of the bank, `[..., k]` int64.

    Raises
    ------
    ValueError
        If k is not between 1 and M, or an embedding is not finite.
    """
    if not 1 <= k <= len(bank):
        raise ValueError(f"k = {k}: expected 1 to {len(bank)}, the number of memories in the bank")
    flat = query.reshape(-1, query.shape[-1])
    similarity = torch.empty(len(flat), 0, dtype=torch.float64)
    index = torch.empty(len(flat), 0, dtype=torch.int64)
    step = max(EXACT, PRODUCTS // max(1, len(flat)))
    for start in range(0, len(bank), step):
        block = bank[start : start + step].float()
        for rows in _close(flat, block, k, similarity).split(EXACT):
            products = flat.double() @ block[rows].double().T
            similarity = torch.cat([similarity, products], 1)
            index = torch.cat([index, (start + rows).expand(len(flat), -1)], 1)
            order = best(similarity, k)  # what was found before stands first, so that it wins a tie
            similarity, index = similarity.gather(1, order), index.gather(1, order)
    _check_finite(similarity.numpy())
    similarity = similarity.float()
    return similarity.view(*query.shape[:-1], k), index.view(*query.shape[:-1], k)


def _close(query, block, k, found):
    """Rows of a block that can be among the k best of some query, given the similarities found in blocks before it.

    A row whose product lies more than its `rounding` below the k-th best found is below that; one more than twice this
    below the k-th product of the block is below k others of the block.
    """
    if len(block) <= EXACT:
        return torch.arange(len(block))
    # NumPy's product with one vector runs at the speed of memory; torch's takes twice as long on some processors.
    products = query.numpy() @ block.numpy().T
    _check_finite(products)
    off = rounding(query)
    bound = np.full(len(query), -np.inf)
    if found.shape[1] == k:
        bound = found[:, -1].numpy() - off
    if len(block) >= k:
        bound = np.maximum(bound, np.partition(products, -k)[:, -k] - 2 * off)
    return torch.from_numpy(np.flatnonzero((products >= bound.astype(np.float32)[:, None]).any(0)))


def stream(rows, query, k, name, size=ROWS):
    """The k rows closest to one query: the bank is read once, and what may be among them multiplied again.

    Parameters
    ----------
    rows : torch.Tensor
        Unit embeddings, `[M, d]` float16.
    query : torch.Tensor
        Its embedding, `[d]` float32.
    k : int
        1 to M.
    name : object
        The bank, in messages.
    size : int
        Rows that a thread searches at a time.

    Returns
    -------
    similarity, index : torch.Tensor
        `[k]`, as `candidates.top_k`.

    Raises
    ------
    ValueError
        If an embedding is not finite.
    """
    threads = torch.get_num_threads()
    size = min(size, -(-len(rows) // threads))  # a small bank in as many equal blocks as there are threads
    blocks = list(zip(range(0, len(rows), size), rows.split(size), strict=True))
    # More than k a block, so that a block whose own k are close seldom has to be looked at again.
    with ThreadPoolExecutor(threads) as pool:
        kept = list(pool.map(lambda block: _scan(block[1].numpy(), query.numpy(), 2 * k), blocks))
    bound = np.sort(np.concatenate([products for products, _ in kept]))[-k] - 2 * rounding(query[None]).item()
    if bound == -np.inf:
        raise ValueError(f"{name}: memories are not finite; write the bank anew")
    near = []
    for (start, block), (products, places) in zip(blocks, kept, strict=True):
        if len(products) < len(block) and (products >= bound).all():  # there may be more
            places = top_k(query, block.float(), min(k, len(block)))[1].numpy()
        else:
            places = places[products >= bound]
        near.append(start + np.sort(places))  # in the bank's order: of equal ones the first wins
    near = torch.from_numpy(np.concatenate(near))
    similarity, place = top_k(query, rows[near].float(), k)
    return similarity, near[place]


def _scan(block, query, count):
    """Products of one query with the rows of a block that have the highest, and those rows; in no order.

    The library multiplies fp16 without a copy in float32, which is what makes it as fast as reading.
    """
    count = min(count, len(block))
    products, places = np.full(count, -np.inf, np.float32), np.full(count, -1, np.int64)
    quantizer = faiss.ScalarQuantizer(block.shape[1], faiss.ScalarQuantizer.QT_fp16)
    scanner = quantizer.select_InvertedListScanner(faiss.METRIC_INNER_PRODUCT, None, True, None, False)
    scanner.set_query(faiss.swig_ptr(query))
    scanner.set_list(0, 0.0)
    codes, (heap, ids) = block.view(np.uint8).reshape(-1), map(faiss.swig_ptr, (products, places))
    scanner.scan_codes(len(block), faiss.swig_ptr(codes), None, heap, ids, count)
    return products, places


def rounding(query):
    """How far the float32 product of a query with a row of unit length can be off, `[Q]` float64.

    However it is summed, a product of d terms is off by at most d u / (1 - d u) |q| |m| with u = 2^-24, here with room
    for the rounding of lengths and of bounds.
    """
    return 1.02 * (query.shape[1] + 4) * 2.0**-24 * query.double().norm(dim=1).numpy()


def _check_finite(products):
    if not np.isfinite(products).all():
        raise ValueError("the embeddings of a query or a memory are not finite; encode them anew")


def retrieve(benchmark, encoder="minilm", depth=20, store="dialogue", device=None):
    """Candidates of every question of a benchmark that is not adversarial.

    "both" takes K/2 memories from each store, as in the paper's section on heterogeneous memory, and orders all K by
    cosine. Ties are broken by memory order. A dialogue turn is gold if it is evidence of the question, an observation
    if it was drawn from such a turn.

    Parameters
    ----------
    benchmark : Benchmark
    encoder : str
        One of `encoders.REGISTRY`.
    depth : int
        K, candidates of a question.
    store : {"dialogue", "observation", "both"}
        Where they come from.
    device : str, optional
        Where texts are encoded, as in `encoders.encode`; the search itself runs on the CPU.

    Returns
    -------
    Candidates

    Raises
    ------
    ValueError
        For an unknown store or encoder, a K that is not positive (and even, for "both"), or one that exceeds the
        memories of a scope (dataset, scope, its size and K are named).
    """
    if store not in STORES:
        raise ValueError(f"unknown store {store!r}{near(store, STORES)}; known: {', '.join(STORES)}")
    stores = STORES[store]
    if depth < 1 or depth % len(stores):
        raise ValueError(f"depth (K = {depth}): expected a positive multiple of {len(stores)} for store {store!r}")
    memories = benchmark.memories
    bank = torch.from_numpy(encode([memory.text for memory in memories], encoder, "memory", device))
    every = torch.from_numpy(encode([query.text for query in benchmark.queries], encoder, "query", device))
    asked = [number for number, query in enumerate(benchmark.queries) if query.category != ADVERSARIAL]
    queries, query = [benchmark.queries[number] for number in asked], every[asked]
    index = _search(benchmark, queries, query, bank, stores, depth)
    gold, counts = _gold(memories, queries, index, stores)
    return Candidates(
        query=query,
        bank=bank,
        index=index,
        gold=gold,
        gold_count=sum(counts.values()),
        ids=tuple(query.id for query in queries),
        memory_ids=tuple(memory.id for memory in memories),
        categories=tuple(query.category for query in queries),
        scopes=tuple(query.scope for query in queries),
        stores=tuple(memory.store for memory in memories),
        gold_in_store=counts,
    )


def by_words(benchmark, found, depth=20, store="dialogue"):
    """Candidates ranked by BM25 instead, over all memories of a question's scope; ties in memory order.

    Parameters
    ----------
    benchmark : Benchmark
    found : Candidates
        Of the same benchmark, for what does not depend on the ranking.
    depth : int
    store : {"dialogue", "observation", "both"}

    Returns
    -------
    Candidates
    """
    return _ranked_anew(benchmark, found, _scored_by_words(benchmark, store), depth, store)


def fused(benchmark, found, depth=20, store="dialogue"):
    """Candidates of a hybrid first stage: the ranking by cosine and that by BM25, fused by reciprocal rank.

    A memory i has the score 1 / (60 + a_i) + 1 / (60 + b_i), with its ranks a_i and b_i, from 1 on, among all memories
    of the question's scope; the second term only where it shares a word with the question. Ties in memory order.

    Parameters and result as in `by_words`.
    """

    def scored():
        for query, (rows, words) in zip(found.query, _scored_by_words(benchmark, store), strict=True):
            similarity = found.bank[rows].double() @ query.double()
            yield rows, _reciprocal_rank(similarity) + _reciprocal_rank(words).where(words > 0, 0)

    return _ranked_anew(benchmark, found, scored(), depth, store)


def _ranked_anew(benchmark, found, scored, depth, store):
    """The candidates with the best `depth` of each question's scored rows in the place of its own; ties in order."""
    index = torch.empty(len(benchmark.asked), depth, dtype=torch.int64)
    for number, (rows, scores) in enumerate(scored):
        index[number] = rows[best(scores, depth)]
    gold, counts = _gold(benchmark.memories, benchmark.asked, index, STORES[store])
    return replace(found, index=index, gold=gold, gold_count=sum(counts.values()), gold_in_store=counts, side=None)


def reciprocals(count):
    """What the ranks from 1 on are worth in reciprocal rank fusion: 1 / (60 + rank), `[count]` float64."""
    return 1 / torch.arange(RANK_OFFSET + 1, RANK_OFFSET + 1 + count, dtype=torch.float64)


def _reciprocal_rank(scores):
    """`reciprocals` of the rank of each score, `[M]`."""
    worth = torch.empty(len(scores), dtype=torch.float64)
    worth[best(scores, len(scores))] = reciprocals(len(scores))
    return worth


def word_scores(benchmark, found, store="dialogue"):
    """BM25 of each candidate, over all memories of its question's scope, divided by the largest of the question's K.

    Parameters
    ----------
    benchmark : Benchmark
    found : Candidates
        Of the same benchmark and store.
    store : {"dialogue", "observation", "both"}

    Returns
    -------
    torch.Tensor
        0 to 1, `[N, K]` float64; zeros for a question that shares no word with its candidates.
    """
    scored = torch.empty(found.index.shape, dtype=torch.float64)
    for number, (rows, scores) in enumerate(_scored_by_words(benchmark, store)):
        scored[number] = scores[torch.searchsorted(rows, found.index[number])].double()
    return of_largest(scored)


def of_largest(scores):
    """Scores of a question's candidates as shares of the largest of them, `[..., K]`; zeros where all are 0."""
    largest = scores.max(-1, keepdim=True).values
    return scores / torch.where(largest > 0, largest, 1)


def with_side(benchmark, found, reranker, store="dialogue", device=None):
    """Candidates with a reranker's scores as side information.

    MonoT5's are the probability of "true", exp(s) of `rerankers.score`; BM25's those of `word_scores`. Both lie
    between 0 and 1, as similarities mostly do.

    Parameters
    ----------
    benchmark : Benchmark
    found : Candidates
        Of this benchmark and store.
    reranker : str
        One of `rerankers.NAMES`.
    store : {"dialogue", "observation", "both"}
    device : str, optional
        Where a model scores, as in `rerankers.score`.

    Returns
    -------
    Candidates
        The same, with `side`.
    """
    if reranker == rerankers.WORDS:
        return replace(found, side=word_scores(benchmark, found, store))
    pairs = [
        (query.text, benchmark.memories[row].text)
        for query, rows in zip(benchmark.asked, found.index.tolist(), strict=True)
        for row in rows
    ]
    scores = torch.from_numpy(rerankers.score(pairs, reranker, device)).double()
    return replace(found, side=scores.exp().view(found.index.shape))


def _scored_by_words(benchmark, store):
    """For each question asked, the rows of its scope's memories and their scores by BM25."""
    held = defaultdict(list)
    for row, memory in enumerate(benchmark.memories):
        if memory.store in STORES[store]:
            held[memory.scope].append(row)
    rows, indexes = {scope: torch.tensor(of_scope) for scope, of_scope in held.items()}, {}
    for scope, of_scope in held.items():
        indexes[scope] = bm25s.BM25()
        indexes[scope].index(words_of([benchmark.memories[row].text for row in of_scope]), show_progress=False)
    asked = words_of([query.text for query in benchmark.asked])
    for query, words in zip(benchmark.asked, asked, strict=True):
        yield rows[query.scope], torch.from_numpy(indexes[query.scope].get_scores(words))


def _search(benchmark, queries, query, bank, stores, depth):
    """Rows of the bank, `[N, K]`: one product for each scope and store."""
    share = depth // len(stores)
    rows, numbers = defaultdict(list), defaultdict(list)
    for row, memory in enumerate(benchmark.memories):
        rows[memory.scope, memory.store].append(row)
    for number, asked in enumerate(queries):
        numbers[asked.scope].append(number)
    index = torch.empty(len(queries), depth, dtype=torch.int64)
    for scope, of_scope in numbers.items():
        similarity, found = [], []
        for store in stores:
            held = torch.tensor(rows[scope, store], dtype=torch.int64)
            if share > len(held):
                half = "" if len(stores) == 1 else f" (K/2 = {share} from each store)"
                raise ValueError(
                    f"{benchmark.name}: scope {scope!r} holds {len(held)} {store} memories, fewer than K = {depth}"
                    f"{half}; choose a smaller depth"
                )
            values, places = top_k(query[of_scope], bank[held], share)
            similarity.append(values)
            found.append(held[places])
        index[of_scope] = _merged(torch.cat(similarity, -1), torch.cat(found, -1))
    return index


def _merged(similarity, found):
    """Rows of all stores by descending similarity, ties in memory order."""
    found, order = found.sort(-1)
    return found.gather(-1, best(similarity.gather(-1, order), found.shape[-1]))


def _gold(memories, queries, index, stores):
    """Gold candidates `[N, K]`, and the gold memories of each store `[N]`."""
    drawn_from = defaultdict(list)  # dialogue turn -> rows of the memories that hold it
    for row, memory in enumerate(memories):
        if memory.store in stores:
            for turn in memory.turns:
                drawn_from[turn].append(row)
    gold = torch.zeros(index.shape, dtype=torch.bool)
    counts = {store: torch.zeros(len(queries), dtype=torch.int64) for store in stores}
    for number, (query, candidates) in enumerate(zip(queries, index.tolist(), strict=True)):
        held = {row for turn in query.gold for row in drawn_from.get(turn, ())}
        gold[number] = torch.tensor([row in held for row in candidates])
        for row in held:
            counts[memories[row].store][number] += 1
    return gold, counts
