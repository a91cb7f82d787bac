"""What tests/gpu/run and tests/jetson/run share: one engine through the build Job on a device, what is told of it, and what must never happen."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from bench.accuracy import build_request_for
from enginefleet_api.errors import EngineFleetError
from enginefleet_api.jobs import BuildReport, BuildRequest, PrepareReport, PrepareRequest
from enginefleet_api.judging import AccuracyAcceptance, Benchmark
from enginefleet_api.variants import Variant
from enginefleet_builder.io import PlainProgress, Progress
from enginefleet_builder.store import open_store
from enginefleet_builder.store.records import Records

MAX_DROP = "0.02"
WORKER = b"enginefleet_builder/worker/main.py"


def build_request(
    request: PrepareRequest,
    prepared: PrepareReport,
    variant: Variant,
    *,
    facts: Mapping[str, Any],
    recipe: Mapping[str, Any],
    python: str,
    batch: int,
    holder: str,
) -> BuildRequest:
    """As an operator asks for it; `batch`: what is timed besides single samples."""
    assert request.validation is not None
    return build_request_for(
        request,
        prepared,
        next(item for item in prepared.prepared if item.variant == variant.id),
        facts=facts,
        recipe=recipe,
        validation=request.validation.model_copy(update={"acceptance": AccuracyAcceptance(max_drop=MAX_DROP)}),
        gate={"test": holder, "batch": batch, "maxDrop": MAX_DROP},
        backend="tensorrt",
        python=python,
        benchmark=Benchmark(batch_sizes=sorted({1, batch})),
        holder=holder,
    )


def told(built: BuildReport) -> dict[str, Any]:
    """What the product says of an engine."""
    spent = {stage: float(seconds) for stage, seconds in built.durations.items()}
    row: dict[str, Any] = {"answer": built.answer, "reasons": built.reasons, "bytes": built.size, "warnings": built.warnings}
    row["durations"] = built.durations
    if "compile" in spent:
        row["build_s"] = spent["compile"]
        row["build_overhead_s"] = round(spent["fetch"] + spent["build"] + spent["publish"] - spent["compile"], 2)
    if built.accuracy is not None:
        row |= {"value": built.accuracy.value, "baseline": built.accuracy.baseline, "drop": built.accuracy.drop}
        row["dropInterval"] = built.accuracy.drop_interval
    row["latency"] = [item.to_json_dict() for item in built.latency]
    return row


def reason_of(do: Callable[[], object]) -> str:
    try:
        do()
    except EngineFleetError as error:
        return f"{error.reason}: {error.message}"
    return "NOTHING WAS SAID"


def save(file: Path, data: Mapping[str, Any]) -> None:
    """As JSON, whole or not at all."""
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(data, indent=1) + "\n")
    partial.replace(file)


def store_folder(request: BuildRequest) -> Path:
    return Path(request.store.uri.removeprefix("file://"))


def blob_file(request: BuildRequest, blob: str) -> Path:
    digest = blob.removeprefix("sha256:")
    return store_folder(request) / "blobs" / "sha256" / digest[:2] / digest


def forget(request: BuildRequest, blob: str, *, measured: bool = False) -> None:
    """Take the engine out of the folder store; with `measured` also the timing caches."""
    shutil.rmtree(store_folder(request) / "engines" / request.engine_key)
    blob_file(request, blob).unlink()
    if measured:
        shutil.rmtree(store_folder(request) / "timing-caches", ignore_errors=True)


def workers(parent: int | None = None) -> list[int]:
    """Processes of TensorRT's worker that run; `parent`: its children alone."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line, status = (folder / "cmdline").read_bytes(), (folder / "status").read_text()
        except OSError:
            continue
        mine = parent is None or re.search(rf"^PPid:\t{parent}$", status, re.MULTILINE)
        if WORKER in line and mine:
            found.append(int(folder.name))
    return found


class Killing(PlainProgress):
    """Kills the worker as soon as TensorRT has told how far its build is, of each build again. `killed`: process ids."""

    def __init__(self) -> None:
        super().__init__()
        self.killed: list[int] = []

    def show(self, stage: str, done: float | None, total: float | None) -> None:
        super().show(stage, done, total)
        if stage.endswith(": build") and done:
            for pid in set(workers(os.getpid())) - set(self.killed):
                self.killed.append(pid)
                os.kill(pid, signal.SIGKILL)


def killed(
    request: BuildRequest,
    blob: str,
    run: Callable[[Progress], BuildReport],
    meanwhile: AbstractContextManager[None] | None = None,
) -> dict[str, Any]:
    """SIGKILL of the worker in mid-build of an engine that was published as `blob`: what is reported, what is left, and the same request again.

    `run`: the build Job. `meanwhile`: around the build that is killed.
    """
    forget(request, blob, measured=True)  # with timing caches there would be no time to kill
    killing = Killing()
    with meanwhile or nullcontext():
        said = reason_of(lambda: run(killing))
    left = workers(os.getpid())
    published = Records(open_store(request.store)).builds(request.engine_key)
    again = run(PlainProgress())
    return {
        "ok": bool(killing.killed) and not left and not published and not again.adopted,
        "killed": len(killing.killed),
        "said": said,
        "workersLeft": len(left),
        "published": len(published),
        "again": again.answer,
    }
