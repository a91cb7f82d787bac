"""An operator that is newer than the CustomResourceDefinitions says so and waits for them, with the rights that deploy/ gives it."""

from __future__ import annotations

import asyncio
import copy
import json

from enginefleet_api.crd import manifest
from enginefleet_api.kinds import KINDS
from enginefleet_operator.kube.contract import Definitions
from localcluster import Cluster
from tests.kube.conftest import Users, connect

MODELS = manifest(next(kind for kind in KINDS if kind.name == "ModelDeployment"))


def test_older_definitions_are_told_and_waited_for(cluster: Cluster, users: Users) -> None:
    older = copy.deepcopy(MODELS)
    status = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    del status["properties"]["resolved"]["properties"]["refused"]

    async def scenario() -> None:
        async with await connect(users.service_account("enginefleet-operator")) as client:
            looking = Definitions(client, pause=0.1)
            task = asyncio.create_task(looking.wait())
            for _ in range(400):
                if "status.resolved.refused" in looking.trouble:
                    break
                await asyncio.sleep(0.05)
            assert "modeldeployments.enginefleet.io lacks status.resolved.refused. " in looking.trouble
            assert not looking.right.is_set()
            await asyncio.to_thread(cluster.kubectl, "replace", "-f", "-", input=json.dumps(MODELS))
            async with asyncio.timeout(20):
                await task
            assert looking.trouble == ""

    cluster.kubectl("replace", "-f", "-", input=json.dumps(older))
    try:
        asyncio.run(scenario())
    finally:
        cluster.kubectl("replace", "-f", "-", input=json.dumps(MODELS))


def test_who_may_not_look_works_on(cluster: Cluster, users: Users) -> None:
    async def scenario() -> None:
        async with await connect(users.service_account("enginefleet-agent")) as client:
            looking = Definitions(client)
            async with asyncio.timeout(20):
                await looking.wait()
            assert (looking.right.is_set(), looking.trouble) == (True, "")

    asyncio.run(scenario())
