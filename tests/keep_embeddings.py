"""Writes the embeddings that come with the package: run it after the toy benchmark or the diagnostic texts changed."""

import numpy as np
from safetensors.numpy import save

from earlib import paths
from earlib.data import benchmarks, encoders, kept
from earlib.experiments import geometry


def texts():
    """All texts whose embeddings are kept, each once."""
    diagnostic = geometry.load_diagnostic()
    found = [*diagnostic.queries, *diagnostic.memories]
    for captions in (True, False):
        for dates in (False, True):
            made = benchmarks.load("toy", captions=captions, dates=dates)
            found += [one.text for one in (*made.memories, *made.queries)]
    return list(dict.fromkeys(found))


def packed(identity, texts, vectors):
    """Content of the file: a name for each text, and its embedding in whole steps of 7e-6, without its length."""
    scale = np.abs(vectors).max() / 32767
    names = np.stack([np.frombuffer(kept.name_of(identity, text), np.uint8) for text in texts])
    return save({"names": names, "vectors": np.round(vectors / scale).astype(np.int16)})


if __name__ == "__main__":
    vectors = encoders.compute(texts(), "minilm", device="cpu")
    paths.write_atomically(kept.FILE, packed(encoders.identify("minilm", "memory"), texts(), vectors))
