"""What can be asked of an opened page. A browser says what it computed; the rest is plain arithmetic on that."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Colour = tuple[float, float, float, float]
"""Red, green, blue of 0 to 255, and what covers of 0 to 1."""

PAINTED = """
(selector) => {
  // all that is painted behind an element, from its own background to the root's, and how much of the element shows
  const behind = (element) => {
    const colours = [], images = [];
    let shown = 1;
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      colours.push(style.backgroundColor);
      shown *= Number(style.opacity);
      // a background that covers ends what can be seen behind it
      if (style.backgroundImage !== 'none') images.push(style.backgroundImage);
      if (/^rgb\\(/.test(style.backgroundColor)) break;
    }
    return {colours, images, shown};
  };
  const seen = new Map();
  const add = (element, colour, text) => {
    const style = getComputedStyle(element), back = behind(element);
    const key = JSON.stringify([colour, style.fontSize, style.fontWeight, back, selector && text]);
    const item = {colour, size: parseFloat(style.fontSize), weight: Number(style.fontWeight), text, ...back};
    if (!seen.has(key)) seen.set(key, item);
  };
  if (selector === null) {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode.data.trim(), element = texts.currentNode.parentElement;
      const seen = element.checkVisibility({checkVisibilityCSS: true}) && element.getClientRects().length;
      if (text && seen) add(element, getComputedStyle(element).color, text.slice(0, 60));
    }
  } else {
    for (const element of document.querySelectorAll(selector)) {
      const style = getComputedStyle(element);
      const stroked = element.tagName === 'line' || style.fill === 'none';
      add(element, stroked ? style.stroke : style.fill, element.getAttribute('class'));
    }
  }
  return [...seen.values()];
}
"""

OUTSIDE = """
() => {
  // words and pictures beyond the edges of the page, unless a box scrolls them
  const width = document.documentElement.clientWidth, found = [];
  const scrolled = (element) => {
    for (let at = element; at && at !== document.body; at = at.parentElement)
      if (['auto', 'scroll'].includes(getComputedStyle(at).overflowX)) return at.getBoundingClientRect().right <= width + 1;
    return false;
  };
  const note = (rect, element, words) => {
    if ((rect.right > width + 1 || rect.left < -1) && !scrolled(element)) found.push(`${words} (${rect.left} to ${rect.right} of ${width})`);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    for (const rect of range.getClientRects()) note(rect, texts.currentNode.parentElement, texts.currentNode.data.trim().slice(0, 60));
  }
  for (const element of document.querySelectorAll('img, svg, table, pre')) note(element.getBoundingClientRect(), element, element.tagName);
  const whole = document.documentElement.scrollWidth;
  if (whole > width) found.push(`the page is ${whole} wide in a window of ${width}`);
  return found;
}
"""

BROKEN_PICTURES = """
async () => {
  const found = [];
  for (const image of document.images) {
    await image.decode().catch(() => null);
    const box = image.getBoundingClientRect();
    if (!(image.complete && image.naturalWidth > 0 && box.width > 0 && box.height > 0)) found.push(image.alt);
  }
  return found;
}
"""

HEADINGS = "() => [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map((found) => Number(found.tagName[1]))"


@dataclass(frozen=True, slots=True)
class Painted:
    """Some text, or a mark of a graph, and the worst ratio to what lies behind it."""

    what: str
    ratio: float
    needed: float


def texts(page: Any) -> list[Painted]:
    """All visible text. WCAG 2.2, 1.4.3: 4.5, and 3 from 24 px on, or 18.66 px in bold."""
    found = page.evaluate(PAINTED, None)
    return [_painted(item, 3.0 if item["size"] >= 24 or (item["size"] >= 18.66 and item["weight"] >= 700) else 4.5) for item in found]


def marks(page: Any, selector: str) -> list[Painted]:
    """Lines and shapes of SVG. WCAG 2.2, 1.4.11: 3."""
    return [_painted(item, 3.0) for item in page.evaluate(PAINTED, selector)]


def faint(found: Iterable[Painted]) -> list[str]:
    return [f"{item.what}: {item.ratio:.2f}, needed {item.needed}" for item in found if item.ratio < item.needed]


def heading_jumps(levels: Sequence[int]) -> list[str]:
    """What is wrong with the order of headings: it begins with the one h1, and goes down by one at a time."""
    wrong = [f"h{above} is followed by h{below}" for above, below in itertools.pairwise(levels) if below > above + 1]
    return wrong + ([] if levels[:1] == [1] and levels.count(1) == 1 else [f"{levels.count(1)} h1, the first heading is h{levels[:1]}"])


def colour(words: str) -> Colour:
    """As getComputedStyle writes it."""
    found = re.fullmatch(r"rgba?\((\d+), (\d+), (\d+)(?:, ([\d.]+))?\)", words)
    if not found:
        raise ValueError(f"{words!r} is no rgb() or rgba(): what else the style sheet uses must be read here, too")
    red, green, blue, alpha = found.groups()
    return float(red), float(green), float(blue), float(alpha or 1)


def over(front: Colour, back: Colour) -> Colour:
    """`front` painted on an opaque `back`."""
    alpha = front[3]
    red, green, blue = (alpha * above + (1 - alpha) * below for above, below in zip(front[:3], back[:3], strict=True))
    return red, green, blue, 1.0


def contrast(one: Colour, other: Colour) -> float:
    """Of two opaque colours, 1 to 21 (WCAG 2.2, "contrast ratio")."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(found: Colour) -> float:
    channels = (value / 255 for value in found[:3])
    red, green, blue = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _painted(item: dict[str, Any], needed: float) -> Painted:
    """On each colour that a gradient behind it names as well: the worst counts."""
    ground: Colour = (255.0, 255.0, 255.0, 1.0)
    for words in reversed(item["colours"]):
        ground = over(colour(words), ground)
    shades = [colour(words) for image in item["images"] for words in re.findall(r"rgba?\([^)]*\)", image)]
    red, green, blue, alpha = colour(item["colour"])
    ratios = [
        contrast(over((red, green, blue, alpha * item["shown"]), back), back) for back in (ground, *(over(one, ground) for one in shades))
    ]
    return Painted(item["text"], min(ratios), needed)
