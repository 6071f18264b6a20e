"""Schedules that were solved for a network, as a plan holds them."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from jaxcomm.files import Value
from jaxcomm.plan.values import Chunks, Count, Moves, Rank, Seconds
from jaxcomm.profile.cluster import Topology

OPTIMAL_GAP: Final = 1e-5  # a schedule with a smaller relative distance from the bound counts as optimal


class SolvedCall(Value):
    """A schedule that a search found for a network, for calls of `nbytes` bytes in which rank `late` is `delay_s` late.

    `before` and `after` are the schedule's transfers before and after that rank arrives, in the form of
    `jaxcomm.schedules.listed`. After the arrival the schedule takes `seconds`. The best schedule from which the search
    started takes `start_s`. Every schedule with this number of chunks, and with messages of one chunk each, takes at
    least `bound_s`.
    """

    late: Rank
    chunks: Chunks
    before: Moves
    after: Moves
    nbytes: Count
    delay_s: Seconds
    seconds: Seconds
    start_s: Seconds
    bound_s: Seconds

    @property
    def numbers(self) -> int:
        """The count of numbers in `before` and `after`."""
        return len(self.before) + len(self.after)

    @property
    def status(self) -> str:
        """OPTIMAL if the bound shows that no schedule is faster, else FEASIBLE."""
        return "OPTIMAL" if self.gap < OPTIMAL_GAP else "FEASIBLE"

    @property
    def gap(self) -> float:
        """The part of `seconds` that is above the bound, as a share of `seconds`."""
        return max(0.0, 1 - self.bound_s / self.seconds) if self.seconds else 0.0


class SolvedNetwork(Value):
    """A network whose links differ, and the schedules that a search found for it."""

    topology: Topology
    schedules: Annotated[tuple[SolvedCall, ...], Field(fail_fast=True, max_length=16)] = ()
