"""A running job from the snapshots of its processes: its numbers, and its screen on narrow and wide terminals."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from jaxcomm.report.job import numbers, screen
from jaxcomm.report.job.numbers import JobEvent, JobPlan, JobProcess, JobRail, JobRank, RunningJob
from jaxcomm.report.run.sites import LateRank
from tests.report.test_statistics import GROUPED, NEVER, site

NOW_US = 100e6
TRIAL = {"outcome": "kept", "plan_s": 0.031, "default_s": 0.052, "error_s": 0.001}


def snapshot(process: int, at_s: float = 20.0, **fields: Any) -> dict[str, Any]:
    about = {"job": "10.0.0.1:7600", "process": process, "processes": 4, "pid": 50 + process, "host": "a"}
    about |= {"program": ["train.py"], "socket": str(process), "now_us": NOW_US - 5e5, "answered_s": 0.5, "at_s": at_s}
    records: dict[str, Any] = {name: [] for name in ("sites", "rails", "gone", "generations", "plans", "events")}
    return about | records | fields


def rail(name: str, process: int, **fields: Any) -> dict[str, Any]:
    shares = [[0, 1024], [2**20, 768 if name == "eth0" else 256]]
    record = {"process": process, "host": process, "rail": name, "is_open": True, "has_left": False, "fences": 0}
    return record | {"bytes": 1000, "shares": shares} | fields


PLANS = [{"axes": ["data"], "plan": "3f9a01c2", "since_s": 8.0}]
GONE = {"process": 3, "at_us": NOW_US - 9e6, "has_left": False, "why": "process 3 was killed\nmore"}
GENERATION = {"at_s": 14.0, "processes": [0, 1], "left": [3], "joined": [], "took_s": 0.25, "error": ""}
EVENT = {"at_s": 18.0, "text": "the plan 3f9a01c2 is followed", "outcome": "followed"}
BEFORE = [snapshot(0, 18.0, sites=[site(calls=4)], rails=[rail("eth0", 1, bytes=400)])]
NOW = [
    snapshot(
        0,
        sites=[site(trial=TRIAL), site("pmean", 2**24, failed=0), GROUPED, NEVER],
        rails=[rail("eth0", 1), rail("eth1", 1, is_open=False, fences=2)],
        plans=PLANS,
        gone=[GONE],
        generations=[GENERATION],
        events=[EVENT],
    ),
    snapshot(1, sites=[site(trial=TRIAL, calls=12)], gone=[GONE], generations=[GENERATION | {"took_s": 0.3}]),
    snapshot(0, 3.0, job="", pid=77, processes=1, socket="other", sites=[]),
]


def job() -> RunningJob:
    return numbers.jobs(NOW, BEFORE)[0]


def test_jobs_are_those_of_the_coordinators_and_of_single_processes() -> None:
    assert [each.name for each in numbers.jobs(NOW, [])] == ["10.0.0.1:7600", "77"]
    assert numbers.jobs([], []) == []


def test_numbers_of_all_processes_are_merged() -> None:
    found = job()
    assert (found.program, found.size, found.running_s) == ("train.py", 4, 20.0)
    assert found.processes == [JobProcess(0, 50, "a", 0.5), JobProcess(1, 51, "a", 0.5)]
    assert numbers.jobs(NOW[::-1], BEFORE)[0].processes == found.processes
    assert found.plans == [JobPlan("data", "3f9a01c2", 12.0)]
    rows = {(row.name, row.bytes): row for row in found.sites}
    assert rows.keys() == {("psum", 4096), ("pmean", 2**24), ("gossip", 4096)}
    psum = rows["psum", 4096]
    assert (psum.calls, psum.failed, psum.calls_per_s) == (12, 1, 3.0)
    assert (psum.wait_s, psum.transfer_s) == (0.02, 1e-3)
    assert psum.late == LateRank(2, 10, 10, pytest.approx(0.0198))
    assert psum.trial is not None and psum.trial.startswith("kept: ")
    assert rows["pmean", 2**24].calls_per_s is None  # it is new
    assert (rows["gossip", 4096].wait_s, rows["gossip", 4096].late) == (None, None)


def test_ranks_are_those_of_the_site_that_waits_most() -> None:
    found = job()
    assert found.waiting_site == "psum over data, 4 KiB"
    assert [rank.rank for rank in found.ranks] == [2, 3, 1, 0]
    assert found.ranks[0] == JobRank(2, 1.0, 0.0) and found.ranks[-1].wait_s == pytest.approx(0.02)


def test_rails_are_summed_over_connections() -> None:
    assert job().rails == [
        JobRail("eth0", 1, 1, 0, 1000, 300.0, 0.75),
        JobRail("eth1", 0, 1, 2, 1000, 500.0, 0.25),
    ]


def test_what_several_processes_noticed_is_one_event() -> None:
    assert job().events == [
        JobEvent(9.0, "process 3 was killed", True),
        JobEvent(6.5, "left 3; members 0, 1 connected in 0.25 s", False),
        JobEvent(2.5, "the plan 3f9a01c2 is followed", False),
    ]


def test_after_a_reset_of_statistics_rates_are_unknown() -> None:
    reset = [snapshot(0, 18.0, sites=[site(calls=99)])]
    assert numbers.jobs(NOW[:1], reset)[0].sites[1].calls_per_s is None


def shown(width: int, height: int | None = None, *, made: RunningJob | None = None) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(screen.screen(made or job(), width, height))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_screen_fits_its_terminal_and_names_the_late_rank(width: int) -> None:
    lines = shown(width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width and "\x1b" not in text
    for expected in (
        "2 of 4 processes on a, running 0:20",
        "Plan 3f9a01c2 over data for 0:12",
        "1 failed",
        "0 of 1 open",
    ):
        assert expected in text
    assert ("rank 2: last in 10 of 10, by 19.8 ms" if width >= 110 else "rank 2, 100%") in text
    assert "psum, 4 KiB: kept: " in text and "0:09 ago: process 3 was killed" in text


def test_call_sites_that_do_not_fit_are_counted() -> None:
    many = [snapshot(0, sites=[site(nbytes=2**i) for i in range(40)])]
    [made] = numbers.jobs(many, [])
    lines = shown(80, 24, made=made)
    assert len(lines) <= 24
    rows = sum(line.startswith("psum ") for line in lines)
    assert rows >= 3 and f"… and {40 - rows} call sites that take less time" in lines
    assert len(all_sections := shown(80, 23)) <= 23 and sum("ago: " in line for line in all_sections) == 2
    assert len([line for line in shown(80, made=made) if line.startswith("psum ")]) == 40


def test_many_ranks_are_counted_and_a_silent_process_is_named() -> None:
    arrivals = [[0.01 * (rank == 20) for rank in range(32)]] * 10
    wide = site(ranks=32, arrivals=arrivals, wait_s=[0.1] * 32)
    [made] = numbers.jobs([snapshot(0, sites=[wide], answered_s=4.5)], [])
    text = " ".join(" ".join(shown(80, made=made)).split())
    assert "20 100%" in text and "… 24 more" in text
    assert "0:04 ago: process 0 (PID 50) does not answer" in text


def test_a_silent_process_on_another_host_is_named_with_its_host() -> None:
    [made] = numbers.jobs([snapshot(0), snapshot(1, host="b", answered_s=9.0)], [])
    text = " ".join(" ".join(shown(80, made=made)).split())
    assert "on 2 hosts" in text and "0:09 ago: process 1 (PID 51 on b) does not answer: it is stopped, its" in text


def test_names_of_a_program_cannot_control_the_terminal() -> None:
    [made] = numbers.jobs([snapshot(0, program=["\x1b[2J[bold]x.py"], sites=[site("\x1b]0;t\x07")])], [])
    text = "\n".join(shown(200, made=made))
    assert "\x1b" not in text and "\\x1b[2J[bold]x.py" in text and "\\x1b]0;t\\x07" in text
