"""What targets take, as data: TensorRT releases, GPU generations, JetPack, ONNX Runtime releases, what images are called.

The table is `targets.json` beside this file; a mounted ConfigMap or ENGINEFLEET_TARGETS gives another, so that a new release of TensorRT
needs none of ours. A release takes what its newest entry at or below it says; a field that an entry leaves out is that of the one before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from enginefleet_api.base import Contract
from enginefleet_api.errors import PermanentError
from enginefleet_api.flavours import release
from enginefleet_api.jobs import PreflightTarget

from ..tables import MOST_BYTES, DatedTable, Replaceable

TARGETS_VARIABLE = "ENGINEFLEET_TARGETS"

Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8"]
Release = tuple[int, ...]


class TensorRTEntry(Contract):
    release: str = Field(pattern=r"^[0-9]+(\.[0-9]+)*$")
    opset: int | None = None
    """Newest opset that the parser's documentation names."""
    unsupported: list[str] | None = None
    """Operators of ONNX that the parser's documentation says N to."""
    min_compute_capability: str | None = Field(default=None, pattern=r"^[0-9]+\.[0-9]$")
    precisions: list[Precision] | None = None
    input_types: list[str] | None = None
    cast: list[str] | None = None
    """Input types that are taken as a narrower one."""
    dla: list[str] | None = None
    """Compute capabilities whose DLA it drives."""


class HardwareEntry(Contract):
    compute_capability: str = Field(pattern=r"^[0-9]+\.[0-9]$")
    devices: str
    precisions: list[Precision]


class JetPackEntry(Contract):
    l4t: str = Field(pattern=r"^[0-9]+(\.[0-9]+)*$")
    jetpack: str
    tensorrt: list[str]
    compute_capabilities: list[str]


class OnnxRuntimeEntry(Contract):
    release: str = Field(pattern=r"^[0-9]+(\.[0-9]+)*$")
    opset: int
    ir: int


class KnownBadEntry(Contract):
    """A combination that public reports call broken. An empty list is any; a condition that a target does not tell is not met."""

    tensorrt: list[str] = Field(default_factory=list, max_length=2)
    """First and last release; the last one with everything that it begins."""
    l4t: list[str] = Field(default_factory=list)
    """Releases, each with everything that it begins."""
    compute_capabilities: list[str] = Field(default_factory=list)
    precisions: list[Precision] = Field(default_factory=list)
    operators: list[str] = Field(default_factory=list)
    """Of ONNX; one of them is enough."""
    dla: bool = False
    """Whether it is about DLAs only."""
    severity: Literal["error", "warning"] = "warning"
    what: str
    hint: str
    references: list[Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+#[0-9]+$")]] = Field(min_length=1)
    """Public threads, owner/repository#number."""


class ImageEntry(Contract):
    """A part of an image's name that tells a version: its group does, or `version` where the name holds none (tags that are dates)."""

    pattern: str
    gives: Literal["tensorrt", "l4t", "onnxruntime"]
    version: str = Field(default="", pattern=r"^([0-9]+(\.[0-9]+)*)?$")


class Table(DatedTable):
    """Lists are in ascending order of their releases."""

    tensorrt: list[TensorRTEntry]
    hardware: list[HardwareEntry]
    jetpack: list[JetPackEntry]
    onnxruntime: list[OnnxRuntimeEntry]
    known_bad: list[KnownBadEntry] = Field(default_factory=list)
    images: list[ImageEntry]


@dataclass(frozen=True, slots=True)
class TensorRT:
    """What one TensorRT release takes. `opset_of`: the release whose documentation names the opset."""

    opset: int
    opset_of: str
    unsupported: frozenset[str]
    min_compute_capability: str
    precisions: tuple[str, ...]
    input_types: tuple[str, ...]
    cast: tuple[str, ...]
    dla: tuple[str, ...]


def _check(table: Table) -> None:
    for what, texts in (
        ("tensorrt", [entry.release for entry in table.tensorrt]),
        ("hardware", [entry.compute_capability for entry in table.hardware]),
        ("jetpack", [entry.l4t for entry in table.jetpack]),
        ("onnxruntime", [entry.release for entry in table.onnxruntime]),
    ):
        releases = [release(text) for text in texts]
        if releases != sorted(set(releases)):
            raise ValueError(f"{what}: releases {texts} do not ascend")
    if not table.tensorrt or None in table.tensorrt[0].model_dump().values():
        raise ValueError("tensorrt: the first entry must have every field")
    for number, bad in enumerate(table.known_bad):
        if len(bad.tensorrt) == 1 or [release(text) for text in bad.tensorrt] != sorted(release(text) for text in bad.tensorrt):
            raise ValueError(f"knownBad.{number}: tensorrt {bad.tensorrt} is no first and last release")
    for entry in table.images:
        if re.compile(entry.pattern).groups != (0 if entry.version else 1):
            raise ValueError(f"images: {entry.pattern!r} has not exactly one group, or has one beside its version")


_TABLE = Replaceable(
    Path(__file__).with_name("targets.json"), Table, _check, of="targets", reason="TargetsInvalid", variable=TARGETS_VARIABLE
)
load, chosen = _TABLE.load, _TABLE.chosen


def tensorrt(table: Table, version: str) -> TensorRT | None:
    """What that release takes; None for one older than the table."""
    found: dict[str, Any] = {}
    for entry in table.tensorrt:
        if release(entry.release) > release(version):
            break
        changes = entry.model_dump(exclude_none=True)
        found |= changes | ({"opset_of": entry.release} if entry.opset is not None else {})
    if not found:
        return None
    lists = {name: tuple(found[name]) for name in ("precisions", "input_types", "cast", "dla")}
    return TensorRT(found["opset"], found["opset_of"], frozenset(found["unsupported"]), found["min_compute_capability"], **lists)


def hardware(table: Table, compute_capability: str) -> HardwareEntry | None:
    return next((entry for entry in table.hardware if entry.compute_capability == compute_capability), None)


def jetpack(table: Table, l4t: str) -> JetPackEntry | None:
    """The entry with the longest `l4t` that `l4t` begins with: 36.4.3 is in 36.4."""
    wanted = release(l4t)
    fitting = [entry for entry in table.jetpack if wanted[: len(release(entry.l4t))] == release(entry.l4t)]
    return max(fitting, key=lambda entry: len(release(entry.l4t)), default=None)


def onnxruntime(table: Table, version: str) -> OnnxRuntimeEntry | None:
    """The entry of that minor release; None for one that the table does not have."""
    return next((entry for entry in table.onnxruntime if release(version)[:2] == release(entry.release)[:2]), None)


def known_bad(table: Table, *, tensorrt: str | None, l4t: str | None, compute_capability: str | None, dla: bool) -> list[KnownBadEntry]:
    """Entries that a device and its libraries meet; precisions and operators are left to the caller. None is unknown."""

    def begins(text: str | None, beginnings: Sequence[str]) -> bool:
        return text is not None and any(release(text)[: len(release(one))] == release(one) for one in beginnings)

    def met(entry: KnownBadEntry) -> bool:
        first, last = entry.tensorrt or ("", "")
        within = tensorrt is not None and (release(first) <= release(tensorrt) <= release(last) or begins(tensorrt, [last]))
        return (
            (within or not entry.tensorrt)
            and (not entry.l4t or begins(l4t, entry.l4t))
            and (not entry.compute_capabilities or compute_capability in entry.compute_capabilities)
            and (dla or not entry.dla)
        )

    return [entry for entry in table.known_bad if met(entry)]


def known_from_image(table: Table, image: str) -> dict[str, str]:
    """Versions that the image's name tells, by what they are of; the first pattern that fits decides."""
    found: dict[str, str] = {}
    for entry in table.images:
        match = re.search(entry.pattern, image.partition("@")[0])
        if match and entry.gives not in found:
            found[entry.gives] = entry.version or match[1]
    return found


# ---- manifests ----


def read_manifests(path: Path, refused: Callable[[Path, str], PermanentError]) -> list[Mapping[str, Any]]:
    """The documents of a YAML or JSON file. Raises what `refused` makes of the path and the cause."""
    # Imported here: only the command line reads manifests.
    import yaml

    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise refused(path, f"it has more than {MOST_BYTES} bytes")
        documents = list(yaml.safe_load_all(text))
    except OSError as error:
        raise refused(path, error.strerror or str(error)) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise refused(path, " ".join(str(error).split())[:200]) from error
    found: list[Mapping[str, Any]] = []
    for document in documents:
        items = document.get("items") if isinstance(document, Mapping) and document.get("kind") == "List" else [document]
        found += [item for item in items or [] if isinstance(item, Mapping)]
    return found


def from_manifests(path: Path, table: Table) -> list[PreflightTarget]:
    """The HardwareClasses of a manifest file as targets, one for each combination of facts that is known of it.

    Where NodeFingerprints stand in the same file, or status tells what probes found, those facts count; else what the image's name tells.
    """
    documents = read_manifests(path, _not_a_class)
    classes = [document for document in documents if document.get("kind") == "HardwareClass"]
    if not classes:
        kinds = [str(document.get("kind")) for document in documents][:5]
        raise _not_a_class(path, f"it holds {kinds or 'nothing'}, no HardwareClass")
    observed = [
        item for document in documents if document.get("kind") == "NodeFingerprint" for item in _list(document, "spec", "observations")
    ]
    found: list[PreflightTarget] = []
    for manifest in classes:
        name = str(_dig(manifest, "metadata", "name") or path.stem)
        backend = _dig(manifest, "spec", "backend")
        if backend not in ("tensorrt", "tensorrt-rtx", "onnxruntime"):
            raise _not_a_class(path, f"spec.backend of {name} is {backend!r}, expected tensorrt, tensorrt-rtx or onnxruntime")
        image = str(_dig(manifest, "spec", "runtime", "image") or "")
        base = PreflightTarget(name=name, backend=backend, image=image)
        mine = [item.get("facts") for item in observed if isinstance(item, Mapping) and item.get("class") == name]
        probed = [_dig(item, "runtime") for item in _list(manifest, "status", "probed")]
        facts = [item for item in mine or probed if isinstance(item, Mapping)]
        found += list(dict.fromkeys(with_facts(base, item, table) for item in facts or [{}]))
    return found


def with_facts(target: PreflightTarget, facts: Mapping[str, Any], table: Table) -> PreflightTarget:
    """`target` with what a fingerprint's facts tell, and for the rest what its image's name tells."""
    named = known_from_image(table, target.image)
    gpus = facts.get("gpus")
    device = gpus[0] if isinstance(gpus, list) and gpus and isinstance(gpus[0], Mapping) else {}
    jetson = facts.get("jetson")
    board = jetson if isinstance(jetson, Mapping) else {}
    library = "onnxruntime" if target.backend == "onnxruntime" else "tensorrt"
    l4t = _text(board.get("l4t")) or named.get("l4t")
    version = _text(facts.get("backendVersion")) or (named.get(library) if target.backend != "tensorrt-rtx" else None)
    if version is None and l4t is not None and target.backend == "tensorrt":
        shipped = jetpack(table, l4t)
        # an image of a JetPack with one TensorRT has that one
        version = shipped.tensorrt[0] if shipped and len(shipped.tensorrt) == 1 else None
    changes = {
        "version": version,
        "compute_capability": _text(board.get("computeCapability")) or _text(device.get("computeCapability")),
        "l4t": l4t,
    }
    return target.model_copy(update=changes)


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) and value != "" else None


def _dig(value: Any, *path: str) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _list(value: Any, *path: str) -> Sequence[Any]:
    found = _dig(value, *path)
    return found if isinstance(found, list) else []


def _not_a_class(path: Path, what: str) -> PermanentError:
    hint = "Give the manifest of a HardwareClass, best as `kubectl get hardwareclass NAME -o yaml` prints it."
    return PermanentError("ClassInvalid", f"{path} cannot be used as a class: {what}.", hint)
