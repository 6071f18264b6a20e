"""The file that `jaxcomm.stats().save(path)` writes: the records of a run up to then."""

from __future__ import annotations

import os
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from jaxcomm import files
from jaxcomm.errors import ProfileError
from jaxcomm.files import Count, Seconds, Text, Value
from jaxcomm.profile.files import read_bytes
from jaxcomm.profile.schema import MAX_RANKS

FORMAT: Final = "jaxcomm-stats"
VERSION: Final = 1

# The outcomes of plan="auto"'s findings.
Outcome = Literal["begun", "followed", "taken back", "no plan", "not measured", "not switched", "failed", "ended"]


class SiteSpan(Value):
    """The calls of a site over some time, in the mean."""

    at_s: Seconds
    length_s: Seconds
    calls: Count
    after_arrival_s: Seconds
    arrivals: list[Seconds | None]


class SiteTrial(Value):
    """The trial of a call site's plan; the times are means of `calls`, of the plan and of the default schedule."""

    outcome: Literal["open", "kept", "dropped"]
    decided_here: bool
    trials: Count
    calls: tuple[Count, Count]
    plan_s: Seconds
    default_s: Seconds
    error_s: Seconds
    plan_cycle_s: Seconds | None = None
    default_cycle_s: Seconds | None = None


class RunSite(Value):
    """A record of `jaxcomm.stats()`."""

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
    arrivals: list[list[Seconds | None]]  # None: of a rank in another process, in groups that change
    work_s: list[list[Seconds | None]]
    after_arrival_s: list[Seconds]
    spans: list[SiteSpan] = []

    @model_validator(mode="after")
    def _has_all_ranks(self) -> Self:
        for span in self.spans:
            if len(span.arrivals) != self.ranks:
                raise ValueError(f"a span of {self.name} has {len(span.arrivals)} arrivals; it must have {self.ranks}")
        return self


class RailSpan(Value):
    """A rail's traffic over some time; the rate and the share are None where they were not measured, or stayed."""

    at_s: Seconds
    length_s: Seconds
    bytes: Count
    bytes_per_s: Annotated[float, Field(ge=0, le=1e18, strict=True, allow_inf_nan=False)] | None
    share: Count | None


class RailChange(Value):
    """A rail was fenced, or taken back."""

    at_s: Seconds
    is_open: bool
    why: Text


class RunRail(Value):
    """A record of `jaxcomm.stats().rails`."""

    process: Count
    host: Count | None = None  # of the process, by the first process on it
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


class SelectedSchedules(Value):
    """The schedules of a plan's selector: `early` where the late rank, with `by_turns` any, came less than `lateness_s`
    seconds late."""

    by_turns: bool = False
    lateness_s: Seconds
    early: Text
    late: Text


class ScheduleFrom(Value):
    """The schedule of all-reduces of at least `min_bytes` bytes."""

    min_bytes: Count
    schedule: Text
    selector: SelectedSchedules | None = None


class PlannedShares(Value):
    """The planned shares, of 1024, of calls of at least `min_bytes` bytes."""

    min_bytes: Count
    shares: dict[Text, Count]


class PlannedRails(Value):
    """The rails of a plan; a call of `threshold_bytes` or more takes several, None: none does."""

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
    """The file's content; `written` at `at_s`, by the clock of the machine and in seconds since the run began."""

    format: Literal["jaxcomm-stats"]
    version: Literal[1]
    written: AwareDatetime | None = None
    at_s: Seconds = 0.0
    sites: list[RunSite]
    rails: list[RunRail] = []
    gone: list[GoneProcess] = []
    plans: list[RunPlan] = []
    events: list[RunEvent] = []


KIND: Final = files.Kind("stats", VERSION, SavedRun, ProfileError, "`jaxcomm.stats().save(path)`")


def load(path: str | os.PathLike[str]) -> SavedRun:
    """The records that a run has saved.

    Raises:
      ProfileError: the file cannot be read, or holds something else.
    """
    return decode(read_bytes(path), os.fspath(path))


def decode(data: bytes, where: str) -> SavedRun:
    """The content of the file's bytes; `where` names them in errors.

    Raises:
      ProfileError: they hold something else.
    """
    return KIND.validate(KIND.parse(data, where), where)
