"""Lock files: hashes for everything, no index, and nothing heavy where prepare Jobs run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.lock import LOCKS

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"


def pinned(name: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9][a-z0-9._-]*)==", (REQUIREMENTS / f"{name}.lock").read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_index(name: str) -> None:
    text = (REQUIREMENTS / f"{name}.lock").read_text()
    assert "--hash=sha256:" in text
    assert re.findall(r"https?://|--(?:extra-)?index-url|--find-links", text) == []


@pytest.mark.parametrize("name", ["prepare", "dev"])
def test_modelopt_comes_without_what_its_onnx_side_does_not_use(name: str) -> None:
    excluded = {line for line in (REQUIREMENTS / "prepare.excludes").read_text().splitlines() if line and not line.startswith("#")}
    assert {"torch", "cupy-cuda12x", "onnxruntime-gpu"} <= excluded
    assert "nvidia-modelopt" in pinned(name)
    assert pinned(name) & excluded == set()


def test_runtime_images_have_no_modelopt() -> None:
    assert not {"nvidia-modelopt"} & (pinned("runtime-ort-1.24") | pinned("runtime-ort-1.23"))


def test_the_openvino_image_has_one_onnx_runtime() -> None:
    """Both distributions bring the module onnxruntime: the one that is installed last would win."""
    assert "onnxruntime-openvino" in pinned("runtime-openvino")
    assert "onnxruntime" not in pinned("runtime-openvino")
