"""Print one validation image as a request of the Open Inference Protocol (v2), for `curl -d @- http://…/v2/models/<name>/infer`.

python make_request.py [index]      the image's label goes to standard error
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

INPUT = "x"
"""Name of the model's input: float32 of shape [batch, 1, 28, 28], values 0 to 1."""


def make_request(index: int) -> tuple[dict[str, Any], int]:
    """(request, label) of one validation image."""
    with np.load(Path(__file__).parent / "validation.npz") as archive:
        image, label = archive["images"][index : index + 1], int(archive["labels"][index])
    tensor = {"name": INPUT, "datatype": "FP32", "shape": list(image.shape), "data": image.ravel().tolist()}
    return {"id": f"validation-{index}", "inputs": [tensor]}, label


if __name__ == "__main__":
    request, answer = make_request(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(json.dumps(request))
    print(f"label {answer}", file=sys.stderr)
