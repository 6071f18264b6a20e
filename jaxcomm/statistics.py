"""`jaxcomm.stats()`: the records of a run, as a table, as JSON, as scalars and as a trace.

The modules active_plan and auto_plan record here the plans that a run follows and the actions of plan="auto".
`profile.run_file` describes the records. The modules of tables, traces and files are imported at their first use.
"""

from __future__ import annotations

import datetime
import json
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from jaxcomm import ffi
from jaxcomm.ffi.shares import UNITS

if TYPE_CHECKING:
    from jaxcomm.profile.run_file import Outcome

_BEGAN: Final = time.monotonic()  # the run's start: this module is imported before any call
_MOST_EVENTS: Final = 256  # older events are forgotten

_plans: list[dict[str, Any]] = []
_generations: deque[dict[str, Any]] = deque(maxlen=_MOST_EVENTS)
_events: deque[dict[str, Any]] = deque(maxlen=_MOST_EVENTS)


class Stats(list[dict[str, Any]]):
    """One record per call site. Prints as a table.

    Attributes:
      rails: one record for each rail to each other process; empty if only one rail connects any two processes.
      gone: one record per other process that has left the job or failed.
      plans: one record per plan that all threads follow.
      events: one record per finding or action of plan="auto".
      generations: one record per change of the job's members.
      at_s: the time at which the records were read. All times in the records are seconds since the run began.
    """

    def __init__(
        self,
        sites: Iterable[dict[str, Any]] = (),
        rails: Iterable[dict[str, Any]] = (),
        plans: Iterable[dict[str, Any]] = (),
        events: Iterable[dict[str, Any]] = (),
        at_s: float = 0.0,
        gone: Iterable[dict[str, Any]] = (),
        generations: Iterable[dict[str, Any]] = (),
    ) -> None:
        super().__init__(sites)
        self.rails, self.plans, self.events, self.at_s = list(rails), list(plans), list(events), at_s
        self.gone, self.generations = list(gone), list(generations)

    def __repr__(self) -> str:
        from jaxcomm.report.run import sites

        tables = [sites.sites_table(self)]
        tables += [sites.rails_table(self.rails)] if self.rails else []
        lines = [*sites.generation_lines(self.generations), *sites.gone_lines(self.gone)]
        return "\n\n".join([*tables, *(["\n".join(lines)] if lines else [])])

    def json(self) -> str:
        """The records as JSON, for `jaxcomm report`, `jaxcomm profile import` and `jaxcomm.profile.from_stats`."""
        from jaxcomm.profile.run_file import FORMAT, VERSION

        written = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        records = {
            "sites": self,
            "rails": self.rails,
            "gone": self.gone,
            "generations": self.generations,
            "plans": self.plans,
            "events": self.events,
        }
        return json.dumps({"format": FORMAT, "version": VERSION, "written": written, "at_s": self.at_s, **records})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `json()` to a file, whole or not at all.

        Raises:
          JaxcommError: the file cannot be written.
        """
        from jaxcomm import files

        files.write(path, self.json() + "\n")

    def scalars(self) -> dict[str, float]:
        """Scalars for metric writers to plot over a run, by names such as `psum/data/direct/8x4096/transfer_s`.

        A name has the site's operation, axes, plan, ranks x bytes, and the scalar. Sites without a call are left out.
        The scalars of a site are `calls`, `failed` and `early_bytes_share`; `wait_s`, the time from the first to the
        last rank's arrival; `lead_s`, the time from the last but one to the last arrival; and `transfer_s`, the time
        from the last arrival to the end. These times are medians over the calls whose times the record has.
        `trial_gain_s` is the time that the plan saved per call in its trial.

        A rail's scalar has a name such as `rails/1/eth0/share`: the process to which the rail leads, the rail's name,
        and the scalar. The scalars are `share` (for the largest calls), `bytes`, `fences`, and `is_open` (0 or 1).
        """
        sites = {
            f"{site['name']}/{site['axes']}/{site['plan']}/{site['ranks']}x{site['bytes']}/{name}": float(value)
            for site in self
            if site["calls"] or site["failed"]
            for name, value in _scalars(site).items()
        }
        rails = {
            f"rails/{rail['process']}/{rail['rail']}/{name}": float(value)
            for rail in self.rails
            for name, value in _rail_scalars(rail).items()
        }
        return sites | rails

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace of the latest calls, those in `arrivals`, for ui.perfetto.dev or chrome://tracing.

        Each site is a process in the trace, and each rank is a track. For every call a track has a slice for the rank's
        wait and a slice for the transfer. Start times of calls are not recorded, so a site's calls follow each other
        without the time between them. `jaxcomm report run.json --trace FILE` shows the times of the whole run.

        Raises:
          JaxcommError: the file cannot be written.
        """
        from jaxcomm import files
        from jaxcomm.report import trace

        files.write(path, trace.of_sites(self))


def stats() -> Stats:
    """The statistics of each call site of this process since the start or the last `reset_stats`.

    The result prints as a table; `json()`, `save(path)`, `scalars()` and `trace(path)` export it. A site's record has
    name, axes, plan, ranks, bytes, calls and failed. `wait_s` has for each rank the total seconds that the rank waited
    for the last rank, and `late` has for each rank the number of calls in which it was the last rank. `transfer_s` is
    the total seconds from the last arrival to the end. `early_bytes_share` is the share of the work that was done
    before the last arrival. `lost_bytes` is the number of bytes that ranks of this process should have added but that
    the network lost; the policy "network" of a `Drop` allows this. `early_calls` is the number of calls that selected
    the schedule for calls without a late rank: a plan's `selector.early`, or in a trial the default schedule.
    `lost_rail_calls` is the number of calls that ran a plan's schedule for a host that lacks a rail. For the last 256
    calls, `arrivals` has each rank's seconds after the first rank's arrival, and `after_arrival_s` has the seconds from
    the last arrival to the end.

    A plan's call sites have a `trial` (see `jaxcomm.init`). `outcome` is "open", "kept" or "dropped", `decided_here`
    says whether this process decided the trial, and `trials` is the number of ended trials. A new trial begins when
    calls take much more or less time than in the last trial. The other fields are of the latest trial. `calls` has the
    number of calls by the plan's schedule and by the default schedule. `plan_s` and `default_s` are these calls'
    seconds from the last arrival to the end, and `error_s` is the standard error of the difference. `plan_cycle_s` and
    `default_cycle_s` are the seconds from the last arrival to the next call's last arrival. All seconds are trimmed
    means, which omit a fifth of the times at either end.

    If a sum takes its groups as an operand (the plan "groups"), one call of all groups counts as one call. A rank waits
    only for the last rank of its own group, and `after_arrival_s` is the slowest group's time. For each of the last
    calls and each rank, `work_s` has the seconds since the rank's previous call ended; `work_s` is empty for all other
    sites. If the ranks are in several processes, `arrivals` is None for ranks of groups without a rank of this process,
    and `work_s` is None for ranks of other processes.

    Each site has at most 256 `spans`, which cover the whole run and become longer as the run goes on. A span has
    `at_s`, `length_s`, `calls`, and the means of these calls' `arrivals` and `after_arrival_s`.

    If there are several rails, the result's attribute `rails` has a record for each rail to each other process. A
    record has process, `host` (the first process on the other process's host), rail, `is_open`, `has_left` (whether the
    rail ended because the other process left), `fences` (the number of times that the rail was taken out of service),
    `bytes` (received by the other process over the rail), and `shares`: for each range of sizes, the smallest call in
    bytes and the rail's current share, in units of 1/1024. A rail's `spans` have `bytes`, `bytes_per_s` (the measured
    rate, or None), and `share` (the share of the largest calls, if it has changed). The rail's last 64 `changes` have
    the times at which the rail was taken out of service or put back into service.

    `gone` has a record for each other process that has left the job or failed: `process`, `at_s` (the time at which
    this process noticed), `has_left`, and `why` in words. `has_left` is true if the process ended by itself or failed
    in Python, and false if it was killed or its host does not respond.

    `generations` has a record for each of the last 256 times that the live processes connected anew in `live_devices`:
    `at_s`, the `processes` that are members now, the processes that `left` since the previous record (ended, or were
    started again), the processes that `joined`, `took_s` (the seconds that this process took to connect), and `error`
    (the reason why the processes could not be connected, or ""). `gone` covers only the current generation.

    `plans` has a record for each plan that all threads follow because of `jaxcomm.init` or plan="auto": `axes` (empty
    for all axes), `plan`, `since_s`, `ranks`, `roles`, `collectives` (for each range of sizes, the smallest all-reduce
    in bytes and the schedule, or the two schedules from which calls select), `rails` (the threshold and the planned
    shares), and, if the run made the plan, its `file`.

    `events` has the last 256 findings and actions of plan="auto": `at_s`, the log's `text`, the `outcome`, the `late`
    rank and its lateness (`late_by_s`), the `plan`, and the step's time before and after the switch (`before_s` and
    `after_s`).
    """
    sites, rails = ffi.sites(spans=True), ffi.rails()
    for record in (*sites, *rails):
        for name in {"spans", "changes"} & record.keys():
            record[name] = [_since_the_beginning(each) for each in record[name]]
    gone = map(_since_the_beginning, ffi.gone())
    return Stats(sites, rails, _plans, _events, _seconds(), gone, _generations)


def reset_stats() -> None:
    """Forgets the statistics of all calls so far."""
    ffi.reset_stats()
    _events.clear()


def record_plans(plans: Iterable[Mapping[str, Any]]) -> None:
    """Records that all threads follow these plans from now on.

    Each plan is a record of `jaxcomm.stats().plans` without `since_s`.
    """
    _plans[:] = [{"since_s": _seconds(), **plan} for plan in plans]


def record_generation(before: Mapping[int, int], now: Mapping[int, int], took_s: float, error: str) -> None:
    """Records that the live processes connected anew.

    Args:
      before: the members of the last generation, and the incarnation of each.
      now: the live processes, and the incarnation of each.
      took_s: the seconds that this process took to connect.
      error: the reason why the processes could not be connected, or "".
    """
    _generations.append(
        {
            "at_s": _seconds(),
            "processes": sorted(now),
            "left": sorted(process for process, each in before.items() if now.get(process) != each),
            "joined": sorted(process for process, each in now.items() if before.get(process) != each),
            "took_s": took_s,
            "error": error,
        }
    )


def record_event(text: str, outcome: Outcome, **about: Any) -> None:
    """Records an action of plan="auto", or a trial's outcome.

    Args:
      text: the log's line.
      outcome: the outcome of the action or the trial.
      about: the other fields of a record of `jaxcomm.stats().events`.
    """
    _events.append({"at_s": _seconds(), "text": text, "outcome": outcome, **about})


def _seconds() -> float:
    """Seconds since the run began."""
    return time.monotonic() - _BEGAN


def _since_the_beginning(record: dict[str, Any]) -> dict[str, Any]:
    """Converts a record's times from the core's microseconds of the monotonic clock to seconds since the run began."""
    times = {"at_s": round(record.pop("at_us") / 1e6 - _BEGAN, 6)}
    if "length_us" in record:
        times["length_s"] = record.pop("length_us") / 1e6
    return times | record


def _rail_scalars(rail: dict[str, Any]) -> dict[str, float]:
    return {"share": rail["shares"][-1][1] / UNITS} | {name: rail[name] for name in ("bytes", "fences", "is_open")}


def _scalars(site: dict[str, Any]) -> dict[str, float]:
    found = {name: site[name] for name in ("calls", "failed", "early_bytes_share")}
    if trial := site.get("trial"):
        found["trial_gain_s"] = trial["default_s"] - trial["plan_s"]
    if not site["arrivals"]:
        return found
    found["transfer_s"] = median(site["after_arrival_s"])
    if site["work_s"]:  # groups are an operand: ranks wait only for their own group, so `wait_s` would be wrong
        return found
    latest = [sorted(row)[-2:] for row in site["arrivals"]]
    return found | {"wait_s": median(row[-1] for row in latest), "lead_s": median(row[-1] - row[0] for row in latest)}
