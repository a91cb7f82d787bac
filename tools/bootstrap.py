"""`make setup`: from a fresh clone to a working `.venv`, with nothing but Python >= 3.11. Standard library only.

uv comes first, pinned by hash, into the cache folder; it then makes `.venv` from requirements/dev.lock and installs the project editable. When
nothing has changed this takes a few hundredths of a second.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
NEEDED = (3, 11)


class SetupError(Exception):
    """Something that the person at the keyboard can act on."""


def cache_dir() -> Path:
    """`$ENGINEFLEET_CACHE`, or `enginefleet` below `$XDG_CACHE_HOME` (`~/.cache`): the same folder that localcluster keeps its tools in."""
    if own := os.environ.get("ENGINEFLEET_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "enginefleet"


def say(line: str) -> None:
    print(f"setup: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the kernel frees the lock of a killed one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is setting up: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(argv: list[str], what: str) -> None:
    """Run a command quietly; its words only when it fails."""
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env={**os.environ, "VIRTUAL_ENV": ""}
    )
    if done.returncode:
        raise SetupError(
            f"{what} failed (exit {done.returncode}):\n{done.stdout.strip()}\n"
            "If it could not download: check the network and the settings of your package index (PIP_INDEX_URL, UV_INDEX_URL, proxies)."
        )


def uv() -> Path:
    """The pinned uv, installed first when it is missing or of another version. Raises SetupError when that fails."""
    folder, lock = cache_dir() / "bootstrap", REQUIREMENTS / "bootstrap.lock"
    program, stamp, wanted = folder / "bin" / "uv", folder / "enginefleet.stamp", _digest(lock)
    if _stamped(stamp, wanted) and program.exists():
        return program
    with locked(cache_dir() / "locks" / "bootstrap"):
        if not (_stamped(stamp, wanted) and program.exists()):
            say("installing uv (pinned by hash) into the cache folder, a few seconds")
            pip = _pip_of(folder)
            run([*pip, "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r", str(lock)], "installing uv")
            stamp.write_text(wanted)
    return program


def _pip_of(folder: Path) -> list[str]:
    """pip that installs into the virtual environment `folder`, made here when it is missing."""
    python = folder / "bin" / "python"
    if not (python.exists() and (folder / "bin" / "pip").exists()):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            venv.create(folder, with_pip=True)
        except (subprocess.CalledProcessError, ImportError):
            # Debian's python3 has no ensurepip without the package python3-venv
            # and leaves an environment without pip; the system's own pip can
            # install into it.
            known = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False)
            if known.returncode:
                raise SetupError(
                    f"{sys.executable} has neither ensurepip nor pip. Install your distribution's python3-venv (Debian, Ubuntu) or python3-pip, "
                    "or name another Python: make PYTHON=/path/to/python3"
                ) from None
            return [sys.executable, "-m", "pip", "--python", str(python)]
    return [str(python), "-m", "pip"]


def make_environment(folder: Path, lock: Path | None, *, stamp: str, project: bool = False, compiled: bool = False) -> None:
    """A virtual environment of this Python with exactly the packages of a lock file (None: none); with `project` this clone too, editable.

    `compiled` writes byte code now: containers see the folder read-only, and where PYTHONDONTWRITEBYTECODE is set nobody ever writes any, so that
    every start would compile anew. An existing environment is brought up to date in place: what the lock does not name is removed.
    """
    program = str(uv())
    python = folder / "bin" / "python"
    if not python.exists():
        run([program, "venv", "--quiet", "--no-project", "--clear", "--python", sys.executable, str(folder)], f"making {folder}")
    if lock is not None:
        sync = [program, "pip", "sync", "--quiet", "--require-hashes", *(["--compile-bytecode"] if compiled else [])]
        run([*sync, "--python", str(python), str(lock)], f"installing {lock.name}")
    if project:
        editable = [
            program,
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--python",
            str(python),
            "--editable",
            str(ROOT),
        ]
        run(editable, "installing the project")
    (folder / "enginefleet.stamp").write_text(stamp)


class Environment:
    """A virtual environment in the cache folder, and the digest of the lock file that it was made from. No dataclass: every `make` loads this."""

    def __init__(self, folder: Path, digest: str) -> None:
        self.folder, self.digest = folder, digest

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Its site-packages folder."""
        return next((self.folder / "lib").glob("python*/site-packages"))


def kept_environment(lock: Path | None, *, compiled: bool = False, progress: Callable[[str], None] = lambda _: None) -> Environment:
    """With exactly the packages of a lock file (None: none), for all clones; made when it is not there. `compiled`: see make_environment."""
    digest = hashlib.sha256(b"" if lock is None else lock.read_bytes()).hexdigest()
    folder = cache_dir() / "environments" / f"{'python' if lock is None else lock.stem}-{python_tag()}-{digest[:16]}"
    if not is_current(folder, digest):
        with locked(cache_dir() / "locks" / folder.name):
            if not is_current(folder, digest):
                progress(f"installing {'Python' if lock is None else lock.name}")
                began = time.monotonic()
                make_environment(folder, lock, stamp=digest, compiled=compiled)
                progress(f"installed in {time.monotonic() - began:.0f}s")
    return Environment(folder, digest)


def is_current(folder: Path, stamp: str) -> bool:
    return _stamped(folder / "enginefleet.stamp", stamp) and (folder / "bin" / "python").exists()


def python_tag() -> str:
    """Names the interpreter that environments are made of: another one needs others."""
    return f"{sys.implementation.name}-{sys.version_info[0]}.{sys.version_info[1]}"


def _stamped(path: Path, wanted: str) -> bool:
    try:
        return path.read_text() == wanted
    except OSError:
        return False


def _digest(*files: Path) -> str:
    digest = hashlib.sha256(python_tag().encode())
    for file in files:
        digest.update(b"\0" + file.read_bytes())
    return digest.hexdigest()


ENVIRONMENT, LOCK = ROOT / ".venv", REQUIREMENTS / "dev.lock"


def _stamp_wanted() -> str:
    # An editable install holds the absolute paths of the package folders that were there: a moved clone or a new package needs another.
    packages = " ".join(sorted(path.parent.name for path in ROOT.glob("*/enginefleet_*/__init__.py")))
    return _digest(LOCK, ROOT / "pyproject.toml") + f" {ROOT}: {packages}"


def setup() -> None:
    """Make `.venv`, or bring it up to date."""
    folder, stamp = ENVIRONMENT, _stamp_wanted()
    if is_current(folder, stamp):
        return
    with locked(cache_dir() / "locks" / f"setup-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:16]}"):
        if is_current(folder, stamp):
            return
        began = time.monotonic()
        if folder.exists() and not _stamped_by_this_python(folder):
            shutil.rmtree(folder)
        if not folder.exists():
            say("making .venv: about 700 MB of packages, 1 to 3 minutes the first time")
        else:
            say("bringing .venv up to date")
        make_environment(folder, LOCK, stamp=stamp, project=True, compiled=True)
        say(f".venv is ready after {time.monotonic() - began:.0f}s")


def _stamped_by_this_python(folder: Path) -> bool:
    version = ".".join(map(str, sys.version_info[:2]))
    return (folder / "lib" / f"python{version}").is_dir()


def main() -> int:
    """`--check`: only say, by the exit code, whether `.venv` is up to date."""
    if "--check" in sys.argv[1:]:
        return 0 if is_current(ENVIRONMENT, _stamp_wanted()) else 1
    try:
        setup()
    except SetupError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    if sys.version_info < NEEDED:
        sys.exit(f"setup: Python {sys.version.split()[0]} is too old, EngineFleet needs 3.11 or newer: make PYTHON=/path/to/python3.11")
    sys.exit(main())
