"""`python -m bench.gate`: computes the worked numbers of docs/gate.md by the gate's own code, and writes them there."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from enginefleet_api.resources import AccuracyAcceptance, Validation
from enginefleet_builder.gate.samples import Dataset
from enginefleet_builder.gate.score import Pair, compare
from enginefleet_builder.gate.tasks.classification import Classification
from enginefleet_builder.gate.verdict import decide

PAGE = Path(__file__).resolve().parent.parent / "docs" / "gate.md"
BEGIN, END = "<!-- worked numbers: python -m bench.gate -->\n", "<!-- end of worked numbers -->\n"
FP32_WRONG = 0.05
SEED = 1
CASES = (
    # samples, right in FP32 and wrong in the engine, wrong in FP32 and right in the engine
    (200, 0, 0),
    (200, 1, 0),
    (200, 3, 0),
    (1000, 1, 0),
    (1000, 6, 2),
    (1000, 10, 2),
    (5000, 30, 10),
    (5000, 65, 10),
)
ALLOWED = "0.01"


def table() -> str:
    """A row a case: what a classifier's gate says for maxDrop 0.01."""
    lines = ["| samples | lost | won | drop | 95 % interval of the drop | answer | samples that would tell |", "| --- " * 7 + "|"]
    for samples, lost, won in CASES:
        wrong = round(FP32_WRONG * samples)
        before = np.arange(samples) >= wrong
        after = before.copy()
        after[samples - lost :] = False
        after[:won] = True
        validation = Validation(uri="s3://b/v.npz", acceptance=AccuracyAcceptance(max_drop=ALLOWED))
        task = Classification(validation, Dataset(samples, np.zeros(samples, np.int64), ("all",), lambda _: {}), None)
        sides = [task.scores([{"correct": bool(flag)} for flag in flags], range(samples)) for flags in (before, after)]
        found = compare("top1", Pair(sides[0], sides[1], rises=False), None, SEED).accuracy
        decision = decide(found, validation)
        low, high = (f"{float(bound):.4f}" for bound in found.drop_interval)
        row = (samples, lost, won, f"{float(found.drop or 0):.4f}", f"{low} to {high}", decision.answer.value, decision.needed or "")
        lines.append("| " + " | ".join(str(item) for item in row) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    text = PAGE.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(text[:start] + table() + text[end:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
