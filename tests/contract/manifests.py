"""Good manifests of every kind, and a way to spoil them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import yaml

Object = dict[str, Any]

FULL: Object = yaml.safe_load("""
apiVersion: enginefleet.io/v1alpha1
kind: ModelDeployment
metadata: {name: line-inspection, namespace: default}
spec:
  model:
    uri: s3://models/line-inspection/v7/
    digest: sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
    credentialsSecretRef: {name: models}
  precision: auto
  inputs:
  - {name: images, profiles: [{min: [1,3,640,640], opt: [4,3,640,640], max: [8,3,640,640]}]}
  preprocessing:
    {resize: letterbox, size: [640,640], color: RGB, layout: NCHW, scale: "1/255", mean: ["0","0","0"], std: ["1","1","1"]}
  calibration:
    source: dataset
    uri: s3://datasets/line/calibration/
    method: auto
    minSamples: 500
    exclude: {nodes: [".*dfl.*"], opTypes: []}
  validation:
    uri: s3://datasets/line/validation/
    task: detection
    metric: map50_95
    decoder: {kind: yolo, nmsIou: "0.7", confidence: "0.001", maxDetections: 300}
    minSamples: 200
    requiredClasses: [scratch, dent]
    subgroups: {column: scene}
    onDevice: {maxSamples: 1000}
    baseline: {expected: "0.62", tolerance: "0.02"}
    acceptance: {minimum: "0.40", maxDrop: "0.01", maxDropPerClass: "0.05", operatingPoint: {confidence: "0.35", maxRecallDrop: "0.01"}}
  benchmark:
    batchSizes: [1, 4]
    acceptance: {batchSize: 1, p95: 12ms, throughput: "96"}
    sustained: 0s
  build: {workspace: auto, optimizationLevel: 3, dla: {core: 0, allowGpuFallback: true}, plugins: [], tacticSources: []}
  targets:
  - {hardwareClass: orin-nx}
  storeRef: {name: default}
  serving:
    mode: Deployment
    replicas: 2
    enginePath: /engine
    layout: plain
    runtimeCheck: Enforce
    template: {metadata: {labels: {app: line}}, spec: {containers: [{name: server, image: "registry.example/server:1", args: ["--engine", /engine]}]}}
  rollout:
    canary: {count: 1, soak: 10m}
    steps: [10%, 50%, 100%]
    maxUnavailable: 10%
    maxFailures: 1
    progressDeadline: 10m
    onFailure: Rollback
    windows: [{days: [Sat,Sun], start: "02:00", duration: 4h, timeZone: Europe/Berlin}]
  paused: false
  historyLimit: 3
""")

MINIMAL: Object = yaml.safe_load("""
apiVersion: enginefleet.io/v1alpha1
kind: ModelDeployment
metadata: {name: minimal, namespace: default}
spec:
  model: {uri: s3://models/minimal.onnx}
  targets: [{hardwareClass: cpu}]
""")

HARDWARE_CLASS: Object = yaml.safe_load("""
apiVersion: enginefleet.io/v1alpha1
kind: HardwareClass
metadata: {name: orin-nx}
spec:
  nodeSelector: {matchLabels: {hardware: orin-nx}}
  allowedNamespaces: {matchLabels: {team: vision}}
  backend: tensorrt
  runtime:
    image: registry.example/enginefleet-builder:jetpack6@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
    candidateImage: ""
    python: /usr/bin/python3
    runtimeClassName: nvidia
    resources: {limits: {nvidia.com/gpu: "1"}}
    tolerations: [{key: dedicated, operator: Exists}]
    supplementalGroups: [44]
  builds: {maxConcurrent: 1, windows: [], whenBusy: Auto, memoryReserve: 1Gi}
  prepare: {mode: Local, nodeSelector: {pool: prepare}, resources: {}}
  onVersionChange: Rebuild
  identity: {include: [driver], exclude: []}
""")

PUBLIC_KEY = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n"

ENGINE_STORE: Object = {
    "apiVersion": "enginefleet.io/v1alpha1",
    "kind": "EngineStore",
    "metadata": {"name": "default", "namespace": "default"},
    "spec": {
        "uri": "s3://engines/vision/",
        "endpoint": "https://s3.example:9000",
        "region": "eu-central-1",
        "caBundle": "-----BEGIN CERTIFICATE-----\n…\n-----END CERTIFICATE-----\n",
        "credentialsSecretRef": {"name": "engines"},
        "readCredentialsSecretRef": {"name": "engines-read"},
        "signing": {"keySecretRef": {"name": "signing", "key": "private.pem"}},
        "trust": {"require": True, "publicKeys": [PUBLIC_KEY]},
    },
}

NODE_FINGERPRINT: Object = yaml.safe_load("""
apiVersion: enginefleet.io/v1alpha1
kind: NodeFingerprint
metadata: {name: node-1}
spec:
  node: node-1
  bootID: 5c2f0cd3-0e53-4d4a-a1ba-32b6d5c4f1c1
  host: {digest: host-0123456789abcdef, summary: "x86_64 CPU (avx2)", facts: {os: linux, arch: x86_64, cpu: {isa: [avx2]}}, context: {kernel: "6.1"}}
  observations:
  - {class: cpu, imageDigest: "sha256:1", id: fp-0123456789abcdef, summary: ONNX Runtime, facts: {backend: onnxruntime, cpu: {isa: [avx2]}}}
""")

ENGINE_BUILD: Object = yaml.safe_load("""
apiVersion: enginefleet.io/v1alpha1
kind: EngineBuild
metadata: {name: line-inspection-0123456789, namespace: default}
spec:
  modelDeployment: line-inspection
  revision: rev-0123456789
  class: cpu
  image: registry.example/builder:1
  imageDigest: sha256:1
  fingerprint: fp-0123456789abcdef
  summary: x86_64 CPU
  precision: int8
  variant: int8-entropy
  preparedKey: p
  preparedModel: sha256:2
  engineKey: e
  gateKey: g
  request: {kind: Build, recipe: {threads: "4"}, inputs: []}
""")

GOOD = {
    "the full example": FULL,
    "the smallest ModelDeployment": MINIMAL,
    "a HardwareClass": HARDWARE_CLASS,
    "an EngineStore": ENGINE_STORE,
    "a NodeFingerprint": NODE_FINGERPRINT,
    "an EngineBuild": ENGINE_BUILD,
}

GONE: Any = object()
"""As a value in `changed`: the field is removed."""


def changed(manifest: Object, changes: Mapping[str, Any], *, name: str = "") -> Object:
    """A copy with values at dotted paths replaced; numbers in a path are indices of lists."""
    result = copy.deepcopy(manifest)
    if name:
        result["metadata"]["name"] = name
    for path, value in changes.items():
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        at: Any = result
        for part in parents:
            at = at[part] if isinstance(part, int) else at.setdefault(part, {})
        if value is GONE:
            del at[last]
        else:
            at[last] = value
    return result
