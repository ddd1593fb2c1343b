"""Encoders of each architecture in the registry, on tiny random checkpoints that lie on disk as the publishers' do."""

import dataclasses
import hashlib
import json
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from made_encoders import WORDS, bert_files, qwen_files
from test_encoders import files_of
from torch.nn.functional import normalize

from earlib import paths
from earlib.data import embedding, encoders

LONG = " ".join(WORDS[at % 7] for at in range(2500))  # more than 10,000 characters
TEXTS = ["cat", "red cat runs", "", "dog sleeps " * 9, "blue", LONG, "green dog"]
KINDS = ("contriever", "mpnet", "stella", "gte")


def snapshot(hub, entry, files):
    """Lay files down as the hub's cache does: large ones under the name of their checksum, and links to them."""
    place = hub / f"models--{entry.model.replace('/', '--')}"
    for file in (file for file in files.rglob("*") if file.is_file()):
        content = file.read_bytes()
        kind = hashlib.sha256 if file.suffix in (".safetensors", ".bin") else hashlib.sha1
        blob = place / "blobs" / kind(content).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link = place / "snapshots" / entry.revision / file.relative_to(files)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    return place / "snapshots" / entry.revision


@pytest.fixture
def install(hub, tmp_path, monkeypatch):
    """Puts a tiny checkpoint of a kind into the registry and where its files belong."""

    embedding.embedder.cache_clear()

    def put(kind, **options):
        real, files = encoders.REGISTRY[kind], tmp_path / f"{kind}-files"
        files.mkdir()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            (bert_files if kind in ("contriever", "mpnet") else qwen_files)(files, kind, **options)
        tiny = {"dimension": 24 if kind == "stella" else 16, "max_length": 64, "dtype": "float32"}
        if kind == "gte":
            tiny["weights"] = (("model.safetensors", ""),)
        if kind == "mpnet":  # its checksum is on record, so that any folder may hold it
            tiny["weights"] = (("model.safetensors", digest(files / "model.safetensors")),)
            (tmp_path / "folder").mkdir()
            files = files.rename(tmp_path / "folder" / real.model.split("/")[-1])
        entry = dataclasses.replace(real, **tiny)
        monkeypatch.setitem(encoders.REGISTRY, kind, entry)
        place = files if kind == "mpnet" else snapshot(hub, entry, files)
        return SimpleNamespace(entry=entry, place=place, files=files)

    return put


def digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def direct(at, text):
    """The embedding of one text, without padding, computed with transformers alone."""
    entry, place = at.entry, at.place
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    room = entry.max_length - bool(entry.eos)
    ids = tokenizer(text, truncation=True, max_length=room)["input_ids"]
    ids = torch.tensor([ids + [tokenizer.convert_tokens_to_ids(entry.eos)] * bool(entry.eos)])
    model = transformers.AutoModel.from_pretrained(place, dtype=torch.float32).eval()
    length = ids.shape[1]
    mask = torch.ones_like(ids)
    if entry.bidirectional:  # every token sees every other: nothing is added to any product
        mask = torch.zeros(1, 1, length, length)
    with torch.no_grad():
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state[0]
    vector = states[-1] if entry.pooling == "lasttoken" else states.mean(0)
    if entry.head:
        from safetensors.torch import load_file

        head = load_file(place / entry.head / "model.safetensors")
        vector = head["linear.weight"] @ vector + head["linear.bias"]
    return normalize(vector, dim=0).numpy()


@pytest.mark.parametrize("kind, side", [*((kind, "") for kind in KINDS), ("stella", "right"), ("gte", "right")])
def test_each_text_of_a_batch_gets_what_transformers_gives_it_alone(install, kind, side):
    """Whatever the side of the padding, a query with its prompt and a memory without one."""
    at = install(kind, **({"side": side} if side else {}))
    if side:
        assert embedding.embedder(at.entry, "cpu", "full", False).model.tokenizer.padding_side == side
    together = encoders.encode(TEXTS, kind)
    assert together.shape == (len(TEXTS), at.entry.dimension) and np.isfinite(together).all()
    for text, row in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(row, direct(at, text), atol=2e-5)
        np.testing.assert_allclose(row, encoders.encode([text], kind)[0], atol=2e-5)
    query = encoders.encode(["red cat"], kind, "query")[0]
    np.testing.assert_allclose(query, direct(at, at.entry.query_prompt + "red cat"), atol=2e-5)
    asked = {"contriever": "", "mpnet": "", "stella": "answer the query.\nQuery: ", "gte": "answer the query\nQuery: "}
    assert at.entry.query_prompt.endswith(asked[kind]) and not at.entry.memory_prompt


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_close_to_full(install, monkeypatch, kind):
    at = install(kind)
    exact, seen = encoders.encode(TEXTS, kind), {encoders.fingerprint(kind)}
    monkeypatch.setenv("EARLIB_PRECISION", "mixed")
    mixed = encoders.encode(TEXTS, kind)
    seen.add(encoders.fingerprint(kind))
    monkeypatch.delenv("EARLIB_PRECISION")
    monkeypatch.setitem(encoders.REGISTRY, kind, dataclasses.replace(at.entry, dtype="bfloat16", head=""))
    if kind != "stella":  # its head stays in full precision
        half = encoders.encode(TEXTS, kind)
        assert half.dtype == np.float32 and ((half * exact).sum(1) > 0.99).all() and (half != exact).any()
    seen.add(encoders.fingerprint(kind))
    assert ((mixed * exact).sum(1) > 0.99).all() and (mixed != exact).any() and len(seen) == 3
    np.testing.assert_allclose(np.linalg.norm(mixed, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_number_is_found_and_named(install, kind):
    at = install(kind)
    model = embedding.embedder(at.entry, "cpu", "full", False).model
    with torch.no_grad():
        only = set(model.tokenizer("red nan cat")["input_ids"]) - set(model.tokenizer("dog red cat blue")["input_ids"])
        model[0].model.get_input_embeddings().weight[list(only)] = float("nan")
    with pytest.raises(ValueError, match=f"encoder {kind}: the embedding of 'red nan cat' has a NaN"):
        encoders.encode(["dog", "red nan cat", "blue " * 40], kind)
    assert not list((paths.cache() / "embeddings").glob("*"))


@pytest.mark.parametrize("kind", ["contriever", "stella", "gte"])
def test_without_a_checksum_on_record_only_the_pinned_snapshot_is_taken(install, hub, tmp_path, kind):
    at = install(kind)
    assert files_of(kind) == at.place
    copy = tmp_path / "folder" / at.entry.model.split("/")[-1]
    copy.parent.mkdir()
    at.files.rename(copy)  # the same files in the search path, which nothing vouches for
    for link in [*at.place.rglob("*")][::-1]:
        link.rmdir() if link.is_dir() and not link.is_symlink() else link.unlink()
    with pytest.raises(ConnectionError, match=rf"{kind}: .*hf download {at.entry.model} --revision [0-9a-f]{{40}}"):
        files_of(kind)


def test_a_download_that_was_damaged_is_named(install):
    at = install("gte")
    blob = (at.place / "model.safetensors").resolve()
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    with pytest.raises(
        ValueError, match=f"model.safetensors: wrong checksum: expected SHA-256 {blob.name} .gte: .*found"
    ):
        files_of("gte")


def with_code(at, marker):
    """Give a checkpoint model code of its publisher, which leaves a mark and doubles the states of its first token."""
    code = f"""
        import pathlib
        from transformers import Qwen2Model

        pathlib.Path({str(marker)!r}).touch()

        class OwnModel(Qwen2Model):
            def forward(self, *arguments, **options):
                found = super().forward(*arguments, **options)
                found.last_hidden_state[..., 0] += 100
                return found
    """
    (at.place / "own_code.py").write_text(textwrap.dedent(code))
    config = json.loads((at.place / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "own_code.OwnModel"}
    (at.place / "config.json").unlink()
    (at.place / "config.json").write_text(json.dumps(config))


def test_code_of_the_publisher_runs_only_where_it_was_asked_for(install, tmp_path, monkeypatch):
    at, marker = install("gte"), tmp_path / "ran"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    with_code(at, marker)
    plain, seen = encoders.encode(["red cat"], "gte"), encoders.fingerprint("gte")
    assert not marker.exists() and plain[0, 0] < 0.99
    monkeypatch.setenv("EARLIB_REMOTE_CODE", "stella")  # another's
    assert (encoders.encode(["red cat"], "gte") == plain).all() and not marker.exists()
    monkeypatch.setenv("EARLIB_REMOTE_CODE", "stella, gte")
    assert encoders.encode(["red cat"], "gte")[0, 0] > 0.99 and marker.exists() and encoders.fingerprint("gte") != seen


def test_code_is_taken_from_the_pinned_revision_alone(install, tmp_path, monkeypatch):
    at, marker = install("gte"), tmp_path / "ran"
    with_code(at, marker)
    known = dataclasses.replace(at.entry, weights=(("model.safetensors", digest(at.place / "model.safetensors")),))
    monkeypatch.setitem(encoders.REGISTRY, "gte", known)
    (tmp_path / "folder").mkdir()
    at.place.rename(tmp_path / "folder" / at.entry.model.split("/")[-1])
    assert files_of("gte").parent == tmp_path / "folder"  # its weights are right
    monkeypatch.setenv("EARLIB_REMOTE_CODE", "gte")
    with pytest.raises(ConnectionError, match="hf download .* --revision"):
        encoders.encode(["cat"], "gte")
    assert not marker.exists()


@pytest.mark.parametrize("most", [0, 1, 3, 10])
def test_a_batch_that_does_not_fit_is_halved(install, monkeypatch, most):
    """As on a GPU: batches by tokens; the memory holds `most` texts."""
    at = install("contriever")
    texts = [f"cat {'dog ' * (number % 11)}{WORDS[number % 7]}" for number in range(40)]
    expected = encoders.encode(texts, "contriever")
    model = embedding.Embedder(at.entry)
    asked, fitted, forward = [], [], model._forward

    def small(tokens):
        asked.append(len(tokens))
        if len(tokens) > most:
            raise torch.OutOfMemoryError("out of memory")
        fitted.append(len(tokens))
        return forward(tokens)

    monkeypatch.setattr(model, "_forward", small)
    monkeypatch.setattr(model, "_count", lambda longest: max(1, model.tokens // longest))
    if not most:
        with pytest.raises(ValueError, match="contriever: one text of 14 tokens does not fit .*cpu"):
            next(model([texts], ""))
        return
    (found,) = model([texts], "")
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert asked[0] == 40 and sum(fitted) == 40 and model.tokens < embedding.TOKENS


def test_a_run_that_was_stopped_goes_on_from_its_finished_shards(install, tmp_path, monkeypatch, capsys):
    install("mpnet")
    texts = [f"{WORDS[number % 7]} {'cat ' * (number % 13)}{number}" for number in range(50)]
    monkeypatch.setattr(encoders, "SHARD", 16)
    monkeypatch.setattr(encoders, "PIECE", 8)
    embedded, embed = [], embedding.Embedder._embed

    def counted(self, tokens):
        if len(embedded) == 5:
            raise KeyboardInterrupt
        embedded.append(len(tokens))
        return embed(self, tokens)

    monkeypatch.setattr(embedding.Embedder, "_embed", counted)
    with pytest.raises(KeyboardInterrupt):
        encoders.encode(texts, "mpnet")
    (folder,) = (path for path in (tmp_path / "cache" / "embeddings").iterdir() if path.is_dir())
    assert sorted(path.name for path in folder.iterdir()) == ["0.safetensors", "16.safetensors"]
    (folder / "16.safetensors").write_bytes(b"damaged")
    embedded[:] = [0] * 6
    with pytest.warns(UserWarning, match="16.safetensors: unusable"):
        found = encoders.encode(texts, "mpnet")
    assert sum(embedded) == 50 - 16 and not folder.exists()
    assert "16 of 50 texts were kept by an earlier run" in capsys.readouterr().err
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "another"))
    np.testing.assert_allclose(found, encoders.encode(texts, "mpnet"), atol=2e-5)


def test_precisions_are_checked(monkeypatch):
    monkeypatch.setenv("EARLIB_PRECISION", "half")
    with pytest.raises(ValueError, match="EARLIB_PRECISION: expected one of full, mixed, got 'half'"):
        encoders.encode(["cat"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_gives_what_the_processor_gives(install, kind):
    at = install(kind)
    here = encoders.encode(TEXTS, kind, device="cpu")
    there = np.concatenate(list(embedding.Embedder(at.entry, "cuda")([TEXTS[:3], TEXTS[3:]], "")))
    np.testing.assert_allclose(there, here, atol=1e-4)
