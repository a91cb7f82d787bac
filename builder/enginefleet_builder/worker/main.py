"""The worker: runs under the interpreter that owns TensorRT, and answers one driver until its standard input ends.

    python3 -s -B main.py < frames > frames          (see wire.py)

describe {module, precision, recipe}; build {module, title, model, engine, precision, facts of the model, scales, recipe, workspace,
timing_cache, timing_cache_out};
merge {module, ours, theirs, target: timing caches}; load {module, engine, recipe}; run; timings {warm_up, iterations, seconds, transfers,
cuda_graph}; inspect; profile {runs}.
While it works: {"about": the loaded library}, {"log": line}, {"progress": {"stage", "share", "done", "text"}}. An answer is anything else;
{"error": ...} or {"refused": ...} when it went wrong. Python 3.8, standard library and NumPy; everything that it imports of ours lies beside it.
"""

import ctypes
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import building
import caches
import cuda
import gpus
import libraries
import recipe as recipes
import running
from failed import Failed, Refused
from logs import Lines
from wire import End

SHOWN_EVERY = 0.2
"""Seconds between two progress frames of one stage."""
PR_SET_PDEATHSIG = 1
AUTO_SHARE = 0.75
"""Of the memory that is free, on a board whose GPU shares it with the system: the rest is for weights, activations and the system."""


class Server:
    def __init__(self, end):
        self._end = end
        self._lines = Lines(end.send)
        self._trt = self._device = self._engine = self._told = None
        self._stage, self._shown = "", 0.0

    def answer(self, header, arrays):
        """(reply, arrays). Raises Failed, Refused."""
        doing = getattr(self, "_" + str(header["do"]), None)
        if doing is None:
            raise ValueError("unknown request {!r}".format(header["do"]))
        self._lines.forget()
        return doing(header, arrays)

    def _say(self, stage, share, text, done=None):
        now = time.monotonic()
        if stage == self._stage and now - self._shown < SHOWN_EVERY:
            return
        self._stage, self._shown = stage, now
        self._end.send({"progress": {"stage": stage, "share": share, "text": text, "done": done}})

    def _module(self, name):
        if self._trt is None:
            try:
                self._trt = libraries.load(name)
            except (ImportError, OSError) as error:
                raise Refused("RuntimeMissing", f"{name} cannot be loaded: {error}.", "Name an image that has it in runtime.image.", True)
        return self._trt

    def _about(self, header):
        """What the loaded library is: see libraries.observe. The driver hears of it before anything can fail."""
        if self._told is None:
            found = libraries.observe(header["module"])
            if "error" in found:
                raise Refused("RuntimeMissing", f"{found['error']}.", "Name an image that has it in runtime.image.", True)
            self._told = dict(found, python=sys.version.split()[0])
            self._end.send({"about": self._told})
        return self._told

    def _gpu(self):
        """The device, checked before the library is loaded: it crashes where there is none."""
        if self._device is None:
            try:
                self._device = cuda.Device()
            except gpus.CudaError as error:
                hint = "Check the node's driver, spec.runtime.runtimeClassName and spec.runtime.resources of the HardwareClass."
                raise Refused("NoGPU", f"there is no GPU that this process may use: {error}.", hint, True)
        return self._device

    def _describe(self, header, arrays):
        names = recipes.surface(self._module(header["module"]))
        self._about(header)
        # what the driver does to a model before it gives it
        return {"wants_scales": recipes.wants_scales(names, header.get("precision"), header.get("recipe") or {})}, {}

    def _build(self, header, arrays):
        if not header["recipe"].get("computeCapability"):
            device = self._gpu()
            if not header.get("workspace"):
                free, _ = device.free_memory()
                header = dict(header, workspace=int(free * AUTO_SHARE) if device.integrated else free)
        trt = self._module(header["module"])
        version = self._about(header)["version"] or ""
        header = dict(header, version=version, library=" ".join([header["title"], version or "of unknown version"]))
        return building.build(trt, header, self._lines, self._say), {}

    def _merge(self, header, arrays):
        self._gpu()
        trt = self._module(header["module"])
        return {"merged": caches.merge(trt, header["ours"], header["theirs"], header["target"], self._lines)}, {}

    def _load(self, header, arrays):
        device = self._gpu()
        recipe = header.get("recipe") or {}
        trt = self._module(header["module"])
        self._about(header)
        engine = running.Engine(trt, device, header["engine"], recipe.get("plugins") or (), self._lines, dla=recipe.get("dla"))
        self._engine = engine
        told = {"inputs": engine.described(engine.inputs), "outputs": engine.described(engine.outputs), "profiles": engine.profiles()}
        return dict(told, device_memory=engine.device_memory), {}

    def _loaded(self):
        if self._engine is None:
            raise ValueError("no engine is loaded")
        return self._engine

    def _run(self, header, arrays):
        return {}, self._loaded().run(arrays)

    def _timings(self, header, arrays):
        wanted = [header[name] for name in ("warm_up", "iterations", "seconds", "transfers", "cuda_graph")]
        times, graph = self._loaded().timings(arrays, *wanted)
        return {"cuda_graph": graph}, times

    def _inspect(self, header, arrays):
        return {"report": self._loaded().inspect()}, {}

    def _profile(self, header, arrays):
        engine = self._loaded()
        return {"times": engine.profile(arrays, header["runs"]), "report": engine.inspect()}, {}


def serve(end):
    server = Server(end)
    while True:
        try:
            header, arrays = end.receive()
        except EOFError:
            return
        try:
            reply, results = server.answer(header, arrays)
        except Refused as error:
            told = {"reason": error.reason, "message": error.message, "hint": error.hint, "environment": error.environment}
            reply, results = {"refused": told}, {}
        except Failed as error:
            reply, results = {"error": {"doing": error.doing, "text": error.text, "lines": error.lines}}, {}
        except Exception as error:  # noqa: BLE001  # whatever it is, the driver must hear of it
            text = f"{type(error).__name__}: {error}"
            doing = {"describe": "start"}.get(header.get("do"), header.get("do"))
            reply, results = {"error": {"doing": doing, "text": text, "lines": [*server._lines.errors(), "[E] " + text]}}, {}
        end.send(reply, results)


def die_with_parent():
    """A driver that is killed takes its worker along: nobody else would end a build of an hour."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    die_with_parent()
    # kernels are loaded when they are used: less memory. CUDA before 12.2 asks for it by name
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    serve(End())
    # the library's own tidying up at the end takes seconds, and crashes where an engine outlives its runtime
    os._exit(0)
