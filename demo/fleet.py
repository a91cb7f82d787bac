"""`make demo-fleet`: thirty nodes of four classes, and what happens to a fleet: rollouts, one that fails, an upgrade, nodes that are away.

All of it is the real thing but the nodes' CPUs, which are fact files: the agents read them as they would read the host's. Every step waits
for facts instead of times, and asserts; exit code 0 only if all of them held.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import onnx
import yaml
from onnx import numpy_helper

from demo.inference import Poller, infer
from demo.narrator import Narrator
from demo.site import EXAMPLE, MANIFESTS, MODELS, NAMESPACE, ROOT, Site, local_site
from demo.story import MODEL, Story, add_options, jobs_in_words, runtime, tell, uid
from demo.world import Object, condition, is_settled
from localcluster import Cluster, NodeSpec
from tools.images import build_images

FLEET = ROOT / "demo" / "fleet"
KIOSK = "digits-kiosk"
ACCELERATOR = "example.com/accelerator"
NEW, PATCHED = "enginefleet/runtime:ort-1.24", "enginefleet/runtime:ort-1.24-patched"
SOAK = 3.0
"""Seconds, as in digits.yaml."""


def _node(hardware: str, number: int, flags: str, accelerators: int = 0) -> NodeSpec:
    """A node whose CPU has these instruction sets, as its /proc/cpuinfo says."""
    cpu = "".join(
        f"processor\t: {index}\nmodel name\t: EngineFleet simulated CPU of a {hardware}\nflags\t\t: {flags}\n\n" for index in range(4)
    )
    return NodeSpec(
        f"{hardware}-{number:02}",
        labels={"hardware": hardware},
        cpus=8,
        extended={ACCELERATOR: str(accelerators)} if accelerators else {},
        facts={"proc/cpuinfo": cpu},
    )


AVX2 = "fpu sse4_2 avx avx2 fma"
NODES = (
    *(_node("press", number, f"{AVX2} avx512f avx512_vnni") for number in range(1, 9)),
    *(_node("press", number, AVX2) for number in range(9, 13)),
    *(_node("gate", number, f"{AVX2} avx_vnni") for number in range(1, 11)),
    *(_node("dock", number, f"{AVX2} avx512f", 1) for number in range(1, 8)),
    _node("kiosk", 1, AVX2),
)
LATE = _node("dock", 8, f"{AVX2} avx512f", 1)
CLASSES = ("press", "gate", "dock")
BROKEN: dict[str, Any] = {
    "template": {
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": "server", "image": NEW, "command": ["enginefleet", "serve", "--no-such-option"]}],
        }
    },
    "runtimeCheck": "Declare",
}
"""Pods of the user's own whose server ends at once."""


class FleetStory(Story):
    """The story of the fleet, on a local cluster."""

    @property
    def cluster(self) -> Cluster:
        assert self.site.cluster is not None
        return self.site.cluster

    def run(self) -> None:
        self.first_rollout()
        self.update()
        self.catch_up()
        self.join()
        self.abort()
        self.failed_update()
        self.upgrade()
        self.patch()
        self.kiosk()

    # ---- the steps

    def first_rollout(self) -> None:
        self.narrator.step("First rollout: 3 classes on 29 nodes, canaries first; and a site of one node")
        self.world.wait("operator and agents run", self.system_is_ready, 120)
        self.narrator.say(f"the operator and {len(NODES)} agents are ready")
        for number in (2, 3):
            self._upload_model(number)
        self.narrator.command("kubectl apply -f demo/manifests/10-store.yaml", self.site.apply(MANIFESTS / "10-store.yaml"))
        for path in ("hardware-classes.yaml", "digits.yaml", "digits-kiosk.yaml"):
            self.narrator.command(f"kubectl apply -f demo/fleet/{path}", self.site.apply(FLEET / path))
        began = time.monotonic()
        self.world.wait("both ModelDeployments are Ready", lambda: all(is_settled(self.model(m)) for m in (MODEL, KIOSK)), 240)
        took = time.monotonic() - began
        passed = [*self.builds(MODEL, "Passed"), *self.builds(KIOSK, "Passed")]
        for build in passed:
            accuracy = build["status"].get("accuracy") or {}
            self.narrator.say(
                f"{build['spec']['class']}: {runtime(build)}, {accuracy.get('metric')} {accuracy.get('value')}, built on {build['status'].get('node')}"
            )
        self.checks.check(
            "an engine for each fingerprint", "dock 1, gate 1, kiosk 1, press 2", _counted(b["spec"]["class"] for b in passed)
        )
        self.checks.check(
            "runtimes in the fleet", "ONNX Runtime 1.23.2, ONNX Runtime 1.24.4", ", ".join(sorted({runtime(b) for b in passed}))
        )
        self.checks.check("nodes that serve", "dock 7, gate 10, kiosk 1, press 12", self._serving())
        for hardware, gaps in self._soaks().items():
            told = ", ".join(f"{gap:.0f}" for gap in gaps)
            self.checks.check(
                f"{hardware}: seconds that the canary of a fingerprint was ready before others moved",
                f">= {SOAK:.0f}",
                told,
                min(gaps) >= SOAK,
            )
        self.checks.check("from apply to serving on 30 nodes, seconds", "< 180", f"{took:.0f}", took < 180)
        self._answers("after the first rollout")

    def update(self) -> None:
        self.narrator.step("Another model, while 3 nodes are off and every accelerator of dock is taken")
        self.away = self._to_be_cut_off()
        for node in self.away:
            self.cluster.stop_node(node)
        self.world.wait("the three nodes are NotReady", lambda: all(not self._node_ready(node) for node in self.away), 60)
        self.narrator.say(f"power is cut on {', '.join(self.away)}")
        self.first, jobs = self._releases(), self.uids("job", MODEL)
        self._apply(MODEL, {"model": {"uri": "s3://models/mnist/model-2.onnx"}})
        here = {node.name for node in NODES if node.name not in self.away and node.labels["hardware"] in CLASSES}
        least = Least(self)
        self.world.wait("the new model is served where a node is on", lambda: least() and self._moved(here), 240)
        self.checks.check("nodes with the new model", len(here), len(here & self._on_new()))
        told = ", ".join(f"{hardware} {count}" for hardware, count in sorted(least.of.items()))
        enough = least.of["dock"] >= 3 and least.of["gate"] >= 4 and least.of["press"] >= 4
        self.checks.check("least ready pods meanwhile, of dock 7, gate 9 and press 10", "dock >= 3, gate >= 4, press >= 4", told, enough)
        paused = self._paused()
        self.checks.check("pods of dock that made way for its build", 1, len(paused))
        built = next(b for b in self.builds(MODEL, "Passed") if b["spec"]["class"] == "dock" and b["spec"]["revision"] == self._revision())
        node = str(built["status"].get("node"))
        self.checks.check("where it was built", "that pod's node", node, f"node {node}:" in paused[0])
        self.checks.check("new Jobs", "1 build for dock, 1 build for gate, 2 build for press, 1 prepare for -", self._new_jobs(jobs))

    def catch_up(self) -> None:
        self.narrator.step("The 3 nodes come back and catch up")
        jobs = self.uids("job", MODEL)
        for node in self.away:
            self.cluster.start_node(node, wait=False)
        self.world.wait("the three nodes serve the new model", lambda: self._moved(set(self.away)), 120)
        self.checks.check("nodes that caught up", self.away, sorted(set(self.away) & self._on_new()))
        self.checks.check("Jobs for that", "none", self._new_jobs(jobs))

    def join(self) -> None:
        self.narrator.step("A node joins dock")
        jobs = self.uids("job", MODEL)
        self.cluster.add_node(LATE, wait=False)
        self.world.wait(f"{MODEL} is Ready", lambda: is_settled(self.model()) and len(self.pods()) == 30, 180)
        self.checks.check("Jobs for that", "none", self._new_jobs(jobs))
        self.checks.check("nodes with the new model", 30, len(self._on_new()))
        self._answers("with the new model")

    def abort(self) -> None:
        self.narrator.step("kubectl annotate … enginefleet.io/abort: back to the first model, without a build")
        jobs, second = self.uids("job", MODEL), self._releases()
        argv = ("annotate", "mdep", MODEL, "-n", NAMESPACE, "enginefleet.io/abort=monday")
        began = time.monotonic()
        self.narrator.command("kubectl " + " ".join(argv), self.site.kube.kubectl(*argv))
        self.world.wait("30 nodes serve the first model", lambda: self._all_on(self.first, 30), 180)
        stalled = self.world.wait("Stalled says Aborted", lambda: self._reason("Stalled", "Aborted"), 30)
        self.narrator.say(f"{stalled['reason']}: {stalled['message']}")
        self.checks.check(
            "nodes that are back, seconds", "30, < 120", f"30, {time.monotonic() - began:.0f}", time.monotonic() - began < 120
        )
        self.checks.check("releases are others than before", True, all(self.first[c] != second[c] for c in CLASSES))
        self.checks.check("Jobs for that", "none", self._new_jobs(jobs))

    def failed_update(self) -> None:
        self.narrator.step("A third model with pods that crash: the canaries fail, and it is rolled back by itself")
        before, touched = self._uids(), Touched(self)
        self._apply(MODEL, {"model": {"uri": "s3://models/mnist/model-3.onnx"}, "serving": BROKEN})
        told = self.world.wait("Stalled says RolledBack for every class", lambda: self._refused() if touched() else None, 240)
        for hardware, why in sorted(told.items()):
            self.narrator.say(f"{hardware}: {why['reason']}: {why['message']}")
        self.checks.check("why", "CanaryFailed 3", _counted(why["reason"] for why in told.values()))
        self.world.wait("30 nodes serve the first model", lambda: touched() and self._all_on(self.first, 30), 120)
        had = sorted(map(self.class_of, touched.nodes))
        most = {hardware: len(self._fingerprints(hardware)) for hardware in CLASSES}
        self.checks.check(
            "nodes that had the bad pods",
            "one a fingerprint at most, some in each class",
            _counted(had),
            set(had) == set(CLASSES) and all(had.count(hardware) <= most[hardware] for hardware in CLASSES),
        )
        after = self._uids()
        self.checks.check("pods that were not touched", 30 - len(had), sum(after[node] == pod for node, pod in before.items()))
        self.narrator.say("the spec is put right: back to the first model")
        before, jobs, builds = after, self.uids("job", MODEL), self.uids("eb", MODEL)
        self._apply(MODEL, {})
        self.world.wait(f"{MODEL} is Ready", lambda: is_settled(self.model()), 60)
        self.checks.check("pods that were not touched by that", 30, sum(pod == before.get(node) for node, pod in self._uids().items()))
        self.narrator.say(f"Jobs for that: {self._new_jobs(jobs)}")
        self.checks.check(
            "engines built for that", "none", _counted(_how(b) for b in self._new_builds(builds) if _how(b) == "built") or "none"
        )

    def upgrade(self) -> None:
        self.narrator.step("The class gate gets ONNX Runtime 1.24 for 1.23: another fingerprint, built and proven anew, there only")
        before, builds, jobs = self._uids(), self.uids("eb", MODEL), self.uids("job", MODEL)
        old = self._fingerprints("gate")
        self._set_image("gate", NEW)
        self.world.wait(
            "gate serves with the other runtime",
            lambda: is_settled(self.model()) and self._fingerprints("gate").isdisjoint(old) and self._replaced(before, "gate") == 10,
            180,
        )
        new = [b for b in self.world.all("eb", NAMESPACE, model_deployment=MODEL) if uid(b) not in builds]
        self.checks.check("new engines", "gate 1", _counted(b["spec"]["class"] for b in new))
        self.checks.check("its runtime", "ONNX Runtime 1.24.4", runtime(new[0]))
        self.checks.check("adopted or built", "built", _how(new[0]))
        self.checks.check("new Jobs", "1 build for gate", self._new_jobs(jobs))
        self.checks.check("pods of press and dock that were not touched", "dock 8, press 12", self._kept(before, ("press", "dock")))
        self._answers("with the other runtime")

    def patch(self) -> None:
        self.narrator.step("The class press gets a patched image, the same ONNX Runtime in it: adopted, not built")
        before, builds, fingerprints = self._uids(), self.uids("eb", MODEL), self._fingerprints("press")
        jobs = self.uids("job", MODEL)
        image = build_images([NEW])[NEW]
        digest = "sha256:" + hashlib.sha256(f"{image.digest} patched".encode()).hexdigest()
        self.cluster.add_image(replace(image, name=PATCHED, digest=digest))
        self._set_image("press", PATCHED)
        self.world.wait(
            "press serves from the patched image", lambda: is_settled(self.model()) and self._replaced(before, "press") == 12, 180
        )
        self.checks.check("fingerprints of press", sorted(fingerprints), sorted(self._fingerprints("press")))
        # a Job a fingerprint looks into the store, and finds the engine proven
        self.checks.check("new Jobs", "2 build for press", self._new_jobs(jobs))
        self.checks.check("what they did", "press adopted 2", _counted(f"{b['spec']['class']} {_how(b)}" for b in self._new_builds(builds)))
        self.checks.check("pods of gate and dock that were not touched", "dock 8, gate 10", self._kept(before, ("gate", "dock")))

    def kiosk(self) -> None:
        self.narrator.step("The site of one node, maxUnavailable 10%: an update, and one that fails")
        old = self.pods(KIOSK)["kiosk-01"]
        builds = self.uids("eb", KIOSK)
        with Poller(lambda: self.address(old), KIOSK, self.samples[:1]) as poller:
            self._apply(KIOSK, {"model": {"uri": "s3://models/mnist/model-2.onnx"}})
            self.world.wait("its engine passed", lambda: [b for b in self.builds(KIOSK, "Passed") if uid(b) not in builds], 90)
            good, bad = poller.until(time.monotonic())
        self.checks.check(
            "answers of the old pod until the new engine passed", "> 5, none failed", f"{good}, {len(bad)} failed", good > 5 and not bad
        )
        new = self.world.wait("the new pod serves", lambda: self._other(old), 60)
        self._apply(KIOSK, {"model": {"uri": "s3://models/mnist/model-2.onnx"}, "serving": BROKEN})
        stalled = self.world.wait("Stalled says RolledBack", lambda: self._reason("Stalled", "RolledBack", KIOSK), 90)
        self.narrator.say(f"{stalled['reason']}: {stalled['message']}")
        last = self.world.wait("the node serves again", lambda: self._other(new), 60)
        answer = int(infer(self.address(last), KIOSK, self.samples[:1])[0])
        self.checks.check("its answer after the rollback", int(self.labels[0]), answer)

    # ---- what the steps are made of

    def _upload_model(self, number: int) -> None:
        """The same network with its largest weights scaled a little: another model, and as accurate."""
        model = onnx.load(EXAMPLE / "model.onnx")
        weights = max((t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT), key=lambda t: len(t.raw_data))
        values = numpy_helper.to_array(weights)
        weights.CopyFrom(numpy_helper.from_array((values * (1 + number / 1000)).astype(values.dtype), weights.name))
        self.site.s3().put_object(Bucket=MODELS, Key=f"mnist/model-{number}.onnx", Body=model.SerializeToString())

    def _apply(self, model: str, changes: Mapping[str, Any]) -> None:
        """The ModelDeployment's file with these fields of its spec changed, applied whole, as from Git."""
        document = yaml.safe_load((FLEET / f"{model}.yaml").read_text())
        document["spec"] |= changes
        said = self.site.kube.kubectl("apply", "-f", "-", input=yaml.safe_dump(document))
        told = " and ".join(f"another spec.{field}" for field in changes) or "as it was"
        self.narrator.command(f"kubectl apply -f demo/fleet/{model}.yaml  # with {told}", said)

    def _set_image(self, hardware: str, image: str) -> None:
        change = f'{{"spec": {{"runtime": {{"image": "{image}"}}}}}}'
        said = self.site.kube.kubectl("patch", "hwc", hardware, "--type=merge", "-p", change)
        self.narrator.command(f"kubectl patch hwc {hardware} --type=merge -p '{change}'", said)

    def _serving(self) -> str:
        """Ready pods by class, like `dock 7, gate 10`."""
        return _counted(self.class_of(node) for model in (MODEL, KIOSK) for node in self.pods(model))

    def _answers(self, when: str) -> None:
        """One pod of each class is asked over HTTP."""
        found: dict[str, int] = {}
        for node, pod in self.pods().items():
            hardware = self.class_of(node)
            if hardware not in found:
                found[hardware] = int((infer(self.address(pod), MODEL, self.samples[:20]) == self.labels[:20]).sum())
        told = ", ".join(f"{hardware} {right}" for hardware, right in sorted(found.items()))
        self.checks.check(
            f"right answers to 20 pictures {when}", ">= 18 in each class", told, min(found.values()) >= 18 and len(found) == 3
        )

    def _soaks(self) -> dict[str, list[float]]:
        """By class, for each fingerprint: seconds from when its first pod was ready to its second pod, from the pods' own times."""
        pods: dict[tuple[str, str], list[Object]] = {}
        for node, pod in self.pods().items():
            hardware = self.class_of(node)
            fingerprint = (self.world.one("node", node) or {})["metadata"]["labels"][f"fp.enginefleet.io/{hardware}"]
            pods.setdefault((hardware, fingerprint), []).append(pod)
        found: dict[str, list[float]] = {}
        for (hardware, _), mine in sorted(pods.items()):
            first, second, *_ = sorted(mine, key=lambda pod: _time(pod["metadata"]["creationTimestamp"]))
            ready = _time(condition(first, "Ready")["lastTransitionTime"])
            found.setdefault(hardware, []).append(_time(second["metadata"]["creationTimestamp"]) - ready)
        return found

    def _fingerprints(self, hardware: str) -> set[str]:
        """Of the nodes of a class, as their labels say."""
        nodes = [node for node in self.world.all("node") if node["metadata"]["labels"].get("hardware") == hardware]
        return {found for node in nodes if (found := node["metadata"]["labels"].get(f"fp.enginefleet.io/{hardware}"))}

    def _to_be_cut_off(self) -> list[str]:
        """A node of gate and one of each kind of press, none of them the operator's: a node that is away holds its pods for five minutes."""
        taken = {pod["spec"].get("nodeName") for pod in self.site.operator_pods()}
        groups = ([f"gate-{n:02}" for n in (5, 6)], [f"press-{n:02}" for n in (3, 4)], [f"press-{n:02}" for n in (11, 12)])
        return [next(node for node in group if node not in taken) for group in groups]

    def _node_ready(self, node: str) -> bool:
        return condition(self.world.one("node", node), "Ready").get("status") == "True"

    def _uids(self) -> dict[str, str]:
        return {node: uid(pod) for node, pod in self.pods().items()}

    def _releases(self) -> dict[str, str]:
        """What each class is to run."""
        classes = (self.model() or {}).get("status", {}).get("classes", [])
        return {one["name"]: str(one.get("rollout", {}).get("release", "")) for one in classes}

    def _release_of(self, pod: Object) -> str:
        return str(pod["metadata"]["labels"]["enginefleet.io/release"]).partition("-")[0]

    def _on_new(self) -> set[str]:
        """Nodes that serve what their class is to run, where that is not the first release."""
        wanted = self._releases()
        found = {node: self._release_of(pod) for node, pod in self.pods().items()}
        return {n for n, release in found.items() if release == wanted.get(self.class_of(n)) != self.first[self.class_of(n)]}

    def _moved(self, nodes: set[str]) -> bool:
        return nodes <= self._on_new()

    def _all_on(self, releases: Mapping[str, str], count: int) -> bool:
        pods = self.pods()
        return len(pods) == count and all(self._release_of(pod) == releases[self.class_of(node)] for node, pod in pods.items())

    def _revision(self) -> str:
        return str((self.model() or {}).get("status", {}).get("revision", ""))

    def _paused(self) -> list[str]:
        """What was told of pods that make way for a build."""
        return [str(e.get("note", "")) for e in self.world.all("event", NAMESPACE) if e["reason"] == "ServingPaused"]

    def _reason(self, type_: str, reason: str, model: str = MODEL) -> Mapping[str, str] | None:
        found = condition(self.model(model), type_)
        return found if found.get("reason") == reason else None

    def _refused(self) -> dict[str, Mapping[str, str]] | None:
        classes = (self.model() or {}).get("status", {}).get("classes", [])
        found = {
            c["name"]: c["rollout"]["refused"]
            for c in classes
            if (c.get("rollout", {}).get("refused") or {}).get("reason") == "CanaryFailed"
        }
        return found if len(found) == len(CLASSES) else None

    def _new_jobs(self, before: set[str]) -> str:
        """Those that bring an engine to a node left out: they are gone when it has moved."""
        new = [j for j in self.world.all("job", NAMESPACE, model_deployment=MODEL) if uid(j) not in before]
        return jobs_in_words([j for j in new if j["metadata"]["labels"].get("enginefleet.io/role") != "preload"])

    def _new_builds(self, before: set[str]) -> list[Object]:
        return [b for b in self.builds(MODEL, "Passed") if uid(b) not in before]

    def _replaced(self, before: Mapping[str, str], hardware: str) -> int:
        return sum(self.class_of(node) == hardware and before.get(node) != pod for node, pod in self._uids().items())

    def _kept(self, before: Mapping[str, str], classes: Sequence[str]) -> str:
        return _counted(h for node, pod in self._uids().items() if before.get(node) == pod and (h := self.class_of(node)) in classes)

    def _other(self, old: Object) -> Object | None:
        """The kiosk's ready pod, if it is another."""
        found = self.pods(KIOSK).get("kiosk-01")
        return found if found is not None and uid(found) != uid(old) else None


class Least:
    """Called at each change: the least ready pods of each class so far."""

    def __init__(self, story: FleetStory) -> None:
        self._story = story
        self.of: dict[str, int] = dict.fromkeys(CLASSES, len(NODES))

    def __call__(self) -> bool:
        ready = [self._story.class_of(node) for node in self._story.pods()]
        self.of = {hardware: min(least, ready.count(hardware)) for hardware, least in self.of.items()}
        return True


class Touched:
    """Called at each change: nodes on which a pod of the broken template was."""

    def __init__(self, story: FleetStory) -> None:
        self._story = story
        self.nodes: set[str] = set()

    def __call__(self) -> bool:
        for pod in self._story.world.all("pod", NAMESPACE, model_deployment=MODEL, role="serve"):
            if "--no-such-option" in pod["spec"]["containers"][0].get("command", ()):
                self.nodes.add(str(pod["spec"].get("nodeName", "")))
        self.nodes.discard("")
        return True


def _counted(words: Iterable[str]) -> str:
    found = list(words)
    return ", ".join(f"{word} {found.count(word)}" for word in sorted(set(found)))


def _how(build: Object) -> str:
    return "adopted" if (build["status"].get("engine") or {}).get("adopted") else "built"


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo-fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    options = parser.parse_args(argv)

    def chosen(narrator: Narrator) -> contextlib.AbstractContextManager[Site]:
        return local_site(narrator.say, keep=options.keep, nodes=NODES)

    title = f"A Kubernetes cluster on this machine: control plane, {len(NODES)} nodes of four classes, an S3 server"
    return tell(options, title, chosen, FleetStory)


if __name__ == "__main__":
    sys.exit(main())
