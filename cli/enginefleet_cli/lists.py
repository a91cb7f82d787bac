"""`engines` and `history`: EngineBuilds and past releases as tables, and where an engine's report is. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from enginefleet_api import labels

from .words import COLOURS, Object, figures, labels_of, one_line, short, since

View = dict[str, Any]


def engines(builds: Sequence[Object], now: float) -> list[View]:
    return [
        _engine(one, now)
        for one in sorted(builds, key=lambda b: (b["spec"]["modelDeployment"], b["spec"]["class"], b["metadata"]["creationTimestamp"]))
    ]


def _engine(build: Object, now: float) -> View:
    spec, status = build["spec"], build.get("status", {})
    engine = status.get("engine") or {}
    return {
        "name": build["metadata"]["name"],
        "modelDeployment": spec["modelDeployment"],
        "class": spec["class"],
        "fingerprint": spec["fingerprint"],
        "summary": spec.get("summary", ""),
        "revision": spec["revision"],
        "variant": spec.get("variant") or spec["precision"],
        "engineKey": spec["engineKey"],
        "gateKey": spec["gateKey"],
        "verdict": status.get("phase") or "Waiting",
        "candidate": status.get("candidate", False),
        "blob": engine.get("blob", ""),
        "size": engine.get("size"),
        "adopted": engine.get("adopted"),
        "accuracy": status.get("accuracy"),
        "latency": status.get("latency", []),
        "speedup": status.get("speedup", ""),
        "node": status.get("node", ""),
        "reasons": status.get("reasons", []),
        "message": status.get("message", ""),
        "age": since(build["metadata"].get("creationTimestamp", ""), now),
    }


def engines_table(rows: Sequence[View]) -> Table:
    table = _table("MODEL", "CLASS", "FINGERPRINT", "VARIANT", "VERDICT", "ENGINE KEY", "BLOB", "MEASURED", "AGE")
    for one in rows:
        colour = COLOURS.get(one["verdict"], "default")
        said = figures(one) or (one_line(one["message"], 60) if one["verdict"] != "Passed" else "")
        cells = [one["modelDeployment"], one["class"], one["fingerprint"], one["variant"]]
        rest = [short(one["engineKey"]), short(one["blob"]), said, one["age"]]
        table.add_row(*map(escape, cells), f"[{colour}]{one['verdict']}[/]{' (candidate)' if one['candidate'] else ''}", *map(escape, rest))
    return table


def history(mdep: Object, kept: Sequence[Object], now: float) -> list[View]:
    """Releases by class, the newest first. `kept`: ControllerRevisions with the ModelDeployment's label.

    The operator keeps one for each engine of a release; those that the DaemonSet controller makes for itself name no EngineBuild.
    """
    kept = [r for r in kept if labels_of(r).get(labels.ENGINE_BUILD)]
    rows: list[View] = []
    for one in mdep.get("status", {}).get("classes", ()):
        rollout = one.get("rollout", {})
        mine = [r for r in kept if labels_of(r).get(labels.HARDWARE_CLASS) == one["name"]]
        groups: dict[str, list[Object]] = {}
        for r in sorted(mine, key=lambda r: str(r["metadata"].get("creationTimestamp", "")), reverse=True):
            groups.setdefault(labels.release_of(labels_of(r).get(labels.RELEASE, "")), []).append(r)
        refused = rollout.get("refused") or {}
        for release in dict.fromkeys(
            [r for r in (rollout.get("release", ""), *rollout.get("history", ()), *groups, refused.get("release", "")) if r]
        ):
            engines = groups.get(release, [])
            rows.append(
                {
                    "class": one["name"],
                    "release": release,
                    "state": _state(release, rollout),
                    "engines": [
                        {
                            "fingerprint": labels_of(r).get(labels.FINGERPRINT, ""),
                            "blob": (r["metadata"].get("annotations") or {}).get(labels.BLOB, ""),
                            "engineBuild": labels_of(r).get(labels.ENGINE_BUILD, ""),
                            "controllerRevision": r["metadata"]["name"],
                        }
                        for r in engines
                    ],
                    # what a rollback needs is the kept template
                    "kept": bool(engines),
                    "age": since(engines[-1]["metadata"].get("creationTimestamp", ""), now) if engines else "",
                    "message": refused.get("message", "") if refused.get("release") == release else "",
                }
            )
    return rows


def _state(release: str, rollout: Object) -> str:
    if (rollout.get("refused") or {}).get("release") == release:
        return f"given up ({rollout['refused']['reason']})"
    if release == rollout.get("stableRelease"):
        return "stable"
    if release == rollout.get("release"):
        return "rolling out" if rollout.get("step") != "done" else "current"
    return "served before" if release in rollout.get("history", ()) else "kept"


def history_table(rows: Sequence[View]) -> Table:
    table = _table("CLASS", "RELEASE", "STATE", "ENGINES", "ROLLBACK", "AGE", "")
    for one in rows:
        blobs = ", ".join(f"{e['fingerprint']} {short(e['blob'], 8)}" for e in one["engines"])
        table.add_row(
            *map(
                escape,
                (
                    one["class"],
                    one["release"],
                    one["state"],
                    blobs,
                    "possible" if one["kept"] else "not kept",
                    one["age"],
                    one_line(one["message"], 80),
                ),
            )
        )
    return table


def report(build: Object, store: Object | None, endpoint: str = "") -> View:
    """Where the pages of an EngineBuild's verdicts are, and the command that makes one: this program holds no key of the store.

    `endpoint`: the store's, as the user reaches it; empty: as the cluster does.
    """
    spec, stored = build["spec"], (store or {}).get("spec", {})
    written = spec["request"].get("store") or {}
    uri = stored.get("uri") or written.get("uri", "")
    endpoint = endpoint or stored.get("endpoint") or written.get("endpoint", "")
    folder = f"{uri.rstrip('/')}/reports/{spec['engineKey']}/{spec['gateKey']}/"
    command = [
        "enginefleet",
        "report",
        "--store",
        uri,
        *(["--endpoint", endpoint] if endpoint else []),
        "--engine",
        spec["engineKey"],
        "--gate",
        spec["gateKey"],
    ]
    secret = (stored.get("readCredentialsSecretRef") or stored.get("credentialsSecretRef") or {}).get("name", "")
    return {
        "engineBuild": build["metadata"]["name"],
        "verdict": build.get("status", {}).get("phase", ""),
        "folder": folder,
        "command": command,
        "secret": secret,
    }


def report_text(found: View) -> str:
    lines = [f"[bold]{escape(found['engineBuild'])}[/]  {escape(found['verdict'])}", f"  stored below  {escape(found['folder'])}"]
    lines.append(f"  to have it    {escape(shlex.join(found['command']))}")
    secret = f"; Secret {escape(found['secret'])} holds the cluster's" if found["secret"] else ""
    return "\n".join([*lines, f"  [dim]with keys of your own that may read the store{secret}[/]"])


def working(pods: Sequence[Object], build: str | None) -> Object | None:
    """The pod to follow: of the EngineBuild, else of any Job; one that runs before those that have ended, of these the newest."""
    jobs = [
        p for p in pods if labels_of(p).get(labels.ROLE) in ("prepare", "build") and build in (None, labels_of(p).get(labels.ENGINE_BUILD))
    ]
    return max(
        jobs, key=lambda p: (p.get("status", {}).get("phase") == "Running", str(p["metadata"].get("creationTimestamp", ""))), default=None
    )


def heading(pod: Object) -> str:
    have, phase = labels_of(pod), pod.get("status", {}).get("phase", "")
    where = pod.get("spec", {}).get("nodeName", "no node yet")
    thing = have.get(labels.ENGINE_BUILD, have.get(labels.MODEL_DEPLOYMENT, ""))
    return f"{have.get(labels.ROLE, '')} {thing} on {where}: pod {pod['metadata']['name']} {phase}"


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")
    return table
