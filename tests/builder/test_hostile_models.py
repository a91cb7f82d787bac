"""Whatever bytes come as a model: findings, never an exception, a crash or a hang."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enginefleet_api.errors import PermanentError
from enginefleet_builder.io import Progress
from enginefleet_builder.prepare import inspector
from enginefleet_builder.prepare import model as models
from enginefleet_builder.prepare.checks import Asked
from enginefleet_builder.prepare.inspector import Inspector
from enginefleet_builder.prepare.preflight import UNREAD, preflight
from tests.builder.models import classifier, elementwise

SEEDS = [classifier().SerializeToString(), elementwise("Relu", shape=["batch", 4]).SerializeToString()]
RELAXED = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A model with bytes changed, cut out, doubled or put in."""
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["change", "cut", "double", "insert"])):
            case "change" if data:
                data[at] = draw(st.integers(0, 255))
            case "cut":
                del data[at : at + draw(st.integers(1, 40))]
            case "double":
                data[at:at] = data[at : at + draw(st.integers(1, 80))]
            case _:
                data[at:at] = draw(st.binary(max_size=12))
    return bytes(data)


@given(data=st.binary(max_size=400) | mutated())
@RELAXED
def test_parsing_gives_a_model_or_a_reason(data: bytes) -> None:
    refusal: PermanentError | None = None
    try:
        models.parse("m.onnx", data)
    except PermanentError as error:
        refusal = error
    assert refusal is None or (refusal.message.endswith(".") and refusal.reason in UNREAD)


@given(data=mutated())
@RELAXED
def test_every_check_takes_what_parses(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, for speed: what the child does, without its limits. `ModelUnreadable` would be a check that stumbled."""
    monkeypatch.setattr(inspector, "limit", lambda path: None)
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    child = Inspector()
    answer, _ = child.answer({"do": "check", "path": str(path), "asked": Asked(precisions=["fp16"]).to_json_dict()}, {})
    assert all(finding["reason"] != "ModelUnreadable" for finding in answer["findings"]), answer
    assert all(finding["message"].isprintable() for finding in answer["findings"])


@pytest.mark.parametrize("harm", ["kill", "memory"])
def test_a_file_that_the_child_does_not_survive_is_a_finding(harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real child with a harmful file's effect: it dies of a signal, or asks for more memory than it may have."""
    code = {"kill": "os.kill(os.getpid(), signal.SIGSEGV)", "memory": "bytearray(64 << 30)"}[harm]
    module = tmp_path / "harmful.py"
    module.write_text(
        "import os, signal\n"
        "from enginefleet_builder.backends.ort_child import serve\n"
        "from enginefleet_builder.prepare import inspector\n"
        f"inspector.models.read_model = lambda path: {code}\n"
        "serve(inspector.Inspector().answer)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("enginefleet_builder.prepare.preflight.INSPECTOR", "harmful")
    (tmp_path / "m.onnx").write_bytes(SEEDS[0])
    (finding,) = preflight(tmp_path / "m.onnx", Asked(), Progress()).findings
    assert finding.severity == "error"
    assert finding.reason == {"kill": "ModelCrashesParser", "memory": "ModelTooDemanding"}[harm]
    assert harm != "kill" or "SIGSEGV" in finding.message
