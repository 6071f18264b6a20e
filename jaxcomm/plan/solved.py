"""Schedules that were solved for a network, as a plan holds them."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Discriminator, Field, Tag

from jaxcomm.files import Value
from jaxcomm.plan.values import Chunks, Count, Moves, Rank, Seconds, Token
from jaxcomm.profile.cluster import Topology
from jaxcomm.program.program import MAX_RANKS

OPTIMAL_GAP: Final = 1e-5  # relative, from the bound on


class Solved(Value):
    """A straggler schedule that was solved for a network (`owners` and `moves` as `jaxcomm.schedules.transfers` takes
    them), for this `late` rank only.

    Times are in chunks over a fast link, after the late rank's arrival: `makespan` that of the schedule, `rotational`
    that of the usual straggler schedule, `bound` what no schedule can beat in which a chunk enters a host once and
    has the same owner (`free_owners`: any owner). `status` is the solver's.
    """

    late: Rank
    owners: Annotated[tuple[Rank, ...], Field(fail_fast=True, min_length=1, max_length=MAX_RANKS)]
    moves: Moves
    free_owners: Annotated[bool, Field(strict=True)]
    status: Token
    makespan: Seconds
    bound: Seconds
    rotational: Seconds

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return len(self.owners)

    @property
    def numbers(self) -> int:
        """How many numbers its transfers are."""
        return len(self.moves)

    @property
    def gap(self) -> float:
        """How far the bound is below the makespan, as a share of the makespan."""
        return max(0.0, 1 - self.bound / self.makespan) if self.makespan else 0.0


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
        """How many numbers its transfers are."""
        return len(self.before) + len(self.after)

    @property
    def status(self) -> str:
        """OPTIMAL if the bound shows that none is faster, else FEASIBLE."""
        return "OPTIMAL" if self.gap < OPTIMAL_GAP else "FEASIBLE"

    @property
    def gap(self) -> float:
        """How far the bound is below the seconds, as a share of them."""
        return max(0.0, 1 - self.bound_s / self.seconds) if self.seconds else 0.0


def _solved_kind(value: Any) -> str:
    has_owners = isinstance(value, Solved) or (isinstance(value, dict) and "owners" in value)
    return "<owners>" if has_owners else "<transfers>"


class SolvedNetwork(Value):
    """The network whose links differ, and the schedules that were solved for it; plans made today have no `Solved`."""

    topology: Topology
    schedules: Annotated[
        tuple[
            Annotated[
                Annotated[Solved, Tag("<owners>")] | Annotated[SolvedCall, Tag("<transfers>")],
                Discriminator(_solved_kind),
            ],
            ...,
        ],
        Field(fail_fast=True, max_length=16),
    ] = ()
