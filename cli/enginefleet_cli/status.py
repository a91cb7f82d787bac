"""`status`: where ModelDeployments stand, as a tree revision → classes → fingerprints → nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.tree import Tree

from enginefleet_api import labels

from .words import (
    COLOURS,
    Object,
    conditions,
    drain,
    figures,
    fingerprint_on,
    is_current,
    is_node_ready,
    labels_of,
    one_line,
    pod_trouble,
    until,
)

View = dict[str, Any]
SHOWN_NODES = 20
"""Nodes of one state and fingerprint that the tree names one by one."""


def view(mdep: Object, nodes: Sequence[Object], pods: Sequence[Object], now: float) -> View:
    """Everything the tree shows, for -o json. `nodes`: of the cluster, empty where the user may not see them. `pods`: serving pods."""
    status = mdep.get("status", {})
    meta = mdep["metadata"]
    say = conditions(mdep)
    return {
        "name": meta["name"],
        "namespace": meta["namespace"],
        "ready": say.get("Ready", {}).get("status", "Unknown"),
        "stalled": say.get("Stalled", {}).get("status") == "True",
        "upToDate": is_current(mdep),
        "summary": status.get("summary", ""),
        "revision": status.get("revision", ""),
        "engines": status.get("engines", ""),
        "rollout": status.get("rollout", ""),
        "precision": status.get("precision", ""),
        "stale": say["ServingStale"]["message"] if say.get("ServingStale", {}).get("status") == "True" else "",
        "belowGate": say["BelowGate"]["message"] if say.get("BelowGate", {}).get("status") == "True" else "",
        "classes": [_class(mdep, one, nodes, pods, now) for one in status.get("classes", ())],
    }


def _class(mdep: Object, one: Object, nodes: Sequence[Object], pods: Sequence[Object], now: float) -> View:
    rollout = one.get("rollout", {})
    troubles = {t["node"]: t for t in one.get("failingNodes", ())}
    mine = [(node, fingerprint_on(node, one["name"])) for node in nodes]
    key = labels.release_key(mdep["metadata"]["namespace"], mdep["metadata"]["name"])
    known = {f["id"] for f in one.get("fingerprints", ())}

    def stand(fingerprint: str) -> list[View]:
        chosen = (node for node, found in mine if found == fingerprint)
        return [node_view(node, key, rollout.get("release", ""), troubles, pods) for node in chosen]

    return {
        "name": one["name"],
        "nodes": one.get("nodes", {}),
        "rollout": dict(rollout) | ({"etaIn": until(rollout["eta"], now)} if rollout.get("eta") else {}),
        "fingerprints": [
            {
                "id": f["id"],
                "summary": f.get("summary", ""),
                "state": f.get("state", ""),
                "variant": f.get("variant", ""),
                "engineBuild": f.get("engineBuild", ""),
                "blob": f.get("blob", ""),
                "measured": figures(f),
                "message": f.get("message", ""),
                "nodeCount": f.get("nodes", 0),
                "nodes": stand(f["id"]),
            }
            for f in one.get("fingerprints", ())
        ],
        "candidate": _candidate(one["candidate"]) if one.get("candidate") else None,
        # observed under the class, and not in the status yet
        "others": [entry for found in sorted({f for _, f in mine if f and f not in known}) for entry in stand(found)],
    }


def _candidate(one: Object) -> View:
    """What was proven under the candidate image of a class, of which nothing serves."""
    return {
        "image": one["image"],
        "state": one.get("state", ""),
        "nodes": one.get("nodes", 0),
        "ready": one.get("ready", 0),
        "reason": one.get("reason", ""),
        "message": one.get("message", ""),
        "fingerprints": [
            {
                "id": f["id"],
                "summary": f.get("summary", ""),
                "state": f.get("state", ""),
                "variant": f.get("variant", ""),
                "engineBuild": f.get("engineBuild", ""),
                "measured": figures(f),
                "message": f.get("message", ""),
            }
            for f in one.get("fingerprints", ())
        ],
    }


def node_view(node: Object, key: str, target: str, troubles: Mapping[str, Object], pods: Sequence[Object]) -> View:
    """One node: which release its label names, and how its pod is. `target`: what the class moves to."""
    name, value = node["metadata"]["name"], labels_of(node).get(key, "")
    release = labels.release_of(value)
    pod = next((p for p in pods if p.get("spec", {}).get("nodeName") == name and "deletionTimestamp" not in p["metadata"]), None)
    ready = pod is not None and conditions(pod).get("Ready", {}).get("status") == "True"
    trouble = troubles.get(name, {})
    message = f"{trouble['reason']}: {trouble.get('message', '')}" if trouble else pod_trouble(pod) if pod is not None and not ready else ""
    if not is_node_ready(node):
        state = "unreachable"
    elif trouble:
        state = str(trouble.get("state") or "failed")
    elif drain(value):
        state = "moving"
    elif not value:
        state, message = "waiting", message or "no release yet"
    elif not ready:
        state = "moving"
    else:
        state = "ready"
    return {
        "node": name,
        "state": state,
        "release": release,
        "updated": bool(release) and release == target and not drain(value),
        "message": message,
    }


# ---- for people


def tree(seen: View) -> Tree:
    ready = "Ready" if seen["ready"] == "True" else "Stalled" if seen["stalled"] else "Not ready"
    colour = {"Ready": "green", "Stalled": "red"}.get(ready, "yellow")
    head = f"[bold]{escape(seen['namespace'])}/{escape(seen['name'])}[/]  [{colour}]{ready}[/]  {escape(seen['revision'] or 'no revision yet')}"
    root = Tree(head + "".join(f"  {escape(seen[k])} {k}" for k in ("precision",) if seen[k]))
    if seen["summary"]:
        root.add(escape(seen["summary"]))
    if seen["stale"]:
        root.add(f"[yellow]{escape(seen['stale'])}[/]")
    if seen["belowGate"]:
        root.add(f"[yellow]does not pass its gate: {escape(seen['belowGate'])}[/]")
    if not seen["upToDate"]:
        root.add("[yellow]The operator has not looked at the spec as it stands now.[/]")
    for one in seen["classes"]:
        _add_class(root, one)
    return root


def _add_class(root: Tree, one: View) -> None:
    counts, rollout = one["nodes"], one["rollout"]
    said = [f"{counts.get('ready', 0)}/{counts.get('total', 0)} nodes ready", f"{counts.get('updated', 0)} updated"]
    if not rollout.get("release") and not any(counts.get(k) for k in ("ready", "updated", "waiting", "failed")):
        said = [f"{counts.get('total', 0)} nodes, nothing is served"]
    said += [f"{counts[k]} {k}" for k in ("waiting", "unreachable", "failed") if counts.get(k)]
    branch = root.add(f"[bold]{escape(one['name'])}[/]  {', '.join(said)}{_rollout(rollout)}")
    if refused := rollout.get("refused"):
        branch.add(
            f"[red]release {escape(refused['release'])} was given up: {escape(refused['reason'])}: {escape(one_line(refused.get('message', '')))}[/]"
        )
    for f in one["fingerprints"]:
        colour = COLOURS.get(f["state"], "default")
        parts = [f["variant"], f["measured"]]
        leaf = branch.add(
            f"{escape(f['id'])}  [{colour}]{escape(f['state'] or 'Waiting')}[/]  {escape(', '.join(p for p in parts if p))}\n[dim]{escape(f['summary'])}[/]"
        )
        if f["message"] and f["state"] != "Passed":
            leaf.add(escape(one_line(f["message"])))
        _add_nodes(leaf, f["nodes"])
    if one["candidate"]:
        _add_candidate(branch, one["candidate"])
    if one["others"]:
        _add_nodes(branch.add("[dim]other fingerprints[/]"), one["others"])


def _add_candidate(branch: Tree, one: View) -> None:
    colour = COLOURS.get(one["state"], "default")
    head = f"candidate image {escape(one['image'])}  [{colour}]{escape(one['state'])}[/]  engines for {one['ready']} of {one['nodes']} nodes passed"
    leaf = branch.add(head)
    if one["state"] != "Ready":
        leaf.add(escape(one_line(f"{one['reason']}: {one['message']}")))
    for f in one["fingerprints"]:
        parts = ", ".join(p for p in (f["variant"], f["measured"]) if p)
        state = f["state"] or "Waiting"
        leaf.add(f"{escape(f['id'])}  [{COLOURS.get(state, 'default')}]{escape(state)}[/]  {escape(parts)}\n[dim]{escape(f['summary'])}[/]")


def _rollout(rollout: Object) -> str:
    if not rollout.get("release"):
        return ""
    text = f"  release {escape(rollout['release'])}"
    stable = rollout.get("stableRelease")
    text += f" (before: {escape(stable)})" if stable and stable != rollout["release"] else ""
    text += f", step {escape(rollout['step'])}" if rollout.get("step") else ""
    text += f", done {escape(rollout['etaIn'])}" if rollout.get("etaIn") else ""
    return text + (f"  [yellow]{escape(rollout['pausedReason'])}[/]" if rollout.get("pausedReason") else "")


def _add_nodes(leaf: Tree, nodes: Sequence[View]) -> None:
    order = ("failed", "unreachable", "moving", "waiting", "ready")
    ranked = sorted(nodes, key=lambda n: (order.index(n["state"]) if n["state"] in order else 0, n["node"]))
    for n in ranked[:SHOWN_NODES]:
        release = (
            f"  {escape(n['release'])}" + ("" if n["updated"] else " [dim](earlier)[/]" if n["state"] == "ready" else "")
            if n["release"]
            else ""
        )
        said = f"  {escape(one_line(n['message']))}" if n["message"] else ""
        leaf.add(f"{escape(n['node'])}  [{COLOURS.get(n['state'], 'default')}]{escape(n['state'])}[/]{release}{said}")
    if len(ranked) > SHOWN_NODES:
        leaf.add(f"[dim]and {len(ranked) - SHOWN_NODES} more; -o json names all[/]")


def exit_code(seen: Sequence[View]) -> int:
    """0 when every one is ready, with the spec as it stands now."""
    return 0 if all(one["ready"] == "True" and one["upToDate"] for one in seen) else 1
