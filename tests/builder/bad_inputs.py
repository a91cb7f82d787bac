"""Bad inputs, made by script: model files, classes and data sets that people really give, and hostile ones; each with the reason that is said.

    python -m tests.builder.bad_inputs OUT

writes each into a folder of its own below OUT, with the command that refuses it in `command.txt`. test_bad_inputs.py runs every one.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from tests.builder import data
from tests.builder.models import classifier, elementwise, save_data, save_model

MODEL = "model.onnx"


@dataclass(frozen=True)
class Bad:
    """`make` writes into an empty folder. `command`: arguments of `enginefleet`, {} stands for the folder. `says`: what the message names."""

    name: str
    make: Callable[[Path], object]
    reason: str
    says: tuple[str, ...]
    command: tuple[str, ...] = ("preflight", "{}/model.onnx")
    exit_code: int = 42

    def arguments(self, folder: Path) -> list[str]:
        return [part.replace("{}", str(folder)) for part in (*self.command, "--json")]


def check(*flags: str, path: str = "{}/model.onnx") -> tuple[str, ...]:
    return ("preflight", path, *flags)


def content(text: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / MODEL).write_bytes(text)


def model(make: Callable[[], ModelProto]) -> Callable[[Path], object]:
    """The model as it is serialized: onnx.save would refuse some of them."""
    return lambda folder: (folder / MODEL).write_bytes(make().SerializeToString())


def changed(change: Callable[[ModelProto], object], **options: Any) -> Callable[[Path], object]:
    def make() -> ModelProto:
        made = classifier(**options)
        change(made)
        return made

    return model(make)


# ---- files that are no model ----


def _zip(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, b"x")
    return buffer.getvalue()


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.onnx"))
    return buffer.getvalue()


WHOLE = classifier().SerializeToString()
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
FILES = [
    Bad("empty file", content(b""), "NotAModel", ("an empty file", "expected an ONNX model")),
    Bad("git-lfs pointer", content(LFS), "NotAModel", ("git-lfs pointer",)),
    Bad("login page", content(b"\n<!DOCTYPE html><html><title>Sign in</title>"), "NotAModel", ("an HTML page", "log-in")),
    Bad("store's error page", content(b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>'), "NotAModel", ("an XML document",)),
    Bad("answer of an API", content(b'{"error": "not found"}'), "NotAModel", ("a JSON document",)),
    Bad("checkpoint under another name", content(_zip("archive/data.pkl")), "NotAModel", ("a ZIP archive", "PyTorch")),
    Bad("pickle", content(b"\x80\x02}q\x00."), "NotAModel", ("a Python pickle",)),
    Bad("compressed model", content(b"\x1f\x8b\x08\x00" + b"0" * 40), "NotAModel", ("a gzip archive",)),
    Bad("tar archive", content(_tar()), "NotAModel", ("a tar archive",)),
    Bad("engine for a model", content(b"ftrt" + bytes(60)), "NotAModel", ("a TensorRT plan",)),
    Bad("engine with a header", content(b'\x20\x00\x00\x00{"description": "yolo"}ftrt'), "NotAModel", ("the header of Ultralytics",)),
    Bad("TensorFlow Lite", content(b"\x1c\x00\x00\x00TFL3" + bytes(40)), "NotAModel", ("TensorFlow Lite",)),
    Bad("zero bytes", content(bytes(4096)), "NotAModel", ("zero bytes",)),
    Bad("prose", content(b"This is where the model will be. Ask Anna."), "NotAModel", ("no ONNX model",)),
    Bad("a message without nodes", content(b"\x08\x08"), "NotAModel", ("0 nodes", "at least one")),
    Bad("cut off", content(WHOLE[:-40]), "ModelTruncated", ("cut off", f"({len(WHOLE) - 40} bytes)")),
    Bad("cut off in a number", content(WHOLE + b"\x72\xff"), "ModelTruncated", ("a number that is cut off",)),
    Bad("damaged inside", content(WHOLE.replace(b"\nfirst.relu", b"\x7ffirst.relu")), "ModelTruncated", ("what stands inside it",)),
    Bad("a name that is no text", content(WHOLE.replace(b"first.relu", b"\xff" * 10)), "ModelTruncated", ("is no UTF-8",)),
    Bad("no such file", lambda folder: None, "ModelNotFound", ("not there",)),
    Bad("a pipe", lambda folder: os.mkfifo(folder / MODEL), "ModelNotFound", ("no ordinary file",)),
    Bad("empty folder", lambda folder: None, "ModelNotFound", ("no .onnx file", "nothing"), check(path="{}")),
    Bad("two models", lambda folder: [save_model(classifier(), folder / f"{n}.onnx") for n in "ab"], "ModelAmbiguous",
        ("2 .onnx files", "a.onnx, b.onnx"), check(path="{}")),
]  # fmt: skip

# ---- external data ----


def external(change: Callable[[Path], object]) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        save_model(classifier(), folder / MODEL, external="weights.bin")
        change(folder)

    return make


def located(location: str, key: str = "location") -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        found = onnx.load(folder / MODEL, load_external_data=False)
        for tensor in found.graph.initializer:
            next(entry for entry in tensor.external_data if entry.key == key).value = location
        (folder / MODEL).write_bytes(found.SerializeToString())

    return external(change)


def linked(folder: Path) -> None:
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to("/etc/hostname")


EXTERNAL = [
    Bad("external data missing", external(lambda folder: (folder / "weights.bin").unlink()), "ExternalDataMissing", ("weights.bin",)),
    Bad("external data cut off", external(lambda folder: os.truncate(folder / "weights.bin", 100)), "ExternalDataTruncated",
        ("weights.bin has 100 bytes", "needs")),
    Bad("external data upwards", located("../secret"), "ExternalDataUnsafe", ("'../secret'", "below the model's folder")),
    Bad("external data from the root", located("/etc/passwd"), "ExternalDataUnsafe", ("'/etc/passwd'",)),
    Bad("external data of Windows", located("..\\secret"), "ExternalDataUnsafe", ("below the model's folder",)),
    Bad("external data behind a link", external(linked), "ExternalDataUnsafe", ("a link that leads out",)),
    Bad("external data at no offset", located("minus one", "offset"), "ExternalDataUnsafe", ("no number",)),
    Bad("external data of another length", located("4", "length"), "TensorSizeMismatch", ("has 4 bytes outside", "needs")),
]  # fmt: skip

# ---- tensors and shapes ----


def weight(change: Callable[[TensorProto], object]) -> Callable[[Path], object]:
    return changed(lambda made: change(made.graph.initializer[0]))


def weights_of(value: float) -> Callable[[Path], object]:
    def change(tensor: TensorProto) -> None:
        array = numpy_helper.to_array(tensor).copy()
        array[0, 0, 0, 0] = value
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    return weight(change)


def first_axes(*sizes: int) -> Callable[[TensorProto], object]:
    def change(tensor: TensorProto) -> None:
        tensor.dims[: len(sizes)] = sizes

    return change


def sparse_bomb(made: ModelProto) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "huge")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "at")
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2**20, 2**20]))


def input_axis(size: int) -> Callable[[Path], object]:
    def change(made: ModelProto) -> None:
        made.graph.input[0].type.tensor_type.shape.dim[2].dim_value = size

    return changed(change)


def memory_bomb() -> ModelProto:
    """A tensor of 4 TB from a file of a few hundred bytes."""
    made = elementwise("Relu", shape=[1, 4])
    made.graph.initializer.append(numpy_helper.from_array(np.array([2**20, 2**20], np.int64), "sizes"))
    made.graph.node.insert(0, helper.make_node("ConstantOfShape", ["sizes"], ["huge"], "expand"))
    made.graph.node.append(helper.make_node("ReduceSum", ["huge"], ["sum"], "sum", keepdims=0))
    made.graph.node.append(helper.make_node("Add", ["y", "sum"], ["z"], "add"))
    made.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4]))
    return made


TENSORS = [
    Bad("weights shorter than their shape", weight(lambda tensor: setattr(tensor, "raw_data", tensor.raw_data[:-8])), "TensorSizeMismatch",
        ("tensor w has", "needs")),
    Bad("a weight that claims gigabytes", weight(first_axes(2**20, 2**10)), "TensorSizeMismatch", ("its shape [1048576, 1024, 8, 8] needs",)),
    Bad("a negative size", weight(first_axes(-1)), "BadDimension", ("shape [-1, 1, 8, 8]",)),
    Bad("sizes that overflow", weight(first_axes(2**31 - 1, 2**31 - 1, 2**31 - 1)), "BadDimension", ("2147483647",)),
    Bad("an unknown data type", weight(lambda tensor: setattr(tensor, "data_type", 99)), "TensorSizeMismatch", ("data type 99",)),
    Bad("a sparse tensor of terabytes", changed(sparse_bomb), "BadDimension", ("[1048576, 1048576]", "unpacked")),
    Bad("NaN in weights", weights_of(float("nan")), "NonFiniteWeights", ("NaN stands in w",)),
    Bad("an axis of size 0", input_axis(0), "BadDimension", ("input x has an axis of size 0",)),
    Bad("an axis of size -7", input_axis(-7), "BadDimension", ("size -7",)),
    Bad("a tensor that no device holds", model(memory_bomb), "TensorTooLarge", ("huge", "[1048576, 1048576]")),
]  # fmt: skip

# ---- versions and operators ----


def nested(levels: int) -> bytes:
    """A model of subgraphs in subgraphs, written by hand: the library refuses to make deep ones."""

    def field(number: int, body: bytes) -> bytes:
        return _varint(number << 3 | 2) + _varint(len(body)) + body

    graph = field(1, field(2, b"y") + field(4, b"Identity"))
    for _ in range(levels):
        graph = field(1, field(2, b"y") + field(4, b"If") + field(5, field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"))
    return b"\x08\x08" + field(7, graph) + field(8, b"\x10\x11")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def typed(elem_type: int) -> Callable[[Path], object]:
    def make() -> ModelProto:
        made = elementwise("Identity", shape=[1, 4])
        for item in (made.graph.input[0], made.graph.output[0]):
            item.type.tensor_type.elem_type = elem_type
        return made

    return model(make)


def sequence_input() -> ModelProto:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [1, 4]))
    graph = helper.make_graph(
        [helper.make_node("ConcatFromSequence", ["x"], ["y"], "concat", axis=0)],
        "sequence",
        [helper.make_value_info("x", kind)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 4])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


VERSIONS = [
    Bad("an opset of the future", changed(lambda made: None, opset=99), "OpsetTooNew", ("opset 99", "takes at most")),
    Bad("no opset", changed(lambda made: made.ClearField("opset_import")), "OpsetMissing", ("imports no opset of domain ai.onnx",)),
    Bad("no IR version", changed(lambda made: made.ClearField("ir_version")), "IrMissing", ("no IR version", "expected 3")),
    Bad("an operator that nobody has", model(lambda: elementwise("Sparkle")), "UnsupportedOp", ("operator Sparkle", "used by only")),
    Bad("a custom domain", model(lambda: elementwise("Sparkle", domain="acme.custom")), "UnsupportedOp", ("domain acme.custom", "only")),
    Bad("subgraphs 20 levels deep", content(nested(20)), "ModelTooDeep", ("at most 16",)),
    Bad("subgraphs 2000 levels deep", content(nested(2000)), "ModelTooDeep", ("at most 16",)),
    Bad("inputs of text", typed(TensorProto.STRING), "InputType", ("'x' has the type string", "expected numbers")),
    Bad("inputs of complex numbers", typed(TensorProto.COMPLEX64), "InputType", ("complex64",)),
    Bad("a sequence for an input", model(sequence_input), "InputType", ("sequence_type",)),
    Bad("an attribute of another type", changed(lambda made: made.graph.node[3].attribute.append(helper.make_attribute("alpha", "much"))),
        "InvalidGraph", ("ONNX's checker refuses",)),
    Bad("what only the runtime refuses", changed(lambda made: made.graph.node[0].attribute.append(helper.make_attribute("strides", [1, 1, 1]))),
        "NotLoadable", ("failed to load",)),
]  # fmt: skip

# ---- the graph ----


def without_output(graph: GraphProto) -> None:
    del graph.output[:]


def without_input(graph: GraphProto) -> None:
    del graph.input[:]
    graph.initializer.append(numpy_helper.from_array(np.zeros((1, 1, 8, 8), np.float32), "x"))


def cycle(graph: GraphProto) -> None:
    graph.node[1].input[0] = "flat"


GRAPHS = [
    Bad("two nodes write one tensor", changed(lambda made: made.graph.node[1].output.__setitem__(0, "conv")), "DuplicateTensor",
        ("two sources: conv",)),
    Bad("an output that nobody produces", changed(lambda made: setattr(made.graph.output[0], "name", "boxes")), "OutputMissing",
        ("outputs boxes",)),
    Bad("a tensor that nobody produces", changed(lambda made: made.graph.node[3].input.__setitem__(0, "lost")), "TensorMissing",
        ("last.gemm read lost",)),
    Bad("a cycle", changed(lambda made: cycle(made.graph)), "GraphCycle", ("what they produce themselves",)),
    Bad("no outputs", changed(lambda made: without_output(made.graph)), "NoOutputs", ("no output",)),
    Bad("no inputs", changed(lambda made: without_input(made.graph)), "NoInputs", ("no input",)),
    Bad("an input without a shape", changed(lambda made: made.graph.input[0].type.tensor_type.ClearField("shape")), "ShapeMissing",
        ("'x' has no shape",)),
]  # fmt: skip

# ---- what is asked ----


def quantized() -> ModelProto:
    made = elementwise("Relu", shape=["batch", 4])
    made.graph.initializer.extend(
        [numpy_helper.from_array(np.array(0.1, np.float32), "scale"), numpy_helper.from_array(np.array(3, np.int8), "zero")]
    )
    made.graph.node.insert(0, helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "quantize"))
    made.graph.node.insert(1, helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"], "dequantize"))
    made.graph.node[2].input[0] = "d"
    return made


def free(*shape: Any) -> Callable[[Path], object]:
    return model(lambda: elementwise("Relu", shape=list(shape)))


ASKED = [
    Bad("a free axis without a profile", free("batch", "length"), "ProfileMissing", ("'x' has the shape [batch, length]", "no profile")),
    Bad("a profile of another rank", free("batch", 4), "ProfileMismatch", ("[1, 4, 4]", "2 axes"), check("--profile", "x=1x4x4")),
    Bad("a profile that changes a fixed axis", free("batch", 4), "ProfileMismatch", ("[1, 5]", "[batch, 4]"), check("--profile", "x=1x5")),
    Bad("a profile upside down", free("batch", 4), "ProfileMismatch", ("min <= opt <= max",), check("--profile", "x=4x4,2x4,8x4")),
    Bad("a profile of no input", free("batch", 4), "UnknownInput", ("'images'", "['x']"), check("--profile", "images=1x4")),
    Bad("a profile that is none", free("batch", 4), "BadRequest", ("'x=1,2'",), check("--profile", "x=1,2")),
    Bad("batch 4 of a model for 1", free(1, 4), "BatchFixed", ("fixed to 1", "4 is asked for"), check("--batch", "4")),
    Bad("quantized already", model(quantized), "AlreadyQuantized", ("2 quantizing nodes",), check("--precision", "int8")),
    Bad("scales in no model", free("batch", 4), "NotQuantized", ("no quantizing nodes",), check("--precision", "int8", "--scales", "model")),
    Bad("a precision of no kind", free("batch", 4), "BadRequest", ("'int3'", "fp32"), check("--precision", "int3")),
]  # fmt: skip

# ---- classes ----

ORIN = {"jetson": {"module": "p3767-0000", "computeCapability": "8.7", "l4t": "36.4.3"}}
NANO = {"jetson": {"module": "p3448-0000", "computeCapability": "5.3", "l4t": "32.7.1"}}
THOR = {"jetson": {"module": "p3834-0008", "computeCapability": "11.0", "l4t": "38.4.0"}}
XAVIER = {"jetson": {"module": "p2888-0001", "computeCapability": "7.2", "l4t": "35.4.1"}}


def with_class(make: Callable[[Path], object], version: str, facts: dict[str, Any], backend: str = "tensorrt") -> Callable[[Path], object]:
    def both(folder: Path) -> None:
        make(folder)
        spec = {"backend": backend, "nodeSelector": {"matchLabels": {"a": "b"}}, "runtime": {"image": "registry/runtime:1"}}
        observation = {"class": "edge", "facts": facts | {"backendVersion": version}}
        items = [
            {"kind": "HardwareClass", "metadata": {"name": "edge"}, "spec": spec},
            {"kind": "NodeFingerprint", "metadata": {"name": "node-1"}, "spec": {"observations": [observation]}},
        ]
        (folder / "class.json").write_text(json.dumps({"kind": "List", "items": items}))

    return both


def det() -> ModelProto:
    made = elementwise("Relu", shape=[1, 4, 4])
    made.graph.node.append(helper.make_node("Det", ["y"], ["det"], "determinant"))
    made.graph.output.append(helper.make_tensor_value_info("det", TensorProto.FLOAT, [1]))
    return made


EDGE = check("--class", "{}/class.json")
FIXED = free(1, 4)
CLASSES = [
    Bad("an opset that TensorRT 10.0 lacks", with_class(model(lambda: elementwise("Identity", shape=[1, 4], opset=21)), "10.0.1", {}),
        "OpsetTooNew", ("opset 21", "class edge (TensorRT 10.0.1) takes at most 20"), EDGE),
    Bad("an operator that TensorRT lacks", with_class(model(det), "10.3.0.30", ORIN), "UnsupportedOp",
        ("operator Det is unsupported in class edge (TensorRT 10.3.0.30)", "determinant"), EDGE),
    Bad("fp8 on Orin", with_class(FIXED, "10.3.0.30", ORIN), "PrecisionNotSupported", ("fp8", "8.7 (Jetson Orin) has"),
        (*EDGE, "--precision", "fp8", "--scales", "model")),
    Bad("int8 on a Jetson Nano", with_class(FIXED, "8.2.1", NANO), "PrecisionNotSupported", ("int8", "5.3 (Jetson Nano, TX1) has fp32, fp16"),
        (*EDGE, "--precision", "int8")),
    Bad("bf16 in TensorRT 8", with_class(FIXED, "8.5.2", XAVIER), "PrecisionNotSupported", ("bf16", "TensorRT 8.5.2 has"),
        (*EDGE, "--precision", "bf16")),
    Bad("TensorRT 11 on a T4's elder", with_class(FIXED, "11.2", {"gpus": [{"computeCapability": "7.0"}]}), "PlatformMismatch",
        ("needs compute capability 7.5", "has 7.0"), EDGE),
    Bad("TensorRT 10 on JetPack 5", with_class(FIXED, "10.3.0", XAVIER), "PlatformMismatch", ("L4T 35.4.1 (JetPack 5.1.2)", "TensorRT 8.5"),
        EDGE),
    Bad("JetPack 6 on Xavier", with_class(FIXED, "8.6.2", {"jetson": {"computeCapability": "7.2", "l4t": "36.3.0"}}), "PlatformMismatch",
        ("JetPack 6.0", "compute capabilities 8.7, the device has 7.2"), EDGE),
    Bad("a DLA on Thor", with_class(FIXED, "10.13.3.9", THOR), "DlaMissing", ("11.0 (Jetson Thor) has none",), (*EDGE, "--dla")),
    Bad("a DLA in TensorRT 10.16", with_class(FIXED, "10.16.1", {"jetson": {"computeCapability": "8.7"}}), "DlaMissing", ("drives no DLA",),
        (*EDGE, "--dla")),
    Bad("a zero point in TensorRT", with_class(model(quantized), "10.3.0", {}), "AsymmetricScales", ("2 quantizing nodes", "quantize"),
        (*EDGE, "--precision", "int8", "--scales", "model", "--profile", "x=1x4")),
    Bad("float64 inputs in TensorRT", with_class(typed(TensorProto.DOUBLE), "10.3.0", {}), "InputType", ("'x' is float64", "takes float32"),
        EDGE),
    Bad("a free batch in TensorRT", with_class(free("batch", 4), "10.3.0", {}), "ProfileMissing", ("[batch, 4]",), EDGE),
    Bad("a class that is another kind", lambda folder: (FIXED(folder), (folder / "class.json").write_text('{"kind": "Pod"}')), "ClassInvalid",
        ("['Pod']", "no HardwareClass"), EDGE),
    Bad("a class of broken YAML", lambda folder: (FIXED(folder), (folder / "class.json").write_text("a: [b")), "ClassInvalid", ("class.json",),
        EDGE),
    Bad("a class that is a name", FIXED, "ClassInvalid", ("orin-nx is no file",), check("--class", "orin-nx")),
]  # fmt: skip

# ---- data sets ----


def asks(
    make: Callable[[Path], object], task: str = "classification", shape: Sequence[Any] = ("batch", 3, 30, 40), **changes: Any
) -> Callable[[Path], object]:
    """A good model, the data set below data/, and the request of a prepare Job that judges by it."""

    def both(folder: Path) -> None:
        save_model(elementwise("Relu", shape=list(shape)), folder / MODEL)
        (folder / "data").mkdir()
        make(folder / "data")
        metric = {"classification": "top1", "detection": "map50_95", "segmentation": "miou", "outputs": "cosine"}[task]
        where = (folder / "data").as_uri() + "/"
        validation: dict[str, Any] = {"uri": where, "task": task, "metric": metric, "minSamples": 1, "acceptance": {"maxDrop": "0.01"}}
        if task == "detection":
            validation["decoder"] = {"kind": "yolo"}
        request = {
            "model": {"uri": (folder / MODEL).as_uri()},
            "variants": [{"precision": "fp32"}],
            "flavours": ["onnxruntime"],
            "store": {"uri": (folder / "store").as_uri()},
            "holder": "by-hand",
            "validation": validation,
            "validationSource": {"uri": where},
        }
        (folder / "request.json").write_text(json.dumps(request | changes))

    return both


def coco(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def make(root: Path) -> None:
        document = data.coco_document()
        change(document)
        data.coco(root, document)

    return make


def yolo(yaml: str = data.YAML, labels: str = "0 0.5 0.5 1 1\n") -> Callable[[Path], object]:
    return lambda root: data.yolo(root, yaml, labels)


def arrays(**given: Any) -> Callable[[Path], object]:
    return lambda root: np.savez(root / "a.npz", **given)


def calibrated(make: Callable[[Path], object], **calibration: Any) -> Callable[[Path], object]:
    """A calibration set in place of a validation set."""

    def both(folder: Path) -> None:
        where = (folder / "data").as_uri() + "/"
        asks(
            make,
            variants=[{"precision": "int8", "method": "max"}],
            validation=None,
            validationSource=None,
            calibration={"uri": where, "method": "max", "minSamples": 1} | calibration,
            calibrationSource={"uri": where},
        )(folder)

    return both


def by_flavour(flavour: str) -> Callable[[Path], object]:
    """As by hand: a quantized model, a flavour and no class."""

    def both(folder: Path) -> None:
        asks(
            lambda root: None,
            variants=[{"precision": "int8"}],
            flavours=[flavour],
            inputs=[{"name": "x", "profiles": [{"min": [1, 4], "opt": [1, 4], "max": [1, 4]}]}],
            validation=None,
            validationSource=None,
            calibration={"source": "model"},
        )(folder)
        save_model(quantized(), folder / MODEL)

    return both


def cut_picture(root: Path) -> None:
    file = data.picture(root / "ant" / "a.png")
    os.truncate(file, file.stat().st_size // 2)


def without_pictures(root: Path) -> None:
    data.coco(root)
    (root / "images" / "b.png").unlink()


def unlabelled(root: Path) -> None:
    for file in data.yolo(root).glob("labels/val/*.txt"):
        file.unlink()


def zip_bomb(root: Path) -> None:
    with zipfile.ZipFile(root / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (67108864,), }"
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(1 << 20))


IMAGES = np.ones((3, 3, 30, 40), np.float32)
LABELS = np.arange(3)
REQUEST = ("prepare", "--request", "{}/request.json")


def bad_data(name: str, make: Callable[[Path], object], reason: str, *says: str) -> Bad:
    return Bad(name, make, reason, says, REQUEST)


DATA = [
    bad_data("a zero point in a flavour of TensorRT", by_flavour("tensorrt-10"), "AsymmetricScales", "flavour tensorrt-10", "symmetric int8"),
    bad_data("a data set of nothing", asks(lambda root: None), "SourceNotFound", "holds no files"),
    bad_data("an archive for a data set", asks(lambda root: data.write(root / "val.zip", _zip("a.png"))), "SourceIsArchive", "val.zip", "ZIP"),
    bad_data("pickled objects", asks(arrays(images=np.array([{}], object))), "DataSetUnreadable", "allow_pickle=False"),
    bad_data("no samples under a known name", asks(arrays(names=np.array(["a"]))), "DataSetMismatch", "names"),
    bad_data("no labels", asks(arrays(images=IMAGES)), "LabelsMissing", "labels"),
    bad_data("labels of halves", asks(arrays(images=IMAGES, labels=LABELS / 2)), "DataSetMismatch", "float64", "integers"),
    bad_data("fewer labels than samples", asks(arrays(images=IMAGES, labels=LABELS[:2])), "DataSetMismatch", "[2]", "[3]"),
    bad_data("channels last", asks(arrays(images=IMAGES.transpose(0, 2, 3, 1), labels=LABELS)), "DataSetMismatch", "[30, 40, 3]", "[3, 30, 40]"),
    bad_data("one channel", asks(arrays(images=IMAGES[:, :1], labels=LABELS)), "DataSetMismatch", "[1, 30, 40]", "[3, 30, 40]"),
    bad_data("pictures of another size", asks(lambda root: data.class_folders(root, "ant", "bee"), shape=("batch", 3, 8, 8)), "DataSetMismatch",
             "[3, 30, 40]", "[3, 8, 8]"),
    bad_data("too few samples", calibrated(lambda root: data.class_folders(root, "ant", "bee"), minSamples=100), "TooFewSamples",
             "4 samples", "at least 100"),
    bad_data("no pictures", calibrated(lambda root: data.write(root / "notes.txt", "x")), "DataSetUnreadable", "notes.txt"),
    bad_data("half a picture", asks(cut_picture), "DataSetUnreadable", "a.png", "no readable picture"),
    bad_data("pictures without a class", asks(lambda root: data.picture(root / "a.png")), "LabelsMissing", "one subfolder a class"),
    bad_data("an archive that lies about its size", asks(zip_bomb), "DataSetUnreadable", "a.npz"),
    bad_data("COCO that is cut off", asks(lambda root: (data.coco(root), data.write(root / "annotations.json", '{"images": [')), "detection"),
             "DataSetUnreadable", "annotations.json"),
    bad_data("COCO without annotations", asks(coco(lambda document: document["annotations"].clear()), "detection"), "LabelsMissing",
             "no annotations"),
    bad_data("COCO with a path upwards", asks(coco(lambda document: document["images"][0].update(file_name="../x.png")), "detection"),
             "DataSetUnsafe", "leads out"),
    bad_data("COCO with an unknown category", asks(coco(lambda document: document["annotations"][0].update(category_id=5)), "detection"),
             "DataSetMismatch", "category_id 5", "1, 90"),
    bad_data("COCO with a box of NaN",
             asks(coco(lambda document: document["annotations"][0].update(bbox=[0, 0, float("nan"), 1])), "detection"),
             "DataSetMismatch", "four finite"),
    bad_data("COCO without its pictures", asks(without_pictures, "detection"), "DataSetMismatch", "b.png"),
    bad_data("YOLO of broken YAML", asks(yolo("names: [cat\nval: x"), "detection"), "DataSetUnreadable", "line 2"),
    bad_data("YOLO YAML that makes objects", asks(yolo("names: !!python/object/apply:os.getcwd []"), "detection"), "DataSetUnreadable",
             "constructor"),
    bad_data("YOLO without labels", asks(unlabelled, "detection"), "LabelsMissing", "labels/val/a.txt"),
    bad_data("YOLO in pixels", asks(yolo(labels="0 20 15 10 10"), "detection"), "DataSetMismatch", "expected shares"),
    bad_data("YOLO with a class too many", asks(yolo(labels="9 0.5 0.5 1 1"), "detection"), "DataSetMismatch", "class is 9", "0 to 1"),
    bad_data("YOLO with key points", asks(yolo(data.YAML + "kpt_shape: [17, 3]\n"), "detection"), "NotYetSupported", "key points"),
    bad_data("masks of another size", asks(lambda root: data.masks(root, size=(20, 30)), "segmentation"), "DataSetMismatch", "20 x 30", "40 x 30"),
    bad_data("masks in colours", asks(lambda root: data.masks(root, mode="RGB"), "segmentation"), "DataSetMismatch", "one channel"),
    bad_data("a model and a data set, both bad", lambda folder: (asks(arrays(images=IMAGES))(folder), (folder / MODEL).write_bytes(LFS)),
             "SourceIsLfsPointer", "git-lfs pointer", "LabelsMissing"),
]  # fmt: skip

CASES = [*FILES, *EXTERNAL, *TENSORS, *VERSIONS, *GRAPHS, *ASKED, *CLASSES, *DATA]


def write(case: Bad, folder: Path) -> None:
    folder.mkdir(parents=True)
    case.make(folder)


def main(out: Path) -> None:
    for case in CASES:
        folder = out / case.name.replace(" ", "-")
        write(case, folder)
        command = shlex.join(["enginefleet", *case.arguments(folder)])
        (folder / "command.txt").write_text(f"{command}\n# {case.reason}, exit code {case.exit_code}\n")
    save_data(out / "good.npz")
    save_model(classifier(), out / "good.onnx")
    print(f"{len(CASES)} bad inputs, and a good model and data set, in {out}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
