"""Follows a run, and has it switch plans."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from jaxcomm.choice import AUTO
from jaxcomm.errors import JaxcommError
from jaxcomm.log import say
from jaxcomm.renewal.agreement import Agreement
from jaxcomm.renewal.watch import Calls, Site, Watch, busiest

_SIZES: Final = (1 << 10, 1 << 14, 1 << 18, 1 << 20)
_LINKS_S: Final = 1.0  # for measuring the links, roughly
_LOOK_S: Final = 0.5
_COST: Final = 200  # times what a look takes, until the next one: it costs half a percent at most
_FOLLOW_S: Final = 0.1
_ENOUGH: Final = 24  # calls of a site that tell who is late, or what they take
_CHANGED: Final = 1.5  # times as late as before, or as little
_LEAST_GAIN: Final = 0.02
_TRIES: Final = 5  # to find a launch at which all can switch

_running: _Renewal | None = None


def begin() -> None:
    """Begins to follow the run, or goes on; all processes call it, once they are connected.

    Raises:
      JaxcommError: the links cannot be measured.
    """
    global _running
    if _running is None:
        _running = _Renewal()


class Situation(NamedTuple):
    """Who is late.

    Attributes:
      late: the ranks, the latest last.
      by_s: how far that one is behind the next, by the median.
    """

    late: tuple[int, ...]
    by_s: float

    def is_like(self, other: Situation) -> bool:
        """Whether a plan for one is one for the other."""
        near = not self.late or max(self.by_s, other.by_s) <= _CHANGED * min(self.by_s, other.by_s)
        return self.late == other.late and near

    def __str__(self) -> str:
        if not self.late:
            return "no rank is late"
        ranks = f"rank{'s' * (len(self.late) > 1)} {', '.join(map(str, self.late))}"
        return f"{ranks} {'are' if len(self.late) > 1 else 'is'} late, by {1e3 * self.by_s:.3g} ms"


class _Renewal:
    """A thread that follows the run; in the first process it decides."""

    def __init__(self) -> None:
        from jaxcomm.measure.processes import measure_links

        start = time.monotonic()
        self._links = measure_links(_SIZES, _LINKS_S)
        self._end = threading.Event()
        self._agreement = Agreement(jax.process_index(), jax.process_count(), self._end)
        self._watch = Watch(len(jax.devices("cpu")))
        self._plan = AUTO  # its name in statistics
        self._planned_for: Situation | None = None
        is_first = jax.process_index() == 0
        if is_first:
            took = time.monotonic() - start
            say(f"plan='auto': measured the links in {took:.1f} s; plans as the run shows who is late.")
        run = self._decide if is_first else self._follow
        self._thread = threading.Thread(target=self._run, args=(run,), name="jaxcomm renewal", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Ends it; the run keeps the plan that it has."""
        self._end.set()
        self._thread.join()

    def _run(self, run: Any) -> None:
        try:
            run()
        except JaxcommError as error:
            if not self._end.is_set():
                say(f"plan='auto' ends, and the run keeps the plan that it has: {error}")

    def _follow(self) -> None:
        while not self._end.wait(_FOLLOW_S):
            self._agreement.follow()

    def _decide(self) -> None:
        pause = _LOOK_S
        while not self._end.wait(pause):
            start = time.thread_time()
            calls = self._watch.calls(self._plan)
            site = busiest(calls)
            situation = _situation(self._links, calls[site], site) if site and calls[site].number >= _ENOUGH else None
            pause = max(_LOOK_S, _COST * (time.thread_time() - start))
            if situation and (self._planned_for is None or not situation.is_like(self._planned_for)):
                self._renew(situation, calls)

    def _renew(self, situation: Situation, before: Mapping[Site, Calls]) -> None:
        from jaxcomm.plan import files
        from jaxcomm.renewal import planning

        self._planned_for = situation
        site = busiest(before)
        assert site is not None
        profile = _profile(self._links, before[site], site)
        text = planning.plan_text(profile, self._end.wait)
        plan = files.decode(text.encode(), "the plan of this run")
        name = plan.hash[:8]
        if name == self._plan:
            return
        changes = [
            each
            for each in before
            if plan.schedule_of(plan.collectives[plan.index_for(each[2])].schedule).kind != "direct"
        ]
        if not changes and self._plan == AUTO:
            say(f"plan='auto': {situation}; no plan is better than the schedules of no plan.")
            return
        if not self._switch(text if changes else "", name if changes else AUTO):
            return
        after = self._calls_after(before)
        if after is None:
            return
        was, now = _seconds(before, after), _seconds(after, before)
        words = f"{1e3 * was:.3g} → {1e3 * now:.3g} ms from the last arrival to the end"
        if self._plan != AUTO and now > (1 - _LEAST_GAIN) * was:
            say(
                f"plan='auto': {situation}; plan {name} has gained nothing ({words}): back to the schedules of no plan."
            )
            self._switch("", AUTO)
            return
        kind = plan.schedule_of(plan.collectives[plan.index_for(site[2])].schedule).kind
        say(f"plan='auto': {situation}; sums follow plan {self._plan} ({kind}) now: {words}.")

    def _switch(self, text: str, name: str) -> bool:
        """Whether all processes have switched."""
        for _ in range(_TRIES):
            if self._agreement.propose(text):
                self._plan = name
                self._watch.mark()
                return True
            if self._end.wait(_LOOK_S):
                break
        return False

    def _calls_after(self, before: Mapping[Site, Calls]) -> dict[Site, Calls] | None:
        """The calls under the new plan, once there are enough; None: the run has ended."""
        while not self._end.wait(_LOOK_S):
            calls = self._watch.calls(self._plan)
            site = busiest({each: calls[each] for each in calls if each in before})
            if site and calls[site].number >= _ENOUGH:
                return calls
        return None


def _profile(links: Mapping[str, Any], calls: Calls, site: Site) -> Any:
    from jaxcomm.renewal import planning

    return planning.profile_of(links, calls.arrivals, site[2], float(np.median(calls.after_s)))


def _situation(links: Mapping[str, Any], calls: Calls, site: Site) -> Situation:
    from jaxcomm.profile import lateness

    profile = _profile(links, calls, site)
    late = lateness.late_ranks(profile)
    return Situation(late, lateness.straggler(profile).median_s if late else 0.0)


def _seconds(calls: Mapping[Site, Calls], others: Mapping[Site, Calls]) -> float:
    """What one call of each site takes that is among the others, too."""
    return float(sum(np.median(calls[site].after_s) for site in calls if site in others))
