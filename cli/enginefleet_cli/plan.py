"""`plan -f`: what a manifest would have prepared, built, judged and moved. Pure; the manifest was completed and checked by a dry run before.

Keys are those of the contract: an engine is built again exactly when its key has no EngineBuild that passed. They hang on the prepared model, so
they are known only as long as nothing that prepare works from changes. The operator decides anew on what it finds; this is a forecast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.tree import Tree

from enginefleet_api.fingerprint import cross_capability, first_gpu
from enginefleet_api.flavours import flavour_of, precision_refused
from enginefleet_api.identity import ENGINE_RECIPE, engine_key
from enginefleet_api.keys import gate_key_of, recipe_of
from enginefleet_api.resources import ModelDeploymentSpec, Resolved, Validation
from enginefleet_api.variants import rungs

from .words import Object, fingerprint_on, labels_of, short

View = dict[str, Any]

PREPARED_FROM = ("model", "inputs", "preprocessing", "storeRef")
SERVED_AS = ("serving", "preprocessing", "storeRef")


def plan(
    wanted: Object,
    live: Object | None,
    builds: Sequence[Object],
    classes: Mapping[str, Object],
    nodes: Sequence[Object],
    observed: Mapping[str, Object],
) -> View:
    """`wanted`: the manifest with all defaults. `live`: what is there, None for a new one. `observed`: NodeFingerprints by node."""
    spec = ModelDeploymentSpec.model_validate(wanted["spec"])
    old = ModelDeploymentSpec.model_validate(live["spec"]) if live is not None else None
    changed = sorted(_changed(wanted["spec"], live["spec"])) if live is not None else []
    prepare = _prepare(spec, old, changed)
    pinned = None
    if live is not None and not prepare and (kept := live.get("status", {}).get("resolved")):
        pinned = Resolved.model_validate(kept)
    standing = {c["name"]: c for c in (live or {}).get("status", {}).get("classes", ())}
    have = [b for b in builds if b["spec"]["modelDeployment"] == wanted["metadata"]["name"]]
    places = []
    before = set(_targets(old, classes)) if old is not None else set()
    for name in _targets(spec, classes):
        new = old is not None and name not in before
        places.append(_place(name, spec, pinned, classes.get(name), nodes, observed, have, standing.get(name, {}), new=new))
    gone = sorted(set(standing) - {one["class"] for one in places})
    moves = _moves(old, prepare, changed, places)
    return {
        "name": wanted["metadata"]["name"],
        "namespace": wanted["metadata"].get("namespace", ""),
        "new": live is None,
        "changed": changed,
        "prepare": prepare or ([] if pinned is not None or old is None else ["nothing is prepared yet"]),
        "classes": places,
        "removedClasses": gone,
        "moves": moves,
        "nodesToMove": sum(one["nodes"] for one in places) if moves else 0,
        "paused": spec.paused,
    }


def _targets(spec: ModelDeploymentSpec, classes: Mapping[str, Object]) -> list[str]:
    """Names of the HardwareClasses that are targeted, by name or by labels of theirs."""
    names: list[str] = []
    for target in spec.targets:
        if target.hardware_class:
            names.append(target.hardware_class)
        elif target.hardware_class_selector is not None:
            wanted = target.hardware_class_selector.match_labels
            names += sorted(name for name, one in classes.items() if all(labels_of(one).get(k) == v for k, v in wanted.items()))
    return list(dict.fromkeys(names))


def _changed(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> Iterable[str]:
    return (name for name in {*wanted, *live} if wanted.get(name) != live.get(name))


def _prepare(spec: ModelDeploymentSpec, old: ModelDeploymentSpec | None, changed: Sequence[str]) -> list[str]:
    """Why the prepare Job would run; thresholds judge, they do not prepare."""
    if old is None:
        return ["it is new"]
    why = [f"spec.{name} changes" for name in PREPARED_FROM if name in changed]
    if rungs(spec.precision, spec.calibration, spec.auto.candidates) != rungs(old.precision, old.calibration, old.auto.candidates):
        why.append("other variants are asked for")
    elif "calibration" in changed:
        why.append("spec.calibration changes")
    if _measured(spec.validation) != _measured(old.validation):
        why.append("the baseline is measured anew: spec.validation changes in more than thresholds")
    return why


def _measured(validation: Validation | None) -> Mapping[str, Any] | None:
    if validation is None:
        return None
    thresholds = Validation(uri=validation.uri)
    return validation.model_copy(
        update={"acceptance": thresholds.acceptance, "required_classes": thresholds.required_classes}
    ).to_json_dict()


def _place(
    name: str,
    spec: ModelDeploymentSpec,
    pinned: Resolved | None,
    hardware_class: Object | None,
    nodes: Sequence[Object],
    observed: Mapping[str, Object],
    builds: Sequence[Object],
    standing: Object,
    *,
    new: bool,
) -> View:
    if hardware_class is None:
        return {"class": name, "new": new, "nodes": 0, "problem": f"there is no HardwareClass {name}", "fingerprints": []}
    selector = hardware_class["spec"].get("nodeSelector", {}).get("matchLabels", {})
    members = [node for node in nodes if all(labels_of(node).get(k) == v for k, v in selector.items())]
    groups: dict[str, list[str]] = {}
    for node in members:
        groups.setdefault(fingerprint_on(node, name), []).append(node["metadata"]["name"])
    unknown = len(groups.pop("", []))
    current = {f["id"]: f for f in standing.get("fingerprints", ())}
    found = [
        _fingerprint(one, mine, spec, pinned, hardware_class, observed, builds, current.get(one, {}))
        for one, mine in sorted(groups.items())
    ]
    return {
        "class": name,
        "new": new,
        "nodes": len(members),
        "unknownNodes": unknown,
        "problem": "" if members else "no node matches it",
        "fingerprints": found,
    }


def _fingerprint(
    id: str,
    nodes: Sequence[str],
    spec: ModelDeploymentSpec,
    pinned: Resolved | None,
    hardware_class: Object,
    observed: Mapping[str, Object],
    builds: Sequence[Object],
    current: Object,
) -> View:
    of_class = hardware_class["metadata"]["name"]
    seen = next(
        (o for n in nodes for o in observed.get(n, {}).get("spec", {}).get("observations", ()) if o["class"] == of_class and o["id"] == id),
        None,
    )
    facts = (seen or {}).get("facts", {})
    backend = hardware_class["spec"]["backend"]
    flavour = flavour_of(backend, facts.get("backendVersion"))
    gpu = first_gpu(facts) or {}
    capability = str(gpu["computeCapability"]) if gpu.get("computeCapability") else None
    entries: list[View] = []
    for variant in rungs(spec.precision, spec.calibration, spec.auto.candidates):
        refused = precision_refused(variant.precision, backend, facts.get("backendVersion"), capability)
        entry: View = {"variant": variant.id, "engineKey": "", "engineBuild": ""}
        prepared = (
            next((p for p in pinned.prepared if p["flavour"] == flavour and (p.get("variant") or p["precision"]) == variant.id), None)
            if pinned
            else None
        )
        if refused:
            entry |= {"what": "refused", "message": refused}
        elif prepared is None or pinned is None:
            entry |= {
                "what": "build",
                "message": "its key is known once the model is prepared; an engine in the store with that key is adopted",
            }
        elif prepared.get("failure"):
            entry |= {"what": "refused", "message": str(prepared["failure"])}
        else:
            recipe = recipe_of(
                spec.build, spec.inputs, backend=backend, precision=variant.precision, compute_capability=cross_capability(facts) or ""
            )
            key = engine_key(prepared_model=prepared["model"], recipe=recipe, fingerprint=id, version=pinned.engine_recipe or ENGINE_RECIPE)
            entry |= {"engineKey": key} | _known(key, gate_key_of(spec.validation, spec.benchmark, pinned.baseline_key), builds)
        entries.append(entry)
    # the ladder ends at what passes: with `auto` later rungs may be tried, too
    first = next((e for e in entries if e["what"] != "refused" and e.get("verdict") not in ("Failed", "Inconclusive")), None)
    return {
        "id": id,
        "summary": (seen or {}).get("summary", ""),
        "nodes": len(nodes),
        "what": first["what"] if first else "refused",
        "serves": current.get("variant", ""),
        "variants": entries,
    }


def _known(key: str, gate: str, builds: Sequence[Object]) -> View:
    """Whether an EngineBuild has this key, and was judged by this gate."""
    same = [b for b in builds if b["spec"]["engineKey"] == key]
    judged = next((b for b in same if b["spec"]["gateKey"] == gate), None)
    if judged is not None:
        phase = judged.get("status", {}).get("phase") or "Waiting"
        what = "keep" if phase == "Passed" else "known"
        return {
            "what": what,
            "verdict": phase,
            "engineBuild": judged["metadata"]["name"],
            "message": f"EngineBuild {judged['metadata']['name']} is {phase}",
        }
    if same:
        return {"what": "judge", "engineBuild": same[0]["metadata"]["name"], "message": "the engine is there, another gate judges it again"}
    return {"what": "build", "message": "no EngineBuild has this key; an engine in the store with that key is adopted"}


def _moves(old: ModelDeploymentSpec | None, prepare: Sequence[str], changed: Sequence[str], places: Sequence[View]) -> list[str]:
    """Why nodes would get another release; empty: none moves."""
    if old is None:
        return ["it is the first release"]
    why = [f"spec.{name} changes" for name in SERVED_AS if name in changed]
    built = any(f["what"] == "build" for one in places if not one["new"] for f in one["fingerprints"])
    # a baseline that is measured anew judges the same engines
    made_anew = any(word in reason for reason in prepare for word in ("spec.model", "spec.inputs", "spec.calibration", "variants"))
    if made_anew or (built and not prepare):
        why.append("the engines are others")
    return list(dict.fromkeys(why)) + [f"class {one['class']} is new" for one in places if one["new"]]


# ---- for people

WORDS = {
    "keep": "[green]the engine is there and passed[/]",
    "judge": "[cyan]the engine is there and is judged again[/]",
    "known": "[yellow]is being worked on[/]",
    "build": "[yellow]is built, or adopted from the store[/]",
    "refused": "[red]gets no engine[/]",
}


def tree(seen: View) -> Tree:
    what = (
        "is new" if seen["new"] else "changes spec." + ", spec.".join(seen["changed"]) if seen["changed"] else "[green]changes nothing[/]"
    )
    root = Tree(f"[bold]{escape(seen['namespace'])}/{escape(seen['name'])}[/]  {what}")
    if seen["prepare"]:
        root.add("the model is prepared: " + escape("; ".join(seen["prepare"])))
    for one in seen["classes"]:
        branch = root.add(f"[bold]{escape(one['class'])}[/]  {_nodes(one['nodes'])}" + ("  [cyan]new[/]" if one["new"] else ""))
        if one["problem"]:
            branch.add(f"[yellow]{escape(one['problem'])}[/]")
        if one.get("unknownNodes"):
            branch.add(f"[yellow]{_nodes(one['unknownNodes'])} whose fingerprint is not known yet[/]")
        for f in one["fingerprints"]:
            leaf = branch.add(f"{escape(f['id'])}  {_nodes(f['nodes'])}  {WORDS[f['what']]}\n[dim]{escape(f['summary'])}[/]")
            for v in f["variants"]:
                key = f" {short(v['engineKey'])}" if v["engineKey"] else ""
                leaf.add(f"{escape(v['variant'])}{key}: {escape(v['message'])}")
    for name in seen["removedClasses"]:
        root.add(f"[yellow]{escape(name)} is no target any more: its pods are removed[/]")
    if seen["moves"]:
        root.add(f"{_nodes(seen['nodesToMove'])} to move, in the steps of spec.rollout: {escape('; '.join(seen['moves']))}")
    else:
        root.add("[green]No node moves.[/]")
    if seen["paused"]:
        root.add("[yellow]spec.paused is true: nothing of it happens before that changes.[/]")
    return root


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"
