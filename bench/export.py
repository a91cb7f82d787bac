"""Real PyTorch files through prepare, by a real Ultralytics and torch: docs/benchmarks/export.json.

    .venv/bin/python -m bench.export

Makes an environment of requirements/export.lock in the cache folder: Ultralytics, which is under the AGPL-3.0 and runs in processes of its own only, and
torch with CUDA (6 GB). Networks have random weights, so nothing is downloaded but packages. Each file is prepared as a user does it by hand, and the
ONNX file that comes out is compared in ONNX Runtime with what torch computed. What must be refused is tried as well.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bench.chain import machine
from enginefleet_api.jobs import StoreRef
from enginefleet_builder.backends.onnxruntime import open_session
from enginefleet_builder.io import Progress
from enginefleet_builder.prepare import export
from enginefleet_builder.store import open_store
from enginefleet_builder.store.records import Records
from tools.bootstrap import ROOT, kept_environment

RESULT = ROOT / "docs" / "benchmarks" / "export.json"
LOCK = ROOT / "requirements" / "export.lock"
CHILD = Path(__file__).with_name("export_child.py")
CASES: Mapping[str, list[str]] = {
    "detector.pt": ["--export-size", "96x160"],
    "classifier.pt": ["--export-size", "64x64"],
    "fixed batch.pt2": [],
    "free batch.pt2": [],
}
"""File → options of prepare."""
CLOSE = 1e-3
"""Largest difference to torch, of the largest value: exporters fuse layers, and sum in another order."""


WAYS: Mapping[str, str] = {"namespaces": "", "filter": "unshare 272 97, setns 308 268, mount 165 40"}
"""How the exporter is isolated → the system calls that are refused to prepare, so that it has to be: by its default profile a container runtime
refuses these too."""
BEHIND = """
import os, platform, sys
from enginefleet_builder import seccomp
if sys.argv[1]:
    seccomp.install(seccomp.filter_steps(platform.machine(), [sys.argv[1]]))
os.execv(sys.argv[2], sys.argv[2:])
"""


class _Connects:
    """A pickle of it opens a connection when it is read."""

    def __init__(self, port: int) -> None:
        self._port = port

    def __reduce__(self) -> tuple[Any, ...]:
        return socket.create_connection, (("127.0.0.1", self._port), 2)


def prepared(python: Path, way: str, file: Path, store: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """(exit code, report or fault) of `enginefleet prepare`, by hand."""
    behind = [sys.executable, "-c", BEHIND, WAYS[way]]
    command = [
        *behind,
        sys.executable,
        "-m",
        "enginefleet_builder.main",
        "prepare",
        "--json",
        "--store",
        str(store),
        "--model",
        str(file),
        *options,
    ]
    done = subprocess.run(command, env=os.environ | {export.PYTHON_VARIABLE: str(python)}, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def compared(report: dict[str, Any], store: Path, name: str, folder: Path) -> dict[str, Any]:
    """What the prepared ONNX file computes, beside torch."""
    records = Records(open_store(StoreRef(uri=store.as_uri())))
    manifest = records.prepared(report["prepared"][0]["preparedKey"])
    assert manifest is not None
    made = folder / f"{store.name}, {name} made"
    made.mkdir()
    records.fetch_prepared(manifest, made, progress=Progress())
    given, wanted = np.load(folder / f"{name}.input.npy"), np.load(folder / f"{name}.output.npy")
    with open_session(made / manifest.files[0].path, "auto", Progress()) as session:
        answer = session.run({manifest.inputs[0].name: given})[manifest.outputs[0].name]
    assert answer.shape == wanted.shape, (answer.shape, wanted.shape)
    difference = float(np.abs(answer - wanted).max())
    assert difference <= CLOSE * float(np.abs(wanted).max()), (name, difference)
    return {
        "inputs": {spec.name: list(spec.shape) for spec in manifest.inputs},
        "outputs": {spec.name: list(spec.shape) for spec in manifest.outputs},
        "largestDifference": f"{difference:.2g}",
        "largestValue": f"{float(np.abs(wanted).max()):.3g}",
        "metadata": sorted(manifest.metadata),
        "notes": [note for note in report["notes"] if note.startswith("exported")],
    }


def refusals(python: Path, way: str, folder: Path, store: Path) -> list[dict[str, Any]]:
    """A file that nobody allowed to run, and a pickle that opens a connection while it is read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        (folder / "hostile.pt").write_bytes(pickle.dumps(_Connects(server.getsockname()[1])))
        rows = []
        for what, file, options in (
            ("a .pt file without leave to run it", "detector.pt", []),
            ("a .pt2 file without leave to run it", "free batch.pt2", []),
            ("a pickle that connects to a server of this machine", "hostile.pt", ["--export", "isolated"]),
        ):
            code, answer = prepared(python, way, folder / file, store, *options)
            assert code != 0, what
            rows.append({"case": what, "isolation": way, "exitCode": code} | {key: answer["failure"][key] for key in ("reason", "message")})
        try:
            server.accept()
        except BlockingIOError:
            rows[-1]["connections"] = 0
        else:
            raise AssertionError("the pickle reached a server of this machine")
    return rows


def main() -> int:
    python = kept_environment(LOCK).python
    rows = []
    with tempfile.TemporaryDirectory(prefix="export-") as name:
        folder, store = Path(name), Path(name) / "store"
        environment = {"PATH": os.defpath, "HOME": name, "YOLO_CONFIG_DIR": name, "YOLO_AUTOINSTALL": "false", "YOLO_OFFLINE": "true"}
        subprocess.run(
            [str(python), str(CHILD)],
            input=json.dumps({"folder": name}),
            text=True,
            check=True,
            env=environment,
            cwd=name,
            stdout=sys.stderr,
        )
        refused = []
        for way in WAYS:
            for file, options in CASES.items():
                began = time.monotonic()
                here = store / way
                code, report = prepared(python, way, folder / file, here, "--export", "isolated", *options)
                assert code == 0, report
                took = {"file": file, "options": options, "isolation": way, "seconds": round(time.monotonic() - began, 1)}
                rows.append(took | compared(report, here, Path(file).stem, folder))
                print(f"bench: {rows[-1]}", file=sys.stderr, flush=True)
            refused += refusals(python, way, folder, store / way)
        versions = json.loads((folder / "versions.json").read_text()) | {"onnxruntime": version("onnxruntime")}
    result = {
        "date": datetime.now(UTC).date().isoformat(), "machine": machine(), "versions": versions, "cases": rows, "refused": refused,
    }  # fmt: skip
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
