"""A user's own metric: what it may do, and that all else ends with a reason and harms nothing."""

from __future__ import annotations

import os
import socket
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
    (
        "a large file",
        "import tempfile\nwith tempfile.TemporaryFile(buffering=0) as file:\n    for _ in range(3): file.write(bytes(1_000_000))",
        {},
        "File too large",
    ),
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
