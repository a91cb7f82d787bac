"""Reading a protobuf file without parsing it: where a damaged one breaks off, and how deep it nests.

The parser says no more than that it failed. This walks tags and lengths only, in time and memory bounded by the file.
"""

from __future__ import annotations

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
GRAPH = 7
"""ModelProto.graph"""
NODE, ATTRIBUTE = 1, 5
"""GraphProto.node, NodeProto.attribute"""
SUBGRAPHS = (6, 11)
"""AttributeProto.g and .graphs"""
MODEL_FIELDS = frozenset(range(1, 27))
"""Field numbers of ModelProto: graph is 7, metadata 14, functions 25, configuration 26."""


NO_MODEL = "it does not begin like one"


class _BrokenError(Exception):
    pass


def damage(data: bytes) -> str:
    """What is wrong with a file that the parser refuses, in words; empty when its outermost fields are whole."""
    at = 0
    try:
        while at < len(data):
            start = at
            number, kind, begin, end = _field(data, at, len(data))
            if number not in MODEL_FIELDS:
                return f"byte {start} begins field {number}, which no ONNX model has" if start else NO_MODEL
            if kind == LENGTH and end > len(data):
                return f"its field {number} claims {end - begin} bytes, {len(data) - begin} are there: it is cut off"
            at = end
    except _BrokenError as error:
        return f"{error} at byte {at} of {len(data)}" if at else NO_MODEL
    return ""


def depth(data: bytes, limit: int) -> int:
    """Levels of subgraphs below the main graph, counted up to `limit`; 0 for what is no model."""
    deepest = 0
    pending = [(begin, end, 0) for number, begin, end in _messages(data, 0, len(data)) if number == GRAPH]
    while pending:
        begin, end, level = pending.pop()
        deepest = max(deepest, level)
        if level >= limit:
            return level
        for node in (item for item in _messages(data, begin, end) if item[0] == NODE):
            for attribute in (item for item in _messages(data, *node[1:]) if item[0] == ATTRIBUTE):
                pending += [(*item[1:], level + 1) for item in _messages(data, *attribute[1:]) if item[0] in SUBGRAPHS]
    return deepest


def _messages(data: bytes, at: int, end: int) -> list[tuple[int, int, int]]:
    """(field number, begin, end) of the length-delimited fields in a range, as far as they are whole."""
    found = []
    try:
        while at < end:
            number, kind, begin, after = _field(data, at, end)
            if after > end:
                break
            if kind == LENGTH:
                found.append((number, begin, after))
            at = after
    except _BrokenError:
        pass
    return found


def _field(data: bytes, at: int, limit: int) -> tuple[int, int, int, int]:
    """(number, wire type, where its content begins, where it ends: beyond `limit` when it is cut off)."""
    tag, at = _varint(data, at, limit)
    number, kind = tag >> 3, tag & 7
    if number == 0:
        raise _BrokenError("a field number 0")
    if kind == VARINT:
        _, end = _varint(data, at, limit)
        return number, kind, at, end
    if kind == LENGTH:
        size, at = _varint(data, at, limit)
        return number, kind, at, at + size
    if kind in (FIXED64, FIXED32):
        return number, kind, at, at + (8 if kind == FIXED64 else 4)
    raise _BrokenError(f"a field of the unknown type {kind}")


def _varint(data: bytes, at: int, limit: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= limit:
            raise _BrokenError("a number that is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _BrokenError("a number of more than 10 bytes")
