"""Prepare: from a model and data sets to prepared models and a baseline in the store. What is there already is used as it is."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from enginefleet_api.documents import Baseline, PreparedManifest
from enginefleet_api.errors import EngineFleetError, PermanentError
from enginefleet_api.jobs import PrepareReport, PrepareRequest, ResolvedPrepared, Source, clip
from enginefleet_api.variants import SCALED, Variant

from ..backends.onnxruntime import open_session
from ..gate.datasets import Dataset, Task, open_dataset
from ..gate.metrics import require_supported
from ..gate.preprocessing import Preprocessor
from ..io import Progress
from ..sources import Fetched, fetch_source, model_files
from ..store import open_store
from ..store.records import Records
from . import baseline as baselines
from . import keys, preflight
from . import model as models
from .quantize import Quantized, quantize, tools

FLAVOURS = ("onnxruntime",)
PRECISIONS = ("fp32", "int8")


@dataclass(frozen=True, slots=True)
class Data:
    """A data set that was fetched and opened."""

    fetched: Fetched
    dataset: Dataset


@dataclass(frozen=True, slots=True)
class Given:
    """All inputs of the Job, fetched and checked."""

    request: PrepareRequest
    fetched: Fetched
    path: Path
    model: ModelProto
    calibration: Data | None
    validation: Data | None


def prepare(request: PrepareRequest, progress: Progress) -> PrepareReport:
    """Raises EngineFleetError; see preflight.py, quantize.py, baseline.py, gate/datasets.py and sources.py for the reasons."""
    started = time.monotonic()
    require_possible(request)
    records = Records(open_store(request.store, progress=progress))
    with tempfile.TemporaryDirectory(prefix="prepare-") as folder:
        given, notes = gather(request, Path(folder), progress)
        prepared: list[ResolvedPrepared] = []
        fresh = False
        for flavour, variant in itertools.product(request.flavours, request.variants):
            try:
                manifest, made = _prepared(given, flavour, variant, records, Path(folder), progress)
            except PermanentError as error:
                if not request.best_effort:
                    raise
                progress.log(f"{variant.id} cannot be made: {error.reason}: {error.message}")
                failure = clip(f"{error.reason}: {error.message}", 300)
                prepared.append(ResolvedPrepared(flavour=flavour, precision=variant.precision, variant=variant.id, failure=failure))
                continue
            prepared.append(_resolved(manifest))
            notes += [note for note in manifest.notes if note not in notes]
            fresh |= made
        baseline, made = _baseline(given, records, progress)
        fresh |= made
    return PrepareReport(
        model=given.fetched.digest,
        calibration=given.calibration.fetched.digest if given.calibration else None,
        validation=given.validation.fetched.digest if given.validation else None,
        prepared=prepared,
        baseline_key=baseline.baseline_key if baseline else None,
        baseline=baseline.metric if baseline else None,
        reused=not fresh,
        notes=notes,
        seconds=f"{time.monotonic() - started:.1f}",
    )


def _resolved(item: PreparedManifest) -> ResolvedPrepared:
    return ResolvedPrepared(
        flavour=item.flavour,
        precision=item.precision,
        variant=item.variant,
        prepared_key=item.prepared_key,
        model=item.model,
        exclude=item.recipe.get("exclude", {}) if "sensitivity" in item.recipe else {},
    )


def require_possible(request: PrepareRequest) -> None:
    """What can be refused without fetching anything."""
    for flavour in request.flavours:
        if flavour not in FLAVOURS:
            message = f"flavour {flavour} cannot be prepared by this version, expected one of {list(FLAVOURS)}."
            raise PermanentError("FlavourNotSupported", message, "Change the HardwareClass's backend.")
    for variant in request.variants:
        if variant.precision not in PRECISIONS:
            message = f"precision {variant.precision} is not what ONNX Runtime on a CPU can do; it can {' and '.join(PRECISIONS)}."
            raise PermanentError("PrecisionNotSupported", message, "Set spec.precision to one of these.")
    if _scaled(request) and (request.calibration is None or (_calibrates(request) and request.calibration_source is None)):
        message = "precision int8 has no calibration set."
        raise PermanentError("CalibrationMissing", message, "Set spec.calibration.uri, or calibration.source to model for a QAT model.")
    if request.validation is not None:
        require_supported(request.validation)


def _scaled(request: PrepareRequest) -> bool:
    return any(variant.precision in SCALED for variant in request.variants)


def _calibrates(request: PrepareRequest) -> bool:
    return _scaled(request) and request.calibration is not None and request.calibration.source == "dataset"


def gather(request: PrepareRequest, folder: Path, progress: Progress) -> tuple[Given, list[str]]:
    """Fetch and check everything: (what was given, notes). All findings are raised at once."""
    progress("fetch model")
    fetched = _fetch(request, request.model, folder / "model", progress)
    path = model_files(fetched.folder)
    model = models.read_model(path)
    quantized = request.calibration is not None and request.calibration.source == "model"
    progress("preflight")
    findings = preflight.check(preflight.Subject(path, model, "int8" if _scaled(request) else "fp32", request.inputs, quantized))
    calibration, validation = None, None
    try:
        if _calibrates(request) and request.calibration is not None and request.calibration_source is not None:
            progress("fetch calibration set")
            calibration = _data(request, request.calibration_source, folder / "calibration", "calibration", progress)
            findings += _data_findings("calibration", calibration.dataset, request.calibration.min_samples, model)
    except PermanentError as error:
        findings.append(preflight.Finding.of(error))
    try:
        if request.validation is not None and request.validation_source is not None:
            progress("fetch validation set")
            validation = _data(request, request.validation_source, folder / "validation", request.validation.task, progress)
            findings += _data_findings("validation", validation.dataset, request.validation.min_samples, model)
    except PermanentError as error:
        findings.append(preflight.Finding.of(error))
    if not any(finding.severity == "error" for finding in findings):
        findings += _load_findings(path, progress)
    preflight.refuse(findings)
    notes = [f"{finding.reason}: {finding.message}" for finding in findings]
    return Given(request, fetched, path, model, calibration, validation), notes


def _fetch(request: PrepareRequest, source: Source, folder: Path, progress: Progress) -> Fetched:
    # a store in a folder is for the command line and tests, and so are sources in folders: a cluster's EngineStore is always s3://
    return fetch_source(source, folder, progress=progress, allow_file=request.store.uri.startswith("file:"))


def _data(request: PrepareRequest, source: Source, folder: Path, task: Task, progress: Progress) -> Data:
    fetched = _fetch(request, source, folder, progress)
    return Data(fetched, open_dataset(fetched.folder, Preprocessor.of(request.preprocessing), task))


def _data_findings(what: str, dataset: Dataset, minimum: int, model: ModelProto) -> list[preflight.Finding]:
    """Too few samples; samples that the model cannot take, by the first one."""
    findings = []
    if dataset.size < minimum:
        message = f"the {what} set has {dataset.size} samples, expected at least {minimum}."
        findings.append(preflight.Finding("error", "TooFewSamples", message, f"Add samples, or lower {what}.minSamples."))
    if dataset.size:
        try:
            dataset.feed([0], models.inputs(model))
        except EngineFleetError as error:
            findings.append(preflight.Finding.of(error))
    return findings


def _load_findings(path: Path, progress: Progress) -> list[preflight.Finding]:
    """Whatever the checks did not see, ONNX Runtime does when it loads the model."""
    try:
        with open_session(path, "auto", progress):
            return []
    except PermanentError as error:
        return [preflight.Finding.of(error)]


def _prepared(
    given: Given, flavour: str, variant: Variant, records: Records, folder: Path, progress: Progress
) -> tuple[PreparedManifest, bool]:
    """(manifest, whether it was made now)."""
    request = given.request
    key = keys.prepared_key(
        model=given.fetched.digest,
        variant=variant,
        flavour=flavour,
        calibration=request.calibration,
        dataset=given.calibration.fetched.digest if given.calibration else None,
        preprocessing=request.preprocessing,
    )
    if (standing := records.prepared(key)) is not None:
        return standing, False
    work = folder / f"{flavour}-{variant.id}"
    made = _make(given, variant, work, progress)
    model = models.read_model(made.file)
    if variant.precision in SCALED:
        with open_session(made.file, "auto", progress):
            progress("quantize: check that it loads")
    files = models.model_files(made.file, model)
    manifest = PreparedManifest(
        prepared_key=key,
        source_model=given.fetched.digest,
        model=models.digest_of(files),
        precision=variant.precision,
        variant=variant.id,
        flavour=flavour,
        files=files,
        inputs=models.inputs(model),
        outputs=models.outputs(model),
        qdq_nodes=made.qdq_nodes,
        tools=tools(),
        notes=made.notes,
    )
    progress("publish prepared model")
    return records.publish_prepared(manifest, made.file.parent), True


def _make(given: Given, variant: Variant, work: Path, progress: Progress) -> Quantized:
    """The prepared files in `work`. fp32, and int8 with scales in the file, are the model as it is, byte for byte."""
    request = given.request
    if variant.method and given.calibration is not None and request.calibration is not None:
        work.mkdir()
        scratch = work / "scratch"
        scratch.mkdir()
        made = quantize(given.path, request.calibration, variant.method, given.calibration.dataset, request.inputs, scratch, progress)
        made.file.rename(work / made.file.name)
        shutil.rmtree(scratch)
        return Quantized(work / made.file.name, made.qdq_nodes, made.notes)
    for entry in models.model_files(given.path, given.model):
        target = work / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(given.path.parent / entry.path, target)
    return Quantized(work / given.path.name, models.count(given.model, models.QUANTIZING), [])


def _baseline(given: Given, records: Records, progress: Progress) -> tuple[Baseline | None, bool]:
    """(baseline, whether it was computed now). What is expected is not in its key: it is compared every time."""
    validation = given.request.validation
    if validation is None or given.validation is None:
        return None, False
    digests = (given.fetched.digest, given.validation.fetched.digest)
    key = keys.baseline_key(model=digests[0], dataset=digests[1], validation=validation, preprocessing=given.request.preprocessing)
    standing = records.baseline(key)
    made = standing is None
    if standing is None:
        computed = baselines.compute(given.path, key, digests, validation, given.validation.dataset, given.request.inputs, progress)
        standing = records.put_baseline(computed)
    baselines.require_expected(standing.metric, validation)
    return standing, made
