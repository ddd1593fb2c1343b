"""Many processes, on this machine or on many: clients and workers of `dask.distributed`.

A task is handed to `submit` with all that it needs and returns all that it made: workers share no disk with the
client, and a task whose worker dies is run again on another.
"""

import contextlib
import hashlib
import logging
import signal
from functools import lru_cache
from pathlib import Path

import dask
import numpy as np
import torch
from distributed import Client, LocalCluster, get_worker

from earlib import paths

REACHED = 10  # seconds in which a scheduler must answer
_SETTINGS = {
    "distributed.admin.large-graph-warning-threshold": "100GB",  # data goes as a task, to be made again if it is lost
    # Of the client itself, which starts the workers: they are given what they need in their own environment.
    "distributed.nanny.pre-spawn-environ": {},
    # A worker that dies is started again; one that takes longer than this is given up for good. Ample for a machine
    # with more to do than it can, where importing torch alone takes half a minute.
    "distributed.deploy.lost-worker-timeout": "10 minutes",
    "distributed.scheduler.no-workers-timeout": "15 minutes",  # what then has no worker left fails, and does not hang
}


class OtherSource(RuntimeError):
    """A worker would compute something else than the client."""


@contextlib.contextmanager
def connect(scheduler=None, workers=1):
    """Client of a scheduler; without an address, of a cluster on this machine that lives as long as the context."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # a lost worker's task is run again without a word
    with dask.config.set(_SETTINGS), contextlib.nullcontext(scheduler) if scheduler else _cluster(workers) as address:
        try:
            client = Client(address, timeout=REACHED, set_as_default=False)
        except (OSError, ValueError) as error:
            told = f"no scheduler answers at {scheduler}; start one with `dask scheduler`"
            raise ConnectionError(told) from error
        with client:
            if not client.scheduler_info(n_workers=-1)["workers"]:
                print(f"{address}: no worker yet; waiting for `dask worker {address} --nthreads 1`", flush=True)
            yield client


def _cluster(workers):
    """Workers of one thread on this machine."""
    environment = {"EARLIB_ROOT": str(paths.ROOT), "OMP_NUM_THREADS": "1"}
    quiet = {"dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    each = {"threads_per_worker": 1, "processes": True, "memory_limit": None, "preload": [__name__]}
    return LocalCluster(n_workers=workers, env=environment, **each, **quiet)


def dask_setup(worker):
    """Let a worker of this machine ignore Ctrl-C, which a terminal sends to it too: the client decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def submit(client, function, *arguments):
    """Future of `function(*arguments)` on a worker with the client's source."""
    return client.submit(_task, source(), function, *arguments, pure=False)


def _task(expected, function, *arguments):
    if source() != expected:
        address = get_worker().address
        raise OtherSource(f"the worker {address} has another earlib, torch or numpy than this; install the same")
    torch.set_num_threads(1)
    return function(*arguments)


@lru_cache(maxsize=1)
def source():
    """SHA-256 over the package's modules and the versions of what it computes with: equal ones compute the same."""
    digest = hashlib.sha256(f"torch {torch.__version__}, numpy {np.__version__}".encode())
    folder = Path(__file__).parent.parent
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)} ".encode() + file.read_bytes())
    return digest.hexdigest()
