"""Frozen encoders: a registry of pinned models, and embeddings that are computed once and cached."""

import os
import sys
import time
from dataclasses import dataclass, replace

import numpy as np
from tqdm import tqdm

from earlib import devices
from earlib.data import cache, folders, kept, model_files, own

PIECE = 256  # texts between two progress messages on a CPU
SHARD = 2048  # texts whose embeddings are cached together while the others are still missing


@dataclass(frozen=True)
class Encoder:
    """A frozen encoder; its embeddings always have unit length.

    The entries are those of `encoders.yaml`; `get` makes further ones from the user's folders.
    """

    name: str
    model: str  # repository at the publisher; its last part names the folder in the search path
    revision: str  # commit there
    dimension: int  # d, the width of an embedding
    pooling: str  # how token states become one vector, as sentence-transformers names it
    max_length: int  # tokens read; a longer text is truncated
    weights: tuple  # each weight file with its SHA-256, "" where none is on record (see `model_files.locate`)
    licence: str
    query_prompt: str = ""  # prepended to every query
    memory_prompt: str = ""  # prepended to every memory
    package: str = ""  # the pip package that contains the files in its folder `model/`, if there is one
    dtype: str = "float32"  # of the weights and, in full precision, of the computation
    bidirectional: bool = False  # a decoder whose tokens also attend to later ones, as it was trained for embeddings
    eos: str = ""  # the token that every text ends with, where the publisher's own tokenizer code appends it
    head: str = ""  # folder of a linear layer behind the pooling, if there is one
    remote_code: bool = False  # the publisher provides model code; see `trusted`
    folder: str = ""  # the user's own, loaded as its own files state; `weights` then lists all of them


REGISTRY = model_files.registry(Encoder, "encoders.yaml")


def get(name):
    """The entry of an encoder by its name, as from `resolve`; a ValueError that suggests similar names if none has it.

    So is a user's folder that changed since it was named.
    """
    if name in REGISTRY:
        return REGISTRY[name]
    if path := own.place(name):
        return _of_folder(name, path)
    if name in own.packaged("encoders"):
        return _of_folder(name, folders.located(str(own.load_packaged("encoders", name)()))[1])
    further = "or a folder or OWNER/NAME@REVISION of a sentence-transformers model (docs/own-data.md)"
    raise own.unknown("encoder", name, [*REGISTRY, *own.packaged("encoders")], further)


def resolve(text):
    """Name of an encoder, for `encode` and `Setting`: itself, or one of a folder or a model, which says no place.

    Parameters
    ----------
    text : str
        A name in `REGISTRY`, an encoder of an installed package, a folder of a sentence-transformers model, relative to
        the current directory, or OWNER/NAME@REVISION: the folder NAME of `paths.model_folders`, or the hub's model.

    Returns
    -------
    str
        `FOLDER@HASH` with the hash of its content, or `OWNER/NAME@COMMIT`.

    Raises
    ------
    ValueError
        For an unknown name, or a folder that cannot be loaded: what it lacks.
    ConnectionError
        If a model of the hub is neither on this machine nor to be downloaded.
    """
    known = text in REGISTRY or text in own.packaged("encoders") or own.place(text)
    name = text if known or not own.looks_like_a_path(text) else own.remember(*folders.located(text))
    get(name)
    return name


def _of_folder(name, folder):
    """The entry of the user's own encoder; the model is loaded once to find its width, which the cache keeps."""
    fields = folders.described(folder)
    digest = cache.content_hash(fields["weights"])
    label = own.label(name) or name
    if own.place(name) and name not in (own.named(label, digest), f"{label}@{folder.name}"):
        raise ValueError(f"{folder}: changed since it was named {name}; run again")
    entry = Encoder(name, name, "", 0, "its own", 0, licence="its own", **fields)
    code = trusted(name)
    key = cache.content_hash([digest, code])
    known = cache.load("widths", key)
    if known is None:
        from earlib.data.embedding import Embedder

        try:
            (vectors,) = Embedder(entry, remote_code=code)([["a text"]], "")
        except Exception as error:  # of several libraries
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            if entry.remote_code and not code:
                reason = f"it brings its own code, which runs only where EARLIB_REMOTE_CODE names {label} ({reason})"
            raise ValueError(f"{folder}: cannot be loaded as an encoder: {reason}") from error
        known = {"width": np.array(vectors.shape[1])}
        cache.save("widths", key, known)
    return replace(entry, dimension=int(known["width"]))


def trusted(encoder):
    """True if the publisher's own code is run for an encoder: only if `EARLIB_REMOTE_CODE` names it.

    Otherwise the library's own model is used, with the attention that the registry states. The code comes from the
    pinned revision alone (`model_files.locate`).
    """
    chosen = os.environ.get("EARLIB_REMOTE_CODE", "").replace(",", " ").split()
    return (own.label(encoder) or encoder) in chosen


def fingerprint(encoder):
    """SHA-256 (hex) of all that determines an encoder's embeddings: weights, pooling, length, prompts, precision."""
    entry = get(encoder)
    return cache.content_hash([*_properties(entry), entry.query_prompt, entry.memory_prompt])


def _properties(entry):
    """All that determines the embeddings except the prompts; defaults are left out."""
    further = {"dtype": entry.dtype} if entry.dtype != "float32" else {}
    further |= {name: getattr(entry, name) for name in ("bidirectional", "eos", "head") if getattr(entry, name)}
    if not all(expected for _, expected in entry.weights):
        further["revision"] = f"{entry.model}@{entry.revision}"
    if trusted(entry.name):
        further["code"] = "the publisher's"
    if devices.precision() != "full":
        further["precision"] = devices.precision()
    return [entry.weights, entry.pooling, entry.max_length, *([further] if further else [])]


def encode(texts, encoder="minilm", kind="memory", device=None):
    """Embeddings of texts, from the package or the cache if the same texts were encoded before.

    A list of texts is one entry of the cache, identified by weights, pooling, prompt and texts; the model is not loaded
    when the cache has it. A run that was killed resumes after the last shard of `SHARD` texts.

    Parameters
    ----------
    texts : sequence of str
        May contain empty texts; equal texts are encoded once and share one vector.
    encoder : str
        As from `resolve`.
    kind : {"memory", "query"}
        Determines the prompt.
    device : str, optional
        As in `devices`; default: `devices.default()`. The precision is `devices.precision()`.

    Returns
    -------
    numpy.ndarray
        float32, `[len(texts), d]`, rows of unit length.

    Raises
    ------
    ValueError
        For an unknown encoder or kind (similar names are suggested), weights with another checksum, or an embedding
        with a NaN or infinite value (encoder and text are named).
    TypeError
        If a text is not a string.
    ConnectionError
        If the encoder's files are not on this machine and the publisher cannot be reached.

    Warns
    -----
    UserWarning
        If a file of the cache is unusable, or the cache cannot be written; the embeddings are right all the same.
    """
    texts = check_texts(texts)
    embeddings = kept.embeddings(identify(encoder, kind), texts)
    if embeddings is not None:
        return embeddings
    key, doing = _key(texts, encoder, kind), f"encoding with {get(encoder).name}"
    found = cache.load("embeddings", key)
    if found is None:
        with cache.lock("embeddings", key, doing):
            found = cache.load("embeddings", key)  # by another process, meanwhile
            if found is None:
                found = {"embeddings": compute(texts, encoder, kind, device, key)}
                cache.save("embeddings", key, found)
            cache.remove_parts("embeddings", key)
    return found["embeddings"]


def encoded(texts, encoder, kind="memory"):
    """True if `encode` needs no model for these texts: the package or the cache has their embeddings."""
    kept_ones = kept.embeddings(identify(encoder, kind), texts)
    return kept_ones is not None or cache.holds("embeddings", _key(texts, encoder, kind))


def _key(texts, encoder, kind):
    return f"{get(encoder).name}-{cache.content_hash([identify(encoder, kind), texts])}"


def identify(encoder, kind):
    """SHA-256 (hex) of all that determines an encoder's embeddings of one kind of text."""
    return cache.content_hash([*_properties(get(encoder)), _prompt(get(encoder), kind)])


def _prompt(entry, kind):
    prompts = {"memory": entry.memory_prompt, "query": entry.query_prompt}
    if kind not in prompts:
        raise own.unknown("kind of text", kind, prompts)
    return prompts[kind]


def sequence(values, name):
    """A caller's sequence as a list; a TypeError for what is not one: a string, a dict, or a set, without an order."""
    if isinstance(values, (str, bytes, dict, set, frozenset)) or not hasattr(values, "__iter__"):
        found = f"{type(values).__name__} {values!r:.60}"
        raise TypeError(f"{name}: expected a sequence, found {found}; put it into a list")
    return list(values)


def check_texts(texts):
    """A caller's texts as a list; a TypeError that names the first that is not a string."""
    texts = sequence(texts, "texts")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{number}]: expected a string, found {type(text).__name__} {str(text)[:60]!r}")
    return texts


def compute(texts, encoder, kind="memory", device=None, key=""):
    """Embeddings as of `encode`, computed; of many texts, the shards are cached as parts of the entry `key`."""
    entry, device = get(encoder), device or devices.default()
    first = {}  # row of each different text; all are written in place, since copies of the whole fill the memory
    row = [first.setdefault(text, number) for number, text in enumerate(texts)]
    unique = sorted(first, key=len, reverse=True)  # longest first: little padding in a batch
    at, again = np.array([first[text] for text in unique], int), [n for n, of in enumerate(row) if of != n]
    embeddings, pieces = np.empty((len(texts), entry.dimension), np.float32), []
    size, sharded = PIECE if device == "cpu" else SHARD, key and len(unique) > SHARD
    for start in range(0, len(unique), SHARD):
        stop = min(start + SHARD, len(unique))
        shard = cache.load("embeddings", f"{key}/{start}") if sharded else None
        if shard is None:
            pieces += [slice(begin, min(begin + size, stop)) for begin in range(start, stop, size)]
        else:
            embeddings[at[start:stop]] = shard["embeddings"]
    if pieces:
        from earlib.data.embedding import embedder  # imports torch, which takes seconds

        model = embedder(entry, device, devices.precision(), trusted(encoder))
        vectors = model((unique[piece] for piece in pieces), _prompt(entry, kind))
        for piece in progress(f"encoding with {entry.name}", pieces, len(unique)):
            embeddings[at[piece]] = found = next(vectors)
            if not np.isfinite(found).all():
                text = unique[piece][np.isfinite(found).all(axis=1).argmin()]
                told = f"encoder {entry.name}: the embedding of {text!r:.60} has a NaN or infinite value"
                raise ValueError(f"{told}; check this text and the weights of {entry.model}")
            if sharded and (piece.stop % SHARD == 0 or piece.stop == len(unique)):
                start = (piece.stop - 1) // SHARD * SHARD
                cache.save("embeddings", f"{key}/{start}", {"embeddings": embeddings[at[start : piece.stop]]})
    embeddings[again] = embeddings[[row[number] for number in again]]
    return embeddings


def progress(doing, pieces, count, unit="texts"):
    """Yield slices of `count` units and report progress: a bar on a terminal, otherwise a line for each tenth."""
    began, done = time.monotonic(), count - sum(piece.stop - piece.start for piece in pieces)
    with tqdm(total=count, initial=done, desc=doing, unit=f" {unit}", disable=not sys.stderr.isatty()) as bar:
        if bar.disable and done:
            print(f"{doing}: {done:,} of {count:,} {unit} were kept by an earlier run", file=sys.stderr)
        for piece in pieces:
            yield piece
            before, done = done, done + piece.stop - piece.start
            bar.update(done - before)
            if bar.disable and 10 * done // count > 10 * before // count:
                seconds = time.monotonic() - began
                print(f"{doing}: {done:,} of {count:,} {unit}, {seconds:.0f} s", file=sys.stderr, flush=True)
