"""Records of an engine that was never built: for tests of the page, whose names may be as hostile as they like."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image

from enginefleet_api.documents import (
    Accuracy,
    Answer,
    AtOperatingPoint,
    Baseline,
    BuildRecord,
    Consistency,
    EndToEnd,
    Latency,
    Metric,
    Paced,
    Part,
    PreparedManifest,
    Speedup,
    Spread,
    TensorSpec,
    Verdict,
    WorstSample,
)
from enginefleet_api.jobs import BuildRequest, Source, StoreRef
from enginefleet_api.resources import AccuracyAcceptance, Benchmark, Validation
from enginefleet_builder.backends.base import NodeRun
from enginefleet_builder.report.data import Judged, Picture
from enginefleet_builder.report.layers import summarize
from enginefleet_builder.report.model import Sources
from enginefleet_builder.store import layout

ENGINE, GATE, PREPARED, BASELINE = "1" * 64, "2" * 64, "3" * 64, "4" * 64
BLOB, SOURCE, MODEL, DATA = (f"sha256:{digit * 64}" for digit in "abcd")
TIME = "2026-03-01T12:00:00.000000Z"
STORE = StoreRef(uri="s3://engines/vision/", endpoint="https://store.test:9000")
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--",
    "a\"b'c",
    "&lt;b&gt;",
    "left\u202eright",
    "nul\x00bell\x07",
    "]]>",
    "</style>",
]
NODES = [
    *(NodeRun("QLinearConv", ["uint8", "float", "uint8", "int8"], ["uint8"], 0.004) for _ in range(5)),
    NodeRun("Conv", ["float", "float"], ["float"], 0.006),
    NodeRun("QuantizeLinear", ["float"], ["uint8"], 0.001),
    NodeRun("DequantizeLinear", ["uint8"], ["float"], 0.001),
    NodeRun("Shape", ["int64"], ["int64"], 0.0001),
]
FACTS = {
    "arch": "x86_64",
    "backend": "onnxruntime",
    "backendVersion": "1.24.4",
    "executionProvider": "CPU",
    "cpu": {"isa": ["avx2", "avx512_vnni"]},
}


def judged(engine: str = ENGINE, variant: str = "int8-entropy", **changes: Any) -> Judged:
    verdict = Verdict(
        engine_key=engine, gate_key=GATE, blob=BLOB, fingerprint="fp-0123456789abcdef", answer=Answer.PASS, time=TIME, holder="build-1"
    )
    verdict = verdict.model_copy(update={"accuracy": accuracy(), "latency": [latency(1, 3.0), latency(4, 9.5)]} | changes)
    build = BuildRecord(
        engine_key=engine,
        blob=BLOB,
        size=1_234_567,
        fingerprint=verdict.fingerprint,
        facts=FACTS,
        prepared_key=PREPARED,
        prepared_model=MODEL,
        precision=variant.partition("-")[0],
        recipe={"threads": "auto"},
        tools={"onnxruntime": "1.24.4"},
        durations={"build": "1.50"},
        warnings=["slow disk"],
        time=TIME,
        holder="build-1",
    )
    tensor = TensorSpec(name="images", dtype="float32", shape=["batch", 3, 64, 64])
    manifest = PreparedManifest(
        prepared_key=PREPARED,
        source_model=SOURCE,
        model=MODEL,
        precision=variant.partition("-")[0],
        variant=variant,
        flavour="onnxruntime",
        files=[],
        inputs=[tensor],
        outputs=[TensorSpec(name="scores", dtype="float32", shape=["batch", 4])],
        qdq_nodes=24,
        share="0.92",
        recipe={"method": "entropy", "exclude": {"nodes": [], "opTypes": []}},
        notes=["DuplicateNames: two dimensions had one name"],
    )
    key = layout.verdict(engine, GATE, BLOB, TIME, "build-1")
    return Judged(key, verdict, build, manifest)


def accuracy(classes: int = 4, **changes: Any) -> Accuracy:
    rows = [part(f"class {number}", drop=number / 1000) for number in range(classes)]
    found = Accuracy(
        metric="top1",
        baseline="0.977000",
        value="0.974000",
        drop="0.003000",
        samples=1000,
        available=5000,
        interval=["0.963000", "0.983000"],
        drop_interval=["-0.001000", "0.007000"],
        classes=rows,
        groups=[part("day", drop=0.001), part("night", drop=0.012)],
    )
    return found.model_copy(update=changes)


def part(name: str, *, drop: float, samples: int = 100) -> Part:
    value = 0.95 - drop
    interval = [f"{drop - 0.01:.6f}", f"{drop + 0.01:.6f}"]
    return Part(name=name, samples=samples, baseline="0.950000", value=f"{value:.6f}", drop=f"{drop:.6f}", drop_interval=interval)


def latency(batch: int, p50: float) -> Latency:
    return Latency(
        batch=batch,
        p50=f"{p50:.3f}",
        p95=f"{p50 * 1.2:.3f}",
        p99=f"{p50 * 1.7:.3f}",
        throughput=f"{batch * 1000 / p50:.1f}",
        iterations=200,
    )


def spread(p50: float, iterations: int = 200) -> Spread:
    return Spread(p50=f"{p50:.3f}", p95=f"{p50 * 1.2:.3f}", p99=f"{p50 * 1.7:.3f}", iterations=iterations)


def full_latency() -> list[Latency]:
    """Batch 1 with all that can be measured, batch 4 throttled, shared and bound by the host."""
    stages = EndToEnd(
        decode=spread(2.5, 100), preprocess=spread(1.5, 100), infer=spread(3.1, 100), postprocess=spread(0.9, 100), whole=spread(8.0, 100)
    )
    accelerated: dict[str, Any] = {"transfers": True, "warm_up": "1.25"}
    first = latency(1, 3.0).model_copy(
        update=accelerated
        | {
            "first": spread(2.5, 24_000),
            "device": spread(2.25),
            "cuda_graph": True,
            "enqueue": "0.400",
            "bound": "device",
            "paced": Paced(**spread(3.6, 300).model_dump(), rate="30", late=7),
            "end_to_end": stages,
        }
    )
    marks = ["throttled: the GPU's clocks were held down (thermal)", "shared: other processes on the GPU before the engine was loaded: 2"]
    fourth = latency(4, 9.5).model_copy(
        update=accelerated | {"device": spread(8.0), "cuda_graph": False, "enqueue": "7.900", "bound": "host", "marks": marks}
    )
    return [first, fourth]


CONDITIONS = {
    "idle": {
        "powerMode": "MAXN_SUPER",
        "smClock": "306 MHz",
        "temperature": "41 °C",
        "throttled": "no",
        "gpuProcesses": "2",
        "future": "x",
    },
    "before": {"powerMode": "MAXN_SUPER", "smClock": "1020 MHz", "temperature": "55 °C", "throttled": "no", "gpuProcesses": "3"},
    "after": {"powerMode": "MAXN_SUPER", "smClock": "816 MHz", "temperature": "79 °C", "throttled": "thermal", "gpuProcesses": "3"},
}


def full_verdict() -> dict[str, Any]:
    """Changes that fill every part of a verdict."""
    point = AtOperatingPoint(
        confidence="0.35",
        baseline_recall="0.910000",
        recall="0.902000",
        recall_drop="0.008000",
        drop_interval=["0.001000", "0.014000"],
        baseline_precision="0.880000",
        precision="0.879000",
        score_shift="-0.021000",
        truths=2210,
    )
    worst = [
        WorstSample(
            index=index,
            identity=f"night/{index:04}.png",
            loss=f"{1 - index / 10:.6f}",
            why="right in FP32, wrong here",
            engine={"label": 3},
        )
        for index in range(6)
    ]
    speedup = Speedup(batch=1, speedup="2.410000", interval=["2.3", "2.5"], partner=latency(1, 7.2), engine=latency(1, 3.0), blocks=30)
    alike = Consistency(batches=[2, 4], samples=8, cosine_min="0.999991", max_abs_error="0.002100", worst="scores of sample 3 at batch 4")
    thresholds = {
        "batchSizes": [1, 4],
        "accuracy": {
            "minimum": "0.95",
            "maxDrop": "0.01",
            "maxDropPerClass": "0.05",
            "operatingPoint": {"confidence": "0.35", "maxRecallDrop": "0.01"},
        },
        "minSamples": 200,
        "requiredClasses": [],
        "speed": {"batchSize": 1, "p95": "12ms", "throughput": "96", "minSpeedup": "1.5"},
    }
    return {
        "accuracy": accuracy(operating_point=point, consistency=alike, not_finite={"boxes": 3}),
        "latency": full_latency(),
        "memory": {"device": 412_000_000, "host": 1_100_000_000},
        "conditions": CONDITIONS,
        "worst": worst,
        "speedup": speedup,
        "thresholds": thresholds,
        "reasons": ["top1 0.9740 is at least the minimum 0.9500", "top1 fell by 0.0030 (95 %: -0.0010 to 0.0070), allowed 0.0100"],
        "context": {"powerMode": "25W", "driver": "540.3.0"},
        "evidence": {"threads": 2, "tools": {"onnxruntime": "1.24.4"}, "seconds": "12.3"},
    }


def request() -> BuildRequest:
    return BuildRequest(
        name="vision/line-inspection",
        engine_key=ENGINE,
        gate_key=GATE,
        baseline_key=BASELINE,
        prepared_key=PREPARED,
        prepared_model=MODEL,
        precision="int8",
        backend="onnxruntime",
        fingerprint="fp-0123456789abcdef",
        facts=FACTS,
        validation=Validation(uri="s3://data/validation.npz", acceptance=AccuracyAcceptance(minimum="0.95")),
        validation_source=Source(uri="s3://data/validation.npz", credentials="validation"),
        benchmark=Benchmark(batch_sizes=[1, 4]),
        store=STORE,
        holder="build-1",
        node="node-7",
    )


def baseline() -> Baseline:
    metric = Metric(name="top1", value="0.976000", samples=5000, interval=["0.9720", "0.9800"])
    return Baseline(baseline_key=BASELINE, model=SOURCE, validation=DATA, metric=metric, outputs_digest=BLOB)


def picture(shade: int = 90) -> Picture:
    out = io.BytesIO()
    Image.new("L", (28, 28), shade).save(out, "PNG")
    return Picture(uri="data:image/png;base64," + base64.b64encode(out.getvalue()).decode(), width=28, height=28)


def sources(**changes: Any) -> Sources:
    """A report with every part filled."""
    fp32 = judged(
        "5" * 64, "fp32", accuracy=accuracy(value="0.977000", drop="0.000000", interval=["0.966000", "0.985000"]), latency=[latency(1, 7.2)]
    )
    failed = judged(
        "6" * 64, "int8-max", answer=Answer.FAIL, accuracy=accuracy(value="0.941000", drop="0.036000", interval=["0.926", "0.955"])
    )
    values: dict[str, Any] = {
        "engine": judged(**full_verdict()),
        "others": [fp32, failed],
        "store": STORE,
        "made": TIME,
        "device": "x86_64 CPU (avx2, avx512_vnni), ONNX Runtime 1.24.4 CPU",
        "baseline": baseline(),
        "request": request(),
        "pictures": {index: picture(40 * index) for index in range(5)},
        "layers": summarize(NODES, source="the profiler of onnxruntime", batch=1, runs=20),
        "durations": {"judge": "12.30"},
    }
    return Sources(**(values | changes))
