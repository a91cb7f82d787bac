"""What a host is, read from fact files below one folder.

Each file is mounted read-only by name (`/proc/cpuinfo` at `<root>/proc/cpuinfo` and so on), because a container does not see all of them
under its own /proc and /sys. A file that is not there makes the fact unknown: null, never a guess.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from enginefleet_api import hostfiles
from enginefleet_api.fingerprint import host_digest, summary
from enginefleet_api.identity import Json

MAX_BYTES = 4 * 2**20
"""/proc/cpuinfo of 512 processors has 700 KiB."""


@dataclass(frozen=True, slots=True)
class HostView:
    """`host` is NodeFingerprint's spec.host as JSON: digest, summary, facts, context."""

    boot_id: str
    host: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Files:
    """hostfiles.Files below one folder."""

    root: Path

    def text(self, name: str) -> str | None:
        """None also for a folder, which is what a missing hostPath file may be mounted as."""
        try:
            with (self.root / name).open("rb") as file:
                return file.read(MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            return None

    def names(self, folder: str) -> Sequence[str]:
        try:
            return sorted(path.name for path in (self.root / folder).iterdir())
        except OSError:
            return ()


def observe(root: Path) -> HostView:
    """Read all fact files below `root`."""
    files, kernel = Files(root), os.uname()
    # Linux 6.1 and later tell the machine in a file; the kernel's own answer to uname(2) is the same fact
    machine = hostfiles.first_line(files.text("proc/sys/kernel/arch")) or kernel.machine
    facts = hostfiles.observe(files, os=kernel.sysname.lower(), machine=machine)
    host: dict[str, Json] = {
        "digest": host_digest(facts),
        "summary": summary(facts),
        "facts": facts,
        "context": hostfiles.context(files),
    }
    return HostView(boot_id=hostfiles.first_line(files.text("proc/sys/kernel/random/boot_id")) or "", host=host)
