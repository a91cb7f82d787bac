"""HTML as a tree of elements: escaping happens where the tree is written out, so no name can forget it, and what is opened is closed."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import TypeAlias
from xml.etree.ElementTree import Element, tostring

Content: TypeAlias = "Element | str | int | Iterable[Content] | None"

_JOINERS = "\u200c\u200d"
"""Invisible, but scripts and emoji need them."""


def element(tag: str, /, *content: Content, **attributes: str | int | None) -> Element:
    """`class_` and `aria_label` become `class` and `aria-label`; an attribute of None is left out."""
    made = Element(tag, {_name(key): visible(str(value)) for key, value in attributes.items() if value is not None})
    for item in content:
        _append(made, item)
    return made


def visible(text: str) -> str:
    """`text` with what would hide in it, or turn its neighbours round, written out: control, format and bidi characters, lone surrogates."""
    return "".join(_shown(character) for character in text)


def document(root: Element) -> str:
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


def _name(key: str) -> str:
    return key.removesuffix("_").replace("_", "-")


def _append(parent: Element, item: Content) -> None:
    match item:
        case None:
            return
        case Element():
            parent.append(item)
        case str() | int():
            _append_text(parent, visible(str(item)))
        case _:
            for part in item:
                _append(parent, part)


def _append_text(parent: Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text


def _shown(character: str) -> str:
    if character in "\n\t" or character in _JOINERS:
        return character
    category = unicodedata.category(character)
    return f"[U+{ord(character):04X}]" if category in ("Cc", "Cf", "Cs", "Zl", "Zp") else character
