"""Stores for tests, and races of real processes."""

from __future__ import annotations

import multiprocessing
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from enginefleet_api.jobs import StoreRef
from enginefleet_builder.store import Store, open_store
from localcluster.s3 import S3Server

BUCKET = "engines"
FORK = multiprocessing.get_context("fork")
"""Children start at once; twenty fresh interpreters would take longer than the race."""


def admin(s3: S3Server) -> Any:
    return boto3.client(
        "s3", endpoint_url=s3.endpoint, aws_access_key_id=s3.access_key, aws_secret_access_key=s3.secret_key, region_name=s3.region,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"max_attempts": 1}, connect_timeout=3),
    )  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a store is; every process opens its own client."""

    ref: StoreRef

    def open(self, patience: float = 10, **options: Any) -> Store:
        return open_store(self.ref, patience=patience, **options)


def s3_place(endpoint: str, prefix: str = "") -> Place:
    return Place(StoreRef(uri=f"s3://{BUCKET}/{prefix or secrets.token_hex(4)}/", endpoint=endpoint))


def folder_place(folder: Path) -> Place:
    folder.mkdir(parents=True, exist_ok=True)
    return Place(StoreRef(uri=folder.as_uri()))


def race(place: Place, count: int, work: Callable[[Store, int], Any]) -> list[Any]:
    """What `work(store, number)` returns in each of `count` processes that start together.

    The store is opened before the fork (it takes a third of a second) and has made no request yet: every process has its own connections.
    """
    barrier = FORK.Barrier(count)
    queue: Any = FORK.SimpleQueue()
    store = place.open(writes=False)

    def child(number: int) -> None:
        barrier.wait()
        try:
            queue.put(work(store, number))
        except BaseException as error:  # noqa: BLE001
            queue.put(repr(error))

    children = [FORK.Process(target=child, args=(number,)) for number in range(count)]
    for process in children:
        process.start()
    found = [queue.get() for _ in children]
    for process in children:
        process.join()
    return found


def start(work: Callable[[Connection], None]) -> tuple[Any, Connection]:
    """A process that talks to us over a pipe; kill it with `.kill()`."""
    ours, theirs = FORK.Pipe()

    def child() -> None:
        os.setsid()
        work(theirs)

    process = FORK.Process(target=child)
    process.start()
    theirs.close()
    return process, ours


def stop_here(pipe: Connection, message: Any) -> None:
    """Say where we are and wait to be killed."""
    pipe.send(message)
    pipe.recv()
