"""`decide`: one snapshot of a ModelDeployment and the time in, one plan out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import candidates, pausing, stages, status
from .model import Action, CreateBuild, Event, Plan, Snapshot, StartPrepare
from .rejudging import rejudge
from .serving import arrivals, serving
from .serving import wakes as serving_wakes
from .verifying import Verified, verify


def decide(s: Snapshot, now: float) -> Plan:
    """Read top-down: is it allowed, is it prepared, which engines are missing, who may move, what do we say.

    Whatever stops an early stage leaves what serves alone: workloads and labels are decided from the engines that passed, every time.
    """
    problems = tuple(stages.admission(s))
    actions: list[Action] = []
    events: list[Event] = []
    wakes: list[float] = []
    prepared: stages.Prepared | None = None
    stage = stages.BuildStage((), {})
    checked = Verified(stage, s.status.store_check)
    if not problems:
        prepared = stages.prepare(s, (), now)
        if prepared.resolved is not None:
            checked = verify(s, rejudge(s, stages.builds(s, prepared.resolved, now), now), now)
            stage = checked.stage
            if stage.needs:
                prepared = stages.prepare(s, stage.needs, now)
        actions += prepared.actions
        events += prepared.events
        wakes += [prepared.wake_at] if prepared.wake_at is not None else []
        if prepared.start:
            actions.append(StartPrepare(prepared.start, prepared.number, prepared.key, prepared.needs, prepared.resolved))
        if prepared.resolved is not None:
            actions += [CreateBuild(w.name, w.spec) for w in stages.missing_builds(s, stage)]
            actions += stage.actions
            actions += stages.written(s, stage)
            actions += [*stage.start, *checked.start]
            actions += stages.obsolete_builds(s, stage)
            events += stage.events
            wakes += [stage.wake_at] if stage.wake_at is not None else []
    resolved = prepared.resolved if prepared is not None else None
    paused = pausing.until(s, stage.undecided, now)
    away = frozenset(name for name, at in paused.items() if at is None or now < at)
    served = serving(s, resolved, stage.wanted, stage.passed, now, away)
    # while prepare runs for new inputs (or something is missing) nothing is retired and no node leaves its release
    actions += served.actions if resolved is not None else arrivals(s, served)
    wakes += serving_wakes(s, served, now)
    pauses = [
        pausing.step(
            s,
            c.nodes,
            {flip.node for flip in c.flips},
            [one for one in stage.cramped if one.hardware_class == c.hardware_class.name],
            paused,
            now,
        )
        for c in served.classes
    ]
    for one in pauses:
        actions += one.labels
        events += one.events
        wakes += [one.wake_at] if one.wake_at is not None else []
    events += [event for one in served.classes for event in one.events]
    new_status, transitions = status.model_status(s, problems, prepared, stage, served, pauses, now)
    tried, told = candidates.of_model(s, problems, prepared, stage, new_status.classes)
    new_status = new_status.model_copy(update={"store_check": checked.record, "classes": tried})
    events += [*transitions, *told]
    changed: Mapping[str, Any] | None = new_status.to_json_dict()
    if changed == s.status.to_json_dict():
        changed = None
    return Plan(tuple(actions), changed, tuple(events), min(wakes, default=None))
