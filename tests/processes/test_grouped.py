"""Sums in groups that are data between processes: equal to lax's, and a rank that passes other groups is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "transport"), [(1, "tcp"), (2, "shm")])
def test_processes_agree_with_lax_and_name_a_rank_that_does_not(devices: int, transport: str) -> None:
    launch = [sys.executable, "-m", "jaxcomm.cli", "launch", "-n", "4", "--devices-per-process", str(devices)]
    found = subprocess.run(
        [*launch, "--transport", transport, "-m", "tests.processes.grouped"],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    for case in ("sums", "scans", "averages", "mistakes", "statistics"):
        assert found.stdout.count(f"done: {case}") == 4, found.stdout
