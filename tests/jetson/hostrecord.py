"""Records the fact files that are read of a host, in the form of tests/hosts, without what tells one device or its owner from another."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enginefleet_builder.device.files import HostFiles

SERIAL = re.compile(r"^\s*(Serial|GPU UUID|IRQ)\s*:.*\n?", re.MULTILINE | re.IGNORECASE)
UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
NO_UUID = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Recording(HostFiles):
    """HostFiles that keep what was read: path below the root → text, as `recorded` leaves it."""

    read: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        found = HostFiles.text(self, name)
        if found is not None:
            self.read[name] = impersonal(found)
        return found

    def fixture(self, about: str, source: str) -> dict[str, Any]:
        """As tests/hosts/*.json."""
        return {"about": about, "files": {name: {"text": text, "source": source} for name, text in sorted(self.read.items())}}


def impersonal(text: str) -> str:
    """Without serial numbers and UUIDs."""
    return UUID.sub(NO_UUID, SERIAL.sub("", text))


def without_paths(value: Any, names: dict[Path, str]) -> Any:
    """`value` (JSON) with the folders in `names` by what they are called there: texts of failures may name a home folder."""
    if isinstance(value, dict):
        return {key: without_paths(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(item, names) for item in value]
    if isinstance(value, str):
        for path in sorted(names, key=lambda path: -len(str(path))):
            value = value.replace(str(path), names[path])
        return impersonal(value) if UUID.search(value) else value
    return value
