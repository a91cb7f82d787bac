"""docs/gate.md: its worked numbers are what the gate says."""

from __future__ import annotations

from bench.gate import BEGIN, END, PAGE, table
from enginefleet_api.judging import Decoder


def test_the_worked_numbers_are_the_gates_own() -> None:
    text = PAGE.read_text()
    shown = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    assert table() == shown, "run python -m bench.gate"


def test_every_decoder_of_boxes_is_explained() -> None:
    kinds = Decoder.model_fields["kind"].annotation.__args__  # type: ignore[union-attr]
    text = PAGE.read_text()
    assert [] == [kind for kind in kinds if kind != "logits" and f"| `{kind}` |" not in text]
