"""Layouts that the servers of a class cannot read are refused before anything is built."""

from __future__ import annotations

from dataclasses import replace

import pytest

from enginefleet_api import labels
from enginefleet_api.layouts import layout_refused
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import Snapshot, StartPrepare

from . import worlds as w
from .test_backends import ADA, CPU, RTX, condition, fleet, play, reported


@pytest.mark.parametrize(
    ("layout", "backend", "says"),
    [
        ("plain", "onnxruntime", ""),
        ("plain", "tensorrt-rtx", ""),
        ("triton", "onnxruntime", ""),
        ("triton", "tensorrt", ""),
        ("triton", "tensorrt-rtx", "Triton has no backend for engines of TensorRT for RTX"),
        ("ultralytics", "tensorrt", ""),
        ("ultralytics", "tensorrt-rtx", "not before engines of TensorRT for RTX"),
        ("ultralytics", "onnxruntime", "not before engines of ONNX Runtime"),
    ],
)
def test_what_servers_read(layout: str, backend: str, says: str) -> None:
    found = layout_refused(layout, backend)
    assert bool(found) is bool(says)
    assert says in found


def test_a_class_whose_engines_the_server_cannot_read_is_refused_before_prepare_and_keeps_no_other_waiting() -> None:
    s, jobs = play(fleet(CPU, ADA, serving={"layout": "ultralytics"}))
    assert jobs == [["tensorrt-10/fp32"]]
    assert [b.spec.hardware_class for b in s.builds] == ["ada"]
    assert condition(s, "Stalled")[:2] == ("True", "LayoutNotPossible")
    assert "cpu: no variant could be prepared" in condition(s, "Stalled")[2]
    assert condition(s, "Stalled")[2].endswith("not before engines of ONNX Runtime: write spec.serving.layout plain.")


def test_where_no_class_can_nothing_is_started() -> None:
    s = w.settle(fleet(RTX, serving={"layout": "triton"}))
    assert s.jobs == ()
    assert condition(s, "Stalled")[:2] == ("True", "LayoutNotPossible")


def lacking(s: Snapshot, layout: str) -> Snapshot:
    """Prepare is done, and found that the model cannot be served so."""
    started = w.settle(s)
    start = w.first(decide(s, w.NOW), StartPrepare)
    report = reported(start.needs).model_copy(
        update={"unfit_layouts": {layout: "NotUltralytics: the metadata lacks stride. Export it again."}}
    )
    return w.settle(w.end_job(started, "prepare", report=report))


def test_a_model_without_the_metadata_is_refused_after_prepare_and_before_a_build() -> None:
    s = lacking(fleet(ADA, serving={"layout": "ultralytics"}), "ultralytics")
    assert s.builds == ()
    assert condition(s, "Stalled")[:2] == ("True", "NotUltralytics")
    assert "the metadata lacks stride. Export it again." in condition(s, "Stalled")[2]


def test_another_layout_is_enough_to_go_on_without_preparing_again() -> None:
    s = lacking(fleet(ADA, serving={"layout": "ultralytics"}), "ultralytics")
    s, jobs = play(replace(s, spec=w.spec(targets=[{"hardwareClass": "ada"}])))
    assert jobs == []
    assert [b.spec.hardware_class for b in s.builds] == ["ada"]


def test_what_serves_stays_when_the_layout_becomes_one_that_cannot_be() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    before = s.workloads, [n.labels[labels.release_key("vision", "m")] for n in s.nodes]
    s = w.settle(replace(s, spec=w.spec(serving={"layout": "ultralytics"})))
    assert (s.workloads, [n.labels[labels.release_key("vision", "m")] for n in s.nodes]) == before
    assert condition(s, "Stalled")[1] == "LayoutNotPossible"
