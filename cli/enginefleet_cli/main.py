"""The commands of `kubectl enginefleet`. Reading and writing is here and in cluster.py; what is shown is made by pure functions beside it.

Exit codes: 0 done and ready, 1 not ready or failed, 2 usage, 3 not found, 4 no access.
"""

from __future__ import annotations

import functools
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from enginefleet_api import labels
from enginefleet_api.errors import EngineFleetError

from . import acts, explain, lists, plan, status
from .cluster import (
    CONTROLLER_REVISIONS,
    ENGINE_BUILDS,
    ENGINE_STORES,
    HARDWARE_CLASSES,
    MODEL_DEPLOYMENTS,
    NODE_FINGERPRINTS,
    NODES,
    PODS,
    Cluster,
    Kind,
    Object,
)
from .errors import NoAccess, NotFound, NotReady, Usage
from .output import Format, console, show
from .words import by_name, is_of

LARGEST_MANIFEST = 4 << 20
POLL = 1.0
"""Seconds between two looks at what is waited for."""

app = typer.Typer(
    name="kubectl-enginefleet",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="""See where models, engines and nodes of EngineFleet stand, and ask its operator to act.

    Exit codes: 0 done and ready, 1 not ready or failed, 2 usage, 3 not found, 4 no access.
    """,
)

Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace; by default the context's.")]
Everywhere = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces.")]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]
Kubeconfig = Annotated[str | None, typer.Option("--kubeconfig", help="Path of a kubeconfig; by default $KUBECONFIG or ~/.kube/config.")]
Output = Annotated[Format, typer.Option("--output", "-o", help="text, json or yaml.")]
Name = Annotated[str, typer.Argument(help="Name of a ModelDeployment.")]
ActName = Annotated[str, typer.Argument(help="Name of a ModelDeployment, or hwc/NAME of a HardwareClass (retry alone).")]
Wait = Annotated[bool, typer.Option("--wait", help="Until the operator has acted on it and all is ready, or stalled.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait at most.")]


def run() -> None:
    """The entry point: a failure is one sentence and an exit code, never a traceback."""
    try:
        app()
    except EngineFleetError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # whoever read has seen enough; nothing is left to flush into
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _may_see(look: Callable[[], list[Object]]) -> list[Object]:
    """What is only shown beside the answer: nothing of it for a user without the right to it."""
    try:
        return look()
    except NoAccess as error:
        if error.reason != "Forbidden":
            raise
        console(stderr=True).print(f"[yellow]left out: {error.message}[/]")
        return []


def _widest(cluster: Cluster, kind: Kind, selector: str = "") -> list[Object]:
    """Of all namespaces for a user who may see that, else of the own one."""
    try:
        return cluster.everywhere().list(kind, selector)
    except NoAccess as error:
        if error.reason != "Forbidden":
            raise
        return cluster.list(kind, selector)


def _connect(kubeconfig: str | None, context: str | None, namespace: str | None, name: str | None, everywhere: bool) -> Cluster:
    """What --all-namespaces asks of, which goes with neither a name nor a namespace."""
    if everywhere and (name or namespace):
        raise Usage("Usage", "--all-namespaces goes with neither a name nor --namespace.", "Leave one of them out.")
    cluster = Cluster.connect(kubeconfig, context, namespace)
    return cluster.everywhere() if everywhere else cluster


def _of(name: str, **more: str) -> str:
    return ",".join(f"{k}={v}" for k, v in {labels.MODEL_DEPLOYMENT: name, **more}.items())


@app.command("status")
def status_command(
    name: Annotated[str | None, typer.Argument(help="Name of a ModelDeployment; without one all of the namespace.")] = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Where models stand: revision, classes, fingerprints, nodes. Exit code 1 when one is not ready."""
    cluster = _connect(kubeconfig, context, namespace, name, everywhere)
    found = [cluster.get(MODEL_DEPLOYMENTS, name)] if name else cluster.list(MODEL_DEPLOYMENTS)
    if not found:
        raise NotFound("NotFound", f"There is no ModelDeployment {cluster.place}.", "Name another namespace with -n, or all with -A.")
    nodes = _may_see(lambda: cluster.list(NODES))
    pods = _may_see(lambda: cluster.list(PODS, f"{labels.ROLE}=serve"))
    now = time.time()
    seen = [status.view(one, nodes, [p for p in pods if is_of(p, one)], now) for one in found]
    show(output, seen[0] if name else seen, *map(status.tree, seen))
    raise typer.Exit(status.exit_code(seen))


@app.command("explain")
def explain_command(
    what: Annotated[
        str, typer.Argument(metavar="NODE|MDEP", help="A ModelDeployment or a node; mdep/NAME or node/NAME where both are called so.")
    ],
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Why a model or a node is as it is: conditions, facts, what is waited for."""
    cluster = Cluster.connect(kubeconfig, context, namespace)
    kind, _, name = what.rpartition("/")
    if kind not in ("", "mdep", "modeldeployment", "node", "no"):
        raise Usage("Usage", f"{what!r} is no ModelDeployment and no node.", "Write NAME, mdep/NAME or node/NAME.")
    now = time.time()
    mdep = cluster.find(MODEL_DEPLOYMENTS, name) if kind in ("", "mdep", "modeldeployment") else None
    if mdep is not None:
        builds = [b for b in _may_see(lambda: cluster.list(ENGINE_BUILDS)) if b["spec"]["modelDeployment"] == name]
        seen = explain.deployment(mdep, builds, now)
        show(output, seen, explain.deployment_tree(seen))
        return
    if kind in ("mdep", "modeldeployment"):
        cluster.get(MODEL_DEPLOYMENTS, name)
    machine = cluster.find(NODES, name)
    if machine is None:
        raise NotFound(
            "NotFound",
            f"There is neither a ModelDeployment {name} in namespace {cluster.namespace} nor a node {name}.",
            "Name another with -n.",
        )
    # a node serves models of every namespace
    look = cluster.list if namespace else functools.partial(_widest, cluster)
    seen = explain.node(
        machine,
        cluster.find(NODE_FINGERPRINTS, name),
        _may_see(lambda: cluster.list(HARDWARE_CLASSES)),
        look(MODEL_DEPLOYMENTS),
        _may_see(lambda: look(PODS, f"{labels.ROLE}=serve")),
        now,
    )
    show(output, seen, explain.node_tree(seen))


@app.command("plan")
def plan_command(
    file: Annotated[str, typer.Option("--filename", "-f", help="Manifest with ModelDeployments; - is standard input.")],
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TEXT,
) -> None:
    """What a manifest would have prepared, built and moved. The API server checks it; nothing is written."""
    documents = _manifests(file)
    cluster = Cluster.connect(kubeconfig, context, namespace)
    models = [one for one in documents if one.get("kind") == MODEL_DEPLOYMENTS.name]
    others = sorted({str(one.get("kind")) for one in documents} - {MODEL_DEPLOYMENTS.name})
    if not models:
        raise Usage(
            "NoModelDeployment",
            f"{file} holds no ModelDeployment" + (f", only {', '.join(others)}." if others else "."),
            "Name its manifest.",
        )
    if others:
        console(stderr=True).print(f"[yellow]not looked at: {', '.join(others)}[/]")
    nodes = _may_see(lambda: cluster.list(NODES))
    observed = by_name(_may_see(lambda: cluster.list(NODE_FINGERPRINTS)))
    classes = by_name(_may_see(lambda: cluster.list(HARDWARE_CLASSES)))
    seen = []
    for written in models:
        metadata = written.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not isinstance(metadata, dict) or not isinstance(name, str):
            raise Usage("NoName", f"A ModelDeployment in {file} has no metadata.name.", "Give it one.")
        mine = Cluster.connect(kubeconfig, context, namespace or metadata.get("namespace"))
        placed = {**written, "metadata": {**metadata, "namespace": mine.namespace}}
        live = mine.find(MODEL_DEPLOYMENTS, name)
        wanted = mine.dry_run(MODEL_DEPLOYMENTS, placed, live)
        seen.append(plan.plan(wanted, live, mine.list(ENGINE_BUILDS), classes, nodes, observed))
    show(output, seen, *map(plan.tree, seen))


def _manifests(file: str) -> list[dict[str, Any]]:
    try:
        text = sys.stdin.read(LARGEST_MANIFEST + 1) if file == "-" else _read(Path(file))
        if len(text) > LARGEST_MANIFEST:
            raise Usage("FileTooLarge", f"{file} is larger than {LARGEST_MANIFEST >> 20} MiB.", "Name a manifest.")
        found = [one for one in yaml.safe_load_all(text) if one is not None]
    except (OSError, UnicodeDecodeError) as error:
        raise Usage(
            "FileNotReadable", f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}.", "Name a manifest."
        ) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise Usage("NotYaml", f"{file} is no YAML: {' '.join(str(error).split())[:200]}.", "Correct it.") from error
    if not all(isinstance(one, dict) for one in found):
        raise Usage("NotYaml", f"{file} holds something that is no object.", "Write apiVersion, kind, metadata and spec.")
    return found


def _read(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(LARGEST_MANIFEST + 1)


# ---- acts


def _act(act: str, what: str, wait: bool, timeout: float, cluster: Cluster, output: Format) -> None:
    kind, name = _target(act, what)
    token = f"{int(time.time())}-{secrets.token_hex(3)}"
    obj = cluster.annotate(kind, name, {acts.annotation(act): token})
    if not wait:
        show(output, {"name": name, "act": act, "token": token}, f"{kind.name} {name}: {act} was asked for ({token}).")
        return
    deadline = time.monotonic() + timeout
    said = ""
    while not (now := acts.progress(act, token, obj)).done:
        if output is Format.TEXT and now.text != said:
            said = now.text
            console().print(said, markup=False)
        if time.monotonic() >= deadline:
            raise NotReady(
                "NotInTime", f"{act} of {name} is not through after {timeout:.0f} s: {now.text}", "It goes on by itself; look with status."
            )
        time.sleep(POLL)
        obj = cluster.get(kind, name)
    show(output, {"name": name, "act": act, "token": token, "failed": now.failed, "message": now.text}, now.text)
    raise typer.Exit(1 if now.failed else 0)


def _target(act: str, what: str) -> tuple[Kind, str]:
    kind, _, name = what.rpartition("/")
    if kind in ("", "mdep", "modeldeployment") and name:
        return MODEL_DEPLOYMENTS, name
    if kind in ("hwc", "hardwareclass") and name and act == "retry":
        return HARDWARE_CLASSES, name
    raise Usage(
        "Usage",
        f"{act} cannot be asked of {what!r}.",
        "Write the name of a ModelDeployment" + (", or hwc/NAME." if act == "retry" else "."),
    )


def _register(act: str, help: str) -> None:
    def command(
        name: ActName,
        wait: Wait = False,
        timeout: Timeout = 3600.0,
        namespace: Namespace = None,
        context: Context = None,
        kubeconfig: Kubeconfig = None,
        output: Output = Format.TEXT,
    ) -> None:
        _act(act, name, wait, timeout, Cluster.connect(kubeconfig, context, namespace), output)

    app.command(act, help=help)(command)


for _name, _help in {
    "retry": "Try again what failed or was refused: a build, a release, a probe.",
    "refresh": "Look anew at what the addresses of model and data hold.",
    "promote": "Roll out to all nodes now: no canary and no steps any more.",
    "abort": "Back to the release before; the spec is not touched.",
    "approve": "Go on with what waits for an approval.",
}.items():
    _register(_name, _help)


# ---- lists


@app.command("history")
def history_command(
    name: Name, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None, output: Output = Format.TEXT
) -> None:
    """Releases of a model, and which of them a rollback can go to."""
    cluster = Cluster.connect(kubeconfig, context, namespace)
    mdep = cluster.get(MODEL_DEPLOYMENTS, name)
    rows = lists.history(mdep, cluster.list(CONTROLLER_REVISIONS, _of(name)), time.time())
    show(output, rows, lists.history_table(rows) if rows else f"{name} has no release yet.")


@app.command("engines")
def engines_command(
    name: Annotated[str | None, typer.Argument(help="Name of a ModelDeployment; without one all of the namespace.")] = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TEXT,
) -> None:
    """EngineBuilds: fingerprint, keys, verdict, what was measured."""
    cluster = _connect(kubeconfig, context, namespace, name, everywhere)
    if name:
        cluster.get(MODEL_DEPLOYMENTS, name)
    rows = lists.engines([b for b in cluster.list(ENGINE_BUILDS) if name in (None, b["spec"]["modelDeployment"])], time.time())
    show(output, rows, lists.engines_table(rows) if rows else f"There is no EngineBuild {cluster.place}.")


@app.command("logs")
def logs_command(
    name: Annotated[str, typer.Argument(metavar="MDEP|ENGINEBUILD", help="A ModelDeployment (its newest Job) or an EngineBuild.")],
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f/-F", help="Until the Job's pod ends.")] = True,
    tail: Annotated[int | None, typer.Option(min=0, help="Lines to begin with; all by default.")] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """The log of the Job that builds or prepares, while it runs."""
    cluster = Cluster.connect(kubeconfig, context, namespace)
    build = cluster.find(ENGINE_BUILDS, name)
    model = build["spec"]["modelDeployment"] if build is not None else name
    if build is None:
        cluster.get(MODEL_DEPLOYMENTS, name)
    found = lists.working(cluster.list(PODS, _of(model)), name if build is not None else None)
    if found is None:
        raise NotFound(
            "NoPod", f"No Job works on {name}, and none that has ended left its pod.", f"See kubectl enginefleet explain {model}."
        )
    pod = found["metadata"]["name"]
    console(stderr=True).print(lists.heading(found), style="dim", markup=False)
    if follow:
        cluster.wait_until_started(pod)
    for line in cluster.log(pod, "main", follow=follow, tail=tail):
        print(line, flush=True)


@app.command("report")
def report_command(
    name: Annotated[str, typer.Argument(metavar="MDEP|ENGINEBUILD", help="A ModelDeployment (its engines that serve) or an EngineBuild.")],
    fetch: Annotated[bool, typer.Option("--open", help="Make the page with the enginefleet command of this machine, and open it.")] = False,
    endpoint: Annotated[str, typer.Option(help="Of the store, where this machine reaches it by another address than the cluster.")] = "",
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Where the pages that explain verdicts are; --open shows them.

    They are in the store, which the API server cannot show.
    """
    cluster = Cluster.connect(kubeconfig, context, namespace)
    build = cluster.find(ENGINE_BUILDS, name)
    if build is not None:
        chosen = [build]
    else:
        mdep = cluster.get(MODEL_DEPLOYMENTS, name)
        used = {f.get("engineBuild") for c in mdep.get("status", {}).get("classes", ()) for f in c.get("fingerprints", ())}
        chosen = [b for b in cluster.list(ENGINE_BUILDS) if b["metadata"]["name"] in used]
    if not chosen:
        raise NotReady("NoVerdict", f"{name} has no engine yet, and so no report.", f"See kubectl enginefleet explain {name}.")
    found = []
    for one in chosen:
        owner = cluster.find(MODEL_DEPLOYMENTS, one["spec"]["modelDeployment"])
        store = (owner or {}).get("spec", {}).get("storeRef", {}).get("name", "default")
        found.append(lists.report(one, cluster.find(ENGINE_STORES, store), endpoint))
    if not fetch:
        show(output, found, *(lists.report_text(one) for one in found))
        return
    for one in found:
        _open(one)


def _open(found: dict[str, Any]) -> None:
    program = shutil.which(found["command"][0])
    if program is None:
        raise NotReady(
            "NoBuilder", "The command enginefleet, which reads the store, is not on this machine.", "Install enginefleet[builder]."
        )
    page = Path(f"enginefleet-report-{found['engineBuild']}.html").resolve()
    done = subprocess.run([program, *found["command"][1:], "--out", str(page)], check=False, capture_output=True, text=True)
    if done.returncode:
        said = " ".join((done.stderr.strip() or done.stdout.strip()).split())[:500]
        raise NotReady(
            "ReportNotReachable",
            f"{shlex.join(found['command'])} failed: {said}",
            "The store wants AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY that may read it.",
        )
    print(page)
    typer.launch(page.as_uri())


if __name__ == "__main__":
    run()
