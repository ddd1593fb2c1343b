"""Latency of a query at test time (Table 8): the code of the experiments, one question at a time.

As in the paper, queries and memories are embedded beforehand; the memories lie in a file, and for comparison in RAM.
The time from a query's embedding to its slate is measured: the first stage over all memories, then what a method adds
on the K candidates. The simulated critic costs next to nothing: the time of a real one is a parameter.
"""

import os
import platform
import re
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from earlib import paths
from earlib.core import randomness
from earlib.core.config import VARIANTS, Config
from earlib.core.critic import SimulatedCritic
from earlib.core.learner import Learner
from earlib.data import encoders
from earlib.data.candidates import Candidates
from earlib.data.embedding import embedder
from earlib.data.search import top_k
from earlib.experiments import intervals, measures

STORAGES = ("file", "memory")
PERCENTILES = (50, 90, 99)
BASELINE = "retriever"
RANDOM = "random_vectors"  # dataset of rows that were measured on random banks
LARGEST = 2**32  # bytes of a bank
RANDOM_ROWS = 2**11  # random memories made at a time, as many as fit a processor's cache


class Times(NamedTuple):
    """Times of N queries in one storage, and the slates returned."""

    read: np.ndarray  # [N] seconds to read once all embeddings that a query searches
    seconds: dict  # method -> [N] from the query's embedding to the slate, without a real critic
    slates: dict  # method -> [N, s] rows of the bank, best first
    calls: dict  # method -> critic calls of a query


# -- banks -------------------------------------------------------------------------------------------------------------


@contextmanager
def stored(blocks, dimension):
    """Yield `count -> [count, d]`, a new mapping of the first rows of a file that has no name and leaves nothing.

    With `mapped=False` it is a copy in memory, read from the file: a copy of a mapping would hold the bank twice.
    """
    paths.cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=paths.cache()) as file:
        for block in blocks:
            file.write(np.ascontiguousarray(block, np.float32))
        file.flush()
        os.fsync(file.fileno())  # so that writing does not go on while reading is timed

        def opened(count, mapped=True):
            if mapped:  # copy on write: torch warns of read-only memory, though it only reads here
                return torch.from_numpy(np.memmap(file, np.float32, "c", shape=(count, dimension)))
            file.seek(0)
            return torch.from_numpy(np.fromfile(file, np.float32, count * dimension)).view(count, dimension)

        yield opened


def random_unit(count, dimension, purpose):
    """Blocks of random unit vectors, `[m, d]` float32, for "memories" or "queries"; the same for every count."""
    rng = np.random.default_rng(("memories", "queries").index(purpose))
    for start in range(0, count, RANDOM_ROWS):
        block = rng.random((min(RANDOM_ROWS, count - start), dimension), np.float32)
        block -= 0.5
        block /= np.sqrt(np.einsum("md,md->m", block, block))[:, None]
        yield block


def conversations(benchmark, found, queries):
    """Rows of the bank by conversation, and where among them the memories of each question's one stand."""
    rows = {}
    for row, memory in enumerate(benchmark.memories):
        if memory.store == "dialogue":
            rows.setdefault(memory.scope, []).append(row)
    ends = dict(zip(rows, np.cumsum([*map(len, rows.values())]).tolist(), strict=True))
    asked = [found.scopes[number] for number in queries]
    return torch.tensor(sum(rows.values(), [])), [(ends[scope] - len(rows[scope]), ends[scope]) for scope in asked]


# -- timing ------------------------------------------------------------------------------------------------------------


def timed(work):
    """Seconds that a call takes, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def take_turns(works, count, before):
    """Seconds and results of each work, `n -> result`, in changing order after `before(n)`; 0 is run beforehand."""
    seconds, results = {name: np.empty(count) for name in works}, {name: [None] * count for name in works}
    for n in (0, *range(count)):
        before(n)
        turn = n % len(works)
        for name in (*list(works)[turn:], *list(works)[:turn]):
            seconds[name][n], results[name][n] = timed(lambda: works[name](n))  # noqa: B023 (called at once)
    return seconds, results


def time_methods(bank, query, spans, gold, names):
    """Time each method on queries, `[N, d]`, one at a time; each searches its span of the rows that `bank()` returns.

    The first stage is shared and timed once a query; the rest of each method is added to it. Just before, the same
    embeddings are read once: their sum, with as many threads. The adapters are random: values do not change their cost.
    """
    N, config = len(query), Config()
    index = torch.zeros(N, config.depth, dtype=torch.int64)
    found = Candidates(query, bank(), index, gold, gold.sum(-1), ids=(), memory_ids=(), categories=(), scopes=())
    noise = randomness.draw(config, (0,), torch.arange(N)[None], config.depth, N, "test")
    read, first, opened, calls = np.empty(N), np.empty(N), [None], Counter()

    def first_stage(n):
        opened[0] = bank()
        _, places = top_k(query[n], opened[0][slice(*spans[n])], config.depth)
        index[n] = spans[n][0] + places

    def before(n):
        opened[0] = None  # a mapping that stays open counts its pages again in this process's memory
        read[n], _ = timed(lambda: bank()[slice(*spans[n])].sum())
        first[n], _ = timed(lambda: first_stage(n))
        calls.clear()

    def work(method):
        return lambda n: method(torch.tensor([[n]]), noise.part(n, n + 1), opened[0])

    seconds, slates = take_turns({name: work(_method(name, found, calls)) for name in names}, N, before)
    seconds = {name: first + rest for name, rest in seconds.items()}
    slates = {name: index.gather(1, torch.cat(parts)[:, 0]) for name, parts in slates.items()}
    return Times(read, seconds, slates, {name: calls[name] for name in names})


def _method(name, found, calls):
    """A method after the first stage, `(queries, noise, bank) -> slates`, `[1, n]` to `[1, n, s]`; counts its calls."""
    variant = VARIANTS.get(name)
    config = Config(**(variant.changes if variant else {}), init="normal")
    simulated = SimulatedCritic(config, found.gold)

    def critic(*question):
        calls[name] += 1
        return simulated(*question)

    if name == BASELINE:
        return lambda queries, noise, bank: torch.arange(config.slate_size).expand(*queries.shape, -1)
    if variant is None:
        most = int(name.removeprefix("equal_calls_"))
        return lambda queries, noise, bank: measures.equal_calls(config, found, critic, queries, most, noise)
    learner = Learner(config, found, critic, (0,))

    def rerank(queries, noise, bank):
        learner.bank, learner.index = bank, found.index  # the first stage fills in the rows
        slates = learner.retrieve(queries, variant.explorer, noise)
        learner.bank = found.bank  # which lets go of this mapping
        return slates

    return rerank


def time_questions(benchmark, found, queries, names):
    """Time real questions, `[N]`, each over the memories of its own conversation.

    Methods are keys of `config.VARIANTS`, and `equal_calls_C`; the candidates are those from the dialogue store.

    Returns
    -------
    times : dict of Times
        By storage.
    expected : dict of torch.Tensor
        Slates of the same methods with all questions in one batch, as in the experiments, `[N, s]` by method.
    """
    order, spans = conversations(benchmark, found, queries)
    bank, query, gold = found.bank[order], found.query[queries], found.gold[queries]
    with stored([bank.numpy()], bank.shape[1]) as opened:
        sources = {"file": lambda: opened(len(bank)), "memory": lambda: bank}
        times = {storage: time_methods(sources[storage], query, spans, gold, names) for storage in STORAGES}
    place = torch.empty(len(found.bank), dtype=torch.int64)
    place[order] = torch.arange(len(order))
    index, every = place[found.index[queries]], torch.arange(len(queries))[None]
    batch = Candidates(query, bank, index, gold, gold.sum(-1), (), (), (), ())
    noise = randomness.draw(Config(), (0,), every, Config().depth, len(queries), "test")
    return times, {name: index.gather(1, _method(name, batch, Counter())(every, noise, bank)[0]) for name in names}


def time_random(memories, dimension, queries, names):
    """Time banks of random unit vectors; yields a bank's memories, the storage, and `Times`.

    Parameters
    ----------
    memories : sequence of int
        Sizes of the bank, at least K; a ValueError beyond 4 GiB.
    dimension, queries : int
        d, and the number of random queries for each bank.
    names : sequence of str
        As in `time_questions`.
    """
    if 4 * max(memories) * dimension > LARGEST:
        most = f"expected at most {LARGEST // (4 * dimension):,} of {dimension} dimensions (4 GiB of disk)"
        raise ValueError(f"memories: {most}, got {max(memories):,}; ask for fewer")
    query = torch.from_numpy(np.concatenate(list(random_unit(queries, dimension, "queries"))))
    gold = torch.zeros(queries, Config().depth, dtype=torch.bool)
    with stored(random_unit(max(memories), dimension, "memories"), dimension) as opened:
        for storage in STORAGES:
            held = opened(max(memories), mapped=False) if storage == "memory" else None
            for count in memories:
                bank = (lambda: opened(count)) if held is None else (lambda: held[:count])  # noqa: B023
                yield count, storage, time_methods(bank, query, [(0, count)] * queries, gold, names)


def encoding(encoder, texts):
    """Seconds to embed each text alone, with the model loaded and without the cache, `[N]`."""
    entry = encoders.get(encoder)
    model = embedder(entry, "cpu", "full", encoders.trusted(encoder)).model

    def embed(text):
        return model.encode([text], prompt=entry.query_prompt, normalize_embeddings=True, show_progress_bar=False)

    embed(texts[0])
    return np.array([timed(lambda: embed(text))[0] for text in texts])  # noqa: B023


def machine():
    """The processor, the cores and the library that latencies were measured with."""
    names = []
    with suppress(OSError):  # where there is no such file
        names = re.findall(r"^model name\s*: *(.*\S)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    processor = (names or [platform.processor() or platform.machine()])[0]
    return f"{processor}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s), torch {torch.__version__}"


# -- rows of the record ------------------------------------------------------------------------------------------------


def latency_rows(times, **keys):
    """Rows of a record, with further keys: latency by method and its percentiles, and reading once.

    Latency is a mean over queries with its interval and its paired difference to the retriever; the ratio is that of
    the medians of adapter-only retrieval and of reading.
    """
    made = []
    for name, seconds in times.seconds.items():
        mean, *percentiles = spread(seconds, variant=name, **keys)
        if name != BASELINE:
            gap = mean_interval(seconds - times.seconds[BASELINE])
            mean |= zip(("difference", "difference_low", "difference_high"), gap.values(), strict=True)
        made += [mean, *percentiles]
    made += spread(times.read, variant="read_once", **keys)
    ratio = float(np.median(times.seconds["ear_adapter"]) / np.median(times.read))
    about = {"variant": "ear_adapter", "metric": "read_ratio", "n_queries": len(times.read)}
    return [*made, {**about, **keys, "measured": ratio, "varies": True}]


def spread(seconds, **keys):
    """Rows of the mean of some times, `[N]`, with its interval, and of each percentile."""
    values = {"latency": mean_interval(seconds)}
    values |= {f"latency_p{share}": {"measured": float(np.percentile(seconds, share))} for share in PERCENTILES}
    about = {**keys, "n_queries": len(seconds), "varies": True}
    return [{**about, "metric": metric, **value} for metric, value in values.items()]


def mean_interval(values, scale=1):
    """Mean of values, `[N]`, and its interval over queries."""
    found = intervals.summary(values[None], np.arange(len(values))[None], scale=scale)
    return {name: found[name] for name in ("measured", "low", "high")}


def agreement(slates, others):
    """Share of queries (%) with the same slate, by method."""
    return {name: 100 * (slates[name] == others[name]).all(-1).double().mean().item() for name in slates}
