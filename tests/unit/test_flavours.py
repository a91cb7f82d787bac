"""Which prepared form of a model a backend takes, and which precisions it has where."""

from __future__ import annotations

import pytest

from enginefleet_api.flavours import flavour_of, precision_refused, release, release_refused
from enginefleet_builder.prepare import targets


@pytest.mark.parametrize(
    ("backend", "version", "flavour"),
    [
        ("onnxruntime", None, "onnxruntime"),
        ("onnxruntime", "1.24.4", "onnxruntime"),
        ("tensorrt", "8.5.2.2", "tensorrt-8"),
        ("tensorrt", "8.6.2", "tensorrt-8"),
        ("tensorrt", "10.0.1.6", "tensorrt-10"),
        ("tensorrt", "10.3.0.30", "tensorrt-10"),
        ("tensorrt", "11.4.0.106", "tensorrt-10"),
        ("tensorrt", None, None),
        ("tensorrt", "", None),
        ("tensorrt", "8.2.1.8", None),
        ("tensorrt", "9.3.0", None),
        ("tensorrt-rtx", None, "tensorrt-10"),
        ("tensorrt-rtx", "1.7.1.116", "tensorrt-10"),
    ],
)
def test_the_flavour_follows_from_backend_and_probed_version(backend: str, version: str | None, flavour: str | None) -> None:
    assert flavour == flavour_of(backend, version)


@pytest.mark.parametrize(("version", "names"), [("8.2.1.8", "JetPack 4"), ("8.4.1", "older than 8.5"), ("9.3.0", "10.0 and newer")])
def test_a_release_without_engines_of_ours_is_refused_by_name(version: str, names: str) -> None:
    assert names in release_refused("tensorrt", version)
    assert names in precision_refused("fp32", "tensorrt", version)


def test_a_release_that_is_not_known_is_not_refused() -> None:
    assert release_refused("tensorrt", None) == ""
    assert precision_refused("fp8", "tensorrt", None) == ""


@pytest.mark.parametrize(
    ("backend", "version", "capability", "refused"),
    [
        ("onnxruntime", "1.24.4", None, "tf32 bf16 fp8"),
        ("onnxruntime", None, None, "tf32 bf16 fp8"),
        ("onnxruntime", "1.24.4", "8.9", "tf32 bf16 fp8"),
        ("tensorrt", "8.5.2", "8.7", "bf16 fp8"),
        ("tensorrt", "8.6.0", "9.0", "bf16 fp8"),
        ("tensorrt", "8.5.2", "7.2", "tf32 bf16 fp8"),
        ("tensorrt", "10.3.0", "8.7", "fp8"),
        ("tensorrt", "10.3.0", "8.9", ""),
        ("tensorrt", "10.13.3", "11.0", ""),
        ("tensorrt", "10.3.0", None, ""),
        ("tensorrt", "11.4.0", "7.5", "tf32 bf16 fp8"),
        ("tensorrt-rtx", "1.7.1", "8.6", "fp8"),
        ("tensorrt-rtx", None, "12.0", ""),
    ],
)
def test_what_a_device_cannot_do_is_refused(backend: str, version: str | None, capability: str | None, refused: str) -> None:
    every = ("fp32", "tf32", "fp16", "bf16", "int8", "fp8")
    assert refused.split() == [one for one in every if precision_refused(one, backend, version, capability)]


def test_the_words_say_what_there_is_instead() -> None:
    assert precision_refused("fp8", "tensorrt", "8.6.0") == "TensorRT 8.6.0 takes fp32, tf32, fp16, int8"
    assert precision_refused("fp8", "tensorrt", "10.3.0", "8.7") == "compute capability 8.7 has fp32, tf32, fp16, bf16, int8"


def test_the_operator_refuses_what_preflight_refuses() -> None:
    """Two tables say it: a rule here, and data beside preflight that a ConfigMap may replace."""
    table = targets.load()
    for device in table.hardware:
        for entry in table.tensorrt:
            found = targets.tensorrt(table, entry.release)
            if release_refused("tensorrt", entry.release) or found is None:
                continue
            if release(device.compute_capability) < release(found.min_compute_capability):
                continue  # does not run there at all, which is preflight's to say
            have = {one for one in found.precisions if not precision_refused(one, "tensorrt", entry.release, device.compute_capability)}
            assert have == {one for one in found.precisions if one in device.precisions}, (entry.release, device.compute_capability)
