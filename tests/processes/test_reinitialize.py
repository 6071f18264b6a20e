"""`jax.distributed` is shut down and initialized again in the same processes, and works as with lax."""

from __future__ import annotations

import pytest

from tests.processes import jobs

pytestmark = pytest.mark.slow

RAILS = "127.0.0.1,127.0.0.2"
PROCESSES = (2, 2, 2, 1)
KINDS = ("threads", "socket:", "event", "memfd:jaxcomm")


@pytest.mark.parametrize(
    ("sums", "transport", "rails"),
    [
        ("lax", "shm", ""),
        ("jaxcomm", "shm", ""),
        ("jaxcomm", "tcp", ""),
        ("jaxcomm", "tcp", RAILS),
        ("jaxcomm", "udp", RAILS),
    ],
)
def test_a_process_works_in_one_job_after_the_other(sums: str, transport: str, rails: str) -> None:
    found = jobs.run_in_turn(sums, PROCESSES, transport=transport, JAXCOMM_RAILS=rails)
    for number, processes in enumerate(PROCESSES):
        for each in found[:processes]:
            report = each.reports[str(number)]
            assert all(report["right"]) and len(report["right"]) == 6
            assert report["gone"] == []
            assert report["rails"] == (2 if rails and processes > 1 else 0)
    for each in found:
        for kind in KINDS:
            # Pools of threads, JAX's and ours, may grow once; what a job leaves behind grows with each.
            first, second, third = [report[kind] for report in list(each.reports.values())[:3]]
            assert not first < second < third, f"{kind}: {first}, {second}, {third}"


def test_a_process_that_is_started_again_works_with_one_that_goes_on() -> None:
    for each in jobs.run_in_turn("jaxcomm", [2, 2, 2], RESTARTS="1", MEASURES="1"):
        assert [each.reports[str(number)]["right"] for number in range(3)] == [[True] * 6] * 3
