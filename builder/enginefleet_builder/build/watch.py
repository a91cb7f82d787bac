"""Looks at the machine and at the engine's process around a measurement: what gate/conditions.py decides on. All of its I/O."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from enginefleet_api import fingerprint

from ..backends.base import DeviceSession, Session
from ..gate.conditions import Reading

NANOSECONDS, MICROSECONDS = 1e-9, 1e-6


def no_context() -> Mapping[str, str]:
    return {}


def watch_for(facts: Mapping[str, Any]) -> Watch:
    """Looks at the GPU where the engine of these facts runs on one."""
    if not fingerprint.runs_on_gpu(facts):
        return Watch()
    # not at the top: the device's package starts children, and most commands need none of it
    from .. import device

    seen = device.cuda()
    return Watch(lambda: device.state(seen).text())


class Watch:
    """`context`: what the device says of itself, see device.context. `root`: where /proc and /sys are looked for."""

    def __init__(self, context: Callable[[], Mapping[str, str]] = no_context, root: Path = Path("/")) -> None:
        self._context, self._root = context, root

    def look(self, session: Session | None = None) -> Reading:
        """`session`: whose process's threads are looked at."""
        ran, waited = self._scheduled(_pid(session))
        return Reading(time.monotonic(), ran, waited, self._limited(), {**self._host(), **self._context()})

    def memory(self, session: Session) -> dict[str, int]:
        """Bytes that the loaded engine holds: see Verdict.memory."""
        found = {}
        if isinstance(session, DeviceSession) and session.device_memory is not None:
            found["device"] = session.device_memory
        with suppress(OSError, ValueError, IndexError):
            pages = (self._root / f"proc/{_pid(session)}/statm").read_text().split()[1]
            found["host"] = int(pages) * os.sysconf("SC_PAGE_SIZE")
        return found

    def _scheduled(self, pid: int | None) -> tuple[float | None, float | None]:
        """(seconds on a CPU, seconds ready for one) of all threads of the process so far; threads that ended are left out."""
        ran = waited = 0
        try:
            for thread in (self._root / f"proc/{pid}/task").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):
                    on, ready, _ = (thread / "schedstat").read_text().split()
                    ran, waited = ran + int(on), waited + int(ready)
        except (OSError, ValueError):
            return None, None
        # kernels without CONFIG_SCHED_INFO, and sandboxes, have zeros there
        return (ran * NANOSECONDS, waited * NANOSECONDS) if ran else (None, None)

    def _limited(self) -> float | None:
        """Seconds that the control group's CPU limit (version 2, then 1) held this container back so far."""
        for file, name, unit in (("cpu.stat", "throttled_usec", MICROSECONDS), ("cpu/cpu.stat", "throttled_time", NANOSECONDS)):
            with suppress(OSError, ValueError, KeyError):
                lines = (self._root / "sys/fs/cgroup" / file).read_text().splitlines()
                return int(dict(line.split() for line in lines)[name]) * unit
        return None

    def _host(self) -> dict[str, str]:
        """Load and clocks of the CPUs."""
        found = {}
        with suppress(OSError):
            found["load"] = " ".join((self._root / "proc/loadavg").read_text().split()[:3])
        clocks = []
        for file in sorted((self._root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")):
            with suppress(OSError, ValueError):
                clocks.append(int(file.read_text()) // 1000)
        if clocks:
            found["cpuClock"] = f"{min(clocks)} to {max(clocks)} MHz"
        with suppress(OSError):
            found["cpuGovernor"] = (self._root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
        return found


def _pid(session: Session | None) -> int | None:
    pid = getattr(session, "pid", None)
    return pid if isinstance(pid, int) else None
