"""The admission policies of deploy/, asked by the service accounts that they are about."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from enginefleet_operator.kube.errors import Forbidden
from enginefleet_operator.kube.kinds import NODE_FINGERPRINTS, NODES
from localcluster import Cluster
from tests.kube.conftest import Users, connect, node_object

FACTS = {"os": "linux", "arch": "x86_64", "cpu": {"isa": None}, "gpus": []}


def fingerprint(node: str, **spec: Any) -> dict[str, Any]:
    host = {"digest": "host-0", "summary": "", "facts": FACTS, "context": {}}
    content = {"node": node, "bootID": "b", "host": host, **spec}
    return {"apiVersion": "enginefleet.io/v1alpha1", "kind": "NodeFingerprint", "metadata": {"name": node}, "spec": content}


OBSERVATION = {"class": "c", "imageDigest": "sha256:0", "device": "cpu", "id": "fp-0", "summary": "", "facts": {}, "hostDigest": ""}


def test_the_operator_changes_node_labels_of_its_own_and_nothing_else(cluster: Cluster, users: Users) -> None:
    async def scenario() -> None:
        async with await connect(cluster.kubeconfig) as admin, await connect(users.service_account("enginefleet-operator")) as operator:
            await admin.create(node_object("policy-node", pool="edge"))
            own = {"fp.enginefleet.io/orin": "fp-1", "enginefleet.io/x": "y"}
            changed = await operator.merge_patch(NODES, "policy-node", {"metadata": {"labels": own}})
            assert changed["metadata"]["labels"] == {"pool": "edge", **own}
            gone = await operator.merge_patch(NODES, "policy-node", {"metadata": {"labels": dict.fromkeys(own)}})
            assert gone["metadata"]["labels"] == {"pool": "edge"}
            foreign: list[dict[str, Any]] = [
                {"metadata": {"labels": {"pool": "core"}}},
                {"metadata": {"labels": {"pool": None}}},
                {"metadata": {"labels": {"example.com/new": "x"}}},
                {"metadata": {"labels": {"notenginefleet.io/x": "x"}}},
                {"metadata": {"labels": {"enginefleet.io.example.com/x": "x"}}},
                {"metadata": {"annotations": {"enginefleet.io/x": "x"}}},
                {"metadata": {"finalizers": ["enginefleet.io/x"]}},
                {"spec": {"unschedulable": True}},
                {"spec": {"taints": [{"key": "enginefleet.io/x", "effect": "NoSchedule"}]}},
            ]
            for body in foreign:
                with pytest.raises(Forbidden, match="EngineFleet's operator may"):
                    await operator.merge_patch(NODES, "policy-node", body)
            # others are not concerned
            await admin.merge_patch(NODES, "policy-node", {"metadata": {"labels": {"pool": "core"}}})

    asyncio.run(scenario())


def test_an_agent_writes_the_fingerprint_of_its_own_node_only(cluster: Cluster, users: Users) -> None:
    async def scenario() -> None:
        async with await connect(cluster.kubeconfig) as admin:
            for name in ("agent-a", "agent-b"):
                await admin.create(node_object(name))
        async with await connect(users.service_account("enginefleet-agent", node="agent-a")) as agent:
            manager = "enginefleet-agent"
            await agent.apply(fingerprint("agent-a"), field_manager=manager)
            changed = await agent.apply(fingerprint("agent-a", bootID="c"), field_manager=manager)
            assert changed["spec"]["bootID"] == "c"
            # null is a value here: an unknown fact
            assert changed["spec"]["host"]["facts"] == FACTS
            with pytest.raises(Forbidden, match="this one is of agent-b, the token is of agent-a"):
                await agent.apply(fingerprint("agent-b"), field_manager=manager)
            with pytest.raises(Forbidden):
                await agent.delete(NODE_FINGERPRINTS, "agent-a")

    asyncio.run(scenario())


def test_an_agent_neither_writes_nor_alters_observations(cluster: Cluster, users: Users) -> None:
    async def scenario() -> None:
        async with await connect(cluster.kubeconfig) as admin, await connect(users.service_account("enginefleet-operator")) as operator:
            await admin.create(node_object("agent-c"))
            async with await connect(users.service_account("enginefleet-agent", node="agent-c")) as agent:
                with pytest.raises(Forbidden, match="Observations come from probe Jobs"):
                    await agent.apply(fingerprint("agent-c", observations=[OBSERVATION]), field_manager="enginefleet-agent")
                await agent.apply(fingerprint("agent-c"), field_manager="enginefleet-agent")
                observed = fingerprint("agent-c")
                observed["spec"] = {"node": "agent-c", "observations": [OBSERVATION]}
                await operator.apply(observed, field_manager="enginefleet-observations-c")
                after = await agent.apply(fingerprint("agent-c", bootID="d"), field_manager="enginefleet-agent")
                assert after["spec"]["observations"] == [OBSERVATION]
                with pytest.raises(Forbidden, match="Observations come from probe Jobs"):
                    await agent.merge_patch(NODE_FINGERPRINTS, "agent-c", {"spec": {"observations": []}})

    asyncio.run(scenario())


def test_a_token_that_is_bound_to_no_node_writes_no_fingerprint(cluster: Cluster, users: Users) -> None:
    async def scenario() -> None:
        async with await connect(users.service_account("enginefleet-agent")) as agent:
            with pytest.raises(Forbidden, match="the token is of no node"):
                await agent.apply(fingerprint("agent-d"), field_manager="enginefleet-agent")

    asyncio.run(scenario())
