"""Pods: images, security settings, volumes, Jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from localcluster import Cluster, Image, KubectlError, LocalClusterError, virtual_environment
from tests.localcluster.pods import SHELL, pod

RunPod = Callable[..., str]


def test_a_job_runs_to_its_end(cluster: Cluster) -> None:
    cluster.kubectl("create", "job", "hello", f"--image={SHELL.name}", "--", "/bin/sh", "-c", "echo done by $HOSTNAME")
    cluster.kubectl("wait", "--for=condition=complete", "job/hello", "--timeout=20s")
    assert cluster.kubectl("logs", "job/hello").stdout.startswith("done by hello-")


@pytest.fixture
def environments(tmp_path: Path) -> list[Path]:
    """Two virtual environments below /tmp, which containers do not see, with two versions of one package."""
    made = []
    for version in ("1", "2"):
        folder = tmp_path / f"runtime-{version}"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        packages = next(folder.glob("lib/python*/site-packages"))
        (packages / "engine_runtime.py").write_text(f"version = '{version}'\n")
        (packages / f"engine_runtime-{version}.dist-info").mkdir()
        made.append(folder)
    return made


def test_two_images_run_two_versions_of_a_runtime(cluster: Cluster, run_pod: RunPod, environments: list[Path]) -> None:
    for folder in environments:
        cluster.add_image(virtual_environment(f"test/runtime:{folder.name}", folder))
    script = "python -c 'import engine_runtime; print(engine_runtime.version)'"
    assert [run_pod(script, image=f"test/runtime:{folder.name}") for folder in environments] == ["1\n", "2\n"]


def test_a_volume_on_tmp_does_not_cover_an_image_that_is_kept_below_tmp(
    cluster: Cluster, run_pod: RunPod, environments: list[Path]
) -> None:
    cluster.add_image(virtual_environment("test/runtime:below-tmp", environments[0]))
    script = "touch /tmp/mine && python -c 'import engine_runtime; print(engine_runtime.version)'"
    volume = {"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}
    assert run_pod(script, image="test/runtime:below-tmp", container=volume, volumes=[{"name": "tmp", "emptyDir": {}}]) == "1\n"


def test_a_pod_says_which_digest_it_runs(cluster: Cluster, run_pod: RunPod) -> None:
    digest = cluster.add_image(Image("test/digest:1", env={"A": "1"}))
    run_pod("true", image=f"test/digest@{digest}")
    found = json.loads(cluster.kubectl("get", "pods", "-o", "json").stdout)["items"]
    assert [p["status"]["containerStatuses"][0]["imageID"] for p in found if "digest" in p["spec"]["containers"][0]["image"]] == [
        f"test/digest:1@{digest}"
    ]


def test_a_container_without_a_command_runs_the_entrypoint_and_its_own_variables_win(cluster: Cluster, run_pod: RunPod) -> None:
    cluster.add_image(Image("test/entry:1", env={"A": "image", "B": "image"}, entrypoint=("/bin/sh", "-c", 'echo $A $B "$0"')))
    container = {"env": [{"name": "B", "value": "pod"}], "args": ["argument"]}
    assert run_pod(None, image="test/entry:1", container=container) == "image pod argument\n"


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("nobody/knows:1", "image nobody/knows:1 is not in this cluster's image map: add it with `python -m localcluster image add`"),
        (f"{SHELL.name}@sha256:{'0' * 64}", "in this cluster's image map has digest sha256:"),
    ],
)
def test_an_unknown_image_is_named_in_the_pods_status(cluster: Cluster, image: str, words: str) -> None:
    cluster.kubectl("apply", "-f", "-", input=json.dumps(pod("unknown", "true", image=image)))
    try:
        waiting = "jsonpath={.status.containerStatuses[0].state.waiting.reason}=ErrImagePull"
        cluster.kubectl("wait", "pod/unknown", f"--for={waiting}", "--timeout=20s")
        assert words in cluster.kubectl("describe", "pod", "unknown").stdout
    finally:
        cluster.kubectl("delete", "pod", "unknown", "--force", "--grace-period=0")


def test_a_digest_of_another_form_is_refused() -> None:
    with pytest.raises(LocalClusterError, match="digest '123' is not sha256"):
        Image("test/wrong:1", digest="123").entry()


def test_a_pod_of_a_namespace_that_enforces_restricted_runs(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "strict")
    cluster.kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        cluster.kubectl("apply", "-n", "strict", "-f", "-", input=json.dumps(pod("loose", "true")))
    container = {
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "work", "mountPath": "/work"}],
    }
    security = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    script = "echo text > /work/file; echo text > /tmp/file; test -w /dev/shm; test -s /var/run/secrets/kubernetes.io/serviceaccount/token; ! touch /etc/x"
    body = pod("tight", script, container=container, securityContext=security, volumes=[{"name": "work", "emptyDir": {}}])
    cluster.kubectl("apply", "-n", "strict", "-f", "-", input=json.dumps(body))
    cluster.kubectl("wait", "-n", "strict", "pod/tight", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=20s")


def test_run_as_non_root_alone_is_enough(run_pod: RunPod) -> None:
    assert run_pod("echo ran", securityContext={"runAsNonRoot": True}) == "ran\n"


def test_a_pod_uses_its_own_token_and_only_its_own_rights(cluster: Cluster, run_pod: RunPod) -> None:
    cluster.kubectl("create", "role", "reader", "--verb=list", "--resource=configmaps")
    cluster.kubectl("create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:default")
    script = """
    cd /var/run/secrets/kubernetes.io/serviceaccount
    for what in configmaps secrets; do
      curl -s -o /dev/null -w '%{http_code} ' --cacert ca.crt -H "Authorization: Bearer $(cat token)" \
        https://kubernetes.default.svc/api/v1/namespaces/default/$what
    done"""
    assert run_pod(script) == "200 403 "


def test_an_extended_resource_is_given_to_one_pod_at_a_time(cluster: Cluster, run_pod: RunPod) -> None:
    gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    cluster.kubectl("apply", "-f", "-", input=json.dumps(pod("holder", "sleep 1000", container=gpu)))
    cluster.kubectl("wait", "pod/holder", "--for=condition=Ready", "--timeout=20s")
    cluster.kubectl("apply", "-f", "-", input=json.dumps(pod("waiter", "true", container=gpu)))
    cluster.kubectl("wait", "pod/waiter", "--for=jsonpath={.status.conditions[0].reason}=Unschedulable", "--timeout=20s")
    cluster.kubectl("delete", "pod", "holder")
    cluster.kubectl("wait", "pod/waiter", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=20s")


def test_logs_and_exec_work_from_outside(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-f", "-", input=json.dumps(pod("long", "echo up; sleep 1000")))
    cluster.kubectl("wait", "pod/long", "--for=condition=Ready", "--timeout=20s")
    assert cluster.kubectl("logs", "long").stdout == "up\n"
    assert cluster.kubectl("exec", "-i", "long", "--", "/bin/cat", input="through").stdout == "through"
    assert cluster.kubectl("exec", "long", "--", "/bin/sh", "-c", "exit 7", check=False).returncode == 7
    cluster.kubectl("delete", "pod", "long")


def test_a_job_leaves_its_termination_message_and_init_containers_go_first(cluster: Cluster) -> None:
    mounts = {"volumeMounts": [{"name": "work", "mountPath": "/work"}]}
    first = {"name": "first", "image": SHELL.name, "command": ["/bin/sh", "-c", "echo first > /work/order"], **mounts}
    script = "cat /work/order > /dev/termination-log; exit 3"
    body = pod("message", script, container=mounts, initContainers=[first], volumes=[{"name": "work", "emptyDir": {}}])
    cluster.kubectl("apply", "-f", "-", input=json.dumps(body))
    cluster.kubectl("wait", "pod/message", "--for=jsonpath={.status.phase}=Failed", "--timeout=20s")
    ended = json.loads(cluster.kubectl("get", "pod", "message", "-o", "json").stdout)["status"]["containerStatuses"][0]["state"][
        "terminated"
    ]
    assert (ended["message"], ended["exitCode"]) == ("first\n", 3)


def test_a_container_sees_neither_the_users_files_nor_other_processes(run_pod: RunPod) -> None:
    seen = run_pod("ls /root /home /mnt 2>/dev/null | grep -v : || true; ls -d /proc/[0-9]*; ls -A /run /tmp")
    assert [line for line in seen.split() if line not in {"/run:", "/tmp:", "secrets"} and not line.startswith("/proc/")] == []
    assert len([line for line in seen.split() if line.startswith("/proc/")]) <= 2
