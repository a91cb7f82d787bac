"""Runs under the interpreter that has torch: a .pt2 file of torch.export to ONNX. Nothing of ours is imported; see export.py.

Standard input: {"model", "target", "opset"} as JSON. It says what is wrong in the last line, and ends with 1.
"""

import importlib
import json
import sys
from typing import Any


def main() -> int:
    asked = json.load(sys.stdin)
    try:
        torch: Any = importlib.import_module("torch")
        importlib.import_module("onnxscript")
    except ImportError as error:
        print(error)
        return 1
    try:
        program = torch.export.load(asked["model"])
        torch.onnx.export(program, (), asked["target"], opset_version=asked["opset"], dynamo=True, external_data=False)
    # whatever it is, a line of it is the answer
    except Exception as error:  # noqa: BLE001
        print(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
