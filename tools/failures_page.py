"""docs/failures.md: what TensorRT's log texts are taken for, and combinations that are known to break; from the tables that the builder reads."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from enginefleet_builder.backends import texts
from enginefleet_builder.prepare import targets
from tools.pages import put, table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "failures.md"

TEXT = """<!-- written by `make generate` (tools/failures_page.py): change that, not this -->
# Failures of TensorRT: what its words are taken for

TensorRT tells causes in its log. The earliest error line that is known decides; the reason stands in the status of the EngineBuild, with the last lines of the
log. A class says what happens next:

- *Permanent*: the same will fail again; the next variant of the ladder is tried, or the spec has to change. `enginefleet.io/retry` asks again.
- *Environment*: this node or image is at fault; another node of the same fingerprint is tried first.
- *Transient*: tried again, with growing pauses.

A *warning* is kept in the build's record and is no failure. What is found in a model before a build is in [preflight.md](preflight.md).

{failures}

The table is [failures.json](../builder/enginefleet_builder/backends/failures.json), of {failures_of}. A newer one needs no release of EngineFleet: see
[below](#newer-tables). Reports are threads on GitHub, as owner/repository#number.

## Combinations that are known to break

Preflight names them where release, board, precision and operators meet (`KnownTrouble`); an error refuses the class, a warning stands in prepare's notes.

{known}

They are part of [targets.json](../builder/enginefleet_builder/prepare/targets.json), of {known_of}, with what releases and devices take
([preflight.md](preflight.md)).

## Newer tables

Both tables are files of a ConfigMap, too, which prepare and build Jobs mount from their own namespace where it is there:

```
kubectl create configmap enginefleet-tables -n NAMESPACE --from-file=failures.json --from-file=targets.json
```

Either file may be left out. A file replaces the whole table, so begin with a copy of the one above, and set `updated`. The name is the operator's
`--tables` (`ENGINEFLEET_TABLES_CONFIGMAP`; empty: none is mounted). Neither operator nor images are restarted: the next Job has it. What was decided before
stays; `enginefleet.io/retry` builds again, `enginefleet.io/refresh` prepares again. Servers classify what they log with the program's own table.

A table is checked when it is loaded. One that is wrong, or whose `updated` is before that of the program's own (it stayed behind when EngineFleet was
updated), is left aside, and the program's own is used: no Job fails for it. `TargetsInvalid` (an event of the ModelDeployment, and a note of prepare) and
`FailuresInvalid` (a warning of the build's record) name the file and the place in it; a failure whose text is not known repeats the latter.

By hand `ENGINEFLEET_TABLES` names a folder with such files. `ENGINEFLEET_FAILURES` and `ENGINEFLEET_TARGETS` name one file each, for instance in an
image, and count where the folder has none.
"""


def text() -> str:
    failures, known = texts.load(), targets.load()
    rows = [["reason", "class", "what was found", "what to do", "reports"]]
    for one in failures.failures:
        kind = one.failure_class.value + (", warning" if one.severity == "warning" else "")
        rows.append([f"`{one.reason}`", kind, _words(one.what), _words(one.hint), ", ".join(one.references)])
        rows += [
            [f"`{later.reason}`", kind, f"{_words(later.what)}, as an earlier line says", _words(later.hint), ""] for later in one.after
        ]
    broken = [["where", "what", "what to do", "reports"]]
    for entry in known.known_bad:
        where = [f"TensorRT {' to '.join(dict.fromkeys(entry.tensorrt))}"] if entry.tensorrt else []
        where += [f"L4T {', '.join(entry.l4t)}"] if entry.l4t else []
        where += [f"compute capability {', '.join(entry.compute_capabilities)}"] if entry.compute_capabilities else []
        where += [*entry.precisions, *entry.operators, *(["a DLA"] if entry.dla else [])]
        broken.append(["; ".join(where), f"{entry.what} ({entry.severity})", entry.hint, ", ".join(entry.references)])
    return TEXT.format(failures=table(rows), failures_of=failures.updated, known=table(broken), known_of=known.updated)


def _words(message: str) -> str:
    """With what a log line fills in left open."""
    return re.sub(r"{[a-z_]+}", "…", message.replace("{library}", "TensorRT"))


def main(arguments: list[str]) -> int:
    """Exit code 0; 1 when `--check` finds a difference."""
    return put(PAGE, text(), arguments, "from the tables")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
