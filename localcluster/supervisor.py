"""Starts and ends the process that a cluster lives and dies with (node/supervise.go)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import IO

from localcluster.errors import LocalClusterError, UnsupportedHost

FALLBACK = "Without it the demo runs on a cluster of yours: make demo KUBE_CONTEXT=<context>."


class Supervisor:
    """The outer process of a cluster, and the number of its first process inside."""

    def __init__(self, pid: int, inner: int, lifeline: IO[bytes] | None = None) -> None:
        self.pid = pid
        """process id of the supervisor"""
        self.inner = inner
        """process id, seen from outside, of the first process in the cluster's namespaces"""
        self._lifeline = lifeline

    @classmethod
    def start(cls, localnode: Path, bwrap: Path, directory: Path, *, detached: bool, remove: bool) -> Supervisor:
        """Make the namespaces and the network. The cluster ends with this process unless it is detached.

        Raises UnsupportedHost when this machine does not let an ordinary user do that.
        """
        log_path = directory / "logs" / "supervisor.log"
        argv = [str(localnode), "supervise", "--dir", str(directory), "--bwrap", str(bwrap)]
        argv += ["--remove"] if remove else []
        argv += [] if detached else ["--lifeline"]
        with log_path.open("ab") as log:
            # A session of its own: Ctrl-C is for us, who then end it in order.
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL if detached else subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        assert process.stdout is not None
        with process.stdout as stdout:
            line = stdout.readline()
        if not line:
            process.wait()
            words = log_path.read_text(errors="replace").strip() if log_path.exists() else "no message"
            raise explain(words)
        # From here on we know the process by its number only, as a later
        # command does that finds it in the cluster's folder.
        process.returncode = 0
        return cls(process.pid, int(json.loads(line)["pid"]), process.stdin)

    def end(self) -> None:
        """End the cluster with all that is in it, and wait for that."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            handle = -1
        if handle >= 0:
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            _wait(handle)
            os.close(handle)
        if self._lifeline is not None:
            self._lifeline.close()
        with contextlib.suppress(ChildProcessError):  # started by another process
            os.waitpid(self.pid, 0)


def _wait(handle: int) -> None:
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    if not poller.poll(30_000):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        poller.poll()


def explain(words: str) -> LocalClusterError:
    """The error for what the supervisor said before it ended."""
    restriction = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if "user namespaces" in words or "bubblewrap" in words:
        if restriction.exists() and restriction.read_text().strip() == "1":
            hint = "AppArmor restricts user namespaces (Ubuntu 24.04 does by default): sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        else:
            hint = (
                "Allow user namespaces: sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone; a container needs --privileged."
            )
        return UnsupportedHost(f"this machine can't run nodes: {words}", f"{hint}\n  {FALLBACK}")
    if words.startswith(("Error: network", "network")):
        return UnsupportedHost(f"this machine can't make the cluster's network: {words}", f"sudo modprobe -a bridge veth\n  {FALLBACK}")
    return LocalClusterError(f"the cluster's supervisor ended at once: {words}")
