"""A child process that holds an engine: loading one is running code, and a crash must not take the Job's report with it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from enginefleet_api.errors import PermanentError

from ..gate.arrays import Array
from ..io import Progress
from .classify import crashed, oom_kills, refused
from .frames import decode, encode

POLL_SECONDS = 0.5
"""How often a wait for the child looks at cancellation and deadline."""
CLOSE_SECONDS = 5
LOG_BYTES = 16384


class Child:
    """`python -m <module>` that answers one frame with one frame. Use as a context manager: leaving it ends the process.

    `environment` replaces this process's variables, but for what Python needs to find its modules.
    """

    def __init__(self, module: str, progress: Progress, environment: Mapping[str, str] | None = None) -> None:
        self._progress = progress
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._ooms = oom_kills()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            # what this process imports, and nothing from the folder that it happens to stand in
            env={**(os.environ if environment is None else environment)}
            | {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)

    def ask(self, header: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> tuple[dict[str, Any], dict[str, Array]]:
        """The answer. Raises what the child reported, what its death means, or TransientFault when the work must end."""
        try:
            for part in encode(header, arrays or {}):
                self._write(part)
            answer, results = decode(self._read)
        except (EOFError, BrokenPipeError) as error:
            raise self._death() from error
        except ValueError as error:
            raise PermanentError("EngineCrashed", f"the engine's process answered what is no answer: {error}.", "See the log.") from error
        if "error" in answer:
            raise refused(str(answer["error"]), str(header.get("do")), self.log())
        return answer, results

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        """The last 16 KB that the child wrote to its standard error."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_BYTES))
        return self._log.read().decode(errors="replace")

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._progress.check()
            if select.select([], [self._in], [], POLL_SECONDS)[1]:
                view = view[os.write(self._in, view[: 1 << 16]) :]

    def _read(self, size: int) -> bytes:
        parts, left = [], size
        while left:
            self._progress.check()
            if not select.select([self._out], [], [], POLL_SECONDS)[0]:
                continue
            part = os.read(self._out, min(left, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _death(self) -> Exception:
        try:
            code = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return crashed(code, self.log(), out_of_memory=oom_kills() > self._ooms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            if error is None:
                assert self._process.stdin is not None
                self._process.stdin.close()
                try:
                    self._process.wait(CLOSE_SECONDS)
                except subprocess.TimeoutExpired:
                    self._process.kill()
            else:
                self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()
