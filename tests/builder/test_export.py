"""PyTorch files: what is refused, and what the exporter's process may not see. The exporter here is a program of the test's own: neither Ultralytics
nor torch is installed in this environment (6 GB), so what they themselves do is shown by bench/export.py instead.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from enginefleet_api.errors import EnvironmentFault, PermanentError, TransientFault
from enginefleet_api.jobs import Source
from enginefleet_api.resources import ModelExport
from enginefleet_builder.io import Cancellation, Progress
from enginefleet_builder.main import app
from enginefleet_builder.prepare import export as exports
from enginefleet_builder.prepare.export import checkpoint, export
from enginefleet_builder.prepare.export_fence import REFUSED
from tests.builder.models import classifier, save_model
from tests.builder.support import Bench

YOLO = """#!{python} -I
import json, os, socket, sys
from pathlib import Path
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=2)
    network = True
except OSError:
    network = False
try:
    parent = Path(f"/proc/{{os.getppid()}}/environ").read_bytes()
except OSError:
    parent = b""
# the number of this process outside of its own namespace
number = int(os.readlink("/proc/self"))
seen = {{"argv": sys.argv[1:], "env": dict(os.environ), "network": network, "parent": b"hunter2" in parent, "pid": number}}
Path("seen.json").write_text(json.dumps(seen))
{then}
"""


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "format=engine.pt"
    path.parent.mkdir()
    path.write_bytes(b"PK\x03\x04 not opened by us")
    return path


class Exporter:
    """An interpreter with a `yolo` beside it, as in an image that has Ultralytics."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "bin" / "python"
        self.python.parent.mkdir(parents=True)
        self.python.symlink_to(sys.executable)
        self.model = save_model(classifier(), folder / "made.onnx")

    def brings(self, then: str, port: int = 1) -> None:
        program = self.python.with_name("yolo")
        program.write_text(YOLO.format(python=sys.executable, port=port, then=then))
        program.chmod(0o755)

    def makes_a_model(self, port: int = 1) -> None:
        self.brings(f"import shutil; shutil.copyfile({str(self.model)!r}, 'model.onnx')", port)

    @staticmethod
    def seen(work: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((work / "seen.json").read_text())
        return found


@pytest.fixture
def exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Exporter:
    made = Exporter(tmp_path / "image")
    monkeypatch.setenv(exports.PYTHON_VARIABLE, str(made.python))
    return made


@pytest.fixture(params=["namespaces", "filter"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the two ways to isolate an exporter."""
    if request.param == "filter":
        monkeypatch.setattr(exports, "ISOLATE", ("false",))
    return str(request.param)


def refused(given: Path, spec: ModelExport | None, work: Path) -> PermanentError:
    with pytest.raises(PermanentError) as caught:
        export(given, spec, work, Progress())
    return caught.value


def ends(number: int) -> bool:
    """Whether that process is gone within ten seconds: a killed one stays until it is waited for, by whoever has it then."""
    deadline = time.monotonic() + 10
    while Path(f"/proc/{number}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not Path(f"/proc/{number}").exists()


def test_a_checkpoint_is_refused_unless_the_spec_allows_it(given: Path, tmp_path: Path) -> None:
    error = refused(given, None, tmp_path / "work")
    assert error.reason == "ExportNotAllowed"
    assert "runs the code in it" in error.message
    assert "spec.model.export" in error.hint


def test_an_image_without_an_exporter_says_so(given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(exports.PYTHON_VARIABLE, raising=False)
    error = refused(given, ModelExport(), tmp_path / "work")
    assert error.reason == "ExporterMissing"
    assert "spec.prepare.image" in error.hint


def test_an_image_without_ultralytics_says_so(given: Path, tmp_path: Path, exporter: Exporter) -> None:
    error = refused(given, ModelExport(), tmp_path / "work")
    assert error.reason == "ExporterMissing"
    assert "Ultralytics is not installed beside python" in error.message


def test_an_image_without_torch_says_so(given: Path, tmp_path: Path, exporter: Exporter) -> None:
    """The real worker under a real interpreter that has no torch."""
    program = given.rename(given.with_name("program.pt2"))
    error = refused(program, ModelExport(trust="trusted"), tmp_path / "work")
    assert error.reason == "ExporterMissing"
    assert "has no module torch" in error.message


def test_a_file_that_was_made_with_a_module_of_its_own_says_which(given: Path, tmp_path: Path, exporter: Exporter) -> None:
    """Ultralytics would install it, if it were let."""
    exporter.brings("import their_layers.blocks")
    error = refused(given, ModelExport(), tmp_path / "work")
    assert error.reason == "ExportFailed"
    assert "made with the module their_layers, which the exporter lacks" in error.message


def test_the_exporter_sees_no_credentials_and_no_network(
    given: Path, tmp_path: Path, exporter: Exporter, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("ENGINEFLEET_STORE_SECRET_ACCESS_KEY", "hunter2")
    with socket.create_server(("127.0.0.1", 0)) as server:
        exporter.makes_a_model(server.getsockname()[1])
        export(given, ModelExport(size=[320, 640], nms="false", opset=17), tmp_path / "work", Progress())
    seen = exporter.seen(tmp_path / "work")
    assert "hunter2" not in json.dumps(seen["env"])
    assert not seen["parent"]
    assert not seen["network"]
    assert (seen["env"]["YOLO_AUTOINSTALL"], seen["env"]["YOLO_OFFLINE"]) == ("false", "true")
    assert seen["env"]["YOLO_CONFIG_DIR"].startswith(str(tmp_path / "work"))
    options = ["export", "model=model.pt", "format=onnx", "device=cpu", "simplify=False", "opset=17", "nms=False", "imgsz=320,640"]
    assert seen["argv"] == options


def test_a_file_changes_nothing_outside_of_its_folder(given: Path, tmp_path: Path, exporter: Exporter, way: str) -> None:
    bystander = tmp_path / "validation.npz"
    bystander.write_bytes(b"as it was")
    changes = [
        f"Path({str(bystander)!r}).write_bytes(b'x')",
        f"Path({str(bystander)!r}).unlink()",
        f"os.truncate({str(bystander)!r}, 0)",
        f"os.rename({str(bystander)!r}, 'mine')",
        f"Path({str(tmp_path / 'new')!r}).mkdir()",
        f"os.kill({os.getpid()}, 0)",
        f"os.kill(-{os.getpgid(0)}, 0)",
        f"open('/proc/{os.getpid()}/mem', 'rb')",
        "socket.socketpair()" if way == "filter" else "socket.create_connection(('127.0.0.1', 9))",
    ]
    tries = "\n".join(f"try:\n    {change}\n    print({change!r})\nexcept OSError:\n    pass" for change in changes)
    exporter.brings(f"{tries}\nPath('own').mkdir()\nPath('own').rename('renamed')\nimport sys; sys.exit('no more')")
    assert "(exit code 1): no more." in refused(given, ModelExport(), tmp_path / "work").message
    assert bystander.read_bytes() == b"as it was"


def test_a_process_that_a_file_leaves_behind_ends_with_the_export(given: Path, tmp_path: Path, exporter: Exporter, way: str) -> None:
    left = (
        "import signal\nif os.fork() == 0:\n    try:\n        os.setsid()\n    except PermissionError:\n        pass\n"
        "    Path('left').write_text(os.readlink('/proc/self'))\n    signal.pause()\n"
    )
    exporter.brings(f"{left}while not Path('left').is_file() or not Path('left').read_text():\n    pass\nsys.exit('done')")
    refused(given, ModelExport(), tmp_path / "work")
    number = int((tmp_path / "work" / "left").read_text())
    assert ends(number)


def test_a_file_that_aborts_is_an_answer(given: Path, tmp_path: Path, exporter: Exporter, way: str) -> None:
    exporter.brings("os.abort()")
    assert refused(given, ModelExport(), tmp_path / "work").reason == "ExportFailed"


UNDER_A_PROFILE = """
import platform, sys
from pathlib import Path
from enginefleet_api.resources import ModelExport
from enginefleet_builder import seccomp
from enginefleet_builder.io import Progress
from enginefleet_builder.prepare.export import export
seccomp.install(seccomp.filter_steps(platform.machine(), ["unshare 272 97, setns 308 268, mount 165 40"]))
print(export(Path(sys.argv[1]), ModelExport(), Path(sys.argv[2]), Progress()).notes)
"""


def test_where_namespaces_are_refused_as_by_a_runtimes_default_profile_a_filter_isolates(
    given: Path, tmp_path: Path, exporter: Exporter
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        exporter.makes_a_model(server.getsockname()[1])
        ended = subprocess.run(
            [sys.executable, "-c", UNDER_A_PROFILE, str(given), str(tmp_path / "work")], capture_output=True, text=True, check=False
        )
    assert ended.returncode == 0, ended.stderr
    assert "by Ultralytics" in ended.stdout
    assert "isolat" not in ended.stdout
    seen = exporter.seen(tmp_path / "work")
    assert not seen["network"]
    assert not seen["parent"]


def test_a_kernel_without_landlock_is_told_of(given: Path, tmp_path: Path, exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    fence = tmp_path / "fence.py"
    fence.write_text(f"import sys; print('there is no Landlock', file=sys.stderr); sys.exit({REFUSED})")
    monkeypatch.setattr(exports, "FENCE", fence)
    exporter.makes_a_model()
    note = export(given, ModelExport(), tmp_path / "work", Progress()).notes[0]
    assert note == "the exporter could change files outside of its folder: there is no Landlock"


def test_without_isolation_only_a_trusted_file_is_opened(
    given: Path, tmp_path: Path, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "ISOLATE", ("no-such-program",))
    fence = tmp_path / "fence.py"
    fence.write_text(f"import sys; print('system calls cannot be filtered', file=sys.stderr); sys.exit({REFUSED})")
    monkeypatch.setattr(exports, "FENCE", fence)
    exporter.makes_a_model()
    with pytest.raises(EnvironmentFault) as caught:
        export(given, ModelExport(), tmp_path / "a", Progress())
    assert caught.value.reason == "ExportNotIsolated"
    assert "there is no program no-such-program; system calls cannot be filtered" in caught.value.message
    notes = export(given, ModelExport(trust="trusted"), tmp_path / "b", Progress()).notes
    assert "ran with network" in notes[0]


def test_a_failing_export_shows_its_last_lines_and_no_traceback(given: Path, tmp_path: Path, exporter: Exporter) -> None:
    exporter.brings("raise RuntimeError('weights of another version')")
    error = refused(given, ModelExport(), tmp_path / "work")
    assert error.reason == "ExportFailed"
    assert "RuntimeError: weights of another version" in error.message
    assert "Traceback" not in error.message


def test_what_torch_logs_does_not_push_the_words_of_the_error_out(given: Path, tmp_path: Path, exporter: Exporter) -> None:
    logged = "W1203 13:42:52.388000 1 torch/export/__init__.py:403] " + "^" * 150
    exporter.brings(f"print({logged!r}); print({logged!r}); print('RuntimeError: failed finding central directory'); sys.exit(1)")
    error = refused(given, ModelExport(), tmp_path / "work")
    assert "RuntimeError: failed finding central directory" in error.message
    assert "W1203" not in error.message


@pytest.mark.parametrize("size", ["banana", "640", "480x", "480x640x3", "-1x640"])
def test_a_size_by_hand_that_is_none_is_shown_with_what_is_expected(size: str, tmp_path: Path) -> None:
    flags = ["--model", "net.pt", "--store", str(tmp_path), "--export", "isolated", "--export-size", size]
    answer: Any = CliRunner().invoke(app, ["prepare", *flags])
    assert answer.exit_code == 2
    said = " ".join(re.sub(r"[^ -~]", " ", answer.output).split())
    assert f"--export-size is '{size}', expected HEIGHTxWIDTH in pixels, such as 480x640" in said


def test_ending_the_work_ends_the_exporter(given: Path, tmp_path: Path, exporter: Exporter) -> None:
    exporter.brings("print(flush=True); sys.stdin.read(); import signal; signal.pause()")
    cancellation = Cancellation()

    class Watch(Progress):
        def wait(self, seconds: float) -> None:
            if (tmp_path / "work" / "seen.json").exists():
                self.cancellation.cancel(TransientFault("Terminated", "asked to end."))
            super().wait(seconds)

    with pytest.raises(TransientFault, match="Terminated"):
        export(given, ModelExport(), tmp_path / "work", Watch(cancellation))
    assert ends(exporter.seen(tmp_path / "work")["pid"])


def test_which_files_are_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"x")
    assert checkpoint(tmp_path) == tmp_path / "a.pt"
    (tmp_path / "b.pt").write_bytes(b"x")
    assert checkpoint(tmp_path) is None
    (tmp_path / "b.pt").rename(tmp_path / "b.onnx")
    assert checkpoint(tmp_path) is None


def test_prepare_exports_checks_and_notes_the_licence(bench: Bench, exporter: Exporter) -> None:
    exporter.makes_a_model()
    given = bench.folder / "yolo.pt"
    given.write_bytes(b"PK\x03\x04")
    source = Source(uri=given.as_uri())
    with pytest.raises(PermanentError, match="ExportNotAllowed"):
        bench.prepare(model=source)
    report = bench.prepare(model=source, export=ModelExport())
    assert any("AGPL-3.0" in note and "nms default" in note for note in report.notes)
    assert report.baseline is not None
    assert bench.prepare(model=source, export=ModelExport()).reused
    assert not bench.prepare(model=source, export=ModelExport(nms="true")).reused
