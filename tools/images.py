"""The images of the local cluster: real virtual environments from the lock files, and a snapshot of our own source.

    for image in build_images().values():
        cluster.add_image(image)

Environments are kept in the cache folder by the digest of their lock file, snapshots by the digest of the source: a running cluster does not
change when somebody edits a file. As in a registry, an image's digest follows from what is in it.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster import Image
from tools.bootstrap import REQUIREMENTS, ROOT, SetupError, cache_dir, kept_environment, python_tag

Progress = Callable[[str], None]

API = "crds/enginefleet_api"
KEPT_SNAPSHOTS = 20


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an image is made of: a lock file (None: Python alone), packages of ours, and the commands that it brings; the first is its entrypoint."""

    lock: str | None
    packages: tuple[str, ...]
    commands: tuple[str, ...]


COMMANDS = {
    "enginefleet": "enginefleet_builder.main:run",
    "enginefleet-operator": "enginefleet_operator.app:main",
    "enginefleet-agent": "enginefleet_agent.main:main",
}
"""command -> module:function, as in pyproject's [project.scripts]"""

BUILDER, OPERATOR, AGENT = (f"{folder}/enginefleet_{folder}" for folder in ("builder", "operator", "agent"))
RECIPES: dict[str, Recipe] = {
    "enginefleet/runtime:ort-1.24": Recipe("runtime-ort-1.24", (API, BUILDER), ("enginefleet",)),
    # everything that a runtime image has for prepare Jobs, and ModelOpt
    "enginefleet/prepare:dev": Recipe("prepare", (API, BUILDER), ("enginefleet",)),
    "enginefleet/runtime:ort-1.23": Recipe("runtime-ort-1.23", (API, BUILDER), ("enginefleet",)),
    # TensorRT for RTX: its engines are built here without a GPU and run nowhere in a cluster of CPUs
    "enginefleet/runtime:rtx-1.7": Recipe("runtime-rtx-1.7", (API, BUILDER), ("enginefleet",)),
    # ONNX Runtime with the OpenVINO execution provider and OpenVINO itself
    "enginefleet/runtime:openvino": Recipe("runtime-openvino", (API, BUILDER), ("enginefleet",)),
    # operator and agent are released together, so a fleet may pull one image for both
    "enginefleet/operator:dev": Recipe("operator", (API, OPERATOR, AGENT), ("enginefleet-operator", "enginefleet-agent")),
    "enginefleet/agent:dev": Recipe(None, (API, AGENT), ("enginefleet-agent",)),
}
"""Each image holds only the packages that it may import: a forbidden import fails there, not in production."""


def build_images(names: Sequence[str] | None = None, progress: Progress = lambda _: None) -> dict[str, Image]:
    """The images by name (all, or the named ones), ready for Cluster.add_image. Raises SetupError when packages cannot be installed."""
    return {name: _build(name, RECIPES[name], progress) for name in (RECIPES if names is None else names)}


def _build(name: str, recipe: Recipe, progress: Progress) -> Image:
    lock = None if recipe.lock is None else REQUIREMENTS / f"{recipe.lock}.lock"
    environment = kept_environment(lock, compiled=True, progress=lambda said: progress(f"image {name}: {said}"))
    snapshot, source_digest = _snapshot(recipe)
    return Image(
        name,
        env={
            "VIRTUAL_ENV": str(environment.folder),
            "PATH": f"{environment.folder}/bin:{snapshot}/bin:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(snapshot),
            "PYTHONUNBUFFERED": "1",
        },
        entrypoint=recipe.commands[:1],
        binds=(snapshot,),
        digest="sha256:" + hashlib.sha256(f"{python_tag()} {environment.digest} {source_digest}".encode()).hexdigest(),
    )


def _source_files(package: str) -> list[Path]:
    base = ROOT / package
    return sorted(path for path in base.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _snapshot(recipe: Recipe) -> tuple[Path, str]:
    """A copy of the packages with launchers in bin/, and the digest of both."""
    digest = hashlib.sha256(f"{recipe.commands} {COMMANDS} {LAUNCHER}".encode())
    files = [
        (path, f"{Path(package).name}/{path.relative_to(ROOT / package).as_posix()}")
        for package in recipe.packages
        for path in _source_files(package)
    ]
    for path, place in files:
        digest.update(f"\0{place}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    source = digest.hexdigest()
    folder = cache_dir() / "snapshots" / f"{recipe.commands[0]}-{source[:16]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
        for path, place in files:
            target = scratch / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        (scratch / "bin").mkdir()
        for command in recipe.commands:
            module, _, function = COMMANDS[command].partition(":")
            launcher = scratch / "bin" / command
            launcher.write_text(LAUNCHER.format(module=module, function=function))
            launcher.chmod(0o755)
        compileall.compile_dir(scratch, quiet=2, stripdir=scratch)
        scratch.chmod(0o755)
        try:
            scratch.rename(folder)
        except OSError:
            # another process was faster with the same content
            shutil.rmtree(scratch)
        _forget_old_snapshots(recipe.commands[0], folder)
    return folder, source


LAUNCHER = """#!/usr/bin/env python3
import sys

from {module} import {function}

sys.exit({function}())
"""


def _forget_old_snapshots(command: str, newest: Path) -> None:
    """Keep the newest few. Those of running clusters are among them, except after very many edits."""
    old = sorted(
        (path for path in newest.parent.glob(f"{command}-*") if path != newest), key=lambda path: path.stat().st_mtime, reverse=True
    )
    for path in old[KEPT_SNAPSHOTS - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def main() -> int:
    """`make images`: build all and print their digests."""
    parser = argparse.ArgumentParser(prog="make images", description=__doc__)
    parser.parse_args()
    try:
        built = build_images(progress=lambda line: print(f"images: {line}", file=sys.stderr, flush=True))
    except SetupError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    for name, image in built.items():
        print(f"{image.digest}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
