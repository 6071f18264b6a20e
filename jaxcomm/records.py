"""The types of the records in `jaxcomm.stats()`. They are dicts of numbers, texts and lists, ready for JSON.

All times are seconds. `at_s` and `since_s` count from the beginning of the run. `profile.run_file` has the same fields
as models, which check a saved run.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

# The outcomes of an event of plan="auto".
Outcome = Literal["begun", "followed", "taken back", "no plan", "not measured", "not switched", "failed", "ended"]


class SpanStats(TypedDict):
    """Means over a site's calls during a span of time.

    Attributes:
      at_s: the time at which the span begins.
      length_s: the length of the span.
      calls: the number of calls.
      after_arrival_s: the mean time from the last arrival to the end.
      arrivals: for each rank, the mean time from the first rank's arrival to this rank's arrival, or None as in
        `SiteStats.arrivals`.
    """

    at_s: float
    length_s: float
    calls: int
    after_arrival_s: float
    arrivals: list[float | None]


class TrialStats(TypedDict):
    """The trial of a call site's plan (see `jaxcomm.init`). The times are trimmed means over the latest trial.

    A trimmed mean omits a fifth of the times at either end.

    Attributes:
      outcome: "open", "kept" or "dropped".
      decided_here: whether this process decided the trial.
      trials: the number of ended trials. A new trial begins when calls take much more or less time than in the last
        trial.
      calls: the number of calls by the plan's schedule, and by the default schedule.
      plan_s: time of a call by the plan's schedule, from the last arrival to the end.
      default_s: the same for the default schedule.
      error_s: the standard error of the difference.
      plan_cycle_s: time from the last arrival at a call by the plan's schedule to the last arrival at the next call.
      default_cycle_s: the same for the default schedule.
    """

    outcome: Literal["open", "kept", "dropped"]
    decided_here: bool
    trials: int
    calls: list[int]
    plan_s: float
    default_s: float
    error_s: float
    plan_cycle_s: NotRequired[float]
    default_cycle_s: NotRequired[float]


class SiteStats(TypedDict):
    """One call site.

    If a sum takes its groups as an operand (the plan "groups"), a call that all groups make counts as one call. A rank
    waits only for the last rank of its own group, and `after_arrival_s` is the slowest group's time.

    If XLA or NCCL runs the calls, and JAXCOMM_ARRIVALS is on, all fields but `calls` and `failed` come from a sample of
    the calls between processes. `failed` is then the number of calls that were open at the deadline.

    Attributes:
      name: the operation, and the bucket if the call has one.
      axes: names of the axes, with commas.
      plan: the first letters of the plan's hash; without a plan "direct" or "ring", or "lax" if XLA runs the call.
      ranks: the number of ranks that call together.
      bytes: the bytes of a rank's buffer.
      calls: the number of calls that ended.
      failed: the number of calls that failed.
      transfer_s: total time from the last arrival to the end.
      early_bytes_share: the share of the work that was done before the last arrival.
      lost_bytes: bytes that ranks of this process should have added but that the network lost; the policy "network" of
        a `Drop` allows this.
      early_calls: the number of calls that selected the schedule for calls without a late rank: a plan's
        `selector.early`, or in a trial the default schedule.
      lost_rail_calls: the number of calls that ran a plan's schedule for a host that lacks a rail.
      trial: the trial of the site's plan, if it has begun.
      wait_s: for each rank, the total time that the rank waited for the last rank.
      late: for each rank, the number of calls in which it was the last rank.
      arrivals: for each of the last 256 calls and each rank, the time after the first rank's arrival. Sends within
        a host without messages are only counted. If groups are an operand and the ranks are in several processes, the
        entry is None for the ranks of a group that has no rank of this process.
      work_s: if groups are an operand, for each of the last 256 calls and each rank, the time since the rank's previous
        call ended; the entry is None for ranks of other processes. The list is empty if groups are not an operand.
      after_arrival_s: for each of the last 256 calls, the time from the last arrival to the end.
      spans: at most 256 spans, which cover the whole run and become longer as the run goes on.
    """

    name: str
    axes: str
    plan: str
    ranks: int
    bytes: int
    calls: int
    failed: int
    transfer_s: float
    early_bytes_share: float
    lost_bytes: int
    early_calls: int
    lost_rail_calls: int
    trial: NotRequired[TrialStats]
    wait_s: list[float]
    late: list[int]
    arrivals: list[list[float | None]]
    work_s: list[list[float | None]]
    after_arrival_s: list[float]
    spans: list[SpanStats]


class RailSpanStats(TypedDict):
    """A rail's traffic during a span of time.

    Attributes:
      at_s: the time at which the span begins.
      length_s: the length of the span.
      bytes: the bytes that the other process received over the rail.
      bytes_per_s: the measured rate; None: not measured.
      share: the rail's share of the largest calls, in units of 1/1024; None: it did not change.
    """

    at_s: float
    length_s: float
    bytes: int
    bytes_per_s: float | None
    share: int | None


class RailChangeStats(TypedDict):
    """An event: a rail was taken out of service, or put back into service."""

    at_s: float
    is_open: bool
    why: str


class RailStats(TypedDict):
    """One rail to one other process.

    Attributes:
      process: the other process.
      host: the first process on the other process's host.
      rail: the rail's name.
      is_open: whether the rail is in service.
      has_left: whether the rail ended because the other process left.
      fences: the number of times that the rail was taken out of service.
      bytes: the bytes that the other process received over the rail.
      shares: for each range of sizes, the smallest call in bytes and the rail's current share in units of 1/1024.
      spans: the rail's traffic over the run.
      changes: the last 64 times at which the rail was taken out of service or put back into service.
    """

    process: int
    host: int
    rail: str
    is_open: bool
    has_left: bool
    fences: int
    bytes: int
    shares: list[list[int]]
    spans: list[RailSpanStats]
    changes: list[RailChangeStats]


class GoneStats(TypedDict):
    """A process that has failed, or has left the current generation of the job.

    Attributes:
      process: the process.
      at_s: the time at which this process noticed.
      has_left: true if the process ended by itself or failed in Python, false if it was killed or its host does not
        respond.
      why: the reason, in words.
    """

    process: int
    at_s: float
    has_left: bool
    why: str


class GenerationStats(TypedDict):
    """An attempt of the live processes, in `live_devices`, to connect to each other again.

    Attributes:
      number: the record's number, from 1.
      at_s: the time.
      processes: the processes that are members from now on.
      left: the processes that ended, or were started again, since the previous record.
      joined: the processes that joined since then.
      took_s: the time that this process took to connect.
      error: the reason why the processes could not be connected, or "".
    """

    number: int
    at_s: float
    processes: list[int]
    left: list[int]
    joined: list[int]
    took_s: float
    error: str


class SelectorStats(TypedDict):
    """The two schedules from which calls select: see `jaxcomm.plan.values.ScheduleSelector`."""

    by_turns: bool
    lateness_s: float
    early: str
    late: str


class ScheduleStats(TypedDict):
    """The schedule for all-reduces of at least `min_bytes` bytes.

    `name` is the schedule's name in profiles, or None. `selector` has the schedules from which calls select, or is
    None.
    """

    min_bytes: int
    schedule: str
    name: dict[str, Any] | None
    selector: SelectorStats | None


class SharesStats(TypedDict):
    """The rails' planned shares for calls of at least `min_bytes` bytes, in units of 1/1024."""

    min_bytes: int
    shares: dict[str, int]


class PlannedRailsStats(TypedDict):
    """The rails of a plan. Calls of `threshold_bytes` bytes or more use several rails; None: no call does so."""

    threshold_bytes: int | None
    ranges: list[SharesStats]


class PlanStats(TypedDict):
    """A plan that all threads follow because of `jaxcomm.init` or plan="auto".

    Attributes:
      axes: the plan's axes; empty for all axes.
      plan: the first letters of the plan's hash, or "none". Without a plan the fields below `since_s` are missing.
      since_s: the time at which calls began to follow the plan.
      ranks: the number of ranks.
      roles: the rank of each role.
      collectives: the schedule of each range of sizes.
      rails: the threshold and the planned shares, or None.
      file: the plan's file, if the run made the plan.
    """

    axes: list[str]
    plan: str
    since_s: float
    ranks: NotRequired[int]
    roles: NotRequired[dict[str, int]]
    collectives: NotRequired[list[ScheduleStats]]
    rails: NotRequired[PlannedRailsStats | None]
    file: NotRequired[dict[str, Any]]


class EventStats(TypedDict):
    """A finding or an action of plan="auto".

    Attributes:
      at_s: the time.
      text: the log's line.
      outcome: the outcome.
      late: the late ranks.
      late_by_s: their lateness.
      plan: the plan.
      before_s: a step's time before the switch.
      after_s: a step's time after the switch.
    """

    at_s: float
    text: str
    outcome: Outcome
    late: NotRequired[list[int]]
    late_by_s: NotRequired[float]
    plan: NotRequired[str]
    before_s: NotRequired[float]
    after_s: NotRequired[float]
