"""A real S3 server over a folder, with or without a cluster.

    with S3Server() as s3:
        boto3.client("s3", endpoint_url=s3.endpoint, aws_access_key_id=s3.access_key, ...)

The server is versitygw (s3server/) with the folder as its store. It knows conditional writes (If-None-Match, If-Match), checksums, multipart
uploads and presigned URLs, and refuses uploads that end early. Clients use path-style addresses and signature version 4. An object `a` beside an
object `a/b` is not possible: keys are paths of files.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from localcluster import tools
from localcluster.errors import LocalClusterError
from localcluster.ports import free_port
from localcluster.progress import Progress, silent

REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class S3Endpoint:
    """Where an S3 server is reached, and how requests to it are signed."""

    inside: str
    """URL for pods and for processes inside the cluster's network"""
    outside: str
    """URL for everything else on this machine"""
    access_key: str
    secret_key: str
    region: str = REGION


class S3Server:
    """An S3 server on 127.0.0.1; a context manager.

    `root` keeps the objects and survives; without it a temporary folder is used and removed by close(). The server process ends with its
    owner, also when that one is killed. kill(), stop() and start() keep port, credentials and data.
    """

    def __init__(
        self, root: Path | None = None, *, access_key: str | None = None, secret_key: str | None = None, progress: Progress = silent
    ) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="enginefleet-s3-"))
        self.root = self._scratch / "objects" if root is None else root.absolute()
        self.access_key = access_key or secrets.token_hex(8)
        self.secret_key = secret_key or secrets.token_hex(16)
        self.region = REGION
        self.port = free_port()
        self._progress = progress
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The running server's process id, for tests that watch or stop the process."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> Self:
        """Start the server; returns once it accepts requests. Raises LocalClusterError with the server's words when it ends at once."""
        if self.pid is not None:
            return self
        self.root.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            # Standard input is the lifeline: the kernel closes our end when we
            # die, in whatever way. (A parent-death signal would follow the
            # thread that started the server, not the process.)
            self._process = subprocess.Popen(
                [str(tools.program("s3server", self._progress)), "--root", str(self.root), "--listen", f"127.0.0.1:{self.port}",
                 "--region", self.region, "--exit-on-stdin-eof", "--scratch", str(self._scratch)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env={"PATH": os.defpath, "S3_ACCESS_KEY": self.access_key, "S3_SECRET_KEY": self.secret_key},
            )  # fmt: skip
        assert self._process.stdout is not None
        if not _wait_for_announcement(self._process.stdout):
            words = self._log.read_text(errors="replace").strip()
            self.stop()
            raise LocalClusterError(
                f"the S3 server ended at once: {words}",
                f"Its folder is {self.root}: the file system must know user.* extended attributes (ext4, xfs, btrfs do; tmpfs since Linux 6.6).",
            )
        return self

    def stop(self) -> None:
        """End the server in an orderly way."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL the server, as a crash would."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop the server and remove what was not asked for: its log and a temporary store."""
        self.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self._scratch / "server.log"

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _wait_for_announcement(stdout: IO[bytes]) -> bool:
    """Read until the server says that it listens; False when it ended before."""
    return any(line.startswith(b"listening ") for line in iter(stdout.readline, b""))
