"""Digests, keys and generated names: pure functions, standard library only.

Rules of change: every keyed structure carries a schema version; a field that has its default *of that schema version* is left out before
hashing, so a new field or a new default never rebuilds a fleet; floats never enter a key (write decimals as strings); engine bytes are
never a key.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

Json: TypeAlias = "bool | int | str | list[Json] | tuple[Json, ...] | Mapping[str, Json] | None"

SAFE_INTEGER = 2**53 - 1
"""RFC 8785 hands numbers to ECMAScript: larger integers would lose digits there."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def canonical_json(value: Json) -> bytes:
    """The canonical form (RFC 8785) of `value` as UTF-8, for hashing.

    Keys are sorted by UTF-16 code units. Raises TypeError for floats and other types (name the path), ValueError for integers beyond
    2**53 - 1 and for text that is not valid Unicode (lone surrogates).
    """
    return _canonical(value, "$").encode("utf-8")


def _canonical(value: Json, path: str) -> str:
    match value:
        case None | bool():
            return json.dumps(value)
        case int():
            if abs(value) > SAFE_INTEGER:
                raise ValueError(f"{path}: integer {value} is beyond 2**53 - 1; write it as a string")
            return str(value)
        case str():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError(f"{path}: text holds a lone surrogate and has no UTF-8 form") from error
            return json.dumps(value, ensure_ascii=False)
        case list() | tuple():
            return "[" + ",".join(_canonical(item, f"{path}[{index}]") for index, item in enumerate(value)) + "]"
        case Mapping():
            for key in value:
                if not isinstance(key, str):
                    raise TypeError(f"{path}: key {key!r} is {type(key).__name__}, expected text")
            keys = sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
            return "{" + ",".join(f"{_canonical(key, path)}:{_canonical(value[key], f'{path}.{key}')}" for key in keys) + "}"
        case _:
            raise TypeError(f"{path}: {type(value).__name__} cannot enter a key; write decimals as strings")


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest(value: Json) -> str:
    """`sha256:<64 hex>` of the canonical form."""
    return "sha256:" + sha256_hex(canonical_json(value))


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def without_defaults(value: Mapping[str, Json], defaults: Mapping[str, Json]) -> dict[str, Json]:
    """`value` less every field that equals its default; nested mappings likewise."""
    kept: dict[str, Json] = {}
    for key, item in value.items():
        default = defaults.get(key)
        if isinstance(item, Mapping) and isinstance(default, Mapping):
            inner = without_defaults(item, default)
            if inner:
                kept[key] = inner
        elif key not in defaults or not _same(item, default):
            kept[key] = item
    return kept


def _same(a: Json, b: Json) -> bool:
    """Equality that tells True from 1, which Python does not and JSON does."""
    return canonical_json(a) == canonical_json(b)


def key_of(kind: str, schema: int, value: Mapping[str, Json], defaults: Mapping[str, Json] | None = None) -> str:
    """The key of a structured thing: 64 hex digits over kind, schema version and the fields that differ from their defaults."""
    return sha256_hex(canonical_json({"kind": kind, "schema": schema, "value": without_defaults(value, defaults or {})}))


def tree_digest(files: Iterable[tuple[str, str]]) -> str:
    """The digest of a model or data set, from (relative POSIX path, sha256 hex of the file) pairs in any order.

    sha256 over the sorted lines `<sha256>  <path>\\n`. Raises ValueError for absolute paths, `..`, backslashes, line breaks,
    duplicates, an empty tree, or a digest that is not 64 hex digits.
    """
    lines: dict[str, str] = {}
    for path, sha in files:
        if not path or path.startswith("/") or "\\" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise ValueError(f"path {path!r}: expected a relative POSIX path without '.' or '..'")
        if "\n" in path or "\r" in path or "\0" in path:
            raise ValueError(f"path {path!r} holds a line break or NUL")
        if not re.fullmatch(r"[0-9a-f]{64}", sha):
            raise ValueError(f"{path}: {sha!r} is not a sha256 in lower-case hex")
        if path in lines:
            raise ValueError(f"path {path!r} stands twice in the tree")
        lines[path] = f"{sha}  {path}\n"
    if not lines:
        raise ValueError("a tree without files has no digest")
    return "sha256:" + sha256_hex("".join(sorted(lines.values())).encode("utf-8"))


# ---- keys of identity: one function each, the fields are the contract ----

PREPARE_RECIPE = 2
"""Version of how prepare makes a model; raised when the same inputs would give another file.

2: pixels of letterbox are Ultralytics' (OpenCV's resize) and those of center-crop torchvision's (its rounding).
"""
ENGINE_RECIPE = 1
"""Version of how a backend builds; raised when the same inputs would give another engine."""
METRIC_VERSION = 2
"""Version of records and metrics; raised when the same outputs would give another record or value. 2: records a sample, of every task;
pixels as in PREPARE_RECIPE 2."""

PREPARED_DEFAULTS: Mapping[str, Json] = {"calibration": None, "preprocessing": None, "exclude": {"nodes": [], "opTypes": []}}
ENGINE_DEFAULTS: Mapping[str, Json] = {
    "profiles": [],
    "workspace": "auto",
    "optimizationLevel": 3,
    "dla": None,
    "plugins": [],
    "tacticSources": [],
    "threads": "auto",
    "precision": "",
    "computeCapability": None,
}
"""`precision`: what TensorRT is asked for, where one file serves several (fp32, tf32 and, up to TensorRT 8.6, fp16). `computeCapability`: of a GPU
that is not here, like 8.6; TensorRT for RTX alone can, and the operator asks where a HardwareClass does."""


def prepared_key(
    *,
    model: str,
    precision: str,
    flavour: str,
    calibration: Mapping[str, Json] | None = None,
    preprocessing: Mapping[str, Json] | None = None,
    exclude: Mapping[str, Json] | None = None,
    recipe: int = PREPARE_RECIPE,
) -> str:
    """Key of a prepared model. `calibration` is {digest, method}; `flavour` names opset ceiling and high-precision type."""
    value: dict[str, Json] = {"model": model, "precision": precision, "flavour": flavour, "recipe": recipe}
    value |= {"calibration": calibration, "preprocessing": preprocessing, "exclude": exclude or {"nodes": [], "opTypes": []}}
    return key_of("prepared", 1, value, PREPARED_DEFAULTS)


def engine_key(*, prepared_model: str, recipe: Mapping[str, Json], fingerprint: str, version: int = ENGINE_RECIPE) -> str:
    """Key of an engine: digest of the prepared ONNX file, the *requested* engine recipe, and the fingerprint id."""
    return key_of(
        "engine",
        1,
        {
            "preparedModel": prepared_model,
            "recipe": without_defaults(recipe, ENGINE_DEFAULTS),
            "fingerprint": fingerprint,
            "version": version,
        },
    )


def baseline_key(
    *,
    model: str,
    validation: str,
    preprocessing: Mapping[str, Json] | None,
    decoder: Mapping[str, Json],
    metric: str,
    task: str,
    version: int = METRIC_VERSION,
) -> str:
    value: dict[str, Json] = {"model": model, "validation": validation, "preprocessing": preprocessing, "decoder": decoder}
    return key_of("baseline", 1, value | {"metric": metric, "task": task, "version": version}, {"preprocessing": None})


def gate_key(*, baseline: str, acceptance: Mapping[str, Json]) -> str:
    """Key of a gate: the baseline key and all that decides the answer (thresholds, classes, samples, speed limits)."""
    return key_of("gate", 1, {"baseline": baseline, "acceptance": acceptance}, {"acceptance": {}})


def revision_id(*, model: str, precision: str, recipes: Mapping[str, Json], calibration: str | None) -> str:
    """`rev-<10 hex>`: what is built. Thresholds, serving and rollout settings are not in it."""
    value: dict[str, Json] = {"model": model, "precision": precision, "recipes": recipes, "calibration": calibration}
    return "rev-" + key_of("revision", 1, value, {"calibration": None})[:10]


def release_id(*, revision: str, image_digest: str, template: Mapping[str, Json]) -> str:
    """10 hex digits: what is rolled out on a class. `template` is a digest-able description of the pod template."""
    return key_of("release", 1, {"revision": revision, "image": image_digest, "template": template})[:10]


def fingerprint_id(facts: Mapping[str, Json]) -> str:
    """`fp-<16 hex>` of the facts of schema version 1; facts that are null are *unknown* and stay in."""
    return "fp-" + sha256_hex(canonical_json({"schema": 1, "facts": facts}))[:16]


# ---- names of generated objects ----


def short_hash(*parts: str) -> str:
    """10 hex digits over the parts; the parts cannot run into each other."""
    return sha256_hex(canonical_json(list(parts)))[:10]


def object_name(name: str, *identity: str) -> str:
    """`<name, dots replaced, cut to 40>-<10 hex of a digest of the full identity>`: at most 51 characters, a DNS label."""
    stem = re.sub(r"[^a-z0-9-]", "-", name.lower())[:40].strip("-")
    return f"{stem}-{short_hash(name, *identity)}" if stem else "x-" + short_hash(name, *identity)
