"""`make provide`: everything that the demo and the tests would otherwise fetch or build at first use, with progress and how long it takes."""

from __future__ import annotations

import sys
import time

from localcluster import LocalClusterError, tools
from tools.bootstrap import SetupError
from tools.images import build_images


def say(line: str) -> None:
    print(f"provide: {line}", file=sys.stderr, flush=True)


def main() -> int:
    began = time.monotonic()
    try:
        build_images(progress=say)
        for tool in ("kubectl", "bwrap"):
            tools.tool(tool, say)
        for program in tools.PROGRAMS:
            tools.program(program, say)
    except (SetupError, LocalClusterError) as error:
        say(str(error))
        return 1
    took = time.monotonic() - began
    if took > 5:
        say(f"done after {took:.0f}s; the next time this takes no time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
