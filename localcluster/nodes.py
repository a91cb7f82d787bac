"""What a node is, and the folder of fact files that stands for its file system."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.errors import LocalClusterError

COPIED_FACTS = ("etc/os-release", "proc/cpuinfo", "proc/meminfo", "proc/version", "proc/sys/kernel/osrelease")
"""Files of this machine that a new node gets a copy of, so that pods which mount a whole folder (/proc, /etc, /) find them."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node to add.

    `root` is the folder that hostPath volumes of this node's pods resolve in; without it one is made in the cluster's folder. `facts` are
    files to write there: path relative to the root -> text. `taints` have the form key=value:Effect. `memory` and `cpus` are what the
    node says it has; they are not enforced.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    cpus: int = 4
    memory: str = "8Gi"
    extended: Mapping[str, str] = field(default_factory=dict)
    root: Path | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


def parse_taint(text: str) -> dict[str, str]:
    """key=value:Effect or key:Effect as the API wants it. Raises LocalClusterError when it has another form."""
    found = re.fullmatch(r"([^=:]+)(?:=([^:]*))?:(NoSchedule|PreferNoSchedule|NoExecute)", text)
    if not found:
        raise LocalClusterError(f"taint {text!r} is not key=value:Effect", "Effects are NoSchedule, PreferNoSchedule, NoExecute.")
    return {"key": found[1], "value": found[2] or "", "effect": found[3]}


def write_facts(root: Path, spec: NodeSpec) -> None:
    """Fill a node's folder: the given facts, then what is missing of the usual ones."""
    for name, text in spec.facts.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in COPIED_FACTS:
        source, path = Path("/") / name, root / name
        if not path.exists() and source.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source.read_bytes())
    identity = {"etc/machine-id": secrets.token_hex(16), "etc/hostname": spec.name}
    for name, text in identity.items():
        path = root / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")


BOOT_ID = "proc/sys/kernel/random/boot_id"


def write_boot_id(root: Path) -> None:
    """A new boot id, as after a reboot."""
    path = root / BOOT_ID
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{uuid.uuid4()}\n")


def read_boot_id(root: Path) -> str:
    """The boot id that a node has, or says once it runs."""
    return (root / BOOT_ID).read_text().strip()
