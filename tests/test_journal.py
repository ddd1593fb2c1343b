"""The folder of a memory: what is damaged or not its own is refused by name, and a failing disk loses no change."""

import fcntl
import json
import os
import re
import zlib

import numpy as np
import pytest
import safetensors.torch
import torch
from test_memory import WIDTH, answers, encoder, made, preset, text, told

from earlib import memory
from earlib.memory import EARMemory, journal


@pytest.fixture
def folder(tmp_path):
    """A memory's folder with a state of 12 memories and 2 feedbacks, and a journal of one change of each kind."""
    held = made(12, preset(depth=10))
    told(held, 2)
    held.save(tmp_path / "m")
    held.add(["new"], ["named"])
    held.remove([3])
    told(held, 1, start=5)
    held.close()
    return tmp_path / "m"


def edit_state(folder, **changes):
    """Change fields of state.json; None takes one away."""
    state = json.loads((folder / "state.json").read_text())
    for name, value in changes.items():
        state.pop(name, None)
        if value is not None:
            state[name] = value
    (folder / "state.json").write_text(json.dumps(state))


def edit_tensors(folder, **changes):
    """Change tensors, with the checksum that fits them; None takes one away."""
    file = folder / "state-1.safetensors"
    tensors = safetensors.torch.load_file(file) | {name.replace("__", "."): to for name, to in changes.items()}
    file.write_bytes(safetensors.torch.save({name: value for name, value in tensors.items() if value is not None}))
    edit_state(folder, sha256=journal.hashlib.sha256(file.read_bytes()).hexdigest())


def edit_line(folder, number, **changes):
    """Change fields of a change, with the checksum that fits it."""
    file = folder / "journal-1.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    change = json.loads(lines[number])[1] | changes
    payload = json.dumps({name: value for name, value in change.items() if value != "gone"}).encode()
    lines[number] = b'["%08x", %b]\n' % (zlib.crc32(payload), payload)
    file.write_bytes(b"".join(lines))


def flip(file, at):
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def array(*shape, dtype="float16"):
    return json.loads(json.dumps(journal._packed(np.zeros(shape, dtype))))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda at: flip(at / "state-1.safetensors", -1), "state-1.safetensors: damaged .its SHA-256"),
        (lambda at: flip(at / "journal-1.jsonl", 40), "journal-1.jsonl: line 1 of 3 is damaged"),
        (lambda at: flip(at / "journal-1.jsonl", -9), "journal-1.jsonl: line 3 of 3 is damaged .its checksum"),
        (lambda at: (at / "journal-1.jsonl").unlink(), "journal-1.jsonl: missing"),
        (lambda at: (at / "state-1.safetensors").unlink(), "state-1.safetensors: missing"),
        (lambda at: (at / "state.json").write_text("[1]"), "state.json: damaged .expected an object"),
        (lambda at: edit_state(at, version=1), "state.json: version 1: expected 2"),
        (lambda at: edit_state(at, seed=None), "state.json: seed: Field required"),
        (lambda at: edit_state(at, further=1), "state.json: State: .*unknown parameter 'further'"),
        (lambda at: edit_state(at, seed="0"), "state.json: seed: .*valid integer"),
        (lambda at: edit_state(at, dtype="float16"), "state.json: dtype: .*'float32' or 'float64'"),
        (lambda at: edit_state(at, config={"depth": "x"}), "state.json: config.depth: .*valid integer"),
        (lambda at: edit_state(at, config={"dept": 3}), "state.json: config: .*unknown parameter 'dept'.*depth"),
        (lambda at: edit_state(at, ids=[1, 2]), "state.json: .*ids: expected 12, one a text, found 2"),
        (lambda at: edit_state(at, ids=[1.5] * 12), "state.json: ids.0"),
        (lambda at: edit_state(at, ids=[7] * 12), "state.json: .*ids: expected each once"),
        (lambda at: edit_state(at, next=3), "state.json: .*next: expected a number above all ids"),
        (lambda at: edit_state(at, known=1), "state-1.safetensors: learner.*expected .*1, "),
        (lambda at: edit_tensors(at, bank=torch.zeros(12, 5).half()), "state-1.safetensors: learner.*expected"),
        (lambda at: edit_tensors(at, bank=torch.zeros(11, WIDTH).half()), r"bank: expected float16 \[12, 24\]"),
        (lambda at: edit_tensors(at, bank=torch.zeros(12, WIDTH)), "bank: expected float16 .* found float32"),
        (lambda at: edit_tensors(at, bank=None), "bank: expected one"),
        (lambda at: edit_tensors(at, further=torch.zeros(1)), "further: expected no tensor"),
        (lambda at: edit_tensors(at, learner__cited=None), "learner.cited: expected .* found none"),
        (lambda at: edit_tensors(at, learner__parameter__0=torch.zeros(1, 3, 3)), "learner.parameter.0: expected"),
        (lambda at: edit_tensors(at, learner__index=torch.full((2, 10), 99)), "learner.index: expected rows .*0 to 12"),
        (lambda at: edit_tensors(at, probe=None), "probe: expected an embedding"),
        (lambda at: edit_line(at, 0, kind="forget"), "line 1 of 3: kind: expected one of add, .* found 'forget'"),
        (lambda at: edit_line(at, 0, texts="new"), "line 1 of 3: texts: .*valid list"),
        (lambda at: edit_line(at, 0, texts="gone"), "line 1 of 3: texts: Field required"),
        (lambda at: edit_line(at, 0, further=1), "line 1 of 3: Add: .*unknown parameter 'further'"),
        (lambda at: edit_line(at, 0, ids=["a", "b"]), "line 1: ids: expected 1, one a text, found 2"),
        (lambda at: edit_line(at, 0, ids=[0]), "line 1: ids: 0 is in use"),
        (lambda at: edit_line(at, 0, vectors=array(1, 7)), r"line 1: vectors: expected float16 \[1, 24\]"),
        (lambda at: edit_line(at, 0, vectors={"array": "!", "dtype": "?", "shape": [9]}), "line 1 of 3 is damaged"),
        (lambda at: edit_line(at, 1, ids=[99]), "line 2: ids: 99: expected the id of a memory"),
        (lambda at: edit_line(at, 2, slates=[[3]], labels=[[True]]), "line 3: ids: 3: expected the id of a memory"),
        (lambda at: edit_line(at, 2, labels=[[True]]), "line 3: slates, labels: expected as many of each"),
        (lambda at: edit_line(at, 2, vector=array(WIDTH)), "line 3: vector: expected float32"),
        (lambda at: edit_line(at, 2, query=7), "line 3 of 3: query: .*valid string"),
    ],
)
def test_damage_is_named_by_file_and_field(folder, damage, message):
    damage(folder)
    with pytest.raises(ValueError, match=message) as told:
        EARMemory.load(folder, encoder)
    assert str(folder) in str(told.value)
    with open(folder / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # and it is not left locked


def test_an_undamaged_folder_is_whole_under_the_same_edits(folder):
    """The edits above are refused for what they change, not for how they are written."""
    expected = EARMemory.load(folder, encoder)
    edit_state(folder)
    edit_tensors(folder)
    edit_line(folder, 0)
    expected.close()
    again = EARMemory.load(folder, encoder)
    assert answers(again) == answers(expected) and again.ids() == [0, 1, 2, *range(4, 12), "named"]
    again.close()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda texts, kind: encoder(texts, kind) @ np.eye(WIDTH)[::-1], "expected .*cosine above 0.999, got"),
        (lambda texts, kind: encoder(texts, kind)[:, :8], "24 wide, got 8"),
        ("minilm", "encoder: expected the callable"),
        (None, "encoder: expected the callable"),
    ],
)
def test_another_encoder_is_refused(folder, other, message):
    with pytest.raises(ValueError, match=message):
        EARMemory.load(folder, other)
    EARMemory.load(folder, lambda texts, kind: 3 * encoder(texts, kind)).close()  # the same directions


def test_an_encoder_of_the_registry_may_be_named(tmp_path):
    with EARMemory() as held:
        held.save(tmp_path)
    EARMemory.load(tmp_path, encoder="minilm").close()
    for other in ("mpnet", encoder):
        with pytest.raises(ValueError, match="encoder: expected minilm"):
            EARMemory.load(tmp_path, other)


def test_what_is_not_a_memorys_stays(tmp_path):
    held = made(5)
    for name in ("note.txt", "state-2.safetensors", "state-old.safetensors"):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / name).write_text("mine")
        with pytest.raises(ValueError, match=f"a: holds '{name}' and no state.json; expected an empty folder"):
            held.save(tmp_path / "a")
        assert [path.name for path in (tmp_path / "a").iterdir()] == [name]
        (tmp_path / "a" / name).unlink()
    (tmp_path / "a" / "state.json").write_text('{"terraform": 4}')
    with pytest.raises(ValueError, match="state.json: not a memory's"):
        held.save(tmp_path / "a")
    (tmp_path / "a" / "state.json").unlink()
    for left in ("lock", "state-1.safetensors", ".state.json.x1_y2z3a", ".state-1.safetensors.abcdefgh"):
        (tmp_path / "a" / left).write_text("")  # a first state that was cut off
    held.save(tmp_path / "a")
    foreign = {"state-old.safetensors", "journal-.jsonl", "state-01.safetensors", "journal-1.jsonl.bak", "state-x.json"}
    for name in foreign:
        (tmp_path / "a" / name).write_text("mine")
    held.save(tmp_path / "a")
    held.save(tmp_path / "a")
    ours = {"lock", "state.json", "state-3.safetensors", "journal-3.jsonl"}
    assert {path.name for path in (tmp_path / "a").iterdir()} == ours | foreign


def test_a_folder_that_is_not_there_is_not_made(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ValueError, match="expected a folder that `save` has written; there is no state.json"):
            EARMemory.load(path, encoder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused(folder, monkeypatch):
    def refused(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(journal, "open", refused, raising=False)
    with pytest.raises(PermissionError, match="m: cannot be written .Permission denied.*; .* copy it"):
        EARMemory.load(folder, encoder)


@pytest.mark.parametrize("failing", range(1, 8))
def test_a_save_that_fails_anywhere_loses_no_later_change(tmp_path, monkeypatch, failing):
    held = made(20, preset(depth=10))
    held.save(tmp_path / "m")
    told(held, 2)
    held.remove([4])
    synced, calls = journal.os.fsync, []

    def fail(handle):
        calls.append(handle)
        if len(calls) == failing:
            raise OSError(5, "Input/output error")
        synced(handle)

    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "fsync", fail)
        try:
            held.save(tmp_path / "m")
        except OSError:
            assert failing <= 5
        else:
            assert failing > 5
    told(held, 2, start=7)
    held.add(["later"], ["later"])
    held.close()
    again = EARMemory.load(tmp_path / "m", encoder)
    assert again.ids() == held.ids() and again._learner.known == 4
    for mine, theirs in zip(again._learner.parameters, held._learner.parameters, strict=True):
        assert mine.detach() == pytest.approx(theirs.detach(), abs=1e-6)
    again.close()


def test_a_state_that_cannot_be_written_anew_costs_no_change(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CHANGES", 3)
    held = made(20, preset(depth=10))
    held.save(tmp_path / "m")
    with monkeypatch.context() as patch:

        def full(path, content):
            raise OSError(28, f"cannot write {path}: No space left on device")

        patch.setattr(journal.paths, "write_atomically", full)
        told(held, 2)
        with pytest.warns(UserWarning, match="m: the state could not be written anew .*No space.* tried again"):
            held.remove([4])
        told(held, 1, start=7)
    before = answers(held)
    assert 4 not in held and held._journal.lines == 4
    held.close()
    again = EARMemory.load(tmp_path / "m", encoder)
    assert answers(again) == before
    told(again, 2, start=9)
    assert again._journal.lines == 0 and again._journal.generation == 2
    again.close()


def test_a_forked_process_changes_nothing(tmp_path):
    held = made(10, preset(depth=5))
    held.save(tmp_path)
    content = (tmp_path / "journal-1.jsonl").read_bytes()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            for call in (lambda: held.add(["x"]), lambda: held.remove([1]), lambda: held.save(tmp_path)):
                try:
                    call()
                except RuntimeError as error:
                    os.write(writing, f"{error}\n".encode())
            held.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    lines = os.read(reading, 10**5).decode().splitlines()
    os.close(reading)
    told = re.compile(r"the memory belongs to process \d+, which this one .\d+. was forked from; .* load a copy .*")
    assert len(lines) == 3 and all(map(told.fullmatch, lines))
    assert (tmp_path / "journal-1.jsonl").read_bytes() == content and len(held) == 10
    with pytest.raises(BlockingIOError):  # the child's close() did not open it to others
        EARMemory.load(tmp_path, encoder)
    held.add(["y"])
    held.close()
    EARMemory.load(tmp_path, encoder).close()


def test_a_line_whose_change_could_not_be_taken_back_is_cut_off_by_the_next(tmp_path):
    held = made(10, preset(depth=5))
    held.save(tmp_path)
    with open(tmp_path / "journal-1.jsonl", "ab") as file:
        file.write(b'["00000000", {"kind": "add"' + b"x" * 5000)
    held.add([text(1)], ["a"])
    held.close()
    again = EARMemory.load(tmp_path, encoder)
    assert again.ids() == held.ids()
    again.close()


def test_a_last_change_that_diverges_had_not_taken_effect(tmp_path):
    """A kill between the journal and the failing update leaves a line that no update can be made of."""
    held = made(20, preset(depth=5, learning_rate=1e30))
    held.save(tmp_path)
    what = {"query": "a", "vector": encoder(["a"], "query")[0], "slates": [[0, 1]], "labels": [[True, False]]}
    held._journal.append("feedback", what)
    held.close()
    again = EARMemory.load(tmp_path, encoder)
    assert again._learner.known == 0 and again._journal.lines == 0
    again.add(["b"])
    again.close()
    EARMemory.load(tmp_path, encoder).close()
