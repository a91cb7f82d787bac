"""What `make demo` and `make demo-fleet` share: reading the world, asking pods, and from command line to exit code."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from demo.checks import Checks
from demo.inference import load_samples
from demo.kube import KubeError
from demo.narrator import Narrator
from demo.site import EXAMPLE, NAMESPACE, SYSTEM, Site, SiteError
from demo.world import NotInTime, Object, World, is_ready_pod
from localcluster import LocalClusterError
from tools.bootstrap import SetupError

FILES = ("model.onnx", "validation.npz", "calibration.npz")
MODEL = "digits"


class Story:
    """Steps that a subclass tells in run(). `site` is where, `world` a live picture of it."""

    def __init__(self, site: Site, world: World, checks: Checks, narrator: Narrator) -> None:
        self.site, self.world, self.checks, self.narrator = site, world, checks, narrator
        self.samples, self.labels = load_samples(EXAMPLE / "validation.npz")

    def run(self) -> None:
        raise NotImplementedError

    def system_is_ready(self) -> bool:
        deployments, sets = self.world.all("deploy", SYSTEM), self.world.all("ds", SYSTEM)
        ready = all(d.get("status", {}).get("readyReplicas", 0) == d["spec"]["replicas"] for d in deployments)
        # (wanted, ready); a DaemonSet for boards that this cluster has none of wants nothing
        pods = [(s.get("status", {}).get("desiredNumberScheduled", 0), s.get("status", {}).get("numberReady", 0)) for s in sets]
        return bool(deployments) and ready and any(wanted for wanted, _ in pods) and all(wanted == there for wanted, there in pods)

    def model(self, model: str = MODEL) -> Object | None:
        return self.world.one("mdep", model, NAMESPACE)

    def builds(self, model: str, phase: str) -> list[Object]:
        return [b for b in self.world.all("eb", NAMESPACE, model_deployment=model) if b.get("status", {}).get("phase") == phase]

    def uids(self, kind: str, model: str) -> set[str]:
        return {uid(item) for item in self.world.all(kind, NAMESPACE, model_deployment=model)}

    def class_of(self, node: str) -> str:
        found = self.world.one("node", node)
        return str((found or {"metadata": {}})["metadata"].get("labels", {}).get("hardware", ""))

    def pods(self, model: str = MODEL) -> Mapping[str, Object]:
        """Ready serving pods of a model by node."""
        return {
            str(p["spec"]["nodeName"]): p for p in self.world.all("pod", NAMESPACE, model_deployment=model, role="serve") if is_ready_pod(p)
        }

    def address(self, pod: Object) -> str:
        """Where the pod's server is reached from here."""
        if self.site.cluster is not None:
            return self.site.cluster.relay(f"{pod['status']['podIP']}:8080")
        return self.site.kube.forward(NAMESPACE, name(pod), 8080)


def name(item: Object) -> str:
    return str(item["metadata"]["name"])


def uid(item: Object) -> str:
    return str(item["metadata"]["uid"])


def jobs_in_words(jobs: Sequence[Object]) -> str:
    words = [
        f"{j['metadata']['labels'].get('enginefleet.io/role')} for {j['metadata']['labels'].get('enginefleet.io/hardware-class', '-')}"
        for j in jobs
    ]
    return ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words))) or "none"


def runtime(build: Object) -> str:
    facts = build["spec"]["request"].get("facts", {})
    return f"ONNX Runtime {facts.get('backendVersion')}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of every story."""
    parser.add_argument("--keep", action="store_true", help="leave the cluster running at the end, and say how to use it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write steps and assertions as JSON")


def tell(
    options: argparse.Namespace, place: str, chosen: Callable[[Narrator], contextlib.AbstractContextManager[Site]], story: type[Story]
) -> int:
    """A story from an empty site to the closing table; 0 only if everything held. `place` is the first step's title."""
    checks = Checks()
    narrator = Narrator(checks)
    missing = [file for file in FILES if not (EXAMPLE / file).exists()]
    if missing:
        print(f"demo: {EXAMPLE} lacks {', '.join(missing)}", file=sys.stderr)
        return 1
    error = ""
    try:
        narrator.step(place)
        with chosen(narrator) as site:
            error = _tell_in(site, options.keep, checks, narrator, story)
    except (SiteError, SetupError, LocalClusterError) as problem:
        error = str(problem)
    narrator.end_step()
    if checks.checks:
        print(f"\nWhat was asserted, {time.monotonic() - checks.began:.0f} s in all:\n\n{checks.table()}")
    if error:
        print(f"\ndemo: {error}", file=sys.stderr)
    failed = checks.failed()
    if options.json:
        checks.write(options.json, error=error, seconds=round(time.monotonic() - checks.began, 1))
    if not error:
        print(f"\n{len(checks.checks) - len(failed)} of {len(checks.checks)} held.")
    return 1 if error or failed or not checks.checks else 0


def _tell_in(site: Site, keep: bool, checks: Checks, narrator: Narrator, story: type[Story]) -> str:
    """The story in its site; an error's text, or nothing."""
    narrator.step("CustomResourceDefinitions, operator, agent; model and labelled pictures in the S3 server")
    site.install()
    narrator.command("kubectl apply -f crds -f deploy")
    size = site.upload(EXAMPLE, FILES)
    narrator.say(f"uploaded {', '.join(FILES)}: {size / 1e6:.1f} MB")
    site.namespace_and_secret()
    with World(site.kube, narrator.on_change) as world:
        try:
            story(site, world, checks, narrator).run()
        except (NotInTime, KubeError, OSError, LookupError) as problem:
            text = str(problem) if isinstance(problem, NotInTime | KubeError) else f"{type(problem).__name__}: {problem}"
            return f"{text}\n  the operator's last words:\n{site.operator_log()}"
    if keep and site.cluster is not None:
        narrator.say(f"the cluster stays: export KUBECONFIG={site.cluster.kubeconfig}; kubectl get mdep -n {NAMESPACE}")
        narrator.say(f"to end it: .venv/bin/python -m localcluster --dir {site.cluster.dir} down")
    return ""
