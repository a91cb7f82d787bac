"""Names with values, for people: what went in, how it was made, where it was judged. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from enginefleet_api.documents import Baseline, BuildRecord, PreparedManifest, Verdict
from enginefleet_api.jobs import BuildRequest, clip

from .data import MOST_FACTS, MOST_LINES, NAME, TEXT, Fact, Judged


def inputs(engine: Judged, baseline: Baseline | None, request: BuildRequest | None) -> Iterable[tuple[str, Any]]:
    if (manifest := engine.manifest) is not None:
        yield "model as given, tree digest", manifest.source_model
        yield "prepared model, tree digest", manifest.model
        yield "prepared key", manifest.prepared_key
        yield "flavour", manifest.flavour
        for kind, specs in (("input", manifest.inputs), ("output", manifest.outputs)):
            for spec in specs[:8]:
                yield f"{kind} {clip(spec.name, NAME)}", f"{spec.dtype} {text(['?' if size is None else size for size in spec.shape])}"
    elif engine.build is not None:
        yield "prepared model, tree digest", engine.build.prepared_model
        yield "prepared key", engine.build.prepared_key
    if baseline is not None:
        yield "validation set, tree digest", baseline.validation
        yield "baseline key", baseline.baseline_key
        yield "FP32 outputs, digest", baseline.outputs_digest
    if request is not None:
        if request.validation is not None:
            yield "validation set, address", request.validation.uri
            yield "task", request.validation.task
        yield (
            "preprocessing",
            request.preprocessing.to_json_dict() if request.preprocessing else "none: samples are as the model reads them",
        )
    yield "engine, sha256", engine.verdict.blob
    yield "fingerprint", engine.verdict.fingerprint


def recipe(judged: Judged) -> Iterable[tuple[str, Any]]:
    if (manifest := judged.manifest) is not None:
        yield "precision", manifest.precision
        yield "QuantizeLinear and DequantizeLinear nodes", manifest.qdq_nodes
        if manifest.share:
            yield "share of the worthwhile nodes in the lower precision", manifest.share
        made = {name: value for name, value in manifest.recipe.items() if name != "exclude"}
        yield from ((f"prepared: {name}", value) for name, value in leaves(made))
        yield from ((f"made with {tool}", version) for tool, version in manifest.tools.items())
    if judged.build is not None:
        yield from ((f"built: {name}", value) for name, value in leaves(judged.build.recipe))
        yield from ((f"built with {tool}", version) for tool, version in judged.build.tools.items())


def exclude(manifest: PreparedManifest | None) -> dict[str, list[str]]:
    found = manifest.recipe.get("exclude") if manifest else None
    if not isinstance(found, Mapping):
        return {}
    lists = {
        clip(str(name), NAME): [clip(text(item), NAME) for item in items[:MOST_FACTS]]
        for name, items in found.items()
        if isinstance(items, list) and items
    }
    return lists if len(lists) <= MOST_FACTS else {}


def environment(verdict: Verdict, build: BuildRecord | None) -> Iterable[tuple[str, Any]]:
    yield "judged on node", verdict.node or "not named"
    yield "judged by", verdict.holder
    yield from leaves(build.facts if build else {})
    yield from ((f"context: {name}", value) for name, value in leaves(verdict.context))
    yield from ((name, value) for name, value in leaves({name: verdict.evidence[name] for name in verdict.evidence if name not in _BULKY}))


_BULKY = ("candidate", "baseline", "providers")
"""Whole metrics and the providers' shares, which the page has as tables."""


def facts(items: Iterable[tuple[str, Any]]) -> list[Fact]:
    """The first ones, and how many are left out."""
    found = list(items)
    shown = [Fact(name=clip(name, NAME), value=clip(text(value), TEXT)) for name, value in found[:MOST_FACTS]]
    left = [Fact(name="more", value=f"{len(found) - MOST_FACTS} lines are left out")] if len(found) > MOST_FACTS else []
    return shown + left


def machine(conditions: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Verdict.conditions, bounded."""
    return {
        moment: {clip(name, NAME): clip(value, NAME) for name, value in list(found.items())[:MOST_FACTS]}
        for moment, found in conditions.items()
        if moment in ("idle", "before", "after")
    }


def lines(found: Sequence[str]) -> list[str]:
    unique = list(dict.fromkeys(found))
    kept = [clip(line, TEXT) for line in unique[:MOST_LINES]]
    return kept if len(unique) <= MOST_LINES else [*kept, f"and {len(unique) - MOST_LINES} more"]


def text(value: Any) -> str:
    """For people: lists by commas, mappings as `name value`."""
    match value:
        case str():
            return value
        case Mapping():
            return ", ".join(f"{name} {text(item)}" for name, item in value.items())
        case list() | tuple():
            return "[" + ", ".join(text(item) for item in value) + "]"
        case None:
            return "unknown"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case _:
            return str(value)


def leaves(value: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from leaves(item, f"{prefix}{name}.")
        elif item not in ((), [], None):
            yield prefix + name, item
