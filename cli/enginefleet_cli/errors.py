"""Failures of commands, by the exit code that scripts see: 1 not ready or failed, 2 usage, 3 not found, 4 no access."""

from __future__ import annotations

from typing import ClassVar

from enginefleet_api.errors import EngineFleetError


class NotReady(EngineFleetError):
    """What was asked about, or waited for, is not ready or has failed."""

    exit_code: ClassVar[int] = 1


class Usage(EngineFleetError):
    """The command line, or a file that it names, cannot be made sense of or was refused."""

    exit_code: ClassVar[int] = 2


class NotFound(EngineFleetError):
    """The cluster has no such object, or none of our kinds."""

    exit_code: ClassVar[int] = 3


class NoAccess(EngineFleetError):
    """The cluster does not answer, or not to this user."""

    exit_code: ClassVar[int] = 4
