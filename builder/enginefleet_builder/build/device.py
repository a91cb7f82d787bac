"""Is this pod where the request thinks it is? Asked again before anything is built: nodes are reinstalled, pods scheduled by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginefleet_api import fingerprint
from enginefleet_api.errors import EnvironmentFault, PermanentError
from enginefleet_api.jobs import BuildRequest

from ..probe import check_device, check_gpu, host_facts, runtime_facts


def check_here(request: BuildRequest) -> None:
    """Raises EnvironmentFault `WrongDevice`, `WrongRuntime` or `NoGPU` naming what differs; PermanentError `BadRequest` for facts of another id."""
    found = fingerprint.identify(request.facts)
    if found != request.fingerprint:
        message = f"the request's facts make {found}, its fingerprint is {request.fingerprint}."
        raise PermanentError("BadRequest", message, "Please report it: the operator and the builder are of different versions.")
    cross = check_cross(request)
    check_device(request.facts, host_facts())
    seen = runtime_facts(request.backend, request.execution_provider, request.python, cross=cross)
    check_runtime(request.facts, seen)
    check_gpu(request.facts, seen)


def check_cross(request: BuildRequest) -> str | None:
    """The compute capability of a GPU elsewhere that recipe and facts both say is built for; None for an engine for the GPU here.

    Raises PermanentError `BadRequest` when they disagree: an engine for a GPU that is not here must never pass as one for a GPU that is.
    """
    wanted = request.recipe.get("computeCapability")
    gpu = fingerprint.first_gpu(request.facts) or {}
    told = gpu.get("computeCapability") if "cross" in gpu else None
    if wanted != told:
        message = f"the recipe builds for compute capability {wanted or 'of the GPU here'}, the facts say {told or 'a GPU here'}."
        raise PermanentError("BadRequest", message, "Make the facts with fingerprint.cross_gpu, or leave recipe.computeCapability out.")
    if wanted is not None and request.backend != "tensorrt-rtx":
        hint = "Only TensorRT for RTX does; build on a node that has the GPU."
        raise PermanentError("BadRequest", f"{request.backend} cannot build for a GPU that is not here.", hint)
    return None if wanted is None else str(wanted)


def check_runtime(facts: Mapping[str, Any], seen: Mapping[str, Any]) -> None:
    """Compare what the loaded library reports. Unknown facts (null) are not compared."""
    names = [name for name in fingerprint.RUNTIME_FACT_NAMES if name in facts or name in seen]
    wrong = [name for name in names if facts.get(name) != seen.get(name) and not (name in facts and facts[name] is None)]
    if wrong:
        differences = "; ".join(f"{name} is {seen.get(name)!r}, expected {facts.get(name)!r}" for name in wrong)
        hint = "The runtime image was changed behind its digest, or the fingerprint is out of date; the operator observes it again."
        raise EnvironmentFault("WrongRuntime", f"in this image {differences}.", hint)
