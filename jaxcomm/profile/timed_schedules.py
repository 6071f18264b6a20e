"""Whole schedules that were timed on their executors, with nobody late and with one rank late."""

from __future__ import annotations

import itertools
from statistics import median
from typing import Annotated, Final, Literal, Self

import pydantic
from pydantic import Field

from jaxcomm.files import Bytes, Positive, Seconds, Value
from jaxcomm.profile.racks_and_rails import Rank

TimedExecutor = Literal["memory", "messages", "xla"]
Turns = Annotated[list[Annotated[Seconds, Field(gt=0)]], Field(min_length=1, max_length=64)]
TimedKind = Literal["direct", "ring", "halving_doubling", "broadcast", "direct_join", "straggler", "late_join", "lax"]

WHOLE: Final = ("late_join", "lax")  # that whole collectives of XLA's run, and no rounds


class ScheduleSample(Value):
    """The times of one schedule for one size, from the last arrival to the end, each the median call of one turn.

    In `together` nobody is late, in `late` one rank, in the last turn by `late_by_s`.
    """

    bytes: Bytes
    together: Turns
    late: Turns
    late_by_s: Seconds

    @property
    def together_s(self) -> float:
        """The median turn in which nobody is late."""
        return median(self.together)

    @property
    def late_s(self) -> float:
        """The median turn in which one rank is late."""
        return median(self.late)


class TimedSchedule(Value):
    """A schedule by its kind, and by its chunks where these can be chosen (else null); samples by ascending size.

    `executor` "xla" had XLA's own collectives run it; null: the executor of the whole.
    """

    kind: TimedKind
    executor: Literal["xla"] | None = None
    chunks: Annotated[Positive, Field(le=65536)] | None = None
    samples: Annotated[list[ScheduleSample], Field(min_length=1, max_length=64)]


class TimedSchedules(Value):
    """The schedules that were timed in turns, by one clock.

    `executor` is "memory" (one process, whose ranks read each other's memory), "messages" (ranks of several processes)
    or "xla" (rounds as collective-permutes, "late_join" as whole collectives, and "lax", which is `lax.psum` and the
    default there). Beside the first two, schedules may have been timed that name "xla" themselves. `late` is the rank
    that was made late.
    """

    executor: TimedExecutor
    late: Rank
    schedules: Annotated[list[TimedSchedule], Field(min_length=1, max_length=64)]

    @pydantic.model_validator(mode="after")
    def _times_can_be_compared(self) -> Self:
        names = [(self._executor_of(each), each.kind, each.chunks) for each in self.schedules]
        sizes = [sample.bytes for sample in self.schedules[0].samples]
        for i, each in enumerate(self.schedules):
            if names.index(names[i]) < i:
                raise ValueError(f"schedules[{i}] is {each.kind} again; each schedule has one table")
            own = [sample.bytes for sample in each.samples]
            if any(low >= high for low, high in itertools.pairwise(own)):
                raise ValueError(f"schedules[{i}].samples have sizes {own}; sizes must ascend")
            if own != sizes:
                raise ValueError(f"schedules[{i}].samples have sizes {own}; those of schedules[0] are {sizes}")
        turns = [(len(sample.together), len(sample.late)) for each in self.schedules for sample in each.samples]
        if any(together != late for together, late in turns):
            raise ValueError("a sample has not as many turns with one rank late as with nobody late")
        for i, (executor, kind, chunks) in enumerate(names):
            if (chunks is None) != (kind not in ("direct_join", "straggler", "late_join")):
                raise ValueError(
                    f"schedules[{i}] is {kind} with chunks {chunks}; direct_join, straggler and late_join have chunks"
                )
            if kind in WHOLE and executor != "xla":
                raise ValueError(f"schedules[{i}] is {kind}, which the executor {executor} does not run")
        for each_executor in {self.executor, *(executor for executor, _, _ in names)}:
            kinds = [kind for executor, kind, _ in names if executor == each_executor]
            if each_executor == "xla" and "lax" not in kinds:
                raise ValueError("schedules of the executor xla are without lax, which its plans replace")
            if "direct" not in kinds or len(kinds) < 2:
                raise ValueError("schedules are direct, which the others are compared with, and at least one other")
        return self

    def by_executor(self) -> dict[TimedExecutor, Self]:
        """Those of each executor that was timed, beginning with `executor`."""
        found: dict[TimedExecutor, list[TimedSchedule]] = {}
        for each in self.schedules:
            found.setdefault(self._executor_of(each), []).append(each.model_copy(update={"executor": None}))
        order = sorted(found, key=lambda name: name != self.executor)
        return {name: self.model_copy(update={"executor": name, "schedules": found[name]}) for name in order}

    def _executor_of(self, schedule: TimedSchedule) -> TimedExecutor:
        return schedule.executor or self.executor
