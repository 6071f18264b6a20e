"""What the first process decides, for runs that are made up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jaxcomm
from jaxcomm import jax_compat, plan_history, planner
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import encode
from jaxcomm.profile import Profile, lateness
from jaxcomm.renewal import planning, renewal
from jaxcomm.renewal.watch import Calls, Site

LINKS = {"link": {"alpha_s": 1e-5, "beta_s_per_byte": 8e-9, "source": "a test"}, "hosts": ["a", "b", "c", "d"]}
NBYTES = 4 << 20
SITE: Site = ("psum", "data", NBYTES)


class Run:
    """A run of four ranks whose calls take what `after_s` says of the plan that they follow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after_s: Callable[[str], float]) -> None:
        self.late: int | None = 3
        self.plan = "auto"
        self.proposed: list[str] = []
        self.planned: list[tuple[int, ...]] = []
        self.error: JaxcommError | None = None
        self.can_switch = True
        self.new_module = False  # whose calls follow no plan yet
        self._after_s = after_s
        self._random = np.random.default_rng(0)
        monkeypatch.setattr(renewal, "_LOOK_S", 1e-3)
        monkeypatch.setattr(renewal, "Agreement", lambda *args: self)
        monkeypatch.setattr(renewal, "Watch", lambda ranks: self)
        monkeypatch.setattr(planning, "plan_text", self._plan_text)

    def propose(self, text: str) -> bool:
        if self.error:
            raise self.error
        self.plan = jaxcomm.plan.files.decode(text.encode(), "").hash[:8] if text else "auto"
        self.proposed.append(self.plan)
        self.new_module = False
        return self.can_switch

    def mark(self) -> None:
        pass

    def look(self, *plans: str) -> dict[tuple[str, Site], Calls]:
        assert plans == ("auto", self.plan)
        rows = self._random.uniform(0, 1e-3, (64, 4))
        if self.late is not None:
            rows[:, self.late] += 0.05
        calls = Calls(64, 1, rows - rows.min(axis=1, keepdims=True), np.full(64, self._after_s(self.plan)))
        idle = calls._replace(lately=0)
        return {(self.plan, SITE): idle if self.new_module else calls} | (
            {("auto", SITE): calls} if self.new_module else {}
        )

    def _plan_text(self, profile: Profile, has_ended: Callable[[float], bool]) -> str:
        del has_ended
        self.planned.append(lateness.late_ranks(profile))
        return encode(planner.plan(profile))


def follow(run: Run, until: Callable[[], bool], then: Callable[[], Any] = lambda: None) -> None:
    """Lets the first process decide until something is so."""
    followed = renewal.Renewal(LINKS, 0, 4, 4)
    try:
        for change in (until, then):
            deadline = time.monotonic() + 60
            while change() is False and time.monotonic() < deadline:
                time.sleep(1e-3)
    finally:
        followed.close()
    assert not any(thread.name == "jaxcomm renewal" for thread in threading.enumerate())


def test_a_plan_that_gains_stays_until_the_late_rank_is_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(monkeypatch, lambda plan: 0.05 if plan == "auto" else 0.04)
    caplog.set_level(logging.WARNING, "jaxcomm")
    plan_history.forget()

    def moves() -> bool:
        run.late = 1
        return caplog.text.count("sums follow plan") == 2

    follow(run, lambda: "sums follow plan" in caplog.text, moves)
    assert run.planned == [(3,), (1,)]
    one, none, other = run.proposed
    assert (none, one == other) == ("auto", False)
    assert "rank 3 is late, by" in caplog.text
    assert "from the last arrival to the end 50 ms before, 40 now" in caplog.text
    events = [(event["outcome"], event["late"], event["plan"]) for event in plan_history.events()]
    assert events == [("followed", [3], one), ("followed", [1], other)]
    assert all((event["before_s"], event["after_s"]) == (0.05, 0.04) for event in plan_history.events())


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


def test_processes_that_cannot_switch_try_again_and_it_is_said(
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


def test_a_planner_that_fails_is_said_and_does_not_end_it(
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


def test_an_error_ends_it_and_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(jax_compat, "is_job", lambda: True)
    run = Run(monkeypatch, lambda plan: 0.05)
    run.error = JaxcommError("process 2 is gone")
    follow(run, lambda: "process 2 is gone" in caplog.text)
    assert "the run keeps the plan that it has from now on" in caplog.text


def test_a_process_alone_has_nothing_to_follow() -> None:
    with pytest.raises(JaxcommError, match=r'plan="auto" is for several processes on CPUs.*\n.*jaxcomm launch'):
        jaxcomm.init(plan="auto")
