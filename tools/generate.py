"""`make generate`: writes what is made from other files: crds/*.yaml. `--check` only says whether they are up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from enginefleet_api import crd

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    return crd.main([*(["--check"] if "--check" in sys.argv[1:] else []), str(ROOT / "crds")])


if __name__ == "__main__":
    sys.exit(main())
