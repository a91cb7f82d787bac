"""The plain manifests: they are valid, and the operator works with just the rights that they give."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from localcluster import Cluster
from tests.kube.conftest import NAMESPACE, ROOT

LEASE = ("get", "lease", "enginefleet-operator", "-n", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}")
OPERATOR = ("-n", NAMESPACE, "deployment/enginefleet-operator")


@pytest.fixture(scope="module")
def operator(node_cluster: Cluster) -> Iterator[Cluster]:
    node_cluster.kubectl("apply", "-f", str(ROOT / "deploy" / "30-operator.yaml"))
    yield node_cluster
    node_cluster.kubectl("delete", "-f", str(ROOT / "deploy" / "30-operator.yaml"), "--wait=false")


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").glob("*.yaml")), ids=lambda path: path.name)
def test_every_manifest_is_taken_without_a_warning(cluster: Cluster, path: object) -> None:
    assert cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(path)).stderr == ""


def test_the_operator_fits_the_restricted_standard(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "restricted-check")
    cluster.kubectl("label", "namespace", "restricted-check", "pod-security.kubernetes.io/warn=restricted")
    text = (ROOT / "deploy" / "30-operator.yaml").read_text().replace(f"namespace: {NAMESPACE}", "namespace: restricted-check")
    assert cluster.kubectl("apply", "--dry-run=server", "-f", "-", input=text).stderr == ""


def test_the_operator_becomes_ready_holds_the_lease_and_is_refused_nothing(operator: Cluster) -> None:
    operator.kubectl("rollout", "status", *OPERATOR, "--timeout=60s")
    assert operator.kubectl(*LEASE).stdout.startswith("enginefleet-operator-")
    log = operator.kubectl("logs", *OPERATOR).stdout
    assert "Forbidden" not in log
    assert "Traceback" not in log


def test_told_to_end_it_hands_the_lease_over(operator: Cluster) -> None:
    operator.kubectl("scale", *OPERATOR, "--replicas=0")
    operator.kubectl("wait", "-n", NAMESPACE, "pod", "-l", "app.kubernetes.io/name=enginefleet-operator", "--for=delete", "--timeout=30s")
    assert operator.kubectl(*LEASE).stdout == ""


def test_rights_name_no_secret_no_log_and_no_star(cluster: Cluster) -> None:
    for name in ("enginefleet-operator", "enginefleet-agent"):
        rules = json.loads(cluster.kubectl("get", "clusterrole", name, "-o", "json").stdout)["rules"]
        resources = {resource for rule in rules for resource in rule["resources"]}
        assert not resources & {"secrets", "pods/log", "pods/exec", "configmaps", "*"}
        assert not any("*" in rule["verbs"] + rule["apiGroups"] for rule in rules)
