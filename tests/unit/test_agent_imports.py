"""The agent imports the standard library and the contract's pure modules, nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_agent_needs_nothing_that_is_installed() -> None:
    # -S: no site-packages at all
    paths = f"{ROOT / 'agent'}:{ROOT / 'crds'}"
    script = f"import sys; sys.path[:0] = {paths!r}.split(':'); import enginefleet_agent.main as m; m.main(['--alive', '--heartbeat', '/nonexistent'])"
    ended = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")
