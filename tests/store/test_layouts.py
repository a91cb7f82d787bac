"""How a fetched engine lies for its server: plain, as a model repository of Triton, behind the header of Ultralytics."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from enginefleet_api.documents import Answer, BuildRecord, TensorSpec, Verdict
from enginefleet_api.errors import EngineFleetError
from enginefleet_api.jobs import EngineManifest, FetchRequest
from enginefleet_api.layouts import Layout
from enginefleet_builder import layouts, probe
from enginefleet_builder.build.inspect import inspect
from enginefleet_builder.fetch import fetch
from enginefleet_builder.io import Progress
from enginefleet_builder.store import layout
from enginefleet_builder.store.records import Records
from localcluster.ports import free_port
from tests.serve.triton_schema import parsed, schema
from tests.store.support import Place

ENGINE, GATE = "e" * 64, "9" * 64
PLAN = b"ftrt" + bytes(4) + (2).to_bytes(8, "little") + (900).to_bytes(8, "little") + bytes([8, 6, 1, 6]) + b"\7" * 872
BLOB = "sha256:" + hashlib.sha256(PLAN).hexdigest()
FACTS: dict[str, Any] = probe.host_facts() | {"backend": "tensorrt", "backendVersion": "8.6.1.6"}
METADATA = {"stride": "32", "task": "detect", "batch": "1", "imgsz": "[640, 640]", "names": "{0: 'scratch'}", "author": "Ultralytics"}
PROFILES = [{"name": "images", "profiles": [{"min": [1, 3, 8, 8], "opt": [4, 3, 8, 8], "max": [8, 3, 8, 8]}]}]


def record(**changes: Any) -> BuildRecord:
    return BuildRecord(
        engine_key=ENGINE, blob=BLOB, size=len(PLAN), fingerprint="fp-1", facts=FACTS, prepared_key="p", prepared_model="m", precision="int8",
        recipe={"profiles": PROFILES}, time=layout.timestamp(1), holder="pod", metadata=METADATA,
        inputs=[TensorSpec(name="images", dtype="float32", shape=["N", 3, 8, 8])],
        outputs=[TensorSpec(name="classes", dtype="int64", shape=["N", 5])],
    ).model_copy(update=changes)  # fmt: skip


@pytest.fixture
def request_(place: Place, tmp_path: Path) -> FetchRequest:
    records = Records(place.open())
    (tmp_path / "built").write_bytes(PLAN)
    records.publish_blob(tmp_path / "built", tmp_path / "back")
    records.add_build(record())
    verdict = {"engine_key": ENGINE, "gate_key": GATE, "blob": BLOB, "fingerprint": "fp-1", "holder": "pod", "time": layout.timestamp(2)}
    records.add_verdict(Verdict(answer=Answer.PASS, reasons=[], **verdict))
    return FetchRequest(
        engine_key=ENGINE, gate_key=GATE, blob=BLOB, size=len(PLAN), fingerprint="fp-1", facts=FACTS, store=place.ref, model_name="line",
        engine_path=str(tmp_path / "engine"), cache_path=str(tmp_path / "cache"), timeout_seconds=4,
    )  # fmt: skip


def fetched(request: FetchRequest, **changes: Any) -> tuple[Path, EngineManifest]:
    fetch(request.model_copy(update=changes), Progress())
    folder = Path(request.engine_path)
    return folder, EngineManifest.model_validate_json((folder / "engine.json").read_bytes())


def test_plain_is_the_engine_as_it_was_published(request_: FetchRequest) -> None:
    folder, manifest = fetched(request_)
    assert (folder / "model.plan").read_bytes() == PLAN
    assert (manifest.file, manifest.layout, manifest.model_name) == ("model.plan", "plain", "line")


def test_triton_gets_a_repository_with_a_right_configuration(request_: FetchRequest) -> None:
    folder, manifest = fetched(request_, layout="triton")
    assert manifest.file == "models/line/1/model.plan"
    assert (folder / manifest.file).read_bytes() == PLAN
    config = parsed((folder / "models/line/config.pbtxt").read_text())
    assert (config.name, config.max_batch_size, list(config.dynamic_batching.preferred_batch_size)) == ("line", 8, [4])
    assert [(item.name, list(item.dims)) for item in (*config.input, *config.output)] == [("images", [3, 8, 8]), ("classes", [5])]
    # nothing but models below the repository, or Triton would try to load it
    assert [path.name for path in (folder / "models").iterdir()] == ["line"]


@pytest.mark.parametrize(("version", "name"), [("8.6.1.6", "TYPE_INT32"), ("10.3.0.30", "TYPE_INT64")])
def test_int64_is_int32_before_tensorrt_10(tmp_path: Path, version: str, name: str) -> None:
    engine = tmp_path / "models/line/1/model.plan"
    engine.parent.mkdir(parents=True)
    layouts.finish("triton", engine, record(facts=FACTS | {"backendVersion": version}))
    config = parsed((tmp_path / "models/line/config.pbtxt").read_text())
    assert schema().DataType.Name(config.output[0].data_type) == name


def test_ultralytics_gets_its_header_before_the_plan(request_: FetchRequest) -> None:
    folder, manifest = fetched(request_, layout="ultralytics")
    data = (folder / "model.engine").read_bytes()
    length = int.from_bytes(data[:4], "little", signed=True)
    assert json.loads(data[4 : 4 + length])["names"] == {"0": "scratch"}
    assert data[4 + length :] == PLAN
    assert (manifest.file, manifest.layout, manifest.blob) == ("model.engine", "ultralytics", BLOB)
    assert not list(folder.glob("*.plan*"))


def test_the_server_verifies_and_loads_the_plan_behind_the_header(request_: FetchRequest) -> None:
    folder, manifest = fetched(request_, layout="ultralytics")
    engine = folder / manifest.file
    assert "sha256:" + layouts.engine_sha256("ultralytics", engine) == BLOB
    with layouts.bare("ultralytics", engine) as plan:
        assert plan.read_bytes() == PLAN
    assert not plan.exists()
    told = inspect(folder)
    assert (told["kind"], told["payload"]["version"], told["manifest"]["sound"]) == ("ultralytics-engine", "8.6.1.6", True)


def test_a_header_of_another_layout_is_not_skipped(tmp_path: Path) -> None:
    data = (7).to_bytes(4, "little") + b'{"a":1}' + PLAN
    (tmp_path / "model.plan").write_bytes(data)
    assert layouts.engine_sha256("plain", tmp_path / "model.plan") == hashlib.sha256(data).hexdigest()


def test_the_cache_keeps_the_engine_as_it_was_published_and_serves_it_without_a_store(request_: FetchRequest, tmp_path: Path) -> None:
    fetched(request_, layout="ultralytics")
    assert (tmp_path / "cache/sha256" / BLOB[7:]).read_bytes() == PLAN
    first = {path: path.read_bytes() for path in (tmp_path / "engine").rglob("*") if path.is_file()}
    down = {"uri": "s3://engines/", "endpoint": f"http://127.0.0.1:{free_port()}"}
    fetched(request_, layout="ultralytics", store=request_.store.model_copy(update=down))
    assert {path: path.read_bytes() for path in (tmp_path / "engine").rglob("*") if path.is_file()} == first


@pytest.mark.parametrize(
    ("changes", "reason", "said"),
    [
        ({"layout": "ultralytics", "facts": FACTS | {"backend": "onnxruntime"}}, "LayoutNotPossible", "plans of TensorRT only"),
        ({"layout": "triton", "model_name": "../up"}, "LayoutNotPossible", "cannot name a folder"),
        ({"facts": FACTS | {"backend": "other"}}, "BackendUnknown", "expected one of"),
    ],
)
def test_what_cannot_be_laid_out_is_refused_before_it_is_fetched(
    request_: FetchRequest, changes: dict[str, Any], reason: str, said: str
) -> None:
    with pytest.raises(EngineFleetError, match=said) as caught:
        fetched(request_, **changes)
    assert caught.value.reason == reason
    assert not Path(request_.engine_path).exists()


@pytest.mark.parametrize(
    ("kind", "found", "reason"),
    [
        ("ultralytics", record(metadata={}), "NotUltralytics"),
        ("triton", record(inputs=[]), "LayoutNotPossible"),
        ("triton", None, "RecordMissing"),
    ],
)
def test_a_record_that_does_not_tell_enough_is_said(tmp_path: Path, kind: Layout, found: BuildRecord | None, reason: str) -> None:
    engine = tmp_path / "models/line/1/model.plan"
    engine.parent.mkdir(parents=True)
    engine.write_bytes(PLAN)
    with pytest.raises(EngineFleetError) as caught:
        layouts.finish(kind, engine, found)
    assert caught.value.reason == reason
