"""Strict doubles of TensorRT's Python module, one a recorded release: exactly the names that the real one has, and an unknown one raises.

What they do is little: they keep what was asked for, and an engine doubles its input (tests/builder/standins/computing.py has one that computes).
The numbers of enum members are unlike the real ones and unlike from release to release, so that code which goes by number fails.
"""

from __future__ import annotations

import ctypes
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "tensorrt"
RELEASES = {
    "8.6.0": "tensorrt-8.6.0.json",
    "10.3.0": "tensorrt-10.3.0.json",
    "10.7.0": "tensorrt-10.7.0.json",
    "10.16.1": "tensorrt-10.16.1.11.json",
    "11.4.0": "tensorrt-11.4.0.106.json",
    "RTX 1.7.1": "tensorrt-rtx-1.7.1.116.json",
}
SINCE_8_6 = {
    "BuilderFlag": {"FP8", "VERSION_COMPATIBLE", "EXCLUDE_LEAN_RUNTIME"},
    "IBuilderConfig": {"builder_optimization_level", "hardware_compatibility_level", "plugins_to_serialize", "max_aux_streams"},
    "Runtime": {"engine_host_code_allowed", "load_runtime", "tempfile_control_flags", "temporary_directory"},
    "MemoryPoolType": {"TACTIC_DRAM"},
    "DataType": {"FP8"},
}
SINCE_8_5 = {
    "IExecutionContext": {
        "execute_async_v3",
        "set_tensor_address",
        "set_input_shape",
        "infer_shapes",
        "get_tensor_shape",
        "set_output_allocator",
    },
    "ICudaEngine": {"get_tensor_name", "num_io_tensors", "get_tensor_mode", "get_tensor_dtype", "get_tensor_shape", "get_tensor_location"},
}


def surface_of(release: str) -> dict[str, set[str]]:
    """{class: names}. `8.5` and `8.2`: 8.6.0 less what came since."""
    file = RELEASES.get(release, RELEASES["8.6.0"])
    recorded = json.loads((FOLDER / file).read_text())
    names = {kind: set(members) for kind, members in recorded.items() if isinstance(members, list)}
    for older, since in (("8.5", (SINCE_8_6,)), ("8.2", (SINCE_8_6, SINCE_8_5))):
        for added in since if release == older else ():
            for kind, members in added.items():
                names[kind] -= members
    return names


class Strict:
    """An object of class `kind`: its attributes are the recorded names; those in `does` have a value or do something, setting is kept."""

    def __init__(self, names: Mapping[str, set[str]], kind: str, **does: Any) -> None:
        object.__setattr__(self, "_names", names[kind])
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_does", does)
        object.__setattr__(self, "was_set", {})

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(f"{self._kind} has no {name}")
        if name in self.was_set:
            return self.was_set[name]
        if name in self._does:
            value = self._does[name]
            return value() if isinstance(value, Now) else value
        raise NotImplementedError(f"the double's {self._kind}.{name} does nothing yet")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._names:
            raise AttributeError(f"{self._kind} has no {name}")
        self.was_set[name] = value


class Cache(Strict):
    """A timing cache, which is as bytes a line with its release, then one a tactic that was measured."""

    tactics: set[str]

    def __init__(self, names: Mapping[str, set[str]], header: str, tactics: Sequence[str]) -> None:
        held = set(tactics)

        def combine(other: Cache, _ignore_mismatch: bool) -> bool:
            held.update(other.tactics)
            return True

        super().__init__(names, "ITimingCache", serialize=lambda: "\n".join([header, *sorted(held)]).encode(), combine=combine)
        object.__setattr__(self, "tactics", held)


class Now:
    """A property: asked for, it is computed."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.compute = compute

    def __call__(self) -> Any:
        return self.compute()


class Member:
    """One member of an enum: has a name and a number, like pybind11's."""

    def __init__(self, kind: str, name: str, number: int) -> None:
        self.kind, self.name, self.number = kind, name, number

    def __int__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"{self.kind}.{self.name}"


ENUMS = (
    "BuilderFlag", "ComputeCapability", "DataType", "DeviceType", "LayerInformationFormat", "MemoryPoolType", "NetworkDefinitionCreationFlag",
    "ProfilingVerbosity", "TacticSource", "TensorIOMode", "TensorLocation",
)  # fmt: skip


NUMPY = {"FLOAT": "float32", "HALF": "float16", "BF16": "uint16", "INT32": "int32", "INT64": "int64", "INT8": "int8", "BOOL": "bool"}


class Tensor:
    def __init__(self, name: str, shape: Sequence[int], dtype: str = "FLOAT", shape_tensor: bool = False) -> None:
        self.name, self.shape, self.dtype, self.is_shape_tensor = name, list(shape), dtype, shape_tensor


class Double(SimpleNamespace):
    """The module. `asked` keeps what was done, by word; `inputs`, `outputs`: of the network and of every engine; `says`: lines that a build logs.

    A subclass may build another plan, and compute with it: `_made`, `_opened`, `_computed`, `_shape_of`, `_tactics`.
    """

    asked: dict[str, Any]

    def __init__(
        self,
        release: str,
        *,
        inputs: Sequence[Tensor] = (),
        outputs: Sequence[Tensor] = (),
        says: Sequence[tuple[str, str]] = (),
        fails: str = "",
        dlas: int = 0,
    ) -> None:
        names = surface_of(release)
        super().__init__(asked={"flags": set(), "profiles": [], "pools": {}}, release=release)
        self.__version__, self._dlas = release, dlas
        self._names, self._inputs, self._says, self._fails = names, list(inputs) or [Tensor("x", [-1, 4])], says, fails
        self._outputs = list(outputs) or [Tensor("y", self._inputs[0].shape, self._inputs[0].dtype)]
        for kind in ENUMS:
            if kind in names:
                # other numbers in every release
                salt = zlib.crc32(f"{release}{kind}".encode()) % 7
                members = {name: Member(kind, name, index + salt) for index, name in enumerate(sorted(names[kind]))}
                setattr(self, kind, SimpleNamespace(**members))
        for kind in ("IBuilderConfig", "ICudaEngine", "IExecutionContext", "INetworkDefinition"):
            setattr(self, kind, SimpleNamespace(**dict.fromkeys(names[kind])))
        self.ILogger = _base(names, "ILogger")
        if "IProgressMonitor" in names:
            self.IProgressMonitor = _base(names, "IProgressMonitor")
        if "IInt8EntropyCalibrator2" in names:
            self.IInt8EntropyCalibrator2 = _base(names, "IInt8EntropyCalibrator2")
        self.IProfiler, self.IOutputAllocator = _base(names, "IProfiler"), _base(names, "IOutputAllocator")
        self.init_libnvinfer_plugins = lambda _log, _namespace: True
        for kind, make in (("Builder", self._builder), ("OnnxParser", self._parser), ("Runtime", self._runtime)):
            setattr(self, kind, _constructor(names[kind], make))

    # ---- building ----

    def _builder(self, logger: Any) -> Strict:
        if self._fails == "start":
            raise TypeError("pybind11::init(): factory function returned nullptr")
        self._logger = logger
        return Strict(
            self._names,
            "Builder",
            num_DLA_cores=self._dlas,
            create_network=self._network,
            create_builder_config=self._config,
            create_optimization_profile=self._profile,
            build_serialized_network=self._build,
        )

    def _network(self, flags: int = 0) -> Strict:
        self.asked["network"] = self._bits("NetworkDefinitionCreationFlag", flags)
        return Strict(
            self._names,
            "INetworkDefinition",
            num_inputs=len(self._inputs),
            get_input=self._inputs.__getitem__,
            num_outputs=len(self._outputs),
            get_output=self._outputs.__getitem__,
            num_layers=3,
            get_layer=lambda index: index,
        )

    def _bits(self, kind: str, bits: int) -> set[str]:
        members = vars(getattr(self, kind)).values()
        assert bits & ~sum(1 << int(member) for member in members) == 0, f"bits {bits:b} name no member of {kind}"
        return {member.name for member in members if bits >> int(member) & 1}

    def _parser(self, _network: Any, _logger: Any) -> Strict:
        error = Strict(self._names, "ParserError", desc=lambda: "no such operator", node_name=lambda: "conv1")
        return Strict(
            self._names, "OnnxParser", parse_from_file=lambda _path: self._fails != "parse", num_errors=1, get_error=lambda _index: error
        )

    def _config(self) -> Strict:
        flags = self.asked["flags"]
        flags.add("TF32")  # on by default in every release
        does: dict[str, Any] = {
            "set_flag": lambda flag: flags.add(flag.name),
            "clear_flag": lambda flag: flags.discard(flag.name),
            "set_memory_pool_limit": lambda pool, size: self.asked["pools"].update({pool.name: size}),
            "set_tactic_sources": lambda bits: self.asked.update(tactics=self._bits("TacticSource", bits)),
            "add_optimization_profile": self._add_profile,
            "create_timing_cache": self._cache,
            "set_timing_cache": lambda cache, mismatch: self.asked.update(cache=cache, mismatch=mismatch) is None,
            "get_timing_cache": lambda: self.asked["cache"],
            "can_run_on_DLA": lambda layer: layer < 2,
            "set_compute_capability": lambda capability, index: self.asked.update(capability=(capability.name, index)) is None,
        }
        self.config = Strict(self._names, "IBuilderConfig", **does)
        return self.config

    def _cache(self, data: bytes) -> Cache | None:
        """None for bytes that are no cache of this release; none at all make a new one."""
        first, *known = data.decode(errors="replace").splitlines() or [self._cache_header()]
        if first != self._cache_header():
            return None
        return Cache(self._names, first, known)

    def _cache_header(self) -> str:
        return f"timing cache of {self.release}"

    def _profile(self) -> Strict:
        shapes: dict[str, Any] = {}
        return Strict(
            self._names,
            "IOptimizationProfile",
            set_shape=lambda name, low, opt, high: shapes.update({name: [low, opt, high]}),
            set_shape_input=lambda name, low, opt, high: shapes.update({name: {"values": [low, opt, high]}}),
            extra_memory_target=shapes,
        )

    def _add_profile(self, profile: Strict) -> int:
        self.asked["profiles"].append(profile.extra_memory_target)
        return len(self.asked["profiles"]) - 1

    def _build(self, _network: Any, config: Strict) -> bytes | None:
        for level, text in self._says:
            self._logger.log(SimpleNamespace(name=level), text)
        if "progress_monitor" in config.was_set:
            watching = config.was_set["progress_monitor"]
            watching.phase_start("Building", None, 2)
            watching.phase_start("Timing", "Building", 4)
            assert watching.step_complete("Timing", 0)
            watching.phase_finish("Timing")
            assert watching.step_complete("Building", 0)
            watching.phase_finish("Building")
        if self._fails == "build":
            return None
        if cache := self.asked.get("cache"):
            cache.tactics.update(self._tactics())
        return self._made()

    def _made(self) -> bytes:
        """The plan that a build gives."""
        return b"a plan"

    def _tactics(self) -> set[str]:
        """What a build measures, or finds in its timing cache."""
        return set()

    # ---- running ----

    def _runtime(self, logger: Any) -> Strict:
        self._logger = logger
        self.runtime = Strict(self._names, "Runtime", deserialize_cuda_engine=self._deserialize)
        return self.runtime

    def _opened(self, plan: bytes) -> bool:
        """Whether it is a plan, whose tensors are this object's from now on."""
        return plan == b"a plan"

    def _computed(self, feeds: dict[str, Any]) -> dict[str, Any]:
        """Outputs of a run; `feeds`: the inputs that lie on the device."""
        (given, *_) = feeds.values()
        return {"y": (given[given > 0] if self._fails == "data-dependent" else given) * 2}

    def _shape_of(self, _output: str, given: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        return (-1,) if self._fails == "data-dependent" else given[self._inputs[0].name]

    def _deserialize(self, data: bytes) -> Strict | None:
        if not self._opened(data):
            self._logger.log(SimpleNamespace(name="ERROR"), "incompatible serialization version")
            return None
        ranges = self.asked["profiles"] or [{}]
        shapes = {tensor.name: tensor.shape for tensor in (*self._inputs, *self._outputs)}
        dtypes = {tensor.name: tensor.dtype for tensor in (*self._inputs, *self._outputs)}
        outputs = {tensor.name for tensor in self._outputs}
        hosted = {tensor.name for tensor in self._inputs if tensor.is_shape_tensor}
        self.engine = Strict(
            self._names,
            "ICudaEngine",
            num_io_tensors=len(shapes),
            get_tensor_name=list(shapes).__getitem__,
            get_tensor_mode=lambda name: self.TensorIOMode.OUTPUT if name in outputs else self.TensorIOMode.INPUT,
            get_tensor_shape=shapes.__getitem__,
            get_tensor_dtype=lambda name: getattr(self.DataType, dtypes[name]),
            get_tensor_location=lambda name: self.TensorLocation.HOST if name in hosted else self.TensorLocation.DEVICE,
            num_optimization_profiles=len(ranges),
            get_tensor_profile_shape=lambda name, index: ranges[index].get(name, [shapes[name]] * 3),
            create_execution_context=lambda: self._context(ranges, shapes, dtypes),
            create_engine_inspector=self._inspector,
        )
        return self.engine

    def _inspector(self) -> Strict:
        layer = {"Name": "double", "LayerType": "ElementWise", "Inputs": [{"Name": "x", "Format/Datatype": "Row major linear FP32"}]}
        report = json.dumps({"Layers": [layer | {"Outputs": [{"Name": "y", "Format/Datatype": "Half"}]}]})
        return Strict(self._names, "EngineInspector", get_engine_information=lambda _form: report)

    def _context(self, ranges: list[Any], shapes: Mapping[str, Sequence[int]], dtypes: Mapping[str, str]) -> Strict:
        state: dict[str, Any] = {"profile": 0, "at": {}, "shape": {}, "allocators": {}, "runs": 0}
        self.state = state

        def set_shape(name: str, shape: tuple[int, ...]) -> bool:
            found = ranges[state["profile"]].get(name)
            low, _, high = found if isinstance(found, list) else [shape] * 3
            fixed = shapes[name]
            fits = len(shape) == len(fixed) and all(want in (-1, got) for want, got in zip(fixed, shape, strict=True))
            if not fits or not all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True)):
                self._logger.log(
                    SimpleNamespace(name="ERROR"), f"Set dimension {list(shape)} for tensor {name} does not satisfy the profile"
                )
                return False
            state["shape"][name] = shape
            return True

        def execute(_stream: int) -> bool:
            state["runs"] += 1
            if any(tensor.name not in state["at"] for tensor in self._inputs):
                return False
            feeds = {}
            for tensor in self._inputs:
                if not tensor.is_shape_tensor:
                    shape, dtype = state["shape"][tensor.name], np.dtype(NUMPY[dtypes[tensor.name]])
                    content = ctypes.string_at(state["at"][tensor.name], int(np.prod(shape)) * dtype.itemsize)
                    feeds[tensor.name] = np.frombuffer(content, dtype).reshape(shape)
            for name, result in self._computed(feeds).items():
                data = np.ascontiguousarray(result, NUMPY[dtypes[name]])
                target = state["at"].get(name)
                if allocator := state["allocators"].get(name):
                    grown = None if self.release.startswith("8.") else getattr(allocator, "reallocate_output_async", None)
                    size = max(1, data.nbytes)
                    target = grown(name, None, size, 256, 0) if grown else allocator.reallocate_output(name, None, size, 256)
                    allocator.notify_shape(name, data.shape)
                if data.nbytes:
                    ctypes.memmove(target, data.tobytes(), data.nbytes)
            if profiler := self.context.was_set.get("profiler"):
                profiler.report_layer_time("double", 0.25)
            return True

        self.context = Strict(
            self._names,
            "IExecutionContext",
            set_input_shape=set_shape,
            infer_shapes=lambda: [tensor.name for tensor in self._inputs if tensor.name not in state["shape"]],
            get_tensor_shape=lambda name: state["shape"][name] if name in state["shape"] else self._shape_of(name, state["shape"]),
            set_tensor_address=lambda name, address: state["at"].update({name: address}) is None,
            set_output_allocator=lambda name, allocator: state["allocators"].update({name: allocator}) is None,
            set_optimization_profile_async=lambda index, _stream: state.update(profile=index) is None,
            execute_async_v3=execute,
        )
        return self.context


def _base(names: Mapping[str, set[str]], kind: str) -> type:
    """A class to derive from, as pybind11 has them: its constructor must be called by name."""
    return type(kind, (), dict.fromkeys(names[kind]))


def _constructor(names: set[str], make: Callable[..., Strict]) -> Any:
    """What is called like a class and has its names."""

    class Constructor:
        def __call__(self, *arguments: Any) -> Strict:
            return make(*arguments)

        def __dir__(self) -> list[str]:
            return sorted(names)

    return Constructor()
