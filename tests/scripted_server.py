"""A real HTTP server on 127.0.0.1 that answers like an OpenAI-compatible endpoint, or fails as a test prescribes."""

import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from earlib.llm import Request


class Step(NamedTuple):
    """Response to one request."""

    body: object = None  # JSON, or bytes as they are
    status: int = 200
    headers: tuple = ()  # pairs
    delay: float = 0.0  # seconds before anything is sent
    drop: str = ""  # "before" any answer or "within" the body: the connection is closed


def completion(text, finish="stop", refusal=None, tokens=(10, 5)):
    """A chat completion with one choice."""
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    message = {"role": "assistant", "content": text, "refusal": refusal}
    choice = {"index": 0, "finish_reason": finish, "message": message}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


def says(text, **kwargs):
    """A good reply."""
    return Step(completion(text, **kwargs))


def error(status, message="no", code=None, param=None, headers=()):
    """An error in OpenAI's form."""
    return Step({"error": {"message": message, "type": "some", "code": code, "param": param}}, status, headers)


def ask_of(text, **kwargs):
    """A request with one message."""
    return Request([{"role": "user", "content": text}], **kwargs)


def questions(count):
    """Requests q0, q1, ..."""
    return [ask_of(f"q{number}") for number in range(count)]


class ScriptedServer(ThreadingHTTPServer):
    """Answers its first requests by `script`, in the order in which they come, and all others by `rule`.

    Attributes
    ----------
    requests : list of dict
        The bodies, in the order in which they came.
    headers : list of dict
        Their headers, by names in lower case.
    most : int
        Most requests that were open at once.
    listed : int
        Status of the list of models.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, script=(), rule=None, port=0):
        super().__init__(("127.0.0.1", port), _Handler)
        self.script = list(script)
        self.rule = rule or (lambda body: says("re: " + body["messages"][-1]["content"]))
        self.requests, self.headers = [], []
        self.open = self.most = 0
        self.listed = 200
        self.name = uuid.uuid4().hex  # ports are given out again, and replies are kept by endpoint
        self.lock = threading.Lock()

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, *_):
        """Ignore clients that are killed or time out."""

    @property
    def url(self):
        """Base URL for a client."""
        return f"http://127.0.0.1:{self.server_address[1]}/{self.name}/v1"

    def next_step(self, body, headers):
        with self.lock:
            self.requests.append(body)
            self.headers.append(headers)
            self.open += 1
            self.most = max(self.most, self.open)
            return self.script.pop(0) if self.script else self.rule(body)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open, as with real endpoints
    disable_nagle_algorithm = True

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        step = self.server.next_step(body, {name.lower(): value for name, value in self.headers.items()})
        try:
            if self.path != f"/{self.server.name}/v1/chat/completions":
                step = error(404, f"no {self.path} here")
            time.sleep(step.delay)
        finally:
            with self.server.lock:
                self.server.open -= 1
        if step.drop == "before":
            self.close_connection = True
            return
        data = step.body if isinstance(step.body, bytes) else json.dumps(step.body).encode()
        self.send_response(step.status)
        for name, value in {"Content-Type": "application/json", **dict(step.headers)}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if step.drop else data)
        self.close_connection = bool(step.drop)

    def do_GET(self):
        self.send_response(self.server.listed)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Log nothing."""
