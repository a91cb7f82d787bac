"""What the API already has and this version does not do yet: refused by name, never ignored.

Each rule is (field, why); the list gets shorter with every release.
"""

from __future__ import annotations

from collections.abc import Iterator

from enginefleet_api.resources import EngineStoreSpec, HardwareClassSpec, ModelDeploymentSpec, Rollout

PRECISIONS = ("fp32", "fp16", "int8")
"""What ONNX Runtime on a CPU runs."""


def unsupported_model_deployment(spec: ModelDeploymentSpec) -> Iterator[str]:
    if spec.precision not in ("auto", *PRECISIONS):
        yield f"spec.precision {spec.precision}: write auto, {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}"
    if unknown := [c for c in spec.auto.candidates if c not in PRECISIONS]:
        yield f"spec.auto.candidates {', '.join(unknown)}: write some of {', '.join(PRECISIONS)}"
    if any(target.hardware_class_selector is not None for target in spec.targets):
        yield "spec.targets[].hardwareClassSelector: name each class with hardwareClass"
    build = spec.build
    if build.dla is not None or build.plugins or build.tactic_sources or build.workspace != "auto" or build.optimization_level != 3:
        yield "spec.build: only threads is used by the ONNX Runtime backend; leave workspace, optimizationLevel, dla, plugins and tacticSources out"
    if spec.serving.mode != "DaemonSet":
        yield f"spec.serving.mode {spec.serving.mode}: write DaemonSet"
    if spec.serving.layout != "plain":
        yield f"spec.serving.layout {spec.serving.layout}: write plain"
    yield from unsupported_rollout(spec.rollout)


def unsupported_rollout(rollout: Rollout) -> Iterator[str]:
    if rollout.canary is not None:
        yield "spec.rollout.canary: leave it out; nodes move one by one within maxUnavailable"
    if rollout.steps:
        yield "spec.rollout.steps: leave it out; nodes move one by one within maxUnavailable"
    if rollout.windows:
        yield "spec.rollout.windows: leave it out, or set spec.paused"
    if rollout.on_failure != "Pause":
        yield f"spec.rollout.onFailure {rollout.on_failure}: write Pause"


def unsupported_class(spec: HardwareClassSpec) -> Iterator[str]:
    if spec.backend != "onnxruntime":
        yield f"spec.backend {spec.backend}: write onnxruntime"
    if spec.execution_provider == "CoreML":
        yield "spec.executionProvider CoreML: it runs on macOS, and no node of Kubernetes does; build by hand there, or write another one"
    if spec.runtime.candidate_image:
        yield "spec.runtime.candidateImage: leave it out"
    if spec.builds.windows or spec.builds.when_busy != "Wait" or spec.builds.max_concurrent != 1:
        yield "spec.builds: leave windows out, whenBusy Wait and maxConcurrent 1"
    if spec.builds.memory_reserve != "1Gi":
        yield f"spec.builds.memoryReserve {spec.builds.memory_reserve}: only GPU backends will use it; leave it out"
    if spec.runtime.python != "python3":
        yield f"spec.runtime.python {spec.runtime.python}: only GPU backends will use it; leave it out"
    if spec.prepare.mode != "Local":
        yield f"spec.prepare.mode {spec.prepare.mode}: write Local"
    if spec.on_version_change != "Rebuild":
        yield f"spec.onVersionChange {spec.on_version_change}: write Rebuild"
    if spec.identity.include or spec.identity.exclude:
        yield "spec.identity: leave include and exclude out"


def unsupported_store(spec: EngineStoreSpec) -> Iterator[str]:
    if spec.signing is not None:
        yield "spec.signing: leave it out"
    if spec.trust.require or spec.trust.public_keys:
        yield "spec.trust: leave it out"
