"""The library's logger: lines go to the driver as they come, and the ones that tell a cause are kept. Python 3.8, standard library."""

import re
import threading

LEVELS = {"INTERNAL_ERROR": "E", "ERROR": "E", "WARNING": "W", "INFO": "I", "VERBOSE": "V"}
LINE = 2000
MOST = 2000
"""Lines that are sent; a build of a large network logs more, and says nothing new."""
SKIPPED = re.compile(
    r"[Ii]nsufficient memory|[Mm]emory is insufficient|[Ss]kipping tactic .*(memory|OutOfMemory)|out of memory", re.IGNORECASE
)
PLACED = re.compile(r"\s*\[(Dla|Gpu)Layer\] ")
"""One line each for what a build with a DLA puts there, and what on the GPU; verbose in some releases."""
TIMED = re.compile(r"Timing Runner: (.+?) \(|[Cc]omputing costs for (.+)")


class Lines:
    """Keeps the first errors and warnings; counts tactics that were skipped for lack of memory, and what was placed where. Safe to use from threads."""

    def __init__(self, send):
        self._send, self._lock = send, threading.Lock()
        self.kept, self.skipped, self._sent = [], 0, 0
        self.placed = {"Dla": 0, "Gpu": 0}
        self.on_timed = None
        self.mild = False
        """While it is set errors count as warnings: what fails does no harm, and must not be taken for the cause of a later failure."""

    def take(self, level, text):
        """`level`: one of E, W, I, V. Verbose lines are looked at and not kept."""
        if level == "E" and self.mild:
            level = "W"
        with self._lock:
            placed = PLACED.match(text)
            if placed:
                self.placed[placed.group(1)] += 1
            if SKIPPED.search(text):
                self.skipped += 1
            elif level == "V":
                found = TIMED.search(text) if self.on_timed else None
                if found:
                    self.on_timed((found.group(1) or found.group(2))[:200])
                return
            line = "[{}] {}".format(level, " ".join(text.split())[:LINE])
            if self._sent >= MOST and level != "E":
                return
            self._sent += 1
            if len(self.kept) < MOST and level in "EW":
                self.kept.append(line)
        self._send({"log": line})

    def errors(self):
        return [line for line in self.kept if line.startswith("[E]")]

    def forget(self):
        """Begin a new request."""
        self.kept, self.skipped = [], 0
        self.placed = {"Dla": 0, "Gpu": 0}


def logger(trt, lines):
    """An ILogger of the module `trt` that gives its lines to `lines`."""

    class Logger(trt.ILogger):
        def __init__(self):
            trt.ILogger.__init__(self)

        def log(self, severity, msg):
            lines.take(LEVELS.get(getattr(severity, "name", ""), "I"), msg)

    return Logger()
