"""What a backend does: build an engine from a prepared model, and load one in a child process for judging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.documents import TensorSpec

from ..gate.arrays import Array
from ..io import Progress


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """One file that holds the whole engine, and what the builder said."""

    file: Path
    log: str = ""
    warnings: list[str] = field(default_factory=list)
    providers: Mapping[str, int] = field(default_factory=dict)
    """Nodes by ONNX Runtime's execution provider; empty: not known, or another backend."""
    excluded: list[str] = field(default_factory=list)
    """Nodes that the build left in higher precision, because the library has no kernel for them in the precision asked for."""
    shape_tensors: list[str] = field(default_factory=list)
    """Inputs and outputs whose values are a shape, which TensorRT reads and writes on the host."""
    compile_seconds: float | None = None
    """What the library's own compiling took, of all that building took; None: not told apart."""


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One node as the runtime ran it: operator, element types of inputs and outputs (`int8`, `float16`, `float`, …), seconds of one run.

    `compiled`: it stands for a part of the graph that an execution provider compiled; in which types that runs is not seen from outside.
    """

    op: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    seconds: float
    compiled: bool = False


class Session(Protocol):
    """A loaded engine in its own process. A crash there is an EngineFleetError here."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name, in the model's order. Raises PermanentError `InferenceFailed` for inputs that the engine refuses."""

    def timings(self, feeds: Mapping[str, Array], *, warm_up: int, iterations: int, seconds: float) -> NDArray[np.float64]:
        """Seconds of each of at least `iterations` runs, and of as many as fit into `seconds`; float64, in order of time.

        As a server sees a run: on an accelerator copying inputs there and outputs back is part of it.
        """


@dataclass(frozen=True, slots=True)
class Timed:
    """Single runs on an accelerator, in order of time; seconds, float64."""

    seconds: NDArray[np.float64]
    enqueue: NDArray[np.float64] | None = None
    """The host's share of each run: from the call until it came back, which may be before the device is done."""
    cuda_graph: bool = False
    """Whether the runs were launches of a captured CUDA graph."""


@runtime_checkable
class DeviceSession(Session, Protocol):
    """What a session on an accelerator offers besides."""

    device_memory: int | None
    """Bytes of device memory that the loaded engine holds, with its execution context; None: not known."""

    def timed(
        self, feeds: Mapping[str, Array], *, warm_up: int, iterations: int, seconds: float, transfers: bool, cuda_graph: bool
    ) -> Timed:
        """As `timings`. `transfers`: whether copying inputs there and outputs back is part of a run; without it the device's own time counts.

        `cuda_graph`: runs launch a captured graph where the engine can be captured; the answer says whether they did.
        """


class Backend(Protocol):
    name: str

    def versions(self) -> dict[str, str]:
        """Versions that a build record keeps."""

    def build(self, model: Path, recipe: Mapping[str, Any], workdir: Path, progress: Progress) -> BuiltEngine:
        """Build an engine for this machine from the .onnx file `model` (external data beside it) into `workdir`.

        `recipe`: the requested settings (identity.ENGINE_DEFAULTS names them).
        """

    def load(self, engine: Path, recipe: Mapping[str, Any], progress: Progress) -> AbstractContextManager[Session]:
        """Load as the server does, in a child process."""

    def profile(self, engine: Path, recipe: Mapping[str, Any], feeds: Mapping[str, Array], runs: int, progress: Progress) -> list[NodeRun]:
        """What ran in which type and for how long (median of `runs`, a first one not counted), in a child process of its own."""


@runtime_checkable
class Inspecting(Backend, Protocol):
    """A backend whose library describes an engine layer by layer."""

    inspected: Mapping[str, Any] | None
    """What it said of the engine that was profiled last, in its own words; None: of none."""


@runtime_checkable
class TimingCaching(Backend, Protocol):
    """A backend whose builds measure, and are quicker with what earlier ones measured."""

    timing_caches: bool
    """Whether its library keeps any; else its builds are like any other's."""

    def build(
        self,
        model: Path,
        recipe: Mapping[str, Any],
        workdir: Path,
        progress: Progress,
        *,
        timing_cache: Path | None = None,
        timing_cache_out: Path | None = None,
    ) -> BuiltEngine:
        """As Backend.build. A cache that is damaged, or of another device or release, is left aside with a warning.

        `timing_cache_out`: where to write what is known after the build, with all that `timing_cache` held.
        """

    def merge_timing_caches(self, ours: Path, theirs: Path, target: Path, progress: Progress) -> bool:
        """Write what both hold to `target`; False when the library says that they do not go together."""
