"""Unchanged programs in one job after the other, of processes that go on and of such that are started again."""

from __future__ import annotations

import pytest

from jaxcomm.backend import environment
from jaxcomm.distributed import launch
from tests.processes import jobs


@pytest.mark.slow
@pytest.mark.parametrize("restarts", ["", "1"])
def test_a_process_works_in_one_job_after_the_other(restarts: str) -> None:
    generations = [f"{launch.local_coordinator()}/2" for _ in range(3)]
    found = jobs.run(
        "tests.processes.reinitialize",
        "lax",
        *generations,
        processes=2,
        timeout_s=120,
        forks=False,
        JAXCOMM_DEADLINE_S="20",
        RESTARTS=restarts,
        **environment.variables(),
    )
    assert [each.status for each in found] == [0, 0], "\n".join(each.output for each in found)
    for number in range(len(generations)):
        for each in found:
            assert each.reports[str(number)]["right"] == [True] * 6
