"""The store in an S3 bucket. Every write is conditional, so a server without conditional writes is refused."""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from enginefleet_api.errors import PermanentError, TransientFault
from enginefleet_builder.io import Progress

from .base import SMALL_OBJECT_LIMIT, Body, ObjectMissing, Store, Stored, check_key, sha256_of, verify
from .client import classify, delay, is_missing, is_precondition
from .download import download_object

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds that one operation is retried; the Job is retried after that."""
MULTIPART_FROM = 64 << 20
PART_SIZE = 32 << 20
MOST_PARTS = 9_000
PROBE_KEY = ".enginefleet/conditional-writes"
PROBE_BODY = b"EngineFleet checks here whether this store knows conditional writes.\n"
NO_SUCH_ETAG = '"00000000000000000000000000000000"'


class S3Store(Store):
    """`client`: made by `s3_client`. `prefix`: empty or ending in a slash. No request is made yet."""

    def __init__(
        self, client: S3Client, bucket: str, prefix: str = "", *, progress: Progress | None = None, patience: float = PATIENCE
    ) -> None:
        self.name = f"s3://{bucket}/{prefix}"
        self._client = client
        self._bucket, self._prefix = bucket, prefix
        self._progress = progress or Progress()
        self._patience = patience
        self._clock: tuple[float, float] | None = None

    def check_conditional_writes(self) -> None:
        """Raise PermanentError `StoreWithoutConditionalWrites` unless the server refuses what it must refuse.

        One small object of constant content is left behind, so the check itself is safe beside others and on any server.
        """
        try:
            refused = not self.put_if_absent(PROBE_KEY, PROBE_BODY) or not self.put_if_absent(PROBE_KEY, PROBE_BODY)
            # a server may know one condition without the other
            refused = refused and self.replace_if(PROBE_KEY, NO_SUCH_ETAG, PROBE_BODY) is None
        except PermanentError as error:
            if error.reason != "StoreRefused":
                raise
            refused = False
        if not refused:
            raise PermanentError(
                "StoreWithoutConditionalWrites",
                f"{self.name} writes objects although If-None-Match or If-Match forbids it.",
                "Two builders would overwrite each other there: use AWS S3, MinIO, Ceph or another server that knows conditional writes.",
            )

    def put_if_absent(self, key: str, body: Body, *, sha256: str = "") -> bool:
        return self._put(key, body, sha256, {"IfNoneMatch": "*"}) is not None

    def replace_if(self, key: str, etag: str, body: Body, *, sha256: str = "") -> str | None:
        return self._put(key, body, sha256, {"IfMatch": etag})

    def _put(self, key: str, body: Body, sha256: str, condition: dict[str, str]) -> str | None:
        """The new etag, or None when the condition does not hold."""
        name = self._key(key)
        if isinstance(body, Path) and body.stat().st_size >= MULTIPART_FROM:
            return self._put_parts(name, body, condition)
        checksum = base64.b64encode(bytes.fromhex(sha256 or sha256_of(body))).decode()
        attempts = 0

        def put() -> str:
            nonlocal attempts
            attempts += 1
            with ExitStack() as stack:
                content: bytes | IO[bytes] = body if isinstance(body, bytes) else stack.enter_context(body.open("rb"))
                answer = self._client.put_object(Bucket=self._bucket, Key=name, Body=content, ChecksumSHA256=checksum, **condition)  # type: ignore[arg-type]
                return self._noted(answer)["ETag"]  # type: ignore[no-any-return]

        try:
            return self.attempt(put)
        except ClientError as error:
            if not _does_not_hold(error, condition):
                raise classify(error, self.name) from error
        # An earlier attempt may have been stored and only its answer lost: then the object is ours.
        if attempts > 1 and isinstance(body, bytes) and (now := self.get(key)) is not None and now.body == body:
            return now.etag
        return None

    def _put_parts(self, name: str, path: Path, condition: dict[str, str]) -> str | None:
        """Multipart upload: a lost connection costs one part; the condition is on its completion, nothing shows before."""
        place: dict[str, Any] = {"Bucket": self._bucket, "Key": name}
        size = path.stat().st_size
        part_size = max(PART_SIZE, -(-size // MOST_PARTS))
        try:
            upload = self.attempt(lambda: self._client.create_multipart_upload(**place, ChecksumAlgorithm="SHA256"))["UploadId"]
            try:
                parts = []
                with path.open("rb") as file:
                    for number, chunk in enumerate(iter(lambda: file.read(part_size), b""), start=1):
                        parts.append(self._put_part(place | {"UploadId": upload, "PartNumber": number}, chunk))
                        self._progress("upload", min(number * part_size, size), size)
                finish: Any = place | {"UploadId": upload, "MultipartUpload": {"Parts": parts}} | condition
                return self.attempt(lambda: self._noted(self._client.complete_multipart_upload(**finish)))["ETag"]  # type: ignore[no-any-return]
            except BaseException:
                # Best effort: the parts of a killed writer stay anyway, until a lifecycle rule of the bucket removes them.
                with suppress(ClientError, BotoCoreError):
                    self._client.abort_multipart_upload(**place, UploadId=upload)
                raise
        except ClientError as error:
            if not _does_not_hold(error, condition):
                raise classify(error, self.name) from error
            return None

    def _put_part(self, part: Any, chunk: bytes) -> Any:
        checksum = base64.b64encode(bytes.fromhex(sha256_of(chunk))).decode()
        answer = self.attempt(lambda: self._client.upload_part(**part, Body=chunk, ChecksumSHA256=checksum))
        return {"PartNumber": part["PartNumber"], "ETag": answer["ETag"], "ChecksumSHA256": checksum}

    def get(self, key: str) -> Stored | None:
        def read() -> Stored:
            answer = self._noted(self._client.get_object(Bucket=self._bucket, Key=self._key(key)))
            if answer["ContentLength"] > SMALL_OBJECT_LIMIT:
                raise PermanentError(
                    "StoreRecordTooLarge",
                    f"{key} has {answer['ContentLength']} bytes, expected at most {SMALL_OBJECT_LIMIT}.",
                    "Was it written by us?",
                )
            return Stored(answer["Body"].read(), answer["ETag"])

        try:
            return self.attempt(read)
        except ClientError as error:
            if is_missing(error):
                return None
            raise classify(error, self.name) from error

    def version(self, key: str) -> str | None:
        try:
            return self.head(key)[1]
        except ObjectMissing:
            return None

    def head(self, key: str) -> tuple[int, str]:
        """Size and etag; raises ObjectMissing."""
        answer = self._head(key)
        return answer["ContentLength"], answer["ETag"]

    def verify(self, key: str, scratch: Path, *, sha256: str, size: int) -> None:
        answer = self._head(key, ChecksumMode="ENABLED")
        told = answer.get("ChecksumSHA256", "")
        # of an object that was written in parts it is a digest of the parts' digests
        if answer["ContentLength"] == size and told and "-" not in told:
            verify(key, base64.b64decode(told).hex(), size, sha256, size)
        else:
            path = scratch / "verified"
            self.download(key, path, sha256=sha256, size=size)
            path.unlink()

    def _head(self, key: str, **asked: Any) -> Any:
        place: Any = {"Bucket": self._bucket, "Key": self._key(key)} | asked
        try:
            try:
                answer: Any = self.attempt(lambda: self._client.head_object(**place))
            except ClientError as error:
                if not is_missing(error):
                    raise
                # HEAD has no body: only a GET tells a missing object from a missing bucket or an unknown user.
                answer = self.attempt(lambda: self._client.get_object(**place))
                answer["Body"].close()
        except ClientError as error:
            if is_missing(error):
                raise ObjectMissing(self.name, key) from error
            raise classify(error, self.name) from error
        return answer

    def list(self, prefix: str) -> Iterator[str]:
        token: dict[str, str] = {}
        while True:
            page: Any = self._call(lambda: self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix + prefix, **token))  # type: ignore[arg-type]  # noqa: B023
            yield from (item["Key"].removeprefix(self._prefix) for item in page.get("Contents", []))
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def download(self, key: str, path: Path, *, sha256: str = "", size: int | None = None, progress: Progress | None = None) -> str:
        return download_object(self, key, path, sha256=sha256, size=size, progress=progress or self._progress)

    def open_range(self, key: str, start: int, end: int, etag: str) -> Any:
        """GetObject from `start` to before `end`, of the version `etag`: one request, raises ClientError and BotoCoreError."""
        return self._client.get_object(Bucket=self._bucket, Key=self._key(key), Range=f"bytes={start}-{end - 1}", IfMatch=etag)

    def now(self) -> float:
        """By the `Date` of the store's last answer, carried on by the monotonic clock; before any answer, this machine's clock."""
        if self._clock is None:
            return time.time()
        told, at = self._clock
        return told + time.monotonic() - at

    def attempt(self, call: Callable[[], T]) -> T:
        """`call` until it succeeds or patience ends, then StoreUnavailable. A ClientError that is not transient is raised as it came."""
        end = time.monotonic() + self._patience
        for tried in itertools.count():
            try:
                return call()
            except (ClientError, BotoCoreError) as error:
                fault = classify(error, self.name)
                if isinstance(error, ClientError) and not isinstance(fault, TransientFault):
                    raise
                if not isinstance(fault, TransientFault) or time.monotonic() >= end:
                    raise fault from error
            self._progress.wait(min(delay(tried), max(0.0, end - time.monotonic())))
        raise AssertionError("unreachable")

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return self.attempt(call)
        except ClientError as error:
            raise classify(error, self.name) from error

    def _noted(self, answer: Any) -> Any:
        headers: Mapping[str, str] = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        with suppress(TypeError, ValueError):
            self._clock = (parsedate_to_datetime(headers.get("date", "")).timestamp(), time.monotonic())
        return answer

    def _key(self, key: str) -> str:
        return self._prefix + check_key(key)


def _does_not_hold(error: ClientError, condition: Mapping[str, str]) -> bool:
    """412, or 404 where a version was named and the object is gone."""
    return is_precondition(error) or ("IfMatch" in condition and is_missing(error))
