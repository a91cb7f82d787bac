"""The embedded S3 server behaves like S3 where the engine store relies on it."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from localcluster.s3 import S3Server

ROOT = Path(__file__).resolve().parents[2]


def client(s3: S3Server) -> Any:
    return boto3.client(
        "s3", endpoint_url=s3.endpoint, aws_access_key_id=s3.access_key, aws_secret_access_key=s3.secret_key, region_name=s3.region,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"max_attempts": 1}, connect_timeout=3),
    )  # fmt: skip


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        client(server).create_bucket(Bucket="engines")
        yield server


def test_a_second_conditional_write_is_refused_and_changes_nothing(s3: S3Server) -> None:
    c = client(s3)
    c.put_object(Bucket="engines", Key="k", Body=b"one", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        c.put_object(Bucket="engines", Key="k", Body=b"two", IfNoneMatch="*")
    assert c.get_object(Bucket="engines", Key="k")["Body"].read() == b"one"


def test_an_upload_that_ends_early_publishes_nothing(s3: S3Server) -> None:
    c = client(s3)
    c.put_object(Bucket="engines", Key="k", Body=b"old")
    url = urllib.parse.urlparse(c.generate_presigned_url("put_object", Params={"Bucket": "engines", "Key": "k"}, ExpiresIn=60))
    with socket.create_connection((url.hostname, url.port)) as raw:
        head = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: 1000000\r\n\r\n"
        raw.sendall(head.encode() + b"x" * 500_000)
        raw.shutdown(socket.SHUT_WR)
        raw.recv(100)
    assert c.get_object(Bucket="engines", Key="k")["Body"].read() == b"old"


def test_a_killed_server_comes_back_with_the_same_address_and_data(s3: S3Server) -> None:
    before = s3.endpoint
    client(s3).put_object(Bucket="engines", Key="k", Body=b"kept")
    s3.kill()
    s3.start()
    assert s3.endpoint == before
    assert client(s3).get_object(Bucket="engines", Key="k")["Body"].read() == b"kept"


def test_nothing_of_the_server_is_left_after_close() -> None:
    with S3Server() as server:
        pid, root = server.pid, server.root
        assert root.exists()
    assert not Path(f"/proc/{pid}").exists()
    assert not root.parent.exists()


def test_nothing_of_the_server_is_left_when_its_owner_is_killed() -> None:
    code = "from localcluster.s3 import S3Server; s = S3Server().start(); print(s.pid, s.root, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, root = owner.stdout.readline().split()
        handle = os.pidfd_open(int(pid))
        owner.kill()
    assert _ends_within(handle, 5.0)
    assert not Path(root).parent.exists()


def _ends_within(handle: int, seconds: float) -> bool:
    ready, _, _ = select.select([handle], [], [], seconds)
    os.close(handle)
    return bool(ready)
