"""The parts of the page about speed: latency by batch, with and without transfers, under load, at a camera's rate, end to end, speed-up. Pure.

What was not measured has no part; one line says what else can be asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from xml.etree.ElementTree import Element

from enginefleet_api.documents import EndToEnd, Latency, Speedup, Spread

from ..gate.conditions import kinds
from .cells import count, interval, percent, short, stored, table
from .data import ReportData, number
from .graphs import Scale, bar, scale_of
from .markup import Content
from .markup import element as e

TIMES = ("p50 ms", "p95 ms", "p99 ms")
STAGES = (("decode", "decode the pictures"), ("preprocess", "preprocess"), ("infer", "infer: the model"), ("postprocess", "postprocess"))


def latency(data: ReportData) -> Content:
    if not data.latency:
        return e("p", "Speed was not measured.")
    scale = scale_of((value for row in data.latency for value in (row.p50, row.p95, row.p99)), include=(Decimal(0),), margin=False)
    warm, doubtful = any(row.warm_up for row in data.latency), any(row.marks for row in data.latency)
    rows: list[Sequence[Content]] = [
        (
            f"batch {row.batch}",
            bar(scale, row.p50, row.p95, row.p99) if scale else None,
            *_times(row),
            short(row.throughput),
            count(row.iterations),
            *((short(row.warm_up),) if warm else ()),
            *((", ".join(marked(row)),) if doubtful else ()),
        )
        for row in data.latency
    ]
    more = [*(["warm-up s"] if warm else []), *(["marks"] if doubtful else [])]
    headings = ["batch", "p50, p95, p99", *TIMES, "samples a second", "runs", *more]
    whole = "with inputs copied to the device and outputs back" if any(row.transfers for row in data.latency) else "of the runtime alone"
    graph = f" The bar ends at p50, the line at p95, the dot is p99; the graph goes from 0 to {short(str(scale.high))} ms." if scale else ""
    return (
        e("p", f"Milliseconds of one run after warm-up, {whole}: without network, decoding and preprocessing.{graph}"),
        table("latency by batch size", headings, rows, numbers=range(2, 7 + warm), plot=1),
        _device(data.latency),
        _sustained(data.latency),
        _paced(data.latency),
        _speedup(data),
        _asked_for(data),
        stored(data, verdict="latency, speedup"),
    )


def end_to_end(data: ReportData) -> Content:
    measured = [(row, row.end_to_end) for row in data.latency if row.end_to_end is not None]
    if not measured:
        return None
    return (
        e(
            "p",
            "One batch from stored pictures to predictions, one stage after another in one process, as our own code does it: another server's"
            " code has other times. Each stage has its own percentiles; the shares are of the medians.",
        ),
        [_stages(row.batch, stages) for row, stages in measured],
        stored(data, verdict="latency.endToEnd"),
    )


def marked(row: Latency | Speedup) -> list[str]:
    """Kinds of a figure's marks; see conditions.MEANING."""
    return sorted(kinds(row.marks or []))


# ---- parts of latency ----


def _times(row: Spread | Latency) -> tuple[str, str, str]:
    return short(row.p50), short(row.p95), short(row.p99)


def _device(rows: Sequence[Latency]) -> Content:
    """On an accelerator: its own time, and what the host costs."""
    if not (found := [(row, row.device) for row in rows if row.device is not None]):
        return None
    graphs = any(row.cuda_graph is not None for row, _ in found)
    hosts = any(row.enqueue is not None for row, _ in found)
    heads = [*(["enqueue ms", "limit"] if hosts else []), *(["CUDA graph"] if graphs else [])]
    lines: list[Sequence[Content]] = [
        (
            f"batch {row.batch}",
            *_times(alone),
            short(_less(row.p50, alone.p50)),
            count(alone.iterations),
            *((short(row.enqueue), _limit(row.bound)) if hosts else ()),
            *(({True: "yes", False: "no", None: None}[row.cuda_graph],) if graphs else ()),
        )
        for row, alone in found
    ]
    bound = [str(row.batch) for row, _ in found if row.bound == "host"]
    return (
        e("h3", "The device alone"),
        e("p", "Without copying inputs and outputs: what a server sees that keeps them on the device."),
        table(
            "without transfers",
            ["batch", *TIMES, "transfers, p50 ms", "runs", *heads],
            lines,
            numbers=range(1, 7 if hosts else 6),
        ),
        e(
            "p",
            f"Bound by enqueueing at batch {', '.join(bound)}: the host takes as long to enqueue a run as the device to do it, so the device"
            " waits. A larger batch or a CUDA graph (benchmark.cudaGraph) helps, a faster device does not.",
        )
        if bound
        else None,
    )


def _limit(bound: str | None) -> Content:
    return e("b", "the host") if bound == "host" else "the device" if bound == "device" else None


def _less(whole: str, part: str) -> str | None:
    first, second = number(whole), number(part)
    return None if first is None or second is None else str(first - second)


def _sustained(rows: Sequence[Latency]) -> Content:
    lines: list[Sequence[Content]] = []
    for row in rows:
        if row.first is not None:
            lines.append((f"batch {row.batch}, first minute", *_times(row.first), count(row.first.iterations), None))
            lines.append((f"batch {row.batch}, last minute", *_times(row), count(row.iterations), _change(row.first.p95, row.p95)))
    if not lines:
        return None
    return (
        e("h3", "Under sustained load"),
        e("p", "What counts, above and for the gate, is the last minute. How much slower it is than the first shows throttling."),
        table("first and last minute", ["", *TIMES, "runs", "change of p95"], lines, numbers=range(1, 6)),
    )


def _change(before: str, after: str) -> str | None:
    first, last = number(before), number(after)
    return f"{(last - first) / first * 100:+.1f} %" if first and last is not None else None


def _paced(rows: Sequence[Latency]) -> Content:
    found = [(row.batch, row.paced) for row in rows if row.paced is not None]
    if not found:
        return None
    lines = [(f"{short(run.rate)} a second, batch {batch}", *_times(run), count(run.iterations), count(run.late)) for batch, run in found]
    return (
        e("h3", "At the cameras' rate"),
        e(
            "p",
            "Single runs that begin when the next pictures are there; between them the device idles and may slow its clocks, so they can take"
            " longer than runs in a row. Late is a run that is not done when the next pictures come.",
        ),
        table("paced run", ["samples", *TIMES, "runs", "late"], lines, numbers=range(1, 6)),
    )


def _speedup(data: ReportData) -> Content:
    found = data.speedup
    if found is None:
        return None
    pair = (("FP32 partner", found.partner), ("this engine", found.engine))
    rows: list[Sequence[Content]] = [(name, *_times(row), short(row.throughput), count(row.iterations)) for name, row in pair]
    return (
        e("h3", "Speed-up"),
        e(
            "p",
            f"{short(found.speedup, 2)} times as fast as FP32 at batch {found.batch} ({interval(found.interval, digits=2) or 'no interval'}):"
            f" the median over {found.blocks} pairs of blocks, in which the same model in FP32 and this engine were measured in turns in one Job.",
        ),
        table("both in the same blocks", ["", *TIMES, "samples a second", "runs"], rows, numbers=range(1, 6)),
    )


def _asked_for(data: ReportData) -> Content:
    """What a reader may miss, and how to get it."""
    rows = data.latency
    there = {
        "speed-up over FP32 (benchmark.acceptance.minSpeedup)": data.speedup is not None,
        "minutes of load (benchmark.sustained)": any(row.first for row in rows),
        "a camera's rate (benchmark.paced)": any(row.paced for row in rows),
        "decoding and preprocessing beside the model (benchmark.endToEnd)": any(row.end_to_end for row in rows),
    }
    missing = [name for name, measured in there.items() if not measured]
    return e("p", f"Not asked for, or not possible here: {', '.join(missing)}.", class_="muted") if missing else None


# ---- end to end ----


def _stages(batch: int, stages: EndToEnd) -> Element:
    measured: list[tuple[str, Spread]] = [(words, found) for name, words in STAGES if (found := getattr(stages, name)) is not None]
    everything: Iterable[str] = (value for _, row in (*measured, ("", stages.whole)) for value in (row.p50, row.p95, row.p99))
    scale: Scale | None = scale_of(everything, include=(Decimal(0),), margin=False)
    rows: list[Sequence[Content]] = [
        (
            words,
            bar(scale, row.p50, row.p95, row.p99) if scale else None,
            *_times(row),
            _share(row.p50, stages.whole.p50) if row is not stages.whole else None,
        )
        for words, row in (*measured, ("all of it", stages.whole))
    ]
    runs = f"{count(stages.whole.iterations)} runs"
    return table(f"end to end at batch {batch}, {runs}", ["stage", "p50, p95, p99", *TIMES, "share"], rows, numbers=range(2, 6), plot=1)


def _share(part: str, whole: str) -> str | None:
    first, second = number(part), number(whole)
    return percent(str(first / second)) if first is not None and second else None
