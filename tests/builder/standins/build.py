"""Compiles the stand-ins with the machine's C compiler, and puts bindings and an interpreter beside them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
WORDS = "-Wall", "-Werror", "-Wno-unused-parameter", "-O1", "-shared", "-fPIC"


def library(source: str, target: Path, *flags: str) -> Path:
    """Compile <source>.c into the shared library `target`, whose own name is its file's."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", *WORDS, *flags, f"-Wl,-soname,{target.name}", "-o", target, HERE / f"{source}.c"], check=True, timeout=60)
    return target


def bindings(folder: Path, name: str, soname: str, version: str) -> None:
    """A package that loads `soname` as TensorRT's bindings do, and tells a version of its own."""
    package = folder / name
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(f"import ctypes\nctypes.CDLL({soname!r})\n__version__ = {version!r}\n")


def interpreter(path: Path, *sites: Path) -> Path:
    """An interpreter that owns the packages in `sites`, as a wrapper: what a HardwareClass names as runtime.python may be one."""
    path.write_text(f'#!/bin/sh\nexport PYTHONPATH={":".join(map(str, sites))}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


@dataclass(frozen=True, slots=True)
class Standins:
    """Libraries in `folder`, which LD_LIBRARY_PATH names; `python` owns the bindings."""

    folder: Path
    python: Path

    def tensorrt(self, soname: str, version: str, *flags: str, module: str = "tensorrt", linked: Sequence[Path] = ()) -> None:
        """TensorRT's library and bindings; see nvinfer.c for the flags. `linked`: libraries that it needs."""
        links = [f"-Wl,--no-as-needed,-rpath,{self.folder}", *map(str, linked)] if linked else []
        library("nvinfer", self.folder / soname, *flags, *links)
        bindings(self.folder / "site", module, soname, version)
