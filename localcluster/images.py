"""The image map: what an image name stands for in a local cluster.

An image is not a file system but an environment over this machine's own files: variables, an entrypoint and folders. Two images are two real
versions of a runtime, for example two virtual environments.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localcluster.errors import LocalClusterError


@dataclass(frozen=True, slots=True)
class Image:
    """One image of a local cluster.

    `env` goes before the container's own variables. `entrypoint` is used by containers without a command. `binds` are folders that
    containers must see read-only although their place (below /home, /root, /run or /tmp) is hidden; the folders of `VIRTUAL_ENV`, `PATH`
    and `PYTHONPATH`, and the interpreter behind a virtual environment, are added by themselves.
    `digest` (sha256:...) is computed from all of this and the packages in the virtual environments when it is not given.
    """

    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    binds: tuple[Path, ...] = ()
    digest: str = ""

    def entry(self) -> dict[str, Any]:
        """The image's entry in the map. Raises LocalClusterError when a folder is missing or the digest has another form."""
        binds = sorted(set(_visible_folders(self)))
        entry: dict[str, Any] = {"env": dict(self.env), "entrypoint": list(self.entrypoint), "binds": [str(path) for path in binds]}
        if self.digest and not re.fullmatch(r"sha256:[0-9a-f]{64}", self.digest):
            raise LocalClusterError(f"image {self.name}: digest {self.digest!r} is not sha256: and 64 hexadecimal digits")
        packages = sorted(path.name for bind in binds for path in bind.glob("lib/python*/site-packages/*.dist-info"))
        content = json.dumps([entry, packages], sort_keys=True).encode()
        return {"digest": self.digest or "sha256:" + hashlib.sha256(content).hexdigest(), **entry}


def virtual_environment(
    name: str, folder: Path, entrypoint: tuple[str, ...] = (), env: Mapping[str, str] | None = None, **more: Any
) -> Image:
    """An image whose `python` is the one of a virtual environment."""
    folder = folder.absolute()
    own = {"VIRTUAL_ENV": str(folder), "PATH": f"{folder}/bin:/usr/local/bin:/usr/bin:/bin"}
    return Image(name, {**own, **(env or {})}, entrypoint, **more)


def _visible_folders(image: Image) -> Iterator[Path]:
    for bind in image.binds:
        if not bind.exists():
            raise LocalClusterError(f"image {image.name}: {bind} does not exist, but containers of it should see it")
        yield from _with_links(bind.absolute())
    folders = [image.env.get("VIRTUAL_ENV", ""), *image.env.get("PYTHONPATH", "").split(":")]
    folders += [
        str(Path(entry).parent)
        for entry in image.env.get("PATH", "").split(":")
        if Path(entry, "python").exists() and entry.startswith("/")
    ]
    for folder in filter(None, folders):
        if Path(folder).exists() and Path(folder) != Path("/usr") and Path(folder) != Path("/"):
            yield from _with_links(Path(folder))


def _with_links(path: Path) -> Iterator[Path]:
    """A folder, and for a virtual environment every place that its `python` link passes on the way to the interpreter."""
    yield path
    link = path / "bin" / "python"
    for _ in range(20):
        if not link.is_symlink():
            break
        link = link.parent / os.readlink(link)
        yield Path(os.path.normpath(link.parent.parent))
    if link.exists():
        yield link.resolve().parent.parent


def read_map(path: Path) -> dict[str, Any]:
    """The map as it is; empty when there is none yet."""
    loaded: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return loaded


def write_map(path: Path, entries: Mapping[str, Any]) -> None:
    """Replace the map at once: nodes may read it at any moment."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")
    partial.rename(path)
