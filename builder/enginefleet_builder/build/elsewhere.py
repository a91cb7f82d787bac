"""Engines that are built here for a GPU elsewhere: nothing of theirs can be run here, and their verdict says so."""

from __future__ import annotations

import json

from enginefleet_api.documents import Answer, Verdict
from enginefleet_api.keys import gate_thresholds

from ..report.job import write_report
from .engine import Engine, Work


def leave_open(work: Work, engine: Engine, capability: str) -> Verdict:
    """Append the verdict Inconclusive. No pod takes such an engine: it has another fingerprint than every GPU, and no verdict that passed."""
    request = work.request
    verdict = Verdict(
        engine_key=request.engine_key,
        gate_key=request.gate_key,
        blob=engine.record.blob,
        fingerprint=request.fingerprint,
        answer=Answer.INCONCLUSIVE,
        reasons=[f"nothing was run: the engine was built without a GPU, for compute capability {capability}"],
        # through JSON: the verdict is the same before it is stored and after it was read
        thresholds=json.loads(json.dumps(gate_thresholds(request.validation, request.benchmark))),
        context=request.context,
        evidence={"tools": work.backend.versions(), "bytes": {"engine": engine.record.size}},
        time=work.records.verdict_time(request.engine_key),
        holder=request.holder,
        node=request.node,
    )
    work.progress("publish the verdict")
    key = work.records.add_verdict(verdict)
    write_report(work, engine, key, verdict, None)
    return verdict
