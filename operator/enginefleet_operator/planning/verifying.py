"""Looks now and then whether the engines that serve are still in the store as they were published: before a pod needs one that is not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from enginefleet_api.jobs import PublishedEngine, VerifyReport
from enginefleet_api.resources import EngineBuildStatus, StoreCheck

from . import retry
from .model import Event, Snapshot, StartVerify
from .stages import LOST_ENGINE, BuildStage, Wanted, attempt, dropped, lost_engine

MOST = 25
"""Engines that one Job looks at: the next Job begins with the next ones."""
WHAT = {
    "ObjectMissing": "it is not in the store any more",
    "BlobDamaged": "what the store holds of it is damaged",
    "NotProven": "the store holds no passed verdict about it any more",
}


@dataclass(frozen=True, slots=True)
class Verified:
    """The stage with the engines that were found to be lost, and what the status says of looking."""

    stage: BuildStage
    record: StoreCheck | None
    start: tuple[StartVerify, ...] = ()


def verify(s: Snapshot, stage: BuildStage, now: float) -> Verified:
    """A Job an interval looks at the engines that may serve. What it finds lost is opened again, as if a pod had missed it."""
    record = s.status.store_check
    state = record.attempt if record is not None else None
    jobs = [job for job in s.jobs if job.role == "verify"]
    engines = sorted((want.name, want, status) for want in stage.wanted if (status := stage.passed.get(want.name)) is not None)
    due = _due(s, record, [status for _, _, status in engines])
    if now >= due and retry.is_permanent(state):
        state = retry.reset(state)
    found = attempt(s, jobs, state, f"{s.name}-verify", ("verify",), now)
    record = record or StoreCheck()
    stage = replace(stage, actions=(*stage.actions, *dropped(found)))
    if found.start:
        # a Job that failed is tried again as others are, one that has answered when the next one is due
        if not engines or not s.settings.check_hours or (now < due and not (state is not None and state.in_a_row)):
            return Verified(_waking(stage, due if engines and s.settings.check_hours else None), s.status.store_check)
        chosen = _turn(found.number, [(want, status) for _, want, status in engines])
        return Verified(stage, s.status.store_check, (StartVerify(found.start, found.number, chosen),))
    if isinstance(found.report, VerifyReport):
        job = found.state.job if found.state is not None else ""
        stage, lost = _lost(stage, found.report, next((j.created for j in s.jobs if j.name == job), 0.0))
        record = StoreCheck(at=retry.timestamp(now), verified=found.report.verified, lost=lost, attempt=found.state)
        # looked at again when the next one is due
        return Verified(_waking(stage, now + _interval(s)), record)
    if found.failed is not None:
        event = Event(found.failed.reason, f"Verifying what is published failed: {found.failed.message}", warning=True)
        stage = replace(stage, events=(*stage.events, event))
        record = record.model_copy(update={"attempt": found.state})
        return Verified(_waking(stage, found.wake_at), record)
    return Verified(_waking(stage, found.wake_at), s.status.store_check)


def _interval(s: Snapshot) -> float:
    """Seconds, with up to a tenth more that follows from the uid: a fleet's Jobs do not march in step."""
    spread = int(hashlib.sha256(s.uid.encode()).hexdigest()[:4], 16) / 0xFFFF
    return s.settings.check_hours * 3600 * (1 + 0.1 * spread)


def _due(s: Snapshot, record: StoreCheck | None, passed: Sequence[EngineBuildStatus]) -> float:
    """An interval after the last look; before there was one, after the first engine passed: publishing reads back what it wrote."""
    times = [status.passed_at for status in passed if status.passed_at]
    failed = record.attempt.last_failure if record is not None and record.attempt is not None else None
    since = [record.at] if record is not None and record.at else [min(times)] if times else []
    if failed is not None and retry.is_permanent(record.attempt if record is not None else None):
        since = [*since, failed.at]
    return max(map(retry.seconds_of, since), default=0.0) + _interval(s)


def _turn(number: int, engines: Sequence[tuple[Wanted, EngineBuildStatus]]) -> tuple[PublishedEngine, ...]:
    """Those of Job `number`: all, or the next MOST of them."""
    first = (number - 1) * MOST % len(engines)
    mine = [*engines[first:], *engines[:first]][:MOST]
    return tuple(
        PublishedEngine(engine_key=want.spec.engine_key, gate_key=want.spec.gate_key, blob=str(engine["blob"]), size=int(engine["size"]))
        for want, status in mine
        if (engine := status.engine) is not None
    )


def _lost(stage: BuildStage, report: VerifyReport, since: float) -> tuple[BuildStage, list[str]]:
    """Engines whose blob was found to be lost. `since`: one that was published after that is another, of whatever bytes."""
    lost: list[str] = []
    for want in stage.wanted:
        status = stage.passed.get(want.name)
        reason = report.lost.get(str((status.engine or {}).get("blob", ""))) if status is not None else None
        if status is None or reason is None or (status.passed_at and retry.seconds_of(status.passed_at) > since > 0):
            continue
        lost.append(f"{want.name}: {reason}")
        if reason not in LOST_ENGINE:
            event = Event(reason, f"{want.name}: what the store holds of it cannot be used, and a build would not mend it.", warning=True)
            stage = replace(stage, events=(*stage.events, event))
            continue
        status, event = lost_engine(want, status, f"{reason}: {WHAT[reason]}")
        stage = replace(
            stage,
            passed={name: one for name, one in stage.passed.items() if name != want.name},
            statuses={**stage.statuses, want.name: status},
            events=(*stage.events, event),
        )
    return stage, lost[:MOST]


def _waking(stage: BuildStage, at: float | None) -> BuildStage:
    return replace(stage, wake_at=min((t for t in (stage.wake_at, at) if t is not None), default=None))
