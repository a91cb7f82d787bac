"""Prepare: from a model and data sets to prepared models and a baseline in the store. What is there already is used as it is."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from pathlib import Path

from enginefleet_api.documents import Baseline, PreparedManifest
from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import PrepareReport, PrepareRequest, ResolvedPrepared, clip
from enginefleet_api.variants import SCALED, Variant

from ..backends.onnxruntime import open_session
from ..gate.metrics import require_supported
from ..io import Progress
from ..store import open_store
from ..store.records import Records
from . import baseline as baselines
from . import keys
from . import model as models
from .gather import Given, calibrates, gather, scaled
from .quantize import Quantized, quantize, tools

FLAVOURS = ("onnxruntime",)
PRECISIONS = ("fp32", "int8")


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
    if scaled(request) and (request.calibration is None or (calibrates(request) and request.calibration_source is None)):
        message = "precision int8 has no calibration set."
        raise PermanentError("CalibrationMissing", message, "Set spec.calibration.uri, or calibration.source to model for a QAT model.")
    if request.validation is not None:
        require_supported(request.validation)


def _prepared(
    given: Given, flavour: str, variant: Variant, records: Records, folder: Path, progress: Progress
) -> tuple[PreparedManifest, bool]:
    """(manifest, whether it was made now)."""
    request = given.request
    key = keys.prepared_key(
        model=given.digest,
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
    """The prepared files in `work`. fp32, and int8 with scales in the file, are the model as it is (or as it was cured), byte for byte."""
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
