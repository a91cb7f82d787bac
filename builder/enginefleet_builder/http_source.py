"""Fetching one file over HTTPS: resumable, and unable to reach what a pod must not be tricked into reaching.

A ModelDeployment's URI is written by a user of a namespace; the pod that fetches it can reach more than that user. So addresses of this machine
and link-local ones (cloud metadata) are refused after name resolution, on the very connection that is used, and for every redirect.
"""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import re
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import FileIO
from pathlib import Path
from urllib.parse import SplitResult, urljoin, urlsplit

from enginefleet_api.errors import EngineFleetError, EnvironmentFault, PermanentError, TransientFault

from .io import Progress

TIMEOUT = 30
"""Seconds without one byte."""
MOST_REDIRECTS = 5
MOST_STALLS = 5
READ = 256 << 10
METADATA_ADDRESSES = {ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("100.100.100.200"), ipaddress.ip_address("168.63.129.16")}
"""Metadata services of clouds outside the link-local ranges: AWS (IPv6), Alibaba, Azure."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class _ConnectionLostError(Exception):
    pass


def fetch_web(uri: str, path: Path, *, endpoint: str, limit: int, progress: Progress, plain: bool = False) -> tuple[str, int]:
    """Write the file at `uri` to `path`; (sha256 in hex, size).

    `endpoint`: the one origin that may be local or plain http. `plain`: any may be plain http, as the digest of what must come is known.
    """
    digest, stalls, done, version = hashlib.sha256(), 0, 0, ""
    with path.open("wb", buffering=0) as file:
        while True:
            before = done
            try:
                # without a name of its version the file could be another one by now: from the start
                with _get(uri, endpoint, done if version else 0, version, plain) as response:
                    if response.status == 206 and _starts_at(response) != done:
                        version = ""
                        raise _ConnectionLostError("the host answers with another range than was asked for")
                    if response.status == 200 and done:
                        # another version, or a server without ranges
                        digest, done = hashlib.sha256(), 0
                        file.seek(0)
                        file.truncate()
                    version = _version(response)
                    total = done + int(response.headers["Content-Length"]) if response.headers.get("Content-Length", "").isdigit() else None
                    if (total or 0) > limit:
                        raise too_large(uri, total or 0, limit)
                    require_space(path, (total or done) - done)
                    while chunk := response.read(READ):
                        _write(file, chunk, path)
                        digest.update(chunk)
                        done += len(chunk)
                        if done > limit:
                            raise too_large(uri, done, limit)
                        progress("download", done, total)
                if total is None or done >= total:
                    return digest.hexdigest(), done
                found = f"it broke off at {done} of {total} bytes"
            except (OSError, http.client.HTTPException, _ConnectionLostError) as error:
                if isinstance(error, ssl.SSLCertVerificationError):
                    message = f"the certificate of {uri} is not trusted: {error.verify_message}."
                    raise PermanentError(
                        "SourceCertificateUntrusted", message, "Use a host with a public certificate, or s3:// with a CA bundle."
                    ) from error
                found = str(error) or type(error).__name__
            stalls = 0 if done > before else stalls + 1
            if stalls >= MOST_STALLS:
                raise TransientFault("SourceUnavailable", f"{uri}: {found}.", "Check that the host is up.")
            progress.wait(min(5.0, 0.2 * 2.0**stalls))


def _version(response: http.client.HTTPResponse) -> str:
    """What If-Range may name: a strong ETag, else the date of the last change; empty when the server tells neither."""
    etag = response.headers.get("ETag", "")
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified", "")


def _starts_at(response: http.client.HTTPResponse) -> int | None:
    """The first byte of a partial answer."""
    match = re.fullmatch(r"bytes ([0-9]+)-[0-9]+/([0-9]+|\*)", response.headers.get("Content-Range", ""))
    return int(match[1]) if match else None


def _write(file: FileIO, chunk: bytes, path: Path) -> None:
    try:
        view = memoryview(chunk)
        while view:
            view = view[file.write(view) :]
    except OSError as error:
        raise disk_full(path, error) from error


def require_space(path: Path, needed: int) -> None:
    """Raises EnvironmentFault `DiskFull` when a download cannot fit, before it starts."""
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        message = f"{needed} bytes are to be downloaded, {free} are free in {path.parent}."
        raise EnvironmentFault("DiskFull", message, "Free space on the node or raise ephemeral-storage.")


def disk_full(path: Path, error: OSError) -> EngineFleetError:
    """An error of writing, which is this node's."""
    message = f"{path.name} cannot be written: {error.strerror or error}."
    return EnvironmentFault("DiskFull", message, "Free space on the node or raise ephemeral-storage.")


def too_large(uri: str, found: int, limit: int) -> EngineFleetError:
    return PermanentError("SourceTooLarge", f"{uri} has {found} bytes or more, expected at most {limit}.", "Is this the right file?")


@contextmanager
def _get(uri: str, endpoint: str, start: int, version: str, plain: bool) -> Iterator[http.client.HTTPResponse]:
    """The answer after redirects, with status 200 or 206."""
    headers = {"User-Agent": "enginefleet", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if version:
            headers["If-Range"] = version
    target = uri
    for _ in range(MOST_REDIRECTS + 1):
        parts = checked_url(target, endpoint, uri, plain)
        with closing(_connection(parts, same_origin(parts, endpoint))) as connection:
            connection.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), headers=headers)
            with connection.getresponse() as response:
                if response.status in (200, 206):
                    coding = response.headers.get("Content-Encoding", "identity").lower()
                    if coding not in ("identity", ""):
                        message = f"{uri} answers in the coding {coding}, expected the file as it is."
                        raise PermanentError("SourceRefused", message, "Use a host that serves files without compressing them.")
                    yield response
                    return
                if response.status not in (301, 302, 303, 307, 308):
                    raise _refused(uri, response.status)
                target = urljoin(target, response.headers.get("Location", ""))
    raise PermanentError("SourceNotFound", f"{uri} redirects more than {MOST_REDIRECTS} times.", "Use the final address.")


def _refused(uri: str, status: int) -> Exception:
    if status >= 500 or status in (408, 425, 429):
        return _ConnectionLostError(f"the host answers {status} {http.client.responses.get(status, '')}".strip())
    if status in (401, 403):
        return PermanentError(
            "SourceAccessDenied", f"{uri} answers {status}.", "Use an address that needs no login, or s3:// with credentialsSecretRef."
        )
    if status in (404, 410):
        return PermanentError("SourceNotFound", f"{uri} answers {status}.", "Correct the URI.")
    return PermanentError("SourceRefused", f"{uri} answers {status}.", "Open the address by hand to see why.")


def checked_url(target: str, endpoint: str, origin: str, plain: bool = False) -> SplitResult:
    """The parts of `target`; PermanentError when it is not https, nor of the endpoint's own origin, nor http where that may be `plain`."""
    parts = urlsplit(target)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username is not None:
        via = "" if target == origin else f" (redirected from {origin})"
        raise PermanentError(
            "SourceNotAllowed", f"{target}{via} is not a plain https address.", "Use https://host/path or s3://bucket/key."
        )
    if parts.scheme == "http" and not plain and not same_origin(parts, endpoint):
        hint = "Use https://, s3:// with an endpoint, or write beside the uri the digest that it must have (the report of prepare on a local copy names it)."
        raise PermanentError("SourceNotAllowed", f"{target} is not encrypted.", hint)
    return parts


def same_origin(parts: SplitResult, endpoint: str) -> bool:
    other = urlsplit(endpoint)
    return bool(endpoint) and (parts.scheme, parts.hostname, parts.port) == (other.scheme, other.hostname, other.port)


def is_forbidden(address: Address) -> bool:
    """This machine, link-local (metadata services), multicast or unspecified addresses. Private ranges are where artifact servers live."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    special = address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified
    return special or address in METADATA_ADDRESSES


def _connection(parts: SplitResult, trusted: bool) -> http.client.HTTPConnection:
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    raw = _connect(host, port, trusted)
    try:
        connection.sock = ssl.create_default_context().wrap_socket(raw, server_hostname=host) if parts.scheme == "https" else raw
    except BaseException:
        raw.close()
        raise
    return connection


def _connect(host: str, port: int, trusted: bool) -> socket.socket:
    """Connect to an address that was checked: a name that resolves differently the second time gains nothing."""
    failure: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if not trusted and is_forbidden(ipaddress.ip_address(str(address[0]).partition("%")[0])):
            raise PermanentError(
                "SourceNotAllowed",
                f"{host} is {address[0]}, an address of the node or of a metadata service.",
                "Use a host that others reach too, or configure it as the endpoint.",
            )
        raw = socket.socket(family, kind, protocol)
        try:
            raw.settimeout(TIMEOUT)
            raw.connect(address)
        except OSError as error:
            raw.close()
            failure = error
        else:
            return raw
    raise failure or OSError(f"{host} has no address")
