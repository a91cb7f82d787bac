"""Failures and their classes: one tree for the whole product.

    EngineFleetError
    ├── PermanentError     the same inputs will fail again                      exit 42
    ├── EnvironmentFault   this node or image is at fault, another may do       exit 43
    └── TransientFault     nobody is at fault for long: retry with back-off     exit 44

A Job's exit code carries the class, its termination message the rest. Standard library only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

EXIT_OK = 0
EXIT_UNEXPECTED = 1
EXIT_USAGE = 2
EXIT_GATE_FAILED = 40
EXIT_INCONCLUSIVE = 41
EXIT_PERMANENT = 42
EXIT_ENVIRONMENT = 43
EXIT_TRANSIENT = 44


class FailureClass(StrEnum):
    """Decides what the operator does next: see the module docstring."""

    PERMANENT = "Permanent"
    ENVIRONMENT = "Environment"
    TRANSIENT = "Transient"


class EngineFleetError(Exception):
    """A failure that says what happened, with the numbers in it, and what to do about it.

    reason  CamelCase, stable, fit for a condition
    message one sentence: what was found and what was expected
    hint    one sentence: what to do; never that it is tried again, which is true in a cluster only and told by who does so
    """

    failure_class: ClassVar[FailureClass] = FailureClass.PERMANENT
    exit_code: ClassVar[int] = EXIT_PERMANENT

    def __init__(self, reason: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" + (f" {self.hint}" if self.hint else "")


class PermanentError(EngineFleetError):
    """The same inputs will fail again; no retry until they change or `enginefleet.io/retry` asks."""


class EnvironmentFault(EngineFleetError):
    """This node or this image is at fault; another node of the same fingerprint may succeed."""

    failure_class = FailureClass.ENVIRONMENT
    exit_code = EXIT_ENVIRONMENT


class TransientFault(EngineFleetError):
    """Store down, node lost, evicted: retried with back-off."""

    failure_class = FailureClass.TRANSIENT
    exit_code = EXIT_TRANSIENT


def failure_class_of_exit(code: int) -> FailureClass | None:
    """The class that an exit code of `enginefleet …` stands for; None when it is none of ours."""
    return {
        EXIT_PERMANENT: FailureClass.PERMANENT,
        EXIT_ENVIRONMENT: FailureClass.ENVIRONMENT,
        EXIT_TRANSIENT: FailureClass.TRANSIENT,
    }.get(code)
