"""The worker's modules for tests: a flat folder of its own, not a package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import enginefleet_builder

FOLDER = Path(enginefleet_builder.__file__).parent / "worker"


def module(name: str) -> Any:
    """The worker's module `name`, as its main.py would import it."""
    sys.path.insert(0, str(FOLDER))
    try:
        found = importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))
    assert Path(str(found.__file__)).parent == FOLDER
    return found
