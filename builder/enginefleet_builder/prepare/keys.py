"""From a request to the keys of what prepare stores. Defaults are those of schema version 1 and never change with the resources'."""

from __future__ import annotations

from collections.abc import Mapping

from enginefleet_api import identity
from enginefleet_api.identity import Json
from enginefleet_api.resources import Calibration, Decoder, Preprocessing, Validation
from enginefleet_api.variants import CAST, SCALED, Variant

PREPROCESSING_DEFAULTS: Mapping[str, Json] = {
    "resize": "none",
    "size": [],
    "color": "RGB",
    "layout": "NCHW",
    "interpolation": "auto",
    "shorterSide": 0,
    "align": "center",
    "fill": 114,
    "scale": "1",
    "mean": [],
    "std": [],
}
DECODER_DEFAULTS: Mapping[str, Json] = {
    "kind": "logits",
    "nmsIou": "0.7",
    "confidence": "0.001",
    "maxDetections": 300,
    "activation": "auto",
    "boxFormat": "auto",
    "firstLabel": 0,
    "outputs": [],
}


def preprocessing_json(spec: Preprocessing | None) -> dict[str, Json] | None:
    """None when it is all defaults."""
    if spec is None:
        return None
    return identity.without_defaults(spec.to_json_dict(), PREPROCESSING_DEFAULTS) or None


def decoder_json(decoder: Decoder) -> dict[str, Json]:
    return identity.without_defaults(decoder.to_json_dict(), DECODER_DEFAULTS)


def prepared_key(
    *, model: str, variant: Variant, flavour: str, calibration: Calibration | None, dataset: str | None, preprocessing: Preprocessing | None
) -> str:
    """`dataset`: digest of the calibration set; calibration and preprocessing only count where samples are looked at."""
    precision = variant.precision
    if precision in CAST and calibration is not None and dataset is not None:
        # which nodes stay in FP32 follows from the values that they have on these samples
        ranges: dict[str, Json] = {"digest": dataset, "method": "ranges"}
        told = preprocessing_json(preprocessing)
        return identity.prepared_key(model=model, precision=precision, flavour=flavour, calibration=ranges, preprocessing=told)
    if precision not in SCALED or calibration is None:
        return identity.prepared_key(model=model, precision=precision, flavour=flavour)
    if calibration.source == "model":
        return identity.prepared_key(model=model, precision=precision, flavour=flavour, calibration={"source": "model"})
    return identity.prepared_key(
        model=model,
        precision=precision,
        flavour=flavour,
        calibration={"digest": dataset, "method": "repaired" if variant.repaired else variant.method},
        preprocessing=preprocessing_json(preprocessing),
        exclude={"nodes": tuple(calibration.exclude.nodes), "opTypes": tuple(calibration.exclude.op_types)},
    )


def baseline_key(*, model: str, dataset: str, validation: Validation, preprocessing: Preprocessing | None) -> str:
    decoder = decoder_json(validation.decoder)
    if validation.python is not None:
        # what it may use does not change what it answers
        decoder |= {"code": validation.python.code, "higherIsBetter": validation.python.higher_is_better}
    return identity.baseline_key(
        model=model,
        validation=dataset,
        preprocessing=preprocessing_json(preprocessing),
        decoder=decoder,
        metric=validation.metric,
        task=validation.task,
    )
