"""docs/jetson.md: Jetson modules, what is built for them, and which ran tests/jetson/run; from docs/benchmarks/jetson-*.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from enginefleet_api.jetsons import MODULES
from tools.pages import put, table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "jetson.md"
RECORDS = ROOT / "docs" / "benchmarks"
FAMILIES = {
    "p3834": ("Thor", "11.0", ("7.0", "7.1", "7.2")),
    "p3767": ("Orin", "8.7", ("5.1", "6.0", "6.1, 6.2", "7.2")),
    "p3701": ("Orin", "8.7", ("5.1", "6.0", "6.1, 6.2", "7.2")),
    "p3668": ("Xavier", "7.2", ("5.1",)),
    "p2888": ("Xavier", "7.2", ("5.1",)),
}
"""By the board's number: name, compute capability, and the JetPack releases since 5.1 that it has."""
TENSORRT = {"5.1": "8.5.2", "6.0": "8.6.2", "6.1, 6.2": "10.3.0", "7.0": "10.13", "7.1": "10.13.3", "7.2": "10.16"}
"""As JetPack brings it. One that was installed later is found by the probe: the library is asked."""
NEVER = "**never run on hardware**"

TEXT = """<!-- written by `make generate` (tools/jetson_table.py): change that, not this -->
# Jetsons: what was run where

A row says *never run on hardware* until somebody has run [tests/jetson/run](../tests/jetson/README.md) on that module and the record lies in
[benchmarks](benchmarks). That is one command, and needs no Kubernetes. JetPack's TensorRT is in parentheses; what each of them gets is in
[tensorrt.md](tensorrt.md). JetPack 4 (TX1, TX2, Nano: TensorRT 8.2) is refused by name.

{table}

CI runs the command on stand-ins, which proves that it works and nothing about a board; a record of such a run is refused here. Facts of a Jetson come from its
files, and are tested on the [trees](../tests/hosts) of published and invented ones.
"""


class NoRecord(Exception):
    """A file among the records that is none."""


def rows(records: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """`records`: by file name. Raises NoRecord for one that was simulated, or of no known module."""
    ran: dict[str, list[str]] = {}
    for name, record in sorted(records.items()):
        facts = record.get("facts") or {}
        if record.get("simulated") is not False or "simulated" in facts:
            raise NoRecord(f"{name} was made on stand-ins, or does not say that it was not: it is no record of hardware")
        module = (facts.get("jetson") or {}).get("module")
        if module not in MODULES:
            raise NoRecord(f"{name} is of the module {module}, which is not known")
        ran.setdefault(module, []).append(_told(name, record))
    table = [["module", "GPU", "JetPack (TensorRT)", "run on hardware"]]
    for part, called in MODULES.items():
        if part[:5] in FAMILIES:
            family, capability, releases = FAMILIES[part[:5]]
            packs = ", ".join(f"{release} ({TENSORRT[release]})" for release in releases)
            table.append([f"{called} (`{part}`)", f"{family}, {capability}", packs, "<br>".join(ran.get(part, [NEVER]))])
    return table


def _told(name: str, record: Mapping[str, Any]) -> str:
    facts = record["facts"]
    cases = [f"`{case['precision']}` {case.get('answer', 'failed').lower()}" for case in record.get("cases", [])]
    cases += [f"`{row['precision']}` on a DLA {_on_dla(row)}" for row in record.get("dla", [])]
    what = ", ".join(cases) or f"failed: {record.get('failure', 'nothing was built')}"
    return f"[{record['date']}](benchmarks/{name}): L4T {facts['jetson'].get('l4t')}, TensorRT {facts['backendVersion']}: {what}"


def _on_dla(row: Mapping[str, Any]) -> str:
    if "answer" not in row:
        return f"refused ({row['refused'].partition(':')[0]})" if "refused" in row else "failed"
    share = row.get("dla") or {}
    return str(row["answer"]).lower() + (f" ({share['may']} of {share['layers']} layers)" if "may" in share else "")


def text(files: Iterable[Path]) -> str:
    return TEXT.format(table=table(rows({path.name: json.loads(path.read_text()) for path in files})))


def main(arguments: list[str]) -> int:
    """Exit code 0; 1 when `--check` finds a difference, or a record is none."""
    try:
        new = text(RECORDS.glob("jetson-*.json"))
    except NoRecord as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return put(PAGE, new, arguments, "from the records")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
