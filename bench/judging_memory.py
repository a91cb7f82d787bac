"""Peak memory of building and judging with encoded pictures of 640 x 640: docs/benchmarks/judging-memory.json. It must not grow with their number.

    .venv/bin/python -m bench.judging_memory [--samples 200 1000]

`enginefleet prepare` and `enginefleet build` by hand, with ONNX Runtime: what is measured is the `build` command and its largest child, as the kernel
tells it. The pictures are noise, so the answer says nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from PIL import Image

from bench.chain import machine
from bench.quantizer_memory import SIDE, network
from tools.bootstrap import ROOT

RESULT = ROOT / "docs" / "benchmarks" / "judging-memory.json"
CLASSES = 64
ENGINEFLEET = str(Path(sys.executable).with_name("enginefleet"))
MEASURED = """
import json, resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=sys.stderr).returncode
print(json.dumps({"code": code, "peakMb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3)}))
"""
"""The largest process of a command and of what it started and waited for."""


def classifier() -> onnx.ModelProto:
    model = network()
    model.graph.node.append(helper.make_node("Flatten", ["pooled"], ["logits"]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", CLASSES]))
    return model


def pictures(folder: Path, samples: int) -> None:
    """A folder a class. JPEG of smooth noise: about 100 KB each."""
    for index in range(samples):
        target = folder / f"{index % CLASSES:02}"
        target.mkdir(parents=True, exist_ok=True)
        coarse = np.random.default_rng(index).integers(0, 255, (80, 80, 3), np.uint8)
        Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(target / f"{index:05}.jpg", quality=90)


def one(samples: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="judging-") as name:
        folder = Path(name)
        onnx.save(classifier(), folder / "model.onnx")
        pictures(folder / "validation", samples)
        (folder / "store").mkdir()
        spec = {
            "preprocessing": {"resize": "letterbox", "size": [SIDE, SIDE], "scale": "1/255"},
            # its weights and labels are drawn: it is at chance, and is meant to be
            "validation": {"baseline": {"expected": "0", "tolerance": "0.2"}},
            "inputs": [{"name": "images", "profiles": [{"min": [1, 3, SIDE, SIDE], "opt": [4, 3, SIDE, SIDE], "max": [4, 3, SIDE, SIDE]}]}],
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        common = ["--spec", str(folder / "spec.json"), "--validation", str(folder / "validation"), "--store", str(folder / "store")]
        prepare = [ENGINEFLEET, "prepare", "--model", str(folder / "model.onnx"), "--precision", "fp32", *common, "--json"]
        told = subprocess.run(prepare, stdout=subprocess.PIPE, text=True, check=True).stdout
        prepared = re.search(r'"preparedKey": ?"([0-9a-f]+)"', told)
        baseline = re.search(r'"baselineKey": ?"([0-9a-f]+)"', told)
        assert prepared is not None, told
        assert baseline is not None, told
        build = [ENGINEFLEET, "build", "--prepared", prepared[1], "--baseline", baseline[1], "--max-drop", "0.01", *common]
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-c", MEASURED, *build], stdout=subprocess.PIPE, text=True, check=True)
        encoded = sum(file.stat().st_size for file in (folder / "validation").rglob("*.jpg"))
        seconds = round(time.monotonic() - began, 1)
        return {"samples": samples, "encodedMb": round(encoded / 1e6), **json.loads(done.stdout), "seconds": seconds}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.judging_memory", description=__doc__)
    parser.add_argument("--samples", nargs="+", type=int, default=[200, 1000])
    options = parser.parse_args(argv)
    rows = []
    for samples in options.samples:
        rows.append(one(samples))
        print(f"bench: {rows[-1]}", file=sys.stderr, flush=True)
    RESULT.write_text(json.dumps({"machine": machine(), "side": SIDE, "rows": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
