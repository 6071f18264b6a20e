"""Unchanged programs in one job after the other, of processes that go on and of such that are started again."""

from __future__ import annotations

import pytest

from jaxcomm.backend import jaxlib_variables
from tests.processes import jobs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("restarts", ["", "1"])
def test_a_process_works_in_one_job_after_the_other(restarts: str) -> None:
    variables = {**jaxlib_variables.variables(), "JAXCOMM_DEADLINE_S": "20", "RESTARTS": restarts}
    for each in jobs.run_in_turn("lax", [2, 2, 2], forks=False, **variables):
        assert [each.reports[str(number)]["right"] for number in range(3)] == [[True] * 6] * 3
