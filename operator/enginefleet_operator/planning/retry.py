"""When a failed Job is tried again: by failure class, with back-off and a jitter that follows from the Job's name."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TypeVar

from enginefleet_api.errors import FailureClass
from enginefleet_api.resources import AttemptState, FailureRecord

from .model import Failure

S = TypeVar("S", bound=AttemptState)

LONGEST = 3600.0
STALLED_AFTER = 8
"""Failures in a row after which waiting alone is not expected to help; retries go on hourly all the same."""


def timestamp(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()


def backoff(in_a_row: int, base: float, seed: str) -> float:
    """Seconds before the next attempt: base · 2^(n-1) up to an hour, plus up to a tenth so that a fleet does not march in step."""
    jitter = int(hashlib.sha256(f"{seed}/{in_a_row}".encode()).hexdigest()[:4], 16) / 0xFFFF
    return float(min(base * 2 ** min(in_a_row - 1, 20), LONGEST) * (1 + 0.1 * jitter))


def after_failure(state: AttemptState | None, job: str, failure: Failure, now: float, base: float) -> AttemptState:
    state = state or AttemptState()
    in_a_row = state.in_a_row + 1
    permanent = failure.failure_class is FailureClass.PERMANENT
    # whole seconds, rounded up: a timestamp must never lie before the back-off has passed
    next_at = "" if permanent else timestamp(now + backoff(in_a_row, base, job) + 0.999)
    record = FailureRecord(
        failure_class=failure.failure_class.value,
        reason=failure.reason,
        message=failure.message,
        hint=failure.hint,
        log_tail=list(failure.log_tail),
        at=timestamp(now),
    )
    return AttemptState(job=job, attempts=state.attempts + 1, in_a_row=in_a_row, last_failure=record, next_attempt_at=next_at)


def after_success(state: AttemptState | None, job: str) -> AttemptState:
    return AttemptState(job=job, attempts=(state.attempts if state else 0) + 1)


def forget(state: S) -> S:
    """For `enginefleet.io/retry`: the count of attempts goes on, because Job names are made of it; the failure is forgotten."""
    return state.model_copy(update={"in_a_row": 0, "last_failure": None, "next_attempt_at": ""})


def reset(state: AttemptState | None) -> AttemptState | None:
    """The same where there may have been no attempt."""
    return None if state is None else forget(state)


def is_permanent(state: AttemptState | None) -> bool:
    return state is not None and state.last_failure is not None and state.last_failure.failure_class == FailureClass.PERMANENT.value


def due_at(state: AttemptState | None) -> float | None:
    """When the next attempt may start: None at once."""
    return seconds_of(state.next_attempt_at) if state is not None and state.next_attempt_at else None
