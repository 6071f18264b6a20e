"""Errors of unchanged programs name the culprit, on every process, and never take for ever."""

from __future__ import annotations

import functools
import signal

import pytest

from jaxcomm.backend import jaxlib_variables
from tests.processes import jobs

pytestmark = pytest.mark.slow

DEADLINE_S = 8


@functools.cache
def ran(case: str, processes: int = 3, devices: int = 1) -> list[jobs.Process]:
    ends_by_itself = case.startswith(("dead", "other shape", "other reduction", "exit"))
    return jobs.run(
        "tests.backend.faults",
        *case.split(),
        processes=processes,
        devices=devices,
        timeout_s=120,
        forks=False,
        JAXCOMM_DEADLINE_S=str(60 if ends_by_itself else DEADLINE_S),
        **jaxlib_variables.variables(),
    )


def test_a_stopped_process_is_named_and_the_next_sum_works() -> None:
    first, second, late = (process.reports["stopped"] for process in ran("stopped"))
    for waiting in (first, second):
        assert "DeadlineError: all-reduce" in waiting["error"]
        assert "rank 2 of 3 has not arrived" in waiting["error"]
        assert (waiting["fields"]["missing"], waiting["fields"]["waiting"]) == ([2], [0, 1])
    assert "DeadlineError: all-reduce" in late["error"]  # it comes to the call that the others have given up
    assert [each["next"] for each in (first, second, late)] == [""] * 3


def test_a_stopped_process_finds_what_came_meanwhile() -> None:
    for process in ran("stopped in its call"):
        found = process.reports["stopped in its call"]
        assert (found["error"], found["next"]) == ("", ""), process.output


def test_a_dead_process_is_named_at_once() -> None:
    *others, dead = ran("dead")
    assert dead.status == -signal.SIGKILL
    for process in others:
        assert "process 2 has died" in process.reports["dead"]["error"], process.output
        assert process.reports["dead"]["seconds"] < 30


@pytest.mark.parametrize("case", ["other shape", "other reduction"])
def test_unlike_calls_fail_at_once_and_name_both(case: str) -> None:
    both = {"other shape": ("f32[16]", "f32[8]"), "other reduction": ("a maximum", "a minimum")}[case]
    for process in ran(case):
        found = process.reports[case]
        assert "MismatchError: all-reduce" in found["error"], process.output
        assert all(each in found["error"] for each in both), found["error"]
        assert all(any(each in call for call in found["fields"]["calls"].values()) for each in both), found["fields"]
        assert "\n  Cure: run the same program" in found["fields"]["ours"]  # XLA cuts its own text before that
        assert found["seconds"] < 30


def test_groups_in_another_order_end_by_the_deadline_and_name_who_is_missing() -> None:
    found = [process.reports["other order"] for process in ran("other order")]
    for process in (0, 1):
        assert "DeadlineError: all-reduce" in found[process]["error"]
        assert "rank 2 of 3 has not arrived" in found[process]["error"]
    assert "over 'processes 1,2'" in found[2]["error"] and "rank 0 of 2 has not arrived" in found[2]["error"]


@pytest.mark.parametrize("case", ["late with many in flight", "dead with many in flight"])
def test_many_executions_of_several_devices_end_and_name_the_culprit(case: str) -> None:
    *others, culprit = ran(case, processes=2, devices=2)
    for process in others:
        found = process.reports[case]
        assert ("process 1 has died" if case.startswith("dead") else "have not arrived") in found["error"], found
        assert found["seconds"] < 40
    assert culprit.status == (-signal.SIGKILL if case.startswith("dead") else 0), culprit.output


def test_processes_may_end_with_pending_steps() -> None:
    for process in ran("exit with pending steps"):
        assert process.status == 0, process.output
        assert "has left" not in process.output


@pytest.mark.parametrize("late_s", ["2", "60"])
def test_processes_may_end_before_they_are_connected(late_s: str) -> None:
    found = jobs.run(
        "tests.backend.ends_early", late_s, processes=2, timeout_s=90, forks=False, **jaxlib_variables.variables()
    )
    for process in found:
        assert process.status == 0, process.output
