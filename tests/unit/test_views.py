"""What a serving pod's status says: since when its deadline runs, and what it can't do."""

from __future__ import annotations

from typing import Any

import pytest

from enginefleet_api.jobs import JobFailure, Termination
from enginefleet_operator.kube.nodes import epoch
from enginefleet_operator.kube.views import serving_pod

CREATED, FETCHED, READY = "2027-01-15T08:00:00Z", "2027-01-15T08:20:00Z", "2027-01-15T08:21:00Z"
FETCH = {"name": "fetch", "state": {"terminated": {"exitCode": 0, "finishedAt": FETCHED, "message": ""}}}
RUNS = {"name": "server", "state": {"running": {"startedAt": FETCHED}}}


def pod(inits: list[dict[str, Any]], containers: list[dict[str, Any]], ready: str = "") -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": ready}] if ready else []
    status = {"initContainerStatuses": inits, "containerStatuses": containers, "conditions": conditions}
    return {"metadata": {"name": "p", "uid": "u", "creationTimestamp": CREATED}, "spec": {"nodeName": "n1"}, "status": status}


@pytest.mark.parametrize(
    ("inits", "containers", "loading", "since"),
    [
        ([], [], True, CREATED),
        ([{"name": "fetch", "state": {"waiting": {"reason": "PodInitializing"}}}], [], True, CREATED),
        ([{"name": "fetch", "state": {"running": {"startedAt": CREATED}}}], [], True, CREATED),
        # fetched, and the server's image is pulled
        ([FETCH], [{"name": "server", "state": {"waiting": {"reason": "ContainerCreating"}}}], True, FETCHED),
        ([FETCH], [RUNS], False, FETCHED),
    ],
)
def test_the_deadline_runs_from_when_the_engine_was_fetched(
    inits: list[dict[str, Any]], containers: list[dict[str, Any]], loading: bool, since: str
) -> None:
    found = serving_pod(pod(inits, containers))
    assert (found.loading, found.since, found.ready) == (loading, epoch(since), False)


def test_a_ready_pod_says_since_when() -> None:
    found = serving_pod(pod([FETCH], [RUNS], READY))
    assert (found.ready, found.loading, found.since) == (True, False, epoch(READY))


def test_a_refused_fetch_is_trouble_in_its_own_words() -> None:
    failure = JobFailure.model_validate(
        {"failureClass": "Permanent", "reason": "BlobDamaged", "message": "sha256 differs.", "hint": "Build it again."}
    )
    message = Termination(failure=failure).to_message()
    failed = {"name": "fetch", "state": {"terminated": {"exitCode": 64, "finishedAt": FETCHED, "message": message}}}
    found = serving_pod(pod([failed], []))
    assert found.trouble == ("BlobDamaged", "sha256 differs. Build it again.")
    assert found.trouble_at == epoch(FETCHED)


@pytest.mark.parametrize(("restarts", "told"), [(0, False), (1, True), (7, True)])
def test_a_server_that_ended_again_is_trouble_before_the_kubelet_calls_it_a_crash_loop(restarts: int, told: bool) -> None:
    ended = {"terminated": {"exitCode": 2, "reason": "Error", "finishedAt": FETCHED}}
    server = {"name": "server", "state": ended, "lastState": ended if restarts else {}, "restartCount": restarts}
    found = serving_pod(pod([FETCH], [server]))
    assert found.trouble == (("CrashLoopBackOff", f"container server exits with 2 ({restarts} restarts).") if told else None)
