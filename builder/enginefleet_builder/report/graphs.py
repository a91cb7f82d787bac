"""Small graphs that fill a table's cell: inline SVG in percent of its width, each with a label that says the same in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from xml.etree.ElementTree import Element

from .data import number
from .markup import element as e


@dataclass(frozen=True, slots=True)
class Scale:
    low: Decimal
    high: Decimal

    def place(self, value: Decimal) -> str:
        """In percent of the width; what lies outside sits on the edge."""
        share = (value - self.low) / (self.high - self.low) * 100
        return f"{min(Decimal(100), max(Decimal(0), share)):.2f}%"


def scale_of(texts: Iterable[str | None], *, include: Sequence[Decimal | None] = (), margin: bool = True) -> Scale | None:
    """What holds all the numbers, with 5 % to spare on either side; None where there are none."""
    values = [value for value in (*map(number, texts), *include) if value is not None]
    if not values:
        return None
    low, high = min(values), max(values)
    span = high - low or max(abs(high), Decimal("0.01")) / 10
    spare = span / 20 if margin else Decimal(0)
    return Scale(low - spare, max(high, low + span) + spare)


def estimate(scale: Scale, value: str | None, interval: Sequence[str], base: str | None, limit: str | None = None) -> Element:
    """A point with its interval; `base` is a dashed line, `limit` a dotted one."""
    marks = [_across("base", scale, number(base)), _across("limit", scale, number(limit))]
    point, ends = number(value), [number(text) for text in interval]
    words = f"{value}" if point is not None else "unknown"
    if len(ends) == 2 and ends[0] is not None and ends[1] is not None:
        low, high = scale.place(ends[0]), scale.place(ends[1])
        marks.append(e("line", x1=low, x2=high, y1="50%", y2="50%", class_="range"))
        marks += [e("line", x1=x, x2=x, y1="28%", y2="72%", class_="cap") for x in (low, high)]
        words += f", 95 % interval {interval[0]} to {interval[1]}"
    if point is not None:
        marks.append(e("circle", cx=scale.place(point), cy="50%", r="5", class_="point"))
    return _graph(marks, words + (f", FP32 {base}" if base not in (None, "0") else ""))


def bar(scale: Scale, value: str, line: str | None = None, dot: str | None = None) -> Element:
    """A bar from the left, a line that goes on from it, a dot at the end."""
    numbers = [number(text) for text in (value, line, dot)]
    marks: list[Element | None] = []
    if numbers[1] is not None:
        marks.append(e("line", x1="0%", x2=scale.place(numbers[1]), y1="50%", y2="50%", class_="range"))
    if numbers[0] is not None:
        marks.append(e("rect", x="0%", y="25%", width=scale.place(numbers[0]), height="50%", class_="bar"))
    if numbers[2] is not None:
        marks.append(e("circle", cx=scale.place(numbers[2]), cy="50%", r="5", class_="point"))
    return _graph(marks, ", ".join(text for text in (value, line, dot) if text is not None))


def overlay(marks: Sequence[Element], width: int, height: int, words: str) -> Element:
    """Lies over a picture of that many pixels, which is fitted into its frame."""
    return e("svg", marks, viewBox=f"0 0 {width} {height}", role="img", aria_label=words, focusable="false")


def outline(box: Sequence[float], kind: str) -> Element:
    """A box x1, y1, x2, y2 in pixels."""
    x1, y1, x2, y2 = box
    return e("rect", x=f"{x1:g}", y=f"{y1:g}", width=f"{max(0.0, x2 - x1):g}", height=f"{max(0.0, y2 - y1):g}", class_=f"box {kind}")


def _across(kind: str, scale: Scale, value: Decimal | None) -> Element | None:
    return None if value is None else e("line", x1=scale.place(value), x2=scale.place(value), y1="0%", y2="100%", class_=kind)


def _graph(marks: Sequence[Element | None], words: str) -> Element:
    axis = e("line", x1="0%", x2="100%", y1="50%", y2="50%", class_="axis")
    return e("svg", axis, marks, role="img", aria_label=words, focusable="false")
