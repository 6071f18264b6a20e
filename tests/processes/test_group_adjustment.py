"""Groups are adjusted by all processes together: the same everywhere, and a late process comes into small ones."""

from __future__ import annotations

import pytest

from tests.processes import jobs
from tests.processes.group_adjustment import LATE, LATE_S

pytestmark = pytest.mark.slow

DEVICES = 2


def test_all_processes_get_the_same_groups_and_a_late_one_comes_into_small_ones() -> None:
    job = jobs.run("tests.processes.group_adjustment", processes=3, devices=DEVICES, transport="tcp")
    assert [process.status for process in job] == [0] * 3, "\n".join(process.output for process in job)
    reports = [process.reports for process in job]
    for phase in ("before", "at first", "late", "again"):
        assert reports[0][phase] == reports[1][phase] == reports[2][phase]
    assert "0 averages" in reports[0]["before"]["reason"]
    first, late, again = (reports[0][phase] for phase in ("at first", "late", "again"))
    assert "the links were measured in" in first["reason"]
    assert first["measured_at_s"] is not None
    ours = {DEVICES * LATE, DEVICES * LATE + 1}
    for rank, seconds in enumerate(late["late_s"]):
        assert (seconds > LATE_S / 2) == (rank in ours), late["reason"]
        assert f"rank {rank} by " in late["reason"] or rank not in ours
    sizes = [len(group) for groups in late["groups"] for group in groups if ours & {*group}]
    assert max(sizes) <= 2, late["reason"]  # the plan's have three; that they change now is not sure on busy cores
    assert max(again["late_s"]) < LATE_S / 2, again["reason"]
    assert reports[0]["step"]["compiled"] == 1
