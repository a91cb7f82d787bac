"""Requests made from command line flags, for a person without a cluster. Keys come out as the operator would make them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from enginefleet_api import fingerprint, identity
from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import Source, StoreRef
from enginefleet_api.keys import gate_key_of, recipe_of
from enginefleet_api.resources import ModelDeploymentSpec
from enginefleet_api.variants import SCALED, Variant, rungs


def uri(text: str) -> str:
    """A path becomes a file:// URI; URIs stay."""
    return text if "://" in text else Path(text).absolute().as_uri()


def store(text: str, endpoint: str = "", region: str = "") -> dict[str, Any]:
    return StoreRef(uri=uri(text), endpoint=endpoint, region=region).to_json_dict()


def holder() -> str:
    """Names this process and no other."""
    return f"{socket.gethostname()}-{os.getpid()}"


def spec(file: Path | None, flags: Mapping[str, Any]) -> ModelDeploymentSpec:
    """What a ModelDeployment would say: the manifest in `file` (or nothing), and over it the flags that are given (not None).

    `flags` has the form of spec, decimals as text. A path in it or in the file is a file on this machine. Serving, targets and rollout play no
    part. Raises PermanentError `BadRequest`, also for fields that do not exist.
    """
    raw = _merged(_manifest(file) if file is not None else {}, flags)
    for part in ("model", "calibration", "validation"):
        if isinstance(raw.get(part), Mapping) and isinstance(raw[part].get("uri"), str) and raw[part]["uri"]:
            raw[part] = raw[part] | {"uri": uri(raw[part]["uri"])}
    # what the model requires, and no command line needs
    asked = {"model": {"uri": "file:///"}, "targets": [{"hardwareClass": "by-hand"}]} | raw
    where = str(file) if file is not None else "the flags"
    try:
        made = ModelDeploymentSpec.model_validate(asked)
    except ValidationError as error:
        problems = (f"spec.{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_url=False)[:5])
        raise PermanentError("BadRequest", f"{where}: {'; '.join(problems)}.", "Correct it. Decimals are text, in quotes.") from error
    if unknown := list(_unknown(asked, made.model_dump(mode="json", by_alias=True, exclude_unset=True), "spec")):
        hint = "`kubectl explain modeldeployment.spec --recursive` lists the fields."
        raise PermanentError("BadRequest", f"{where}: no such field: {', '.join(unknown[:5])}.", hint)
    return made


def _manifest(file: Path) -> dict[str, Any]:
    """`spec` of the one ModelDeployment in a YAML or JSON file; the file itself where it has no `kind`."""
    from .prepare.targets import read_manifests

    def refused(path: Path, what: str) -> PermanentError:
        hint = "Give the manifest of a ModelDeployment, or the part of one below spec."
        return PermanentError("BadRequest", f"{path} cannot be used as a spec: {what}.", hint)

    documents = read_manifests(file, refused)
    found = [one.get("spec") if "kind" in one else one for one in documents if one.get("kind", "ModelDeployment") == "ModelDeployment"]
    if len(found) != 1 or not isinstance(found[0], Mapping):
        raise refused(file, f"it has {len(found)} ModelDeployments" if len(found) != 1 else "it has no spec")
    return dict(found[0])


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` counts where it has a value."""
    merged = dict(below)
    for name, value in above.items():
        if isinstance(value, Mapping):
            if inner := _merged(below[name] if isinstance(below.get(name), Mapping) else {}, value):
                merged[name] = inner
        elif value is not None:
            merged[name] = value
    return merged


def _unknown(given: Any, known: Any, path: str) -> Iterator[str]:
    """Paths of `given` that a model did not take."""
    if isinstance(given, Mapping) and isinstance(known, Mapping):
        for name, value in given.items():
            yield from _unknown(value, known[name], f"{path}.{name}") if name in known else [f"{path}.{name}"]
    elif isinstance(given, list) and isinstance(known, list):
        for number, (one, other) in enumerate(zip(given, known, strict=False)):
            yield from _unknown(one, other, f"{path}[{number}]")


def sources(asked: ModelDeploymentSpec, *names: Literal["model", "calibration", "validation"]) -> dict[str, Any]:
    """The parts of a request that name and describe data: `validation` with `validationSource`, and so on. Credentials are the environment's."""
    made: dict[str, Any] = {}
    for name in names:
        part = getattr(asked, name)
        if part is not None and name != "model":
            made[name] = part.to_json_dict()
        if part is not None and part.uri:
            told = Source(uri=part.uri, digest=part.digest, endpoint=getattr(part, "endpoint", ""), region=getattr(part, "region", ""))
            made["model" if name == "model" else f"{name}Source"] = told.to_json_dict()
    return made


def variants(asked: ModelDeploymentSpec, *, repair: bool) -> list[dict[str, Any]]:
    """The first rung of the ladder, every one for `auto`; with `repair` the repaired variant too.

    Without a calibration, int8 takes the scales that the model holds.
    """
    ladder = rungs(asked.precision, asked.calibration, asked.auto.candidates)
    chosen = [rung for rung in ladder if not rung.repaired]
    chosen = chosen if asked.precision == "auto" else chosen[:1]
    data = asked.calibration is not None and asked.calibration.source == "dataset"
    if repair and asked.precision in ("auto", "int8") and data:
        chosen.insert(sum(rung.precision == "int8" for rung in chosen), Variant(precision="int8", repaired=True))
    return [rung.to_json_dict() for rung in chosen]


def prepare_request(asked: ModelDeploymentSpec, *, repair: bool, flavours: list[str], store_ref: dict[str, Any]) -> dict[str, Any]:
    """A PrepareRequest less holder and timeout."""
    made = variants(asked, repair=repair)
    scaled = any(variant["precision"] in SCALED for variant in made)
    told = sources(asked, "model", "calibration", "validation")
    if asked.calibration is None and scaled:
        told["calibration"] = {"source": "model"}
    return told | {
        "export": asked.model.export,
        "variants": made,
        "flavours": flavours,
        "inputs": asked.inputs,
        "preprocessing": asked.preprocessing,
        "store": store_ref,
    }


def build_request(
    asked: ModelDeploymentSpec,
    *,
    store_ref: dict[str, Any],
    prepared_key: str,
    partner_key: str | None,
    baseline_key: str | None,
    provider: str,
) -> dict[str, Any]:
    """A BuildRequest less holder and timeout: what follows from the spec, the prepared model in the store and this machine."""
    from .probe import here as facts_here
    from .probe import onnxruntime_facts
    from .store import layout, open_store
    from .store.records import Records

    records = Records(open_store(StoreRef.model_validate(store_ref), writes=False))
    for key in (prepared_key, partner_key, baseline_key):
        if key is not None and not layout.is_key(key):
            raise PermanentError(
                "BadRequest", f"{key!r} is not a key: expected 64 hex digits.", "Write the whole key, from the report of prepare."
            )
    manifest = records.prepared(prepared_key)
    if manifest is None:
        hint = "Run `enginefleet prepare`; its report names the key."
        raise PermanentError("PreparedMissing", f"no prepared model {prepared_key} in {store_ref['uri']}.", hint)
    facts = facts_here(onnxruntime_facts(provider))
    here = fingerprint.identify(facts)
    recipe = recipe_of(asked.build, asked.inputs)
    return sources(asked, "validation") | {
        "engineKey": identity.engine_key(prepared_model=manifest.model, recipe=recipe, fingerprint=here),
        "gateKey": gate_key_of(asked.validation, asked.benchmark, baseline_key),
        "baselineKey": baseline_key,
        "preparedKey": prepared_key,
        "preparedModel": manifest.model,
        "partnerPreparedKey": partner_key,
        "precision": manifest.precision,
        "backend": "onnxruntime",
        "executionProvider": provider,
        "recipe": recipe,
        "fingerprint": here,
        "facts": facts,
        "inputs": asked.inputs,
        "preprocessing": asked.preprocessing,
        "benchmark": asked.benchmark,
        "store": store_ref,
    }
