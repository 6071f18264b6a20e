"""Follows a run, and has it switch plans."""

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
from jaxcomm.auto_plan.gain import PERIODS, compare, is_shorter
from jaxcomm.auto_plan.links import MeasuredLinks
from jaxcomm.auto_plan.pace import Pace
from jaxcomm.auto_plan.plan_switches import Periods, Switches
from jaxcomm.auto_plan.situation import CALLS, CHANGED, Situation, steady
from jaxcomm.auto_plan.watch import Calls, Site, Watch, busiest
from jaxcomm.collectives.choice import AUTO
from jaxcomm.collectives.default_schedules import default_schedule
from jaxcomm.distributed.forks import run_at_exit
from jaxcomm.distributed.outages import ProcessGone
from jaxcomm.errors import JaxcommError
from jaxcomm.log import say
from jaxcomm.plan import Plan, files
from jaxcomm.profile import Profile
from jaxcomm.profile.run_file import Outcome
from jaxcomm.schedules import Schedule

_RARELY: Final = 100  # times as long as the links were measured, until they may be again: one percent of the time
_FIRST_S: Final = 30.0  # from the start on until they may be
_SELDOM_S: Final = 3600.0  # at least as often, however often nothing came of it
_LOOK_S: Final = 0.5
_COST: Final = 200  # times what a look takes, until the next one: half a percent of a core at most
_FOLLOW_S: Final = 0.1
_TRIES: Final = 5  # to find a launch at which all can switch
_IDLE_S: Final = 60.0  # without a call that a plan is for, until it is no longer watched
_FAILURES: Final = 5  # after which it ends, if they follow each other within an hour
_FORGOTTEN_S: Final = 3600.0
_RETRY_S: Final = 30.0
_ENDED: Final = (
    "sums run without a plan from now on. jaxcomm.init(mesh, plan='auto') plans for the processes that are left."
)
_NOTHING_BETTER: Final = "no plan is better than the schedules without one, which sums follow."

_T = TypeVar("_T")


class _Followed(NamedTuple):
    """A plan, and how long steps take that follow it."""

    text: str
    name: str
    periods: Periods


class AutoPlan:
    """A thread that follows the run, until `close`; that of the first process decides.

    Closes itself when the process ends.
    """

    def __init__(
        self,
        measured: Mapping[str, Any],
        process: int,
        processes: Sequence[int],
        ranks: int,
        name: str,
        measure: Callable[[int], MeasuredLinks],
    ) -> None:
        """Begins.

        Args:
          measured: what a profile says of the links.
          process: which one this is.
          processes: whose ranks the plans are for; the first one decides.
          ranks: of all of them together.
          name: of what they agree on, in the processes' store.
          measure: measures their links again; takes a number that counts these measurements.
        """
        self._links = measured
        self._hosts = [measured["hosts"].index(host) for host in measured["hosts"]]
        self._end = threading.Event()
        self._switches = Switches()
        self._agreement = Agreement(self._switches, process, processes, name, self._end, measure)
        self._watch = Watch(ranks)
        self._pace = Pace()
        self._plan, self._text = AUTO, ""  # its name in statistics, and its file's text
        self._file: Plan | None = None
        self._planned_for: Situation | None = None
        self._measure_from = time.monotonic() + _FIRST_S
        self._in_vain = 0  # how often in turn the links have been measured without a plan that gained
        self._too_little_s = 0.0  # by which a rank may be late with these links, and no plan gains
        self._pause = _LOOK_S
        self._run = self._decide if process == processes[0] else self._follow
        self._thread: threading.Thread | None = None
        self.go_on()

    def go_on(self) -> None:
        """Begins again, if it has ended."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._end.clear()
        self._thread = threading.Thread(target=self._work, name="jaxcomm auto_plan", daemon=True)
        self._thread.start()
        self._at_exit = run_at_exit(self.close)

    def close(self) -> None:
        """Ends it; the run keeps the plan that it has."""
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
                if not (error.has_left or self._end.is_set()):  # the others may only have ended before this one
                    _say(f"{error.why}; {_ENDED}", "ended")
                return
            except Exception as error:  # the run goes on, whatever it is
                if self._end.is_set() or not jax_compat.spans_processes():
                    return
                failures = 1 if time.monotonic() - latest > _FORGOTTEN_S else failures + 1
                latest = time.monotonic()
                if failures == _FAILURES:
                    _say(f"the run keeps the plan that it has from now on: {error}", "failed")
                    return
                _say(f"the run keeps the plan that it has for the next {_RETRY_S:g} s: {error}", "failed")
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
            elif plan != self._plan:  # a step that was first launched after the switch
                self._switch(self._text, self._plan)
            elif (change := self._pace.change(site, calls[key].after_s)) and time.monotonic() >= self._measure_from:
                took = "sums took {:.3g} ms from the last arrival to the end, and take {:.3g} now"
                self._renew(situation, took.format(*(1e3 * each for each in change)), site, calls[key], sites)

    def _look(self) -> dict[tuple[str, Site], Calls]:
        start = time.thread_time()
        calls = self._watch.look(AUTO, self._plan)
        self._pause = max(_LOOK_S, _COST * (time.thread_time() - start))
        return calls

    def _renew(self, situation: Situation, why: str, site: Site, calls: Calls, sites: Collection[Site]) -> None:
        """Plans for a situation, and follows the plan if it gains.

        Args:
          situation: who is late.
          why: it plans, in words.
          site: that of `calls`, from which it plans.
          calls: the latest ones.
          sites: that calls come to.
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
                _say(f"{why}; the run keeps the plan that it has: {error}", "failed", situation)
            return
        self._pace.forget()
        if self._schedules(plan, sites) != self._schedules(self._file, sites):
            self._compare(situation, why, text, plan, site, sites)
        elif self._plan == AUTO:
            self._remember_in_vain()
            if situation.late or had_plan or why != str(situation):
                _say(f"{why}; {_NOTHING_BETTER}", "no plan", situation)

    def _compare(
        self, situation: Situation, why: str, text: str, plan: Plan, site: Site, sites: Collection[Site]
    ) -> None:
        """Follows a plan, the one until now or none, whichever makes steps shortest."""
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
                _say(f"{why}; {_NOTHING_BETTER}", "no plan", situation)
            return
        name = plan.hash[:8]
        if not self._switch(text, name):
            return
        after = self._periods(sites)
        steps = compare(best.periods, after) if after else None
        if steps is None:
            if not self._end.is_set():
                said = f"{why}; plan {name} is followed, but the steps that it is for come no more."
                _say(said, "not measured", situation, plan=name)
        elif steps.are_shorter:
            self._in_vain = 0
            (schedule,) = self._schedules(plan, [site])
            said = f"{why}; sums follow plan {name} ({schedule.kind if schedule else 'as without one'}): {steps}."
            _say(said, "followed", situation, plan=name, before_s=steps.before_s, after_s=steps.after_s)
        else:
            again = f"follow plan {best.name}" if best.text else "run without one"
            said = f"{why}; plan {name} gains nothing, and sums {again} again: {steps}."
            _say(said, "taken back", situation, plan=name, before_s=steps.before_s, after_s=steps.after_s)
            if not self._switch(best.text, best.name) or after is None or not is_shorter(after, best.periods):
                return
            if (back := self._periods(sites)) and not is_shorter(after, back):
                self._planned_for = None  # steps are longer by themselves: that says nothing of the plan

    def _remember_in_vain(self) -> None:
        """That a rank is so late, or little more, need not be planned for again."""
        if self._planned_for is not None:
            self._too_little_s = max(self._too_little_s, CHANGED * self._planned_for.by_s)

    def _measure(self) -> None:
        """The links again, unless that was lately."""
        if time.monotonic() < self._measure_from:
            return
        if (found := self._try(self._agreement.pause)) is None:
            return
        self._links, self._too_little_s = found.links, 0.0
        self._measure_from = time.monotonic() + min(_RARELY * found.took_s * 2**self._in_vain, _SELDOM_S)
        self._in_vain += 1

    def _switch(self, text: str, name: str) -> bool:
        """Whether all processes have switched."""
        switched = self._try(lambda: self._agreement.propose(text) or None)
        self._watch.mark()
        self._pace.forget()
        if switched:
            self._plan, self._text = name, text
            self._file = files.decode(text.encode(), "the plan of this run") if text else None
        return bool(switched)

    def _try(self, agree: Callable[[], _T | None]) -> _T | None:
        """What all processes do at one launch; None: they have found none."""
        for _ in range(_TRIES):
            if (agreed := agree()) is not None:
                return agreed
            if self._end.wait(_LOOK_S):
                return None
        self._planned_for = None
        said = "the processes have found no launch at which all could switch plans; they will try again."
        _say(said, "not switched")
        return None

    def _periods(self, sites: Collection[Site]) -> Periods | None:
        """Those of steps that follow the plan, once there are enough, and of calls; None: they come no more."""
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
        """What the sites' sums run by a plan; None: the same as without one."""
        found: list[Schedule | None] = []
        for _, _, nbytes in sites:
            schedule, usual = plan.schedule_for(nbytes) if plan else None, default_schedule(nbytes, self._hosts)
            is_usual = schedule is None or schedule.kind == ("direct" if usual == "flat" else usual)
            found.append(None if is_usual else schedule)
        return found


def _say(what: str, outcome: Outcome, situation: Situation | None = None, **about: Any) -> None:
    """In the log, and in `jaxcomm.stats().events`."""
    late = {"late": [*situation.late], "late_by_s": situation.by_s} if situation else {}
    statistics.record_event(what, outcome, **late, **about)
    say(f"plan='auto': {what}")
