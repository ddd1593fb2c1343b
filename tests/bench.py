"""`make bench`: how fast the batched core is, as ratios measured in one run.

EAR on 400 training queries, d = 384, K = 20, three seeds side by side:

1. against the plain transcription of the paper in tests/reference.py, in float32, on the same queries and numbers;
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
With `--memory` instead: `EARMemory` over 100,000 such memories, whose texts are words of two turns each.
"""

import argparse
import gc
import os
import resource
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import bench_gpu
import made_longmemeval
import numpy as np
import reference
import torch

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


def made():
    """Candidates of the size of LoCoMo; two of the twenty are gold on average."""
    rng = torch.Generator().manual_seed(0)
    bank, query = (
        torch.nn.functional.normalize(torch.randn(rows, WIDTH, generator=rng), dim=-1) for rows in (BANK, QUERIES)
    )
    index = torch.randint(BANK, (QUERIES, DEPTH), generator=rng)
    gold = torch.rand(QUERIES, DEPTH, generator=rng) < 0.1
    return SimpleNamespace(query=query, bank=bank, index=index, gold=gold, scopes=["made"] * QUERIES)


def problems():
    """Candidates that are measured on, by name."""
    try:
        yield "LoCoMo", settings.candidates_of(settings.Setting(dataset="locomo", encoder="minilm"), DEPTH)
    except OSError as error:
        print(f"LoCoMo is left out: {error}")
    yield "random", made()


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def matrix_rate(size=2048):
    """Multiply-adds a second of a plain float32 matrix product: the median of several, as for the core."""
    left, right, out = (torch.randn(size, size) for _ in range(3))
    torch.mm(left, right, out=out)
    return size**3 / sorted(timed(lambda: torch.mm(left, right, out=out)) for _ in range(5))[2]


def core(config, found, order, uniforms):
    """Seconds of the batched core for all seeds, and the learner that it leaves."""
    learner = Learner(config, found, SimulatedCritic(config, found.gold), SEEDS)
    return timed(lambda: [None for _ in learner.train(order, uniforms)]), learner


def plain(config, found, order, uniforms, queries):
    """Seconds of the transcription for some queries of one seed, and the multiply-adds that it counted."""
    named = {f"u_{name}": u[0] for name, u in uniforms._asdict().items() if u is not None}
    start = (torch.zeros(WIDTH, WIDTH), torch.zeros(WIDTH, WIDTH))
    result = []
    memory = found.bank[found.index]
    asked = order[0, :queries].tolist()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # its small products are faster so
    seconds = timed(
        lambda: result.append(reference.train(config, found.query, memory, found.gold, asked, named, *start))
    )
    torch.set_num_threads(threads)
    return seconds, result[0].multiply_adds


def measure(name, found, options):
    """Measure and print all ratios on one problem."""
    config = Config()
    splits = [settings.split(found.scopes, settings.Setting(), seed) for seed in SEEDS]
    order = torch.from_numpy(np.stack([train[:TRAINED] for train, _ in splits]))
    kept = torch.from_numpy(np.stack([evaluation[:EVALUATED] for _, evaluation in splits]))
    uniforms = randomness.draw(config, SEEDS, order, DEPTH, len(found.query), "train")
    noise = randomness.draw(config, SEEDS, kept, DEPTH, len(found.query), "test")

    core(config, found, order, uniforms)  # warm
    seconds, rates, evaluations = [], [], []
    for _ in range(options.repeat):  # rate and core in turn, so that both see the same machine
        rates.append(matrix_rate())
        spent, learner = core(config, found, order, uniforms)
        seconds.append(spent)
        evaluations.append(timed(lambda: learner.retrieve(kept, True, noise)))  # noqa: B023 (called at once)
    slow, counted = plain(config, found, order, uniforms, options.plain_queries)
    slow, counted = (value * TRAINED / options.plain_queries * len(SEEDS) for value in (slow, counted))

    shares = sorted(counted / spent / rate for spent, rate in zip(seconds, rates, strict=True))
    spent, rate, evaluated = (sorted(values)[options.repeat // 2] for values in (seconds, rates, evaluations))
    print(f"{name}: EAR, {TRAINED} queries, d = {WIDTH}, K = {DEPTH}, {len(SEEDS)} seeds; medians of {options.repeat}")
    print(f"  matrix product, float32         {2 * rate / 1e9:8.1f} GFLOP/s")
    print(f"  batched core, all seeds         {spent:8.2f} s")
    print(f"  plain transcription, all seeds  {slow:8.1f} s   (one seed on one thread, its faster way)")
    print(f"  ratio plain : core              {slow / spent:8.1f}     (at least 10)")
    print(f"  share of the matrix rate        {100 * shares[options.repeat // 2]:8.1f} %   (at least 35 %)")
    print(f"  evaluation with the Explorer    {evaluated:8.3f} s   ({EVALUATED} questions, under 0.1 s)")


def first_stage(options):
    """Retrieval from many memories and reading them, in turn."""
    for count, storage, times in latency.time_random([MEMORIES], 768, options.repeat, ["ear_adapter"]):
        found, read = np.median(times.seconds["ear_adapter"]), np.median(times.read)
        print(f"{count:,} memories in {storage}, d = 768; medians of {options.repeat}")
        print(f"  reading the embeddings once     {read:8.3f} s   ({4 * 768 * count / read / 1e9:.1f} GB/s)")
        print(f"  adapter-only retrieval          {found:8.3f} s")
        print(f"  ratio retrieval : reading       {found / read:8.2f}     (at most 1.5)")


def long_benchmark(options):
    """Loading of a whole LongMemEval_S, its checksum included."""
    with tempfile.TemporaryDirectory() as folder:
        path = made_longmemeval.write(Path(folder) / longmemeval.FILE)
        spent = [made_longmemeval.measured(path) for _ in range(options.repeat)]
        size = path.stat().st_size
    seconds, peak = np.median(spent, axis=0)
    full = made_longmemeval.FULL
    told = f"{full.questions} questions, {full.appearances:,} sessions, {full.turns:,} different turns"
    print(f"LongMemEval_S, made: {told}, {size / 2**20:.0f} MiB; medians of {options.repeat}")
    print(f"  loading, checksum included      {seconds:8.2f} s   (under 60 s)")
    print(f"  peak resident memory            {peak / 2**30:8.2f} GiB (under 2 GiB)")


def workers(rounds=3):
    """Whole runs, with sending their data and keeping their results, on two workers and without any, in turn."""
    variants = ["rmm", "rmm_fresh_slates", "explorer_training", "buffer_training", "random_slates", "ear"]
    splits = ("random", "conversation")
    cells = [grid.cells(["locomo"], ["minilm"], variants, seeds=len(SEEDS), split=split) for split in splits]
    jobs = grid.jobs(sum(cells, []))

    def one_after_another():
        for job in jobs.values():
            runs.keep(job, runs.compute_run(job.setting, job.config, job.found))

    def kept():
        return [values.tobytes() for job in jobs.values() for values in runs.cached(job)]

    torch.set_num_threads(1)
    seconds, same, began = [], [], time.perf_counter()
    with tempfile.TemporaryDirectory() as empty, machines.connect(workers=2) as client:
        started = time.perf_counter() - began
        os.environ["EARLIB_CACHE"] = empty
        for _ in range(rounds):
            parallel = timed(lambda: grid.compute(jobs, client)), kept()
            serial = timed(one_after_another), kept()
            seconds.append((serial[0], parallel[0]))
            same.append(serial[1] == parallel[1])
    serial, parallel = np.array(seconds).T
    print(f"{len(jobs)} runs of {len(SEEDS)} seeds on LoCoMo with two splits; medians of {rounds}")
    print(f"  start of two workers            {started:8.1f} s   (once, not counted below)")
    print(f"  one after another, one thread   {np.median(serial):8.1f} s")
    print(f"  two workers of one thread       {np.median(parallel):8.1f} s")
    print(f"  ratio of the throughputs        {np.median(serial / parallel):8.2f}     (at least 1.7)")
    print(f"  results                         {'identical' if all(same) else 'DIFFERENT'}")


def language_model(questions=60):
    """Answers and verdicts of the model that this machine serves, none of them kept from before."""
    setting, panel = Setting(), answers.Panel(local.DEFAULT, local.DEFAULT, questions)
    slates = {"retriever": runs.answers(setting, "retriever").slates[0, :questions]}
    with tempfile.TemporaryDirectory() as empty:
        os.environ["EARLIB_CACHE"] = empty
        start = time.perf_counter()
        said = answers.generate(panel, setting, slates)["retriever"]
        answered = time.perf_counter() - start
        judged = timed(lambda: answers.verdicts(panel, answers.questions_of(panel, setting), said))
    told = f"{questions} answers {answered:.0f} s, {questions} verdicts {judged:.0f} s"
    print(f"{local.DEFAULT}: {told}   (360 s at most)")


def filed(folder):
    """The bank of ten million memories and its index, made where they are missing; queries that they are asked."""
    found, benchmark = (
        settings.candidates_of(settings.Setting(dataset="locomo", encoder="minilm"), DEPTH),
        settings.benchmark("locomo"),
    )
    turns = torch.tensor([row for row, memory in enumerate(benchmark.memories) if memory.store == "dialogue"])
    query = found.query[torch.randperm(len(found.query), generator=torch.Generator().manual_seed(0))[: 2 * ASKED]]
    path = folder / f"resampled_{FILED}.npy"
    if not path.exists():
        print(f"{folder}: a bank of {2 * FILED * WIDTH / 1e9:.1f} GB and an index of {FILED * WIDTH / 1e9:.1f} GB")
        spent = timed(lambda: banks.write_bank(path, large_banks.resampled(found.bank[turns], FILED), FILED, WIDTH))
        print(f"  making the bank                 {spent:8.0f} s")
    if not banks.index_path(path).exists():
        spent = timed(lambda: banks.build_index(banks.Bank(path, WIDTH), query[:ASKED]))
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        print(f"  building the index              {spent:8.0f} s   ({most:.1f} GB of memory at most, mapped pages too)")
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


def warm(path, query, weights, repeat):
    """Seconds to sum the numbers of a file that is in the cache, and to retrieve from it, in turn, `[repeat, 2]`."""
    bank = banks.Bank(path)
    words = bank.rows.view(torch.int64)
    works = [lambda one: words.sum(), lambda one: adapter_only(bank, one, weights)]
    for work in works:
        work(query[0])
    return [[timed(lambda: work(one)) for work in works] for one in query[:repeat]]  # noqa: B023 (called at once)


def cold(path, query, weights, repeat):
    """Seconds to read a file that is not in the cache, and to retrieve from it, in turn, `[repeat, 2]`."""
    works = [lambda one: read(path), lambda one: adapter_only(banks.Bank(path), one, weights)]
    taken, left = [], []
    for one in query[:repeat]:
        taken.append([])
        for work in works:
            left.append(forget(path))
            taken[-1].append(timed(lambda: work(one)))  # noqa: B023
    print(f"before each cold run at most {100 * max(left):.1f} % of the file was still in the cache")
    return taken


def time_large_banks(options):
    """Exact retrieval as a share of the rate of reading; the approximate one's recall and time."""
    path, query = filed(Path(options.folder or paths.cache() / "banks"))
    weights = 0.01 * torch.randn(2, WIDTH, WIDTH, generator=torch.Generator().manual_seed(0))
    size = os.path.getsize(path)
    print(f"{FILED:,} memories in fp16, d = {WIDTH}, {size / 1e9:.1f} GB")
    warmth = {
        "warm cache (reading: the mapped file is summed)": warm(path, query, weights, options.repeat),
        "cold cache (POSIX_FADV_DONTNEED; reading: in large parts, each thread its own)": cold(
            path, query, weights, COLD
        ),
    }
    for told, taken in warmth.items():
        reading, searching = np.median(taken, axis=0)
        share = np.median([one / other for one, other in taken])
        print(f"{told}; medians of {len(taken)}, in turn")
        print(f"  reading                         {reading:8.3f} s   ({size / reading / 1e9:.2f} GB/s)")
        print(f"  exact adapter-only retrieval    {searching:8.3f} s   ({size / searching / 1e9:.2f} GB/s)")
        print(f"  share of the rate of reading    {100 * share:8.1f} %   (at least 80 %)")
    bank = banks.Bank(path)
    index = banks.load_index(bank)
    expected, found = bank.search(query, DEPTH)[1], index.search(query, DEPTH)[1]  # and warms it
    spent = 1000 * np.array([timed(lambda: adapter_only(index, one, weights)) for one in query])  # noqa: B023
    print(
        f"approximate, {index.lists.nprobe} of {index.lists.nlist:,} lists; {len(query)} queries that did not choose it"
    )
    print(f"  recall@{DEPTH}                       {banks.overlap(found, expected).mean():8.4f}     (at least 0.95)")
    print(f"  adapter-only retrieval, mean    {spent.mean():8.2f} ms  (under 20 ms)")
    print(f"  median and 99th percentile      {np.median(spent):8.2f} ms, {np.percentile(spent, 99):.2f} ms")


def remembered(count=10**5):
    """Embeddings and texts of made memories, `[count, d]` and as many, and questions with their embeddings."""
    searched, found = (
        settings.benchmark("locomo"),
        settings.candidates_of(settings.Setting(dataset="locomo", encoder="minilm"), DEPTH),
    )
    rng, turns = np.random.default_rng(0), [one.text for one in searched.memories]
    pairs = rng.integers(len(turns), size=(count, 2))
    texts = [" ".join(rng.permutation(f"{turns[a]} {turns[b]}".split())[: rng.integers(5, 25)]) for a, b in pairs]
    vectors = np.concatenate(list(large_banks.resampled(found.bank, count)))
    asked = {one.text: vector for one, vector in zip(searched.asked, found.query.numpy(), strict=True)}
    return vectors, texts, asked


def live_memory(experiences=1000):
    """Median milliseconds of a live memory, one call after another."""
    vectors, texts, asked = remembered()
    questions, encodes = list(asked)[:ASKED], encoders.get("minilm")
    embed = embedding.embedder(encodes, "cpu", "full", False)

    def looked_up(given, kind):
        return vectors[: len(given)] if kind == "memory" else np.stack([asked[text] for text in given])

    def milliseconds(work):
        spent = 1000 * np.array([timed(lambda: work(text)) for text in questions])[5:]  # noqa: B023
        return f"{np.median(spent):8.2f} ms, 95th percentile {np.percentile(spent, 95):.2f} ms"

    for preset in PRESETS:
        memory = EARMemory(looked_up, preset)
        added = timed(lambda: memory.add(texts))  # noqa: B023
        shown = {text: [one.id for one in memory.retrieve(text)] for text in questions}
        print(f"EARMemory, preset {preset}: {len(memory):,} memories, d = {WIDTH}; medians of {ASKED - 5} calls")
        print(f"  add all of them                 {added:8.2f} s   (encoded already)")
        print(f"  retrieve                       {milliseconds(memory.retrieve)} (under 10 ms)")

        def feedback(text):
            memory.feedback(text, shown[text], [True] + (SLATE - 1) * [False])  # noqa: B023

        print(f"  feedback, in memory            {milliseconds(feedback)} (under 20 ms)")
        with tempfile.TemporaryDirectory(dir=paths.cache()) as folder:
            print(f"  save                            {timed(lambda: memory.save(folder)):8.2f} s")  # noqa: B023
            print(f"  feedback, kept on the disk     {milliseconds(feedback)} (under 20 ms)")
            memory.close()
            print(f"  load, with {ASKED} changes         {timed(lambda: EARMemory.load(folder, looked_up)):8.2f} s")  # noqa: B023
        while memory._state.learner.known < experiences:
            feedback(questions[memory._state.learner.known % ASKED])
        print(f"  feedback, {experiences:,} experiences    {milliseconds(feedback)}")
    encoded = milliseconds(lambda text: list(embed([[text]], "")))
    print(f"  encoding a question            {encoded} (once, on top of all above)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plain-queries", type=int, default=TRAINED, help="queries that the transcription is timed on")
    parser.add_argument("--repeat", type=int, default=9, help="runs of the core; the median counts")
    parser.add_argument("--workers", action="store_true", help="time the grid of runs on two workers alone")
    parser.add_argument("--llm", action="store_true", help="time the language model of this machine instead; minutes")
    parser.add_argument("--gpu", action="store_true", help="time training and encoding on a CUDA device instead")
    parser.add_argument("--banks", action="store_true", help="time ten million memories in a file instead; 12 GB")
    parser.add_argument("--memory", action="store_true", help="time EARMemory over 100,000 memories instead; a minute")
    parser.add_argument("--folder", help="where that file lies and stays; default: the cache's")
    options = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    if options.llm:
        language_model()
        return
    if options.workers:
        workers()
        return
    if options.banks:
        time_large_banks(options)
        return
    if options.memory:
        live_memory()
        return
    if options.gpu:
        bench_gpu.main()
        return
    for name, found in problems():
        measure(name, found, options)
    first_stage(options)
    long_benchmark(options)
    try:
        workers()
    except OSError as error:
        print(f"the grid is left out: {error}")


if __name__ == "__main__":
    main()
