"""Parses an ONNX file and builds one engine of it, once in a process: a lost CUDA context spoils every later build. Python 3.8."""

import ctypes
import gc
import os
import struct
import time

import recipe as recipes
from failed import Failed, Refused
from logs import logger

STARTING = ("factory function returned nullptr", "pybind11::init")


class Monitored:
    """What the progress monitor and the log tell, as a share of the whole: phases lie in one another, each has its steps."""

    def __init__(self, say):
        self._say, self._phases, self._last = say, {}, 0.0

    def start(self, name, parent, steps):
        self._phases[name] = [parent, max(1, steps), 0]
        self._tell(name)

    def step(self, name, step):
        if name in self._phases:
            self._phases[name][2] = step + 1
            self._tell(name)

    def finish(self, name):
        self._phases.pop(name, None)

    def _within(self, name):
        """Share of the phase `name` that is done, with what its inner phase has done of the step at work."""
        _, steps, done = self._phases[name]
        inner = max((self._within(other) for other, phase in self._phases.items() if phase[0] == name), default=0.0)
        return min(1.0, (done + inner) / steps)

    def _tell(self, name):
        roots = [root for root, phase in self._phases.items() if phase[0] not in self._phases]
        # phases of later steps turn out longer than they were announced: never backwards
        self._last = max([self._last] + [self._within(root) for root in roots])
        self._say(self._last, name)


def monitor(trt, monitored):
    class Monitor(trt.IProgressMonitor):
        def __init__(self):
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name, parent_phase, num_steps):
            monitored.start(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name, step):
            monitored.step(phase_name, step)
            return True

        def phase_finish(self, phase_name):
            monitored.finish(phase_name)

    return Monitor()


def started(trt, lines):
    """A builder. Raises Failed when the library cannot start, which it says by an unreadable TypeError."""
    log = logger(trt, lines)
    try:
        return trt.Builder(log), log
    except TypeError as error:
        raise Failed("start", str(error), lines.errors() or ["[E] " + str(error)])


def load_plugins(trt, log, paths):
    """Make the operators of the plugin libraries known. Raises Refused `PluginMissing`."""
    if hasattr(trt, "init_libnvinfer_plugins"):
        trt.init_libnvinfer_plugins(log, "")
    for path in paths:
        load_plugin(path)


def load_plugin(path):
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise Refused("PluginMissing", f"the plugin library {path} cannot be loaded: {error}.", "Correct spec.build.plugins.", True)


def build(trt, request, lines, say):
    """Build request["model"] into the file request["engine"]; what is answered, see main.py. `say(stage, share, text)`.

    Raises Refused and Failed.
    """
    begun = time.monotonic()
    settings = request["recipe"]
    library = request["library"]
    made = recipes.plan(recipes.surface(trt), request)
    builder, log = started(trt, lines)
    load_plugins(trt, log, settings.get("plugins") or ())
    if settings.get("dla"):
        require_dla(settings["dla"].get("core", 0), builder.num_DLA_cores, library)
    began = time.monotonic()
    say("parse", None, os.path.basename(request["model"]))
    network = builder.create_network(mask(trt.NetworkDefinitionCreationFlag, made.network))
    parse(trt, network, log, request["model"], lines)
    parsed = time.monotonic()
    config = configured(trt, builder, made, request)
    calibrator = None
    if made.implicit:
        calibrator = scales_beside(trt, request["scales"], request["version"])  # the config holds no reference
        config.int8_calibrator = calibrator
    on_dla = sum(config.can_run_on_DLA(network.get_layer(index)) for index in range(network.num_layers)) if settings.get("dla") else 0
    profiles(builder, network, config, settings.get("profiles") or ())
    shapes = shape_tensors(network)
    cache, warmed = use_cache(config, request.get("timing_cache"), lines)
    monitored = Monitored(lambda share, text: say("build", share, text))
    say("build", None, "")
    if made.monitored:
        watching = monitor(trt, monitored)  # the config holds no reference
        config.progress_monitor = watching
    else:
        seen = set()
        lines.on_timed = lambda text: (seen.add(text), say("build", None, text, len(seen)))
    plan = builder.build_serialized_network(network, config)
    lines.on_timed = None
    if plan is None:
        raise Failed("build", "no engine", lines.kept)
    built = time.monotonic()
    say("write", None, "")
    write(request["engine"], plan)
    kept = keep_cache(config, request.get("timing_cache_out"), lines)
    answer = {"plan": made.told(), "layers": network.num_layers, "timing_cache": {"used": warmed, "kept": kept}}
    answer["on_dla"] = on_dla
    answer["shape_tensors"] = shapes
    answer["placed"] = lines.placed
    answer["size"] = os.path.getsize(request["engine"])
    answer["skipped_for_memory"] = lines.skipped
    answer["warnings"] = [line for line in lines.kept if line.startswith("[W]")][:50]
    answer["seconds"] = {"start": began - begun, "parse": parsed - began, "build": built - parsed, "write": time.monotonic() - built}
    # the config before its cache and monitor, the builder last
    del plan, config, cache, calibrator, network, builder
    gc.collect()
    return answer


def require_dla(core, cores, library):
    if not cores:
        raise Refused("NoDLA", f"{library} finds no DLA here.", "Leave spec.build.dla out, or use a board and release that have it.", True)
    if core >= cores:
        raise Refused("NoDLA", f"DLA core {core} was asked for, {library} finds {cores} here.", f"Write 0 to {cores - 1}.")


def mask(enum, names):
    """Bits of the members `names`; which number a name has is the loaded release's."""
    bits = 0
    for name in names:
        bits |= 1 << int(getattr(enum, name))
    return bits


def parse(trt, network, log, path, lines):
    """Raises Failed with the parser's own errors, the first first."""
    parser = trt.OnnxParser(network, log)
    # by path: external data lies beside the file
    if parser.parse_from_file(path):
        return
    said = []
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        name = error.node_name() if hasattr(error, "node_name") else ""
        said.append("[E] {}{}".format(f"node {name}: " if name else "", " ".join(error.desc().split())))
    raise Failed("parse", said[0] if said else "the parser refused the file", said + lines.kept)


def configured(trt, builder, made, request):
    """An IBuilderConfig as planned."""
    config = builder.create_builder_config()
    for name in made.set:
        config.set_flag(getattr(trt.BuilderFlag, name))
    for name in made.clear:
        config.clear_flag(getattr(trt.BuilderFlag, name))
    for name, value in made.settings:
        setattr(config, name, valued(trt, value))
    if made.tactics:
        config.set_tactic_sources(mask(trt.TacticSource, made.tactics))
    if request.get("workspace"):
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request["workspace"])
    if made.capability:
        config.num_compute_capabilities = 1
        if not config.set_compute_capability(getattr(trt.ComputeCapability, made.capability), 0):
            raise Failed("build", f"compute capability {made.capability} was not accepted", [])
    return config


def scales_beside(trt, scales, version):
    """A calibrator that has found its scales already: it gives them as TensorRT's calibration cache, and no data."""
    cache = calibration_cache(scales, version)

    class Calibrator(trt.IInt8EntropyCalibrator2):
        def __init__(self):
            trt.IInt8EntropyCalibrator2.__init__(self)

        def get_batch_size(self):
            return 1

        def get_batch(self, names):
            return None

        def read_calibration_cache(self):
            return cache

        def write_calibration_cache(self, cache):
            return None

    return Calibrator()


def calibration_cache(scales, version):
    """The text of a calibration cache: a header with the release as one number, then `tensor: the scale's four bytes in hex`, big endian."""
    major, minor, patch = (int(part) for part in version.split(".")[:3])
    # the parts' weights grew with 10.0 (NvInferVersion.h)
    number = major * 10000 + minor * 100 + patch if major >= 10 else major * 1000 + minor * 100 + patch
    lines = [f"TRT-{number}-EntropyCalibration2"] + [f"{name}: {struct.pack('>f', scale).hex()}" for name, scale in sorted(scales.items())]
    return ("\n".join(lines) + "\n").encode()


def valued(trt, value):
    """A number, or the enum's member that a text like `ProfilingVerbosity.DETAILED` names."""
    if not isinstance(value, str):
        return value
    kind, _, member = value.partition(".")
    return getattr(getattr(trt, kind), member)


def shape_tensors(network):
    """Names of inputs and outputs whose values are a shape: they lie on the host, and servers must be told."""
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    tensors += [network.get_output(index) for index in range(network.num_outputs)]
    return [tensor.name for tensor in tensors if tensor.is_shape_tensor]


def profiles(builder, network, config, wanted):
    """One optimization profile for each that the inputs name. Raises Refused `MissingProfile`, `ShapeRefused`."""
    given = {item["name"]: item["profiles"] for item in wanted}
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    open_inputs = [tensor for tensor in inputs if tensor.is_shape_tensor or any(size < 0 for size in tuple(tensor.shape))]
    missing = [tensor.name for tensor in open_inputs if tensor.name not in given]
    if missing:
        message = "the inputs {} have dynamic dimensions and no profile.".format(", ".join(missing))
        raise Refused("MissingProfile", message, "Give their shapes in spec.inputs.")
    for tensor in inputs:
        if tensor not in open_inputs and tensor.name in given:
            require_static(tensor, given[tensor.name])
    if not open_inputs:
        return
    for index in range(max(len(given[tensor.name]) for tensor in open_inputs)):
        profile = builder.create_optimization_profile()
        for tensor in open_inputs:
            ranges = given[tensor.name][min(index, len(given[tensor.name]) - 1)]
            three = [tuple(int(size) for size in ranges[name]) for name in ("min", "opt", "max")]
            if tensor.is_shape_tensor:
                # an input that holds a shape: the numbers are its values
                profile.set_shape_input(tensor.name, *[list(values) for values in three])
            else:
                require_rank(tensor, three)
                profile.set_shape(tensor.name, *three)
        if config.add_optimization_profile(profile) < 0:
            raise Failed(
                "build",
                f"profile {index} was not accepted",
                [f"[E] profile {index} was not accepted: min, opt, max are inconsistent"],
            )


def require_static(tensor, ranges):
    for item in ranges:
        for name in ("min", "opt", "max"):
            if tuple(item[name]) != tuple(tensor.shape):
                message = f"input {tensor.name} has the fixed shape {list(tensor.shape)}, spec.inputs gives {list(item[name])}."
                raise Refused("ShapeRefused", message, "Leave it out of spec.inputs, or export the model with dynamic dimensions.")


def require_rank(tensor, three):
    fixed = tuple(tensor.shape)
    for shape in three:
        if len(shape) != len(fixed) or any(want >= 0 and want != got for want, got in zip(fixed, shape)):
            message = f"input {tensor.name} has the shape {list(fixed)}, where -1 is dynamic; spec.inputs gives {list(shape)}."
            raise Refused("ShapeRefused", message, "Correct spec.inputs.")


def use_cache(config, path, lines):
    """(the timing cache in use, whether it is the one in the file). One that is damaged or of another device is left aside with a warning.

    The caller keeps it until the build is over: the config does not.
    """
    data = b""
    if path and os.path.exists(path):
        with open(path, "rb") as file:
            data = file.read()
    lines.mild = True
    for content in (data, b"") if data else (b"",):
        try:
            cache = config.create_timing_cache(content)
            # never ignore a mismatch: other devices' timings give wrong or slow engines
            if cache is not None and config.set_timing_cache(cache, False):
                lines.mild = False
                return cache, bool(content)
        except (RuntimeError, TypeError) as error:
            lines.take("W", f"timing cache: {error}")
        if content:
            lines.take("W", "the timing cache does not match this device or release and is not used")
    lines.mild = False
    return None, False


def keep_cache(config, path, lines):
    """Bytes of the timing cache that were written to `path`; 0 when there is none."""
    if not path:
        return 0
    cache = config.get_timing_cache()
    data = cache.serialize() if cache is not None else None
    if data is None:
        lines.take("W", "the timing cache cannot be serialized")
        return 0
    write(path, data)
    return os.path.getsize(path)


def write(path, data):
    with open(path, "wb") as file:
        file.write(memoryview(data))
