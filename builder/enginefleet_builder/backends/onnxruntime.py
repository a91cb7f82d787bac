"""ONNX Runtime on a CPU: the engine is the model, optimized for the machine that built it, as one ONNX file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import PermanentError

from ..gate.arrays import Array
from ..io import Progress
from .base import BuiltEngine, NodeRun
from .child import Child
from .ort_session import Level
from .threads import resolve_threads

CHILD = "enginefleet_builder.backends.ort_child"
ENGINE_FILE = "engine.onnx"
MAX_MODEL_BYTES = 1_900_000_000
"""An engine is one protobuf message, which ends at 2 GiB; optimizing adds a little."""


class OnnxRuntime:
    name = "onnxruntime"

    def versions(self) -> dict[str, str]:
        return {"onnxruntime": version("onnxruntime"), "onnx": version("onnx")}

    def build(self, model: Path, recipe: Mapping[str, Any], workdir: Path, progress: Progress) -> BuiltEngine:
        """Profiles play no part: ONNX Runtime takes any shape that the model takes."""
        files = [file for file in model.parent.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        if size > MAX_MODEL_BYTES:
            found = f"the model has {size} bytes with its external data, an ONNX Runtime engine at most {MAX_MODEL_BYTES}"
            raise PermanentError("ModelTooLarge", f"{found}.", "Use a smaller model, or int8.")
        engine = workdir / ENGINE_FILE
        threads = resolve_threads(str(recipe.get("threads", "auto")))
        with Child(CHILD, progress) as child:
            child.ask({"do": "optimize", "model": str(model), "engine": str(engine), "threads": threads, "inline": len(files) > 1})
            log = child.log()
        return BuiltEngine(engine, log, [line for line in log.splitlines() if "[W:onnxruntime" in line][:20])

    @contextmanager
    def load(self, engine: Path, recipe: Mapping[str, Any], progress: Progress) -> Iterator[OrtSession]:
        with open_session(engine, str(recipe.get("threads", "auto")), progress) as session:
            yield session

    def profile(self, engine: Path, recipe: Mapping[str, Any], feeds: Mapping[str, Array], runs: int, progress: Progress) -> list[NodeRun]:
        threads = resolve_threads(str(recipe.get("threads", "auto")))
        with tempfile.TemporaryDirectory(prefix="profile-") as folder, Child(CHILD, progress) as child:
            header = {"do": "profile", "engine": str(engine), "threads": threads, "runs": runs, "folder": folder}
            return [NodeRun(**node) for node in child.ask(header, feeds)[0]["nodes"]]


class OrtSession:
    """See base.Session."""

    def __init__(self, child: Child, engine: Path, threads: int, level: Level) -> None:
        self._child = child
        answer, _ = child.ask({"do": "load", "engine": str(engine), "threads": threads, "level": level})
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
    """An ONNX file in a child process. Level `none` for engines, `basic` for models as they are given."""
    with Child(CHILD, progress) as child:
        yield OrtSession(child, path, resolve_threads(threads), level)
