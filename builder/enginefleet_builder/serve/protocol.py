"""Requests and answers of the Open Inference Protocol v2 (https://github.com/kserve/open-inference-protocol), JSON tensors: pure functions.

A request that does not fit the model is answered with what was found and what was expected. A model of one input whose preprocessing is known
takes encoded pictures, too: datatype BYTES, shape [n], n base64 texts.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from enginefleet_api.errors import EngineFleetError

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
_ORT_NAMES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float", "double", "string")
DATATYPE_OF_ORT = {f"tensor({name})": datatype for name, datatype in zip(_ORT_NAMES, DTYPES, strict=True)}

_NAMES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "string")
DATATYPE_OF_DTYPE = dict(zip(_NAMES, DTYPES, strict=True)) | {"bfloat16": "FP32"}
"""As documents.TensorSpec names types. The protocol has bfloat16 too, JSON and NumPy have no numbers for it."""


class BadRequest(Exception):
    """Status 400; the text is for the sender."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output: `datatype` as in the protocol, `shape` with -1 where the size is open."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def takes(self, shape: Sequence[int]) -> bool:
        return len(shape) == len(self.shape) and all(wanted in (-1, size) for size, wanted in zip(shape, self.shape, strict=True))

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


Picture: TypeAlias = Callable[[bytes, int], np.ndarray[Any, Any]]
"""(encoded picture, its place in the request) → the model's input without a batch axis. Raises EngineFleetError."""


def parse_inputs(body: Any, inputs: Sequence[Tensor], picture: Picture | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays by input name. `picture`: how pictures become input, where that is known."""
    if not isinstance(body, Mapping):
        raise BadRequest(f"the body is {_kind(body)}, expected an object with 'inputs'")
    given = body.get("inputs")
    if not isinstance(given, list) or not all(isinstance(item, Mapping) and isinstance(item.get("name"), str) for item in given):
        raise BadRequest("'inputs' must be a list of objects with name, shape, datatype and data")
    names, wanted = [item["name"] for item in given], [tensor.name for tensor in inputs]
    if sorted(names) != sorted(wanted):
        raise BadRequest(f"found the inputs {_names(names)}, expected {_names(wanted)}")
    by_name = {item["name"]: item for item in given}
    return {tensor.name: _input(by_name[tensor.name], tensor, picture) for tensor in inputs}


def _input(item: Mapping[str, Any], tensor: Tensor, picture: Picture | None) -> np.ndarray[Any, Any]:
    if item.get("datatype") != "BYTES" or tensor.datatype == "BYTES":
        return _array(item, tensor)
    label = f"input {tensor.name!r}"
    if picture is None:
        raise BadRequest(f"{label}: found BYTES, expected {tensor.datatype!r}: pictures need a model of one input with known preprocessing")
    data, shape = item.get("data"), item.get("shape")
    if not isinstance(data, list) or not data or not all(isinstance(one, str) for one in data) or shape != [len(data)]:
        raise BadRequest(f"{label}: pictures are a list of n base64 texts of shape [n], found shape {shape!r}")
    rows = []
    for index, text in enumerate(data):
        try:
            rows.append(picture(base64.b64decode(text, validate=True), index))
        except ValueError as error:
            raise BadRequest(f"{label}: picture {index} is not base64: {error}") from error
        except EngineFleetError as error:
            raise BadRequest(f"{label}: {error.message}") from error
    if len({row.shape for row in rows}) > 1:
        raise BadRequest(f"{label}: the pictures come out in unlike sizes {sorted({row.shape for row in rows})}: send them one by one")
    array = np.stack(rows).astype(DTYPES[tensor.datatype])
    if not tensor.takes(array.shape):
        raise BadRequest(f"{label}: the pictures come out as {list(array.shape)}, expected {list(tensor.shape)} (-1: any size)")
    return array


def parse_outputs(body: Mapping[str, Any], outputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs that are asked for; all when the request names none."""
    given = body.get("outputs")
    if not given:
        return list(outputs)
    if not isinstance(given, list) or not all(isinstance(item, Mapping) and isinstance(item.get("name"), str) for item in given):
        raise BadRequest("'outputs' must be a list of objects with a name")
    known = {tensor.name: tensor for tensor in outputs}
    if unknown := [item["name"] for item in given if item["name"] not in known]:
        raise BadRequest(f"found the outputs {_names(unknown)}, the model has {_names(list(known))}")
    return [known[item["name"]] for item in given]


def answer(model: str, request_id: str | None, outputs: Sequence[Tensor], arrays: Sequence[np.ndarray[Any, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"model_name": model, "model_version": "1"}
    if request_id is not None:
        found["id"] = request_id
    pairs = zip(outputs, arrays, strict=True)
    found["outputs"] = [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": list(array.shape), "data": array.ravel().tolist()}
        for tensor, array in pairs
    ]
    return found


def _array(item: Mapping[str, Any], tensor: Tensor) -> np.ndarray[Any, Any]:
    label = f"input {tensor.name!r}"
    if item.get("datatype") != tensor.datatype:
        raise BadRequest(f"{label}: found datatype {item.get('datatype')!r}, expected {tensor.datatype!r}")
    shape = item.get("shape")
    if not isinstance(shape, list) or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape):
        raise BadRequest(f"{label}: 'shape' must be a list of sizes, found {shape!r}")
    if not tensor.takes(shape):
        raise BadRequest(f"{label}: found shape {shape}, expected {list(tensor.shape)} (-1: any size)")
    if "data" not in item:
        raise BadRequest(f"{label}: 'data' is missing (the binary extension is not supported)")
    array = _values(item["data"], tensor, label)
    if array.size != math.prod(shape):
        raise BadRequest(f"{label}: found {array.size} values, shape {shape} needs {math.prod(shape)}")
    return array.reshape(shape)


def _values(data: Any, tensor: Tensor, label: str) -> np.ndarray[Any, Any]:
    """The values of a flat or nested list, refusing what would be changed by the conversion."""
    dtype = DTYPES[tensor.datatype]
    try:
        raw = np.asarray(data)
    except ValueError as error:
        raise BadRequest(f"{label}: 'data' is a list of unequal lists") from error
    allowed = {"b": "b", "u": "ui", "i": "ui", "f": "fui", "O": "U"}[dtype.kind]
    if raw.size and raw.dtype.kind not in allowed:
        raise BadRequest(f"{label}: found values of type {raw.dtype}, expected {tensor.datatype}")
    if dtype.kind in "ui" and raw.size:
        limits = np.iinfo(dtype)
        if int(raw.min()) < limits.min or int(raw.max()) > limits.max:
            raise BadRequest(f"{label}: found values from {raw.min()} to {raw.max()}, {tensor.datatype} holds {limits.min} to {limits.max}")
    return raw.astype(dtype)


def _names(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def _kind(value: Any) -> str:
    return "empty" if value is None else f"a {type(value).__name__}"
