"""Whole schedules that were timed on one executor, with nobody late and with one rank late."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import pydantic
from pydantic import Field

from jaxcomm.files import Bytes, Positive, Seconds, Value
from jaxcomm.profile.racks_and_rails import Rank

TimedExecutor = Literal["memory", "messages", "xla"]
TimedKind = Literal["direct", "ring", "halving_doubling", "broadcast", "direct_join", "straggler"]


class ScheduleSample(Value):
    """The times of one schedule for one size, from the last arrival to the end.

    `together_s` is the median where nobody is late, `late_s` where one rank comes `late_by_s` after the others.
    """

    bytes: Bytes
    together_s: Annotated[Seconds, Field(gt=0)]
    late_s: Annotated[Seconds, Field(gt=0)]
    late_by_s: Seconds


class TimedSchedule(Value):
    """A schedule by its kind, and by its chunks where these are chosen (null: they are not); times by ascending size."""

    kind: TimedKind
    chunks: Positive | None = None
    samples: Annotated[list[ScheduleSample], Field(min_length=1, max_length=64)]


class TimedSchedules(Value):
    """The schedules that were timed on an executor, in turns.

    `executor` is "memory" (one process, whose ranks read each other's memory), "messages" (ranks of several processes)
    or "xla" (rounds as collective-permutes). `late` is the rank that was made late.
    """

    executor: TimedExecutor
    late: Rank
    schedules: Annotated[list[TimedSchedule], Field(min_length=1, max_length=64)]

    @pydantic.model_validator(mode="after")
    def _times_can_be_compared(self) -> Self:
        names = [(each.kind, each.chunks) for each in self.schedules]
        sizes = [sample.bytes for sample in self.schedules[0].samples]
        for i, each in enumerate(self.schedules):
            if names.index((each.kind, each.chunks)) < i:
                raise ValueError(f"schedules[{i}] is {each.kind} again; each schedule has one table")
            own = [sample.bytes for sample in each.samples]
            if any(low >= high for low, high in zip(own, own[1:], strict=False)):
                raise ValueError(f"schedules[{i}].samples have sizes {own}; sizes must ascend")
            if own != sizes:
                raise ValueError(f"schedules[{i}].samples have sizes {own}, those of schedules[0] {sizes}; time all alike")
        if "direct" not in {each.kind for each in self.schedules}:
            raise ValueError("schedules lack direct, which the others are compared with")
        return self
