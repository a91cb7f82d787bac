"""The part of the page about what ran where: types and operators by time, execution providers, layers that the build left in higher precision. Pure."""

from __future__ import annotations

import json
import re
from decimal import Decimal

from .cells import count, percent, stored, table, text
from .data import ReportData
from .graphs import Scale, bar
from .markup import Content
from .markup import element as e

WHOLE = Scale(Decimal(0), Decimal(1))


def ran(data: ReportData) -> Content:
    parts = [part for part in (_layers(data), _providers(data), _excluded(data)) if part is not None]
    return (*parts, stored(data, this_report="layers", engine_inspector="", build_record="providers, excluded")) if parts else None


def _layers(data: ReportData) -> Content:
    found = data.layers
    if found is None:
        return None
    left = found.quantize_nodes
    return (
        e(
            "p",
            f"{found.nodes} nodes as they ran at batch {found.batch}: {found.source}, each node's median of {found.runs} runs, together"
            f" {found.milliseconds} ms (the profiler itself costs time). A node's type is the narrowest of its inputs and outputs.",
        ),
        e(
            "p",
            f"Asked for {data.precision}: {data.wider.nodes} of {found.nodes} nodes, with {percent(data.wider.share)} of the time, ran in a wider type.",
        )
        if data.wider is not None
        else None,
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
    )


def _providers(data: ReportData) -> Content:
    total = sum(data.providers.values())
    if not total:
        return None
    shares = [(name, nodes, str(Decimal(nodes) / total)) for name, nodes in data.providers.items()]
    rows = [(text(f"nodes on {name}"), bar(WHOLE, share), percent(share), count(nodes)) for name, nodes, share in shares]
    return table(
        "nodes of the model by execution provider of ONNX Runtime",
        ["", "share of the nodes", "nodes", "number"],
        rows,
        numbers=(2, 3),
        plot=1,
    )


def _excluded(data: ReportData) -> Content:
    if not data.excluded:
        return None
    patterns = json.dumps({"nodes": [re.escape(name) for name in data.excluded]}, indent=2)
    more = f" ({data.excluded_left_out} more are not shown)" if data.excluded_left_out else ""
    return (
        e("p", f"The library has no kernel for these nodes in {data.precision}: the build left them in higher precision{more}."),
        e("p", "What was judged is the engine with them; as spec.calibration.exclude:"),
        e("pre", e("code", patterns), tabindex="0", role="region", aria_label="Nodes that the build left in higher precision"),
    )
