"""`explain NODE|MDEP`: why it is as it is: conditions with since and next, facts, fingerprint, what serves and what is waited for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.tree import Tree

from enginefleet_api import labels
from enginefleet_api.fingerprint import unknowns

from .status import node_view
from .words import COLOURS, Object, conditions, is_node_ready, is_of, labels_of, one_line, since, until

View = dict[str, Any]


def _said(obj: Object, now: float) -> list[View]:
    return [
        {
            "type": c["type"],
            "status": c["status"],
            "reason": c.get("reason", ""),
            "message": c.get("message", ""),
            "since": c.get("lastTransitionTime", ""),
            "for": since(c.get("lastTransitionTime", ""), now),
        }
        for c in obj.get("status", {}).get("conditions", ())
    ]


def _attempt(what: str, state: Object | None, now: float) -> list[View]:
    """What is tried again, or was given up, with its last failure."""
    failure = (state or {}).get("lastFailure")
    if not state or not failure:
        return []
    after = until(state.get("nextAttemptAt", ""), now)
    return [
        {
            "what": what,
            "attempts": state.get("attempts", 0),
            "reason": failure["reason"],
            "message": failure["message"],
            "hint": failure.get("hint", ""),
            "logTail": failure.get("logTail", []),
            "at": failure.get("at", ""),
            "next": after or "not before something changes, or a retry",
        }
    ]


def deployment(mdep: Object, builds: Sequence[Object], now: float) -> View:
    """`builds`: EngineBuilds of the ModelDeployment."""
    status, meta = mdep.get("status", {}), mdep["metadata"]
    used = {f.get("engineBuild") for c in status.get("classes", ()) for f in c.get("fingerprints", ())}
    trouble = _attempt("prepare", status.get("prepare"), now)
    for build in builds:
        if build["metadata"]["name"] in used:
            spec = build["spec"]
            trouble += _attempt(
                f"build of {spec.get('variant') or spec['precision']} for {spec['class']}, {spec.get('summary') or spec['fingerprint']}",
                build.get("status", {}).get("build"),
                now,
            )
    asked = {
        act: text
        for act in ("retry", "refresh", "promote", "abort", "approve")
        if (text := (meta.get("annotations") or {}).get(f"{labels.GROUP}/{act}"))
    }
    return {
        "kind": "ModelDeployment",
        "name": meta["name"],
        "namespace": meta["namespace"],
        "paused": bool(mdep["spec"].get("paused")),
        "generation": meta.get("generation"),
        "observedGeneration": status.get("observedGeneration", -1),
        "conditions": _said(mdep, now),
        "failures": trouble,
        "refused": [dict(r) | {"class": c["name"]} for c in status.get("classes", ()) if (r := c.get("rollout", {}).get("refused"))],
        "nodes": [dict(t) | {"class": c["name"]} for c in status.get("classes", ()) for t in c.get("failingNodes", ())],
        "tried": [
            {"class": c["name"], "fingerprint": f["id"], **t}
            for c in status.get("classes", ())
            for f in c.get("fingerprints", ())
            for t in f.get("tried", ())
        ],
        "tokens": asked,
    }


def node(
    machine: Object,
    observed: Object | None,
    classes: Sequence[Object],
    deployments: Sequence[Object],
    pods: Sequence[Object],
    now: float,
) -> View:
    """`observed`: the node's NodeFingerprint. `pods`: serving pods of the deployments' namespaces."""
    have = labels_of(machine)
    spec = (observed or {}).get("spec", {})
    host = spec.get("host") or {}
    mine = []
    for one in classes:
        wanted = one["spec"].get("nodeSelector", {}).get("matchLabels", {})
        lacking = sorted(f"{k}={v}" for k, v in wanted.items() if have.get(k) != v)
        fingerprint = have.get(labels.fp_key(one["metadata"]["name"]), "")
        seen = next((o for o in spec.get("observations", ()) if o["class"] == one["metadata"]["name"] and o["id"] == fingerprint), None)
        if not lacking or fingerprint:
            mine.append(
                {
                    "class": one["metadata"]["name"],
                    "member": not lacking,
                    "lacks": lacking,
                    "fingerprint": fingerprint,
                    "summary": (seen or {}).get("summary", ""),
                    "facts": (seen or {}).get("facts", {}),
                    "unknown": unknowns((seen or {}).get("facts", {})),
                }
            )
    return {
        "kind": "Node",
        "name": machine["metadata"]["name"],
        "ready": is_node_ready(machine),
        "cordoned": bool(machine.get("spec", {}).get("unschedulable")),
        "since": since((conditions(machine).get("Ready") or {}).get("lastTransitionTime", ""), now),
        "host": {"summary": host.get("summary", ""), "digest": host.get("digest", ""), "context": host.get("context", {})},
        "reported": observed is not None,
        "conditions": _said(observed or {}, now),
        "classes": mine,
        "serves": [entry for d in deployments if (entry := _serves(machine, d, mine, pods)) is not None],
    }


def _serves(machine: Object, mdep: Object, mine: Sequence[View], pods: Sequence[Object]) -> View | None:
    meta = mdep["metadata"]
    key = labels.release_key(meta["namespace"], meta["name"])
    names = {one["class"] for one in mine}
    found = next((c for c in mdep.get("status", {}).get("classes", ()) if c["name"] in names), None)
    if found is None and key not in labels_of(machine):
        return None
    found = found or {}
    rollout = found.get("rollout", {})
    own = [p for p in pods if is_of(p, mdep)]
    troubles = {t["node"]: t for t in found.get("failingNodes", ())}
    view = node_view(machine, key, rollout.get("release", ""), troubles, own)
    fingerprint = next((one["fingerprint"] for one in mine if one["class"] == found.get("name")), "")
    engine = next((f for f in found.get("fingerprints", ()) if f["id"] == fingerprint), None)
    if view["state"] == "waiting" and engine is None:
        view["message"] = "no engine is planned for its fingerprint yet" if fingerprint else "its fingerprint is not known yet"
    elif view["state"] == "waiting" and engine is not None and engine.get("state") != "Passed":
        view["message"] = f"its engine is {engine.get('state') or 'Waiting'}: {engine.get('message', '')}".rstrip(": ")
    return {
        "modelDeployment": f"{meta['namespace']}/{meta['name']}",
        "class": found.get("name", ""),
        "state": view["state"],
        "release": view["release"],
        "target": rollout.get("release", ""),
        "step": rollout.get("step", ""),
        "message": view["message"],
    }


# ---- for people


def deployment_tree(seen: View) -> Tree:
    root = Tree(
        f"[bold]ModelDeployment {escape(seen['namespace'])}/{escape(seen['name'])}[/]" + ("  [yellow]paused[/]" if seen["paused"] else "")
    )
    if seen["generation"] != seen["observedGeneration"]:
        root.add(f"[yellow]The operator has seen generation {seen['observedGeneration']}, the spec is at {seen['generation']}.[/]")
    _add_conditions(root, seen["conditions"])
    for one in seen["failures"]:
        leaf = root.add(f"[red]{escape(one['what'])}: {escape(one['reason'])}[/]  attempt {one['attempts']}, next {escape(one['next'])}")
        leaf.add(escape(f"{one['message']} {one['hint']}".strip()))
        for line in one["logTail"][-5:]:
            leaf.add(f"[dim]{escape(line)}[/]")
    for one in seen["refused"]:
        root.add(
            f"[red]{escape(one['class'])}: release {escape(one['release'])} was given up: {escape(one['reason'])}[/]: {escape(one.get('message', ''))}"
        )
    for one in seen["nodes"]:
        said = escape(one_line(one.get("message", "")))
        root.add(f"{escape(one['node'])} ({escape(one['class'])})  [red]{escape(one['state'])}[/]  {escape(one['reason'])}: {said}")
    for one in seen["tried"]:
        said = f"{one['class']} {one['fingerprint']}: {one['variant']} was not taken ({one['state']}): {one_line(one.get('message', ''))}"
        root.add(f"[dim]{escape(said)}[/]")
    return root


def node_tree(seen: View) -> Tree:
    state = "[green]Ready[/]" if seen["ready"] else "[red]not Ready[/]"
    root = Tree(
        f"[bold]Node {escape(seen['name'])}[/]  {state} for {seen['since'] or '?'}" + ("  [yellow]cordoned[/]" if seen["cordoned"] else "")
    )
    if not seen["reported"]:
        root.add("[yellow]The agent has not reported on this node yet.[/]")
    elif seen["host"]["summary"]:
        root.add(escape(seen["host"]["summary"]))
    if not seen["classes"]:
        root.add("[yellow]No HardwareClass selects this node.[/]")
    for one in seen["classes"]:
        leaf = root.add(f"class [bold]{escape(one['class'])}[/]  {escape(one['fingerprint'] or 'no fingerprint yet')}")
        if one["lacks"]:
            leaf.add(f"[yellow]It does not match the class any more: it lacks {escape(', '.join(one['lacks']))}.[/]")
        if one["summary"]:
            leaf.add(escape(one["summary"]))
        for name, value in sorted(one["facts"].items()):
            leaf.add(f"[dim]{escape(name)}: {escape(one_line(_flat(value)))}[/]")
        if one["unknown"]:
            leaf.add(f"[yellow]not known: {escape(', '.join(one['unknown']))}; its engines are for this node alone[/]")
    _add_conditions(root, seen["conditions"])
    for one in seen["serves"]:
        release = one["release"] or "no release"
        target = f", wanted is {one['target']}" if one["target"] and one["target"] != one["release"] else ""
        leaf = root.add(
            f"{escape(one['modelDeployment'])}  [{COLOURS.get(one['state'], 'default')}]{escape(one['state'])}[/]  {escape(release)}{escape(target)}"
        )
        if one["message"]:
            leaf.add(escape(one_line(one["message"])))
    return root


def _add_conditions(root: Tree, said: Sequence[View]) -> None:
    for one in said:
        held = one["status"] == "True"
        good = held if one["type"] not in ("Stalled", "Reconciling", "ServingStale", "BelowGate") else not held
        age = f" for {one['for']}" if one["for"] else ""
        root.add(
            f"[{'green' if good else 'yellow'}]{escape(one['type'])} {one['status']}[/]{age}  {escape(one['reason'])}: {escape(one['message'])}".rstrip(
                ": "
            )
        )


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_flat(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(_flat(v) for v in value)
    return "not known" if value is None else str(value)
