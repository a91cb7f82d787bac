"""A stand-in of TensorRT that computes: the strict double of a release, whose plan is the ONNX file and whose runs are ONNX Runtime's on the CPU.

For the whole chain where there is no GPU: accuracy is that of the file, times are those of nothing. `install` puts it under an interpreter, with
stand-ins of libcuda and libnvinfer that mark all facts as simulated.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.builder.standins.build import Standins, interpreter, library
from tests.contract.doubles import NUMPY, Cache, Double, Strict, Tensor

ROOT = Path(__file__).resolve().parents[3]
LIBRARIES = {
    "8.5": ("libnvinfer.so.8", "8.5.2.2", ("-DWHOLE=8502",)),
    "8.6.0": ("libnvinfer.so.8", "8.6.2.3", ("-DWHOLE=8602",)),
    "10.3.0": ("libnvinfer.so.10", "10.3.0.30", ("-DMAJOR=10", "-DMINOR=3", "-DPATCH=0", "-DBUILD=30")),
    "10.16.1": ("libnvinfer.so.10", "10.16.1.11", ("-DMAJOR=10", "-DMINOR=16", "-DPATCH=1", "-DBUILD=11")),
}
"""By the double's release: the library's name, what the bindings call their version, and the compiler's flags for the library's."""
COMPILER = '-DCOMPILER="Cuda compilation tools, release 12.6, V12.6.68"'
DLAS = "STANDIN_DLAS"
"""A variable: how many DLAs the board has."""
ENDLESS = "STANDIN_BUILDS_FOR_EVER"
"""A variable: while it is set a build times one layer after another, so that there is time to end it."""
PLAN = b"plan of a stand-in\n"
ONNX_TYPES = {
    "tensor(float)": "FLOAT",
    "tensor(float16)": "HALF",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(bool)": "BOOL",
}
MODULE = """
import ctypes, os
ctypes.CDLL(os.path.join({folder!r}, {soname!r}))
from tests.builder.standins.computing import Computing
double = Computing({release!r}, dlas=int(os.environ.get({dlas!r}, 0)))
globals().update({{name: value for name, value in vars(double).items() if not name.startswith("_")}})
__version__ = {version!r}
"""


def install(folder: Path, release: str) -> Path:
    """The interpreter (a launcher) that has TensorRT `release` as a stand-in. The driver needs LD_LIBRARY_PATH=`folder`, and STANDIN_GPUS."""
    soname, version, flags = LIBRARIES[release]
    memory = ROOT / "tests" / "contract" / "standins" / "cuda_memory.c"
    library("cuda", folder / "libcuda.so.1", "-DDEVICES_ELSEWHERE", str(memory))
    python = interpreter(folder / "python", folder / "site", ROOT)
    Standins(folder, python).tensorrt(soname, version, *flags, COMPILER)
    module = MODULE.format(folder=str(folder), soname=soname, release=release, version=version, dlas=DLAS)
    (folder / "site" / "tensorrt" / "__init__.py").write_text(module)
    return python


class Computing(Double):
    def _parser(self, network: Any, logger: Any) -> Strict:
        parser = super()._parser(network, logger)

        def parse_from_file(path: str) -> bool:
            import onnx  # when it is needed: most processes ask for the version alone

            # data beside the file goes into the plan, too
            self._file: bytes = onnx.load(path).SerializeToString()
            self._open()
            return True

        parser._does["parse_from_file"] = parse_from_file
        return parser

    def _open(self) -> None:
        import onnxruntime

        quiet = onnxruntime.SessionOptions()  # type: ignore[attr-defined]
        quiet.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(self._file, quiet, providers=["CPUExecutionProvider"])  # type: ignore[attr-defined]
        self._last: tuple[Any, dict[str, Any]] = (None, {})
        self._inputs[:], self._outputs[:] = (
            [Tensor(one.name, [size if isinstance(size, int) else -1 for size in one.shape], ONNX_TYPES[one.type]) for one in given]
            for given in (self._session.get_inputs(), self._session.get_outputs())
        )
        self._shapes: dict[Any, dict[str, tuple[int, ...]]] = {}

    def _build(self, network: Any, config: Strict) -> bytes | None:
        log = self._logger.log
        tactics, cache = self._tactics(), self.asked.get("cache")
        known = tactics & cache.tactics if isinstance(cache, Cache) else set()
        log(Member("INFO"), f"{len(tactics - known)} tactics are measured, {len(known)} were in the timing cache")
        if "default_device_type" in config.was_set:
            log(Member("VERBOSE"), "[DlaLayer] {ForeignNode[first...last]}")
            log(Member("VERBOSE"), "[GpuLayer] SHUFFLE: reshape (a stand-in)")
        watching = config.was_set.get("progress_monitor")
        if watching:
            watching.phase_start("Endless", None, 100)
        for step in range(1 << 20 if ENDLESS in os.environ else 0):
            log(Member("VERBOSE"), f"Timing Runner: layer{step} (a stand-in)")
            if watching:
                watching.step_complete("Endless", step)
            time.sleep(0.05)
        return super()._build(network, config)

    def _tactics(self) -> set[str]:
        """One a kind of node with its weights' shapes: networks alike share them, as real ones do."""
        import onnx

        model = onnx.load_model_from_string(self._file)
        shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
        kinds = (f"{node.op_type}{[shapes.get(name) for name in node.input]}" for node in model.graph.node)
        return {hashlib.sha256(kind.encode()).hexdigest()[:16] for kind in kinds}

    def _made(self) -> bytes:
        return PLAN + self._file

    def _opened(self, plan: bytes) -> bool:
        if not plan.startswith(PLAN):
            return False
        self._file = plan.removeprefix(PLAN)
        self._open()
        return True

    def _computed(self, feeds: dict[str, Any]) -> dict[str, Any]:
        key = [(name, array.shape, array.tobytes()) for name, array in feeds.items()]
        if key != self._last[0]:
            names = [tensor.name for tensor in self._outputs]
            # a measurement gives the same again and again, and times of this mean nothing
            self._last = (key, dict(zip(names, self._session.run(names, feeds), strict=True)))
        return self._last[1]

    def _shape_of(self, output: str, given: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        key = tuple(sorted(given.items()))
        if key not in self._shapes:
            zeros = {tensor.name: np.zeros(given[tensor.name], NUMPY[tensor.dtype]) for tensor in self._inputs}
            self._shapes[key] = {name: result.shape for name, result in self._computed(zeros).items()}
        return self._shapes[key][output]


class Member:
    """A severity of ILogger."""

    def __init__(self, name: str) -> None:
        self.name = name
