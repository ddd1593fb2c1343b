"""Rerankers that read a question and a memory together: a registry, their pinned files, and scores that are kept."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from safetensors import safe_open

from earlib import devices
from earlib.data import encoders
from earlib import paths
from earlib.data import weights
from earlib.core.config import near

VERSION = 1  # of how a score is computed; another one makes all kept scores stale
BLOCK = 512  # pairs whose scores are kept together: what a kill can cost
BATCH = 32  # pairs in one pass on a CPU
TOKENS = 2**15  # tokens in one pass on a GPU, padding included


@dataclass(frozen=True)
class Reranker:
    """A T5 that was trained to answer a question about a pair of texts with one of two words.

    Attributes
    ----------
    name : str
        As in `REGISTRY`.
    model, revision, weights, licence, package
        As of an `encoders.Encoder`.
    prompt : tuple of str
        What stands before the question, before the memory, and behind both.
    answers : tuple of str
        The word for a memory that is relevant and the word for one that is not, a token each.
    max_length : int
        Tokens read, with the end mark.
    """

    name: str
    model: str
    revision: str
    weights: tuple
    licence: str
    prompt: tuple = ("Query:", "Document:", "Relevant:")
    answers: tuple = ("true", "false")
    max_length: int = 512
    package: str = ""
    dimension = 1  # numbers that are kept a pair


_ENTRIES = (
    # The main branch holds the weights as a pickle only. This revision is one commit above its last known one, 891f24c:
    # pull request 1 of the publisher's repository, in which the hub's own converter adds them as safetensors.
    Reranker(
        name="monot5",
        model="castorini/monot5-base-msmarco",
        revision="fe3d672610d8d316ac57958bfeab9aa400bab1eb",
        weights=(("model.safetensors", "10974f83893da140e96be6d2f1e159609edd4a22c2808505f0495de1eb8cbee8"),),
        licence="none stated",
    ),
)
REGISTRY = {entry.name: entry for entry in _ENTRIES}
WORDS = "bm25"  # needs no model: `candidates.word_scores`
NAMES = (WORDS, *REGISTRY)


def get(name):
    """The registry's entry; a ValueError that names the near matches if there is none."""
    if name not in REGISTRY:
        raise ValueError(f"unknown reranker {name!r}{near(name, REGISTRY)}; known: {', '.join(REGISTRY)}")
    return REGISTRY[name]


def fingerprint(reranker):
    """SHA-256 (hex) of all that decides a reranker's scores: weights, prompt, answers and length."""
    return encoders._hash(_identity(get(reranker)))


def _identity(entry):
    return ["reranker", VERSION, entry.weights, entry.prompt, entry.answers, entry.max_length]


def folder(reranker, fetch=True):
    """Folder of a reranker's files; search path, checks and errors as of `weights.folder`."""
    return weights.folder(get(reranker), fetch=fetch)


def absent(reranker, fetch=False):
    """Why a reranker cannot be run here, None if it can be.

    Parameters
    ----------
    reranker : str
        One of `NAMES`.
    fetch : bool
        Whether files that are not on this machine may come from the publisher.
    """
    if reranker == WORDS:
        return None
    try:
        folder(reranker, fetch)
    except (FileNotFoundError, ConnectionError):
        entry = get(reranker)
        return f"weights not at hand: {entry.model} at {entry.revision[:12]}"
    return None


def size(reranker, fetch=False):
    """Number of a reranker's parameters, counted in the headers of its files; none for BM25."""
    if reranker == WORDS:
        return 0
    place, count = folder(reranker, fetch), 0
    for name, _ in get(reranker).weights:
        with safe_open(place / name, framework="numpy") as file:
            count += sum(math.prod(file.get_slice(key).get_shape()) for key in file.keys())  # noqa: SIM118
    return count


def score(pairs, reranker="monot5", device=None):
    """How relevant a memory is to a question: the log-probability of the answer "true" beside "false".

    The model reads `Query: {question} Document: {memory} Relevant:`. Of its first answer token only the logits of the
    two answers count: s = log softmax(l_true, l_false)_true. A long memory is cut where it would push "Relevant:" out,
    and a question that alone fills more than half of the length at that half. All in float32: T5 overflows in half
    precision. Each `BLOCK` of different pairs is one file in the cache, found by weights, prompt and texts, so that a
    run that was killed goes on from there; nothing of the model is loaded when the cache serves.

    Parameters
    ----------
    pairs : sequence of (str, str)
        Questions and memories; equal pairs are scored once.
    reranker : str
        One of `REGISTRY`.
    device : str, optional
        As in `devices`; default: `devices.default()`.

    Returns
    -------
    numpy.ndarray
        float32, `[len(pairs)]`, not above 0.

    Raises
    ------
    ValueError
        For an unknown reranker, weights with another checksum, an answer that is not one token, or a score that is not
        finite (the pair is named).
    TypeError
        If a text is no string.
    ConnectionError
        If the files are not at hand and the publisher cannot be reached.

    Warns
    -----
    UserWarning
        As `encoders.encode`.
    """
    entry, pairs = get(reranker), [tuple(encoders._checked(pair)) for pair in pairs]
    unique = list(dict.fromkeys(pairs))
    scores, missing = np.empty((len(unique), 1), np.float32), []
    for start in range(0, len(unique), BLOCK):
        block = slice(start, min(start + BLOCK, len(unique)))
        kept = encoders._read(*_place(entry, unique[block]), block.stop - start)
        if kept is None:
            missing.append(block)
        else:
            scores[block] = kept
    for block in encoders._progress(f"scoring with {entry.name}", missing, len(unique), "pairs"):
        scores[block, 0] = _compute(entry, unique[block], device or devices.default())
        encoders._keep(*_place(entry, unique[block]), scores[block])
    row = {pair: number for number, pair in enumerate(unique)}
    return scores[[row[pair] for pair in pairs], 0]


def _place(entry, pairs):
    """Where the scores of a block are kept: its file, the entry, and the key that its header tells."""
    key = encoders._hash([_identity(entry), pairs])
    return paths.cache() / "scores" / f"{entry.name}-{key[:32]}.safetensors", entry, key


def _compute(entry, pairs, device):
    """Scores of a block, the longest pairs first, so that those of a batch need little padding; `[n]`."""
    tokenizer, model = _model(entry, device)
    answers = [_token(entry, tokenizer, answer) for answer in entry.answers]
    inputs, scores = _inputs(entry, tokenizer, pairs), np.empty(len(pairs), np.float32)
    order = sorted(range(len(pairs)), key=lambda number: -len(inputs[number]))
    for batch in _batches(order, inputs, device):
        scores[batch] = _answered(model, [inputs[number] for number in batch], answers)
    _check_finite(entry, scores, pairs)
    return scores


def _batches(order, inputs, device):
    """Parts of a block, whose first pair is the longest, that fit one pass."""
    count = BATCH if device == "cpu" else max(1, TOKENS // len(inputs[order[0]]))
    return [order[start : start + count] for start in range(0, len(order), count)]


def _check_finite(entry, scores, pairs):
    broken = np.flatnonzero(~np.isfinite(scores))
    if len(broken):
        question, memory = pairs[broken[0]]
        raise ValueError(
            f"reranker {entry.name}: the score of question {question[:60]!r} and memory {memory[:60]!r} is not finite; "
            f"nothing of its block was kept; check these texts and the weights of {entry.model}"
        )


@lru_cache(maxsize=1)
def _model(entry, device):
    place = weights.folder(entry)
    import torch
    from transformers import T5ForConditionalGeneration, T5Tokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # the bar of the weights' loading floods a log that is not a terminal
    tokenizer = T5Tokenizer.from_pretrained(place, local_files_only=True)
    model = T5ForConditionalGeneration.from_pretrained(
        place, local_files_only=True, use_safetensors=True, dtype=torch.float32
    )
    return tokenizer, model.eval().to(devices.ready(device))


def _token(entry, tokenizer, answer):
    """Number of an answer's one token."""
    found = tokenizer(answer, add_special_tokens=False)["input_ids"]
    if len(found) != 1 or found[0] == tokenizer.unk_token_id:
        told = tokenizer.convert_ids_to_tokens(found)
        raise ValueError(
            f"reranker {entry.name}: expected the answer {answer!r} to be one token, found {told}; put the publisher's "
            f"tokenizer of {entry.model} beside its weights"
        )
    return found[0]


def _inputs(entry, tokenizer, pairs):
    """Token numbers of each pair's prompt.

    Words are cut at blanks before they become tokens, so that the parts have the same tokens alone as in one string.
    """
    questions, memories = (
        dict(zip(distinct, _tokens(entry, tokenizer, distinct), strict=True))
        for distinct in (list(dict.fromkeys(texts)) for texts in zip(*pairs, strict=True))
    )
    before, between, behind = _tokens(entry, tokenizer, list(entry.prompt))
    behind = [*behind, tokenizer.eos_token_id]
    made = []
    for question, memory in pairs:
        asked = [*before, *questions[question][: entry.max_length // 2], *between]
        made.append([*asked, *memories[memory][: entry.max_length - len(asked) - len(behind)], *behind])
    return made


def _tokens(entry, tokenizer, texts):
    cut = {"truncation": True, "max_length": entry.max_length}
    return tokenizer(texts, add_special_tokens=False, **cut)["input_ids"]


def _answered(model, inputs, answers):
    """Log-probability of the first of two answers as the first token, `[n]`."""
    import torch

    rows = [torch.tensor(ids) for ids in inputs]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=model.config.pad_token_id)
    lengths = torch.tensor([len(ids) for ids in inputs])
    mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
    start = torch.full((len(inputs), 1), model.config.decoder_start_token_id)
    tokens, mask, start = (part.to(model.device) for part in (tokens, mask, start))
    with torch.inference_mode():
        logits = model(input_ids=tokens, attention_mask=mask, decoder_input_ids=start).logits[:, 0, answers]
    return logits.log_softmax(-1)[:, 0].cpu().numpy()
