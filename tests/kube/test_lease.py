"""Leader election between operators that each have a connection of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from enginefleet_operator.kube.kinds import LEASES
from enginefleet_operator.kube.lease import LeaderElection, Timing
from localcluster import Cluster
from tests.kube.conftest import Users, connect
from tests.kube.proxy import Proxy

FAST = Timing(duration=2, deadline=1.2, renew=0.3, retry=0.1)


class Candidate:
    def __init__(self, election: LeaderElection, task: asyncio.Task[None], lost: list[str]) -> None:
        self.election = election
        self.task = task
        self.lost = lost

    async def dies(self) -> None:
        """As a killed process: nothing is released."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def leads(self, within: float) -> None:
        async with asyncio.timeout(within):
            await self.election.held.wait()


@asynccontextmanager
async def candidate(cluster: Cluster, name: str, identity: str, server: str = "", users: Users | None = None) -> AsyncIterator[Candidate]:
    kubeconfig = users.admin_at(server) if users else cluster.kubeconfig
    async with await connect(kubeconfig) as client:
        lost: list[str] = []
        election = LeaderElection(client, namespace="default", name=name, identity=identity, on_lost=lost.append, timing=FAST)
        here = Candidate(election, asyncio.create_task(election.run()), lost)
        try:
            yield here
        finally:
            await here.dies()


def test_the_second_waits_while_the_first_renews_and_takes_over_when_it_died(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with candidate(cluster, "takeover", "first") as first:
            await first.leads(within=2)
            async with candidate(cluster, "takeover", "second") as second:
                await asyncio.sleep(FAST.duration * 1.5)  # longer than the lease lives unrenewed
                assert not second.election.held.is_set()
                await first.dies()
                died = asyncio.get_running_loop().time()
                await second.leads(within=5)
                # not before the duration has passed since the last renewal, which was at most one interval before the death
                assert asyncio.get_running_loop().time() - died > FAST.duration - FAST.renew - 0.1
                assert first.lost == second.lost == []

    asyncio.run(scenario())


def test_a_released_lease_is_taken_at_once(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with candidate(cluster, "release", "first") as first:
            await first.leads(within=2)
            await first.dies()
            await first.election.release()
            async with candidate(cluster, "release", "second") as second:
                await second.leads(within=1)

    asyncio.run(scenario())


def test_a_process_that_comes_back_under_its_name_takes_its_lease_up_at_once(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with candidate(cluster, "again", "pod") as before:
            await before.leads(within=2)
        async with candidate(cluster, "again", "pod") as after:
            await after.leads(within=1)

    asyncio.run(scenario())


def test_a_holder_that_is_replaced_stops_and_says_by_whom(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with candidate(cluster, "replaced", "first") as first, await connect(cluster.kubeconfig) as admin:
            await first.leads(within=2)
            await admin.merge_patch(LEASES, "replaced", {"spec": {"holderIdentity": "intruder"}}, "default")
            async with asyncio.timeout(3):
                await first.task
            assert first.lost == ["it is held by intruder"]

    asyncio.run(scenario())


def test_a_holder_that_is_cut_off_stops_before_another_may_lead(cluster: Cluster, users: Users) -> None:
    async def scenario() -> None:
        async with Proxy(users.server) as proxy, candidate(cluster, "cut-off", "first", proxy.url, users) as first:
            await first.leads(within=2)
            await proxy.cut()
            async with candidate(cluster, "cut-off", "second") as second:
                async with asyncio.timeout(FAST.duration):
                    await first.task
                assert first.lost[0].startswith("it could not be renewed for")
                assert not second.election.held.is_set()
                await second.leads(within=4)

    asyncio.run(scenario())
