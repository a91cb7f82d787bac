"""`make generate`: writes what is made from other files: crds/*.yaml, docs/{tensorrt,jetson,failures}.md.

`--check` only says whether they are up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from enginefleet_api import crd
from tools import failures_page, jetson_table, tensorrt_table

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    check = ["--check"] if "--check" in sys.argv[1:] else []
    return max(crd.main([*check, str(ROOT / "crds")]), tensorrt_table.main(check), jetson_table.main(check), failures_page.main(check))


if __name__ == "__main__":
    sys.exit(main())
