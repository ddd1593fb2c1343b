"""Latency of a query at test time (Table 8): the code of the experiments, asked one question at a time.

As in the paper, a query is embedded already and the memories lie embedded in a file; beside it they lie in memory. What
is timed starts with the query's embedding and ends with its slate: the first stage over all memories, then what a
method adds to it on the K candidates. The simulated critic costs next to nothing: the time of a real one is given.
"""

import os
import tempfile
import time
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from earlib import paths
from earlib.core import randomness
from earlib.core.config import VARIANTS, Config
from earlib.core.critic import SimulatedCritic
from earlib.core.learner import Learner
from earlib.data import encoders
from earlib.data.candidates import Candidates, top_k
from earlib.data.embedding import embedder
from earlib.experiments import measures

STORAGES = ("file", "memory")
PERCENTILES = (50, 90, 99)
BASELINE = "retriever"
RANDOM = "random_vectors"  # the dataset of rows that were measured on banks without content
LARGEST = 2**32  # bytes of a bank
ROWS = 2**14  # random memories made at a time


class Times(NamedTuple):
    """What N queries took in one place of storage, and what came back."""

    read: np.ndarray  # [N] seconds to read once all embeddings that a query searches
    seconds: dict  # method -> [N] from the query's embedding to the slate, without a real critic
    slates: dict  # method -> [N, s] rows of the bank, the best first
    calls: dict  # method -> critic calls of a query


# -- what is searched --------------------------------------------------------------------------------------------------


@contextmanager
def stored(blocks, dimension):
    """A bank in a file of raw float32 rows, while the context lasts.

    The file has no name in its folder, the cache: however the process ends, nothing is left behind.

    Parameters
    ----------
    blocks : iterable of numpy.ndarray
        Rows of the bank, `[m, d]` float32 each.
    dimension : int
        d.

    Yields
    ------
    callable
        `count -> [count, d]`, a tensor of the first rows: the file mapped into memory anew, nothing copied.

    Raises
    ------
    OSError
        If the folder cannot be written or the disk is full.
    """
    with _scratch() as file:
        with _told_what_to_do():
            for block in blocks:
                file.write(np.ascontiguousarray(block, np.float32))
            file.flush()
            os.fsync(file.fileno())  # so that writing does not go on while reading is timed
        # Copy on write: torch warns of memory that it may not write to, though it only reads here.
        yield lambda count: torch.from_numpy(np.memmap(file, np.float32, "c", shape=(count, dimension)))


def _scratch():
    with _told_what_to_do():
        paths.cache().mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=paths.cache())


@contextmanager
def _told_what_to_do():
    try:
        yield
    except OSError as error:
        told = f"cannot write a bank into {paths.cache()}: {error.strerror}"
        next_step = "free the disk, set EARLIB_CACHE to another folder, or ask for fewer memories"
        raise OSError(error.errno, f"{told}; {next_step}") from error


def random_unit(count, dimension, purpose):
    """Blocks of random unit vectors, `[m, d]` float32: equally distributed components, then unit length.

    Parameters
    ----------
    count, dimension : int
        Rows in all, and d.
    purpose : {"memories", "queries"}
        Each has a generator of its own; the first rows are the same however many follow.
    """
    rng = np.random.default_rng(("memories", "queries").index(purpose))
    for start in range(0, count, ROWS):
        block = rng.random((min(ROWS, count - start), dimension), np.float32)
        block -= 0.5
        block /= np.sqrt(np.einsum("md,md->m", block, block))[:, None]
        yield block


def conversations(benchmark, found, queries):
    """The memories of each question's own conversation, as a stretch of one bank.

    Parameters
    ----------
    benchmark : Benchmark
    found : Candidates
        Its candidates from the dialogue store.
    queries : numpy.ndarray
        Numbers of the questions asked, `[N]`.

    Returns
    -------
    order : torch.Tensor
        Rows of the benchmark's bank, conversation by conversation, each in memory order.
    spans : list of (int, int)
        Where in that order the memories of each question stand.
    """
    rows = {}
    for row, memory in enumerate(benchmark.memories):
        if memory.store == "dialogue":
            rows.setdefault(memory.scope, []).append(row)
    ends = np.cumsum([len(held) for held in rows.values()]).tolist()
    span = {scope: (end - len(rows[scope]), end) for scope, end in zip(rows, ends, strict=True)}
    return torch.tensor(sum(rows.values(), [])), [span[found.scopes[number]] for number in queries]


# -- timing ------------------------------------------------------------------------------------------------------------


def measure(bank, query, spans, gold, names):
    """Time each method on each query, one query at a time, as an agent would that serves one user.

    The first stage is the same for all and timed once a query; the rest of each method is added to it, in an order
    that changes from query to query. Just before, the same embeddings are read once: their sum, with as many threads.
    The adapters are random (their values do not change what they cost). The first query is asked once beforehand, so
    that starting threads and the like is not measured.

    Parameters
    ----------
    bank : callable
        Gives the bank `[M, d]`; called anew for each query.
    query : torch.Tensor
        `[N, d]`.
    spans : list of (int, int)
        First and last + 1 of the bank's rows that each query searches.
    gold : torch.Tensor
        What the simulated critic takes for gold, `[N, K]` bool by candidate.
    names : sequence of str
        Of `config.VARIANTS`, and `equal_calls_C`.

    Returns
    -------
    Times
    """
    N, config = len(query), Config()
    count = gold.sum(-1)
    index = torch.zeros(N, config.depth, dtype=torch.int64)
    found = Candidates(query, bank(), index, gold, count, ids=(), memory_ids=(), categories=(), scopes=())
    noise = randomness.draw(config, (0,), torch.arange(N)[None], config.depth, N, "test")
    asked = {name: [] for name in names}
    methods = {name: _method(name, found, asked[name]) for name in names}
    times = Times(np.empty(N), {name: np.empty(N) for name in names}, {name: [None] * N for name in names}, {})
    for n in (0, *range(N)):
        times.read[n], _ = _timed(lambda: bank()[slice(*spans[n])].sum())  # noqa: B023 (called at once)
        first, opened = _timed(lambda: _first_stage(bank, found, n, spans[n]))  # noqa: B023
        turn = n % len(names)
        for name in (*names[turn:], *names[:turn]):
            asked[name].clear()
            rest, slate = _timed(lambda: methods[name](torch.tensor([[n]]), noise.part(n, n + 1), opened))  # noqa: B023
            times.seconds[name][n] = first + rest
            times.slates[name][n] = index[n, slate[0, 0]]
    slates = {name: torch.stack(rows) for name, rows in times.slates.items()}
    return times._replace(slates=slates, calls={name: len(calls) for name, calls in asked.items()})


def _first_stage(bank, found, n, span):
    """Candidates of one query; the bank that they came from."""
    opened = bank()
    _, places = top_k(found.query[n], opened[slice(*span)], found.index.shape[1])
    found.index[n] = span[0] + places
    return opened


def _method(name, found, asked=None):
    """What a method does after the first stage: `(queries, noise, bank) -> slates`, `[1, n]` to `[1, n, s]`."""
    variant = VARIANTS.get(name)
    config = Config(**(variant.changes if variant else {}), init="normal")
    critic = _counted(SimulatedCritic(config, found.gold), [] if asked is None else asked)
    if name == BASELINE:
        return lambda queries, noise, bank: torch.arange(config.slate_size).expand(*queries.shape, -1)
    if variant is None:
        calls = int(name.removeprefix("equal_calls_"))
        return lambda queries, noise, bank: measures.equal_calls(config, found, critic, queries, calls, noise)
    learner = Learner(config, found, critic, (0,))

    def rerank(queries, noise, bank):
        learner.bank = bank
        return learner.retrieve(queries, variant.explorer, noise)

    return rerank


def _counted(critic, asked):
    def ask(*question):
        asked.append(1)
        return critic(*question)

    return ask


def _timed(work):
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def on_questions(benchmark, found, queries, names):
    """Real questions, each over the memories of its own conversation.

    Parameters
    ----------
    benchmark : Benchmark
    found : Candidates
        Its candidates from the dialogue store.
    queries : numpy.ndarray
        Numbers of the questions asked, `[N]`.
    names : sequence of str
        As in `measure`.

    Returns
    -------
    times : dict of Times
        By storage.
    expected : dict of torch.Tensor
        The slates of the same methods with all questions in one batch, as in the experiments, `[N, s]` by method.
        All slates are rows of the reordered bank (see `conversations`).
    """
    order, spans = conversations(benchmark, found, queries)
    bank, query, gold = found.bank[order], found.query[queries], found.gold[queries]
    with stored([bank.numpy()], bank.shape[1]) as opened:
        sources = {"file": lambda: opened(len(bank)), "memory": lambda: bank}
        times = {storage: measure(sources[storage], query, spans, gold, names) for storage in STORAGES}
    place = torch.empty(len(found.bank), dtype=torch.int64)
    place[order] = torch.arange(len(order))
    index = place[found.index[queries]]
    return times, _batched(Candidates(query, bank, index, gold, gold.sum(-1), (), (), (), ()), names)


def _batched(found, names):
    """The slates of all queries at once."""
    every = torch.arange(len(found.query))[None]
    noise = randomness.draw(Config(), (0,), every, Config().depth, len(found.query), "test")
    return {name: found.index.gather(1, _method(name, found)(every, noise, found.bank)[0]) for name in names}


def on_random(memories, dimension, queries, names):
    """Banks of random unit vectors; a smaller one is the first part of the largest, which is written once.

    Parameters
    ----------
    memories : sequence of int
        Sizes of the bank.
    dimension : int
        d.
    queries : int
        How many random queries are asked of each.
    names : sequence of str
        As in `measure`.

    Yields
    ------
    count : int
    storage : str
    times : Times

    Raises
    ------
    ValueError
        If a bank holds fewer memories than there are candidates, or takes more than 4 GiB.
    """
    if min(memories) < Config().depth:
        raise ValueError(f"memories: expected at least K = {Config().depth} in every bank, got {min(memories)}")
    if 4 * max(memories) * dimension > LARGEST:
        most = LARGEST // (4 * dimension)
        told = f"expected at most {most:,} of {dimension} dimensions (4 GiB of disk)"
        raise ValueError(f"memories: {told}, got {max(memories):,}; ask for fewer")
    query = torch.from_numpy(np.concatenate(list(random_unit(queries, dimension, "queries"))))
    gold = torch.zeros(queries, Config().depth, dtype=torch.bool)
    with stored(random_unit(max(memories), dimension, "memories"), dimension) as opened:
        for storage in STORAGES:
            held = opened(max(memories)).clone() if storage == "memory" else None
            for count in memories:
                bank = (lambda: opened(count)) if held is None else (lambda: held[:count])  # noqa: B023
                yield count, storage, measure(bank, query, [(0, count)] * queries, gold, names)


def encoding(encoder, texts):
    """Seconds to embed each text alone, with the model loaded and nothing served from the cache, `[N]`."""
    entry = encoders.get(encoder)
    model = embedder(entry, "cpu", "full", encoders.trusted(encoder)).model

    def embed(text):
        return model.encode([text], prompt=entry.query_prompt, normalize_embeddings=True, show_progress_bar=False)

    embed(texts[0])
    return np.array([_timed(lambda: embed(text))[0] for text in texts])  # noqa: B023


# -- rows of the record ------------------------------------------------------------------------------------------------


def rows(times, **keys):
    """Rows of a record: latency by method, its percentiles, the time of reading once, and the ratio of the two.

    Parameters
    ----------
    times : Times
    **keys
        Keys of the rows: dataset, encoder, storage, memories.

    Returns
    -------
    list of dict
        All vary between machines. Latency is a mean over queries with its interval, and the paired difference to the
        retriever; the ratio is that of the medians of adapter-only retrieval and of reading.
    """
    made = []
    for name, seconds in times.seconds.items():
        made += spread(seconds, variant=name, **keys)
        if name != BASELINE:
            gap = _mean(seconds - times.seconds[BASELINE])
            made[-1 - len(PERCENTILES)] |= {
                "difference": gap["measured"], "difference_low": gap["low"], "difference_high": gap["high"]
            }  # fmt: skip
    made += spread(times.read, variant="read_once", **keys)
    ratio = np.median(times.seconds["ear_adapter"]) / np.median(times.read)
    about = {"variant": "ear_adapter", "metric": "read_ratio", "n_queries": len(times.read)}
    return [*made, {**about, **keys, "measured": float(ratio), "varies": True}]


def spread(seconds, **keys):
    """A row with the mean of some times and its interval, and one for each percentile."""
    rest = {**keys, "n_queries": len(seconds), "varies": True}
    mean = {**rest, "metric": "latency", **_mean(seconds)}
    shares = zip(PERCENTILES, np.percentile(seconds, PERCENTILES).tolist(), strict=True)
    return [mean, *({**rest, "metric": f"latency_p{share}", "measured": value} for share, value in shares)]


def _mean(seconds):
    """Mean and interval over queries, in seconds."""
    found = measures.summary(seconds[None], np.arange(len(seconds))[None], scale=1)
    return {name: found[name] for name in ("measured", "low", "high")}


def agreement(slates, others):
    """Share of queries (%) that got the same slate, by method."""
    return {name: 100 * (slates[name] == others[name]).all(-1).double().mean().item() for name in slates}
