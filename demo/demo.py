"""`make demo`: one ModelDeployment from `kubectl apply` to a right answer over HTTP, on a real Kubernetes control plane, and what happens next.

Every step says what it does, waits for facts instead of times, and asserts; the closing table lists the assertions. Exit code 0 only if all
of them held.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from demo.inference import Poller, infer, picture
from demo.narrator import Narrator
from demo.site import MANIFESTS, NAMESPACE, SYSTEM, Site, context_site, local_site
from demo.story import MODEL, Story, add_options, jobs_in_words, name, runtime, tell, uid
from demo.world import Object, condition, is_ready_pod, is_settled, is_true

STRICT = "too-strict"
QUIET = 5.0
"""Seconds without any change that count as "nothing happens": the operator answers to a change within one."""


class Demo(Story):
    # ---- the steps

    def run(self) -> None:
        self.apply()
        self.look()
        self.apply_again()
        self.restart_operator()
        self.refuse()
        self.other_runtime()
        if self.site.cluster is not None:
            self.outage()

    def apply(self) -> None:
        self.narrator.step("kubectl apply: a store, two HardwareClasses, one ModelDeployment")
        began = time.monotonic()
        self._apply_all()
        self.world.wait("operator and agent run", self.system_is_ready, 60)
        passed = functools.partial(self.builds, MODEL, "Passed")
        self.world.wait("an engine of each class passed the gate", lambda: len(passed()) == len(self._classes()), 120)
        for build in passed():
            accuracy, latency = build["status"].get("accuracy") or {}, (build["status"].get("latency") or [{}])[0]
            self.narrator.say(
                f"{build['spec']['class']}: {accuracy.get('metric')} {accuracy.get('value')} (fp32 {accuracy.get('baseline')}), "
                f"p95 {latency.get('p95')} ms, engine {str((build['status'].get('engine') or {}).get('blob'))[:19]}…, "
                + ("adopted" if (build["status"].get("engine") or {}).get("adopted") else f"built on {build['status'].get('node')}")
            )
        self.world.wait(f"{MODEL} is Ready", lambda: is_settled(self.model()), 60)
        pods = self.pods()
        self.checks.check("every matching node serves", self._matching_nodes(), sorted(pods))
        self.checks.check(
            "from apply to serving on all nodes, seconds", "< 120", round(time.monotonic() - began, 1), time.monotonic() - began < 120
        )

        self.narrator.step("Inference over HTTP: POST /v2/models/digits/infer")
        node = min(pods)
        pod = pods[node]
        self.narrator.say(f"one of {len(self.samples)} labelled pictures, asked of the pod on {node}:")
        self.narrator.say(picture(self.samples[0]))
        answers = infer(self.address(pod), MODEL, self.samples[:20])
        self.checks.check("the first picture's class", int(self.labels[0]), int(answers[0]))
        right = int((answers == self.labels[:20]).sum())
        self.checks.check("right answers to 20 pictures", ">= 18", right, right >= 18)
        served = sorted(
            node for node, pod in pods.items() if int(infer(self.address(pod), MODEL, self.samples[:1])[0]) == int(self.labels[0])
        )
        self.checks.check("the same answer from every node", sorted(pods), served)

    def look(self) -> None:
        self.narrator.step("What the cluster says")
        for argv in (
            ("get", "mdep,eb", "-n", NAMESPACE),
            ("get", "hwc,nf"),
            ("get", "nodes", "-L", "fp.enginefleet.io/cpu-a,fp.enginefleet.io/cpu-b"),
        ):
            self.narrator.command("kubectl " + " ".join(argv), self.site.kube.kubectl(*argv))

    def apply_again(self) -> None:
        self.narrator.step("The same manifests again: nothing to do")
        with self._nothing_changes("applied again"):
            self._apply_all()

    def restart_operator(self) -> None:
        self.narrator.step("The operator is killed and comes back: nothing to do")
        before = self._operator_instance()
        with self._nothing_changes("operator restarted"):
            self.narrator.command(self.site.kill_operator())
            self.world.wait("another operator process is ready", lambda: self._operator_is_back(before), 60)
            self.narrator.say("the operator is back")

    def refuse(self) -> None:
        self.narrator.step("A second ModelDeployment asks for an accuracy of 0.999: no engine, no pod")
        self.narrator.command("kubectl apply -f demo/manifests/40-too-strict.yaml", self.site.apply(MANIFESTS / "40-too-strict.yaml"))

        def model() -> Object | None:
            return self.world.one("mdep", STRICT, NAMESPACE)

        self.world.wait(f"{STRICT} is Stalled", lambda: is_settled(model(), "Stalled"), 90)
        stalled = condition(model(), "Stalled")
        self.narrator.say(f"Stalled: {stalled['reason']}: {stalled['message']}")
        one_line = "0.999" in stalled["message"] and "\n" not in stalled["message"]
        self.checks.check("the reason, in one line", "a line that names 0.999", stalled["message"], one_line)
        self.checks.check("engines that passed", 0, len(self.builds(STRICT, "Passed")))
        serving = self.world.all("pod", NAMESPACE, model_deployment=STRICT, role="serve")
        workloads = self.world.all("ds", NAMESPACE, model_deployment=STRICT)
        self.checks.check("pods and workloads of it", 0, len(serving) + len(workloads))
        self.checks.check("the first ModelDeployment still serves", True, is_true(self.model(), "Ready"))

    def other_runtime(self) -> None:
        self.narrator.step(
            "The class cpu-b gets another version of ONNX Runtime: rebuilt there only, the old pod serves until the new engine passed"
        )
        pods, builds, jobs = self.pods(), self.uids("eb", MODEL), self.uids("job", MODEL)
        here = {node: pod for node, pod in pods.items() if self.class_of(node) == "cpu-b"}
        if not here:
            self.narrator.say("left out: no node is in class cpu-b")
            return
        node, old = next(iter(here.items()))
        began = datetime.now(UTC)
        with Poller(lambda: self.address(old), MODEL, self.samples[:1]) as poller:
            self.narrator.command(
                "kubectl apply -f demo/manifests/50-cpu-b-other-runtime.yaml", self.site.apply(MANIFESTS / "50-cpu-b-other-runtime.yaml")
            )
            self.world.wait(
                "the new engine of cpu-b passed the gate", lambda: [b for b in self.builds(MODEL, "Passed") if uid(b) not in builds], 120
            )
            good, bad = poller.until(time.monotonic())
        self.checks.check(
            "answers of the old pod until the new engine passed", "> 5, none failed", f"{good}, {len(bad)} failed", good > 5 and not bad
        )
        self.world.wait(
            "the new pod serves",
            lambda: is_settled(self.model()) and self.pods().get(node, old) is not old and self._moved(node, old),
            60,
        )
        self.narrator.say(f"{name(self.pods()[node])} serves, {(datetime.now(UTC) - began).total_seconds():.1f} s after the change")
        new_builds = [b for b in self.world.all("eb", NAMESPACE, model_deployment=MODEL) if uid(b) not in builds]
        self.checks.check("classes with new engines", ["cpu-b"], sorted({b["spec"]["class"] for b in new_builds}))
        new_jobs = [j for j in self.world.all("job", NAMESPACE, model_deployment=MODEL) if uid(j) not in jobs]
        self.checks.check("new Jobs", "1 build for cpu-b", jobs_in_words(new_jobs))
        self.checks.check("the new engine's runtime", "ONNX Runtime 1.23.2", runtime(new_builds[0]), "1.23.2" in runtime(new_builds[0]))
        after = self.pods()
        untouched = sorted(n for n in pods if n not in here and n in after and uid(after[n]) == uid(pods[n]))
        self.checks.check("nodes of cpu-a keep their pods", sorted(set(pods) - set(here)), untouched)
        answer = int(infer(self.address(after[node]), MODEL, self.samples[:1])[0])
        self.checks.check("the new pod's answer", int(self.labels[0]), answer)

    def outage(self) -> None:
        cluster = self.site.cluster
        assert cluster is not None
        self.narrator.step("The S3 server stops and a node reboots: it serves from its own cache")
        pods = self.pods()
        node = min(pods)
        pod = pods[node]
        restarted = _started(pod)
        cluster.stop_s3()
        self.narrator.say(f"the S3 server is stopped; {node} reboots")
        cluster.reboot_node(node)

        def back() -> Object | None:
            found = self.pods().get(node)
            return found if found is not None and _started(found) > restarted else None

        found = self.world.wait(f"the pod on {node} is ready again", back, 60)
        self.checks.check("where the engine came from", "cache", _fetched_from(found))
        self.checks.check("its answer", int(self.labels[0]), int(infer(self.address(found), MODEL, self.samples[:1])[0]))
        cluster.restart_s3()

    # ---- what the steps are made of

    def _apply_all(self) -> None:
        for path in sorted(MANIFESTS.glob("[123]*.yaml")):
            self.narrator.command(f"kubectl apply -f {path.relative_to(MANIFESTS.parent.parent)}", self.site.apply(path))

    @contextlib.contextmanager
    def _nothing_changes(self, what: str) -> Iterator[None]:
        """What is done inside must cause no Job, no new object, no new version of our objects, and no write of operator or agent."""
        before, began = self._picture(), datetime.now(UTC)
        yield

        def difference() -> str:
            now = self._picture()
            return ", ".join(sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key)))

        disturbed = self.world.quiet(QUIET, difference)
        self.checks.check(f"{what}: Jobs, builds, workloads, pods and status", "unchanged", disturbed or "unchanged")
        writes = self.site.writes(began)
        if writes is not None:
            self.checks.check(f"{what}: writes of operator and agent", 0, f"{len(writes)}: {', '.join(writes[:5])}" if writes else 0)

    def _picture(self) -> dict[str, str]:
        """Name and uid of what must not be replaced, and the version of what must not be written."""
        picture = {}
        for kind in ("mdep", "eb", "hwc", "nf"):
            for item in self.world.all(kind):
                picture[f"{kind}/{name(item)}"] = f"{uid(item)} {item['metadata']['resourceVersion']}"
        for kind in ("job", "ds", "pod"):
            for item in self.world.all(kind, NAMESPACE):
                picture[f"{kind}/{name(item)}"] = uid(item)
        for job in self.world.all("job", SYSTEM):
            picture[f"job/{name(job)}"] = uid(job)
        return picture

    def _operator_instance(self) -> str:
        """Names one operator process: another pod or another start is another."""
        for pod in self.world.all("pod", SYSTEM):
            if "operator" in name(pod) and is_ready_pod(pod):
                return f"{uid(pod)} {_started(pod)}"
        return ""

    def _operator_is_back(self, before: str) -> bool:
        now = self._operator_instance()
        return bool(now) and now != before

    def _classes(self) -> set[str]:
        return {hardware for node in self.world.all("node") if (hardware := node["metadata"].get("labels", {}).get("hardware"))}

    def _matching_nodes(self) -> list[str]:
        return [name(node) for node in self.world.all("node") if node["metadata"].get("labels", {}).get("hardware")]

    def _moved(self, node: str, old: Object) -> bool:
        return uid(self.pods()[node]) != uid(old)


def _started(pod: Object) -> str:
    """When its containers started, as sortable text."""
    states = [c.get("state", {}).get("running", {}).get("startedAt", "") for c in pod.get("status", {}).get("containerStatuses", [])]
    restarts = sum(c.get("restartCount", 0) for c in pod.get("status", {}).get("containerStatuses", []))
    return f"{max(states, default='')} {restarts:06d}"


def _fetched_from(pod: Object) -> str:
    """What the init container said in its termination message."""
    for container in pod["status"].get("initContainerStatuses", []):
        message = container.get("state", {}).get("terminated", {}).get("message", "")
        if "fetch" in container["name"] and message:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return str(json.loads(message)["report"]["source"])
    return "(no readable report of the fetch container)"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--context", default="", help="a context of your kubeconfig instead of a local cluster")
    options = parser.parse_args(argv)

    def chosen(narrator: Narrator) -> contextlib.AbstractContextManager[Site]:
        if options.context:
            return context_site(options.context, narrator.say, keep=options.keep)
        return local_site(narrator.say, keep=options.keep)

    where = f": context {options.context}" if options.context else " on this machine: control plane, three nodes, an S3 server"
    return tell(options, f"A Kubernetes cluster{where}", chosen, Demo)


if __name__ == "__main__":
    sys.exit(main())
