"""What the fact files of a host say, as facts: pure functions over texts, standard library only.

Two read such files: the node agent below its mounts, and a builder by hand. A pod does not see them all (its runtime masks /sys/firmware), so a
file that is not there makes a fact unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from .fingerprint import SIMULATED_MARK, cpu_model, gpu_name, host_facts
from .identity import Json
from .jetsons import BOARDS

_TREE = "sys/firmware/devicetree/base/"


class Files(Protocol):
    """Fact files below a host's root; names are relative to it."""

    def text(self, name: str) -> str | None:
        """A file's text; None when it is absent, unreadable or a folder."""

    def names(self, folder: str) -> Sequence[str]:
        """What lies in a folder, sorted; nothing when it is absent or unreadable."""


def first_line(text: str | None) -> str | None:
    """The first line that is not blank; texts of a device tree end with NUL."""
    return next((line.strip() for line in (text or "").replace("\0", "\n").splitlines() if line.strip()), None)


def board(files: Files) -> str | None:
    """The device tree's name of the board. People change it on their own carriers: for people only."""
    return first_line(files.text(_TREE + "model"))


def jetson(files: Files) -> dict[str, Json] | None:
    """{"module", "l4t"} of a Jetson, each None when it is unknown; None for a host that is none."""
    compatible = files.text(_TREE + "compatible") or ""
    release = files.text("etc/nv_tegra_release")
    if "nvidia,tegra" not in compatible and release is None:
        return None
    told = (compatible, files.text(_TREE + "nvidia,boardids"), files.text(_TREE + "nvidia,dtsfilename"))
    return {"module": module_part(*told), "l4t": l4t_release(release)}


def module_part(compatible: str | None, board_ids: str | None, dts_name: str | None) -> str | None:
    """The module's part number without revision, like `p3767-0000`; the first of the texts that names exactly one decides.

    `compatible`: names ending with NUL, like nvidia,p3768-0000+p3767-0000 (since L4T 35). `board_ids`: like 3668:0000 or 3448-0002.
    `dts_name`: path of the tree's source, like …/tegra186-quill-p3310-1000-c03-00-base.dts (L4T 32).
    """
    for text in (compatible, re.sub(r"(?<!\d)(\d{4})[:-](\d{4})", r"p\1-\2", board_ids or ""), (dts_name or "").rpartition("/")[2]):
        parts: set[str] = {part for part in re.findall(r"(?<![a-z0-9])p\d{4}-\d{4}", text or "") if part[:5] in BOARDS}
        if len(parts) == 1:
            return parts.pop()
    return None


def l4t_release(text: str | None) -> str | None:
    """`36.4.3` of `# R36 (release), REVISION: 4.3, …`; None when the text is another."""
    found = re.search(r"^#\s*R(\d+) \(release\), REVISION: (\d+(?:\.\d+)*)", text or "", re.MULTILINE)
    return f"{found[1]}.{found[2]}" if found else None


def power_mode(status: str | None, conf: str | None) -> str | None:
    """`2 (MAXN_SUPER)` of nvpmodel's status file (`pmode:0002 …`) and its table of modes; the number alone without the table.

    The mode that was asked for: a mode that needs a reboot, or a service that failed, is not seen here; clocks tell.
    """
    found = re.search(r"pmode:(\d+)", status or "")
    if not found:
        return None
    number = int(found[1])
    name = re.search(rf"<\s*POWER_MODEL\s+ID={number}\s+NAME=(\S+?)\s*>", conf or "")
    return f"{number} ({name[1]})" if name else str(number)


def gpus(files: Files) -> list[dict[str, Json]]:
    """What the kernel driver of discrete GPUs tells: each kind once, {"name"} and, where the GPU is cut, {"mig": ids of its instances}."""
    root, capabilities = "proc/driver/nvidia/gpus", "proc/driver/nvidia/capabilities"
    kinds: list[dict[str, Json]] = []
    for address in files.names(root):
        told = dict(re.findall(r"^([^:\n]+?)\s*:\s*(.*?)\s*$", files.text(f"{root}/{address}/information") or "", re.MULTILINE))
        kind: dict[str, Json] = {"name": gpu_name(told["Model"])[0] if told.get("Model") else None}
        if minor := told.get("Device Minor"):
            instances = [name for name in files.names(f"{capabilities}/gpu{minor}/mig") if re.fullmatch(r"gi\d+", name)]
            if instances:
                kind["mig"] = [*sorted(instances, key=lambda name: int(name[2:]))]
        if kind not in kinds:
            kinds.append(kind)
    return sorted(kinds, key=lambda kind: (str(kind["name"]), str(kind.get("mig", ""))))


def observe(files: Files, *, os: str, machine: str) -> dict[str, Json]:
    """The hard facts of a host (schema version 1); see fingerprint.host_facts."""
    cpuinfo = files.text("proc/cpuinfo") or ""
    marks = (cpu_model(cpuinfo), board(files))
    simulated = next((mark for mark in marks if mark and mark.startswith(SIMULATED_MARK)), None)
    return host_facts(os=os, machine=machine, cpuinfo=cpuinfo, gpus=gpus(files), jetson=jetson(files), simulated=simulated)


def context(files: Files) -> dict[str, Json]:
    """Recorded with the facts, not part of the identity: what may change speed or accuracy without making another device."""
    cpuinfo = files.text("proc/cpuinfo") or ""
    memory = re.search(r"^MemTotal:\s+(\d+) kB", files.text("proc/meminfo") or "", re.MULTILINE)
    driver = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", first_line(files.text("proc/driver/nvidia/version")) or "")
    release = re.search(r"""^PRETTY_NAME=(["']?)(.*)\1\s*$""", files.text("etc/os-release") or "", re.MULTILINE)
    found: dict[str, Json] = {
        "cpuModel": cpu_model(cpuinfo),
        "processors": len(re.findall(r"^processor\s*:", cpuinfo, re.MULTILINE)) or None,
        "memoryKiB": int(memory[1]) if memory else None,
        "osRelease": release[2] if release else None,
        "kernel": first_line(files.text("proc/sys/kernel/osrelease")),
        "board": board(files),
        "l4t": first_line(files.text("etc/nv_tegra_release")),
        "powerMode": power_mode(files.text("var/lib/nvpmodel/status"), files.text("etc/nvpmodel.conf")),
        "nvidiaDriver": driver[1] if driver else None,
    }
    return {name: value for name, value in found.items() if value is not None}
