"""The operator's shell: kopf watches our own kinds and marks keys dirty; queues, reflectors, lease and probes are started and ended here."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import kopf

from enginefleet_api import labels

from .kube import metrics as metrics_
from .kube import views
from .kube.access import Access
from .kube.client import ApiClient
from .kube.contract import Definitions
from .kube.events import EventRecorder
from .kube.index import NodeIndex
from .kube.kinds import (
    DAEMONSETS,
    HARDWARE_CLASSES,
    JOBS,
    MODEL_DEPLOYMENTS,
    NAMESPACES,
    NODE_FINGERPRINTS,
    NODES,
    PODS,
    SERVICES,
    Resource,
)
from .kube.lease import LeaderElection, Timing
from .kube.limits import TokenBucket
from .kube.nodes import NodeView, only_releases, project_node
from .kube.observe import World
from .kube.reconcile import Reconcilers
from .kube.watch import Reflector
from .kube.workqueue import WorkQueue, work
from .planning.concerns import owned_by_nobody, without_releases
from .planning.engines import Model, Recorded
from .planning.model import HardwareClass, Settings

logger = logging.getLogger("enginefleet.operator")
WORKERS = 4


class Operator:
    """Everything that lives as long as the process. `failed` says why it had to end."""

    def __init__(self, client: ApiClient, lease_client: ApiClient, metrics: metrics_.Metrics, settings: Settings, timing: Timing) -> None:
        self.models: WorkQueue[str] = WorkQueue()
        self.classes: WorkQueue[str] = WorkQueue()
        self.stores: WorkQueue[str] = WorkQueue()
        self.sweeps: WorkQueue[str] = WorkQueue()
        self.engines: WorkQueue[str] = WorkQueue()
        self.stop = asyncio.Event()
        self.failed = ""
        self.metrics = metrics
        self._tasks: list[asyncio.Task[None]] = []
        self.lease = LeaderElection(lease_client, namespace=settings.namespace, on_lost=self._lost, timing=timing)
        self.recorder = EventRecorder(client, instance=self.lease.identity)
        self.definitions = Definitions(client)
        self.nodes = Reflector(client, NODES, project=project_node, on_event=self._node_changed)
        self.fingerprints = Reflector(client, NODE_FINGERPRINTS, project=views.node_fingerprint, on_event=self._fingerprint_changed)
        self.hardware = Reflector(client, HARDWARE_CLASSES, project=views.hardware_class, on_event=self._class_changed)
        self.model_keys = Reflector(client, MODEL_DEPLOYMENTS, project=views.model, on_event=self._model_changed)
        self.children = [self._owned(client, kind) for kind in (JOBS, DAEMONSETS, PODS, SERVICES)]
        self.namespaces = Reflector(client, NAMESPACES, project=_namespace, on_event=self._namespace_changed)
        self.index = NodeIndex(self.nodes.items, self.fingerprints.items, self.hardware.items)
        world = World(self.nodes.items, self.fingerprints.items, self.hardware.items, self.model_keys.items, self.index)
        self.reconcilers = Reconcilers(client, world, settings, self.recorder, metrics)
        for name, queue in (
            ("modeldeployment", self.models),
            ("hardwareclass", self.classes),
            ("enginestore", self.stores),
            ("sweep", self.sweeps),
            ("engines", self.engines),
        ):
            metrics.watch_queue(name, queue)

    def _owned(self, client: ApiClient, resource: Resource) -> Reflector[tuple[str, str, str]]:
        """Jobs, DaemonSets and pods of ours, projected to whom they concern: contents are read live."""
        changed = self._job_changed if resource is JOBS else self._child_changed
        return Reflector(client, resource, project=_concerns, on_event=changed, label_selector="app.kubernetes.io/managed-by=enginefleet")

    @property
    def reflectors(self) -> Sequence[Reflector[Any]]:
        return (self.nodes, self.fingerprints, self.hardware, self.model_keys, self.namespaces, *self.children)

    def _everything(self) -> None:
        for key in self.model_keys.items:
            self.models.add(key)
        for key in self.hardware.items:
            self.classes.add(key)

    def _concerned(self, keys: Collection[str]) -> None:
        """Mark whom these names of classes and release keys of ModelDeployments are about."""
        for key in keys & self.hardware.items.keys():
            self.classes.add(key)
        for name, one in self.model_keys.items.items():
            if one is None or not one.classes.isdisjoint(keys) or one.release_key in keys:
                self.models.add(name)

    def _fingerprint_changed(self, old: Recorded | None, new: Recorded | None) -> None:
        found = new or old
        assert found is not None
        if old is None or new is None or (old.spec, old.generation) != (new.spec, new.generation):  # else it is our own status
            self._concerned(self.index.update(found.spec.node))
            self.engines.add("all")

    def _model_changed(self, old: Model | None, new: Model | None) -> None:
        self.engines.add("all")
        if old is None or new is None:
            self.sweeps.add("labels")
        # a class tells which of them are ready under its candidate image
        told = [(m.classes, m.current, m.candidates) if m is not None else None for m in (old, new)]
        if told[0] != told[1]:
            for name in {name for m in (old, new) if m is not None for name in m.classes}:
                if (found := self.hardware.items.get(name)) is not None and found.candidate is not None:
                    self.classes.add(name)

    def _node_changed(self, old: NodeView | None, new: NodeView | None) -> None:
        found = new or old
        assert found is not None
        keys = self.index.update(found.name)
        if old is not None and new is not None and (moved := only_releases(old, new)) is not None:
            keys = moved  # a flip of one ModelDeployment is no news to the others
        elif old is None or new is None or (without_releases(old.labels), old.boot_id) != (without_releases(new.labels), new.boot_id):
            self.engines.add("all")
        self._concerned(keys)
        releases = {one.release_key for one in self.model_keys.items.values() if one is not None}
        if new is None or owned_by_nobody(self.index.of(found.name), self.hardware.items.keys(), releases):
            self.sweeps.add("labels")

    def _class_changed(self, old: HardwareClass | None, new: HardwareClass | None) -> None:
        self.engines.add("all")
        if old is not None and new is not None and replace(old, status=new.status) == new:
            self._concerned({new.name})
            return
        self.index.rebuild()
        self._everything()
        if new is None:
            self.sweeps.add("labels")

    def _namespace_changed(self, _old: tuple[str, str] | None, new: tuple[str, str] | None) -> None:
        """Its labels decide which classes allow it."""
        for key in self.model_keys.items:
            if new is not None and key.startswith(f"{new[0]}/"):
                self.models.add(key)

    def _child_changed(self, old: tuple[str, str, str] | None, new: tuple[str, str, str] | None) -> None:
        for view in (old, new):
            if view is None:
                continue
            if view[0]:
                self.models.add(view[0])
            if view[1]:
                self.classes.add(view[1])

    def _job_changed(self, old: tuple[str, str, str] | None, new: tuple[str, str, str] | None) -> None:
        """A Job that ends may make room for builds that wait."""
        self._child_changed(old, new)
        for key in self.reconcilers.queued:
            self.models.add(key)

    def _lost(self, why: str) -> None:
        self.failed = f"lease lost: {why}"
        self.stop.set()

    async def start(self) -> None:
        """Reflectors and lease first; workers once both are there, so that a second operator only watches."""
        for reflector in self.reflectors:
            self._spawn(reflector.run(), f"watch {reflector.resource.plural}")
        self._spawn(self.definitions.wait(), "definitions")
        self._spawn(self.lease.run(), "lease")
        self._spawn(self.recorder.run(), "events")
        self._spawn(self._lead(), "workers")

    async def _lead(self) -> None:
        await self.lease.held.wait()
        await self.definitions.right.wait()
        for reflector in self.reflectors:
            await reflector.synced.wait()
        self._everything()
        self.sweeps.add("labels")
        self.engines.add("all")
        jobs = [
            work(self.models, self.reconcilers.model, outcome=self.metrics.outcome_of("modeldeployment"), rest=1) for _ in range(WORKERS)
        ]
        jobs += [
            work(self.classes, self.reconcilers.hardware_class, outcome=self.metrics.outcome_of("hardwareclass"), rest=1) for _ in range(2)
        ]
        jobs += [work(self.stores, self.reconcilers.store, outcome=self.metrics.outcome_of("enginestore"))]
        jobs += [work(self.engines, self.reconcilers.engines, outcome=self.metrics.outcome_of("engines"), rest=4)]
        jobs += [work(self.sweeps, self.reconcilers.sweep, outcome=self.metrics.outcome_of("sweep"), rest=4)]
        logger.info(
            "leading: %d nodes, %d classes, %d model deployments",
            len(self.nodes.items),
            len(self.hardware.items),
            len(self.model_keys.items),
        )
        await asyncio.gather(*jobs)

    def _spawn(self, coroutine: Any, name: str) -> None:
        task: asyncio.Task[None] = asyncio.create_task(coroutine, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A part that dies takes the process with it: half an operator would look healthy and do nothing."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s ended: %s", task.get_name(), error, exc_info=error)
            self.failed = self.failed or f"{task.get_name()}: {error}"
            self.stop.set()

    async def close(self) -> None:
        for queue in (self.models, self.classes, self.stores, self.sweeps, self.engines):
            queue.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.lease.release()

    def probes(self) -> Any:
        live = [metrics_.queue_moves("modeldeployment", self.models), metrics_.queue_moves("hardwareclass", self.classes)]
        live += [metrics_.reflector_hears(r) for r in self.reflectors] + [metrics_.lease_not_lost(self.lease)]
        return metrics_.probes(self.metrics, live, [*map(metrics_.reflector_synced, self.reflectors), lambda: self.definitions.trouble])


def _namespace(obj: Any) -> tuple[str, str]:
    return obj["metadata"]["name"], repr(sorted(obj["metadata"].get("labels", {}).items()))


def _concerns(obj: Any) -> tuple[str, str, str]:
    """(ModelDeployment key, HardwareClass name, resourceVersion)"""
    meta = obj["metadata"]
    have = meta.get("labels", {})
    model = have.get(labels.MODEL_DEPLOYMENT, "")
    return (f"{meta['namespace']}/{model}" if model else "", have.get(labels.HARDWARE_CLASS, ""), meta["resourceVersion"])


def handlers(operator: Operator, access: Access) -> kopf.OperatorRegistry:
    """kopf's part: events of our own kinds mark keys dirty. No change handlers, no finalizers, no annotations of its own."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.peering.standalone = True
        settings.scanning.disabled = True
        settings.watching.server_timeout = 300
        settings.watching.client_timeout = 330

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        """The same credentials as ours; asked for again when they are refused, so they are read anew."""
        await access.reload()
        found = access.configuration
        scheme, _space, token = access.headers().get("Authorization", "").partition(" ")
        return kopf.ConnectionInfo(
            server=access.server,
            ca_path=found.ssl_ca_cert,
            insecure=not found.verify_ssl,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
            scheme=scheme or None,
            token=token or None,
        )

    @kopf.on.event("enginefleet.io", "v1alpha1", "modeldeployments", registry=registry)
    async def model_event(namespace: str | None, name: str | None, **_: Any) -> None:
        operator.models.add(f"{namespace}/{name}")

    @kopf.on.event("enginefleet.io", "v1alpha1", "hardwareclasses", registry=registry)
    async def class_event(name: str | None, **_: Any) -> None:
        operator.classes.add(str(name))

    @kopf.on.event("enginefleet.io", "v1alpha1", "enginebuilds", registry=registry)
    async def build_event(namespace: str | None, spec: Any, **_: Any) -> None:
        operator.models.add(f"{namespace}/{spec.get('modelDeployment', '')}")

    @kopf.on.event("enginefleet.io", "v1alpha1", "enginestores", registry=registry)
    async def store_event(namespace: str | None, name: str | None, **_: Any) -> None:
        operator.stores.add(f"{namespace}/{name}")
        for key in operator.model_keys.items:
            if key.startswith(f"{namespace}/"):
                operator.models.add(key)

    return registry


async def run(arguments: argparse.Namespace) -> int:
    """Until SIGTERM or until it must end: exit code 0 or 1."""
    metrics = metrics_.Metrics()
    settings = Settings(
        namespace=arguments.namespace,
        retry_base=arguments.retry_base,
        cache_path=arguments.cache_path,
        leave_grace=arguments.leave_grace,
        prepare_image=arguments.prepare_image,
        tables=arguments.tables,
        check_hours=arguments.check_hours,
    )
    reads, writes = (TokenBucket(rate, 2 * rate) for rate in (arguments.read_qps, arguments.write_qps))
    metrics.watch_limits(reads=reads, writes=writes)
    # the lease has a client of its own: it is never held back
    timing = Timing(duration=arguments.lease_seconds, deadline=arguments.lease_seconds * 2 / 3, renew=arguments.lease_seconds / 3)
    async with (
        await ApiClient.connect(arguments.kubeconfig, observer=metrics.request, reads=reads, writes=writes) as client,
        await ApiClient.connect(arguments.kubeconfig) as other,
    ):
        operator = Operator(client, other, metrics, settings, timing)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, operator.stop.set)
        runner = await metrics_.serve(operator.probes(), host=arguments.host, port=arguments.port)
        try:
            await operator.start()
            await kopf.operator(
                registry=handlers(operator, await Access.load(arguments.kubeconfig)),
                clusterwide=True,
                standalone=True,
                stop_flag=operator.stop,
            )
        finally:
            await operator.close()
            await runner.cleanup()
    if operator.failed:
        logger.error("ending: %s", operator.failed)
        return 1
    return 0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    env = os.environ
    parser = argparse.ArgumentParser("enginefleet-operator", description="Builds, proves and rolls out inference engines.")
    parser.add_argument("--kubeconfig", default=None, help="default: the pod's service account, else $KUBECONFIG")
    parser.add_argument(
        "--namespace", default=env.get("ENGINEFLEET_NAMESPACE", "enginefleet-system"), help="where the lease and probe Jobs live"
    )
    parser.add_argument("--host", default=env.get("ENGINEFLEET_HOST", ""), help="address of /metrics, /healthz and /readyz (default: all)")
    parser.add_argument("--port", type=int, default=int(env.get("ENGINEFLEET_PORT", "8080")))
    parser.add_argument(
        "--retry-base", type=float, default=float(env.get("ENGINEFLEET_RETRY_BASE", "30")), help="seconds before the first retry"
    )
    parser.add_argument("--lease-seconds", type=int, default=int(env.get("ENGINEFLEET_LEASE_SECONDS", "45")))
    parser.add_argument(
        "--cache-path", default=env.get("ENGINEFLEET_CACHE_PATH", Settings().cache_path), help="node cache folder of the agent"
    )
    parser.add_argument(
        "--prepare-image",
        default=env.get("ENGINEFLEET_PREPARE_IMAGE", ""),
        help="image of prepare Jobs whose HardwareClass names none (default: the class's runtime image)",
    )
    parser.add_argument(
        "--tables",
        default=env.get("ENGINEFLEET_TABLES_CONFIGMAP", Settings().tables),
        help="name of the ConfigMap that prepare and build Jobs mount from their namespace where it is there (empty: none is mounted)",
    )
    parser.add_argument(
        "--check-hours",
        type=float,
        default=float(env.get("ENGINEFLEET_CHECK_HOURS", str(Settings().check_hours))),
        help="hours between two looks at whether published engines are in the store as they were published; 0: none",
    )
    parser.add_argument(
        "--leave-grace",
        type=float,
        default=float(env.get("ENGINEFLEET_LEAVE_GRACE", str(Settings().leave_grace))),
        help="seconds for which a node that no longer matches its class keeps its labels",
    )
    parser.add_argument(
        "--read-qps",
        type=float,
        default=float(env.get("ENGINEFLEET_READ_QPS", "200")),
        help="reads from the API server a second, twice as many at once; 0: no limit",
    )
    parser.add_argument(
        "--write-qps",
        type=float,
        default=float(env.get("ENGINEFLEET_WRITE_QPS", "50")),
        help="writes to the API server a second, twice as many at once; 0: no limit",
    )
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(argv)
    logging.basicConfig(
        level=logging.DEBUG if arguments.verbose else logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("kopf").setLevel(logging.WARNING)
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(asyncio.run(run(arguments)))


if __name__ == "__main__":
    main()
