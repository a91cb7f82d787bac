"""Which runtime does this image hold? Runs inside the serving container's own image, so: one file, standard library, Python 3.8.

    python3 runtime_check.py '{"backend": "onnxruntime", "version": "1.24.4"}'      (or the environment variable ENGINEFLEET_REQUEST)

Exit code 0: the very version that the engine was proven with. 43: another one or none, said in the termination message.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml"),
    "tensorrt": ("tensorrt", "tensorrt-cu12", "tensorrt-cu13", "tensorrt-cu11"),
    "tensorrt-rtx": ("tensorrt-rtx",),
}
MODULES = {"onnxruntime": "onnxruntime", "tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
LIBRARIES = {"onnxruntime": "libonnxruntime.so", "tensorrt": "libnvinfer.so", "tensorrt-rtx": "libtensorrt_rtx.so"}
LIBRARY_FOLDERS = ("/opt/tritonserver", "/usr/lib", "/usr/local/lib", "/opt")
IMPORT_SECONDS = 60
EXIT_PERMANENT, EXIT_ENVIRONMENT = 42, 43


def loaded_version(module: str) -> str | None:
    """What the library says when it is loaded, in a child process: a crash while loading must not end the check."""
    code = f"import {module}; print({module}.__version__)"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=IMPORT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.decode(errors="replace").split()
    return lines[-1] if done.returncode == 0 and lines else None


def installed_version(backend: str) -> str | None:
    """What the package's metadata says."""
    for name in DISTRIBUTIONS[backend]:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def library_versions(backend: str, folders: tuple[str, ...] = LIBRARY_FOLDERS) -> list[str]:
    """Versions in the names of shared libraries, for servers that are not Python; several when several are there."""
    name = LIBRARIES[backend]
    found = set()
    for folder in folders:
        for path in Path(folder).rglob(name + ".*"):
            match = re.fullmatch(re.escape(name) + r"\.(\d+\.\d+[\d.]*)", path.name)
            if match:
                found.add(match[1])
    return sorted(found)


def found_versions(backend: str) -> list[str]:
    """Versions that this image may load; empty when there is none. One, when the library itself could be asked."""
    version = loaded_version(MODULES[backend]) or installed_version(backend)
    return [version] if version else library_versions(backend)


def failure(reason: str, message: str, hint: str, failure_class: str = "Environment") -> dict[str, object]:
    return {"kind": "Failure", "failureClass": failure_class, "reason": reason, "message": message, "hint": hint}


def check(request: dict[str, object]) -> dict[str, object] | None:
    """None when the image holds the very version; else the failure (form: jobs.JobFailure)."""
    backend, wanted = str(request.get("backend")), str(request.get("version"))
    if backend not in MODULES:
        return failure(
            "BackendUnknown", "cannot check {!r}, only {}.".format(backend, ", ".join(MODULES)), "Correct the request.", "Permanent"
        )
    found = found_versions(backend)
    if found == [wanted]:
        return None
    if not found:
        message = f"the serving image has no {backend} that can be found, the engine was proven with {backend} {wanted}."
        return failure("RuntimeMissing", message, "Serve with an image that has it, or set serving.runtimeCheck to Declare.")
    message = "the serving image has {0} {1}, the engine was proven with {0} {2}.".format(backend, " and ".join(found), wanted)
    return failure("RuntimeMismatch", message, f"Use a serving image with {backend} {wanted}, or set HardwareClass runtime.image to match.")


def report(failed: dict[str, object]) -> None:
    given = os.environ.get("ENGINEFLEET_TERMINATION_LOG")
    path = Path(given or "/dev/termination-log")
    if given or path.exists():
        path.write_text(json.dumps({"schemaVersion": 1, "failure": failed}), encoding="utf-8")


def main(arguments: list[str]) -> int:
    text = arguments[0] if arguments else os.environ.get("ENGINEFLEET_REQUEST", "")
    try:
        request = json.loads(text)
        if not isinstance(request, dict):
            raise ValueError("it is not an object")
    except ValueError as error:
        failed = failure("BadRequest", f"the request cannot be read: {error}.", "Set ENGINEFLEET_REQUEST.", "Permanent")
    else:
        answer = check(request)
        if answer is None:
            print("{} {}: as proven".format(request["backend"], request["version"]))
            return 0
        failed = answer
    report(failed)
    print("{reason}: {message} {hint}".format(**failed), file=sys.stderr)
    return EXIT_PERMANENT if failed["failureClass"] == "Permanent" else EXIT_ENVIRONMENT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
