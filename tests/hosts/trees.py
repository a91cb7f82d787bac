"""Trees of fact files, one JSON file a host: path below the root → text and where it was taken from; what nobody published says `invented`."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent
HOSTS = sorted(path.stem for path in FOLDER.glob("*.json"))


def plant(host: str, root: Path) -> Path:
    """Write the files of `host` below `root`; returns it."""
    for name, file in json.loads((FOLDER / f"{host}.json").read_text())["files"].items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file["text"])
    return root
