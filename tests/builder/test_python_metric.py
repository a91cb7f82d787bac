"""A user's own metric: what it may do, and that all else ends with a reason and harms nothing."""

from __future__ import annotations

import os
import socket
import struct
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginefleet_api.errors import PermanentError, TransientFault
from enginefleet_api.resources import PythonMetric
from enginefleet_builder.gate.confinement import filter_steps
from enginefleet_builder.gate.python_metric import Code, open_code
from enginefleet_builder.io import Progress

OUTPUTS = {"scores": np.array([0.25, 0.75], np.float32)}
TRUTH = {"label": np.asarray(np.int64(1))}


@contextmanager
def running(code: str, **limits: Any) -> Iterator[Code]:
    with open_code(PythonMetric.model_validate({"code": textwrap.dedent(code), **limits}), Progress()) as opened:
        assert opened is not None
        yield opened


def sample(code: str, **limits: Any) -> dict[str, Any]:
    """The record of one sample by a body of `sample`."""
    with running("def sample(outputs, truth):\n" + textwrap.indent(textwrap.dedent(code), "    "), **limits) as opened:
        return opened.sample(OUTPUTS, TRUTH)


def test_makes_a_record_of_a_sample() -> None:
    assert {"value": 0.75} == sample("return outputs['scores'][truth['label']]")
    assert {"value": 1.0, "why": "right"} == sample("return {'value': float(outputs['scores'].argmax() == truth['label']), 'why': 'right'}")


def test_makes_a_value_of_records_that_were_drawn_several_times() -> None:
    code = """
    import statistics

    def sample(outputs, truth):
        return {"score": 1}

    def value(records):
        return statistics.median(record["score"] for record in records)
    """
    with running(code) as opened:
        assert opened.has_value
        number = opened.keep([{"score": score} for score in range(5)])
        weights = np.array([[1, 1, 1, 1, 1], [0, 0, 0, 0, 3], [2, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
        found = opened.values(number, weights).tolist()
    assert [2.0, 4.0, 0.0] == found[:3]
    assert np.isnan(found[3])


def test_decodes_outputs_to_arrays() -> None:
    with running("def decode(outputs):\n    return {'scores': outputs['scores'][::-1]}") as opened:
        assert [0.75, 0.25] == opened.decode(OUTPUTS)["scores"].tolist()
        with pytest.raises(PermanentError, match=r"decode returned \['scores'\], expected an array 'boxes'"):
            opened.decode(OUTPUTS)["boxes"]


# a system call by its number, as code could make it without Python's functions
CALL = """\
import ctypes, os, platform
x86 = platform.machine() == "x86_64"
def call(*arguments):
    if (result := ctypes.CDLL(None, use_errno=True).syscall(*arguments)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
"""

WRONG: list[tuple[str, str, dict[str, Any], str]] = [
    ("an error is told with its line", "x = 1\nreturn x / 0", {}, "ZeroDivisionError in line 3: division by zero"),
    ("a missing output is told", "return outputs['logits']", {}, "KeyError in line 2: 'logits'"),
    ("what is no number", "return 'good'", {}, "sample returned str, expected a number or a dict"),
    ("what is no JSON", "return {'value': 1, 'array': np.zeros(3)}", {}, "what is no JSON"),
    ("a dict without a number", "return {'score': 1}", {}, "without a number under 'value'"),
    ("leaving", "raise SystemExit(3)", {}, "SystemExit in line 2: 3"),
    ("an endless loop", "while True: pass", {"timeout": "2s"}, "not done after 2 s"),
    ("too much memory", "return len(bytearray(2_000_000_000))", {"memory": "200Mi"}, "MemoryError in line 2"),
    (
        "memory bit by bit",
        "kept = []\nwhile True: kept.append(np.ones(1_000_000))",
        {"memory": "200Mi"},
        "Memory",
    ),
    ("a crash", "import ctypes\nctypes.string_at(0)", {}, "ended with SIGSEGV"),
    ("ending at once", "import os\nos._exit(7)", {}, "ended with exit code 7"),
    ("a new process", "import os\nos.fork()", {}, "PermissionError in line 3"),
    ("a fork bomb", "import os\nwhile True: os.fork()", {}, "PermissionError in line 3"),
    ("a program", "import subprocess\nsubprocess.run(['true'])", {}, "PermissionError in line 3"),
    ("replacing itself", "import os\nos.execv('/bin/sh', ['sh'])", {}, "PermissionError in line 3"),
    ("a thread", "import threading\nthreading.Thread(target=print).start()", {}, "RuntimeError in line 3"),
    ("a socket", "import socket\nsocket.socket()", {}, "PermissionError in line 3"),
    ("a local socket", "import socket\nsocket.socketpair()", {}, "PermissionError in line 3"),
    ("killing its parent", "import os\nos.kill(os.getppid(), 9)", {}, "PermissionError in line 3"),
    ("its parent's environment", "import os\nopen(f'/proc/{os.getppid()}/environ').read()", {}, "PermissionError in line 3"),
    ("its parent's memory", "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb').read(1)", {}, "PermissionError in line 3"),
    ("many files", "return len([open('/dev/null') for _ in range(100)])", {}, "Too many open files"),
    ("a large log", "import os\nfor _ in range(3): os.write(1, bytes(1_000_000))", {}, "OSError in line 3: [Errno 27] File too large"),
    (
        "a temporary file",
        "import tempfile\ntempfile.TemporaryFile()",
        {},
        "FileNotFoundError in line 3: [Errno 2] No usable temporary directory",
    ),
    ("a queued signal", CALL + "call(129 if x86 else 138, os.getppid(), 9, bytes(128))", {}, "PermissionError in line 6"),
    ("a signal by a handle", CALL + "call(434, os.getppid(), 0)", {}, "PermissionError in line 6"),
    ("a signal by a pipe", "import fcntl, os\nfcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())", {}, "PermissionError in line 3"),
    (
        "its parent's limits",
        "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (0, 0))",
        {},
        "PermissionError in line 3",
    ),
    ("its parent's pace", "import os\nos.setpriority(os.PRIO_PROCESS, os.getppid(), 19)", {}, "PermissionError in line 3"),
    ("memory that outlives it", CALL + "call(29 if x86 else 194, 0, 1 << 20, 0o1600)", {}, "PermissionError in line 6"),
    ("code that does not parse", "return (", {}, "SyntaxError in line 2"),
]


@pytest.mark.parametrize(("code", "limits", "text"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_ends_with_a_reason(code: str, limits: dict[str, Any], text: str) -> None:
    with pytest.raises(PermanentError) as caught:
        sample(code, **limits)
    assert "PythonMetricFailed" == caught.value.reason
    assert text in caught.value.message
    assert "Traceback" not in caught.value.message
    assert "the engine" not in caught.value.message


CHANGES: list[tuple[str, str, int]] = [
    ("overwriting", "open(file, 'w').write('mine')", 3),
    ("overwriting a part", "open(file, 'r+b').write(b'mine')", 3),
    ("appending", "open(file, 'ab').write(b'mine')", 3),
    ("emptying while reading", "os.open(file, os.O_RDONLY | os.O_TRUNC)", 3),
    ("truncating", "os.truncate(file, 1)", 3),
    ("deleting", "os.unlink(file)", 3),
    ("deleting in a folder that is open", "os.unlink('manifest.json', dir_fd=os.open(folder, os.O_RDONLY))", 3),
    ("deleting a folder", "os.rmdir(os.path.join(folder, 'empty'))", 3),
    ("deleting all", "import shutil\nshutil.rmtree(folder)", 4),
    ("renaming", "os.rename(file, file + '.old')", 3),
    ("replacing", "os.replace(os.path.join(folder, 'other'), file)", 3),
    ("exchanging", CALL + "call(316 if x86 else 276, -100, file.encode(), -100, os.path.join(folder, 'other').encode(), 2)", 7),
    ("creating", "open(os.path.join(folder, 'new'), 'x')", 3),
    ("creating without a name", "os.open(folder, os.O_TMPFILE | os.O_RDWR)", 3),
    ("creating a folder", "os.mkdir(os.path.join(folder, 'new'))", 3),
    ("creating a pipe with a name", "os.mkfifo(os.path.join(folder, 'new'))", 3),
    ("a link", "os.link(file, os.path.join(folder, 'new'))", 3),
    ("a symbolic link", "os.symlink(file, os.path.join(folder, 'new'))", 3),
    ("a mode", "os.chmod(file, 0)", 3),
    ("a mode of what is open", "os.fchmod(os.open(file, os.O_RDONLY), 0)", 3),
    ("an owner", "os.chown(file, os.getuid(), os.getgid())", 3),
    ("a time", "os.utime(file, (0, 0))", 3),
    ("a time of what is open", "os.utime(os.open(file, os.O_RDONLY), (0, 0))", 3),
    ("an attribute", "os.setxattr(file, 'user.mine', b'mine')", 3),
    ("a newer attribute", CALL + "call(463, -100, file.encode(), 0, b'user.mine', 0, 0)", 7),
    ("an inode's flags", "import fcntl\nfcntl.ioctl(os.open(file, os.O_RDONLY), 0x40086602, (0x80040).to_bytes(8, 'little'))", 4),
    ("a lock", "import fcntl\nfcntl.flock(os.open(file, os.O_RDONLY), fcntl.LOCK_EX)", 4),
    ("an array", "np.save(os.path.join(folder, 'new'), np.ones(3))", 3),
    ("an array in a file", "np.memmap(file, np.uint8, 'r+')[:] = 0", 3),
    ("what another process has open", "open(f'/proc/{os.getpid()}/fd/1', 'w')", 3),
    ("opening by a structure", CALL + "call(437, -100, file.encode(), (1).to_bytes(24, 'little'), 24)", 7),
    ("a queue of calls", CALL + "call(425, 8, bytes(120))", 7),
    ("a file in memory", "os.memfd_create('mine')", 3),
    ("mounting", CALL + "call(165 if x86 else 40, b'none', folder.encode(), b'tmpfs', 0, 0)", 7),
]


@pytest.mark.parametrize(("code", "line"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_changes_no_file(code: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    file = tmp_path / "manifest.json"
    file.write_text("theirs")
    (tmp_path / "other").write_text("other")
    before = seen(tmp_path)
    with pytest.raises(PermanentError) as caught:
        sample(f"import os; folder, file = {str(tmp_path)!r}, {str(file)!r}\n{code}")
    assert "PythonMetricFailed" == caught.value.reason
    assert ("Function not implemented" if "call(463" in code else "Operation not permitted") in caught.value.message
    assert f"in line {line}: " in caught.value.message
    assert "cannot change files" in caught.value.hint
    assert before == seen(tmp_path)


def seen(folder: Path) -> dict[str, tuple[Any, ...]]:
    """All of it that code could change."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in (folder, *folder.rglob("*")):
        stat = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (content, stat.st_mode, stat.st_uid, stat.st_gid, stat.st_nlink, stat.st_mtime_ns, stat.st_ctime_ns)
    return found


def test_code_that_only_computes_and_reads_goes_on_working(tmp_path: Path) -> None:
    np.save(tmp_path / "prior.npy", np.eye(3))
    code = f"""
    import collections, fractions, os, statistics, xml.etree.ElementTree   # loaded when it is confined already
    import numpy.ma
    prior = np.load({str(tmp_path / "prior.npy")!r})
    mapped = np.load({str(tmp_path / "prior.npy")!r}, mmap_mode="r")
    assert "prior.npy" in os.listdir({str(tmp_path)!r})
    assert not os.isatty(0)
    noise = np.random.default_rng(0).normal(size=(50, 50))
    assert np.allclose(np.linalg.inv(noise) @ noise, np.eye(50))
    assert np.allclose(np.fft.ifft(np.fft.fft(noise)).real, noise)
    print("thinking", flush=True)
    return float(np.linalg.det(prior) + mapped.trace() + np.ma.masked_less(outputs["scores"], 0.5).sum())
    """
    assert {"value": 4.75} == sample(code, memory="1Gi")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_of_both_machines_refuses_what_changes_files(machine: str) -> None:
    creat, openat, openat2, unlinkat, renameat, ftruncate, read, write, ioctl = {
        "x86_64": (85, 257, 437, 263, 264, 77, 0, 1, 16),
        "aarch64": (None, 56, 437, 35, 38, 46, 63, 64, 29),
    }[machine]
    for call in (creat, openat2, unlinkat, renameat, ftruncate):
        assert call is None or "EPERM" == filtered(machine, call)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND, os.O_CREAT, os.O_TRUNC, 0o20200000, 3, os.O_WRONLY | 1 << 32):
        assert "EPERM" == filtered(machine, openat, 0, 0, flags)
    for flags in (os.O_RDONLY, os.O_CLOEXEC, os.O_NONBLOCK, 0o40000, 0o200000, 0o400000):  # a folder, no link: differ between the machines
        assert "allowed" == filtered(machine, openat, 0, 0, flags)
    assert ["allowed"] * 3 == [filtered(machine, read), filtered(machine, write), filtered(machine, ioctl, 0, 0x5401)]
    assert "EPERM" == filtered(machine, ioctl, 0, 0x40086602)
    assert ["ENOSYS"] * 2 == [filtered(machine, 463), filtered(machine, 0x40000000 + write)]
    assert "killed" == filtered(machine, read, architecture=0x40000003)


def filtered(machine: str, call: int, *arguments: int, architecture: int | None = None) -> str:
    """What becomes of a system call: the filter, run as the kernel does."""
    own = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    data = struct.pack("<IIQ6Q", call, architecture or own, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(filter_steps(machine))
    assert len(steps) <= 4096
    at = found = 0
    while True:
        code, yes, no, value = steps[at]
        at += 1
        match code:
            case 0x20:
                (found,) = struct.unpack_from("<I", data, value)
            case 0x15 | 0x35 | 0x45:
                held = {0x15: found == value, 0x35: found >= value, 0x45: bool(found & value)}[code]
                assert max(yes, no) < 256
                at += yes if held else no
            case 0x06:
                return {0x7FFF0000: "allowed", 0x80000000: "killed", 0x50001: "EPERM", 0x50026: "ENOSYS"}[value]
            case _:
                raise AssertionError(f"unknown step {code:#x}")


def test_code_without_a_function_is_refused() -> None:
    with pytest.raises(PermanentError, match="neither decode"), running("x = 1"):
        pass


def test_sees_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEFLEET_STORE_SECRET_ACCESS_KEY", "top-secret")
    found = sample("import os\nreturn {'value': 0, 'names': sorted(os.environ), 'all': str(os.environ)}")
    assert "top-secret" not in found["all"]
    assert not [name for name in found["names"] if "ENGINEFLEET" in name or "AWS" in name or "PROXY" in name.upper()]


def test_reaches_no_server_that_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PermanentError, match="Operation not permitted"):
            sample(f"import socket\nsocket.create_connection(('127.0.0.1', {port}))")


def test_what_it_prints_does_not_disturb_the_answer() -> None:
    assert {"value": 1.0} == sample("import sys\nprint('hello' * 100, flush=True)\nsys.stdout.flush()\nreturn 1")


def test_its_process_ends_with_the_judging() -> None:
    with running("import os\ndef sample(outputs, truth):\n    return os.getpid()") as opened:
        pid = int(opened.sample(OUTPUTS, TRUTH)["value"])
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()


def test_only_the_time_in_which_it_works_is_counted() -> None:
    with running("def sample(outputs, truth):\n    return 1", timeout="1s") as opened:
        opened.sample(OUTPUTS, TRUTH)
        time.sleep(1.2)  # the model runs meanwhile
        assert {"value": 1.0} == opened.sample(OUTPUTS, TRUTH)


def test_cancelling_the_job_ends_it() -> None:
    progress = Progress()
    timer = threading.Timer(0.2, progress.cancellation.cancel, [TransientFault("Terminated", "asked to end.")])
    spec = PythonMetric(code="def sample(outputs, truth):\n    while True: pass")
    with open_code(spec, progress) as opened:
        assert opened is not None
        timer.start()
        with pytest.raises(TransientFault, match="Terminated"):
            opened.sample(OUTPUTS, TRUTH)
    timer.join()


def test_this_process_can_be_looked_into_again_afterwards() -> None:
    sample("return 1")
    assert Path("/proc/self/environ").stat().st_uid == os.getuid()
