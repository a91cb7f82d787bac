"""Which flags and settings a request becomes in the TensorRT that is loaded: pure, and by name, since numbers were given anew at 10.0 and 11.0.

A surface is what the loaded module has: {class name: names of its public members}. Python 3.8, standard library.
"""

from failed import Refused

ON_DLA = ("fp16", "int8")
CLASSES = (
    "Builder",
    "BuilderFlag",
    "ComputeCapability",
    "ExecutionContext",
    "IBuilderConfig",
    "ICudaEngine",
    "IExecutionContext",
    "IInt8EntropyCalibrator2",
    "INetworkDefinition",
    "MemoryPoolType",
    "NetworkDefinitionCreationFlag",
    "OnnxParser",
    "ProfilingVerbosity",
    "Runtime",
    "TacticSource",
    "IProgressMonitor",
)


def surface(module):
    """The surface of a loaded module."""
    return {
        name: {member for member in dir(getattr(module, name)) if not member.startswith("_")} for name in CLASSES if hasattr(module, name)
    }


def has(names, dotted):
    """Whether the surface has `Class` or `Class.member`."""
    kind, _, member = dotted.partition(".")
    return kind in names and (not member or member in names[kind])


class Plan:
    """What to do, by name.

    network: flags of the network's creation. set, clear: builder flags. settings: (attribute of IBuilderConfig, value) in order; values that
    start with an enum's name are members of it, like ProfilingVerbosity.DETAILED. notes: what of the request has no effect in this release.
    typed: "strong" when types come from the file alone, "weak" when flags allow them. implicit: int8 by scales beside the network.
    """

    def __init__(self, typed):
        self.typed, self.network, self.set, self.clear, self.settings, self.notes = typed, [], [], [], [], []
        self.tactics, self.capability, self.monitored, self.implicit = [], None, False, False

    def told(self):
        """As JSON, for records and tables."""
        return dict(self.__dict__)


def plan(names, request):
    """The plan for a request. Raises Refused with words for people.

    `names`: the surface. `request`: {library: "TensorRT 8.6.0", precision: fp32 | tf32 | fp16 | bf16 | int8 | fp8,
    facts: {quantized, float8, types: element types of its tensors}, recipe: settings of spec.build and computeCapability,
    scales: of tensors, where the file had Q/DQ nodes and a DLA takes none}.
    """
    library, precision, recipe = request["library"], request["precision"], request["recipe"]
    require_known_generation(names, library)
    if recipe.get("dla") and precision not in ON_DLA:
        message = f"precision {precision} was asked for, and a DLA computes in {' and '.join(ON_DLA)} only."
        raise Refused("DlaPrecision", message, "Use one of them, or leave spec.build.dla out.")
    made = Plan("strong" if _strong(names, request) else "weak")
    made.implicit = wants_scales(names, precision, recipe)
    if made.typed == "weak" and not recipe.get("dla") and has(names, "NetworkDefinitionCreationFlag.STRONGLY_TYPED"):
        made.notes.append(f"weakly typed, since the file does not hold the types of precision {precision}")
    if made.typed == "strong" and has(names, "BuilderFlag.FP16"):
        made.network.append("STRONGLY_TYPED")
    if not has(names, "NetworkDefinitionCreationFlag.STRONGLY_TYPED") and has(names, "NetworkDefinitionCreationFlag.EXPLICIT_BATCH"):
        made.network.append("EXPLICIT_BATCH")
    _types(names, request, made)
    _settings(names, recipe, library, made)
    return made


def wants_scales(names, precision, recipe):
    """Whether int8 is to be given as scales beside a network without Q/DQ: for a DLA, as long as the release has calibrators."""
    return bool(recipe.get("dla")) and precision == "int8" and has(names, "IInt8EntropyCalibrator2")


def require_known_generation(names, library):
    """Raises Refused `TensorRTTooOld` before 8.5."""
    for wanted in ("IExecutionContext.execute_async_v3", "ICudaEngine.get_tensor_name", "IBuilderConfig.set_memory_pool_limit"):
        if not has(names, wanted):
            message = f"{library} has no {wanted}: this builder needs TensorRT 8.5 or newer."
            raise Refused(
                "TensorRTTooOld", message, "JetPack 4 ends at TensorRT 8.2; use a board and an image with JetPack 5.1 or newer.", True
            )


def _strong(names, request):
    """Whether the network is strongly typed: always where no flags are left; else where the release can and the file holds the types."""
    if not has(names, "BuilderFlag.FP16"):
        return True
    if not has(names, "NetworkDefinitionCreationFlag.STRONGLY_TYPED") or request["recipe"].get("dla"):
        return False
    return _in_file(request["precision"], request["facts"])


def _in_file(precision, model):
    """Whether the file itself says that it computes in `precision`."""
    types = model["types"]
    low = {"fp16": "float16" in types, "bf16": "bfloat16" in types, "int8": model["quantized"], "fp8": model["float8"]}
    return low.get(precision, True)


def _types(names, request, made):
    library, precision, model = request["library"], request["precision"], request["facts"]
    if precision in ("int8", "fp8") and not _in_file(precision, model) and not (made.implicit and request.get("scales")):
        message = f"precision {precision} was asked for, and the model has no Q/DQ nodes of that type."
        raise Refused("NotQuantized", message, "Prepare it with a calibration set.")
    if made.typed == "strong":
        if not _in_file(precision, model):
            message = f"{library} takes types from the model alone, and this one has no tensor of precision {precision}."
            raise Refused("TypesMissing", message, "Prepare the model for flavour tensorrt-10, which casts it.")
    else:
        _flags(names, request, made)
    # half of the bits of FP32's fraction are lost in TF32, none that FP16 has: what computes lower anyway may use it
    (made.clear if precision == "fp32" else made.set).append("TF32")


def _flags(names, request, made):
    """Builder flags of a weakly typed network: what may be used. INT8 exactly when the file has Q/DQ, or parsing and building fail."""
    library, precision, model = request["library"], request["precision"], request["facts"]
    wanted = []
    if precision in ("fp16", "int8", "fp8") or "float16" in model["types"]:
        wanted.append("FP16")
    if precision == "bf16" or "bfloat16" in model["types"]:
        wanted.append("BF16")
    if model["quantized"] or made.implicit:
        wanted.append("INT8")
    if model["float8"]:
        wanted.append("FP8")
    for flag in wanted:
        if not has(names, "BuilderFlag." + flag):
            hint = "Use another precision, or an image with a newer TensorRT."
            raise Refused("PrecisionUnsupported", f"{library} has no builder flag {flag}.", hint)
    made.set += wanted


def _settings(names, recipe, library, made):
    level = recipe.get("optimizationLevel", 3)
    if has(names, "IBuilderConfig.builder_optimization_level"):
        made.settings.append(("builder_optimization_level", level))
    elif level != 3:
        made.notes.append(f"{library} has no optimization levels: {level} has no effect")
    made.settings.append(("profiling_verbosity", "ProfilingVerbosity.DETAILED"))
    for source in recipe.get("tacticSources") or ():
        if not has(names, "TacticSource." + source):
            known = ", ".join(sorted(names.get("TacticSource", ())))
            raise Refused("UnknownTacticSource", f"{library} has no tactic source {source}.", f"It has {known}.")
        made.tactics.append(source)
    dla = recipe.get("dla")
    if dla:
        made.settings += [("default_device_type", "DeviceType.DLA"), ("DLA_core", dla.get("core", 0))]
        if dla.get("allowGpuFallback", True):
            made.set.append("GPU_FALLBACK")
    capability = recipe.get("computeCapability")
    if capability:
        member = "SM" + capability.replace(".", "")
        if not has(names, "IBuilderConfig.set_compute_capability"):
            raise Refused(
                "NoCrossBuild",
                f"{library} builds for the GPU that is there only.",
                "Leave builds.computeCapability of the HardwareClass out.",
            )
        if not has(names, "ComputeCapability." + member):
            known = ", ".join(sorted(name for name in names["ComputeCapability"] if name.startswith("SM")))
            raise Refused("UnknownComputeCapability", f"{library} cannot build for {capability}.", f"It can build for {known}.")
        made.capability = member
    made.monitored = has(names, "IBuilderConfig.progress_monitor") and has(names, "IProgressMonitor")
