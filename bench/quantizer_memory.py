"""Peak memory of quantizing with pictures of 640 x 640: docs/benchmarks/quantizer-memory.json. It must not grow with their number.

    .venv/bin/python -m bench.quantizer_memory [--samples 200 1000] [--flavour tensorrt-8] [--method repaired]

What was measured before of other flavours, methods and numbers stays. `repaired` calibrates by both methods, and then searches for the layers to keep.
Pictures are made when they are asked for, so that what is measured is the quantizer. Each measurement is a process of its own; for ModelOpt the
process that holds it is its child. Resident memory of process and children is read from the kernel.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.chain import machine
from enginefleet_api.resources import Calibration
from enginefleet_api.variants import Variant
from enginefleet_builder.gate.samples import Dataset
from enginefleet_builder.io import Progress
from enginefleet_builder.prepare.convert import Converter
from tools.bootstrap import ROOT

RESULT = ROOT / "docs" / "benchmarks" / "quantizer-memory.json"
FLAVOURS = ("onnxruntime", "tensorrt-10", "tensorrt-8")
METHODS = ("max", "entropy", "repaired")
SIDE = 640


def network() -> onnx.ModelProto:
    """Convolutions of strides 2, 2, 2 and 1 with 16 to 64 channels, as in the first stages of a detector."""
    random = np.random.default_rng(0)
    nodes, weights, name, channels = [], [], "images", 3
    for number, (width, stride) in enumerate(((16, 2), (32, 2), (64, 2), (64, 1))):
        weights.append(numpy_helper.from_array(random.normal(0, 0.2, (width, channels, 3, 3)).astype(np.float32), f"w{number}"))
        nodes.append(
            helper.make_node("Conv", [name, f"w{number}"], [f"c{number}"], f"conv{number}", strides=[stride] * 2, pads=[1, 1, 1, 1])
        )
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"], f"relu{number}"))
        name, channels = f"r{number}", width
    nodes.append(helper.make_node("GlobalAveragePool", [name], ["pooled"], "pool"))
    graph = helper.make_graph(
        nodes,
        "stem",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ["batch", channels, 1, 1])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def picture(index: int) -> dict[str, Any]:
    return {"": np.random.default_rng(index).random((3, SIDE, SIDE), np.float32)}


def one(flavour: str, method: str, samples: int) -> dict[str, Any]:
    """In this process: what it took."""
    began = time.monotonic()
    variant = {"precision": "int8", "repaired": True} if method == "repaired" else {"precision": "int8", "method": method}
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        folder = Path(name)
        onnx.save(network(), folder / "model.onnx")
        dataset = Dataset(samples, None, (), picture)
        with Converter(folder / "model.onnx", Calibration(uri="file:///x"), dataset, [], folder / "scratch", Progress()) as made:
            made.make(flavour, Variant.model_validate(variant), folder / "out")
    own, child = (resource.getrusage(who).ru_maxrss / 1e3 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = round(time.monotonic() - began, 1)
    return {
        "flavour": flavour, "method": method, "samples": samples, "peakMb": round(own), "largestChildMb": round(child), "seconds": seconds,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.quantizer_memory", description=__doc__)
    parser.add_argument("--samples", nargs="+", type=int, default=[200, 1000])
    parser.add_argument("--flavour", nargs="+", choices=FLAVOURS, default=FLAVOURS)
    parser.add_argument("--method", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--one", nargs=3, metavar=("FLAVOUR", "METHOD", "SAMPLES"), help="measure in this process and print it")
    options = parser.parse_args(argv)
    if options.one:
        flavour, method, samples = options.one
        print(json.dumps(one(flavour, method, int(samples))))
        return 0
    cpu = machine()["cpu"]
    for flavour, method, samples in itertools.product(options.flavour, options.method, options.samples):
        command = [sys.executable, "-m", "bench.quantizer_memory", "--one", flavour, method, str(samples)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1]) | {"cpu": cpu}
        print(f"bench: {row}", file=sys.stderr, flush=True)
        write(row)
    return 0


def write(row: Mapping[str, Any]) -> None:
    def place(row: Mapping[str, Any]) -> tuple[int, int, int]:
        return FLAVOURS.index(row["flavour"]), METHODS.index(row["method"]), row["samples"]

    before = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    rows = sorted([*(other for other in before if place(other) != place(row)), row], key=place)
    RESULT.write_text(json.dumps({"side": SIDE, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
