"""The child that opens a model file for preflight: `python -m enginefleet_builder.prepare.inspector`, one file a process.

Model files come from outside. Here their parser, ONNX's checker and shape inference run, with bounded memory and time and without credentials; a
crash is a finding. check {path, asked}, native, cure {folder}; every answer holds `findings`.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from enginefleet_api.errors import EngineFleetError

from ..backends.frames import serve
from ..gate.arrays import Array
from . import checks, cures, native_checks, target_checks
from . import model as models
from .checks import Asked, Subject
from .findings import Finding, clean, fatal

MEMORY = 6 << 30
"""Address space without the file's share; the libraries alone reserve two or three GiB."""
MEMORY_PER_BYTE = 6
"""Copies of a file that checks hold at once, with the parser's overhead."""
SECONDS = 120
"""Processor time without the file's share."""
SECONDS_PER_GIB = 120
MOST_OF_A_KIND = 8
"""Findings of one reason that are told one by one."""
STRUCTURE_BROKEN = ("InvalidGraph", "TensorMissing", "GraphCycle", "BadDimension", "TensorSizeMismatch", "DuplicateTensor", "OpsetMissing")
"""With one of these, what ONNX's own tools say would only repeat it."""


class Inspector:
    def __init__(self) -> None:
        self._subject: Subject | None = None

    def answer(self, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> tuple[dict[str, Any], dict[str, Array]]:  # noqa: ARG002
        try:
            return self._answer(header), {}
        except EngineFleetError as error:
            return {"findings": [_json(Finding.of(error))]}, {}
        except MemoryError:
            return {"findings": [_json(too_demanding("memory ran out"))]}, {}
        except RecursionError:
            return {"findings": [_json(too_demanding("it nests too deep"))]}, {}
        # a hostile file finds what no check foresaw; without an answer the user would get no reason at all
        except Exception as error:  # noqa: BLE001
            message = f"the file cannot be checked: {type(error).__name__}: {clean(' '.join(str(error).split()), 300)}."
            return {"findings": [_json(Finding("error", "ModelUnreadable", message, "Export the model again."))]}, {}

    def _answer(self, header: Mapping[str, Any]) -> dict[str, Any]:
        match header["do"]:
            case "check":
                path = Path(header["path"])
                limit(path)
                self._subject = subject = Subject(path, models.read_model(path), Asked.model_validate(header["asked"]))
                return {"findings": [_json(item) for item in summed([*checks.check(subject), *target_checks.check(subject)])]}
            case "native":
                assert self._subject is not None
                return {"findings": [_json(item) for item in summed(native_checks.check(self._subject))]}
            case "cure":
                assert self._subject is not None
                done = cures.apply(self._subject)
                return {"findings": [], "file": str(cures.write(self._subject, Path(header["folder"]))) if done else ""}
            case other:
                raise ValueError(f"unknown request {other!r}")


def limit(path: Path) -> None:
    """Bound this process's memory and time by the size of the file."""
    size = path.stat().st_size if path.is_file() else 0
    spent = math.ceil(time.process_time())
    for kind, wanted in (
        (resource.RLIMIT_AS, MEMORY + MEMORY_PER_BYTE * size),
        (resource.RLIMIT_CPU, spent + SECONDS + SECONDS_PER_GIB * (size >> 30)),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (bound, hard))


def summed(findings: list[Finding]) -> list[Finding]:
    """Each finding once, and at most MOST_OF_A_KIND of one reason and target: a file can hold a million of them."""
    kept: list[Finding] = []
    counted: Counter[Finding] = Counter()
    for finding in dict.fromkeys(findings):
        kind = replace(finding, message="", hint="")
        counted[kind] += 1
        if counted[kind] <= MOST_OF_A_KIND:
            kept.append(finding)
    more = {kind: times - MOST_OF_A_KIND for kind, times in counted.items() if times > MOST_OF_A_KIND}
    return kept + [replace(kind, message=f"{times} more like it.") for kind, times in more.items()]


def broken(findings: list[Finding]) -> bool:
    """Whether asking ONNX's own tools is of no use."""
    return any(finding.reason in STRUCTURE_BROKEN for finding in fatal(findings))


def too_demanding(what: str) -> Finding:
    hint = "Is it damaged or made up? Else give the prepare Job more memory, and report it."
    return Finding("error", "ModelTooDemanding", f"the file cannot be checked within the limits: {what}.", hint)


def _json(finding: Finding) -> dict[str, Any]:
    more = {"failureClass": finding.failure_class.value, "target": finding.target, "precisions": finding.precisions}
    return finding.to_json_dict() | more


if __name__ == "__main__":
    sys.setrecursionlimit(2000)
    serve(Inspector().answer)
