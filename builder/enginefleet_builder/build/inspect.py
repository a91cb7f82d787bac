"""What an ONNX file or an ONNX Runtime engine holds, for people."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ..prepare import model as models
from ..sources import model_files
from ..store.base import sha256_of


def inspect(path: Path) -> dict[str, Any]:
    """Operators with their number, opsets, inputs and outputs, Q/DQ nodes, metadata, external data.

    `path`: a file, or a folder with one model or an engine. Raises PermanentError `NotAModel`, `ModelNotFound`, `ModelAmbiguous`.
    """
    path = model_files(path) if path.is_dir() else path
    model = models.read_model(path)
    operators = Counter(f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in models.nodes(model))
    return {
        "file": path.name,
        "size": path.stat().st_size,
        "sha256": sha256_of(path),
        "irVersion": int(model.ir_version),
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "opsets": {domain or "ai.onnx": version for domain, version in models.opsets(model).items()},
        "inputs": [spec.to_json_dict(exclude_none=False) for spec in models.inputs(model)],
        "outputs": [spec.to_json_dict(exclude_none=False) for spec in models.outputs(model)],
        "nodes": sum(operators.values()),
        "operators": dict(sorted(operators.items())),
        "qdqNodes": models.count(model, models.QUANTIZING),
        "externalData": sorted({item.location for item in models.external(model)}),
        "metadata": models.metadata(model),
    }
