"""S3 clients: credentials from the environment, settings that work with AWS and with other servers, failures in our words."""

from __future__ import annotations

import os
import random
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    SSLError,
)

from enginefleet_api.errors import EngineFleetError, EnvironmentFault, PermanentError

from .base import StoreUnavailable

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

Who: TypeAlias = Literal["store", "model", "calibration", "validation", "ambient"]
CONNECT_TIMEOUT = 5
READ_TIMEOUT = 30
"""Seconds without one byte; a slow store is waited for as long as it delivers."""

FIRST_DELAY, LONGEST_DELAY = 0.2, 5.0

_DENIED = {
    "AccessDenied",
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "XAdminUserNotFound",  # versitygw's InvalidAccessKeyId, with status 404
}
_NOT_FOUND = {"NoSuchBucket", "PermanentRedirect", "InvalidBucketName", "301"}
_BUSY = {"SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "ConditionalRequestConflict", "OperationAborted", "429"}
_ALTERED = {"BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "IncompleteBody", "InvalidDigest"}
_CONNECTION_SETTINGS: dict[str, Any] = {
    "signature_version": "s3v4",
    "connect_timeout": CONNECT_TIMEOUT,
    "read_timeout": READ_TIMEOUT,
    # Retries are ours: bounded by a deadline, ended by SIGTERM.
    "retries": {"total_max_attempts": 1},
    # We give sha256 ourselves; the SDK's own CRC trailers are refused by some servers.
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
    "max_pool_connections": 8,
}


def credentials(who: Who) -> dict[str, str]:
    """Key arguments of boto3 for `ENGINEFLEET_<WHO>_…`; empty when unset: the pod's own identity, as boto3 finds it."""
    prefix = f"ENGINEFLEET_{who.upper()}_"
    key, secret = os.environ.get(prefix + "ACCESS_KEY_ID"), os.environ.get(prefix + "SECRET_ACCESS_KEY")
    if not key and not secret:
        return {}
    if not key or not secret:
        missing = prefix + ("SECRET_ACCESS_KEY" if key else "ACCESS_KEY_ID")
        raise PermanentError("StoreAccessDenied", f"{missing} is not set, its counterpart is.", "The Secret must hold both keys.")
    found = {"aws_access_key_id": key, "aws_secret_access_key": secret}
    if token := os.environ.get(prefix + "SESSION_TOKEN"):
        found["aws_session_token"] = token
    return found


def s3_client(who: Who, *, endpoint: str = "", region: str = "", ca_bundle: str = "") -> S3Client:
    """A client; no request is made yet. `ca_bundle`: PEM text."""
    # AWS wants the bucket in the host name; nearly every other server wants it in the path.
    elsewhere = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    style: Any = {"addressing_style": "path" if elsewhere else "auto"}
    options: dict[str, Any] = {} if who == "ambient" else dict(credentials(who))
    if ca_bundle:
        options["verify"] = _memory_file(ca_bundle)
    # own session: boto3's default one is not safe to share between threads
    session = botocore.session.get_session()
    session.register_component("data_loader", _descriptions())
    client: S3Client = boto3.session.Session(botocore_session=session).client(
        "s3",
        endpoint_url=endpoint or None,
        region_name=region or os.environ.get("AWS_REGION") or "us-east-1",
        config=Config(s3=style, **_CONNECTION_SETTINGS),
        **options,
    )
    return client


@cache
def _descriptions() -> Any:
    """What botocore knows of S3 and of endpoints, a megabyte of JSON: read once a process, not once a client."""
    return botocore.session.get_session().get_component("data_loader")


def _memory_file(text: str) -> str:
    """A path for text that lives as long as the process: OpenSSL wants a file, and a pod may have no writable folder."""
    handle = os.memfd_create("ca-bundle")
    os.write(handle, text.encode())
    return f"/proc/self/fd/{handle}"


def error_code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def http_status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_missing(error: ClientError) -> bool:
    return error_code(error) in ("NoSuchKey", "404", "NotFound")


def is_precondition(error: ClientError) -> bool:
    return http_status(error) == 412 or error_code(error) == "PreconditionFailed"


def classify(error: ClientError | BotoCoreError, where: str) -> EngineFleetError:
    """What a failed request means. `where`: the store's URI."""
    if isinstance(error, ClientError):
        return _classify_answer(error, where)
    text = " ".join(str(error).split())[:300]
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        hint = "Name a Secret in credentialsSecretRef or give the pod an identity."
        return PermanentError("StoreAccessDenied", f"no credentials for {where}: {text}.", hint)
    if isinstance(error, ParamValidationError):
        return PermanentError("StoreNotFound", f"{where} is not a usable address: {text}.", "Correct the URI.")
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in text:
        return PermanentError(
            "StoreCertificateUntrusted", f"the certificate of {where} is not trusted: {text}.", "Put its CA into caBundle."
        )
    return StoreUnavailable(where, text)


def _classify_answer(error: ClientError, where: str) -> EngineFleetError:
    code, status = error_code(error), http_status(error)
    text = str(error.response.get("Error", {}).get("Message", "")).strip()[:300]
    found = f"{status} {code}" + (f" ({text})" if text else "")
    if code == "RequestTimeTooSkewed":
        return EnvironmentFault(
            "ClockSkewed", f"{where} refuses requests because this node's clock is off: {found}.", "Set the node's clock (NTP)."
        )
    if code in _NOT_FOUND:
        return PermanentError("StoreNotFound", f"{where}: {found}.", "Check bucket, endpoint and region.")
    if code in _DENIED or status in (401, 403):
        return PermanentError(
            "StoreAccessDenied", f"{where} refuses these credentials: {found}.", "Check the Secret and the bucket's policy."
        )
    if (status >= 500 and status != 501) or code in _BUSY or code in _ALTERED:
        return StoreUnavailable(where, found)
    return PermanentError("StoreRefused", f"{where} refuses the request: {found}.", "Does this server speak S3 as the store needs it?")


def delay(tried: int) -> float:
    """Seconds before the next attempt: doubling, with jitter, so that a fleet does not come back in step."""
    return random.uniform(0.5, 1.0) * min(LONGEST_DELAY, FIRST_DELAY * 2.0**tried)  # noqa: S311
