"""How a reader checks a report: commands for a shell, with the keys filled in. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from shlex import quote
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from enginefleet_api.base import Contract
from enginefleet_api.documents import Answer, Baseline, BuildRecord, PreparedManifest, Verdict
from enginefleet_api.jobs import BuildRequest, FetchRequest, StoreRef

from ..store import layout

REGION = "us-east-1"
"""Where nothing else is said."""
Steps = Iterator[tuple[str, str, str]]
"""(title, explanation, command)"""


def steps(
    verdict: Verdict,
    store: StoreRef,
    build: BuildRecord | None,
    manifest: PreparedManifest | None,
    request: BuildRequest | None,
    baseline: Baseline | None = None,
) -> Steps:
    """Each can be run alone, in a shell of its own."""
    parts = [_reading(verdict, store)]
    if request is not None:
        parts.append(_running(verdict, build, request))
        if manifest is not None and manifest.spec:
            parts.append(_again(manifest, request, baseline))
    settings = list(_settings(store))
    for title, explanation, command in chain.from_iterable(parts):
        yield title, explanation, "\n".join([*settings, command])


def _settings(store: StoreRef) -> Iterator[str]:
    """What S3 tools, ours too, take from the environment."""
    if store.ca_bundle:
        yield f"printf '%s\\n' {quote(store.ca_bundle.strip())} > ca.pem\nexport AWS_CA_BUNDLE=ca.pem"
    if store.region not in ("", REGION):
        yield f"export AWS_REGION={quote(store.region)} AWS_DEFAULT_REGION={quote(store.region)}"


def _reading(verdict: Verdict, store: StoreRef) -> Steps:
    """What the records in the store say."""
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


def _running(verdict: Verdict, build: BuildRecord | None, request: BuildRequest) -> Steps:
    """The engine that was built, on a device of its kind."""
    yield (
        "Judge the engine again",
        "On a device with the same fingerprint: any other is refused. It appends a verdict to the store, and the newest one decides.",
        _with_request("judge", judge_request(request)),
    )
    if build is not None and verdict.answer is Answer.PASS:
        yield (
            "Run the engine yourself",
            "Fetches it into ./engine on such a device, checks it as a serving pod does, and shows what it holds.",
            _with_request("fetch", _fetch_request(build, verdict, request)) + "\nenginefleet inspect ./engine",
        )


def _again(manifest: PreparedManifest, request: BuildRequest, baseline: Baseline | None) -> Steps:
    """From the model as given to a verdict, in a new store."""
    keys = [f"The prepared key must be {manifest.prepared_key}"]
    keys += [f"the baseline's {request.baseline_key}"] if request.baseline_key else []
    commands = [_prepare(manifest.precision, manifest)]
    partner = request.partner_prepared_key
    if partner not in (None, request.prepared_key):
        commands.append(_prepare("fp32", manifest))
        keys.append(f"that of the FP32 partner {partner}")
    explanation = (
        "From the same files, whose digests are checked; --model, --calibration and --validation name copies of yours, under the same names."
        f" {', '.join(keys)}."
    )
    file = f"cat > spec.json <<'END'\n{json.dumps(_named(spec(manifest, request, baseline), request.name), indent=1)}\nEND"
    yield "Prepare the model again", explanation, "\n".join([file, *_endpoint(request), *commands])
    flags = {"--prepared": request.prepared_key, "--partner": partner, "--baseline": request.baseline_key, "--store": "again"}
    if request.backend == "onnxruntime":
        flags["--provider"] = request.execution_provider
    else:
        capability = str(request.recipe.get("computeCapability", ""))
        flags |= {"--backend": request.backend, "--python": request.python, "--compute-capability": capability}
    explanation = (
        f"Of what the step before left in ./again. On a device with the same fingerprint the engine key is {request.engine_key},"
        f" the gate key {request.gate_key}. It ends with exit code 0 for Pass, 40 for Fail, 41 for Inconclusive."
    )
    words = ["enginefleet build --spec spec.json", *(f"{flag} {quote(value)}" for flag, value in flags.items() if value)]
    yield "Build and judge it again", explanation, "\n".join([*_endpoint(request), " ".join(words)])


NO_SETTINGS = ("profiles", "precision", "computeCapability")
"""Fields of a recipe that spec.build has not."""


def spec(manifest: PreparedManifest, request: BuildRequest, baseline: Baseline | None = None) -> dict[str, Any]:
    """What `--spec` takes to prepare, build and judge as it was done: all that keys are made of, data pinned by digest where that is known."""
    made = {**manifest.spec, "precision": manifest.precision}
    if request.inputs:
        made["inputs"] = [one.to_json_dict() for one in request.inputs]
    if request.validation is not None:
        source = request.validation_source
        made["validation"] = _given(request.validation) | {"uri": source.uri if source else request.validation.uri}
        digest = baseline.validation if baseline else source.digest if source else None
        made["validation"] |= {"digest": digest} if digest else {}
    made["preprocessing"] = _given(request.preprocessing) if request.preprocessing else {}
    made["benchmark"] = _given(request.benchmark)
    made["build"] = {name: value for name, value in request.recipe.items() if name not in NO_SETTINGS}
    return {name: value for name, value in made.items() if value}


def _named(asked: dict[str, Any], name: str) -> dict[str, Any]:
    """With the ModelDeployment's [namespace/]name, where it has one: servers call the model by it."""
    namespace, _, own = name.rpartition("/")
    metadata = {"namespace": namespace, "name": own}
    return {"metadata": {part: value for part, value in metadata.items() if value}, "spec": asked} if own else asked


def _given(part: Contract) -> dict[str, Any]:
    """What is not the default: as short as what a person would have written."""
    given = part.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)
    given.pop("credentialsSecretRef", None)
    return given


def _prepare(precision: str, manifest: PreparedManifest) -> str:
    words = ["enginefleet prepare --spec spec.json --store again"]
    words += [f"--precision {quote(precision)}"] if precision != manifest.precision else []
    words += ["--repair"] if precision == manifest.precision and "sensitivity" in manifest.recipe else []
    words += [f"--flavour {quote(manifest.flavour)}"] if manifest.flavour != "onnxruntime" else []
    return " ".join(words)


def _endpoint(request: BuildRequest) -> list[str]:
    """A spec names no endpoint for data: in a cluster it is the store's."""
    source = request.validation_source
    found = source.endpoint if source else request.store.endpoint
    return [f"export AWS_ENDPOINT_URL_S3={quote(found)}"] if found else []


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
        model_name=request.name.rpartition("/")[2],
        preprocessing=request.preprocessing,
    ).to_json_dict()


def _with_request(command: str, request: dict[str, Any]) -> str:
    """A here-document: the shell expands nothing in it, and no line of JSON is its end."""
    return f"cat > {command}.json <<'END'\n{json.dumps(request, indent=1)}\nEND\nenginefleet {command} --request {command}.json"


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
