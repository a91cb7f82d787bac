"""Judging again: an engine is judged once in each context (driver, power mode) that its nodes are in, and what fails there goes on serving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginefleet_api import fingerprint, labels
from enginefleet_api.documents import Answer
from enginefleet_api.errors import FailureClass
from enginefleet_api.jobs import BuildRequest
from enginefleet_api.resources import JudgedContext
from enginefleet_operator.planning import contexts
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import Delete, Failure, Place, Snapshot, StartBuild
from enginefleet_operator.render import manifests

from . import worlds as w
from .test_decide import condition
from .test_rollback import played

MAXN, SLOW = "0 (MAXN)", "1 (15W)"
CPU, GPU = {"backend": "onnxruntime"}, {"backend": "tensorrt"}


def told(s: Snapshot, modes: Mapping[str, str]) -> Snapshot:
    """What the agents of these nodes say of the power mode; "" is not known."""
    found = {name: w.observed(name, **({"powerMode": mode} if mode else {})) for name, mode in modes.items()}
    return replace(s, fingerprints={**s.fingerprints, **found})


def everywhere(s: Snapshot, mode: str) -> Snapshot:
    return told(s, dict.fromkeys([n.name for n in s.nodes], mode))


def serving(mode: str = MAXN, nodes: int = 3, **changes: Any) -> Snapshot:
    """An engine that was built and judged in this mode is served on all nodes."""
    return played(w.passed_fleet(nodes=nodes, fingerprints=everywhere(w.fleet(nodes), mode).fingerprints, **changes))


def judges(s: Snapshot) -> list[str]:
    return [j.name for j in s.jobs if j.context]


def ended(s: Snapshot, answer: Answer = Answer.PASS, *, lasting: bool = False, node: str = "", **outcome: Any) -> Snapshot:
    """The Job that judges has ended."""

    def end(job: Any) -> Any:
        build = next(b for b in s.builds if b.name == job.build)
        report = w.build_report(build, answer, ["p95 14.2 ms is above 12 ms"]).model_copy(update={"lasting": lasting})
        there = node or next(n for n in sorted(s.fingerprints) if key_on(s, n) == job.context)
        return replace(job, active=False, node=there, **(outcome or {"report": report}))

    return replace(s, jobs=tuple(end(j) if j.context and j.active else j for j in s.jobs))


def key_on(s: Snapshot, node: str) -> str:
    return fingerprint.context_key(contexts.of_node(s.fingerprints[node], CPU))


def answers(s: Snapshot) -> dict[str, str]:
    return {record.facts["powerMode"]: record.answer for record in s.builds[0].status.contexts}


def kept_serving(s: Snapshot, before: Snapshot) -> bool:
    key = labels.release_key("vision", "m")
    return (s.workloads, s.pods, [n.labels[key] for n in s.nodes]) == (before.workloads, before.pods, [n.labels[key] for n in before.nodes])


# ---- which facts, which contexts ----


@pytest.mark.parametrize(
    ("facts", "context", "judged"),
    [
        (GPU, {"nvidiaDriver": "550.54", "powerMode": MAXN, "kernel": "6.8"}, {"nvidiaDriver": "550.54", "powerMode": MAXN}),
        (GPU | {"backend": "onnxruntime", "executionProvider": "CUDA"}, {"nvidiaDriver": "550.54"}, {"nvidiaDriver": "550.54"}),
        (CPU, {"nvidiaDriver": "550.54", "powerMode": MAXN, "memoryKiB": 7}, {"powerMode": MAXN}),
        (CPU, {"kernel": "6.8", "osRelease": "Ubuntu"}, {}),
        (GPU, {"nvidiaDriver": None}, {}),
    ],
)
def test_the_driver_counts_for_what_runs_on_a_gpu_and_a_power_mode_for_all(
    facts: dict[str, Any], context: dict[str, Any], judged: dict[str, str]
) -> None:
    assert fingerprint.judged_context(context, facts) == judged
    assert bool(fingerprint.context_key(judged)) is bool(judged)


def record(mode: str, answer: str = "Pass") -> JudgedContext:
    (context,) = contexts.present({"n": w.observed("n", powerMode=mode)}, ["n"], CPU)
    return JudgedContext.model_validate({"key": context.key, "facts": context.facts, "answer": answer})


def test_records_are_bounded_and_those_that_nodes_are_in_stay() -> None:
    many = [record(str(number)) for number in range(contexts.MOST + 5)]
    kept = contexts.kept(many, {many[0].key})
    assert [r.facts["powerMode"] for r in kept] == ["0", *(str(number) for number in range(6, contexts.MOST + 5))]
    assert len(kept) == contexts.MOST


def test_a_context_is_not_judged_while_something_is_not_told_that_was_told_before() -> None:
    """A driver that is not loaded yet, in the minute after a boot."""
    known = JudgedContext(key="ctx-1", facts={"nvidiaDriver": "550.54", "powerMode": MAXN}, answer="Pass")
    booting = contexts.Context("ctx-2", {"powerMode": MAXN}, ("n",))
    assert not contexts.is_new(booting, [known], {"ctx-2"})
    other = contexts.Context("ctx-3", {"nvidiaDriver": "560.28", "powerMode": MAXN}, ("n",))
    assert contexts.is_new(other, [known], {"ctx-3"})


def test_no_more_contexts_are_judged_at_a_time_than_are_kept() -> None:
    known = [record(str(number)) for number in range(contexts.MOST)]
    live = {r.key for r in known}
    assert not contexts.is_new(contexts.Context("ctx-x", {"powerMode": "x"}, ("n",)), known, live | {"ctx-x"})
    assert contexts.is_new(contexts.Context("ctx-x", {"powerMode": "x"}, ("n",)), known, {"ctx-x"})


# ---- what follows ----


def test_the_context_of_the_first_verdict_is_recorded_and_judged_no_second_time() -> None:
    s = serving()
    assert answers(s) == {MAXN: "Pass"}
    assert judges(s) == []
    assert condition(s, "BelowGate") == ("False", "Passes", "")


def test_a_verdict_that_was_adopted_counts_for_the_context_that_it_tells() -> None:
    """Another site judged it: with another power mode, so it is judged here once."""
    s = w.prepared_fleet(fingerprints=everywhere(w.fleet(), SLOW).fingerprints)
    report = w.build_report(s.builds[0]).model_copy(update={"adopted": True, "context": {"powerMode": MAXN}})
    s = w.settle(w.end_job(s, "build", report=report, node="n0"))
    assert answers(s) == {MAXN: "Pass", SLOW: ""}
    assert len(judges(s)) == 1


def test_where_nothing_is_told_of_the_context_nothing_is_judged_again() -> None:
    s = played(w.passed_fleet())
    assert s.builds[0].status.contexts == []
    assert judges(s) == []


def test_an_engine_of_an_older_operator_is_not_judged_again_because_of_the_upgrade() -> None:
    s = serving()
    old = replace(s.builds[0], status=s.builds[0].status.model_copy(update={"contexts": []}))
    s = w.settle(replace(s, builds=(old,)))
    assert answers(s) == {MAXN: "Assumed"}
    assert judges(s) == []
    assert len(judges(w.settle(told(s, {"n1": SLOW})))) == 1, "what changes later is judged"


def test_a_changed_context_is_judged_by_one_job_on_a_node_that_has_it_and_builds_nothing() -> None:
    before = serving()
    s = told(before, {"n1": SLOW, "n2": SLOW})
    plan = decide(s, w.NOW)
    (start,) = [a for a in plan.actions if isinstance(a, StartBuild)]
    assert start.judge is not None
    assert (start.judge.blob, start.judge.nodes) == (w.BLOB, ("n1", "n2"))
    assert [e.reason for e in plan.events] == ["RejudgeStarted"]
    s = w.settle(s)
    assert len(judges(s)) == 1
    assert kept_serving(s, before)
    assert condition(s, "Ready")[0] == "True"
    assert condition(s, "BelowGate")[:2] == ("False", "Rejudging")
    s = w.settle(ended(s))
    assert answers(s) == {MAXN: "Pass", SLOW: "Pass"}
    assert condition(s, "BelowGate") == ("False", "Passes", "")
    assert kept_serving(s, before)
    # whatever comes after: neither it nor the other one is judged again
    for mode in (SLOW, MAXN, SLOW):
        s = w.settle(everywhere(replace(s, jobs=()), mode))
        assert judges(s) == []


def test_the_job_judges_the_published_engine_in_that_context_on_its_nodes_only() -> None:
    s = told(serving(), {"n1": SLOW, "n2": SLOW})
    start = w.first(decide(s, w.NOW), StartBuild)
    job = manifests.build_job(s, start)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["enginefleet", "judge"]
    request = BuildRequest.model_validate_json(next(e["value"] for e in container["env"] if e["name"] == "ENGINEFLEET_REQUEST"))
    assert (request.kind, request.blob, request.context) == ("Judge", w.BLOB, {"powerMode": SLOW})
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [t["matchFields"][0]["values"] for t in terms] == [["n1"], ["n2"]]
    assert job["metadata"]["annotations"][labels.CONTEXT] == key_on(s, "n1")


@pytest.mark.parametrize(
    ("answer", "lasting", "reason"), [(Answer.FAIL, False, "GateFailed"), (Answer.INCONCLUSIVE, True, "GateInconclusive")]
)
def test_an_engine_that_does_not_pass_there_serves_on_and_a_condition_says_so(answer: Answer, lasting: bool, reason: str) -> None:
    before = serving()
    s = w.settle(told(before, {"n1": SLOW}))
    plan = decide(ended(s, answer, lasting=lasting), w.NOW)
    assert [(e.reason, e.warning) for e in plan.events] == [("RejudgeFailed", True)]
    s = w.settle(w.apply(ended(s, answer, lasting=lasting), plan))
    assert kept_serving(s, before)
    assert condition(s, "Ready")[0] == "True"
    status, told_reason, message = condition(s, "BelowGate")
    assert (status, told_reason) == ("True", reason)
    for part in ("cpu: power mode 1 (15W) (1 node: n1)", "p95 14.2 ms is above 12 ms", "It goes on serving", labels.RETRY):
        assert part in message
    (said,) = s.builds[0].status.conditions
    assert (said.type, said.status, said.reason) == ("BelowGate", "True", reason)
    assert len(judges(s)) == 1
    # the node goes back to what it was
    s = w.settle(everywhere(s, MAXN))
    assert condition(s, "BelowGate")[0] == "False"
    assert answers(s) == {MAXN: "Pass", SLOW: answer.value}


def test_retry_judges_again_what_did_not_pass_and_nothing_else() -> None:
    s = w.settle(told(serving(), {"n1": SLOW}))
    s = w.settle(ended(s, Answer.FAIL))
    s = w.settle(replace(s, annotations={labels.RETRY: "1"}))
    assert len(judges(s)) == 2
    assert answers(s) == {MAXN: "Pass", SLOW: ""}
    assert condition(w.settle(ended(s)), "BelowGate")[0] == "False"


def test_what_is_inconclusive_for_the_moment_is_judged_again_later() -> None:
    s = w.settle(told(serving(), {"n1": SLOW}))
    s = w.settle(ended(s, Answer.INCONCLUSIVE))
    assert len(judges(s)) == 1
    assert condition(s, "BelowGate")[:2] == ("False", "Rejudging")
    assert len(judges(w.settle(s, w.NOW + 3600))) == 2


def test_a_job_that_fails_is_tried_again_and_one_that_cannot_succeed_is_told() -> None:
    s = w.settle(told(serving(), {"n1": SLOW}))
    s = w.settle(ended(s, failure=Failure(FailureClass.TRANSIENT, "StoreUnavailable", "no answer.")))
    assert condition(s, "BelowGate")[0] == "False"
    s = w.settle(s, w.NOW + 3600)
    assert len(judges(s)) == 2
    s = w.settle(ended(s, failure=Failure(FailureClass.PERMANENT, "EngineCrashed", "it died.", "Look at the log.")))
    assert condition(s, "BelowGate")[:2] == ("True", "EngineCrashed")
    assert len(judges(w.settle(s, w.NOW + 86400))) == 2


@pytest.mark.parametrize(("faulty", "next_"), [("n1", "n2"), ("n2", "n1")])
def test_after_a_fault_of_a_node_another_one_in_the_context_is_asked(faulty: str, next_: str) -> None:
    s = w.settle(told(serving(), {"n1": SLOW, "n2": SLOW}))
    s = w.settle(ended(s, node=faulty, failure=Failure(FailureClass.ENVIRONMENT, "NoGPU", "no driver.")))
    places = {name: Place() for name in ("n1", "n2")}
    start = w.first(decide(replace(s, places=places), w.NOW + 3600), StartBuild)
    assert start.node == next_


def test_what_was_measured_while_the_context_changed_does_not_count() -> None:
    s = w.settle(told(serving(), {"n1": SLOW, "n2": SLOW}))
    s = w.settle(told(ended(s, Answer.FAIL, node="n1"), {"n1": MAXN}))
    assert answers(s) == {MAXN: "Pass", SLOW: ""}
    assert "ContextChanged" in condition(s, "BelowGate")[2]


def test_a_job_for_a_context_that_no_node_is_in_any_more_is_ended() -> None:
    s = w.settle(told(serving(), {"n1": SLOW}))
    back = everywhere(s, MAXN)
    (gone,) = [a for a in decide(back, w.NOW).actions if isinstance(a, Delete)]
    assert (gone.kind, gone.name) == ("Job", judges(s)[0])


def test_nodes_that_are_away_are_judged_when_they_are_back() -> None:
    s = serving()
    away = tuple(replace(n, ready=n.name != "n1") for n in s.nodes)
    s = w.settle(told(replace(s, nodes=away), {"n1": SLOW}))
    assert judges(s) == []
    s = w.settle(replace(s, nodes=tuple(replace(n, ready=True) for n in s.nodes)))
    assert len(judges(s)) == 1


def test_it_waits_for_the_windows_of_builds() -> None:
    windows = {"windows": [{"days": ["Sat"], "start": "02:00", "duration": "4h", "timeZone": "UTC"}]}
    s = serving()
    s = w.settle(told(replace(s, classes={"cpu": w.hardware_class(builds=windows)}), {"n1": SLOW}))
    assert judges(s) == []
    assert "WaitingForWindow" in condition(s, "BelowGate")[2]
    assert decide(s, w.NOW).wake_at is not None


@pytest.mark.parametrize("reason", ["ObjectMissing", "BlobDamaged"])
def test_an_engine_that_the_store_lost_is_published_again_while_its_pods_serve(reason: str) -> None:
    before = serving()
    s = w.settle(told(before, {"n1": SLOW}))
    s = ended(s, failure=Failure(FailureClass.PERMANENT, reason, "blobs/sha256/ee… is not in the store."))
    plan = decide(s, w.NOW)
    assert "EngineLost" in [e.reason for e in plan.events]
    s = w.settle(w.apply(s, plan))
    assert [j.active for j in s.jobs if not j.context] == [False, False, True], "prepare, the first build, and one that is under way"
    assert kept_serving(s, before)
    s = w.settle(w.end_job(s, "build", report=w.build_report(s.builds[0]), node="n0"), w.NOW + 60)
    assert kept_serving(s, before)
    assert s.builds[0].status.phase == "Passed", "what the first Job said is past"
    assert len(judges(s)) == 2
    s = w.settle(ended(s), w.NOW + 120)
    assert answers(s) == {MAXN: "Pass", SLOW: "Pass"}, "it is another publication: judged where it was not"


# ---- histories ----

MODES = ("0", "1", "2")
Step = st.one_of(
    st.tuples(st.just("mode"), st.sampled_from(["n0", "n1", "n2"]), st.sampled_from(["", *MODES])),
    st.tuples(st.just("end"), st.sampled_from([Answer.PASS, Answer.FAIL]), st.none()),
    st.tuples(st.just("forget jobs"), st.none(), st.none()),
    st.tuples(st.just("die"), st.integers(min_value=0, max_value=3), st.none()),
)


@settings(max_examples=40)  # each is up to twenty passes of the operator a step
@given(st.lists(Step, max_size=20))
def test_whatever_happens_each_context_is_judged_once_and_the_engine_serves_on(steps: list[tuple[str, Any, Any]]) -> None:
    """`forget jobs`: ended ones are gone after their TTL. `die`: the operator ends after so many writes of a pass."""
    before = s = serving("0")
    started: dict[str, set[str]] = {}
    for what, value, mode in steps:
        if what == "mode":
            s = told(s, {value: mode})
        elif what == "end":
            s = ended(s, value) if all(key_is_live(s, j.context) for j in s.jobs if j.context and j.active) else s
        elif what == "forget jobs":
            s = replace(s, jobs=tuple(j for j in s.jobs if j.active))
        else:
            plan = decide(s, w.NOW)
            s = w.apply(s, replace(plan, actions=plan.actions[:value], status=None, events=()))
        if what != "die":
            s = w.settle(s)
        for job in s.jobs:
            if job.context:
                started.setdefault(job.context, set()).add(job.name)
        assert kept_serving(s, before)
        assert condition(s, "Ready")[0] == "True"
        known = {r.key: r for r in s.builds[0].status.contexts}
        assert len(known) <= contexts.MOST
        if what != "die":
            failed = any(r.answer == "Fail" and key_is_live(s, r.key) for r in known.values())
            assert (condition(s, "BelowGate")[0] == "True") is failed
    assert all(len(names) == 1 for names in started.values()), started
    assert fingerprint.context_key({"powerMode": "0"}) not in started, "it was judged there when it was built"


def key_is_live(s: Snapshot, key: str) -> bool:
    return any(key_on(s, n.name) == key for n in s.nodes)


def test_a_second_look_is_an_empty_plan() -> None:
    s = w.settle(told(serving(), {"n1": SLOW}))
    for after in (s, w.settle(ended(s, Answer.FAIL)), w.settle(ended(s))):
        plan = decide(after, w.NOW)
        assert (plan.actions, plan.status, plan.events) == ((), None, ())
