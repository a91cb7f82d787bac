"""`enginefleet preflight` by hand: from flags to findings, and how a person reads them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from enginefleet_api.base import Contract
from enginefleet_api.errors import EXIT_ENVIRONMENT, EXIT_OK, EXIT_PERMANENT, FailureClass, PermanentError
from enginefleet_api.jobs import PreflightTarget, Source
from enginefleet_api.resources import InputSpec
from enginefleet_api.variants import CANDIDATES, SCALED

from ..io import Progress
from ..sources import fetch_source, model_files
from . import export as exports
from . import targets
from .checks import Asked
from .findings import Finding, errors
from .preflight import preflight as inspect

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8", "fp8")


class FindingReport(Contract):
    severity: str
    reason: str
    message: str
    hint: str


class PreflightReport(Contract):
    """What `--json` prints."""

    model: str
    targets: list[PreflightTarget] = Field(default_factory=list)
    findings: list[FindingReport] = Field(default_factory=list)
    cured: str = ""
    """The cured file, where one was asked for and needed."""

    def lines(self) -> list[str]:
        """For a person: errors first."""
        order = {"error": 0, "warning": 1, "cured": 2}
        told = sorted(self.findings, key=lambda finding: order[finding.severity])
        counts = [f"{sum(finding.severity == kind for finding in told)} {kind}" for kind in order]
        lines = [f"{self.model}: {', '.join(counts)}" if told else f"{self.model}: no findings"]
        for finding in told:
            lines += [f"{finding.severity}  {finding.reason}: {finding.message}"] + ([f"    {finding.hint}"] if finding.hint else [])
        return lines + ([f"cured model: {self.cured}"] if self.cured else [])


def preflight(
    model: str,
    classes: Sequence[str],
    precisions: Sequence[str],
    scales: Literal["dataset", "model"],
    profiles: Sequence[str],
    batches: Sequence[int],
    dla: bool,
    plugins: tuple[str, ...],
    cure: Path | None,
    progress: Progress,
) -> tuple[PreflightReport, int]:
    """(report, exit code). Raises EngineFleetError for flags that cannot be read and for what cannot be fetched."""
    table = targets.load()
    chosen = [target.model_copy(update={"dla": dla, "plugins": plugins}) for text in classes for target in _class(text, table)]
    asked = _asked(precisions, scales, [_profile(text) for text in profiles], batches, chosen)
    if cure is not None and cure.exists():
        raise PermanentError("BadRequest", f"{cure} is there already.", "Name a folder that is to be made.")
    with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
        path = _model(model, Path(folder), progress)
        inspected = inspect(path, asked, progress, cure)
    # two kinds of device of one class may lack the same
    told = dict.fromkeys(replace(finding, target="") for finding in inspected.findings)
    findings = [FindingReport.model_validate(finding.to_json_dict()) for finding in told]
    cured = str(inspected.path) if inspected.cured else ""
    return PreflightReport(model=model, targets=chosen, findings=findings, cured=cured), exit_code(inspected.findings)


def exit_code(findings: Sequence[Finding]) -> int:
    found = errors(findings)
    if not found:
        return EXIT_OK
    return EXIT_PERMANENT if any(item.failure_class is FailureClass.PERMANENT for item in found) else EXIT_ENVIRONMENT


def _model(text: str, folder: Path, progress: Progress) -> Path:
    if "://" not in text:
        path = Path(text)
        if path.suffix.lower() in exports.SUFFIXES:
            raise exports.not_allowed(path)
        return model_files(path) if path.is_dir() else path
    source = Source(uri=text)
    return model_files(fetch_source(source, folder, progress=progress, allow_file=urlsplit(text).scheme == "file").folder)


def _class(text: str, table: targets.Table) -> list[PreflightTarget]:
    path = Path(text)
    if not path.is_file():
        hint = f"Write it with `kubectl get hardwareclass {text} -o yaml > FILE`; preflight reads no cluster."
        raise PermanentError("ClassInvalid", f"{text} is no file.", hint)
    return targets.from_manifests(path, table)


def _asked(
    precisions: Sequence[str],
    scales: Literal["dataset", "model"],
    profiles: list[InputSpec],
    batches: Sequence[int],
    chosen: list[PreflightTarget],
) -> Asked:
    unknown = [precision for precision in precisions if precision not in (*PRECISIONS, "auto")]
    if unknown:
        raise PermanentError("BadRequest", f"precision {unknown[0]!r} is unknown, expected one of {', '.join(PRECISIONS)} or auto.")
    wanted = list(dict.fromkeys(name for precision in precisions for name in (CANDIDATES if precision == "auto" else [precision])))
    needs_scales = any(precision in SCALED for precision in wanted)
    return Asked(
        precisions=wanted,
        best_effort="auto" in precisions,
        inputs=profiles,
        scales=scales if needs_scales else "",
        batch_sizes=list(batches),
        targets=chosen,
    )


def _profile(text: str) -> InputSpec:
    """NAME=MIN,OPT,MAX or NAME=SHAPE; a shape is 1x3x224x224."""
    name, _, shapes = text.rpartition("=")
    parts = shapes.split(",")
    if not name or len(parts) not in (1, 3) or not all(re.fullmatch(r"[0-9]{1,10}(x[0-9]{1,10})*", part) for part in parts):
        hint = "Write NAME=MIN,OPT,MAX, like images=1x3x320x320,4x3x640x640,8x3x640x640."
        raise PermanentError("BadRequest", f"profile {text!r} cannot be read.", hint)
    low, best, high = ([int(size) for size in part.split("x")] for part in (parts if len(parts) == 3 else parts * 3))
    try:
        return InputSpec.model_validate({"name": name, "profiles": [{"min": low, "opt": best, "max": high}]})
    except ValidationError as error:
        raise PermanentError("BadRequest", f"profile {text!r}: {error.errors(include_url=False)[0]['msg']}.", "Correct it.") from error
