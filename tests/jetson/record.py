"""EngineFleet on a Jetson, without Kubernetes: probe, prepare, build, judge, measure, DLA, kill in mid-build; one record and the host's fact files.

    tests/jetson/run [--python INTERPRETER] [--out FOLDER] [--precision NAME]        on a Jetson
    tests/jetson/run --dry-run HOST                                                  anywhere: on stand-ins, proves nothing about hardware

Writes FOLDER/jetson.json and FOLDER/host.json (a dry run: FOLDER/dry-run.json and FOLDER/dry-run-host.json), the record after each step. A run that was
cut off goes on where it stopped. See README.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import accuracy
from enginefleet_api import fingerprint
from enginefleet_api.errors import EngineFleetError
from enginefleet_api.flavours import ON_DLA, flavour_of, precision_refused
from enginefleet_api.jobs import BuildRequest, PrepareReport, PrepareRequest
from enginefleet_api.keys import recipe_of
from enginefleet_api.resources import BuildSettings, Dla
from enginefleet_api.variants import Variant
from enginefleet_builder import device
from enginefleet_builder.build.job import build
from enginefleet_builder.build.watch import Watch
from enginefleet_builder.io import PlainProgress
from enginefleet_builder.prepare.job import prepare
from enginefleet_builder.probe import host_facts
from enginefleet_builder.store import open_store
from enginefleet_builder.store.records import Records
from tests.builder.standins.computing import DLAS, ENDLESS, install
from tests.device_runs import build_request, killed, save, told
from tests.hosts.trees import plant
from tests.jetson.hostrecord import Recording, without_paths

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NETWORK = accuracy.Network("digits", "examples/mnist", "", (512, 1000), accuracy.example, inputs=accuracy.dynamic("x", 1, 28, 28))
"""Shipped: 60,000 weights, trained on real handwritten digits; 512 to calibrate with, 1,000 others to judge by."""
BATCH = 16
VARIANTS = (Variant(precision="fp32"), Variant(precision="fp16"), Variant(precision="int8", method="entropy"))
WHOLE = BuildSettings()
DLA = BuildSettings(dla=Dla(core=0, allow_gpu_fallback=True))
NO_DLA = ("NoDLA", "DlaScales")
"""Reasons that say what a board, a release or a model has not: an answer, and no failure of the step."""
PLACED = re.compile(
    r"DLA: (?:(?P<may>\d+) of (?P<layers>\d+) layers of the network|the engine has (?P<parts>\d+) parts for it and (?P<gpu>\d+) layers)"
)
DRY_RUNS = {
    "jetpack-5.1": ("8.5", "Orin|8|7|16|1|0|62840|0000:00:00.0", 2),
    "jetpack-6.0": ("8.6.0", "Orin|8|7|8|1|0|15656|0000:00:00.0", 2),
    "jetpack-6.2": ("10.3.0", "Orin|8|7|8|1|0|7620|0000:00:00.0", 0),
    "jetpack-7.2": ("10.16.1", "Orin|8|7|16|1|0|62840|0000:00:00.0", 0),
}
"""By the tree of fact files in tests/hosts: the double of TensorRT, what the stand-in of CUDA says, DLAs that are found; see tests/builder/standins."""
DRY = "DRY RUN ON STAND-INS: no Jetson, no GPU and no TensorRT had a part in this. Its figures mean nothing."


@dataclass(frozen=True, slots=True)
class Jetson:
    """Where it runs: `python` owns TensorRT, `files` are the host's, `work` is thrown away when all is done."""

    python: str
    files: Recording
    seen: Mapping[str, Any]
    facts: Mapping[str, Any]
    work: Path

    def watch(self) -> Watch:
        return Watch(lambda: device.state(self.seen, self.files).text(), self.files.root)

    def request(
        self,
        asked: PrepareRequest,
        prepared: PrepareReport,
        variant: Variant,
        settings: BuildSettings = WHOLE,
        batch: int = BATCH,
    ) -> BuildRequest:
        recipe = recipe_of(settings, asked.inputs, backend="tensorrt", precision=variant.precision)
        return build_request(
            asked, prepared, variant, facts=self.facts, recipe=recipe, python=self.python, batch=batch, holder="jetson-test"
        )

    def prepared(self, variants: Sequence[Variant], record: Record) -> tuple[PrepareRequest, PrepareReport]:
        """What a run that was cut off left, else made now."""
        saved = self.work / "prepared.json"
        if saved.exists():
            kept = json.loads(saved.read_text())
            return PrepareRequest.model_validate(kept["request"]), PrepareReport.model_validate(kept["report"])
        record.say(f"prepare {', '.join(one.id for one in variants)}")
        for left in ("data", "store"):
            shutil.rmtree(self.work / left, ignore_errors=True)
        flavour = flavour_of("tensorrt", str(self.facts["backendVersion"])) or ""
        asked = accuracy.request_for(NETWORK, self.work, *NETWORK.samples, min_validation=50, flavour=flavour, where=accuracy.EXAMPLE)
        asked = asked.model_copy(update={"variants": list(variants)})
        began = time.monotonic()
        report = prepare(asked, PlainProgress())
        record.add("prepare", {"seconds": round(time.monotonic() - began, 1), "notes": report.notes})
        save(saved, {"request": asked.to_json_dict(), "report": report.to_json_dict()})
        return asked, report


class Record:
    """The JSON that grows, saved after each step. `simulated`: what took the place of hardware; empty on a Jetson."""

    def __init__(self, out: Path, simulated: str, names: dict[Path, str]) -> None:
        self._names = names
        self.dry = bool(simulated)
        self.file = out / ("dry-run.json" if self.dry else "jetson.json")
        self.host = out / ("dry-run-host.json" if self.dry else "host.json")
        self.data: dict[str, Any] = {"simulated": self.dry}
        if self.dry:
            self.data |= {"about": DRY, "standIns": simulated}

    def take_up(self, known: Mapping[str, Any]) -> bool:
        """Go on with what a run left that was cut off; `known`: what must be the same. Else the record begins anew."""
        try:
            left = json.loads(self.file.read_text())
        except (OSError, ValueError):
            return False
        if not isinstance(left, dict) or "failed" in left or any(left.get(name) != value for name, value in {**self.data, **known}.items()):
            return False
        left.pop("failure", None)
        self.data = left
        return True

    def say(self, text: str) -> None:
        print(f"jetson{' (DRY RUN)' if self.dry else ''}: {time.strftime('%H:%M:%S')} {text}", flush=True)

    def add(self, name: str, value: Any) -> None:
        self.data[name] = without_paths(value, self._names)
        save(self.file, self.data)

    def add_case(self, row: Mapping[str, Any], kind: str = "cases") -> None:
        self.add(kind, [*self.data.get(kind, []), row])
        shown = ("precision", "failure", "refused", "dla", "answer", "drop", "build_s", "build_overhead_s", "latency")
        self.say(f"{'on a DLA: ' if kind == 'dla' else ''}{json.dumps({name: row[name] for name in shown if name in row})}")

    def has(self, variant: Variant, kind: str = "cases") -> bool:
        return any(row["precision"] == variant.id for row in self.data.get(kind, []))

    @property
    def failed(self) -> int:
        """Steps that failed, of all runs that this record is of."""
        rows = [*self.data.get("cases", []), *self.data.get("dla", [])]
        return sum("failure" in row for row in rows) + (not self.data.get("kill", {"ok": True})["ok"]) + ("failure" in self.data)


def run(jetson: Jetson, record: Record, variants: Sequence[Variant]) -> None:
    """What the record does not have yet."""
    version = str(jetson.facts["backendVersion"])
    capability = (fingerprint.first_gpu(jetson.facts) or {}).get("computeCapability")
    wanted = [one for one in variants if not precision_refused(one.precision, "tensorrt", version, str(capability) if capability else None)]
    if not wanted:
        record.add("failure", precision_refused(variants[0].precision, "tensorrt", version) or "none of the precisions is to be had here")
        record.say(str(record.data["failure"]))
        return
    asked, prepared = jetson.prepared(wanted, record)
    for variant in wanted:
        made = next(item for item in prepared.prepared if item.variant == variant.id)
        if made.failure and not record.has(variant):
            record.add_case({"precision": variant.id, "failure": made.failure})
        elif not record.has(variant):
            record.add_case({"precision": variant.id, **built(jetson, jetson.request(asked, prepared, variant))})
    proven = [one for one in wanted if any(row["precision"] == one.id and "answer" in row for row in record.data["cases"])]
    # of one size: a DLA takes no other
    fixed = [
        {"name": one.name, "profiles": [{size: [1, *one.profiles[0].opt[1:]] for size in ("min", "opt", "max")}]} for one in asked.inputs
    ]
    alone = PrepareRequest.model_validate(asked.to_json_dict() | {"inputs": fixed})
    for variant in proven:
        if variant.precision in ON_DLA and not record.has(variant, "dla"):
            row = built(jetson, jetson.request(alone, prepared, variant, DLA, 1))
            if str(row.get("failure", "")).startswith(NO_DLA):
                row = {"refused": row["failure"]}
            record.add_case({"precision": variant.id, "dla": share(row.get("warnings", [])), **row}, "dla")
    if proven and "kill" not in record.data:
        record.say("kill a build in the middle")
        request = jetson.request(asked, prepared, proven[-1])
        records = Records(open_store(request.store))
        if not records.builds(request.engine_key):  # cut off in this very step
            build(request, PlainProgress(), jetson.watch())
        blob = records.builds(request.engine_key)[0].blob
        found = killed(request, blob, lambda progress: build(request, progress, jetson.watch()), endless())
        record.add("kill", found)
        record.say(f"kill: {json.dumps(found)}")


def built(jetson: Jetson, request: BuildRequest) -> dict[str, Any]:
    """What is told of one engine, or why there is none."""
    try:
        return {**told(build(request, PlainProgress(), jetson.watch())), **evidence(request)}
    except EngineFleetError as error:
        return {"failure": f"{error.reason}: {error.message}"}


def share(warnings: Sequence[str]) -> dict[str, int]:
    """Layers of the network that `may` run on a DLA, of all `layers`; `parts` of the engine that do, and layers that run on the `gpu`."""
    found = [match.groupdict() for text in warnings if (match := PLACED.match(text))]
    return {name: int(number) for one in found for name, number in one.items() if number}


def evidence(request: BuildRequest) -> dict[str, Any]:
    """What the verdict holds besides the report: memory, and clocks, temperature and load around the measurement."""
    found = Records(open_store(request.store)).newest_verdict(request.engine_key, request.gate_key)
    assert found is not None
    verdict = found[1].to_json_dict()
    return {name: verdict.get(name) for name in ("memory", "conditions", "consistency") if verdict.get(name)}


@contextmanager
def endless() -> Iterator[None]:
    """A stand-in's build would be over before anybody could kill it; the real one does not know the variable."""
    os.environ[ENDLESS] = "1"
    try:
        yield
    finally:
        del os.environ[ENDLESS]


def stand_ins(host: str, folder: Path) -> tuple[str, Path]:
    """(interpreter, root of the fact files) of a dry run: compiled, and this process's variables set for them."""
    release, gpu, dlas = DRY_RUNS[host]
    python = install(folder / "stand-ins", release)
    os.environ |= {"LD_LIBRARY_PATH": str(folder / "stand-ins"), "STANDIN_GPUS": gpu, DLAS: str(dlas)}
    return str(python), plant(host, folder / "root")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests/jetson/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3", help="the interpreter that has TensorRT (default %(default)s, JetPack's)")
    parser.add_argument("--out", type=Path, default=Path("jetson-record"), help="default: %(default)s")
    parser.add_argument("--precision", choices=[one.precision for one in VARIANTS], help="only this one")
    parser.add_argument(
        "--dry-run", choices=sorted(DRY_RUNS), metavar="HOST", help=f"on stand-ins of {', '.join(sorted(DRY_RUNS))}; needs cc"
    )
    options = parser.parse_args(argv)
    out = options.out.resolve()
    with tempfile.TemporaryDirectory(prefix="jetson-") as scratch:
        folder = Path(scratch).resolve()
        python, root = (
            stand_ins(options.dry_run, folder) if options.dry_run else (shutil.which(options.python) or options.python, Path("/"))
        )
        files, seen = Recording(root), device.cuda()
        try:
            runtime = device.facts(python, "tensorrt", files=files)
        except EngineFleetError as error:
            return refuse(
                f"{error.reason}: {error.message}\n{error.hint} Where there is no Jetson, --dry-run HOST shows what would be done."
            )
        facts = fingerprint.combine(host_facts(files), runtime)
        if "jetson" not in facts:
            return refuse(
                "this machine is no Jetson: it has neither /etc/nv_tegra_release nor a device tree of one. --dry-run shows what would be done."
            )
        simulated = str(facts.get("simulated", "")) or ("--dry-run" if options.dry_run else "")
        if simulated and out.is_relative_to(DOCS):
            return refuse(f"what was simulated is no record of hardware and is not written below {DOCS}.")
        out.mkdir(parents=True, exist_ok=True)
        work = out / "work"
        names = {folder: "<work>", work: "<work>", out: "<out>", ROOT: "<checkout>", Path.home(): "~"}
        record = Record(out, simulated, {path: name for path, name in names.items() if path != Path("/")})
        record.say(fingerprint.summary(facts))
        if simulated:
            record.say(DRY)
        variants = [one for one in VARIANTS if options.precision in (None, one.precision)]
        known = {
            "fingerprint": fingerprint.identify(facts),
            "asked": [one.id for one in variants],
            "driverPython": platform.python_version(),
        }
        if work.is_dir() and record.take_up(known):
            record.add("resumed", int(record.data.get("resumed", 0)) + 1)
            record.say(f"goes on with {record.file}, which was cut off")
        else:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            record.add("date", dt.datetime.now(dt.UTC).date().isoformat())
            record.add("device", fingerprint.summary(facts))
            for name, value in known.items():
                record.add(name, value)
            record.add("facts", facts)
            record.add("unknown", fingerprint.unknowns(facts))
            record.add("before", device.state(seen, files).text())
        try:
            run(Jetson(python, files, seen, facts, work), record, variants)
        except EngineFleetError as error:
            record.add("failure", f"{error.reason}: {error.message}")
            record.say(f"{error.reason}: {error.message}\n{error.hint}")
        except KeyboardInterrupt:
            record.add("failure", "Stopped: interrupted before the end")
            record.say(f"stopped; {record.file} has what was done until then, and the same command goes on from there")
            return 130
        record.add("after", device.state(seen, files).text())
        source = (
            f"invented or as tests/hosts/{options.dry_run}.json says" if simulated else "NVIDIA's Jetson Linux, read by tests/jetson/run"
        )
        save(record.host, files.fixture(DRY if simulated else str(record.data["device"]), source))
        failed = record.failed
        record.add("failed", failed)
        shutil.rmtree(work)
        record.say(f"{record.file} and {record.host}" + (f"; {failed} steps FAILED" if failed else ""))
        if simulated:
            record.say(DRY)
    return 1 if failed else 0


def refuse(why: str) -> int:
    print(f"jetson: {why}", flush=True)
    return 2
