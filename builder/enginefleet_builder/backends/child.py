"""A child process that holds an engine: loading one is running code, and a crash must not take the Job's report with it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
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
        # what this process imports, and nothing from the folder that it happens to stand in
        imports = {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
        self._start([sys.executable, "-P", "-m", module], {**(os.environ if environment is None else environment)} | imports, progress)

    def _start(self, command: Sequence[str], environment: Mapping[str, str], progress: Progress) -> None:
        self._progress = progress
        self._busy = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._ooms = oom_kills()
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, bufsize=0, env=dict(environment)
            )
        except OSError:
            self._log.close()
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)

    def ask(self, header: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> tuple[dict[str, Any], dict[str, Array]]:
        """The answer. Raises what the child reported, what its death means, or TransientFault when the work must end."""
        self._busy = True
        try:
            for part in encode(header, arrays or {}):
                self._write(part)
            answer, results = decode(self._read)
            while self._told(answer):
                answer, results = decode(self._read)
            self._busy = False
        except (EOFError, BrokenPipeError) as error:
            raise self._death() from error
        except ValueError as error:
            raise PermanentError("EngineCrashed", f"the engine's process answered what is no answer: {error}.", "See the log.") from error
        self._require_done(answer, header)
        return answer, results

    def _told(self, answer: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Whether the frame is news of work that goes on; the answer follows."""
        return False

    def _require_done(self, answer: Mapping[str, Any], header: Mapping[str, Any]) -> None:
        """Raise what the child reported instead of an answer."""
        if "error" in answer:
            raise refused(str(answer["error"]), str(header.get("do")), self.log())

    def _check(self) -> None:
        """Raise when the work must end."""
        self._progress.check()

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
            self._check()
            if select.select([], [self._in], [], POLL_SECONDS)[1]:
                view = view[os.write(self._in, view[: 1 << 16]) :]

    def _read(self, size: int) -> bytes:
        parts, left = [], size
        while left:
            self._check()
            if not select.select([self._out], [], [], POLL_SECONDS)[0]:
                continue
            part = os.read(self._out, min(left, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _ended(self) -> int:
        """The exit code, as subprocess gives it; a process that lingers is killed."""
        try:
            return self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _death(self) -> Exception:
        return crashed(self._ended(), self.log(), out_of_memory=oom_kills() > self._ooms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            # a child whose answer nobody waited for is at work still, and would not see that its input ended
            if error is None and not self._busy:
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
