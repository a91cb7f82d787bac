"""Whether the CustomResourceDefinitions of a cluster are those that this operator was made with: an API server drops without a word what older
ones do not know, and what was decided from a status is decided again and again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from enginefleet_api.kinds import Kind
from enginefleet_api.resources import GROUP, VERSION
from enginefleet_api.schema import schema_of

MOST_NAMED = 5
"""Fields that a sentence names."""


def name_of(kind: Kind) -> str:
    return f"{kind.plural}.{GROUP}"


def lacking(kind: Kind, found: Mapping[str, Any] | None) -> list[str]:
    """Fields and values of enumerations that the definition `found` of this kind lacks, as paths; `*` when there is none of this version."""
    versions = found["spec"]["versions"] if found is not None else []
    served = next((one for one in versions if one["name"] == VERSION and one["served"]), None)
    if served is None:
        return ["*"]
    properties = served["schema"]["openAPIV3Schema"]["properties"]
    wanted = {"spec": schema_of(kind.spec), "status": schema_of(kind.status)}
    return [path for part, schema in wanted.items() for path in _lacking(schema, properties.get(part), part)]


def _lacking(wanted: Mapping[str, Any], found: Any, path: str) -> Iterator[str]:
    if not isinstance(found, Mapping):
        yield path
        return
    if found.get("x-kubernetes-preserve-unknown-fields"):
        return
    if "enum" in found:
        yield from (f"{path}={value}" for value in wanted.get("enum") or () if value not in found["enum"])
    there = found.get("properties") or {}
    for name, schema in (wanted.get("properties") or {}).items():
        yield from _lacking(schema, there.get(name), f"{path}.{name}")
    for key, sign in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(wanted.get(key), Mapping):
            yield from _lacking(wanted[key], found.get(key), path + sign)


def told(lacks: Mapping[str, list[str]]) -> str:
    """What is wrong and what to do, for `lacks` by the name of the definition; empty when nothing is lacking."""
    parts = []
    for name, paths in lacks.items():
        if paths == ["*"]:
            parts.append(f"{name} is not there in version {VERSION}")
        elif paths:
            more = f" and {len(paths) - MOST_NAMED} more" if len(paths) > MOST_NAMED else ""
            parts.append(f"{name} lacks {', '.join(paths[:MOST_NAMED])}{more}")
    if not parts:
        return ""
    what = f"the CustomResourceDefinitions in the cluster are older than this operator: {'; '.join(parts)}."
    return f"{what} Run `kubectl apply --server-side -f crds/` with those of the operator's release; nothing is done until then."
