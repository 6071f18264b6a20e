"""Follows a run, and has it switch plans."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import jax
import numpy as np

from jaxcomm import jax_compat, plan_history
from jaxcomm.choice import AUTO
from jaxcomm.distributed import store
from jaxcomm.errors import JaxcommError
from jaxcomm.log import say
from jaxcomm.plan import Plan, files
from jaxcomm.profile import Profile
from jaxcomm.renewal import planning
from jaxcomm.renewal.agreement import Agreement
from jaxcomm.renewal.situation import CALLS, Situation, steady
from jaxcomm.renewal.switches import Switches
from jaxcomm.renewal.watch import Calls, Site, Watch, busiest

_SIZES: Final = (1 << 10, 1 << 14, 1 << 18, 1 << 20)
_LINKS_S: Final = 1.0  # for measuring the links, roughly
_LOOK_S: Final = 0.5
_COST: Final = 200  # times what a look takes, until the next one: half a percent of a core at most
_FOLLOW_S: Final = 0.1
_LEAST_GAIN: Final = 0.02
_TRIES: Final = 5  # to find a launch at which all can switch
_IDLE_S: Final = 60.0  # without a call that a plan is for, until it is no longer watched

_running: tuple[Any, Renewal] | None = None  # with the store of the processes that it is of


def begin() -> None:
    """Begins to follow the run, or goes on; all processes call it, once they are connected.

    Raises:
      JaxcommError: not all processes call it, or the links cannot be measured.
    """
    global _running
    if _running is not None and _running[0] is store.client():
        return
    from jaxcomm.measure.processes import measure_links

    process, processes = jax.process_index(), jax.process_count()
    store.publish(f"auto/begun/{process}", "")
    for each in range(processes):
        store.lookup(f"auto/begun/{each}", f"process {each} has not called jaxcomm.init(plan='auto')")
    start = time.monotonic()
    links = measure_links(_SIZES, _LINKS_S)
    if process == 0:
        took = time.monotonic() - start
        _say(f"the links have been measured, in {took:.1f} s; plans follow as the run shows who is late.", "begun")
    _running = store.client(), Renewal(links, process, processes, len(jax.devices("cpu")))


class Renewal:
    """A thread that follows the run, until `close`; that of the first process decides.

    Closes itself when the process ends.
    """

    def __init__(self, links: Mapping[str, Any], process: int, processes: int, ranks: int) -> None:
        """Begins.

        Args:
          links: what a profile says of them.
          process: which one this is.
          processes: of the job.
          ranks: of all processes together.
        """
        self._links = links
        self._end = threading.Event()
        self._agreement = Agreement(Switches(), process, processes, self._end)
        self._watch = Watch(ranks)
        self._plan, self._text = AUTO, ""  # its name in statistics, and its file's text
        self._planned_for: Situation | None = None
        self._pause = _LOOK_S
        self._run = self._follow if process else self._decide
        self._thread = threading.Thread(target=self._work, name="jaxcomm renewal", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Ends it; the run keeps the plan that it has."""
        atexit.unregister(self.close)
        self._end.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            self._run()
        except Exception as error:  # the run goes on, whatever it is
            if not self._end.is_set() and jax_compat.is_job():
                _say(f"the run keeps the plan that it has from now on: {error}", "failed")

    def _follow(self) -> None:
        while not self._end.wait(_FOLLOW_S):
            self._agreement.follow()

    def _decide(self) -> None:
        while not self._end.wait(self._pause):
            calls = self._look()
            if (key := busiest(calls)) is None:
                continue
            plan, site = key
            profile = self._profile(site, calls[key])
            situation = steady(profile, calls[key].arrivals)
            if situation is None:
                continue
            if not (self._planned_for and situation.is_like(self._planned_for)):
                self._renew(situation, profile, {each: calls[plan, each] for name, each in calls if name == plan}, site)
            elif plan != self._plan:  # a step that was first launched after the switch
                self._switch(self._text, self._plan)

    def _look(self) -> dict[tuple[str, Site], Calls]:
        start = time.thread_time()
        calls = self._watch.look(AUTO, self._plan)
        self._pause = max(_LOOK_S, _COST * (time.thread_time() - start))
        return calls

    def _renew(self, situation: Situation, profile: Profile, before: Mapping[Site, Calls] | None, site: Site) -> None:
        """Plans for a situation, switches, and takes the plan back if it gains nothing."""
        self._planned_for, had_plan = situation, self._plan != AUTO
        if had_plan and self._switch("", AUTO):  # a plan has to beat none, not one for another situation
            before = self._calls_after(before or {})
        if before is None or self._plan != AUTO:
            self._planned_for = None
            return
        try:
            text = planning.plan_text(profile, self._end.wait)
            plan = files.decode(text.encode(), "the plan of this run")
        except JaxcommError as error:
            if not self._end.is_set():
                _say(f"{situation}; sums run without a plan: {error}", "failed", situation)
            return
        if all(_kind(plan, nbytes) == "direct" for _, _, nbytes in before):
            if situation.late or had_plan:
                said = f"{situation}; no plan is better than the schedules without one, which sums follow."
                _say(said, "no plan", situation)
            return
        name = plan.hash[:8]
        if not self._switch(text, name):
            return
        if (after := self._calls_after(before)) is None:
            if not self._end.is_set():
                said = f"{situation}; plan {name} is followed, but the calls that it is for come no more."
                _say(said, "not measured", situation, plan=name)
            return
        was, now = _seconds(before, after), _seconds(after, before)
        took = f"from the last arrival to the end {1e3 * was:.3g} ms before, {1e3 * now:.3g} now"
        if now > (1 - _LEAST_GAIN) * was:
            said = f"{situation}; plan {name} gains nothing, and sums run without one again: {took}."
            _say(said, "taken back", situation, plan=name, before_s=was, after_s=now)
            self._switch("", AUTO)
        else:
            said = f"{situation}; sums follow plan {name} ({_kind(plan, site[2])}): {took}."
            _say(said, "followed", situation, plan=name, before_s=was, after_s=now)

    def _switch(self, text: str, name: str) -> bool:
        """Whether all processes have switched."""
        for _ in range(_TRIES):
            if switched := self._agreement.propose(text):
                self._plan, self._text = name, text
                break
            if self._end.wait(_LOOK_S):
                break
        self._watch.mark()
        if not switched and not self._end.is_set():
            self._planned_for = None
            said = "the processes have found no launch at which all could switch plans; they will try again."
            _say(said, "not switched")
        return switched

    def _calls_after(self, before: Mapping[Site, Calls]) -> dict[Site, Calls] | None:
        """The calls under the new plan, once there are enough; None: they come no more."""
        latest = time.monotonic()
        while not self._end.wait(self._pause) and time.monotonic() - latest < _IDLE_S:
            calls = {site: each for (plan, site), each in self._look().items() if plan == self._plan and site in before}
            if any(each.lately for each in calls.values()):
                latest = time.monotonic()
            if any(each.number >= CALLS for each in calls.values()):
                return calls
        return None

    def _profile(self, site: Site, calls: Calls) -> Profile:
        return planning.profile_of(self._links, calls.arrivals[-CALLS:], site[2], float(np.median(calls.after_s)))


def _kind(plan: Plan, nbytes: int) -> str:
    """What the plan has all-reduces of so many bytes run."""
    schedule = plan.schedule_for(nbytes)
    return schedule.kind if schedule else "direct"


def _seconds(calls: Mapping[Site, Calls], others: Mapping[Site, Calls]) -> float:
    """What one call of each site takes that is among the others, too."""
    return float(sum(np.median(calls[site].after_s) for site in calls if site in others))


def _say(what: str, outcome: str, situation: Situation | None = None, **about: Any) -> None:
    """In the log, and in `jaxcomm.stats().events`."""
    late = {"late": [*situation.late], "late_by_s": situation.by_s} if situation else {}
    plan_history.tell(what, outcome=outcome, **late, **about)
    say(f"plan='auto': {what}")
