"""TensorRT and TensorRT for RTX: engines are built and run by a worker under the interpreter that owns the bindings."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from enginefleet_api.base import quantity
from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import EngineFleetError, EnvironmentFault, PermanentError, TransientFault
from enginefleet_api.fingerprint import BACKEND_MODULES, BACKEND_NAMES

from ..gate.arrays import Array
from ..io import Progress
from ..prepare import model as models
from ..prepare import targets
from . import remedies, texts
from .base import BuiltEngine, NodeRun, Timed
from .child import Child
from .classify import oom_kills
from .implicit import implicit, is_plain
from .model_facts import ModelFacts, facts_of

WORKER = Path(__file__).parent.parent / "worker" / "main.py"
ENGINE_FILE = "engine.plan"
MEMINFO = Path("/proc/meminfo")
LOG_LINES = 20_000


class Worker(Child):
    """The process in worker/: see its main.py for what it answers. `reserve`: bytes of MemAvailable below which it is ended."""

    def __init__(self, python: str, progress: Progress, title: str, reserve: int = 0, facts: Mapping[str, Any] | None = None) -> None:
        # its own search path, not ours: it is another interpreter. A launcher may set one for it, so that -I would go too far
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.lines: list[str] = []
        self.diagnosis: texts.Diagnosis | None = None
        """What the last failure was, with what a remedy needs."""
        self.about: dict[str, Any] = {}
        """What the loaded library is; empty until it has been loaded."""
        self._title, self._reserve, self._facts = title, reserve, dict(facts or {})
        try:
            self._start([python, "-s", "-B", str(WORKER)], environment, progress)
        except OSError as error:
            hint = "Name the interpreter that owns TensorRT's bindings in the HardwareClass's runtime.python."
            raise EnvironmentFault("RuntimeMissing", f"{python} cannot be started: {error.strerror}.", hint) from error

    @property
    def library(self) -> str:
        """`TensorRT 8.6.0`"""
        return f"{self._title} {version}" if (version := self.about.get("version")) else self._title

    def ask(self, header: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> tuple[dict[str, Any], dict[str, Array]]:
        self._doing = str(header["do"])
        return super().ask(header, arrays)

    def log(self) -> str:
        """All that was logged, then what else went to standard error."""
        return "\n".join([*self.lines, super().log()])

    def _told(self, answer: Mapping[str, Any]) -> bool:
        if "log" in answer:
            line = str(answer["log"])
            if len(self.lines) < LOG_LINES:
                self.lines.append(line)
            if line.startswith(("[E]", "[W]")):
                self._progress.log(line)
            return True
        if "progress" in answer:
            news = answer["progress"]
            share, done = news.get("share"), news.get("done")
            known = (done, None) if share is None else (round(100 * float(share)), 100)
            self._progress(f"{self.library}: {news.get('stage')}", *known)
            return True
        if "about" in answer:
            self.about = dict(answer["about"])
            return True
        return False

    def _require_done(self, answer: Mapping[str, Any], header: Mapping[str, Any]) -> None:  # noqa: ARG002
        if "refused" in answer:
            no = answer["refused"]
            kind = EnvironmentFault if no.get("environment") else PermanentError
            raise kind(str(no["reason"]), str(no["message"]), str(no.get("hint", "")))
        if "error" in answer:
            error = answer["error"]
            lines = [str(line) for line in error.get("lines", [])] or [f"[E] {error.get('text')}"]
            raise self._classified(lines, str(error.get("doing")), {})

    def _check(self) -> None:
        super()._check()
        if self._reserve and (available := memory_available()) is not None and available < self._reserve:
            self._process.kill()
            message = f"{available} bytes of memory were left on the node, less than the reserve of {self._reserve}: the work was ended."
            raise TransientFault(
                "MemoryLow", message, "Free memory on the node, lower spec.build.workspace or the class's builds.memoryReserve."
            )

    def _death(self) -> Exception:
        code = self._ended()
        if missing := re.search(r"ModuleNotFoundError: No module named '(\w+)'", super().log()):
            hint = "The worker needs NumPy under the interpreter that HardwareClass runtime.python names."
            return EnvironmentFault("RuntimeMissing", f"the worker's interpreter has no module {missing[1]}.", hint)
        facts = {"exitCode": code, "oomKilled": oom_kills() > self._ooms, "memoryAvailable": memory_available()}
        return self._classified([line for line in self.log().splitlines() if line.strip()], self._doing, facts)

    def _classified(self, lines: Sequence[str], doing: str, more: Mapping[str, Any]) -> EngineFleetError:
        known = {"library": self.library, "parserOpset": parser_opset(self.library), **self._facts, **more}
        self.diagnosis = texts.diagnose(lines, doing=doing, facts=known)
        return self.diagnosis.error


class Unbuilt(Exception):
    """A build that failed for good, as it stands. `layer`: as TensorRT calls the one that it has no kernel for; empty: none is named."""

    def __init__(self, cause: PermanentError, layer: str) -> None:
        super().__init__(str(cause))
        self.cause, self.layer = cause, layer


class TensorRt:
    """See base.Backend. `python`: the interpreter; `reserve`: bytes of memory that stay free on the node."""

    def __init__(self, name: str, python: str = "python3", *, reserve: int = 0) -> None:
        self.name = name
        self._python, self._reserve, self._module = python, reserve, BACKEND_MODULES[name]
        self._known: dict[str, Any] = {}
        self.inspected: Mapping[str, Any] | None = None
        self.timing_caches = name == "tensorrt"
        """TensorRT for RTX measures on the device that loads an engine: since 1.2 its timing caches are empty and their functions do nothing."""

    def versions(self) -> dict[str, str]:
        about = self._about(Progress())
        libraries = about.get("libraries") or {}
        told = {self.name: about.get("version"), "python": about.get("python"), **libraries}
        return {name: str(value) for name, value in told.items() if value}

    def _about(self, progress: Progress) -> dict[str, Any]:
        """{version, bindings, cudaMajor, libraries, python} of the library as it is loaded. Raises EnvironmentFault `RuntimeMissing`."""
        if not self._known:
            with self._worker(progress) as worker:
                worker.ask({"do": "describe", "module": self._module})
        return self._known

    def build(
        self,
        model: Path,
        recipe: Mapping[str, Any],
        workdir: Path,
        progress: Progress,
        *,
        timing_cache: Path | None = None,
        timing_cache_out: Path | None = None,
    ) -> BuiltEngine:
        """Recipe field `precision` says what is asked for; without it, what the file says of itself. Remedies are taken: see remedies.py."""
        proto = models.read_model(model)
        caches = {"timing_cache": str(timing_cache) if timing_cache else None}
        caches |= {"timing_cache_out": str(timing_cache_out) if timing_cache_out else None}
        precision = recipe.get("precision") or facts_of(proto).precision
        if recipe.get("dla") and precision == "int8" and self._wants_scales(recipe, progress):
            return self._built_of_scales(proto, model, recipe, workdir, caches, progress)
        notes: list[str] = []
        excluded: list[str] = []
        file = model
        if alike := remedies.separate_dimensions(proto, recipe.get("profiles") or []):
            notes.append(f"Remedy: dimensions named alike and of unlike size ({', '.join(alike)}) got names of their own.")
            file = remedies.save(proto, model, workdir)
        lost = 0.0  # seconds of TensorRT's builds that gave no engine
        for tried in range(remedies.MOST_EXCLUSIONS + 1):
            began = time.monotonic()
            try:
                built = self._built(file, facts_of(proto), recipe, workdir / ENGINE_FILE, caches, progress, notes, excluded)
                return dataclasses.replace(built, compile_seconds=(built.compile_seconds or 0.0) + lost)
            except Unbuilt as error:
                curable = error.layer and error.cause.reason in remedies.CURABLE and tried < remedies.MOST_EXCLUSIONS
                cured = remedies.without_layer(proto, error.layer, model.parent) if curable else None
                if cured is None or not facts_of(cured[0]).quantized:
                    raise error.cause from error
                lost += time.monotonic() - began
                proto, nodes = cured
                excluded += nodes
                note = (
                    f"Remedy: layer {error.layer[:200]} stays in higher precision (nodes {', '.join(nodes)[:400]}): {error.cause.message}"
                )
                notes.append(note)
                progress.log(note)
                file = remedies.save(proto, model, workdir)
        raise AssertionError("the last try raises or returns")

    def _built(
        self,
        file: Path,
        facts: ModelFacts,
        recipe: Mapping[str, Any],
        engine: Path,
        caches: Mapping[str, str | None],
        progress: Progress,
        notes: Sequence[str],
        excluded: Sequence[str],
        scales: Mapping[str, float] | None = None,
    ) -> BuiltEngine:
        """One build in a process of its own. Raises Unbuilt for a failure that may name a layer, and EngineFleetError."""
        header = {
            "do": "build",
            "module": self._module,
            "title": BACKEND_NAMES[self.name],
            "model": str(file),
            "engine": str(engine),
            "precision": "int8" if scales else recipe.get("precision") or facts.precision,
            "facts": _told(facts),
            "scales": dict(scales or {}),
            "recipe": dict(recipe),
            "workspace": workspace_bytes(str(recipe.get("workspace", "auto"))),
            **caches,
        }
        with self._worker(progress, {"opset": facts.opset}) as worker:
            try:
                answer, _ = worker.ask(header)
            except PermanentError as error:
                if worker.diagnosis is None:
                    raise
                raise Unbuilt(error, worker.diagnosis.layer) from error
            log = worker.log()
        warnings = [*texts.left_aside(), *texts.warnings(worker.lines, library=worker.library), *answer["plan"]["notes"], *notes]
        if recipe.get("dla"):
            warnings.append(f"DLA: {answer['on_dla']} of {answer['layers']} layers of the network may run there, the others on the GPU.")
            placed = answer["placed"]
            if any(placed.values()):
                warnings.append(
                    f"DLA: the engine has {placed['Dla']} parts for it and {placed['Gpu']} layers for the GPU, as TensorRT tells."
                )
        if skipped := answer["skipped_for_memory"]:
            warnings.append(f"Degraded: {skipped} tactics were left out for lack of memory, the engine may be slower than it could be.")
        # TensorRT's own: making a builder, parsing, building
        spent = sum(float(answer["seconds"][name]) for name in ("start", "parse", "build"))
        return BuiltEngine(engine, log, warnings, compile_seconds=spent, excluded=list(excluded), shape_tensors=answer["shape_tensors"])

    def _wants_scales(self, recipe: Mapping[str, Any], progress: Progress) -> bool:
        with self._worker(progress) as worker:
            answer, _ = worker.ask({"do": "describe", "module": self._module, "precision": "int8", "recipe": dict(recipe)})
        return bool(answer["wants_scales"])

    def _built_of_scales(
        self, proto: ModelProto, model: Path, recipe: Mapping[str, Any], workdir: Path, caches: Mapping[str, str | None], progress: Progress
    ) -> BuiltEngine:
        """A build for a DLA that takes no Q/DQ nodes. Raises PermanentError `DlaScales` where they do not go into scales beside the network."""
        plain, scales = implicit(proto, model.parent)
        if not scales or not is_plain(plain):
            message = "a DLA of this release takes int8 as one scale a tensor, and the model's Q/DQ nodes do not go into that."
            raise PermanentError("DlaScales", message, "Quantize it with one scale a tensor of activations, or leave spec.build.dla out.")
        note = f"DLA: the model's {len(scales)} scales were given beside a network without Q/DQ nodes."
        file = remedies.save(plain, model, workdir)
        try:
            return self._built(file, facts_of(plain), recipe, workdir / ENGINE_FILE, caches, progress, [note], [], scales)
        except Unbuilt as error:
            raise error.cause from error

    def merge_timing_caches(self, ours: Path, theirs: Path, target: Path, progress: Progress) -> bool:
        """See base.TimingCaching."""
        header = {"do": "merge", "module": self._module, "ours": str(ours), "theirs": str(theirs), "target": str(target)}
        with self._worker(progress) as worker:
            answer, _ = worker.ask(header)
        return bool(answer["merged"])

    @contextmanager
    def load(self, engine: Path, recipe: Mapping[str, Any], progress: Progress) -> Iterator[TensorRtSession]:
        with self._worker(progress) as worker:
            yield TensorRtSession(worker, self._module, engine, recipe)

    def profile(self, engine: Path, recipe: Mapping[str, Any], feeds: Mapping[str, Array], runs: int, progress: Progress) -> list[NodeRun]:
        with self.load(engine, recipe, progress) as session:
            nodes, self.inspected = session.profile(feeds, runs)
            return nodes

    @contextmanager
    def _worker(self, progress: Progress, facts: Mapping[str, Any] | None = None) -> Iterator[Worker]:
        with Worker(self._python, progress, BACKEND_NAMES[self.name], self._reserve, facts) as worker:
            try:
                yield worker
            finally:
                self._known = self._known or worker.about


class TensorRtSession:
    """See base.DeviceSession."""

    def __init__(self, worker: Worker, module: str, engine: Path, recipe: Mapping[str, Any]) -> None:
        self._worker = worker
        answer, _ = worker.ask({"do": "load", "module": module, "engine": str(engine), "recipe": dict(recipe)})
        self.inputs: Sequence[TensorSpec] = [TensorSpec.model_validate(item) for item in answer["inputs"]]
        self.outputs: Sequence[TensorSpec] = [TensorSpec.model_validate(item) for item in answer["outputs"]]
        self.device_memory: int | None = answer["device_memory"]
        self.profiles: list[dict[str, Any]] = answer["profiles"]

    @property
    def pid(self) -> int:
        return self._worker.pid

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return self._worker.ask({"do": "run"}, feeds)[1]

    def timings(self, feeds: Mapping[str, Array], *, warm_up: int, iterations: int, seconds: float) -> NDArray[np.float64]:
        return self.timed(feeds, warm_up=warm_up, iterations=iterations, seconds=seconds, transfers=True, cuda_graph=False).seconds

    def timed(
        self, feeds: Mapping[str, Array], *, warm_up: int, iterations: int, seconds: float, transfers: bool, cuda_graph: bool
    ) -> Timed:
        header = {"do": "timings", "warm_up": warm_up, "iterations": iterations, "seconds": seconds}
        answer, arrays = self._worker.ask(header | {"transfers": transfers, "cuda_graph": cuda_graph}, feeds)
        return Timed(arrays["seconds"].astype(np.float64), arrays["enqueue"].astype(np.float64), bool(answer["cuda_graph"]))

    def inspect(self) -> dict[str, Any]:
        """The engine inspector's report, {"Layers": [...]}."""
        report: dict[str, Any] = self._worker.ask({"do": "inspect"})[0]["report"]
        return report

    def profile(self, feeds: Mapping[str, Array], runs: int) -> tuple[list[NodeRun], dict[str, Any]]:
        """(layers with their times, the inspector's report)"""
        answer, _ = self._worker.ask({"do": "profile", "runs": runs}, feeds)
        details = {str(layer.get("Name")): layer for layer in answer["report"].get("Layers", []) if isinstance(layer, dict)}
        return [layer_run(name, seconds, details.get(name, {})) for name, seconds in answer["times"].items()], answer["report"]


def layer_run(name: str, seconds: Sequence[float], layer: Mapping[str, Any]) -> NodeRun:
    """One layer as a NodeRun: `seconds` of each run; `layer` as the inspector has it."""
    sides = [[tensor_type(str(tensor.get("Format/Datatype", ""))) for tensor in layer.get(side, [])] for side in ("Inputs", "Outputs")]
    kind = str(layer.get("LayerType") or name)
    return NodeRun(_OPERATORS.get(kind, kind), sides[0], sides[1], float(np.median(seconds)) if len(seconds) else 0.0)


_OPERATORS = {"Quantize": "QuantizeLinear", "Dequantize": "DequantizeLinear", "Reformat": "Cast"}
"""Layers that turn one type into another, by the name that ONNX has for it."""
_TYPES = {
    "FP32": "float",
    "FLOAT": "float",
    "FP16": "float16",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "FP8": "float8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}


def tensor_type(text: str) -> str:
    """The element type in a text like `Channel major FP16 format where channel % 8 == 0` or `Half`; empty when none is named."""
    return next((_TYPES[word] for word in re.findall(r"[A-Z]+\d*", text.upper()) if word in _TYPES), "")


def parser_opset(library: str) -> int | None:
    """The newest opset that the documentation of `TensorRT 8.6.0`'s parser names; None: not known."""
    title, _, version = library.rpartition(" ")
    found = targets.tensorrt(targets.load(), version) if title == BACKEND_NAMES["tensorrt"] else None
    return found.opset if found else None


def workspace_bytes(text: str) -> int | None:
    """Bytes of a quantity like 2Gi; None for auto."""
    return None if text == "auto" else int(quantity(text))


def memory_available(meminfo: Path = MEMINFO) -> int | None:
    """Bytes that the kernel could give without swapping, on this node; None: unknown."""
    with suppress(OSError):
        match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
        if match:
            return int(match[1]) * 1024
    return None


def _told(facts: ModelFacts) -> dict[str, Any]:
    return {**dataclasses.asdict(facts), "types": sorted(facts.types)}
