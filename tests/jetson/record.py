"""EngineFleet on a Jetson, without Kubernetes: probe, prepare, build, judge, measure, kill in mid-build; one record and the host's fact files.

    tests/jetson/run [--python INTERPRETER] [--out FOLDER] [--precision NAME]        on a Jetson
    tests/jetson/run --dry-run HOST                                                  anywhere: on stand-ins, proves nothing about hardware

Writes FOLDER/jetson.json and FOLDER/host.json (a dry run: FOLDER/dry-run.json and FOLDER/dry-run-host.json), the record after each step. See README.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
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
from enginefleet_api.flavours import flavour_of, precision_refused
from enginefleet_api.jobs import BuildRequest, PrepareReport, PrepareRequest
from enginefleet_api.keys import recipe_of
from enginefleet_api.resources import BuildSettings
from enginefleet_api.variants import Variant
from enginefleet_builder import device
from enginefleet_builder.build.job import build
from enginefleet_builder.build.watch import Watch
from enginefleet_builder.io import PlainProgress
from enginefleet_builder.prepare.job import prepare
from enginefleet_builder.probe import host_facts
from enginefleet_builder.store import open_store
from enginefleet_builder.store.records import Records
from tests.builder.standins.computing import ENDLESS, install
from tests.device_runs import build_request, killed, save, told
from tests.hosts.trees import plant
from tests.jetson.hostrecord import Recording, without_paths

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NETWORK = accuracy.Network("digits", "examples/mnist", "", (512, 1000), accuracy.example, inputs=accuracy.dynamic("x", 1, 28, 28))
"""Shipped: 60,000 weights, trained on real handwritten digits; 512 to calibrate with, 1,000 others to judge by."""
BATCH = 16
VARIANTS = (Variant(precision="fp32"), Variant(precision="fp16"), Variant(precision="int8", method="entropy"))
DRY_RUNS = {
    "jetpack-5.1": ("8.5", "Orin|8|7|16|1|0|62840|0000:00:00.0"),
    "jetpack-6.0": ("8.6.0", "Orin|8|7|8|1|0|15656|0000:00:00.0"),
    "jetpack-6.2": ("10.3.0", "Orin|8|7|8|1|0|7620|0000:00:00.0"),
    "jetpack-7.2": ("10.16.1", "Orin|8|7|16|1|0|62840|0000:00:00.0"),
}
"""By the tree of fact files in tests/hosts: the double of TensorRT, and what the stand-in of CUDA says; see tests/builder/standins."""
DRY = "DRY RUN ON STAND-INS: no Jetson, no GPU and no TensorRT had a part in this. Its figures mean nothing."


@dataclass(frozen=True, slots=True)
class Jetson:
    """Where it runs: `python` owns TensorRT, `files` are the host's, `work` is thrown away afterwards."""

    python: str
    files: Recording
    seen: Mapping[str, Any]
    facts: Mapping[str, Any]
    work: Path

    def watch(self) -> Watch:
        return Watch(lambda: device.state(self.seen, self.files).text(), self.files.root)

    def request(self, asked: PrepareRequest, prepared: PrepareReport, variant: Variant) -> BuildRequest:
        recipe = recipe_of(BuildSettings(), asked.inputs, backend="tensorrt", precision=variant.precision)
        return build_request(
            asked, prepared, variant, facts=self.facts, recipe=recipe, python=self.python, batch=BATCH, holder="jetson-test"
        )


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

    def say(self, text: str) -> None:
        print(f"jetson{' (DRY RUN)' if self.dry else ''}: {time.strftime('%H:%M:%S')} {text}", flush=True)

    def add(self, name: str, value: Any) -> None:
        self.data[name] = without_paths(value, self._names)
        save(self.file, self.data)

    def add_case(self, row: Mapping[str, Any]) -> None:
        self.add("cases", [*self.data.get("cases", []), row])
        shown = ("precision", "failure", "answer", "drop", "build_s", "build_overhead_s", "latency")
        self.say(json.dumps({name: row[name] for name in shown if name in row}))


def run(jetson: Jetson, record: Record, variants: Sequence[Variant]) -> int:
    """The number of steps that failed."""
    version = str(jetson.facts["backendVersion"])
    flavour = flavour_of("tensorrt", version)
    capability = (fingerprint.first_gpu(jetson.facts) or {}).get("computeCapability")
    wanted = [one for one in variants if not precision_refused(one.precision, "tensorrt", version, str(capability) if capability else None)]
    if flavour is None or not wanted:
        refused = precision_refused(variants[0].precision, "tensorrt", version)
        record.add("failure", refused or "none of the precisions is to be had here")
        record.say(str(record.data["failure"]))
        return 1
    record.say(f"prepare {', '.join(one.id for one in wanted)}")
    asked = accuracy.request_for(NETWORK, jetson.work, *NETWORK.samples, min_validation=50, flavour=flavour, where=accuracy.EXAMPLE)
    asked = asked.model_copy(update={"variants": wanted})
    began = time.monotonic()
    prepared = prepare(asked, PlainProgress())
    record.add("prepare", {"seconds": round(time.monotonic() - began, 1), "notes": prepared.notes})
    failed, proven = 0, None
    for variant in wanted:
        made = next(item for item in prepared.prepared if item.variant == variant.id)
        if made.failure:
            record.add_case({"precision": variant.id, "failure": made.failure})
            failed += 1
            continue
        request = jetson.request(asked, prepared, variant)
        try:
            built = build(request, PlainProgress(), jetson.watch())
        except EngineFleetError as error:
            record.add_case({"precision": variant.id, "failure": f"{error.reason}: {error.message}"})
            failed += 1
            continue
        record.add_case({"precision": variant.id, **told(built), **evidence(request)})
        proven = request
    if proven is not None:
        record.say("kill a build in the middle")
        blob = Records(open_store(proven.store)).builds(proven.engine_key)[0].blob
        found = killed(proven, blob, lambda progress: build(proven, progress, jetson.watch()), endless())
        record.add("kill", found)
        record.say(f"kill: {json.dumps(found)}")
        failed += not found["ok"]
    return failed


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
    release, gpu = DRY_RUNS[host]
    python = install(folder / "stand-ins", release)
    os.environ |= {"LD_LIBRARY_PATH": str(folder / "stand-ins"), "STANDIN_GPUS": gpu}
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
        names = {folder: "<work>", out: "<out>", ROOT: "<checkout>", Path.home(): "~"}
        record = Record(out, simulated, {path: name for path, name in names.items() if path != Path("/")})
        record.say(fingerprint.summary(facts))
        if simulated:
            record.say(DRY)
        record.add("date", dt.datetime.now(dt.UTC).date().isoformat())
        record.add("device", fingerprint.summary(facts))
        record.add("fingerprint", fingerprint.identify(facts))
        record.add("facts", facts)
        record.add("unknown", fingerprint.unknowns(facts))
        record.add("driverPython", platform.python_version())
        jetson = Jetson(python, files, seen, facts, folder)
        record.add("before", device.state(seen, files).text())
        try:
            failed = run(jetson, record, [one for one in VARIANTS if options.precision in (None, one.precision)])
        except EngineFleetError as error:
            record.add("failure", f"{error.reason}: {error.message}")
            record.say(f"{error.reason}: {error.message}\n{error.hint}")
            failed = 1
        except KeyboardInterrupt:
            record.add("failure", "Stopped: interrupted before the end")
            record.say(f"stopped; {record.file} has what was done until then, and the next run begins anew")
            return 130
        record.add("after", device.state(seen, files).text())
        source = (
            f"invented or as tests/hosts/{options.dry_run}.json says" if simulated else "NVIDIA's Jetson Linux, read by tests/jetson/run"
        )
        save(record.host, files.fixture(DRY if simulated else str(record.data["device"]), source))
        record.add("failed", failed)
        record.say(f"{record.file} and {record.host}" + (f"; {failed} steps FAILED" if failed else ""))
        if simulated:
            record.say(DRY)
    return 1 if failed else 0


def refuse(why: str) -> int:
    print(f"jetson: {why}", flush=True)
    return 2
