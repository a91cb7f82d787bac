"""Termination messages: always small enough for the kubelet, read back as written, and never taken for success when unreadable."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginefleet_api.documents import Accuracy, Answer, Latency, Metric
from enginefleet_api.errors import EnvironmentFault, FailureClass, PermanentError, TransientFault
from enginefleet_api.jobs import (
    REPORT_LIMIT,
    BuildReport,
    FetchReport,
    JobFailure,
    PrepareReport,
    ProbeReport,
    ResolvedPrepared,
    Termination,
    clip,
)
from enginefleet_api.resources import RefusedTarget

DIGEST = "sha256:" + "a" * 64
KEY = "b" * 64
LONG = st.text(max_size=50) | st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=40), st.integers(1, 400))
LINES = st.lists(LONG, max_size=30)
NUMBER = st.decimals(0, 10**6, places=4).map(str)
LATENCY = st.builds(
    Latency, batch=st.integers(1, 65536), p50=NUMBER, p95=NUMBER, p99=NUMBER, throughput=NUMBER, iterations=st.integers(0, 10**6)
)
METRIC = st.builds(
    Metric,
    name=st.just("map50_95"),
    value=NUMBER,
    samples=st.integers(0, 10**6),
    per_class=st.dictionaries(st.text(max_size=30), NUMBER, max_size=80),
    class_samples=st.dictionaries(st.text(max_size=30), st.integers(0, 10**6), max_size=80),
)
FAILURES = st.builds(
    JobFailure, failure_class=st.sampled_from(FailureClass), reason=LONG, message=LONG, hint=LONG, log_tail=LINES, notes=LINES
)
BUILDS = st.builds(
    BuildReport,
    engine_key=st.just(KEY),
    gate_key=st.just(KEY),
    blob=st.just(DIGEST),
    size=st.integers(0, 2**40),
    adopted=st.booleans(),
    answer=st.sampled_from(Answer),
    reasons=LINES,
    accuracy=st.none() | st.builds(Accuracy, metric=st.just("top1"), value=NUMBER, worst_class=st.text(max_size=60)),
    latency=st.lists(LATENCY, max_size=16),
    durations=st.dictionaries(st.text(max_size=20), NUMBER, max_size=12),
    warnings=LINES,
)
PREPARES = st.builds(
    PrepareReport,
    model=st.just(DIGEST),
    calibration=st.none() | st.just(DIGEST),
    validation=st.none() | st.just(DIGEST),
    prepared=st.lists(
        st.builds(
            ResolvedPrepared,
            flavour=st.sampled_from(["onnxruntime", "tensorrt-10"]),
            precision=st.just("int8"),
            variant=st.sampled_from(["int8-entropy", "int8-repaired"]),
            prepared_key=st.just(KEY),
            model=st.just(DIGEST),
            exclude=st.just({}) | st.lists(LONG, max_size=64).map(lambda nodes: {"nodes": nodes, "opTypes": []}),
        ),
        max_size=10,
    ),
    refused=st.lists(
        st.builds(RefusedTarget, targets=st.just([KEY[:10]]), reason=st.just("UnsupportedOp"), message=LONG, hint=LONG), max_size=4
    ),
    unfit_layouts=st.dictionaries(st.sampled_from(["triton", "ultralytics"]), LONG),
    baseline_key=st.none() | st.just(KEY),
    baseline=st.none() | METRIC,
    notes=LINES,
)
TERMINATIONS = st.builds(Termination, failure=FAILURES) | st.builds(Termination, report=BUILDS | PREPARES)


@given(TERMINATIONS)
def test_a_message_is_never_larger_than_the_kubelet_keeps(termination: Termination) -> None:
    message = termination.to_message()

    assert len(message.encode()) <= REPORT_LIMIT < 4096


@given(TERMINATIONS)
def test_a_cut_message_still_says_what_decides(termination: Termination) -> None:
    read = Termination.parse(termination.to_message())

    assert read is not None
    match termination.report:
        case BuildReport() as report:
            assert isinstance(read.report, BuildReport)
            decides = ("engine_key", "gate_key", "blob", "size", "adopted", "answer", "accuracy")
            assert [getattr(read.report, name) for name in decides] == [getattr(report, name) for name in decides]
            assert bool(read.report.reasons) is bool(report.reasons)
        case PrepareReport() as report:
            assert isinstance(read.report, PrepareReport)
            assert (read.report.model, read.report.baseline_key) == (report.model, report.baseline_key)
            without = [item.model_copy(update={"exclude": {}}) for item in report.prepared]
            assert read.report.prepared in (report.prepared, without)
        case _:
            assert termination.failure is not None
            assert read.failure is not None
            assert read.failure.failure_class == termination.failure.failure_class


@given(st.text(max_size=300), st.integers(6, 200))
def test_clip_counts_the_bytes_of_the_message(text: str, size: int) -> None:
    found = clip(text, size)

    assert len(json.dumps(found, ensure_ascii=False).encode()) - 2 <= size
    assert found == text or found.removesuffix("…") in text.encode("utf-8", "replace").decode()


def test_what_fits_is_not_cut() -> None:
    error = PermanentError("OutOfMemory", "The build needs 9.1 GiB, the node has 8 GiB.", "Lower workspace, or name a larger class.")
    failure = JobFailure.of(error, ["line 1", "line 2"])

    assert Termination.parse(Termination(failure=failure).to_message()) == Termination(failure=failure)


def test_the_last_lines_of_a_log_are_kept() -> None:
    failure = JobFailure(
        failure_class=FailureClass.PERMANENT,
        reason="BuildFailed",
        message="m",
        log_tail=[f"{number:03} {'x' * 200}" for number in range(100)],
    )

    read = Termination.parse(Termination(failure=failure).to_message())

    assert read is not None
    assert read.failure is not None
    assert [line[:3] for line in read.failure.log_tail] == [f"{number:03}" for number in range(100 - len(read.failure.log_tail), 100)]
    assert len(read.failure.log_tail) >= 8


def test_what_must_not_be_cut_and_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not fit into 4000, with all texts for people cut"):
        Termination(report=ProbeReport(runtime={"libraries": ["x" * 5000]})).to_message()


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [(PermanentError("A", "b"), "Permanent"), (EnvironmentFault("A", "b"), "Environment"), (TransientFault("A", "b"), "Transient")],
)
def test_a_failure_carries_its_class(error: Any, failure_class: str) -> None:
    message = json.loads(Termination(failure=JobFailure.of(error)).to_message())

    assert message["failure"]["failureClass"] == failure_class
    assert message["failure"]["reason"] == "A"


REPORT = {"kind": "Fetch", "blob": DIGEST, "source": "cache"}
FAILURE = {"kind": "Failure", "failureClass": "Transient", "reason": "StoreDown", "message": "m"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "0",
        "Traceback (most recent call last):",
        "{}",
        json.dumps({"schemaVersion": 1}),
        json.dumps({"schemaVersion": 1, "report": None, "failure": None}),
        json.dumps({"schemaVersion": 1, "report": REPORT, "failure": FAILURE}),
        json.dumps({"schemaVersion": 2, "report": REPORT}),
        json.dumps({"schemaVersion": 1, "report": REPORT | {"kind": "Else"}}),
        json.dumps({"schemaVersion": 1, "report": {"kind": "Fetch"}}),
        json.dumps({"schemaVersion": 1, "failure": FAILURE | {"failureClass": "Mild"}}),
        json.dumps({"schemaVersion": 1, "report": REPORT})[:-1],
        json.dumps({"schemaVersion": 1, "report": REPORT}) + "x",
        "[" * 100_000,
        '{"report": "\ud800"}',
    ],
    ids=lambda text: ascii(text[:60]) or "empty",
)
def test_what_is_no_message_is_read_as_none(text: str) -> None:
    assert Termination.parse(text) is None


@given(st.text(max_size=200))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    assert Termination.parse(text) is None


def test_a_report_is_read_as_its_kind() -> None:
    read = Termination.parse(json.dumps({"report": REPORT, "fromTheFuture": 1}))

    assert read == Termination(report=FetchReport(blob=DIGEST, source="cache"))
