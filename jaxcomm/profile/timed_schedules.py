"""Whole schedules that were timed on their executors, without and with a late rank."""

from __future__ import annotations

import itertools
from statistics import median
from typing import Annotated, Final, Literal, Self

import pydantic
from pydantic import Field

from jaxcomm.files import Bytes, Count, Positive, Seconds, Value
from jaxcomm.profile.racks_and_rails import Rank, Share

TimedExecutor = Literal["memory", "messages", "xla"]
Turns = Annotated[list[Annotated[Seconds, Field(gt=0)]], Field(max_length=64)]
TimedKind = Literal[
    "direct",
    "ring",
    "halving_doubling",
    "halving_doubling_by_hosts",
    "hierarchical",
    "broadcast",
    "direct_join",
    "straggler",
    "hybrid",
    "late_join",
    "lax",
]
Chunks = Annotated[Positive, Field(le=65536)]

WHOLE: Final = ("late_join", "lax")  # kinds that run as whole XLA collectives, not as rounds
_DEFAULTS: Final[dict[TimedExecutor, tuple[TimedKind, ...]]] = {
    "memory": ("direct",),
    "messages": ("direct", "ring"),
    "xla": ("lax",),
}
_PARAMETERS: Final = {
    "halving_doubling_by_hosts": ("order",),
    "hierarchical": ("chunks",),
    "direct_join": ("chunks",),
    "straggler": ("chunks",),
    "hybrid": ("chunks", "covered"),
    "late_join": ("chunks",),
}


class ScheduleSample(Value):
    """The times of one schedule for one size, from the last arrival to the end. A turn of a few calls gives one time.

    A turn's time is the median of its calls or, if the host's clock timed them, their mean. In the turns of `together`
    no rank is late. In the turns of `late` one rank is late ([]: no rank was made late). In the last of these turns it
    is `late_by_s` seconds late.
    """

    bytes: Bytes
    together: Annotated[Turns, Field(min_length=1)]
    late: Turns = []
    late_by_s: Seconds = 0.0

    @property
    def together_s(self) -> float:
        """The median over the turns in which no rank is late."""
        return median(self.together)

    @property
    def late_s(self) -> float:
        """The median of `after`."""
        return median(self.late or self.together)

    @property
    def after(self) -> Turns:
        """The turns in which one rank is late; the turns of `together` if no rank was made late."""
        return self.late or self.together


class ScheduleName(Value):
    """A schedule by its kind and its parameters, as in a plan's entry; null for parameters that the kind lacks.

    Only a hierarchical schedule that is made for a late rank has `within` and `across`.
    """

    kind: TimedKind
    chunks: Chunks | None = None
    covered: Chunks | None = None
    within: Annotated[Count, Field(le=65536)] | None = None
    across: Annotated[Count, Field(le=65536)] | None = None
    order: Annotated[str, Field(max_length=32)] | None = None

    @property
    def name(self) -> ScheduleName:
        """The schedule alone, without its times."""
        return ScheduleName.model_validate(self.model_dump(include={*ScheduleName.model_fields}))

    @pydantic.model_validator(mode="after")
    def _has_its_parameters(self) -> Self:
        needed = _PARAMETERS.get(self.kind, ())
        for name in ("chunks", "covered", "order"):
            if (getattr(self, name) is None) == (name in needed):
                has = " and ".join(needed) or "no parameters"
                raise ValueError(f"{self.kind} with {name} {getattr(self, name)}; it has {has}")
        if (self.within is None) != (self.across is None) or (self.within is not None and self.kind != "hierarchical"):
            raise ValueError(
                f"{self.kind} with within {self.within} and across {self.across}; only a hierarchical schedule for a "
                "late rank has both"
            )
        return self


class TimedSchedule(ScheduleName):
    """A schedule that was timed. Its samples are in order of size.

    If `executor` is "xla", XLA's own collectives ran the schedule; if null, the executor of `TimedSchedules` ran it.
    """

    executor: Literal["xla"] | None = None
    samples: Annotated[list[ScheduleSample], Field(min_length=1, max_length=64)]


class TriedSchedule(ScheduleName):
    """A schedule that a run has compared with the default schedule: the mean times of both for calls of `bytes` bytes.

    `late` is the schedule's late rank (null: no late rank). `error_s` is the standard error of the difference of the
    two times. `is_kept` says whether the run went on with the schedule.
    """

    bytes: Bytes
    late: Rank | None = None
    plan_s: Seconds
    default_s: Annotated[Seconds, Field(gt=0)]
    error_s: Seconds
    is_kept: Annotated[bool, Field(strict=True)]

    @property
    def ratio(self) -> float:
        """The schedule's time divided by the default schedule's time; at least 1 if the run dropped the schedule."""
        found = self.plan_s / self.default_s
        return found if self.is_kept else max(1.0, found)


class LeftOut(Value):
    """The number of schedules that might be best for calls of `bytes` bytes, and how many of them were timed."""

    bytes: Bytes
    timed: Count
    offered: Count


class TimedSchedules(Value):
    """The schedules that were timed in turns, by one clock.

    `executor` is "memory" (one process, whose ranks read each other's memory), "messages" (ranks of several processes)
    or "xla". XLA runs rounds as collective-permutes and "late_join" as whole collectives; its default schedule is
    "lax", which is `lax.psum`. With "memory" and "messages", a schedule's own `executor` may be "xla". `late` is the
    rank that was made late. If there was not enough time for all schedules, `left_out` says for each size how many were
    timed, and `seconds_for_all` is the time that timing all schedules would take. `others` is the share of processor
    time that other programs took meanwhile, on the machine where they took most.
    """

    executor: TimedExecutor
    late: Rank
    schedules: Annotated[list[TimedSchedule], Field(min_length=1, max_length=1024)]
    left_out: Annotated[list[LeftOut], Field(max_length=64)] = []
    seconds_for_all: Seconds = 0.0
    others: Share = 0.0

    @pydantic.model_validator(mode="after")
    def _times_can_be_compared(self) -> Self:
        names = [(self._executor_of(each), each.name) for each in self.schedules]
        for i, each in enumerate(self.schedules):
            place = f"timed_schedules.schedules[{i}]"
            if names.index(names[i]) < i:
                raise ValueError(
                    f"{place} is {each.kind} on the executor {names[i][0]} again; each schedule has one table"
                )
            if each.kind in WHOLE and names[i][0] != "xla":
                raise ValueError(f"{place} is {each.kind}, which the executor {names[i][0]} does not run")
            own = [sample.bytes for sample in each.samples]
            if any(low >= high for low, high in itertools.pairwise(own)):
                raise ValueError(f"{place}.samples have sizes {own}; sizes must ascend")
            for j, sample in enumerate(each.samples):
                if sample.late and len(sample.together) != len(sample.late):
                    raise ValueError(
                        f"{place}.samples[{j}] has {len(sample.together)} turns in together and {len(sample.late)} in "
                        "late; their numbers must be equal"
                    )
        for executor, timed in self.by_executor().items():
            timed._have_a_default(executor)
        return self

    def _have_a_default(self, executor: TimedExecutor) -> None:
        """Raises ValueError if a size has no time of a default schedule, or if only one schedule was timed."""
        for size in self.sizes:
            kinds = [each.kind for each in self.schedules if any(sample.bytes == size for sample in each.samples)]
            if not {*self.defaults} & {*kinds}:
                raise ValueError(
                    f"timed_schedules.schedules of the executor {executor} have {', '.join(kinds)} at {size} bytes, "
                    f"but not {' or '.join(self.defaults)}, which runs there without a plan"
                )
        if len(self.schedules) < 2:
            raise ValueError(
                f"timed_schedules.schedules of the executor {executor} are {self.schedules[0].kind} alone; at least "
                "one other is needed for comparison"
            )

    @property
    def defaults(self) -> tuple[TimedKind, ...]:
        """The kinds of schedule that run without a plan. Between processes, the size selects one of two kinds."""
        return _DEFAULTS[self.executor]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of all samples, ascending."""
        return tuple(sorted({sample.bytes for each in self.schedules for sample in each.samples}))

    def by_executor(self) -> dict[TimedExecutor, Self]:
        """The timed schedules of each executor, beginning with `executor`."""
        found: dict[TimedExecutor, list[TimedSchedule]] = {}
        for each in self.schedules:
            found.setdefault(self._executor_of(each), []).append(each.model_copy(update={"executor": None}))
        order = sorted(found, key=lambda name: name != self.executor)
        return {name: self.model_copy(update={"executor": name, "schedules": found[name]}) for name in order}

    def _executor_of(self, schedule: TimedSchedule) -> TimedExecutor:
        return schedule.executor or self.executor
