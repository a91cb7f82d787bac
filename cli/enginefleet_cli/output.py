"""Printing: rich for people, JSON and YAML for scripts."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

import yaml
from rich.console import Console, RenderableType


class Format(StrEnum):
    """What -o takes."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


PIPE_WIDTH = 200
"""Columns where there is no terminal to ask."""


def show(format: Format, data: Any, *pictures: RenderableType) -> None:
    """`data` as it is, or `pictures` of it for people."""
    if format is Format.JSON:
        print(json.dumps(data, indent=2, ensure_ascii=False))
    elif format is Format.YAML:
        print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), end="")
    else:
        out = console()
        for one in pictures:
            out.print(one)


def console(*, stderr: bool = False) -> Console:
    found = Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=PIPE_WIDTH)
