"""Combinations that public reports call broken: found in preflight, from data that needs no release of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import PreflightTarget
from enginefleet_builder.prepare import targets
from enginefleet_builder.prepare.checks import Asked, Subject
from enginefleet_builder.prepare.target_checks import dla_sizes, known_bad

BAD = {
    "tensorrt": ["10.13", "11.1"], "computeCapabilities": ["8.7"], "precisions": ["fp16"], "operators": ["TopK", "Mod"], "what": "it breaks",
    "hint": "Use another.", "references": ["owner/repository#1"],
}  # fmt: skip


def table(folder: Path, **changes: Any) -> targets.Table:
    path = folder / "targets.json"
    path.write_text(json.dumps(targets.load().to_json_dict() | {"knownBad": [BAD | changes]}))
    return targets.load(path)


def found(using: targets.Table, op: str = "TopK", precision: str = "fp16", **changes: Any) -> list[str]:
    nodes = [helper.make_node(op, ["x"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]))
    target = PreflightTarget(name="orin", backend="tensorrt", version="10.13.3.9", compute_capability="8.7").model_copy(update=changes)
    asked = Asked(precisions=["fp32", precision], targets=[target])
    return [f"{item.severity} {item.reason} {item.message}" for item in known_bad(Subject(Path("m.onnx"), model, asked, using), target)]


def test_a_combination_is_named_with_its_reference(tmp_path: Path) -> None:
    (text,) = found(table(tmp_path))
    expected = "class orin (TensorRT 10.13.3.9) with fp16, TopK: it breaks (owner/repository#1)."
    assert text == f"warning KnownTrouble {expected}"


@pytest.mark.parametrize(
    ("changes", "hits"),
    [
        ({"version": "10.12.9"}, 0), ({"version": "10.13"}, 1), ({"version": "11.1.0.106"}, 1), ({"version": "11.2.0"}, 0), ({"version": None}, 0),
        ({"compute_capability": "8.6"}, 0), ({"compute_capability": None}, 0), ({"backend": "tensorrt-rtx"}, 0), ({"precision": "int8"}, 0),
        ({"op": "Relu"}, 0), ({"op": "Mod"}, 1),
    ],
)  # fmt: skip
def test_every_condition_must_be_met_and_what_is_unknown_meets_none(tmp_path: Path, changes: dict[str, Any], hits: int) -> None:
    assert len(found(table(tmp_path), **changes)) == hits


def test_an_entry_about_dlas_needs_one(tmp_path: Path) -> None:
    about = table(tmp_path, dla=True)
    assert [len(found(about, dla=asked)) for asked in (False, True)] == [0, 1]


def test_an_entry_about_a_board_counts_for_every_backend(tmp_path: Path) -> None:
    about = table(tmp_path, tensorrt=[], l4t=["36.4.7"], precisions=[], operators=[], computeCapabilities=[], severity="error")
    assert [len(found(about, l4t=l4t, backend="onnxruntime")) for l4t in ("36.4.7", "36.4.3", None)] == [1, 0, 0]
    assert found(about, l4t="36.4.7")[0].startswith("error KnownTrouble class orin (TensorRT 10.13.3.9) with L4T 36.4.7:")


@pytest.mark.parametrize(
    ("op", "precision", "changes", "reference"),
    [
        ("GridSample", "fp16", {"version": "10.14.1.48"}, "NVIDIA/TensorRT#4813"),
        ("TopK", "fp16", {"version": "10.13.3.9"}, "NVIDIA/TensorRT#4820"),
        ("TopK", "int8", {"version": "10.3.0.30", "dla": True}, "NVIDIA/TensorRT#4797"),
        ("Relu", "int8", {"version": "8.4.1", "dla": True}, "NVIDIA/TensorRT#3799"),
        ("Relu", "fp32", {"version": "10.3.0", "l4t": "36.4.7"}, "pytorch/pytorch#185240"),
    ],
)
def test_what_our_table_knows(op: str, precision: str, changes: dict[str, Any], reference: str) -> None:
    (text,) = found(targets.load(), op, precision, **changes)
    assert reference in text


def test_our_table_is_silent_about_a_plain_network_on_a_sound_release() -> None:
    assert found(targets.load(), "Conv", "int8", version="10.7.0.23") == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"references": []}, "references"), ({"references": ["a page somewhere"]}, "references.0"), ({"tensorrt": ["10.0"]}, "no first and last"),
        ({"tensorrt": ["11.0", "10.0"]}, "no first and last"), ({"precisions": ["fp3"]}, "precisions.0"),
    ],
)  # fmt: skip
def test_an_entry_that_is_wrong_or_without_reference_is_refused(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PermanentError) as caught:
        table(tmp_path, **changes)
    assert (caught.value.reason, complaint in caught.value.message) == ("TargetsInvalid", True)


@pytest.mark.parametrize(
    ("dla", "largest", "says"), [(False, 8, []), (True, 1, []), (True, 8, ["a DLA takes fixed sizes only, and profiles of x are ranges"])]
)
def test_ranges_of_sizes_are_told_where_a_dla_is_asked_for(dla: bool, largest: int, says: list[str]) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]))
    target = PreflightTarget(name="orin", backend="tensorrt", version="8.5.2", compute_capability="8.7", dla=dla)
    sizes = [{"name": "x", "profiles": [{"min": [1], "opt": [1], "max": [largest]}]}]
    asked = Asked.model_validate({"targets": [target], "inputs": sizes})
    found = list(dla_sizes(Subject(Path("m.onnx"), model, asked), target))
    assert [(one.severity, one.message.partition(":")[0]) for one in found] == [("warning", text) for text in says]
