"""Writes the embeddings that come with the package: run it after the toy benchmark or the diagnostic texts changed."""

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


if __name__ == "__main__":
    vectors = encoders.compute(texts(), "minilm", device="cpu")
    paths.write_atomically(kept.FILE, kept.packed(encoders.identify("minilm", "memory"), texts(), vectors))
