"""From the text of /proc/cpuinfo to a fingerprint. The excerpts are written by hand after the named sources, and cut to what matters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginefleet_api.fingerprint import (
    HOST_FACT_NAMES,
    RUNTIME_FACT_NAMES,
    SIMULATED_MARK,
    combine,
    cpu_model,
    cross_gpu,
    gpu_facts,
    gpu_name,
    has_unknown,
    host_digest,
    host_facts,
    identify,
    of_node,
    parse_cpuinfo,
    summary,
    unknowns,
)

# names of flags: arch/x86/include/asm/cpufeatures.h of Linux 6.12
X86 = """\
processor	: 0
vendor_id	: GenuineIntel
model name	: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
flags		: fpu vme sse4_2 fma avx avx2 avx512f avx512_vnni amx_bf16 avx_vnni avx512_bf16 amx_tile amx_int8
vmx flags	: vnmi preemption_timer
bugs		: spectre_v1 avx2_is_no_bug

processor	: 1
model name	: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
flags		: fpu vme sse4_2 fma avx avx2 avx512f avx512_vnni amx_bf16 avx_vnni avx512_bf16 amx_tile amx_int8
"""
# names of features: arch/arm64/kernel/cpuinfo.c of Linux 6.12; a Cortex-A76 board, whose "Model" line stands at the end, once
ARM = """\
processor	: 0
BogoMIPS	: 108.00
Features	: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer	: 0x41
CPU part	: 0xd0b

Revision	: d04170
Model		: Raspberry Pi 5 Model B Rev 1.0
"""
# invented: two clusters of unlike cores
BIG_LITTLE = """\
processor : 0
Features  : fp asimd asimdhp asimddp i8mm bf16
processor : 4
Features  : fp asimd asimdhp sve
"""
RISCV = "processor\t: 0\nhart\t\t: 0\nisa\t\t: rv64imafdcv\n"


@pytest.mark.parametrize(
    ("text", "machine", "isa"),
    [
        (X86, "x86_64", ["amx_bf16", "amx_int8", "amx_tile", "avx2", "avx512_bf16", "avx512_vnni", "avx512f", "avx_vnni", "fma"]),
        (ARM, "aarch64", ["dotprod", "fp16", "neon"]),
        (BIG_LITTLE, "aarch64", ["fp16", "neon"]),
        ("flags : fpu sse2\n", "x86_64", []),
        ("flags\t\t:\n", "x86_64", []),
        ("flags : avx2\nflags :\n", "x86_64", []),
        (X86, "aarch64", []),
        (RISCV, "riscv64", None),
        ("", "x86_64", None),
        ("no colon here\n\0\n", "x86_64", None),
        ("model name : flags: avx2\n", "x86_64", None),
    ],
    ids=[
        "x86-64: flags in any order, not those of vmx or bugs",
        "ARM: by the names of the fingerprint",
        "unlike cores: what all of them have",
        "an old processor: none of interest",
        "a line without flags",
        "one processor without flags",
        "flags of another machine",
        "a machine whose file has no flags: unknown",
        "an empty file: unknown",
        "not such a file: unknown",
        "a model's name that looks like flags",
    ],
)
def test_instruction_sets(text: str, machine: str, isa: list[str] | None) -> None:
    assert parse_cpuinfo(text, machine) == {"isa": isa}


@pytest.mark.parametrize(
    ("text", "model"),
    [
        (X86, "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"),
        (ARM, "Raspberry Pi 5 Model B Rev 1.0"),
        (RISCV, None),
        ("model name :\nmodel name : second\n", "second"),
        ("", None),
    ],
)
def test_cpu_model(text: str, model: str | None) -> None:
    assert cpu_model(text) == model


def test_the_name_of_a_processor_is_no_fact() -> None:
    """Two processors that run the same kernels share engines."""
    other = X86.replace("Platinum 8481C", "Gold 6430").replace("vnmi", "")

    assert host_facts(os="linux", machine="x86_64", cpuinfo=X86) == host_facts(os="linux", machine="x86_64", cpuinfo=other)


SIMULATED = f"model name : {SIMULATED_MARK} Orin NX\nflags : avx2 fma\n"
RUNTIME: dict[str, Any] = {"backend": "onnxruntime", "backendVersion": "1.24.4", "executionProvider": "CPU"}


def test_simulated_hardware_never_has_the_fingerprint_of_real_hardware() -> None:
    real = host_facts(os="linux", machine="x86_64", cpuinfo=SIMULATED.replace(SIMULATED_MARK, "Intel"))
    simulated = host_facts(os="linux", machine="x86_64", cpuinfo=SIMULATED)

    assert "simulated" not in real
    assert {name: simulated[name] for name in real} == real
    assert identify(combine(simulated, RUNTIME)) != identify(combine(real, RUNTIME))
    assert host_digest(simulated) != host_digest(real)
    assert summary(combine(simulated, RUNTIME)).startswith("SIMULATED ")


@given(st.text(max_size=20), st.text(max_size=20))
def test_two_simulated_models_are_told_apart(a: str, b: str) -> None:
    one, other = ({"arch": "x86_64", "simulated": f"{SIMULATED_MARK} {name!a}"} for name in (a, b))

    assert (identify(combine(one, RUNTIME)) == identify(combine(other, RUNTIME))) is (a == b)


def test_agent_and_build_job_come_to_the_same_id_whatever_the_order() -> None:
    host = host_facts(os="linux", machine="x86_64", cpuinfo=X86)

    assert identify(combine(host, RUNTIME)) == identify(combine(dict(reversed(host.items())), dict(reversed(RUNTIME.items()))))


def test_only_named_facts_enter_a_fingerprint() -> None:
    """What else an observer reports (kernel, driver) is context."""
    host = host_facts(os="linux", machine="x86_64", cpuinfo=X86)
    facts = combine(host | {"kernel": "6.12"}, RUNTIME | {"wheel": "cp311"})

    assert facts == combine(host, RUNTIME)
    assert set(facts) <= {*HOST_FACT_NAMES, *RUNTIME_FACT_NAMES}


def test_facts_that_a_host_does_not_have_are_left_out() -> None:
    """So that a new kind of fact changes no fingerprint of hosts without it."""
    assert "gpus" not in combine(host_facts(os="linux", machine="x86_64", cpuinfo=X86), RUNTIME)


@pytest.mark.parametrize(
    ("name", "value"), [("backend", "tensorrt"), ("backendVersion", "1.24.5"), ("executionProvider", "OpenVINO"), ("backendVersion", None)]
)
def test_each_fact_of_the_runtime_decides(name: str, value: str | None) -> None:
    host = host_facts(os="linux", machine="x86_64", cpuinfo=X86)

    assert identify(combine(host, RUNTIME | {name: value})) != identify(combine(host, RUNTIME))


def test_a_thread_setting_decides_unless_it_is_the_default() -> None:
    host = host_facts(os="linux", machine="x86_64", cpuinfo=X86)

    assert identify(combine(host, RUNTIME, threads="4")) != identify(combine(host, RUNTIME))
    assert identify(combine(host, RUNTIME, threads="auto")) == identify(combine(host, RUNTIME))


def test_golden_fingerprint() -> None:
    """A change here takes the engines away from every fleet."""
    host = host_facts(os="linux", machine="x86_64", cpuinfo="flags : avx2 fma\n")

    assert identify(combine(host, RUNTIME)) == "fp-2877716c94c2c77c"
    assert host_digest(host) == "host-a253f9ebf71c074a"


@pytest.mark.parametrize(
    ("facts", "unknown"),
    [
        ({}, False),
        ({"arch": "x86_64", "cpu": {"isa": []}}, False),
        ({"arch": None}, True),
        ({"cpu": {"isa": None}}, True),
        ({"gpus": [{"name": "Orin", "computeCapability": None}]}, True),
        ({"gpus": ({"sms": (None,)},)}, True),
        ({"arch": "None", "version": "", "count": 0, "ecc": False}, False),
    ],
)
def test_unknown_facts_are_seen_at_any_depth(facts: Any, unknown: bool) -> None:
    assert has_unknown(facts) is unknown


def test_unknown_is_a_value_of_its_own() -> None:
    unknown, none = (host_facts(os="linux", machine="x86_64", cpuinfo=text) for text in ("", "flags :\n"))

    assert has_unknown(unknown)
    assert not has_unknown(none)
    assert identify(combine(unknown, RUNTIME)) != identify(combine(none, RUNTIME))


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (
            combine(host_facts(os="linux", machine="x86_64", cpuinfo="flags : fma avx2\n"), RUNTIME, threads="4"),
            "x86_64 CPU (avx2, fma), ONNX Runtime 1.24.4 CPU, 4 threads",
        ),
        (combine(host_facts(os="linux", machine="x86_64", cpuinfo=""), {}), "x86_64 CPU (instruction sets unknown)"),
        (
            combine(host_facts(os="linux", machine="x86_64", cpuinfo="flags :\n"), RUNTIME | {"backendVersion": None}),
            "x86_64 CPU (baseline), ONNX Runtime of unknown version CPU",
        ),
        ({}, "unknown machine CPU (instruction sets unknown)"),
    ],
)
def test_summary(facts: Any, line: str) -> None:
    assert summary(facts) == line


@given(st.text(max_size=400), st.sampled_from(["x86_64", "aarch64", "riscv64", ""]))
def test_any_text_gives_facts_that_can_be_hashed(text: str, machine: str) -> None:
    isa: Any = parse_cpuinfo(text, machine)["isa"]

    assert isa is None or isa == sorted(set(isa))
    assert identify({"cpu": {"isa": isa}}).startswith("fp-")


# ---- GPUs and Jetsons ----

H200 = {"name": "H200", "computeCapability": "9.0", "sms": 132, "ecc": True}
ORIN = {"computeCapability": "8.7", "sms": 8}
TENSORRT: dict[str, Any] = {"backend": "tensorrt", "backendVersion": "10.3.0.30", "cudaMajor": 12}
SERVER = host_facts(os="linux", machine="x86_64", cpuinfo=X86, gpus=[{"name": "H200"}])
JETSON = host_facts(os="linux", machine="aarch64", cpuinfo=ARM, jetson={"module": "p3767-0000", "l4t": "36.4.3"})


def on(*gpus: Any, **changes: Any) -> dict[str, Any]:
    """A runtime that sees these GPUs."""
    return TENSORRT | {"gpus": list(gpus)} | changes


def test_golden_fingerprints_of_gpus() -> None:
    """A change here takes the engines away from every fleet."""
    assert identify(combine(SERVER, on(H200))) == "fp-95d216bd511b59e9"
    assert identify(combine(JETSON, on(ORIN))) == "fp-f94f85ce0f906595"


def test_what_runs_on_the_cpu_hangs_on_no_gpu_beside_it() -> None:
    bare = host_facts(os="linux", machine="aarch64", cpuinfo=ARM)

    assert combine(JETSON, RUNTIME) == combine(bare, RUNTIME)
    assert combine(SERVER, RUNTIME) == combine(SERVER | {"gpus": []}, RUNTIME)


def test_tensorrt_does_not_hang_on_the_cpu_beside_the_gpu() -> None:
    other = host_facts(os="linux", machine="x86_64", cpuinfo="flags : avx2\n")

    assert combine(SERVER, on(H200)) == combine(other, on(H200))
    cuda = RUNTIME | {"executionProvider": "CUDA", "gpus": [H200]}
    assert combine(SERVER, cuda) != combine(other, cuda)


@pytest.mark.parametrize(
    ("runtime", "host"),
    [
        (on(H200 | {"sms": 66}), SERVER),
        (on(H200 | {"ecc": False}), SERVER),
        (on(H200 | {"mig": "1g.18gb"}), SERVER),
        (on(H200 | {"sms": None}), SERVER),
        (on(H200, cudaMajor=13), SERVER),
        (on(H200, backendVersion="10.3.0.26"), SERVER),
        (on(H200, libraries={"cudnn": "8.9.0"}), SERVER),
        (on(), SERVER),
        (on(cross_gpu("9.0")), SERVER),
        (on(H200, simulated="EngineFleet simulated CUDA"), SERVER),
        (on(H200), JETSON),
    ],
)
def test_each_fact_of_a_gpu_decides(runtime: dict[str, Any], host: dict[str, Any]) -> None:
    assert identify(combine(host, runtime)) != identify(combine(SERVER, on(H200)))


def test_of_several_gpus_the_first_is_the_device() -> None:
    """Which is what CUDA and so TensorRT take; what the host calls them parts hardware groups alone."""
    other = SERVER | {"gpus": [{"name": "H200"}, {"name": "T400 4GB"}]}

    assert combine(other, on(H200, {"name": "T400 4GB"})) == combine(SERVER, on(H200))
    assert host_digest(other) != host_digest(SERVER)


def test_the_agents_word_on_a_jetson_counts_and_unknown_stays_unknown() -> None:
    bare = host_facts(os="linux", machine="aarch64", cpuinfo=ARM)
    pod = {"module": None, "l4t": "35.4.1"}
    half = bare | {"jetson": {"module": "p3767-0000", "l4t": None}}

    assert combine(JETSON, on(ORIN, jetson=pod))["jetson"] == {"module": "p3767-0000", "l4t": "36.4.3"}
    assert combine(half, on(ORIN, jetson=pod))["jetson"] == {"module": "p3767-0000", "l4t": "35.4.1"}
    assert combine(bare, on(ORIN))["jetson"] == {"module": None, "l4t": None}
    assert has_unknown(combine(bare, on(ORIN)))
    assert not has_unknown(combine(JETSON, on(ORIN)))


@pytest.mark.parametrize(
    ("text", "name", "mig"),
    [
        ("NVIDIA H200", "H200", None),
        ("Tesla T4", "Tesla T4", None),
        ("NVIDIA  GeForce RTX 3090 ", "GeForce RTX 3090", None),
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", "A100-SXM4-40GB", "1c.3g.20gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "H100 80GB HBM3", "1g.10gb+me"),
        ("NVIDIA", "NVIDIA", None),
    ],
)
def test_a_gpus_name_without_its_vendor_and_its_slice(text: str, name: str, mig: str | None) -> None:
    assert gpu_name(text) == (name, mig)


def test_a_jetsons_gpu_has_no_name_and_no_ecc() -> None:
    """CUDA calls Orin Nano, NX and AGX alike, and another name after an update would be no other device."""
    seen: dict[str, Any] = {"name": "Orin", "major": 8, "minor": 7, "sms": 16, "integrated": True, "ecc": False}

    other: dict[str, Any] = seen | {"name": "Orin (nvgpu)"}

    assert gpu_facts(seen) == gpu_facts(other) == {"computeCapability": "8.7", "sms": 16}


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (combine(SERVER, on(H200)), "H200, SM 9.0 x132, TensorRT 10.3.0.30"),
        (combine(SERVER, on(H200 | {"mig": "1g.18gb", "sms": 16})), "H200 MIG 1g.18gb, SM 9.0 x16, TensorRT 10.3.0.30"),
        (combine(JETSON, on(ORIN)), "Orin NX 16GB (p3767-0000), SM 8.7 x8, TensorRT 10.3.0.30, L4T 36.4.3"),
        (
            combine(JETSON | {"jetson": {"module": "p3767-0099", "l4t": None}}, on(ORIN)),
            "Jetson (p3767-0099), SM 8.7 x8, TensorRT 10.3.0.30, L4T unknown",
        ),
        (combine(SERVER, on(ORIN)), "unknown Jetson, SM 8.7 x8, TensorRT 10.3.0.30, L4T unknown"),
        (combine(JETSON, on(H200)), "H200, SM 9.0 x132, TensorRT 10.3.0.30, L4T 36.4.3"),
        (
            combine(SERVER, on({"name": None, "computeCapability": None, "sms": None}, backend="tensorrt-rtx")),
            "unknown GPU, SM unknown x?, TensorRT for RTX 10.3.0.30",
        ),
        (combine(SERVER, on()), "unknown GPU, TensorRT 10.3.0.30"),
        (combine(SERVER, on(cross_gpu("8.6"), backend="tensorrt-rtx")), "built for SM 8.6 on another machine, TensorRT for RTX 10.3.0.30"),
        (combine(SERVER, RUNTIME | {"executionProvider": "CUDA", "gpus": [H200]}), "H200, SM 9.0 x132, ONNX Runtime 1.24.4 CUDA"),
        (SERVER, "x86_64 CPU (amx_bf16, amx_int8, amx_tile, avx2, avx512_bf16, avx512_vnni, avx512f, avx_vnni, fma), H200"),
        (JETSON, "aarch64 CPU (dotprod, fp16, neon), Orin NX 16GB (p3767-0000), L4T 36.4.3"),
    ],
)
def test_summary_of_gpus(facts: Any, line: str) -> None:
    assert summary(facts) == line


def test_an_unknown_fact_makes_an_engine_for_one_node_only() -> None:
    known = combine(JETSON, on(ORIN))
    unknown = combine(JETSON, on(ORIN | {"sms": None}, cudaMajor=None))

    assert of_node(known, "a") == known
    assert unknowns(unknown) == ["gpus[0].sms", "cudaMajor"]
    assert len({identify(of_node(unknown, node)) for node in ("a", "b")}) == 2
    assert summary(of_node(unknown, "a")).endswith(", node a only")
