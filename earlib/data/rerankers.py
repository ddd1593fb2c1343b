"""Rerankers that read a question and a memory together: a registry, their pinned files, and scores that are cached."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from safetensors import safe_open

from earlib import devices
from earlib.data import cache, model_files, own
from earlib.data.encoders import check_texts, progress

VERSION = 1  # of how a score is computed; another one invalidates all cached scores
BLOCK = 512  # pairs whose scores are cached together: the most that a kill can lose
BATCH = 32  # pairs in one pass on a CPU
TOKENS = 2**15  # tokens in one pass on a GPU, padding included


@dataclass(frozen=True)
class Reranker:
    """A T5 that was trained to answer a question about a pair of texts with one of two words."""

    name: str
    model: str  # this and the fields with the same names as those of an `encoders.Encoder`
    revision: str
    weights: tuple
    licence: str
    prompt: tuple = ("Query:", "Document:", "Relevant:")  # before the question, before the memory, after both
    answers: tuple = ("true", "false")  # the words for a relevant memory and for one that is not, one token each
    max_length: int = 512  # tokens read, with the end token
    package: str = ""


REGISTRY = model_files.registry(Reranker, "rerankers.yaml")
WORDS = "bm25"  # needs no model: `candidates.word_scores`
NAMES = (WORDS, *REGISTRY)


def get(name):
    """The entry of a reranker in `REGISTRY`; a ValueError that suggests similar names if there is none."""
    if name not in REGISTRY:
        raise own.unknown("reranker", name, REGISTRY)
    return REGISTRY[name]


def fingerprint(reranker):
    """SHA-256 (hex) of all that determines a reranker's scores: weights, prompt, answers and length."""
    return cache.content_hash(_properties(get(reranker)))


def _properties(entry):
    return ["reranker", VERSION, entry.weights, entry.prompt, entry.answers, entry.max_length]


def absent(reranker, fetch=False):
    """The reason why a reranker of `NAMES` cannot be run here, None if it can; `fetch` allows a download."""
    if reranker == WORDS:
        return None
    entry = get(reranker)
    try:
        model_files.locate(entry, fetch=fetch)
    except (FileNotFoundError, ConnectionError):
        return f"weights not at hand: {entry.model} at {entry.revision[:12]}"
    return None


def size(reranker):
    """Number of a reranker's parameters, counted in the headers of its files; 0 for BM25."""
    if reranker == WORDS:
        return 0
    entry, count = get(reranker), 0
    place = model_files.locate(entry, fetch=False)
    for name, _ in entry.weights:
        with safe_open(place / name, framework="numpy") as file:
            count += sum(math.prod(file.get_slice(key).get_shape()) for key in file.keys())  # noqa: SIM118
    return count


def score(pairs, reranker="monot5", device=None):
    """Relevance of a memory to a question: the log-probability of the answer "true" rather than "false".

    The model reads `Query: {question} Document: {memory} Relevant:`. Of its first answer token only the logits of the
    two answers count: s = log softmax(l_true, l_false)_true. A long memory is truncated so that "Relevant:" is still
    read, and a question that alone fills more than half of the length at that half. All in float32: T5 overflows in
    half precision. Each `BLOCK` of different pairs is one entry of the cache, so that a run that was killed resumes
    there; the model is not loaded when the cache has all of them. ValueError for an unknown reranker, weights with
    another checksum, an answer that is not one token, or a score that is not finite.
    """
    entry, pairs = get(reranker), [tuple(check_texts(pair)) for pair in pairs]
    unique = list(dict.fromkeys(pairs))
    blocks = [slice(start, min(start + BLOCK, len(unique))) for start in range(0, len(unique), BLOCK)]
    keys = [f"{entry.name}-{cache.content_hash([_properties(entry), unique[block]])}" for block in blocks]
    found = [cache.load("scores", key) for key in keys]
    missing = [number for number, block in enumerate(found) if block is None]
    if missing:
        steps = progress(f"scoring with {entry.name}", [blocks[number] for number in missing], len(unique), "pairs")
        for number, block in zip(missing, steps, strict=True):
            found[number] = {"scores": _compute(entry, unique[block], device or devices.default())}
            cache.save("scores", keys[number], found[number])
    scores = np.concatenate([np.empty(0, np.float32), *(block["scores"] for block in found)])
    row = {pair: number for number, pair in enumerate(unique)}
    return scores[[row[pair] for pair in pairs]]


def _compute(entry, pairs, device):
    """Scores of a block, the longest pairs first, so that a batch needs little padding; `[n]`."""
    import torch

    tokenizer, model = _model(entry, device)
    answers = [token for answer in entry.answers for token in tokenizer(answer, add_special_tokens=False)["input_ids"]]
    if len(answers) != len(entry.answers) or tokenizer.unk_token_id in answers:
        raise ValueError(
            f"reranker {entry.name}: expected each of {', '.join(entry.answers)} to be one token; put the publisher's "
            f"tokenizer of {entry.model} beside its weights"
        )
    inputs, scores = _inputs(entry, tokenizer, pairs), np.empty(len(pairs), np.float32)
    order = sorted(range(len(pairs)), key=lambda number: -len(inputs[number]))
    count = BATCH if device == "cpu" else max(1, TOKENS // len(inputs[order[0]]))
    for start in range(0, len(order), count):
        rows = order[start : start + count]
        batch = tokenizer.pad({"input_ids": [inputs[row] for row in rows]}, return_tensors="pt").to(model.device)
        batch["decoder_input_ids"] = batch["input_ids"].new_full((len(rows), 1), model.config.decoder_start_token_id)
        with torch.inference_mode():
            logits = model(**batch).logits[:, 0, answers]  # of the first token of the answer
        scores[rows] = logits.log_softmax(-1)[:, 0].cpu().numpy()
    if not np.isfinite(scores).all():
        told = f"reranker {entry.name}: the score of {pairs[np.isfinite(scores).argmin()]!r:.120} is not finite"
        raise ValueError(f"{told}; check these texts and the weights of {entry.model}")
    return scores


@lru_cache(maxsize=1)
def _model(entry, device):
    place = model_files.locate(entry)
    import torch
    from transformers import T5ForConditionalGeneration, T5Tokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # the bar of the weights' loading floods a log that is not a terminal
    tokenizer = T5Tokenizer.from_pretrained(place, local_files_only=True)
    options = {"local_files_only": True, "use_safetensors": True, "dtype": torch.float32}
    model = T5ForConditionalGeneration.from_pretrained(place, **options)
    return tokenizer, model.eval().to(devices.ready(device))


def _inputs(entry, tokenizer, pairs):
    """Token ids of each pair's prompt.

    The tokenizer splits at blanks first, so that the parts have the same tokens alone as in one string.
    """

    def tokens(texts):
        cut = tokenizer([*texts], add_special_tokens=False, truncation=True, max_length=entry.max_length)
        return dict(zip(texts, cut["input_ids"], strict=True))

    parts, (questions, memories) = tokens(entry.prompt), map(tokens, zip(*pairs, strict=True))
    before, between, after = (parts[part] for part in entry.prompt)
    after, made = [*after, tokenizer.eos_token_id], []
    for question, memory in pairs:
        asked = [*before, *questions[question][: entry.max_length // 2], *between]
        made.append([*asked, *memories[memory][: entry.max_length - len(asked) - len(after)], *after])
    return made
