"""ModelOpt at work: INT8 and FP8 by its quantizer, FP16 and BF16 by its AutoCast, in a process of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from enginefleet_api.errors import EnvironmentFault

from ..backends.child import Child
from ..io import Progress
from .feeds import Feed

CHILD = "enginefleet_builder.prepare.modelopt_child"
HALF_RANGE = 60_000.0
"""A node stays in FP32 when one of its values is larger than this on the samples: FP16 ends at 65504."""
BF16_RANGE = 3e38


class Batches(Protocol):
    """feeds.Feeds, or a list of feeds."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Feed: ...


class Worker:
    """One ModelOpt process. Every call raises what the child meets: PermanentError, EnvironmentFault, or TransientFault to end."""

    def __init__(self, child: Child, progress: Progress) -> None:
        self._child, self._progress = child, progress

    def quantize(
        self, precision: str, method: str, model: Path, target: Path, batches: Batches, *, rest: str, exclude: Sequence[str] = ()
    ) -> None:
        """Write `model` with Q/DQ nodes to `target`; what is not quantized is in `rest`. Exact names in `exclude` stay as they are."""
        header = {"do": "quantize", "precision": precision, "method": method, "rest": rest, "exclude": list(exclude)}
        self._converse(header | {"model": str(model), "target": str(target)}, batches, "quantize: calibrate")

    def cast(self, precision: str, model: Path, target: Path, batches: Batches) -> None:
        """Write `model` in FP16 or BF16, its inputs and outputs unchanged. Nodes whose values are too large stay in FP32."""
        header = {"do": "cast", "precision": precision, "dataMax": HALF_RANGE if precision == "fp16" else BF16_RANGE}
        self._converse(header | {"model": str(model), "target": str(target)}, batches, "convert: find ranges")

    def rest(self, model: Path, target: Path) -> None:
        """Write a model with INT8 Q/DQ nodes and all else in FP16."""
        self._converse({"do": "rest", "model": str(model), "target": str(target)}, [], "convert the rest to fp16")

    def _converse(self, header: Mapping[str, Any], batches: Batches, stage: str) -> None:
        self._progress(stage)
        answer, place = self._child.ask(header)[0], 0
        while (want := answer.get("want")) is not None:
            feed: Feed | None = None
            match want:
                case "first":
                    feed = batches[0]
                case "rewind":
                    place = 0
                case "next" if place < len(batches):
                    self._progress(stage, place, len(batches))
                    feed = batches[place]
                    place += 1
            answer = self._child.ask({"end": feed is None}, feed)[0]
        if (fault := answer.get("fault")) is not None:
            raise EnvironmentFault(fault["reason"], fault["message"], fault["hint"])


@contextmanager
def worker(progress: Progress) -> Iterator[Worker]:
    with Child(CHILD, progress) as child:
        yield Worker(child, progress)


def installed() -> dict[str, str]:
    """{nvidia-modelopt: version}; empty where it is not."""
    try:
        return {"nvidia-modelopt": version("nvidia-modelopt")}
    except PackageNotFoundError:
        return {}
