"""`jaxcomm.stats()`: the records of a run, as a table, as JSON, as scalars and as a trace.

The active plan and auto_plan record here the plans that a run follows and what plan="auto" does;
`profile.run_file` describes the records. Tables, traces and files are imported when they are asked for.
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

_BEGAN: Final = time.monotonic()  # the times of a run count from here: this is imported before any call
_MOST_EVENTS: Final = 256  # the last ones are kept

_plans: list[dict[str, Any]] = []
_events: deque[dict[str, Any]] = deque(maxlen=_MOST_EVENTS)


class Stats(list[dict[str, Any]]):
    """One record per call site, which prints as a table.

    Attributes:
      rails: one record per rail to another process; none where one rail leads to each.
      gone: one record per other process that is gone.
      plans: one record per plan that all threads follow.
      events: one record for each thing that plan="auto" has found or done.
      at_s: seconds since the run began, from which all times of records count.
    """

    def __init__(
        self,
        sites: Iterable[dict[str, Any]] = (),
        rails: Iterable[dict[str, Any]] = (),
        plans: Iterable[dict[str, Any]] = (),
        events: Iterable[dict[str, Any]] = (),
        at_s: float = 0.0,
        gone: Iterable[dict[str, Any]] = (),
    ) -> None:
        super().__init__(sites)
        self.rails, self.plans, self.events, self.at_s = list(rails), list(plans), list(events), at_s
        self.gone = list(gone)

    def __repr__(self) -> str:
        from jaxcomm.report import sites

        tables = [sites.sites_table(self)]
        tables += [sites.rails_table(self.rails)] if self.rails else []
        return "\n\n".join([*tables, *(["\n".join(sites.gone_lines(self.gone))] if self.gone else [])])

    def json(self) -> str:
        """The records as JSON, for `jaxcomm report`, `jaxcomm profile import` and `jaxcomm.profile.from_stats`."""
        from jaxcomm.profile.run_file import FORMAT, VERSION

        written = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        records = {"sites": self, "rails": self.rails, "gone": self.gone, "plans": self.plans, "events": self.events}
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

        A name is the site's operation, axes, plan, ranks x bytes, and one of: `calls`, `failed`, `early_bytes_share`;
        `wait_s`, from the first rank's arrival to the last one's; `lead_s`, from the last but one's to the last one's;
        `transfer_s`, from there to the end. The times are medians of the calls that are kept. `trial_gain_s` is what
        the plan saved of a call in its trial. Sites without a call are
        left out. Of a rail, by names such as `rails/1/eth0/share` (the process, and the rail to it): `share` of the
        largest calls, `bytes`, `fences`, and `is_open`, 0 or 1.
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
        """Writes the calls that are kept as a trace for ui.perfetto.dev or chrome://tracing.

        Each site is a process and each rank a track, with a slice for its wait and one for the transfer of every call.
        When a call began is not recorded, so a site's calls stand one after the other, without the time between them.
        `jaxcomm report run.json --trace FILE` has the whole run by its time.

        Raises:
          JaxcommError: the file cannot be written.
        """
        from jaxcomm import files
        from jaxcomm.report import trace

        files.write(path, trace.of_sites(self))


def stats() -> Stats:
    """The statistics of each call site of this process since the start or the last `reset_stats`.

    It prints as a table; `json()`, `save(path)`, `scalars()` and `trace(path)` give it to other tools. Per site: name,
    axes, plan, ranks, bytes, calls, failed; `wait_s` and `late` by rank (total seconds a rank waited for the last one,
    how often it was the last one); `transfer_s`, total seconds from the last arrival to the end; `early_bytes_share`,
    how much of the work was done before the last arrival; `lost_bytes`, what the network has lost, as it may with the
    policy "network" of a `Drop`, of what the ranks of this process were to add; `early_calls`, how many of
    the calls that select a schedule ran that for no late rank: what a plan's `selector.early` says, or in a trial the
    default one; `lost_rail_calls`, how many ran a schedule that a plan has for a host that lacks a rail; and of the
    last 256 calls `arrivals` (seconds after the first rank, by rank) and `after_arrival_s`.

    A plan's call sites have a `trial` (see `jaxcomm.init`): its `outcome` ("open", "kept" or "dropped"), whether this
    process decided it (`decided_here`), the number of trials that have ended (`trials`: when calls take much more or
    less time than in the last one, there is another), and of the latest the number of `calls`, by the plan and without
    it, their mean seconds from the last arrival to the end (`plan_s`, `default_s`, with `error_s`, the standard error
    of the difference), and from the last arrival to that of the next call (`plan_cycle_s`, `default_cycle_s`).

    Sums in groups that are data (plan "groups") count once for all groups together: a rank waits for the last one of
    its group and may be that, `after_arrival_s` is the slowest group's, and `work_s` has for each of the last calls the
    seconds since each rank's call before ended, by rank. It is empty for other sites. Between processes `arrivals` has
    None for ranks of groups that no rank of this process is in, and `work_s` for ranks of other processes.

    What the run was like from its beginning is in each site's `spans`, 256 at most, which become longer as the run
    does: `at_s`, `length_s`, `calls`, and of these the mean `arrivals` and `after_arrival_s`.

    `rails`, an attribute of what is returned, has a record for each rail to each other process, if there are several:
    process, `host` (the first process on its host), rail, `is_open`, `has_left` (with its process), `fences` (how often
    it was taken out of service), `bytes` that the process has received over it, and `shares`, its part of 1024 by the
    least bytes of a call, as it is in force now. Its `spans` have `bytes`, `bytes_per_s` (the rate that was found, or
    None), and `share` (of the largest calls, where it has changed); its last 64 `changes` say when it was fenced and
    taken back.

    `gone` has a record for each other process from which nothing comes any more: `process`, `at_s` (when this one
    noticed), `has_left` (it ended by itself, or failed in Python; else it was killed, or its host does not answer), and
    `why` in words.

    `plans` has a record for each plan that `jaxcomm.init` has made all threads follow, and of the one that plan="auto"
    has them follow: `axes` (none: all), `plan`, `since_s`, `ranks`, `roles`, `collectives` (schedules of all-reduces
    by their least bytes, and the two that calls select from), `rails` (the threshold and the planned shares), and the
    `file` of a plan that the run made. `events` has the last 256 findings and actions of plan="auto": `at_s`,
    the `text` of the log, its `outcome`, who was `late` and by how much (`late_by_s`), the `plan`, and the step's time
    before and after the switch, `before_s` and `after_s`.
    """
    sites, rails = ffi.sites(spans=True), ffi.rails()
    for record in (*sites, *rails):
        for name in {"spans", "changes"} & record.keys():
            record[name] = [_since_the_beginning(each) for each in record[name]]
    gone = map(_since_the_beginning, ffi.gone())
    return Stats(sites, rails, _plans, _events, _seconds(), gone)


def reset_stats() -> None:
    """Forgets what `stats` has gathered."""
    ffi.reset_stats()
    _events.clear()


def record_plans(plans: Iterable[Mapping[str, Any]]) -> None:
    """From now on all threads follow these plans, each a record of `jaxcomm.stats().plans` without its time."""
    _plans[:] = [{"since_s": _seconds(), **plan} for plan in plans]


def record_event(text: str, outcome: Outcome, **about: Any) -> None:
    """Records an action of plan="auto", or a trial's outcome.

    Args:
      text: the log's line.
      outcome: of both kinds.
      about: the rest of a record of `jaxcomm.stats().events`.
    """
    _events.append({"at_s": _seconds(), "text": text, "outcome": outcome, **about})


def _seconds() -> float:
    """Since the run began."""
    return time.monotonic() - _BEGAN


def _since_the_beginning(record: dict[str, Any]) -> dict[str, Any]:
    """The core's microseconds of the monotonic clock as seconds of the run."""
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
    if site["work_s"]:  # in groups that change nobody waits for the last of all ranks
        return found
    latest = [sorted(row)[-2:] for row in site["arrivals"]]
    return found | {"wait_s": median(row[-1] for row in latest), "lead_s": median(row[-1] - row[0] for row in latest)}
