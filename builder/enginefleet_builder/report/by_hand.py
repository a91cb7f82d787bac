"""How a reader checks a report: commands for a shell, with the keys filled in. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from shlex import quote
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from enginefleet_api.documents import Answer, BuildRecord, PreparedManifest, Verdict
from enginefleet_api.jobs import BuildRequest, FetchRequest, StoreRef
from enginefleet_api.resources import Preprocessing
from enginefleet_api.variants import SCALED

from ..store import layout


def steps(
    verdict: Verdict, store: StoreRef, build: BuildRecord | None, manifest: PreparedManifest | None, request: BuildRequest | None
) -> Iterator[tuple[str, str, str]]:
    """(title, explanation, command)"""
    where = f"--store {quote(_folder(store.uri) or store.uri)}" + (f" --endpoint {quote(store.endpoint)}" if store.endpoint else "")
    yield (
        "Make this page again",
        "From the records in the store, with what was judged since then. Needs permission to read.",
        f"enginefleet report {where} --engine {verdict.engine_key} --gate {verdict.gate_key} --out report.html",
    )
    yield (
        "Check the engine's bytes",
        f"Must print {layout.digest_hex(verdict.blob)}.",
        _hash(store, layout.blob(verdict.blob)),
    )
    yield "Read the verdict itself", "Every number of this page that is not named otherwise.", _show(store, verdict)
    if request is not None:
        yield (
            "Judge the engine again",
            "On a device with the same fingerprint: any other is refused. It appends a verdict to the store, and the newest one decides.",
            _with_request("judge", judge_request(request)),
        )
    if build is not None and verdict.answer is Answer.PASS and request is not None:
        yield (
            "Run the engine yourself",
            "Fetches it into ./engine on such a device, checks it as a serving pod does, and shows what it holds.",
            _with_request("fetch", _fetch_request(build, verdict, request)) + "\nenginefleet inspect ./engine",
        )
    if manifest is not None and request is not None and (command := _prepare(manifest, request)):
        explanation = (
            f"MODEL (and CALIBRATION) are your copies; other digests give other keys. The prepared key must be {manifest.prepared_key}."
        )
        yield "Prepare the model again", explanation, command


def judge_request(request: BuildRequest) -> dict[str, Any]:
    """The request less what belongs to the Job: its holder, node and context; credentials come from the reader's own environment."""
    value = request.to_json_dict() | {"holder": "by-hand", "node": "", "context": {}}
    if "validationSource" in value:
        value["validationSource"] |= {"credentials": "ambient"}
    return value


def _fetch_request(build: BuildRecord, verdict: Verdict, request: BuildRequest) -> dict[str, Any]:
    return FetchRequest(
        engine_key=verdict.engine_key,
        gate_key=verdict.gate_key,
        blob=verdict.blob,
        size=build.size,
        fingerprint=verdict.fingerprint,
        facts=build.facts,
        store=request.store,
        engine_path="engine",
        preprocessing=request.preprocessing,
    ).to_json_dict()


def _with_request(command: str, request: dict[str, Any]) -> str:
    """A here-document: the shell expands nothing in it, and no line of JSON is its end."""
    return f"cat > {command}.json <<'END'\n{json.dumps(request, indent=1)}\nEND\nenginefleet {command} --request {command}.json"


def _prepare(manifest: PreparedManifest, request: BuildRequest) -> str:
    """Empty where flags cannot say it: preprocessing, profiles, exclusions."""
    if manifest.flavour != "onnxruntime" or request.preprocessing not in (None, Preprocessing()) or request.inputs:
        return ""
    method, _, _ = manifest.variant.partition("-")[2].partition("-")
    excluded = manifest.recipe.get("exclude") or {}
    if method not in ("", "entropy", "max") or any(excluded.values()):
        return ""
    calibration = f' --calibration "$CALIBRATION" --method {method}' if manifest.precision in SCALED and method else ""
    return (
        ("MODEL=model.onnx\nCALIBRATION=calibration.npz\n" if calibration else "MODEL=model.onnx\n")
        + f'enginefleet prepare --model "$MODEL" --digest {quote(manifest.source_model)} --precision {quote(manifest.precision)}{calibration} --store again'
    )


def _hash(store: StoreRef, key: str) -> str:
    folder = _folder(store.uri)
    return f"sha256sum {quote(f'{folder}/{key}')}" if folder else f"{_copy(store, key)} | sha256sum"


def _show(store: StoreRef, verdict: Verdict) -> str:
    key = layout.verdict(verdict.engine_key, verdict.gate_key, verdict.blob, verdict.time, verdict.holder)
    folder = _folder(store.uri)
    return f"python3 -m json.tool {quote(f'{folder}/{key}')}" if folder else f"{_copy(store, key)} | python3 -m json.tool"


def _copy(store: StoreRef, key: str) -> str:
    endpoint = f" --endpoint-url {quote(store.endpoint)}" if store.endpoint else ""
    address = f"{store.uri.rstrip('/')}/{key}"
    return f"aws s3 cp {quote(address)} -{endpoint}"


def _folder(uri: str) -> str | None:
    """The path of a file:// store without a slash at its end."""
    parts = urlsplit(uri)
    return url2pathname(parts.path).rstrip("/") if parts.scheme == "file" else None
