"""PyTorch files to ONNX, in a process of their own: .pt of Ultralytics by its command line, .pt2 of torch.export by export_worker.py.

Such a file is code: opening a .pt unpickles it. So nothing of it is opened here; it runs under another interpreter (ENGINEFLEET_EXPORT_PYTHON, from
an optional image), without this process's variables. `isolated`: without network too, no other process to signal, and unable to change files
outside of its folder, by namespaces or, where these are not allowed, a filter of system calls (export_fence.py). Ultralytics is under the AGPL-3.0: it is a
program that is started when somebody put it there, never imported, never installed by us.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from enginefleet_api.errors import EnvironmentFault, PermanentError
from enginefleet_api.resources import ModelExport

from ..gate.python_metric import unreadable
from ..io import Progress
from . import model as models
from .findings import clean

PYTHON_VARIABLE = "ENGINEFLEET_EXPORT_PYTHON"
ULTRALYTICS, TORCH_EXPORT = (".pt", ".pth"), (".pt2",)
SUFFIXES = (*ULTRALYTICS, *TORCH_EXPORT)
WORKER = Path(__file__).with_name("export_worker.py")
FENCE = Path(__file__).with_name("export_fence.py")
# processes: what the file leaves behind could change the data sets that are fetched later
ISOLATE = ("unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--")
NEEDED = ("torch", "ultralytics", "onnx", "onnxscript")
"""What an image that exports must have. Other modules that are missing are what the file was made with."""
POLL = 0.2
_STILL = os.WEXITED | os.WNOHANG | os.WNOWAIT
LAST_LINES = 3
_LOGGED = re.compile(r"[DIWEF]\d{4} \d\d:")
"""How a line of torch's own log begins: it says the traceback first, and would push the words of the error out."""
LOG_BYTES = 16384
LICENCE = "Ultralytics and what it exports are under the AGPL-3.0 unless you have another licence of theirs"


@dataclass(frozen=True, slots=True)
class Exported:
    path: Path
    notes: tuple[str, ...]


def checkpoint(folder: Path) -> Path | None:
    """The PyTorch file below `folder` when there is no .onnx file and just one of it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = [path for path in files if path.suffix.lower() in SUFFIXES]
    return found[0] if len(found) == 1 and not any(path.suffix.lower() == ".onnx" for path in files) else None


def not_allowed(path: Path) -> PermanentError:
    message = f"{clean(path.name)} is a file of PyTorch: opening it runs the code in it, and spec.model.export does not allow that."
    hint = (
        "Give an .onnx file (`yolo export format=onnx`, torch.onnx.export), or set spec.model.export (by hand: prepare --export isolated)."
    )
    return PermanentError("ExportNotAllowed", message, hint)


def export(given: Path, spec: ModelExport | None, work: Path, progress: Progress) -> Exported:
    """The model in `given` as an .onnx file in `work` (a folder that is made).

    Raises PermanentError `ExportNotAllowed`, `ExporterMissing`, `ExportFailed`; EnvironmentFault `ExportNotIsolated`.
    """
    if spec is None:
        raise not_allowed(given)
    python = _interpreter()
    work.mkdir(parents=True)
    home = work / "home"
    home.mkdir()
    ultralytics = given.suffix.lower() in ULTRALYTICS
    # a name of ours: the file's own could be read as an option
    source, target = work / ("model.pt" if ultralytics else "model.pt2"), work / "model.onnx"
    shutil.copyfile(given, source)
    command = _yolo(python, spec) if ultralytics else [str(python), "-I", str(WORKER)]
    prefix, notes = _isolation(spec, work)
    asked = "" if ultralytics else json.dumps({"model": str(source), "target": str(target), "opset": spec.opset})
    progress("export to ONNX")
    with unreadable():
        code, log = _run([*prefix, *command], asked, work, _environment(home), progress)
    if code and (lacking := _lacking(log)):
        if lacking in NEEDED:
            raise _missing(f"its interpreter {python} has no module {lacking}")
        message = f"{clean(given.name)} could not be exported: it was made with the module {clean(lacking)}, which the exporter lacks."
        hint = "Put that module into the image of spec.prepare.image, or export the model where it was made, and give the .onnx file."
        raise PermanentError("ExportFailed", message, hint)
    if code or not target.is_file():
        message = f"{clean(given.name)} could not be exported (exit code {code}): {_last(log)}."
        raise PermanentError("ExportFailed", message, "Export it on a workstation, and give the .onnx file.")
    shutil.rmtree(home)
    return Exported(target, (*notes, _note(given, target, spec, ultralytics)))


def _interpreter() -> Path:
    named = os.environ.get(PYTHON_VARIABLE, "")
    if not named:
        raise _missing(f"{PYTHON_VARIABLE} names no interpreter")
    if not Path(named).is_file():
        raise _missing(f"{PYTHON_VARIABLE} names {named}, which is not there")
    return Path(named)


def _missing(what: str) -> PermanentError:
    message = f"this image cannot export PyTorch files: {what}."
    hint = "Set HardwareClass spec.prepare.image to an image with Ultralytics or torch in it (docs/preflight.md), or give an .onnx file."
    return PermanentError("ExporterMissing", message, hint)


def _yolo(python: Path, spec: ModelExport) -> list[str]:
    program = python.with_name("yolo")
    if not program.is_file():
        raise _missing(f"there is no {program}: Ultralytics is not installed beside {python.name}")
    nms = {"default": "None", "true": "True", "false": "False"}[spec.nms]
    size = [f"imgsz={','.join(str(side) for side in spec.size)}"] if spec.size else []
    return [
        str(program),
        "export",
        "model=model.pt",
        "format=onnx",
        "device=cpu",
        "simplify=False",
        f"opset={spec.opset}",
        f"nms={nms}",
        *size,
    ]


def _isolation(spec: ModelExport, work: Path) -> tuple[Sequence[str], list[str]]:
    """(what to start the command with, notes)."""
    fence = (sys.executable, "-I", str(FENCE), str(work))
    # container runtimes refuse namespaces by default, and old kernels have no Landlock
    why: list[str] = []
    for prefix in ((*ISOLATE, *fence, "files"), (*fence, "files,calls"), ISOLATE):
        refused = _refused(prefix)
        if not refused:
            return prefix, [f"the exporter could change files outside of its folder: {why[-1]}"] if prefix == ISOLATE else []
        why.append(refused)
    because = "; ".join(dict.fromkeys(why))
    if spec.trust == "trusted":
        return (), [f"the exporter ran with network, as spec.model.export.trust allows: it cannot be cut off here ({because})"]
    message = f"the network cannot be cut off from the exporter here: {because}."
    hint = (
        "Allow user namespaces, or seccomp and Landlock (Linux 5.13), on the node; "
        "or set spec.model.export.trust to trusted when the file is your own."
    )
    raise EnvironmentFault("ExportNotIsolated", message, hint)


def _refused(prefix: Sequence[str]) -> str:
    """Why a command cannot be started behind it, in the kernel's words; empty when it can."""
    try:
        ended = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return f"there is no program {prefix[0]}"
    if ended.returncode == 0:
        return ""
    said = ended.stderr.decode(errors="replace").strip().splitlines()
    return clean(said[-1] if said else f"{prefix[0]} ended with {ended.returncode}", 200).rstrip(".")


def _environment(home: Path) -> dict[str, str]:
    """Nothing of ours: no credentials, no proxy."""
    quiet = {"YOLO_AUTOINSTALL": "false", "YOLO_OFFLINE": "true", "YOLO_CONFIG_DIR": str(home), "HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1"}
    return {"PATH": os.defpath, "HOME": str(home), "TMPDIR": str(home), "LC_ALL": "C.UTF-8", "CUDA_VISIBLE_DEVICES": ""} | quiet


def _run(command: Sequence[str], asked: str, work: Path, environment: Mapping[str, str], progress: Progress) -> tuple[int, str]:
    """(exit code, the end of what it said). Ended with all its children when the work must end."""
    with (work / "export.log").open("w+b") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, cwd=work, env=dict(environment), start_new_session=True
        )
        assert process.stdin is not None
        try:
            with process.stdin as questions:
                questions.write(asked.encode())
            while os.waitid(os.P_PID, process.pid, _STILL) is None:
                progress.wait(POLL)
        except BrokenPipeError:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            # before it is waited for, so that the number of the group is still its own: also what it leaves behind
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        size = log.seek(0, os.SEEK_END)
        log.seek(max(0, size - LOG_BYTES))
        return process.returncode, log.read().decode(errors="replace")


def _lacking(log: str) -> str:
    """The top module that Python did not find, by the last line that says so."""
    found = re.findall(r"No module named '([^'.]+)", log)
    return str(found[-1]) if found else ""


def _last(log: str) -> str:
    """The last lines; of a traceback what it ends with: the others are indented."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith((" ", "Traceback "))]
    lines = [line for line in lines if not _LOGGED.match(line)] or lines
    return clean("; ".join(lines[-LAST_LINES:]) or "it said nothing", 400).rstrip(".")


def _note(given: Path, target: Path, spec: ModelExport, ultralytics: bool) -> str:
    made = models.read_model(target)
    opset = models.opsets(made).get("", 0)
    # torch.onnx.export goes no lower than 18 when it cannot convert downwards, and does not fail for it
    told = f"opset {opset}" + (f" ({spec.opset} was asked for)" if opset != spec.opset else "")
    if not ultralytics:
        return f"exported from {clean(given.name)} by torch.onnx.export, {told}"
    version = models.metadata(made).get("version", "of unknown version")
    return f"exported from {clean(given.name)} by Ultralytics {clean(version)}, {told}, nms {spec.nms}; {LICENCE}"
