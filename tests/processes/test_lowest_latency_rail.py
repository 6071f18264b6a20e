"""Small calls go over the rail of the least round trip, large ones over all; each process decides for what it sends."""

from __future__ import annotations

import pytest

from jaxcomm.ffi.shares import UNITS
from tests.processes import jobs
from tests.processes.jobs import Process

RAILS = "127.0.0.1:500,127.0.0.2:125"


@pytest.fixture(scope="module")
def job() -> list[Process]:
    found = jobs.run("tests.processes.lowest_latency_rail", processes=2, transport="tcp", JAXCOMM_RAILS=RAILS)
    for process in found:
        assert process.status == 0, process.output
        assert all(report["right"] for report in process.reports.values())
    return found


def test_small_calls_go_over_the_rail_of_the_least_round_trip(job: list[Process]) -> None:
    long, short = job[0].reports["256 elements"]["rails"]
    assert (long["rail"], long["shares"], long["bytes"]) == ("127.0.0.1", [[0, 0], [10_000, 819]], 0)
    assert (short["rail"], short["shares"]) == ("127.0.0.2", [[0, UNITS], [10_000, 205]])
    assert short["bytes"] > 0


def test_large_calls_go_over_both(job: list[Process]) -> None:
    assert all(rail["bytes"] > 1 << 20 for rail in job[0].reports[f"{1 << 20} elements"]["rails"])


def test_the_other_side_may_decide_otherwise(job: list[Process]) -> None:
    long, short = job[1].reports["256 elements"]["rails"]
    assert (long["shares"], short["shares"], short["bytes"]) == ([[0, 819]], [[0, 205]], 0)
    assert long["bytes"] > 0
