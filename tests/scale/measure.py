"""What the operator costs on a fleet of simulated nodes, on a real control plane: docs/benchmarks/scale.json. `tests/scale/run --help` says how."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from enginefleet_api import labels
from enginefleet_operator.kube.client import ApiClient
from enginefleet_operator.kube.kinds import (
    DAEMONSETS,
    HARDWARE_CLASSES,
    JOBS,
    MODEL_DEPLOYMENTS,
    NODE_FINGERPRINTS,
    PODS,
)
from localcluster import Cluster
from localcluster import tools as localtools
from localcluster.ports import listen
from tests.cluster.fleet import SYSTEM

from . import simulated_fleet as fleet
from .jobs import SimulatedJobs
from .simulated_fleet import NAMESPACE, Size

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
OUT = ROOT / "docs" / "benchmarks" / "scale.json"
WRITES = ("create", "apply", "patch", "delete")
T = TypeVar("T")
POLL = 0.1


def say(line: str) -> None:
    print(f"scale: {line}", file=sys.stderr, flush=True)


class NotInTime(Exception):
    """What was waited for did not come."""


async def until(what: str, found: Callable[[], Awaitable[T | None]], seconds: float, poll: float = POLL) -> T:
    deadline = time.monotonic() + seconds
    while True:
        if (value := await found()) is not None:
            return value
        if time.monotonic() > deadline:
            raise NotInTime(f"{what}: not within {seconds:.0f} s")
        await asyncio.sleep(poll)


async def in_parallel(work: Callable[[Any], Awaitable[Any]], items: Iterable[Any], workers: int = 16) -> None:
    queue = iter(items)

    async def one() -> None:
        for item in queue:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(one())


class Operator:
    """`enginefleet-operator` as a process, with the rights of its ServiceAccount, and what it tells of itself."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self._kubeconfig, self._log = kubeconfig, log
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.began = 0.0

    def start(self) -> None:
        with listen() as socket:
            self.port = socket.getsockname()[1]
        argv = [sys.executable, "-m", "enginefleet_operator.app", "--kubeconfig", str(self._kubeconfig), "--host", "127.0.0.1"]
        argv += ["--port", str(self.port), "--prepare-image", fleet.IMAGE, "--retry-base", "1"]
        path = os.pathsep.join(str(ROOT / part) for part in ("crds", "operator"))
        with self._log.open("ab") as log:
            self.began = time.monotonic()
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": path, "POD_NAME": "operator-0"}
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        if self._process.poll() is not None:
            raise NotInTime(f"the operator has ended with {self._process.returncode}: {self._log.read_text()[-2000:]}")
        return self._process.pid

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def memory(self) -> dict[str, int]:
        """MiB now and at most."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = {key: int(value) // 1024 for key, value in re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB", text, re.MULTILINE)}
        return {"rss_mb": found["VmRSS"], "peak_rss_mb": found["VmHWM"]}

    def cpu(self) -> float:
        """CPU seconds so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float] | None:
        """(name, labels) → value; None while it does not answer."""
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}/metrics") as answer:
                return parsed(await answer.text())
        except aiohttp.ClientError:
            _ = self.pid
            return None


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Prometheus' text format, as far as numbers are concerned."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            head, _, value = line.rpartition(" ")
            name, _, rest = head.partition("{")
            found[name, frozenset(re.findall(r'(\w+)="([^"]*)"', rest))] = float(value)
    return found


def summed(metrics: Mapping[tuple[str, frozenset[tuple[str, str]]], float], name: str, by: str = "") -> dict[str, float]:
    sums: dict[str, float] = {}
    for (found, tags), value in metrics.items():
        if found == name:
            key = dict(tags).get(by, "")
            sums[key] = sums.get(key, 0.0) + value
    return sums


class Bench:
    def __init__(self, cluster: Cluster, client: ApiClient, operator: Operator, size: Size) -> None:
        self.cluster, self.client, self.operator, self.size = cluster, client, operator, size
        self.jobs = SimulatedJobs(client)

    # ---- the world

    async def build_world(self) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.cluster.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": fleet.store()}))
        for obj in fleet.hardware_classes(self.size):
            await self.client.create(obj)
        numbers = range(self.size.nodes)
        await in_parallel(lambda i: self.client.create(fleet.node(i, self.size, now)), numbers)
        await in_parallel(lambda i: self.client.create(fleet.node_fingerprint(i, self.size)), numbers)
        await in_parallel(lambda i: self.client.create(fleet.model(i, self.size)), range(self.size.models))

    # ---- the operator

    async def steady(self, seconds: float) -> float:
        """Seconds since its start after which it had looked at everything once, and had nothing left to do."""

        async def found() -> float | None:
            at = time.monotonic()
            metrics = await self.operator.metrics()
            if metrics is None:
                return None
            done = summed(metrics, "enginefleet_reconcile_seconds_count", "controller")
            wanted = {"modeldeployment": self.size.models, "hardwareclass": self.size.classes, "engines": 1, "sweep": 1}
            if any(done.get(name, 0) < count for name, count in wanted.items()):
                return None
            busy = summed(metrics, "enginefleet_queue_depth")[""] + summed(metrics, "enginefleet_reconciles_running").get("", 0)
            return at if busy == 0 else None

        return await until("the operator has looked at everything", found, seconds) - self.operator.began

    async def operator_requests(self) -> dict[str, float]:
        return summed(await self.operator.metrics() or {}, "enginefleet_api_requests_total", "verb")

    async def apiserver(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        async with self.client._access.session() as session, session.get(
            self.client._access.server + "/metrics", headers=self.client._access.headers()
        ) as answer:  # fmt: skip
            return parsed(await answer.text())

    async def all_ready(self, seconds: float) -> None:
        async def found() -> bool | None:
            ready, _ = await self.client.list(MODEL_DEPLOYMENTS, NAMESPACE, project=_is_ready)
            say(f"  {sum(ready)} of {len(ready)} ModelDeployments are Ready; Jobs answered: {self.jobs.answered}")
            return True if len(ready) == self.size.models and all(ready) else None

        await until("every ModelDeployment is Ready", found, seconds, poll=5.0)

    # ---- what is measured

    async def measure(self, *, rollout: bool) -> dict[str, Any]:
        size, operator = self.size, self.operator
        result: dict[str, Any] = {"nodes": size.nodes, "models": size.models, "classes": size.classes, "serving_models": size.serving}
        began = time.monotonic()
        await self.build_world()
        say(f"{size.nodes} nodes, {size.classes} classes, {size.models} ModelDeployments made in {time.monotonic() - began:.0f} s")
        operator.start()
        began = time.monotonic()
        await self.all_ready(3600)
        result["first_rollout_seconds"] = round(time.monotonic() - began, 1)
        result["first_rollout_requests"] = await self.operator_requests()
        result["first_rollout_cpu_seconds"] = round(operator.cpu(), 1)
        pods, _ = await self.client.list(PODS, NAMESPACE, label_selector=f"{labels.ROLE}=serve", project=lambda _: 1)
        sets, _ = await self.client.list(DAEMONSETS, NAMESPACE, project=lambda _: 1)
        result |= {"pods": len(pods), "daemonsets": len(sets), "jobs": sum(self.jobs.answered.values())}
        say(f"everything Ready after {result['first_rollout_seconds']} s, {len(pods)} pods of {len(sets)} DaemonSets")
        operator.end()

        operator.start()
        result["start_seconds"] = round(await self.steady(900), 2)
        result["start_cpu_seconds"] = round(operator.cpu(), 1)
        result["start_requests"] = await self.operator_requests()
        say(f"steady {result['start_seconds']} s after a restart, with {result['start_cpu_seconds']} CPU seconds")
        await self.idle(result, 60)
        await self.reapplied(result)
        await self.node_changes(result)
        if rollout:
            await self.rolls_out(result)
        result |= operator.memory()
        operator.end()
        return result

    async def idle(self, result: dict[str, Any], seconds: float) -> None:
        before, cpu, there = await self.operator_requests(), self.operator.cpu(), await self.apiserver()
        await asyncio.sleep(seconds)  # a rate is measured over time: nothing can be waited for
        after, now = await self.operator_requests(), await self.apiserver()
        per_minute = 60 / seconds
        result["steady_writes_per_minute"] = round(sum(after.get(v, 0) - before.get(v, 0) for v in WRITES) * per_minute, 2)
        result["steady_reads_per_minute"] = round(sum(after.get(v, 0) - before.get(v, 0) for v in ("get", "list")) * per_minute, 1)
        result["steady_cpu_percent"] = round((self.operator.cpu() - cpu) / seconds * 100, 2)
        result |= {f"steady_{key}": value for key, value in self.operator.memory().items()}
        verbs = [summed(m, "apiserver_request_total", "verb") for m in (there, now)]
        result["apiserver_requests_per_minute"] = {v: round((verbs[1][v] - verbs[0].get(v, 0)) * per_minute) for v in verbs[1]}
        say(f"idle: {result['steady_writes_per_minute']} writes a minute, {result['steady_cpu_percent']} % CPU, {self.operator.memory()}")

    async def reapplied(self, result: dict[str, Any]) -> None:
        """Every ModelDeployment is written again as it is, then with another annotation, which the operator sees as an event."""
        jobs, _ = await self.client.list(JOBS, project=lambda j: j["metadata"]["uid"])
        before = await self.operator_requests()
        done = summed(await self.operator.metrics() or {}, "enginefleet_reconcile_seconds_count", "controller")["modeldeployment"]
        began = time.monotonic()
        for number in range(self.size.models):
            body = {
                "metadata": {"annotations": {"example.com/applied": datetime.now(UTC).isoformat()}},
                "spec": fleet.model(number, self.size)["spec"],
            }
            await self.client.merge_patch(MODEL_DEPLOYMENTS, fleet.model_name(number), body, NAMESPACE)

        async def looked() -> float | None:
            metrics = await self.operator.metrics() or {}
            count = summed(metrics, "enginefleet_reconcile_seconds_count", "controller").get("modeldeployment", 0)
            idle = summed(metrics, "enginefleet_queue_depth").get("", 1) == 0
            return time.monotonic() if idle and count >= done + self.size.models else None

        result["reapply_seconds"] = round(await until("all are looked at again", looked, 300) - began, 2)
        after = await self.operator_requests()
        result["reapply_writes"] = sum(after.get(v, 0) - before.get(v, 0) for v in WRITES)
        again, _ = await self.client.list(JOBS, project=lambda j: j["metadata"]["uid"])
        result["reapply_jobs"] = len(set(again) - set(jobs))
        say(
            f"re-applied: {result['reapply_writes']:.0f} writes, {result['reapply_jobs']} Jobs, all looked at after {result['reapply_seconds']} s"
        )

    async def node_changes(self, result: dict[str, Any]) -> None:
        """One node becomes hardware that nobody has seen: until the class, every model and the first build Job say so."""
        number = self.size.classes  # a node of class 0
        name = fleet.class_name(0)
        known = await self._fingerprints_of(name)
        changed = fleet.node_fingerprint(number, self.size, group=self.size.groups)
        began = time.monotonic()
        await self.client.merge_patch(NODE_FINGERPRINTS, fleet.node_name(number), {"spec": {"host": changed["spec"]["host"]}})

        async def in_class() -> str | None:
            return next(iter(await self._fingerprints_of(name) - known), None)

        fingerprint = await until("the class shows it", in_class, 600)
        result["change_visible_seconds"] = round(time.monotonic() - began, 2)

        async def in_models() -> bool | None:
            told, _ = await self.client.list(MODEL_DEPLOYMENTS, NAMESPACE, project=_fingerprints)
            wanted = 1 + len([i for i in range(1, self.size.models) if (i - 1) % self.size.classes == 0])
            return True if sum(fingerprint in ids for ids in told) >= wanted else None

        async def has_job() -> bool | None:
            jobs, _ = await self.client.list(JOBS, NAMESPACE, label_selector=f"{labels.ROLE}=build", project=_created)
            return True if any(c >= created for c in jobs) else None

        created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        await until("every model of the class shows it", in_models, 600)
        result["change_in_models_seconds"] = round(time.monotonic() - began, 2)
        await until("a build Job runs", has_job, 600)
        result["change_to_job_seconds"] = round(time.monotonic() - began, 2)
        await self.all_ready(1200)
        result["change_all_ready_seconds"] = round(time.monotonic() - began, 1)
        say(
            f"a changed node: in the class after {result['change_visible_seconds']} s, in all models {result['change_in_models_seconds']} s"
        )

    async def rolls_out(self, result: dict[str, Any]) -> None:
        """Another model file for the ModelDeployment of all classes: every node is drained and comes back, 5 % at a time."""
        before, there, cpu = await self.operator_requests(), await self.apiserver(), self.operator.cpu()
        began = time.monotonic()
        spec = fleet.model(0, self.size, version=2)["spec"]
        changed = await self.client.merge_patch(MODEL_DEPLOYMENTS, fleet.WIDE, {"spec": spec}, NAMESPACE)
        told: list[tuple[float, float]] = []
        down: list[float] = []

        async def over() -> bool | None:
            obj = await self.client.get(MODEL_DEPLOYMENTS, fleet.WIDE, NAMESPACE) or {}
            status = obj["status"]
            moment = time.monotonic() - began
            etas = [c["rollout"].get("eta", "") for c in status.get("classes", ()) if c.get("rollout", {}).get("eta")]
            if etas:
                last = max(datetime.fromisoformat(eta).timestamp() for eta in etas)
                told.append((moment, last - time.time()))
            ready = sum(c["nodes"].get("ready", 0) for c in status.get("classes", ()))
            if status.get("observedGeneration") == changed["metadata"]["generation"]:
                down.append(1 - ready / self.size.nodes)
            say(f"  {moment:.0f} s: {status.get('summary', '')[:120]}; {told[-1] if told else ''}")
            done = status.get("observedGeneration") == changed["metadata"]["generation"] and _is_ready(obj)
            return True if (done and status.get("rollout", "") in ("", "Done", "Complete")) or done else None

        await until("the rollout is over", over, 3600, poll=3.0)
        took = time.monotonic() - began
        after, now = await self.operator_requests(), await self.apiserver()
        result["rollout_seconds"] = round(took, 1)
        result["rollout_cpu_seconds"] = round(self.operator.cpu() - cpu, 1)
        result["rollout_requests"] = {v: after.get(v, 0) - before.get(v, 0) for v in after}
        result["rollout_eta"] = [{"at": round(at, 1), "said_left": round(left, 1), "left": round(took - at, 1)} for at, left in told]
        result["rollout_apiserver_seconds_mean"] = mean_latency(there, now)
        result["rollout_rejected"] = rejected(there, now)
        say(
            f"rollout over {self.size.nodes} nodes: {took:.0f} s, {result['rollout_cpu_seconds']} CPU seconds, {result['rollout_requests']}"
        )

    async def _fingerprints_of(self, name: str) -> set[str]:
        obj = await self.client.get(HARDWARE_CLASSES, name) or {}
        return {f["id"] for f in obj.get("status", {}).get("fingerprints", ())}


def mean_latency(before: Mapping[Any, float], after: Mapping[Any, float]) -> dict[str, float]:
    """Mean seconds of the API server's answers by verb; watches are left out."""
    found = {}
    for verb in ("GET", "LIST", "PATCH", "APPLY", "POST", "PUT", "DELETE"):
        sums = [summed(m, "apiserver_request_duration_seconds_sum", "verb").get(verb, 0) for m in (before, after)]
        counts = [summed(m, "apiserver_request_duration_seconds_count", "verb").get(verb, 0) for m in (before, after)]
        if counts[1] > counts[0]:
            found[verb] = round((sums[1] - sums[0]) / (counts[1] - counts[0]), 4)
    return found


def rejected(before: Mapping[Any, float], after: Mapping[Any, float]) -> float:
    """Requests that the API server answered with 429."""
    return sum(
        value - before.get(key, 0) for key, value in after.items() if key[0] == "apiserver_request_total" and ("code", "429") in key[1]
    )


def _is_ready(obj: Mapping[str, Any]) -> bool:
    status = obj.get("status", {})
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    return ready and status.get("observedGeneration") == obj["metadata"]["generation"]


def _fingerprints(obj: Mapping[str, Any]) -> set[str]:
    return {f["id"] for c in obj.get("status", {}).get("classes", ()) for f in c.get("fingerprints", ())}


def _created(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"]["creationTimestamp"])


@contextlib.contextmanager
def control_plane(keep: Path | None) -> Iterator[Cluster]:
    """A control plane on which silent nodes stay Ready for a day, with the product's objects and kwok."""
    cluster = Cluster(keep, audit=False, grace=86400.0, keep=keep is not None, progress=say)
    kwok = localtools.program("kwok", say)
    with cluster:
        cluster.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
        for path in sorted((ROOT / "deploy").glob("[012]*.yaml")):
            cluster.kubectl("apply", "-f", str(path))
        log = (cluster.dir / "kwok.log").open("wb")
        process = cluster.popen_inside(
            [str(kwok), "--kubeconfig", str(cluster.kubeconfig_inside), "--config", str(HERE / "stages.yaml"), "--server-address", "127.0.0.1:0"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield cluster
        finally:
            if process.poll() is not None:
                say(f"kwok has ended: {(cluster.dir / 'kwok.log').read_text()[-2000:]}")
            process.kill()
            process.wait()
            log.close()


@contextlib.asynccontextmanager
async def bench(size: Size, keep: Path | None) -> AsyncIterator[Bench]:
    with control_plane(keep) as cluster:
        token = cluster.kubectl("create", "token", "enginefleet-operator", "-n", SYSTEM, "--duration=8h").stdout.strip()
        config = json.loads(cluster.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        path = cluster.dir / "operator.kubeconfig"
        path.write_text(json.dumps(config))
        operator = Operator(path, cluster.dir / "operator.log")
        async with await ApiClient.connect(str(cluster.kubeconfig)) as client:
            made = Bench(cluster, client, operator, size)
            answering = asyncio.create_task(made.jobs.run())
            try:
                yield made
            finally:
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)
                operator.end()


async def one_run(size: Size, *, rollout: bool, keep: Path | None) -> dict[str, Any]:
    async with bench(size, keep) as made:
        return await made.measure(rollout=rollout) | {"at": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine()}


def machine() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{found[1] if found else 'unknown CPU'}, {os.cpu_count()} CPUs for everything, {memory:.0f} GiB"


def main() -> int:
    parser = argparse.ArgumentParser("tests/scale/run", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 500, 1000, 2500, 5000])
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--serving", type=int, default=1, help="ModelDeployments with pods: that of all classes, then one a class")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--no-rollout", action="store_true")
    parser.add_argument("--keep", type=Path, default=None, help="folder in which the control plane's logs are kept")
    parser.add_argument("--out", type=Path, default=OUT, help="runs are added to this file")
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(65536, hard), hard) if soft < hard else (soft, hard))
    for nodes in given.nodes:
        for _ in range(given.repeat):
            size = Size(nodes, given.models, given.classes, given.serving)
            result = asyncio.run(one_run(size, rollout=not given.no_rollout, keep=given.keep))
            before = json.loads(given.out.read_text())["runs"] if given.out.exists() else []
            given.out.write_text(json.dumps({"runs": [*before, result]}, indent=1) + "\n")
            print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
