"""Answers the Jobs of a simulated fleet at once, as a kubelet would report them: nothing is probed, prepared, built or judged here."""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import UTC, datetime
from typing import Any

from enginefleet_api import labels
from enginefleet_api.documents import Answer, Metric
from enginefleet_api.jobs import (
    REQUEST_VARIABLE,
    BuildReport,
    BuildRequest,
    PrepareReport,
    PrepareRequest,
    ProbeReport,
    ResolvedPrepared,
    Termination,
    VerifyReport,
    VerifyRequest,
)
from enginefleet_operator.kube.client import ApiClient
from enginefleet_operator.kube.kinds import PODS
from enginefleet_operator.kube.watch import Reflector

from .simulated_fleet import IMAGE_DIGEST, RUNTIME

Report = PrepareReport | BuildReport | ProbeReport | VerifyReport
Pending = tuple[str, str, str, str, str]
"""(namespace, name, role, request, container), empty when there is nothing to answer"""


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def answer(role: str, request: str) -> Report | None:
    """What the Job would have reported had all gone well; None: it has nothing to report."""
    match role:
        case "probe":
            return ProbeReport(runtime=RUNTIME)
        case "prepare":
            asked = PrepareRequest.model_validate_json(request)
            prepared = [
                ResolvedPrepared(
                    flavour=flavour,
                    precision=variant.precision,
                    variant=variant.id,
                    prepared_key=_digest(asked.model.uri, flavour, variant.id),
                    model=f"sha256:{_digest('prepared', asked.model.uri, flavour, variant.id)}",
                )
                for flavour in asked.flavours
                for variant in asked.variants
            ]
            return PrepareReport(
                model=f"sha256:{_digest(asked.model.uri)}",
                validation=f"sha256:{_digest('validation')}",
                prepared=prepared,
                baseline_key=_digest("baseline", asked.model.uri),
                baseline=Metric(name="top1", value="0.95", samples=500),
                seconds="1.0",
            )
        case "build":
            build = BuildRequest.model_validate_json(request)
            return BuildReport(
                engine_key=build.engine_key,
                gate_key=build.gate_key,
                blob=build.blob or f"sha256:{_digest('engine', build.engine_key)}",
                size=1000,
                adopted=False,
                answer=Answer.PASS,
            )
        case "verify":
            return VerifyReport(verified=len(VerifyRequest.model_validate_json(request).engines))
    return None


def _pending(pod: Any) -> Pending:
    meta, spec = pod["metadata"], pod["spec"]
    role = meta.get("labels", {}).get(labels.ROLE, "")
    if role in ("", "serve") or not spec.get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return "", "", "", "", ""
    container = spec["containers"][0]
    request = next((e["value"] for e in container.get("env", ()) if e["name"] == REQUEST_VARIABLE), "{}")
    return meta["namespace"], meta["name"], role, request, container["name"]


class SimulatedJobs:
    """Watches pods of Jobs and ends each with a report as soon as it has a node."""

    def __init__(self, client: ApiClient, *, workers: int = 8) -> None:
        self._client = client
        self._queue: asyncio.Queue[Pending] = asyncio.Queue()
        self._reflector = Reflector(
            client, PODS, project=_pending, on_event=self._changed, label_selector=f"{labels.ROLE} in (probe,prepare,build,verify,preload)"
        )
        self._workers = workers
        self.answered: dict[str, int] = {}
        """By role."""

    def _changed(self, _: Pending | None, new: Pending | None) -> None:
        if new is not None and new[1]:
            self._queue.put_nowait(new)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            namespace, name, role, request, container = await self._queue.get()
            report = answer(role, request)
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
            if report is not None:
                ended["message"] = Termination(report=report).to_message()
            status = {
                "phase": "Succeeded",
                "startTime": now,
                "conditions": [{"type": kind, "status": "False", "reason": "PodCompleted"} for kind in ("Ready", "ContainersReady")],
                "containerStatuses": [
                    {
                        "name": container,
                        "image": "simulated",
                        "imageID": IMAGE_DIGEST,
                        "ready": False,
                        "restartCount": 0,
                        "state": {"terminated": ended},
                    }
                ],
            }
            await self._client.merge_patch(PODS, name, {"status": status}, namespace, subresource="status")
            self.answered[role] = self.answered.get(role, 0) + 1
