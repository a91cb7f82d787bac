"""What ran in which type: the nodes of an engine as its runtime ran them, grouped by operator. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal

from enginefleet_api.base import Contract

from ..backends.base import NodeRun

_WIDTH = {"int4": 0, "fp8": 1, "int8": 1, "bf16": 2, "fp16": 2, "fp32": 3, "fp64": 4}
"""Bytes, as their logarithm; conversions and integers have none."""
FP32 = _WIDTH["fp32"]
QUANTIZE = ("QuantizeLinear", "DequantizeLinear")
CONVERSIONS = (*QUANTIZE, "Cast")
CONVERSION = "conversion"
COMPILED = "compiled"
OTHER = "other"
MOST_GROUPS = 60
"""Rows that a report holds; the rest is one row more."""

_NAMES = {"int8": "int8", "uint8": "int8", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "double": "fp64"}
_ORDER = ("int4", "fp8", "int8", "bf16", "fp16", "fp32", "fp64")
"""The narrowest input names a node's type: a convolution of int8 that answers in float ran in int8."""


class LayerGroup(Contract):
    """Nodes of one operator that ran in one type."""

    op: str
    type: str
    """int8, fp16, bf16, fp32, …; `conversion` for QuantizeLinear, DequantizeLinear and Cast; `compiled` for a part of the graph that an execution
    provider compiled, whose types are not seen; `other` for integers and shapes."""
    nodes: int
    share: str
    """Of the time of all nodes, as decimal text of 0 to 1."""


class TypeShare(Contract):
    type: str
    nodes: int
    share: str


class Layers(Contract):
    source: str
    """What said so."""
    batch: int
    runs: int
    milliseconds: str
    """One run, as the sum of its nodes' medians."""
    nodes: int
    quantize_nodes: int
    """QuantizeLinear and DequantizeLinear that were left over: not fused into the nodes that they surround."""
    types: list[TypeShare]
    groups: list[LayerGroup]
    left_out: int = 0
    """Groups beyond the bound, the fastest ones."""


class Wider(Contract):
    """Nodes of a wider type than the precision that was asked for."""

    nodes: int
    share: str
    """Of the time of all nodes, as decimal text of 0 to 1."""


def wider(layers: Layers, precision: str) -> Wider | None:
    """None where that cannot be told: a compiled part hides its types, and nothing is wider than fp32."""
    asked = _WIDTH.get(precision, FP32)
    if asked == FP32 or any(row.type == COMPILED for row in layers.types):
        return None
    found = [row for row in layers.types if _WIDTH.get(row.type, 0) > asked]
    return Wider(nodes=sum(row.nodes for row in found), share=str(sum((Decimal(row.share) for row in found), Decimal(0))))


def node_type(node: NodeRun) -> str:
    if node.compiled:
        return COMPILED
    if node.op in CONVERSIONS:
        return CONVERSION
    found = {_type(name) for name in (*node.inputs, *node.outputs)} - {""}
    return next((name for name in _ORDER if name in found), OTHER)


def _type(name: str) -> str:
    if name.startswith("float8"):
        return "fp8"
    return "int4" if name in ("int4", "uint4") else _NAMES.get(name, "")


def summarize(nodes: Iterable[NodeRun], *, source: str, batch: int, runs: int) -> Layers:
    """`nodes`: each node once, with the median of its time over `runs`."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for node in nodes:
        group = (node.op, node_type(node))
        seconds[group] += node.seconds
        counts[group] += 1
    total = sum(seconds.values())
    groups = [
        LayerGroup(op=op, type=kind, nodes=counts[op, kind], share=_share(seconds[op, kind], total))
        for op, kind in sorted(seconds, key=lambda group: (-seconds[group], group))
    ]
    kinds = [kind for kind in (*_ORDER, COMPILED, CONVERSION, OTHER) if any(group.type == kind for group in groups)]
    types = [
        TypeShare(
            type=kind,
            nodes=sum(group.nodes for group in groups if group.type == kind),
            share=_share(sum(value for (_, own), value in seconds.items() if own == kind), total),
        )
        for kind in kinds
    ]
    return Layers(
        source=source,
        batch=batch,
        runs=runs,
        milliseconds=f"{total * 1000:.3f}",
        nodes=sum(counts.values()),
        quantize_nodes=sum(count for (op, _), count in counts.items() if op in QUANTIZE),
        types=types,
        groups=groups[:MOST_GROUPS],
        left_out=max(0, len(groups) - MOST_GROUPS),
    )


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.4f}" if whole > 0 else "0.0000"
