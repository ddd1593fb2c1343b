"""Many processes, on this machine or on many: clients, workers and lost workers of `dask.distributed`.

A task is handed to `submit` with all that it needs and returns all that it made: workers share no disk with the
client, and a task whose worker dies is run again on another.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import signal
import uuid
from concurrent.futures import CancelledError
from functools import lru_cache
from pathlib import Path

import dask
import numpy as np
import torch
from distributed import Client, KilledWorker, LocalCluster, get_worker

from earlib import paths

REACHED = 10  # seconds in which a scheduler must answer
LOST = (CancelledError, asyncio.CancelledError)  # what waits for a task is told so when the scheduler is gone
_SETTINGS = {
    "distributed.admin.large-graph-warning-threshold": "100GB",  # data goes as a task, to be made again if it is lost
    # Of the client itself, which starts the workers: they are given what they need in their own environment.
    "distributed.nanny.pre-spawn-environ": {},
    # A worker that dies is started again; one that takes longer than this is given up for good. Ample for a machine
    # with more to do than it can, where importing torch alone takes half a minute.
    "distributed.deploy.lost-worker-timeout": "10 minutes",
    "distributed.scheduler.no-workers-timeout": "15 minutes",  # what then has no worker left fails, and does not hang
}


class Unreachable(OSError):
    """There is no scheduler where one was expected."""


class OtherSource(RuntimeError):
    """A worker would compute something else than the client."""


def check(scheduler):
    """Refuse what cannot be the address of a scheduler; None stands for this machine."""
    if scheduler is not None and not re.fullmatch(r"(tcp|tls)://.+:[0-9]+", scheduler):
        raise Unreachable(f"scheduler {scheduler!r}: expected an address such as tcp://host:8786")


@contextlib.contextmanager
def connect(scheduler=None, workers=1):
    """Client of a scheduler; without an address, of a cluster on this machine that lives as long as the context."""
    check(scheduler)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # a lost worker is told in one line, by `Watch`
    with contextlib.ExitStack() as stack:
        stack.enter_context(dask.config.set(_SETTINGS))
        stack.callback(_restore, dict(os.environ))  # a worker's nanny writes into the environment of this process
        address = scheduler or stack.enter_context(
            LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=None,
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
                preload=[__name__],
                env={"EARLIB_ROOT": str(paths.ROOT), "OMP_NUM_THREADS": "1"},
            )
        )
        try:
            client = stack.enter_context(Client(address, timeout=REACHED, set_as_default=False))
        except (OSError, ValueError) as error:
            raise Unreachable(
                f"no scheduler answers at {scheduler or 'this machine'} ({' '.join(str(error).split())}); "
                "start one with `dask scheduler`"
            ) from error
        if not client.scheduler_info(n_workers=-1)["workers"]:
            print(f"{address}: no worker yet; waiting for `dask worker {address} --nthreads 1`", flush=True)
        yield client


def _restore(before):
    for name in os.environ.keys() - before:
        del os.environ[name]
    os.environ.update(before)


def dask_setup(worker):
    """Let a worker of this machine ignore Ctrl-C, which a terminal sends to it too: the client decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Watch:
    """Hears when a task starts, and says in a line when one has to start again because its worker died.

    `started` is called with the name of a task and the address of its worker, the first time it starts.
    """

    def __init__(self, client, started=None):
        self.client, self.started, self.begun, self.workers = client, started, set(), {}
        self.topic = f"earlib-{uuid.uuid4().hex}"
        client.subscribe_topic(self.topic, self._hear)

    def _hear(self, event):
        _, (key, name, worker) = event
        self.workers[name] = worker
        if key in self.begun:
            print(f"{name}: its worker died; running again on {worker}", flush=True)
        elif self.started:
            self.started(name, worker)
        self.begun.add(key)

    def submit(self, function, name, *arguments):
        """Future of `function(*arguments)` on a worker with the client's source; messages call it by its name."""
        return self.client.submit(_task, function, name, self.topic, source(), *arguments, pure=False)


def _task(function, name, topic, expected, *arguments):
    worker = get_worker()
    if source() != expected:
        raise OtherSource(f"the worker {worker.address} has another earlib, torch or numpy than this; install the same")
    worker.log_event(topic, (worker.get_current_task(), name, worker.address))  # two tasks can have one name
    torch.set_num_threads(1)
    return function(*arguments)


@lru_cache(maxsize=1)
def source():
    """SHA-256 over the package's modules and the versions of what it computes with: equal ones compute the same."""
    digest = hashlib.sha256(f"torch {torch.__version__}, numpy {np.__version__}".encode())
    folder = Path(__file__).parent.parent
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)} {hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
    return digest.hexdigest()


def explain(error):
    """The reason for which a task failed, in one line."""
    if isinstance(error, KilledWorker):
        return "four workers died while they ran it: their memory may be too small for it"
    if isinstance(error, LOST):
        return "the scheduler is gone"
    return f"{type(error).__name__}: {error}"
