"""Snapshots for tables: a small fleet that is all right, to be changed by a test in one respect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from enginefleet_api import fingerprint, labels
from enginefleet_api.documents import Answer, Metric
from enginefleet_api.jobs import BuildReport, PrepareReport, ResolvedPrepared
from enginefleet_api.resources import (
    EngineBuildStatus,
    EngineStoreSpec,
    HardwareClassSpec,
    HardwareClassStatus,
    ModelDeploymentSpec,
    ModelDeploymentStatus,
    NodeFingerprintSpec,
)
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import (
    CreateBuild,
    CreateService,
    CreateWorkload,
    Delete,
    EngineBuild,
    HardwareClass,
    Job,
    KeepRevision,
    LabelNode,
    Node,
    Plan,
    RestoreWorkload,
    Revision,
    ServingPod,
    Snapshot,
    StartBuild,
    StartPreload,
    StartPrepare,
    StartVerify,
    Workload,
    WriteBuildStatus,
)

NOW = 1_800_000_000.0
IMAGE_A = "sha256:" + "a" * 64
IMAGE_B = "sha256:" + "b" * 64
BLOB = "sha256:" + "e" * 64
MODEL = "sha256:" + "1" * 64
PREPARED = "sha256:" + "2" * 64
HOST = fingerprint.host_facts(os="linux", machine="x86_64", cpuinfo="flags : avx2 fma\n")
HOST_DIGEST = fingerprint.host_digest(HOST)
RUNTIME = {"backend": "onnxruntime", "backendVersion": "1.24.4", "executionProvider": "CPU"}


def spec(**changes: Any) -> ModelDeploymentSpec:
    value: dict[str, Any] = {
        "model": {"uri": "s3://models/m.onnx"},
        "validation": {"uri": "s3://models/v.npz", "acceptance": {"minimum": "0.9"}},
        "targets": [{"hardwareClass": "cpu"}],
    }
    return ModelDeploymentSpec.model_validate(value | changes)


def hardware_class(name: str = "cpu", image: str = "runtime:1", digest: str = IMAGE_A, **changes: Any) -> HardwareClass:
    written = {
        "nodeSelector": {"matchLabels": {"hardware": name}},
        "backend": "onnxruntime",
        "runtime": {"image": image},
    }
    status = {"probed": [{"image": image, "imageDigest": digest, "hostDigest": HOST_DIGEST, "runtime": RUNTIME}]}
    return HardwareClass(
        name, f"uid-{name}", 1, HardwareClassSpec.model_validate(written | changes), HardwareClassStatus.model_validate(status)
    )


def observed(node: str, name: str = "cpu", digest: str = IMAGE_A, **context: str) -> NodeFingerprintSpec:
    facts = fingerprint.combine(HOST, RUNTIME)
    one = {
        "class": name,
        "imageDigest": digest,
        "device": "cpu",
        "id": fingerprint.identify(facts),
        "summary": "a CPU",
        "facts": facts,
        "hostDigest": HOST_DIGEST,
    }
    host = {"digest": HOST_DIGEST, "facts": HOST, "context": context}
    return NodeFingerprintSpec.model_validate({"node": node, "host": host, "observations": [one]})


def node(name: str, *, ready: bool = True, hardware: str = "cpu", release: str = "", known: bool = False) -> Node:
    """`known`: with the labels that say its fingerprint."""
    have = {"hardware": hardware} | ({labels.release_key("vision", "m"): release} if release else {})
    if known:
        seen = fingerprint.identify(fingerprint.combine(HOST, RUNTIME))
        have |= {labels.fp_key(hardware, IMAGE_A): seen, labels.fp_key(hardware): seen}
    return Node(name, "7", have, ready)


def fleet(nodes: int = 3, **changes: Any) -> Snapshot:
    """A ModelDeployment just applied, on `nodes` nodes whose fingerprints are known."""
    names = [f"n{i}" for i in range(nodes)]
    base = Snapshot(
        name="m",
        namespace="vision",
        uid="uid-m",
        generation=1,
        annotations={},
        spec=spec(),
        status=ModelDeploymentStatus(),
        classes={"cpu": hardware_class()},
        namespace_labels={},
        store=EngineStoreSpec(uri="s3://engines/vision/"),
        nodes=tuple(node(n, known=True) for n in names),
        fingerprints={n: observed(n) for n in names},
    )
    return replace(base, **changes)


def prepare_report() -> PrepareReport:
    prepared = ResolvedPrepared(flavour="onnxruntime", precision="fp32", variant="fp32", prepared_key="p" * 64, model=PREPARED)
    metric = Metric(name="top1", value="0.95", samples=500)
    return PrepareReport(
        model=MODEL, validation="sha256:" + "3" * 64, prepared=[prepared], baseline_key="b" * 64, baseline=metric, seconds="1.0"
    )


def build_report(build: EngineBuild, answer: Answer = Answer.PASS, reasons: list[str] | None = None, blob: str = BLOB) -> BuildReport:
    return BuildReport(
        engine_key=build.spec.engine_key,
        gate_key=build.spec.gate_key,
        blob=blob,
        size=1000,
        adopted=False,
        answer=answer,
        reasons=reasons or [],
    )


def first(plan: Plan, kind: type[Any]) -> Any:
    return next(a for a in plan.actions if isinstance(a, kind))


def kinds(plan: Plan) -> list[str]:
    return [type(a).__name__ for a in plan.actions]


def apply(s: Snapshot, plan: Plan) -> Snapshot:
    """What the API server would show after the plan: the smallest world model that these tables need. Pods and DaemonSets do not move."""
    if plan.status is not None:
        s = replace(s, status=ModelDeploymentStatus.model_validate(plan.status))
    for a in plan.actions:
        match a:
            case StartPrepare():
                s = replace(s, jobs=(*s.jobs, Job(a.job, f"uid-{a.job}", "prepare", a.attempt, inputs_key=a.inputs_key)))
            case CreateBuild():
                s = replace(
                    s, builds=(*s.builds, EngineBuild(a.name, f"uid-{a.name}", "2027-01-15T08:00:00Z", a.spec, EngineBuildStatus()))
                )
            case StartBuild():
                s = replace(
                    s,
                    jobs=(
                        *s.jobs,
                        Job(a.job, f"uid-{a.job}", "build", a.attempt, build=a.build, context=a.judge.context if a.judge else ""),
                    ),
                )
            case StartVerify():
                s = replace(s, jobs=(*s.jobs, Job(a.job, f"uid-{a.job}", "verify", a.attempt)))
            case StartPreload():
                # the smallest world: it is on the node at once
                s = replace(s, jobs=(*s.jobs, Job(a.job, f"uid-{a.job}", "preload", 1, active=False, node=a.node)))
            case WriteBuildStatus():
                done = [replace(b, status=EngineBuildStatus.model_validate(a.status)) if b.name == a.name else b for b in s.builds]
                s = replace(s, builds=tuple(done))
            case CreateWorkload():
                w = Workload(a.name, f"uid-{a.name}", a.hardware_class, a.spec.fingerprint, a.label, a.build, a.spec.image_digest, a.blob)
                s = replace(s, workloads=(*s.workloads, w))
            case KeepRevision(workload=a_kept):
                digest = a_kept.spec.image_digest
                kept = Revision(
                    a_kept.name,
                    f"uid-revision-{a_kept.name}",
                    a_kept.hardware_class,
                    a_kept.spec.fingerprint,
                    a_kept.label,
                    digest,
                    NOW + len(s.revisions),
                )
                s = replace(s, revisions=(*s.revisions, kept))
            case RestoreWorkload():
                r = next(r for r in s.revisions if r.name == a.name)
                s = replace(
                    s,
                    workloads=(
                        *s.workloads,
                        Workload(r.name, f"uid-{r.name}-again", r.hardware_class, r.fingerprint, r.label, "", r.image_digest, ""),
                    ),
                )
            case CreateService():
                s = replace(s, has_service=True)
            case LabelNode():
                s = replace(s, nodes=tuple(_labelled(n, a) if n.name == a.node else n for n in s.nodes))
            case Delete():
                s = replace(
                    s,
                    jobs=tuple(j for j in s.jobs if j.uid != a.uid),
                    builds=tuple(b for b in s.builds if b.uid != a.uid),
                    workloads=tuple(w for w in s.workloads if w.uid != a.uid),
                    revisions=tuple(r for r in s.revisions if r.uid != a.uid),
                )
    return s


def _labelled(n: Node, a: LabelNode) -> Node:
    have = {k: v for k, v in n.labels.items() if a.labels.get(k, "") is not None} | {k: v for k, v in a.labels.items() if v is not None}
    return replace(n, labels=have, resource_version=str(int(n.resource_version) + 1))


def end_job(s: Snapshot, role: str, **outcome: Any) -> Snapshot:
    return replace(s, jobs=tuple(replace(j, active=False, **outcome) if j.role == role and j.active else j for j in s.jobs))


def settle(s: Snapshot, now: float = NOW, rounds: int = 20) -> Snapshot:
    """Decide and apply until nothing is left to do. Fails when it never ends."""
    for _ in range(rounds):
        plan = decide(s, now)
        if not plan.actions and plan.status is None:
            return s
        s = apply(s, plan)
    raise AssertionError(f"not quiet after {rounds} rounds: {kinds(decide(s, now))}")


def prepared_fleet(**changes: Any) -> Snapshot:
    """Prepare is done, the build Job runs."""
    return settle(end_job(settle(fleet(**changes)), "prepare", report=prepare_report()))


def passed_fleet(**changes: Any) -> Snapshot:
    """The engine passed, the canary node is labelled; no pods yet."""
    s = prepared_fleet(**changes)
    return settle(end_job(s, "build", report=build_report(s.builds[0]), node="n0"))


def follow(s: Snapshot, *, ready: bool = True) -> Snapshot:
    """A pod on each node for the release that its label names; what follows another one is gone."""
    key = labels.release_key(s.namespace, s.name)
    have = {n.name: n.labels[key] for n in s.nodes if n.labels.get(key) and n.labels[key] == labels.plain(n.labels[key])}
    kept = [p for p in s.pods if have.get(p.node) == p.workload_label]
    known = {p.node for p in kept}
    made = [
        ServingPod(f"pod-{name}-{label}", f"uid-pod-{name}-{label}", name, label, ready)
        for name, label in have.items()
        if name not in known
    ]
    return replace(s, pods=(*kept, *made))


def serving(s: Snapshot, *, ready: bool = True) -> Snapshot:
    """Pods follow the labels, and labels the pods that got ready, until nothing moves. The last decisions are still to be made."""
    for _ in range(50):
        after = follow(s, ready=ready)
        if after == s:
            return s
        s = settle(after) if ready else after
    raise AssertionError("never settles")
