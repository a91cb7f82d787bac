"""ModelOpt's ONNX side without PyTorch, which would add 6 GB for nothing.

One of its modules (quantization/qdq_utils.py) imports torch when it is loaded, and uses it in one function that casts weights to FP8 for a form
that we do not ask for. For the length of that import an empty module stands in its place. It is taken away again at once: ONNX Runtime's tools,
onnx_ir and others ask whether torch is there, and would believe it.

ModelOpt patches ONNX Runtime's quantizer for the whole process (quantization/ort_patching.py), so only modelopt_child.py may call this.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import types
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from enginefleet_api.errors import EnvironmentFault

KNOWN = "0.47."
"""The versions that this was written for and tested with."""
HINT = "Use the prepare image (HardwareClass prepare.image), or an environment made from requirements/prepare.lock."


class ModelOpt:
    """The functions that we use."""

    def __init__(self) -> None:
        """Raises EnvironmentFault `ModelOptMissing`, `TorchFound`, `ModelOptChanged`."""
        try:
            found = version("nvidia-modelopt")
        except PackageNotFoundError as error:
            raise EnvironmentFault("ModelOptMissing", "ModelOpt is not installed in this image.", HINT) from error
        if "torch" in sys.modules or importlib.util.find_spec("torch") is not None:
            message = "PyTorch is installed beside ModelOpt; prepared models are made, tested and locked without it."
            raise EnvironmentFault("TorchFound", message, HINT)
        if not found.startswith(KNOWN):
            raise EnvironmentFault("ModelOptChanged", f"ModelOpt {found} is installed, expected {KNOWN}x.", HINT)
        # these ask for torch in a way that an empty module answers wrongly, so they come first
        importlib.import_module("onnxruntime.quantization")
        importlib.import_module("onnxruntime.tools.symbolic_shape_infer")
        sys.modules["torch"] = types.ModuleType("torch", "A placeholder: PyTorch is not installed.")
        try:
            quantization: Any = importlib.import_module("modelopt.onnx.quantization.quantize")
        except ImportError as error:
            raise EnvironmentFault("ModelOptChanged", f"ModelOpt {found} does not load without PyTorch: {error}.", HINT) from error
        finally:
            del sys.modules["torch"]
        autocast: Any = importlib.import_module("modelopt.onnx.autocast.convert")
        converter = getattr(importlib.import_module("modelopt.onnx.autocast.precisionconverter"), "PrecisionConverter", None)
        _having(converter, "_cleanup_no_consumer_nodes", "self")
        converter._cleanup_no_consumer_nodes = _without_dead_ends  # type: ignore[union-attr]  # noqa: SLF001
        self.quantize = _having(
            quantization, "quantize",
            "quantize_mode", "calibration_data_reader", "calibration_method", "calibration_eps", "high_precision_dtype", "output_path",
            "nodes_to_exclude", "log_level", "op_types_to_exclude",
        )  # fmt: skip
        self.cast = _having(
            autocast, "convert_to_mixed_precision", "low_precision_type", "keep_io_types", "calibration_data", "data_max", "init_max"
        )
        self.rest = _having(autocast, "convert_to_f16", "low_precision_type", "keep_io_types")


def _without_dead_ends(converter: Any) -> None:
    """Takes the place of AutoCast's own, which does the same by a search of all nodes for each output of each: most of the time for thousands."""
    graph = converter.model.graph
    wanted = {item.name for item in graph.output} | {name for node in graph.node for name in node.input}
    for node in [node for node in graph.node if wanted.isdisjoint(node.output)]:
        graph.node.remove(node)


def _having(module: Any, name: str, *parameters: str) -> Any:
    function = getattr(module, name, None)
    known = inspect.signature(function).parameters if function is not None else {}
    if missing := [parameter for parameter in parameters if parameter not in known]:
        raise EnvironmentFault("ModelOptChanged", f"ModelOpt's {name} lacks {', '.join(missing)}.", HINT)
    return function
