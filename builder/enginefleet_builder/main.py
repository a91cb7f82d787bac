"""`enginefleet`: what runs inside Jobs and pods, and by hand.

In a Job the request comes in ENGINEFLEET_REQUEST and the report goes into the termination message; by hand flags make the request and the report is
printed. Exit codes: 0 done (by hand: and passed), 2 usage, 40 gate failed, 41 inconclusive, 42 permanent, 43 environment, 44 transient failure.
Commands import what they need when they run: `fetch` starts in every serving pod.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from enginefleet_api.errors import EngineFleetError
from enginefleet_api.jobs import (
    REQUEST_VARIABLE,
    BuildRequest,
    FetchRequest,
    PrepareRequest,
    ProbeRequest,
    RuntimeCheckRequest,
    StoreRef,
    VerifyRequest,
)

from . import by_hand, shell
from .backends.threads import CARRIER
from .io import Progress, failed, termination_log, write_termination

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)

RequestFile = Annotated[Path | None, typer.Option("--request", help="File with the request as JSON.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
Store = Annotated[str | None, typer.Option(help="s3://bucket/prefix/ or a folder.")]
Endpoint = Annotated[str, typer.Option(help="S3 endpoint of the store.")]
Data = Annotated[str | None, typer.Option(help="Validation set: a path, s3:// or https://.")]
SpecFile = Annotated[
    Path | None,
    typer.Option("--spec", help="Manifest of a ModelDeployment (YAML or JSON): what it says counts where no flag says otherwise."),
]
Task = Annotated[str | None, typer.Option(help="classification (the default), detection, segmentation or outputs.")]
MetricName = Annotated[str | None, typer.Option(help="top1 (the default), top5, map50, map50_95, miou, cosine or max_abs_error.")]
MinSamples = Annotated[int | None, typer.Option(help="Fewer samples make the answer inconclusive; by default 200.")]
MaxDrop = Annotated[str | None, typer.Option(help="Largest drop against FP32, e.g. 0.01.")]
Minimum = Annotated[str | None, typer.Option(help="Smallest value of the metric.")]
Required = Annotated[list[str] | None, typer.Option(help="A class that must have samples; repeat for more.")]
Timeout = Annotated[int, typer.Option("--timeout", help="Seconds.")]


def _done(code: int) -> None:
    raise typer.Exit(code)


def _request(kind: type[shell.Request], file: Path | None, hand: dict[str, Any] | None, as_json: bool) -> shell.Request:
    """The request; a failure ends the process with its message."""
    try:
        return shell.load_request(kind, file, hand)
    except EngineFleetError as error:
        write_termination(failed(error, []), termination_log())
        shell.show_failure(error, as_json)
        raise typer.Exit(error.exit_code) from error


@app.command()
def prepare(
    request: RequestFile = None,
    as_json: AsJson = False,
    spec: SpecFile = None,
    model: Annotated[str | None, typer.Option(help="The .onnx file or its folder: a path, s3:// or https://.")] = None,
    digest: Annotated[str | None, typer.Option(help="Tree digest that the model must have.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32 (the default), fp16, bf16, int8, …; auto: int8 by each method, fp16 and fp32.")
    ] = None,
    calibration: Annotated[str | None, typer.Option(help="Calibration set for int8; without one the scales stand in the model.")] = None,
    method: Annotated[
        Literal["auto", "entropy", "max"] | None, typer.Option(help="How ranges are found from the calibration set; by default auto.")
    ] = None,
    repair: Annotated[
        bool, typer.Option(help="Make the repaired int8 variant too: the layers that lose most stay in higher precision.")
    ] = False,
    flavour: Annotated[list[str] | None, typer.Option(help="Target flavour.")] = None,
    export: Annotated[
        Literal["isolated", "trusted"] | None,
        typer.Option(help="Allow a .pt or .pt2 file, which is code: run it without network, or with it when it is your own."),
    ] = None,
    export_size: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH of an exported .pt file.")] = None,
    export_nms: Annotated[
        Literal["default", "true", "false"], typer.Option(help="Whether suppression stands in the exported graph.")
    ] = "default",
    store: Store = None,
    endpoint: Endpoint = "",
    validation: Data = None,
    task: Task = None,
    metric: MetricName = None,
    min_samples: MinSamples = None,
    max_drop: MaxDrop = None,
    timeout: Timeout = 3600,
) -> None:
    """Fetch, check and convert a model; measure its FP32 baseline; put both into the store."""
    hand: dict[str, Any] | None = None
    if model is not None or spec is not None:
        sides = _sides(export_size)
        flags = {
            "model": {
                "uri": model,
                "digest": digest,
                "export": None if export is None else {"trust": export, "size": sides, "nms": export_nms},
            },
            "precision": precision,
            "calibration": {
                "uri": calibration,
                "source": "dataset" if calibration is not None else None,
                "method": method if calibration is not None or spec is not None else None,
            },
        } | _gate(validation, task, metric, min_samples, acceptance={"maxDrop": max_drop})
        with _failing(as_json):
            hand = by_hand.prepare_request(
                by_hand.spec(spec, flags),
                repair=repair,
                flavours=flavour or ["onnxruntime"],
                store_ref=by_hand.store(_needed(store, "--store"), endpoint),
            ) | {"holder": by_hand.holder(), "timeoutSeconds": timeout}
    wanted = _request(PrepareRequest, request, hand, as_json)

    def work(progress: Progress) -> Any:
        from .prepare.job import prepare as job

        return job(wanted, progress)

    _done(shell.run(work, timeout_seconds=wanted.timeout_seconds, as_json=as_json))


def _build_or_judge(which: Literal["build", "judge"], wanted: BuildRequest, as_json: bool) -> None:
    def work(progress: Progress) -> Any:
        from .build.job import build as build_job
        from .build.job import judge as judge_job

        return build_job(wanted, progress) if which == "build" else judge_job(wanted, progress)

    _done(shell.run(work, timeout_seconds=wanted.timeout_seconds, as_json=as_json))


def _build_request(request: Path | None, as_json: bool, prepared: str | None, flags: dict[str, Any]) -> BuildRequest:
    hand: dict[str, Any] | None = None
    flags_given = any(flags[name] is not None for name in ("spec", "partner", "baseline", "store", "validation"))
    if prepared is None and request is None and REQUEST_VARIABLE not in os.environ and flags_given:
        _needed(prepared, "--prepared")
    if prepared is not None:
        acceptance = {"minimum": flags["minimum"], "maxDrop": flags["max_drop"]}
        more = {"requiredClasses": flags["required_class"] or None, "acceptance": acceptance}
        gate = _gate(flags["validation"], flags["task"], flags["metric"], flags["min_samples"], **more)
        with _failing(as_json):
            asked, name = by_hand.named_spec(flags["spec"], {"build": {"threads": flags["threads"]}} | gate)
            hand = by_hand.build_request(
                asked,
                store_ref=by_hand.store(_needed(flags["store"], "--store"), flags["endpoint"]),
                prepared_key=prepared,
                partner_key=flags["partner"],
                baseline_key=flags["baseline"],
                backend=flags["backend"],
                provider=flags["provider"],
                python=flags["python"],
                compute_capability=flags["compute_capability"],
            ) | {"name": name, "holder": by_hand.holder(), "timeoutSeconds": flags["timeout"]}
    return _request(BuildRequest, request, hand, as_json)


def _gate(data: str | None, task: str | None, metric: str | None, min_samples: int | None, **more: Any) -> dict[str, Any]:
    """spec.validation as flags say it."""
    return {"validation": {"uri": data, "task": task, "metric": metric, "minSamples": min_samples} | more}


def _sides(size: str | None) -> list[int]:
    """[height, width] of a flag."""
    if size is None:
        return []
    sides = size.split("x")
    if len(sides) != 2 or not all(side.isdecimal() for side in sides):
        raise typer.BadParameter(f"--export-size is {size!r}, expected HEIGHTxWIDTH in pixels, such as 480x640")
    return [int(side) for side in sides]


@contextmanager
def _failing(as_json: bool) -> Iterator[None]:
    """A failure ends the process with its message."""
    try:
        yield
    except EngineFleetError as error:
        shell.show_failure(error, as_json)
        raise typer.Exit(error.exit_code) from error


def _needed(value: str | None, flag: str) -> str:
    if value is None:
        raise typer.BadParameter(f"{flag} is needed")
    return value


Prepared = Annotated[str | None, typer.Option(help="Prepared key, from the report of prepare.")]
Partner = Annotated[str | None, typer.Option(help="Prepared key of the same model in FP32: what minSpeedup is measured against.")]
BaselineKey = Annotated[str | None, typer.Option(help="Baseline key, from the report of prepare.")]
Backend = Annotated[Literal["onnxruntime", "tensorrt", "tensorrt-rtx"], typer.Option(help="What builds and runs the engine.")]
Provider = Annotated[str, typer.Option(help="Of ONNX Runtime: CPU, CUDA, …")]
Interpreter = Annotated[str, typer.Option(help="The interpreter that owns the bindings of TensorRT.")]
Capability = Annotated[str, typer.Option(help="Build for a GPU of this compute capability that is not here; TensorRT for RTX only.")]
Threads = Annotated[str | None, typer.Option(help="Threads of the engine, or auto (the default).")]


@app.command()
def build(
    request: RequestFile = None,
    as_json: AsJson = False,
    spec: SpecFile = None,
    prepared: Prepared = None,
    partner: Partner = None,
    baseline: BaselineKey = None,
    backend: Backend = "onnxruntime",
    provider: Provider = "CPU",
    python: Interpreter = "python3",
    compute_capability: Capability = "",
    threads: Threads = None,
    store: Store = None,
    endpoint: Endpoint = "",
    validation: Data = None,
    task: Task = None,
    metric: MetricName = None,
    min_samples: MinSamples = None,
    max_drop: MaxDrop = None,
    minimum: Minimum = None,
    required_class: Required = None,
    timeout: Timeout = 3600,
) -> None:
    """Build (or adopt) an engine for this machine, publish it, judge it."""
    _build_or_judge("build", _build_request(request, as_json, prepared, locals()), as_json)


@app.command()
def judge(
    request: RequestFile = None,
    as_json: AsJson = False,
    spec: SpecFile = None,
    prepared: Prepared = None,
    partner: Partner = None,
    baseline: BaselineKey = None,
    backend: Backend = "onnxruntime",
    provider: Provider = "CPU",
    python: Interpreter = "python3",
    compute_capability: Capability = "",
    threads: Threads = None,
    store: Store = None,
    endpoint: Endpoint = "",
    validation: Data = None,
    task: Task = None,
    metric: MetricName = None,
    min_samples: MinSamples = None,
    max_drop: MaxDrop = None,
    minimum: Minimum = None,
    required_class: Required = None,
    timeout: Timeout = 3600,
) -> None:
    """Judge the newest build of an engine on this machine again."""
    _build_or_judge("judge", _build_request(request, as_json, prepared, locals()), as_json)


@app.command()
def report(
    store: Annotated[str, typer.Option(help="s3://bucket/prefix/ or a folder.")],
    engine: Annotated[str, typer.Option(help="Engine key, from the report of build.")],
    gate: Annotated[str | None, typer.Option(help="Gate key; without it the gate that judged last.")] = None,
    compare: Annotated[list[str] | None, typer.Option(help="Key of another engine to compare with; those of the model are found.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the page, or for the JSON; - is standard output.")] = None,
    endpoint: Endpoint = "",
    as_json: AsJson = False,
) -> None:
    """Explain a verdict on one page that needs nothing else, or as JSON. Reads the store, changes nothing."""
    name = f"enginefleet-report-{engine[:10]}.{'json' if as_json else 'html'}"
    target = out or Path("-" if as_json else name)

    def work(progress: Progress) -> Any:
        from .report.job import write_by_hand

        return write_by_hand(
            StoreRef.model_validate(by_hand.store(store, endpoint)), engine, gate, compare or [], target, as_json, progress
        )

    _done(shell.run(work, timeout_seconds=600, as_json=as_json))


@app.command()
def probe(
    request: RequestFile = None,
    as_json: AsJson = False,
    backend: Annotated[str | None, typer.Option(help="onnxruntime, tensorrt or tensorrt-rtx; by default all that are here.")] = None,
    provider: Provider = "CPU",
    python: Interpreter = "python3",
) -> None:
    """Say what this machine is: its fingerprint under each runtime that is here, what of it is unknown, and how the GPU is at this moment."""
    in_job = backend is None and (request is not None or REQUEST_VARIABLE in os.environ)
    wanted = _request(ProbeRequest, request, None, as_json) if in_job else None
    lines: list[str] = []

    def work(progress: Progress) -> Any:
        from . import probe as job

        nonlocal lines
        if wanted is not None:
            return job.probe(wanted, progress)
        found = job.by_hand(backend, provider, python, progress)
        lines = job.lines(found)
        return found if as_json else None

    ended = shell.run(work, timeout_seconds=120, as_json=as_json)
    for line in [] if as_json else lines:
        print(line)
    _done(ended)


@app.command()
def fetch(request: RequestFile = None, as_json: AsJson = False) -> None:
    """Bring one proven engine to this pod (init container)."""
    wanted = _request(FetchRequest, request, None, as_json)

    def work(progress: Progress) -> Any:
        from .fetch import fetch as job

        return job(wanted, progress)

    _done(shell.run(work, timeout_seconds=wanted.timeout_seconds, as_json=as_json))


@app.command()
def verify(request: RequestFile = None, as_json: AsJson = False) -> None:
    """Look whether published engines are in the store as they were published."""
    wanted = _request(VerifyRequest, request, None, as_json)

    def work(progress: Progress) -> Any:
        from .verify import verify as job

        return job(wanted, progress)

    _done(shell.run(work, timeout_seconds=wanted.timeout_seconds, as_json=as_json))


@app.command("runtime-check")
def runtime_check(
    request: RequestFile = None,
    backend: Annotated[str | None, typer.Option(help="onnxruntime, tensorrt or tensorrt-rtx")] = None,
    version: Annotated[str | None, typer.Option(help="The version that the engine was proven with.")] = None,
) -> None:
    """Check that this image holds the runtime that the engine was proven with (init container in the serving image)."""
    from . import runtime_check as check

    hand = None if backend is None else {"backend": backend, "version": version}
    wanted = _request(RuntimeCheckRequest, request, hand, False)
    _done(check.main([wanted.model_dump_json(by_alias=True)]))


@app.command()
def preflight(
    model: Annotated[str, typer.Argument(help="An .onnx file or its folder: a path, s3:// or https://.")],
    as_json: AsJson = False,
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="File with a HardwareClass (YAML or JSON, NodeFingerprints may follow); repeat for more."),
    ] = None,
    precision: Annotated[list[str] | None, typer.Option(help="Precision that the model is to run in; repeat for more, or auto.")] = None,
    scales: Annotated[Literal["dataset", "model"], typer.Option(help="Where int8 and fp8 take their scales from.")] = "dataset",
    profile: Annotated[
        list[str] | None, typer.Option(help="Shapes of an input: NAME=MIN,OPT,MAX or NAME=SHAPE, like x=1x3x224x224.")
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Batch size that is asked for; repeat for more.")] = None,
    dla: Annotated[bool, typer.Option("--dla", help="Ask for a DLA of the classes.")] = False,
    plugin: Annotated[list[str] | None, typer.Option(help="Library with TensorRT plugins in the classes' images.")] = None,
    cure: Annotated[Path | None, typer.Option(help="New folder to write the cured model to.")] = None,
) -> None:
    """Check a model without spending a build on it; exit code 42 when it cannot be built."""
    code = 0
    lines: list[str] = []

    def work(progress: Progress) -> Any:
        from .prepare.by_hand import preflight as job

        nonlocal code, lines
        report, code = job(
            model, classes or [], precision or ["fp32"], scales, profile or [], batch or [], dla, tuple(plugin or []), cure, progress
        )
        lines = report.lines()
        return report.to_json_dict() if as_json else None

    ended = shell.run(work, timeout_seconds=None, as_json=as_json)
    for line in [] if as_json else lines:
        print(line)
    _done(ended or code)


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A model, an engine, a timing cache or a folder with one.")], as_json: AsJson = False
) -> None:
    """Say what a file is, without a GPU: an ONNX model, a TensorRT plan and its release, an Ultralytics engine, a timing cache."""

    def work(progress: Progress) -> Any:
        from .build.inspect import inspect as job

        progress("inspect")
        return job(path)

    _done(shell.run(work, timeout_seconds=None, as_json=as_json))


@app.command()
def serve(
    engine: Annotated[Path, typer.Option(envvar="ENGINEFLEET_ENGINE_PATH", help="Folder with engine.json.")] = Path("/engine"),
    host: Annotated[str, typer.Option(envvar="ENGINEFLEET_HOST", help="Address to listen on; empty: all of them, IPv4 and IPv6.")] = "",
    port: Annotated[int, typer.Option(envvar="ENGINEFLEET_PORT")] = 8080,
    python: Annotated[
        str, typer.Option(envvar="ENGINEFLEET_PYTHON", help="The interpreter that owns the bindings of TensorRT.")
    ] = "python3",
    name: Annotated[
        str,
        typer.Option(envvar="ENGINEFLEET_MODEL_NAME", help="What clients call the model; by default what engine.json says, else model."),
    ] = "",
) -> None:
    """Serve an engine by the Open Inference Protocol v2 (HTTP)."""
    from .serve.engine import load

    try:
        loaded = load(engine, python, name)
    except EngineFleetError as error:
        write_termination(failed(error, []), termination_log())
        shell.show_failure(error, as_json=False)
        raise typer.Exit(error.exit_code) from error
    from .serve.app import serve as run_server

    print(f"serving {loaded.name} ({loaded.manifest.blob}) on {host or 'all addresses'}, port {port}", file=sys.stderr, flush=True)
    run_server(loaded, host, port)


def run() -> None:
    for name, value in CARRIER.items():  # for children, too
        os.environ.setdefault(name, value)
    app()


if __name__ == "__main__":
    run()
