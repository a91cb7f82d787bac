"""Requests made from command line flags, for a person without a cluster. Keys come out as the operator would make them."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Literal

from enginefleet_api import fingerprint, identity
from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import Source, StoreRef
from enginefleet_api.keys import gate_key_of
from enginefleet_api.resources import Benchmark, BuildSettings, Calibration, Validation
from enginefleet_api.variants import Variant, rungs


def uri(text: str) -> str:
    """A path becomes a file:// URI; URIs stay."""
    return text if "://" in text else Path(text).absolute().as_uri()


def source(text: str, digest: str | None = None, endpoint: str = "") -> dict[str, Any]:
    return Source(uri=uri(text), digest=digest, endpoint=endpoint).to_json_dict()


def store(text: str, endpoint: str = "", region: str = "") -> dict[str, Any]:
    return StoreRef(uri=uri(text), endpoint=endpoint, region=region).to_json_dict()


def holder() -> str:
    """Names this process and no other."""
    return f"{socket.gethostname()}-{os.getpid()}"


def validation(
    data: str | None, *, task: str, metric: str, min_samples: int, max_drop: str | None, minimum: str | None, required_classes: list[str]
) -> dict[str, Any]:
    """The fields `validation` and `validationSource` of a request; empty without data."""
    if data is None:
        return {}
    acceptance = {name: value for name, value in {"maxDrop": max_drop, "minimum": minimum}.items() if value is not None}
    value = {"uri": uri(data), "task": task, "metric": metric, "minSamples": min_samples, "requiredClasses": required_classes}
    return {"validation": value | {"acceptance": acceptance}, "validationSource": source(data)}


def variants(precision: str, method: Literal["auto", "entropy", "max"], *, data: bool, repair: bool) -> list[dict[str, Any]]:
    """The first rung of the ladder, every one for `auto`; with `repair` the repaired variant too.

    `data`: whether there is a calibration set; without one, int8 takes the scales that the model holds.
    """
    calibration = Calibration(method=method) if data else None
    try:
        ladder = rungs(precision, calibration)
    except ValueError as error:
        hint = "Write auto, fp32, tf32, fp16, bf16, int8 or fp8."
        raise PermanentError("PrecisionNotSupported", f"{precision!r} is no precision.", hint) from error
    chosen = [rung for rung in ladder if not rung.repaired]
    chosen = chosen if precision == "auto" else chosen[:1]
    if repair and precision in ("auto", "int8") and data:
        chosen.insert(sum(rung.precision == "int8" for rung in chosen), Variant(precision="int8", repaired=True))
    return [rung.to_json_dict() for rung in chosen]


def build_keys(
    *, store_ref: dict[str, Any], prepared_key: str, baseline_key: str | None, provider: str, threads: str, checked: dict[str, Any]
) -> dict[str, Any]:
    """What of a BuildRequest follows from the prepared model in the store, this machine and the gate."""
    from .probe import host_facts, onnxruntime_facts
    from .store import open_store
    from .store.records import Records

    manifest = Records(open_store(StoreRef.model_validate(store_ref), writes=False)).prepared(prepared_key)
    if manifest is None:
        hint = "Run `enginefleet prepare`; its report names the key."
        raise PermanentError("PreparedMissing", f"no prepared model {prepared_key} in {store_ref['uri']}.", hint)
    facts = fingerprint.combine(host_facts(), onnxruntime_facts(provider))
    here = fingerprint.identify(facts)
    recipe = BuildSettings(threads=threads).to_json_dict() | {"profiles": []}
    return {
        "engineKey": identity.engine_key(prepared_model=manifest.model, recipe=recipe, fingerprint=here),
        "gateKey": gate_key_of(Validation.model_validate(checked["validation"]) if checked else None, Benchmark(), baseline_key),
        "preparedModel": manifest.model,
        "precision": manifest.precision,
        "recipe": recipe,
        "fingerprint": here,
        "facts": facts,
    }
