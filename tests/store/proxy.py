"""A proxy between a client and the S3 server that answers wrongly when told to.

Requests go through with their Host header, which the client signed. A `Fault` applies to the next `times` requests that it matches.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from localcluster.s3 import S3Server
from tests.store.support import admin

FOREVER = 10**6


@dataclass
class Fault:
    """unavailable: 503. slow: waits first. truncate: half of the body, then the connection ends. flip: one byte of the body is another.
    lose-answer: the request is done, its answer lost. ignore-conditions: writes although a condition forbids it."""

    kind: Literal["unavailable", "slow", "truncate", "flip", "lose-answer", "ignore-conditions"]
    method: str = "GET"
    times: int = FOREVER
    seconds: float = 0.0
    applied: int = 0


class FaultyProxy(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, s3: S3Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.s3 = s3
        self.faults: list[Fault] = []
        self.requests = 0
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def next_fault(self, method: str) -> Fault | None:
        with self._lock:
            self.requests += 1
            for fault in self.faults:
                if fault.method == method and fault.applied < fault.times:
                    fault.applied += 1
                    return fault
        return None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Broken connections are what this proxy is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.next_fault(self.command)
        kind = fault.kind if fault else ""
        if kind == "unavailable":
            self._answer(503, {}, b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")
            return
        if kind == "slow" and fault is not None:
            time.sleep(fault.seconds)
        if kind == "ignore-conditions" and self.command == "PUT":
            bucket, _, key = self.path.lstrip("/").partition("/")
            answer = admin(self.server.s3).put_object(Bucket=bucket, Key=key, Body=body)
            self._answer(200, {"ETag": answer["ETag"]}, b"")
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.s3.port, timeout=30)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    upstream.putheader(name, value)
            upstream.endheaders(body)
            response = upstream.getresponse()
            content = response.read()
            if kind == "lose-answer":
                self.close_connection = True
                return
            headers = {name: value for name, value in response.getheaders() if name.lower() not in ("connection", "transfer-encoding")}
            if kind == "flip" and content:
                content = content[:-1] + bytes([content[-1] ^ 1])
            self._answer(response.status, headers, content, cut=kind == "truncate")
        finally:
            upstream.close()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle  # noqa: N815

    def _answer(self, status: int, headers: dict[str, str], content: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True


@contextmanager
def faulty(s3: S3Server) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(s3)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
