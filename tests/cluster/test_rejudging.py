"""A node's power mode changes: the engine that serves there is judged again, once, and goes on serving whatever comes out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from enginefleet_api import labels
from enginefleet_api.documents import Answer, Verdict
from enginefleet_builder.store import layout
from localcluster import NodeSpec

from .fleet import Fleet, Site, phase, ready

NODE = "node-j1"
MODES = "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=1 NAME=15W >\n"
FACTS = {
    "etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic, EABI: aarch64, DATE: Wed Jan  8 01:49:37 UTC 2025\n",
    "etc/nvpmodel.conf": MODES,
    "var/lib/nvpmodel/status": "pmode:0000\n",
    "sys/firmware/devicetree/base/compatible": "nvidia,p3768-0000+p3767-0000\0nvidia,p3767-0000\0nvidia,tegra234\0",
}
"""A board with power modes; all else of it is this machine, so that its engines really run."""


@pytest.fixture(scope="module", autouse=True)
def board(cluster_fleet: Fleet) -> Iterator[None]:
    cluster_fleet.cluster.add_node(NodeSpec(NODE, labels={"hardware": "board", "enginefleet.io/jetson": "true"}, facts=FACTS), wait=False)
    yield
    cluster_fleet.cluster.remove_node(NODE)


@pytest.fixture
def site(fleet: Fleet) -> Iterator[Site]:
    made = Site(fleet, nodes="board")
    yield made
    made.close()
    power(fleet, 0)


def power(fleet: Fleet, number: int) -> None:
    """Another power mode, of which the agent is told nothing but that it should look: else it looks once a minute."""
    (fleet.cluster.node_root(NODE) / "var/lib/nvpmodel/status").write_text(f"pmode:{number:04}\n")
    fleet.kube.kubectl("annotate", "nodefingerprint", NODE, f"test/looked={number}", "--overwrite")


def mode(fleet: Fleet) -> str:
    """As the agent tells it."""
    found = fleet.world.one("nf", NODE) or {}
    return str(found.get("spec", {}).get("host", {}).get("context", {}).get("powerMode", ""))


def judges(site: Site) -> list[str]:
    return sorted(j["metadata"]["name"] for j in site.jobs("build") if labels.CONTEXT in j["metadata"].get("annotations", {}))


def answers(site: Site) -> dict[str, str]:
    """Answer by power mode, of the one engine that passed."""
    (build,) = [b for b in site.builds() if phase(b) == "Passed"]
    return {c["facts"]["powerMode"]: c.get("answer", "") for c in build["status"].get("contexts", ())}


def served(site: Site) -> list[str]:
    return [p["metadata"]["uid"] for p in site.pods() if ready(p)]


def test_another_power_mode_is_judged_once_and_never_again(fleet: Fleet, site: Site) -> None:
    site.apply_all()
    site.wait_ready()
    assert answers(site) == {"0 (MAXN)": "Pass"}
    pods, builds = served(site), site.builds()
    power(fleet, 1)
    fleet.wait("it was judged in the other mode", lambda: answers(site) == {"0 (MAXN)": "Pass", "1 (15W)": "Pass"})
    (job,) = judges(site)
    assert site.wait_reason("Passes", "BelowGate")["status"] == "False"
    assert served(site) == pods
    assert [b["metadata"]["uid"] for b in site.builds()] == [b["metadata"]["uid"] for b in builds]
    (engine,) = [b["spec"]["engineKey"] for b in site.builds()]
    assert len(fleet.keys(f"{site.prefix}/engines/{engine}/builds/")) == 1, "nothing was built"
    # what comes after: a restart, and the modes that are known
    fleet.calm(site)
    fleet.operator.restart()
    fleet.quiet(site)
    power(fleet, 0)
    fleet.wait("the agent tells the first mode", lambda: mode(fleet) == "0 (MAXN)")
    fleet.calm(site)
    assert judges(site) == [job]
    assert not [e for e in fleet.world.all("event", site.namespace) if e.get("reason") == "RejudgeFailed"]


def test_an_engine_that_fails_in_the_other_mode_serves_on_and_everybody_is_told(fleet: Fleet, site: Site) -> None:
    """Its gate lets nothing pass here; another site, which shares the store, says that it passed there in the first mode."""
    gate: dict[str, Any] = {"uri": "s3://models/mnist/validation.npz", "minSamples": 200, "acceptance": {"minimum": "0.999"}}
    site.apply_all(validation=gate)
    site.wait_reason("GateFailed", "Stalled")
    (build,) = site.builds()
    passed_elsewhere(fleet, site, build["spec"]["engineKey"], build["spec"]["gateKey"])
    fleet.kube.kubectl("annotate", "mdep", site.name, "-n", site.namespace, f"{labels.RETRY}=1")
    site.wait_ready()
    assert answers(site) == {"0 (MAXN)": "Pass"}
    pods = served(site)
    power(fleet, 1)
    told = site.wait_reason("GateFailed", "BelowGate")
    assert told["status"] == "True"
    for part in ("power mode 1 (15W)", NODE, "is below the minimum 0.999", "It goes on serving", labels.RETRY):
        assert part in told["message"]
    assert site.condition("Ready")["status"] == "True"
    (build,) = site.builds()
    assert [(c["type"], c["status"], c["reason"]) for c in build["status"]["conditions"]] == [("BelowGate", "True", "GateFailed")]
    fleet.wait("an event says so", lambda: [e for e in fleet.world.all("event", site.namespace) if e.get("reason") == "RejudgeFailed"])
    fleet.calm(site)
    assert len(judges(site)) == 1
    assert served(site) == pods
    # the answer of one context refuses nobody: a pod that is made anew fetches the engine as before
    fleet.delete("pod", site.pods()[0]["metadata"]["name"], site.namespace)
    fleet.wait("another pod serves", lambda: (now := served(site)) and now != pods)
    power(fleet, 0)
    site.wait_reason("Passes", "BelowGate")
    fleet.calm(site)
    assert len(judges(site)) == 1


def passed_elsewhere(fleet: Fleet, site: Site, engine_key: str, gate_key: str) -> None:
    """A newer verdict of the same gate about the same engine."""
    prefix = f"{site.prefix}/"
    (key,) = [key for key in fleet.keys(prefix + layout.verdicts(engine_key, gate_key)) if key.endswith(".json")]
    body = fleet.client().get_object(Bucket="engines", Key=key)["Body"].read()
    failed = Verdict.model_validate_json(body)
    assert (failed.answer, failed.context["powerMode"]) == (Answer.FAIL, "0 (MAXN)")
    time = layout.timestamp(layout.verdict_seconds(key) + 1)
    passed = failed.model_copy(update={"answer": Answer.PASS, "reasons": ["it is another machine"], "time": time, "holder": "elsewhere"})
    fleet.client().put_object(
        Bucket="engines",
        Key=prefix + layout.verdict(engine_key, gate_key, passed.blob, time, "elsewhere"),
        Body=passed.model_dump_json(by_alias=True, exclude_none=True).encode(),
    )


# ---- the store


@pytest.fixture
def looking(fleet: Fleet) -> Iterator[Fleet]:
    """An operator that looks at what is published after 20 seconds, not after a day."""
    fleet.operator.kill()
    fleet.operator.start(check_hours="0.005")
    yield fleet
    fleet.operator.restart()


@pytest.mark.parametrize("damage", ["deleted", "overwritten"])
def test_an_engine_that_the_store_lost_is_restored_before_any_pod_needs_it(looking: Fleet, site: Site, damage: str) -> None:
    fleet = looking
    site.apply_all()
    site.wait_ready()
    pods = served(site)
    (key,) = fleet.keys(f"{site.prefix}/blobs/")
    good = fleet.client().get_object(Bucket="engines", Key=key)["Body"].read()
    if damage == "deleted":
        fleet.client().delete_object(Bucket="engines", Key=key)
    else:
        fleet.client().put_object(Bucket="engines", Key=key, Body=good[:-1] + b"x")
    fleet.wait("it is noticed", lambda: [e for e in fleet.world.all("event", site.namespace) if e.get("reason") == "EngineLost"])

    def restored() -> bool:
        (build,) = site.builds()
        blob = (build["status"].get("engine") or {}).get("blob", "").removeprefix("sha256:")
        found = [k for k in fleet.keys(f"{site.prefix}/blobs/") if blob and k.endswith(blob)]
        return bool(found) and hashlib.sha256(fleet.client().get_object(Bucket="engines", Key=found[0])["Body"].read()).hexdigest() == blob

    fleet.wait("the store holds what is served", restored)
    site.wait_ready()
    assert restored()
    if fleet.keys(f"{site.prefix}/blobs/") == [key]:
        assert served(site) == pods, "the same bytes: no pod was touched"
    lost = (site.get() or {})["status"]["storeCheck"]
    fleet.wait("the next look finds it", lambda: (c := (site.get() or {})["status"]["storeCheck"]) != lost and not c.get("lost"))
