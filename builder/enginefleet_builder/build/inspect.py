"""What a model, an engine or a timing cache is, for people: told from the file, without a GPU and without loading an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import EngineManifest

from .. import engine_files
from ..fetch import MANIFEST
from ..prepare import model as models
from ..sources import model_files
from ..store.base import sha256_of

MOST_MANIFEST = 1 << 20
KNOWN = (
    "What can be told: an ONNX model (.onnx), a plan of TensorRT or TensorRT for RTX (.plan, .engine), an engine of Ultralytics (.engine),"
    " a timing cache, an archive of TensorRT, and the folder of a model or of a fetched engine (engine.json)."
)


def inspect(path: Path) -> dict[str, Any]:
    """`kind` and what that kind tells: onnx, tensorrt-plan, ultralytics-engine, timing-cache, tensorrt-archive.

    `path`: a file, or a folder with one model or with an engine as `enginefleet fetch` leaves it. Raises PermanentError `NotAModel` (says what
    the file is), `ModelNotFound`, `ModelAmbiguous`, and what reading an ONNX file raises.
    """
    if not path.is_dir():
        return _onnx_or_engine(path)
    manifest = _manifest(path / MANIFEST)
    if manifest is not None:
        return _served(path, manifest)
    with _hinting():
        file = model_files(path)
    return _onnx_or_engine(file)


@contextmanager
def _hinting() -> Iterator[None]:
    """Whoever reads a model wants one and hints at nothing else; here other kinds will do."""
    try:
        yield
    except PermanentError as error:
        if error.reason not in ("NotAModel", "ModelNotFound", "ModelTruncated"):
            raise
        raise PermanentError(error.reason, error.message, KNOWN) from error


def _onnx_or_engine(path: Path) -> dict[str, Any]:
    try:
        # a pipe or a device would never end
        found = engine_files.describe(path) if path.is_file() else None
    except OSError as error:
        raise PermanentError("ModelNotFound", f"{path.name} cannot be read: {error.strerror}.", "Correct its permissions.") from error
    if found is None:
        with _hinting():
            return _onnx(path)
    told = {"file": path.name, "kind": found.pop("kind"), "size": path.stat().st_size, "sha256": sha256_of(path)} | found
    if "payloadOffset" in told:
        told["payload"]["sha256"] = engine_files.sha256_from(path, told["payloadOffset"])
    return told


def _onnx(path: Path) -> dict[str, Any]:
    """Operators with their number, opsets, inputs and outputs, Q/DQ nodes, metadata, external data."""
    model = models.read_model(path)
    operators = Counter(f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in models.nodes(model))
    return {
        "file": path.name,
        "kind": "onnx",
        "size": path.stat().st_size,
        "sha256": sha256_of(path),
        "irVersion": int(model.ir_version),
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "opsets": {domain or "ai.onnx": version for domain, version in models.opsets(model).items()},
        "inputs": [spec.to_json_dict(exclude_none=False) for spec in models.inputs(model)],
        "outputs": [spec.to_json_dict(exclude_none=False) for spec in models.outputs(model)],
        "nodes": sum(operators.values()),
        "operators": dict(sorted(operators.items())),
        "qdqNodes": models.count(model, models.QUANTIZING),
        "externalData": sorted({item.location for item in models.external(model)}),
        "metadata": models.metadata(model),
    }


def _manifest(path: Path) -> EngineManifest | None:
    try:
        with path.open("rb") as file:
            return EngineManifest.model_validate_json(file.read(MOST_MANIFEST))
    except (OSError, ValidationError):
        return None


def _served(folder: Path, manifest: EngineManifest) -> dict[str, Any]:
    name = PurePosixPath(manifest.file)
    if name.is_absolute() or ".." in name.parts:
        raise PermanentError(
            "NotAModel", f"{MANIFEST} names the file {manifest.file[:120]!r}, outside of its folder.", "Fetch the engine again."
        )
    told = _onnx_or_engine(folder / name)
    digest = told["payload"]["sha256"] if "payload" in told else told["sha256"]
    wanted = {"blob": manifest.blob, "sound": f"sha256:{digest}" == manifest.blob, "engineKey": manifest.engine_key}
    return told | {
        "manifest": wanted | {"fingerprint": manifest.fingerprint, "precision": manifest.precision, "facts": dict(manifest.facts)}
    }
