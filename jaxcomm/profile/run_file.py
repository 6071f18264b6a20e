"""The file that `jaxcomm.stats().save(path)` writes: the records of a run so far."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from jaxcomm import files
from jaxcomm.errors import ProfileError
from jaxcomm.files import Count, Seconds, Text, Value
from jaxcomm.profile.files import read_bytes
from jaxcomm.profile.schema import MAX_RANKS
from jaxcomm.profile.timed_schedules import ScheduleName
from jaxcomm.records import Outcome

FORMAT: Final = "jaxcomm-stats"
VERSION: Final = 1

# The length of a span of time, in seconds.
Length = Annotated[float, Field(gt=0, le=1e9, strict=True, allow_inf_nan=False)]


class SiteSpan(Value):
    """Means over the calls of a site during a span of time."""

    at_s: Seconds
    length_s: Length
    calls: Count
    after_arrival_s: Seconds
    arrivals: list[Seconds | None]


class SiteTrial(Value):
    """The trial of a call site's plan.

    `calls` has the number of calls by the plan's schedule and by the default schedule. The times are trimmed means over
    these calls.
    """

    outcome: Literal["open", "kept", "dropped"]
    decided_here: bool
    trials: Count
    calls: tuple[Count, Count]
    plan_s: Seconds
    default_s: Seconds
    error_s: Seconds
    plan_cycle_s: Seconds | None = None
    default_cycle_s: Seconds | None = None

    @property
    def gain(self) -> float:
        """The share of the default schedule's transfer time that the plan's schedule saves."""
        return 1 - self.plan_s / self.default_s if self.default_s else 0.0

    @property
    def gain_error(self) -> float:
        """The standard error of `gain`."""
        return self.error_s / self.default_s if self.default_s else 0.0


class RunSite(Value):
    """A record of `jaxcomm.stats()`, which describes one call site."""

    name: Text
    axes: Text
    plan: Text
    ranks: Annotated[int, Field(ge=1, le=MAX_RANKS, strict=True)]
    bytes: Count
    calls: Count
    failed: Count
    transfer_s: Seconds
    early_bytes_share: Seconds
    lost_bytes: Count = 0
    early_calls: Count = 0
    lost_rail_calls: Count = 0
    trial: SiteTrial | None = None
    wait_s: list[Seconds]
    late: list[Count]
    arrivals: list[list[Seconds | None]]  # None: groups change, and the rank's group has no rank of this process
    work_s: list[list[Seconds | None]]
    after_arrival_s: list[Seconds]
    spans: list[SiteSpan] = []

    @model_validator(mode="after")
    def _has_all_ranks(self) -> Self:
        rows: dict[str, Sequence[object]] = {f"arrivals[{i}]": row for i, row in enumerate(self.arrivals)}
        rows |= {f"work_s[{i}]": row for i, row in enumerate(self.work_s)}
        rows |= {f"spans[{i}].arrivals": span.arrivals for i, span in enumerate(self.spans)}
        for place, row in rows.items():
            if len(row) != self.ranks:
                raise files.wrong_below(place, f"has {len(row)} entries; it must have {self.ranks}, one for each rank")
        if len(self.after_arrival_s) != len(self.arrivals):
            numbers = f"has {len(self.after_arrival_s)} entries; it must have {len(self.arrivals)}"
            raise files.wrong_below("after_arrival_s", f"{numbers}, one for each call in arrivals")
        return self

    @property
    def has_fixed_groups(self) -> bool:
        """Whether the arrivals of all ranks are known, as they are if the site's groups do not change."""
        return not self.work_s and all(at is not None for call in self.arrivals for at in call)


class RailSpan(Value):
    """A rail's traffic during a span of time.

    `bytes_per_s` is None if it was not measured, and `share` is None if it did not change.
    """

    at_s: Seconds
    length_s: Length
    bytes: Count
    bytes_per_s: Annotated[float, Field(ge=0, le=1e18, strict=True, allow_inf_nan=False)] | None
    share: Count | None


class RailChange(Value):
    """An event: a rail was fenced, or was opened again."""

    at_s: Seconds
    is_open: bool
    why: Text


class RunRail(Value):
    """A record of `jaxcomm.stats().rails`."""

    process: Count
    host: Count | None = None  # the process's host: the number of the first process on that host
    rail: Text
    is_open: bool
    has_left: bool = False
    fences: Count
    bytes: Count
    shares: Annotated[list[tuple[Count, Count]], Field(min_length=1)]
    spans: list[RailSpan] = []
    changes: list[RailChange] = []


class GoneProcess(Value):
    """A record of `jaxcomm.stats().gone`."""

    process: Count
    at_s: Seconds
    has_left: bool
    why: str


class Generation(Value):
    """A record of `jaxcomm.stats().generations`."""

    number: Count = 0
    at_s: Seconds
    processes: list[Count]
    left: list[Count] = []
    joined: list[Count] = []
    took_s: Seconds = 0.0
    error: str = ""


class SelectedSchedules(Value):
    """The schedules of a plan's selector.

    Without `by_turns`, a call runs `early` if the late rank was less than `lateness_s` seconds late in an earlier call.
    With `by_turns`, a call runs `early` if no rank is `lateness_s` seconds late in this call. Other calls run `late`.
    """

    by_turns: bool = False
    lateness_s: Seconds
    early: Text
    late: Text


class ScheduleFrom(Value):
    """The schedule for all-reduces of at least `min_bytes` bytes."""

    min_bytes: Count
    schedule: Text
    name: ScheduleName | None = None
    selector: SelectedSchedules | None = None


class PlannedShares(Value):
    """The rails' planned shares for calls of at least `min_bytes` bytes, in units of 1/1024."""

    min_bytes: Count
    shares: dict[Text, Count]


class PlannedRails(Value):
    """The rails of a plan. Calls of `threshold_bytes` bytes or more use several rails (None: no call does so)."""

    threshold_bytes: Count | None
    ranges: list[PlannedShares]


class RunPlan(Value):
    """A record of `jaxcomm.stats().plans`."""

    axes: list[Text]
    plan: Text
    since_s: Seconds
    ranks: Count = 0
    roles: dict[Text, Count] = {}
    collectives: list[ScheduleFrom] = []
    rails: PlannedRails | None = None
    file: dict[str, Any] | None = None


class RunEvent(Value):
    """A record of `jaxcomm.stats().events`."""

    at_s: Seconds
    text: str
    outcome: Outcome
    late: list[Count] = []
    late_by_s: Seconds = 0.0
    plan: Text = ""
    before_s: Seconds | None = None
    after_s: Seconds | None = None


class SavedRun(Value):
    """The file's content. The file was written `at_s` seconds after the run began, at `written` by the local clock."""

    format: Literal["jaxcomm-stats"]
    version: Literal[1]
    written: AwareDatetime | None = None
    at_s: Seconds = 0.0
    sites: list[RunSite]
    rails: list[RunRail] = []
    gone: list[GoneProcess] = []
    generations: list[Generation] = []
    plans: list[RunPlan] = []
    events: list[RunEvent] = []


KIND: Final = files.Kind("stats", VERSION, SavedRun, ProfileError, "`jaxcomm.stats().save(path)`")


def load(path: str | os.PathLike[str]) -> SavedRun:
    """The records that a run has saved.

    Raises:
      ProfileError: the file cannot be read, or does not hold saved statistics.
    """
    return decode(read_bytes(path), os.fspath(path))


def decode(data: bytes, where: str) -> SavedRun:
    """The records in the bytes of a file; `where` is the file's name in error texts.

    Raises:
      ProfileError: the bytes do not hold saved statistics.
    """
    return KIND.validate(KIND.parse(data, where), where)
