"""Prepare: from a model and data sets to prepared models and a baseline in the store. What is there already is used as it is."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginefleet_api.documents import Baseline, PreparedManifest
from enginefleet_api.errors import PermanentError
from enginefleet_api.flavours import PRECISIONS, flavour_of
from enginefleet_api.jobs import PrepareReport, PrepareRequest, ResolvedPrepared, clip
from enginefleet_api.variants import CAST, SCALED, Variant

from .. import copies
from ..gate.advice import Advice, advise
from ..gate.tasks import require_supported
from ..io import Progress
from ..layouts import unfit_for
from ..store import open_store
from ..store.records import Records
from . import baseline as baselines
from . import convert, keys
from . import model as models
from .convert import Converter, tools
from .gather import Given, calibrates, gather, scaled

FAR = 0.9
"""Smallest cosine to the FP32 outputs below which a note says so: what judges is the gate, with the task's own metric."""


def prepare(request: PrepareRequest, progress: Progress, kind: type[Converter] = Converter) -> PrepareReport:
    """Raises EngineFleetError; see preflight.py, convert.py, baseline.py, gate/datasets.py and sources.py for the reasons. `kind`: a
    Converter that leaves out a step, for a measurement (bench/accuracy.py)."""
    started = time.monotonic()
    require_possible(request)
    records = Records(open_store(request.store, progress=progress))
    with tempfile.TemporaryDirectory(prefix="prepare-") as folder:
        given, notes = gather(request, Path(folder), progress)
        prepared: list[ResolvedPrepared] = []
        wanted = [one for one in itertools.product(request.flavours, request.variants) if _wanted(given, *one)]
        # first: labels that do not fit the model are found before anything is quantized. Where nobody can have anything that is said at once;
        # the baseline comes with what can be had later
        baseline, fresh = _baseline(given, records, progress) if wanted else (None, False)
        dataset = given.calibration.dataset if given.calibration else None
        with kind(given.path, request.calibration, dataset, request.inputs, Path(folder) / "scratch", progress) as one:
            for flavour, variant in wanted:
                try:
                    manifest, made = _prepared(given, flavour, variant, one, records, Path(folder), progress)
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
        # last: who is refused leaves no copy behind
        if (
            baseline is not None
            and given.validation is not None
            and request.validation is not None
            and request.validation_source is not None
        ):
            asked = request.validation.copy_to_store
            note = copies.keep(records, request.validation_source, request.store, given.validation.fetched, progress, asked)
            notes += [note] if note else []
            fresh |= note is not None
        advice = _advice(given, baseline)
        if advice is not None and advice.note:
            notes.insert(0, advice.note)
    return PrepareReport(
        model=given.fetched.digest,
        calibration=given.calibration.fetched.digest if given.calibration else None,
        validation=given.validation.fetched.digest if given.validation else None,
        prepared=prepared,
        refused=given.refused,
        unfit_layouts=_layouts(given),
        baseline_key=baseline.baseline_key if baseline else None,
        baseline=baseline.metric if baseline else None,
        advised_samples=advice.samples if advice else None,
        reused=not fresh,
        notes=notes,
        seconds=f"{time.monotonic() - started:.1f}",
    )


def _layouts(given: Given) -> dict[str, str]:
    return unfit_for(models.kept_metadata(given.model), models.inputs(given.model), models.outputs(given.model))


def _wanted(given: Given, flavour: str, variant: Variant) -> bool:
    """Whether a target is left that is served with it, or none is told of the flavour."""
    targets = [target for target in given.request.targets if flavour_of(target.backend, target.version) == flavour]
    refusing = {name for one in given.refused if not one.variants or variant.id in one.variants for name in one.targets}
    return not targets or any((target.id or target.name) not in refusing for target in targets)


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
    """What can be refused without fetching anything. With best effort, what one variant lacks is that variant's failure."""
    for flavour, variant in itertools.product(request.flavours, request.variants):
        if flavour not in PRECISIONS or not request.best_effort:
            convert.require_possible(flavour, variant)
    if scaled(request) and (request.calibration is None or (calibrates(request) and request.calibration_source is None)):
        precision = next(variant.precision for variant in request.variants if variant.precision in SCALED)
        message = f"precision {precision} has no calibration set."
        raise PermanentError("CalibrationMissing", message, "Set spec.calibration.uri, or calibration.source to model for a QAT model.")
    if request.validation is not None:
        require_supported(request.validation)


def _prepared(
    given: Given, flavour: str, variant: Variant, converter: Converter, records: Records, folder: Path, progress: Progress
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
    made = converter.make(flavour, variant, folder / f"{flavour}-{variant.id}")
    model = models.read_model(made.file)
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
        metadata=models.kept_metadata(model),
        qdq_nodes=made.qdq_nodes,
        share="" if made.share is None else f"{made.share:.3f}",
        recipe=made.recipe,
        spec=_spec(given, variant),
        tools=tools(),
        notes=[*made.notes, *_far(made.recipe)],
    )
    progress("publish prepared model")
    published = records.publish_prepared(manifest, made.file.parent)
    shutil.rmtree(made.file.parent)  # variants of a large model would fill the disk
    return published, True


def _far(recipe: Mapping[str, Any]) -> list[str]:
    """The gate decides; who has no gate is told, and who has one knows before the build."""
    cosine = recipe.get("cosine")
    if cosine is None or float(cosine) >= FAR:
        return []
    why = "look at the calibration set (is it preprocessed as the model expects?), or exclude nodes"
    return [f"its outputs are far from those of the model as given (smallest cosine {cosine}): {why}"]


def _spec(given: Given, variant: Variant) -> dict[str, Any]:
    """See PreparedManifest.spec: what a person needs to make the variant again, and no more."""
    request, data = given.request, given.calibration
    model = request.model.model_dump(mode="json", by_alias=True, include={"uri", "endpoint", "region"}, exclude_defaults=True)
    found: dict[str, Any] = {"model": model | {"digest": given.fetched.digest}}
    if request.export is not None:
        found["model"]["export"] = request.export.to_json_dict()
    if request.calibration is None or variant.precision not in (*SCALED, *CAST):
        return found
    if variant.precision in SCALED and request.calibration.source == "model":
        return found | {"calibration": {"source": "model"}}
    if data is None or request.calibration_source is None:
        return found
    asked = request.calibration.model_dump(mode="json", by_alias=True, include={"min_samples", "exclude"}, exclude_defaults=True)
    found["calibration"] = {
        "uri": request.calibration_source.uri,
        "digest": data.fetched.digest,
        "method": variant.method or "auto",
    } | asked
    return found


def _advice(given: Given, baseline: Baseline | None) -> Advice | None:
    validation = given.request.validation
    if baseline is None or validation is None or given.validation is None:
        return None
    return advise(baseline.metric, validation, given.validation.dataset.size)


def _baseline(given: Given, records: Records, progress: Progress) -> tuple[Baseline | None, bool]:
    """(baseline, whether it was computed now). What is expected of it is not in its key: it is compared every time."""
    validation = given.request.validation
    if validation is None or given.validation is None:
        return None, False
    digests = (given.source, given.validation.fetched.digest)
    key = keys.baseline_key(model=digests[0], dataset=digests[1], validation=validation, preprocessing=given.request.preprocessing)
    standing = records.baseline(key)
    made = standing is None
    if standing is None:
        computed = baselines.compute(given.path, key, digests, validation, given.validation.dataset, given.request.inputs, progress)
        standing = records.put_baseline(computed)
    baselines.require_expected(standing.metric, validation)
    baselines.require_knowledge(standing, validation, given.validation.dataset)
    return standing, made
