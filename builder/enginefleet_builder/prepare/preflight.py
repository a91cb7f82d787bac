"""Preflight: whatever can be told of a model before minutes are spent on it, all at once.

The file is opened by a child process (inspector.py); checks.py, target_checks.py and native_checks.py hold what is looked for, cures.py what
prepare repairs. docs/preflight.md lists every reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginefleet_api.errors import EngineFleetError, FailureClass, PermanentError, TransientFault

from ..backends.child import Child
from ..backends.onnxruntime import open_session
from ..io import Progress
from ..tables import without
from . import cures, targets
from .checks import Asked
from .findings import Finding, fatal
from .inspector import broken, too_demanding

INSPECTOR = "enginefleet_builder.prepare.inspector"


@dataclass(frozen=True, slots=True)
class Inspected:
    """`path`: the model to go on with, which is the cured one where something was cured and a folder for it was given."""

    findings: list[Finding]
    path: Path
    cured: bool = False


def preflight(path: Path, asked: Asked, progress: Progress, cure_into: Path | None = None) -> Inspected:
    """All findings of the .onnx file at `path`. With `cure_into` (a folder, made when needed) the file is cured and compared too.

    Never raises for what is in the file; TransientFault when the work must end.
    """
    progress("preflight")
    found = [Finding("warning", problem.reason, without(problem), problem.hint) for problem in targets.chosen().problems]
    target, cured = path, False
    with Child(INSPECTOR, progress, without_credentials(os.environ)) as child:
        _ask(child, {"do": "check", "path": str(path), "asked": asked.to_json_dict()}, found)
        if not broken(found) and not _unread(found):
            _ask(child, {"do": "native"}, found)
        if cure_into is not None and not fatal(found) and any(finding.severity == "cured" for finding in found):
            cure_into.mkdir(parents=True)
            answer = _ask(child, {"do": "cure", "folder": str(cure_into)}, found)
            target, cured = (Path(answer["file"]), True) if answer.get("file") else (path, False)
    if not fatal(found) and cured:
        # which loads the cured one
        try:
            found.append(Finding("cured", "CureChecked", cures.compare(path, target, asked.inputs, progress) + "."))
        except PermanentError as error:
            found.append(Finding.of(error))
    elif not fatal(found):
        found += _loads(path, progress, curable=any(finding.severity == "cured" for finding in found))
    return Inspected(found, target, cured)


def _ask(child: Child, header: Mapping[str, Any], found: list[Finding]) -> Mapping[str, Any]:
    """The answer; its findings, or what the child's death means, are added to `found`."""
    try:
        answer, _ = child.ask(header)
    except TransientFault as error:
        if error.reason != "EngineProcessKilled":
            raise
        found.append(too_demanding("its process was killed"))
        return {}
    except EngineFleetError as error:
        if error.reason == "OutOfMemory":
            found.append(too_demanding("memory ran out"))
        elif "SIGXCPU" in error.message:
            found.append(too_demanding("time ran out"))
        else:
            what = error.message.replace("the engine's process", "the process that reads it")
            hint = "Is it damaged or made up? Else report it, with the file."
            found.append(Finding("error", "ModelCrashesParser", f"the file makes ONNX's parser or checker crash: {what}", hint))
        return {}
    for item in answer["findings"]:
        about = {"target": item["target"], "precisions": tuple(item["precisions"])}
        found.append(Finding(item["severity"], item["reason"], item["message"], item["hint"], FailureClass(item["failureClass"]), **about))
    return answer


UNREAD = (
    "NotAModel",
    "ModelNotFound",
    "ModelTooLarge",
    "ModelTruncated",
    "ModelTooDeep",
    "ModelUnreadable",
    "ModelTooDemanding",
    "ModelCrashesParser",
)


def _unread(found: list[Finding]) -> bool:
    """Whether there is no parsed model, or no process that holds it."""
    return any(finding.reason in UNREAD for finding in found)


def _loads(path: Path, progress: Progress, *, curable: bool) -> list[Finding]:
    """Whatever the checks did not see, ONNX Runtime does when it loads the model. What will be cured may be why it does not load."""
    try:
        with open_session(path, "auto", progress):
            return []
    except PermanentError as error:
        if curable:
            message = f"as it is given the model does not load in ONNX Runtime ({error.message.rstrip('.')}); prepare cures it first."
            return [Finding("warning", error.reason, message, error.hint)]
        return [Finding.of(error)]


def without_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are no key to anything."""
    return {name: value for name, value in environment.items() if not _secret(name)}


def _secret(name: str) -> bool:
    parts = name.upper()
    return parts.startswith("AWS_") or any(part in parts for part in ("SECRET", "TOKEN", "PASSWORD", "ACCESS_KEY", "CREDENTIAL"))
