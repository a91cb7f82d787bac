"""What TensorRT logs becomes a reason, a class, and words that say what to do; the table is data."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from enginefleet_api.errors import EnvironmentFault, PermanentError, TransientFault
from enginefleet_builder.backends import texts

P, E, T = PermanentError, EnvironmentFault, TransientFault


def said(*lines: str, doing: str = "build", **facts: Any) -> tuple[str, type, str]:
    error = texts.classify(lines, doing=doing, facts=facts)
    return error.reason, type(error), str(error)


@pytest.mark.parametrize(
    ("line", "reason", "kind", "words"),
    [
        ("[E] plan made for an incompatible device, expecting compute 8.6 got compute 8.9, rebuild it", "WrongDevice", E, "8.6 and 8.9"),
        ("[E] Expected compute capability >= 8.0 for this plan but got 7.5", "WrongDevice", E, "8.0 or higher"),
        ("[E] this plan needs another library, expecting library version 10.3.0.30 got 8.6.2.3, rebuild", "WrongTensorRT", E, "10.3.0.30"),
        ("[E] Version tag does not match. Note: Current Version: 239, Serialized Engine Version: 232", "WrongTensorRT", E, "another release"),
        ("[E] a plan of incompatible serialization version (1825 != 1953657958)", "NotAPlan", P, "no plan"),
        ("[E] Cannot deserialize empty blob", "NotAPlan", P, "enginefleet inspect"),
        ("[E] Platform specific tag mismatch detected", "WrongPlatform", E, "architecture"),
        ("[E] The device only supports 8 multiprocessors but the engine file requires 16", "TooFewSMs", E, "needs 16 multiprocessors, the device has 8"),
        ("[E] input images: no optimization profile has been defined", "MissingProfile", P, "spec.inputs"),
        ("[E] Network has dynamic or shape inputs, but no optimization profile of them", "MissingProfile", P, "spec.inputs"),
        ("[E] x, y: Input dimensions with this name are inconsistent: ?", "DimensionsNamedAlike", P, "name of its own"),
        ("[E] tensor conv1: no scaling factors detected", "WrongInt8Recipe", P, "Q/DQ"),
        ("[E] a layer wants int8, but int8 is not configured in the builder", "WrongInt8Recipe", P, "Q/DQ"),
        ("[E] getPluginCreator could not find plugin: EfficientNMS_TRT version: 1", "UnsupportedOp", P, "operator EfficientNMS_TRT is unsupported"),
        ("[E] could not find plugin MyOp of the model", "UnsupportedOp", P, "operator MyOp is unsupported"),
        ("[E] No importer registered for op: GridThing. Trying a plugin", "UnsupportedOp", P, "operator GridThing is unsupported"),
        ("[E] lab:Foo(-1) is not a registered function/op", "UnsupportedOp", P, "unsupported in TensorRT"),
        ("TypeError: pybind11::init(): factory function returned nullptr", "NoGPU", E, "runtimeClassName"),
        ("[E] CUDA initialization failure with error: 35", "NoGPU", E, "driver is too old"),
        ("[E] cannot open libnvinfer_builder_resource.so.8.6.2", "HostImageMismatch", E, "JetPack"),
        ("ImportError: libnvdla_compiler.so: no such file", "HostImageMismatch", E, "JetPack"),
        ("Failed to initialize NVML: Unknown Error", "DriverLost", T, "lost its access"),
        ("[E] Error Code 1: Cuda Runtime (out of memory)", "OutOfMemory", P, "workspace"),
        ("[E] 2: [virtual memory] OutOfMemory (no further information)", "OutOfMemory", P, "smaller batch"),
        ("[E] Could not find any implementation for node /m/Conv.", "NoImplementation", P, "no kernel for the layer /m/Conv."),
        ("[E] Could not find any implementation for node /m/Conv due to insufficient workspace.", "OutOfMemory", P, "layer /m/Conv that"),
        ("OSError: [Errno 28] No space left on device: 'engine.plan'", "DiskFull", E, "ephemeral-storage"),
        ("[E] CUDA error: an illegal memory access was encountered", "KernelCrashed", P, "ends its CUDA context"),
        ("[E] Set dimension [9,3,8,8] for tensor images does not satisfy any profile", "ShapeRefused", P, "spec.inputs"),
        ("[E] nobody has seen this line before", "BuildFailed", P, "nobody has seen this line before"),
    ],
)  # fmt: skip
def test_each_text_of_the_table_has_its_reason_class_and_words(line: str, reason: str, kind: type, words: str) -> None:
    found = said("[I] a line before", line, "[I] a line after")
    assert found[:2] == (reason, kind)
    assert words in found[2]


def test_no_entry_of_the_table_is_without_a_test() -> None:
    here = Path(__file__).read_text()
    lines = re.findall(r'"((?:\[|TypeError|ImportError|OSError|Failed)[^"]+)"', here)
    silent = [entry.pattern for entry in texts.load().failures if not any(re.search(entry.pattern, line) for line in lines)]
    assert silent == []


def test_the_earliest_error_line_is_the_cause() -> None:
    log = [
        "[I] Local timing cache in use",
        "[E] 1: [runner] an illegal memory access was encountered",
        "[E] 10: Could not find any implementation for node PWN(/cls/Sigmoid, /cls/Mul).",
        "[E] factory function returned nullptr",
    ]
    found = texts.diagnose(log, doing="build", facts={"library": "TensorRT 8.6.0"})
    assert found.error.reason == "KernelCrashed"
    assert "TensorRT 8.6.0 tried" in found.error.message
    assert found.layer == "PWN(/cls/Sigmoid, /cls/Mul)"


def test_an_unknown_error_line_before_a_known_one_is_told_too() -> None:
    reason, _, text = said("[E] something else broke first", "[E] tensor a: no scaling factors detected")
    assert reason == "WrongInt8Recipe"
    assert "Before that: [E] something else broke first." in text


def test_a_line_of_information_is_never_the_cause() -> None:
    assert said("[I] retry after OutOfMemory worked", "[E] something new")[0] == "BuildFailed"


def test_no_implementation_after_tactics_without_memory_is_out_of_memory() -> None:
    log = ["[W] Tactic Device request: 9216MB Available: 3970MB. Device memory is insufficient to use tactic.",
           "[E] Could not find any implementation for node /b/Conv + /b/Relu."]  # fmt: skip
    reason, kind, text = said(*log)
    assert (reason, kind) == ("OutOfMemory", P)
    assert "request: 9216MB Available: 3970MB" in text
    assert "/b/Conv + /b/Relu" in text
    assert said(*reversed(log))[0] == "NoImplementation"


@pytest.mark.parametrize(
    ("end", "layer"),
    [
        ("/m/Conv + PWN(/m/Sigmoid, /m/Mul).)", "/m/Conv + PWN(/m/Sigmoid, /m/Mul)"),
        ("PWN(/m/Sigmoid, /m/Mul)", "PWN(/m/Sigmoid, /m/Mul)"),
        ("{ForeignNode[/a/Conv.../b/Softmax]}.]", "{ForeignNode[/a/Conv.../b/Softmax]}"),
        ("model.10.m.0.conv.weight + /m/QuantizeLinear. See the verbose log.", "model.10.m.0.conv.weight + /m/QuantizeLinear"),
    ],
)
def test_the_layer_is_taken_out_of_the_text(end: str, layer: str) -> None:
    assert texts.diagnose([f"[E] Error Code 10 (Could not find any implementation for node {end}"], doing="build", facts={}).layer == layer


def test_a_fused_layer_is_taken_apart_into_nodes() -> None:
    fused = "model.10.conv.weight + /m.10/QuantizeLinear + /m.10/Conv || PWN(/m.10/Sigmoid, /m.10/Mul)"
    assert texts.nodes_of(fused) == ["model.10.conv.weight", "/m.10/QuantizeLinear", "/m.10/Conv", "/m.10/Sigmoid", "/m.10/Mul"]
    assert texts.nodes_of("{ForeignNode[/a/Conv.../b/Softmax]}") == ["/a/Conv", "/b/Softmax"]


def test_a_parser_that_fails_on_a_newer_opset_is_reported_as_that() -> None:
    line = "[E] Invalid Node - node_Reshape_77: wildcard -1 has no integer solution"
    reason, _, text = said(line, doing="parse", opset=20, parserOpset=17, library="TensorRT 8.6.0")
    assert reason == "OpsetTooNew"
    assert "has opset 20, the parser of TensorRT 8.6.0 takes 17" in text
    assert "no integer solution" in text
    assert said(line, doing="parse", opset=17, parserOpset=17)[0] == "ParseFailed"
    assert said("[E] CUDA initialization failure with error: 35", doing="parse", opset=20, parserOpset=17)[0] == "NoGPU"


@pytest.mark.parametrize(
    ("code", "facts", "reason", "kind"),
    [
        (-signal.SIGKILL, {"oomKilled": True, "memoryLimit": 4 << 30}, "OutOfMemory", P),
        (137, {"oomKilled": True}, "OutOfMemory", P),
        (-signal.SIGKILL, {}, "EngineProcessKilled", T),
        (137, {}, "EngineProcessKilled", T),
        (-signal.SIGTERM, {}, "EngineProcessKilled", T),
        (-signal.SIGSEGV, {"gpu": False}, "NoGPU", E),
        (139, {"gpu": False}, "NoGPU", E),
        (-signal.SIGSEGV, {"gpu": True}, "EngineCrashed", P),
        (-signal.SIGILL, {}, "IllegalInstruction", E),
        (1, {}, "EngineCrashed", P),
    ],
)
def test_a_process_that_ended_without_an_answer(code: int, facts: dict[str, Any], reason: str, kind: type) -> None:
    found = said("[I] the last thing that it did", exitCode=code, **facts)
    assert found[:2] == (reason, kind)


def test_a_crash_is_told_from_the_log_first() -> None:
    assert said("[E] Cuda Runtime (out of memory)", exitCode=-signal.SIGABRT)[0] == "OutOfMemory"
    assert (
        "limit is 4294967296 bytes; 100 bytes were available"
        in said(exitCode=-9, oomKilled=True, memoryLimit=4 << 30, memoryAvailable=100)[2]
    )


@pytest.mark.parametrize(
    ("doing", "reason"), [("load", "NotLoadable"), ("run", "InferenceFailed"), ("parse", "ParseFailed"), ("start", "NotStarted")]
)
def test_silence_has_a_reason_too(doing: str, reason: str) -> None:
    found = said(doing=doing)
    assert found[0] == reason
    assert "logged nothing" in found[2]


def test_warnings_are_kept_for_the_record_and_are_no_failure() -> None:
    log = ["[W] Using an engine plan file across different models of devices may be slow", "[W] Detected invalid timing cache, making a local one",
           "[W] Detected invalid timing cache, making a local one"]  # fmt: skip
    assert [text.partition(":")[0] for text in texts.warnings(log)] == ["StaleDevice", "TimingCacheIgnored"]
    assert said(*log, "[E] another thing")[0] == "BuildFailed"


def test_a_hostile_log_is_cut_and_printable() -> None:
    name = "\x1b[31m" + "n" * 100_000
    reason, _, text = said(f"[E] Could not find any implementation for node {name}.")
    assert reason == "NoImplementation"
    assert len(text) < 2000
    assert text.isprintable()


def test_braces_in_a_log_are_text() -> None:
    assert "{0} {library}" in said("[E] no scaling factors detected for {0} {library}")[2]


@pytest.mark.parametrize(
    "line",
    [
        "[E] no scaling factors detected", "ERROR: no scaling factors detected", "[12/02/2026-10:00:00] [E] no scaling factors detected",
        "[TRT] [E] no scaling factors detected", "[12/02/2026-10:00:00] [TRT] [E] no scaling factors detected", "no scaling factors detected",
    ],
)  # fmt: skip
def test_lines_are_read_in_each_form_that_loggers_give_them(line: str) -> None:
    assert said("[W] first a warning", line)[0] == "WrongInt8Recipe"


# ---- the table ----


def test_another_table_replaces_ours_without_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"pattern": "flux (?P<what>\\S+)", "reason": "NewTrouble", "class": "Transient", "what": "{library}: {what}", "hint": "Wait."}
    file = tmp_path / "failures.json"
    file.write_text(json.dumps({"schemaVersion": 1, "updated": "2027-01-01", "failures": [entry]}))
    monkeypatch.setenv(texts.FAILURES_VARIABLE, str(file))
    reason, kind, text = said("[E] flux capacitor", library="TensorRT 12.0")
    assert (reason, kind) == ("NewTrouble", T)
    assert "TensorRT 12.0: capacitor" in text


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"what": "{nobody}"}, "nobody"),
        ({"pattern": "("}, "unterminated"),
        ({"class": "Odd"}, "class"),
        ({"reason": "two words"}, "reason"),
    ],
)
def test_a_table_that_is_none_is_refused_with_the_place(tmp_path: Path, changes: dict[str, str], complaint: str) -> None:
    entry = {"pattern": "x", "reason": "Found", "class": "Permanent", "what": "x", "hint": "x"} | changes
    file = tmp_path / "failures.json"
    file.write_text(json.dumps({"schemaVersion": 1, "updated": "", "failures": [entry]}))
    with pytest.raises(PermanentError, match=complaint) as caught:
        texts.load(file)
    assert caught.value.reason == "FailuresInvalid"
