"""A real browser for pages: Chromium that the machine has, driven by playwright from an environment of its own. No browser is downloaded."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginefleet_builder.report.html import page
from enginefleet_builder.report.model import report_of
from tests.browser.reports import failed_detector, long_names
from tests.browser.views import VIEWS, Opened, View, opening
from tools.bootstrap import REQUIREMENTS, ROOT, kept_environment

LOCK = REQUIREMENTS / "browser.lock"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ("--disable-gpu", "--disable-quic", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND")
"""Beyond playwright's own, which are those of a quiet browser with an empty profile. No name resolves, whatever asks for it."""
REPORTS = ("example", "detector", "long-names")
BROWSER = pytest.StashKey[str]()
"""What the pages were opened in, for the end of the run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", metavar="FOLDER", help="write each page in each view there as PNG, for people")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if BROWSER in config.stash:
        terminalreporter.write_line(f"browser: {config.stash[BROWSER]}")


@pytest.fixture(scope="session")
def program() -> str:
    """Path of the browser."""
    named = os.environ.get("CHROMIUM")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        where = f"$CHROMIUM is {named}, which is no program" if named else f"none of {', '.join(PROGRAMS)} is on PATH"
        pytest.skip(f"no browser: {where}. Install Chromium (Debian, Ubuntu: apt-get install chromium) or set CHROMIUM=/path/to/chrome")
    return found


@pytest.fixture(scope="session")
def browser(program: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    sys.path.append(str(kept_environment(LOCK).packages))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        request.config.stash[BROWSER] = f"{program}, version {running.version}"
        yield running
        running.close()


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page in the docs; what a Job left of a detector that failed its gate; every part there is, inconclusive, with names of any length."""
    folder = tmp_path_factory.mktemp("reports")
    written = folder / "long-names.html"
    written.write_text(page(report_of(long_names())))
    found = (ROOT / "docs" / "report-example.html", failed_detector(folder / "bench"), written)
    return dict(zip(REPORTS, found, strict=True))


@pytest.fixture(scope="module", params=REPORTS)
def report(request: pytest.FixtureRequest, program: str, reports: dict[str, Path]) -> Path:
    return reports[request.param]


@pytest.fixture(scope="module", params=VIEWS, ids=str)
def view(request: pytest.FixtureRequest) -> View:
    found: View = request.param
    return found


@pytest.fixture(scope="module")
def opened(request: pytest.FixtureRequest, browser: Any, reports: dict[str, Path], report: Path, view: View) -> Iterator[Opened]:
    with opening(browser, report, view) as found:
        if folder := request.config.getoption("--screenshots"):
            name = next(name for name, path in reports.items() if path == report)
            found.page.screenshot(path=Path(folder) / f"{name}-{view}.png", full_page=True)
        yield found
