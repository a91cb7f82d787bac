"""What of an ONNX file decides how TensorRT takes it: its element types, whether it is quantized, its opset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, TensorProto, helper

from ..prepare import model as models

QUANTIZING = ("QuantizeLinear", "DequantizeLinear")
FLOAT8 = {TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`quantized`: has Q/DQ nodes to integers. `float8`: has some to FP8. `types`: names of floating point types of its tensors."""

    quantized: bool
    float8: bool
    types: frozenset[str]
    opset: int

    @property
    def precision(self) -> str:
        """What the file says of itself."""
        if self.quantized or self.float8:
            return "int8" if self.quantized else "fp8"
        return "fp16" if "float16" in self.types else "bf16" if "bfloat16" in self.types else "fp32"


def read_facts(path: Path) -> ModelFacts:
    """Raises EngineFleetError for a file that is no model."""
    return facts_of(models.read_model(path))


def facts_of(model: ModelProto) -> ModelFacts:
    known: dict[str, int] = {}
    numbers: set[int] = set()
    stored: set[int] = set()
    for graph in models.graphs(model):
        known |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        for item in (*graph.input, *graph.output, *graph.value_info):
            numbers.add(item.type.tensor_type.elem_type)
    for node in models.nodes(model):
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Constant" and "value" in attributes:
            known[node.output[0]] = attributes["value"].t.data_type
        if node.op_type == "Cast":
            numbers.add(attributes["to"].i)
    for node in models.nodes(model):
        if node.op_type in QUANTIZING:
            # of the zero point, else of what is dequantized; a QuantizeLinear without either makes uint8
            named = [
                known[name] for name in (*node.input[2:3], *(node.input[:1] if node.op_type == "DequantizeLinear" else ())) if name in known
            ]
            stored.add(named[0] if named else TensorProto.UINT8 if node.op_type == "QuantizeLinear" else 0)
    numbers |= set(known.values())
    names = {
        helper.tensor_dtype_to_np_dtype(number).name for number in numbers & {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE}
    }
    names |= {"bfloat16"} if TensorProto.BFLOAT16 in numbers else set()
    integers = stored - FLOAT8 - {0}
    return ModelFacts(bool(integers), bool(stored & FLOAT8), frozenset(names), models.opsets(model).get("", 0))
