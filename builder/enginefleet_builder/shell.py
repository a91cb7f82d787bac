"""Runs one command as a Job or by hand: the one place that catches broadly, writes the termination message and chooses the exit code."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from enginefleet_api.base import Contract
from enginefleet_api.documents import Answer
from enginefleet_api.errors import (
    EXIT_GATE_FAILED,
    EXIT_INCONCLUSIVE,
    EXIT_OK,
    EXIT_UNEXPECTED,
    EngineFleetError,
    PermanentError,
    TransientFault,
)
from enginefleet_api.jobs import REQUEST_VARIABLE, BuildReport, Termination

from .guard import Guard, Interrupted
from .io import Cancellation, Progress, as_failure, failed, hint_by_hand, progress_for, termination_log, write_termination
from .prepare.findings import clean

Request = TypeVar("Request", bound=Contract)


def load_request(kind: type[Request], file: Path | None, by_hand: Mapping[str, Any] | None) -> Request:
    """The request: from flags when given, else from `file`, else from ENGINEFLEET_REQUEST. PermanentError `BadRequest`."""
    try:
        if by_hand is not None:
            return kind.model_validate(by_hand)
        text = file.read_text() if file is not None else os.environ.get(REQUEST_VARIABLE)
        if not text:
            raise PermanentError(
                "BadRequest", "no request is given.", f"Use flags (see --help), --request FILE or the variable {REQUEST_VARIABLE}."
            )
        return kind.model_validate_json(text)
    except OSError as error:
        raise PermanentError("BadRequest", f"cannot read {file}: {error.strerror}.", "Correct the path.") from error
    except UnicodeDecodeError as error:
        raise PermanentError("BadRequest", f"{file} is no text.", "Give a request as JSON.") from error
    except ValidationError as error:
        problems = (
            f"{'.'.join(str(part) for part in item['loc']) or 'request'}: {item['msg']}" for item in error.errors(include_url=False)[:5]
        )
        raise PermanentError("BadRequest", f"not a {kind.__name__}: {'; '.join(problems)}.", "Correct the request.") from error


def run(work: Callable[[Progress], Any], *, timeout_seconds: float | None, as_json: bool) -> int:
    """Run `work`, show its report or failure, leave the termination message; the exit code."""
    cancellation = Cancellation(timeout_seconds)
    progress = progress_for(sys.stderr, cancellation)
    log_tail = progress.log_tail
    message = termination_log()
    failure: EngineFleetError | None = None
    report: Any = None
    with Guard(cancellation, timeout_seconds) as guard:
        try:
            try:
                report = work(progress)
            finally:
                progress.close()
                guard.finish()
        except Interrupted:
            failure = cancellation.fault or TransientFault("Terminated", "the process was interrupted.")
        except Exception as error:  # noqa: BLE001 - every failure becomes a message and an exit code here
            known = isinstance(error, EngineFleetError)
            failure = as_failure(error, log_tail)
            if not known:
                traceback.print_exc()
        if failure is not None:
            write_termination(failed(failure, log_tail), message)
        elif isinstance(report, Contract):
            write_termination(Termination.model_validate({"report": report}), message)
    if failure is not None:
        show_failure(failure, as_json)
        return failure.exit_code
    show(report, as_json)
    return exit_code_of(report, in_job=message is not None)


def exit_code_of(report: Any, *, in_job: bool) -> int:
    """A Job that came to an answer succeeded, whatever the answer; by hand the answer is the exit code."""
    if in_job or not isinstance(report, BuildReport):
        return EXIT_OK
    return {Answer.PASS: EXIT_OK, Answer.FAIL: EXIT_GATE_FAILED, Answer.INCONCLUSIVE: EXIT_INCONCLUSIVE}.get(report.answer, EXIT_UNEXPECTED)


def show(report: Any, as_json: bool) -> None:
    value = report.to_json_dict() if isinstance(report, Contract) else report
    if value is None:
        return
    if as_json:
        print(json.dumps(value, indent=1, default=str))
        return
    for line in _lines(value, ""):
        # names and metadata come out of foreign files
        print(clean(line, len(line)))


def show_failure(failure: EngineFleetError, as_json: bool) -> None:
    hint = hint_by_hand(failure) if termination_log() is None else failure.hint
    if as_json:
        parts = {"failureClass": failure.failure_class, "reason": failure.reason, "message": failure.message, "hint": hint}
        print(json.dumps({"failure": parts}, indent=1))
    print(f"{failure.reason} ({failure.failure_class.lower()}): {failure.message}", file=sys.stderr)
    if hint:
        print(f"  {hint}", file=sys.stderr)


def _lines(value: Any, indent: str) -> list[str]:
    """`name: value` lines, nested by indentation."""
    if isinstance(value, Mapping):
        return [line for name, item in value.items() for line in _named(str(name), item, indent)]
    if isinstance(value, list | tuple):
        return [line for item in value for line in _named("-", item, indent)]
    return [f"{indent}{value}"]


def _named(name: str, item: Any, indent: str) -> list[str]:
    label = f"{indent}{name}" + ("" if name == "-" else ":")
    if isinstance(item, Mapping | list | tuple) and item:
        return [label, *_lines(item, indent + "  ")]
    return [f"{label} {'none' if item in (None, [], {}, ()) else item}"]
