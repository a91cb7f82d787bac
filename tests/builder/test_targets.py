"""The table of targets: what it says of releases and devices, how another one is loaded, and what a class's manifest tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from enginefleet_api.errors import PermanentError
from enginefleet_builder.prepare import runtime_limits, targets
from enginefleet_builder.prepare.targets import Table, from_manifests, load, tensorrt

TABLE = load()


@pytest.mark.parametrize(
    ("version", "opset", "documented", "dla"),
    [
        ("8.2.1", 13, "8.2", ("7.2", "8.7")),
        ("8.6.2.3", 17, "8.6", ("7.2", "8.7")),
        ("10.3.0.30", 20, "10.0", ("7.2", "8.7")),
        ("10.13.3.9", 20, "10.0", ()),
        ("10.16.1.11", 24, "10.15", ()),
        ("11.4.0.106", 24, "11.0", ()),
        ("11.4.1", 24, "11.0", ("8.7",)),
    ],
)
def test_a_release_takes_what_its_newest_entry_says(version: str, opset: int, documented: str, dla: tuple[str, ...]) -> None:
    found = tensorrt(TABLE, version)
    assert found is not None
    assert (found.opset, found.opset_of, found.dla) == (opset, documented, dla)


def test_a_release_older_than_the_table_is_unknown() -> None:
    assert tensorrt(TABLE, "7.2.3") is None


def test_every_tensorrt_of_a_jetpack_and_every_device_has_its_entry() -> None:
    for board in TABLE.jetpack:
        assert all(tensorrt(TABLE, version) is not None for version in board.tensorrt)
        assert all(targets.hardware(TABLE, capability) is not None for capability in board.compute_capabilities)


def test_the_installed_onnx_runtime_is_as_the_table_says() -> None:
    entry = targets.onnxruntime(TABLE, runtime_limits.version())
    assert entry is not None
    assert (entry.opset, entry.ir) == (runtime_limits.newest_opset(), runtime_limits.newest_ir())


@pytest.mark.parametrize(
    ("image", "found"),
    [
        ("nvcr.io/nvidia/l4t-tensorrt:r8.5.2.2-devel", {"tensorrt": "8.5.2.2"}),
        ("nvcr.io/nvidia/l4t-jetpack:r36.4.0", {"l4t": "36.4.0"}),
        ("nvcr.io/nvidia/tensorrt:26.02-py3-igpu", {"tensorrt": "10.11"}),
        ("nvcr.io/nvidia/tensorrt:26.02-py3", {}),
        ("nvcr.io/nvidia/tritonserver:24.08-py3", {}),
        ("dustynv/tensorrt:8.6-r36.2.0", {"tensorrt": "8.6", "l4t": "36.2.0"}),
        ("registry/runtime:trt-10.3@sha256:11.4", {"tensorrt": "10.3"}),
        ("enginefleet/runtime:ort-1.24", {"onnxruntime": "1.24"}),
        ("registry/enginefleet-builder:jetpack6", {}),
    ],
)
def test_an_images_name_tells_what_it_can(image: str, found: dict[str, str]) -> None:
    assert targets.known_from_image(TABLE, image) == found


# ---- another table ----


def changed(folder: Path, **changes: Any) -> Path:
    path = folder / "targets.json"
    path.write_text(json.dumps(TABLE.to_json_dict() | changes))
    return path


def test_another_table_needs_no_release_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry.to_json_dict() for entry in TABLE.tensorrt]
    path = changed(tmp_path, tensorrt=[*entries, {"release": "12.0", "opset": 30}])
    monkeypatch.setenv(targets.TARGETS_VARIABLE, str(path))
    found = tensorrt(load(), "12.0.1")
    assert found is not None
    assert found.opset == 30


def test_a_table_of_ones_own_says_what_a_dated_tag_holds(tmp_path: Path) -> None:
    images = [{"pattern": r"tensorrt:24\.08-py3", "gives": "tensorrt", "version": "10.3.0"}, *TABLE.to_json_dict()["images"]]
    found = load(changed(tmp_path, images=images))
    (target,) = from_manifests(manifest(tmp_path, hardware_class("nvcr.io/nvidia/tensorrt:24.08-py3")), found)
    assert target.version == "10.3.0"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schemaVersion": 2}, "schemaVersion"),
        ({"tensorrt": []}, "the first entry must have every field"),
        ({"tensorrt": [{"release": "8.0"}]}, "the first entry must have every field"),
        ({"onnxruntime": [{"release": "1.24", "opset": 1, "ir": 1}, {"release": "1.23", "opset": 1, "ir": 1}]}, "do not ascend"),
        ({"images": [{"pattern": "(", "gives": "l4t"}]}, "unterminated"),
        ({"images": [{"pattern": "a", "gives": "l4t"}]}, "not exactly one group"),
        ({"images": [{"pattern": "(a)", "gives": "l4t", "version": "36.4"}]}, "one beside its version"),
        ({"hardware": [{"computeCapability": "9.0", "devices": "x", "precisions": ["fp3"]}]}, "hardware.0.precisions.0"),
    ],
)
def test_a_wrong_table_names_the_place(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PermanentError, match="TargetsInvalid") as caught:
        load(changed(tmp_path, **changes))
    assert says in caught.value.message


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="No such file"):
        load(tmp_path / "none.json")


# ---- classes ----


def manifest(folder: Path, *documents: Any) -> Path:
    path = folder / "class.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


def hardware_class(image: str = "registry/runtime:1", backend: str = "tensorrt", **more: Any) -> dict[str, Any]:
    return {"kind": "HardwareClass", "metadata": {"name": "orin"}, "spec": {"backend": backend, "runtime": {"image": image}}} | more


def test_a_class_alone_tells_what_its_image_tells(tmp_path: Path) -> None:
    (target,) = from_manifests(manifest(tmp_path, hardware_class("nvcr.io/nvidia/l4t-jetpack:r35.4.1")), TABLE)
    assert (target.name, target.version, target.l4t, target.compute_capability) == ("orin", "8.5", "35.4.1", None)


def test_probes_in_the_status_count_more_than_the_image(tmp_path: Path) -> None:
    status = {"probed": [{"runtime": {"backendVersion": "10.7.0.23"}}]}
    (target,) = from_manifests(manifest(tmp_path, hardware_class("registry/runtime:trt-10.3", status=status)), TABLE)
    assert target.version == "10.7.0.23"


def test_unlike_nodes_of_a_class_are_unlike_targets(tmp_path: Path) -> None:
    def node(capability: str) -> dict[str, Any]:
        facts = {"backendVersion": "8.5.2", "jetson": {"computeCapability": capability, "l4t": "35.4.1"}}
        return {"kind": "NodeFingerprint", "spec": {"observations": [{"class": "orin", "facts": facts}, {"class": "other", "facts": {}}]}}

    found = from_manifests(manifest(tmp_path, hardware_class(), node("8.7"), node("7.2"), node("8.7")), TABLE)
    assert [target.compute_capability for target in found] == ["8.7", "7.2"]


@pytest.mark.parametrize("text", ["", "- 1\n- 2\n", "kind: [Pod\n", "a: &a [*a]\n", "[" * 5000, "\x00"])
def test_what_is_no_class(tmp_path: Path, text: str) -> None:
    path = tmp_path / "class.yaml"
    path.write_text(text)
    with pytest.raises(PermanentError, match="ClassInvalid"):
        from_manifests(path, TABLE)


def test_the_table_is_a_contract_that_survives_json() -> None:
    assert Table.model_validate_json(TABLE.model_dump_json(by_alias=True)) == TABLE
