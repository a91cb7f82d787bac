"""Numbers in words, and tables: what all parts of the page are made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from xml.etree.ElementTree import Element

from enginefleet_api.documents import Answer

from .data import ReportData, number
from .markup import Content
from .markup import element as e

SIGNS = {Answer.PASS: ("✓", "Pass"), Answer.FAIL: ("✕", "Fail"), Answer.INCONCLUSIVE: ("?", "Inconclusive")}
"""A sign and a word: an answer is never told by colour alone."""


def table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[Content]],
    *,
    numbers: Iterable[int] = (),
    plot: int | None = None,
    kind: str | None = None,
) -> Element:
    """The first cell of a row names it; a cell that is empty or None is unknown. `numbers`: columns that stand to the right; `plot`: the graph;
    `kind`: its class for the style sheet.

    In a frame that scrolls sideways, by keyboard too, where the screen is narrow.
    """
    right = set(numbers)

    def kind_of(column: int) -> str | None:
        return "n" if column in right else "plot" if column == plot else None

    def cell(column: int, content: Content) -> Element:
        shown = "–" if content in (None, "") else content
        return e("td", shown, class_=kind_of(column)) if column else e("th", shown, scope="row")

    head = [e("th", text, scope="col", class_=kind_of(column)) if text else e("td") for column, text in enumerate(headings)]
    body = [e("tr", [cell(column, content) for column, content in enumerate(row)]) for row in rows]
    inner = e("table", e("caption", caption), e("thead", e("tr", head)), e("tbody", body), class_=kind)
    return e("div", inner, class_="scroll", tabindex="0", role="region", aria_label=f"Table: {caption}")


def text(words: str) -> Element:
    """Words of somebody else, whose direction of writing must not turn what stands around them."""
    return e("bdi", words)


def stored(data: ReportData, **fields: str) -> Element:
    """Which records hold the numbers above, and where in them; the keys stand in a table at the end of the page."""
    here = {item.what for item in data.records}
    links = [
        (e("a", what, href=f"#record-{name}"), f" ({field})" if field else None)
        for name, field in fields.items()
        if (what := name.replace("_", " ")) in here
    ]
    return e("p", "Stored in: ", [(", " if position else None, *link) for position, link in enumerate(links)], class_="stored")


def interval(ends: Sequence[str], prefix: str = "95 %: ", digits: int = 4) -> str:
    """Empty where there is none."""
    return f"{prefix}{short(ends[0], digits)} to {short(ends[1], digits)}" if len(ends) == 2 else ""


def short(text: str | None, digits: int = 4) -> str:
    """At most so many decimals of what is a number; other text as it is. A number too small for them keeps its first digits."""
    value = number(text)
    if text is None or value is None:
        return "–" if text is None else text
    if len(text.partition(".")[2]) <= digits:
        return text
    rounded = f"{value:.{digits if abs(value) < 100 else 1}f}"
    return rounded if value == 0 or Decimal(rounded) != 0 else f"{value:.2e}"


def percent(text: str) -> str:
    value = number(text)
    return "–" if value is None else f"{value * 100:.1f} %"


def count(value: int | None) -> str:
    """In groups of three from five digits on: with four it would differ from the plain numbers beside it."""
    return "–" if value is None else str(value) if abs(value) < 10_000 else f"{value:,}".replace(",", "\u202f")


def size(value: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value} bytes"


def moment(text: str) -> str:
    """`2026-01-31T12:00:00.000000Z` → `2026-01-31 12:00:00 UTC`"""
    return f"{text[:10]} {text[11:19]} UTC"
