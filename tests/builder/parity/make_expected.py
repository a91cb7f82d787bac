"""Writes expected.npz: what Ultralytics and torchvision make of a few pictures, for tests/builder/test_parity.py.

Run it in an environment of its own; nothing here imports Ultralytics (AGPL-3.0) at any other time:

    uv venv /somewhere && uv pip install -p /somewhere ultralytics==8.4.190 torchvision scikit-image
    /somewhere/bin/python tests/builder/parity/make_expected.py

The pictures: two photos that scikit-image ships (chelsea, CC0; astronaut, public domain) and two drawn here.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
Pixels = NDArray[np.uint8]


def pictures() -> dict[str, Pixels]:
    from skimage import data  # type: ignore[import-not-found]

    rows, columns = np.mgrid[0:37, 0:53]
    rings = (127.5 + 127.5 * np.sin(np.hypot(rows - 18, columns - 26) ** 2 / 40)).astype(np.uint8)
    noise = np.random.default_rng(7).integers(0, 256, (61, 20, 3), np.uint8)
    return {
        "chelsea": data.chelsea()[60:181, 90:271],  # 121 x 181
        "astronaut": data.astronaut()[0:200:1, 170:290],  # 200 x 120
        "rings": np.stack([rings, rings[::-1], 255 - rings], axis=2),
        "noise": noise,
    }


def theirs(case: dict[str, Any], picture: Pixels) -> Pixels:
    """RGB pixels (H, W, 3) of the library that the case is named after."""
    import torchvision.transforms as tv  # type: ignore[import-not-found]
    from PIL import Image
    from ultralytics.data.augment import LetterBox  # type: ignore[import-not-found]

    size, how = case["size"], case.get("interpolation", "auto")
    if case["resize"] == "letterbox" or how == "linear":
        box = LetterBox(new_shape=tuple(size), scale_fill=case["resize"] == "stretch", center=case.get("align") != "top-left")
        return np.asarray(box(image=picture[:, :, ::-1])[:, :, ::-1])
    mode = tv.InterpolationMode.BICUBIC if how == "bicubic" else tv.InterpolationMode.BILINEAR
    if case["resize"] == "stretch":
        return np.asarray(tv.Resize(size, mode)(Image.fromarray(picture)))
    resized = tv.Resize(case.get("shorterSide") or size[0], mode)(Image.fromarray(picture))
    return np.asarray(tv.CenterCrop(size)(resized))


def normalised(picture: Pixels) -> NDArray[np.float32]:
    """torchvision's usual evaluation, at a quarter of its size: Resize(64), CenterCrop(56), ToTensor, Normalize."""
    import torchvision.transforms as tv
    from PIL import Image

    steps = [tv.Resize(64), tv.CenterCrop(56), tv.ToTensor(), tv.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    return np.asarray(tv.Compose(steps)(Image.fromarray(picture)).numpy(), np.float32)


def mask(picture: Pixels) -> Pixels:
    """A class map drawn from the picture, and torchvision's resize of it by nearest neighbours."""
    import torchvision.transforms as tv
    from PIL import Image

    return np.asarray(tv.Resize([64, 96], tv.InterpolationMode.NEAREST)(Image.fromarray(picture[:, :, 0] // 32)))


def main() -> None:
    cases = json.loads((HERE / "cases.json").read_text())
    arrays: dict[str, Any] = {}
    for name, picture in pictures().items():
        arrays[f"{name}|input"] = picture
        arrays |= {f"{name}|{case}": theirs(spec, picture) for case, spec in cases.items()}
    arrays["chelsea|normalised"] = normalised(arrays["chelsea|input"])
    arrays["chelsea|mask"] = mask(arrays["chelsea|input"])
    tools = {name: version(name) for name in ("ultralytics", "torchvision", "pillow", "numpy", "scikit-image", "opencv-python")}
    np.savez_compressed(HERE / "expected.npz", tools=np.array(json.dumps(tools)), **arrays)


if __name__ == "__main__":
    main()
