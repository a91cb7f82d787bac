"""The report's page and JSON: whatever stands in the records, the page is whole, small, quiet and readable."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from enginefleet_api.base import Contract
from enginefleet_api.documents import Answer, WorstSample
from enginefleet_api.judging import AccuracyAcceptance, Benchmark, OperatingPoint, PacedRun, SpeedAcceptance, Subgroups, Validation
from enginefleet_api.keys import gate_thresholds
from enginefleet_api.resources import EngineBuildSpec, EngineBuildStatus, EngineStoreSpec
from enginefleet_builder.backends.base import NodeRun
from enginefleet_builder.gate.verdict import decide
from enginefleet_builder.report import by_hand
from enginefleet_builder.report.accuracy import LIMITS
from enginefleet_builder.report.conditions import MEANING
from enginefleet_builder.report.data import MOST_PARTS, ReportData
from enginefleet_builder.report.graphs import scale_of
from enginefleet_builder.report.html import page
from enginefleet_builder.report.layers import MOST_GROUPS, node_type, summarize, wider
from enginefleet_builder.report.markup import document, element, visible
from enginefleet_builder.report.model import Sources, report_of
from tests.builder import report_records as records

VOID = {"br", "img", "meta", "link", "hr", "input"}
SCHEMA = Path(__file__).parent / "report.schema.json"


class Page(HTMLParser):
    """Elements of a page as (tag, attributes), its text, and what is wrong with its structure."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: dict[str, list[str]] = {}
        self.wrong: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.wrong += [f"{tag} is not closed" for tag in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if len({name for name, _ in attrs}) != len(attrs):
            self.wrong.append(f"{tag} has an attribute twice")
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.wrong.append(f"</{tag}> closes {self._open[-1:]}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for tag in self._open:
            self.text.setdefault(tag, []).append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def words(self, tag: str = "body") -> str:
        return " ".join(" ".join(self.text.get(tag, [])).split())


def made(**changes: Any) -> Page:
    return Page(page(report_of(records.sources(**changes))))


def judged(**changes: Any) -> Page:
    return made(engine=records.judged(**(records.full_verdict() | changes)))


def test_a_page_is_well_formed() -> None:
    found = made()
    assert found.wrong == []
    assert [tag for tag in ("html", "head", "body", "main", "h1", "title") if len(found.all(tag)) != 1] == []
    assert found.all("html")[0]["lang"] == "en"


def test_ids_are_unique_and_every_link_leads_to_one() -> None:
    found = made()
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    links = [attributes["href"] for attributes in found.all("a")]
    assert len(ids) == len(set(ids))
    assert [link for link in links if link.removeprefix("#") not in ids or not link.startswith("#")] == []
    labelled = [attributes["aria-labelledby"] for _, attributes in found.elements if "aria-labelledby" in attributes]
    assert set(labelled) <= set(ids)


def test_nothing_is_loaded_and_nothing_runs() -> None:
    found = made()
    tags = {tag for tag, _ in found.elements}
    assert tags & {"script", "link", "iframe", "object", "embed", "form", "base", "audio", "video"} == set()
    addresses = [
        value for _, attributes in found.elements for name, value in attributes.items() if name in ("src", "srcset", "data", "action")
    ]
    assert addresses
    assert [address for address in addresses if not address.startswith("data:image/")] == []
    assert [name for _, attributes in found.elements for name in attributes if name.startswith("on") or name == "style"] == []
    assert "url(" not in found.words("style")
    assert "@import" not in found.words("style")


def test_the_policy_allows_pictures_in_the_page_and_the_one_style_sheet() -> None:
    policy = next(item["content"] for item in made().all("meta") if item.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy


def test_headings_are_in_order() -> None:
    levels = [int(tag[1]) for tag, _ in made().elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert max(below - above for above, below in itertools.pairwise(levels)) == 1


def test_tables_have_a_caption_and_headers_with_a_scope_and_pictures_a_text() -> None:
    found = made()
    assert len(found.all("table")) == len(found.all("caption"))
    assert {attributes.get("scope") for attributes in found.all("th")} == {"col", "row"}
    assert all(attributes["alt"] for attributes in found.all("img"))
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in found.all("svg"))


@pytest.mark.parametrize("hostile", records.HOSTILE)
def test_names_are_text_whatever_stands_in_them(hostile: str) -> None:
    """As class, file, reason, device, note, operator, name of the deployment: the page has the elements that it has without."""
    worst = [WorstSample(index=0, identity=hostile, loss="1.0", why=hostile, engine={"label": hostile}, baseline={hostile: 1})]
    harmless = [WorstSample(index=0, identity="x", loss="1.0", why="x", engine={"label": "x"}, baseline={"x": 1})]

    full = records.full_verdict()

    def with_name(name: str, samples: list[WorstSample]) -> Page:
        accuracy = records.accuracy(classes=0).model_copy(update={"classes": [records.part(name, drop=0.1)]})
        alike = full["accuracy"].consistency.model_copy(update={"worst": name})
        accuracy = accuracy.model_copy(update={"not_finite": {name: 1}, "consistency": alike})
        measured = [row.model_copy(update={"marks": [f"{name}: {name}"], "bound": name, "enqueue": name}) for row in full["latency"]]
        changes = {"accuracy": accuracy, "worst": samples, "reasons": [name], "context": {name: name}, "latency": measured}
        engine = records.judged(**(full | changes | {"memory": {name: 7}, "conditions": {"idle": {name: name}}}))
        assert engine.build is not None
        assert engine.manifest is not None
        engine = replace(
            engine,
            build=engine.build.model_copy(update={"providers": {name: 3}, "excluded": [name]}),
            manifest=engine.manifest.model_copy(update={"variant": name, "notes": [name], "recipe": {name: name}}),
        )
        layers = summarize([NodeRun(name, ["float"], ["float"], 1.0)], source=name, batch=1, runs=1)
        request = records.request().model_copy(update={"name": name, "execution_provider": name})
        return made(engine=engine, layers=layers, device=name, warnings=[name], request=request)

    attacked, calm = with_name(hostile, worst), with_name("x", harmless)
    assert attacked.wrong == []
    assert [tag for tag, _ in attacked.elements] == [tag for tag, _ in calm.elements]
    assert visible(hostile)[:20] in attacked.words("h1") or hostile in attacked.words("h1")


def test_what_hides_in_a_name_is_written_out() -> None:
    assert visible("a\u202eb\u200bc\x00d\ud800e\u2028f") == "a[U+202E]b[U+200B]c[U+0000]d[U+D800]e[U+2028]f"
    assert visible("नमस्ते \u200d é\n") == "नमस्ते \u200d é\n"


def test_elements_escape_text_and_attributes() -> None:
    assert document(element("p", "<&>", title='"<')).splitlines()[1] == '<p title="&quot;<">&lt;&amp;&gt;</p>'


def test_10_000_classes_make_a_short_table_that_says_how_many_are_left_out() -> None:
    classes = [records.part(f"class {number} {'x' * 300}", drop=number / 20_000) for number in range(10_000)]
    data = report_of(records.sources(engine=records.judged(accuracy=records.accuracy().model_copy(update={"classes": classes}))))
    assert data.accuracy is not None
    assert len(data.accuracy.classes) == MOST_PARTS
    assert data.accuracy.classes[0].name.startswith("class 9999")
    text = page(data)
    assert "and 9950 more" in Page(text).words()
    assert len(text.encode()) < 200_000
    assert len(data.model_dump_json(by_alias=True).encode()) < 200_000


def test_a_report_of_much_of_everything_stays_small() -> None:
    many = [f"{number} {'long ' * 1000}" for number in range(500)]
    verdict = records.full_verdict() | {"reasons": many, "context": {line[:300]: line for line in many}}
    verdict["conditions"] = {moment: {line[:2000]: line for line in many} for moment in ("idle", "before", "after", "never")}
    verdict["latency"] = [row.model_copy(update={"marks": many}) for row in records.full_latency() * 8]
    verdict["memory"] = dict.fromkeys(many, 1)
    verdict["accuracy"] = verdict["accuracy"].model_copy(update={"not_finite": dict.fromkeys(many, 1)})
    verdict["worst"] = [
        WorstSample(index=index, identity="i" * 5000, loss="1", why="w" * 5000, engine={"x": "y" * 9000}) for index in range(200)
    ]
    others = [records.judged(f"{number:064x}", f"int8-{number}") for number in range(300)]
    layers = summarize([NodeRun(f"Op{number}", ["float"], ["float"], 1.0) for number in range(2000)], source="p", batch=1, runs=1)
    text = page(report_of(records.sources(engine=records.judged(**verdict), others=others, layers=layers, warnings=many)))
    assert Page(text).wrong == []
    assert len(text.encode()) < 700_000


@pytest.mark.parametrize("answer", list(Answer))
def test_the_answer_stands_in_words(answer: Answer) -> None:
    found = judged(answer=answer)
    assert found.words("title").startswith(answer.value)
    assert answer.value in found.words("strong")


def test_thresholds_stand_beside_what_was_measured_with_interval_and_samples() -> None:
    words = judged().words("main")
    assert "largest drop against FP32 0.01 0.0030 -0.0010 to 0.0070 1000" in words
    assert "longest p95 latency 12ms 3.600 ms – 200" in words
    assert "least speed-up against FP32 1.5 2.4100 2.3 to 2.5 30" in words
    assert "largest drop of recall there 0.01 0.0080 0.0010 to 0.0140 2210" in words


def test_a_threshold_that_this_version_does_not_know_is_shown_by_its_path() -> None:
    assert "accuracy.futureLimit 0.7 –" in judged(thresholds={"accuracy": {"futureLimit": "0.7"}}).words("main")


FULL_VALIDATION = Validation(
    uri="s3://data/",
    task="detection",
    metric="map50",
    required_classes=["class 1"],
    min_instances=7,
    subgroups=Subgroups(column="scene", required=["night"]),
    acceptance=AccuracyAcceptance(
        **dict.fromkeys((name for name in AccuracyAcceptance.model_fields if name != "operating_point"), "0.5"),
        operating_point=OperatingPoint(confidence="0.35"),
    ),
)
FULL_BENCHMARK = Benchmark(
    acceptance=SpeedAcceptance(p95="12ms", throughput="96", min_speedup="1.5"),
    sustained="5m",
    paced=PacedRun(rate="30"),
    end_to_end=True,
    cuda_graph=True,
)
SAYS_NOTHING = {"accuracy.operatingPoint.confidence", "speed.batchSize", "paced.duration"}
"""What only says where or how long something was measured."""


def test_every_key_of_an_acceptance_is_listed_in_words_with_what_was_measured() -> None:
    """The models say which keys there are: a field that is added there and is not here fails."""
    changes = records.full_verdict()
    changes["thresholds"] = json.loads(json.dumps(gate_thresholds(FULL_VALIDATION, FULL_BENCHMARK)))
    listed = {row.field: row for row in report_of(records.sources(engine=records.judged(**changes))).thresholds}

    def keys(model: type[Contract], prefix: str) -> set[str]:
        return {f"{prefix}.{field.alias}" for field in model.model_fields.values()}

    asked = keys(AccuracyAcceptance, "accuracy") - {"accuracy.operatingPoint"} | keys(OperatingPoint, "accuracy.operatingPoint")
    asked |= keys(SpeedAcceptance, "speed") | keys(PacedRun, "paced") | keys(Subgroups, "subgroups")
    asked |= {"batchSizes", "minSamples", "minInstances", "requiredClasses", "onDevice", "sustained", "endToEnd", "cudaGraph"}
    assert set(listed) == asked == set(LIMITS)
    assert {field for field, row in listed.items() if row.measured is None} == SAYS_NOTHING


def test_what_is_judged_by_class_is_the_worst_of_those_that_are_judged() -> None:
    """Of required classes where there are some, and of those with enough instances."""

    def row(thresholds: dict[str, Any], field: str) -> tuple[str | None, str]:
        changes: dict[str, Any] = {
            "accuracy": accuracy,
            "thresholds": {"accuracy": {"maxDropPerClass": "1", "minimumPerClass": "0"}} | thresholds,
        }
        found = report_of(records.sources(engine=records.judged(**changes))).thresholds
        return next((one.measured, one.of) for one in found if one.field == field)

    parts = [records.part("a", drop=0.1), records.part("b", drop=0.2), records.part("c", drop=0.3, samples=3)]
    accuracy = records.accuracy().model_copy(update={"classes": parts})
    assert row({}, "accuracy.maxDropPerClass") == ("0.200000", "b")
    assert row({}, "accuracy.minimumPerClass") == ("0.750000", "b")
    assert row({"requiredClasses": ["a", "c"]}, "accuracy.maxDropPerClass") == ("0.100000", "a")
    assert row({"requiredClasses": ["a", "c"]}, "requiredClasses") == ("1 of 2 have at least 10", "")
    assert row({"minInstances": 3}, "accuracy.maxDropPerClass") == ("0.300000", "c")


# ---- speed ----


def test_a_figure_with_and_without_transfers_the_hosts_share_and_the_cuda_graph_are_told() -> None:
    words = judged().words("main")
    assert "with inputs copied to the device and outputs back" in words
    assert "batch 1 2.250 2.700 3.825 0.750 200 0.400 the device yes" in words
    assert "batch 4 8.000 9.600 13.600 1.500 200 7.900 the host no" in words
    assert "Bound by enqueueing at batch 4: the host takes as long" in words


def test_a_sustained_run_shows_its_first_and_last_minute() -> None:
    words = judged().words("main")
    assert "batch 1, first minute 2.500 3.000 4.250 24 000 –" in words
    assert "batch 1, last minute 3.000 3.600 5.100 200 +20.0 %" in words


def test_a_paced_run_says_how_many_came_late() -> None:
    assert "30 a second, batch 1 3.600 4.320 6.120 300 7" in judged().words("main")


def test_stages_around_the_model_have_times_and_shares() -> None:
    words = judged().words("main")
    assert "end to end at batch 1, 100 runs" in words
    assert "decode the pictures 2.500 3.000 4.250 31.2 %" in words
    assert "infer: the model 3.100 3.720 5.270 38.8 %" in words
    assert "all of it 8.000 9.600 13.600 –" in words
    tensors = records.full_latency()[0]
    assert tensors.end_to_end is not None
    tensors = tensors.model_copy(update={"end_to_end": tensors.end_to_end.model_copy(update={"decode": None})})
    assert "decode the pictures" not in judged(latency=[tensors]).words("main")


def test_marks_stand_beside_the_figures_with_what_was_seen_and_what_they_mean_for_the_gate() -> None:
    found = judged(thresholds={"speed": {"batchSize": 4, "p95": "12ms"}})
    assert "batch 4, throttled : the GPU's clocks were held down (thermal) . Something held it back" in found.words("main")
    assert "batch 4, shared : other processes on the GPU before the engine was loaded: 2 . Others used" in found.words("main")
    assert "longest p95 latency 12ms 11.400 ms , shared, throttled" in found.words("main")
    calm = judged(latency=[records.latency(1, 3.0)]).words("main")
    assert "Nothing was seen that makes the figures of speed doubtful" in calm


@pytest.mark.parametrize("kind", MEANING)
@pytest.mark.parametrize("sustained", [False, True])
def test_the_gate_does_with_a_mark_what_the_page_says(kind: str, sustained: bool) -> None:
    row = records.latency(1, 3.0).model_copy(update={"marks": [f"{kind}: seen"], "first": records.spread(3.0) if sustained else None})
    decision = decide(None, None, latency=[row], speedup=None, speed=SpeedAcceptance(p95="12ms"))
    judged_anyway = sustained and "except on a sustained run" in MEANING[kind]
    assert "is inconclusive" in MEANING[kind]
    assert any("cannot be judged" in reason for reason in decision.reasons) is not judged_anyway


def test_the_machine_before_and_after_and_the_memory_of_the_engine_are_told() -> None:
    words = judged().words("main")
    assert "before the engine was loaded before measuring after measuring" in words
    assert "power mode MAXN_SUPER MAXN_SUPER MAXN_SUPER" in words
    assert "GPU clock 306 MHz 1020 MHz 816 MHz" in words
    assert "GPU clocks held down no no thermal" in words
    assert "processes on the GPU 2 3 3" in words
    assert "future x – –" in words
    assert "The loaded engine holds 412.0 MB on the device , 1.1 GB of its process ." in words


def test_what_was_not_measured_has_no_part() -> None:
    words = judged(latency=[records.latency(1, 3.0)], speedup=None, memory={}, conditions={}, accuracy=records.accuracy()).words("main")
    for absent in (
        "device alone",
        "CUDA graph yes",
        "first minute",
        "cameras' rate",
        "end to end at",
        "before measuring",
        "loaded engine",
        "alone and in a batch",
        "Speed-up",
    ):
        assert absent not in words
    assert words.count("Not asked for, or not possible here: ") == 1
    assert "not measured" not in words


def test_a_doubtful_speed_up_is_marked_where_it_stands_first() -> None:
    speedup = records.full_verdict()["speedup"].model_copy(update={"marks": ["shared: seen"]})
    found = judged(speedup=speedup, thresholds={"speed": {"minSpeedup": "1.5"}})
    assert "30 pairs of blocks shared" in found.words("dl")
    assert "speed-up at batch 1, shared : seen ." in found.words("main")
    assert "least speed-up against FP32 1.5 2.4100 , shared" in found.words("main")


def test_outputs_alone_and_in_a_batch_and_outputs_that_are_no_numbers_are_told() -> None:
    words = judged().words("main")
    assert (
        "The same 8 samples alone and in a batch (2, 4): least cosine 0.999991, largest difference 0.0021; worst at scores of sample 3"
        in words
    )
    assert "Output boxes holds NaN or infinite values where FP32's does not, in 3 samples." in words


def test_precisions_of_the_model_are_compared() -> None:
    words = made().words("main")
    assert "int8-entropy (this engine) ✓ Pass" in words
    assert "int8-max ✕ Fail" in words
    assert "FP32 over all 5000 samples: 0.9760 (95 %: 0.9720 to 0.9800)." in words


def test_worst_samples_are_shown_with_file_name_and_reason() -> None:
    found = judged()
    assert [attributes["alt"] for attributes in found.all("img")] == [f"Sample {index}: night/{index:04}.png" for index in range(5)]
    assert "night/0005.png (sample 5) , loss 0.5000 right in FP32, wrong here engine: label 3" in found.words("figure")


def test_boxes_lie_over_the_picture_from_the_confidence_of_production_on() -> None:
    found_before = {"boxes": [[2, 3, 20, 21], [0, 0, 5, 5]], "scores": [0.9, 0.36], "classes": [0, 0]}
    found_after = {"boxes": [[2, 3, 20, 22], [0, 0, 5, 5]], "scores": [0.8, 0.34], "classes": [0, 0]}
    worst = [WorstSample(index=0, identity="a.png", loss="1", why="finds 1 of 2 objects", baseline=found_before, engine=found_after)]
    shown = records.picture().model_copy(update={"labelled": [(2.0, 3.0, 20.0, 21.0)]})
    found = made(engine=records.judged(**(records.full_verdict() | {"worst": worst})), pictures={0: shown})
    kinds = [attributes["class"] for attributes in found.all("rect") if attributes.get("class", "").startswith("box")]
    assert kinds == ["box labelled", "box before", "box before", "box after"]
    assert "Boxes: 1 labelled, 2 by FP32, 1 by the engine" in [attributes["aria-label"] for attributes in found.all("svg")]
    assert "from confidence 0.35 on" in found.words("main")


@pytest.mark.parametrize("boxes", [[[1, 2]], [["x"] * 4], "nonsense", [[float("nan")] * 4], 7])
def test_boxes_that_are_none_are_not_drawn(boxes: Any) -> None:
    worst = [WorstSample(index=0, identity="a.png", loss="1", why="w", engine={"boxes": boxes, "scores": [1.0]})]
    found = made(engine=records.judged(worst=worst))
    assert [item for item in found.all("rect") if "box" in item.get("class", "").split()] == []


def test_layers_that_were_kept_can_be_pasted_into_a_spec() -> None:
    engine = records.judged(variant="int8-repaired")
    assert engine.manifest is not None
    recipe = {"method": "entropy", "exclude": {"nodes": ["/head/.*"], "opTypes": []}}
    found = made(engine=replace(engine, manifest=engine.manifest.model_copy(update={"recipe": recipe})))
    assert '{ "nodes": [ "/head/.*" ] }' in found.words("pre")


def test_outputs_beside_fp32_and_broken_samples_are_told() -> None:
    words = judged(accuracy=records.accuracy(compared=64, cosine_min="0.998509", max_abs_error="0.310000", broken=3)).words("main")
    assert "on 64 samples: least cosine 0.998509, largest difference 0.3100." in words
    assert "3 samples gave NaN or infinite outputs" in words


def test_every_table_says_where_its_numbers_are_stored() -> None:
    words = made().words("main")
    engine = records.judged()
    for key in (engine.verdict_key, f"baselines/{records.BASELINE}.json", f"prepared/{records.PREPARED}/manifest.json"):
        assert key in words
    assert words.count("Stored in:") >= 10


def test_what_is_unknown_makes_a_page_without_it() -> None:
    bare = replace(records.judged(accuracy=None, latency=[]), build=None, manifest=None)
    found = Page(page(report_of(Sources(engine=bare, others=(), store=records.STORE, made=records.TIME))))
    assert found.wrong == []
    assert "unknown precision" == found.words("h1")
    assert "on fp-0123456789abcdef" in found.words("header")
    assert found.words().count("not measured") == 1
    assert "Speed was not measured." in found.words("main")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "", "1e999999", "not a number"])
def test_a_number_that_is_none_is_shown_and_not_drawn(value: str) -> None:
    found = judged(accuracy=records.accuracy(value=value, interval=[value, value]))
    assert found.wrong == []


def test_a_scale_holds_all_numbers_even_when_they_are_equal() -> None:
    one = scale_of(["0.5"])
    assert one is not None
    assert one.low < one.high
    assert scale_of([None, "NaN"]) is None


def contrast(first: str, second: str) -> float:
    """WCAG 2's contrast ratio of two #rrggbb colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_has_contrast_in_light_and_dark() -> None:
    css = (files("enginefleet_builder.report") / "style.css").read_text()
    schemes = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})\b", block)) for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)]
    light, dark = (scheme for scheme in schemes if len(scheme) >= 10)
    for colours in (light, dark):
        weak = [
            (name, ground)
            for name in ("text", "muted", "link", "pass", "fail", "unsure")
            for ground in ("page", "raised")
            if contrast(colours[name], colours[ground]) < 4.5
        ]
        assert weak == []


# ---- layers ----


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "kind"),
    [
        ("QLinearConv", ["uint8", "float", "uint8", "int8"], ["uint8"], "int8"),
        ("ConvInteger", ["uint8", "int8"], ["int32"], "int8"),
        ("Conv", ["float16", "float16"], ["float16"], "fp16"),
        ("Gemm", ["float", "float"], ["float"], "fp32"),
        ("Gather", ["float", "int64"], ["float"], "fp32"),
        ("Shape", ["float"], ["int64"], "fp32"),
        ("Concat", ["int64", "int64"], ["int64"], "other"),
        ("QuantizeLinear", ["float", "float", "uint8"], ["uint8"], "conversion"),
        ("Cast", ["float"], ["float16"], "conversion"),
        ("MatMul", ["float8e4m3fn", "float8e4m3fn"], ["float16"], "fp8"),
    ],
)
def test_the_narrowest_type_names_a_node(op: str, inputs: list[str], outputs: list[str], kind: str) -> None:
    assert node_type(NodeRun(op, inputs, outputs, 1.0)) == kind


def test_what_ran_wider_than_asked_is_counted() -> None:
    found = summarize(records.NODES, source="p", batch=1, runs=20)
    told = wider(found, "int8")
    assert told is not None
    assert (told.nodes, told.share) == (1, next(row.share for row in found.types if row.type == "fp32"))
    assert [wider(found, precision) for precision in ("fp32", "tf32")] == [None, None]
    hidden = summarize([NodeRun("Fused", [], [], 1.0, compiled=True)], source="p", batch=1, runs=1)
    assert wider(hidden, "int8") is None
    assert "Asked for int8: 1 of 9 nodes, with 21.4 % of the time, ran in a wider type." in made().words("main")


def test_shares_of_execution_providers_and_what_the_build_left_in_higher_precision_are_told() -> None:
    engine = records.judged()
    assert engine.build is not None
    providers = {"OpenVINOExecutionProvider": 30, "CPUExecutionProvider": 10}
    build = engine.build.model_copy(update={"providers": providers, "excluded": ["/head/a.0/Conv", *map(str, range(100))]})
    found = made(engine=replace(engine, build=build), layers=None)
    assert "nodes on OpenVINOExecutionProvider 75.0 % 30" in found.words("main")
    assert "left them in higher precision (41 more are not shown)" in found.words("main")
    assert json.loads(next(text for text in found.text["pre"] if "head" in text))["nodes"][0] == re.escape("/head/a.0/Conv")


def test_the_librarys_own_account_of_the_layers_is_among_the_records_where_there_is_one() -> None:
    assert "engine inspector" not in made().words("main")
    found = made(inspected=True)
    assert f"{records.judged().verdict_key.rpartition('/')[2].removesuffix('.json')}.layers.json" in found.words("main")
    assert "#record-engine_inspector" in [link["href"] for link in found.all("a")]


def test_layers_are_grouped_by_operator_and_type_with_their_share_of_the_time() -> None:
    found = summarize(records.NODES, source="p", batch=1, runs=20)
    assert (found.nodes, found.quantize_nodes) == (9, 2)
    assert [(row.type, row.nodes) for row in found.types] == [("int8", 5), ("fp32", 1), ("conversion", 2), ("other", 1)]
    assert sum(float(row.share) for row in found.types) == pytest.approx(1, abs=0.001)
    assert found.groups[0].op == "QLinearConv"
    many = summarize([NodeRun(f"Op{number}", [], [], 1.0) for number in range(MOST_GROUPS + 7)], source="p", batch=1, runs=1)
    assert many.left_out == 7


# ---- the JSON ----


def schema() -> dict[str, Any]:
    """Of the JSON, without titles and descriptions, which are no contract."""

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: bare(item) for name, item in value.items() if not (name in ("title", "description") and isinstance(item, str))}
        return [bare(item) for item in value] if isinstance(value, list) else value

    found: dict[str, Any] = bare(ReportData.model_json_schema(by_alias=True))
    return found


def lost(before: Any, now: Any, path: str = "") -> list[str]:
    """What stood in `before` and does not stand in `now` any more, or otherwise."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            line for name in before for line in (lost(before[name], now[name], f"{path}/{name}") if name in now else [f"{path}/{name}"])
        ]
    return [] if before == now else [path]


def test_the_json_keeps_what_its_schema_promised() -> None:
    """Fields may be added. Taking one away raises ReportData.schema_version; to record: python -m tests.builder.test_report."""
    assert lost(json.loads(SCHEMA.read_text()), schema()) == []
    assert lost({"a": {"b": 1, "c": 2}}, {"a": {"b": 2}}) == ["/a/b", "/a/c"]


def test_the_json_can_be_read_again_with_all_and_with_nothing_known() -> None:
    bare = replace(records.judged(accuracy=None, latency=[]), build=None, manifest=None)
    for given in (records.sources(), Sources(engine=bare, others=(), store=records.STORE, made=records.TIME)):
        data = report_of(given)
        assert ReportData.model_validate_json(data.model_dump_json(by_alias=True, exclude_none=True)) == data


# ---- by hand ----


def test_the_request_for_judging_again_holds_nothing_of_the_job() -> None:
    value = by_hand.judge_request(records.request())
    assert (value["holder"], value["node"], value["context"]) == ("by-hand", "", {})
    assert value["validationSource"]["credentials"] == "ambient"


def test_a_here_document_gives_the_request_to_the_command_byte_by_byte(tmp_path: Path) -> None:
    """The shell of the reader runs it: names that are hostile to shells stay text."""
    hostile = "$(touch broken) `touch broken` 'q' \"d\" \\ \nEND\n; touch broken"
    request = records.request().model_copy(update={"name": hostile})
    title, _, command = next(
        step for step in by_hand.steps(records.judged().verdict, records.STORE, None, None, request) if "judge" in step[2]
    )
    written = command.rpartition("\n")[0]
    subprocess.run(["sh", "-c", written], cwd=tmp_path, check=True)
    assert title == "Judge the engine again"
    assert json.loads((tmp_path / "judge.json").read_text())["name"] == hostile
    assert [path.name for path in tmp_path.iterdir()] == ["judge.json"]


def test_addresses_of_a_store_are_quoted_for_the_shell() -> None:
    store = records.STORE.model_copy(update={"uri": "s3://bucket/a b;rm/"})
    commands = [command for _, _, command in by_hand.steps(records.judged().verdict, store, None, None, None)]
    assert all("'s3://bucket/a b;rm/" in command for command in commands)


def test_a_stores_region_and_authority_are_set_before_each_command(tmp_path: Path) -> None:
    """As S3 tools of others take them; a bundle's lines are text for the shell."""
    bundle = "-----BEGIN CERTIFICATE-----\nMIIB$(touch broken)'\nEND\n%s\n-----END CERTIFICATE-----\n"
    store = records.STORE.model_copy(update={"region": "eu-central-1", "ca_bundle": bundle})
    commands = [command for _, _, command in by_hand.steps(records.judged().verdict, store, None, None, None)]
    assert len(commands) == 3
    for command in commands:
        settings, _, last = command.rpartition("\n")
        assert last.split()[0] in ("enginefleet", "aws")
        shown = subprocess.run(
            ["sh", "-ec", settings + '\necho "$AWS_REGION"; cat "$AWS_CA_BUNDLE"'], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert shown.stdout == "eu-central-1\n" + bundle
    assert [path.name for path in tmp_path.iterdir()] == ["ca.pem"]


def test_the_docs_ask_a_cluster_for_fields_that_there_are() -> None:
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    asked = {
        line.split()[2]: set(re.findall(r"\.(spec|status)\.(\w+)", line)) for line in text.splitlines() if line.startswith("kubectl get ")
    }
    parts: dict[str, dict[str, type[Contract]]] = {
        "enginebuilds": {"spec": EngineBuildSpec, "status": EngineBuildStatus},
        "enginestore": {"spec": EngineStoreSpec},
    }
    assert set(asked) == set(parts)
    for kind, fields in asked.items():
        assert fields
        assert all(name in {field.alias for field in parts[kind][part].model_fields.values()} for part, name in fields)


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(schema(), indent=1, sort_keys=True) + "\n")
