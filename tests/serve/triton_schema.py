"""Triton's published schema of config.pbtxt, read out of its client package, which is installed without what it depends on."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

from google.protobuf import text_format  # type: ignore[import-untyped]

from tools.bootstrap import ROOT, kept_environment

ParseError: type[Exception] = text_format.ParseError
LOCK = ROOT / "requirements" / "triton.lock"


@cache
def schema() -> Any:
    """The module of messages that protoc made of model_config.proto."""
    path = kept_environment(LOCK).packages / "tritonclient" / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(text: str) -> Any:
    """The ModelConfig. Raises ParseError for text that Triton would refuse: unknown fields, wrong types, unknown enum names."""
    return text_format.Parse(text, schema().ModelConfig())
