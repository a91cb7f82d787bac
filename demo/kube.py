"""kubectl, and `kubectl proxy` for reading and watching: the same for a local cluster and for anybody's own."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self


class KubeError(Exception):
    """A request that was refused, with the server's or kubectl's words."""


class Kube:
    """One cluster as one user: `argv` is kubectl with the flags that choose both. A context manager."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = list(argv)
        self._proxy: subprocess.Popen[str] | None = None
        self._forwards: dict[str, tuple[subprocess.Popen[str], int]] = {}
        self._port = 0

    def __enter__(self) -> Self:
        """Starts `kubectl proxy`, which adds the credentials to plain HTTP on this machine's loopback."""
        self._proxy, line = self._started("proxy", "--port=0")
        if "Starting to serve" not in line:
            self.close()
            raise KubeError(f"kubectl proxy did not start: {line.strip()}")
        self._port = int(line.rpartition(":")[2])
        return self

    def _started(self, *args: str) -> tuple[subprocess.Popen[str], str]:
        """A kubectl that stays, and the first line that it said."""
        process = subprocess.Popen(
            [*self.argv, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        return process, process.stdout.readline()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        processes = [process for process, _ in self._forwards.values()]
        for process in [*processes, *([self._proxy] if self._proxy is not None else [])]:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._proxy, self._forwards = None, {}

    def forward(self, namespace: str, pod: str, port: int) -> str:
        """127.0.0.1:PORT that leads to a port of a pod, through `kubectl port-forward`; the same as long as that runs."""
        known = self._forwards.get(f"{namespace}/{pod}:{port}")
        if known is None or known[0].poll() is not None:
            process, line = self._started("port-forward", "-n", namespace, f"pod/{pod}", f":{port}", "--address=127.0.0.1")
            if "Forwarding from" not in line:
                process.kill()
                raise KubeError(f"kubectl port-forward to {pod}: {line.strip()}")
            known = process, int(line.partition("->")[0].rpartition(":")[2])
            self._forwards[f"{namespace}/{pod}:{port}"] = known
        return f"127.0.0.1:{known[1]}"

    def kubectl(self, *args: str, input: str | None = None) -> str:
        """kubectl's output; KubeError with its words when it fails."""
        done = subprocess.run([*self.argv, *args], input=input, capture_output=True, text=True, check=False)
        if done.returncode:
            raise KubeError(f"kubectl {' '.join(args)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def get(self, path: str) -> Any:
        """The parsed answer of one GET; KubeError for any status but 200."""
        status, text = self.request("GET", path)
        if status != http.HTTPStatus.OK:
            raise KubeError(f"GET {path}: {status} {text.decode(errors='replace')[:300]}")
        return json.loads(text)

    def request(self, method: str, path: str, body: object = None, timeout: float = 30.0) -> tuple[int, bytes]:
        """Status and body."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()

    def watch(self, path: str, resource_version: str) -> Iterator[tuple[str, Any]]:
        """(ADDED | MODIFIED | DELETED | ERROR, object) until the server ends the watch. OSError when the connection breaks."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=330)) as connection:
            connection.request("GET", f"{path}?watch=1&timeoutSeconds=300&resourceVersion={resource_version}")
            response = connection.getresponse()
            while line := response.readline():
                event = json.loads(line)
                yield event["type"], event["object"]
