"""Fact files of this machine, below a root folder that tests replace; and what sysfs says of a Jetson's GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginefleet_api.hostfiles import first_line

MAX_BYTES = 4 * 2**20
ROOT = Path("/")

DEVFREQ = "sys/class/devfreq"
GPU_NODES = ("gv11b", "gp10b", "ga10b", "gpu")
"""Ends of the GPU's name below devfreq: 17000000.gv11b (Xavier), .gp10b (TX2), .ga10b (Orin with JetPack 5), .gpu (Orin with JetPack 6); Thor's is
gpu-gpc-0."""
LOADS = ("sys/devices/platform/gpu.0/load", "sys/devices/gpu.0/load", "sys/devices/platform/bus@0/17000000.gpu/load")


@dataclass(frozen=True, slots=True)
class HostFiles:
    """hostfiles.Files below `root`."""

    root: Path = ROOT

    def text(self, name: str) -> str | None:
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

    def number(self, name: str) -> int | None:
        text = (first_line(self.text(name)) or "").removeprefix("+")
        return int(text) if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() else None


def jetson_state(files: HostFiles) -> Mapping[str, Any]:
    """What sysfs tells of a Jetson's GPU, in the units and by the names of nvml.observe; nothing on other machines."""
    found: dict[str, Any] = {}
    gpu = next((name for name in files.names(DEVFREQ) if name.rpartition(".")[2] in GPU_NODES or name == "gpu-gpc-0"), None)
    if gpu is not None:
        for name, file in (("smClock", "cur_freq"), ("smClockMin", "min_freq"), ("smClockMax", "max_freq")):
            hertz = files.number(f"{DEVFREQ}/{gpu}/{file}")
            found[name] = None if hertz is None else hertz // 1_000_000
    per_mille = next((load for name in (*LOADS, f"{DEVFREQ}/{gpu}/device/load") if (load := files.number(name)) is not None), None)
    found["load"] = None if per_mille is None else per_mille // 10
    for zone in files.names("sys/class/thermal"):
        kind = (first_line(files.text(f"sys/class/thermal/{zone}/type")) or "").lower()
        degrees = files.number(f"sys/class/thermal/{zone}/temp") if kind.startswith("gpu") else None
        # a sensor that is switched off says -256 °C
        if degrees is not None and degrees > -100_000:
            found["temperature"] = degrees // 1000
    return {name: value for name, value in found.items() if value is not None}
