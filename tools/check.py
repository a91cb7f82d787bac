"""`make check`: formatting, lint, types, layers, generated files. All are run, whatever fails; ends with one line each."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
FOLDERS = ("crds", "operator", "agent", "builder", "cli", "localcluster", "tools", "demo", "bench", "examples", "tests")


def main() -> int:
    folders = [name for name in FOLDERS if any((ROOT / name).rglob("*.py"))]
    steps: dict[str, list[str]] = {
        "format": [str(BIN / "ruff"), "format", "--check", *folders],
        "lint": [str(BIN / "ruff"), "check", *folders],
        "types": [str(BIN / "mypy"), *folders],
        "layers": [str(BIN / "lint-imports"), "--no-logo"],
        "generated": [sys.executable, "-m", "tools.generate", "--check"],
    }
    failed = []
    for name, argv in steps.items():
        began = time.monotonic()
        done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            failed.append(name)
            print(done.stdout.rstrip())
        print(f"check: {name:10} {'ok' if done.returncode == 0 else 'FAILED':7} {time.monotonic() - began:5.1f}s", flush=True)
    if failed:
        print(f"check: failed: {', '.join(failed)} (`make format` and `make generate` repair what can be repaired by itself)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
