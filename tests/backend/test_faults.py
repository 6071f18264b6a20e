"""Errors of unchanged programs name the culprit, on every process, and never take for ever."""

from __future__ import annotations

import functools
import signal

import pytest

from jaxcomm.backend import environment
from tests.processes import jobs

DEADLINE_S = 8


@functools.cache
def ran(case: str) -> list[jobs.Process]:
    return jobs.run(
        "tests.backend.faults",
        *case.split(),
        processes=3,
        timeout_s=120,
        forks=False,
        JAXCOMM_DEADLINE_S=str(DEADLINE_S if case == "late" else 60),
        **environment.variables(),
    )


@pytest.mark.slow
def test_a_late_process_is_named_and_the_next_sum_works() -> None:
    first, second, late = (process.reports["late"] for process in ran("late"))
    for waiting in (first, second):
        assert "DeadlineError: all-reduce" in waiting["error"]
        assert "rank 2 of 3 has not arrived" in waiting["error"]
    assert "DeadlineError: all-reduce" in late["error"]  # it comes to the call that the others have given up
    assert [each["next"] for each in (first, second, late)] == [""] * 3


@pytest.mark.slow
def test_a_dead_process_is_named_at_once() -> None:
    *others, dead = ran("dead")
    assert dead.status == -signal.SIGKILL
    for process in others:
        assert "process 2 has died" in process.reports["dead"]["error"], process.output
        assert process.reports["dead"]["seconds"] < 30


@pytest.mark.slow
@pytest.mark.parametrize("case", ["other shape", "other reduction"])
def test_unlike_calls_fail_at_once_and_name_both(case: str) -> None:
    both = {"other shape": ("f32[16]", "f32[8]"), "other reduction": ("a maximum", "a minimum")}[case]
    for process in ran(case):
        found = process.reports[case]
        assert "MismatchError: all-reduce" in found["error"], process.output
        assert all(each in found["error"] for each in both), found["error"]
        assert found["seconds"] < 30


@pytest.mark.slow
def test_processes_may_end_with_pending_steps() -> None:
    for process in ran("exit with pending steps"):
        assert process.status == 0, process.output
        assert "has left" not in process.output
