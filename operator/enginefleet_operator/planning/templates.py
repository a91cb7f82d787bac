"""What a user's pod template must and must not have, because something of ours is put beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ENGINE, SCRATCH, CACHE, NO_TOKEN = "engine", "engine-scratch", "engine-cache", "engine-no-token"
RESERVED_VOLUMES = frozenset({ENGINE, SCRATCH, CACHE, NO_TOKEN})
FETCH, RUNTIME_CHECK = "enginefleet-fetch", "enginefleet-runtime-check"


def problems(template: Mapping[str, Any] | None) -> Iterator[str]:
    """One sentence each, without the full stop. Nothing to say about no template."""
    if template is None:
        return
    spec = template.get("spec")
    if not isinstance(spec, Mapping):
        yield "it has no spec, expected a pod spec with containers"
        return
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers or not all(isinstance(c, Mapping) for c in containers):
        yield "spec.containers is empty, expected at least one container"
        return
    if spec.get("restartPolicy", "Always") != "Always":
        yield f"spec.restartPolicy is {spec['restartPolicy']}, expected Always: a DaemonSet allows no other"
    for volume in spec.get("volumes") or []:
        if volume.get("name") in RESERVED_VOLUMES:
            yield f"volume {volume['name']!r} is a name that EngineFleet uses; rename it"
    for container in [*(spec.get("initContainers") or []), *containers]:
        name = container.get("name", "")
        if name in (FETCH, RUNTIME_CHECK):
            yield f"container {name!r} is a name that EngineFleet uses; rename it"
        # the node's cache holds engines of every namespace: only fetch may see it
        taken = sorted({str(m.get("name")) for m in container.get("volumeMounts") or []} & (RESERVED_VOLUMES - {ENGINE}))
        if taken:
            yield f"container {name!r} mounts {', '.join(taken)}, which belong to EngineFleet; it gets the engine at spec.serving.enginePath"
