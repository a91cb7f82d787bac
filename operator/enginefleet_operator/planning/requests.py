"""What a ModelDeployment asks of its Jobs: sources, the prepare request, keys, the build request."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from enginefleet_api import fingerprint
from enginefleet_api.flavours import ON_DLA, ONNXRUNTIME, flavour_of, precision_refused, release_refused
from enginefleet_api.identity import (
    ENGINE_RECIPE,
    PREPARE_RECIPE,
    Json,
    digest,
    engine_key,
    key_of,
    release_id,
    revision_id,
    short_hash,
)
from enginefleet_api.jobs import BuildRequest, PreflightTarget, PrepareReport, PrepareRequest, Source, StoreRef
from enginefleet_api.keys import gate_key_of, recipe_of
from enginefleet_api.layouts import layout_refused
from enginefleet_api.resources import EngineStoreSpec, ModelDeploymentSpec, Preprocessing, RefusedTarget, Resolved, Validation
from enginefleet_api.variants import SCALED, Variant, rungs

from .ladder import FP32
from .model import HardwareClass, Need

MOST_REFUSED = 100
REFERENCE_TEMPLATE = "reference-server/2"
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
    if c is None or not c.uri or not _scaled(spec):
        return None
    return source(c.uri, c.digest, c.credentials_secret_ref is not None, "calibration", store)


def ladder(spec: ModelDeploymentSpec) -> tuple[Variant, ...]:
    """The variants that may come about, in the order in which they are tried."""
    return rungs(spec.precision, spec.calibration, spec.auto.candidates)


def _scaled(spec: ModelDeploymentSpec) -> bool:
    return any(v.precision in SCALED for v in ladder(spec))


def has_partner(spec: ModelDeploymentSpec) -> bool:
    """Whether engines are measured beside one in FP32: where somebody asks how much faster they are."""
    acceptance = spec.benchmark.acceptance
    return spec.precision == "auto" or (acceptance is not None and acceptance.min_speedup is not None)


# ---- what a device needs of prepare ----


def flavour(hardware_class: HardwareClass, facts: Mapping[str, Any]) -> str | None:
    """What its models are prepared as. None: its TensorRT is not known (`facts` of a device that is not probed are empty), or not supported."""
    return flavour_of(hardware_class.spec.backend, facts.get("backendVersion"))


def refusals(spec: ModelDeploymentSpec, hardware_class: HardwareClass, facts: Mapping[str, Any]) -> dict[str, str]:
    """Variant id → `Reason: why` this device cannot run it, for those that it cannot, or its pods could not be given it."""
    if why := layout_refused(spec.serving.layout, hardware_class.spec.backend):
        return {v.id: f"LayoutNotPossible: {why}: write spec.serving.layout plain." for v in ladder(spec)}
    backend, version = hardware_class.spec.backend, facts.get("backendVersion")
    if facts and flavour(hardware_class, facts) is None:
        unknown = "the probe could not tell which TensorRT the image holds, and that decides how a model is prepared"
        return {v.id: f"ReleaseNotSupported: {release_refused(backend, version) or unknown}." for v in ladder(spec)}
    gpu = fingerprint.first_gpu(facts) or {}
    capability = str(gpu["computeCapability"]) if gpu.get("computeCapability") else None
    found = {v.id: precision_refused(v.precision, backend, version, capability) for v in ladder(spec)}
    if backend == "tensorrt" and spec.build.dla is not None:
        found |= {v.id: f"a DLA computes in {' and '.join(ON_DLA)} only" for v in ladder(spec) if v.precision not in ON_DLA}
    return {variant: f"PrecisionNotSupported: {why}." for variant, why in found.items() if why}


def unfit(spec: ModelDeploymentSpec, pinned: Resolved, hardware_class: HardwareClass, facts: Mapping[str, Any]) -> dict[str, str]:
    """Variant id → `Reason: why`, for what prepare found this device, or the model in its layout, unfit for.

    What was found of another release, or with other settings of spec.build, says nothing of it.
    """
    if why := pinned.unfit_layouts.get(spec.serving.layout):
        return {variant.id: why for variant in ladder(spec)}
    (target,) = preflight_targets(spec, hardware_class, [facts])
    mine = [one for one in pinned.refused if target.id in one.targets]
    return {variant.id: one.text for variant in ladder(spec) for one in mine if not one.variants or variant.id in one.variants}


def needed(spec: ModelDeploymentSpec, flavour: str, variant: Variant, have: Collection[str] = ()) -> tuple[Need, ...]:
    """The variant, and FP32 to measure it against where that is not there. `have`: ids of what the flavour was prepared in."""
    partner = has_partner(spec) and variant != FP32 and FP32.id not in have
    return (Need(flavour, variant), *((Need(flavour, FP32),) if partner else ()))


def first_needs(spec: ModelDeploymentSpec, hardware_class: HardwareClass, facts: Mapping[str, Any]) -> tuple[Need, ...]:
    """What a device needs while nothing is prepared: the top of its ladder; for `auto` one variant of each precision, as they are compared."""
    chosen, refused = flavour(hardware_class, facts), refusals(spec, hardware_class, facts)
    able = [variant for variant in ladder(spec) if variant.id not in refused]
    if chosen is None:
        return ()
    tops = list({variant.precision: variant for variant in reversed(able) if variant != FP32}.values())[::-1] or able
    tops = tops if spec.precision == "auto" else tops[:1]
    return tuple(dict.fromkeys(need for variant in tops for need in needed(spec, chosen, variant)))


def together(needs: Sequence[Need]) -> tuple[Need, ...]:
    """What the next prepare Job makes: all that the first flavour needs, and other flavours that need the very same."""
    by_flavour: dict[str, list[Variant]] = {}
    for need in dict.fromkeys(needs):
        by_flavour.setdefault(need.flavour, []).append(need.variant)
    if not by_flavour:
        return ()
    first = next(iter(by_flavour.values()))
    return tuple(Need(name, variant) for name, variants in by_flavour.items() if set(variants) == set(first) for variant in first)


def prepare_request(
    namespace: str, name: str, spec: ModelDeploymentSpec, store: EngineStoreSpec, holder: str, needs: Sequence[Need]
) -> PrepareRequest:
    """`needs`: every variant of them in every flavour of them."""
    flavours = list(dict.fromkeys(need.flavour for need in needs))
    return PrepareRequest(
        name=f"{namespace}/{name}",
        model=model_source(spec, store),
        export=spec.model.export,
        variants=list(dict.fromkeys(need.variant for need in needs)),
        # what one flavour cannot be made in keeps no other from being built
        best_effort=len(ladder(spec)) > 1 or len(flavours) > 1,
        flavours=flavours,
        inputs=spec.inputs,
        preprocessing=spec.preprocessing,
        calibration=spec.calibration if _scaled(spec) else None,
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
    """Changes exactly when the prepare Job must run again: its request less what only says who and where, and the refresh token.

    Flavours are no inputs, and one stands for all: a class that is probed later must not have everything prepared again.
    """
    every = ladder(spec)
    first = [need.variant for variant in every[:1] for need in needed(spec, ONNXRUNTIME, variant)]
    request = prepare_request("", "", spec, store, "", [Need(ONNXRUNTIME, variant) for variant in every]).to_json_dict()
    request["variants"] = [variant.to_json_dict() for variant in (*every, *first)]
    for field in ("store", "holder", "name", "timeoutSeconds", "targets", "batchSizes"):
        request.pop(field, None)
    # where builds read the set from changes nothing of what is prepared
    (request.get("validation") or {}).pop("copyToStore", None)
    return key_of("inputs", 1, {"request": request, "store": store.uri, "refresh": refresh, "recipe": PREPARE_RECIPE}, {"refresh": ""})[:32]


def preflight_targets(
    spec: ModelDeploymentSpec, hardware_class: HardwareClass, devices: Sequence[Mapping[str, Any]]
) -> list[PreflightTarget]:
    """What the model is checked for. `devices`: facts of those of the class that are known; without any it is one of unknown version."""
    backend = hardware_class.spec.backend
    found: list[PreflightTarget] = []
    for facts in devices or [{}]:
        gpu = (fingerprint.first_gpu(facts) or {}) if fingerprint.runs_on_gpu(facts) else {}
        jetson = facts.get("jetson")
        capability, l4t = gpu.get("computeCapability"), jetson.get("l4t") if isinstance(jetson, Mapping) else None
        target = PreflightTarget(
            name=hardware_class.name,
            backend=backend,
            version=facts.get("backendVersion"),
            compute_capability=str(capability) if capability else None,
            l4t=str(l4t) if l4t else None,
            dla=backend == "tensorrt" and spec.build.dla is not None,
            plugins=tuple(spec.build.plugins) if backend != "onnxruntime" else (),
        )
        # of all that findings hang on, which the image's name is not
        told = short_hash(target.model_dump_json())
        found.append(target.model_copy(update={"id": told, "image": hardware_class.spec.runtime.image}))
    return list(dict.fromkeys(found))


def more_request(request: PrepareRequest, pinned: Resolved) -> PrepareRequest:
    """The same for further variants of what was resolved: sources with the digests that are pinned, and no validation where its baseline stands."""

    def at(source: Source | None, digest: str | None) -> Source | None:
        return source.model_copy(update={"digest": digest}) if source is not None and digest else source

    changes = {
        "model": at(request.model, pinned.model),
        "calibration_source": at(request.calibration_source, pinned.calibration),
        "best_effort": True,
    }
    if pinned.baseline_key:
        changes |= {"validation": None, "validation_source": None}
    else:
        changes |= {"validation_source": at(request.validation_source, pinned.validation)}
    return request.model_copy(update=changes)


def with_more(pinned: Resolved, report: PrepareReport) -> Resolved:
    """What was resolved, and the variants that were made since."""
    made = {_variant(p): p for p in [*pinned.prepared, *(p.to_json_dict() for p in report.prepared)]}
    changes = {
        "prepared": list(made.values()),
        # releases and settings come and go, and what was said of former ones is of no more use
        "refused": [*pinned.refused, *_refused_anew(pinned, report)][-MOST_REFUSED:],
        "unfit_layouts": report.unfit_layouts or pinned.unfit_layouts,
    }
    return pinned.model_copy(update=changes | (_baseline(report) if report.baseline_key else {}))


def has_more(pinned: Resolved, report: PrepareReport) -> bool:
    known = {_variant(p) for p in pinned.prepared}
    return any(_variant(p.to_json_dict()) not in known for p in report.prepared) or bool(_refused_anew(pinned, report))


def _refused_anew(pinned: Resolved, report: PrepareReport) -> list[RefusedTarget]:
    return [one for one in report.refused if one not in pinned.refused]


def _baseline(report: PrepareReport) -> dict[str, str | None]:
    found = report.baseline
    return {
        "baseline_key": report.baseline_key,
        "baseline_metric": found.name if found else "",
        "baseline_value": found.value if found else "",
    }


def names_of(report: PrepareReport) -> list[str]:
    """What was made, for people."""
    return [p.variant if p.flavour == ONNXRUNTIME else f"{p.variant} for {p.flavour}" for p in report.prepared if not p.failure]


def _variant(entry: Mapping[str, Any]) -> tuple[str, str]:
    return str(entry["flavour"]), str(entry.get("variant") or entry.get("precision", ""))


def made(pinned: Resolved, flavour: str | None) -> dict[str, str]:
    """Variant id → why it could not be made in this flavour, "" where it was."""
    return {variant: str(p.get("failure") or "") for p in pinned.prepared for name, variant in [_variant(p)] if name == flavour}


def resolved(key: str, report: PrepareReport) -> Resolved:
    return Resolved(
        inputs_key=key,
        model=report.model,
        calibration=report.calibration,
        validation=report.validation,
        prepare_recipe=PREPARE_RECIPE,
        engine_recipe=ENGINE_RECIPE,
        prepared=[p.to_json_dict() for p in report.prepared],
        refused=report.refused,
        unfit_layouts=report.unfit_layouts,
        **_baseline(report),
    )


def revision(spec: ModelDeploymentSpec, pinned: Resolved, backend: str) -> str:
    """What is built for classes of a backend: settings that are for other backends are not in it."""
    build = digest(recipe_of(spec.build, spec.inputs, backend=backend))
    recipes: dict[str, Json] = {"prepare": pinned.prepare_recipe, "engine": pinned.engine_recipe, "build": build}
    if spec.model.export is not None:
        recipes["export"] = digest(spec.model.export.to_json_dict())
    return revision_id(model=pinned.model, precision=spec.precision, recipes=recipes, calibration=pinned.calibration)


def template_identity(spec: ModelDeploymentSpec, store: EngineStoreSpec) -> Mapping[str, Json]:
    """What of serving enters the release: the pod template as written (or the name of the reference server), and where its pods fetch from."""
    serving = spec.serving
    readers = store.read_credentials_secret_ref or store.credentials_secret_ref
    fetched_from = digest({"store": store_ref(store).to_json_dict(), "secret": readers.name if readers else ""})
    template: Json = digest(_decimal_floats(serving.template)) if serving.template is not None else REFERENCE_TEMPLATE
    # what the pod is told beside its engine
    told: dict[str, Json] = {} if spec.preprocessing == Preprocessing() else {"preprocessing": digest(spec.preprocessing.to_json_dict())}
    return told | {
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


def release(spec: ModelDeploymentSpec, store: EngineStoreSpec, pinned: Resolved, image_digest: str, backend: str) -> str:
    return release_id(revision=revision(spec, pinned, backend), image_digest=image_digest, template=template_identity(spec, store))


def build_request(
    namespace: str,
    name: str,
    spec: ModelDeploymentSpec,
    store: EngineStoreSpec,
    pinned: Resolved,
    *,
    hardware_class: HardwareClass,
    fingerprint_id: str,
    facts: Mapping[str, Any],
    variant: Variant,
) -> BuildRequest:
    """The request less holder and node, as it stands in an EngineBuild. What is the class's to say of its pods comes in when a Job starts."""
    by_variant = {_variant(p): p for p in pinned.prepared}
    backend, chosen = hardware_class.spec.backend, str(flavour(hardware_class, facts))
    prepared = by_variant[chosen, variant.id]
    partner = by_variant.get((chosen, FP32.id)) if has_partner(spec) and variant != FP32 else None
    settings = recipe_of(
        spec.build, spec.inputs, backend=backend, precision=variant.precision, compute_capability=fingerprint.cross_capability(facts) or ""
    )
    pinned_validation = validation_source(spec, store)
    if pinned_validation is not None:
        pinned_validation = pinned_validation.model_copy(update={"digest": pinned.validation})
    return BuildRequest(
        name=f"{namespace}/{name}",
        engine_key=engine_key(prepared_model=prepared["model"], recipe=settings, fingerprint=fingerprint_id, version=pinned.engine_recipe),
        gate_key=gate_key_of(spec.validation, spec.benchmark, pinned.baseline_key),
        baseline_key=pinned.baseline_key,
        prepared_key=prepared["preparedKey"],
        prepared_model=prepared["model"],
        precision=variant.precision,
        partner_prepared_key=(partner or {}).get("preparedKey") or None,
        backend=backend,
        execution_provider=hardware_class.spec.execution_provider,
        recipe=settings,
        fingerprint=fingerprint_id,
        facts=dict(facts),
        inputs=spec.inputs,
        preprocessing=spec.preprocessing,
        validation=spec.validation,
        validation_source=pinned_validation,
        benchmark=spec.benchmark,
        store=store_ref(store),
        holder="",
    )
