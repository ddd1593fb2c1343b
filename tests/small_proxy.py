"""A small proxy: serves absolute addresses from one server, refuses tunnels, and notes what it was asked."""

import contextlib
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Proxy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
        address = f"http://127.0.0.1:{self.server.behind}{urlsplit(self.path).path}"
        asked = urllib.request.Request(address, body, dict(self.headers), method=self.command)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(asked) as found:
            content = found.read()
            self.send_response(found.status)
            for name in ("Content-Type", "ETag", "X-Repo-Commit", "Content-Length"):
                if found.headers[name]:
                    self.send_header(name, found.headers[name])
            self.end_headers()
            self.wfile.write(content)

    do_HEAD = do_POST = do_GET

    def do_CONNECT(self):
        self.server.asked.append(f"CONNECT {self.path}")
        self.send_error(502)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(handler, **attributes):
    """A server on this machine, on a port of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    vars(server).update(attributes)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def proxy(monkeypatch, behind, *variables):
    """Let environment variables name a proxy, which serves from the port `behind`; yields what it is asked."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        for variable in (name, name.upper()):
            monkeypatch.setenv(variable, "")  # put back afterwards, since the package adds the loopback to no_proxy
            monkeypatch.delenv(variable)
    with serving(Proxy, behind=behind, asked=[]) as server:
        for variable in variables:
            monkeypatch.setenv(variable, f"http://127.0.0.1:{server.server_port}")
        yield server.asked
