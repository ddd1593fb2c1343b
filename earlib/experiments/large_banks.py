"""Banks that outgrow memory: embeddings in a mapped file, searched exactly as a stream or approximately by an index.

Both searches are one call, `search(query, k)`. The adapter comes into it in one of two ways: as in the paper, applied
to the K candidates that the frozen embeddings bring (`rerank`); or, once it is frozen, folded into the bank: all
memories are adapted in one pass (`fold`), and queries when they are asked (`adapt`). What both return and cost is
compared on real questions (`on_questions`) and on a large bank made of a small one (`on_resampled`).
"""

import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import faiss
import numpy as np
import torch

from earlib import paths
from earlib.core.config import VARIANTS, Config
from earlib.core.ordering import best
from earlib.data import candidates
from earlib.data.candidates import ROWS, stream, top_k
from earlib.experiments import latency, measures, runs, settings

TRAINED_ON = 64  # rows a list on which an index learns its lists
RESCORED = 5  # candidates of an index that are multiplied again, for each that is wanted
AIM = 0.95  # recall that, by the queries it is measured on, an index surely has when it probes no further lists


# -- the file ----------------------------------------------------------------------------------------------------------


def write(path, blocks, count, dimension, dtype=np.float16):
    """Write a bank as a NumPy file (.npy), block by block; an index of the bank that stood there before goes.

    Parameters
    ----------
    path : Path
    blocks : iterable of numpy.ndarray
        Unit embeddings, `[m, d]` each.
    count, dimension : int
        M, how many there are in all, and d.
    dtype : {numpy.float16, numpy.float32}
        As what they are kept.

    Raises
    ------
    OSError
        If the disk has too little room (told before anything is written) or cannot be written; the old file stays.
    ValueError
        If the blocks have another width, are more or fewer than M, or hold a number that is not finite; likewise.
    """
    path, dtype = Path(path), np.dtype(dtype)
    _check_room(path, count * dimension * dtype.itemsize)
    written = 0
    with paths.replacing(path) as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count, dimension)}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            with np.errstate(over="ignore"):  # too large for the format: infinite, which is refused
                kept = np.ascontiguousarray(block, dtype)
            _check_block(path, kept, written, count, dimension)
            file.write(kept)
            written += len(kept)
        if written < count:
            raise ValueError(f"{path}: expected {count:,} memories, got {written:,}; the old file stays")
        index_path(path).unlink(missing_ok=True)


def _check_room(path, needed):
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        told = f"needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
        raise OSError(f"{path}: a bank of this size {told}; free the disk, choose another folder or fewer memories")


def _check_block(path, block, written, count, dimension):
    if block.ndim != 2 or block.shape[1] != dimension:
        raise ValueError(f"{path}: expected embeddings of {dimension} dimensions, got a block of shape {block.shape}")
    if written + len(block) > count:
        raise ValueError(f"{path}: expected {count:,} memories, got more")
    finite = np.isfinite(block).all(axis=1)
    if not finite.all():
        row = written + int(np.argmin(finite))
        raise ValueError(f"{path}: memory {row} is not finite as {block.dtype}; encode it anew")


def index_path(path):
    """Where the index of a bank lies: beside it."""
    return Path(path).with_suffix(".faiss")


class Bank:
    """A bank in a file, mapped into memory, so that only what is read takes memory, and only while there is room.

    Parameters
    ----------
    path : Path
        As `write` makes it.
    dimension : int, optional
        The width that is expected.

    Raises
    ------
    ValueError
        If the file is no bank, is cut short, or has another width; it and what was expected are named.
    """

    def __init__(self, path, dimension=None):
        self.path = Path(path)
        again = "write the bank anew"
        try:
            rows = np.load(self.path, mmap_mode="c", allow_pickle=False)  # torch warns of memory it may not write to
        except (ValueError, EOFError) as error:
            raise ValueError(f"{self.path}: not a whole bank ({error}); {again}") from None
        if rows.ndim != 2 or rows.dtype not in (np.float16, np.float32) or not rows.flags.c_contiguous:
            told = f"expected rows of float16 or float32, found {rows.dtype} of shape {rows.shape}"
            raise ValueError(f"{self.path}: {told}; {again}")
        if dimension not in (None, rows.shape[1]):
            raise ValueError(f"{self.path}: expected {dimension} dimensions, found {rows.shape[1]}; {again}")
        self.rows = torch.from_numpy(rows)

    def __len__(self):
        return len(self.rows)

    @property
    def dimension(self):
        """d, the width of the embeddings."""
        return self.rows.shape[1]

    def blocks(self):
        """The bank in float32, `[m, d]` at a time; with the first row of each."""
        for number, block in enumerate(self.rows.split(ROWS)):
            yield number * ROWS, block.float()

    def search(self, query, k):
        """The k memories closest to each query; as `candidates.top_k` of the same numbers in float32, ties included.

        One query is multiplied in the format of the file, so that it takes little longer than reading. Several share
        each block in float32.

        Parameters
        ----------
        query : torch.Tensor
            Unit embeddings, `[..., d]` float32.
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
            If k is not between 1 and M, or an embedding is not finite or has another width.
        """
        _check_query(query, self)
        if query.numel() != self.dimension or self.rows.dtype == torch.float32 or not 1 <= k <= len(self):
            return top_k(query, self.rows, k)
        similarity, index = stream(self.rows, query.reshape(-1), k, self.path, ROWS)
        return similarity.view(*query.shape[:-1], k), index.view(*query.shape[:-1], k)


def _check_query(query, bank):
    if query.shape[-1] != bank.dimension:
        raise ValueError(f"{bank.path}: expected queries of {bank.dimension} dimensions, got {query.shape[-1]}")
    if not torch.isfinite(query).all():
        raise ValueError(f"{bank.path}: the embedding of a query is not finite; encode it anew")


# -- the approximate index ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Index:
    """An approximate index of a bank: lists of memories around centres, of which a query's nearest few are searched.

    The lists hold 8 bits a number; what they bring is multiplied again with the bank's own rows.

    Attributes
    ----------
    bank : Bank
    lists : faiss.IndexIVF
        Its `nprobe` is how many lists are searched.
    """

    bank: Bank
    lists: faiss.IndexIVF

    def search(self, query, k):
        """As `Bank.search`, but a memory in a list that is not searched is missed."""
        _check_query(query, self.bank)
        if not 1 <= k <= len(self.bank):
            raise ValueError(f"k = {k}: expected 1 to {len(self.bank)}, the number of memories in the bank")
        flat = query.reshape(-1, self.bank.dimension)
        wanted = min(RESCORED * k, len(self.bank))
        _, rows = self.lists.search(flat.numpy(), wanted)
        if (rows[:, k - 1] < 0).any():  # the lists searched hold fewer than k
            _, rows = self.lists.search(flat.numpy(), wanted, params=faiss.SearchParametersIVF(nprobe=self.lists.nlist))
        rows = torch.from_numpy(rows).sort(1).values  # in the bank's order: of equal ones the first wins
        found = self.bank.rows[rows.clamp(min=0)].double()
        similarity = torch.einsum("qd,qkd->qk", flat.double(), found).masked_fill(rows < 0, -torch.inf)
        order = best(similarity, k)
        similarity, rows = similarity.gather(1, order).float(), rows.gather(1, order)
        return similarity.view(*query.shape[:-1], k), rows.view(*query.shape[:-1], k)


def build(bank, query, k=20, lists=None):
    """Build the index of a bank, beside it, and print its recall against the exact search.

    Twice as many lists are searched, and twice as many again, until the recall is 0.95 at the lower end of its 95 %
    interval on the queries: of others it is then seldom below.

    Parameters
    ----------
    bank : Bank
    query : torch.Tensor
        Queries to measure the recall on, `[Q, d]` float32.
    k : int
        Of recall@k.
    lists : int, optional
        How many; default: the root of the bank's size.

    Returns
    -------
    Index
    """
    lists = lists or max(1, round(len(bank) ** 0.5))
    made = faiss.index_factory(bank.dimension, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    made.cp.min_points_per_centroid = 1  # a small bank is told nothing about too few
    every = max(1, len(bank) // (TRAINED_ON * lists))
    made.train(bank.rows[::every].float().numpy())
    for _, block in bank.blocks():
        made.add(block.numpy())
    made.parallel_mode = 1  # one query uses all threads
    _, expected = bank.search(query, k)
    while True:
        shares = _shared(Index(bank, made).search(query, k)[1], expected)
        low = shares.mean() - 1.96 * shares.std(correction=0) / len(shares) ** 0.5
        told = f"recall@{k} {shares.mean():.4f}, at least {low:.4f} by {len(query)} queries"
        print(f"{lists:,} lists, {made.nprobe} searched: {told}")
        if low >= AIM or made.nprobe == lists:
            break
        made.nprobe = min(2 * made.nprobe, lists)
    with paths.replacing(index_path(bank.path)) as file:
        faiss.write_index(made, faiss.PyCallbackIOWriter(file.write))
    return Index(bank, made)


def load(bank):
    """The index that was built of a bank, its lists left in their file.

    Raises
    ------
    ValueError
        If there is none, or the file is not one of this bank; it and the next step are named.
    """
    path = index_path(bank.path)
    again = "build it anew with `banks.build`"
    try:
        lists = faiss.read_index(os.fspath(path), faiss.IO_FLAG_MMAP)
    except RuntimeError as error:
        reason = str(error).rpartition("Error: ")[2].strip()
        raise ValueError(f"{path}: no index can be read ({reason}); {again}") from None
    if (lists.ntotal, lists.d) != (len(bank), bank.dimension):
        told = f"expected {len(bank):,} memories of {bank.dimension} dimensions, found {lists.ntotal:,} of {lists.d}"
        raise ValueError(f"{path}: {told}; {again}")
    lists.parallel_mode = 1
    return Index(bank, lists)


def recall(found, expected):
    """Share of the rows expected that were found, on average over queries; both `[Q, k]`."""
    return _shared(found, expected).mean().item()


def _shared(found, expected):
    """Share of the rows expected that were found, `[Q]`."""
    return (found.unsqueeze(-1) == expected.unsqueeze(-2)).any(-2).double().mean(-1)


# -- the adapter -------------------------------------------------------------------------------------------------------


def adapt(rows, weights):
    """Embeddings as an adapter maps them, (I + W) x scaled to unit length (Eq. 3).

    Parameters
    ----------
    rows : torch.Tensor
        `[..., d]`.
    weights : torch.Tensor
        W_q or W_m, `[d, d]`.
    """
    return torch.nn.functional.normalize(rows + rows @ weights.T, dim=-1)


def fold(bank, weights, path):
    """Write a bank of adapted memories, in one pass over another.

    Parameters
    ----------
    bank : Bank
    weights : torch.Tensor
        W_m, `[d, d]`, of an adapter that learns no more: another one needs another pass.
    path : Path

    Returns
    -------
    Bank
        Of the same format; to be asked with adapted queries.
    """
    blocks = (adapt(block, weights).numpy() for _, block in bank.blocks())
    write(path, blocks, len(bank), bank.dimension, bank.rows.numpy().dtype)
    return Bank(path)


def rerank(query, memory, weights, size):
    """The candidates that the adapter puts first, as the paper applies it.

    Parameters
    ----------
    query : torch.Tensor
        `[N, d]`.
    memory : torch.Tensor
        The candidates of each, `[N, K, d]`, the best first.
    weights : torch.Tensor
        W_q and W_m, `[2, d, d]`.
    size : int
        s.

    Returns
    -------
    torch.Tensor
        Candidate indices, `[N, s]`, the best first.
    """
    scores = torch.einsum("nd,nkd->nk", adapt(query, weights[0]), adapt(memory, weights[1]))
    return best(scores, size)


def folded_candidates(benchmark, found, weights, store="dialogue"):
    """Candidates of all questions from a bank into which an adapter is folded, kept in fp16.

    Parameters
    ----------
    benchmark : Benchmark
    found : Candidates
        From the frozen bank.
    weights : torch.Tensor
        W_q and W_m, `[2, d, d]`.
    store : {"dialogue", "observation", "both"}

    Returns
    -------
    Candidates
    """
    query, bank = adapt(found.query, weights[0]), adapt(found.bank, weights[1]).half().float()
    stores = candidates.STORES[store]
    index = candidates._search(benchmark, benchmark.asked, query, bank, stores, found.index.shape[1])
    gold, _ = candidates._gold(benchmark.memories, benchmark.asked, index, stores)
    return replace(found, query=query, bank=bank, index=index, gold=gold)


# -- a large bank made of a small one ----------------------------------------------------------------------------------


def resampled(real, count, seed=0):
    """Memories that lie about real ones as these about each other.

    Each is a real embedding o, drawn with replacement, moved along the sphere in a random direction t (a unit vector
    orthogonal to o) until its cosine with o is c, that of a real memory, drawn likewise, and its nearest neighbour:

        m = c o + sqrt(1 - c^2) t

    Parameters
    ----------
    real : torch.Tensor
        Unit embeddings, `[n, d]` float32.
    count : int
        How many to make.
    seed : int
        The first memories are the same however many follow.

    Yields
    ------
    numpy.ndarray
        `[m, d]` float32.
    """
    nearest = top_k(real, real, 2)[0][:, 1].clamp(max=1)  # itself is the first, or a copy of it
    rng = torch.Generator().manual_seed(seed)
    for start in range(0, count, ROWS):
        size = min(ROWS, count - start)
        origin, drawn = torch.randint(len(real), (2, ROWS), generator=rng)
        direction = torch.randn(ROWS, real.shape[1], generator=rng)
        origin, cosine = real[origin], nearest[drawn, None]
        direction -= origin * (direction * origin).sum(1, keepdim=True)
        direction = torch.nn.functional.normalize(direction, dim=1)
        yield (cosine * origin + (1 - cosine**2).sqrt() * direction)[:size].numpy()


# -- both uses of an adapter compared ----------------------------------------------------------------------------------

USES = ("applied", "folded")  # to the candidates; into the bank
FOLDED = "ear_adapter_folded"


def on_questions(setting, variant="ear_adapter"):
    """What both uses of an adapter return to the evaluation questions of a setting, in their own conversations.

    Parameters
    ----------
    setting : settings.Setting
        With a random split, so that all seeds evaluate as many questions.
    variant : str
        A key of `config.VARIANTS`, by whose training the adapters are learned.

    Returns
    -------
    values : dict of numpy.ndarray
        Of the retriever, the adapter applied to its candidates (under the variant's name) and folded, `[3, R, E]` each.
    queries : numpy.ndarray
        Question numbers, `[R, E]`.
    overlap : numpy.ndarray
        Share of the folded slate that the other use returns too, `[R, E]`.
    """
    config = Config(**VARIANTS[variant].changes)
    found, searched = settings.candidates_of(setting, config.depth), settings.benchmark(setting.dataset)
    weights = runs.trained_weights(setting, config)
    queries = np.stack([settings.split(found.scopes, setting, seed)[1] for seed in range(setting.seeds)])
    values, overlap = {name: [] for name in (latency.BASELINE, variant, FOLDED)}, []
    for seed, asked in enumerate(torch.from_numpy(queries)):
        applied = rerank(found.query[asked], found.memory[asked], weights[:, seed], config.slate_size)
        folded = folded_candidates(searched, found, weights[:, seed], setting.store)
        first = torch.arange(config.slate_size).expand_as(applied)
        for name, of, slates in zip(values, (found, found, folded), (first, applied, first), strict=True):
            values[name].append(measures.measure(of, asked[None], slates[None]))
        returned = found.index[asked].gather(1, applied), folded.index[asked].gather(1, first)
        overlap.append(_shared(*returned).numpy())
    return {name: np.concatenate(parts, 1) for name, parts in values.items()}, queries, np.stack(overlap)


class Measured(NamedTuple):
    """What both uses cost in one bank, and what they return from it."""

    seconds: dict  # (search, use) -> [N] from the query's embedding to the slate; search is "exact" or "approximate"
    read: np.ndarray  # [N] seconds to read the embeddings once
    found: dict  # use -> [N] share of the exact first stage that the approximate one finds
    overlap: np.ndarray  # [N] share of the folded slate that the other use returns too, both exact
    gigabytes: dict  # use -> bank and index on the disk
    made: dict  # use -> seconds to write the bank and to build its index


def on_resampled(real, query, weights, count):
    """Both uses of an adapter in a bank of resampled memories, a query at a time; the bank is gone afterwards.

    The bank is in the operating system's cache, since it was just written. The two searches and the two uses take
    turns, beside reading the frozen embeddings once: their sum, with as many threads.

    Parameters
    ----------
    real : torch.Tensor
        Embeddings that the bank is made of, `[n, d]`.
    query : torch.Tensor
        `[2 N, d]`; the first half chooses how many lists are searched, the other half is measured.
    weights : torch.Tensor
        W_q and W_m, `[2, d, d]`.
    count : int
        M.

    Returns
    -------
    Measured
    """
    paths.cache().mkdir(parents=True, exist_ok=True)
    calibration, asked = query.chunk(2)
    with tempfile.TemporaryDirectory(dir=paths.cache(), prefix="banks-") as folder:
        folder, width = Path(folder), real.shape[1]
        made, stages = {}, {}
        path = folder / "frozen.npy"
        writing, _ = latency._timed(lambda: write(path, resampled(real, count), count, width))
        building, index = latency._timed(lambda: build(Bank(path), calibration))
        made["applied"], stages["applied"] = writing + building, index
        writing, bank = latency._timed(lambda: fold(index.bank, weights[1], folder / "folded.npy"))
        building, index = latency._timed(lambda: build(bank, adapt(calibration, weights[0])))
        made["folded"], stages["folded"] = writing + building, index
        sizes = {use: _gigabytes(index.bank.path) for use, index in stages.items()}
        return _measured(stages, asked, weights)._replace(gigabytes=sizes, made=made)


def _gigabytes(path):
    return sum(file.stat().st_size for file in (path, index_path(path))) / 1e9


def _measured(stages, query, weights):
    """Time every search with every use, in an order that changes from query to query; the first query goes before."""
    frozen, folded = (stages[use].bank for use in USES)
    config, N = Config(), len(query)
    searches = {("exact", "applied"): frozen, ("exact", "folded"): folded}
    searches |= {("approximate", use): index for use, index in stages.items()}
    works = {key: _work(frozen, searched, key[1], weights, config) for key, searched in searches.items()}
    words = frozen.rows.view(torch.int64)
    seconds, read, slates = {key: np.empty(N) for key in works}, np.empty(N), {key: [None] * N for key in works}
    for n in (0, *range(N)):
        read[n], _ = latency._timed(lambda: words.sum())
        turn = n % len(works)
        for key in (*[*works][turn:], *[*works][:turn]):
            seconds[key][n], slates[key][n] = latency._timed(lambda: works[key](query[n]))  # noqa: B023
    asked = {"applied": query, "folded": adapt(query, weights[0])}
    found = {}
    for use, index in stages.items():
        found[use] = _shared(*(one.search(asked[use], config.depth)[1] for one in (index, index.bank))).numpy()
    overlap = _shared(*(torch.stack(slates["exact", use]) for use in USES)).numpy()
    return Measured(seconds, read, found, overlap, {}, {})


def _work(frozen, searched, use, weights, config):
    """From the embedding of one query to its slate, `[d]` to `[s]`."""

    def applied(query):
        _, index = searched.search(query, config.depth)
        memory = frozen.rows[index].float()
        return index[rerank(query[None], memory[None], weights, config.slate_size)[0]]

    def folded(query):
        return searched.search(adapt(query, weights[0]), config.slate_size)[1]

    return {"applied": applied, "folded": folded}[use]


def rows(measured, **keys):
    """Rows of a record: latency by search and use, reading once, what the index finds, the overlap, disk, and writing.

    Parameters
    ----------
    measured : Measured
    **keys
        Keys of the rows: dataset, encoder, memories.

    Returns
    -------
    list of dict
        Times vary between machines, and so does what an index finds, since the lists searched are chosen by it.
    """
    made = latency.spread(measured.read, variant="read_once", **keys)
    for (search, use), seconds in measured.seconds.items():
        made += latency.spread(seconds, variant="ear_adapter", search=search, use=use, **keys)
    for use in USES:
        about = {**keys, "variant": "ear_adapter", "use": use}
        made.append({**about, "metric": "found@20", "varies": True, **_percent(measured.found[use])})
        made.append({**about, "metric": "disk", "measured": measured.gigabytes[use]})
        made.append({**about, "metric": "preparation", "measured": measured.made[use], "varies": True})
    return [*made, {**keys, "variant": "ear_adapter", "metric": "overlap", **_percent(measured.overlap)}]


def _percent(shares):
    """Mean and interval over queries of some shares, `[N]`, and how many they are."""
    found = measures.summary(shares[None], np.arange(len(shares))[None])
    return {"n_queries": len(shares), **{name: found[name] for name in ("measured", "low", "high")}}
