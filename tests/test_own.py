"""Datasets and encoders of one's own: a file of lines, a folder, a model of the hub, a package; and what is wrong."""

import json
import re
import shutil
from pathlib import Path

import nbformat
import numpy as np
import pytest
from made_notebooks import PARAMETERS, outputs, write_notebook
from test_encoders import checkpoint, publisher  # noqa: F401

import earlib
from earlib import paper
from earlib.core.config import Config
from earlib.data import benchmarks, cache, embedding, encoders, folders, own
from earlib.data.benchmarks import Memory, Query
from earlib.experiments import comparisons
from earlib.experiments.settings import Setting
from earlib.harness import profiles, runner

EXAMPLE = Path(earlib.__file__).parents[1] / "examples" / "chats.jsonl"
TEXTS = ["red cat runs", "", "dog sleeps", "blue " * 300]
KEYS = {  # the first digits of what identifies each encoder's embeddings of memories and of queries in a cache
    "minilm": ("2395727a373e2308", "2395727a373e2308"),
    "mpnet": ("84d9239aaf1e1938", "84d9239aaf1e1938"),
    "contriever": ("de26a5063c497343", "de26a5063c497343"),
    "stella": ("d7910143dd298ec8", "37bbbd19156f43ed"),
    "gte": ("324d75cd9b3db907", "d1cdffc34e950a45"),
}


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch, tmp_path):
    monkeypatch.setenv(own.VARIABLE, "")
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "cache"))


ASKED = {"question": "Who?", "evidence": [1]}


def write(path, *lines):
    texts = [line if isinstance(line, (bytes, str)) else json.dumps(line) for line in lines]
    path.write_bytes(b"\n".join(text if isinstance(text, bytes) else text.encode() for text in texts))
    return path


def chat(number=1, **fields):
    return {"memory": f"Sentence {number}.", "id": number, **fields}


# -- a file of lines ---------------------------------------------------------------------------------------------------


def test_lines_become_memories_and_questions(tmp_path):
    asked = {"question": "Who?", "answer": 3, "evidence": ["a"], "conversation": "c", "category": "temporal"}
    said = {"memory": "I did.", "id": "a", "conversation": "c", "session": 2, "date": "May", "speaker": "Ada"}
    fact = {"memory": "Ada did.", "id": 1, "conversation": "c", "sources": ["a"]}
    path = write(tmp_path / "my_chats.jsonl", b"\xef\xbb\xbf" + json.dumps(asked).encode(), "", said, fact, "\r")
    found = benchmarks.load(benchmarks.resolve(str(path)), dates=True)
    first = Memory("c/a", "c", "dialogue", "2", "May", "[May] Ada: I did.")
    assert found.memories == (first, Memory("c/1", "c", "observation", "", "", "Ada did.", ("c/a",)))
    assert found.queries == (Query("c/Q1", "c", "Who?", "3", "temporal", ("c/a",)),) and not found.audit
    assert found.name == paper.label(benchmarks.resolve(str(path))) == "my_chats.jsonl"


def test_the_name_follows_the_content_and_says_no_place(tmp_path, monkeypatch):
    places = [tmp_path / place / "chats.jsonl" for place in ("one", "two", "three")]
    for path in places:
        path.parent.mkdir()
        shutil.copy(EXAMPLE, path)
    write(places[2], chat(), {"question": "Who?", "evidence": [1]})
    monkeypatch.chdir(tmp_path)
    names = [benchmarks.resolve(path) for path in ("one/chats.jsonl", str(places[1]), "three/chats.jsonl")]
    assert names[0] == names[1] != names[2] and names[0].startswith("chats.jsonl@")
    assert benchmarks.resolve(names[0]) == names[0]  # as a kernel is given it
    assert benchmarks.load(names[0]) == benchmarks.load(benchmarks.resolve(str(EXAMPLE)))
    write(places[2], chat(), {"question": "Who else?", "evidence": [1]})
    with pytest.raises(ValueError, match="three/chats.jsonl: changed since it was named chats.jsonl@"):
        benchmarks.load(names[2])


def test_a_link_is_known_by_its_own_name(tmp_path, folder, monkeypatch):
    blob = shutil.copy(EXAMPLE, tmp_path / "0123abcd")
    for link in ("link.jsonl", "ALIAS.JSONL"):
        (tmp_path / link).symlink_to(blob)
        name = benchmarks.resolve(str(tmp_path / link))
        assert name.startswith(f"{link}@") and benchmarks.load(name).name == link
    (tmp_path / "mine").symlink_to(folder)
    monkeypatch.chdir(tmp_path / "mine")
    name = encoders.resolve(str(tmp_path / "mine"))
    assert name.startswith("mine@") and encoders.get(name).dimension == 24
    assert encoders.resolve("1_Pooling/..").startswith("my_encoder@")


def test_oddities_that_break_nothing_are_listed(tmp_path):
    asked = {"question": "Who?", "evidence": []}
    found = benchmarks.load(benchmarks.resolve(str(write(tmp_path / "a.jsonl", chat(), asked, asked, ASKED))))
    told = "line 2 no evidence, line 3 repeated question, line 3 no evidence, line 4 repeated question"
    assert ", ".join(f"{one.place} {one.kind}" for one in found.audit) == told


@pytest.mark.parametrize(
    "lines, expected",
    [
        ([chat(), {"memory": "x"}], r"line 2.memory.id: expected this field, found none"),
        ([chat(), chat(), ASKED], r"line 2: id: expected to occur once in 'all', found '1' again"),
        ([chat(session=None)], r"line 1.memory.session: expected a valid string, found None"),
        ([chat(speeker="Ada")], r"line 1.memory: unknown parameter 'speeker', did you mean 'speaker'\?"),
        ([chat(memory=" ")], r"line 1.memory.memory: expected a text that is not empty, found ' '"),
        ([chat(), ASKED | {"evidence": [1, 7]}], r"line 2: evidence: expected the id of a memory .* 'all'.*found '7'"),
        ([chat(), ASKED | {"evidence": "1"}], r"line 2.question.evidence: expected a valid array, found '1'"),
        ([chat(), ASKED | {"conversation": "alle"}], r"line 2: conversation: expected one with memories, did"),
        ([chat(), chat(2, sources=[2]), ASKED], r"line 2: sources: expected the id .* that has no sources itself"),
        ([chat(), ASKED | {"answer": True}], r"line 2.question.answer.*: expected a valid string, found True"),
        ([chat(), "{"], r"line 2: Invalid JSON: EOF .*found '\{'"),
        ([chat(), "[1]"], r"line 2: expected either a memory or a question, found \[1\]"),
        ([chat() | ASKED], r"line 1: expected either a memory or a question"),
        ([chat(), b'{"memory": "\xe4"}'], r"expected UTF-8, but .* byte 0xe4 in position .*; save the file as UTF-8"),
        ([chat(), '{"memory": "a", "id": 2, "\\udfff": 1}'], r"line 2: Invalid JSON: lone leading surrogate"),
        ([chat(), '{"memory": ' + 10**5 * "[" + 10**5 * "]" + "}"], r"line 2: Invalid JSON: recursion limit"),
        ([chat(), '{"question": "Who?", "answer": NaN}'], r"line 2.question.answer.*: expected .*found nan"),
        ([chat(), ASKED | {"category": "adversarial"}], r"expected the evidence of .* that is not adversarial"),
        ([chat(), {"question": "Who?"}], r"expected the evidence of at least one question .*, found none, so nothing"),
        ([chat()], r"expected at least one question, found none"),
        ([""], r"expected at least one memory, found none"),
    ],
)
def test_a_wrong_line_is_refused_before_anything_runs(root, tmp_path, capsys, lines, expected):
    write_notebook(root, "plain", "1", parameters=PARAMETERS + '\ndataset: str = "toy"')
    path = write(tmp_path / "chats.jsonl", *lines)
    assert runner.main(["plain", "--profile", "smoke", "-p", "dataset", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: command line: dataset: {path}: ") and "\n" not in told.strip()
    assert re.search(expected, told), told
    assert not (root / "build").exists()


@pytest.mark.parametrize(
    "name, expected",
    [
        ("chats.csv", "chats.csv: expected a file NAME.jsonl with a JSON object a line, found .csv"),
        ("no~one/chats.jsonl", "No such file or directory"),
        ("nowhere.jsonl", "No such file or directory"),
        ("folder.jsonl", "Is a directory"),
        ("tyo", "unknown dataset 'tyo', did you mean 'toy'?; known: locomo, longmemeval, toy, or a file NAME.jsonl"),
    ],
)
def test_what_is_no_dataset(tmp_path, monkeypatch, name, expected):
    monkeypatch.chdir(tmp_path)
    Path("folder.jsonl").mkdir()
    with pytest.raises((ValueError, OSError)) as error:
        benchmarks.resolve(name)
    assert expected in str(error.value)


def test_a_notebook_runs_on_the_example_and_names_no_place(tmp_path, monkeypatch):
    for variable in ("RESULTS", "BUILD"):
        monkeypatch.setenv(f"EARLIB_{variable}", str(tmp_path / variable.lower()))
    monkeypatch.chdir(EXAMPLE.parent)
    own_parameters = ["-p", "dataset", "chats.jsonl", "-p", "seeds", "1"]
    assert runner.main(["tab03_ablation", "--profile", "smoke", *own_parameters]) == 0
    name = benchmarks.resolve("chats.jsonl")
    (record,) = (tmp_path / "results" / "smoke").glob("tab03_ablation--dataset-chats.jsonl-*.json")
    told, executed = record.read_text(), record.with_suffix(".ipynb").read_text()
    content = json.loads(told)
    assert content["parameters"]["dataset"] == [name] and content["title"] == "Ablation, on chats.jsonl with MiniLM"
    assert content["provenance"]["dataset"] == {name: benchmarks.load(name).fingerprint()}
    measured = [row for row in content["rows"] if "measured" in row]
    assert {row["split"] for row in measured} == {"random", "conversation"}
    assert {(row["dataset"], row["verdict"]) for row in measured} == {(name, "not in the paper")}
    assert not any("reported" in row for row in measured)
    assert not any(str(place) in text for place in (EXAMPLE.parent, tmp_path) for text in (told, executed))


def test_one_conversation_alone_has_dashes_by_conversation(tmp_path):
    lines = [line for line in EXAMPLE.read_text().splitlines() if '"conversation": "garden"' in line]
    name = benchmarks.resolve(str(write(tmp_path / "garden.jsonl", *lines)))
    by_split = {split: Setting(dataset=name, seeds=2, split=split) for split in ("random", "conversation")}
    found = {split: comparisons.compare(one, ["ear_adapter"], "retriever") for split, one in by_split.items()}
    assert all(row["measured"] is not None and "scope_low" not in row for row in found["random"])
    reasons = {(row["metric"], row["measured"], row["reason"]) for row in found["conversation"]}
    told = "one conversation alone: none is left to evaluate"
    assert reasons == {(metric, None, told) for metric in ("recall@5", "hitrate@5", "fractional recall@5")}


# -- an encoder --------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(checkpoint, tmp_path):  # noqa: F811
    """A tiny encoder with a Dense module behind CLS pooling, prompts, a maximal length and no Normalize."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    plain = SentenceTransformer(str(checkpoint), device="cpu")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        head = Dense(32, 24)
    prompts = {"query": "green ", "passage": "dog "}
    model = SentenceTransformer(modules=[plain[0], Pooling(32, "cls"), head], prompts=prompts, device="cpu")
    model.max_seq_length = 8
    model.save_pretrained(str(tmp_path / "my_encoder"))
    return tmp_path / "my_encoder"


def direct(folder, texts, prompt):
    from sentence_transformers import SentenceTransformer

    vectors = SentenceTransformer(str(folder), device="cpu").encode(texts, prompt=prompt)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_a_folder_embeds_as_its_own_files_state(folder):
    name = encoders.resolve(str(folder))
    assert encoders.get(name).dimension == 24 and paper.label(name) == "my_encoder"
    for kind, prompt in (("query", "green "), ("memory", "dog ")):
        found = encoders.encode(TEXTS, name, kind)
        np.testing.assert_allclose(found, direct(folder, TEXTS, prompt), atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert (encoders.encode(TEXTS, name) != encoders.encode(TEXTS, name, "query")).any()


def test_a_folder_is_known_by_its_content_wherever_it_lies(folder, tmp_path, monkeypatch):
    name = encoders.resolve(str(folder))
    vectors, key = encoders.encode(TEXTS, name), encoders.fingerprint(name)
    moved = tmp_path / "elsewhere" / "my_encoder"
    shutil.copytree(folder, moved)
    (moved / "README.md").write_text("another description")
    monkeypatch.chdir(moved.parent)
    monkeypatch.setattr(embedding, "Embedder", None)  # any use of a model fails
    monkeypatch.setattr(embedding, "embedder", None)
    assert encoders.resolve("my_encoder") == name and (encoders.encode(TEXTS, name) == vectors).all()
    assert encoders.fingerprint(name) == key


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("file", ["config_sentence_transformers.json", "1_Pooling/config.json", "tokenizer.json"])
def test_every_file_that_decides_the_embeddings_is_part_of_the_name(folder, file, linked):
    if linked:  # a module may lie elsewhere
        (folder / "1_Pooling").symlink_to((folder / "1_Pooling").rename(folder.parent / "elsewhere"))
    name = encoders.resolve(str(folder))
    (folder / file).write_text((folder / file).read_text() + "\n")
    assert encoders.resolve(str(folder)) != name
    with pytest.raises(ValueError, match="my_encoder: changed since it was named my_encoder@"):
        encoders.encode(["cat"], name)


def test_a_default_prompt_is_that_of_texts_without_their_own(folder):
    file = folder / "config_sentence_transformers.json"
    config = json.loads(file.read_text())
    config["prompts"] = {"query": "", "document": "dog ", "any": "green "}
    file.write_text(json.dumps(config | {"default_prompt_name": "any"}))
    name = encoders.resolve(str(folder))
    for kind, prompt in (("query", None), ("memory", "dog ")):  # without a prompt the library takes the default one
        np.testing.assert_allclose(encoders.encode(TEXTS, name, kind), direct(folder, TEXTS, prompt), atol=1e-5)


def test_encoders_of_the_registry_keep_their_keys():
    found = {name: [encoders.identify(name, kind)[:16] for kind in ("memory", "query")] for name in encoders.REGISTRY}
    assert {name: tuple(keys) for name, keys in found.items()} == KEYS


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


@pytest.mark.parametrize("files, text, expected", [
    ("modules.json", None, "found no modules.json; `SentenceTransformer(...).save_pretrained(folder)` writes one"),
    ("1_Pooling/config.json", None, "cannot be loaded as an encoder"),
    ("model.safetensors", None, "cannot be loaded as an encoder"),
    ("tokenizer.json tokenizer_config.json vocab.txt", None, "expected a tokenizer: tokenizer.json or vocab.*"),
    ("model.safetensors", POINTER, "cannot be loaded as an encoder"),
    ("modules.json", "[", "modules.json: Invalid JSON: EOF while parsing a list"),
    ("modules.json", 10**5 * "[", "modules.json: Invalid JSON: recursion limit"),
    ("modules.json", '[{"type": "a"}]', "modules.json[0].path: expected this field"),
    ("config_sentence_transformers.json", '{"prompts": ["a"]}', ".json.prompts: expected an object, found ['a']"),
])  # fmt: skip
def test_a_folder_that_is_no_encoder_is_refused_before_anything_runs(root, folder, capsys, files, text, expected):
    for file in map(folder.joinpath, files.split()):
        file.write_text(text) if text else file.unlink(missing_ok=True)
    assert runner.main(["plain", "--profile", "smoke", "-p", "encoder", str(folder)]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("error: command line: encoder") and str(folder) in told and expected in told
    assert not (root / "build").exists()


def test_code_in_a_folder_runs_only_where_it_was_asked_for(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "mine.Mine"
    (folder / "modules.json").write_text(json.dumps(modules))
    marker = tmp_path / "ran"
    (folder / "mine.py").write_text(
        "import pathlib\nfrom sentence_transformers.sentence_transformer.modules import Pooling\n\n"
        f"pathlib.Path({str(marker)!r}).touch()\n\nclass Mine(Pooling):\n    pass\n"
    )
    with pytest.raises(ValueError, match="brings its own code, which runs only where EARLIB_REMOTE_CODE names my_enc"):
        encoders.resolve(str(folder))
    assert not marker.exists()
    monkeypatch.setenv("EARLIB_REMOTE_CODE", "my_encoder")
    assert encoders.encode(["cat"], encoders.resolve(str(folder))).shape == (1, 24) and marker.exists()


def test_a_model_of_the_hub_comes_at_its_revision_and_stays(publisher, checkpoint, tmp_path, monkeypatch):  # noqa: F811
    asked = name = f"nobody/tiny-bert@{'a' * 40}"
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # the loopback never goes through it
    assert encoders.resolve(asked) == name and paper.label(name) == "nobody/tiny-bert"
    vectors = encoders.encode(["cat"], name)
    publisher.shutdown()
    publisher.server_close()
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setenv(own.VARIABLE, "")  # as in another process
    assert encoders.resolve(asked) == name and (encoders.encode(["cat"], name) == vectors).all()
    # a folder of that name in the search path goes first, and is known by its content, since nothing vouches for it
    monkeypatch.setenv("EARLIB_MODELS", str(checkpoint.parent))
    monkeypatch.setenv(own.VARIABLE, "")
    digest = cache.content_hash(folders.described(checkpoint)["weights"])
    there = encoders.resolve(asked)
    assert there == f"nobody/tiny-bert@{digest[:12]}" and (encoders.encode(["cat"], there) == vectors).all()


def test_a_model_of_the_hub_that_cannot_be_had(hub):
    with pytest.raises(ConnectionError, match=r"a/b@main: no files in .*folder/b.*hf download a/b --revision main"):
        encoders.resolve("a/b@main")
    with pytest.raises(ValueError, match="the revision is the commit"):
        encoders.resolve("a/b")


# -- a package of one's own --------------------------------------------------------------------------------------------


def test_a_package_brings_a_dataset_and_an_encoder(folder, tmp_path, monkeypatch):
    """The example of docs/own-data.md, installed as pip would install it."""
    text = (EXAMPLE.parents[1] / "docs" / "own-data.md").read_text()
    code, points = (text.split(f"```{kind}\n")[1].split("```")[0] for kind in ("python", "toml"))
    site = tmp_path / "site"
    (site / "mypackage-1.dist-info").mkdir(parents=True)
    (site / "mypackage.py").write_text(code)
    shutil.copytree(folder, site / "encoder")
    sections = points.replace('[project.entry-points."', "[").replace('"]', "]").replace('"', "")
    (site / "mypackage-1.dist-info" / "entry_points.txt").write_text(sections)
    (site / "mypackage-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1\n")
    monkeypatch.syspath_prepend(site)
    own.packaged.cache_clear()
    assert benchmarks.load(benchmarks.resolve("mychats")).name == "My chats"
    assert encoders.encode(["cat"], encoders.resolve("myencoder")).shape == (1, 24)
    (plan,) = profiles.make_plans(["tab01_dataset_stats"], "smoke", {"dataset": "mychats"})
    assert plan.name == "tab01_dataset_stats--dataset-mychats" and plan.parameters["dataset"] == ["mychats"]
    own.packaged.cache_clear()


# -- K -----------------------------------------------------------------------------------------------------------------


def test_depth_is_that_of_all_configurations_of_a_notebook(root, monkeypatch, capsys):
    monkeypatch.setenv("EARLIB_DEPTH", "7")  # a variable of the caller's never changes a result
    write_notebook(root, "plain", "from earlib.core.config import Config\nprint(Config().depth, Config(depth=9).depth)")
    own_depth = PARAMETERS + "\ndepth: int = 50  # of its own"
    shown = "from earlib.core.config import Config\nprint(Config().depth, depth)"
    write_notebook(root, "other", shown, parameters=own_depth)
    assert runner.main(["all", "--profile", "smoke"]) == 0
    assert runner.main(["all", "--profile", "smoke", "-p", "depth", "12"]) == 0
    told = {name: outputs(root / "results" / "smoke" / f"{name}.ipynb") for name in ("plain", "other")}
    told |= {f"{name} at 12": outputs(root / "results" / "smoke" / f"{name}--depth-12.ipynb") for name in told}
    assert told == {"plain": "20 9\n", "other": "20 50\n", "plain at 12": "12 9\n", "other at 12": "20 12\n"}
    executed = nbformat.read(root / "results" / "smoke" / "plain--depth-12.ipynb", 4)
    assert executed.metadata.papermill.parameters["depth"] == 12
    capsys.readouterr()
    assert runner.main(["plain", "--profile", "smoke", "-p", "depth", "4"]) == 2
    assert "depth (K, first-stage candidates of a question): expected int from 5 on, got '4'" in capsys.readouterr().err


def test_a_record_holds_the_depth_that_is_not_the_paper_s(monkeypatch):
    from earlib import records

    made = {depth: None for depth in ("", "12")}
    for depth in made:
        monkeypatch.setenv("EARLIB_DEPTH", depth)
        made[depth] = records.record("a", "A", "smoke", {"seeds": 1}, {}, [])["parameters"]
    assert made == {"": {"seeds": 1}, "12": {"seeds": 1, "depth": 12}} and Config().depth == 12
