"""Wrong manifests, each with one mistake, and what is said of it. An API server refuses all of them; the command line refuses ModelDeployments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.contract.manifests import (
    ENGINE_BUILD,
    ENGINE_STORE,
    FULL,
    GONE,
    HARDWARE_CLASS,
    MINIMAL,
    NODE_FINGERPRINT,
    PUBLIC_KEY,
    Object,
)


@dataclass(frozen=True)
class Wrong:
    """A good manifest, spoiled; `says` is part of the answer."""

    title: str
    changes: dict[str, Any]
    says: str
    base: Object = field(default_factory=lambda: FULL)


DETECTION = {"uri": "s3://data/v/", "task": "detection", "metric": "map50", "decoder": {"kind": "yolo"}, "acceptance": {"minimum": "0.4"}}
CLASSIFICATION = {"uri": "s3://data/v.npz", "acceptance": {"minimum": "0.9"}}
OUTPUTS = {"uri": "s3://data/v.npz", "task": "outputs", "metric": "cosine", "acceptance": {"minimum": "0.99"}}
LOCAL = "loopback, link-local and metadata addresses are refused: write the host name of the server"


def mdep(title: str, says: str, changes: dict[str, Any]) -> Wrong:
    return Wrong(title, changes, says)


def validation(title: str, says: str, base: Object, **changes: Any) -> Wrong:
    return Wrong(title, {"spec.validation": base | changes}, says, MINIMAL)


WRONG = [
    # what to build
    mdep("a model without an address", "spec.model.uri: Required value", {"spec.model": {}}),
    mdep("a model of a file", "put it into a bucket and write s3://<bucket>/<path>", {"spec.model.uri": "file:///models/a.onnx"}),
    mdep("a model over plain HTTP without its digest", "or the digest that", {"spec.model": {"uri": "http://models.example/a.onnx"}}),
    mdep("a model of an unknown scheme", "write s3://<bucket>/<path> or https://<host>/<path>", {"spec.model.uri": "gs://models/a.onnx"}),
    mdep("a model as a bare path", "write s3://<bucket>/<path> or https://<host>/<path>", {"spec.model.uri": "models/a.onnx"}),
    mdep("an address with one slash", "write s3://<bucket>/<path> or https://<host>/<path>", {"spec.model.uri": "https:/m.example/a.onnx"}),
    mdep("a bucket in capitals", "a bucket's name has 3 to 63 lower-case letters", {"spec.model.uri": "s3://Models/a.onnx"}),
    mdep("a bucket's name that is too short", "a bucket's name has 3 to 63 lower-case letters", {"spec.model.uri": "s3://m/a.onnx"}),
    mdep("a path that leaves its folder", "write the path without it", {"spec.model.uri": "s3://models/../secret/a.onnx"}),
    mdep("the same in per cent signs", "write the path without it", {"spec.model.uri": "https://m.example/a/%2E%2e/b.onnx"}),
    mdep("a space in the address", "write %20 for a space", {"spec.model.uri": "https://m.example/a b.onnx"}),
    mdep("a password in the address", "name it in credentialsSecretRef", {"spec.model.uri": "https://user:word@m.example/a.onnx"}),
    mdep("a web address without a host", "write https://<host>/<path>", {"spec.model.uri": "https:///a.onnx"}),
    mdep(
        "an S3 endpoint with a path",
        "write https://<host>[:<port>], and the prefix into uri",
        {"spec.model.endpoint": "https://s3.example/prefix"},
    ),
    mdep(
        "an S3 endpoint without a scheme",
        "write the S3 server's address as https://<host>[:<port>]",
        {"spec.model.endpoint": "s3.example:9000"},
    ),
    mdep("an S3 endpoint on the pod itself", LOCAL, {"spec.model.endpoint": "http://127.0.0.1:9000"}),
    mdep("a digest that was cut", "write the digest as sha256:<64 hex digits>", {"spec.model.digest": "sha256:abc"}),
    mdep(
        "a secret's name in capitals",
        "write the object's name: lower-case letters",
        {"spec.model.credentialsSecretRef": {"name": "Models"}},
    ),
    mdep("an unknown precision", 'supported values: "auto", "fp32", "tf32", "fp16", "bf16", "int8", "fp8"', {"spec.precision": "int4"}),
    # shapes
    mdep(
        "a profile whose opt is above max", "in each dimension write min <= opt <= max", {"spec.inputs.0.profiles.0.opt": [16, 3, 640, 640]}
    ),
    mdep(
        "a profile whose min is above opt", "in each dimension write min <= opt <= max", {"spec.inputs.0.profiles.0.min": [1, 3, 700, 640]}
    ),
    mdep("a profile of unequal rank", "write as many numbers in each, one a dimension", {"spec.inputs.0.profiles.0.opt": [4, 3, 640]}),
    mdep("a dimension of 0", "should be greater than or equal to 1", {"spec.inputs.0.profiles.0.min": [0, 3, 640, 640]}),
    mdep(
        "an input that stands twice",
        "Duplicate value",
        {"spec.inputs": [{"name": "x", "profiles": [{"min": [1], "opt": [1], "max": [1]}]}] * 2},
    ),
    mdep(
        "inputs with unlike numbers of profiles",
        "write as many for each input",
        {"spec.inputs": [{"name": n, "profiles": [{"min": [1], "opt": [1], "max": [1]}] * k} for n, k in (("a", 1), ("b", 2))]},
    ),
    # preprocessing
    mdep("a resize without a size", "write size: [height, width]", {"spec.preprocessing.size": []}),
    mdep("a size of one number", "write size: [height, width]", {"spec.preprocessing": {"size": [640]}}),
    mdep("a shorterSide without a crop", "write resize: center-crop", {"spec.preprocessing.shorterSide": 256}),
    mdep("bars without a letterbox", "write resize: letterbox", {"spec.preprocessing": {"fill": 0}}),
    mdep("a mean that is longer than std", "write as many values in both, one a channel", {"spec.preprocessing.std": ["1", "1"]}),
    mdep("a std of 0", "std divides: write values other than 0", {"spec.preprocessing.std": ["1", "0.0", "1"]}),
    mdep("a std of 0/255", "std divides: write values other than 0", {"spec.preprocessing.std": ["1", "0/255", "1"]}),
    mdep("a scale of 0", 'write "1" or "1/255"', {"spec.preprocessing.scale": "0"}),
    mdep("a scale as a number", 'must be of type string: "number"', {"spec.preprocessing.scale": 0.5}),
    mdep("a scale divided by 0", 'write a decimal or a fraction in quotes, like "0.5" or "1/255"', {"spec.preprocessing.scale": "1/0"}),
    mdep("grey pictures with three means", "GRAY has one channel: write one value in mean and std", {"spec.preprocessing.color": "GRAY"}),
    # calibration
    mdep(
        "int8 without calibration",
        "write spec.calibration with the uri of a data set",
        {"spec.precision": "int8", "spec.calibration": GONE},
    ),
    mdep(
        "fp8 without calibration",
        "or with source: model when the model holds them (QAT)",
        {"spec.precision": "fp8", "spec.calibration": GONE},
    ),
    mdep(
        "candidates without precision auto",
        "candidates are for precision: auto",
        {"spec.precision": "fp32", "spec.auto": {"candidates": ["fp16"]}},
    ),
    mdep(
        "a candidate that needs scales",
        "leave int8 and fp8 out of auto.candidates",
        {"spec.precision": "auto", "spec.auto": {"candidates": ["int8", "fp16"]}, "spec.calibration": GONE},
    ),
    mdep("a candidate twice", "uplicate", {"spec.precision": "auto", "spec.auto": {"candidates": ["fp16", "fp16"]}}),
    mdep("a calibration set without an address", "source dataset needs uri: write the data set's", {"spec.calibration.uri": GONE}),
    mdep("scales in the model, and a data set", "leave uri out, or write source: dataset", {"spec.calibration.source": "model"}),
    mdep("calibration from a file", "file:// works on the command line only", {"spec.calibration.uri": "file:///data/"}),
    # validation
    mdep("a validation set on the pod itself", LOCAL, {"spec.validation.uri": "https://localhost/v.npz"}),
    validation("a detection metric for classification", "write metric: top1, top5 or python", CLASSIFICATION, metric="map50"),
    validation("a classification metric for detection", "write metric: map50, map50_95 or python", DETECTION, metric="top1"),
    validation(
        "detection with the metric left out",
        "write metric: map50, map50_95 or python",
        {k: v for k, v in DETECTION.items() if k != "metric"},
    ),
    validation("a metric of your own without code", "need python.code", CLASSIFICATION, metric="python"),
    validation("code that nothing runs", "need python.code", CLASSIFICATION, python={"code": "def sample(outputs, truth): return 1"}),
    validation(
        "floors of subgroups without a column",
        "write subgroups.column",
        CLASSIFICATION,
        acceptance={"minimum": "0.9", "minimumPerSubgroup": "0.8"},
    ),
    validation("segmentation by top1", "task segmentation: write metric: miou", CLASSIFICATION, task="segmentation"),
    validation("outputs by top1", "write metric: cosine, max_abs_error or python", OUTPUTS, metric="top1"),
    validation("detection of logits", "write decoder.kind: yolo, yolov5, yolox, yolo_end2end", DETECTION, decoder={"kind": "logits"}),
    validation(
        "classification of boxes", "write decoder.kind: logits or python, or task: detection", CLASSIFICATION, decoder={"kind": "yolo"}
    ),
    validation("an overlap above 1", 'write a share from 0 to 1, like "0.7"', DETECTION, decoder={"kind": "yolo", "nmsIou": "70"}),
    validation("no threshold", "write acceptance.minimum or acceptance.maxDrop", CLASSIFICATION, acceptance={}),
    validation("a minimum in percent", 'write "0.95" for 95 %', CLASSIFICATION, acceptance={"minimum": "95"}),
    validation("a minimum that is no number", 'write a decimal in quotes, like "0.95"', CLASSIFICATION, acceptance={"minimum": "95%"}),
    validation("a negative drop", 'write "0" when the engine must be as good', CLASSIFICATION, acceptance={"maxDrop": "-0.01"}),
    validation(
        "a negative drop of a class",
        'a drop is not negative: write "0" or more',
        CLASSIFICATION,
        acceptance={"maxDrop": "0.1", "maxDropPerClass": "-1"},
    ),
    validation(
        "a minimum of an error",
        "write acceptance.maxDrop instead of minimum",
        OUTPUTS,
        metric="max_abs_error",
        acceptance={"minimum": "0.1"},
    ),
    validation(
        "classes of plain outputs",
        "leave requiredClasses, acceptance.maxDropPerClass and minimumPerClass out",
        OUTPUTS,
        requiredClasses=["a"],
    ),
    validation(
        "an operating point without detection",
        "leave acceptance.operatingPoint out",
        CLASSIFICATION,
        acceptance={"minimum": "0.9", "operatingPoint": {"confidence": "0.5"}},
    ),
    validation("a required class twice", "Duplicate value", CLASSIFICATION, requiredClasses=["a", "a"]),
    validation(
        "a negative tolerance",
        'write a tolerance of at least 0, like "0.02"',
        CLASSIFICATION,
        baseline={"expected": "0.9", "tolerance": "-1"},
    ),
    # speed
    mdep(
        "a limit at a batch size that is not measured",
        "add it to batchSizes, or write one of them",
        {"spec.benchmark.acceptance.batchSize": 2},
    ),
    mdep("a speed limit without a number", "write p95, throughput or minSpeedup", {"spec.benchmark.acceptance": {"batchSize": 1}}),
    mdep("a latency without a unit", "write a duration like 12ms, 90s, 10m or 1h30m", {"spec.benchmark.acceptance.p95": "12"}),
    mdep("a latency of 0", "write a duration above zero, like 12ms", {"spec.benchmark.acceptance.p95": "0ms"}),
    mdep("a negative throughput", 'write samples a second, like "96"', {"spec.benchmark.acceptance.throughput": "-96"}),
    mdep("no batch size", "should have at least 1 items", {"spec.benchmark": {"batchSizes": []}}),
    mdep("a batch size twice", "Duplicate value: 4", {"spec.benchmark.batchSizes": [1, 4, 4]}),
    mdep("a workspace that is no quantity", "write auto, or a quantity like 2Gi", {"spec.build.workspace": "lots"}),
    mdep("an optimization level of 6", "should be less than or equal to 5", {"spec.build.optimizationLevel": 6}),
    mdep("no threads", 'write auto, or a number in quotes like "4"', {"spec.build.threads": "0"}),
    # targets
    mdep("no target", "should have at least 1 items", {"spec.targets": []}),
    mdep("an empty target", "write exactly one of hardwareClass and hardwareClassSelector", {"spec.targets": [{}]}),
    mdep(
        "a target by name and by labels",
        "write exactly one of hardwareClass and hardwareClassSelector",
        {"spec.targets": [{"hardwareClass": "a", "hardwareClassSelector": {"matchLabels": {"a": "b"}}}]},
    ),
    mdep(
        "a target twice",
        "write each hardwareClass or hardwareClassSelector once",
        {"spec.targets": [{"hardwareClass": "a"}, {"hardwareClass": "a"}]},
    ),
    mdep(
        "a selector twice",
        "write each hardwareClass or hardwareClassSelector once",
        {
            "spec.targets": [
                {"hardwareClassSelector": {"matchLabels": {"a": "b"}}},
                {"hardwareClass": "c"},
                {"hardwareClassSelector": {"matchLabels": {"a": "b"}}},
            ]
        },
    ),
    mdep(
        "a class's name with a dot",
        "write the name of a HardwareClass: lower-case letters, digits and '-', at most 50",
        {"spec.targets.0.hardwareClass": "a.b"},
    ),
    mdep(
        "a selector in another form",
        "write at least one label below matchLabels (matchExpressions is not known here)",
        {"spec.targets": [{"hardwareClassSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]},
    ),
    mdep(
        "a DLA in fp32",
        "a DLA computes in fp16 and int8 only: write one of them, or auto, or leave build.dla out",
        {"spec.build": {"dla": {}}, "spec.precision": "fp32"},
    ),
    # serving
    mdep(
        "replicas of a DaemonSet",
        "leave it out (a DaemonSet runs one pod a node), or write mode: Deployment",
        {"spec.serving.mode": "DaemonSet"},
    ),
    mdep(
        "a pod template without pods",
        "leave template out, or write mode: DaemonSet or Deployment",
        {"spec.serving": {"mode": "None", "template": {"spec": {}}}},
    ),
    mdep("a layout without pods", "mode None runs no pods: leave layout out", {"spec.serving": {"mode": "None", "layout": "triton"}}),
    mdep("an engine at a relative path", "write an absolute path without ':', like /engine", {"spec.serving.enginePath": "engine"}),
    mdep("an engine over the root folder", "write a folder of its own, like /engine", {"spec.serving.enginePath": "/"}),
    mdep("an engine in /usr", "write a folder of its own, like /engine", {"spec.serving.enginePath": "/usr/lib/engine"}),
    mdep("an engine path that climbs", "like /engine, without '..'", {"spec.serving.enginePath": "/engine/../etc"}),
    # rollout
    mdep("a canary by count and percent", "write exactly one of count and percent", {"spec.rollout.canary.percent": 5}),
    mdep("a canary of nothing", "write exactly one of count and percent", {"spec.rollout.canary": {}}),
    mdep("steps that fall", "write them in ascending order, like [10%, 50%, 100%]", {"spec.rollout.steps": ["50%", "10%", "100%"]}),
    mdep("a step twice", "write them in ascending order, like [10%, 50%, 100%]", {"spec.rollout.steps": ["50%", "50%"]}),
    mdep("a step of 0%", "start with 1% or more", {"spec.rollout.steps": ["0%", "50%"]}),
    mdep("a step above 100%", "write a percentage from 0% to 100%", {"spec.rollout.steps": ["50%", "120%"]}),
    mdep("no node at a time", "write a number from 1, or a percentage from 1%", {"spec.rollout.maxUnavailable": 0}),
    mdep("0% at a time", "write a number from 1, or a percentage from 1%", {"spec.rollout.maxUnavailable": "0%"}),
    mdep("a number of nodes as text", "write a percentage from 0% to 100%", {"spec.rollout.maxUnavailable": "3"}),
    mdep("no time to get ready", "write a duration like 10m", {"spec.rollout.progressDeadline": "0s"}),
    mdep("a window of no length", "write a duration like 4h", {"spec.rollout.windows.0.duration": "0h"}),
    mdep("a window at 25 o'clock", 'write the time in quotes, like "02:00"', {"spec.rollout.windows.0.start": "25:00"}),
    mdep("a window on an unknown day", 'supported values: "Mon", "Tue"', {"spec.rollout.windows.0.days": ["Sunday"]}),
    mdep(
        "a time zone with a space",
        "write an IANA name like Europe/Berlin, or UTC",
        {"spec.rollout.windows.0.timeZone": "Central European Time"},
    ),
    mdep("a history of 0", "should be greater than or equal to 1", {"spec.historyLimit": 0}),
    mdep("a name of 64 characters", "write at most 63 characters", {"metadata.name": "a" * 64}),
    # HardwareClass
    Wrong(
        "a class's name with dots",
        {"metadata.name": "orin.nx"},
        "write at most 50 characters, lower-case letters, digits and '-', no dots",
        HARDWARE_CLASS,
    ),
    Wrong("a class's name of 51 characters", {"metadata.name": "a" * 51}, "write at most 50 characters", HARDWARE_CLASS),
    Wrong(
        "an execution provider for TensorRT",
        {"spec.executionProvider": "CUDA"},
        "leave it out, or write backend: onnxruntime",
        HARDWARE_CLASS,
    ),
    Wrong(
        "a GPU elsewhere for another TensorRT",
        {"spec.builds.computeCapability": "8.6"},
        "leave computeCapability out, or write backend: tensorrt-rtx",
        HARDWARE_CLASS,
    ),
    Wrong(
        "a GPU elsewhere by name",
        {"spec.builds.computeCapability": "SM86"},
        "write the compute capability of a GPU, like 8.6",
        HARDWARE_CLASS,
    ),
    Wrong("an unknown backend", {"spec.backend": "tvm"}, 'supported values: "tensorrt", "tensorrt-rtx", "onnxruntime"', HARDWARE_CLASS),
    Wrong("an image with a cut digest", {"spec.runtime.image": "a/b:1@sha256:abc"}, "write @sha256:<64 hex digits>", HARDWARE_CLASS),
    Wrong(
        "an image with a scheme", {"spec.runtime.image": "docker://a/b:1"}, "write an image as [<registry>/]<name>[:<tag>]", HARDWARE_CLASS
    ),
    Wrong("no image", {"spec.runtime.image": ""}, "should be at least 1 chars long", HARDWARE_CLASS),
    Wrong(
        "a candidate that is in use",
        {"spec.runtime.candidateImage": HARDWARE_CLASS["spec"]["runtime"]["image"]},
        "write another image in runtime.candidateImage",
        HARDWARE_CLASS,
    ),
    Wrong("a class of all nodes", {"spec.nodeSelector": {}}, "write at least one label below matchLabels", HARDWARE_CLASS),
    Wrong(
        "namespaces by expressions, which would allow all",
        {"spec.allowedNamespaces": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}},
        "matchExpressions is not known here",
        HARDWARE_CLASS,
    ),
    Wrong("a reserve that is no quantity", {"spec.builds.memoryReserve": "1 GB"}, "write a quantity like 512Mi or 1Gi", HARDWARE_CLASS),
    Wrong("a fact that is in and out", {"spec.identity.exclude": ["driver"]}, "write it in one of them", HARDWARE_CLASS),
    Wrong("an interpreter with arguments", {"spec.runtime.python": "python3 -m x"}, "write an absolute path or a command", HARDWARE_CLASS),
    # EngineStore
    Wrong("a store of another kind", {"spec.uri": "gs://engines/"}, "write s3://<bucket>/<prefix>/", ENGINE_STORE),
    Wrong("a prefix that climbs", {"spec.uri": "s3://engines/a/../b/"}, "write the prefix without them", ENGINE_STORE),
    Wrong("an endpoint without a scheme", {"spec.endpoint": "s3.example:9000"}, "as https://<host>[:<port>]", ENGINE_STORE),
    Wrong("an endpoint of the metadata service", {"spec.endpoint": "http://169.254.169.254"}, LOCAL, ENGINE_STORE),
    Wrong("trust in nobody", {"spec.trust.publicKeys": []}, "write the PEM text of a key below publicKeys", ENGINE_STORE),
    Wrong(
        "a key that is no PEM text",
        {"spec.trust.publicKeys": ["MCowBQYDK2VwAyEA"]},
        "starting with -----BEGIN PUBLIC KEY-----",
        ENGINE_STORE,
    ),
    Wrong(
        "a private key for all to read",
        {"spec.trust.publicKeys": [PUBLIC_KEY.replace("PUBLIC", "PRIVATE")]},
        "replace it, and write the public key's PEM text here",
        ENGINE_STORE,
    ),
    Wrong("authorities as a file name", {"spec.caBundle": "/etc/ssl/ca.pem"}, "write the certificates' PEM text", ENGINE_STORE),
    # what the operator writes
    Wrong("a fingerprint of another node", {"spec.node": "node-2"}, "write the same in metadata.name and spec.node", NODE_FINGERPRINT),
    Wrong("an EngineBuild without a request", {"spec.request": GONE}, "spec.request: Required value", ENGINE_BUILD),
]

LOCAL_HOSTS = [
    "localhost", "LOCALHOST.", "a.localhost", "localhost.localdomain", "127.0.0.1", "127.1.2.3:8443", "127.1", "2130706433", "0x7f000001", "0x7f.1",
    "0177.0.0.1", "0.0.0.0", "0", "169.254.169.254", "169.254.0.1", "[::1]", "[::1]:443", "[0:0:0:0:0:0:0:1]", "[::]", "[fe80::1]", "[febf::1]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[fd00:ec2::254]", "metadata", "metadata.google.internal", "Metadata.Google.Internal.", "instance-data",
    "100.100.100.200", "168.63.129.16",
]  # fmt: skip

OTHER_HOSTS = [
    "models.example", "127.0.0.1.example", "metadata.example.com", "my-localhost.example", "localhosts", "10.0.0.7", "192.168.1.1:8080", "172.16.0.1",
    "128.0.0.1", "169.255.0.1", "100.100.100.20", "[fd00::1]", "[2001:db8::1]:443", "minio.storage.svc.cluster.local:9000", "0xample.org", "1.2.3.4",
]  # fmt: skip
