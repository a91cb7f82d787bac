"""A folder store, and requests against it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginefleet_api.jobs import BuildReport, PrepareReport
from enginefleet_builder.gate import latency
from tests.builder.support import Bench


@pytest.fixture(scope="session", autouse=True)
def brief() -> Iterator[None]:
    """Engines that take microseconds are measured in as many runs, but not for half a second each of the hundred times that one is judged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "MEASURED_SECONDS", 0.02)
        patch.setattr(latency, "WARM_BLOCK", 0.005)
        yield


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, PrepareReport]:
    """A bench whose FP32 model is prepared, once for all tests: what is in a store does not depend on where it lies."""
    bench = Bench(tmp_path_factory.mktemp("workshop"))
    return bench, bench.prepare()


@pytest.fixture
def prepared(bench: Bench, workshop: tuple[Bench, PrepareReport]) -> PrepareReport:
    """A fresh bench's store, with the FP32 model prepared."""
    done, report = workshop
    shutil.copytree(done.folder / "store", bench.folder / "store", dirs_exist_ok=True)
    return report


@pytest.fixture(scope="session")
def proven(workshop: tuple[Bench, PrepareReport], tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, BuildReport]:
    """A bench whose FP32 engine is built and passed, once for all tests."""
    done, report = workshop
    bench = Bench(tmp_path_factory.mktemp("proven"))
    shutil.copytree(done.folder / "store", bench.folder / "store")
    return bench, bench.build(report)


@pytest.fixture
def built(bench: Bench, prepared: PrepareReport, proven: tuple[Bench, BuildReport]) -> BuildReport:
    """The fresh bench's store holds the FP32 engine with its verdict, too."""
    done, report = proven
    shutil.copytree(done.folder / "store", bench.folder / "store", dirs_exist_ok=True)
    return report


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
