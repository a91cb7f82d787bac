"""What a ModelDeployment asks of its Jobs: sources, the prepare request, keys, the build request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginefleet_api.identity import (
    ENGINE_RECIPE,
    PREPARE_RECIPE,
    Json,
    digest,
    engine_key,
    key_of,
    release_id,
    revision_id,
)
from enginefleet_api.jobs import BuildRequest, PrepareReport, PrepareRequest, Source, StoreRef
from enginefleet_api.keys import gate_key_of
from enginefleet_api.resources import EngineStoreSpec, ModelDeploymentSpec, Resolved, Validation
from enginefleet_api.variants import rungs

FLAVOUR = "onnxruntime"
REFERENCE_TEMPLATE = "reference-server/1"
"""Raised when the rendered pod of the reference server changes in a way that must roll out."""


def store_ref(store: EngineStoreSpec) -> StoreRef:
    return StoreRef(uri=store.uri, endpoint=store.endpoint, region=store.region, ca_bundle=store.ca_bundle)


def source(uri: str, given: str | None, own_secret: bool, who: str, store: EngineStoreSpec, endpoint: str = "", region: str = "") -> Source:
    """Where to fetch from. An s3:// URI without own credentials and endpoint is on the store's server, with the store's credentials."""
    if own_secret:
        return Source.model_validate(
            {"uri": uri, "digest": given, "endpoint": endpoint or store.endpoint, "region": region or store.region, "credentials": who}
        )
    if uri.startswith("s3://") and not endpoint:
        return Source(uri=uri, digest=given, endpoint=store.endpoint, region=region or store.region, credentials="store")
    return Source(uri=uri, digest=given, endpoint=endpoint, region=region, credentials="ambient")


def model_source(spec: ModelDeploymentSpec, store: EngineStoreSpec) -> Source:
    model = spec.model
    return source(model.uri, model.digest, model.credentials_secret_ref is not None, "model", store, model.endpoint, model.region)


def validation_source(spec: ModelDeploymentSpec, store: EngineStoreSpec) -> Source | None:
    v = spec.validation
    return source(v.uri, v.digest, v.credentials_secret_ref is not None, "validation", store) if v else None


def calibration_source(spec: ModelDeploymentSpec, store: EngineStoreSpec) -> Source | None:
    c = spec.calibration
    if c is None or not c.uri or spec.precision != "int8":
        return None
    return source(c.uri, c.digest, c.credentials_secret_ref is not None, "calibration", store)


def prepare_request(namespace: str, name: str, spec: ModelDeploymentSpec, store: EngineStoreSpec, holder: str) -> PrepareRequest:
    return PrepareRequest(
        name=f"{namespace}/{name}",
        model=model_source(spec, store),
        variants=list(rungs(spec.precision, spec.calibration)[:1]),
        flavours=[FLAVOUR],
        inputs=spec.inputs,
        preprocessing=spec.preprocessing,
        calibration=spec.calibration if spec.precision == "int8" else None,
        calibration_source=calibration_source(spec, store),
        validation=_without_thresholds(spec.validation),
        validation_source=validation_source(spec, store),
        store=store_ref(store),
        holder=holder,
    )


def _without_thresholds(validation: Validation | None) -> Validation | None:
    """Thresholds judge, they do not prepare: a changed one must not prepare again."""
    if validation is None:
        return None
    fresh = Validation(uri=validation.uri)
    return validation.model_copy(update={"acceptance": fresh.acceptance, "required_classes": fresh.required_classes})


def inputs_key(spec: ModelDeploymentSpec, store: EngineStoreSpec, refresh: str) -> str:
    """Changes exactly when the prepare Job must run again: its request less what only says who and where, and the refresh token."""
    request = prepare_request("", "", spec, store, "").to_json_dict()
    for field in ("store", "holder", "name", "timeoutSeconds"):
        request.pop(field, None)
    return key_of("inputs", 1, {"request": request, "store": store.uri, "refresh": refresh, "recipe": PREPARE_RECIPE}, {"refresh": ""})[:32]


def resolved(key: str, report: PrepareReport) -> Resolved:
    return Resolved(
        inputs_key=key,
        model=report.model,
        calibration=report.calibration,
        validation=report.validation,
        prepare_recipe=PREPARE_RECIPE,
        engine_recipe=ENGINE_RECIPE,
        prepared=[p.to_json_dict() for p in report.prepared],
        baseline_key=report.baseline_key,
        baseline_metric=report.baseline.name if report.baseline else "",
        baseline_value=report.baseline.value if report.baseline else "",
    )


def recipe(spec: ModelDeploymentSpec) -> dict[str, Any]:
    """The *requested* engine recipe: never resolved values."""
    dumped = spec.build.to_json_dict()
    dumped["profiles"] = [i.to_json_dict() for i in spec.inputs]
    return dumped


def revision(spec: ModelDeploymentSpec, pinned: Resolved) -> str:
    recipes: Mapping[str, Json] = {"prepare": pinned.prepare_recipe, "engine": pinned.engine_recipe, "build": digest(recipe(spec))}
    return revision_id(model=pinned.model, precision=spec.precision, recipes=recipes, calibration=pinned.calibration)


def template_identity(spec: ModelDeploymentSpec, store: EngineStoreSpec) -> Mapping[str, Json]:
    """What of serving enters the release: the pod template as written (or the name of the reference server), and where its pods fetch from."""
    serving = spec.serving
    readers = store.read_credentials_secret_ref or store.credentials_secret_ref
    fetched_from = digest({"store": store_ref(store).to_json_dict(), "secret": readers.name if readers else ""})
    template: Json = digest(_decimal_floats(serving.template)) if serving.template is not None else REFERENCE_TEMPLATE
    return {
        "template": template,
        "enginePath": serving.engine_path,
        "layout": serving.layout,
        "runtimeCheck": serving.runtime_check,
        "store": fetched_from,
    }


def _decimal_floats(value: Any) -> Json:
    """A user's template may hold floats (none in core/v1, but the API server keeps what is written): they enter as their text."""
    if isinstance(value, Mapping):
        return {str(key): _decimal_floats(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_decimal_floats(item) for item in value]
    return repr(value) if isinstance(value, float) else value


def release(spec: ModelDeploymentSpec, store: EngineStoreSpec, pinned: Resolved, image_digest: str) -> str:
    return release_id(revision=revision(spec, pinned), image_digest=image_digest, template=template_identity(spec, store))


def build_request(
    namespace: str,
    name: str,
    spec: ModelDeploymentSpec,
    store: EngineStoreSpec,
    pinned: Resolved,
    *,
    backend: str,
    provider: str,
    fingerprint: str,
    facts: Mapping[str, Any],
) -> BuildRequest:
    """The request less holder and node, as it stands in an EngineBuild."""
    prepared = next(p for p in pinned.prepared if p["flavour"] == FLAVOUR)
    settings = recipe(spec)
    pinned_validation = validation_source(spec, store)
    if pinned_validation is not None:
        pinned_validation = pinned_validation.model_copy(update={"digest": pinned.validation})
    return BuildRequest(
        name=f"{namespace}/{name}",
        engine_key=engine_key(prepared_model=prepared["model"], recipe=settings, fingerprint=fingerprint, version=pinned.engine_recipe),
        gate_key=gate_key_of(spec.validation, spec.benchmark, pinned.baseline_key),
        baseline_key=pinned.baseline_key,
        prepared_key=prepared["preparedKey"],
        prepared_model=prepared["model"],
        precision=spec.precision,
        backend=backend,
        execution_provider=provider,
        recipe=settings,
        fingerprint=fingerprint,
        facts=dict(facts),
        inputs=spec.inputs,
        preprocessing=spec.preprocessing,
        validation=spec.validation,
        validation_source=pinned_validation,
        benchmark=spec.benchmark,
        store=store_ref(store),
        holder="",
    )
