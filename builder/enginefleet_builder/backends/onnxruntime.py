"""ONNX Runtime with one of its execution providers: the engine is one ONNX file. What is in it: see providers.py."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import PermanentError

from ..gate.arrays import Array
from ..io import Progress
from ..runtime_check import installed_version
from .base import BuiltEngine, NodeRun
from .child import Child
from .providers import CPU, ExecutionProvider, refuse
from .threads import CARRIER, resolve_threads

if TYPE_CHECKING:
    # ONNX Runtime itself is loaded by children only
    from .ort_session import Level

CHILD = "enginefleet_builder.backends.ort_child"
ENGINE_FILE = "engine.onnx"
MAX_MODEL_BYTES = 1_900_000_000
"""An engine is one protobuf message, which ends at 2 GiB; optimizing adds a little."""


class OnnxRuntime:
    name = "onnxruntime"

    def __init__(self, provider: ExecutionProvider = CPU) -> None:
        self._provider = provider

    def versions(self) -> dict[str, str]:
        return {"onnxruntime": installed_version("onnxruntime") or "unknown", "onnx": version("onnx")}

    def build(self, model: Path, recipe: Mapping[str, Any], workdir: Path, progress: Progress) -> BuiltEngine:
        """Profiles play a part with TensorRT alone: the others take any shape that the model takes."""
        refuse(self._provider, recipe)
        files = [file for file in model.parent.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        if size > MAX_MODEL_BYTES:
            found = f"the model has {size} bytes with its external data, an ONNX Runtime engine at most {MAX_MODEL_BYTES}"
            raise PermanentError("ModelTooLarge", f"{found}.", "Use a smaller model, or int8.")
        engine = workdir / ENGINE_FILE
        header = {"do": "build", "model": str(model), "engine": str(engine), "inline": len(files) > 1}
        with Child(CHILD, progress, _environment(self._provider)) as child:
            placed: dict[str, int] = child.ask(header | self._asked(recipe))[0]["placement"]
            log = child.log()
        warnings = [line for line in log.splitlines() if "[W:onnxruntime" in line][:20]
        if not placed and self._provider is not CPU:
            warnings.append(f"how many nodes run on {self._provider.name} is not known: ONNX Runtime tells it from 1.24 on")
        return BuiltEngine(engine, log, warnings, providers=placed)

    @contextmanager
    def load(self, engine: Path, recipe: Mapping[str, Any], progress: Progress) -> Iterator[OrtSession]:
        with Child(CHILD, progress, _environment(self._provider)) as child:
            yield OrtSession(child, {"engine": str(engine), "level": "none"} | self._asked(recipe))

    def profile(self, engine: Path, recipe: Mapping[str, Any], feeds: Mapping[str, Array], runs: int, progress: Progress) -> list[NodeRun]:
        with tempfile.TemporaryDirectory(prefix="profile-") as folder, Child(CHILD, progress, _environment(self._provider)) as child:
            header = {"do": "profile", "engine": str(engine), "runs": runs, "folder": folder}
            return [NodeRun(**node) for node in child.ask(header | self._asked(recipe), feeds)[0]["nodes"]]

    def _asked(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        return {"threads": resolve_threads(str(recipe.get("threads", "auto"))), "provider": self._provider.name, "recipe": dict(recipe)}


def _environment(provider: ExecutionProvider) -> Mapping[str, str]:
    """TensorRT has no option of ONNX Runtime for TF32, and FP32 means FP32."""
    return os.environ | CARRIER | ({"NVIDIA_TF32_OVERRIDE": "0"} if provider.name == "TensorRT" else {})


class OrtSession:
    """See base.Session."""

    def __init__(self, child: Child, asked: Mapping[str, Any]) -> None:
        self._child = child
        answer, _ = child.ask({"do": "load", **asked})
        self.inputs: Sequence[TensorSpec] = [TensorSpec.model_validate(item) for item in answer["inputs"]]
        self.outputs: Sequence[TensorSpec] = [TensorSpec.model_validate(item) for item in answer["outputs"]]

    @property
    def pid(self) -> int:
        return self._child.pid

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return self._child.ask({"do": "run"}, feeds)[1]

    def timings(self, feeds: Mapping[str, Array], *, warm_up: int, iterations: int, seconds: float) -> NDArray[np.float64]:
        header = {"do": "timings", "warm_up": warm_up, "iterations": iterations, "seconds": seconds}
        return self._child.ask(header, feeds)[1]["seconds"].astype(np.float64)


@contextmanager
def open_session(path: Path, threads: str, progress: Progress, level: Level = "none") -> Iterator[OrtSession]:
    """An ONNX file on the CPU, in a child process. Level `none` for engines, `basic` for models as they are given."""
    with Child(CHILD, progress, _environment(CPU)) as child:
        yield OrtSession(child, {"engine": str(path), "threads": resolve_threads(threads), "level": level, "recipe": {}})
