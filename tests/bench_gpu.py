"""`make bench ARGS=--gpu`: training and encoding on one CUDA device, as ratios to the card's own matrix rate.

1. all variants of the ablation, 16 seeds each, at 768 dimensions, trained and evaluated;
2. EAR at 3,584 dimensions, three seeds;
3. encoding with MiniLM, tokens a second, of texts as long as the turns of LongMemEval;
4. encoding with random weights in the shapes of the paper's encoders, tokens a second and memory, of some of them.

The share of the matrix rate counts the multiply-adds of the forward and backward products of both adapters, each
memory of an update once, as they are computed. Encoding counts those of the encoder's layers for real tokens alone:
padding and tokenisation count as lost time. The first run of each is not measured.
"""

import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import made_longmemeval
import numpy as np
import torch
import transformers

from earlib import devices
from earlib.core import captured, randomness
from earlib.core.config import VARIANTS, Config
from earlib.core.critic import SimulatedCritic
from earlib.data import embedding, encoders, longmemeval
from earlib.experiments import measures, settings
from earlib.experiments.settings import Setting

_QWEN = {"vocab_size": 151646, "num_hidden_layers": 28}
SHAPES = {  # of the publishers' models
    "contriever": transformers.BertConfig(),
    "stella": transformers.Qwen2Config(
        hidden_size=1536, intermediate_size=8960, num_attention_heads=12, num_key_value_heads=2, **_QWEN
    ),
    "gte": transformers.Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_attention_heads=28, num_key_value_heads=4, **_QWEN
    ),
}
# An encoder, its precision, and of how many texts one is encoded.
SIZES = (("contriever", "full", 8), ("contriever", "mixed", 4), ("stella", "full", 128), ("stella", "mixed", 24))
SIZES += (("gte", "full", 48),)
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
    print(f"ablation, 16 seeds, d = {wide.bank.shape[1]}: {spent:.1f} s (3 s at most), {share:.1f} %")
    turned = settings.candidates_of(Setting(dataset="locomo", encoder="minilm"), 20).rotated(3584).to(DEVICE)
    run(Config(), turned, (0,))
    seconds, done, queries, _ = timed_run(turned, (0, 1, 2))
    share = 100 * done / seconds / rate
    print(f"EAR, 3 seeds, {queries:,} queries, d = 3,584: {seconds:.1f} s (1.2 s at most), {share:.1f} %")


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


class Random(torch.nn.Module):
    """Token states of a model with random weights, as a module of sentence-transformers."""

    def __init__(self, config, entry):
        super().__init__()
        with torch.device(DEVICE):
            self.model = transformers.AutoModel.from_config(config, dtype=getattr(torch, entry.dtype))
        if entry.bidirectional:
            embedding._look_both_ways(self.model)

    def forward(self, features):
        return features | {"token_embeddings": self.model(**features).last_hidden_state}


def random_embedder(entry, precision):
    """An Embedder with random weights in the shape of an encoder, for texts that are tokens already."""
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    config, made = SHAPES[entry.name], object.__new__(embedding.Embedder)
    head = [Dense(config.hidden_size, entry.dimension, activation_function=torch.nn.Identity())] if entry.head else []
    made.model = torch.nn.Sequential(Random(config, entry), Pooling(config.hidden_size, entry.pooling), *head)
    made.model.to(DEVICE).eval().tokenizer = SimpleNamespace(padding_side="right", pad_token_id=0)
    made.entry, made.device, made.precision, made.tokens = entry, torch.device(DEVICE), precision, embedding.TOKENS
    return made


def random_weights(name, precision, every, tokens):
    """The fourth figure for one encoder, from the token ids of all texts, longest first, which it truncates."""
    entry = encoders.get(name)
    cut = [ids[: entry.max_length] for ids in tokens]
    chosen = cut[every // 2 :: every]
    pieces = [chosen[at : at + encoders.SHARD] for at in range(0, len(chosen), encoders.SHARD)]
    torch.cuda.empty_cache()
    model = random_embedder(entry, precision)
    weights, held = sum(one.numel() for one in model.model.parameters()), torch.cuda.memory_allocated()
    model._embed(pieces[-1])
    torch.cuda.reset_peak_memory_stats()
    seconds, vectors = timed(lambda: [model._embed(piece) for piece in pieces])
    assert np.isfinite(np.concatenate(vectors)).all()
    total, done, most = sum(map(len, cut)), sum(map(len, chosen)), torch.cuda.max_memory_allocated()
    print(
        f"{name}, {weights / 1e9:.2f} billion random weights ({entry.dtype}), {precision} precision: {done:,} tokens "
        f"of {len(chosen):,} texts in {seconds:.1f} s, {done / seconds:,.0f} tokens/s; memory {held / 1e9:.1f} GB, "
        f"at most {most / 1e9:.1f}; {total:,} tokens in all, {total / done * seconds / 60:.1f} min"
    )


def main():
    """All of it, on the device that torch finds."""
    devices.ready(DEVICE)
    training()
    with tempfile.TemporaryDirectory() as folder:
        path = made_longmemeval.write(Path(folder) / longmemeval.FILE)
        texts = [memory.text for memory in longmemeval.read(path).memories]
    encoding(texts)
    tokenizer = embedding.embedder(encoders.get("minilm"), DEVICE, "full", False).model.tokenizer.backend_tokenizer
    tokenizer.no_truncation()
    unique = sorted(set(texts), key=len, reverse=True)
    tokens = [np.array(one.ids) for one in tokenizer.encode_batch_fast(unique)]
    for name, precision, every in SIZES:
        random_weights(name, precision, every, tokens)
