"""A deserialized engine: what it takes and gives, runs, times of runs, and what its layers are. Python 3.8, standard library and NumPy."""

import ctypes
import json
import time

import numpy as np

from building import load_plugins
from failed import Failed, Refused
from logs import logger

MAX_RUNS = 2000000
"""Bound of memory for a sustained run of tiny engines."""
DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
    "BF16": "bfloat16",
}


def host_type(name):
    """NumPy's type for a tensor; bfloat16 lies in memory as its 16 bits."""
    return np.dtype("uint16" if name == "bfloat16" else name)


def to_bits(array):
    """float32 rounded to bfloat16, half to even, as uint16."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bits(array):
    """bfloat16 as uint16 to float32, exactly."""
    return (array.astype(np.uint32) << 16).view(np.float32)


def narrowed(given, dtype):
    """`given` as the integer type `dtype` where no value is lost: a model's int64 is TensorRT's int32 up to 8.6. Else as it is."""
    if given.dtype == dtype or given.dtype.kind not in "iu" or dtype.kind not in "iu":
        return given
    changed = given.astype(dtype)
    return changed if np.array_equal(changed, given) else given


class Buffer:
    """Memory of one tensor on the device, with page-locked memory of the same size; grows, never shrinks."""

    def __init__(self, device, pinned=True):
        self._device, self._pinned = device, pinned
        self.size, self.address, self.host = 0, None, None

    def hold(self, size):
        if self.address is not None and size <= self.size:
            return self.address
        self.free()
        self.size = size
        self.address = self._device.allocate(size)
        if self._pinned:
            self.host = self._device.pinned(size)
        return self.address

    def view(self, dtype, shape):
        """The page-locked side as an array of that shape."""
        count = int(np.prod(shape, dtype=np.int64))
        raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(self.host) if count else b""
        return np.frombuffer(raw, dtype, count).reshape(shape)

    def free(self):
        if self.address is not None:
            self._device.release(self.address)
        if self.host is not None:
            self._device.release_pinned(self.host)
        self.address = self.host = None


class Engine:
    """One engine with one execution context. Raises Failed and Refused."""

    def __init__(self, trt, device, path, plugins, lines, host_code=False, dla=None):
        self._trt, self._device, self._lines = trt, device, lines
        log = logger(trt, lines)
        load_plugins(trt, log, plugins)
        with open(path, "rb") as file:
            data = file.read()
        self._runtime = trt.Runtime(log)
        if host_code and hasattr(self._runtime, "engine_host_code_allowed"):
            self._runtime.engine_host_code_allowed = True
        if dla:
            self._runtime.DLA_core = dla.get("core", 0)  # which core it was built for does not stand in the plan
        before = device.free_memory()[0]  # after the library has loaded its own kernels
        self.engine = self._runtime.deserialize_cuda_engine(data)
        if self.engine is None:
            raise Failed("load", "the engine was not deserialized", lines.kept)
        self.context = self.engine.create_execution_context()
        if self.context is None:
            raise Failed("load", "no execution context", lines.kept)
        # an engine built with all its layers' details names each of them for a profiler at every run, which the host pays for
        self.context.nvtx_verbosity = trt.ProfilingVerbosity.NONE
        self.stream = device.stream()
        self.device_memory = max(0, before - device.free_memory()[0]) or None
        self.names = [self.engine.get_tensor_name(index) for index in range(self.engine.num_io_tensors)]
        self.inputs = [name for name in self.names if self.engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        self.outputs = [name for name in self.names if name not in self.inputs]
        self._buffers = {name: Buffer(device) for name in self.names}
        self._kept = {}
        self._profile = 0
        self._allocators = {}

    def described(self, names):
        return [
            {
                "name": name,
                "dtype": self._dtype(name).replace("bfloat16", "float32"),
                "shape": [None if size < 0 else size for size in self.engine.get_tensor_shape(name)],
            }
            for name in names
        ]

    def profiles(self):
        """[{input: [min, opt, max]}], one a profile; inputs that hold shapes are left out."""
        return [
            {
                name: [list(shape) for shape in self.engine.get_tensor_profile_shape(name, index)]
                for name in self.inputs
                if not self._on_host(name)
            }
            for index in range(self.engine.num_optimization_profiles)
        ]

    def _dtype(self, name):
        kind = self.engine.get_tensor_dtype(name).name
        if kind not in DTYPES:
            raise Refused(
                "TypeUnsupported",
                f"tensor {name} has the type {kind}, which has no form in NumPy.",
                "Keep inputs and outputs in float32.",
            )
        return DTYPES[kind]

    def _on_host(self, name):
        return self.engine.get_tensor_location(name) == self._trt.TensorLocation.HOST

    # ---- one run ----

    def place(self, feeds):
        """Copy inputs into page-locked memory, choose the profile, set shapes and addresses. Output memory follows. Raises Refused."""
        missing = [name for name in self.inputs if name not in feeds]
        if missing:
            raise Refused("ShapeRefused", "no input {} was given, the engine takes {}.".format(", ".join(missing), ", ".join(self.inputs)))
        self._choose_profile(feeds)
        for name in self.inputs:
            self._place_input(name, feeds[name])
        unknown = self.context.infer_shapes()
        if unknown:
            raise Failed("run", "shapes of {} are not known".format(", ".join(unknown)), self._lines.kept)
        for name in self.outputs:
            self._place_output(name)

    def _place_input(self, name, given):
        dtype = self._dtype(name)
        array = np.ascontiguousarray(to_bits(given) if dtype == "bfloat16" else narrowed(given, host_type(dtype)))
        if array.dtype != host_type(dtype):
            raise Refused("ShapeRefused", f"input {name} is {array.dtype}, the engine takes {dtype}.", "Give that type.")
        if not self.context.set_input_shape(name, tuple(array.shape)):
            raise Refused(
                "ShapeRefused",
                f"input {name} has the shape {list(array.shape)}, the engine takes {list(self.engine.get_tensor_shape(name))}{self._ranges(name)}.",
                "Correct spec.inputs, or the batch size.",
            )
        if self._on_host(name):
            # its values are a shape: they are read on the host
            self._kept[name] = array if array.size else np.zeros(1, array.dtype)
            self.context.set_tensor_address(name, self._kept[name].ctypes.data)
            return
        buffer = self._buffers[name]
        self.context.set_tensor_address(name, buffer.hold(array.nbytes))
        buffer.view(array.dtype, array.shape)[...] = array
        self._kept[name] = array.nbytes

    def _ranges(self, name):
        if not self.engine.num_optimization_profiles or self._on_host(name):
            return ""
        ranges = [self.engine.get_tensor_profile_shape(name, index) for index in range(self.engine.num_optimization_profiles)]
        return " with " + " or ".join(f"{list(low)} to {list(high)}" for low, _, high in ranges)

    def _place_output(self, name):
        shape = tuple(self.context.get_tensor_shape(name))
        dtype = host_type(self._dtype(name))
        if self._on_host(name):
            self._kept[name] = np.zeros(shape, dtype)
            self.context.set_tensor_address(name, self._kept[name].ctypes.data)
        elif any(size < 0 for size in shape):
            # the shape hangs on the data: TensorRT asks for memory when it knows
            if name not in self._allocators:
                self._allocators[name] = allocator(self._trt, self._buffers[name])
            self.context.set_output_allocator(name, self._allocators[name])
        else:
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            self.context.set_tensor_address(name, self._buffers[name].hold(size))

    def _choose_profile(self, feeds):
        """The first profile that holds all shapes; the one in use, if none does: set_input_shape then says no."""
        if self.engine.num_optimization_profiles < 2:
            return
        for index, ranges in enumerate(self.profiles()):
            fits = all(
                len(low) == feeds[name].ndim and all(a <= size <= b for a, size, b in zip(low, feeds[name].shape, high))
                for name, (low, _, high) in ranges.items()
            )
            if fits:
                if index != self._profile:
                    self.context.set_optimization_profile_async(index, self.stream.value)
                    self._device.wait(self.stream)
                    self._profile = index
                return

    def send(self):
        for name in self.inputs:
            if not self._on_host(name):
                buffer = self._buffers[name]
                self._device.to_device(buffer.address, buffer.host, self._kept[name], self.stream)

    def execute(self):
        """Enqueue. Raises Failed."""
        if not self.context.execute_async_v3(self.stream.value):
            raise Failed("run", "the engine did not run", self._lines.kept)

    def fetch(self):
        """Enqueue copying the outputs back."""
        for name in self.outputs:
            if not self._on_host(name):
                buffer, size = self._buffers[name], 0 if name in self._allocators else self._size(name)
                if name in self._allocators:
                    # of a size that only the run knows
                    self._device.wait(self.stream)
                    size = self._size(name)
                self._device.to_host(buffer.host, buffer.address, size, self.stream)

    def _shape(self, name):
        allocated = self._allocators.get(name)
        return tuple(allocated.shape) if allocated is not None else tuple(self.context.get_tensor_shape(name))

    def _size(self, name):
        return int(np.prod(self._shape(name), dtype=np.int64)) * host_type(self._dtype(name)).itemsize

    def results(self):
        """All outputs, copied out of page-locked memory."""
        found = {}
        for name in self.outputs:
            dtype = self._dtype(name)
            array = self._kept[name] if self._on_host(name) else self._buffers[name].view(host_type(dtype), self._shape(name))
            found[name] = from_bits(array) if dtype == "bfloat16" else np.array(array)
        return found

    def run(self, feeds):
        self.place(feeds)
        self.send()
        self.execute()
        self.fetch()
        self._device.wait(self.stream)
        return self.results()

    # ---- times ----

    def timings(self, feeds, warm_up, iterations, seconds, transfers, cuda_graph):
        """({"seconds", "enqueue"} as float64 arrays, whether a CUDA graph was launched)."""
        self.place(feeds)
        self.send()
        self.execute()
        self._device.wait(self.stream)
        launch = self._captured() if cuda_graph else None
        execute = self.execute if launch is None else launch
        for _ in range(warm_up):
            execute()
        self._device.wait(self.stream)
        first, last = self._device.event(), self._device.event()
        times, enqueues = [], []
        begun = time.perf_counter()
        while (len(times) < iterations or time.perf_counter() - begun < seconds) and len(times) < MAX_RUNS:
            start = time.perf_counter()
            if transfers:
                self.send()
                called = time.perf_counter()
                execute()
                enqueues.append(time.perf_counter() - called)
                self.fetch()
                self._device.wait(self.stream)
                times.append(time.perf_counter() - start)
            else:
                self._device.record(first, self.stream)
                called = time.perf_counter()
                execute()
                enqueues.append(time.perf_counter() - called)
                self._device.record(last, self.stream)
                self._device.wait(self.stream)
                times.append(self._device.between(first, last))
        return {"seconds": np.array(times, np.float64), "enqueue": np.array(enqueues, np.float64)}, launch is not None

    def _captured(self):
        """A function that launches the run as a graph; None when it cannot be captured."""
        if self._allocators:
            return None
        self._device.begin_capture(self.stream)
        try:
            ran = self.context.execute_async_v3(self.stream.value)
        finally:
            graph = self._device.end_capture(self.stream)
        if not ran or graph is None:
            return None
        launchable = self._device.instantiate(graph)
        return lambda: self._device.launch(launchable, self.stream)

    # ---- layers ----

    def inspect(self):
        """The engine inspector's report: {"Layers": [...], "Bindings": [...]}; layers are names alone unless it was built with details."""
        inspector = self.engine.create_engine_inspector()
        inspector.execution_context = self.context
        try:
            return json.loads(inspector.get_engine_information(self._trt.LayerInformationFormat.JSON))
        except ValueError as error:
            raise Failed("inspect", f"the inspector's report is no JSON: {error}", self._lines.kept)

    def profile(self, feeds, runs):
        """{layer name: [seconds of each run]}, after a first run that does not count."""
        times = {}

        class Profiler(self._trt.IProfiler):
            def __init__(self, trt):
                trt.IProfiler.__init__(self)

            def report_layer_time(self, layer_name, ms):
                times.setdefault(layer_name, []).append(ms / 1e3)

        profiler = Profiler(self._trt)
        self.place(feeds)
        self.send()
        self.context.profiler = profiler
        for _ in range(runs + 1):
            self.execute()
            self._device.wait(self.stream)
        return {name: list(seconds)[1:] for name, seconds in times.items()}


def allocator(trt, buffer):
    """An IOutputAllocator for one output whose shape hangs on the data."""

    class Allocator(trt.IOutputAllocator):
        def __init__(self):
            trt.IOutputAllocator.__init__(self)
            self.shape = ()

        def reallocate_output(self, tensor_name, memory, size, alignment):
            return buffer.hold(size)

        def reallocate_output_async(self, tensor_name, memory, size, alignment, stream):
            return buffer.hold(size)

        def notify_shape(self, tensor_name, shape):
            self.shape = tuple(shape)

    return Allocator()
