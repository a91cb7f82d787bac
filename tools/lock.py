"""`make lock`: writes requirements/*.lock from pyproject.toml and requirements/*.in.

An index is never named in a lock file: whoever installs uses their own. Versions that are locked already stay unless `--upgrade` is given.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.bootstrap import uv

ROOT = Path(__file__).resolve().parent.parent

EXCLUDES = ("--excludes", "requirements/prepare.excludes")

LOCKS: dict[str, tuple[str, ...]] = {
    "bootstrap": ("requirements/bootstrap.in",),
    "dev": ("pyproject.toml", "requirements/dev.in", "--extra", "dev", *EXCLUDES),
    "prepare": ("pyproject.toml", "requirements/prepare.in", "--extra", "prepare", *EXCLUDES),
    "accuracy": ("requirements/accuracy.in", "--no-deps"),
    "triton": ("requirements/triton.in", "--no-deps"),
    "browser": ("requirements/browser.in",),
    "export": ("requirements/export.in",),
    "operator": ("pyproject.toml", "--extra", "operator"),
    "runtime-ort-1.24": ("pyproject.toml", "requirements/runtime-ort-1.24.in", "--extra", "quantize"),
    "runtime-ort-1.23": ("pyproject.toml", "requirements/runtime-ort-1.23.in", "--extra", "quantize"),
    "runtime-openvino": (
        "pyproject.toml",
        "requirements/runtime-openvino.in",
        "--extra",
        "quantize",
        "--excludes",
        "requirements/runtime-openvino.excludes",
    ),
    "runtime-rtx-1.7": ("pyproject.toml", "requirements/runtime-rtx-1.7.in", "--extra", "builder"),
}
"""lock file -> what it is compiled from"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make lock", description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions instead of those locked now")
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(LOCKS)} (default: all)")
    options = parser.parse_args(argv)
    if unknown := sorted(set(options.names) - set(LOCKS)):
        parser.error(f"no lock file {', '.join(unknown)}: there are {', '.join(LOCKS)}")
    for name in options.names or LOCKS:
        print(f"requirements/{name}.lock", file=sys.stderr, flush=True)
        command = [str(uv()), "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
        command += ["--custom-compile-command", "make lock", *(["--upgrade"] if options.upgrade else [])]
        subprocess.run(
            [*command, *LOCKS[name], "-o", f"requirements/{name}.lock"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env=os.environ
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
