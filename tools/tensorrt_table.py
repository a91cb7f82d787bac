"""docs/tensorrt.md: what each TensorRT release gets from the builder, by the code that decides it and the names that the release has.

Cells come from worker/recipe.py against the recorded surfaces in tests/contract/tensorrt; what was run on hardware from docs/benchmarks/tensorrt-*.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from enginefleet_api import flavours
from enginefleet_builder.prepare import targets
from tests.contract.doubles import RELEASES, surface_of
from tests.contract.worker import module
from tools.pages import put, table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tensorrt.md"
RECORDS = ROOT / "docs" / "benchmarks"
COLUMNS = ("8.5", *RELEASES)
COMES_WITH = {
    "8.5": "JetPack 5.1",
    "8.6.0": "JetPack 6.0",
    "10.3.0": "JetPack 6.1, 6.2",
    "10.7.0": "last with DLA before 11.4.1",
    "10.16.1": "JetPack 7.2",
    "11.4.0": "x86, SBSA",
    "RTX 1.7.1": "GeForce RTX and the like",
}
PLAIN = {"quantized": False, "float8": False, "types": ["float32"]}
HALF = PLAIN | {"types": ["float16", "float32"]}
FILES = {
    "fp32": PLAIN,
    "tf32": PLAIN,
    "fp16": HALF,
    "bf16": PLAIN | {"types": ["bfloat16", "float32"]},
    "int8": HALF | {"quantized": True},
    "fp8": HALF | {"float8": True},
}
"""What a file of each precision holds that is prepared for TensorRT 10 and newer."""
FILES_8 = {**FILES, "fp16": PLAIN, "int8": PLAIN | {"quantized": True}}
"""The same for TensorRT 8, which takes FP32 as the high precision, and flags."""
DLA = {"dla": {"core": 0, "allowGpuFallback": True}}

TEXT = """<!-- written by `make generate` (tools/tensorrt_table.py): change that, not this -->
# TensorRT: what each generation gets

One source builds for every generation below. What is asked of a release follows from the names that its module has, never from its version number, and
precision comes from the ONNX file (Q/DQ nodes, casts) wherever the release can take it from there: see
[worker/recipe.py](../builder/enginefleet_builder/worker/recipe.py). TensorRT 8.2 (JetPack 4) and older are refused by name.

{what}

- *type in the file*: the model says it, by casts or Q/DQ nodes; *flags*: the builder is allowed to use it. TF32 is on by default in every release; here
  `fp32` switches it off, and what computes lower anyway may use it.
- The INT8 flag is set exactly when the file has Q/DQ nodes and the network is weakly typed. Without it, or with it and without Q/DQ nodes, builds fail.
- 10.x builds strongly typed when the file holds the types that were asked for, else weakly typed with flags, and says so in the build's record.
- Several optimization profiles, dynamic batch and size, plugins by path, workspace (`auto`: the memory that is free; three quarters of it where GPU and
  system share one), detailed profiling verbosity and the engine inspector's report: all releases.
- A DLA is asked for by `spec.build.dla` (core, GPU fallback) with precision fp16, int8 or auto, and profiles of one size each. The build's record says how
  many layers of the network may run there, and how many parts of the engine TensorRT placed there; where there is no DLA, the class is refused
  (`DlaMissing`, `NoDLA`). The engine is loaded on the core that it was built for.
- A timing cache that is damaged or of another device is left aside with a warning. A mismatch is never ignored.
- Tactics that memory did not suffice for are counted, and mark the engine as degraded.
- A build that names a layer without a kernel in INT8 is tried again with that layer in higher precision, at most {most} times. The build's record lists
  such nodes, and the engine is judged like any other. Inputs' dimensions that are named alike and differ in a profile get names of their own.
- A run can be launched as a CUDA graph; the benchmark says whether it was. Outputs whose shape hangs on the data are not captured.

What a failed build's log is taken for is in [failures.md](failures.md).

## What was run where

{where}

*names*: the same code runs in CI against a strict double that has exactly the release's names (8.5: those of 8.6.0 less what NVIDIA's headers show as
added since). *compiled*: CI compiles real engines without a GPU, which cannot be run there. A GPU's name: built, judged and measured on it. What has no
GPU's name was **never run on hardware** by this project.

## What was never run

| what | state | what stands in for it |
| --- | --- | --- |
{never}

## Goals, met and missed

{goals}"""

GOALS = """On an {gpu} with TensorRT {release} ([record](benchmarks/{file}), whose `note` says why; [how](../tests/gpu/README.md)). What missed its goal is
**bold**.

{rows}

- Latency by that of an engine built by hand from the same file, timed in turns; goal at most {ratio}: missed by {missed}.
- Seconds beyond TensorRT's own build; goal at most {seconds}, or {share} where that is more.
- A build again with the timing cache; goal {speedup} times as fast: {caches}.
- The build by hand was to be a script of about {hand} lines; it has {lines}, with the timing of both engines.
- Levels are TensorRT's builder optimization levels. What stands here at 0 alone was not built at {level}: {low}.
- A gate that ends with Fail is no missed goal: the engine is not served.
"""
STANDINS = "compiled stand-ins of `libcuda` and `libnvinfer`, strict doubles of the bindings"
NEVER = (
    ("TensorRT 8.6.2, which JetPack 6.0 has", "8.6.0 was run, on another GPU"),
    ("a Jetson, of any module and JetPack", f"`tests/jetson/run --dry-run` in CI: {STANDINS}, fact files ([jetson.md](jetson.md))"),
    ("a DLA, in any precision", "doubles: which flags, scales and cores are asked for, what is told of the share that runs there"),
    ("running an engine of TensorRT for RTX", "CI compiles real ones, judges them Inconclusive and gives them to no pod"),
    (
        "kernels of cuBLAS and cuDNN (`CUBLAS`, `CUBLAS_LT`, `CUDNN`)",
        "the laboratory of the record below has neither, so its engines, and those by hand, do without",
    ),
    ("MIG slices, several GPUs on one node", "trees of fact files and the stand-ins ([fingerprint.md](fingerprint.md))"),
    ("`cudaGraph`, `paced` and `sustained` of `spec.benchmark` on a GPU", "doubles; on a CPU they are run"),
    ("plugins by path, shapes that hang on data or are inputs, several profiles, on a GPU", "doubles"),
    ("ONNX Runtime's CUDA provider", "its options as a table of tests; a missing provider is a failure, never the CPU"),
    ("ONNX Runtime's TensorRT provider", "the same, and what of an EP context is taken for an engine"),
    ("ONNX Runtime's CoreML provider", "the same; it needs macOS"),
    ("OpenVINO on a GPU or NPU", "CI runs it on the CPU, which is the only device that is asked for"),
    ("Triton loading what `layout: triton` writes", "`config.pbtxt` is read by Triton's published protobuf schema"),
    ("DeepStream ([how-to](deepstream.md))", "nothing: the page says so"),
    ("Ultralytics loading what `layout: ultralytics` writes", "our server and `enginefleet inspect` read it"),
    ("a Kubernetes cluster with a GPU", "the operator's side against a real control plane, with nodes that only claim to have one"),
)
"""What nobody has run for this project, beside the releases and precisions that no record names. Whoever runs one of them takes its row out."""
RATIO, BEYOND_SECONDS, BEYOND_SHARE, SPEEDUP, HAND_LINES = 1.02, 5.0, 0.1, 4.0, 60
"""Goals: latency by that of an engine built by hand; time beyond TensorRT's own, the larger of both; a build with a timing cache; the script by hand."""
HANDWRITTEN = ROOT / "tests" / "gpu" / "handwritten.py"


def text() -> str:
    never = "\n".join(f"| {what} | **not run** | {instead} |" for what, instead in [*_unmeasured(), *NEVER])
    return TEXT.format(what=table(_rows()), where=table(_where()), most=_most(), never=never, goals="\n".join(map(_goals, _records())))


def _most() -> int:
    from enginefleet_builder.backends.remedies import MOST_EXCLUSIONS

    return MOST_EXCLUSIONS


def _rows() -> list[list[str]]:
    recipes = module("recipe")
    rows = [["", *COLUMNS], ["comes with", *(COMES_WITH[release] for release in COLUMNS)]]

    def row(name: str, cell: Callable[[str, dict[str, set[str]]], str]) -> None:
        rows.append([name, *(cell(release, surface_of(release)) for release in COLUMNS)])

    row("opset of the parser, as documented", lambda release, _: _opset(release))
    row("network", lambda release, names: _network(_planned(release, names, "fp32")))
    for precision in FILES:
        row(f"`{precision}`", partial(_precision, precision))
    row("int8 on a DLA", lambda release, names: _dla(_planned(release, names, "int8", DLA), release))
    row("optimization level", lambda _, names: "0 to 5" if recipes.has(names, "IBuilderConfig.builder_optimization_level") else "-")
    row("tactic sources", lambda _, names: ", ".join(sorted(names["TacticSource"])))
    row("progress", lambda release, names: "monitor" if _planned(release, names, "fp32").monitored else "log lines")
    row(
        "timing cache", lambda release, _: "none: measures where it is loaded" if release.startswith("RTX") else "kept for each fingerprint"
    )
    row("for a GPU that is not here", lambda _, names: "yes" if recipes.has(names, "IBuilderConfig.set_compute_capability") else "-")
    return rows


def _planned(release: str, names: dict[str, set[str]], precision: str, recipe: dict[str, Any] | None = None) -> Any:
    """The plan, or the reason of a refusal as text."""
    facts = (FILES_8 if release.startswith("8") else FILES)[precision]
    request = {"library": release, "precision": precision, "facts": facts, "recipe": recipe or {}, "scales": {"x": 1.0}}
    try:
        return module("recipe").plan(names, request)
    except module("failed").Refused as error:
        return f"refused: {error.reason}"


def _precision(precision: str, release: str, names: dict[str, set[str]]) -> str:
    backend, version = ("tensorrt-rtx", release.removeprefix("RTX ")) if release.startswith("RTX") else ("tensorrt", release)
    return "-" if flavours.precision_refused(precision, backend, version) else _types(_planned(release, names, precision))


def _network(plan: Any) -> str:
    flags = ", ".join(f"`{name}`" for name in plan.network) or "no flag"
    return f"{plan.typed}ly typed, {flags}"


def _types(plan: Any) -> str:
    if isinstance(plan, str):
        return plan
    flags = [f"`{name}`" for name in plan.set if name != "TF32"]
    told = ["type in the file" if plan.typed == "strong" else f"flags {', '.join(flags)}" if flags else ""]
    told.append("TF32 allowed" if "TF32" in plan.set else "TF32 off")
    return ", ".join(part for part in told if part)


def _dla(plan: Any, release: str) -> str:
    if isinstance(plan, str):
        return plan
    found = None if release.startswith("RTX") else targets.tensorrt(targets.load(), release)
    if found is None or not found.dla:
        return "-"
    how = "scales beside the network" if plan.implicit else "Q/DQ"
    return f"{how}; boards of compute capability {' and '.join(found.dla)}"


def _opset(release: str) -> str:
    found = None if release.startswith("RTX") else targets.tensorrt(targets.load(), release)
    return str(found.opset) if found else "not known here"


def _records() -> list[Path]:
    return sorted(RECORDS.glob("tensorrt-*.json"))


def _ran() -> dict[tuple[str, str], set[str]]:
    """(precision, release) → links to records of GPUs on which it was built and judged."""
    ran: dict[tuple[str, str], set[str]] = {}
    for path in _records():
        record = json.loads(path.read_text())
        release = str(record["facts"]["backendVersion"])
        column = next((name for name in COLUMNS if release.startswith(name)), None)
        for case in record["cases"]:
            if "failure" not in case and column is not None:
                ran.setdefault((str(case["precision"]).partition("-")[0], column), set()).add(f"[{_gpu(record)}](benchmarks/{path.name})")
    return ran


def _gpu(record: dict[str, Any]) -> str:
    return str((record["facts"].get("gpus") or [{}])[0].get("name"))


def _unmeasured() -> list[tuple[str, str]]:
    """Releases, and precisions of those that were run, without a record."""
    ran = _ran()
    releases = [release for release in COLUMNS if not release.startswith("RTX") and not any(of == release for _, of in ran)]
    precisions = [precision for precision in FILES if not any(one == precision for one, _ in ran)]
    return [
        (f"TensorRT {', '.join(releases)}, on any GPU", "strict doubles that have exactly the names of the release"),
        (f"precisions {', '.join(f'`{name}`' for name in precisions)}, on any GPU", "the same"),
    ]


def _goals(path: Path) -> str:
    """What a record says of its goals. A goal that was missed is bold."""
    record = json.loads(path.read_text())
    rows = [["network", "precision", "level", "TensorRT's own s", "s beyond it", "latency by hand's", "drop", "gate"]]
    over: list[float] = []
    for case in record["cases"]:
        if "failure" in case:
            continue
        own, beyond, ratio = float(case["build_s"]), float(case["build_overhead_s"]), case.get("latency_ratio")
        over += [ratio] if ratio is not None and ratio > RATIO else []
        rows.append(
            [
                case["model"],
                f"`{case['precision']}`",
                str(case.get("level", record["level"])),
                f"{own:.1f}",
                _marked(f"{beyond:.1f}", beyond > max(BEYOND_SECONDS, BEYOND_SHARE * own)),
                "no engine by hand" if ratio is None else _marked(f"{ratio:.3f}", ratio > RATIO),
                f"{float(case['drop']):.3f}",
                case["answer"],
            ]
        )
    caches = [record["timing_cache"], *record["timing_cache"].get("other", ())]
    with_cache = "; ".join(
        f"{item['model']} {item['precision']} {_marked(format(item['speedup'], '.2f'), item['speedup'] < SPEEDUP)} times as fast "
        f"({item['first_s']:.1f} s, then {item['again_s']:.1f} s)"
        for item in caches
    )
    timed = sum(row[5] != "no engine by hand" for row in rows[1:])
    worst = f", at worst {max(over):.2f}" if over else ""
    lines = len(HANDWRITTEN.read_text().splitlines())
    return GOALS.format(
        gpu=_gpu(record),
        release=record["facts"]["backendVersion"],
        file=path.name,
        rows=table(rows),
        ratio=RATIO,
        missed=f"{len(over)} of {timed}{worst}",
        seconds=f"{BEYOND_SECONDS:g}",
        share=f"{BEYOND_SHARE:.0%}",
        speedup=f"{SPEEDUP:g}",
        caches=with_cache,
        hand=HAND_LINES,
        lines=_marked(str(lines), lines > 1.2 * HAND_LINES),
        level=record["level"],
        low=_low(record),
    )


def _low(record: dict[str, Any]) -> str:
    """Networks by precision that were built at level 0 and at no other."""
    levels: dict[tuple[str, str], set[int]] = {}
    for case in record["cases"]:
        levels.setdefault((case["model"], case["precision"]), set()).add(case.get("level", record["level"]))
    return ", ".join(f"{model} `{precision}`" for (model, precision), found in levels.items() if found == {0}) or "none"


def _marked(text: str, missed: bool) -> str:
    return f"**{text}**" if missed else text


def _where() -> list[list[str]]:
    ran = _ran()
    rows = [["", *COLUMNS]]
    for precision in FILES:
        cells = []
        for release in COLUMNS:
            if _precision(precision, release, surface_of(release)) == "-":
                cells.append("-")
                continue
            compiled = ["compiled"] if release.startswith("RTX") and precision in ("fp32", "fp16", "int8") else []
            cells.append(", ".join(["names", *compiled, *sorted(ran.get((precision, release), ()))]))
        rows.append([f"`{precision}`", *cells])
    return rows


def main(arguments: list[str]) -> int:
    """Exit code 0; 1 when `--check` finds a difference."""
    return put(PAGE, text(), arguments, "from the recipe's code")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
