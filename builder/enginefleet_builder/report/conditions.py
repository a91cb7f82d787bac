"""The part of the page about what the figures of speed were measured under: marks and what they mean, machine before and after, memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..gate.conditions import SHARED, THROTTLED, UNSETTLED
from .cells import size, stored, table, text
from .data import ReportData
from .markup import Content
from .markup import element as e

MEANING = {
    THROTTLED: "Something held it back: it can be faster. A speed gate on it is inconclusive, except on a sustained run, which is there to show it.",
    SHARED: "Others used the device or its CPUs at the same time. A speed gate on it is inconclusive.",
    UNSETTLED: "Times or clocks were still changing. A speed gate on it is inconclusive.",
}
"""Of the kinds of marks, for the gate; as gate/verdict.py has it."""

WHEN = {"idle": "before the engine was loaded", "before": "before measuring", "after": "after measuring"}
NAMES = {
    "smClock": "GPU clock",
    "smClockMin": "lowest GPU clock",
    "smClockMax": "highest GPU clock",
    "memoryClock": "clock of the GPU's memory",
    "memoryClockMax": "highest clock of the GPU's memory",
    "throttled": "GPU clocks held down",
    "powerMode": "power mode",
    "powerLimit": "power limit",
    "gpuProcesses": "processes on the GPU",
    "gpuLoad": "load of the GPU",
    "memoryUsed": "GPU memory in use",
    "memoryTotal": "GPU memory",
    "cuda": "newest CUDA of the driver",
    "load": "load (1, 5, 15 minutes)",
    "cpuClock": "CPU clocks",
    "cpuGovernor": "CPU governor",
}
"""In words; others are shown as they are stored."""
MEMORY = {"device": "on the device", "host": "of its process"}


def conditions(data: ReportData) -> Content:
    marks = list(_marks(data))
    if not (marks or data.conditions or data.memory):
        return None
    return (
        _doubts(marks) if data.latency or data.speedup else None,
        _readings(data),
        e(
            "p",
            "The loaded engine holds ",
            [_held(*item, first=not place) for place, item in enumerate(data.memory.items())],
            ".",
        )
        if data.memory
        else None,
        stored(data, verdict="latency.marks, conditions, memory"),
    )


def _held(where: str, held: int, *, first: bool) -> Content:
    return "" if first else ", ", f"{size(held)} ", text(MEMORY.get(where, where))


def _marks(data: ReportData) -> Iterator[Content]:
    figures = [(f"batch {row.batch}", row.marks or []) for row in data.latency]
    figures += [(f"speed-up at batch {data.speedup.batch}", data.speedup.marks or [])] if data.speedup else []
    for figure, marks in figures:
        for mark in marks:
            kind, _, seen = mark.partition(": ")
            yield e("li", f"{figure}, ", e("b", text(kind)), ": ", text(seen), ". ", MEANING.get(kind))


def _doubts(marks: Sequence[Content]) -> Content:
    if not marks:
        return e("p", "Nothing was seen that makes the figures of speed doubtful, as far as this machine tells.")
    return e("p", "These figures of speed are doubtful:"), e("ul", marks, class_="lines")


def _readings(data: ReportData) -> Content:
    moments = [moment for moment in WHEN if data.conditions.get(moment)]
    names = list(dict.fromkeys(name for moment in moments for name in data.conditions[moment]))
    if not names:
        return None
    rows: list[Sequence[Content]] = []
    for name in names:
        values = [data.conditions[moment].get(name) for moment in moments]
        rows.append((text(NAMES.get(name, name)), *(text(value) if value is not None else None for value in values)))
    return table("the machine", ["", *(WHEN[moment] for moment in moments)], rows)
