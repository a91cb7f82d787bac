"""Which ModelDeployments are ready under the candidate image of a class, in the words of their statuses and of the class's.

Building and judging is what it always is (stages.builds); here is only told how far that has come. Nothing here moves a node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from enginefleet_api.flavours import release_refused
from enginefleet_api.resources import CandidateModel, CandidateStatus, ClassCandidate, ClassFingerprint, ClassStatus

from .engines import Model
from .model import Event, HardwareClass, Snapshot
from .stages import BuildStage, Prepared, Problem, candidates, nodes_of, observation
from .status import Say, Wait, engine_waits, fingerprints_of, no_nodes, prepare_wait

CANDIDATE_READY = "CandidateReady"
MOST = 50
"""ModelDeployments that a class lists: failed ones first, then those that wait."""
PASSED = "AllPassed"
PROBING = "Probing"


# ---- in the ModelDeployment


def of_model(
    s: Snapshot, problems: Sequence[Problem], prepared: Prepared | None, stage: BuildStage, classes: Sequence[ClassStatus]
) -> tuple[list[ClassStatus], list[Event]]:
    """The `classes` of a status with what is told of candidates, and what has changed about them."""
    found = {c.name: _standing(s, c, problems, prepared, stage.trial or BuildStage((), {})) for c in candidates(s)}
    before = {c.name: c.candidate for c in s.status.classes}
    events = [
        Event("CandidateReady", f"{name}: {now.message}")
        for name, now in found.items()
        if now.state == "Ready" and ((was := before.get(name)) is None or (was.image, was.state) != (now.image, "Ready"))
    ]
    return [c.model_copy(update={"candidate": found.get(c.name)}) for c in classes], events


def _standing(
    s: Snapshot, candidate: HardwareClass, problems: Sequence[Problem], prepared: Prepared | None, trial: BuildStage
) -> CandidateStatus:
    image, nodes = candidate.spec.runtime.image, nodes_of(s, candidate)
    mine = [want for want in trial.wanted if want.hardware_class.name == candidate.name]
    ready = sum(len(want.nodes) for want in mine if want.name in trial.passed)
    waits = _waits(s, candidate, problems, prepared, trial)
    if not waits and not ready:
        waits = [Wait("build", "NodeNotReady", f"{candidate.name}: none of its nodes is Ready; what they need is built when one is back.")]
    first = next((w for w in waits if w.stalled), waits[0] if waits else None)
    message = (
        first.message
        if first is not None
        else f"engines for {ready} of {len(nodes)} nodes passed under {image}; nothing is rolled out until it is spec.runtime.image of the HardwareClass."
    )
    return CandidateStatus(
        image=image,
        state="Ready" if first is None else "Failed" if first.stalled else "Waiting",
        nodes=len(nodes),
        ready=ready,
        reason=PASSED if first is None else first.reason,
        message=message[:512],
        fingerprints=fingerprints_of(trial, candidate.name),
    )


def _waits(s: Snapshot, candidate: HardwareClass, problems: Sequence[Problem], prepared: Prepared | None, trial: BuildStage) -> list[Wait]:
    """What stands between now and a ready candidate, the most basic first."""
    if problems:
        return [Wait("admission", p.reason, p.message, p.stalled) for p in problems]
    assert prepared is not None
    if not (nodes := nodes_of(s, candidate)):
        return [no_nodes(candidate)]
    if prepared.resolved is None:
        # refused for what the devices are under the image in use: of the candidate nothing is known yet
        return [Wait("prepare", "Preparing", "The model is not prepared yet.") if prepared.idle else prepare_wait(prepared)]
    mine = BuildStage(
        wanted=tuple(want for want in trial.wanted if want.hardware_class.name == candidate.name),
        passed=trial.passed,
        ladders=trial.ladders,
        unbuilt=tuple(one for one in trial.unbuilt if one.hardware_class.name == candidate.name),
        statuses=trial.statuses,
    )
    unknown = [n.name for n in nodes if n.ready and observation(s, candidate, n) is None]
    return [*engine_waits(s, prepared, mine), *([_unknown(candidate, unknown)] if unknown else [])]


def _unknown(candidate: HardwareClass, nodes: Sequence[str]) -> Wait:
    said = next((c.message for c in candidate.status.conditions if c.type == CANDIDATE_READY and c.reason == PROBING), "")
    text = f"What {len(nodes)} nodes of {candidate.name} are under {candidate.spec.runtime.image} is not known yet"
    return Wait("build", "FingerprintUnknown", f"{text}: {said}" if said else f"{text}.")


# ---- in the HardwareClass


def of_class(
    candidate: HardwareClass | None,
    models: Sequence[Model],
    refused: Sequence[str],
    hosts: Collection[str],
    probing: Sequence[str],
    fingerprints: Mapping[str, ClassFingerprint],
) -> tuple[ClassCandidate | None, Say]:
    """What the class's status says of its candidate, and the condition. `hosts`: its hardware groups; `probing`: why some are not probed yet."""
    if candidate is None:
        return None, Say(False, "NoCandidate", "")
    found = sorted((_told(candidate, m) for m in models if candidate.name in m.classes), key=_order)
    ready = sum(one.state == "Ready" for one in found)
    image = candidate.spec.runtime.image
    status = ClassCandidate(
        image=image,
        models=f"{ready}/{len(found)}",
        failed=sum(one.state == "Failed" for one in found),
        fingerprints=sorted(fingerprints.values(), key=lambda c: c.id),
        model_deployments=found[:MOST],
    )
    releases = [p.runtime.get("backendVersion") for p in candidate.status.probed if candidate.is_current(p) and p.host_digest in hosts]
    old = [why for release in releases if (why := release_refused(candidate.spec.backend, release))]
    if refused:
        return status, Say(False, "NotYetSupported", "; ".join(refused) + ".")
    if not hosts:
        return status, Say(False, "NoMatchingNodes", f"No node of the class is known on which {image} could be tried.")
    if probing:
        return status, Say(False, PROBING, probing[0])
    if old:
        return status, Say(False, "ReleaseNotSupported", f"{old[0]}.")
    if not found:
        return status, Say(True, "NothingTargetsIt", "No ModelDeployment targets the class.")
    if ready == len(found):
        promote = "to roll it out, write it as spec.runtime.image and leave candidateImage out"
        return status, Say(True, PASSED, f"{ready} of {len(found)} ModelDeployments are ready under {image}: {promote}.")
    first = found[0]
    text = f"{ready} of {len(found)} ModelDeployments are ready under {image}; {first.model_deployment} is {first.state}"
    return status, Say(False, "EnginesMissing", f"{text}: {first.reason}: {first.message}")


def _told(candidate: HardwareClass, model: Model) -> CandidateModel:
    said = model.candidates.get(candidate.name)
    if not model.current or said is None or said.image != candidate.spec.runtime.image:
        text = "its spec or the class has changed a moment ago."
        return CandidateModel(model_deployment=model.key, state="Waiting", reason="NotLookedAt", message=text)
    return CandidateModel(
        model_deployment=model.key,
        state=said.state,
        nodes=said.nodes,
        ready=said.ready,
        reason=said.reason,
        # what passed has nothing to explain
        message="" if said.state == "Ready" else said.message[:256],
    )


def _order(one: CandidateModel) -> tuple[int, str]:
    return {"Failed": 0, "Waiting": 1}.get(one.state, 2), one.model_deployment
