"""The inputs of the prepare Job: fetched, checked, cured. Every finding, of the model and of the data sets, is raised at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from onnx import ModelProto

from enginefleet_api import identity
from enginefleet_api.errors import PermanentError
from enginefleet_api.identity import Json
from enginefleet_api.jobs import PrepareRequest, Source
from enginefleet_api.resources import Preprocessing, RefusedTarget
from enginefleet_api.variants import CAST, SCALED

from ..gate import hygiene
from ..gate.datasets import Dataset, Task, open_dataset
from ..gate.preprocessing import Preprocessor
from ..io import Progress
from ..sources import Fetched, fetch_source, model_files
from . import cures
from . import export as exports
from . import model as models
from .checks import Asked
from .findings import Finding, fatal, refuse, refused_targets
from .preflight import preflight


@dataclass(frozen=True, slots=True)
class Data:
    """A data set that was fetched and opened."""

    fetched: Fetched
    dataset: Dataset


@dataclass(frozen=True, slots=True)
class Given:
    """All inputs of the Job, fetched and checked. `path` and `model` are the cured model's where something was cured.

    `fetched.digest` is what was given. `source` is what the baseline is of: the same, or with how it was exported. `digest` is what prepared models
    are made of: that of the cured files where something was cured, else `source`.
    """

    request: PrepareRequest
    fetched: Fetched
    path: Path
    model: ModelProto
    source: str
    digest: str
    calibration: Data | None
    validation: Data | None
    refused: list[RefusedTarget] = field(default_factory=list)


def scaled(request: PrepareRequest) -> bool:
    return any(variant.precision in SCALED for variant in request.variants)


def calibrates(request: PrepareRequest) -> bool:
    """Whether samples of the calibration set are looked at."""
    wanted = scaled(request) or any(variant.precision in CAST for variant in request.variants)
    return wanted and request.calibration is not None and request.calibration.source == "dataset"


def gather(request: PrepareRequest, folder: Path, progress: Progress) -> tuple[Given, list[str]]:
    """Fetch and check everything: (what was given, notes)."""
    findings: list[Finding] = []
    fetched: Fetched | None = None
    path: Path | None = None
    notes: list[str] = []

    def get_model() -> None:
        nonlocal fetched, path
        progress("fetch model")
        fetched = _fetch(request, request.model, folder / "model", progress)
        file = exports.checkpoint(fetched.folder)
        if file is None:
            path = model_files(fetched.folder)
        else:
            exported = exports.export(file, request.export, folder / "exported", progress)
            path = exported.path
            notes.extend(exported.notes)

    _collect(findings, get_model)
    source = digest = ""
    model: ModelProto | None = None
    if fetched is not None and path is not None:
        inspected = preflight(path, asked_of(request), progress, cure_into=folder / cures.FOLDER)
        findings += inspected.findings
        exported = not path.is_relative_to(fetched.folder)
        # an exporter writes the date into its file: not the file's digest but what made it
        source = digest = identity.digest({"source": fetched.digest, "export": _exported(request)}) if exported else fetched.digest
        path = inspected.path
        if not fatal(inspected.findings):
            model = models.read_model(path)
            if inspected.cured and exported:
                reasons = sorted({finding.reason for finding in inspected.findings if finding.severity == "cured"})
                digest = identity.digest({"source": source, "cures": tuple(reasons)})
            elif inspected.cured:
                digest = models.digest_of(models.model_files(path, model))
    calibration: Data | None = None
    validation: Data | None = None

    def get_calibration() -> None:
        nonlocal calibration
        if calibrates(request) and request.calibration is not None and request.calibration_source is not None:
            progress("fetch calibration set")
            calibration = _data(request, request.calibration_source, folder / "calibration", "calibration", progress)
            findings.extend(_data_findings("calibration", calibration.dataset, request.calibration.min_samples))

    def get_validation() -> None:
        nonlocal validation
        if request.validation is not None and request.validation_source is not None:
            progress("fetch validation set")
            validation = _data(request, request.validation_source, folder / "validation", request.validation.task, progress)
            findings.extend(_data_findings("validation", validation.dataset, request.validation.min_samples))
            findings.extend(map(_finding, hygiene.required(validation.dataset, request.validation)))

    _collect(findings, get_calibration)
    _collect(findings, get_validation)
    if model is not None:
        sets = {what: data.dataset for what, data in (("calibration", calibration), ("validation", validation)) if data is not None}
        findings += _hygiene(sets, model, request.preprocessing, progress)
    refuse(findings)
    assert fetched is not None
    assert path is not None
    assert model is not None
    refused = refused_targets(findings, request.variants)
    notes += [finding.note for finding in findings if not finding.target]
    return Given(request, fetched, path, model, source, digest, calibration, validation, refused), notes


def _exported(request: PrepareRequest) -> Json:
    """What of spec.model.export decides about the file."""
    return {} if request.export is None else {"size": tuple(request.export.size), "nms": request.export.nms, "opset": request.export.opset}


def _collect(findings: list[Finding], work: Callable[[], None]) -> None:
    """Do `work`; a permanent failure is a finding among others, any other ends the Job at once: trying again may do."""
    try:
        work()
    except PermanentError as error:
        findings.append(Finding.of(error))


def asked_of(request: PrepareRequest) -> Asked:
    scales: Literal["", "dataset", "model"] = request.calibration.source if request.calibration is not None and scaled(request) else ""
    return Asked(
        precisions=list(dict.fromkeys(variant.precision for variant in request.variants)),
        best_effort=request.best_effort,
        inputs=request.inputs,
        scales=scales,
        batch_sizes=request.batch_sizes,
        targets=request.targets,
        flavours=request.flavours,
    )


def _fetch(request: PrepareRequest, source: Source, folder: Path, progress: Progress) -> Fetched:
    # a store in a folder is for the command line and tests, and so are sources in folders: a cluster's EngineStore is always s3://
    return fetch_source(source, folder, progress=progress, allow_file=request.store.uri.startswith("file:"))


def _data(request: PrepareRequest, source: Source, folder: Path, task: Task, progress: Progress) -> Data:
    fetched = _fetch(request, source, folder, progress)
    return Data(fetched, open_dataset(fetched.folder, Preprocessor.of(request.preprocessing), task))


def _data_findings(what: str, dataset: Dataset, minimum: int) -> list[Finding]:
    """Too few samples, and what the reader took for granted."""
    findings = [Finding("warning", "DataSetNotes", f"the {what} set: {note}.") for note in dataset.notes]
    if dataset.size < minimum:
        message = f"the {what} set has {dataset.size} samples, expected at least {minimum}."
        findings.append(Finding("error", "TooFewSamples", message, f"Add samples, or lower {what}.minSamples."))
    return findings


def _hygiene(sets: Mapping[str, Dataset], model: ModelProto, preprocessing: Preprocessing | None, progress: Progress) -> list[Finding]:
    """What samples show as the model gets them: whether they fit at all, and whether they are what somebody meant to use."""
    surveys = {
        what: hygiene.survey(dataset, models.inputs(model), partial(progress, f"look at the {what} set"))
        for what, dataset in sets.items()
        if dataset.size
    }
    said = [concern for what, found in surveys.items() for concern in hygiene.concerns(what, found, preprocessing)]
    if len(surveys) == 2:
        said += hygiene.compare(surveys["calibration"], surveys["validation"])
    return list(map(_finding, said))


def _finding(concern: hygiene.Concern) -> Finding:
    return Finding(concern.severity, concern.reason, concern.message, concern.hint)
