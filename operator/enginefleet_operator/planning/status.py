"""What a ModelDeployment's status says: conditions as kstatus reads them, one line for people, counts per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enginefleet_api import labels
from enginefleet_api.keys import ignored_settings
from enginefleet_api.resources import (
    Attempted,
    ClassStatus,
    Condition,
    EngineBuildStatus,
    FingerprintStatus,
    ModelDeploymentStatus,
    NodeCounts,
    NodeTrouble,
    RefusedRelease,
)

from . import contexts, retry, rollout
from .ladder import Ladder
from .model import Event, HardwareClass, Snapshot
from .pausing import Paused
from .rollout import State
from .serving import ClassRollout, Serving, trouble
from .stages import HELD, BuildStage, Prepared, Problem, Wanted, nodes_of, observation, refresh_token, targets

TYPES = ("Ready", "Reconciling", "Stalled", "Prepared", "EnginesReady", "RolledOut", "ServingStale", "BelowGate")


@dataclass(frozen=True, slots=True)
class Say:
    status: bool
    reason: str
    message: str


def merge_conditions(old: list[Condition], said: dict[str, Say], generation: int, now: float) -> list[Condition]:
    """lastTransitionTime moves only with status."""
    before = {c.type: c for c in old}
    merged: list[Condition] = []
    for kind, say in said.items():
        value = "True" if say.status else "False"
        previous = before.get(kind)
        since = previous.last_transition_time if previous is not None and previous.status == value else retry.timestamp(now)
        merged.append(
            Condition.model_validate(
                {
                    "type": kind,
                    "status": value,
                    "reason": say.reason,
                    "message": say.message[:1024],
                    "observedGeneration": generation,
                    "lastTransitionTime": since,
                }
            )
        )
    return merged


def model_status(
    s: Snapshot,
    problems: tuple[Problem, ...],
    prepared: Prepared | None,
    stage: BuildStage,
    served: Serving,
    pauses: Sequence[Paused],
    now: float,
) -> tuple[ModelDeploymentStatus, list[Event]]:
    classes = [_class_status(s, c, stage) for c in served.classes]
    total = sum(c.nodes.total for c in classes)
    ready = sum(c.nodes.ready for c in classes)
    updated = sum(c.nodes.updated for c in classes)
    reachable = total - sum(c.nodes.unreachable for c in classes)
    wanted, passed = len(stage.wanted) + len(stage.unbuilt) + len(stage.held), len(stage.passed)
    say = _conditions(s, problems, prepared, stage, served, reachable, ready)
    looked = prepared is not None and prepared.resolved is not None
    resolved = prepared.resolved if prepared is not None and prepared.resolved is not None else s.status.resolved
    revision = stage.wanted[0].spec.revision if stage.wanted else s.status.revision
    engines = f"{passed}/{wanted}" if wanted else s.status.engines if prepared is not None and prepared.resolved is None else "0/0"
    new = ModelDeploymentStatus(
        observed_generation=s.generation,
        summary=say["Ready"].message if say["Ready"].status else say["Stalled"].message if say["Stalled"].status else say["Ready"].message,
        engines=engines,
        precision=_precision(s, stage),
        rollout=f"{min(ready, updated)}/{total}" if s.spec.serving.mode != "None" else "",
        revision=revision,
        # a token counts as used only once prepare was looked at with it
        retry_token=s.annotations.get(labels.RETRY, s.status.retry_token) if prepared is not None else s.status.retry_token,
        promote_token=served.tokens[0],
        abort_token=served.tokens[1],
        # used up by a look at what there is to build, whether anything was held or not
        approve_token=s.annotations.get(labels.APPROVE, "")
        if looked and not any(p.keeps_token for p in pauses)
        else s.status.approve_token,
        refresh_token=refresh_token(s) if looked else s.status.refresh_token,
        resolved=resolved,
        prepare=prepared.state if prepared is not None else s.status.prepare,
        prepare_inputs_key=prepared.key if prepared is not None else s.status.prepare_inputs_key,
        classes=classes,
        conditions=merge_conditions(s.status.conditions, say, s.generation, now),
    )
    return new, _transitions(s, new, any(p.approved for p in pauses))


def _transitions(s: Snapshot, new: ModelDeploymentStatus, paused: bool) -> list[Event]:
    before = {c.type: (c.status, c.reason) for c in s.status.conditions}
    events: list[Event] = []
    for c in new.conditions:
        if before.get(c.type) == (c.status, c.reason):
            continue
        if c.type == "Ready" and c.status == "True":
            events.append(Event("RolledOut", c.message))
        elif c.type == "Stalled" and c.status == "True":
            events.append(Event(c.reason, c.message, warning=True))
    old = {c.name: c.rollout for c in s.status.classes}
    for one in new.classes:
        was, now = old.get(one.name), one.rollout
        if was is not None and was.release == now.release and was.step == "canary" != now.step and now.refused is None:
            events.append(Event("CanaryReady", f"{one.name}: the canary nodes of release {now.release} are ready."))
    return events if paused else events + _approved(s, new)  # ServingPaused says what the token did


def _approved(s: Snapshot, new: ModelDeploymentStatus) -> list[Event]:
    """What a token that was just used up did. One that was there from the beginning is of a manifest that was written for something else."""
    token = new.approve_token
    if token in ("", s.status.approve_token) or not s.status.observed_generation:
        return []
    held = [f"{c.name}: {f.summary or f.id}" for c in s.status.classes for f in c.fingerprints if f.state == "Held"]
    if not held:
        return [Event("NothingToApprove", f"nothing is held: {labels.APPROVE} {token} changes nothing.", warning=True)]
    return [Event("Approved", f"{labels.APPROVE} {token}: {'; '.join(held)}.")]


def _conditions(
    s: Snapshot, problems: tuple[Problem, ...], prepared: Prepared | None, stage: BuildStage, served: Serving, reachable: int, ready: int
) -> dict[str, Say]:
    wait = _waits(s, problems, prepared, stage, served)
    stalled = next((w for w in wait if w.stalled), None)
    first = stalled or (wait[0] if wait else None)
    metric = _metric(stage)
    stale = _stale(problems, prepared, stage, served)
    held = next((one for one in stale if one.reason == HELD), None)
    if first is None:
        declared = (
            "; runtimeCheck Declare: the runtime of the serving image is not checked" if s.spec.serving.runtime_check == "Declare" else ""
        )
        ignored = "".join(
            f"; {c.name} makes no use of spec.build {', '.join(names)}"
            for c in targets(s)
            if (names := ignored_settings(s.spec.build, c.spec.backend))
        )
        current = f"serve, {held.nodes} of them an older release that is held for approval" if held else "serve the current release"
        serves = f"{ready} of {reachable} reachable nodes {current}"
        if s.spec.serving.mode == "None":
            serves, declared = f"{_engines(len(stage.passed))} published; serving.mode None runs no pods", ""
        ready_say = Say(True, "Serving" if s.spec.serving.mode != "None" else "Published", f"{serves}{metric}{declared}{ignored}.")
    else:
        ready_say = Say(False, first.reason, first.message)
    is_prepared = prepared is not None and prepared.resolved is not None and any(not p.get("failure") for p in prepared.resolved.prepared)
    prepare_wait = next((w for w in wait if w.stage == "prepare"), None)
    build_wait = next((w for w in wait if w.stage == "build"), None)
    rollout_wait = next((w for w in wait if w.stage == "rollout"), None)
    every = len(stage.wanted) + len(stage.unbuilt) + len(stage.held)
    engines = bool(stage.wanted) and len(stage.passed) == every
    return {
        "Ready": ready_say,
        "Reconciling": Say(
            first is not None and stalled is None,
            first.reason if first and not stalled else "Idle",
            first.message if first and not stalled else "",
        ),
        "Stalled": Say(stalled is not None, stalled.reason if stalled else "Progressing", stalled.message if stalled else ""),
        "Prepared": Say(True, "Prepared", f"Model {_model(prepared)} is prepared.")
        if is_prepared
        else Say(
            False,
            prepare_wait.reason if prepare_wait else "Blocked" if prepared is None or prepared.resolved is None else "NothingPrepared",
            prepare_wait.message if prepare_wait else (first.message if first else ""),
        ),
        "EnginesReady": Say(True, "AllPassed", f"{len(stage.passed)} of {every} engines passed the gate.")
        if engines
        else Say(
            False,
            build_wait.reason if build_wait else HELD if stage.held else "Waiting",
            build_wait.message
            if build_wait
            else f"{stage.held[0].message}."
            if stage.held
            else f"{len(stage.passed)} of {every} engines passed.",
        ),
        "RolledOut": Say(
            first is None and held is None,
            (rollout_wait or first).reason if first else HELD if held else "RolledOut",
            (rollout_wait or first).message if first else f"{held.message}." if held else "",
        ),
        "ServingStale": Say(
            bool(stale), stale[0].reason if stale else "Current", "; ".join(one.message for one in stale) + "." if stale else ""
        ),
        "BelowGate": _below(s, stage),
    }


def _engines(count: int) -> str:
    return "1 engine is" if count == 1 else f"{count} engines are"


def _below(s: Snapshot, stage: BuildStage) -> Say:
    """Of the engines that may serve: whether one does not pass in a context that its nodes have come to."""
    before = next((c for c in s.status.conditions if c.type == "BelowGate"), None)
    if not stage.passed and before is not None:
        return Say(before.status == "True", before.reason, before.message)  # nothing is known anew, of what serves still
    said: list[tuple[str, Say]] = []
    for want in stage.wanted:
        if (status := stage.passed.get(want.name)) is not None:
            present = contexts.present(s.fingerprints, want.nodes, want.spec.request["facts"])
            said.append((want.hardware_class.name, say_below(present, status)))
    worst = [one for one in said if one[1].status] or [one for one in said if one[1].reason != PASSES] or said[:1]
    if not worst:
        return Say(False, PASSES, "")
    return Say(worst[0][1].status, worst[0][1].reason, "; ".join(f"{name}: {say.message}" for name, say in worst if say.message))


PASSES = "Passes"


def say_below(present: Sequence[contexts.Context], status: EngineBuildStatus) -> Say:
    """The condition BelowGate of one engine that serves in these contexts."""
    if below := contexts.below(present, status):
        hint = f"It goes on serving. Undo that, loosen the gate, or have it judged again with {labels.RETRY}."
        return Say(True, below[0].reason, f"{'; '.join(one.message.rstrip('.') for one in below)}. {hint}")
    if waiting := contexts.waiting(present, status):
        return Say(False, "Rejudging", "; ".join(waiting))
    return Say(False, PASSES, "")


@dataclass(frozen=True, slots=True)
class Stale:
    """Why `nodes` nodes serve something else than what the spec asks for."""

    nodes: int
    reason: str
    message: str


def _stale(problems: tuple[Problem, ...], prepared: Prepared | None, stage: BuildStage, served: Serving) -> list[Stale]:
    """The causes for which nodes serve an older release, with their counts: those first that somebody has to do something about."""
    held = {node: one for one in stage.held for node in one.nodes}
    counts: dict[str, int] = {}
    for c in served.classes:
        for n in c.nodes:
            if not n.serving:
                continue
            if problems:
                reason = problems[0].reason
            elif n.name in held:
                reason = HELD
            elif _is_back(c):
                reason = "Aborted" if c.standing.refused is not None and c.standing.refused.reason == "Aborted" else "RolledBack"
            elif rollout.classify(n) is not State.STALE:
                continue
            else:
                reason = "RollingOut" if n.target else "Preparing" if prepared is None or prepared.resolved is None else "Building"
            counts[reason] = counts.get(reason, 0) + 1
    what = {
        HELD: f"an older release: {stage.held[0].message}" if stage.held else "",
        "Aborted": f"back on an earlier release because of {labels.ABORT}",
        "RolledBack": "back on an earlier release, the current one was given up",
        "RollingOut": "an older release until their turn has come",
        "Preparing": "an older release while the current one is prepared",
        "Building": "an older release, no engine of the current one has passed for them yet",
    } | {
        p.reason: f"what they served before, nothing is built or rolled out until this is mended: {p.message.rstrip('.')}" for p in problems
    }
    ranked = [reason for reason in what if reason in counts]
    return [Stale(counts[reason], reason, f"{counts[reason]} nodes serve {what[reason]}") for reason in ranked]


def _model(prepared: Prepared | None) -> str:
    return prepared.resolved.model[:19] + "…" if prepared is not None and prepared.resolved is not None else ""


def _precision(s: Snapshot, stage: BuildStage) -> str:
    chosen = sorted({want.variant.id for want in stage.wanted if want.name in stage.passed})
    if s.spec.precision != "auto":
        return s.spec.precision
    return ",".join(chosen) or (s.status.precision if not stage.wanted else "") or "auto"


def _metric(stage: BuildStage) -> str:
    for status in stage.passed.values():
        if status.accuracy and status.accuracy.get("value"):
            return f"; {status.accuracy.get('metric')} {status.accuracy.get('value')}"
    return ""


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that stands between now and Ready, the most basic first."""

    stage: str
    reason: str
    message: str
    stalled: bool = False


def _waits(s: Snapshot, problems: tuple[Problem, ...], prepared: Prepared | None, stage: BuildStage, served: Serving) -> list[Wait]:
    if problems:
        return [Wait("admission", p.reason, p.message, p.stalled) for p in problems]
    assert prepared is not None
    refused = [Wait("rollout", *s.refused)] if s.refused is not None else []
    if prepared.resolved is None:
        empty = [] if any(nodes_of(s, c) for c in targets(s)) else [no_nodes(c) for c in targets(s)]
        if prepared.idle:
            # no device is known yet, or none can do it
            cannot = [Wait("prepare", p.reason, p.message, p.stalled) for p in prepared.refused]
            return [*refused, *empty, *cannot, *_unknown_waits(s)] or [Wait("prepare", "FingerprintUnknown", "No device is known yet.")]
        return [*refused, *empty, prepare_wait(prepared)]
    found: list[Wait] = [*refused, *engine_waits(s, prepared, stage)]
    ready = {n.name for n in s.nodes if n.ready}
    serving = {n.name for c in served.classes for n in c.nodes if n.serving}
    # while what they have serves, it is drift: ServingStale says so, and Ready stays
    found += [
        Wait("build", one.reason, f"{one.message}; {len(lacking)} of them serve nothing: what they had does not fit them.")
        for one in stage.held
        if (lacking := ready.intersection(one.nodes) - serving)
    ]
    found += [no_nodes(c) for c in targets(s) if not nodes_of(s, c)]
    found += _unknown_waits(s)
    for c in served.classes:
        if _is_back(c) and c.standing.refused is not None:
            found.append(_back(c, c.standing.refused))
            continue
        moving = [n for n in c.nodes if n.reachable and rollout.classify(n) is not State.READY and n.target]
        if not moving:
            continue
        failed = [n for n in moving if rollout.classify(n) is State.FAILED]
        if failed:
            reason, message = trouble(s, failed[0])
            text = f"{c.hardware_class.name}: on node {failed[0].name}: {reason}: {message}"
            found.append(Wait("rollout", reason or "PodFailing", text + (f"; {c.held}" if c.held else "")))
        else:
            done = sum(rollout.classify(n) is State.READY for n in c.nodes)
            unfit = all(n.unfit and n.serving for n in moving)
            away = next((n.name for n in moving if n.building), "") if all(n.building for n in moving) else ""
            found.append(
                Wait(
                    "rollout",
                    "PodDoesNotFit" if unfit else "PausedForBuild" if away else "RollingOut",
                    f"{c.hardware_class.name}: {done} of {len(c.nodes)} nodes are done"
                    + (f"; node {away} makes way for a build." if away else f"; {c.held}." if c.held else "."),
                )
            )
    return found


def engine_waits(s: Snapshot, prepared: Prepared, stage: BuildStage) -> list[Wait]:
    """Why engines of the stage have not passed, as far as a node that can be reached lacks one."""
    found: list[Wait] = []
    ready = {n.name for n in s.nodes if n.ready}
    for want in stage.wanted:
        status = stage.statuses.get(want.name)
        if want.name in stage.passed or not ready.intersection(want.nodes):
            continue  # offline nodes do not take Ready away
        ladder = stage.ladders[want.name]
        if ladder.needs is not None:
            found.append(_next_rung(want, ladder, prepared))
            continue
        if status is None:
            found.append(Wait("build", "Building", f"The build for {want.summary} is about to start."))
            continue
        last = status.build.last_failure if status.build else None
        where = f"{want.hardware_class.name}: "
        if status.phase == "Failed":
            tried = "".join(f"; {r.variant.id}: {r.message}" for r in reversed(ladder.rungs[:-1]))
            name = f"{want.variant.id}: " if tried else ""
            found.append(Wait("build", last.reason if last else "BuildFailed", where + name + status.message + tried, stalled=True))
        elif last is not None and status.build is not None and status.phase in ("Waiting", "Inconclusive"):
            stalled = retry.is_permanent(status.build) or status.build.in_a_row >= retry.STALLED_AFTER
            found.append(Wait("build", last.reason, where + status.message, stalled))
        else:
            reason, separator, _ = status.message.partition(": ")
            named = status.phase == "Waiting" and separator and reason.isalnum()
            found.append(Wait("build", reason if named else "Building", where + (status.message or "building")))
    for unbuilt in stage.unbuilt:
        if not unbuilt.waits:
            found.append(Wait("build", unbuilt.reason, unbuilt.message, stalled=True))
        elif ready.intersection(unbuilt.nodes):
            wait = prepare_wait(prepared)
            found.append(Wait("build", wait.reason, f"{unbuilt.message}: {wait.message}", wait.stalled))
    return found


def _is_back(c: ClassRollout) -> bool:
    """It went back from the release that the spec asks for, or is on its way."""
    return c.standing.refused is not None and c.standing.refused.release == c.standing.release


def _back(c: ClassRollout, refused: RefusedRelease) -> Wait:
    there = [n for n in c.nodes if n.reachable and n.target]
    done = sum(rollout.classify(n) is State.READY for n in there)
    stable = c.standing.stable_release
    where = f"{done} of {len(there)} nodes are back on release {stable}" if stable else "there is no earlier release to go back to"
    text = f"{c.hardware_class.name}: {refused.message.rstrip('.')}: {where}. Change the spec, or try it again with the annotation {labels.RETRY}."
    return Wait("rollout", "Aborted" if refused.reason == "Aborted" else "RolledBack", text, stalled=True)


def _unknown_waits(s: Snapshot) -> list[Wait]:
    """Classes with nodes that are there and not known yet."""
    found: list[Wait] = []
    for hardware_class in targets(s):
        unknown = [n.name for n in nodes_of(s, hardware_class) if n.ready and observation(s, hardware_class, n) is None]
        if unknown:
            found.append(Wait("build", "FingerprintUnknown", _unknown(s, hardware_class.name, unknown)))
    return found


def _next_rung(want: Wanted, ladder: Ladder[Wanted], prepared: Prepared) -> Wait:
    """The last variant did not do, and the next one is being prepared."""
    assert ladder.needs is not None
    last = ladder.rungs[-1]
    wait = prepare_wait(prepared)
    text = f"{want.hardware_class.name}: {last.variant.id}: {last.message} Next is {ladder.needs.id}: {wait.message}"
    # a failure to prepare is the reason; that it runs is none
    return Wait("build", "TryingNextVariant" if prepared.running or prepared.start else wait.reason, text, wait.stalled)


def no_nodes(hardware_class: HardwareClass) -> Wait:
    chosen = ", ".join(f"{k}={v}" for k, v in sorted(hardware_class.spec.node_selector.match_labels.items()))
    return Wait("build", "NoMatchingNodes", f"No node has the labels {chosen} of HardwareClass {hardware_class.name}; it waits for one.")


def _unknown(s: Snapshot, hardware_class: str, nodes: list[str]) -> str:
    spec = s.classes[hardware_class]
    said = next((c.message for c in spec.status.conditions if c.type == "Ready" and c.status == "False"), "")
    silent = [n for n in nodes if n not in s.fingerprints]
    if silent:
        return f"The agent has not reported on node {silent[0]} yet" + (f" ({len(silent)} nodes)." if len(silent) > 1 else ".")
    return f"HardwareClass {hardware_class} is still probing its runtime image for node {nodes[0]}" + (f": {said}" if said else ".")


def prepare_wait(prepared: Prepared) -> Wait:
    state = prepared.state
    if prepared.running is not None:
        if prepared.running.waiting is not None:
            return Wait("prepare", *prepared.running.waiting)
        return Wait("prepare", "Preparing", f"Job {prepared.running.name} prepares the model.")
    last = state.last_failure if state else None
    if last is None or state is None:
        return Wait("prepare", "Preparing", "The prepare Job is about to start.")
    permanent = retry.is_permanent(state)
    after = "" if permanent else f" Attempt {state.attempts + 1} at {state.next_attempt_at}."
    stalled = permanent or state.in_a_row >= retry.STALLED_AFTER
    return Wait("prepare", last.reason, f"{last.message} {last.hint}".rstrip() + after, stalled)


def _class_status(s: Snapshot, c: ClassRollout, stage: BuildStage) -> ClassStatus:
    tally = rollout.counts(c.nodes)
    old = next((k for k in s.status.classes if k.name == c.hardware_class.name), None)
    fingerprints = fingerprints_of(stage, c.hardware_class.name)
    if not stage.wanted and not stage.unbuilt and not stage.held and old is not None:
        fingerprints = old.fingerprints  # nothing is known anew while prepare runs
    if s.spec.serving.mode == "None":
        nodes = nodes_of(s, c.hardware_class)
        counted = NodeCounts(total=len(nodes), unreachable=sum(not n.ready for n in nodes))
        return ClassStatus(name=c.hardware_class.name, nodes=counted, fingerprints=fingerprints)
    failing = [_trouble(s, n) for n in c.nodes if rollout.classify(n) in (State.FAILED, State.UNREACHABLE)]
    return ClassStatus(
        name=c.hardware_class.name,
        nodes=NodeCounts(
            total=len(c.nodes),
            updated=sum(1 for n in c.nodes if n.target and n.current == n.target and not _is_back(c)),
            ready=sum(1 for n in c.nodes if n.serving and n.reachable),
            waiting=tally[State.WAITING],
            unreachable=tally[State.UNREACHABLE],
            failed=tally[State.FAILED],
        ),
        fingerprints=fingerprints,
        rollout=c.standing,
        failing_nodes=failing[:20],
    )


def fingerprints_of(stage: BuildStage, hardware_class: str) -> list[FingerprintStatus]:
    """Where the engines of one class stand, those that are worked on and those for which there is nothing to build."""
    found = []
    for want in stage.wanted:
        if want.hardware_class.name != hardware_class:
            continue
        status = stage.statuses.get(want.name)
        found.append(
            FingerprintStatus(
                id=want.fingerprint,
                summary=want.summary,
                nodes=len(want.nodes),
                state=status.phase if status else "Waiting",
                engine_build=want.name,
                blob=str((status.engine or {}).get("blob", "")) if status else "",
                precision=want.spec.precision,
                variant=want.variant.id,
                tried=[
                    Attempted(variant=r.variant.id, state=r.state, message=r.message[:512])
                    for r in stage.ladders[want.name].rungs
                    if r.want is None or r.want.name != want.name
                ],
                speedup=status.speedup if status else "",
                accuracy=status.accuracy if status else None,
                latency=status.latency if status else [],
                message=status.message if status else "",
            )
        )
    for unbuilt in (*stage.unbuilt, *stage.held):
        if unbuilt.hardware_class.name == hardware_class:
            o = unbuilt.observation
            state = "Held" if unbuilt.reason == HELD else "Waiting" if unbuilt.waits else "Failed"
            found.append(FingerprintStatus(id=o.id, summary=o.summary, nodes=len(unbuilt.nodes), state=state, message=unbuilt.message))
    return found


def _trouble(s: Snapshot, node: rollout.NodeState) -> NodeTrouble:
    if not node.reachable:
        return NodeTrouble(
            node=node.name, state="unreachable", reason="NodeNotReady", message="The node is not Ready; it catches up when it is back."
        )
    reason, message = trouble(s, node)
    return NodeTrouble(node=node.name, state="failed", reason=reason, message=message[:512])
