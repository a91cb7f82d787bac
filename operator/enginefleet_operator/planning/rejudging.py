"""Judges engines that are published again where the context of their nodes is another one than they were judged in.

Nothing is built, and nothing is taken away: an engine that does not pass there goes on serving, and a condition says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from enginefleet_api.documents import Answer
from enginefleet_api.errors import FailureClass
from enginefleet_api.jobs import BuildReport
from enginefleet_api.resources import AttemptState, EngineBuildStatus, JudgedContext

from . import contexts, pausing, queue, retry
from .contexts import Context
from .model import Action, Delete, Event, Failure, Judge, RunningBuild, Snapshot, StartBuild
from .stages import (
    LOST_ENGINE,
    Attempt,
    BuildStage,
    Wanted,
    all_observed,
    attempt,
    dropped,
    explain_waiting,
    lost_engine,
    make_room,
    node_of,
    orphans,
    running_builds,
)
from .status import merge_conditions, say_below

MOST_NODES = 50
"""So many nodes are named in a Job that may run on any of them."""


def rejudge(s: Snapshot, stage: BuildStage, now: float) -> BuildStage:
    """The stage with what judging again adds to it: for each engine that serves, a Job in each context that it was not judged in."""
    running = [*running_builds(s), *(RunningBuild(one.spec.hardware_class, f"{s.namespace}/{s.name}", one.node) for one in stage.start)]
    live: dict[str, set[str]] = {}
    for want in stage.wanted:
        if want.name not in stage.passed:
            continue
        one = _Engine(s, want, stage.statuses[want.name])
        live[want.name] = {context.key for context in one.present}
        stage = one.step(stage, running, now)
    return replace(stage, actions=(*stage.actions, *_obsolete(s, live)))


def _obsolete(s: Snapshot, live: Mapping[str, set[str]]) -> list[Action]:
    """Jobs for contexts that no node is in any more: such a Job may never find a place."""
    if not all_observed(s):
        return []
    return [
        Delete("Job", job.name, job.uid, "no node is in its context any more")
        for job in s.jobs
        if job.context and job.active and not job.deleting and job.context not in live.get(job.build, ())
    ]


def _avoid(record: JudgedContext) -> tuple[str, ...]:
    """The node of the last environment fault: another one in the context first."""
    last = record.attempt.last_failure if record.attempt is not None else None
    return (record.node,) if last is not None and last.failure_class == FailureClass.ENVIRONMENT else ()


class _Engine:
    """One engine that may serve, with the contexts its nodes are in."""

    def __init__(self, s: Snapshot, want: Wanted, status: EngineBuildStatus) -> None:
        self.s, self.want, self.status = s, want, status
        self.facts = want.spec.request["facts"]
        self.present = contexts.present(s.fingerprints, want.nodes, self.facts)
        self.events: list[Event] = []

    def step(self, stage: BuildStage, running: list[RunningBuild], now: float) -> BuildStage:
        """`running` grows by what is started."""
        if not self.status.contexts and self.present:
            return self._said(stage, contexts.assumed(self.present, now), now)
        records = {record.key: record for record in self.status.contexts}
        live = {context.key for context in self.present}
        for context in self.present:
            record = records.get(context.key)
            if record is None:
                if not contexts.is_new(context, list(records.values()), live):
                    continue
                record = JudgedContext(key=context.key, facts=dict(context.facts))
            if record.answer or retry.is_permanent(record.attempt):
                continue
            stage, records[context.key] = self._judge(stage, context, record, running, now)
            if self.status.engine is None:
                break  # it was found to be lost: it is published again, and judged then
        return self._said(stage, contexts.kept(list(records.values()), live), now)

    def _judge(
        self, stage: BuildStage, context: Context, record: JudgedContext, running: list[RunningBuild], now: float
    ) -> tuple[BuildStage, JudgedContext]:
        s, want = self.s, self.want
        jobs = [job for job in s.jobs if job.build == want.name and job.context == context.key]
        # an engine that is published anew has Jobs of its own: what those said of the one before is past
        identity = (want.name, context.key, self.status.passed_at)
        found = attempt(s, jobs, record.attempt, f"{want.name[:34]}-judge", identity, now)
        actions = dropped(found)
        wakes = [stage.wake_at, found.wake_at]
        undecided = stage.undecided
        cramped: tuple[pausing.Cramped, ...] = ()
        start: tuple[StartBuild, ...] = ()
        if found.running is not None:
            job = found.running
            self.status, one = make_room(s, want, self.status, job, context.nodes)
            cramped = (one,) if one is not None else ()
            undecided |= {node for node in context.nodes if job.node in ("", node)}
            said = "{}: {}".format(*explain_waiting(s, want, self.status, job, now)) if job.waiting is not None else f"Job {job.name} runs."
            record = record.model_copy(update={"message": said})
        elif found.start:
            start, said, wake = self._start(context, record, found, running, now)
            wakes.append(wake)
            record = record.model_copy(update={"message": said})
        else:
            record = self._answer(context, record, found, now)
        stage = replace(
            stage,
            actions=(*stage.actions, *actions),
            start=(*stage.start, *start),
            cramped=(*stage.cramped, *cramped),
            undecided=undecided,
            wake_at=min((at for at in wakes if at is not None), default=None),
        )
        return stage, record

    def _start(
        self, context: Context, record: JudgedContext, found: Attempt, running: list[RunningBuild], now: float
    ) -> tuple[tuple[StartBuild, ...], str, float | None]:
        """Like a build: in the windows, one a node, at most builds.maxConcurrent. What to start, else what it waits for, and when to look again."""
        s, want = self.s, self.want
        nodes = [node for node in s.nodes if node.name in context.nodes and node.ready]
        if not nodes:
            return (), "Offline: none of its nodes is Ready.", None
        if orphans(s, "build", want.spec.engine_key[:16], now):
            return (), "Waiting: the pod of a Job that was deleted still works on the same engine.", None
        where = queue.admit(f"{want.name} {context.key}", want.hardware_class, nodes, running, s.places, _avoid(record), now)
        if not where.ready:
            return (), f"{where.reason}: {where.message}", where.wake_at
        judge = Judge(context.key, str((self.status.engine or {})["blob"]), tuple(sorted(node.name for node in nodes)[:MOST_NODES]))
        running.append(RunningBuild(want.hardware_class.name, f"{s.namespace}/{s.name}", where.node))
        text = f"Job {found.start} judges {want.name} ({want.hardware_class.name}) with {context.words}, as it was not judged there yet."
        self.events.append(Event("RejudgeStarted", text))
        build = next(b for b in s.builds if b.name == want.name)
        start = StartBuild(found.start, found.number, want.name, build.uid, want.spec, node=where.node, judge=judge)
        return (start,), f"Job {found.start} starts.", None

    def _answer(self, context: Context, record: JudgedContext, found: Attempt, now: float) -> JudgedContext:
        """The record with what a Job said that has ended."""
        s, want = self.s, self.want
        node = node_of(s, found)
        changes: dict[str, object] = {"attempt": found.state, "node": node or record.node}
        failed = found.failed
        report = found.report if isinstance(found.report, BuildReport) else None
        if report is not None:
            failed = self._refused(context, report, node)
            lasting = report.answer is not Answer.INCONCLUSIVE or report.lasting
            if failed is None and lasting:
                changes |= {
                    "answer": report.answer.value,
                    "at": retry.timestamp(now),
                    "reasons": [text[:512] for text in report.reasons[:8]],
                }
            elif failed is None:
                failed = Failure(FailureClass.TRANSIENT, "GateInconclusive", "; ".join(report.reasons) or "no reason given")
            if failed is not None:
                job = found.state.job if found.state is not None else ""
                changes["attempt"] = retry.after_failure(record.attempt, job, failed, now, s.settings.retry_base)
        if failed is not None and isinstance(state := changes["attempt"], AttemptState):
            again = f" Attempt {state.attempts + 1} at {state.next_attempt_at}." if state.next_attempt_at else ""
            changes["message"] = f"{failed.reason}: {failed.message} {failed.hint}".rstrip() + again
        elif report is not None:
            changes["message"] = ""
        record = record.model_copy(update=changes)
        if found.failed is not None and found.failed.reason in LOST_ENGINE:
            self.status, event = lost_engine(want, self.status, f"{found.failed.reason}: {found.failed.message}")
            self.events.append(event)
            return record
        if record.answer == "Pass" or (report is None and found.failed is None):
            return record
        if told := contexts.below([context], self.status.model_copy(update={"contexts": [record]})):
            text = f"{want.name} ({want.hardware_class.name}) with {told[0].message}. It goes on serving."
            self.events.append(Event("RejudgeFailed", text, warning=True))
        return record

    def _refused(self, context: Context, report: BuildReport, node: str) -> Failure | None:
        """Why a report does not count: it is of something else, or its node has become another meanwhile."""
        spec = self.want.spec
        if (report.engine_key, report.gate_key, report.blob) != (spec.engine_key, spec.gate_key, (self.status.engine or {}).get("blob")):
            text = f"the report is about engine {report.engine_key[:12]}, {report.blob[:19]}."
            return Failure(FailureClass.PERMANENT, "ForeignReport", text)
        if node and node not in context.nodes:
            return Failure(FailureClass.TRANSIENT, "ContextChanged", f"node {node} does not have {context.words} any more.")
        return None

    def _said(self, stage: BuildStage, records: list[JudgedContext], now: float) -> BuildStage:
        """The stage with the new status of this engine."""
        status = self.status.model_copy(update={"contexts": records})
        if self.present:
            say = say_below(self.present, status)
            # its spec does not change, so it has one generation
            status = status.model_copy(update={"conditions": merge_conditions(status.conditions, {"BelowGate": say}, 1, now)})
        passed = {name: one for name, one in stage.passed.items() if name != self.want.name or status.engine is not None}
        return replace(
            stage,
            passed={name: status if name == self.want.name else one for name, one in passed.items()},
            statuses={**stage.statuses, self.want.name: status},
            events=(*stage.events, *self.events),
        )
