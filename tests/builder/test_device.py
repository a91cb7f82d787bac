"""GPUs, TensorRT and their state by the real calls, against libraries that are compiled here and answer as real ones do."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from enginefleet_api import fingerprint
from enginefleet_api.errors import EnvironmentFault, PermanentError
from enginefleet_api.jobs import BuildRequest, FetchRequest, ProbeReport, ProbeRequest, StoreRef, Termination
from enginefleet_builder import device, probe
from enginefleet_builder.build.device import check_here
from enginefleet_builder.device import observe
from enginefleet_builder.device.files import HostFiles
from enginefleet_builder.fetch import check_device
from enginefleet_builder.io import Cancellation, progress_for
from enginefleet_builder.main import app
from enginefleet_builder.worker import libraries
from tests.builder.standins.build import Standins, interpreter, library
from tests.hosts.trees import plant

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the stand-ins need a C compiler (cc) to be compiled")

H200 = "NVIDIA H200|9|0|132|0|1|143771|00000000:0{}:00.0"
ORIN = "Orin|8|7|8|1|0|15656|0000:00:00.0"
MARK = "EngineFleet simulated CUDA, EngineFleet simulated TensorRT"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("standins")
    library("cuda", folder / "libcuda.so.1")
    library("nvml", folder / "libnvidia-ml.so.1")
    library("cudalibs", folder / "companions/libcudnn.so.8")
    library("cudalibs", folder / "companions/libcublas.so.11")
    library("cudalibs", folder / "companions/libcudart.so.12")
    return folder


@pytest.fixture
def standins(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standins:
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:{compiled}")
    monkeypatch.setenv("STANDIN_GPUS", H200.format(1))
    return Standins(tmp_path, interpreter(tmp_path / "python", tmp_path / "site"))


def gpus(*lines: str) -> dict[str, str]:
    return {"STANDIN_GPUS": "\n".join(lines)}


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, Any]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


# ---- the GPU ----


@pytest.mark.parametrize(
    ("lines", "kinds"),
    [
        ([H200.format(1)], [{"name": "H200", "computeCapability": "9.0", "sms": 132, "ecc": True}]),
        ([H200.format(n) for n in range(8)], [{"name": "H200", "computeCapability": "9.0", "sms": 132, "ecc": True}]),
        (
            ["NVIDIA GeForce RTX 4090|8|9|128|0|0|24217|01", "T400 4GB|7|5|6|0|-1|3911|02"],
            [
                {"name": "GeForce RTX 4090", "computeCapability": "8.9", "sms": 128, "ecc": False},
                {"name": "T400 4GB", "computeCapability": "7.5", "sms": 6, "ecc": None},
            ],
        ),
        (
            ["NVIDIA A100-SXM4-40GB MIG 3g.20gb|8|0|42|0|1|19968|07"],
            [{"name": "A100-SXM4-40GB", "computeCapability": "8.0", "sms": 42, "ecc": True, "mig": "3g.20gb"}],
        ),
        ([ORIN], [{"computeCapability": "8.7", "sms": 8}]),
        (["NVIDIA Thor|11|0|20|1|0|125772|0"], [{"computeCapability": "11.0", "sms": 20}]),
        # a GB10 shares memory with its CPU and is no Jetson
        (["NVIDIA GB10|12|1|48|1|0|122570|0"], [{"name": "GB10", "computeCapability": "12.1", "sms": 48, "ecc": False}]),
        (["-|-1|0|-1|0|-1|1024|0"], [{"name": None, "computeCapability": None, "sms": None, "ecc": None}]),
    ],
    ids=["one", "eight alike", "unlike, in CUDA's order", "a MIG slice", "Orin", "Thor", "GB10", "a driver that tells nothing"],
)
def test_what_cuda_tells_becomes_facts(lines: list[str], kinds: list[Any], standins: Standins, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, gpus(*lines))
    seen = device.cuda()
    assert (len(seen["gpus"]), seen["cuda"], seen["error"]) == (len(lines), "12.6", None)
    assert device.gpus(seen) == kinds
    assert fingerprint.has_unknown(kinds[0]) is (None in kinds[0].values())


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"STANDIN_CUINIT": "100"}, "cuInit: CUDA_ERROR_NO_DEVICE (100)"),
        ({"STANDIN_CUINIT": "803"}, "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"),
        ({"STANDIN_CUINIT": "7"}, "cuInit: error 7"),
        ({"STANDIN_GPUS": ""}, "CUDA counts 0 devices"),
        ({"STANDIN_CUINIT": "crash"}, "gpus.py was killed by signal 6"),
        ({"STANDIN_CUINIT": "hang"}, "does not answer within 1 s: the driver hangs"),
        ({"LD_LIBRARY_PATH": "/nowhere"}, "libcuda.so.1: cannot open shared object file"),
    ],
    ids=["no device", "driver and library of other versions", "an error without a name", "none", "a crash", "a hang", "no driver"],
)
def test_a_gpu_that_cannot_be_used_is_said_why(
    variables: dict[str, str], words: str, standins: Standins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "SECONDS", 1.0)
    set_all(monkeypatch, variables)
    with pytest.raises(EnvironmentFault, match="no GPU can be used here") as caught:
        device.facts(str(standins.python), "tensorrt")
    assert caught.value.reason == "NoGPU"
    assert words in caught.value.message
    assert device.state().sm_clock is None


# ---- TensorRT ----


@pytest.mark.parametrize(
    ("soname", "told", "flags", "version"),
    [
        ("libnvinfer.so.8", "8.5.2.2", ("-DWHOLE=8502",), "8.5.2.2"),
        ("libnvinfer.so.8", "8.6.1", ("-DWHOLE=8601",), "8.6.1"),
        # bindings of another release beside the library: the library counts
        ("libnvinfer.so.8", "8.4.3.1", ("-DWHOLE=8502",), "8.5.2"),
        ("libnvinfer.so.10", "10.3.0", ("-DMAJOR=10", "-DMINOR=3", "-DPATCH=0", "-DBUILD=30"), "10.3.0.30"),
        ("libnvinfer.so.10", "10.0.1", ("-DWHOLE=100001",), "10.0.1"),
        ("libnvinfer.so.11", "11.4.0.106", ("-DMAJOR=11", "-DMINOR=4", "-DPATCH=0", "-DBUILD=106", "-DNOISE"), "11.4.0.106"),
    ],
)
def test_the_loaded_library_tells_its_version(
    soname: str, told: str, flags: tuple[str, ...], version: str, standins: Standins, monkeypatch: pytest.MonkeyPatch
) -> None:
    standins.tensorrt(soname, told, *flags)
    facts = device.facts(str(standins.python), "tensorrt")
    assert (facts["backend"], facts["backendVersion"]) == ("tensorrt", version)
    assert facts["simulated"] == MARK


def test_tensorrt_8_hangs_on_cudnn_and_cublas_too(standins: Standins, compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standins.tensorrt("libnvinfer.so.8", "8.5.2.2", "-DWHOLE=8502")
    assert "libraries" not in device.facts(str(standins.python), "tensorrt")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{standins.folder}:{compiled}:{compiled / 'companions'}")
    facts = device.facts(str(standins.python), "tensorrt")
    assert facts["libraries"] == {"cudnn": "8.6.0", "cublas": "11.6.6"}
    assert facts["cudaMajor"] == 11


def test_the_cuda_that_tensorrt_was_made_with_is_found_or_unknown(standins: Standins, compiled: Path) -> None:
    parts = ("-DMAJOR=10", "-DMINOR=3", "-DPATCH=0", "-DBUILD=30")

    def major(*flags: str, linked: tuple[Path, ...] = ()) -> Any:
        standins.tensorrt("libnvinfer.so.10", "10.3.0", *parts, *flags, linked=linked)
        return device.facts(str(standins.python), "tensorrt")["cudaMajor"]

    assert major() is None
    assert major('-DCOMPILER="Cuda compilation tools, release 13.0, V13.0.88"') == 13
    cudart = Path(shutil.copy(compiled / "companions/libcudart.so.12", standins.folder))
    assert major(linked=(cudart,)) == 12


@pytest.mark.parametrize(
    ("wheels", "package", "paths", "major"),
    [
        (["tensorrt_cu12_bindings-10.3.0.dist-info"], None, [], 12),
        (["tensorrt_rtx_cu13_libs-1.7.1.116.dist-info"], None, ["/lib/libcudart.so.12"], 13),
        ([], "10.3.0.30-1+cuda12.5", ["/lib/libcudart.so.11.0"], 12),
        ([], "8.5.2-1+cuda11.4", [], 11),
        ([], None, ["/lib/libnvrtc.so.12", "/lib/libfoo.so.9"], 12),
        (["tensorrt-8.6.0.dist-info"], None, ["/lib/libcublasLt.so.11.4.1"], 11),
        ([], None, ["/lib/libcublas.so"], None),
    ],
)
def test_which_sign_of_a_cuda_release_counts(wheels: list[str], package: str | None, paths: list[str], major: int | None) -> None:
    assert libraries.cuda_major(paths, wheels, package, "/nowhere") == major


def test_a_debian_package_tells_the_version_that_it_installed(tmp_path: Path) -> None:
    status = tmp_path / "status"
    entry = "Package: libnvinfer{}\nStatus: install ok installed\nSource: x\nVersion: {}\nDescription: y\n\n"
    status.write_text(entry.format("-plugin10", "1.0") + entry.format("10", "10.3.0.30-1+cuda12.5") + entry.format("-dev", "2.0"))
    assert libraries.dpkg_version("libnvinfer", status) == "10.3.0.30-1+cuda12.5"
    assert libraries.dpkg_version("libnvinfer_lean", status) is None
    assert libraries.dpkg_version("libnvinfer", tmp_path / "none") is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda s: None, "tensorrt cannot be loaded: No module named 'tensorrt'"),
        (lambda s: s.tensorrt("libnvinfer.so.8", "8.5", "-DWHOLE=8502", "-DCRASH"), "tensorrt was killed by signal 6"),
        (lambda s: s.tensorrt("libsomething.so.8", "8.5", "-DWHOLE=8502"), "tensorrt is loaded without libnvinfer.so"),
        (
            lambda s: (s.tensorrt("libnvinfer.so.8", "8.5", "-DWHOLE=8502"), (s.folder / "libnvinfer.so.8").unlink()),
            "cannot open shared object",
        ),
        (lambda s: s.python.unlink(), "python cannot be started: there is no such program"),
    ],
    ids=["no bindings", "a crash while it loads", "another library", "bindings without their library", "no such interpreter"],
)
def test_a_tensorrt_that_cannot_be_loaded_is_said_why(make: Any, words: str, standins: Standins) -> None:
    make(standins)
    with pytest.raises(EnvironmentFault) as caught:
        device.facts(str(standins.python), "tensorrt")
    assert caught.value.reason == "RuntimeMissing"
    assert words in caught.value.message


def test_an_interpreter_that_is_not_there_is_told_before_a_gpu_that_is_not(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("may not be run")
    for python in ("/nowhere", str(tmp_path / "python")):
        told = CliRunner().invoke(app, ["probe", "--backend", "tensorrt", "--python", python])
        assert (told.exit_code, f"RuntimeMissing (environment): {python} cannot be started" in told.output) == (43, True), told.output


def test_what_a_stand_in_says_equals_no_fingerprint_of_the_real_thing(standins: Standins) -> None:
    standins.tensorrt("libnvinfer.so.8", "8.6.1.6", "-DWHOLE=8601")
    runtime = device.facts(str(standins.python), "tensorrt")
    host = probe.host_facts()
    real = {name: value for name, value in runtime.items() if name != "simulated"}
    assert fingerprint.identify(fingerprint.combine(host, runtime)) != fingerprint.identify(fingerprint.combine(host, real))
    assert fingerprint.summary(fingerprint.combine(host, runtime)) == "SIMULATED H200, SM 9.0 x132, TensorRT 8.6.1.6"


def test_a_jetsons_gpu_its_files_and_its_tensorrt_make_one_fingerprint(
    standins: Standins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the agent and the probe Job see them: the one knows the module, the other CUDA and TensorRT."""
    set_all(monkeypatch, gpus(ORIN))
    standins.tensorrt("libnvinfer.so.10", "10.3.0", "-DMAJOR=10", "-DMINOR=3", "-DPATCH=0", "-DBUILD=30")
    agent = probe.host_facts(HostFiles(plant("jetpack-6.0", tmp_path / "host")))
    pod = HostFiles(plant("container", tmp_path / "pod"))
    facts = fingerprint.combine(agent, device.facts(str(standins.python), "tensorrt", files=pod))
    assert facts["jetson"] == {"module": "p3767-0000", "l4t": "36.3.0"}
    assert fingerprint.summary(facts) == "SIMULATED Orin NX 16GB (p3767-0000), SM 8.7 x8, TensorRT 10.3.0.30, L4T 36.3.0"
    assert fingerprint.unknowns(facts) == ["cudaMajor"]
    alone = fingerprint.combine(probe.host_facts(pod), device.facts(str(standins.python), "tensorrt", files=pod))
    assert fingerprint.unknowns(alone) == ["jetson.module", "jetson.l4t", "cudaMajor"]


# ---- its state ----

BUSY: dict[str, Any] = {
    "NVML_pci": "00000000:01:00.0", "NVML_driver": "550.54.15", "NVML_smClock": 1305, "NVML_smClockMax": 1980, "NVML_memoryClock": 3201,
    "NVML_memoryClockMax": 3201, "NVML_temperature": 84, "NVML_power": 699_900, "NVML_powerLimit": 700_000, "NVML_reasons": 0x24, "NVML_load": 97,
    "NVML_memoryTotal": 150_754_820_096, "NVML_memoryUsed": 2 << 30, "NVML_processes": "4242,17", "NVML_graphics": "17,99",
}  # fmt: skip


def test_the_state_of_a_gpu_is_told_in_words(standins: Standins, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, BUSY)
    state = device.state()
    assert state.processes == (17, 99, 4242)
    text = state.text()
    assert text.pop("kernel")
    assert text == {
        "driver": "550.54.15", "cuda": "12.6", "smClock": "1305 MHz", "smClockMax": "1980 MHz", "memoryClock": "3201 MHz",
        "memoryClockMax": "3201 MHz", "temperature": "84 °C", "power": "699 W", "powerLimit": "700 W", "throttled": "power cap, thermal",
        "gpuLoad": "97 %", "memoryTotal": "143771 MiB", "memoryUsed": "2048 MiB", "gpuProcesses": "3",
    }  # fmt: skip


def test_a_gpu_at_rest_is_not_throttled_and_has_no_processes(standins: Standins, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"NVML_pci": "00000000:01:00.0", "NVML_reasons": 0x1, "NVML_processes": ""})
    text = device.context()
    assert (text["throttled"], text["gpuProcesses"]) == ("no", "0")
    assert "smClock" not in text


def test_a_crowd_of_processes_is_counted(standins: Standins, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"NVML_pci": "00000000:01:00.0", "NVML_processes": ",".join(str(pid) for pid in range(1, 201))})
    assert device.context()["gpuProcesses"] == "200"


@pytest.mark.parametrize("variables", [{"NVML_INIT": "9"}, {"NVML_pci": "another"}], ids=["no driver", "another GPU"])
def test_what_nvml_does_not_tell_is_unknown(variables: dict[str, str], standins: Standins, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, variables)
    state = device.state()
    assert (state.processes, state.throttled, state.sm_clock, state.cuda) == (None, None, None, "12.6")


def test_a_jetson_tells_clocks_load_and_memory_by_its_files(standins: Standins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, gpus(ORIN) | {"LD_LIBRARY_PATH": f"{standins.folder}/cuda"})
    library("cuda", standins.folder / "cuda/libcuda.so.1")
    text = device.state(files=HostFiles(plant("jetpack-5.1", tmp_path / "host"))).text()
    assert text.pop("kernel")
    assert text == {
        "cuda": "12.6", "powerMode": "0 (MAXN)", "smClock": "306 MHz", "smClockMin": "306 MHz", "smClockMax": "1300 MHz",
        "temperature": "43 °C", "gpuLoad": "2 %", "memoryTotal": "62840 MiB", "memoryUsed": "4247 MiB",
    }  # fmt: skip


# ---- what is done with it ----


def request(python: Path, **changes: Any) -> BuildRequest:
    """A build here, as an operator asks for it that has seen this machine."""
    runtime = changes.pop("runtime", None) or device.facts(str(python), "tensorrt")
    facts = fingerprint.combine(probe.host_facts(), runtime) | changes.pop("facts", {})
    fields: dict[str, Any] = {
        "engine_key": "e" * 64, "gate_key": "a" * 64, "prepared_key": "b" * 64, "prepared_model": "sha256:" + "c" * 64, "precision": "fp16",
        "backend": "tensorrt", "python": str(python), "facts": facts, "fingerprint": fingerprint.identify(facts), "holder": "h",
        "store": {"uri": "file:///nowhere"},
    }  # fmt: skip
    return BuildRequest.model_validate(fields | changes)


def test_a_build_looks_again_whether_it_is_where_it_is_meant_to_be(standins: Standins, monkeypatch: pytest.MonkeyPatch) -> None:
    standins.tensorrt("libnvinfer.so.8", "8.6.1.6", "-DWHOLE=8601")
    asked = request(standins.python)
    check_here(asked)
    for line, words in (
        ("NVIDIA H200|9|0|66|0|1|70000|0", "number of SMs is 66 here, the engine is for 132"),
        ("NVIDIA H100|9|0|132|0|1|70000|0", "GPU is H100 here, the engine is for H200"),
        ("NVIDIA H200|8|9|132|0|1|70000|0", "compute capability is 8.9 here, the engine is for 9.0"),
        ("NVIDIA H200 MIG 7g.141gb|9|0|132|0|1|70000|0", "MIG profile is 7g.141gb here, the engine is for none"),
    ):
        set_all(monkeypatch, gpus(line))
        with pytest.raises(EnvironmentFault, match=words) as caught:
            check_here(asked)
        assert caught.value.reason == "WrongDevice"
    # memory that is lost to ECC is no other device, and a driver that does not tell the name is believed in the rest
    set_all(monkeypatch, gpus("-|9|0|132|0|0|70000|0"))
    check_here(asked)


def test_a_library_that_was_changed_behind_the_image_is_seen(standins: Standins) -> None:
    standins.tensorrt("libnvinfer.so.8", "8.6.1.6", "-DWHOLE=8601")
    asked = request(standins.python)
    standins.tensorrt("libnvinfer.so.8", "8.6.1.6", "-DWHOLE=8502")
    with pytest.raises(EnvironmentFault, match=r"backendVersion is '8\.5\.2', expected '8\.6\.1\.6'") as caught:
        check_here(asked)
    assert caught.value.reason == "WrongRuntime"


@pytest.mark.parametrize(
    ("gpu", "recipe", "backend", "words"),
    [
        (fingerprint.cross_gpu("8.6"), {}, "tensorrt-rtx", "for compute capability of the GPU here, the facts say 8.6"),
        (fingerprint.cross_gpu("8.6"), {"computeCapability": "8.9"}, "tensorrt-rtx", "for compute capability 8.9, the facts say 8.6"),
        ({"computeCapability": "8.6", "sms": 84}, {"computeCapability": "8.6"}, "tensorrt-rtx", "the facts say a GPU here"),
        (fingerprint.cross_gpu("8.6"), {"computeCapability": "8.6"}, "tensorrt", "tensorrt cannot build for a GPU that is not here"),
    ],
)
def test_an_engine_for_a_gpu_elsewhere_never_passes_as_one_for_a_gpu_here(
    gpu: dict[str, Any], recipe: dict[str, Any], backend: str, words: str, tmp_path: Path
) -> None:
    runtime = {"backend": backend, "backendVersion": "1.7.1.116", "cudaMajor": 13, "gpus": [gpu]}
    with pytest.raises(PermanentError, match=words) as caught:
        check_here(request(tmp_path / "python", runtime=runtime, recipe=recipe, backend=backend))
    assert caught.value.reason == "BadRequest"


def test_a_probe_job_reports_within_the_limit_of_a_message(standins: Standins, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, BUSY | gpus(*(H200.format(n) for n in range(8))))
    standins.tensorrt("libnvinfer.so.8", "8.6.1.6", "-DWHOLE=8601")
    asked = ProbeRequest(backend="tensorrt", python=str(standins.python))
    report = probe.probe(asked, progress_for(sys.stderr, Cancellation(None)))
    message = Termination(report=report).to_message()
    found = Termination.parse(message)
    assert found is not None
    assert isinstance(found.report, ProbeReport)
    assert found.report.runtime["gpus"] == [{"name": "H200", "computeCapability": "9.0", "sms": 132, "ecc": True}]


def test_the_command_prints_for_people_and_for_programs(standins: Standins) -> None:
    standins.tensorrt("libnvinfer.so.8", "8.6.1.6", "-DWHOLE=8601")
    command = [sys.executable, "-m", "enginefleet_builder.main", "probe", "--python", str(standins.python)]
    shown, told = (
        subprocess.run([*command, *more], capture_output=True, text=True, check=True, timeout=60).stdout for more in ([], ["--json"])
    )
    answer = json.loads(told)
    by_backend = {runtime["facts"]["backend"]: runtime for runtime in answer["runtimes"]}
    assert by_backend["tensorrt"]["summary"] == f"SIMULATED H200, SM 9.0 x132, TensorRT 8.6.1.6, node {platform.node()} only"
    assert by_backend["tensorrt"]["unknown"] == ["cudaMajor"]
    assert set(answer["missing"]) == {"tensorrt-rtx"}
    assert by_backend["onnxruntime"]["fingerprint"] in shown
    assert "SIMULATED H200, SM 9.0 x132, TensorRT 8.6.1.6" in shown
    assert "cudaMajor is unknown" in shown


def test_an_init_container_checks_the_gpu_where_it_was_given_one(standins: Standins, monkeypatch: pytest.MonkeyPatch) -> None:
    standins.tensorrt("libnvinfer.so.8", "8.6.1.6", "-DWHOLE=8601")
    facts = fingerprint.combine(probe.host_facts(), device.facts(str(standins.python), "tensorrt"))
    asked = FetchRequest(
        engine_key="e" * 64, gate_key="a" * 64, blob="sha256:" + "b" * 64, size=1, fingerprint=fingerprint.identify(facts), facts=facts,
        store=StoreRef(uri="file:///nowhere"),
    )  # fmt: skip
    progress = progress_for(sys.stderr, Cancellation(None))
    check_device(asked, progress)
    set_all(monkeypatch, gpus("NVIDIA H200|9|0|66|0|1|70000|0"))
    with pytest.raises(EnvironmentFault, match="number of SMs is 66 here"):
        check_device(asked, progress)
    set_all(monkeypatch, gpus(""))
    check_device(asked, progress)
    assert "this container has none: CUDA counts 0 devices" in progress.log_tail[-1]
