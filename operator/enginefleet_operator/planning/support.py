"""What the API already has and this version does not do yet: refused by name, never ignored.

Each rule is (field, why); the list gets shorter with every release.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from enginefleet_api.flavours import FLAVOURS_OF, PRECISIONS, TENSORRT_10
from enginefleet_api.keys import ignored_settings
from enginefleet_api.resources import EngineStoreSpec, HardwareClassSpec, ModelDeploymentSpec

from . import windows


def unsupported_model_deployment(spec: ModelDeploymentSpec, backends: Collection[str]) -> Iterator[str]:
    """`backends`: of the target classes that are there. What only some of them can't do is said of each device: see requests.refusals."""
    # of whatever release: a probe tells the rest
    flavours = [flavour for backend in backends for flavour in FLAVOURS_OF[backend]]
    known = [p for p in PRECISIONS[TENSORRT_10] if any(p in PRECISIONS[flavour] for flavour in flavours)]
    if backends and spec.precision not in ("auto", *known):
        yield f"spec.precision {spec.precision}: write auto, {', '.join(known[:-1])} or {known[-1]}"
    if backends and (unknown := [c for c in spec.auto.candidates if c not in known]):
        yield f"spec.auto.candidates {', '.join(unknown)}: write some of {', '.join(known)}"
    ignored = [set(ignored_settings(spec.build, backend)) for backend in backends]
    if nobody := sorted(set.intersection(*ignored)) if ignored else []:
        yield f"spec.build: no target class has a use for {', '.join(nobody)}; leave it out"
    if spec.serving.mode == "Deployment":
        yield "spec.serving.mode Deployment: write DaemonSet, or None"


def unsupported_class(spec: HardwareClassSpec) -> Iterator[str]:
    if spec.execution_provider == "CoreML":
        yield "spec.executionProvider CoreML: it runs on macOS, and no node of Kubernetes does; build by hand there, or write another one"
    for zone in windows.unknown_zones(spec.builds.windows):
        yield f"spec.builds.windows: no time zone is called {zone}; write an IANA name like Europe/Berlin, or UTC"
    if spec.backend == "onnxruntime" and spec.builds.memory_reserve != "1Gi":
        yield f"spec.builds.memoryReserve {spec.builds.memory_reserve}: only TensorRT has a use for it; leave it out"
    if spec.backend == "onnxruntime" and spec.runtime.python != "python3":
        yield f"spec.runtime.python {spec.runtime.python}: only TensorRT has a use for it; leave it out"
    if spec.prepare.mode != "Local":
        yield f"spec.prepare.mode {spec.prepare.mode}: write Local"
    if spec.identity.include or spec.identity.exclude:
        yield "spec.identity: leave include and exclude out"


def unsupported_store(spec: EngineStoreSpec) -> Iterator[str]:
    if spec.signing is not None:
        yield "spec.signing: leave it out"
    if spec.trust.require or spec.trust.public_keys:
        yield "spec.trust: leave it out"
