"""Host facts from a folder of fact files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from enginefleet_agent.facts import observe
from enginefleet_api.fingerprint import host_digest
from enginefleet_api.identity import Json

X86 = "processor\t: 0\nmodel name\t: Example CPU @ 2.00GHz\nflags\t\t: fpu avx2 fma avx512f\n\nprocessor\t: 1\nflags\t\t: fpu avx2 fma\n"
"""Invented; the form is that of Linux on x86_64 (arch/x86/kernel/cpu/proc.c)."""


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_facts_come_from_the_files_below_the_root(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/cpuinfo": X86,
            "proc/meminfo": "MemTotal:       16303940 kB\nMemFree: 1 kB\n",
            "proc/sys/kernel/arch": "x86_64\n",
            "proc/sys/kernel/osrelease": "6.8.0-1\n",
            "proc/sys/kernel/random/boot_id": "0c5ee1d2-6f0c-4b5e-9d54-3a7b0e6e8f11\n",
            "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12"\n',
            "sys/firmware/devicetree/base/model": "Example Board\0",
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 2024\n",
        },
    )
    view = observe(root)
    assert view.boot_id == "0c5ee1d2-6f0c-4b5e-9d54-3a7b0e6e8f11"
    facts: dict[str, Json] = {"os": "linux", "arch": "x86_64", "cpu": {"isa": ["avx2", "fma"]}, "gpus": []}
    assert view.host["facts"] == facts
    assert view.host["digest"] == host_digest(facts)
    assert view.host["context"] == {
        "cpuModel": "Example CPU @ 2.00GHz", "processors": 2, "memoryKiB": 16303940, "osRelease": "Debian GNU/Linux 12", "kernel": "6.8.0-1",
        "board": "Example Board", "nvidiaDriver": "550.54.15",
    }  # fmt: skip


def test_without_any_file_the_instruction_sets_are_unknown_and_nothing_is_guessed(tmp_path: Path) -> None:
    view = observe(tmp_path)
    assert view.boot_id == ""
    assert view.host["facts"] == {"os": "linux", "arch": os.uname().machine, "cpu": {"isa": None}, "gpus": []}
    assert view.host["context"] == {}


@pytest.mark.parametrize("name", ["proc/cpuinfo", "etc/os-release", "proc/sys/kernel/random/boot_id"])
def test_a_folder_in_place_of_a_file_is_an_unknown_fact(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    assert observe(tmp_path).boot_id == ""


def test_a_machine_whose_kernel_says_so_in_a_file_is_read_with_that_machines_flags(tmp_path: Path) -> None:
    features = "processor\t: 0\nFeatures\t: fp asimd asimdhp asimddp\n"
    view = observe(write(tmp_path, {"proc/cpuinfo": features, "proc/sys/kernel/arch": "aarch64\n"}))
    assert view.host["facts"] == {"os": "linux", "arch": "aarch64", "cpu": {"isa": ["dotprod", "fp16", "neon"]}, "gpus": []}


def test_equal_hosts_have_equal_digests_whatever_their_context(tmp_path: Path) -> None:
    a, b = (write(tmp_path / name, {"proc/cpuinfo": X86, "etc/os-release": f"PRETTY_NAME={name}\n"}) for name in "ab")
    assert observe(a).host["digest"] == observe(b).host["digest"]
    assert observe(a) != observe(b)
