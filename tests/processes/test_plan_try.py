"""`jaxcomm plan --try` in a job: all processes run the candidates, and the first one writes the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxcomm import plan, profile
from tests.cli.test_what_if import one_late
from tests.processes import jobs

LIMIT = ("--try", "--try-limit", "2")


@pytest.mark.slow
def test_processes_of_a_job_time_the_candidates_together(tmp_path: Path) -> None:
    profile.save(one_late(0.002, ranks=2, rank=1), tmp_path / "profile.json")
    words = ("plan", str(tmp_path / "profile.json"), "--out", str(tmp_path / "plan.json"), *LIMIT)
    first, second = jobs.run("jaxcomm.cli", *words, processes=2, timeout_s=120)
    assert [first.status, second.status] == [0, 0], first.output + second.output
    assert "Tried here: " in first.output
    assert "Tried here: " not in second.output
    measured = [each.measured for each in plan.load(tmp_path / "plan.json").collectives if each.measured]
    assert measured
    assert all(each.seconds > 0 and each.default > 0 for each in measured)


@pytest.mark.slow
def test_a_job_of_other_ranks_than_the_profile_ends_with_both_numbers(tmp_path: Path) -> None:
    profile.save(one_late(0.002, ranks=4), tmp_path / "profile.json")
    words = ("plan", str(tmp_path / "profile.json"), "--out", str(tmp_path / "plan.json"), *LIMIT)
    for process in jobs.run("jaxcomm.cli", *words, processes=2, timeout_s=120):
        assert process.status == 1
        assert "--try: the profile is of 4 ranks; this job has 2." in process.output
    assert not (tmp_path / "plan.json").exists()
