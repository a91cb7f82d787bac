"""What the API server can answer instead of the object.

ApiError
├── Invalid         400, 422: the object itself is wrong
├── Forbidden       401, 403: RBAC, an admission policy, a quota
├── NotFound        404 where an object is needed (a patch of something deleted, a kind whose CRD is missing)
├── Conflict        409: the resourceVersion or uid it was decided on is gone; look again, decide again
│   └── AlreadyExists   carries the object that is there
├── Gone            410: a watch or a chunked list must start over
└── ApiUnavailable  429, 5xx, no connection, timeout; carries how long the server asked to wait
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginefleet_api.errors import EngineFleetError, EnvironmentFault, PermanentError, TransientFault


class ApiError(EngineFleetError):
    """An answer of the API server that is not a success. `code` is the HTTP status, 0 when there was no answer."""

    def __init__(self, message: str, hint: str = "", *, code: int = 0) -> None:
        super().__init__(type(self).__name__, message, hint)
        self.code = code


class Invalid(ApiError, PermanentError):
    pass


class Forbidden(ApiError, EnvironmentFault):
    pass


class NotFound(ApiError, EnvironmentFault):
    pass


class Conflict(ApiError, TransientFault):
    pass


class AlreadyExists(Conflict):
    """`existing` is the object found under that name, None when it vanished before it could be read."""

    def __init__(self, message: str, *, existing: dict[str, Any] | None) -> None:
        super().__init__(message, code=409)
        self.existing = existing

    @property
    def uid(self) -> str:
        return str(self.existing["metadata"]["uid"]) if self.existing else ""

    @property
    def is_being_deleted(self) -> bool:
        """A name that is taken by an object on its way out is not "already done": create it again later."""
        return self.existing is not None and "deletionTimestamp" in self.existing["metadata"]


class Gone(ApiError, TransientFault):
    pass


class ApiUnavailable(ApiError, TransientFault):
    def __init__(self, message: str, *, code: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message, "It is retried with back-off.", code=code)
        self.retry_after = retry_after


def error_of(code: int, status: Mapping[str, Any], what: str, retry_after: float | None = None) -> ApiError:
    """The error for a `Status` body (or an ERROR watch event); `what` names the request, e.g. `PATCH nodes/a`.

    AlreadyExists comes out as a plain Conflict: only the client can read the object that is there.
    """
    message = f"{what}: {code} {status.get('reason', '')} {status.get('message', '')}".strip()
    match code:
        case 401 | 403:
            return Forbidden(message, "Compare the operator's ClusterRole, quotas and admission policies with this request.", code=code)
        case 404:
            return NotFound(message, code=code)
        case 409:
            return Conflict(message, code=code)
        case 410:
            return Gone(message, code=code)
        case 400 | 405 | 413 | 415 | 422:
            return Invalid(message, code=code)
        case _:
            return ApiUnavailable(message, code=code, retry_after=retry_after)
