"""The folder of a memory: damage and foreign files are refused by name, and a failing disk loses no change."""

import gc
import json
import os
import re
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest
import safetensors.numpy
from made_memory import WIDTH, answers, edit_snapshot, encoder, kept, made, preset, reopened, text, told
from test_encoders import checkpoint  # noqa: F401

from earlib.memory import EARMemory, stored_memory


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A memory's folder with a snapshot of 12 memories and 2 feedbacks, and one change of each kind behind it."""
    folder = tmp_path_factory.mktemp("folder")
    held = made(12, preset(depth=10))
    told(held, 2)
    held.save(folder)
    held.add(["new"], ["named"])
    held.remove([3])
    told(held, 1, start=5)
    reopened(held, folder).close()
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "m")


def run(folder, *statements):
    with closing(sqlite3.connect(folder / "memory.sqlite")) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda at: run(at, "UPDATE memories SET text = 'x' WHERE position = 3"), "damaged .the checksum of its snap"),
        (
            lambda at: run(at, "UPDATE state SET plain = replace(plain, '24', '25')"),
            "damaged .the checksum of its snap",
        ),
        (lambda at: run(at, "UPDATE changes SET kind = 'add' WHERE number = 2"), "change 2 of 3: damaged"),
        (lambda at: run(at, "UPDATE changes SET arrays = zeroblob(9) WHERE number = 1"), "1 of 3: damaged .its check"),
        (lambda at: run(at, "DROP TABLE changes"), "memory.sqlite: damaged .no such table: changes"),
        (lambda at: run(at, "DELETE FROM state"), "memory.sqlite: damaged"),
        (lambda at: (at / "memory.sqlite").write_bytes(b"[1]" * 99), "memory.sqlite: damaged .file is not a database"),
        (lambda at: os.truncate(at / "memory.sqlite", 9000), "memory.sqlite: damaged .*malformed"),
        (lambda at: os.truncate(at / "memory.sqlite", 0), "that `save` has written; memory.sqlite is empty"),
        (lambda at: run(at, "PRAGMA user_version = 5"), "memory.sqlite: version 5: expected 4; add the texts"),
        (lambda at: run(at, "PRAGMA application_id = 4"), "memory.sqlite: not a memory's"),
        (lambda at: edit_snapshot(at, seed=None), "(?s)damaged .*seed.*Field required"),
        (lambda at: edit_snapshot(at, further=1), "(?s)damaged .*unknown parameter 'further'"),
        (lambda at: edit_snapshot(at, config={"dept": 3}), "(?s)damaged .*config.*unknown parameter 'dept'.*depth"),
    ],
)
def test_damage_is_named_by_file_and_field(folder, damage, message):
    damage(folder)
    with pytest.raises(ValueError, match=message) as error:
        EARMemory.load(folder, encoder)
    assert str(folder) in str(error.value)
    with pytest.raises(ValueError, match=message):  # and it is not left locked
        EARMemory.load(folder, encoder)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda texts, kind: encoder(texts, kind) @ np.eye(WIDTH)[::-1], "not the one of .*memory.sqlite"),
        (lambda texts, kind: encoder(texts, kind)[:, :8], "not the one of .*memory.sqlite"),
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


def test_a_memory_with_an_encoder_of_one_s_own_opens_again_wherever_its_folder_lies(checkpoint, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("EARLIB_OWN", "")
    monkeypatch.setenv("EARLIB_CACHE", str(tmp_path / "cache"))
    mine = shutil.copytree(checkpoint, tmp_path / "encoder")
    with EARMemory(encoder=str(mine)) as held:
        held.add(["red cat", "dog"])
        held.save(tmp_path / "m")
        expected = held.retrieve("cat")
    EARMemory.load(tmp_path / "m").close()  # this process knows where the encoder lies
    monkeypatch.setenv("EARLIB_OWN", "")
    mine = mine.rename(tmp_path / "another name")
    with pytest.raises(ValueError, match='m: unknown encoder .encoder@.*; give its folder: load.path, encoder="path/t'):
        EARMemory.load(tmp_path / "m")
    with EARMemory.load(tmp_path / "m", encoder=str(mine)) as again:
        assert again.retrieve("cat") == expected
    for other in ("minilm", encoder):
        with pytest.raises(ValueError, match="encoder: expected encoder@"):
            EARMemory.load(tmp_path / "m", other)
    with pytest.raises(ValueError, match="nowhere: expected the folder of a sentence-transformers model"):
        EARMemory.load(tmp_path / "m", str(tmp_path / "nowhere"))


def test_foreign_files_stay(tmp_path):
    held, place = made(5), tmp_path / "a"
    for name in ("note.txt", "memory.sqlite-old", "state.json"):
        place.mkdir(exist_ok=True)
        (place / name).write_text("mine")
        with pytest.raises(ValueError, match=f"a: holds '{name}' and no memory.sqlite; expected an empty folder"):
            held.save(place)
        assert [path.name for path in place.iterdir()] == [name]
        (place / name).unlink()
    (place / "memory.sqlite").write_bytes(b"")
    run(place, "CREATE TABLE bookmarks (url)")
    with pytest.raises(ValueError, match="memory.sqlite: not a memory's; expected an empty folder"):
        held.save(place)
    run(place, "DROP TABLE bookmarks")  # a first state that was cut off
    held.save(place)
    (place / "note.txt").write_text("mine")
    held.save(place)
    held.close()
    assert {path.name for path in place.iterdir()} == {"memory.sqlite", "note.txt"}


def test_a_folder_that_is_not_there_is_not_made(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ValueError, match="expected a folder that `save` has written; there is no memory.sqlite"):
            EARMemory.load(path, encoder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("steps", [1, 20, 60, 200, 600])
def test_a_save_that_fails_anywhere_loses_no_change(tmp_path, steps):
    held = made(20, preset(depth=10))
    held.save(tmp_path / "m")
    told(held, 2)
    held.remove([4])
    held._folder._connection.set_progress_handler(lambda: True, steps)  # interrupts after so many steps of SQLite
    with pytest.raises(OSError, match="cannot write .*m/memory.sqlite: interrupted"):
        held.save(tmp_path / "m")
    held._folder._connection.set_progress_handler(None, 0)
    told(held, 2, start=7)
    held.add(["later"], ["later"])
    held.close()
    with EARMemory.load(tmp_path / "m", encoder) as again:
        assert again.ids() == held.ids() and again._state.learner.known == 4
        for mine, theirs in zip(again._state.learner.parameters, held._state.learner.parameters, strict=True):
            assert mine.detach() == pytest.approx(theirs.detach(), abs=1e-6)


def test_a_snapshot_that_cannot_be_written_again_costs_no_change(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_memory, "CHANGES", 3)
    held = made(20, preset(depth=10))
    held.save(tmp_path / "m")

    def full(*_):
        raise OSError(28, "cannot write: database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(held._folder, "write", full)
        told(held, 2)
        with pytest.warns(UserWarning, match="m: the state could not be written again .*full.* tried again"):
            held.remove([4])
        told(held, 1, start=7)
    before = answers(held)
    assert 4 not in held and held._folder.changes == 4
    held.close()
    with EARMemory.load(tmp_path / "m", encoder) as again:
        assert answers(again) == before
        told(again, 2, start=9)
        assert again._folder.changes == 0 and kept(tmp_path / "m") == []


def test_a_forked_process_changes_nothing(tmp_path):
    held = made(10, preset(depth=5))
    held.save(tmp_path)
    held.add(["x"])
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            changes = (lambda: held.add(["x"]), lambda: held.remove([1]), lambda: held.save(tmp_path))
            for call in (*changes, lambda: held.retrieve("a new question"), lambda: held.candidates("x")):
                try:
                    call()
                except RuntimeError as error:
                    os.write(writing, f"{error}\n".encode())
            held.close()
            held._folder._connection.close()  # as at the end of a Python process
            del held
            gc.collect()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    lines = os.read(reading, 10**5).decode().splitlines()
    os.close(reading)
    message = re.compile(r"the memory belongs to process \d+, which this one .\d+. was forked from; .* load a copy .*")
    assert len(lines) == 5 and all(map(message.fullmatch, lines))
    assert kept(tmp_path) == ["add"] and len(held) == 11
    with pytest.raises(BlockingIOError):  # the child's close() did not open it to others
        EARMemory.load(tmp_path, encoder)
    held.add(["y"])
    reopened(held, tmp_path).close()


@pytest.mark.parametrize("name", ["~/m", "~/a/../m"])
def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch, name):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a").mkdir()
    held = made(3)
    held.save(name)
    with reopened(held, name):
        assert (tmp_path / "m" / "memory.sqlite").exists()


def test_a_memory_that_is_dropped_unclosed_lets_its_folder_go(tmp_path):
    held = made(5)
    held.save(tmp_path)
    held.add(["last"])
    del held
    gc.collect()
    with EARMemory.load(tmp_path, encoder) as again:
        assert len(again) == 6


def test_a_last_change_that_diverges_had_not_taken_effect(tmp_path):
    """A kill between the folder's change and the failing update leaves a change that no update can be made of."""
    held = made(20, preset(depth=5, learning_rate=1e30))
    held.save(tmp_path)
    change = {"query": "a", "vector": encoder(["a"], "query")[0], "slates": [[0, 1]], "labels": [[True, False]]}
    held._folder.append("feedback", change)
    held.close()
    with EARMemory.load(tmp_path, encoder) as again:
        assert again._state.learner.known == 0 and again._folder.changes == 0
        again.add([text(1)])
    EARMemory.load(tmp_path, encoder).close()


@pytest.mark.parametrize("gone", ["folder", "memory.sqlite", "memory.sqlite-wal", "memory.lock", "changes"])
def test_a_memory_whose_files_were_replaced_is_refused_its_changes(tmp_path, gone):
    held, place = made(5), tmp_path / "m"
    held.save(place)
    if gone == "folder":
        place.rename(tmp_path / "moved")
        shutil.copytree(tmp_path / "moved", place)
    elif gone == "changes":
        run(place, "DELETE FROM changes")
    else:
        (place / gone).unlink()
    told = "sqlite: another program has written" if gone == "changes" else "m/memory.*: it was removed or replaced"
    for call in (lambda: held.add(["lost"]), lambda: held.save(place)):
        with pytest.raises(OSError, match=f"cannot write .*{told}.*save to another folder"):
            call()
    assert len(held) == 5
    held.save(tmp_path / "other")
    assert held.add(["y"]) == [5]
    reopened(held, tmp_path / "other").close()


def test_whoever_takes_a_folder_from_an_open_memory_keeps_it(tmp_path):
    """The first memory is refused, and its `close` does not open the folder of the second to a third."""
    first = made(3)
    first.save(tmp_path)
    (tmp_path / "memory.lock").unlink()
    second = EARMemory.load(tmp_path, encoder)
    with pytest.raises(OSError, match="cannot write .*memory.lock: it was removed or replaced"):
        first.add(["lost"])
    assert second.add(["kept"]) == [3]
    first.close()
    for take in (lambda: EARMemory.load(tmp_path, encoder), lambda: made(5).save(tmp_path)):
        with pytest.raises(BlockingIOError, match="open in another memory"):
            take()
    second.add(["too"])
    with reopened(second, tmp_path) as again:
        assert [again.get(id) for id in again.ids()[3:]] == ["kept", "too"]


def test_removed_texts_are_gone_from_the_folder_after_a_save(tmp_path):
    held = EARMemory(encoder)
    held.add(["a secret", "b"])
    held.save(tmp_path)
    held.remove([0])
    held.save(tmp_path)
    reopened(held, tmp_path).close()
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.iterdir())


def of_version_3(path):
    """As version 3 wrote it: a checksum of three columns, and changes without the newer fields."""
    gone = ', "namespace": "", "metadata": [], "replace": false'
    edit_snapshot(path, ("PRAGMA user_version = 3",), (f"UPDATE changes SET plain = replace(plain, '{gone}', '')",))


def of_an_adapter(path):
    """As it was before weights were learned: no name of a source, and candidates that are sought anew."""
    with closing(sqlite3.connect(path / "memory.sqlite")) as database:
        for number, stored, arrays in database.execute("SELECT number, plain, arrays FROM changes").fetchall():
            plain = {name: one for name, one in json.loads(stored).items() if name not in ("source", "candidates")}
            arrays = {name: one for name, one in safetensors.numpy.load(arrays).items() if name != "side"}
            values = json.dumps(plain), safetensors.numpy.save(arrays), number
            database.execute("UPDATE changes SET plain = ?, arrays = ? WHERE number = ?", values)
        database.commit()
    edit_snapshot(path, weights=None, features=None, snapshots=None)


@pytest.mark.parametrize("older", [of_version_3, of_an_adapter])
def test_a_folder_of_before_opens_as_the_memory_that_it_was(folder, older):
    with EARMemory.load(folder, encoder) as held:
        before = answers(held)
    older(folder)
    with EARMemory.load(folder, encoder) as again:
        assert answers(again) == before and {one.namespace for one in again.list()} == {""}
        assert "preset of its own" in repr(again)
        again.add(["more"], namespace="a", metadata=[{"n": 1}])
    with EARMemory.load(folder, encoder) as again:
        assert [one.text for one in again.list("a", {"n": 1})] == ["more"]
        again.save(folder)
        reopened(again, folder).close()
