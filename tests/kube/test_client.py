"""The API client against a real API server."""

from __future__ import annotations

import asyncio

import pytest

from enginefleet_operator.kube.client import ApiClient
from enginefleet_operator.kube.errors import AlreadyExists, ApiUnavailable, Conflict, Forbidden, Invalid, NotFound
from enginefleet_operator.kube.kinds import HARDWARE_CLASSES, JOBS, LEASES, NAMESPACES, NODES, SERVICES
from localcluster import Cluster
from tests.kube.conftest import Users, connect, lease_object


def test_what_is_created_is_found_and_a_second_create_says_whose_it_is(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with await connect(cluster.kubeconfig) as client:
            assert await client.get(LEASES, "client-a", "default") is None
            made = await client.create(lease_object("client-a"))
            with pytest.raises(AlreadyExists) as refused:
                await client.create(lease_object("client-a"))
            assert refused.value.uid == made["metadata"]["uid"]
            assert not refused.value.is_being_deleted
            assert client.writes == 2

    asyncio.run(scenario())


def test_a_patch_or_delete_decided_on_an_old_state_is_a_conflict(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with await connect(cluster.kubeconfig) as client:
            made = await client.create(lease_object("client-b"))
            version, uid = made["metadata"]["resourceVersion"], made["metadata"]["uid"]
            changed = await client.merge_patch(
                LEASES, "client-b", {"metadata": {"resourceVersion": version, "labels": {"a": "1"}}}, "default"
            )
            assert changed["metadata"]["labels"] == {"a": "1"}
            with pytest.raises(Conflict):
                await client.merge_patch(LEASES, "client-b", {"metadata": {"resourceVersion": version, "labels": {"a": "2"}}}, "default")
            with pytest.raises(Conflict):
                await client.delete(LEASES, "client-b", "default", uid="another")
            assert await client.delete(LEASES, "client-b", "default", uid=uid)
            assert not await client.delete(LEASES, "client-b", "default", uid=uid)
            with pytest.raises(NotFound):
                await client.merge_patch(LEASES, "client-b", {"metadata": {"labels": {"a": "3"}}}, "default")

    asyncio.run(scenario())


def test_apply_removes_what_it_no_longer_names_and_leaves_what_others_own(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with await connect(cluster.kubeconfig) as client:
            await client.create(lease_object("client-c", foreign="kept"))
            await client.apply(lease_object("client-c", **{"a.enginefleet.io/x": "1", "b.enginefleet.io/y": "1"}))
            applied = await client.apply(lease_object("client-c", **{"a.enginefleet.io/x": "2"}))
            assert applied["metadata"]["labels"] == {"foreign": "kept", "a.enginefleet.io/x": "2"}
            with pytest.raises(Conflict):
                await client.apply(lease_object("client-c", foreign="taken"), force=False)

    asyncio.run(scenario())


def test_a_list_in_chunks_is_complete_and_its_items_say_what_they_are(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with await connect(cluster.kubeconfig) as client:
            for index in range(5):
                await client.create(lease_object(f"chunk-{index}", chunk="yes"))
            items, version = await client.list(LEASES, label_selector="chunk=yes", page=2)
            assert [item["metadata"]["name"] for item in items] == [f"chunk-{index}" for index in range(5)]
            assert {(item["apiVersion"], item["kind"]) for item in items} == {("coordination.k8s.io/v1", "Lease")}
            assert int(version) > 0
            names, _ = await client.list(LEASES, field_selector="metadata.name=chunk-3", project=lambda item: str(item["metadata"]["name"]))
            assert names == ["chunk-3"]

    asyncio.run(scenario())


def test_an_object_of_the_wrong_form_is_invalid_and_the_message_says_why(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with await connect(cluster.kubeconfig) as client:
            broken = {"apiVersion": "enginefleet.io/v1alpha1", "kind": "HardwareClass", "metadata": {"name": "broken"}, "spec": {}}
            with pytest.raises(Invalid, match="backend"):
                await client.create(broken)
            assert await client.get(HARDWARE_CLASSES, "broken") is None

    asyncio.run(scenario())


def test_the_operator_may_not_read_secrets_nor_change_what_the_user_wrote(users: Users) -> None:
    async def scenario() -> None:
        async with await connect(users.service_account("enginefleet-operator")) as client:
            assert await client.get(NAMESPACES, "default") is not None
            await client.list(JOBS)
            with pytest.raises(Forbidden):
                await client.merge_patch(HARDWARE_CLASSES, "any", {"spec": {}})
            with pytest.raises(Forbidden):
                await client.merge_patch(SERVICES, "kubernetes", {"spec": {}}, "default")

    asyncio.run(scenario())


def test_no_answer_is_unavailable_and_names_the_address(users: Users) -> None:
    async def scenario() -> None:
        async with await connect(users.admin_at("https://127.0.0.1:1")) as client:
            with pytest.raises(ApiUnavailable, match=r"https://127\.0\.0\.1:1") as failed:
                await client.get(NODES, "a")
            assert failed.value.code == 0

    asyncio.run(scenario())


def test_a_refused_token_is_unavailable_for_good_and_said_so(users: Users) -> None:
    async def scenario() -> None:
        path = users.service_account("enginefleet-operator")
        path.write_text(path.read_text().replace('"token": "', '"token": "x'))
        client: ApiClient = await connect(path)
        async with client:
            with pytest.raises(Forbidden) as refused:
                await client.get(NODES, "a")
            assert refused.value.code == 401

    asyncio.run(scenario())
