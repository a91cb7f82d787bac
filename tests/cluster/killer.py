"""A proxy before the API server that counts the operator's writes and kills it right after the one that it was told to.

The write has happened when the operator dies, and its answer never arrives: the moment that a controller must survive everywhere.
"""

from __future__ import annotations

import http.client
import http.server
import ssl
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class KillProxy:
    """Plain HTTP on loopback in front of `server` (https URL, CA file). `arm(n, kill)`: call `kill` after the n-th write from then on.

    Leases and events are not counted: they decide nothing. Nor is what comes over a connection from before: it is of an earlier life, and was on its way
    when that was killed.
    """

    def __init__(self, server: str, ca_file: str) -> None:
        parts = urlsplit(server)
        self._host, self._port = str(parts.hostname), int(parts.port or 443)
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._lock = threading.Lock()
        self._left = self._life = 0
        self._kill: Callable[[], None] = lambda: None
        self.writes: list[str] = []
        self.faulty = 0
        """Each so many-th request goes wrong, watches left out; 0: none does."""
        self.faults: dict[str, int] = {}
        """How often, by what went wrong."""
        self._requests = 0
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """The operator's own log says enough."""

            def setup(self) -> None:
                super().setup()
                self.life = proxy.life
                self.upstream = proxy.upstream()

            def finish(self) -> None:
                self.upstream.close()
                super().finish()

            def _forward(self) -> None:
                proxy.forward(self, self.upstream, self.life)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _forward  # noqa: N815 - names that http.server looks for

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """A killed client leaves broken pipes behind."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def life(self) -> int:
        """How often it was armed."""
        return self._life

    def arm(self, writes: int, kill: Callable[[], None]) -> None:
        with self._lock:
            self._life += 1
            self._left, self._kill, self.writes = writes, kill, []

    def upstream(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._host, self._port, context=self._tls, timeout=400)

    def forward(self, request: http.server.BaseHTTPRequestHandler, upstream: http.client.HTTPSConnection, life: int) -> None:
        """Answer one request; its connection stays open but after a watch, whose end is the end of its connection, and after the last write."""
        body = request.rfile.read(int(request.headers.get("Content-Length", "0")))
        headers = {k: v for k, v in request.headers.items() if k.lower() not in ("host", "connection", "accept-encoding")}
        request.close_connection = True
        fault = self._fault(request.path)
        if fault in ("503", "429"):
            request.send_response(int(fault))
            request.send_header("Content-Length", "0")
            request.send_header("Retry-After", "1")
            request.end_headers()
            return
        upstream.request(request.command, request.path, body or None, headers)
        response = upstream.getresponse()
        if fault == "answer lost":
            response.read()
            return
        if request.command in WRITES and response.status < 300 and self._counted(request, life):
            return
        request.send_response(response.status)
        request.send_header("Content-Type", response.headers.get("Content-Type", "application/json"))
        if "watch" in parse_qs(urlsplit(request.path).query):
            request.send_header("Connection", "close")
            request.end_headers()
            while chunk := response.read1(65536):
                request.wfile.write(chunk)
                request.wfile.flush()
            return
        content = response.read()
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)
        request.close_connection = response.will_close

    def _fault(self, path: str) -> str:
        """What goes wrong with this request; "": nothing. Refused, put off, and done with the answer lost, in turn."""
        with self._lock:
            if not self.faulty or "watch" in parse_qs(urlsplit(path).query):
                return ""
            self._requests += 1
            if self._requests % self.faulty:
                return ""
            kind = ("503", "answer lost", "429")[self._requests // self.faulty % 3]
            self.faults[kind] = self.faults.get(kind, 0) + 1
            return kind

    def _counted(self, request: http.server.BaseHTTPRequestHandler, life: int) -> bool:
        """Whether this write was the last one that the operator lives to do."""
        path = urlsplit(request.path).path
        if "/leases" in path or path.endswith("/events"):
            return False
        with self._lock:
            if life != self._life:
                return False
            self.writes.append(f"{request.command} {path}")
            self._left -= 1
            if self._left != 0:
                return False
            self._kill()
            return True
