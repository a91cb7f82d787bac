"""Runs under the interpreter that has Ultralytics (AGPL-3.0) and torch, in its own process: makes PyTorch files with random weights, and what torch
itself computes with them. Nothing of ours is imported; bench/export.py starts it.

Standard input: {"folder"} as JSON. Written there: NAME.pt or NAME.pt2, NAME.input.npy, NAME.output.npy; versions.json.
"""

import importlib
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

YOLO = {"detector": ("yolo11n.yaml", (96, 160)), "classifier": ("yolo11n-cls.yaml", (64, 64))}


def main() -> int:
    folder = Path(json.load(sys.stdin)["folder"])
    torch: Any = importlib.import_module("torch")
    ultralytics: Any = importlib.import_module("ultralytics")
    torch.set_num_threads(1)

    def keep(name: str, given: Any, answer: Any) -> None:
        np.save(folder / f"{name}.input.npy", given.numpy())
        np.save(folder / f"{name}.output.npy", answer.detach().float().numpy())

    for name, (layout, (height, width)) in YOLO.items():
        torch.manual_seed(0)
        made = ultralytics.YOLO(layout)
        made.model.train()
        with torch.no_grad():
            for _ in range(3):
                # statistics of its batch norms: without them outputs are nearly constant
                made.model(torch.rand(4, 3, height, width))
        made.save(str(folder / f"{name}.pt"))
        # as a reader of the file gets it: saving rounds weights to FP16
        network = ultralytics.YOLO(str(folder / f"{name}.pt")).model.float().eval()
        given = torch.rand(1, 3, height, width)
        with torch.no_grad():
            keep(name, given, _first(network(given)))
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(128, 10)
    ).eval()
    given = torch.rand(2, 3, 16, 16)
    for name, sizes in (("fixed batch", None), ("free batch", ({0: torch.export.Dim("batch", min=1, max=64)},))):
        torch.export.save(torch.export.export(network, (given,), dynamic_shapes=sizes), folder / f"{name}.pt2")
        keep(name, given, network(given))
    (folder / "versions.json").write_text(
        json.dumps({package: version(package) for package in ("torch", "ultralytics", "onnx", "onnxscript")})
    )
    return 0


def _first(answer: Any) -> Any:
    """The predictions: the first tensor of what a network in eval mode answers."""
    return _first(answer[0]) if isinstance(answer, (tuple, list)) else answer


if __name__ == "__main__":
    sys.exit(main())
