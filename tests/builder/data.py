"""Small data sets in every format, drawn here; the bad ones are these with something changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 40, 30
SIZE = (WIDTH, HEIGHT)


def picture(file: Path, seed: int = 0, size: tuple[int, int] = SIZE) -> Path:
    """Colours that change slowly, so that it looks like no noise."""
    rows, columns = np.mgrid[0 : size[1], 0 : size[0]]
    waves = [127 + 120 * np.sin(rows / (5 + seed % 7) + columns / (6 + channel) + seed) for channel in range(3)]
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.stack(waves, axis=2).astype(np.uint8)).save(file)
    return file


def write(file: Path, text: str | bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def class_folders(root: Path, *names: str, each: int = 2) -> Path:
    for label, name in enumerate(names):
        for number in range(each):
            picture(root / name / f"{number}.png", seed=10 * label + number)
    return root


def coco_document() -> dict[str, Any]:
    """Two pictures; category ids with gaps; a crowd; a column `scene`."""
    return {
        "images": [
            {"id": 7, "file_name": "a.png", "width": WIDTH, "height": HEIGHT, "scene": "day"},
            {"id": 3, "file_name": "b.png", "width": WIDTH, "height": HEIGHT, "scene": "night"},
        ],
        "categories": [{"id": 90, "name": "toothbrush"}, {"id": 1, "name": "person"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 90, "bbox": [1, 2, 10, 20.5], "area": 150.5, "iscrowd": 0},
            {"id": 2, "image_id": 7, "category_id": 1, "bbox": [0, 0, 40, 30], "iscrowd": 1},
        ],
    }


def coco(root: Path, document: Any = None) -> Path:
    for number, name in enumerate(("a.png", "b.png")):
        picture(root / "images" / name, seed=number)
    write(root / "annotations.json", json.dumps(coco_document() if document is None else document))
    return root


YAML = "path: .\ntrain: images/train\nval: images/val\nnames: {0: cat, 1: dog}\n"


def yolo(root: Path, yaml: str = YAML, labels: str = "1 0.5 0.5 0.5 0.2\n0 0.25 0.5 0.5 1\n") -> Path:
    """Two pictures to judge, the second without objects, and one to calibrate with."""
    for part, name, text in (("val", "a", labels), ("val", "b", ""), ("train", "c", labels)):
        picture(root / "images" / part / f"{name}.png", seed=ord(name))
        write(root / "labels" / part / f"{name}.txt", text)
    write(root / "data.yaml", yaml)
    return root


def masks(root: Path, value: int = 1, mode: str = "L", size: tuple[int, int] = SIZE) -> Path:
    """Two pictures with masks: class `value` in the upper left quarter, 255 below the middle."""
    for number, name in enumerate("ab"):
        picture(root / "images" / f"{name}.png", seed=number)
        classes = np.zeros((size[1], size[0]), np.uint8)
        classes[: size[1] // 2, : size[0] // 2] = value
        classes[size[1] // 2 :] = 255
        (root / "masks").mkdir(exist_ok=True)
        Image.fromarray(classes).convert(mode).save(root / "masks" / f"{name}.png")
    return root
