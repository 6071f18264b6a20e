"""Follows a run, makes plans for the run, and keeps the plans that make its steps shorter."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from jaxcomm import jax_compat, statistics
from jaxcomm.auto_plan import planning
from jaxcomm.auto_plan.agreement import Agreement
from jaxcomm.auto_plan.events import ENDED, NOTHING_BETTER, report
from jaxcomm.auto_plan.gain import PERIODS, compare, is_shorter
from jaxcomm.auto_plan.latest_calls import Calls, LatestCalls, Site, busiest
from jaxcomm.auto_plan.links import MeasuredLinks
from jaxcomm.auto_plan.plan_switches import Periods, Switches
from jaxcomm.auto_plan.planned_schedules import planned_schedules
from jaxcomm.auto_plan.situation import CALLS, CHANGED, Situation, steady
from jaxcomm.auto_plan.speed_change import SpeedChange
from jaxcomm.collectives.choice import AUTO
from jaxcomm.distributed.forks import run_at_exit
from jaxcomm.distributed.rails.outages import ProcessGone
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import Plan, files
from jaxcomm.profile import Profile
from jaxcomm.schedules import Schedule

# Minimum time between two measurements of the links, as a multiple of a measurement's time. Measurements thus take at
# most about 1 % of the run.
_RARELY: Final = 100
_FIRST_S: Final = 30.0  # time from the start until the links may be measured again
_SELDOM_S: Final = 3600.0  # maximum time until the links may be measured again
_LOOK_S: Final = 0.5
_COST: Final = 200  # time between two looks at the calls, divided by a look's CPU time: at most 0.5 % of a core
_FOLLOW_S: Final = 0.1
_TRIES: Final = 5  # attempts to find a launch at which all processes can switch
_IDLE_S: Final = 60.0  # the comparison ends after this time without a call under the plan
_FAILURES: Final = 5  # the thread ends after this number of failures, each within an hour of the previous one
_FORGOTTEN_S: Final = 3600.0
_RETRY_S: Final = 30.0

_T = TypeVar("_T")


class _Followed(NamedTuple):
    """A plan, and the periods of steps under this plan."""

    text: str
    name: str
    periods: Periods


class AutoPlan:
    """A thread that follows the run until `close` or the process's end. The first process's thread chooses plans."""

    def __init__(
        self,
        measured: Mapping[str, Any],
        process: int,
        processes: Sequence[int],
        ranks: int,
        name: str,
        measure: Callable[[int], MeasuredLinks],
    ) -> None:
        """Starts the thread.

        Args:
          measured: the fields of a profile that describe the links.
          process: the number of this process.
          processes: the processes whose ranks the plans are for; the first of these processes decides.
          ranks: the number of these processes' ranks.
          name: prefix of these processes' keys in the key-value store.
          measure: measures the links again; takes the number of the pause in which it runs.
        """
        self._links = measured
        self._hosts = [measured["hosts"].index(host) for host in measured["hosts"]]
        self._end = threading.Event()
        self._switches = Switches()
        self._agreement = Agreement(self._switches, process, processes, name, self._end, measure)
        self._latest_calls = LatestCalls(ranks)
        self._speed = SpeedChange()
        self._plan, self._text = AUTO, ""  # the plan's name in statistics, and the text of its file
        self._file: Plan | None = None
        self._planned_for: Situation | None = None
        self._measure_from = time.monotonic() + _FIRST_S
        self._in_vain = 0  # number of measurements of the links since a plan last made steps shorter
        self._too_little_s = 0.0  # lateness up to which no plan makes steps shorter with these links
        self._pause = _LOOK_S
        self._run = self._decide if process == processes[0] else self._follow
        self._thread: threading.Thread | None = None
        self.go_on()

    def go_on(self) -> None:
        """Starts the thread again if it has ended."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._end.clear()
        self._thread = threading.Thread(target=self._work, name="jaxcomm auto_plan", daemon=True)
        self._thread.start()
        self._at_exit = run_at_exit(self.close)

    def close(self) -> None:
        """Ends the thread; the run keeps its plan."""
        atexit.unregister(self._at_exit)
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        failures, latest = 0, time.monotonic()
        while not self._end.is_set():
            try:
                self._run()
            except ProcessGone as error:
                statistics.record_plans([{"axes": [], "plan": AUTO}])
                if not (error.has_left or self._end.is_set()):  # a process that left may just have finished
                    report(f"{error.why}; {ENDED}", "ended")
                return
            except Exception as error:  # no error of planning may end the run
                if self._end.is_set() or not jax_compat.spans_processes():
                    return
                failures = 1 if time.monotonic() - latest > _FORGOTTEN_S else failures + 1
                latest = time.monotonic()
                if failures == _FAILURES:
                    report(f"the run keeps its plan from now on: {error}", "failed")
                    return
                report(f"the run keeps its plan for the next {_RETRY_S:g} s: {error}", "failed")
                self._planned_for = None
                self._end.wait(_RETRY_S)

    def _follow(self) -> None:
        while not self._end.wait(_FOLLOW_S):
            self._agreement.follow()

    def _decide(self) -> None:
        while not self._end.wait(self._pause):
            self._agreement.require_all()
            calls = self._look()
            if (key := busiest(calls)) is None:
                continue
            plan, site = key
            situation = steady(self._profile(site, calls[key]), calls[key].arrivals)
            if situation is None:
                continue
            sites = sorted({each for name, each in calls if name == plan})
            is_known = self._planned_for is not None and situation.is_like(self._planned_for)
            is_little = self._plan == AUTO and 0 < situation.by_s <= self._too_little_s
            if not is_known and not is_little:
                self._renew(situation, str(situation), site, calls[key], sites)
            elif plan != self._plan:  # this step was first launched after the switch and has no plan yet
                self._switch(self._text, self._plan)
            elif (change := self._speed.change(site, calls[key].after_s)) and time.monotonic() >= self._measure_from:
                took = "sums took {:.3g} ms from the last arrival to the end, and take {:.3g} now"
                self._renew(situation, took.format(*(1e3 * each for each in change)), site, calls[key], sites)

    def _look(self) -> dict[tuple[str, Site], Calls]:
        start = time.thread_time()
        calls = self._latest_calls.look(AUTO, self._plan)
        self._pause = max(_LOOK_S, _COST * (time.thread_time() - start))
        return calls

    def _renew(self, situation: Situation, why: str, site: Site, calls: Calls, sites: Collection[Site]) -> None:
        """Makes a plan for a situation, and keeps the plan if steps become shorter.

        Args:
          situation: the late ranks.
          why: the reason for planning, in words.
          site: the call site of `calls`.
          calls: the site's latest calls; the plan is made from them.
          sites: all call sites that follow the present plan.
        """
        is_other = self._planned_for is None or not situation.is_like(self._planned_for)
        self._planned_for, had_plan = situation, self._plan != AUTO
        is_for_late_ranks = any(each and each.precondition for each in self._schedules(self._file, sites))
        if is_other and is_for_late_ranks and not self._switch("", AUTO):
            return
        self._measure()
        try:
            text = planning.plan_text(self._profile(site, calls), self._end.wait)
            plan = files.decode(text.encode(), "the plan of this run")
        except JaxcommError as error:
            if not self._end.is_set():
                report(f"{why}; the run keeps its plan: {error}", "failed", situation)
            return
        self._speed.forget()
        if self._schedules(plan, sites) != self._schedules(self._file, sites):
            self._compare(situation, why, text, plan, site, sites)
        elif self._plan == AUTO:
            self._remember_in_vain()
            if situation.late or had_plan or why != str(situation):
                report(f"{why}; {NOTHING_BETTER}", "no plan", situation)

    def _compare(
        self, situation: Situation, why: str, text: str, plan: Plan, site: Site, sites: Collection[Site]
    ) -> None:
        """Tries the new plan, the present plan and no plan, and follows the one that makes steps shortest."""
        kept = _Followed(self._text, self._plan, self._switches.periods())
        if kept.text and not self._switch("", AUTO):
            return
        if (periods := self._periods(sites)) is None:
            self._planned_for = None
            return
        best = _Followed("", AUTO, periods)
        if kept.text and is_shorter(best.periods, kept.periods):
            best = kept
        if not any(self._schedules(plan, sites)):
            if best.text:
                self._switch(best.text, best.name)
            else:
                report(f"{why}; {NOTHING_BETTER}", "no plan", situation)
            return
        name = plan.hash[:8]
        if not self._switch(text, name):
            return
        after = self._periods(sites)
        steps = compare(best.periods, after) if after else None
        if steps is None:
            if not self._end.is_set():
                text = f"{why}; plan {name} is followed, but its steps have stopped."
                report(text, "not measured", situation, plan=name)
        elif steps.are_shorter:
            self._in_vain = 0
            self._planned_for = self._under_plan(site, situation)
            (schedule,) = self._schedules(plan, [site])
            text = f"{why}; sums follow plan {name} ({schedule.kind if schedule else 'as without one'}): {steps}."
            report(text, "followed", situation, plan=name, before_s=steps.before_s, after_s=steps.after_s)
        else:
            again = f"follow plan {best.name}" if best.text else "run without one"
            text = f"{why}; plan {name} gains nothing, and sums {again} again: {steps}."
            report(text, "taken back", situation, plan=name, before_s=steps.before_s, after_s=steps.after_s)
            if not self._switch(best.text, best.name) or after is None or not is_shorter(after, best.periods):
                return
            if (back := self._periods(sites)) and not is_shorter(after, back):
                self._planned_for = None  # the plan is not the reason why steps became longer

    def _under_plan(self, site: Site, planned: Situation) -> Situation:
        """The late ranks under the plan.

        A plan makes calls end later on some ranks, and these ranks may become late.
        """
        calls = self._look().get((self._plan, site))
        found = steady(self._profile(site, calls), calls.arrivals) if calls else None
        return found if found and {*planned.late} <= {*found.late} else planned

    def _remember_in_vain(self) -> None:
        """Remembers that no plan makes steps shorter if the lateness is at most CHANGED times the present lateness."""
        if self._planned_for is not None:
            self._too_little_s = max(self._too_little_s, CHANGED * self._planned_for.by_s)

    def _measure(self) -> None:
        """Measures the links again, unless the last measurement is recent."""
        if time.monotonic() < self._measure_from:
            return
        if (found := self._try(self._agreement.pause)) is None:
            return
        self._links, self._too_little_s = found.links, 0.0
        self._measure_from = time.monotonic() + min(_RARELY * found.took_s * 2**self._in_vain, _SELDOM_S)
        self._in_vain += 1

    def _switch(self, text: str, name: str) -> bool:
        """Switches all processes to a plan; returns whether all have switched."""
        switched = self._try(lambda: self._agreement.propose(text) or None)
        self._latest_calls.mark()
        self._speed.forget()
        if switched:
            self._plan, self._text = name, text
            self._file = files.decode(text.encode(), "the plan of this run") if text else None
        return bool(switched)

    def _try(self, agree: Callable[[], _T | None]) -> _T | None:
        """Repeats `agree` until it returns a result. Returns None if there is no common launch, or the run ends."""
        for _ in range(_TRIES):
            if (agreed := agree()) is not None:
                return agreed
            if self._end.wait(_LOOK_S):
                return None
        self._planned_for = None
        text = "the processes found no launch at which all could switch plans; they will try again."
        report(text, "not switched")
        return None

    def _periods(self, sites: Collection[Site]) -> Periods | None:
        """Waits for enough periods of steps under the present plan. Returns None if the steps stop or the run ends."""
        latest = time.monotonic()
        while not self._end.wait(self._pause) and time.monotonic() - latest < _IDLE_S:
            self._agreement.require_all()
            calls = {site: each for (plan, site), each in self._look().items() if plan == self._plan and site in sites}
            if any(each.lately for each in calls.values()):
                latest = time.monotonic()
            periods = self._switches.periods()
            steps = max(map(len, periods.values()), default=0)
            if steps >= PERIODS and any(each.number >= CALLS for each in calls.values()):
                return periods
        return None

    def _profile(self, site: Site, calls: Calls) -> Profile:
        return planning.profile_of(self._links, calls.arrivals[-CALLS:], site[2], float(np.median(calls.after_s)))

    def _schedules(self, plan: Plan | None, sites: Collection[Site]) -> list[Schedule | None]:
        return planned_schedules(plan, sites, self._hosts)
