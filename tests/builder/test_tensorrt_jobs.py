"""The whole build Job into a folder store, through the stand-in of TensorRT that computes: published engines, and timing caches from build to build."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from enginefleet_api import fingerprint, identity, keys
from enginefleet_api.documents import FileEntry, PreparedManifest
from enginefleet_api.jobs import BuildRequest, StoreRef
from enginefleet_api.model import InputSpec, Profile
from enginefleet_api.resources import Benchmark, BuildSettings, Dla
from enginefleet_builder import device, probe
from enginefleet_builder.build import job
from enginefleet_builder.build.engine import adopt_or_build
from enginefleet_builder.build.job import build
from enginefleet_builder.io import Progress
from enginefleet_builder.prepare import model as models
from enginefleet_builder.store import layout, open_store
from enginefleet_builder.store.base import sha256_of
from enginefleet_builder.store.records import Records
from tests.builder.standins.computing import DLAS, PLAN, install
from tests.builder.support import Undisturbed

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the stand-ins need a C compiler (cc) to be compiled")
INPUTS = [InputSpec(name="x", profiles=[Profile(min=[1, 3, 8, 8], opt=[2, 3, 8, 8], max=[4, 3, 8, 8])])]


def chain(*channels: int) -> ModelProto:
    """Convolutions with so many channels each, [N, 3, 8, 8] to [N, last, 8, 8]: each kind of them is one tactic of the stand-in."""
    rng = np.random.default_rng(0)
    nodes, weights, last, before = [], [], "x", 3
    for index, count in enumerate(channels):
        weights.append(numpy_helper.from_array(rng.standard_normal((count, before, 3, 3), np.float32), f"w{index}"))
        nodes.append(helper.make_node("Conv", [last, f"w{index}"], [f"y{index}"], name=f"conv{index}", pads=[1] * 4))
        last, before = f"y{index}", count
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])
    made = helper.make_tensor_value_info(last, TensorProto.FLOAT, ["batch", before, 8, 8])
    graph = helper.make_graph(nodes, "chain", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@dataclass(frozen=True)
class Built:
    """See Site.measured. `warnings`: those that speak of a cache."""

    measured: tuple[int, int]
    warnings: list[str]


class Site:
    """A folder store, and a Jetson of stand-ins."""

    def __init__(self, folder: Path, release: str, python: Path) -> None:
        self.release, self.python, self.folder = release, str(python), folder
        self.store = StoreRef(uri=(folder / "store").as_uri())
        self.records = Records(open_store(self.store))
        self.facts = fingerprint.combine(probe.host_facts(), device.facts(self.python, "tensorrt"))
        self.fingerprint = fingerprint.identify(self.facts)

    def request(self, model: ModelProto, holder: str) -> BuildRequest:
        place = self.folder / holder
        place.mkdir()
        onnx.save(model, place / "model.onnx")
        digest = sha256_of(place / "model.onnx")
        manifest = PreparedManifest(
            prepared_key=digest,
            source_model=identity.tree_digest([("model.onnx", digest)]),
            model=identity.tree_digest([("model.onnx", digest)]),
            precision="fp32",
            flavour="tensorrt-8" if self.release.startswith("8") else "tensorrt-10",
            files=[FileEntry(path="model.onnx", sha256=digest, size=(place / "model.onnx").stat().st_size)],
            inputs=models.inputs(model),
            outputs=models.outputs(model),
        )
        self.records.publish_prepared(manifest, place)
        recipe = keys.recipe_of(BuildSettings(), INPUTS, backend="tensorrt", precision="fp32")
        benchmark = Benchmark(batch_sizes=[1])
        return BuildRequest(
            engine_key=identity.engine_key(prepared_model=manifest.model, recipe=recipe, fingerprint=self.fingerprint),
            gate_key=keys.gate_key_of(None, benchmark, None),
            prepared_key=digest,
            prepared_model=manifest.model,
            precision="fp32",
            backend="tensorrt",
            python=self.python,
            recipe=recipe,
            fingerprint=self.fingerprint,
            facts=self.facts,
            inputs=INPUTS,
            benchmark=benchmark,
            store=self.store,
            holder=holder,
            timeout_seconds=60,
        )

    def build(self, model: ModelProto, holder: str, progress: Progress | None = None) -> Built:
        """The Job as far as the published engine: judging says nothing of caches, and takes most of the time."""
        request = self.request(model, holder)
        folder = self.folder / f"work-{holder}"
        folder.mkdir()
        work = job._begin(request, folder, progress or Progress(), Undisturbed())
        engine = adopt_or_build(work)
        assert not engine.adopted
        return Built(self.measured(request), [warning for warning in work.warnings if "cache" in warning])

    def measured(self, request: BuildRequest) -> tuple[int, int]:
        """(tactics that were measured, tactics that were in the timing cache), by the build's log in the store."""
        (log,) = (self.folder / "store" / "reports" / request.engine_key).rglob("build-*.log")
        found = re.search(r"^\[I\] (\d+) tactics are measured, (\d+) were in the timing cache$", log.read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]), int(found[2])

    @property
    def pointer(self) -> Path:
        return self.folder / "store" / layout.timing_cache_pointer(self.fingerprint)

    @property
    def cache_header(self) -> bytes:
        return f"timing cache of {self.release}".encode()

    @property
    def cache(self) -> Path:
        """The newest timing cache."""
        return self.folder / "store" / layout.timing_cache(self.fingerprint, json.loads(self.pointer.read_text())["digest"])

    def overwrite_cache(self, content: bytes, *, pointer_too: bool) -> None:
        file = self.cache
        file.chmod(0o644)
        file.write_bytes(content)
        if pointer_too:
            digest = "sha256:" + sha256_of(file)
            file.rename(self.folder / "store" / layout.timing_cache(self.fingerprint, digest))
            told = json.loads(self.pointer.read_text()) | {"digest": digest, "size": len(content)}
            self.pointer.chmod(0o644)
            self.pointer.write_text(json.dumps(told))


@pytest.fixture(scope="module", params=["8.6.0", "10.3.0"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return str(request.param), install(tmp_path_factory.mktemp("tensorrt"), str(request.param))


@pytest.fixture
def site(installed: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    release, python = installed
    monkeypatch.setenv("LD_LIBRARY_PATH", str(python.parent))
    monkeypatch.setenv("STANDIN_GPUS", "Orin|8|7|8|1|0|15656|0000:00:00.0")
    return Site(tmp_path, release, python)


def test_a_second_job_has_what_the_first_measured(site: Site) -> None:
    assert site.build(chain(4, 5), "first") == Built((2, 0), [])
    request = site.request(chain(4, 5, 6), "second")
    report = build(request, Progress(), Undisturbed())
    assert site.measured(request) == (1, 2)
    assert not any("cache" in warning for warning in report.warnings)
    # without a validation set nothing can pass
    assert (report.adopted, report.answer) == (False, "Inconclusive")
    assert [item.batch for item in report.latency] == [1]
    path = site.folder / "engine"
    site.records.fetch_blob(report.blob, path, size=report.size, progress=Progress())
    assert path.read_bytes().startswith(PLAN)
    # the second's cache, which is the newest, has all three
    assert len(site.cache.read_text().splitlines()) == 1 + 3


def test_an_engine_on_a_dla_is_timed_beside_fp32_on_the_gpu(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DLAS, "1")
    partner, asked = site.request(chain(4), "partner"), site.request(chain(5), "engine")
    recipe = keys.recipe_of(BuildSettings(dla=Dla()), INPUTS, backend="tensorrt", precision="fp16")
    asked = asked.model_copy(update={"precision": "fp16", "recipe": recipe, "partner_prepared_key": partner.prepared_key})
    report = build(asked, Progress(), Undisturbed())
    assert report.warnings[0] == "DLA: 2 of 3 layers of the network may run there, the others on the GPU."
    assert not [text for text in report.warnings if "no speed-up" in text]
    assert float(report.speedup or 0) > 0


def test_a_bad_timing_cache_never_breaks_a_build_and_is_replaced(site: Site) -> None:
    bad: list[tuple[bytes, bool, str]] = [
        # bytes that are not those of its digest
        (site.cache_header + b" and a flipped bit", False, "the timing cache in the store is not used: "),
        # sound as the store sees it, and nothing that this release takes
        (b"timing cache of 7.0.0\nabc", True, "TimingCacheIgnored: "),
    ]
    site.build(chain(4), "first")
    for index, (content, pointer_too, words) in enumerate(bad):
        site.overwrite_cache(content, pointer_too=pointer_too)
        built = site.build(chain(4, 5 + index), f"build-{index}")
        assert built.measured == (2, 0)
        assert any(words in warning for warning in built.warnings), built.warnings
    assert site.build(chain(4, 6, 8), "last") == Built((1, 2), [])


def test_builds_that_end_together_lose_nothing_of_each_other(site: Site) -> None:
    """Another builder publishes its cache while this one builds: both are merged by the library."""

    class Meanwhile(Progress):
        def __init__(self, do: Callable[[], Any]) -> None:
            super().__init__()
            self.do: Callable[[], Any] | None = do

        def show(self, stage: str, done: float | None, total: float | None) -> None:
            if stage.endswith(": build") and self.do is not None:
                do, self.do = self.do, None
                do()

    site.build(chain(4), "before")
    other: list[Built] = []
    built = site.build(chain(4, 5), "this", Meanwhile(lambda: other.append(site.build(chain(4, 6), "other"))))
    assert [built, *other] == [Built((1, 1), [])] * 2
    header, *tactics = site.cache.read_bytes().splitlines()
    assert header == site.cache_header
    assert len(tactics) == 3
