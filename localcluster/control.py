"""Speaks with a cluster's first process (node/control.go) over its Unix socket: one JSON line there, one back."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.errors import LocalClusterError


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the cluster; `pid` is its number inside the cluster's PID namespace."""

    pid: int
    running: bool
    exit_code: int


class Control:
    """Starts, signals and ends the processes of one cluster, and opens relays to the outside."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def start(self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str], *, isolate: bool = False) -> None:
        """Start a process under a name. With `isolate` it is first of a PID namespace of its own: all it starts dies with it."""
        self._ask(op="start", name=name, argv=list(argv), log=str(log), env=[f"{k}={v}" for k, v in env.items()], isolate=isolate)

    def end(self, name: str, signal_number: int, grace: float = 10.0) -> None:
        """Send a signal and wait for the end; SIGKILL after `grace` seconds. No error when it is not running."""
        self._ask(op="end", name=name, signal=int(signal_number), grace=grace)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process by name."""
        self._ask(op="signal", name=name, signal=int(number))

    def relay(self, listening: socket.socket, address: str) -> None:
        """Hand over a listening socket of the outside; its connections go to `address` inside from now on."""
        self._ask([listening.fileno()], op="relay", address=address)

    def processes(self) -> dict[str, Process]:
        """Every process that was started, by name, also those that have ended."""
        found: dict[str, dict[str, Any]] = self._ask(op="status").get("processes") or {}
        return {name: Process(int(p["pid"]), bool(p["running"]), int(p["exit_code"])) for name, p in found.items()}

    def _ask(self, descriptors: Sequence[int] = (), **request: object) -> dict[str, Any]:
        # A Unix socket's address has at most 108 bytes, a test's folder often
        # more: name the folder by a descriptor.
        folder = -1
        try:
            folder = os.open(self._directory, os.O_PATH | os.O_DIRECTORY)
            with socket.socket(socket.AF_UNIX) as conversation:
                conversation.connect(f"/proc/self/fd/{folder}/control.sock")
                line = json.dumps(request).encode() + b"\n"
                sent = socket.send_fds(conversation, [line], list(descriptors))
                if sent < len(line):
                    conversation.sendall(line[sent:])
                with conversation.makefile("rb") as reader:
                    text = reader.readline()
        except OSError as error:
            raise LocalClusterError(
                f"the cluster in {self._directory} is not running ({error})", "Start it with `python -m localcluster up`."
            ) from error
        finally:
            if folder >= 0:
                os.close(folder)
        answer: dict[str, Any] = json.loads(text) if text else {"error": "the cluster's first process closed the connection"}
        if answer.get("error"):
            raise LocalClusterError(f"{request['op']} {request.get('name', '')}: {answer['error']}")
        return answer
