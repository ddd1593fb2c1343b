"""Memories as the tests make, teach and ask them, and edits of their folders."""

import contextlib
import json
import sqlite3
import zlib

import numpy as np
import torch

from earlib.memory import PRESETS, EARMemory, folder

WIDTH = 24
ADJECTIVES = ["red", "green", "old", "quiet", "wooden", "café", "日本", "heavy"]
NOUNS = ["cello", "garden", "letter", "river", "nut", "garage", "window", "song"]


def text(number):
    return f"{ADJECTIVES[number % 8]} {NOUNS[number // 8 % 8]} number{number % 5}"


def encoder(texts, kind):
    """Embeddings that depend on the words: a sum of a vector for each, and some noise of its own for the whole text."""

    def vector(content):
        return np.random.default_rng(zlib.crc32(content.encode())).normal(size=WIDTH)

    made = [sum((vector(word) for word in one.split()), 0.3 * vector(one)) for one in texts]
    return np.array(made, np.float32).reshape(len(texts), WIDTH)


def preset(name="adapter", **changes):
    config = PRESETS[name].config.model_copy(update=changes)
    return PRESETS[name]._replace(config=config)


def made(count=150, name="adapter", dtype=torch.float32, kind=EARMemory, **options):
    held = kind(encoder, name, dtype=dtype, **options)
    held.add([text(number) for number in range(count)])
    return held


def told(held, count=12, start=0):
    """Some feedback about texts that the memory holds; every third memory that is returned was useful."""
    for number in range(start, start + count):
        shown = held.retrieve(text(number) + "?")
        held.feedback(text(number) + "?", shown, [number % 3 == at % 3 for at in range(len(shown))])


def answers(held, count=20):
    return [[one[:3] for one in held.retrieve(text(number) + "!", 7)] for number in range(count)]


def first_stage(held, query, depth=50):
    """What a memory holds, a query's embedding, its candidates, and their scores beside the cosine."""
    now, vector = held._state.now, held._encode([query], "query")[0]
    return now, vector, *now.candidates(query, vector, depth, held.by_words, now.alive)


def labelled(held, number=0):
    """Sums of the citations of an experience, by memory."""
    index, cited = held._state.learner.index[number].tolist(), held._state.learner.buffer.cited[0, number].tolist()
    return {row - 1: citation for row, citation in zip(index, cited, strict=True) if row}


def learned(held):
    """All that feedback changes, with every bit of it."""
    state = held._state.learner.state()
    return held._state.learner.known, {name: (one.shape, one.numpy().tobytes()) for name, one in state.items()}


def reopened(held, place, *given):
    """Close a memory, and load what its folder holds: bit for bit the same."""
    before = held.list(), held.stats(), answers(held), learned(held)
    held.close()
    again = EARMemory.load(place, *(given or [encoder]))
    assert (again.list(), again.stats(), answers(again), learned(again)) == before
    return again


def edit_snapshot(path, *statements, **changes):
    """Change the database of a folder by SQL, and fields of its state, None to take one away; its checksums fit."""
    with contextlib.closing(sqlite3.connect(path / "memory.sqlite")) as database:
        plain = json.loads(database.execute("SELECT plain FROM state").fetchone()[0]) | changes
        plain = json.dumps({name: value for name, value in plain.items() if value is not None or name not in changes})
        for statement in statements:
            database.execute(*statement)
        memories, tensors = (database.execute(query).fetchall() for query in (folder.MEMORIES, folder.TENSORS))
        version = database.execute("PRAGMA user_version").fetchone()[0]
        stored = folder.snapshot_checksum(plain, memories, tensors, version)
        database.execute("UPDATE state SET plain = ?, sha256 = ?", (plain, stored))
        for number, *values in database.execute("SELECT number, kind, plain, arrays FROM changes").fetchall():
            database.execute("UPDATE changes SET sha256 = ? WHERE number = ?", (folder.checksum(*values), number))
        database.commit()


def kept(folder):
    """Kinds of the changes that a folder holds behind its snapshot."""
    with contextlib.closing(sqlite3.connect(folder / "memory.sqlite")) as database:
        return [kind for (kind,) in database.execute("SELECT kind FROM changes ORDER BY number")]
