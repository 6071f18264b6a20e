"""Schedules that were solved for a network, as a plan holds them."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from jaxcomm.files import Value
from jaxcomm.plan.values import Chunks, Count, Moves, Rank, Seconds
from jaxcomm.profile.cluster import Topology

OPTIMAL_GAP: Final = 1e-5  # relative, from the bound on


class SolvedCall(Value):
    """A schedule that was searched for on a network, for calls of `nbytes` and this `late` rank's delay.

    `before` and `after` are its transfers before and after the arrival, as `jaxcomm.schedules.listed` takes them. From
    the arrival on it takes `seconds`, and the best schedule that the search began with `start_s`; `bound_s` is what no
    schedule can beat that sends as many chunks, each by itself.
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
        """The length of its transfers, in numbers."""
        return len(self.before) + len(self.after)

    @property
    def status(self) -> str:
        """OPTIMAL if the bound shows that none is faster, else FEASIBLE."""
        return "OPTIMAL" if self.gap < OPTIMAL_GAP else "FEASIBLE"

    @property
    def gap(self) -> float:
        """Distance from the bound to the seconds, as a share of the latter."""
        return max(0.0, 1 - self.bound_s / self.seconds) if self.seconds else 0.0


class SolvedNetwork(Value):
    """The network whose links differ, and the schedules that were searched for on it."""

    topology: Topology
    schedules: Annotated[tuple[SolvedCall, ...], Field(fail_fast=True, max_length=16)] = ()
