"""Embeddings that come with the package: those of the toy benchmark and of the paper's diagnostic texts, with MiniLM.

An encoder rounds differently on another processor, by some 1e-8. With kept embeddings a run on the toy benchmark starts
from the same numbers everywhere. `python -m earlib.data.kept` writes the file anew after either set of texts has changed.
"""

import hashlib
from functools import cache
from importlib import resources

import numpy as np
from safetensors.numpy import load, save

FILE = "toy_minilm.safetensors"


def embeddings(identity, texts):
    """Kept embeddings of some texts, float32 `[n, d]`; None unless all of them are kept for this very encoder.

    Parameters
    ----------
    identity : str
        Of the encoder, its settings and its prompt.
    texts : list of str
    """
    row, vectors = _table()
    rows = [row.get(_name(identity, text)) for text in texts]
    if None in rows or not rows:
        return None
    found = vectors[rows].astype(np.float64)
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def _name(identity, text):
    return hashlib.sha256(f"{identity}\n{text}".encode(errors="surrogatepass")).digest()[:16]


@cache
def _table():
    try:
        held = load(resources.files("earlib.data").joinpath(FILE).read_bytes())
    except FileNotFoundError:
        return {}, None
    return {name.tobytes(): row for row, name in enumerate(held["names"])}, held["vectors"]


def texts():
    """All texts that are kept, each once."""
    from earlib.data import benchmarks
    from earlib.experiments import geometry

    diagnostic = geometry.load_diagnostic()
    found = [*diagnostic.queries, *diagnostic.memories]
    for captions in (True, False):
        for dates in (False, True):
            made = benchmarks.load("toy", captions=captions, dates=dates)
            found += [one.text for one in (*made.memories, *made.queries)]
    return list(dict.fromkeys(found))


def packed(identity, texts, vectors):
    """The file's content: each embedding in whole steps of 7e-6, its length left out, and a name for its text."""
    scale = np.abs(vectors).max() / 32767
    names = np.stack([np.frombuffer(_name(identity, text), np.uint8) for text in texts])
    return save({"names": names, "vectors": np.round(vectors / scale).astype(np.int16)})


if __name__ == "__main__":
    from earlib.data import encoders
    from earlib import paths

    entry, of = encoders.get("minilm"), texts()
    made = encoders._compute(entry, of, "", "cpu", paths.build() / "kept", "")
    identity = encoders._hash([*encoders._identity(entry), ""])
    paths.write_atomically(paths.ROOT / "earlib" / "data" / FILE, packed(identity, of, made))
