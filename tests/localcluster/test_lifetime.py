"""A cluster is there quickly and leaves nothing behind."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster import Cluster, Image, LocalClusterError, NodeSpec, tools

ROOT = Path(__file__).resolve().parents[2]


def processes_of(folder: Path) -> list[str]:
    """Command lines of running processes that name a folder; what has ended and waits for its parent has none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line and int(path.parent.name) != os.getpid():
            found.append(line)
    return found


def ends_within(pid: int, seconds: float) -> bool:
    handle = os.pidfd_open(pid)
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def test_two_clusters_side_by_side_are_ready_in_time_and_leave_nothing(tmp_path: Path) -> None:
    first, second = Cluster(tmp_path / "first"), Cluster(tmp_path / "second")
    mounts = Path("/proc/self/mountinfo").read_text()
    tools.program("localnode")  # the time to build it, once a machine, is not meant
    began = time.monotonic()
    with first:
        for name in ("node-a", "node-b"):
            first.add_node(NodeSpec(name))
        assert time.monotonic() - began < 15
        with second:
            second.add_node(NodeSpec("other"))
            assert first.kubectl("get", "nodes", "-o", "name").stdout.split() == ["node/node-a", "node/node-b"]
            assert second.kubectl("get", "nodes", "-o", "name").stdout.split() == ["node/other"]
            inside = second.popen_inside(["/bin/sh", "-c", "echo there; exec sleep 1000"], stdout=subprocess.PIPE)
            with inside:
                assert inside.stdout is not None
                assert inside.stdout.readline() == b"there\n"
                second.down()
                assert inside.wait(5) == -9
        assert processes_of(second.dir) == []
        assert first.kubectl("get", "--raw", "/readyz").stdout == "ok"
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []
    assert Path("/proc/self/mountinfo").read_text() == mounts


def test_nothing_is_left_when_the_owner_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    code = f"""
import json, pathlib
from localcluster import Cluster, Image, NodeSpec
cluster = Cluster(pathlib.Path({str(folder)!r})).up()
cluster.add_image(Image("test/shell:1", entrypoint=("/bin/sh", "-c", "exec sleep 98765")))
cluster.add_node(NodeSpec("node-a"))
cluster.start_s3()
cluster.kubectl("run", "sleeper", "--image=test/shell:1")
cluster.kubectl("wait", "pod/sleeper", "--for=condition=Ready", "--timeout=20s")
print(json.loads((cluster.dir / "cluster.json").read_text())["supervisor"], flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        supervisor = int(owner.stdout.readline())
        assert len(processes_of(folder)) > 5
        owner.kill()
        assert ends_within(supervisor, 10)
    assert processes_of(folder) == []
    assert processes_of(Path("98765")) == []
    assert not folder.exists()


def command(folder: Path, *args: str) -> str:
    argv = [sys.executable, "-m", "localcluster", "--dir", str(folder), "--json", *args]
    return subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "cluster"
    command(folder, "up")
    yield folder
    command(folder, "down")
    assert not folder.exists()


def test_the_command_starts_a_cluster_that_outlives_it(started: Path) -> None:
    command(started, "add-node", "extra", "--label", "pool=x", "--extended", "nvidia.com/gpu=2")
    assert command(started, "kubectl", "get", "nodes", "-l", "pool=x", "-o", "name") == "node/extra\n"
    digest = json.loads(command(started, "image", "add", "test/shell:1", "--env", "A=1"))["digest"]
    assert json.loads(command(started, "image", "list"))["test/shell:1"]["digest"] == digest
    command(started, "stop-node", "extra")
    status = json.loads(command(started, "status"))
    assert status["processes"]["node-node-1"]["running"]
    assert not status["processes"]["node-extra"]["running"]
    command(started, "start-node", "extra")


def test_a_folder_that_is_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("text")
    with pytest.raises(LocalClusterError, match="is not empty"), Cluster(tmp_path):
        pass
    assert (tmp_path / "mine").read_text() == "text"


def test_a_missing_cluster_is_named() -> None:
    with pytest.raises(LocalClusterError, match="there is no cluster in"):
        Cluster.attach(Path("/nowhere"))


def test_an_image_with_a_missing_folder_is_refused() -> None:
    with pytest.raises(LocalClusterError, match="/nowhere does not exist"):
        Image("test/missing:1", binds=(Path("/nowhere"),)).entry()
