"""Requests made from command line flags, for a person without a cluster. Keys come out as the operator would make them."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from enginefleet_api import fingerprint, identity
from enginefleet_api.documents import PreparedManifest
from enginefleet_api.errors import PermanentError
from enginefleet_api.flavours import flavour_of
from enginefleet_api.jobs import Source, StoreRef
from enginefleet_api.keys import gate_key_of, ignored_settings, recipe_of
from enginefleet_api.resources import ModelDeploymentSpec, Validation
from enginefleet_api.variants import SCALED, Variant, rungs

if TYPE_CHECKING:
    from .manifest_rules import Problem
    from .store.records import Records

ADDRESSED = ("model", "calibration", "validation")
"""Parts of a spec that say where something lies."""


def uri(text: str) -> str:
    """A path becomes a file:// URI; URIs stay."""
    return text if "://" in text else Path(text).absolute().as_uri()


def store(text: str, endpoint: str = "", region: str = "") -> dict[str, Any]:
    return StoreRef(uri=uri(text), endpoint=endpoint, region=region).to_json_dict()


def holder() -> str:
    """Names this process and no other."""
    return f"{socket.gethostname()}-{os.getpid()}"


def spec(file: Path | None, flags: Mapping[str, Any]) -> ModelDeploymentSpec:
    """See `named_spec`."""
    return named_spec(file, flags)[0]


def named_spec(file: Path | None, flags: Mapping[str, Any]) -> tuple[ModelDeploymentSpec, str]:
    """What a ModelDeployment would say: the manifest in `file` (or nothing), and over it the flags that are given (not None). And its
    [namespace/]name, empty where none is told.

    `flags` has the form of spec, decimals as text. A path in it or in the file is a file on this machine. Serving, targets and rollout play no
    part. Raises PermanentError `BadRequest` for a manifest that an API server would refuse, and for what is refused together with the flags.
    """
    # Imported here: a pod that fetches an engine needs no schema.
    from . import manifest_rules

    manifest = _manifest(file) if file is not None else {"spec": {}}
    rules = file is not None and manifest_rules.can_check_rules()
    if file is not None and not rules:
        missing = "rules that an API server has for it are not checked, since cel-python is missing: install it, or the extra `cli`"
        print(f"{file}: {missing}.", file=sys.stderr)
    where = str(file) if file is not None else "the flags"
    metadata = manifest.get("metadata")
    named = {"name": metadata["name"]} if isinstance(metadata, Mapping) and isinstance(metadata.get("name"), str) else {}
    if whole := "kind" in manifest:
        _refuse(where, manifest_rules.problems(_elsewhere(manifest["spec"], _is_local), rules=rules, **named))
    raw = _merged(manifest["spec"], flags)
    for part in ADDRESSED:
        if isinstance(raw.get(part), Mapping) and isinstance(raw[part].get("uri"), str) and raw[part]["uri"]:
            raw[part] = raw[part] | {"uri": uri(raw[part]["uri"])}
    # what the model requires, and no command line needs
    asked = {"model": {"uri": "file:///"}, "targets": [{"hardwareClass": "by-hand"}]} | raw
    if not whole or _merged({}, flags):
        _refuse(where, manifest_rules.problems(_completed(asked), rules=rules, **named))
    return ModelDeploymentSpec.model_validate(asked), _name_of(manifest)


def _name_of(manifest: Mapping[str, Any]) -> str:
    metadata = manifest.get("metadata")
    parts = [metadata.get(part) for part in ("namespace", "name")] if isinstance(metadata, Mapping) else []
    return "/".join(part for part in parts if isinstance(part, str) and part)


def _refuse(where: str, problems: list[Problem]) -> None:
    if problems:
        hint = "Correct it; decimals are text, in quotes. `kubectl explain modeldeployment.spec --recursive` lists the fields."
        raise PermanentError("BadRequest", f"{where}: {'; '.join(map(str, problems[:5]))}.", hint)


def _elsewhere(spec: Mapping[str, Any], which: Callable[[str], bool]) -> dict[str, Any]:
    """With an address that rules let pass in place of those that only this machine must reach."""
    result = dict(spec)
    for part in ADDRESSED:
        told = result.get(part)
        if isinstance(told, Mapping) and isinstance(told.get("uri"), str) and told["uri"] and which(told["uri"]):
            result[part] = {**told, "uri": "s3://elsewhere/"}
    return result


def _is_local(address: str) -> bool:
    return re.match(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*:", address) is None


def _completed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """With what rules ask for and no command line needs: addresses that pods reach, scales, a threshold."""
    result: dict[str, Any] = {"calibration": {"source": "model"}} | _elsewhere(spec, lambda _: True)
    if isinstance(result["model"], Mapping):
        result["model"] = {name: value for name, value in result["model"].items() if name != "endpoint"}
    validation = result.get("validation")
    if isinstance(validation, Mapping) and isinstance(validation.get("acceptance", {}), Mapping):
        result["validation"] = {**validation, "acceptance": {"maxDrop": "0", **validation.get("acceptance", {})}}
    return result


def _manifest(file: Path) -> dict[str, Any]:
    """The one ModelDeployment in a YAML or JSON file; one without `kind` where the file is the part below `spec`, or that with its name."""
    from .manifest_rules import without_null
    from .prepare.targets import read_manifests

    def refused(path: Path, what: str) -> PermanentError:
        hint = "Give the manifest of a ModelDeployment, or the part of one below spec."
        return PermanentError("BadRequest", f"{path} cannot be used as a spec: {what}.", hint)

    documents = read_manifests(file, refused)
    mine = [one for one in documents if one.get("kind", "ModelDeployment") == "ModelDeployment"]
    found = [dict(one) if "kind" in one or "spec" in one else {"spec": one} for one in mine]
    if len(found) != 1 or not isinstance(found[0].get("spec"), Mapping):
        raise refused(file, f"it has {len(found)} ModelDeployments" if len(found) != 1 else "it has no spec")
    if "kind" not in found[0] and (others := set(found[0]) - {"apiVersion", "metadata", "spec"}):
        raise refused(file, f"beside spec it has {', '.join(sorted(map(str, others))[:5])}, which belongs below it")
    return found[0] | {"spec": without_null(found[0]["spec"])}


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
    backend: str = "onnxruntime",
    provider: str = "CPU",
    python: str = "python3",
    compute_capability: str = "",
) -> dict[str, Any]:
    """A BuildRequest less holder and timeout: what follows from the spec, the prepared model in the store and this machine.

    `compute_capability`: of a GPU that is not here, for TensorRT for RTX.
    """
    from .probe import here as facts_here
    from .probe import runtime_facts
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
    if baseline_key is not None and asked.validation is not None:
        _require_baseline(records, baseline_key, asked, asked.validation, manifest)
    if partner_key not in (None, prepared_key):
        _require_partner(records.prepared(partner_key), partner_key, manifest)
    if compute_capability and backend != "tensorrt-rtx":
        message = f"{backend} does not build for a GPU that is not here, expected tensorrt-rtx for compute capability {compute_capability}."
        raise PermanentError(
            "BadRequest", message, "Write --backend tensorrt-rtx, or leave --compute-capability out and build where the GPU is."
        )
    if unused := ignored_settings(asked.build, backend):
        raise PermanentError("BadRequest", f"spec.build: {backend} has no use for {', '.join(unused)}.", "Leave it out.")
    facts = facts_here(runtime_facts(backend, provider, python, cross=compute_capability or None))
    wanted = flavour_of(backend, str(facts["backendVersion"]))
    if wanted is not None and manifest.flavour != wanted:
        message = f"the prepared model is of the flavour {manifest.flavour}, expected {wanted} for {backend} {facts['backendVersion']}."
        raise PermanentError("BadRequest", message, f"Run `enginefleet prepare` with --flavour {wanted}, and give the key that it prints.")
    here = fingerprint.identify(facts)
    recipe = recipe_of(asked.build, asked.inputs, backend=backend, precision=manifest.precision, compute_capability=compute_capability)
    return sources(asked, "validation") | {
        "engineKey": identity.engine_key(prepared_model=manifest.model, recipe=recipe, fingerprint=here),
        "gateKey": gate_key_of(asked.validation, asked.benchmark, baseline_key),
        "baselineKey": baseline_key,
        "preparedKey": prepared_key,
        "preparedModel": manifest.model,
        "partnerPreparedKey": partner_key,
        "precision": manifest.precision,
        "backend": backend,
        "executionProvider": provider,
        "python": python,
        "recipe": recipe,
        "fingerprint": here,
        "facts": facts,
        "inputs": asked.inputs,
        "preprocessing": asked.preprocessing,
        "benchmark": asked.benchmark,
        "store": store_ref,
    }


def _require_baseline(records: Records, key: str, asked: ModelDeploymentSpec, validation: Validation, manifest: PreparedManifest) -> None:
    """Before anything is built: in a cluster keys follow from the spec, by hand they are typed.

    Raises PermanentError `BaselineMissing`, `BaselineMismatch`.
    """
    from .gate.score import require_metric
    from .prepare import keys

    found = records.baseline(key)
    if found is None:
        hint = "Run `enginefleet prepare` with --validation; its report names the baseline's key."
        raise PermanentError("BaselineMissing", f"no baseline {key} in the store.", hint)
    # that of an exported model is of how it was exported, too
    told = manifest.spec.get("model") or {}
    if told and not told.get("export") and found.model != manifest.source_model:
        message = (
            f"the baseline {key[:12]}… is of the model {found.model[:19]}…, expected {manifest.source_model[:19]}…: the prepared one's."
        )
        raise PermanentError("BaselineMismatch", message, "Give the baseline key of the same report as the prepared key.")
    require_metric(validation, found)
    same = keys.baseline_key(model=found.model, dataset=found.validation, validation=validation, preprocessing=asked.preprocessing)
    if same != key:
        message = (
            f"the baseline {key[:12]}… was taken with another task, decoder, preprocessing or code of one's own than are asked for here."
        )
        raise PermanentError("BaselineMismatch", message, "Give prepare, build and judge the same --spec and flags.")


def _require_partner(found: PreparedManifest | None, key: str, manifest: PreparedManifest) -> None:
    """A speed-up over another model, or over another precision, would say nothing. Raises PermanentError `PreparedMissing`, `PartnerMismatch`."""
    if found is None:
        hint = "Run `enginefleet prepare` with --precision fp32; its report names the key."
        raise PermanentError("PreparedMissing", f"no prepared model {key} in the store: the FP32 partner.", hint)
    for what, mine, expected in (
        ("model", found.source_model, manifest.source_model),
        ("export", _export(found), _export(manifest)),
        ("precision", found.precision, "fp32"),
        ("flavour", found.flavour, manifest.flavour),
    ):
        if mine != expected:
            message = f"the partner {key[:12]}… has the {what} {mine[:80]}, expected {expected[:80]}."
            hint = "Prepare the same model with --precision fp32 and the same --spec and --flavour, and give the key that it prints."
            raise PermanentError("PartnerMismatch", message, hint)


def _export(manifest: PreparedManifest) -> str:
    return json.dumps((manifest.spec.get("model") or {}).get("export"), sort_keys=True)
