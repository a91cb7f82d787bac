"""From trees of fact files to facts, read by the agent and by a builder alike. Each file names where it was taken from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginefleet_agent.facts import observe
from enginefleet_api import fingerprint, hostfiles
from enginefleet_api.identity import canonical_json
from enginefleet_builder.device.files import HostFiles, jetson_state
from enginefleet_builder.probe import host_facts
from tests.hosts.trees import FOLDER, HOSTS, plant

JETSONS = {
    # a TX1 names its module in another form
    "jetpack-4.6": (None, None, "unknown Jetson"),
    "jetpack-5.1": ("p3701-0005", "35.4.1", "AGX Orin 64GB (p3701-0005)"),
    "jetpack-6.0": ("p3767-0000", "36.3.0", "Orin NX 16GB (p3767-0000)"),
    "jetpack-6.2": ("p3767-0005", "36.4.3", "Orin Nano 8GB devkit (p3767-0005)"),
    "jetpack-7.1": ("p3834-0008", "38.4.0", "AGX Thor 128GB (p3834-0008)"),
    "jetpack-7.2": ("p3701-0000", "39.2.0", "AGX Orin 32GB devkit (p3701-0000)"),
}


@pytest.mark.parametrize("host", HOSTS)
def test_each_file_names_its_source_or_says_that_it_is_invented(host: str) -> None:
    tree = json.loads((FOLDER / f"{host}.json").read_text())
    assert tree["about"]
    for name, file in tree["files"].items():
        assert not name.startswith("/")
        assert any(word in file["source"] for word in ("https://", "invented", "Linux, ", "NVIDIA's "))


@pytest.mark.parametrize("host", HOSTS)
def test_agent_and_builder_read_the_same_facts(host: str, tmp_path: Path) -> None:
    root = plant(host, tmp_path)
    agent = observe(root).host["facts"]
    assert isinstance(agent, dict)
    # the agent may be told the machine by a file; a builder runs on it
    assert agent | {"arch": "", "cpu": {}} == host_facts(HostFiles(root)) | {"arch": "", "cpu": {}}


@pytest.mark.parametrize(("host", "expected"), JETSONS.items(), ids=JETSONS)
def test_a_jetson_is_its_module_and_its_l4t(host: str, expected: tuple[str, str | None, str], tmp_path: Path) -> None:
    view = observe(plant(host, tmp_path))
    module, l4t, words = expected
    facts: Any = view.host["facts"]
    assert facts["jetson"] == {"module": module, "l4t": l4t}
    assert words in str(view.host["summary"])


@pytest.mark.parametrize("host", ["x86-t4", "mig-a100", "container"])
def test_other_hosts_are_no_jetsons(host: str, tmp_path: Path) -> None:
    assert "jetson" not in str(observe(plant(host, tmp_path)).host["facts"])


def test_gpus_of_a_kind_are_told_once_and_their_instances_by_id(tmp_path: Path) -> None:
    views = {host: hostfiles.gpus(HostFiles(plant(host, tmp_path / host))) for host in HOSTS}
    assert views["x86-t4"] == [{"name": "Tesla T4"}]
    assert views["mig-a100"] == [{"name": "A100-SXM4-40GB", "mig": ["gi1", "gi2"]}]
    assert {host for host, gpus in views.items() if gpus} == {"x86-t4", "mig-a100"}


def test_hosts_of_other_hardware_are_of_other_groups(tmp_path: Path) -> None:
    digests = {observe(plant(host, tmp_path / host)).host["digest"] for host in HOSTS}
    assert len(digests) == len(HOSTS)


def test_a_bare_container_knows_nothing_and_guesses_nothing(tmp_path: Path) -> None:
    files = HostFiles(plant("container", tmp_path))
    assert hostfiles.jetson(files) is None
    assert hostfiles.gpus(files) == []
    assert jetson_state(files) == {}
    assert set(hostfiles.context(files)) == {"cpuModel", "processors"}


@pytest.mark.parametrize(
    ("host", "mode"), [("jetpack-5.1", "0 (MAXN)"), ("jetpack-6.2", "2 (MAXN_SUPER)"), ("jetpack-6.0", None), ("x86-t4", None)]
)
def test_the_power_mode_is_told_by_number_and_name(host: str, mode: str | None, tmp_path: Path) -> None:
    assert hostfiles.context(HostFiles(plant(host, tmp_path))).get("powerMode") == mode


@pytest.mark.parametrize(
    ("status", "conf", "mode"),
    [
        ("pmode:0008\n", None, "8"),
        ("pmode:0008 fmode:quiet\n", "< POWER_MODEL ID=3 NAME=30W >", "8"),
        ("pmode:0003", "<POWER_MODEL ID=13 NAME=X>\n<  POWER_MODEL  ID=3  NAME=MODE_30W  >", "3 (MODE_30W)"),
        ("fmode:quiet", None, None),
        (None, "< POWER_MODEL ID=0 NAME=MAXN >", None),
    ],
)
def test_power_modes(status: str | None, conf: str | None, mode: str | None) -> None:
    assert hostfiles.power_mode(status, conf) == mode


@pytest.mark.parametrize(
    ("compatible", "board_ids", "dts_name", "part"),
    [
        ("nvidia,p3768-0000+p3767-0001\0nvidia,p3767-0001\0nvidia,tegra234\0", None, None, "p3767-0001"),
        ("nvidia,p3509-0000+p3767-0000\0nvidia,tegra234\0", None, None, "p3767-0000"),
        ("nvidia,p3701-0042\0nvidia,tegra234\0", None, None, "p3701-0042"),
        ("acme,camera\0nvidia,tegra194\0", "3668:0001:100:B.0", None, "p3668-0001"),
        ("nvidia,tegra210\0", "3448-0002", None, "p3448-0002"),
        ("nvidia,quill\0nvidia,tegra186\0", None, "/x/y/tegra186-quill-p3310-1000-c03-00-base.dts\0", "p3310-1000"),
        ("nvidia,p3767-0000\0nvidia,p3767-0001\0nvidia,tegra234\0", None, None, None),
        ("nvidia,p3768-0000\0nvidia,tegra234\0", None, None, None),
        ("nvidia,tegra234\0", "", "", None),
        (None, None, None, None),
    ],
    ids=[
        "since L4T 35",
        "on another carrier board",
        "a variant that is not listed",
        "board ids with colons",
        "board ids with a dash",
        "the source of the tree",
        "two modules: unknown",
        "a carrier board alone: unknown",
        "nothing that names it: unknown",
        "no tree: unknown",
    ],
)
def test_module_parts(compatible: str | None, board_ids: str | None, dts_name: str | None, part: str | None) -> None:
    assert hostfiles.module_part(compatible, board_ids, dts_name) == part


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("# R32 (release), REVISION: 7.1, GCID: 1, BOARD: t210ref\n", "32.7.1"),
        ("# R39 (release), REVISION: 2.10, GCID: 1\n", "39.2.10"),
        ("# R36 (release)\n", None),
        ("R36.4.3\n", None),
        ("", None),
        (None, None),
    ],
)
def test_l4t_releases(text: str | None, release: str | None) -> None:
    assert hostfiles.l4t_release(text) == release


def test_a_board_that_calls_itself_simulated_is_marked_whatever_its_processor_says(tmp_path: Path) -> None:
    root = plant("jetpack-6.0", tmp_path)
    real = observe(root).host["digest"]
    (root / "sys/firmware/devicetree/base/model").write_text("EngineFleet simulated Orin NX\0")
    host = observe(root).host
    facts: Any = host["facts"]
    assert facts["simulated"] == "EngineFleet simulated Orin NX"
    assert host["digest"] != real
    assert str(host["summary"]).startswith("SIMULATED ")


@pytest.mark.parametrize(
    ("host", "state"),
    [
        ("jetpack-5.1", {"smClock": 306, "smClockMin": 306, "smClockMax": 1300, "load": 2, "temperature": 43}),
        # a sensor that is off says -256 °C
        ("jetpack-6.0", {"smClock": 918, "smClockMin": 306, "smClockMax": 918, "load": 99}),
        ("jetpack-7.1", {"smClock": 1575}),
        ("x86-t4", {}),
    ],
)
def test_clocks_load_and_temperature_of_a_jetson_come_from_sysfs(host: str, state: dict[str, int], tmp_path: Path) -> None:
    assert jetson_state(HostFiles(plant(host, tmp_path))) == state


class _Texts:
    def __init__(self, text: str) -> None:
        self._text = text

    def text(self, name: str) -> str | None:
        return self._text

    def names(self, folder: str) -> list[str]:
        return ["a", "gi9"]


@given(st.text(max_size=300) | st.from_regex(r"(nvidia,(p\d{4}-\d{4}|tegra\d+)\x00|Model: .*\n|Device Minor: .*\n|pmode:\d+\n){1,6}"))
def test_any_text_in_any_file_gives_facts_that_can_be_hashed(text: str) -> None:
    facts = hostfiles.observe(_Texts(text.encode("utf-8", "replace").decode()), os="linux", machine="aarch64")
    assert canonical_json(facts)
    assert fingerprint.summary(facts)
