"""The report in a real browser: light and dark, phone and desktop. What a person sees is there, readable, and asks nobody for anything."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.browser import looks
from tests.browser.views import SIZES, VIEWS, Opened, View, opening

MARKS = ":not(.framed) > svg > :not(.axis)"
"""What graphs draw; their axis is a rule that says nothing, boxes over pictures have a dark rim."""


def test_no_request_leaves_the_page(opened: Opened) -> None:
    """And by the browser's own account of what it loaded."""
    assert [url for url in opened.requests if url != opened.path.as_uri() and not url.startswith("data:")] == []
    assert opened.requests[0] == opened.path.as_uri()
    loaded = opened.page.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [url for url in loaded if not url.startswith("data:")] == []


def test_the_browser_has_nothing_to_complain_about(opened: Opened) -> None:
    """The page's own policy would refuse a style or a picture here."""
    assert opened.messages == []


def test_nothing_lies_beyond_the_edge_of_the_screen(opened: Opened) -> None:
    """Wide tables scroll in a box of their own."""
    assert opened.page.evaluate(looks.OUTSIDE) == []


def test_all_text_stands_out_from_what_is_behind_it(opened: Opened) -> None:
    found = looks.texts(opened.page)
    assert len(found) > 10
    assert looks.faint(found) == []


def test_graphs_stand_out_from_what_is_behind_them(opened: Opened) -> None:
    found = looks.marks(opened.page, MARKS)
    assert {"range", "point", "bar", "limit"} <= {item.what for item in found}
    assert looks.faint(found) == []


def test_the_page_has_the_colours_that_the_reader_asked_for(opened: Opened) -> None:
    """On the screen, not only in the style: contrast is computed from it."""
    said = looks.colour(opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    corner = Image.open(io.BytesIO(opened.page.screenshot(clip={"x": 0, "y": 0, "width": 4, "height": 4}))).convert("RGB")
    assert corner.getpixel((1, 1)) == tuple(round(value) for value in said[:3])
    assert (sum(said[:3]) / 3 > 128) == (opened.view.scheme == "light")


def test_every_picture_is_decoded_and_its_boxes_lie_on_it(opened: Opened) -> None:
    assert opened.page.evaluate("document.images.length") > 0
    assert opened.page.evaluate(looks.BROKEN_PICTURES) == []
    frames = opened.page.evaluate(
        """() => [...document.querySelectorAll('.framed')].map((frame) => ['img', 'svg'].map((name) => {
          const box = frame.querySelector(name).getBoundingClientRect();
          return [box.left, box.top, box.width, box.height];
        }))"""
    )
    assert all(picture == pytest.approx(boxes, abs=0.5) for picture, boxes in frames)
    assert bool(frames) == (opened.page.locator("text=Boxes: labelled white").count() > 0)


def test_headings_are_in_order(opened: Opened) -> None:
    assert looks.heading_jumps(opened.page.evaluate(looks.HEADINGS)) == []


def test_every_link_shows_the_place_that_it_names(opened: Opened) -> None:
    links = opened.page.evaluate("[...new Set([...document.links].map((link) => link.getAttribute('href')))]")
    assert len(links) > 10
    for href in links:
        assert href.startswith("#")
        opened.page.locator(f'a[href="{href}"]').first.click()
        top = opened.page.evaluate("(id) => document.getElementById(id).getBoundingClientRect().top", href[1:])
        assert opened.page.evaluate("location.hash") == href
        assert -1 <= top < opened.view.height, f"{href} is {top} px below the top"


def test_what_is_folded_opens_and_closes(opened: Opened) -> None:
    """Today nothing is: a page for people who distrust numbers hides none."""
    for summary in opened.page.locator("summary").all():
        before = summary.evaluate("(found) => found.parentElement.open")
        summary.click()
        assert summary.evaluate("(found) => found.parentElement.open") is not before
        summary.click()


def test_links_of_the_contents_can_be_hit_with_a_finger(opened: Opened) -> None:
    """WCAG 2.2, 2.5.8: 24 px."""
    heights = opened.page.evaluate("[...document.querySelectorAll('nav a')].map((link) => link.getBoundingClientRect().height)")
    assert min(heights) >= 24


def test_a_wide_table_is_scrolled_by_keyboard_and_keeps_the_names_of_its_rows(browser: Any, report: Path) -> None:
    with opening(browser, report, next(view for view in VIEWS if view.size == "phone")) as opened:
        wide = [box for box in opened.page.locator(".scroll").all() if box.evaluate("(box) => box.scrollWidth > box.clientWidth + 1")]
        assert wide
        for box in wide:
            box.focus()
            assert box.evaluate("(box) => [document.activeElement === box, getComputedStyle(box).outlineStyle]") == [True, "solid"]
            opened.page.keyboard.press("ArrowRight")
            opened.page.wait_for_function("(box) => box.scrollLeft > 0", arg=box.element_handle())
            moved = "(box) => box.querySelector('tbody th').getBoundingClientRect().left - box.getBoundingClientRect().left"
            assert box.evaluate(moved) == pytest.approx(0, abs=1)


@pytest.mark.parametrize("width", [320, 768])
def test_other_widths_fit_too(browser: Any, report: Path, width: int) -> None:
    """320: the narrowest that WCAG 2.2, 1.4.10 asks for, and a desktop at 400 %."""
    with opening(browser, report, View("light", "desktop", width, 800)) as opened:
        assert opened.page.evaluate(looks.OUTSIDE) == []


@pytest.mark.parametrize("size", SIZES)
def test_without_scripts_the_page_has_the_same_text(browser: Any, report: Path, size: str) -> None:
    shown = []
    for scripts in (True, False):
        with opening(browser, report, View("light", size, *SIZES[size]), scripts=scripts) as opened:
            assert opened.page.evaluate("document.scripts.length") == 0
            shown.append(opened.page.inner_text("body"))
    assert shown[0] == shown[1]
    assert len(shown[0]) > 5000


def test_on_paper_it_is_black_on_white_and_shows_whole_commands(browser: Any, report: Path) -> None:
    """Printed by somebody who reads in the dark."""
    with opening(browser, report, View("dark", "desktop", 794, 1123)) as opened:
        opened.page.emulate_media(media="print", color_scheme="dark")
        assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert looks.faint(looks.texts(opened.page)) == []
        cut = "[...document.querySelectorAll('pre')].filter((box) => box.scrollHeight > box.clientHeight + 1).length"
        assert opened.page.evaluate(cut) == 0
        assert not opened.page.locator("nav").is_visible()
