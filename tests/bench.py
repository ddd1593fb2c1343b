"""`make bench`: how fast the batched core is, as ratios measured in one run.

EAR on 400 training queries, d = 384, K = 20, three seeds side by side:

1. against the plain transcription of the paper, notebooks/annotated_ear.ipynb, in float32, on the same queries and
   numbers;
2. as a share of the rate that a plain large float32 matrix product reaches: the multiply-adds that the transcription
   counts (forward and backward of both adapters, current and replayed), divided by the core's time;
3. evaluation with the Explorer, three seeds;
4. adapter-only retrieval of one query from a million memories, d = 768, against reading their embeddings once;
5. a grid of runs on LoCoMo on two workers of one thread, against the same runs one after another on one thread.

The first three are measured on LoCoMo where it can be had, as in the notebooks, and on random unit vectors of its
size. Questions of one conversation share candidates, which the core adapts once and the transcription each time;
random candidates share next to none, so that their share of the matrix rate is that of the arithmetic alone.

Beside these, seconds and peak memory of loading a made file of the size of LongMemEval_S, in a process of its own.
With `--banks` instead: retrieval from ten million memories in a file, exact and approximate, from a warm and a cold
cache. They are LoCoMo's turns, drawn again and moved as far as these lie from their nearest neighbours.
With `--memory` instead: `EARMemory` over 100,000 such memories, whose texts are words of two turns each, in one
namespace and in a thousand, and with context, in sessions of twenty.
"""

import argparse
import gc
import os
import resource
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import bench_gpu
import faiss
import made_longmemeval
import numpy as np
import reference
import torch
from bench_gpu import matrix_rate, timed
from torch.nn.functional import normalize

from earlib import paths
from earlib.core import randomness
from earlib.core.config import Config
from earlib.core.critic import SimulatedCritic
from earlib.core.learner import Learner
from earlib.data import embedding, encoders, longmemeval
from earlib.experiments import banks, large_banks, latency, runs, settings
from earlib.experiments.settings import Setting
from earlib.harness import grid, machines
from earlib.llm import answers, local
from earlib.memory import PRESETS, EARMemory

QUERIES, BANK, DEPTH, WIDTH, SEEDS, TRAINED, EVALUATED = 1540, 5882, 20, 384, (0, 1, 2), 400, 308
MEMORIES = 10**6
FILED, ASKED, COLD, SLATE = 10**7, 200, 5, 5  # memories in a file, queries, runs from a cold cache, memories returned
LOCOMO = Setting(dataset="locomo", encoder="minilm")


def line(label, value, unit="", mark=""):
    """Print one measured value, and in brackets what it should reach or how it was measured."""
    print(f"  {label:31} {value:>8} {unit:4} {mark and f'({mark})'}".rstrip())


def made():
    """Candidates of the size of LoCoMo; two of the twenty are gold on average."""
    rng = torch.Generator().manual_seed(0)
    bank, query = (normalize(torch.randn(rows, WIDTH, generator=rng), dim=-1) for rows in (BANK, QUERIES))
    index = torch.randint(BANK, (QUERIES, DEPTH), generator=rng)
    gold = torch.rand(QUERIES, DEPTH, generator=rng) < 0.1
    return SimpleNamespace(query=query, bank=bank, index=index, gold=gold, scopes=["made"] * QUERIES)


def core(config, found, order, uniforms):
    """Seconds of the batched core for all seeds, and the learner that it leaves."""
    learner = Learner(config, found, SimulatedCritic(config, found.gold), SEEDS)
    return timed(lambda: [None for _ in learner.train(order, uniforms)])[0], learner


def plain(config, found, order, uniforms, queries):
    """Seconds of the transcription for some queries of one seed, and the multiply-adds that it counted."""
    named = {name: u[0] for name, u in uniforms._asdict().items() if u is not None}
    given = found.query, found.bank[found.index], found.gold, order[0, :queries].tolist(), named
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # its small products are faster so
    seconds, result = timed(lambda: reference.train(config, *given, *torch.zeros(2, WIDTH, WIDTH)))
    torch.set_num_threads(threads)
    return seconds, result.multiply_adds


def measure(name, found, options):
    """Measure and print all ratios on one problem."""
    config = Config()
    splits = [settings.split(found.scopes, Setting(), seed) for seed in SEEDS]
    order = torch.from_numpy(np.stack([train[:TRAINED] for train, _ in splits]))
    kept = torch.from_numpy(np.stack([evaluation[:EVALUATED] for _, evaluation in splits]))
    uniforms = randomness.draw(config, SEEDS, order, DEPTH, len(found.query), "train")
    noise = randomness.draw(config, SEEDS, kept, DEPTH, len(found.query), "test")

    core(config, found, order, uniforms)  # warm
    measured = []
    for _ in range(options.repeat):  # rate and core in turn, so that both see the same machine
        rate, (spent, learner) = matrix_rate(2048), core(config, found, order, uniforms)
        measured.append((rate, spent, timed(lambda: learner.retrieve(kept, True, noise))[0]))  # noqa: B023
    times = TRAINED / options.plain_queries * len(SEEDS)
    slow, counted = (times * value for value in plain(config, found, order, uniforms, options.plain_queries))

    rate, spent, evaluated = np.median(measured, axis=0)
    share = np.median([counted / spent / rate for rate, spent, _ in measured])
    print(f"{name}: EAR, {TRAINED} queries, d = {WIDTH}, K = {DEPTH}, {len(SEEDS)} seeds; medians of {options.repeat}")
    line("matrix product, float32", f"{2 * rate / 1e9:.1f}", "GFLOP/s")
    line("batched core, all seeds", f"{spent:.2f}", "s")
    line("plain transcription, all seeds", f"{slow:.1f}", "s", "one seed on one thread, its faster way")
    line("ratio plain : core", f"{slow / spent:.1f}", "", "at least 10")
    line("share of the matrix rate", f"{100 * share:.1f}", "%", "at least 35 %")
    line("evaluation with the Explorer", f"{evaluated:.3f}", "s", f"{EVALUATED} questions, under 0.1 s")


def first_stage(options):
    """Retrieval from many memories and reading them, in turn."""
    for count, storage, times in latency.time_random([MEMORIES], 768, options.repeat, ["ear_adapter"]):
        found, read = np.median(times.seconds["ear_adapter"]), np.median(times.read)
        print(f"{count:,} memories in {storage}, d = 768; medians of {options.repeat}")
        line("reading the embeddings once", f"{read:.3f}", "s", f"{4 * 768 * count / read / 1e9:.1f} GB/s")
        line("adapter-only retrieval", f"{found:.3f}", "s")
        line("ratio retrieval : reading", f"{found / read:.2f}", "", "at most 1.5")


def long_benchmark(options):
    """Loading of a whole LongMemEval_S, its checksum included."""
    with tempfile.TemporaryDirectory() as folder:
        path = made_longmemeval.write(Path(folder) / longmemeval.FILE)
        seconds, peak = np.median([made_longmemeval.measured(path) for _ in range(options.repeat)], axis=0)
        size = path.stat().st_size
    full = made_longmemeval.FULL
    told = f"{full.questions} questions, {full.appearances:,} sessions, {full.turns:,} different turns"
    print(f"LongMemEval_S, made: {told}, {size / 2**20:.0f} MiB; medians of {options.repeat}")
    line("loading, checksum included", f"{seconds:.2f}", "s", "under 60 s")
    line("peak resident memory", f"{peak / 2**30:.2f}", "GiB", "under 2 GiB")


def workers(rounds=3):
    """Whole runs, with sending their data and keeping their results, on two workers and without any, in turn."""
    variants = ["rmm", "rmm_fresh_slates", "explorer_training", "buffer_training", "random_slates", "ear"]
    splits = ("random", "conversation")
    cells = [grid.cells(["locomo"], ["minilm"], variants, seeds=len(SEEDS), split=split) for split in splits]
    jobs = grid.jobs(sum(cells, []))

    def one_after_another():
        for job in jobs.values():
            runs.keep(job, runs.compute_run(job.setting, job.config, job.found, job.splits))

    def kept():
        return [values.tobytes() for job in jobs.values() for values in runs.cached(job)]

    torch.set_num_threads(1)
    seconds, same, began = [], [], time.perf_counter()
    with tempfile.TemporaryDirectory() as empty, machines.connect(workers=2) as client:
        started = time.perf_counter() - began
        os.environ["EARLIB_CACHE"] = empty
        for _ in range(rounds):
            (parallel, _), first = timed(lambda: grid.compute(jobs, client)), kept()
            (serial, _), second = timed(one_after_another), kept()
            seconds.append((serial, parallel))
            same.append(first == second)
    serial, parallel = np.array(seconds).T
    print(f"{len(jobs)} runs of {len(SEEDS)} seeds on LoCoMo with two splits; medians of {rounds}")
    line("start of two workers", f"{started:.1f}", "s", "once, not counted below")
    line("one after another, one thread", f"{np.median(serial):.1f}", "s")
    line("two workers of one thread", f"{np.median(parallel):.1f}", "s")
    line("ratio of the throughputs", f"{np.median(serial / parallel):.2f}", "", "at least 1.7")
    line("results", "identical" if all(same) else "DIFFERENT")


def language_model(questions=60):
    """Answers and verdicts of the model that this machine serves, none of them kept from before."""
    setting, panel = Setting(), answers.Panel(local.DEFAULT, local.DEFAULT, questions)
    reached = runs.answers(setting, "retriever")
    asked = answers.asked_of(panel, setting, reached.queries[:1])
    slates = {"retriever": reached.slates[:1][asked.place]}
    with tempfile.TemporaryDirectory() as empty:
        os.environ["EARLIB_CACHE"] = empty
        answered, said = timed(lambda: answers.generate(panel, asked, slates)["retriever"])
        judged, _ = timed(lambda: answers.verdicts(panel, asked.questions, said))
    told = f"{questions} answers {answered:.0f} s, {questions} verdicts {judged:.0f} s"
    print(f"{local.DEFAULT}: {told}   (360 s at most)")


def filed(folder):
    """The bank of ten million memories and its index, made where they are missing; queries that they are asked."""
    found, benchmark = settings.candidates_of(LOCOMO, DEPTH), settings.benchmark("locomo")
    turns = torch.tensor([row for row, memory in enumerate(benchmark.memories) if memory.store == "dialogue"])
    query = found.query[torch.randperm(len(found.query), generator=torch.Generator().manual_seed(0))[: 2 * ASKED]]
    path = folder / f"resampled_{FILED}.npy"
    if not path.exists():
        print(f"{folder}: a bank of {2 * FILED * WIDTH / 1e9:.1f} GB and an index of {FILED * WIDTH / 1e9:.1f} GB")
        blocks = large_banks.resampled(found.bank[turns], FILED)
        line("making the bank", f"{timed(lambda: banks.write_bank(path, blocks, FILED, WIDTH))[0]:.0f}", "s")
    if not banks.index_path(path).exists():
        spent, _ = timed(lambda: banks.build_index(banks.Bank(path), query[:ASKED]))
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        line("building the index", f"{spent:.0f}", "s", f"{most:.1f} GB of memory at most, mapped pages too")
    return path, query[ASKED:]


def read(path, size=2**20):
    """Read a file from its beginning to its end into a small buffer, each thread a part of it."""
    file, length, threads = os.open(path, os.O_RDONLY), os.path.getsize(path), torch.get_num_threads()

    def part(number):
        buffer = bytearray(size)
        at, end = (length * place // threads for place in (number, number + 1))
        while at < end:
            at += os.preadv(file, [buffer], at)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, range(threads)))
    os.close(file)


def forget(path, probes=1000):
    """Take a file out of the operating system's cache; the share of places in it that are still there."""
    gc.collect()  # a page that is mapped stays
    file, still = os.open(path, os.O_RDONLY), 0
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    for at in np.random.default_rng(0).integers(os.path.getsize(path), size=probes).tolist():
        with suppress(BlockingIOError):
            still += os.preadv(file, [bytearray(1)], at, os.RWF_NOWAIT)
    os.close(file)
    return still / probes


def adapter_only(searched, query, weights):
    """From the embedding of one query to its slate: the first stage, then the adapter on its candidates."""
    _, index = searched.search(query, DEPTH)
    memory = getattr(searched, "bank", searched).rows[index].float()
    return index[large_banks.rerank(query[None], memory[None], weights, SLATE)[0]]


def in_turn(works, queries, before=lambda: None):
    """Seconds of each work for each query, one after another, `[queries, works]`."""
    taken = []
    for one, work in product(queries, works):
        before()
        taken.append(timed(lambda: work(one))[0])  # noqa: B023 (called at once)
    return np.reshape(taken, (len(queries), len(works)))


def warm(path, query, weights, repeat):
    """Seconds to sum the numbers of a file that is in the cache, and to retrieve from it, in turn, `[repeat, 2]`."""
    bank = banks.Bank(path)
    words = bank.rows.view(torch.int64)
    works = [lambda one: words.sum(), lambda one: adapter_only(bank, one, weights)]
    in_turn(works, query[:1])
    return in_turn(works, query[:repeat])


def cold(path, query, weights, repeat):
    """Seconds to read a file that is not in the cache, and to retrieve from it, in turn, `[repeat, 2]`."""
    works, left = [lambda one: read(path), lambda one: adapter_only(banks.Bank(path), one, weights)], []
    taken = in_turn(works, query[:repeat], lambda: left.append(forget(path)))
    print(f"before each cold run at most {100 * max(left):.1f} % of the file was still in the cache")
    return taken


def time_large_banks(options):
    """Exact retrieval as a share of the rate of reading; the approximate one's recall and time."""
    path, query = filed(Path(options.folder or paths.cache() / "banks"))
    weights = 0.01 * torch.randn(2, WIDTH, WIDTH, generator=torch.Generator().manual_seed(0))
    size = os.path.getsize(path)
    print(f"{FILED:,} memories in fp16, d = {WIDTH}, {size / 1e9:.1f} GB")
    for told, time_both, repeat in (
        ("warm cache (reading: the mapped file is summed)", warm, options.repeat),
        ("cold cache (POSIX_FADV_DONTNEED; reading: in large parts, each thread its own)", cold, COLD),
    ):
        taken = time_both(path, query, weights, repeat)
        reading, searching = np.median(taken, axis=0)
        share = np.median(taken[:, 0] / taken[:, 1])
        print(f"{told}; medians of {len(taken)}, in turn")
        line("reading", f"{reading:.3f}", "s", f"{size / reading / 1e9:.2f} GB/s")
        line("exact adapter-only retrieval", f"{searching:.3f}", "s", f"{size / searching / 1e9:.2f} GB/s")
        line("share of the rate of reading", f"{100 * share:.1f}", "%", "at least 80 %")
    bank = banks.Bank(path)
    index = banks.Index(bank, faiss.read_index(str(banks.index_path(path)), faiss.IO_FLAG_MMAP))
    index.lists.parallel_mode = 1  # one query uses all threads
    recall = banks.overlap(index.search(query, DEPTH)[1], bank.search(query, DEPTH)[1]).mean()  # and warms it
    spent = 1000 * np.array([timed(lambda: adapter_only(index, one, weights))[0] for one in query])  # noqa: B023
    told = f"{index.lists.nprobe} of {index.lists.nlist:,} lists; {len(query)} queries that did not choose it"
    print(f"approximate, {told}")
    line(f"recall@{DEPTH}", f"{recall:.4f}", "", "at least 0.95")
    line("adapter-only retrieval, mean", f"{spent.mean():.2f}", "ms", "under 20 ms")
    line("median", f"{np.median(spent):.2f}", "ms", f"99th percentile {np.percentile(spent, 99):.2f} ms")


def remembered(count=10**5):
    """Embeddings and texts of made memories, `[count, d]` and as many, and questions with their embeddings."""
    found, benchmark = settings.candidates_of(LOCOMO, DEPTH), settings.benchmark("locomo")
    rng, turns = np.random.default_rng(0), [one.text for one in benchmark.memories]
    pairs = rng.integers(len(turns), size=(count, 2))
    texts = [" ".join(rng.permutation(f"{turns[a]} {turns[b]}".split())[: rng.integers(5, 25)]) for a, b in pairs]
    vectors = np.concatenate(list(large_banks.resampled(found.bank, count)))
    return vectors, texts, {one.text: vector for one, vector in zip(benchmark.asked, found.query.numpy(), strict=True)}


def live_memory(experiences=1000):
    """Median milliseconds of a live memory, one call after another, and of the processor's time."""
    vectors, texts, asked = remembered()
    questions, stored = list(asked)[:ASKED], dict(zip(texts, vectors, strict=True))
    more = [f"{texts[at]} {texts[-at]}" for at in range(ASKED)]
    stored |= dict(zip(more, vectors, strict=False))

    def looked_up(given, kind):
        return np.stack([(stored if kind == "memory" else asked).get(text, vectors[0]) for text in given])

    def calls(label, work, mark="", over=questions):
        spent = []
        for one in over:
            used = time.process_time()
            spent.append((timed(lambda: work(one))[0], time.process_time() - used))  # noqa: B023
        wall, used = 1000 * np.array(spent)[5:].T
        told = f"95th percentile {np.percentile(wall, 95):.2f} ms, processor {np.median(used):.2f} ms"
        line(label, f"{np.median(wall):.2f}", "ms", f"{told}; {mark}" if mark else told)

    def life(preset, spaces, context=None):
        memory, each, shown = EARMemory(looked_up, preset, context=context), len(texts) // spaces, {}

        def space(text):
            return str(zlib.crc32(text.encode()) % spaces)

        def add(start):
            about = [{"session": at // 20} for at in range(start, start + each)] if context else None
            memory.add(texts[start : start + each], None, str(start // each), about)

        def feedback(text):
            memory.feedback(text, shown[text], [True] + (SLATE - 1) * [False])

        told = f"{len(texts):,} memories in {spaces:,} namespaces, d = {WIDTH}, context {context or 'none'}"
        print(f"EARMemory, preset {preset}: {told}")
        line("add all of them", f"{timed(lambda: list(map(add, range(0, len(texts), each))))[0]:.2f}", "s")
        shown |= {text: [one.id for one in memory.retrieve(text, SLATE, space(text))] for text in questions}
        calls("retrieve", lambda text: memory.retrieve(text, SLATE, space(text)), "under 8 ms")
        calls("feedback, in memory", feedback)
        with tempfile.TemporaryDirectory(dir=paths.cache()) as folder:
            line("save", f"{timed(lambda: memory.save(folder))[0]:.2f}", "s")
            calls("feedback, kept on the disk", feedback, "under 20 ms")
            about = [{"session": "new"}] if context else None
            calls(
                "add one, kept on the disk",
                lambda text: memory.add([text], None, space(text), about),
                "under 5 ms",
                more,
            )
            memory.close()
            used, (loaded, again) = time.process_time(), timed(lambda: EARMemory.load(folder, looked_up))
            used = time.process_time() - used
            line(f"load, with {2 * ASKED} changes", f"{loaded:.2f}", "s", f"processor {used:.2f} s; under 5 s")
            again.close()
        return memory, feedback

    lives = [*((name, 1) for name in PRESETS), ("best", 1000), ("best", 1, "session"), ("best", 1000, "session")]
    for one in lives:
        memory, feedback = life(*one)
        while memory._state.learner.known < experiences:
            feedback(questions[memory._state.learner.known % ASKED])
        calls(f"feedback, {experiences:,} experiences", feedback)
    embed = embedding.embedder(encoders.get("minilm"), "cpu", "full", False)
    calls("encoding a question", lambda text: list(embed([[text]], "")), "once, on top of all above")


def core_and_stages(options):
    """All that is measured without an option."""
    try:
        measure("LoCoMo", settings.candidates_of(LOCOMO, DEPTH), options)
    except OSError as error:
        print(f"LoCoMo is left out: {error}")
    measure("random", made(), options)
    first_stage(options)
    long_benchmark(options)
    try:
        workers()
    except OSError as error:
        print(f"the grid is left out: {error}")


INSTEAD = {
    "workers": ("the grid of runs on two workers alone", lambda options: workers()),
    "llm": ("the language model of this machine instead; minutes", lambda options: language_model()),
    "gpu": ("training and encoding on a CUDA device instead", lambda options: bench_gpu.main()),
    "banks": ("ten million memories in a file instead; 12 GB", time_large_banks),
    "memory": ("EARMemory over 100,000 memories instead; a minute", lambda options: live_memory()),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plain-queries", type=int, default=TRAINED, help="queries that the transcription is timed on")
    parser.add_argument("--repeat", type=int, default=9, help="runs of the core; the median counts")
    for name, (timed_thing, _) in INSTEAD.items():
        parser.add_argument(f"--{name}", action="store_true", help=f"time {timed_thing}")
    parser.add_argument("--folder", help="where that file lies and stays; default: the cache's")
    options = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    chosen = [work for name, (_, work) in INSTEAD.items() if getattr(options, name)]
    (*chosen, core_and_stages)[0](options)


if __name__ == "__main__":
    main()
