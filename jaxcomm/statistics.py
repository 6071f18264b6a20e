"""`jaxcomm.stats()`: the records of a run, as a table, as JSON and as a trace.

The modules active_plan and auto_plan record here the plans that a run follows and the actions of plan="auto".
`records` describes the records. The modules of tables, traces and files are imported at their first use.
"""

from __future__ import annotations

import datetime
import json
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from jaxcomm import ffi
from jaxcomm.records import EventStats, GenerationStats, GoneStats, Outcome, PlanStats, RailStats, SiteStats

_BEGAN: Final = time.monotonic()  # the run's start: this module is imported before any call
_MOST_EVENTS: Final = 256  # older events are forgotten

_plans: list[Any] = []
_generations: deque[GenerationStats] = deque(maxlen=_MOST_EVENTS)
_events: deque[Any] = deque(maxlen=_MOST_EVENTS)


class Stats(list[SiteStats]):
    """One record per call site. Prints as a table.

    Attributes:
      rails: one record for each rail to each other process; empty if only one rail connects each pair of processes.
      gone: one record per other process that has left the current generation of the job or failed.
      plans: one record per plan that all threads follow.
      events: the last 256 findings and actions of plan="auto".
      generations: the last 256 times that the live processes connected anew in `live_devices`.
      at_s: the time at which the records were read. All times in the records are seconds since the run began.
    """

    def __init__(
        self,
        sites: Iterable[SiteStats] = (),
        rails: Iterable[RailStats] = (),
        plans: Iterable[PlanStats] = (),
        events: Iterable[EventStats] = (),
        at_s: float = 0.0,
        gone: Iterable[GoneStats] = (),
        generations: Iterable[GenerationStats] = (),
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

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace of the latest calls (the calls in `arrivals`) for ui.perfetto.dev or chrome://tracing.

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

    The result is a list with one record per call site (`SiteStats`). It prints as a table; `json()`, `save(path)`
    and `trace(path)` export it. Its attributes `rails`, `gone`, `generations`, `plans` and `events` have
    further records. The types of all records are in `jaxcomm.records`.

    Example:
      >>> jaxcomm.reset_stats()
      >>> total = jax.shard_map(lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
      >>> sums = jax.block_until_ready(total(jnp.arange(8.0)))
      >>> [(site["name"], site["ranks"], site["bytes"]) for site in jaxcomm.stats() if site["calls"]]
      [('psum', 8, 4)]
    """
    sites: list[Any] = ffi.sites(spans=True)
    rails: list[Any] = ffi.rails()
    for record in (*sites, *rails):
        for name in {"spans", "changes"} & record.keys():
            record[name] = [_since_the_beginning(each) for each in record[name]]
    gone = map(_since_the_beginning, ffi.gone())
    return Stats(sites, rails, _plans, _events, _seconds(), gone, _generations)


def snapshot() -> str:
    """The records that `jaxcomm top` shows, as one JSON object.

    The object has the fields of `Stats`, but its sites have no `spans` and its plans have no `file`. The times of
    `rails` and `gone` are microseconds of the monotonic clock.
    """
    records = {
        "at_s": _seconds(),
        "plans": without_files(_plans),
        "generations": [*_generations],
        "events": [*_events],
    }
    texts = [f'"{name}": {text}' for name, text in ffi.record_texts().items()]
    return f"{json.dumps(records)[:-1]}, {', '.join(texts)}}}"


def latest_calls() -> dict[str, list[dict[str, Any]]]:
    """The latest calls of this process, and the latest call that each device has joined, for `profile.dump_file`."""
    return {name: [_since_the_beginning(each) for each in found] for name, found in ffi.calls().items()}


def without_files(plans: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records of plans without the plans themselves."""
    return [{name: value for name, value in plan.items() if name != "file"} for plan in plans]


def reset_stats() -> None:
    """Forgets the statistics of all calls and all events so far."""
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
            "number": _generations[-1]["number"] + 1 if _generations else 1,
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


def _since_the_beginning(record: dict[str, Any]) -> Any:
    """Converts a record's times from the core's microseconds of the monotonic clock to seconds since the run began."""
    times = {"at_s": round(record.pop("at_us") / 1e6 - _BEGAN, 6)}
    if "length_us" in record:
        times["length_s"] = record.pop("length_us") / 1e6
    return times | record
