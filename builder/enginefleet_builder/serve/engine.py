"""The engine that a server runs: verified against its manifest, loaded, described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np
from pydantic import ValidationError

from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import EngineFleetError, EnvironmentFault, PermanentError
from enginefleet_api.jobs import EngineManifest
from enginefleet_builder import layouts
from enginefleet_builder.backends import ort_session
from enginefleet_builder.backends.classify import refused
from enginefleet_builder.backends.providers import PROVIDERS
from enginefleet_builder.backends.registry import backend_for
from enginefleet_builder.backends.threads import resolve_threads
from enginefleet_builder.fetch import MANIFEST
from enginefleet_builder.gate.arrays import FloatArray
from enginefleet_builder.gate.preprocessing import Preprocessor
from enginefleet_builder.gate.readers.files import decode_bytes
from enginefleet_builder.probe import onnxruntime_facts

from .protocol import DATATYPE_OF_DTYPE, DATATYPE_OF_ORT, Tensor
from .worker import WorkerSession

MOST_PIXELS = 25_000_000
"""Largest picture that is decoded: 75 MB in memory, which a request of a few KB can ask for."""
REFETCH = "Delete the pod: its replacement fetches the engine again."


class Session(Protocol):
    """What ONNX Runtime's InferenceSession offers, which is used as it is."""

    def run(self, outputs: list[str], feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]: ...


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded engine. `run` may be called from several threads at a time."""

    name: str
    manifest: EngineManifest
    session: Session
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    preprocessor: Preprocessor | None = None
    """For models of one input whose manifest says what is done to pictures."""

    def picture(self, data: bytes, index: int) -> FloatArray:
        """One encoded picture (JPEG, PNG …) as calibration and gate saw it, float32 without a batch axis. Raises PermanentError."""
        assert self.preprocessor is not None
        return self.preprocessor.picture(decode_bytes(data, f"picture {index}", MOST_PIXELS))

    def run(self, outputs: list[str], feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        return self.session.run(outputs, feeds)

    @property
    def fault(self) -> EngineFleetError | None:
        """Why nothing can be inferred any more in this process; None while all is well."""
        return self.session.fault if isinstance(self.session, WorkerSession) else None

    @property
    def platform(self) -> str:
        return {"tensorrt": "tensorrt_plan", "tensorrt-rtx": "tensorrt_rtx_plan"}.get(
            str(self.manifest.facts.get("backend")), "onnxruntime_onnx"
        )

    def close(self) -> None:
        if isinstance(self.session, WorkerSession):
            self.session.close()


def load(folder: Path, python: str = "python3", name: str = "") -> Engine:
    """The engine in `folder`, which `enginefleet fetch` wrote. `python`: the interpreter that owns TensorRT's bindings. `name`: of the model.

    Raises EnvironmentFault `EngineMissing`, `EngineDamaged`, `RuntimeMismatch`, `ExecutionProviderMissing`, `ExecutionProviderInactive`;
    PermanentError `NameNotPossible` for a name that fits no address, `EngineRefused` when ONNX Runtime refuses the engine;
    what the backend's load raises for an engine of TensorRT.
    """
    manifest = _manifest(folder)
    name = name or manifest.model_name or layouts.DEFAULT_NAME
    if not layouts.is_name(name):
        message = f"{name[:80]!r} cannot name a model."
        raise PermanentError("NameNotPossible", message, "Use letters, digits, '-', '.' and '_'.")
    relative = PurePosixPath(manifest.file)
    if relative.is_absolute() or ".." in relative.parts:
        raise EnvironmentFault("EngineDamaged", f"{folder / MANIFEST} names a file outside of its folder.", REFETCH)
    path = folder / relative
    _verify(path, manifest)
    backend = str(manifest.facts.get("backend", "onnxruntime"))
    if backend not in layouts.ENGINE_FILES:
        known = ", ".join(layouts.ENGINE_FILES)
        raise PermanentError(
            "BackendUnknown", f"the engine is one of {backend!r}, this server knows {known}.", "Serve it with another one."
        )
    return _with_onnxruntime(path, manifest, name) if backend == "onnxruntime" else _with_worker(path, manifest, name, python)


def _with_worker(path: Path, manifest: EngineManifest, name: str, python: str) -> Engine:
    library = str(manifest.facts["backend"])
    backend = backend_for(library, python=python)
    found, wanted = backend.versions().get(library), manifest.facts.get("backendVersion")
    if wanted is not None and found != wanted:
        message = f"this image has {library} {found or 'of unknown version'}, the engine was proven with {wanted}."
        raise EnvironmentFault("RuntimeMismatch", message, f"Serve with an image that has {library} {wanted}.")
    with layouts.bare(manifest.layout, path) as plan:
        session = WorkerSession(lambda progress: backend.load(plan, manifest.recipe, progress))
    try:
        return _engine(name, manifest, session, _specified(session.inputs), _specified(session.outputs))
    except BaseException:
        session.close()
        raise


def _with_onnxruntime(path: Path, manifest: EngineManifest, name: str) -> Engine:
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
            "EngineRefused", f"ONNX Runtime refuses {path.name}: {str(error).strip()[:400]}", "A build replaces it."
        ) from error
    return _engine(name, manifest, session, _tensors(session.get_inputs()), _tensors(session.get_outputs()))


def _engine(name: str, manifest: EngineManifest, session: Session, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Engine:
    preprocessor = Preprocessor.of(manifest.preprocessing) if manifest.preprocessing is not None and len(inputs) == 1 else None
    return Engine(name, manifest, session, inputs, outputs, preprocessor)


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
        found = "sha256:" + layouts.engine_sha256(manifest.layout, path)
    except OSError as error:
        raise EnvironmentFault("EngineMissing", f"{path}: {error.strerror}.", REFETCH) from error
    if found != manifest.blob:
        raise EnvironmentFault("EngineDamaged", f"{path} has the digest {found}, expected {manifest.blob}.", REFETCH)


def _tensors(values: Any) -> tuple[Tensor, ...]:
    return tuple(Tensor(value.name, _datatype(value.name, value.type), _shape(value.shape)) for value in values)


def _specified(specs: Sequence[TensorSpec]) -> tuple[Tensor, ...]:
    return tuple(Tensor(spec.name, _datatype(spec.name, spec.dtype, DATATYPE_OF_DTYPE), _shape(spec.shape)) for spec in specs)


def _datatype(name: str, kind: str, known: Mapping[str, str] = DATATYPE_OF_ORT) -> str:
    if kind not in known:
        raise PermanentError("EngineRefused", f"{name} is {kind}, this server knows {', '.join(known)}.", "Serve it with another server.")
    return known[kind]


def _shape(shape: Any) -> tuple[int, ...]:
    """-1 where the model leaves a dimension open (text or None in ONNX Runtime)."""
    return tuple(size if isinstance(size, int) and size >= 0 else -1 for size in shape)
