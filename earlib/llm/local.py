"""Language models on this machine: one file each, served on the loopback by llama-cpp-python, OpenAI-compatible.

The server lives in an environment of its own, `.venv-llm`, which `make llm` builds. It starts when the first reply is
needed and ends with the process that started it. One process at a time serves and the others wait, since two models at
once on one machine are slower than one after the other.
"""

import argparse
import os
import subprocess
import sys
import time
from importlib import resources
from urllib.parse import urlsplit

import requests
from filelock import FileLock

from earlib import paths
from earlib.core.config import near
from earlib.data.download import File, Unavailable, obtain
from earlib.data.proxies import respect_proxies
from earlib.llm import NoModel, Unreachable

HOST, PORT = "127.0.0.1", 8047  # fixed: replies are stored by address
CONTEXT = 4096  # tokens; five long memories, the prompt and the reply need about 1,500
STARTUP = 120.0  # seconds for loading a model
# Variables that the server inherits; it would take any of the others, as API_KEY or CHAT_FORMAT, for an option.
INHERITED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
# The server ends when its standard input does: a killed notebook leaves no server behind.
_SERVER = """
import os, runpy, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
runpy.run_module("llama_cpp.server", run_name="__main__", alter_sys=True)
"""


_ENTRIES = paths.read_yaml(resources.files("earlib.llm").joinpath("local.yaml"))
MODELS = {name: File(**entry) for name, entry in _ENTRIES.items()}
DEFAULT = "qwen2.5-coder-0.5b"


def file_name(name):
    """Name of a model's file in the folders of models, which is its publisher's."""
    return MODELS[name].url.rpartition("/")[2]


def address(name):
    """Endpoint of a model of this machine; a ValueError that names near matches for an unknown one."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}{near(name, MODELS)}; known: {', '.join(MODELS)}")
    return f"http://{HOST}:{PORT + list(MODELS).index(name)}/v1"


def check(name):
    """Raise NoModel if the server of a model is not installed."""
    if not (paths.model_server() / "installed").exists():
        raise NoModel(f"the server for {name} is not installed; `make llm` builds it (10 minutes, once)")


class Server:
    """A model served by this process, by the name in `MODELS`; it ends with the process or by `stop`."""

    def __init__(self, name):
        respect_proxies(local=True)
        self.name, self.address = name, address(name)
        self._process = self._turn = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        """Serve, unless the model is served already, and return when it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()  # it ended by itself
        check(self.name)
        try:
            file = obtain(file_name(self.name), MODELS[self.name], paths.model_folders(), "EARLIB_MODELS")
        except Unavailable as error:
            raise NoModel(str(error)) from error
        paths.build().mkdir(parents=True, exist_ok=True)
        self._turn = FileLock(paths.build() / "llm.lock", is_singleton=True, thread_local=False)  # one a process
        self._turn.acquire()
        began, log = time.monotonic(), paths.build() / f"{self.name}.log"
        options = {"model": file, "model_alias": self.name, "host": HOST, "port": urlsplit(self.address).port}
        options |= {"n_ctx": CONTEXT, "seed": 0}
        command = [paths.model_server() / ("Scripts" if os.name == "nt" else "bin") / "python", "-c", _SERVER]
        command += [text for key, value in options.items() for text in (f"--{key}", str(value))]
        with open(log, "wb") as written:
            environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
            streams = {"stdin": subprocess.PIPE, "stdout": written, "stderr": written}
            self._process = subprocess.Popen(command, env=environment, **streams)
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() - began > STARTUP:
                self.stop()
                last = " ".join(log.read_text(errors="replace").split()[-60:])
                told = f"the server for {self.name} at {self.address} did not come up"
                raise Unreachable(f"{told}. {log} ends: {last}")
            time.sleep(0.1)
        seconds = time.monotonic() - began
        print(f"{self.name} answers at {self.address} after {seconds:.1f} s", file=sys.stderr, flush=True)

    def stop(self):
        """End the server, if it runs."""
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()
        self._process = None
        self._turn.release()

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
            asked = {"model": server.name, "max_tokens": 16, "temperature": 0}
            asked["messages"] = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
            began = time.monotonic()
            reply = requests.post(f"{server.address}/chat/completions", json=asked, timeout=STARTUP).json()
            said, took = reply["choices"][0]["message"]["content"].strip(), time.monotonic() - began
            print(f"{server.name} says {said!r} after {took:.1f} s; `make reproduce` asks it from now on")
    except (NoModel, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
