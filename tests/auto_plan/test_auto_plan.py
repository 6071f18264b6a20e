"""The first process's decisions in simulated runs."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jaxcomm
from jaxcomm import jax_compat, planner, statistics
from jaxcomm.auto_plan import auto_plan, planning, running
from jaxcomm.auto_plan.latest_calls import Calls, Site
from jaxcomm.auto_plan.links import MeasuredLinks
from jaxcomm.distributed.rails.outages import ProcessGone
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import encode
from jaxcomm.profile import Profile, lateness
from jaxcomm.schedules.default_schedules import default_schedule

LINKS = {
    "link": {"alpha_s": 1e-5, "beta_s_per_byte": 8e-9, "source": "a test"},
    "hosts": ["a", "b", "c", "d"],
    "incast": 1.07,
}
NBYTES = 4 << 20
SITE: Site = ("psum", "data", NBYTES)


class Run:
    """A simulated run of four ranks; calls under a plan take `after_s(plan)` seconds after the last arrival."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after_s: Callable[[str], float]) -> None:
        self.late: int | None = 3
        self.plan = "auto"
        self.proposed: list[str] = []
        self.planned: list[tuple[int, ...]] = []
        self.error: JaxcommError | None = None
        self.can_switch = True
        self.new_module = False  # whether calls come from a new module, which follows no plan yet
        self.late_by_plan: int | None = None  # the rank that becomes late under a plan
        self.slower = 1.0  # factor on the times of `after_s`
        self.paused = 0
        self.gone = ""  # why a process is gone; "" if none is
        self._after_s = after_s
        self._random = np.random.default_rng(0)
        monkeypatch.setattr(auto_plan, "_LOOK_S", 1e-3)
        monkeypatch.setattr(auto_plan, "Agreement", lambda *args: self)
        monkeypatch.setattr(auto_plan, "LatestCalls", lambda ranks: self)
        monkeypatch.setattr(auto_plan, "Switches", lambda: self)
        monkeypatch.setattr(planning, "plan_text", self._plan_text)

    def propose(self, text: str) -> bool:
        if self.error:
            raise self.error
        self.plan = jaxcomm.plan.files.decode(text.encode(), "").hash[:8] if text else "auto"
        self.proposed.append(self.plan)
        self.new_module = False
        return self.can_switch

    def require_all(self) -> None:
        if self.gone:
            raise ProcessGone("the processes do not switch plans any more", self.gone, has_left="left" in self.gone)

    def pause(self) -> MeasuredLinks:
        self.paused += 1
        return MeasuredLinks(LINKS, 1e-3)

    def periods(self) -> dict[str, list[float]]:
        return {"7": self._random.normal(0.05 + self.slower * self._after_s(self.plan), 1e-4, 32).tolist()}

    def mark(self) -> None:
        pass

    def look(self, *plans: str) -> dict[tuple[str, Site], Calls]:
        assert plans == ("auto", self.plan)
        rows = self._random.uniform(0, 1e-3, (64, 4))
        if self.late is not None:
            rows[:, self.late] += 0.05
        if self.late_by_plan is not None and self.plan != "auto":
            rows[:, self.late_by_plan] += 0.02
        calls = Calls(
            64, 1, rows - rows.min(axis=1, keepdims=True), np.full(64, self.slower * self._after_s(self.plan))
        )
        idle = calls._replace(lately=0)
        return {(self.plan, SITE): idle if self.new_module else calls} | (
            {("auto", SITE): calls} if self.new_module else {}
        )

    def _plan_text(self, profile: Profile, has_ended: Callable[[float], bool]) -> str:
        del has_ended
        self.planned.append(lateness.late_ranks(profile))
        return encode(planner.plan(profile))


def follow(run: Run, until: Callable[[], bool], then: Callable[[], Any] = lambda: None) -> None:
    """Runs the first process's thread until `until()`, then until `then()`, returns anything but False."""
    followed = auto_plan.AutoPlan(LINKS, 0, range(4), 4, "auto", lambda number: run.pause())
    try:
        for change in (until, then):
            deadline = time.monotonic() + 60
            while change() is False and time.monotonic() < deadline:
                time.sleep(1e-3)
    finally:
        followed.close()
    assert not any(thread.name == "jaxcomm auto_plan" for thread in threading.enumerate())


@pytest.mark.slow
def test_a_plan_that_gains_stays_until_the_late_rank_is_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(monkeypatch, lambda plan: 0.05 if plan == "auto" else 0.04)
    caplog.set_level(logging.WARNING, "jaxcomm")
    statistics.reset_stats()

    def moves() -> bool:
        run.late = 1
        return caplog.text.count("sums follow plan") == 2

    follow(run, lambda: "sums follow plan" in caplog.text, moves)
    assert run.planned == [(3,), (1,)]
    one, none, other = run.proposed
    assert (none, one == other) == ("auto", False)
    assert "rank 3 is late, by" in caplog.text
    assert re.search(r"a step took (99\.9|100) ms before, and takes (89\.9|90|90\.1) now", caplog.text)
    events = [(event["outcome"], event["late"], event["plan"]) for event in statistics.stats().events]
    assert events == [("followed", [3], one), ("followed", [1], other)]
    times = [(round(event["before_s"], 2), round(event["after_s"], 2)) for event in statistics.stats().events]
    assert times == [(0.1, 0.09)] * 2


def test_ranks_that_a_plan_itself_makes_late_are_no_other_situation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(monkeypatch, lambda plan: 0.05 if plan == "auto" else 0.04)
    run.late_by_plan = 2
    caplog.set_level(logging.WARNING, "jaxcomm")
    looked = iter(range(200))
    follow(run, lambda: "sums follow plan" in caplog.text, lambda: time.sleep(5e-3) or next(looked, None) is None)
    assert run.planned == [(3,)] and len(run.proposed) == 1


def test_a_plan_that_gains_nothing_is_taken_back_and_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(monkeypatch, lambda plan: 0.05)
    caplog.set_level(logging.WARNING, "jaxcomm")
    seen = time.monotonic()
    follow(run, lambda: run.proposed[1:] == ["auto"], lambda: time.monotonic() > seen + 1)
    assert len(run.proposed) == 2
    assert run.planned == [(3,)]
    assert "gains nothing" in caplog.text


def test_when_nobody_is_late_any_more_the_run_goes_on_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, lambda plan: 0.05 if plan == "auto" else 0.04)

    def ends() -> bool:
        run.late = None
        return len(run.proposed) == 2

    follow(run, lambda: len(run.proposed) == 1, ends)
    assert run.proposed[1] == "auto"


def test_a_step_that_is_first_launched_later_follows_the_plan_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(monkeypatch, lambda plan: 0.05 if plan == "auto" else 0.04)
    caplog.set_level(logging.WARNING, "jaxcomm")
    switched = threading.Event()

    def launches() -> bool:
        if not switched.is_set():
            switched.set()
            run.new_module = True
        return len(run.proposed) == 2

    follow(run, lambda: "sums follow plan" in caplog.text, launches)
    assert run.proposed[0] == run.proposed[1] != "auto"
    assert run.planned == [(3,)]


@pytest.mark.slow
def test_processes_that_cannot_switch_try_again_and_log_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(monkeypatch, lambda plan: 0.05 if plan == "auto" else 0.04)
    caplog.set_level(logging.WARNING, "jaxcomm")
    run.can_switch = False
    monkeypatch.setattr(run, "look", lambda *plans: Run.look(run, "auto", run.plan) if run.plan == "auto" else {})

    def lets() -> bool:
        run.plan, run.can_switch = ("auto", True) if not run.can_switch else (run.plan, True)
        return "sums follow plan" in caplog.text or len(run.planned) > 1

    follow(run, lambda: "they will try again" in caplog.text, lets)
    assert len(run.planned) >= 2


def test_a_failing_planner_is_logged_and_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(monkeypatch, lambda plan: 0.05 if plan == "auto" else 0.04)
    caplog.set_level(logging.WARNING, "jaxcomm")

    def fails(profile: Profile, has_ended: Callable[[float], bool]) -> str:
        monkeypatch.setattr(planning, "plan_text", run._plan_text)
        raise JaxcommError("no thread is left")

    monkeypatch.setattr(planning, "plan_text", fails)

    def moves() -> bool:
        run.late = 1
        return len(run.proposed) == 1

    follow(run, lambda: "no thread is left" in caplog.text, moves)
    assert run.planned == [(1,)]


def test_after_an_error_it_pauses_and_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jax_compat, "spans_processes", lambda: True)
    monkeypatch.setattr(auto_plan, "_RETRY_S", 1e-2)
    run = Run(monkeypatch, lambda plan: 0.05 if plan == "auto" else 0.04)
    caplog.set_level(logging.WARNING, "jaxcomm")
    run.error = JaxcommError("process 2 refuses it")

    def mends() -> bool:
        run.error = None
        return "sums follow plan" in caplog.text

    follow(run, lambda: "process 2 refuses it" in caplog.text, mends)
    assert "the run keeps its plan for the next 0.01 s" in caplog.text
    assert "sums follow plan" in caplog.text


@pytest.mark.slow
def test_errors_that_go_on_end_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(jax_compat, "spans_processes", lambda: True)
    monkeypatch.setattr(auto_plan, "_RETRY_S", 1e-3)
    run = Run(monkeypatch, lambda plan: 0.05)
    run.error = JaxcommError("process 2 is gone")
    follow(run, lambda: "from now on" in caplog.text)
    assert len(run.planned) == auto_plan._FAILURES
    assert "the run keeps its plan from now on: process 2 is gone" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("gains", [True, False])
def test_where_calls_become_slower_the_links_are_measured_again_and_the_best_plan_is_followed(
    gains: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plans: list[str] = []

    def after_s(plan: str) -> float:  # the first plan gains; the second plan gains more, or less
        if plan != "auto" and plan not in plans:
            plans.append(plan)
        return 0.05 if plan == "auto" else 0.04 if plan == plans[0] else 0.03 if gains else 0.06

    run = Run(monkeypatch, after_s)
    caplog.set_level(logging.WARNING, "jaxcomm")
    monkeypatch.setattr(auto_plan, "_RARELY", 0)
    monkeypatch.setattr(auto_plan, "_FIRST_S", 0)
    slow = {**LINKS, "link": {"alpha_s": 1e-5, "beta_s_per_byte": 3e-8, "source": "a test"}}
    monkeypatch.setattr(run, "pause", lambda: MeasuredLinks(slow if run.slower > 1 else LINKS, 1e-3))
    seen = 0.0

    def slows() -> bool:
        nonlocal seen
        seen = seen or time.monotonic()
        run.slower = 2.0 if time.monotonic() > seen + 0.1 else 1.0
        return len(run.proposed) == (3 if gains else 4) and "sums took" in caplog.text

    follow(run, lambda: "sums follow plan" in caplog.text, slows)
    assert "sums took 40 ms from the last arrival to the end, and take 80 now" in caplog.text
    assert run.planned == [(3,), (3,)]
    assert run.proposed == [plans[0], "auto", plans[1], *([] if gains else [plans[0]])]


def test_less_lateness_than_was_planned_for_in_vain_is_not_planned_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(monkeypatch, lambda plan: 0.05)
    caplog.set_level(logging.WARNING, "jaxcomm")
    planned = 0

    def for_nobody_late(profile: Profile, has_ended: Callable[[float], bool]) -> str:
        nonlocal planned
        planned += 1
        found = planner.plan(profile.model_copy(update={"arrivals": [[0.0] * 4] * 32}))
        assert found.schedule_for(NBYTES).kind == default_schedule(NBYTES, range(4))  # type: ignore[union-attr]
        return encode(found)

    monkeypatch.setattr(planning, "plan_text", for_nobody_late)
    seen = 0.0

    def moves() -> bool:
        nonlocal seen
        run.late, seen = 1, seen or time.monotonic()
        return time.monotonic() > seen + 0.5

    follow(run, lambda: "no plan is better" in caplog.text, moves)
    assert planned == 1


@pytest.mark.slow
def test_steps_that_become_longer_by_themselves_do_not_speak_against_a_plan(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(monkeypatch, lambda plan: 0.05 if plan == "auto" else 0.04)
    caplog.set_level(logging.WARNING, "jaxcomm")
    periods = run.periods
    monkeypatch.setattr(run, "periods", lambda: {"7": [each + 0.2 * bool(run.proposed) for each in periods()["7"]]})
    follow(run, lambda: "sums follow plan" in caplog.text)
    assert "gains nothing" in caplog.text
    assert run.planned == [(3,), (3,)]


def test_links_are_measured_again_rarely(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(monkeypatch, lambda plan: 0.05 if plan == "auto" else 0.04)
    caplog.set_level(logging.WARNING, "jaxcomm")
    seen = 0.0

    def slows() -> bool:
        nonlocal seen
        seen = seen or time.monotonic()
        run.slower = 2.0 if time.monotonic() > seen + 0.1 else 1.0
        return time.monotonic() > seen + 0.5

    follow(run, lambda: "sums follow plan" in caplog.text, slows)
    assert run.paused == 0
    assert run.planned == [(3,)]


def test_it_ends_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, lambda plan: 0.05 if plan == "auto" else 0.04)
    monkeypatch.setattr(running, "store", SimpleNamespace(client=lambda: run, generation=lambda: ""))
    devices = [SimpleNamespace(id=i, process_index=i) for i in range(4)]
    mesh: Any = SimpleNamespace(devices=np.array(devices))
    followed = auto_plan.AutoPlan(LINKS, 0, range(4), 4, "auto", lambda number: run.pause())
    monkeypatch.setattr(running, "_running", running._Running((run, ""), (0, 1, 2, 3), followed))

    def is_followed() -> bool:
        return any(thread.name == "jaxcomm auto_plan" for thread in threading.enumerate())

    jaxcomm.init()
    assert is_followed()
    jaxcomm.init(plan={})
    assert not is_followed()
    number = len(run.proposed)
    run.late = 1
    running.begin(mesh)
    deadline = time.monotonic() + 60
    while len(run.proposed) == number and time.monotonic() < deadline:
        time.sleep(1e-3)
    followed.close()
    assert len(run.proposed) > number


@pytest.mark.parametrize("why", ["process 2 has died: it was killed, or crashed", "process 2 has left"])
def test_it_ends_once_a_process_is_gone_and_says_so_unless_that_has_left(
    why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(monkeypatch, lambda plan: 0.05 if plan == "auto" else 0.04)
    caplog.set_level(logging.WARNING, "jaxcomm")
    statistics.reset_stats()

    def dies() -> bool:
        run.gone = why
        return not any(thread.name == "jaxcomm auto_plan" for thread in threading.enumerate())

    follow(run, lambda: "sums follow plan" in caplog.text, dies)
    lines = [record.message for record in caplog.records[1:]]
    ended = f"plan='auto': {why}; sums run without a plan from now on. jaxcomm.init(mesh, plan='auto') plans for the"
    assert lines == ([] if "left" in why else [f"{ended} processes that are left."])
    assert [event["outcome"] for event in statistics.stats().events] == ["followed", *["ended"] * len(lines)]
    assert [plan["plan"] for plan in statistics.stats().plans] == ["auto"]


@pytest.mark.parametrize("processes", [(1, 2), (0,)], ids=["of others", "of one process"])
def test_a_mesh_that_it_cannot_plan_for(processes: tuple[int, ...]) -> None:
    mesh: Any = SimpleNamespace(devices=np.array([SimpleNamespace(id=i, process_index=i) for i in processes]))
    with pytest.raises(
        JaxcommError, match=r"the mesh has devices of [\d, ]+, and this is process 0\.\n  Cure: jaxcomm"
    ):
        running.begin(mesh)


def test_a_process_alone_goes_on_without_it(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        jaxcomm.init(plan="auto")
    logged = [each.message for each in caplog.records if "plan=" in each.message]
    assert logged == [
        'plan="auto" needs several CPU processes; this job has one, or none on CPUs, and goes on without it.'
    ]
