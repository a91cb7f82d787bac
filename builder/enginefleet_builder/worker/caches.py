"""Two timing caches become one. Python 3.8."""

from building import started


def merge(trt, ours, theirs, target, lines):
    """Whether the files `ours` and `theirs` went together into the file `target`; only caches of one release and device do."""
    builder, _ = started(trt, lines)
    config = builder.create_builder_config()
    first, second = (config.create_timing_cache(read(path)) for path in (ours, theirs))
    # never ignore a mismatch: other devices' timings give wrong or slow engines
    if first is None or second is None or not first.combine(second, False):
        return False
    with open(target, "wb") as file:
        file.write(memoryview(first.serialize()))
    return True


def read(path):
    with open(path, "rb") as file:
        return file.read()
