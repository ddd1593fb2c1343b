"""Files are written whole: the old content or the new, never a part; and places follow the environment."""

import os
import subprocess
import sys
import time

import pytest
from faults import full_disk

from earlib import paths


def left_over(folder):
    return sorted(file.name for file in folder.iterdir())


def test_a_file_is_written_whole_and_readable_by_all(tmp_path):
    path = tmp_path / "new" / "file.json"
    for content, held in ("é", "é".encode()), (b"\x00", b"\x00"):
        paths.write_atomically(path, content)
        assert path.read_bytes() == held and path.stat().st_mode & 0o777 == 0o644
    assert left_over(path.parent) == ["file.json"]


def test_a_full_disk_keeps_the_old_content_and_names_the_file(tmp_path):
    path = tmp_path / "record.json"
    paths.write_atomically(path, "old")
    with full_disk(100), pytest.raises(OSError, match="cannot write .*record.json: File too large"):
        paths.write_atomically(path, "x" * 10_000)
    assert path.read_text() == "old" and left_over(tmp_path) == ["record.json"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="cannot write .*file/below/record.json"):
        paths.write_atomically(tmp_path / "file" / "below" / "record.json", "x")


WRITER = """
import sys
from pathlib import Path
from earlib import paths
print("ready", flush=True)
for number in range(10_000):
    paths.write_atomically(Path(sys.argv[1]), str(number % 10) * 2_000_000)
"""


@pytest.mark.parametrize("wait", [0.0, 0.02, 0.05, 0.11])
def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path, wait):
    path = tmp_path / "file"
    paths.write_atomically(path, "0" * 2_000_000)
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        time.sleep(wait)
        writer.kill()
    content = path.read_text()
    assert len(content) == 2_000_000 and len(set(content)) == 1


def test_places_follow_the_environment_and_no_current_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("EARLIB_DATA", str(tmp_path / "mine"))
    monkeypatch.chdir(tmp_path)
    assert paths.data_folders() == [tmp_path / "mine", paths.ROOT / "data"]
    monkeypatch.delenv("EARLIB_DATA")
    assert paths.data_folders() == [paths.ROOT / "data"] and paths.ROOT.is_absolute()
    assert os.path.samefile(paths.notebooks(), paths.ROOT / "notebooks")


def test_records_of_others_are_the_committed_ones_unless_named(tmp_path, monkeypatch):
    monkeypatch.setenv("EARLIB_RESULTS", str(tmp_path / "new"))
    monkeypatch.delenv("EARLIB_RECORDS", raising=False)
    assert paths.records() == paths.reference() != paths.results()
    monkeypatch.setenv("EARLIB_RECORDS", str(tmp_path))
    assert paths.records() == tmp_path
