"""The parts of the page about accuracy: thresholds, precisions, classes, subgroups, operating point, worst samples. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Literal
from xml.etree.ElementTree import Element

from enginefleet_api.documents import Consistency, Part

from .cells import SIGNS, count, interval, short, size, stored, table, text
from .data import Precision, ReportData, Worst, number
from .graphs import Scale, estimate, outline, overlay, scale_of
from .markup import Content
from .markup import element as e

LIMITS = {
    "accuracy.minimum": "least value",
    "accuracy.maxDrop": "largest drop against FP32",
    "accuracy.maxDropPerClass": "largest drop of a class",
    "accuracy.minimumPerClass": "least value of a class",
    "accuracy.maxDropPerSubgroup": "largest drop of a subgroup",
    "accuracy.minimumPerSubgroup": "least value of a subgroup",
    "accuracy.operatingPoint.confidence": "confidence in production",
    "accuracy.operatingPoint.maxRecallDrop": "largest drop of recall there",
    "requiredClasses": "classes that must be judged",
    "minSamples": "least number of samples",
    "minInstances": "least number of instances of a class",
    "onDevice": "most samples on the device",
    "subgroups.column": "subgroups by",
    "subgroups.required": "subgroups that must be judged",
    "batchSizes": "batch sizes",
    "sustained": "under load for",
    "paced.rate": "samples a second from cameras",
    "paced.duration": "that rate for",
    "endToEnd": "decoding and preprocessing too",
    "cudaGraph": "from a CUDA graph",
    "speed.batchSize": "speed at batch",
    "speed.p95": "longest p95 latency",
    "speed.throughput": "least samples a second",
    "speed.minSpeedup": "least speed-up against FP32",
}
"""In words, the thresholds that a gate key is made of; others are shown by their path."""


def thresholds(data: ReportData) -> Content:
    if not data.thresholds:
        return e("p", "The verdict names no thresholds.")
    rows: list[Sequence[Content]] = [
        (
            LIMITS.get(item.field, item.field),
            text(item.limit),
            (
                short(item.measured),
                (" ", e("span", "(", text(item.of), ")", class_="of")) if item.of else None,
                e("b", f", {', '.join(item.marks)}") if item.marks else None,
            ),
            interval(item.interval, ""),
            count(item.samples),
        )
        for item in data.thresholds
    ]
    needed = data.accuracy.needed_samples if data.accuracy else None
    headings = ["asked", "limit", "measured", "95 % interval", "samples or runs"]
    return (
        e(
            "p",
            "The limits are part of the gate's key: they stood before anything was measured, and others are another gate with its own verdict.",
        ),
        table("limits and what was measured", headings, rows, numbers=(1, 2, 3, 4)),
        e("p", f"These samples are too few to tell: about {needed} would be needed.") if needed else None,
        stored(data, verdict="thresholds, accuracy, latency, speedup"),
    )


def precisions(data: ReportData) -> Content:
    if data.accuracy is None and len(data.precisions) < 2:
        return None
    minimum = next((item.limit for item in data.thresholds if item.field == "accuracy.minimum"), None)
    found = [row.accuracy for row in data.precisions if row.accuracy]
    values = [value for item in found for value in (item.value, item.baseline, *item.interval)]
    scale = scale_of(values, include=(number(minimum),))
    whole = data.baseline
    others = [row for row in data.precisions if not row.this]
    doubtful = any(row.latency[0].marks for row in data.precisions if row.latency)
    return (
        e("p", "Engines of the same model, judged by the same gate on devices with the same fingerprint."),
        e(
            "p",
            f"The graph goes from {short(str(scale.low))} to {short(str(scale.high))}. The dashed line is FP32 on the same samples",
            f", the dotted one the least value {minimum}." if minimum else ".",
        )
        if scale
        else None,
        table(
            f"accuracy by precision: {data.metric}" if data.metric else "answers by precision",
            ["precision", "answer", "95 % interval", "engine", "FP32", "drop", "95 % interval of the drop", "samples"],
            [_accuracy_row(row, scale, minimum) for row in data.precisions],
            numbers=range(3, 8),
            plot=2,
        ),
        e(
            "p",
            f"FP32 over all {whole.samples} samples: {short(whole.value)}",
            f" ({words})" if (words := interval(whole.interval)) else None,
            ".",
        )
        if whole
        else None,
        _outputs(data),
        table(
            "speed and size by precision",
            [
                "precision",
                "batch",
                "p50 ms",
                "p95 ms",
                "samples a second",
                "speed-up",
                "95 % interval",
                "size",
                *(["marks"] if doubtful else []),
            ],
            [(*_speed_row(row), ", ".join(row.latency[0].marks or []) if row.latency else None)[: 8 + doubtful] for row in data.precisions],
            numbers=range(1, 8),
        ),
        e("p", f"and {data.precisions_left_out} more") if data.precisions_left_out else None,
        stored(data, verdict="accuracy, latency, speedup", baseline="metric"),
        e("p", "The others' verdicts:", class_="stored")
        if others
        else e("p", "No other engine of this model was known when this page was made."),
        e("ul", [e("li", text(row.label), ": ", e("code", row.verdict)) for row in others], class_="stored lines") if others else None,
    )


def _outputs(data: ReportData) -> Content:
    found = data.accuracy
    if found is None:
        return None
    near = (
        f"Outputs of this engine beside FP32's, number by number, on {found.compared} samples: least cosine {short(found.cosine_min, 6)},"
    )
    near += f" largest difference {short(found.max_abs_error)}."
    return (
        e("p", near) if found.compared else None,
        e("p", f"{found.broken} samples gave NaN or infinite outputs; they count as wrong.") if found.broken else None,
        [
            e("p", "Output ", e("code", text(name)), f" holds NaN or infinite values where FP32's does not, in {count(samples)} samples.")
            for name, samples in (found.not_finite or {}).items()
        ],
        _consistency(found.consistency),
    )


def _consistency(found: Consistency | None) -> Content:
    if found is None:
        return None
    sizes = ", ".join(map(str, found.batches))
    told = f"The same {found.samples} samples alone and in a batch ({sizes}): least cosine {short(found.cosine_min, 6)}, largest difference"
    differs = number(found.max_abs_error) != 0
    return e("p", f"{told} {short(found.max_abs_error)}", ("; worst at ", text(found.worst)) if differs else None, ".")


def _named(row: Precision) -> Content:
    return (text(row.label), " (this engine)") if row.this else text(row.label)


def _accuracy_row(row: Precision, scale: Scale | None, minimum: str | None) -> Sequence[Content]:
    sign, word = SIGNS[row.answer]
    answer = e("span", f"{sign} {word}", class_=f"word {word.lower()}")
    found = row.accuracy
    if found is None:
        return _named(row), answer, None, None, None, None, None, None
    plot = estimate(scale, found.value, found.interval, found.baseline, minimum) if scale else None
    drop = interval(found.drop_interval, "")
    return _named(row), answer, plot, short(found.value), short(found.baseline), short(found.drop), drop, count(found.samples)


def _speed_row(row: Precision) -> Sequence[Content]:
    first = row.latency[0] if row.latency else None
    measured = (str(first.batch), short(first.p50), short(first.p95), short(first.throughput)) if first else (None,) * 4
    faster = (f"{short(row.speedup.speedup, 2)} ×", interval(row.speedup.interval, "", 2)) if row.speedup else (None,) * 2
    return _named(row), *measured, *faster, size(row.size) if row.size is not None else None


def parts(data: ReportData, which: Literal["classes", "groups"]) -> Content:
    """Classes or subgroups."""
    if data.accuracy is None or not (found := getattr(data.accuracy, which)):
        return None
    what, unit, left_out = (
        ("class", "instances", data.classes_left_out) if which == "classes" else ("subgroup", "samples", data.groups_left_out)
    )
    limit = next((item.limit for item in data.thresholds if item.field == f"accuracy.maxDropPer{what.capitalize()}"), None)
    scale = scale_of((value for part in found for value in (part.drop, *part.drop_interval)), include=(Decimal(0), number(limit)))
    return (
        e("p", "Those that lost most, first. A drop is positive when the engine is worse."),
        e(
            "p",
            f"The graph goes from {short(str(scale.low))} to {short(str(scale.high))}. The dashed line is 0",
            f", the dotted one the limit {limit}." if limit else ".",
        )
        if scale
        else None,
        table(
            f"{data.metric} by {what}",
            [what, "95 % interval of the drop", "drop", "95 % interval", "engine", "FP32", unit],
            [_part_row(part, scale, limit) for part in found],
            numbers=range(2, 7),
            plot=1,
        ),
        e("p", f"and {left_out} more, which lost less or cannot be compared") if left_out else None,
        stored(data, verdict=f"accuracy.{which}"),
    )


def _part_row(part: Part, scale: Scale | None, limit: str | None) -> Sequence[Content]:
    plot = estimate(scale, part.drop, part.drop_interval, "0", limit) if scale else None
    numbers = (short(part.drop), interval(part.drop_interval, ""), short(part.value), short(part.baseline), count(part.samples))
    return text(part.name), plot, *numbers


def operating_point(data: ReportData) -> Content:
    point = data.accuracy.operating_point if data.accuracy else None
    if point is None:
        return None
    rows: list[Sequence[Content]] = [
        ("recall", short(point.baseline_recall), short(point.recall), short(point.recall_drop), interval(point.drop_interval, "")),
        ("precision", short(point.baseline_precision), short(point.precision), None, None),
    ]
    shift = (
        f" Scores of objects that both find moved by {short(point.score_shift)} (median, engine less FP32)." if point.score_shift else ""
    )
    return (
        e("p", f"At confidence {point.confidence}, over {count(point.truths)} labelled objects.{shift}"),
        table("recall and precision", ["", "FP32", "engine", "drop", "95 % interval"], rows, numbers=range(1, 5)),
        stored(data, verdict="accuracy.operatingPoint"),
    )


def worst(data: ReportData) -> Content:
    if not data.worst:
        return None
    confidence = next((item.confidence for item in data.worst if item.confidence), None)
    legend = (
        f"Boxes: labelled white and dotted, FP32 yellow and dashed, engine pink and solid, the last two from confidence {confidence} on."
    )
    return (
        e("p", "The samples on which the engine lost most against FP32: look whether you would mind."),
        e("p", legend) if confidence else None,
        e("ul", [e("li", _figure(item)) for item in data.worst], class_="samples"),
        stored(data, verdict="worst", this_report="worst"),
    )


def _figure(item: Worst) -> Element:
    records = [(e("br"), f"{who}: ", text(words)) for who, words in (("FP32", item.baseline), ("engine", item.engine)) if words]
    name = (text(item.identity), f" (sample {item.index})") if item.identity != str(item.index) else f"sample {item.index}"
    return e("figure", _shown(item), e("figcaption", e("b", name), f", loss\u00a0{short(item.loss)}", e("br"), text(item.why), records))


def _shown(item: Worst) -> Element:
    picture = item.picture
    if picture is None:
        return e("div", "no picture", class_="nopicture")
    tiny = "tiny" if max(picture.width, picture.height) <= 64 else None
    image = e("img", src=picture.uri, alt=f"Sample {item.index}: {item.identity}", class_=tiny)
    boxes = (("labelled", picture.labelled), ("before", item.baseline_boxes), ("after", item.engine_boxes))
    drawn = [outline(box, kind) for kind, found in boxes for box in found]
    if not drawn:
        return image
    words = ", ".join(f"{len(found)} {kind}" for kind, (_, found) in zip(("labelled", "by FP32", "by the engine"), boxes, strict=True))
    return e("div", image, overlay(drawn, picture.width, picture.height, f"Boxes: {words}"), class_="framed")
