"""ONNX Runtime's execution providers: what an engine of each is, and the options that it gets, by name. Pure, standard library only.

A provider either leaves a graph that ONNX Runtime can write (`optimized`), or compiles parts of it. What was compiled goes into the engine as
an EP context model (`context`); where a provider cannot read its own back, the engine is the model and is compiled when it is loaded (`model`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from enginefleet_api.errors import PermanentError

Form = Literal["optimized", "context", "model"]


@dataclass(frozen=True, slots=True)
class ExecutionProvider:
    """`name`: of HardwareClass executionProvider; `called`: ONNX Runtime's name; `beside`: who else takes nodes, before the CPU does."""

    name: str
    called: str
    form: Form
    beside: tuple[str, ...] = ()


PROVIDERS = {
    provider.name: provider
    for provider in (
        ExecutionProvider("CPU", "CPUExecutionProvider", "optimized"),
        ExecutionProvider("CUDA", "CUDAExecutionProvider", "optimized"),
        ExecutionProvider("TensorRT", "TensorrtExecutionProvider", "context", ("CUDAExecutionProvider",)),
        # OpenVINO writes EP contexts too, but its CPU device reads them with a library that onnxruntime-openvino 1.22 to 1.24 does not bring
        ExecutionProvider("OpenVINO", "OpenVINOExecutionProvider", "model"),
        ExecutionProvider("CoreML", "CoreMLExecutionProvider", "model"),
    )
}
CPU = PROVIDERS["CPU"]
TACTIC_SOURCES = ("CUBLAS", "CUBLAS_LT", "CUDNN", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
"""As ONNX Runtime's option trt_tactic_sources names them."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What of a model decides about options. `types`: element types of its tensors, as ONNX names them: FLOAT16, INT8 …"""

    types: frozenset[str]
    quantized: bool
    """Whether it has QuantizeLinear or DequantizeLinear nodes."""


def run_options(provider: ExecutionProvider, recipe: Mapping[str, Any], threads: int) -> dict[str, str]:
    """Options of a session that runs an engine of `provider`; building adds to them."""
    match provider.name:
        case "CUDA":
            # FP32 means FP32: cuBLAS and cuDNN would round its inputs to TF32
            return {"device_id": "0", "use_tf32": "0"}
        case "TensorRT":
            return {"device_id": "0"} | _dla(recipe) | _plugins(recipe)
        case "OpenVINO":
            # ACCURACY: nodes run in the model's types. Left alone, the CPU device takes bfloat16 for float32 where the CPU has it
            return {"device_type": "CPU", "num_of_threads": str(threads), "num_streams": "1", "precision": "ACCURACY"}
        case "CoreML":
            return {"ModelFormat": "MLProgram", "MLComputeUnits": "ALL"}
        case _:
            return {}


def build_options(provider: ExecutionProvider, recipe: Mapping[str, Any], traits: Traits, folder: Path) -> dict[str, str]:
    """What building needs besides `run_options`. `folder`: of this one build; a provider that keeps files keeps them there."""
    if provider.name != "TensorRT":
        return {}
    options = {
        # weakly typed networks need the flag for each type that the file names
        "trt_fp16_enable": _flag("FLOAT16" in traits.types),
        "trt_bf16_enable": _flag("BFLOAT16" in traits.types),
        "trt_int8_enable": _flag(traits.quantized),
        "trt_builder_optimization_level": str(recipe.get("optimizationLevel", 3)),
        # The name of a cached engine covers neither weights nor static shapes (onnxruntime#6455, #32254): nothing is ever taken from a cache
        "trt_engine_cache_enable": "0",
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "0",
        "trt_timing_cache_path": str(folder),
    }
    if (workspace := str(recipe.get("workspace", "auto"))) != "auto":
        options["trt_max_workspace_size"] = str(_bytes(workspace))
    if sources := recipe.get("tacticSources"):
        options["trt_tactic_sources"] = ",".join(("+" if name in sources else "-") + name for name in TACTIC_SOURCES)
    return options | _shapes(recipe.get("profiles") or [])


def refuse(provider: ExecutionProvider, recipe: Mapping[str, Any]) -> None:
    """Raise PermanentError `NotSupportedByProvider` for settings that `provider` cannot follow: none is ever left out in silence."""
    wrong: list[str] = []
    if provider.name == "TensorRT":
        dla = recipe.get("dla")
        if dla and not dla.get("allowGpuFallback", True):
            wrong.append("dla.allowGpuFallback false (nodes that DLA cannot run always go to the GPU)")
        if unknown := [name for name in recipe.get("tacticSources") or [] if name not in TACTIC_SOURCES]:
            wrong.append(f"tacticSources {', '.join(unknown)} (it knows {', '.join(TACTIC_SOURCES)})")
        if bad := [path for path in recipe.get("plugins") or [] if ";" in path]:
            wrong.append(f"plugins {', '.join(bad)} (it takes no paths with a semicolon)")
    else:
        defaults: Mapping[str, Any] = {"workspace": "auto", "optimizationLevel": 3, "dla": None, "plugins": [], "tacticSources": []}
        wrong += [name for name, default in defaults.items() if recipe.get(name, default) not in (default, None)]
    if wrong:
        message = f"the execution provider {provider.name} cannot follow spec.build: {'; '.join(wrong)}."
        raise PermanentError("NotSupportedByProvider", message, "Leave it out of spec.build, or use a HardwareClass with backend tensorrt.")


def _flag(value: bool) -> str:
    return "1" if value else "0"


def _dla(recipe: Mapping[str, Any]) -> dict[str, str]:
    dla = recipe.get("dla")
    return {"trt_dla_enable": "1", "trt_dla_core": str(dla.get("core", 0))} if dla else {}


def _plugins(recipe: Mapping[str, Any]) -> dict[str, str]:
    paths: Sequence[str] = recipe.get("plugins") or []
    return {"trt_extra_plugin_lib_paths": ";".join(paths)} if paths else {}


def _shapes(inputs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Profiles as TensorRT's options take them: `name:1x3x224x224,…`, an input once for each of its profiles."""
    if not inputs:
        return {}
    return {
        f"trt_profile_{bound}_shapes": ",".join(
            f"{one['name']}:{'x'.join(str(size) for size in profile[bound])}"
            for number in range(len(inputs[0]["profiles"]))
            for one in inputs
            for profile in [one["profiles"][number]]
        )
        for bound in ("min", "opt", "max")
    }


def _bytes(text: str) -> int:
    # takes pydantic along, which a process that holds an engine has no use for
    from enginefleet_api.base import quantity

    try:
        return int(quantity(text))
    except ValueError as error:
        raise PermanentError("BadRequest", f"workspace {text!r} is no quantity.", "Write auto, or a quantity like 2Gi.") from error
