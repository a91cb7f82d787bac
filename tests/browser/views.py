"""How a reader may see a page, and a page opened that way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class View:
    scheme: str
    """`light` or `dark`: what the reader's system asks for."""
    size: str
    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.size}-{self.scheme}"


SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
VIEWS = [View(scheme, size, *SIZES[size]) for scheme, size in itertools.product(("light", "dark"), SIZES)]


@dataclass(frozen=True, slots=True)
class Opened:
    """A page in a view, with all that it asked for and said since it was opened."""

    page: Any
    view: View
    path: Path
    requests: list[str]
    messages: list[str]


@contextmanager
def opening(browser: Any, path: Path, view: View, *, scripts: bool = True) -> Iterator[Opened]:
    """A context of its own for one file: no cookies, no cache, no service workers. A phone has a touch screen and obeys the viewport's tag."""
    phone = view.size == "phone"
    context = browser.new_context(
        viewport={"width": view.width, "height": view.height},
        color_scheme=view.scheme,
        reduced_motion="reduce",
        is_mobile=phone,
        has_touch=phone,
        java_script_enabled=scripts,
        service_workers="block",
    )
    try:
        tab = context.new_page()
        requests: list[str] = []
        messages: list[str] = []
        context.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: messages.append(f"error: {error}"))
        tab.goto(path.as_uri(), wait_until="load")
        yield Opened(tab, view, path, requests, messages)
    finally:
        context.close()
