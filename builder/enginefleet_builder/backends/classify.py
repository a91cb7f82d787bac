"""From what ONNX Runtime says, or how its process died, to a reason and a class: pure but for reading the kill counter."""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from pathlib import Path

from enginefleet_api.errors import EngineFleetError, EnvironmentFault, PermanentError, TransientFault

LAST_LINES = 3

_TEXTS: list[tuple[str, str, str, str]] = [
    (
        r"is not a registered function/op",
        "UnsupportedOp",
        "ONNX Runtime does not know an operator of the model",
        "Use an opset that it knows.",
    ),
    (r"No Op registered for (\S+)", "UnsupportedOp", "ONNX Runtime does not know an operator of the model", "Use an opset that it knows."),
    (
        r"NOT_IMPLEMENTED|Could not find an implementation for",
        "NoImplementation",
        "ONNX Runtime has no kernel for an operator of the model",
        "Use another data type or opset for it.",
    ),
    (
        r"Unsupported model IR version|opset \d+ is under development",
        "OpsetTooNew",
        "the model is newer than ONNX Runtime",
        "Export it older.",
    ),
    (
        r"Failed to allocate memory|bad_alloc|BFCArena",
        "OutOfMemory",
        "memory ran out",
        "Give the class more memory, or use a smaller batch.",
    ),
    (r"INVALID_PROTOBUF|Protobuf parsing failed", "NotAnEngine", "the file is no ONNX model", "Build it again."),
    (
        r"Got invalid dimensions for input|Invalid rank for input",
        "ShapeRefused",
        "the engine refuses the inputs' shape",
        "Correct spec.inputs.",
    ),
]
"""(pattern, reason, what happened, what to do)"""


def refused(text: str, doing: str, log: str = "") -> EngineFleetError:
    """An error that ONNX Runtime raised while `doing` (build, load, run, timings, quantize). `log`: what it had logged."""
    line = " ".join(text.split())[:400].rstrip(". ")
    kind, _, what = line.partition(": ")
    match kind:
        case "ProviderInactiveError":
            hint = "Use an image, node and driver that have what this execution provider needs, or another executionProvider in the HardwareClass."
            return EnvironmentFault("ExecutionProviderInactive", f"{what}.{_logged(log)}", hint)
        case "ProviderUnusedError":
            hint = "The model's operators, types or shapes are not among those that it takes: use another executionProvider or precision."
            return PermanentError("ExecutionProviderUnused", f"{what}: all of it would run elsewhere.{_logged(log)}", hint)
        case "NotEmbeddedError":
            hint = "An engine is one file that needs no other. Use backend tensorrt, or another executionProvider."
            return PermanentError("EngineNotWhole", f"{what}.", hint)
    if re.search(r"No space left on device", text):
        return EnvironmentFault("DiskFull", f"the disk is full: {line}.", "Free space on the node or raise ephemeral-storage.")
    for pattern, reason, what, hint in _TEXTS:
        if re.search(pattern, text):
            return PermanentError(reason, f"{what}: {line}.", hint)
    reason = {"build": "BuildFailed", "load": "NotLoadable", "quantize": "QuantizationFailed"}.get(doing, "InferenceFailed")
    return PermanentError(reason, f"ONNX Runtime failed to {doing}: {line}.", "Check the model with ONNX Runtime on a workstation.")


def _logged(log: str) -> str:
    """The last errors that ONNX Runtime logged, less time and place."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
    said = list(dict.fromkeys(re.findall(r"\[E:onnxruntime:[^\]]*\] (.+)", plain)))[-LAST_LINES:]
    return f" It logged: {'; '.join(' '.join(line.split())[:400] for line in said)}." if said else ""


def crashed(code: int, log: str, *, out_of_memory: bool = False) -> EngineFleetError:
    """The process ended without an answer. `code` as subprocess gives it: negative for a signal."""
    lines = "; ".join(line.strip()[:200] for line in log.splitlines()[-LAST_LINES:] if line.strip())
    said = f" Last lines: {lines}." if lines else ""
    if code == -signal.SIGKILL and out_of_memory:
        return PermanentError("OutOfMemory", f"the kernel killed the engine's process for memory.{said}", "Raise the class's memory limit.")
    if code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT):
        return TransientFault("EngineProcessKilled", f"the engine's process was ended by {_name(code)}.{said}")
    if code == -signal.SIGILL:
        return EnvironmentFault("IllegalInstruction", f"the engine uses an instruction that this CPU lacks.{said}", "Check the node's CPU.")
    if code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS) and re.search(r"bad_alloc|Failed to allocate", log):
        return PermanentError("OutOfMemory", f"the engine's process ran out of memory.{said}", "Raise the class's memory limit.")
    return PermanentError("EngineCrashed", f"the engine's process ended with {_name(code)}.{said}", "Check the model; the log has more.")


def _name(code: int) -> str:
    with suppress(ValueError):
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"signal {-code}"


def oom_kills(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Processes of this container that the kernel killed for memory; 0 where it cannot be seen."""
    for name in ("memory.events", "memory/memory.oom_control"):
        with suppress(OSError, ValueError):
            match = re.search(r"^oom_kill (\d+)$", (root / name).read_text(), re.MULTILINE)
            if match:
                return int(match[1])
    return 0
