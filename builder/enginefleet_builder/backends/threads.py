"""Threads: how many an engine gets by `threads: auto` (the physical cores that this process may use, capped by the container's CPU limit), and
the one that linear algebra gets in processes where NumPy only carries arrays. Standard library only: what is set here counts before NumPy is imported.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

CARRIER: Mapping[str, str] = {"OPENBLAS_NUM_THREADS": "1"}
"""Variables of our own processes: a pool of threads for linear algebra costs a third of each start, and nothing is large enough for one. Others
than OpenBLAS, NumPy's own, are left alone: a runtime may use OpenMP for the engine.
"""
ONE_THREAD: Mapping[str, str] = {**CARRIER, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Of a process that runs nothing but somebody's NumPy code, whichever library that was built with."""


def resolve_threads(threads: str, cpus: Iterable[int] | None = None, root: Path = Path("/")) -> int:
    """`threads` as a number. `cpus`: those of the affinity mask; `root`: where /sys is looked for."""
    if threads != "auto":
        return int(threads)
    cpus = list(os.sched_getaffinity(0) if cpus is None else cpus)
    cores = {_core(cpu, root) for cpu in cpus}
    quota = _quota(root)
    return max(1, min(len(cores), len(cores) if quota is None else math.ceil(quota)))


def _core(cpu: int, root: Path) -> tuple[str, str]:
    """(package, core): two hyper-threads of one core are equal. A cpu of unknown topology is a core of its own."""
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    try:
        return (folder / "physical_package_id").read_text().strip(), (folder / "core_id").read_text().strip()
    except OSError:
        return "unknown", str(cpu)


def _quota(root: Path) -> float | None:
    """CPUs of the control group's limit (version 2, then 1); None without one."""
    with suppress(OSError, ValueError):
        quota, _, period = (root / "sys/fs/cgroup/cpu.max").read_text().strip().partition(" ")
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        folder = root / "sys/fs/cgroup/cpu"
        quota_us, period_us = int((folder / "cpu.cfs_quota_us").read_text()), int((folder / "cpu.cfs_period_us").read_text())
        return None if quota_us <= 0 else quota_us / period_us
    return None
