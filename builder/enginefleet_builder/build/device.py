"""Is this pod where the request thinks it is? Asked again before anything is built: nodes are reinstalled, pods scheduled by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginefleet_api import fingerprint
from enginefleet_api.errors import EnvironmentFault, PermanentError
from enginefleet_api.jobs import BuildRequest

from ..probe import check_device, host_facts, onnxruntime_facts


def check_here(request: BuildRequest) -> None:
    """Raises EnvironmentFault `WrongDevice` or `WrongRuntime` naming what differs; PermanentError `BadRequest` for facts of another id."""
    found = fingerprint.identify(request.facts)
    if found != request.fingerprint:
        message = f"the request's facts make {found}, its fingerprint is {request.fingerprint}."
        raise PermanentError("BadRequest", message, "Please report it: the operator and the builder are of different versions.")
    check_device(request.facts, host_facts())
    check_runtime(request.facts, onnxruntime_facts(request.execution_provider))


def check_runtime(facts: Mapping[str, Any], seen: Mapping[str, Any]) -> None:
    """Compare what the loaded library reports. Unknown facts (null) are not compared."""
    names = [name for name in fingerprint.RUNTIME_FACT_NAMES if name in facts or name in seen]
    wrong = [name for name in names if facts.get(name) != seen.get(name) and not (name in facts and facts[name] is None)]
    if wrong:
        differences = "; ".join(f"{name} is {seen.get(name)!r}, expected {facts.get(name)!r}" for name in wrong)
        hint = "The runtime image was changed behind its digest, or the fingerprint is out of date; the operator observes it again."
        raise EnvironmentFault("WrongRuntime", f"in this image {differences}.", hint)
