"""The example model rescaled so that INT8 loses what FP32 and FP16 keep; outputs in FP32 stay the same, bit by bit.

PYTHONPATH=. python examples/mnist/hard_models.py one-layer FOLDER     plain INT8 fails, keeping one layer in higher precision repairs it
PYTHONPATH=. python examples/mnist/hard_models.py every-layer FOLDER   nothing repairs INT8, FP16 is fine

Between two layers each channel is multiplied by a power of two of its own, and the next layer's weights divide by it. Relu and MaxPool let such
factors pass, and powers of two round nothing. But a scale for the whole tensor must now hold the largest channel, and leaves no steps to the
small ones; the weights of the next layer have the same trouble.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

MODEL = Path(__file__).resolve().parent / "model.onnx"
LAYERS = ("f.0", "f.3", "f.7", "f.11", "f.16")
"""In order; each has `<name>.weight` (first axis outputs, second inputs), all but the last `<name>.weight_bias`."""
KINDS: Mapping[str, Sequence[int]] = {"one-layer": (1,), "every-layer": (0, 1, 2, 3)}
"""After which of LAYERS the channels are rescaled."""
FACTORS = np.exp2(np.arange(11)).astype(np.float32)
"""1 to 1024: enough for INT8 to fail, and far from where FP16 ends."""


def hard_model(kind: str) -> ModelProto:
    """`one-layer` or `every-layer`."""
    model: ModelProto = onnx.load(MODEL)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for layer in KINDS[kind]:
        before, after = LAYERS[layer], LAYERS[layer + 1]
        channels = weights[f"{before}.weight"].dims[0]
        # neighbours get unlike factors
        factors = FACTORS[np.arange(channels) * 7 % len(FACTORS)]
        for name in (f"{before}.weight", f"{before}.weight_bias"):
            _multiply(weights[name], factors, axis=0)
        _multiply(weights[f"{after}.weight"], 1 / factors, axis=1)
    return model


def _multiply(tensor: onnx.TensorProto, factors: np.ndarray[tuple[int, ...], np.dtype[np.float32]], axis: int) -> None:
    values = numpy_helper.to_array(tensor)
    shape = [1] * values.ndim
    shape[axis] = len(factors)
    tensor.CopyFrom(numpy_helper.from_array((values * factors.reshape(shape)).astype(np.float32), tensor.name))


def main(argv: Sequence[str]) -> int:
    if len(argv) != 2 or argv[0] not in KINDS:
        print(f"usage: hard_models.py {'|'.join(KINDS)} FOLDER", file=sys.stderr)
        return 2
    folder = Path(argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(hard_model(argv[0]), folder / "model.onnx")
    print(folder / "model.onnx")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
