"""Which figures say little about the engine: what was read of machine and process around them, and what is made of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginefleet_builder.build.watch import Watch, watch_for
from enginefleet_builder.gate.conditions import Reading, kinds, marks


def reading(at: float = 0.0, **given: Any) -> Reading:
    known = {name: given.pop(name) for name in ("ran", "waited", "limited") if name in given}
    return Reading(at, **known, context=given)


QUIET = {"throttled": "no", "gpuProcesses": "0", "smClock": "1980 MHz", "gpuLoad": "0 %"}

TABLE: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], int, list[str]]] = [
    ("nothing is known", {}, {}, {}, 1, []),
    ("all is quiet", QUIET, QUIET | {"gpuProcesses": "1"}, QUIET | {"gpuProcesses": "1", "gpuLoad": "98 %"}, 1, []),
    ("two percent of a CPU limit are allowed", {}, {"limited": 1.0}, {"at": 10.0, "limited": 1.2}, 1, []),
    (
        "the container's limit held it back",
        {},
        {"limited": 1.0},
        {"at": 10.0, "limited": 1.3},
        1,
        ["throttled: the container's CPU limit held it back for 3% of the time"],
    ),
    ("no time passed", {}, {"limited": 1.0}, {"limited": 3.0}, 1, []),
    ("a tenth of waiting is allowed", {}, {"ran": 1.0, "waited": 1.0}, {"ran": 10.0, "waited": 2.0}, 1, []),
    (
        "others held the CPU",
        {},
        {"ran": 1.0, "waited": 0.0},
        {"ran": 9.0, "waited": 2.0},
        1,
        ["shared: the engine's threads waited 20% of their time for a CPU"],
    ),
    ("threads that ended take their times with them", {}, {"ran": 5.0, "waited": 5.0}, {"ran": 5.0, "waited": 1.0}, 1, []),
    (
        "clocks were held down at one end, and each reason is told once",
        {},
        {"throttled": "power cap"},
        {"throttled": "power cap, thermal"},
        1,
        ["throttled: the GPU's clocks were held down (power cap, thermal)"],
    ),
    ("it does not matter whether the idle GPU was", {"throttled": "thermal"}, {"throttled": "no"}, {"throttled": "no"}, 1, []),
    ("a clock may move by a twentieth", {}, {"smClock": "1000 MHz"}, {"smClock": "950 MHz"}, 1, []),
    (
        "a clock that fell",
        {},
        {"smClock": "1020 MHz"},
        {"smClock": "816 MHz"},
        1,
        ["throttled: the GPU's clock went from 1020 MHz to 816 MHz while it was measured"],
    ),
    (
        "a clock that rose was not there yet when measuring began",
        {},
        {"smClock": "345 MHz"},
        {"smClock": "1980 MHz"},
        1,
        ["unsettled: the GPU's clock went from 345 MHz to 1980 MHz while it was measured"],
    ),
    (
        "somebody was there before",
        {"gpuProcesses": "2"},
        {},
        {"gpuProcesses": "3"},
        1,
        ["shared: other processes on the GPU before the engine was loaded: 2"],
    ),
    (
        "somebody came while it was measured",
        {"gpuProcesses": "0"},
        {},
        {"gpuProcesses": "2"},
        1,
        ["shared: 2 processes on the GPU after measuring, 1 of them our own"],
    ),
    ("engine and partner are ours", {"gpuProcesses": "0"}, {}, {"gpuProcesses": "2"}, 2, []),
    (
        "JetPack up to 6 lists no processes, and its load tells that there are some",
        {"gpuLoad": "40 %"},
        {},
        {"gpuLoad": "99 %"},
        1,
        ["shared: the GPU had 40 % of load before the engine was loaded"],
    ),
    ("the load of a display", {"gpuLoad": "9.5 %"}, {}, {"gpuLoad": "99 %"}, 1, []),
    ("processes that are counted are worth more than a load, which is an average", {"gpuLoad": "40 %", "gpuProcesses": "0"}, {}, {}, 1, []),
    (
        "all that is found is told",
        {"gpuProcesses": "1"},
        {"ran": 0.0, "waited": 0.0, "throttled": "thermal"},
        {"ran": 1.0, "waited": 1.0, "throttled": "no"},
        1,
        [
            "shared: the engine's threads waited 50% of their time for a CPU",
            "throttled: the GPU's clocks were held down (thermal)",
            "shared: other processes on the GPU before the engine was loaded: 1",
        ],
    ),
]


@pytest.mark.parametrize(("idle", "before", "after", "engines", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_marks(idle: dict[str, Any], before: dict[str, Any], after: dict[str, Any], engines: int, expected: list[str]) -> None:
    assert expected == marks(reading(**idle), reading(**before), reading(**after), engines=engines)


COUNTS = st.one_of(st.none(), st.floats(0, 1e6))
CONTEXTS = st.dictionaries(st.sampled_from(sorted(QUIET)), st.sampled_from(["", "no", "0", "1 %", "1980 MHz", "thermal", "unknown", "-"]))
READINGS = st.builds(Reading, st.floats(0, 1e6), COUNTS, COUNTS, COUNTS, CONTEXTS)


@given(READINGS, READINGS, READINGS, st.integers(1, 2))
def test_whatever_was_read_a_mark_is_a_known_kind_and_a_sentence(idle: Reading, before: Reading, after: Reading, engines: int) -> None:
    found = marks(idle, before, after, engines=engines)
    assert kinds(found) <= {"throttled", "shared", "unsettled"}
    assert all(": " in mark for mark in found)


# ---- reading


def planted(root: Path, **files: str) -> Path:
    """`files`: text by path, with __ for a slash and ___ for a dot."""
    for name, text in files.items():
        path = root / name.replace("___", ".").replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


class Loaded:
    """An engine's session, of which its process is all that is looked at."""

    inputs = outputs = ()
    run = timings = None

    def __init__(self, pid: int | None) -> None:
        self.pid = pid


def look(watch: Watch, pid: int | None = None) -> Reading:
    session: Any = Loaded(pid)
    return watch.look(session)


def test_times_are_those_of_all_threads_of_the_engines_process(tmp_path: Path) -> None:
    root = planted(tmp_path, proc__7__task__7__schedstat="1000000000 500000000 12\n", proc__7__task__8__schedstat="3000000000 0 1\n")
    (root / "proc/7/task/9").mkdir()
    found = look(Watch(root=root), 7)
    assert (4.0, 0.5) == (found.ran, found.waited)


@pytest.mark.parametrize("text", ["0 0 0\n", "a b c\n", "1 2\n", ""])
def test_a_kernel_that_counts_nothing_leaves_times_unknown(tmp_path: Path, text: str) -> None:
    found = look(Watch(root=planted(tmp_path, proc__7__task__7__schedstat=text)), 7)
    assert (None, None) == (found.ran, found.waited)


def test_without_a_process_times_are_unknown() -> None:
    assert (None, None) == (Watch().look().ran, look(Watch(), 2**30).ran)


@pytest.mark.parametrize(
    ("files", "seconds"),
    [
        ({"sys__fs__cgroup__cpu___stat": "usage_usec 5\nnr_throttled 2\nthrottled_usec 1500000\n"}, 1.5),
        ({"sys__fs__cgroup__cpu__cpu___stat": "nr_periods 3\nthrottled_time 2500000000\n"}, 2.5),
        ({"sys__fs__cgroup__cpu___stat": "usage_usec 5\n", "sys__fs__cgroup__cpu__cpu___stat": "throttled_time 1000000000\n"}, 1.0),
        ({"sys__fs__cgroup__cpu___stat": "throttled_usec many\n"}, None),
        ({"sys__fs__cgroup__cpu___stat": "\n\n"}, None),
        ({}, None),
    ],
    ids=["version 2", "version 1", "version 2 without a limit", "no number", "empty lines", "no control groups"],
)
def test_how_long_the_containers_limit_held_it_back(tmp_path: Path, files: dict[str, str], seconds: float | None) -> None:
    assert seconds == Watch(root=planted(tmp_path, **files)).look().limited


def test_load_and_clocks_of_the_cpus_are_told_beside_what_the_device_says(tmp_path: Path) -> None:
    frequencies = {f"sys__devices__system__cpu__cpu{number}__cpufreq__scaling_cur_freq": f"{clock}\n" for number, clock in
                   ((0, 1_200_000), (1, 2_000_500), (10, 800_000))}  # fmt: skip
    governor = {"sys__devices__system__cpu__cpu0__cpufreq__scaling_governor": "schedutil\n"}
    root = planted(tmp_path, proc__loadavg="0.50 0.40 0.30 2/345 6789\n", **frequencies, **governor)
    found = Watch(lambda: {"smClock": "1020 MHz"}, root).look().context
    assert {"load": "0.50 0.40 0.30", "cpuClock": "800 to 2000 MHz", "cpuGovernor": "schedutil", "smClock": "1020 MHz"} == found


def test_clocks_that_the_machine_does_not_tell_are_left_out(tmp_path: Path) -> None:
    root = planted(tmp_path, sys__devices__system__cpu__cpu0__cpufreq__scaling_cur_freq="<unknown>\n")
    assert {} == Watch(root=root).look().context


@pytest.mark.skipif(not Path("/proc/self/schedstat").is_file(), reason="the kernel counts no times")
def test_a_real_process_that_computes_is_seen_computing() -> None:
    """It says a word when it has computed, and waits for our answer to end."""
    program = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\nprint('done', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "done\n" == process.stdout.readline()
        found = look(Watch(), process.pid)
        process.communicate("\n")
    # some sandboxes have the file with zeros in it
    assert found.ran is None or found.ran >= 0.15
    assert found.at > 0


def test_memory_is_that_of_the_process_and_what_the_device_tells(tmp_path: Path) -> None:
    session: Any = Loaded(7)
    watch = Watch(root=planted(tmp_path, proc__7__statm="900 100 30 1 0 50 0\n"))
    assert {"host": 100 * os.sysconf("SC_PAGE_SIZE")} == watch.memory(session)
    assert {} == Watch(root=tmp_path / "none").memory(session)


def test_an_engine_on_a_cpu_asks_no_gpu() -> None:
    """It would start children before and after every figure."""
    context = watch_for({"backend": "onnxruntime", "executionProvider": "CPU"}).look().context
    assert not {"driver", "throttled", "gpuProcesses"} & context.keys()
