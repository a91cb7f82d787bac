"""Pod manifests for the tests."""

from __future__ import annotations

from typing import Any

from localcluster import Image

SHELL = Image("test/shell:1")
"""this machine's own programs"""


def pod(
    name: str, script: str | None, *, image: str = SHELL.name, node: str | None = None, container: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """A pod that runs a script (None: its image's entrypoint) once; `container` and further keywords go into the container and the pod's spec."""
    main: dict[str, Any] = {"name": "main", "image": image, **(container or {})}
    if script is not None:
        main["command"] = ["/bin/sh", "-ec", script]
    body: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [main], **spec}
    if node:
        body["nodeSelector"] = {"pool": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": body}
