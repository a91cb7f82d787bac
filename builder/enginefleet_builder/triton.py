"""A model's configuration for Triton (`config.pbtxt`): pure. The schema is Triton's `model_config.proto`, message ModelConfig.

Triton adds requests up to batches only where the first dimension of every input and output is open and stands for the batch; then its `dims`
leave it out. Everything else is served as it comes: `max_batch_size: 0`, and all dimensions in `dims`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import TypeAdapter, ValidationError

from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import InputSpec

CONFIG = "config.pbtxt"
VERSION = "1"
"""Name of the folder of the one version."""
_TYPES = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "uint16": "TYPE_UINT16",
    "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64",
    "int8": "TYPE_INT8",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
    "string": "TYPE_STRING",
}
_BACKENDS = {"tensorrt": ("tensorrt", "tensorrt_plan"), "onnxruntime": ("onnxruntime", "onnxruntime_onnx")}
"""Backend of Triton, and platform, its older spelling."""
_ON_GPU = ("CUDA", "TensorRT")
"""Execution providers whose instances are of KIND_GPU."""
_ACCELERATORS = {"TensorRT": ("gpu", "tensorrt"), "OpenVINO": ("cpu", "openvino")}
"""Execution providers that Triton's backend adds only where they are named: kind and name."""
_PROFILES = TypeAdapter(list[InputSpec])
Message: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Word:
    """A name of an enumeration, or true: what stands in text without quotes."""

    name: str


@dataclass(frozen=True, slots=True)
class Batching:
    """`largest`: samples that one run takes; `preferred`: those that profiles are tuned for."""

    largest: int
    preferred: tuple[int, ...]


def config(
    name: str,
    file: str,
    facts: Mapping[str, Any],
    recipe: Mapping[str, Any],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    shape_tensors: Collection[str] = (),
) -> str:
    """The text of config.pbtxt for the engine `file`, whose facts and recipe its build record tells.

    `inputs`, `outputs`: with the element types that the engine has; `shape_tensors`: those of them whose values are a shape.

    Raises PermanentError `LayoutNotPossible`.
    """
    backend = str(facts.get("backend"))
    if backend not in _BACKENDS:
        raise _impossible(f"Triton has no backend for {backend!r}, only for {', '.join(_BACKENDS)}")
    if not inputs or not outputs:
        raise _impossible("the build record does not tell the model's inputs and outputs")
    served_by, platform = _BACKENDS[backend]
    provider = str(facts.get("executionProvider", "CPU"))
    kind = "KIND_GPU" if backend == "tensorrt" or provider in _ON_GPU else "KIND_CPU"
    profiles = _profiles(recipe)
    # a shape is one for a whole run: requests that bring shapes of their own do not add up
    batching = batching_of(inputs, outputs, profiles) if not shape_tensors else None
    message: dict[str, Any] = {
        "name": name,
        "backend": served_by,
        "platform": platform,
        "default_model_filename": file,
        "max_batch_size": batching.largest if batching else 0,
        "input": [_tensor(spec, batching is not None, spec.name in shape_tensors) for spec in inputs],
        "output": [_tensor(spec, batching is not None, spec.name in shape_tensors) for spec in outputs],
        "instance_group": [{"count": 1, "kind": Word(kind)}],
    }
    count = max((len(spec.profiles) for spec in profiles), default=0)
    if backend == "tensorrt" and count > 1:
        # Triton uses profile 0 alone unless they are named
        message["instance_group"][0]["profile"] = [str(index) for index in range(count)]
    if backend == "tensorrt" and recipe.get("dla"):
        message["instance_group"][0]["secondary_devices"] = [{"kind": Word("KIND_NVDLA"), "device_id": int(recipe["dla"].get("core", 0))}]
    if batching:
        message["dynamic_batching"] = {"preferred_batch_size": list(batching.preferred)} if batching.preferred else {}
    if backend == "onnxruntime" and provider in _ACCELERATORS:
        where, named = _ACCELERATORS[provider]
        message["optimization"] = {"execution_accelerators": {f"{where}_execution_accelerator": [{"name": named}]}}
    if backend == "onnxruntime" and str(recipe.get("threads", "auto")) != "auto":
        # as it was judged
        message["parameters"] = [{"key": "intra_op_thread_count", "value": {"string_value": str(recipe["threads"])}}]
    return "\n".join(_lines(message, "")) + "\n"


def batching_of(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], profiles: Sequence[InputSpec]) -> Batching | None:
    """None: the model does not add up samples, or it wants more than one at least, which Triton cannot promise."""
    if not all(spec.shape and not isinstance(spec.shape[0], int) for spec in (*inputs, *outputs)):
        return None
    by_name = {spec.name: spec.profiles for spec in profiles}
    if any(spec.name not in by_name for spec in inputs):
        return None
    count = min(len(ranges) for ranges in by_name.values())
    # one profile of all inputs takes what the narrowest of them takes
    ranges = [
        (max(by_name[spec.name][index].min[0] for spec in inputs), min(by_name[spec.name][index].max[0] for spec in inputs))
        for index in range(count)
    ]
    if min(low for low, _ in ranges) > 1:
        return None
    tuned = {min(by_name[spec.name][index].opt[0] for spec in inputs) for index in range(count)}
    return Batching(max(high for _, high in ranges), tuple(sorted(size for size in tuned if size > 1)))


def _profiles(recipe: Mapping[str, Any]) -> list[InputSpec]:
    try:
        return _PROFILES.validate_python(recipe.get("profiles") or [])
    except ValidationError as error:
        raise _impossible("the build record's profiles cannot be read") from error


def _tensor(spec: TensorSpec, batched: bool, holds_shape: bool) -> Message:
    if spec.dtype not in _TYPES:
        raise _impossible(f"{spec.name} is {spec.dtype}, Triton knows {', '.join(_TYPES)}")
    dims = [size if isinstance(size, int) and size >= 0 else -1 for size in spec.shape[1 if batched else 0 :]]
    # an empty shape cannot be written: one number stands for it
    told = {"name": spec.name, "data_type": Word(_TYPES[spec.dtype]), "dims": dims or [1]}
    return told | ({} if dims else {"reshape": {"shape": []}}) | ({"is_shape_tensor": Word("true")} if holds_shape else {})


def _impossible(found: str) -> PermanentError:
    return PermanentError("LayoutNotPossible", f"no configuration for Triton can be written: {found}.", "Use spec.serving.layout plain.")


# ---- protobuf's text format ----


def _lines(message: Message, indent: str) -> Iterator[str]:
    for name, value in message.items():
        if isinstance(value, Mapping):
            yield from _nested(name, value, indent)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for item in value:
                yield from _nested(name, item, indent)
        else:
            yield f"{indent}{name}: {_scalar(value)}"


def _nested(name: str, message: Message, indent: str) -> Iterator[str]:
    yield f"{indent}{name} {{"
    yield from _lines(message, indent + "  ")
    yield f"{indent}}}"


def _scalar(value: Any) -> str:
    if isinstance(value, Word):
        return value.name
    if isinstance(value, list):
        return f"[{', '.join(_scalar(item) for item in value)}]"
    return str(value) if isinstance(value, int) else _text(str(value))


def _text(text: str) -> str:
    """Any text in double quotes; what is not plain ASCII as octal escapes of its UTF-8."""
    plain = "".join(chr(byte) if 0x20 <= byte < 0x7F and chr(byte) not in '"\\' else f"\\{byte:03o}" for byte in text.encode())
    return f'"{plain}"'
