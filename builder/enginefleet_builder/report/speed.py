"""The parts of the page about speed: latency by batch, speed-up, what ran in which type. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from .cells import count, interval, percent, short, stored, table, text
from .data import ReportData
from .graphs import Scale, bar, scale_of
from .markup import Content
from .markup import element as e

WHOLE = Scale(Decimal(0), Decimal(1))


def latency(data: ReportData) -> Content:
    if not data.latency:
        return e("p", "Latency was not measured.")
    scale = scale_of((value for row in data.latency for value in (row.p50, row.p95, row.p99)), include=(Decimal(0),), margin=False)
    rows: list[Sequence[Content]] = [
        (
            f"batch {row.batch}",
            bar(scale, row.p50, row.p95, row.p99) if scale else None,
            short(row.p50),
            short(row.p95),
            short(row.p99),
            short(row.throughput),
            count(row.iterations),
        )
        for row in data.latency
    ]
    graph = f"The bar ends at p50, the line at p95, the dot is p99; the graph goes from 0 to {short(str(scale.high))} ms." if scale else ""
    headings = ["batch", "p50, p95, p99", "p50 ms", "p95 ms", "p99 ms", "samples a second", "runs"]
    return (
        e(
            "p",
            "Milliseconds of one run after warm-up, on the device, of the runtime alone: without network, decoding and preprocessing. ",
            graph,
        ),
        table("latency by batch size", headings, rows, numbers=range(2, 7), plot=1),
        _speedup(data),
        stored(data, verdict="latency, speedup"),
    )


def _speedup(data: ReportData) -> Content:
    found = data.speedup
    if found is None:
        return e("p", "Speed-up against FP32 was not measured.")
    pair = (("FP32 partner", found.partner), ("this engine", found.engine))
    rows: list[Sequence[Content]] = [
        (name, short(row.p50), short(row.p95), short(row.p99), short(row.throughput), count(row.iterations)) for name, row in pair
    ]
    return (
        e("h3", "Speed-up"),
        e(
            "p",
            f"{short(found.speedup, 2)} times as fast as FP32 at batch {found.batch} ({interval(found.interval, digits=2) or 'no interval'}):"
            f" the median over {found.blocks} pairs of blocks, in which the same model in FP32 and this engine were measured in turns in one Job.",
        ),
        table("both in the same blocks", ["", "p50 ms", "p95 ms", "p99 ms", "samples a second", "runs"], rows, numbers=range(1, 6)),
    )


def layers(data: ReportData) -> Content:
    found = data.layers
    if found is None:
        return e("p", "Not known: only the Job that judges runs the engine, and it left no such measurement.")
    left = found.quantize_nodes
    return (
        e(
            "p",
            f"{found.nodes} nodes as they ran at batch {found.batch}: {found.source}, each node's median of {found.runs} runs, together"
            f" {short(found.milliseconds)} ms (the profiler itself costs time). A node's type is the narrowest of its inputs and outputs.",
        ),
        e(
            "p",
            f"{left or 'No'} QuantizeLinear or DequantizeLinear nodes are left over",
            ": each is a pass over memory of its own." if left else ".",
        ),
        table(
            "by type",
            ["type", "share of the time", "time", "nodes"],
            [(row.type, bar(WHOLE, row.share), percent(row.share), count(row.nodes)) for row in found.types],
            numbers=(2, 3),
            plot=1,
        ),
        table(
            "by operator",
            ["operator", "type", "time", "nodes"],
            [(text(row.op), row.type, percent(row.share), count(row.nodes)) for row in found.groups],
            numbers=(2, 3),
        ),
        e("p", f"and {found.left_out} more, the fastest ones") if found.left_out else None,
        stored(data, this_report="layers"),
    )
