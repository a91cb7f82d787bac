"""TensorRT for RTX compiles without a GPU: real builds for tests of the build Job, of engines that can run nowhere here."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from enginefleet_api import fingerprint, identity, keys
from enginefleet_api.documents import FileEntry, PreparedManifest
from enginefleet_api.jobs import BuildRequest, PrepareReport, PrepareRequest, ResolvedPrepared, Source, StoreRef, Termination
from enginefleet_api.model import Calibration, InputSpec, Profile
from enginefleet_api.resources import AccuracyAcceptance, Benchmark, BuildSettings, Validation
from enginefleet_api.variants import Variant
from enginefleet_builder import probe
from enginefleet_builder.io import Progress
from enginefleet_builder.prepare import model as models
from enginefleet_builder.prepare.job import prepare
from enginefleet_builder.store import open_store
from enginefleet_builder.store.base import sha256_of
from enginefleet_builder.store.records import Records
from localcluster import Image
from localcluster.s3 import S3Server
from tests.store.support import BUCKET, admin
from tools.images import build_images

MNIST = Path(__file__).resolve().parents[2] / "examples" / "mnist"
IMAGE = "enginefleet/runtime:rtx-1.7"
VARIANTS = [Variant(precision="fp32"), Variant(precision="fp16"), Variant(precision="int8", method="max")]
DIGITS = InputSpec(name="x", profiles=[Profile(min=[1, 1, 28, 28], opt=[8, 1, 28, 28], max=[16, 1, 28, 28])])


def deep(layers: int) -> ModelProto:
    """A chain of small convolutions, [1, 3, 64, 64] to [1, 8, 64, 64]: what makes a build long is their number."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for index in range(layers):
        kernel = rng.standard_normal((8, 3 if index == 0 else 8, 3, 3), np.float32) / 8
        weights.append(numpy_helper.from_array(kernel, f"w{index}"))
        nodes.append(helper.make_node("Conv", [last, f"w{index}"], [f"c{index}"], name=f"conv{index}", pads=[1] * 4))
        nodes.append(helper.make_node("Tanh", [f"c{index}"], [f"t{index}"], name=f"tanh{index}"))
        last = f"t{index}"
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 64, 64])
    made = helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, 8, 64, 64])
    graph = helper.make_graph(nodes, "deep", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@dataclass(frozen=True)
class Ended:
    """How a Job ended. `lines`: of its log."""

    code: int
    termination: Termination
    lines: list[str]


class Job:
    """`enginefleet build` in the runtime image, as a process with a termination message."""

    def __init__(self, site: Site, request: BuildRequest) -> None:
        self.folder = site.folder / request.holder
        (self.folder / "tmp").mkdir(parents=True)
        path = self.folder / "request.json"
        path.write_text(request.model_dump_json(by_alias=True))
        self.message = self.folder / "termination"
        self.message.touch()
        variables = {"ENGINEFLEET_TERMINATION_LOG": str(self.message), "TMPDIR": str(self.folder / "tmp")}
        self.process = subprocess.Popen(
            [f"{site.python}", "-m", "enginefleet_builder.main", "build", "--request", str(path)],
            env=dict(site.image.env) | site.credentials | variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []

    def until(self, text: str) -> None:
        """Read the log up to a line that begins with `text`."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if line.startswith(text):
                return
        raise AssertionError(f"the Job ended before {text!r}: {self.lines}")

    def workers(self) -> list[int]:
        """Processes that the Job has started and that run still."""
        found = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for path in found for pid in path.read_text().split()]

    def end(self, timeout: float = 60) -> Ended:
        _, rest = self.process.communicate(timeout=timeout)
        self.lines += rest.splitlines()
        termination = Termination.parse(self.message.read_text())
        assert termination is not None, self.lines
        return Ended(self.process.returncode, termination, self.lines)

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "tmp").iterdir())


class Site:
    """A store on a real S3 server with prepared models in it, and the runtime image."""

    def __init__(self, s3: S3Server, folder: Path) -> None:
        self.image: Image = build_images([IMAGE])[IMAGE]
        self.python = Path(self.image.env["VIRTUAL_ENV"]) / "bin" / "python3"
        self.folder, self._s3, self._client = folder, s3, admin(s3)
        self._client.create_bucket(Bucket=BUCKET)
        self.credentials = {"ENGINEFLEET_STORE_ACCESS_KEY_ID": s3.access_key, "ENGINEFLEET_STORE_SECRET_ACCESS_KEY": s3.secret_key}
        self.store = StoreRef(uri=f"s3://{BUCKET}/fleet/", endpoint=s3.endpoint)
        self.records = Records(open_store(self.store))
        self.validation = self._give("data/validation.npz", _first(MNIST / "validation.npz", 200))
        self.calibration = self._give("data/calibration.npz", _first(MNIST / "calibration.npz", 100))
        self.gate = Validation(uri=self.validation.uri, acceptance=AccuracyAcceptance(minimum="0.9", max_drop="0.01"))
        self.facts: dict[str, dict[str, Any]] = {}

    def _give(self, key: str, body: bytes) -> Source:
        self._client.put_object(Bucket=BUCKET, Key=key, Body=body)
        return Source(uri=f"s3://{BUCKET}/{key}", endpoint=self.store.endpoint, credentials="store")

    def prepare(self, name: str, model: bytes, variants: list[Variant]) -> PrepareReport:
        request = PrepareRequest(
            model=self._give(f"models/{name}/model.onnx", model).model_copy(update={"uri": f"s3://{BUCKET}/models/{name}/"}),
            variants=variants,
            flavours=["tensorrt-10"],
            inputs=[DIGITS],
            calibration=Calibration(method="max"),
            calibration_source=self.calibration,
            validation=self.gate,
            validation_source=self.validation,
            store=self.store,
            holder=f"prepare-{name}",
        )
        return prepare(request, Progress())

    def publish(self, model: ModelProto, folder: Path) -> ResolvedPrepared:
        """A model that needs no preparing: for builds that never end."""
        file = folder / "model.onnx"
        file.write_bytes(model.SerializeToString())
        digest = sha256_of(file)
        manifest = PreparedManifest(
            prepared_key=digest,
            source_model=identity.tree_digest([("model.onnx", digest)]),
            model=identity.tree_digest([("model.onnx", digest)]),
            precision="fp32",
            flavour="tensorrt-10",
            files=[FileEntry(path="model.onnx", sha256=digest, size=file.stat().st_size)],
            inputs=models.inputs(model),
            outputs=models.outputs(model),
        )
        self.records.publish_prepared(manifest, folder)
        return ResolvedPrepared(flavour="tensorrt-10", precision="fp32", variant="fp32", prepared_key=digest, model=manifest.model)

    def facts_of(self, capability: str) -> dict[str, Any]:
        """Of an engine that is built here for a GPU elsewhere."""
        if capability not in self.facts:
            runtime = probe.runtime_facts("tensorrt-rtx", "CPU", str(self.python), cross=capability)
            self.facts[capability] = fingerprint.combine(probe.host_facts(), runtime)
        return self.facts[capability]

    def request(
        self, model: ResolvedPrepared, capability: str, holder: str, *, baseline: str | None = None, **changes: Any
    ) -> BuildRequest:
        facts = changes.pop("facts", None) or self.facts_of(capability)
        here = fingerprint.identify(facts)
        judged = baseline is not None
        inputs = [DIGITS] if judged else []
        recipe = keys.recipe_of(BuildSettings(), inputs) | {"computeCapability": capability}
        validation, benchmark = (self.gate if judged else None), Benchmark(batch_sizes=[1])
        request = BuildRequest(
            engine_key=identity.engine_key(prepared_model=model.model, recipe=recipe, fingerprint=here),
            gate_key=keys.gate_key_of(validation, benchmark, baseline),
            baseline_key=baseline,
            prepared_key=model.prepared_key,
            prepared_model=model.model,
            precision=model.precision,
            backend="tensorrt-rtx",
            python=str(self.python),
            recipe=recipe,
            fingerprint=here,
            facts=facts,
            inputs=inputs,
            validation=validation,
            validation_source=self.validation if judged else None,
            benchmark=benchmark,
            store=self.store,
            holder=holder,
            timeout_seconds=60,
        )
        return request.model_copy(update=changes)

    def run(self, request: BuildRequest) -> Ended:
        return Job(self, request).end()

    def keys(self, prefix: str) -> list[str]:
        """What is in the store below a prefix."""
        return list(self.records.store.list(prefix))


def _first(path: Path, samples: int) -> bytes:
    """The data set's first samples, as a file's bytes."""
    import io

    with np.load(path) as archive:
        arrays = {name: archive[name][:samples] for name in archive.files}
    body = io.BytesIO()
    np.savez(body, **arrays)
    return body.getvalue()
