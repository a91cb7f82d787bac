"""The engine that a server runs: verified against its manifest, loaded, described."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from enginefleet_api.errors import EnvironmentFault, PermanentError
from enginefleet_api.jobs import EngineManifest
from enginefleet_builder.backends import ort_session
from enginefleet_builder.backends.classify import refused
from enginefleet_builder.backends.providers import PROVIDERS
from enginefleet_builder.backends.threads import resolve_threads
from enginefleet_builder.fetch import MANIFEST, MODEL_NAME_VARIABLE
from enginefleet_builder.gate.arrays import FloatArray
from enginefleet_builder.gate.preprocessing import Preprocessor
from enginefleet_builder.gate.readers.files import decode_bytes
from enginefleet_builder.probe import onnxruntime_facts
from enginefleet_builder.store.base import sha256_of

from .protocol import DATATYPE_OF_ORT, Tensor

MOST_PIXELS = 25_000_000
"""Largest picture that is decoded: 75 MB in memory, which a request of a few KB can ask for."""
REFETCH = "Delete the pod: its replacement fetches the engine again."


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded engine. `run` may be called from several threads at a time."""

    name: str
    manifest: EngineManifest
    session: Any
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    preprocessor: Preprocessor | None = None
    """For models of one input whose manifest says what is done to pictures."""

    def picture(self, data: bytes, index: int) -> FloatArray:
        """One encoded picture (JPEG, PNG …) as calibration and gate saw it, float32 without a batch axis. Raises PermanentError."""
        assert self.preprocessor is not None
        return self.preprocessor.picture(decode_bytes(data, f"picture {index}", MOST_PIXELS))

    def run(self, outputs: list[str], feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        found: list[np.ndarray[Any, Any]] = self.session.run(outputs, feeds)
        return found


def load(folder: Path) -> Engine:
    """The engine in `folder`, which `enginefleet fetch` wrote.

    Raises EnvironmentFault `EngineMissing`, `EngineDamaged`, `RuntimeMismatch`, `ExecutionProviderMissing`, `ExecutionProviderInactive`;
    PermanentError `EngineRefused` when ONNX Runtime refuses it.
    """
    manifest = _manifest(folder)
    path = folder / Path(manifest.file).name
    _verify(path, manifest)
    provider = str(manifest.facts.get("executionProvider", "CPU"))
    seen = onnxruntime_facts(provider)
    found, wanted = seen["backendVersion"], manifest.facts.get("backendVersion")
    if wanted is not None and found != wanted:
        message = f"this image has ONNX Runtime {found}, the engine was proven with {wanted}."
        raise EnvironmentFault("RuntimeMismatch", message, f"Serve with an image that has ONNX Runtime {wanted}.")
    for library, version in seen.get("libraries", {}).items():
        proven = (manifest.facts.get("libraries") or {}).get(library)
        if proven is not None and version != proven:
            message = f"this image has {library} {version}, the engine was proven with {proven}."
            raise EnvironmentFault("RuntimeMismatch", message, f"Serve with an image that has {library} {proven}.")
    threads = resolve_threads(str(manifest.recipe.get("threads", "auto")))
    try:
        # as it was judged: same threads, not optimized a second time
        session = ort_session.load(path, threads, provider=PROVIDERS[provider], recipe=manifest.recipe)
    except (ort_session.ProviderInactiveError, ort_session.NotEmbeddedError) as error:
        raise refused(f"{type(error).__name__}: {error}", "load") from error
    except Exception as error:
        # ONNX Runtime's exceptions have no common base of their own.
        raise PermanentError(
            "EngineRefused", f"ONNX Runtime refuses {path.name}: {str(error).strip()[:400]}", "It is built again."
        ) from error
    name = os.environ.get(MODEL_NAME_VARIABLE) or manifest.model_name or "model"
    inputs = _tensors(session.get_inputs())
    preprocessor = Preprocessor.of(manifest.preprocessing) if manifest.preprocessing is not None and len(inputs) == 1 else None
    return Engine(name, manifest, session, inputs, _tensors(session.get_outputs()), preprocessor)


def _manifest(folder: Path) -> EngineManifest:
    path = folder / MANIFEST
    try:
        return EngineManifest.model_validate_json(path.read_bytes())
    except OSError as error:
        hint = "Does the pod have the fetch init container, and the same volume?"
        raise EnvironmentFault("EngineMissing", f"{path}: {error.strerror}.", hint) from error
    except ValidationError as error:
        raise EnvironmentFault("EngineDamaged", f"{path} is not an engine's manifest.", REFETCH) from error


def _verify(path: Path, manifest: EngineManifest) -> None:
    try:
        found = "sha256:" + sha256_of(path)
    except OSError as error:
        raise EnvironmentFault("EngineMissing", f"{path}: {error.strerror}.", REFETCH) from error
    if found != manifest.blob:
        raise EnvironmentFault("EngineDamaged", f"{path} has the digest {found}, expected {manifest.blob}.", REFETCH)


def _tensors(values: Any) -> tuple[Tensor, ...]:
    return tuple(Tensor(value.name, _datatype(value.name, value.type), _shape(value.shape)) for value in values)


def _datatype(name: str, kind: str) -> str:
    if kind not in DATATYPE_OF_ORT:
        known = ", ".join(DATATYPE_OF_ORT)
        raise PermanentError("EngineRefused", f"{name} is {kind}, this server knows {known}.", "Serve it with another server.")
    return DATATYPE_OF_ORT[kind]


def _shape(shape: Any) -> tuple[int, ...]:
    """-1 where the model leaves a dimension open (text or None in ONNX Runtime)."""
    return tuple(size if isinstance(size, int) and size >= 0 else -1 for size in shape)
