"""Sums in groups that are data between processes: equal to lax's, and a rank that passes other groups is named."""

from __future__ import annotations

import pytest

from tests.processes import jobs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("devices", "transport"), [(1, "tcp"), (2, "shm")])
def test_processes_agree_with_lax_and_name_a_rank_that_does_not(devices: int, transport: str) -> None:
    job = jobs.run("tests.processes.grouped", processes=4, devices=devices, transport=transport, timeout_s=240)
    for process in job:
        assert process.status == 0, process.output
        for case in ("sums", "scans", "averages", "buckets", "mistakes", "statistics"):
            assert f"done: {case}" in process.output, process.output
