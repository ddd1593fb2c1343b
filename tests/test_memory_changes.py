"""A change of a live memory is whole or is not made: beside threads, errors, signals and kills, on disk too."""

import atexit
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from made_memory import answers, encoder, kept, learned, made, preset, reopened, text, told

from earlib.core.optimizer import Optimizer
from earlib.data.words import Words
from earlib.memory import EARMemory, state, stored_memory, writer

KILLS = int(os.environ.get("EARLIB_TEST_KILLS", 8))


def test_readers_see_whole_states_while_another_writes():
    """Each memory's text is that of its id; a reader never sees a half-made one, and what it gets is in order."""
    held, stop, reads = made(100, preset(depth=10)), threading.Event(), []

    def read(number):
        while not stop.is_set():
            found = held.retrieve(text(number) + "?", 6)
            assert len(found) == 6 and len({one.id for one in found}) == 6
            assert all(one.text == text(one.id) for one in found)
            assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
            reads.append(number)

    number = 100
    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read, number) for number in range(3)]
        while (number < 130 or len(reads) < 25) and not any(reader.done() for reader in readers):
            held.add([text(number), text(number + 1)])
            held.remove([number - 100, number - 99])
            told(held, 1, start=number)
            number += 2
        stop.set()
    assert [reader.result() for reader in readers] == 3 * [None] and len(held) == 100


def test_writers_wait_for_each_other():
    held = made(50, preset(depth=10))
    with ThreadPoolExecutor(4) as pool:
        pool.map(lambda start: told(held, 10, start), (0, 20, 40))
        pool.map(lambda _: held.add(["more"]), range(20))
    assert held._state.learner.known == 30 and len(held) == 70


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_torchs_modes_of_the_caller_change_nothing(tmp_path, mode):
    plain, under = made(40, preset(depth=10)), EARMemory(encoder, preset(depth=10))
    told(plain, 4)
    with mode():
        under.add([text(number) for number in range(40)])
        told(under, 2)
        under.save(tmp_path)
    told(under, 2, start=2)
    under.close()
    with mode():
        again = EARMemory.load(tmp_path, encoder)
    for held in (plain, again):
        told(held, 2, start=9)
    assert learned(plain) == learned(again) and answers(plain) == answers(again)
    again.close()


@pytest.mark.parametrize("told_before", [0, 3])
@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()])
def test_a_feedback_that_fails_is_not_made(tmp_path, monkeypatch, error, told_before):
    held, other = made(40, preset(depth=10)), made(40, preset(depth=10))
    for one in (held, other):
        told(one, told_before)
    held.save(tmp_path)
    before, ranked = learned(held), answers(held)

    def step(optimizer):
        for parameter in optimizer.parameters:
            parameter.data.add_(1)
        raise error

    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(Optimizer, "step", step)
        told(held, 1, start=20)
    assert learned(held) == before and answers(held) == ranked and held._state.learner.buffer.size == told_before
    assert held._folder.changes == 0 and kept(tmp_path) == []
    for one in (held, other):
        told(one, 3, start=20)
    assert learned(held) == learned(other) and answers(held) == answers(other)
    held.close()


@pytest.mark.parametrize(("objective", "rate"), [("softmax", 1e30), ("reward", 1e38)])
def test_a_divergence_leaves_the_memory_able_to_go_on(objective, rate):
    held = made(40, preset(depth=10, learning_rate=rate, side_rate=1e-3, objective=objective))
    ranked, before = answers(held), learned(held)
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="diverged.*lower the learning rate"):
            told(held, 3)
        assert answers(held) == ranked and learned(held) == before
    held._state.learner.optimizer.rates[:] = [1e-4] * 2 + [1e-3]
    told(held, 3)
    assert held._state.learner.known == 3


@pytest.mark.parametrize(("of", "name"), [(Words, "append"), (state.Snapshot, "_replace")])
def test_an_add_that_fails_halfway_is_not_made(tmp_path, monkeypatch, of, name):
    held = made(40, preset(depth=10))
    held.save(tmp_path)
    before, ids = answers(held), held.ids()
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(of, name, lambda *_, **__: (_ for _ in ()).throw(MemoryError()))
        held.add(["garden garden"], ["new"])
    assert answers(held) == before and held.ids() == ids
    held.save(tmp_path)  # writes nothing of it
    reopened(held, tmp_path).close()


class Alarm(Exception):
    pass


@contextlib.contextmanager
def ringing():
    """Let an alarm raise, where `armed[0]`."""
    armed = [True]

    def ring(*_):
        if armed[0]:
            raise Alarm

    old = signal.signal(signal.SIGALRM, ring)
    try:
        yield armed
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@pytest.mark.parametrize("name", ["best", "adapter"])
def test_signals_that_raise_leave_whole_changes(tmp_path, monkeypatch, name):
    """Whatever an alarm cuts short, what is in memory is what the folder holds, and every change is whole."""
    monkeypatch.setattr(stored_memory, "CHANGES", 7)
    monkeypatch.setattr(state, "SPARSE", 20)
    held, rng, hits = made(30, preset(name, depth=8), experiences=20), np.random.default_rng(0), 0
    held.save(tmp_path)

    def change(number):
        ids = held.ids()
        if number % 3 == 0:
            held.add([text(number), text(number + 1)], [f"{number} a", f"{number} b"])
        elif number % 3 == 1 and len(ids) > 20:
            held.remove(ids[:3])
        else:
            held.feedback(text(number) + "?", ids[-4:], [True, False, None, False])

    with ringing() as armed:
        for number in range(150):
            try:
                armed[0] = True
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 8e-3))
                try:
                    change(number)
                finally:
                    armed[0] = False
            except Exception as error:  # libraries may raise their own from it, as numpy does
                if not isinstance(error.__cause__ or error, Alarm):
                    raise
                hits += 1
                armed[0] = False
    adds = [id for id in held.ids() if isinstance(id, str)]
    assert hits > 3 and len({id.split()[0] for id in adds}) > 3 and len(adds) == len(set(adds))
    with reopened(held, tmp_path) as again:
        for one in (held, again):
            told(one, 3, start=50)
        assert answers(again) == answers(held)


def test_a_signal_is_raised_once_the_change_is_over():
    held = made(30, preset(depth=8))
    add = held._state.add

    def interrupted(**change):
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(0.05)
        add(**change)

    held._state.add = interrupted
    with ringing(), pytest.raises(Alarm):
        held.add(["late"], ["late"])
    assert "late" in held  # at once: nothing goes on behind the caller's back


def test_a_memorys_thread_ends_with_it(monkeypatch):
    real, ended = writer.serve, threading.Event()
    monkeypatch.setattr(writer, "serve", lambda calls: (real(calls), ended.set()))
    held = made(20, preset(depth=5))
    told(held, 2)
    del held
    assert ended.wait(10)


@pytest.mark.parametrize("name", ["best", "adapter", "paper"])
def test_what_is_loaded_retrieves_and_learns_bit_for_bit_the_same(tmp_path, name):
    held = made(name=name)
    told(held)
    held.remove([3, 5])
    held.save(tmp_path / "a")
    told(held, 5, start=30)
    held.add(["日本 ✓\n", "x"], ["名前", "b"])
    held.remove(["b", 7])
    with reopened(held, tmp_path / "a") as again:
        for one in (held, again):
            told(one, 5, start=60)
        assert answers(again) == answers(held)
        again.save(tmp_path / "b")
    with EARMemory.load(tmp_path / "b", encoder) as last:
        assert answers(last) == answers(held) and last.add(["new"]) == held.add(["new"])


def test_an_empty_memory_is_kept_too(tmp_path):
    held = EARMemory(encoder)
    held.save(tmp_path)
    held.add(["first"])
    with reopened(held, tmp_path) as again:
        again.remove([0])
        again.save(tmp_path)
    with EARMemory.load(tmp_path, encoder) as again:  # emptied, and of a known width
        assert again.add(["second"]) == [1]


def test_many_changes_become_a_snapshot(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_memory, "CHANGES", 4)
    held = made(40, preset(depth=10))
    held.save(tmp_path)
    told(held, 10)
    assert kept(tmp_path) == 2 * ["feedback"]
    reopened(held, tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == ["memory.sqlite"]


def test_every_cut_of_the_log_loses_the_last_change_alone(tmp_path):
    """A power cut may leave a part of what was being written."""
    held = made(40, preset(depth=10))
    held.save(tmp_path / "m")
    told(held, 2)
    before, log = answers(held), tmp_path / "m" / "memory.sqlite-wal"
    size = log.stat().st_size
    told(held, 1, start=20)
    after = answers(held)
    for cut in [*range(size, log.stat().st_size, 1499), log.stat().st_size - 1]:
        copy = tmp_path / f"cut at {cut}"
        shutil.copytree(tmp_path / "m", copy)
        os.truncate(copy / log.name, cut)
        with EARMemory.load(copy, encoder) as again:
            assert answers(again) == before
            told(again, 1, start=20)
        with EARMemory.load(copy, encoder) as again:
            assert answers(again) == after
    held.close()


def test_a_change_that_cannot_be_written_is_not_made(tmp_path):
    held, done = made(40, preset(depth=10)), 0
    held.save(tmp_path)
    pages = held._folder._value("PRAGMA page_count")
    held._folder._value(f"PRAGMA max_page_count = {pages + 1}")  # a disk that is full
    with pytest.raises(OSError, match="cannot write .*memory.sqlite: database or disk is full"):
        while done < 100:
            before = answers(held)
            told(held, 1, start=done)
            done += 1
    assert answers(held) == before and held._state.learner.known == done
    held._folder._value(f"PRAGMA max_page_count = {2**31}")
    told(held, 3)
    reopened(held, tmp_path).close()


FORKS = """
import os, sys, threading
sys.path.insert(0, {tests!r})
import test_memory_changes, torch, tqdm
tqdm.tqdm.set_lock(threading.RLock())  # its own lock is shared by all forks, and a killed one may hold it
torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # imports some parts of torch
for line in sys.stdin:
    child = os.fork()
    if not child:
        name, folder = line.rstrip().split(" ", 1)
        print(os.getpid(), flush=True)
        getattr(test_memory_changes, name)(folder)
        sys.exit()
    os.waitpid(child, 0)
    print("over", flush=True)
"""


@pytest.fixture(scope="module")
def forks():
    """`forks(name, folder)` lets a process of its own, which has no other threads, call a function of this module."""
    code = FORKS.format(tests=str(Path(__file__).parent))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True, env=environment) as parent:

        def call(name, folder):
            print(name, folder, file=parent.stdin, flush=True)
            return int(parent.stdout.readline()), parent.stdout

        yield call
        parent.stdin.close()


def digest(held):
    return hashlib.sha256(repr(answers(held, 3)).encode()).hexdigest()


def live(folder):  # of either kind of learner
    stored_memory.CHANGES = 7
    held = EARMemory.load(folder, encoder)
    start = held._state.learner.known
    print(start, digest(held), flush=True)
    for number in range(start, 100000):
        told(held, 1, number)
        print(number + 1, flush=True)


@pytest.mark.parametrize("name", ["best", "adapter"])
def test_a_kill_at_any_moment_loses_no_acknowledged_feedback(tmp_path, forks, name):
    """Each life loads the folder and learns until it is killed, some moments after it acknowledged some feedbacks."""
    with made(60, preset(name, depth=10)) as held:
        held.save(tmp_path)
    straight, rng, acknowledged = made(60, preset(name, depth=10)), np.random.default_rng(0), 0
    for _ in range(KILLS + 1):
        child, output = forks("live", tmp_path)
        known, found = output.readline().split()
        assert acknowledged <= int(known) <= acknowledged + 1
        told(straight, int(known) - straight._state.learner.known, start=straight._state.learner.known)
        assert found == digest(straight)  # bit for bit what it would be without any kill
        for _ in range(rng.integers(1, 6)):
            acknowledged = int(output.readline())
        time.sleep(rng.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        while (line := output.readline()) != "over\n":
            acknowledged = int(line)
    assert acknowledged > KILLS


def change_at_the_end(folder):
    held = made(5)
    held.save(folder)
    atexit.register(lambda: (held.add(["last"], ["last"]), held.close()))


def leave_a_child(folder):
    held = made(5)
    held.save(folder)
    held.add(["last"], ["last"])
    if not (child := os.fork()):
        signal.pause()
    (Path(folder).parent / "child").write_text(str(child))
    os._exit(0)


@pytest.mark.parametrize("life", [change_at_the_end, leave_a_child])
def test_every_change_of_a_life_is_kept(tmp_path, forks, life):
    """A change may be made at the very end; and a child that outlives its parent does not hold the folder."""
    (tmp_path / "m").mkdir()
    child, output = forks(life.__name__, tmp_path / "m")
    assert output.readline() == "over\n"
    with EARMemory.load(tmp_path / "m", encoder) as held:
        assert held.ids() == [0, 1, 2, 3, 4, "last"]
    if life is leave_a_child:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
