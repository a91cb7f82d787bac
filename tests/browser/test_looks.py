"""What the checks of pages find on a page that has it wrong: a check that never fails shows nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser import looks
from tests.browser.views import VIEWS, opening

PHONE = next(view for view in VIEWS if view.size == "phone")
WHITE, BLACK = looks.colour("rgb(255, 255, 255)"), looks.colour("rgb(0, 0, 0)")


def written(folder: Path, body: str) -> Path:
    page = folder / "page.html"
    head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>x</title></head>'
    page.write_text(f"{head}<body>{body}</body></html>")
    return page


@pytest.mark.parametrize(("words", "ratio"), [("rgb(0, 0, 0)", 21), ("rgb(118, 118, 118)", 4.54), ("rgb(148, 148, 148)", 3.03)])
def test_contrast_is_wcags(words: str, ratio: float) -> None:
    """#767676 is the lightest grey that passes for text on white, #949494 for large text."""
    assert looks.contrast(looks.colour(words), WHITE) == pytest.approx(ratio, abs=0.005)


def test_half_of_black_on_white_is_grey() -> None:
    assert looks.over((0, 0, 0, 0.5), WHITE)[:3] == (127.5, 127.5, 127.5)


def test_a_colour_that_is_not_understood_is_not_taken_for_good() -> None:
    with pytest.raises(ValueError, match="no rgb"):
        looks.colour("color(srgb 1 1 1)")


@pytest.mark.parametrize(
    "body",
    [
        '<p style="color: #999">grey</p>',
        '<p style="opacity: .4">thin</p>',
        '<div style="background: #333"><p>black on dark</p></div>',
        '<div style="background-image: linear-gradient(#fff, #444)"><p>black on what a gradient becomes</p></div>',
        '<p style="color: #fff; background: #ffffff80">white on half of white</p>',
    ],
)
def test_faint_text_is_found(browser: Any, tmp_path: Path, body: str) -> None:
    with opening(browser, written(tmp_path, body), PHONE) as opened:
        assert len(looks.faint(looks.texts(opened.page))) == 1


@pytest.mark.parametrize(
    "body",
    [
        '<p style="color: #949494; font-size: 24px">large</p>',
        '<p style="color: #999; display: none">not shown</p>',
        '<div style="background: #333"><p style="background: #fff">black on white on dark</p></div>',
    ],
)
def test_text_that_can_be_read_is_not(browser: Any, tmp_path: Path, body: str) -> None:
    with opening(browser, written(tmp_path, body), PHONE) as opened:
        assert looks.faint(looks.texts(opened.page)) == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (f"<p>Must print {'7b' * 32}.</p>", True),
        ('<div style="margin-left: -50px">left</div>', True),
        ('<svg style="width: 500px"></svg>', True),
        (f'<div style="overflow-x: auto"><p>{"7b" * 64}</p></div>', False),
        (f'<div style="overflow-x: auto; width: 600px"><p>{"7b" * 64}</p></div>', True),
        (f'<p style="overflow-wrap: anywhere">{"7b" * 64}</p>', False),
    ],
)
def test_what_lies_beyond_the_edge_is_found(browser: Any, tmp_path: Path, body: str, found: bool) -> None:
    with opening(browser, written(tmp_path, body), PHONE) as opened:
        assert bool(opened.page.evaluate(looks.OUTSIDE)) is found


def test_requests_complaints_and_broken_pictures_are_seen(browser: Any, tmp_path: Path) -> None:
    body = (
        '<img src="data:image/png;base64,AAAA" alt="broken"><img src="http://pictures.test/x.png" alt="away"><script>nothing.is()</script>'
    )
    with opening(browser, written(tmp_path, body), PHONE) as opened:
        assert opened.page.evaluate(looks.BROKEN_PICTURES) == ["broken", "away"]
        assert "http://pictures.test/x.png" in opened.requests
        assert any("nothing is not defined" in message for message in opened.messages)
        assert any("ERR_NAME_NOT_RESOLVED" in message for message in opened.messages), "and no name resolves"


@pytest.mark.parametrize("levels", [[2], [1, 3], [1, 2, 1], []])
def test_headings_out_of_order_are_found(levels: list[int]) -> None:
    assert looks.heading_jumps(levels) != []


def test_headings_may_go_up_by_more_than_one() -> None:
    assert looks.heading_jumps([1, 2, 3, 2, 3, 3, 2]) == []
