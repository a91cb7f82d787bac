"""How a fetched engine lies in the serving pod's folder, for the server that reads it (spec.serving.layout).

plain        <folder>/model.plan | model.onnx
ultralytics  <folder>/model.engine                         the plan behind the header that Ultralytics' loader reads
triton       <folder>/models/<name>/config.pbtxt           `tritonserver --model-repository=<folder>/models`
             <folder>/models/<name>/1/model.plan | model.onnx

engine.json stands in <folder> in every layout and names the file; what is verified is always the engine as it was published.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile
from typing import Any

from enginefleet_api.documents import BuildRecord, TensorSpec
from enginefleet_api.errors import EnvironmentFault, PermanentError
from enginefleet_api.layouts import Layout, layout_refused

from . import engine_files, triton

ENGINE_FILES = {"onnxruntime": "model.onnx", "tensorrt": "model.plan", "tensorrt-rtx": "model.plan"}
"""By backend: the names that Triton's backends look for, too."""
REPOSITORY = "models"
DEFAULT_NAME = "model"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


def is_name(name: str) -> bool:
    """Whether a folder and an address can have this name of a model."""
    return _NAME.fullmatch(name) is not None


def engine_file(layout: Layout, name: str, facts: Mapping[str, Any]) -> PurePosixPath:
    """Where the engine comes to lie, relative to the folder. Raises PermanentError `BackendUnknown`, `LayoutNotPossible`."""
    backend = str(facts.get("backend"))
    if backend not in ENGINE_FILES:
        raise PermanentError(
            "BackendUnknown", f"facts name the backend {backend!r}, expected one of {', '.join(ENGINE_FILES)}.", "Correct the request."
        )
    plain = ENGINE_FILES[backend]
    if why := layout_refused(layout, backend):
        raise PermanentError("LayoutNotPossible", f"{why}.", "Use spec.serving.layout plain.")
    if layout == "triton":
        name = name or DEFAULT_NAME
        if not is_name(name):
            raise PermanentError("LayoutNotPossible", f"{name[:80]!r} cannot name a folder.", "Use letters, digits, '-', '.' and '_'.")
        return PurePosixPath(REPOSITORY, name, triton.VERSION, plain)
    if layout == "ultralytics":
        return PurePosixPath(Path(plain).stem + engine_files.ULTRALYTICS_SUFFIX)
    return PurePosixPath(plain)


def unfit_for(metadata: Mapping[str, str], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> dict[str, str]:
    """Layout → why this model cannot be served in it, whatever its backend: what `finish` would say of its engine."""
    writers: dict[str, Callable[[], object]] = {
        "triton": lambda: triton.config(DEFAULT_NAME, ENGINE_FILES["tensorrt"], {"backend": "tensorrt"}, {}, inputs, outputs),
        "ultralytics": lambda: engine_files.ultralytics_header(metadata),
    }
    found: dict[str, str] = {}
    for layout, write in writers.items():
        try:
            write()
        except PermanentError as error:
            found[layout] = str(error)
    return found


def finish(layout: Layout, engine: Path, record: BuildRecord | None) -> None:
    """Write what the layout wants besides the verified file `engine`, which stands where engine_file says.

    Raises PermanentError `LayoutNotPossible`, `NotUltralytics`; EnvironmentFault `RecordMissing`; OSError.
    """
    if layout == "plain":
        return
    if record is None:
        message = f"the build record is not to be had, and layout {layout} is written from it."
        raise EnvironmentFault("RecordMissing", message, "It comes with the engine from the store: is the store reachable?")
    if layout == "triton":
        inputs, outputs = (_as_engine_has(specs, record.facts) for specs in (record.inputs, record.outputs))
        text = triton.config(engine.parent.parent.name, engine.name, record.facts, record.recipe, inputs, outputs, record.shape_tensors)
        (engine.parent.parent / triton.CONFIG).write_text(text)
        return
    header = engine_files.ultralytics_header(record.metadata)
    partial = engine.with_name(engine.name + ".partial")
    with engine.open("rb") as source, partial.open("wb") as target:
        target.write(header)
        shutil.copyfileobj(source, target, 1 << 20)
    partial.replace(engine)


def engine_sha256(layout: Layout, engine: Path) -> str:
    """Hex digest of the engine as it was published. Raises OSError."""
    return engine_files.sha256_from(engine, _offset(layout, engine))


@contextmanager
def bare(layout: Layout, engine: Path) -> Iterator[Path]:
    """The engine as a file that its runtime loads: a copy without the header where there is one. Raises OSError."""
    offset = _offset(layout, engine)
    if not offset:
        yield engine
        return
    with NamedTemporaryFile(suffix=".plan") as copy:
        with engine.open("rb") as source:
            source.seek(offset)
            shutil.copyfileobj(source, copy, 1 << 20)
        copy.flush()
        yield Path(copy.name)


def _offset(layout: Layout, engine: Path) -> int:
    header = engine_files.ultralytics(engine) if layout == "ultralytics" else None
    return header.offset if header else 0


def _as_engine_has(specs: Sequence[TensorSpec], facts: Mapping[str, Any]) -> list[TensorSpec]:
    """TensorRT before 10 has no int64 and takes int32 for it."""
    # Imported here: the other layouts do without the table of targets.
    from .prepare import targets

    version = str(facts.get("backendVersion") or "")
    found = targets.tensorrt(targets.load(), version) if facts.get("backend") == "tensorrt" and version else None
    narrowed = found.cast if found else ()
    return [spec.model_copy(update={"dtype": "int32"}) if spec.dtype in narrowed else spec for spec in specs]
