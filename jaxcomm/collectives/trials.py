"""Logs one line for each outcome of the trials of plans. The core runs and decides the trials.

`jaxcomm.stats()` has the trials' times; `docs/guides/plan.md` says what is compared.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

from jaxcomm import statistics
from jaxcomm.distributed.forks import run_at_exit
from jaxcomm.ffi.cpu import CPU
from jaxcomm.log import say

_LOOK_S: Final = 1.0

_lock = threading.Lock()
_watched: _Watch | None = None


def watch() -> None:
    """Starts to log a line for each outcome of a trial in this process."""
    global _watched
    with _lock:
        if _watched is None:
            _watched = _Watch()


class _Watch:
    """A thread that polls the core for ended trials, until the process ends."""

    def __init__(self) -> None:
        self._reported: dict[str, int] = {}  # number of trials of each site at the last report
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="jaxcomm trials", daemon=True)
        self._thread.start()
        run_at_exit(self._close)

    def _work(self) -> None:
        while not self._end.wait(_LOOK_S):
            self._look()

    def _close(self) -> None:
        self._end.set()
        self._thread.join()
        self._look()

    def _look(self) -> None:
        ended = [site for site in json.loads(CPU.text("trials")) if self._is_new(site)]
        for plan in sorted({site["plan"] for site in ended}):
            for outcome in ("kept", "dropped"):
                if sites := [each for each in ended if (each["plan"], each["trial"]["outcome"]) == (plan, outcome)]:
                    _report(plan, outcome, sites)

    def _is_new(self, site: Mapping[str, Any]) -> bool:
        trial = site["trial"]
        if not trial["decided_here"] or trial["outcome"] == "open":
            return False
        key = json.dumps({name: value for name, value in site.items() if name != "trial"})
        is_new: bool = self._reported.get(key) != trial["trials"]
        self._reported[key] = trial["trials"]
        return is_new


def _report(plan: str, outcome: str, sites: Iterable[Mapping[str, Any]]) -> None:
    largest, *others = sorted(sites, key=lambda site: -site["bytes"])
    trial = largest["trial"]
    took = f"{largest['name']} over '{largest['axes']}' of {largest['bytes']} bytes ends {_pair(trial, '_s')}"
    if "plan_cycle_s" in trial:
        took += f"; the next call's last rank arrives {_pair(trial, '_cycle_s')}"
    took += f" (and {len(others)} more call sites)" * bool(others)
    times = {"plan": plan, "before_s": trial["default_s"], "after_s": trial["plan_s"]}
    if outcome == "kept":
        text = f"plan {plan} gains in its trial: {took}."
        statistics.record_event(text, "followed", **times)
    else:
        text = (
            f"plan {plan} shows no clear gain in its trial, and its calls run without it from now on: {took}.\n"
            f"  Cure: `jaxcomm profile --sizes {largest['bytes']}` times other schedules at this size, and `jaxcomm "
            "profile import` of the saved run gives the result to the next plan. jaxcomm.init(trial=False) keeps it."
        )
        statistics.record_event(text, "taken back", **times)
    say(text)


def _pair(trial: Mapping[str, Any], end: str) -> str:
    plan, default = (1e3 * trial[f"{name}{end}"] for name in ("plan", "default"))
    return f"{plan:.3g} ms after the last arrival, {default:.3g} ms without the plan"
