"""A detector and a segmenter whose outputs can be worked out by hand, and pictures of coloured squares for them.

A picture of 128 x 96 is a grid of squares of 16 pixels; it reaches the model letterboxed to 64 x 64, where a square is a cell of 8. The detector
says YOLO's columns for each cell: score of class c = 2 x (mean of colour c) - 1, so a square of brightness 0.8 is found with 0.6.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from PIL import Image

from enginefleet_api.resources import Decoder, Preprocessing

WIDTH, HEIGHT, SQUARE = 128, 96, 16
SIDE, CELL = 64, 8
CLASSES = ("red", "green", "blue")
PREPROCESSING = Preprocessing(resize="letterbox", size=[SIDE, SIDE], scale="1/255")
YOLO = Decoder(kind="yolo", confidence="0.05")
BACKGROUND = 70


def detector(
    *, gain: float = 1.0, blind: int | None = None, batch: int | str = "batch", metadata: dict[str, str] | None = None
) -> ModelProto:
    """`gain` multiplies scores; class `blind` is never found."""
    weights = np.zeros((3, 3, CELL, CELL), np.float32)
    for label in range(3):
        weights[label, label] = 0.0 if label == blind else 2 * gain / CELL**2
    cells = SIDE // CELL
    rows, columns = np.mgrid[:cells, :cells]
    centres = [(columns.ravel() + 0.5) * CELL, (rows.ravel() + 0.5) * CELL]
    boxes = np.stack([*centres, *[np.full(cells**2, CELL)] * 2])[None].astype(np.float32)
    constants = {
        "w": weights,
        "b": np.full(3, -gain, np.float32),
        "boxes": boxes,
        "flat": np.array([0, 3, -1]),
        "first": np.array([0]),
        "second": np.array([1]),
        "axis": np.array([1]),
        "zero": np.zeros(1, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["images", "w", "b"], ["conv"], "conv", strides=[CELL, CELL]),
        helper.make_node("Relu", ["conv"], ["relu"], "relu"),
        helper.make_node("Reshape", ["relu", "flat"], ["scores"], "reshape"),
        helper.make_node("Slice", ["scores", "first", "second", "axis"], ["one"], "slice"),
        helper.make_node("Mul", ["one", "zero"], ["nothing"], "mul"),
        helper.make_node("Add", ["nothing", "boxes"], ["placed"], "add"),
        helper.make_node("Concat", ["placed", "scores"], ["output0"], "concat", axis=1),
    ]
    return _model(nodes, constants, [batch, 3, SIDE, SIDE], {"output0": [batch, 7, cells**2]}, metadata)


def segmenter(*, blind: int | None = None) -> ModelProto:
    """Scores of background and the three colours for each pixel; the brightest wins where it is above 0.5."""
    weights = np.zeros((4, 3, 1, 1), np.float32)
    for label in range(3):
        weights[label + 1, label] = 0.0 if label == blind else 2.0
    constants = {"w": weights, "b": np.array([0, -1, -1, -1], np.float32)}
    nodes = [helper.make_node("Conv", ["images", "w", "b"], ["scores"], "conv")]
    return _model(nodes, constants, ["batch", 3, HEIGHT, WIDTH], {"scores": ["batch", 4, HEIGHT, WIDTH]})


def _model(
    nodes: list[Any],
    constants: dict[str, NDArray[Any]],
    shape: list[Any],
    outputs: dict[str, list[Any]],
    metadata: dict[str, str] | None = None,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "drawn",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, metadata or {})
    return model


def draw(
    random: np.random.Generator, brightness: tuple[float, float] = (0.55, 1.0)
) -> tuple[NDArray[np.uint8], list[tuple[int, int, int]]]:
    """(pixels, squares): each square as (row, column, class) of the grid, in pure colours of some brightness on a dark ground."""
    pixels = np.full((HEIGHT, WIDTH, 3), BACKGROUND, np.uint8)
    rows, columns = HEIGHT // SQUARE, WIDTH // SQUARE
    squares = []
    for place in random.choice(rows * columns, int(random.integers(1, 5)), replace=False):
        row, column = divmod(int(place), columns)
        label = int(random.integers(3))
        area = pixels[row * SQUARE : (row + 1) * SQUARE, column * SQUARE : (column + 1) * SQUARE]
        area[:] = 0
        area[:, :, label] = round(255 * random.uniform(*brightness))
        squares.append((row, column, label))
    return pixels, squares


def coco_set(folder: Path, count: int, seed: int = 1) -> Path:
    """COCO with a column `scene`: at night squares are darker. One in ten squares has no label, so that no detector is perfect."""
    random = np.random.default_rng(seed)
    images, annotations = [], []
    (folder / "images").mkdir(parents=True)
    for number in range(count):
        night = number % 4 == 0
        pixels, squares = draw(random, (0.55, 0.75) if night else (0.7, 1.0))
        Image.fromarray(pixels).save(folder / "images" / f"{number:04}.png")
        scene = "night" if night else "day"
        images.append({"id": number + 1, "file_name": f"{number:04}.png", "width": WIDTH, "height": HEIGHT, "scene": scene})
        annotations += [
            {"image_id": number + 1, "category_id": label + 1, "bbox": [column * SQUARE, row * SQUARE, SQUARE, SQUARE], "iscrowd": 0}
            for row, column, label in squares
            if random.random() > 0.1
        ]
    categories = [{"id": number + 1, "name": name} for number, name in enumerate(CLASSES)]
    labelled = [{"id": number, "area": SQUARE**2, **item} for number, item in enumerate(annotations, start=1)]
    (folder / "annotations.json").write_text(json.dumps({"images": images, "categories": categories, "annotations": labelled}))
    return folder


def mask_set(folder: Path, count: int, seed: int = 1) -> Path:
    """Pictures and masks: 0 is the background, 1 to 3 the colours; the left edge does not count."""
    random = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    (folder / "masks").mkdir()
    for number in range(count):
        pixels, squares = draw(random)
        mask = np.zeros((HEIGHT, WIDTH), np.uint8)
        for row, column, label in squares:
            mask[row * SQUARE : (row + 1) * SQUARE, column * SQUARE : (column + 1) * SQUARE] = label + 1
        mask[:, :4] = 255
        Image.fromarray(pixels).save(folder / "images" / f"{number:04}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{number:04}.png")
    return folder
