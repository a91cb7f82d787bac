"""The reflector against a real API server behind a proxy that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from enginefleet_operator.kube.client import ApiClient, Object
from enginefleet_operator.kube.kinds import LEASES
from enginefleet_operator.kube.watch import Reflector
from localcluster import Cluster
from tests.kube.conftest import Users, connect, lease_object
from tests.kube.proxy import Proxy


@dataclass(frozen=True, slots=True)
class View:
    name: str
    uid: str
    labels: dict[str, str]
    version: str = field(compare=False)


def project(lease: Object) -> View:
    metadata = lease["metadata"]
    return View(metadata["name"], metadata["uid"], metadata["labels"], metadata["resourceVersion"])


Seen = list[tuple[str, str, str]]


class Watched:
    """A reflector of the leases labelled `test=<name>`, what it reported, and a way to wait for more."""

    def __init__(self, client: ApiClient, test: str) -> None:
        self.seen: Seen = []
        self._news = asyncio.Event()
        self.reflector = Reflector(
            client, LEASES, project=project, on_event=self._on_event, label_selector=f"test={test}", page=2, jitter=lambda: 0.0
        )

    def _on_event(self, old: View | None, new: View | None) -> None:
        self.seen.append(("added" if old is None else "deleted" if new is None else "changed", (new or old).name, (new or old).uid))  # type: ignore[union-attr]
        self._news.set()

    async def until(self, condition: Callable[[Seen], bool]) -> None:
        async with asyncio.timeout(15):
            while not condition(self.seen):
                self._news.clear()
                await self._news.wait()

    def what(self) -> list[tuple[str, str]]:
        return [(event, name) for event, name, _ in self.seen]


@asynccontextmanager
async def watched(cluster: Cluster, users: Users, test: str) -> AsyncIterator[tuple[Watched, ApiClient, Proxy]]:
    """(reflector behind the proxy, an admin who is not, the proxy); one lease `<test>-0` exists."""
    async with Proxy(users.server) as proxy, await connect(cluster.kubeconfig) as admin, await connect(users.admin_at(proxy.url)) as client:
        await admin.create(lease_object(f"{test}-0", test=test))
        here = Watched(client, test)
        task = asyncio.create_task(here.reflector.run())
        async with asyncio.timeout(15):
            await here.reflector.synced.wait()
        try:
            yield here, admin, proxy
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_additions_changes_and_deletions_are_reported_and_kept(cluster: Cluster, users: Users) -> None:
    async def scenario() -> None:
        async with watched(cluster, users, "plain") as (here, admin, _):
            await admin.create(lease_object("plain-1", test="plain"))
            await admin.merge_patch(LEASES, "plain-1", {"metadata": {"labels": {"more": "yes"}}}, "default")
            # annotations are not projected: silent, yet the newest version is kept for preconditions
            quiet = await admin.merge_patch(LEASES, "plain-0", {"metadata": {"annotations": {"a": "b"}}}, "default")
            await admin.delete(LEASES, "plain-1", "default")
            await here.until(lambda seen: ("deleted", "plain-1") in here.what())
            assert here.what() == [("added", "plain-0"), ("added", "plain-1"), ("changed", "plain-1"), ("deleted", "plain-1")]
            assert list(here.reflector.items) == ["default/plain-0"]
            assert here.reflector.items["default/plain-0"].version == quiet["metadata"]["resourceVersion"]

    asyncio.run(scenario())


def test_a_deletion_during_a_cut_watch_is_reported_after_it(cluster: Cluster, users: Users) -> None:
    async def scenario() -> None:
        async with watched(cluster, users, "cut") as (here, admin, proxy):
            await admin.create(lease_object("cut-1", test="cut"))
            await here.until(lambda seen: len(seen) == 2)
            await proxy.cut()
            await admin.delete(LEASES, "cut-0", "default")
            await proxy.open()
            await here.until(lambda seen: len(seen) == 3)
            assert here.what()[-1] == ("deleted", "cut-0")
            assert list(here.reflector.items) == ["default/cut-1"]

    asyncio.run(scenario())


def test_a_version_that_is_too_old_leads_to_a_new_list_that_reports_what_was_missed(cluster: Cluster, users: Users) -> None:
    async def scenario() -> None:
        async with watched(cluster, users, "gone") as (here, admin, proxy):
            old = here.seen[0][2]
            await admin.create(lease_object("gone-1", test="gone"))
            await here.until(lambda seen: len(seen) == 2)
            await proxy.cut()
            await admin.delete(LEASES, "gone-1", "default")
            await admin.delete(LEASES, "gone-0", "default")
            new = await admin.create(lease_object("gone-0", test="gone"))
            await admin.create(lease_object("gone-2", test="gone"))
            # the API server's cache begins after version 1, so it answers 410 Gone as it does after a long absence
            here.reflector._version = "1"
            await proxy.open()
            await here.until(lambda seen: len(seen) == 6)
            assert here.what()[2:] == [("deleted", "gone-1"), ("deleted", "gone-0"), ("added", "gone-0"), ("added", "gone-2")]
            assert [uid for event, name, uid in here.seen if name == "gone-0" and event == "added"] == [old, new["metadata"]["uid"]]
            assert sorted(here.reflector.items) == ["default/gone-0", "default/gone-2"]

    asyncio.run(scenario())


def test_trouble_is_told_while_it_lasts_and_silence_grows(cluster: Cluster, users: Users) -> None:
    async def scenario() -> None:
        async with watched(cluster, users, "trouble") as (here, admin, proxy):
            await proxy.cut()
            async with asyncio.timeout(10):
                while not here.reflector.trouble:  # noqa: ASYNC110  nothing tells of it but the text itself
                    await asyncio.sleep(0.02)
            assert "no answer from" in here.reflector.trouble
            assert here.reflector.silent_for() > 0
            await proxy.open()
            await admin.create(lease_object("trouble-1", test="trouble"))
            await here.until(lambda seen: len(seen) == 2)
            assert here.reflector.trouble == ""

    asyncio.run(scenario())
