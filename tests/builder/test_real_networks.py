"""ModelOpt on networks that others trained: a classifier and a detector from Python packages, and two that were trained here, one of them by this test.

What the precisions cost in accuracy stands in docs/benchmarks/accuracy.md (bench/accuracy.py); here: that the tools do their work on real graphs.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import onnx
import pytest

from bench.accuracy import NETWORKS, RESULT, TABLE, ModelOptInt8, Network, request_for, table
from enginefleet_api.documents import PreparedManifest
from enginefleet_api.variants import Variant
from enginefleet_builder.io import PlainProgress
from enginefleet_builder.prepare.job import prepare
from enginefleet_builder.store import open_store
from enginefleet_builder.store.records import Records

FEW = 4
"""Samples of each set: enough for ranges and a baseline, quick enough for every run."""
VARIANTS = [Variant(precision="int8", method="max"), Variant(precision="fp16")]


@pytest.mark.parametrize("network", [n for n in NETWORKS if n.name != "page orientation"], ids=lambda n: n.name)
def test_modelopt_converts_it_keeps_its_interface_and_stays_close(network: Network, tmp_path: Path) -> None:
    request = request_for(network, tmp_path, FEW, FEW, min_validation=FEW, flavour="tensorrt-10")
    report = prepare(request.model_copy(update={"variants": VARIANTS, "best_effort": False}), PlainProgress())
    model = Path(unquote(urlsplit(request.model.uri).path))
    assert report.baseline is not None
    # the detector is strict about boxes: map50_95
    assert float(report.baseline.value) > 0.4
    records = Records(open_store(request.store))
    given = onnx.load(model, load_external_data=False)
    for item in report.prepared:
        manifest = records.prepared(item.prepared_key)
        assert manifest is not None
        path = _fetched(records, manifest, tmp_path / item.variant)
        made = onnx.load(path)
        assert [i.name for i in made.graph.input] == [i.name for i in given.graph.input if i.name not in _stored(given)]
        assert [o.name for o in made.graph.output] == [o.name for o in given.graph.output]
        assert {p.key for p in given.metadata_props} <= {p.key for p in made.metadata_props}
        if item.precision == "int8":
            assert manifest.qdq_nodes > 4
            assert float(manifest.share) > 0.5
            assert float(manifest.recipe["cosine"]) > 0.95
        else:
            _close(model, path)


def test_modelopts_int8_with_the_rest_in_fp32_is_what_the_second_table_measures(tmp_path: Path) -> None:
    network = next(n for n in NETWORKS if n.train)
    request = request_for(network, tmp_path, FEW, FEW, min_validation=FEW, flavour="onnxruntime")
    report = prepare(request.model_copy(update={"variants": VARIANTS[:1]}), PlainProgress(), ModelOptInt8)
    records = Records(open_store(request.store))
    manifest = records.prepared(report.prepared[0].prepared_key)
    assert manifest is not None
    assert manifest.qdq_nodes > 4
    assert (manifest.recipe["tool"], manifest.recipe["rest"], manifest.recipe["method"]) == ("modelopt", "fp32", "max")
    made = onnx.load(_fetched(records, manifest, tmp_path / "made"))
    assert onnx.TensorProto.FLOAT16 not in {tensor.data_type for tensor in made.graph.initializer}


def _stored(model: onnx.ModelProto) -> set[str]:
    return {tensor.name for tensor in model.graph.initializer}


def _fetched(records: Records, manifest: PreparedManifest, folder: Path) -> Path:
    folder.mkdir()
    records.fetch_prepared(manifest, folder, progress=PlainProgress())
    return folder / next(entry.path for entry in manifest.files if entry.path.endswith(".onnx"))


def _close(given: Path, made: Path) -> None:
    """FP16 answers like FP32, on noise in the range of pictures."""
    a, b = (_session(path) for path in (given, made))
    feeds: dict[str, Any] = {}
    for spec in a.get_inputs():
        shape = [size if isinstance(size, int) else 1 for size in spec.shape]
        shape = [48 if index == 2 and size == 1 else 192 if index == 3 and size == 1 else size for index, size in enumerate(shape)]
        feeds[spec.name] = np.random.default_rng(0).random(shape, np.float32)
    for given_output, made_output in zip(a.run(None, feeds), b.run(None, feeds), strict=True):
        x, y = given_output.ravel().astype(np.float64), made_output.ravel().astype(np.float64)
        assert float(x @ y) / float(np.linalg.norm(x) * np.linalg.norm(y)) > 0.999


def _session(path: Path) -> Any:
    ort: Any = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    # some FP16 files do not initialize at the highest level
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def test_the_page_on_accuracy_is_what_was_measured() -> None:
    assert TABLE.read_text() == table(json.loads(RESULT.read_text()))
