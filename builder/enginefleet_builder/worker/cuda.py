"""CUDA memory, streams, events and graphs by the driver API, in the device's primary context, which TensorRT uses too. Python 3.8."""

import ctypes

import gpus

RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: TensorRT's own worker threads may call the driver meanwhile."""


class Device(gpus.Driver):
    """One device with its primary context current in this thread. Raises gpus.CudaError."""

    def __init__(self, ordinal=0, library=gpus.LIBRARY):
        gpus.Driver.__init__(self, library)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.integrated = bool(self.number("cuDeviceGetAttribute", ctypes.c_int(gpus.ATTRIBUTES["integrated"]), device))

    def free_memory(self):
        """(free, total) bytes of device memory."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size):
        """Address of `size` bytes on the device."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def release(self, address):
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def pinned(self, size):
        """Address of `size` bytes of page-locked host memory."""
        address = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(max(size, 1)), ctypes.c_uint(0))
        return address.value

    def release_pinned(self, address):
        self.call("cuMemFreeHost", ctypes.c_void_p(address))

    def to_device(self, address, host, size, stream):
        if size:
            self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), ctypes.c_void_p(host), ctypes.c_size_t(size), stream)

    def to_host(self, host, address, size, stream):
        if size:
            self.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(host), ctypes.c_uint64(address), ctypes.c_size_t(size), stream)

    def stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))  # non-blocking: apart from the default stream
        return stream

    def wait(self, stream):
        self.call("cuStreamSynchronize", stream)

    def event(self):
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        return event

    def record(self, event, stream):
        self.call("cuEventRecord", event, stream)

    def between(self, start, end):
        """Seconds of device time from one event to the other."""
        elapsed = ctypes.c_float()
        try:
            self.call("cuEventElapsedTime_v2", ctypes.byref(elapsed), start, end)
        except gpus.CudaError:
            self.call("cuEventElapsedTime", ctypes.byref(elapsed), start, end)
        return elapsed.value / 1e3

    def begin_capture(self, stream):
        self.call("cuStreamBeginCapture_v2", stream, ctypes.c_int(RELAXED))

    def end_capture(self, stream):
        """A graph; None when what ran cannot be captured."""
        graph = ctypes.c_void_p()
        try:
            self.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        except gpus.CudaError:
            return None
        return graph if graph.value else None

    def instantiate(self, graph):
        launchable = ctypes.c_void_p()
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(launchable), graph, ctypes.c_ulonglong(0))
        return launchable

    def launch(self, launchable, stream):
        self.call("cuGraphLaunch", launchable, stream)
