"""What a host is, read from fact files below one folder.

Each file is mounted read-only by name (`/proc/cpuinfo` at `<root>/proc/cpuinfo` and so on), because a container does not see all of them
under its own /proc and /sys. A file that is not there makes the fact unknown: null, never a guess.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from enginefleet_api.fingerprint import cpu_model, host_digest, host_facts, summary
from enginefleet_api.identity import Json

MAX_BYTES = 4 * 2**20
"""/proc/cpuinfo of 512 processors has 700 KiB."""


@dataclass(frozen=True, slots=True)
class HostView:
    """`host` is NodeFingerprint's spec.host as JSON: digest, summary, facts, context."""

    boot_id: str
    host: Mapping[str, Json]


def observe(root: Path) -> HostView:
    """Read all fact files below `root`."""
    kernel = os.uname()
    cpuinfo = _text(root, "proc/cpuinfo") or ""
    # Linux 6.1 and later tell the machine in a file; the kernel's own answer to uname(2) is the same fact
    machine = _line(root, "proc/sys/kernel/arch") or kernel.machine
    facts = host_facts(os=kernel.sysname.lower(), machine=machine, cpuinfo=cpuinfo)
    host: dict[str, Json] = {"digest": host_digest(facts), "summary": summary(facts), "facts": facts, "context": _context(root, cpuinfo)}
    return HostView(boot_id=_line(root, "proc/sys/kernel/random/boot_id") or "", host=host)


def _context(root: Path, cpuinfo: str) -> dict[str, Json]:
    """Recorded with the facts, not part of the identity: what may change speed or accuracy without making another device."""
    memory = re.search(r"^MemTotal:\s+(\d+) kB", _text(root, "proc/meminfo") or "", re.MULTILINE)
    driver = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", _line(root, "proc/driver/nvidia/version") or "")
    found: dict[str, Json] = {
        "cpuModel": cpu_model(cpuinfo),
        "processors": len(re.findall(r"^processor\s*:", cpuinfo, re.MULTILINE)) or None,
        "memoryKiB": int(memory[1]) if memory else None,
        "osRelease": _os_release(root),
        "kernel": _line(root, "proc/sys/kernel/osrelease"),
        "board": _line(root, "sys/firmware/devicetree/base/model"),
        "l4t": _line(root, "etc/nv_tegra_release"),
        "powerMode": _line(root, "var/lib/nvpmodel/status"),
        "nvidiaDriver": driver[1] if driver else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _os_release(root: Path) -> str | None:
    """PRETTY_NAME of os-release(5), without its quotes."""
    found = re.search(r"""^PRETTY_NAME=(["']?)(.*)\1\s*$""", _text(root, "etc/os-release") or "", re.MULTILINE)
    return found[2] if found else None


def _line(root: Path, name: str) -> str | None:
    """The first line that is not blank; device-tree texts end with NUL."""
    text = (_text(root, name) or "").replace("\0", "\n")
    return next((line.strip() for line in text.splitlines() if line.strip()), None)


def _text(root: Path, name: str) -> str | None:
    """A fact file's text; None when it is absent, unreadable or a folder (what a missing hostPath file may be mounted as)."""
    try:
        with (root / name).open("rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
