"""`enginefleet` as a process: exit codes, termination messages, SIGTERM, deadlines, and what a command may import."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from enginefleet_api.documents import Answer
from enginefleet_api.errors import FailureClass
from enginefleet_api.jobs import BuildReport, JobFailure, ProbeReport, Termination
from enginefleet_builder import by_hand, runtime_check, shell

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def run(*arguments: str, log: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = ENVIRONMENT | variables | ({"ENGINEFLEET_TERMINATION_LOG": str(log)} if log else {})
    command = [sys.executable, "-m", "enginefleet_builder.main", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def python(code: str, log: Path) -> subprocess.Popen[str]:
    environment = ENVIRONMENT | {"ENGINEFLEET_TERMINATION_LOG": str(log)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def failure(log: Path) -> JobFailure:
    termination = Termination.parse(log.read_text())
    assert termination is not None
    assert termination.failure is not None
    return termination.failure


def test_probe_reports_what_is_loaded_in_the_termination_message(tmp_path: Path) -> None:
    done = run("probe", log=tmp_path / "log", ENGINEFLEET_REQUEST='{"backend": "onnxruntime"}')
    assert done.returncode == 0, done.stderr
    termination = Termination.parse((tmp_path / "log").read_text())
    assert termination is not None
    assert isinstance(termination.report, ProbeReport)
    assert termination.report.runtime == {"backend": "onnxruntime", "backendVersion": onnxruntime.__version__, "executionProvider": "CPU"}


def test_a_missing_execution_provider_is_the_environments_fault(tmp_path: Path) -> None:
    done = run("probe", "--backend", "onnxruntime", "--provider", "CUDA", "--json", log=tmp_path / "log")
    assert done.returncode == 43
    assert json.loads(done.stdout)["failure"]["reason"] == "ExecutionProviderMissing"
    assert failure(tmp_path / "log").failure_class is FailureClass.ENVIRONMENT


@pytest.mark.parametrize("text", ["", "{", '{"blob": 1}'], ids=["none", "no JSON", "incomplete"])
def test_a_bad_request_leaves_a_message_too(tmp_path: Path, text: str) -> None:
    done = run("fetch", log=tmp_path / "log", ENGINEFLEET_REQUEST=text)
    assert done.returncode == 42
    assert failure(tmp_path / "log").reason == "BadRequest"
    assert "Traceback" not in done.stderr


def test_fetch_imports_no_model_library() -> None:
    code = "import sys, enginefleet_builder.main, enginefleet_builder.fetch, enginefleet_builder.store.s3; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    assert [name for name in ("onnx", "onnxruntime", "numpy", "starlette", "sympy") if f"'{name}'" in loaded] == []


def test_serve_imports_no_store_and_no_quantizer() -> None:
    code = "import sys, enginefleet_builder.serve.app; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    assert [name for name in ("boto3", "onnx", "sympy") if f"'{name}'" in loaded] == []


WORK = """
import sys, time, threading
from enginefleet_builder import shell
def work(progress):
    try:
        print("started", flush=True)
        {body}
    finally:
        print("cleaned up", flush=True)
sys.exit(shell.run(work, timeout_seconds={timeout}, as_json=False))
"""


def test_sigterm_interrupts_waiting_and_leaves_a_message(tmp_path: Path) -> None:
    process = python(WORK.format(body="threading.Event().wait(60)", timeout=None), tmp_path / "log")
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (44, "cleaned up\n")
    assert failure(tmp_path / "log").reason == "Terminated"


def test_sigterm_ends_work_that_does_not_react(tmp_path: Path) -> None:
    # one long call of a library, during which no signal handler of Python runs
    kill = "threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()"
    call = f"import hashlib, os, signal; {kill}; hashlib.pbkdf2_hmac('sha256', b'x', b'y', 200_000_000)"
    process = python(WORK.format(body=call, timeout=None), tmp_path / "log")
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (44, "started\n")
    found = failure(tmp_path / "log")
    assert (found.reason, found.log_tail) == ("Terminated", ["the work did not react within 5 s"])


def test_the_deadline_is_below_the_jobs_and_leaves_a_message(tmp_path: Path) -> None:
    process = python(WORK.format(body="threading.Event().wait(60)", timeout=1), tmp_path / "log")
    process.communicate(timeout=15)
    assert process.returncode == 44
    assert failure(tmp_path / "log").reason == "DeadlineExceeded"


def test_by_hand_a_transient_failure_says_that_the_command_is_to_be_run_again() -> None:
    code = WORK.format(body="threading.Event().wait(60)", timeout=1)
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=15, check=False)
    assert done.returncode == 44
    hint = "Raise the timeout when this is known to take longer. Run the command again: what it had published is not done twice."
    assert done.stderr.splitlines()[-1].strip() == hint


def test_in_a_pod_a_transient_failure_leaves_it_to_the_operator_to_say_when_it_is_tried_again(tmp_path: Path) -> None:
    process = python(WORK.format(body="threading.Event().wait(60)", timeout=1), tmp_path / "log")
    _, errors = process.communicate(timeout=15)
    assert failure(tmp_path / "log").hint == errors.splitlines()[-1].strip() == "Raise the timeout when this is known to take longer."


def test_no_hint_in_the_source_promises_another_attempt() -> None:
    sources = Path(shell.__file__).parent.rglob("*.py")
    promises = re.compile(r"It is (tried|judged|built|made) again|The pod starts again|[Ii]t starts again")
    assert [] == [f"{file.name}: {found}" for file in sources for found in promises.findall(file.read_text())]


def test_an_unknown_exception_is_a_failure_with_its_text_and_the_trace_in_the_log(tmp_path: Path) -> None:
    process = python(WORK.format(body="progress.log('step 1'); raise KeyError('weights')", timeout=None), tmp_path / "log")
    _, errors = process.communicate(timeout=15)
    found = failure(tmp_path / "log")
    assert process.returncode == 42
    assert (found.reason, found.log_tail) == ("Unexpected", ["step 1", "KeyError: 'weights'"])
    assert "Traceback" in errors


def report(answer: Answer) -> BuildReport:
    return BuildReport(engine_key="e", gate_key="g", blob="b", size=1, adopted=False, answer=answer)


@pytest.mark.parametrize(("answer", "by_hand_code"), [(Answer.PASS, 0), (Answer.FAIL, 40), (Answer.INCONCLUSIVE, 41)])
def test_by_hand_the_answer_is_the_exit_code_and_in_a_job_the_report_is(answer: Answer, by_hand_code: int) -> None:
    assert shell.exit_code_of(report(answer), in_job=False) == by_hand_code
    assert shell.exit_code_of(report(answer), in_job=True) == 0


# ---- runtime check ----


def check(request: dict[str, Any], log: Path) -> subprocess.CompletedProcess[str]:
    """As it runs in a serving image: the file alone, isolated from our packages."""
    environment = {"ENGINEFLEET_REQUEST": json.dumps(request), "ENGINEFLEET_TERMINATION_LOG": str(log)}
    command = [sys.executable, "-I", str(runtime_check.__file__)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)


def test_the_runtime_that_the_engine_was_proven_with_passes(tmp_path: Path) -> None:
    done = check({"backend": "onnxruntime", "version": onnxruntime.__version__}, tmp_path / "log")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "log").exists()


def test_another_runtime_is_refused_with_both_versions(tmp_path: Path) -> None:
    done = check({"backend": "onnxruntime", "version": "1.0.0"}, tmp_path / "log")
    assert done.returncode == 43
    found = failure(tmp_path / "log")
    assert (found.reason, found.failure_class) == ("RuntimeMismatch", FailureClass.ENVIRONMENT)
    assert f"has onnxruntime {onnxruntime.__version__}, the engine was proven with onnxruntime 1.0.0" in found.message


def test_a_server_that_is_not_python_is_known_by_its_library(tmp_path: Path) -> None:
    for name in ("libonnxruntime.so.1.20.1", "libonnxruntime.so.1", "libonnxruntime.so"):
        (tmp_path / name).write_bytes(b"")
    assert runtime_check.library_versions("onnxruntime", (str(tmp_path),)) == ["1.20.1"]


# ---- by hand ----


def test_paths_become_uris_and_uris_stay() -> None:
    assert by_hand.uri("/a b/m.onnx") == "file:///a%20b/m.onnx"
    assert by_hand.uri("s3://b/k") == "s3://b/k"


def test_building_what_was_not_prepared_says_what_to_do(tmp_path: Path) -> None:
    done = run("build", "--store", str(tmp_path), "--prepared", "f" * 64)
    assert done.returncode == 42
    assert "PreparedMissing" in done.stderr
    assert "enginefleet prepare" in done.stderr


def test_prepare_and_build_by_hand_say_which_flag_is_needed() -> None:
    done = run("prepare", "--model", "m.onnx")
    assert done.returncode == 2
    assert "--store is needed" in done.stderr
