"""A second ONNX Runtime as `runtime.candidateImage`: proven beside the one that serves, rolled out by being written as the image, without a build."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from demo.world import condition

from .fleet import SYSTEM, Fleet, Site, everywhere, phase, ready, standing
from .killer import KillProxy
from .test_kill_points import PREFIX, live_build_pods, short_lives

NOW, NEXT = "enginefleet/runtime:ort-1.24", "enginefleet/runtime:ort-1.23"


def image_of(job: Mapping[str, Any]) -> str:
    return str(job["spec"]["template"]["spec"]["containers"][0]["image"])


def probes(site: Site) -> dict[str, str]:
    """Image by name of the class's probe Jobs."""
    jobs = site.fleet.world.all("job", SYSTEM, role="probe", hardware_class=site.hardware_class)
    return {j["metadata"]["name"]: image_of(j) for j in jobs}


def told(site: Site) -> Mapping[str, Any]:
    """What the ModelDeployment says of the candidate."""
    classes = (site.get() or {}).get("status", {}).get("classes") or [{}]
    return classes[0].get("candidate") or {}


def class_condition(site: Site, kind: str) -> Mapping[str, str]:
    return condition(site.fleet.world.one("hwc", site.hardware_class), kind)


def pods(site: Site) -> list[str]:
    return sorted(p["metadata"]["uid"] for p in site.pods())


def names(site: Site, kind: str) -> list[str]:
    return [one["metadata"]["name"] for one in site.fleet.world.all(kind, site.namespace)]


def test_a_candidate_is_proven_beside_what_serves_and_rolled_out_without_a_build(fleet: Fleet, site: Site) -> None:
    site.apply_all()
    site.wait_ready()
    old, running, workloads = standing(site)["release"], pods(site), names(site, "ds")

    fleet.apply(site.hwc(runtime={"candidateImage": NEXT}))
    fleet.kube.kubectl("wait", f"hwc/{site.hardware_class}", "--for=condition=CandidateReady", "--timeout=180s")

    status = fleet.kube.get(f"/apis/enginefleet.io/v1alpha1/hardwareclasses/{site.hardware_class}")["status"]
    assert status["candidate"]["models"] == "1/1"
    (model,) = status["candidate"]["modelDeployments"]
    assert (model["modelDeployment"], model["state"]) == (f"{site.namespace}/{site.name}", "Ready")
    assert (model["nodes"], model["ready"]) == (2, 2)
    assert ["ONNX Runtime 1.24" in f["summary"] for f in status["fingerprints"]] == [True]
    assert ["ONNX Runtime 1.23" in f["summary"] for f in status["candidate"]["fingerprints"]] == [True]
    assert sorted(probes(site).values()) == [NEXT, NOW], "one node of the two that are alike was asked"
    (engine,) = fleet.wait("the model says so too", lambda: told(site).get("fingerprints") if told(site).get("state") == "Ready" else None)
    assert engine["accuracy"]["metric"] == "top1"
    (build,) = [b for b in site.builds() if b["status"].get("candidate")]
    assert (build["metadata"]["name"], phase(build), build["spec"]["image"]) == (engine["engineBuild"], "Passed", NEXT)
    assert sorted(map(image_of, site.jobs("build"))) == [NEXT, NOW]
    # nothing moved, and nothing does: also not by an operator that starts anew
    assert site.condition("Ready")["status"] == "True"
    fleet.calm(site)
    fleet.operator.restart()
    fleet.quiet(site)
    assert (standing(site)["release"], pods(site), names(site, "ds")) == (old, running, workloads)
    assert [e for e in fleet.world.all("event", site.namespace) if e.get("reason") == "CandidateReady"]

    before = (sorted(b["metadata"]["uid"] for b in site.builds()), names_of(site, "build", "prepare"), probes(site))
    fleet.apply(site.hwc(image=NEXT))
    fleet.wait("the candidate serves", lambda: (now := standing(site)["release"]) not in ("", old) and everywhere(site, now))
    site.wait_ready()
    assert (sorted(b["metadata"]["uid"] for b in site.builds()), names_of(site, "build", "prepare"), probes(site)) == before
    assert {p["spec"]["containers"][0]["image"] for p in site.pods()} == {NEXT}
    assert told(site) == {}
    fleet.wait("the class has no candidate", lambda: class_condition(site, "CandidateReady")["reason"] == "NoCandidate")
    fleet.calm(site)
    assert not [b for b in site.builds() if b["status"].get("candidate")]


def names_of(site: Site, *roles: str) -> list[str]:
    return sorted(job["metadata"]["name"] for role in roles for job in site.jobs(role))


def test_without_the_candidate_its_job_and_its_labels_are_gone_and_what_serves_never_moved(fleet: Fleet, site: Site) -> None:
    """Its build finds no room on any node, so that it waits for ever."""
    site.apply_all()
    site.wait_ready()
    running, builds = pods(site), names(site, "eb")
    huge = {"candidateImage": NEXT, "resources": {"requests": {"cpu": "1000"}}}
    fleet.apply(site.hwc(runtime=huge, builds={"whenBusy": "Wait"}))
    said = fleet.wait("it is told why it waits", lambda: c if (c := told(site)).get("reason") == "Unschedulable" else None)
    assert (said["state"], said["nodes"], said.get("ready", 0)) == ("Waiting", 2, 0)
    waits = fleet.wait(
        "the class tells it of the model",
        lambda: c if (c := class_condition(site, "CandidateReady")).get("reason") == "EnginesMissing" else None,
    )
    assert f"{site.namespace}/{site.name} is Waiting: " in waits["message"]
    assert class_condition(site, "Ready")["status"] == "True"
    assert site.condition("Ready")["status"] == "True"

    fleet.apply(site.hwc())
    fleet.wait("its Job is gone", lambda: [image_of(j) for j in site.jobs("build")] == [NOW])
    labelled = f"fp.enginefleet.io/{site.hardware_class}."
    fleet.wait("its labels are gone", lambda: all(sum(k.startswith(labelled) for k in have) == 1 for have in labels_of_nodes(site)))
    fleet.wait("nothing is said of it any more", lambda: not told(site))
    assert pods(site) == running
    assert set(builds) < set(names(site, "eb")), "what was tried is kept for spec.historyLimit"
    fleet.calm(site)


def labels_of_nodes(site: Site) -> list[Mapping[str, str]]:
    nodes = site.fleet.world.all("node")
    return [n["metadata"]["labels"] for n in nodes if n["metadata"]["labels"].get("hardware") == site.nodes_label]


def test_a_candidate_image_that_cannot_be_pulled_is_named_and_the_class_stays_ready(fleet: Fleet, site: Site) -> None:
    site.apply_all()
    site.wait_ready()
    running = pods(site)
    fleet.apply(site.hwc(runtime={"candidateImage": "enginefleet/none:1"}))
    fleet.wait("the class names the image", lambda: "enginefleet/none:1" in class_condition(site, "CandidateReady").get("message", ""))
    fleet.wait("the model names it", lambda: "enginefleet/none:1" in told(site).get("message", ""))
    assert told(site)["reason"] == "FingerprintUnknown"
    assert class_condition(site, "CandidateReady")["reason"] == "Probing"
    assert class_condition(site, "Ready")["status"] == "True"
    assert "enginefleet/none:1" in probes(site).values()
    fleet.apply(site.hwc())
    fleet.wait("its probe is gone", lambda: set(probes(site).values()) == {NOW})
    assert pods(site) == running
    assert site.condition("Ready")["status"] == "True"


def test_killed_again_and_again_a_candidate_is_proven_once_and_promoted_without_a_build(proxied: tuple[Fleet, KillProxy]) -> None:
    """Lives of one write each with ENGINEFLEET_SWEEP=1; of a few otherwise."""
    fleet, proxy = proxied
    site, each = Site(fleet, nodes="cpu-b", prefix=PREFIX), 1 if os.environ.get("ENGINEFLEET_SWEEP") else 3

    def is_proven() -> bool:
        assert max(live_build_pods(site).values(), default=0) <= 1
        assert pods(site) == running
        return class_condition(site, "CandidateReady").get("status") == "True"

    def serves() -> bool:
        images = [p["spec"]["containers"][0]["image"] for p in site.pods() if ready(p)]
        return images == [NEXT] and site.settled() is not None

    try:
        site.apply_all()
        proxy.arm(0, lambda: None)
        fleet.operator.start()
        site.wait_ready()
        fleet.operator.kill()
        running = pods(site)
        fleet.apply(site.hwc(runtime={"candidateImage": NEXT}))
        writes = short_lives(fleet, proxy, each, is_proven)
        assert len(writes) >= 8, writes
        fleet.apply(site.hwc(image=NEXT))
        short_lives(fleet, proxy, each, serves)
        assert sorted(map(image_of, site.jobs("build"))) == [NEXT, NOW]
        assert sorted(probes(site).values()) == [NEXT, NOW]
        assert [phase(b) for b in site.builds()] == ["Passed", "Passed"]
    finally:
        fleet.operator.kill()
        site.close()
