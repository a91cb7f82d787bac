"""The event recorder against a real API server."""

from __future__ import annotations

import asyncio

from enginefleet_operator.kube.client import ApiClient
from enginefleet_operator.kube.events import PENDING, QUIET_SECONDS, EventRecorder
from enginefleet_operator.kube.kinds import EVENTS
from localcluster import Cluster
from tests.kube.conftest import Users, connect, lease_object, node_object


async def written(client: ApiClient, name: str, count: int) -> list[tuple[str, str, str]]:
    """(type, reason, note) of the events about an object, once there are as many, in order."""
    async with asyncio.timeout(10):
        while True:
            events, _ = await client.list(EVENTS)
            found = [
                event for event in events if event["regarding"]["name"] == name and event["reportingController"].startswith("enginefleet")
            ]
            if len(found) >= count:
                return [
                    (event["type"], event["reason"], event["note"]) for event in sorted(found, key=lambda event: str(event["eventTime"]))
                ]


def test_the_same_is_said_once_in_ten_minutes_and_again_after_them(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with await connect(cluster.kubeconfig) as client:
            now = 0.0
            recorder = EventRecorder(client, instance="test", clock=lambda: now)
            task = asyncio.create_task(recorder.run())
            about = await client.create(lease_object("event-a"))
            assert recorder.record(about, "Normal", "EngineBuilt", "built in 60 s")
            assert not recorder.record(about, "Normal", "EngineBuilt", "built in 60 s")
            assert recorder.record(about, "Warning", "GateFailed", "x" * 3000)
            now = QUIET_SECONDS
            assert recorder.record(about, "Normal", "EngineBuilt", "built in 60 s")
            built = ("Normal", "EngineBuilt", "built in 60 s")
            assert await written(client, "event-a", 3) == [built, ("Warning", "GateFailed", "x" * 1024), built]
            task.cancel()

    asyncio.run(scenario())


def test_an_event_about_a_cluster_scoped_object_is_written_too(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with await connect(cluster.kubeconfig) as client:
            recorder = EventRecorder(client, instance="test")
            task = asyncio.create_task(recorder.run())
            recorder.record(await client.create(node_object("event-node")), "Normal", "Probed", "done")
            assert await written(client, "event-node", 1) == [("Normal", "Probed", "done")]
            task.cancel()

    asyncio.run(scenario())


def test_without_an_api_server_recording_neither_fails_nor_grows(users: Users) -> None:
    async def scenario() -> None:
        async with await connect(users.admin_at("https://127.0.0.1:1")) as client:
            recorder = EventRecorder(client, instance="test")
            about = lease_object("event-b")
            about["metadata"]["uid"] = "u"
            assert all(recorder.record(about, "Normal", "Reason", str(number)) for number in range(PENDING + 10))
            assert recorder.dropped == 10
            task = asyncio.create_task(recorder.run())
            async with asyncio.timeout(10):
                while recorder._pending:  # noqa: ASYNC110  the recorder tells nobody
                    await asyncio.sleep(0.01)
            assert not task.done()
            task.cancel()

    asyncio.run(scenario())
