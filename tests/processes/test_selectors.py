"""Calls between processes select one of two schedules, all the same one."""

from __future__ import annotations

import itertools

import pytest

from tests.processes import jobs, selectors

KNOWN = 2  # calls from a lateness to the first one that follows from it


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_all_ranks_run_what_the_lateness_before_says(transport: str) -> None:
    job = jobs.run("tests.processes.selectors", processes=4, transport=transport, timeout_s=120)
    for process in job:
        assert process.status == 0, process.output
    found = [process.reports["selector"] for process in job]
    assert all(each == found[0] for each in found), found
    assert found[0]["plan"]
    counts = [0, *found[0]["early"]]
    ran = [after - before for before, after in itertools.pairwise(counts)]
    assert ran == [0] * KNOWN + [int(not late) for late in selectors.LATE[:-KNOWN]]
