"""`make bench ARGS=--gpu`: training and encoding on one CUDA device, as ratios to the card's own matrix rate.

1. all variants of the ablation, 16 seeds each, at 768 dimensions, trained and evaluated;
2. EAR at 3,584 dimensions, three seeds;
3. encoding with MiniLM, tokens a second, of texts as long as the turns of LongMemEval.

The share of the matrix rate counts the multiply-adds of the forward and backward products of both adapters, each
memory of an update once, as they are computed. Encoding counts those of the encoder's layers for real tokens alone:
padding and tokenisation count as lost time. The first run of each is not measured.
"""

import tempfile
import time
from pathlib import Path

import made_longmemeval
import numpy as np
import torch

from earlib import devices
from earlib.core import captured, randomness
from earlib.core.config import VARIANTS, Config
from earlib.core.critic import SimulatedCritic
from earlib.data import embedding, encoders, longmemeval
from earlib.experiments import measures, settings
from earlib.experiments.settings import Setting

# The other rows of the ablation are the first stage's ranking, and inference with the adapters of these.
ABLATION = ("rmm", "explorer_training", "buffer_training", "ear_adapter")
DEVICE = "cuda"


def timed(work):
    """Seconds of a call, with all that it started on a CUDA device finished, and its result."""
    finish = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    finish()
    start = time.perf_counter()
    result = work()
    finish()
    return time.perf_counter() - start, result


def matrix_rate(size, device="cpu", dtype=torch.float32, repeat=5):
    """Multiply-adds a second of a plain product: the median of several."""
    left, right, out = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(3))
    return size**3 / np.median([timed(lambda: torch.mm(left, right, out=out))[0] for _ in range(repeat)])


def run(config, found, seeds):
    """Train a configuration on the device and evaluate it with and without the Explorer; what was computed."""
    splits = [settings.split(found.scopes, Setting(), seed) for seed in seeds]
    train, kept = (torch.from_numpy(np.stack(part)).to(DEVICE) for part in zip(*splits, strict=True))
    learner = captured.learner(config, found, SimulatedCritic(config, found.gold), seeds)
    steps = list(learner.train(train))
    noise = randomness.draw(config, seeds, kept, config.depth, len(found.query), "test", DEVICE)
    values = [measures.measure(found, kept, learner.retrieve(kept, explorer, noise)) for explorer in (False, True)]
    return learner, train, steps, values


def multiply_adds(learner, train, steps):
    """Of both adapters, forward and backward: 3 d^2 for each query and each distinct memory of an update."""
    width, total, start = learner.query.shape[1], 0, 0
    for step in steps:
        queries = train[:, start : step.seen]
        replayed = train.gather(1, step.replayed.flatten(1)) if step.replayed.numel() else train[:, :0]
        asked = torch.cat([queries, replayed], 1)
        memories = sum(len(rows.unique()) for rows in learner.index[asked].flatten(1))
        total += 3 * width**2 * (asked.numel() + memories)
        start = step.seen
    return total


def timed_run(found, seeds, **changes):
    """Train and evaluate as `run` does: seconds, multiply-adds, questions trained on, and mean recall."""
    seconds, (learner, train, steps, values) = timed(lambda: run(Config(**changes), found, seeds))
    reached = ", ".join(f"{100 * np.nanmean(one[0]):.1f}" for one in values)
    return seconds, multiply_adds(learner, train, steps), train.shape[1], reached


def training():
    """The first two figures."""
    rate = matrix_rate(8192, DEVICE, repeat=9)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"matrix product, float32: {2 * rate / 1e12:.1f} TFLOP/s")
    wide = settings.candidates_of(Setting(dataset="locomo", encoder="mpnet"), 20).to(DEVICE)
    run(Config(), wide, (0,))
    total, spent = 0, 0
    for name in ABLATION:
        seconds, done, _, reached = timed_run(wide, tuple(range(16)), **VARIANTS[name].changes)
        total, spent = total + done, spent + seconds
        print(f"  {name:18} {seconds:6.2f} s  {100 * done / seconds / rate:5.1f} % of the rate  recall {reached}")
    share = 100 * total / spent / rate
    print(f"ablation, 16 seeds, d = {wide.bank.shape[1]}: {spent:.1f} s (30 s at most), {share:.1f} %")
    turned = settings.candidates_of(Setting(dataset="locomo", encoder="minilm"), 20).rotated(3584).to(DEVICE)
    run(Config(), turned, (0,))
    seconds, done, queries, _ = timed_run(turned, (0, 1, 2))
    share = 100 * done / seconds / rate
    print(f"EAR, 3 seeds, {queries:,} queries, d = 3,584: {seconds:.1f} s (20 s at most), {share:.1f} %")


def layers(entry):
    """Multiply-adds a token of an encoder's layers, without those of attention itself."""
    model = embedding.embedder(entry, DEVICE, "full", False).model[0].model
    return sum(one.weight.numel() for one in model.encoder.modules() if isinstance(one, torch.nn.Linear))


def encoding(texts):
    """The third figure, in each precision."""
    entry = encoders.get("minilm")
    unique = sorted(set(texts), key=len, reverse=True)
    pieces = [unique[at : at + encoders.SHARD] for at in range(0, len(unique), encoders.SHARD)]
    for precision, dtype in (("full", torch.float32), ("mixed", torch.bfloat16)):
        model = embedding.Embedder(entry, DEVICE, precision)
        list(model(pieces[::8], ""))
        seconds, vectors = timed(lambda: list(model(pieces, "")))  # noqa: B023 (called at once)
        tokens = sum(len(ids) for piece in pieces for ids in model._tokens(piece, ""))
        rate, told = matrix_rate(8192, DEVICE, dtype, repeat=9), layers(entry)
        print(
            f"MiniLM, {precision} precision: {len(texts):,} texts ({len(unique):,} different), {tokens:,} tokens in "
            f"{seconds:.1f} s: {tokens / seconds:,.0f} tokens/s, {100 * told * tokens / seconds / rate:.1f} % of the "
            f"measured {2 * rate / 1e12:.0f} TFLOP/s ({dtype}; at least 40 %)"
        )
        assert np.isfinite(np.concatenate(vectors)).all()


def main():
    """All of it, on the device that torch finds."""
    devices.ready(DEVICE)
    training()
    with tempfile.TemporaryDirectory() as folder:
        path = made_longmemeval.write(Path(folder) / longmemeval.FILE)
        encoding([memory.text for memory in longmemeval.read(path).memories])
