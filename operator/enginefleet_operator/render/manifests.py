"""One function an action: from what was decided to the object that is created."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from enginefleet_api import labels
from enginefleet_api.jobs import BuildRequest, FetchRequest, PreflightTarget, ProbeRequest, RuntimeCheckRequest, VerifyRequest
from enginefleet_api.resources import API_VERSION

from ..planning import contexts, requests
from ..planning.model import (
    CreateBuild,
    CreateService,
    CreateWorkload,
    HardwareClass,
    Snapshot,
    StartBuild,
    StartPreload,
    StartPrepare,
    StartProbe,
    StartVerify,
)
from ..planning.stages import candidates, devices_of, nodes_of, targets
from ..planning.templates import CACHE, ENGINE, FETCH, NO_TOKEN, RUNTIME_CHECK, SCRATCH
from . import pods

PREPARE_DEADLINE = 3600
BUILD_DEADLINE = 6 * 3600
PROBE_DEADLINE = 300
VERIFY_DEADLINE = 3600
PRELOAD_DEADLINE = 2 * 3600
PRELOAD_PATIENCE = 20
"""Seconds: a store that does not answer is asked again by the next Job."""
MARGIN = 60
"""The worker's own deadline lies this much before the pod's, so that a message is always left."""
SERVE_PORT = 8080
ALL_GPUS = ({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"})
"""What NVIDIA's container runtime gives a pod that holds no device."""
CACHE_MOUNT = {"name": CACHE, "mountPath": "/cache"}
NO_API_ACCESS = {"name": NO_TOKEN, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
"""Where a container has this mount the API server puts no token, whatever service account the user's template names."""


def _labels(s: Snapshot, role: str, **more: str) -> dict[str, str]:
    return {labels.MODEL_DEPLOYMENT: s.name, labels.ROLE: role, "app.kubernetes.io/managed-by": "enginefleet"} | more


def prepare_job(s: Snapshot, action: StartPrepare) -> dict[str, Any]:
    """Runs on any node that the class's prepare.nodeSelector (else its nodeSelector) fits, in the prepare image of the class or operator."""
    assert s.store is not None
    hardware_class = _prepares(s)
    request = requests.prepare_request(s.namespace, s.name, s.spec, s.store, f"{s.uid}/{action.job}", action.needs)
    if action.pinned is not None:
        request = requests.more_request(request, action.pinned)
    request = request.model_copy(
        update={
            "timeout_seconds": PREPARE_DEADLINE - MARGIN,
            "targets": _preflight_targets(s, request.flavours),
            "batch_sizes": s.spec.benchmark.batch_sizes,
        }
    )
    return pods.job(
        name=action.job,
        namespace=s.namespace,
        labels=_labels(s, "prepare"),
        annotations={labels.INPUTS_KEY: action.inputs_key, labels.ATTEMPT: str(action.attempt)},
        owners=pods.owner("ModelDeployment", s.name, s.uid),
        command=["enginefleet", "prepare"],
        env=[
            pods.request_env(request.model_dump_json(by_alias=True, exclude_none=True)),
            *pods.all_credentials(s.spec, s.store, model=True),
        ],
        resources=pods.without_devices(hardware_class.spec.prepare.resources),
        deadline=PREPARE_DEADLINE,
        ttl=s.settings.job_ttl,
        tables=s.settings.tables,
        **_preparing(s, hardware_class),
    )


def _prepares(s: Snapshot) -> HardwareClass:
    """The class on whose nodes models are prepared: one that has nodes to do it, rather without a GPU, which others wait for."""

    def rank(one: HardwareClass) -> tuple[bool, bool]:
        return not (one.spec.prepare.node_selector or nodes_of(s, one)), one.runs_on_gpu

    return min(targets(s), key=rank)


def _preflight_targets(s: Snapshot, flavours: list[str]) -> list[PreflightTarget]:
    """Devices that get what is made now, and those of which nothing is known: others have another Job, which may be refused for itself."""
    found: list[PreflightTarget] = []
    for hardware_class in targets(s):
        facts = [o.facts for o in devices_of(s, hardware_class)]
        mine = [one for one in facts if requests.flavour(hardware_class, one) in flavours]
        if mine or (not facts and requests.flavour(hardware_class, {}) in (None, *flavours)):
            found += requests.preflight_targets(s.spec, hardware_class, mine)
    for candidate in candidates(s):
        # a candidate that is not probed yet asks for nothing
        if mine := [o.facts for o in devices_of(s, candidate) if requests.flavour(candidate, o.facts) in flavours]:
            found += requests.preflight_targets(s.spec, candidate, mine)
    return found


def engine_build(s: Snapshot, action: CreateBuild) -> dict[str, Any]:
    spec = action.spec
    return {
        "apiVersion": API_VERSION,
        "kind": "EngineBuild",
        "metadata": {
            "name": action.name,
            "namespace": s.namespace,
            "labels": {labels.MODEL_DEPLOYMENT: s.name, labels.HARDWARE_CLASS: spec.hardware_class, labels.FINGERPRINT: spec.fingerprint},
            "ownerReferences": pods.owner("ModelDeployment", s.name, s.uid),
        },
        "spec": spec.to_json_dict(),
    }


def build_job(s: Snapshot, action: StartBuild) -> dict[str, Any]:
    """Runs on a node of the fingerprint, found by the label that the node carries for this very image; one that only judges on one of its context."""
    assert s.store is not None
    spec, judge = action.spec, action.judge
    hardware_class = s.classes[spec.hardware_class]
    nodes = [action.node] if action.node else judge.nodes if judge is not None else [n.name for n in s.nodes if _carries(n.labels, spec)]
    request = BuildRequest.model_validate(spec.request).model_copy(
        update={
            "holder": f"{action.build_uid}/{action.attempt}",
            "timeout_seconds": BUILD_DEADLINE - MARGIN,
            "node": "",
            "python": hardware_class.spec.runtime.python,
            "memory_reserve": hardware_class.spec.builds.memory_reserve if spec.request["backend"] != "onnxruntime" else "",
            "context": contexts.common(s.fingerprints, nodes),
        }
        | ({"kind": "Judge", "blob": judge.blob} if judge is not None else {})
    )
    wanted = (action.node,) if action.node else judge.nodes if judge is not None else ()
    node_env = {"name": "ENGINEFLEET_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    return pods.job(
        name=action.job,
        namespace=s.namespace,
        labels=_labels(
            s,
            "build",
            **{labels.ENGINE_BUILD: action.build, labels.ENGINE_KEY: spec.engine_key[:16], labels.HARDWARE_CLASS: spec.hardware_class},
        ),
        annotations={labels.ATTEMPT: str(action.attempt)} | ({labels.CONTEXT: judge.context} if judge is not None else {}),
        owners=pods.owner("EngineBuild", action.build, action.build_uid),
        image=spec.image,
        command=["enginefleet", "judge" if judge is not None else "build"],
        env=[
            pods.request_env(request.model_dump_json(by_alias=True, exclude_none=True)),
            node_env,
            *_sight(hardware_class),
            *pods.all_credentials(s.spec, s.store),
        ],
        resources=hardware_class.spec.runtime.resources,
        node_selector={labels.fp_key(spec.hardware_class, spec.image_digest): spec.fingerprint},
        affinity=pods.on_nodes(wanted) if wanted else pods.not_on(action.avoid) if _elsewhere(s, action) else None,
        tolerations=hardware_class.spec.runtime.tolerations,
        runtime_class=hardware_class.spec.runtime.runtime_class_name,
        deadline=BUILD_DEADLINE,
        groups=hardware_class.spec.runtime.supplemental_groups,
        ttl=s.settings.job_ttl,
        tables=s.settings.tables,
    )


def verify_job(s: Snapshot, action: StartVerify) -> dict[str, Any]:
    """Runs where models are prepared, and reads the store as serving pods do."""
    assert s.store is not None
    hardware_class = _prepares(s)
    settings = hardware_class.spec.prepare
    request = VerifyRequest(engines=list(action.engines), store=requests.store_ref(s.store), timeout_seconds=VERIFY_DEADLINE - MARGIN)
    return pods.job(
        name=action.job,
        namespace=s.namespace,
        labels=_labels(s, "verify"),
        annotations={labels.ATTEMPT: str(action.attempt)},
        owners=pods.owner("ModelDeployment", s.name, s.uid),
        command=["enginefleet", "verify"],
        env=[
            pods.request_env(request.model_dump_json(by_alias=True, exclude_none=True)),
            *pods.credentials("STORE", s.store.read_credentials_secret_ref or s.store.credentials_secret_ref),
        ],
        resources=pods.without_devices(settings.resources),
        deadline=VERIFY_DEADLINE,
        ttl=s.settings.job_ttl,
        **_preparing(s, hardware_class),
    )


def _preparing(s: Snapshot, hardware_class: HardwareClass) -> dict[str, Any]:
    """Image and place of a pod that needs none of the class's devices."""
    runtime, settings = hardware_class.spec.runtime, hardware_class.spec.prepare
    return {
        "image": settings.image or s.settings.prepare_image or runtime.image,
        "node_selector": settings.node_selector or hardware_class.spec.node_selector.match_labels,
        "affinity": None,
        "tolerations": runtime.tolerations,
        # of the class's nodes; others may not have it
        "runtime_class": "" if settings.node_selector else runtime.runtime_class_name,
    }


def _sight(hardware_class: HardwareClass) -> tuple[dict[str, str], ...]:
    """Environment of a pod of ours on a GPU that no device plugin hands out: NVIDIA's runtime shows GPUs to those who ask for them."""
    return ALL_GPUS if _needs_gpu(hardware_class) and not pods.devices(hardware_class.spec.runtime.resources) else ()


def _needs_gpu(hardware_class: HardwareClass) -> bool:
    """Whether its pods run something on a GPU: builds for a GPU elsewhere do not."""
    return hardware_class.runs_on_gpu and not hardware_class.spec.builds.compute_capability


def _elsewhere(s: Snapshot, action: StartBuild) -> bool:
    """Whether another node could take the build now."""
    return any(n.ready and not n.unschedulable and n.name not in action.avoid and _carries(n.labels, action.spec) for n in s.nodes)


def _carries(node_labels: Any, spec: Any) -> bool:
    return bool(node_labels.get(labels.fp_key(spec.hardware_class, spec.image_digest)) == spec.fingerprint)


def probe_job(hardware_class: HardwareClass, action: StartProbe, namespace: str, ttl: int) -> dict[str, Any]:
    """Holds no device where it can do without: a serving pod may hold the only one, and looking at a GPU needs none of it.

    A container runtime that gives GPUs only to those who hold one shows itself by a failed first attempt; every second one holds the device.
    A slice of a GPU is held at once: a look at all of them would take the first for the one that the class means.
    """
    spec = hardware_class.spec
    request = ProbeRequest(
        backend=spec.backend,
        execution_provider=spec.execution_provider,
        python=spec.runtime.python,
        compute_capability=spec.builds.compute_capability,
    )
    gpu = _needs_gpu(hardware_class)
    names = [name for wanted in spec.runtime.resources.values() if isinstance(wanted, dict) for name in wanted]
    holds = gpu and (action.attempt % 2 == 0 or any("/mig-" in name for name in names))
    return pods.job(
        name=action.job,
        namespace=namespace,
        labels={labels.ROLE: "probe", labels.HARDWARE_CLASS: hardware_class.name, "app.kubernetes.io/managed-by": "enginefleet"},
        annotations={labels.ATTEMPT: str(action.attempt)},
        owners=pods.owner("HardwareClass", hardware_class.name, hardware_class.uid),
        image=action.image,
        command=["enginefleet", "probe"],
        env=[pods.request_env(request.model_dump_json(by_alias=True, exclude_none=True)), *(ALL_GPUS if gpu and not holds else ())],
        resources=spec.runtime.resources if holds else {},
        node_selector={},
        affinity=pods.on_nodes((action.node,)),
        tolerations=spec.runtime.tolerations,
        runtime_class=spec.runtime.runtime_class_name,
        deadline=PROBE_DEADLINE,
        groups=spec.runtime.supplemental_groups,
        ttl=ttl,
    )


def workload(s: Snapshot, action: CreateWorkload) -> dict[str, Any]:
    """The DaemonSet of one engine. Nodes come and go by labels; the template never changes (OnDelete is a second lock)."""
    assert s.store is not None
    spec = action.spec
    hardware_class = s.classes[action.hardware_class]
    pod_labels = _labels(s, "serve", **{labels.HARDWARE_CLASS: action.hardware_class, labels.RELEASE: action.label})
    # the fetch container is the builder's, so the image must be the one that the engine was proven with
    image = spec.image
    selector = {
        labels.fp_key(action.hardware_class, spec.image_digest): spec.fingerprint,
        labels.release_key(s.namespace, s.name): action.label,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": action.name,
            "namespace": s.namespace,
            "labels": pod_labels | {labels.FINGERPRINT: spec.fingerprint, labels.ENGINE_BUILD: action.build},
            "annotations": {labels.IMAGE_DIGEST: spec.image_digest, labels.BLOB: action.blob},
            "ownerReferences": pods.owner("ModelDeployment", s.name, s.uid),
        },
        "spec": {
            "selector": {
                "matchLabels": {labels.MODEL_DEPLOYMENT: s.name, labels.RELEASE: action.label, labels.HARDWARE_CLASS: action.hardware_class}
            },
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": s.spec.history_limit,
            "template": {
                "metadata": {"labels": pod_labels} | _template_metadata(s, pod_labels),
                "spec": _pod_spec(s, action, hardware_class, image, selector),
            },
        },
    }


def revision(s: Snapshot, action: CreateWorkload) -> dict[str, Any]:
    """The DaemonSet of one engine as it would be created, kept for a rollback: neither Git nor a build is needed to make it again."""
    kept = workload(s, action)
    metadata = kept["metadata"]
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {name: metadata[name] for name in ("name", "namespace", "labels", "annotations", "ownerReferences")},
        "data": kept,
        "revision": s.generation,
    }


def _template_metadata(s: Snapshot, pod_labels: dict[str, str]) -> dict[str, Any]:
    written = (s.spec.serving.template or {}).get("metadata") or {}
    return {"labels": dict(written.get("labels") or {}) | pod_labels, "annotations": dict(written.get("annotations") or {})}


def _pod_spec(s: Snapshot, action: CreateWorkload, hardware_class: HardwareClass, image: str, selector: dict[str, str]) -> dict[str, Any]:
    template = s.spec.serving.template
    pod: dict[str, Any] = (
        json.loads(json.dumps(template.get("spec") or {})) if template is not None else _reference_server(s, hardware_class, image)
    )
    runtime = hardware_class.spec.runtime
    path = s.spec.serving.engine_path
    for container in pod.get("containers") or []:
        mounts = container.get("volumeMounts") or []
        if not any(m.get("mountPath") == path for m in mounts):
            container["volumeMounts"] = [*mounts, {"name": ENGINE, "mountPath": path, "readOnly": True}]
    pod["nodeSelector"] = dict(pod.get("nodeSelector") or {}) | selector
    pod["tolerations"] = [*(pod.get("tolerations") or []), *runtime.tolerations]
    pod["volumes"] = [
        *(pod.get("volumes") or []),
        {"name": ENGINE, "emptyDir": {}},
        {"name": SCRATCH, "emptyDir": {}},
        {"name": NO_TOKEN, "emptyDir": {}},
        _cache_volume(s),
    ]
    if template is not None:
        _give_devices(pod, runtime.resources)
    if runtime.runtime_class_name and "runtimeClassName" not in pod:
        pod["runtimeClassName"] = runtime.runtime_class_name
    pod["initContainers"] = [*_init_containers(s, action, image, pod), *(pod.get("initContainers") or [])]
    return pod


def _give_devices(pod: dict[str, Any], resources: Mapping[str, Any]) -> None:
    """Where a template asks for no device, its first container gets those of the class, and what else it asks for stays as written."""
    containers = pod.get("containers") or []
    if not containers or any(pods.devices(c.get("resources") or {}) for c in containers) or not (wanted := pods.devices(resources)):
        return
    written = containers[0].get("resources") or {}
    containers[0]["resources"] = written | {kind: dict(written.get(kind) or {}) | amounts for kind, amounts in wanted.items()}


def preload_job(s: Snapshot, action: StartPreload) -> dict[str, Any]:
    """Fetches as a serving pod does, only into the node's cache: without a device, and with the time that a slow link takes."""
    assert s.store is not None
    spec = action.workload.spec
    hardware_class = s.classes[action.workload.hardware_class]
    written = ((s.spec.serving.template or {}).get("spec") or {}).get("tolerations") or []
    request = _fetch_request(s, action.workload).model_copy(
        update={"engine_path": "/tmp/engine", "timeout_seconds": PRELOAD_DEADLINE - MARGIN, "patience_seconds": PRELOAD_PATIENCE}
    )
    readers = s.store.read_credentials_secret_ref or s.store.credentials_secret_ref
    made = pods.job(
        name=action.job,
        namespace=s.namespace,
        labels=_labels(s, "preload", **{labels.HARDWARE_CLASS: hardware_class.name}),
        annotations={labels.BLOB: action.workload.blob},
        owners=pods.owner("ModelDeployment", s.name, s.uid),
        image=spec.image,
        command=["enginefleet", "fetch"],
        env=[pods.request_env(request.model_dump_json(by_alias=True, exclude_none=True)), *pods.credentials("STORE", readers)],
        resources={},
        node_selector={},
        affinity=pods.on_nodes((action.node,)),
        tolerations=[*written, *hardware_class.spec.runtime.tolerations],
        runtime_class="",
        deadline=PRELOAD_DEADLINE,
        ttl=s.settings.job_ttl,
    )
    pod = made["spec"]["template"]["spec"]
    pod["volumes"].append(_cache_volume(s))
    pod["containers"][0]["volumeMounts"] = [*pod["containers"][0]["volumeMounts"], CACHE_MOUNT]
    return made


def _cache_volume(s: Snapshot) -> dict[str, Any]:
    return {"name": CACHE, "hostPath": {"path": s.settings.cache_path, "type": "DirectoryOrCreate"}}


def _fetch_request(s: Snapshot, action: CreateWorkload) -> FetchRequest:
    assert s.store is not None
    spec = action.spec
    return FetchRequest(
        engine_key=spec.engine_key,
        gate_key=spec.gate_key,
        blob=action.blob,
        size=action.size,
        fingerprint=spec.fingerprint,
        facts=dict(spec.request["facts"]),
        store=requests.store_ref(s.store),
        engine_path=s.spec.serving.engine_path,
        layout=s.spec.serving.layout,
        model_name=s.name,
        cache_path=str(CACHE_MOUNT["mountPath"]),
        preprocessing=s.spec.preprocessing,
    )


def _init_containers(s: Snapshot, action: CreateWorkload, image: str, pod: dict[str, Any]) -> list[dict[str, Any]]:
    assert s.store is not None
    spec, path, fetch = action.spec, s.spec.serving.engine_path, _fetch_request(s, action)
    readers = s.store.read_credentials_secret_ref or s.store.credentials_secret_ref
    runtime = s.classes[action.hardware_class].spec.runtime
    containers = [
        {
            "name": FETCH,
            "image": image,
            "command": ["enginefleet", "fetch"],
            "env": [
                pods.request_env(fetch.model_dump_json(by_alias=True, exclude_none=True)),
                {"name": "HOME", "value": "/tmp"},
                *pods.credentials("STORE", readers),
            ],
            "securityContext": pods.container_security() | {"runAsNonRoot": True, "runAsUser": pods.USER},
            "terminationMessagePath": "/dev/termination-log",
            "volumeMounts": [
                {"name": ENGINE, "mountPath": path},
                {"name": SCRATCH, "mountPath": "/tmp"},
                CACHE_MOUNT,
                NO_API_ACCESS,
            ],
        }
    ]
    if s.spec.serving.runtime_check == "Enforce":
        # in the serving image itself, which may know nothing of us: fetch left a script of the standard library beside the engine
        check = RuntimeCheckRequest(backend=str(spec.request["backend"]), version=str(spec.request["facts"].get("backendVersion") or ""))
        containers.append(
            {
                "name": RUNTIME_CHECK,
                "image": pod["containers"][0]["image"],
                # in the reference server's image the interpreter that owns TensorRT is known
                "command": [
                    runtime.python if s.spec.serving.template is None else "python3",
                    f"{path}/.enginefleet/runtime_check.py",
                ],
                "env": [pods.request_env(check.model_dump_json(by_alias=True)), {"name": "HOME", "value": "/tmp"}],
                "securityContext": pods.container_security() | {"runAsNonRoot": True, "runAsUser": pods.USER},
                "terminationMessagePath": "/dev/termination-log",
                "volumeMounts": [
                    {"name": ENGINE, "mountPath": path, "readOnly": True},
                    {"name": SCRATCH, "mountPath": "/tmp"},
                    NO_API_ACCESS,
                ],
            }
        )
    return containers


def _reference_server(s: Snapshot, hardware_class: HardwareClass, image: str) -> dict[str, Any]:
    probe = {"port": SERVE_PORT}
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": pods.pod_security(hardware_class.spec.runtime.supplemental_groups),
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "containers": [
            {
                "name": "server",
                "image": image,
                "command": ["enginefleet", "serve"],
                "env": [
                    {"name": "ENGINEFLEET_MODEL_NAME", "value": s.name},
                    {"name": "ENGINEFLEET_ENGINE_PATH", "value": s.spec.serving.engine_path},
                    {"name": "ENGINEFLEET_PYTHON", "value": hardware_class.spec.runtime.python},
                    {"name": "ENGINEFLEET_PORT", "value": str(SERVE_PORT)},
                    {"name": "HOME", "value": "/tmp"},
                    *_sight(hardware_class),
                ],
                "ports": [{"name": "http", "containerPort": SERVE_PORT}],
                "resources": dict(hardware_class.spec.runtime.resources),
                "securityContext": pods.container_security(),
                "readinessProbe": {"httpGet": {"path": "/v2/health/ready"} | probe, "periodSeconds": 2, "failureThreshold": 3},
                "livenessProbe": {
                    "httpGet": {"path": "/v2/health/live"} | probe,
                    "periodSeconds": 10,
                    "failureThreshold": 6,
                    "initialDelaySeconds": 10,
                },
                "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
            }
        ],
    }


def service(s: Snapshot, action: CreateService) -> dict[str, Any]:
    """One stable address for all pods of a ModelDeployment, whatever release they serve."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": action.name,
            "namespace": s.namespace,
            "labels": _labels(s, "serve"),
            "ownerReferences": pods.owner("ModelDeployment", s.name, s.uid),
        },
        "spec": {
            "selector": {labels.MODEL_DEPLOYMENT: s.name, labels.ROLE: "serve"},
            "ports": [{"name": "http", "port": SERVE_PORT, "targetPort": SERVE_PORT}],
        },
    }
