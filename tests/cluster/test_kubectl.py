"""`kubectl enginefleet` as people use it: kubectl finds it, it reads and asks on a real cluster, and its exit codes fit scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.tools import tool

from .fleet import Fleet, Site, phase

SCRIPTS = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Answer:
    """Exit code and what was printed."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class Plugin:
    """`kubectl enginefleet` in the namespace of a site."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.folder = folder
        self.kubeconfig = site.fleet.cluster.kubeconfig

    def __call__(
        self, *words: str, input: str = "", kubeconfig: Path | None = None, of_namespace: bool = True, env: Mapping[str, str] | None = None
    ) -> Answer:
        path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [
                str(tool("kubectl")),
                "enginefleet",
                words[0],
                *(["-n", self.site.namespace] if of_namespace and "-A" not in words else []),
                *words[1:],
            ],
            env=os.environ | {"PATH": path, "KUBECONFIG": str(kubeconfig or self.kubeconfig), "COLUMNS": "200"} | dict(env or {}),
            cwd=self.folder,
            input=input,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def ask(served: Site, fleet: Fleet, tmp_path: Path) -> Plugin:
    served.wait_ready()
    return Plugin(served, tmp_path)


# ---- reading


def test_status_shows_the_tree_down_to_nodes_and_tells_scripts_whether_all_is_ready(ask: Plugin) -> None:
    found = ask("status", "digits")
    assert found.code == 0, found.err
    lines = [" ".join(line.split()) for line in found.out.splitlines()]
    assert lines[0].startswith(f"{ask.site.namespace}/digits Ready rev-"), found.out
    for node in ("node-a1", "node-a2"):
        assert any(f"{node} ready" in line for line in lines), found.out
    seen = ask("status", "digits", "-o", "json").json()
    assert (seen["ready"], seen["engines"]) == ("True", "1/1")
    [hardware] = seen["classes"]
    assert {(n["node"], n["state"], n["updated"]) for f in hardware["fingerprints"] for n in f["nodes"]} == {
        ("node-a1", "ready", True),
        ("node-a2", "ready", True),
    }
    assert yaml.safe_load(ask("status", "-o", "yaml").out) == [seen]
    assert seen in ask("status", "-A", "-o", "json").json()
    assert ask("status", "digits", "-A").code == 2


def test_explain_tells_of_a_model_and_of_a_node_why_it_is_as_it_is(ask: Plugin) -> None:
    mdep, node = ask("explain", "digits"), ask("explain", "node-a1")
    assert (mdep.code, node.code) == (0, 0), mdep.err + node.err
    assert "Ready" in mdep.out
    assert f"{ask.site.namespace}/digits" in node.out
    assert "x86_64" in node.out
    assert ask("explain", "node/node-a1", "-o", "json").json()["name"] == "node-a1"


def test_engines_and_history_name_what_was_built_and_what_a_rollback_can_go_to(ask: Plugin) -> None:
    [build] = ask.site.builds()
    [row] = ask("engines", "digits", "-o", "json").json()
    assert (row["name"], row["verdict"], row["engineKey"]) == (build["metadata"]["name"], "Passed", build["spec"]["engineKey"])
    assert "Passed" in ask("engines").out
    assert row["name"] in {one["name"] for one in ask("engines", "-A", "-o", "json").json()}
    [release] = ask("history", "digits", "-o", "json").json()
    assert (release["state"], release["kept"]) == ("stable", True)
    assert [e["engineBuild"] for e in release["engines"]] == [row["name"]]
    assert release["release"] in ask("history", "digits").out


def test_logs_shows_what_a_job_has_said(ask: Plugin) -> None:
    [build] = ask.site.builds()
    found = ask("logs", build["metadata"]["name"], "--no-follow")
    assert found.code == 0, found.err
    assert "publish the verdict" in found.out
    assert found.err.startswith(f"build {build['metadata']['name']} on node-a")
    last = ask("logs", "digits", "--tail", "1")
    assert (last.code, len(last.out.splitlines())) == (0, 1)


def test_report_says_where_the_pages_are_and_opens_one_for_who_may_read_the_store(ask: Plugin) -> None:
    told = ask("report", "digits")
    [build] = ask.site.builds()
    assert told.code == 0, told.err
    assert f"/reports/{build['spec']['engineKey']}/" in told.out
    stranger = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"}
    refused = ask("report", "digits", "--open", env=stranger)
    assert (refused.code, "ReportNotReachable" in refused.err) == (1, True), refused.err
    s3 = ask.site.fleet.s3
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key, "BROWSER": "true"}
    opened = ask("report", build["metadata"]["name"], "--open", "--endpoint", s3.outside, env=keys)
    assert opened.code == 0, opened.err
    page = Path(opened.out.strip())
    assert page.parent == ask.folder
    assert build["spec"]["engineKey"] in page.read_text()


# ---- what would be


def test_plan_tells_what_a_manifest_would_do_and_writes_nothing(ask: Plugin) -> None:
    site = ask.site
    before = site.versions()

    def plan(document: dict[str, Any], *words: str) -> Answer:
        return ask("plan", "-f", "-", *words, input=yaml.safe_dump(document))

    same = plan(site.mdep(), "-o", "json")
    assert same.code == 0, same.err
    [seen] = same.json()
    assert (seen["new"], seen["changed"], seen["prepare"], seen["nodesToMove"]) == (False, [], [], 0)
    other = plan(site.mdep(precision="fp16"))
    assert other.code == 0, other.err
    assert "changes spec.precision" in other.out
    assert "2 nodes to move" in other.out
    file = ask.folder / "new.yaml"
    file.write_text(yaml.safe_dump_all([site.hwc(), site.mdep("another")]))
    new = ask("plan", "-f", str(file))
    assert (new.code, "not looked at: HardwareClass" in new.err) == (0, True), new.err
    wrong = plan(site.mdep(precision="int9"))
    assert (wrong.code, "int9" in wrong.err) == (2, True), wrong.err
    assert site.versions() == before
    assert site.get("another") is None


# ---- asking the operator


def test_refresh_and_retry_wait_until_the_operator_has_acted(ask: Plugin) -> None:
    builds = {b["metadata"]["uid"] for b in ask.site.builds()}
    for act in ("refresh", "retry"):
        done = ask(act, "digits", "--wait", "--timeout", "100")
        assert done.code == 0, done.out + done.err
    assert {b["metadata"]["uid"] for b in ask.site.builds()} == builds
    assert ask("retry", f"hwc/{ask.site.hardware_class}").code == 0


@pytest.mark.parametrize("act", ["promote", "abort", "approve"])
def test_what_has_nothing_to_act_on_changes_nothing(ask: Plugin, act: str) -> None:
    pods = {p["metadata"]["uid"] for p in ask.site.pods()}
    done = ask(act, "digits", "--wait", "--timeout", "60", "-o", "json")
    assert done.code == 0, done.out + done.err
    assert done.json()["act"] == act
    assert {p["metadata"]["uid"] for p in ask.site.pods()} == pods


# ---- failures


def test_what_is_not_there_and_what_one_may_not_see_have_their_own_exit_codes(ask: Plugin, tmp_path: Path) -> None:
    missing = ask("status", "nothing")
    assert (missing.code, "There is no ModelDeployment nothing" in missing.err) == (3, True), missing.err
    assert ask("explain", "nothing").code == 3
    assert ask("logs", "nothing").code == 3
    assert ask("retry", "pod/x").code == 2
    assert ask("plan", "-f", "absent.yaml").code == 2
    assert ask("status", kubeconfig=tmp_path / "absent").code == 4
    config = yaml.safe_load(ask.kubeconfig.read_text())
    away, stranger = json.loads(json.dumps(config)), json.loads(json.dumps(config))
    away["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "away").write_text(json.dumps(away))
    unreachable = ask("status", kubeconfig=tmp_path / "away")
    assert (unreachable.code, "does not answer" in unreachable.err) == (4, True), unreachable.err
    token = ask.site.fleet.kube.kubectl("create", "token", "default", "-n", ask.site.namespace).strip()
    stranger["users"][0]["user"] = {"token": token}
    (tmp_path / "stranger").write_text(json.dumps(stranger))
    forbidden = ask("status", kubeconfig=tmp_path / "stranger")
    assert (forbidden.code, "Forbidden" in forbidden.err) == (4, True), forbidden.err


def test_a_user_of_one_namespace_is_told_what_a_node_does_for_it(ask: Plugin, tmp_path: Path) -> None:
    site, kubectl = ask.site, ask.site.fleet.kube.kubectl
    account, name = f"--serviceaccount={site.namespace}:default", f"reader-{site.namespace}"
    kubectl("create", "role", name, "-n", site.namespace, "--verb=get,list", "--resource=modeldeployments.enginefleet.io,pods")
    kubectl("create", "rolebinding", name, "-n", site.namespace, f"--role={name}", account)
    kubectl("create", "clusterrole", name, "--verb=get", "--resource=nodes,nodefingerprints.enginefleet.io")
    kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", account)
    try:
        config = yaml.safe_load(ask.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": kubectl("create", "token", "default", "-n", site.namespace).strip()}
        config["contexts"][0]["context"]["namespace"] = site.namespace
        (tmp_path / "reader").write_text(json.dumps(config))
        found = ask("explain", "node/node-a1", "-o", "json", kubeconfig=tmp_path / "reader", of_namespace=False)
        assert found.code == 0, found.err
        assert [one["modelDeployment"] for one in found.json()["serves"]] == [f"{site.namespace}/digits"]
        assert "left out" in found.err, "it may not see HardwareClasses"
    finally:
        for kind in ("clusterrolebinding", "clusterrole"):
            kubectl("delete", kind, name)


# ---- last: it changes what the others read


def test_logs_follows_a_build_to_its_end(ask: Plugin) -> None:
    site, fleet = ask.site, ask.site.fleet
    fleet.apply(site.hwc(image="enginefleet/runtime:ort-1.23"))
    second = fleet.wait("a second build", lambda: next((b for b in site.builds() if phase(b) == "Building"), None))
    name = second["metadata"]["name"]
    followed = ask("logs", name)
    assert followed.code == 0, followed.err
    assert "publish the verdict" in followed.out
    fleet.wait("it passed", lambda: next((b for b in site.builds() if b["metadata"]["name"] == name and phase(b) == "Passed"), None))
