"""`enginefleet inspect` tells any engine, model or timing cache from its bytes, without a GPU and without a library that could load it."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import EngineManifest
from enginefleet_builder import engine_files
from enginefleet_builder.build.inspect import inspect
from enginefleet_builder.main import app

RTX_SM89 = bytes.fromhex(
    "7674727400000000020000000000000000000000000000000107017476747274080000000000000000000000000000000000000000000000b002000000000000"
)
"""First 64 bytes of a plan that TensorRT for RTX 1.7.1.116 built for SM89; its size, at byte 16, is left to the test."""
RTX_CACHE = bytes.fromhex(
    "70747274640000009800000000000000000000001380010000000000000000000000000001800c80010000000000000000000000138001000000000000000000"
    "000001800c800100000000000000000000000880010000000000000000000000088001002100000000000000018003800100210000000000000066696c655f666f"
    "726d61745f76657273696f6e3d310a4341534b5f56455253490a"
)
"""Head of a timing cache that TensorRT for RTX 1.7.1.116 wrote, of 172 bytes."""
PLAN_8_6 = bytes.fromhex(
    "6674727400000000010000000000000024816001000000000806000c000000004e474e45000000003800000000000000e280600100000000"
    "7074727400000000ec00000000000000ca806001000000000280010008028001"
)
"""Head of a plan that TensorRT 8.6.0 wrote on an H200."""
CACHE_8_6 = bytes.fromhex(
    "7074727400000000ec000000000000004b8200000000000018800100100000000000000001800c80010010000000000000000c0962c4f89e10cd378b1a29fa44"
)
"""Head of a timing cache of 33,379 bytes that it wrote."""
METADATA = {
    "description": "Ultralytics YOLO model", "stride": "32", "task": "detect", "batch": "1", "imgsz": "[640, 640]", "channels": "3",
    "names": "{0: 'scratch', 1: 'dent'}", "args": "{'batch': 1, 'nms': False}", "end2end": "True", "version": "8.4.0",
}  # fmt: skip


def rtx_plan(size: int) -> bytes:
    return (RTX_SM89[:16] + size.to_bytes(8, "little") + RTX_SM89[24:]).ljust(size, b"\1")


def trt_plan(version: tuple[int, int, int, int], size: int = 300) -> bytes:
    return b"ftrt" + bytes(4) + struct.pack("<QQ", 2, size) + bytes(version) + bytes(size - 28)


def written(folder: Path, data: bytes, name: str = "file") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def test_a_plan_of_tensorrt_tells_its_release(tmp_path: Path) -> None:
    found = inspect(written(tmp_path, trt_plan((10, 3, 0, 30))))
    expected = {"kind": "tensorrt-plan", "backend": "tensorrt", "version": "10.3.0.30", "size": 300, "complete": True}
    assert {name: found[name] for name in expected} == expected
    assert found["sha256"] == hashlib.sha256(trt_plan((10, 3, 0, 30))).hexdigest()


def test_a_plan_and_a_timing_cache_as_tensorrt_8_6_writes_them_are_told_apart(tmp_path: Path) -> None:
    found = inspect(written(tmp_path, PLAN_8_6.ljust(300, b"\1")))
    assert (found["kind"], found["backend"], found["version"]) == ("tensorrt-plan", "tensorrt", "8.6.0.12")
    found = inspect(written(tmp_path, CACHE_8_6.ljust(33379, b"\1"), "cache"))
    assert (found["kind"], found["complete"]) == ("timing-cache", True)


def test_a_plan_from_before_8_6_tells_no_release(tmp_path: Path) -> None:
    found = inspect(written(tmp_path, b"ftrt" + struct.pack("<I", 205) + bytes(100)))
    assert (found["kind"], found["version"], found["complete"]) == ("tensorrt-plan", None, None)


def test_a_plan_of_tensorrt_for_rtx_tells_its_release_and_devices(tmp_path: Path) -> None:
    found = inspect(written(tmp_path, rtx_plan(5000)))
    assert (found["backend"], found["version"], found["computeCapabilities"], found["complete"]) == (
        "tensorrt-rtx",
        "1.7.1.116",
        ["8.9"],
        True,
    )


def test_a_plan_that_was_cut_off_is_called_so(tmp_path: Path) -> None:
    assert inspect(written(tmp_path, rtx_plan(5000)[:4000]))["complete"] is False


@pytest.mark.parametrize("size", [4, 5, 12, 27, 28, 33])
@pytest.mark.parametrize("head", [b"ftrt" + bytes(60), RTX_SM89])
def test_a_stub_of_a_plan_is_a_plan_of_which_little_is_known(tmp_path: Path, head: bytes, size: int) -> None:
    found = inspect(written(tmp_path, head[:size]))
    assert (found["kind"], found["size"], found["complete"] is True) == ("tensorrt-plan", size, False)


def test_a_stub_of_a_timing_cache_is_refused_with_words(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="timing cache"):
        inspect(written(tmp_path, RTX_CACHE[:12]))


def test_a_timing_cache_is_told_and_whether_it_is_whole(tmp_path: Path) -> None:
    found = inspect(written(tmp_path, RTX_CACHE.ljust(172, b"\n")))
    assert (found["kind"], found["formatVersion"], found["complete"]) == ("timing-cache", 100, True)
    assert inspect(written(tmp_path, RTX_CACHE))["complete"] is False


def test_an_older_archive_is_not_taken_for_a_timing_cache(tmp_path: Path) -> None:
    found = inspect(written(tmp_path, b"ptrt" + struct.pack("<IQ", 213, 80) + bytes(84)))
    assert (found["kind"], found["formatVersion"], found["complete"]) == ("tensorrt-archive", 213, True)
    assert "before 8.6" in found["note"]


def test_an_engine_of_ultralytics_tells_its_metadata_and_what_is_inside(tmp_path: Path) -> None:
    plan = trt_plan((8, 6, 1, 6))
    found = inspect(written(tmp_path, engine_files.ultralytics_header(METADATA) + plan))
    assert found["kind"] == "ultralytics-engine"
    assert found["metadata"]["names"] == {"0": "scratch", "1": "dent"}
    assert (found["payload"]["version"], found["payload"]["sha256"]) == ("8.6.1.6", hashlib.sha256(plan).hexdigest())


def test_what_follows_a_header_and_is_no_plan_is_called_unknown(tmp_path: Path) -> None:
    found = inspect(written(tmp_path, engine_files.ultralytics_header(METADATA) + b"nothing"))
    assert (found["payload"]["kind"], found["payload"]["size"]) == ("unknown", 7)


def test_the_header_has_numbers_and_lists_where_the_metadata_has_their_texts() -> None:
    header = engine_files.ultralytics_header(METADATA)
    assert int.from_bytes(header[:4], "little", signed=True) == len(header) - 4
    assert json.loads(header[4:]) == METADATA | {
        "stride": 32, "batch": 1, "channels": 3, "imgsz": [640, 640], "names": {"0": "scratch", "1": "dent"},
        "args": {"batch": 1, "nms": False}, "end2end": True,
    }  # fmt: skip


@pytest.mark.parametrize("value", ["__import__('os').system('true')", "{0: object()}", "(" * 100_000, "{b'x': 1}", "1" * 10_000, "{1, 2}"])
def test_metadata_that_is_no_literal_stays_text_and_is_never_run(value: str) -> None:
    header = engine_files.ultralytics_header(METADATA | {"names": value, "stride": value})
    assert json.loads(header[4:])["stride"] == value
    assert isinstance(json.loads(header[4:])["names"], str | int)


def test_a_model_that_ultralytics_did_not_export_gets_no_header() -> None:
    with pytest.raises(PermanentError, match="lacks task, names, batch") as caught:
        engine_files.ultralytics_header({"stride": "32", "imgsz": "[8, 8]"})
    assert caught.value.reason == "NotUltralytics"


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<i", -5) + b'{"a":1}', struct.pack("<i", 10**9) + b'{"a":1}', struct.pack("<i", 7) + b'{"a":1', struct.pack("<i", 7) + b"[1,2,3]",
        struct.pack("<i", 7) + b"\xff" * 7, struct.pack("<i", 100_000) + b"[" * 100_000, struct.pack("<i", 300) + b'{"a":' * 50 + b"1" + b"}" * 49,
        struct.pack("<i", 6 * 50 + 1) + b'{"a":' * 50 + b"1" + b"}" * 50,
    ],
)  # fmt: skip
def test_a_header_that_is_none_is_no_engine_of_ultralytics(tmp_path: Path, head: bytes) -> None:
    file = written(tmp_path, head)
    assert engine_files.ultralytics(file) is None
    with pytest.raises(PermanentError) as caught:
        inspect(file)
    assert caught.value.reason in ("NotAModel", "ModelTruncated")


def model() -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.helper.set_model_props(made, {"task": "detect\x1b[31m"})
    data: bytes = made.SerializeToString()
    return data


def test_a_model_is_called_onnx(tmp_path: Path) -> None:
    found = inspect(written(tmp_path, model(), "m.onnx"))
    assert (found["kind"], found["operators"], found["inputs"][0]["shape"]) == ("onnx", {"Relu": 1}, ["N", 3])


@pytest.mark.parametrize(
    ("data", "words"), [(b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer"), (b"", "empty"), (b"PK\3\4x", "ZIP")]
)
def test_another_file_is_refused_with_what_it_is(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(PermanentError, match=words):
        inspect(written(tmp_path, data))


@pytest.mark.parametrize("data", [b"hi\n", bytes(range(1, 200)), b"version https://git-lfs.github.com/spec/v1\n", None])
def test_a_file_of_unknown_kind_is_answered_with_all_kinds_that_are_known(tmp_path: Path, data: bytes | None) -> None:
    """Files, and a folder of such."""
    file = written(tmp_path, b"hi\n" if data is None else data, "model.plan")
    with pytest.raises(PermanentError) as caught:
        inspect(tmp_path if data is None else file)
    assert all(kind in caught.value.hint for kind in (".onnx", "plan of TensorRT", "Ultralytics", "timing cache", "archive", "engine.json"))


def served(folder: Path, file: str, data: bytes, blob: bytes) -> Path:
    (folder / file).write_bytes(data)
    manifest = EngineManifest(
        engine_key="e" * 64, blob="sha256:" + hashlib.sha256(blob).hexdigest(), size=len(blob), fingerprint="fp-1", file=file,
        facts={"backend": "tensorrt"}, precision="int8",
    )  # fmt: skip
    (folder / "engine.json").write_text(manifest.model_dump_json(by_alias=True))
    return folder


def test_the_folder_of_a_fetched_engine_is_told_with_its_manifest(tmp_path: Path) -> None:
    plan = trt_plan((10, 3, 0, 30))
    found = inspect(served(tmp_path, "model.plan", plan, plan))
    assert (found["kind"], found["manifest"]["sound"], found["manifest"]["precision"]) == ("tensorrt-plan", True, "int8")
    flipped = bytearray(plan)
    flipped[200] ^= 1
    assert inspect(served(tmp_path, "model.plan", bytes(flipped), plan))["manifest"]["sound"] is False


def test_the_plan_behind_a_header_is_what_the_manifest_vouches_for(tmp_path: Path) -> None:
    plan = trt_plan((10, 3, 0, 30))
    found = inspect(served(tmp_path, "model.engine", engine_files.ultralytics_header(METADATA) + plan, plan))
    assert (found["kind"], found["manifest"]["sound"]) == ("ultralytics-engine", True)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x"])
def test_a_manifest_that_points_out_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    served(tmp_path, "model.plan", b"", b"")
    text = (tmp_path / "engine.json").read_text().replace('"model.plan"', json.dumps(name))
    (tmp_path / "engine.json").write_text(text)
    with pytest.raises(PermanentError, match="outside of its folder"):
        inspect(tmp_path)


def test_the_command_prints_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    file = written(tmp_path, model(), "m.onnx")
    answer: Any = CliRunner().invoke(app, ["inspect", str(file)])
    assert answer.exit_code == 0
    assert "task: detect\N{REPLACEMENT CHARACTER}[31m" in answer.stdout
    assert json.loads(CliRunner().invoke(app, ["inspect", str(file), "--json"]).stdout)["kind"] == "onnx"
