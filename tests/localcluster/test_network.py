"""Services, DNS, and the ways in from outside."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Callable, Iterator

import boto3
import pytest
from botocore.config import Config

from localcluster import Cluster
from tests.localcluster.pods import pod

RunPod = Callable[..., str]


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[str]:
    """Two web servers that listen on the same port of all addresses, behind one Service; its ClusterIP."""
    script = "mkdir /tmp/www; hostname > /tmp/www/name; cd /tmp/www; exec python3 -m http.server 8080"
    probe = {"readinessProbe": {"httpGet": {"path": "/name", "port": 8080}, "periodSeconds": 1}}
    for name in ("web-1", "web-2"):
        body = pod(name, script, node="node-a", container=probe)
        body["metadata"]["labels"] = {"app": "web"}
        cluster.kubectl("apply", "-f", "-", input=json.dumps(body))
    cluster.kubectl("create", "service", "clusterip", "web", "--tcp=80:8080")
    cluster.kubectl("wait", "pod/web-1", "pod/web-2", "--for=condition=Ready", "--timeout=30s")
    yield cluster.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}").stdout
    cluster.kubectl("delete", "service/web", "pod/web-1", "pod/web-2")


def test_both_pods_of_a_service_answer_a_pod_at_its_address(service: str, run_pod: RunPod) -> None:
    retries = "--retry 20 --retry-all-errors --retry-delay 1"
    assert set(run_pod(f"for i in 1 2 3 4; do curl -s {retries} http://{service}/name; done").split()) == {"web-1", "web-2"}


def test_a_service_is_found_by_its_name(service: str, run_pod: RunPod) -> None:
    assert run_pod("curl -s http://web/name").strip() in {"web-1", "web-2"}
    assert run_pod("curl -s http://web.default.svc.cluster.local/name").strip() in {"web-1", "web-2"}


def test_a_service_is_reached_from_outside_through_a_relay(cluster: Cluster, service: str) -> None:
    address = cluster.relay(f"{service}:80")
    assert cluster.relay(f"{service}:80") == address
    with urllib.request.urlopen(f"http://{address}/name", timeout=5) as answer:
        assert answer.read().decode().strip() in {"web-1", "web-2"}


def test_a_process_inside_reaches_a_service_and_the_api_server(cluster: Cluster, service: str) -> None:
    assert cluster.run_inside(["curl", "-s", f"http://{service}/name"], capture_output=True, text=True).stdout.strip() in {"web-1", "web-2"}
    inside = cluster.popen_inside(["curl", "-sk", "https://10.96.0.1/version"], stdout=subprocess.PIPE, text=True)
    assert '"minor": "37"' in inside.communicate()[0]


def test_port_forward_reaches_a_pod(cluster: Cluster, service: str) -> None:
    from localcluster.tools import tool

    argv = [str(tool("kubectl")), "--kubeconfig", str(cluster.kubeconfig), "port-forward", "pod/web-1", ":8080"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as forward:
        assert forward.stdout is not None
        line = forward.stdout.readline()
        try:
            port = line.split("127.0.0.1:")[1].split()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/name", timeout=5) as answer:
                assert answer.read() == b"web-1\n"
        finally:
            forward.terminate()


def test_the_s3_server_is_reached_from_pods_and_from_outside_and_keeps_its_data(cluster: Cluster, run_pod: RunPod) -> None:
    s3 = cluster.start_s3()
    config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1})

    def client() -> object:
        return boto3.client(
            "s3",
            endpoint_url=s3.outside,
            aws_access_key_id=s3.access_key,
            aws_secret_access_key=s3.secret_key,
            region_name=s3.region,
            config=config,
        )

    client().create_bucket(Bucket="engines")  # type: ignore[attr-defined]
    client().put_object(Bucket="engines", Key="k", Body=b"kept")  # type: ignore[attr-defined]
    assert run_pod(f"curl -s -o /dev/null -w '%{{http_code}}' {s3.inside}/engines/k") == "403"
    cluster.stop_s3()
    with pytest.raises(Exception, match="onnection"):
        client().get_object(Bucket="engines", Key="k")  # type: ignore[attr-defined]
    assert cluster.restart_s3() == s3
    assert client().get_object(Bucket="engines", Key="k")["Body"].read() == b"kept"  # type: ignore[attr-defined]
