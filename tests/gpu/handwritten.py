"""What an engineer would write by hand: build one engine with TensorRT's Python API, and time it. The yardstick of tests/gpu/run.

    python handwritten.py build MODEL ENGINE fp32|fp16|int8 BATCH LEVEL CACHE    python handwritten.py time ENGINE BATCH RUNS [quiet]

Prints one JSON line. Needs TensorRT, NumPy and the CUDA runtime ($CUDART or libcudart.so); nothing of EngineFleet.
"""

import ctypes
import json
import os
import sys
import time

import numpy as np
import tensorrt as trt

LOGGER = trt.Logger(trt.Logger.ERROR)
SMALL = 1 << int(trt.TacticSource.EDGE_MASK_CONVOLUTIONS) | 1 << int(trt.TacticSource.JIT_CONVOLUTIONS)


def build(model, engine, precision, batch, level, cache):
    builder = trt.Builder(LOGGER)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))
    parser = trt.OnnxParser(network, LOGGER)
    if not parser.parse_from_file(model):
        raise SystemExit(str(parser.get_error(0)))
    config = builder.create_builder_config()
    config.builder_optimization_level = level
    config.clear_flag(trt.BuilderFlag.TF32)
    if "CUDART" in os.environ:  # a laboratory without cuBLAS and cuDNN
        config.set_tactic_sources(SMALL)
    if precision in ("fp16", "int8"):
        config.set_flag(trt.BuilderFlag.FP16)
    if precision == "int8":
        config.set_flag(trt.BuilderFlag.INT8)
    profile = builder.create_optimization_profile()
    for i in range(network.num_inputs):
        shape = [batch if size < 0 else size for size in network.get_input(i).shape]
        profile.set_shape(network.get_input(i).name, [1] + shape[1:] if network.get_input(i).shape[0] < 0 else shape, shape, shape)
    config.add_optimization_profile(profile)
    data = open(cache, "rb").read() if os.path.exists(cache) else b""
    config.set_timing_cache(config.create_timing_cache(data), False)
    began = time.perf_counter()
    plan = builder.build_serialized_network(network, config)
    seconds = time.perf_counter() - began
    with open(engine, "wb") as file:
        file.write(plan)
    return {"seconds": seconds, "bytes": os.path.getsize(engine)}


def timed(engine, batch, runs, quiet=False):
    cuda = ctypes.CDLL(os.environ.get("CUDART", "libcudart.so"))
    loaded = trt.Runtime(LOGGER).deserialize_cuda_engine(open(engine, "rb").read())
    context = loaded.create_execution_context()
    if quiet:  # layers are not named for a profiler
        context.nvtx_verbosity = trt.ProfilingVerbosity.NONE
    stream = ctypes.c_void_p()
    assert cuda.cudaStreamCreate(ctypes.byref(stream)) == 0
    names = [loaded.get_tensor_name(i) for i in range(loaded.num_io_tensors)]
    for name in names:
        if loaded.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
            context.set_input_shape(name, [batch if size < 0 else size for size in loaded.get_tensor_shape(name)])
    for name in names:
        shape, pointer = tuple(context.get_tensor_shape(name)), ctypes.c_void_p()
        values = np.random.default_rng(0).random(shape).astype(trt.nptype(loaded.get_tensor_dtype(name)))
        assert cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(values.nbytes)) == 0
        assert cuda.cudaMemcpy(pointer, values.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(values.nbytes), 1) == 0
        context.set_tensor_address(name, pointer.value)
    seconds = []
    for _ in range(runs + 50):
        began = time.perf_counter()
        context.execute_async_v3(stream.value)
        cuda.cudaStreamSynchronize(stream)
        seconds.append(time.perf_counter() - began)
    return {"p50_ms": 1e3 * float(np.median(seconds[50:])), "mean_ms": 1e3 * float(np.mean(seconds[50:]))}


if __name__ == "__main__":
    args = sys.argv[2:]
    print(
        json.dumps(
            build(*args[:3], int(args[3]), int(args[4]), args[5])
            if sys.argv[1] == "build"
            else timed(args[0], int(args[1]), int(args[2]), "quiet" in args)
        )
    )
