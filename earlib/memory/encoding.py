"""Unit embeddings of memories and queries, by an encoder of the registry or a caller's function."""

import inspect
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from earlib import devices
from earlib.data import embedding, encoders
from earlib.memory.folder import State
from earlib.memory.snapshot import Snapshot
from earlib.memory.validation import as_matrix

QUESTIONS = 1000  # embeddings kept
PROBE = "What an encoder makes of this sentence tells it from others."
SAME = 0.999  # cosine of two embeddings of the probe above which one encoder made both, whatever it rounds


def registered(name: str) -> encoders.Encoder:
    """Return the encoder of a name, also the publisher's of one in the registry, unless a folder has that name."""
    models = {key: one.name for one in encoders.REGISTRY.values() for key in (one.model, one.model.rpartition("/")[2])}
    return encoders.get(encoders.resolve(name if Path(name).exists() else models.get(name, name)))


def as_function(encoder: Any) -> Callable[..., Any]:
    """Return a caller's encoder as `(texts, kind) -> embeddings`."""
    if hasattr(encoder, "embed_documents") and hasattr(encoder, "embed_query"):  # LangChain's `Embeddings`

        def embed(texts, kind):
            return encoder.embed_documents(texts) if kind == "memory" else [encoder.embed_query(one) for one in texts]

        return embed
    if not callable(encoder):
        raise TypeError(f"encoder: expected a name, a callable or embeddings, found {type(encoder).__name__}")
    try:
        inspect.signature(encoder).bind("texts", "kind")
    except TypeError:
        return lambda texts, kind: encoder(texts)
    return encoder


class MemoryEncoder:
    """Encodes texts, one thread at a time, since tokenizers bear no more."""

    def __init__(self, given: Any):
        self.entry = registered(given) if isinstance(given, str) else None
        self.label = getattr(self.entry or given, "name", None) or getattr(given, "__name__", type(given).__name__)
        self._embed = self._by_model if self.entry else as_function(given)
        self._lock, self.width = threading.Lock(), None
        self._probe: np.ndarray | None = None
        self.query = lru_cache(QUESTIONS)(self._query)  # most feedback is about what was just retrieved

    def __call__(self, texts: list[str], kind: str) -> np.ndarray:
        """Return unit embeddings, `[n, d]` float32."""
        with self._lock:
            vectors = as_matrix(self._embed(texts, kind), "encoder", len(texts), self.width, np.float32)
        with np.errstate(over="ignore"):
            length = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not (np.isfinite(length).all() and (length > 0).all()):  # a square that overflows is not finite either
            raise ValueError("encoder: expected embeddings that are finite and not 0; check the texts")
        self.width = vectors.shape[1]  # of all that it makes from here on
        return vectors / length

    def _by_model(self, texts, kind):
        entry = self.entry
        model = embedding.embedder(entry, devices.default(), devices.precision(), encoders.trusted(entry.name))
        pieces = [texts[at : at + encoders.PIECE] for at in range(0, len(texts), encoders.PIECE)]
        return np.concatenate(list(model(pieces, entry.memory_prompt if kind == "memory" else entry.query_prompt)))

    def memories(self, texts: list[str], now: Snapshot) -> np.ndarray:
        """Return embeddings of distinct texts, `[n, d]` float16; those that are stored already are the stored ones."""
        rows = now.rows_of_texts(texts)
        new = np.flatnonzero(rows == 0)
        if len(new) == len(texts):
            return self(texts, "memory").astype(np.float16)
        vectors = now.bank[rows].numpy()
        if len(new):
            vectors[new] = self([texts[at] for at in new], "memory")
        return vectors

    def _query(self, query: str) -> np.ndarray:
        return self([query], "query")[0]

    def identity(self) -> tuple[dict, dict[str, torch.Tensor]]:
        """Return what a folder keeps to recognise the encoder: fingerprint and name, or an embedding of the probe."""
        if self.entry:
            return {"encoder": encoders.fingerprint(self.label), "encoder_name": self.label}, {}
        if self._probe is None:
            self._probe = self([PROBE], "memory")[0]
        return {"encoder": None, "encoder_name": None}, {"probe": torch.from_numpy(self._probe)}

    def check_identity(self, kept: State, probe: Any, where: object) -> None:
        """Refuse an encoder that did not encode the memories of a folder."""
        if self.entry:
            if encoders.fingerprint(self.label) != kept.encoder:
                told = "one of other weights" if self.label == kept.encoder_name else f"{self.label}, another one"
                raise ValueError(f"encoder: expected {kept.encoder_name} ({where}), got {told}")
            return
        mine, theirs = self([PROBE], "memory")[0], probe.numpy()
        if len(mine) != len(theirs) or mine @ theirs < SAME:
            raise ValueError(f"encoder: not the one of {where}, which makes another embedding of a fixed sentence")
        self._probe = theirs
