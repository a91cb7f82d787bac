"""A report as one page: no scripts, no requests, all of it escaped. Pure.

Graphs are cells of the tables that hold their numbers, so the table is the text alternative and the words never shrink with a picture.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from xml.etree.ElementTree import Element

from . import accuracy, conditions, ran, speed
from .cells import SIGNS, interval, moment, short, size, stored, table, text
from .data import Fact, ReportData
from .markup import Content, document
from .markup import element as e


def page(data: ReportData) -> str:
    """The whole document. It refuses scripts and requests itself, and allows the one style sheet by its digest."""
    style = (files(__package__) / "style.css").read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = f"{SIGNS[data.answer][1]}: {_name(data)}"
    head = e(
        "head",
        e("meta", charset="utf-8"),
        e("meta", http_equiv="Content-Security-Policy", content=policy),
        e("meta", name="viewport", content="width=device-width, initial-scale=1"),
        e("meta", name="color-scheme", content="light dark"),
        e("meta", name="referrer", content="no-referrer"),
        e("title", title),
    )
    sheet = e("style")
    sheet.text = style
    head.append(sheet)
    parts = [(anchor, heading, body) for anchor, heading, body in _sections(data) if body is not None]
    links = e("ul", [e("li", e("a", heading, href=f"#{anchor}")) for anchor, heading, _ in parts])
    sections = [
        e("section", e("h2", heading, id=f"{anchor}-h"), body, id=anchor, aria_labelledby=f"{anchor}-h") for anchor, heading, body in parts
    ]
    body = e("body", e("header", *_header(data)), e("nav", links, aria_label="Parts of this report"), e("main", sections), _footer(data))
    return document(e("html", head, body, lang="en"))


def _sections(data: ReportData) -> Iterable[tuple[str, str, Content]]:
    yield "thresholds", "What was asked, what was measured", accuracy.thresholds(data)
    yield "precisions", "Precisions compared", accuracy.precisions(data)
    yield "classes", "Classes", accuracy.parts(data, "classes")
    yield "subgroups", "Subgroups", accuracy.parts(data, "groups")
    yield "operating-point", "At the confidence of production", accuracy.operating_point(data)
    yield "worst", "Worst samples", accuracy.worst(data)
    yield "latency", "Latency", speed.latency(data)
    yield "end-to-end", "End to end", speed.end_to_end(data)
    yield "conditions", "Conditions", conditions.conditions(data)
    yield "layers", "What ran in which type", ran.ran(data)
    where = stored(data, prepared_model="", baseline="", verdict="blob, fingerprint")
    yield "inputs", "Inputs and digests", _facts(data.inputs, "what went in", where)
    where = stored(data, prepared_model="recipe, tools", build_record="recipe, tools")
    yield "recipe", "How it was made", (_exclusions(data), _facts(data.recipe, "recipe and tools", where)) if data.recipe else None
    where = stored(data, build_record="facts", verdict="context, evidence")
    yield "environment", "Where it was judged", _facts(data.environment, "device, software and context", where)
    yield "notes", "Warnings and notes", _notes(data)
    yield "by-hand", "Check it yourself", _steps(data)
    yield "records", "Where it stands", _records(data)


# ---- parts of the page ----


def _name(data: ReportData) -> str:
    return f"{_engine(data)} on {data.device or data.fingerprint}"


def _engine(data: ReportData) -> str:
    return f"{data.name + ', ' if data.name else ''}{data.label}"


def _header(data: ReportData) -> Iterable[Content]:
    sign, word = SIGNS[data.answer]
    yield e("h1", text(_engine(data)))
    yield e("p", "on ", text(data.device or data.fingerprint), class_="device")
    yield e("p", f"Judged {moment(data.judged)}, page made {moment(data.made)}, fingerprint ", e("code", data.fingerprint), class_="muted")
    yield e(
        "div",
        e("strong", f"{sign} {word}"),
        e("ul", [e("li", text(reason)) for reason in data.reasons] or e("li", "no reason is recorded")),
        class_=f"answer {word.lower()}",
        role="group",
        aria_label=f"Verdict: {word}",
    )
    yield e("dl", list(_tiles(data)), class_="tiles")
    if data.warnings:
        yield e("p", e("a", "1 warning" if len(data.warnings) == 1 else f"{len(data.warnings)} warnings", href="#notes"))


def _tiles(data: ReportData) -> Iterable[Element]:
    def tile(name: str, value: str, *small: str) -> Element:
        return e("div", e("dt", name), e("dd", value, [e("small", line) for line in small if line]), class_="tile")

    if (found := data.accuracy) is not None:
        of = f" of {found.available}" if found.available and found.available != found.samples else ""
        yield tile(f"{found.metric}, engine", short(found.value), interval(found.interval), f"{found.samples}{of} samples")
        yield tile(f"{found.metric}, FP32", short(found.baseline), f"the same {found.samples} samples")
        yield tile("drop", short(found.drop), interval(found.drop_interval), "positive: the engine is worse")
    if data.latency:
        first = data.latency[0]
        marks = ", ".join(speed.marked(first))
        yield tile(f"p95, batch {first.batch}", f"{short(first.p95)} ms", f"p50 {short(first.p50)} ms", f"{first.iterations} runs", marks)
    if data.speedup is not None:
        yield tile(
            "speed-up",
            f"{short(data.speedup.speedup, 2)} ×",
            "against FP32",
            interval(data.speedup.interval),
            f"{data.speedup.blocks} pairs of blocks",
            ", ".join(speed.marked(data.speedup)),
        )
    if data.size is not None:
        memory = data.memory.get("device")
        yield tile("engine", size(data.size), f"{size(memory)} on the device when loaded" if memory else "")


def _facts(facts: Sequence[Fact], caption: str, where: Element) -> Content:
    return (
        (table(caption, ["what", "value"], [(text(fact.name), e("code", text(fact.value))) for fact in facts], kind="facts"), where)
        if facts
        else None
    )


def _exclusions(data: ReportData) -> Content:
    if not data.exclude:
        return None
    lines = json.dumps(data.exclude, indent=2)
    return (
        e("p", "These layers stay in higher precision; as spec.calibration.exclude:"),
        e("pre", e("code", lines), tabindex="0", role="region", aria_label="Exclusions"),
    )


def _notes(data: ReportData) -> Content:
    durations = ", ".join(f"{fact.name} {fact.value}\u00a0s" for fact in data.durations)
    return (
        [
            (e("h3", heading), e("ul", [e("li", text(line)) for line in lines], class_="lines") if lines else e("p", "None."))
            for heading, lines in (("Warnings", data.warnings), ("Notes of prepare", data.notes))
        ],
        (e("h3", "Durations"), e("p", durations)) if durations else None,
        stored(data, build_record="warnings, durations", prepared_model="notes", this_report="warnings, durations"),
    )


def _steps(data: ReportData) -> Content:
    return [
        (
            e("h3", step.title),
            e("p", _prose(step.explanation)),
            e("pre", e("code", step.command), tabindex="0", role="region", aria_label=f"Commands: {step.title}"),
        )
        for step in data.steps
    ]


def _prose(words: str) -> Content:
    """A sentence; digests and keys in it are code."""
    return [e("code", part) if place % 2 else part for place, part in enumerate(re.split(r"\b([0-9a-f]{64})\b", words))]


def _records(data: ReportData) -> Content:
    """The places that the notes below all tables lead to."""
    rows = [(e("span", item.what, id=f"record-{item.what.replace(' ', '_')}"), e("code", item.key)) for item in data.records]
    return e("p", "Keys below ", e("code", data.store), ":"), table("records", ["record", "key"], rows)


def _footer(data: ReportData) -> Element:
    return e(
        "footer",
        e("h2", "How to read the numbers", id="reading"),
        e(
            "p",
            "Intervals are of 95 %. Those of a drop come from resampling the same samples for engine and FP32 (paired bootstrap). A gate on a drop"
            " passes when the upper bound is within the limit, fails when the estimate is beyond it, and is inconclusive between the two."
            " Of a value without an interval none was computed.",
        ),
        e(
            "p",
            "An interval of no width says that no sample changed between FP32 and the engine; what is rarer than about 3 in the number of"
            " samples can hide there.",
        ),
        e(
            "p",
            "A report explains a verdict and decides nothing: pods ask for the verdict. This page loads nothing from anywhere and runs no script.",
        ),
        e("p", f"Report format {data.schema_version}."),
    )
