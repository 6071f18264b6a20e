"""The executors of a plan's calls on CUDA devices: our own executor of schedules, and NCCL's own allreduce."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal, Self

import numpy as np
import pydantic
from pydantic import Field

from jaxcomm.files import Value
from jaxcomm.plan.values import Count, Seconds
from jaxcomm.profile.fit import Curve

OwnName = Literal["fused", "messages"]


class Timed(Value):
    """A measured allreduce: its bytes and seconds."""

    bytes: Count
    seconds: Seconds


class Executors(Value):
    """The executors that were timed on the plan's CUDA devices.

    `own` is the executor that runs our schedules there; the plan's predictions are for this executor. "fused" is one
    kernel over memory that all ranks can read, and "messages" is an executor of sends and receives. If `own` is null,
    neither of the two was timed, and the plan's `assumptions` are for the profile's link. `nccl` has the times of
    NCCL's allreduce in order of size (empty: not timed). If NCCL's allreduce was timed, it was an alternative for every
    entry.
    """

    own: OwnName | None = None
    nccl: Annotated[tuple[Timed, ...], Field(fail_fast=True, max_length=4096)] = ()

    @cached_property
    def _curve(self) -> Curve:
        return Curve.of([each.bytes for each in self.nccl], [each.seconds for each in self.nccl])

    def nccl_seconds(self, nbytes: int) -> float:
        """Seconds of NCCL's allreduce of `nbytes` from the last rank's arrival on; `nccl` must not be empty."""
        return float(self._curve(nbytes))

    def nccl_best_rate(self, nbytes: int) -> float:
        """The highest rate, in bytes per second, of NCCL's allreduces of at most `nbytes`; `nccl` must not be empty."""
        sizes = np.array([nbytes, *(each.bytes for each in self.nccl if each.bytes < nbytes)])
        return float((sizes / self._curve(sizes)).max())

    @pydantic.model_validator(mode="after")
    def _table_ascends(self) -> Self:
        for i in range(1, len(self.nccl)):
            if self.nccl[i].bytes <= self.nccl[i - 1].bytes:
                raise ValueError(f"nccl[{i}].bytes is {self.nccl[i].bytes}; sizes must ascend")
            if self.nccl[i].seconds < self.nccl[i - 1].seconds:
                raise ValueError(
                    f"nccl[{i}].seconds is {self.nccl[i].seconds:g}, below that of fewer bytes; times must not fall"
                )
        if self.nccl and self.nccl[0].bytes == 0:
            raise ValueError("nccl[0].bytes is 0; a timed call moves at least one byte")
        return self
