"""The groups in which ranks average, with new groups in every iteration, and the proof that all ranks come to agree.

In one iteration each group averages over its own ranks only. The result differs from an allreduce's result, so groups
are used only if a training run asks for them. Source of the idea: Wang et al., "DS-Sync", sections III-B and IV.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from jaxcomm.errors import PlanError
from jaxcomm.files import Value
from jaxcomm.plan.consensus import components, contraction, left, steady_spread
from jaxcomm.plan.values import Count, Rank, Seconds, Token

MAX_GROUPED: Final = 1024  # maximum number of ranks
MAX_CELLS: Final = 2**16  # maximum product of iterations and ranks
TOLERANCE: Final = 1e-6  # absolute tolerance for ρ, relative tolerance for seconds
CURE: Final = "\n  Cure: re-run `jaxcomm plan profile.json`."

Slowness = Annotated[float, Field(ge=1, le=1e6, strict=True, allow_inf_nan=False)]
Group = Annotated[tuple[Rank, ...], Field(fail_fast=True, min_length=1, max_length=MAX_GROUPED)]
Iteration = Annotated[tuple[Group, ...], Field(fail_fast=True, min_length=1, max_length=MAX_GROUPED)]
Contraction = Annotated[float, Field(ge=0, le=1, strict=True, allow_inf_nan=False)]


class RackRanks(Value):
    """Ranks under one switch. `uplink` is a byte's time to another rack divided by a byte's time within the rack."""

    ranks: Group
    uplink: Slowness


class Pattern(Value):
    """The cost of the paper's hand-made pattern on this network.

    `seconds` is the time of the pattern's slowest group, `period` its number of iterations, and `rho` the ρ of one
    period (see `Groups`).
    """

    seconds: Seconds
    period: Annotated[int, Field(ge=1, le=MAX_CELLS, strict=True)]
    rho: Contraction


class Baselines(Value):
    """Predicted seconds of one synchronisation of all ranks, by the formulas of the paper's Table II."""

    ps: Seconds
    ring: Seconds
    double_tree: Seconds
    hierarchical: Seconds
    gossip: Seconds


class Groups(Value):
    """The ranks that average together in each iteration; iteration t uses `iterations[t % period]`.

    `seconds[t]` is the predicted time of the slowest group of iteration t for a model of `bytes` bytes. In every
    pattern that brings these ranks to agreement, the slowest iteration takes at least `bound` seconds. `status` is
    OPTIMAL if this pattern attains the bound, although ranks may agree sooner with another pattern. `nics[r]` is the
    time of a byte through rank r's NIC, divided by the time of a byte over a link within a rack.

    `rho` is the largest singular value of W_B ⋯ W_2 W_1 − J. Here W_t replaces every rank's value by the mean of the
    rank's group in iteration t, and J replaces every value by the mean of all ranks. Each period of B iterations
    therefore multiplies the distance of the ranks' values from their mean by at most `rho`. The paper takes the second
    largest eigenvalue instead. The product is not symmetric, so this eigenvalue is at most `rho` and bounds the
    distance only after many periods.
    """

    bytes: Count
    racks: Annotated[tuple[RackRanks, ...], Field(fail_fast=True, min_length=1, max_length=MAX_GROUPED)]
    nics: Annotated[tuple[Slowness, ...], Field(fail_fast=True, min_length=2, max_length=MAX_GROUPED)]
    iterations: Annotated[tuple[Iteration, ...], Field(fail_fast=True, min_length=1, max_length=MAX_CELLS // 2)]
    seconds: Annotated[tuple[Seconds, ...], Field(fail_fast=True, min_length=1, max_length=MAX_CELLS // 2)]
    rho: Contraction
    status: Token
    bound: Seconds
    baselines: Baselines
    pattern: Pattern

    @property
    def period(self) -> int:
        """The number of iterations after which the groups repeat."""
        return len(self.iterations)

    @property
    def gap(self) -> float:
        """How much longer the slowest iteration takes than the bound, as a share of that iteration's time."""
        return max(0.0, 1 - self.bound / max(self.seconds)) if max(self.seconds) else 0.0

    @property
    def rate(self) -> float:
        """The mean factor by which one iteration shrinks the distance from consensus."""
        return float(self.rho ** (1 / self.period))

    @property
    def mean_s(self) -> float:
        """The mean time of an iteration."""
        return sum(self.seconds) / self.period

    @property
    def left(self) -> float:
        """The share of the distance from consensus that is left after `bound` seconds."""
        return left(self.rho, sum(self.seconds), self.bound)

    @cached_property
    def spread(self) -> NDArray[np.float64]:
        """For each rank, the root mean square distance from the mean of all ranks, averaged over a period.

        It is the distance in the steady state, if every rank takes an independent random step of standard deviation 1
        in every iteration. Ranks that seldom average with other ranks have a greater distance.
        """
        return steady_spread(self.iterations, len(self.nics))

    @cached_property
    def table(self) -> NDArray[np.int32]:
        """The group of every rank, [period, ranks]; iteration t of a jitted step looks up row t % period."""
        found = np.empty((self.period, len(self.nics)), np.int32)
        for row, groups in zip(found, self.iterations, strict=True):
            for index, group in enumerate(groups):
                row[list(group)] = index
        return found


@dataclass(frozen=True)
class GroupCosts:
    """The costs of groups on a network: the seconds of ring allreduces of `nbytes` bytes within the groups.

    A hop takes `alpha` seconds, and a byte takes `beta` seconds within a rack.
    """

    racks: Sequence[RackRanks]
    nics: Sequence[float]
    nbytes: int
    alpha: float
    beta: float

    @cached_property
    def home(self) -> dict[int, int]:
        """The index in `racks` of each rank's rack."""
        return {rank: index for index, rack in enumerate(self.racks) for rank in rack.ranks}

    @cached_property
    def least(self) -> float:
        """The least time of the slowest group, if all ranks are to agree: a pair's time over the slowest NIC or uplink.

        Every rank must average with another rank through its NIC, and every rack with another rack through its uplink.
        """
        uplinks = [rack.uplink for rack in self.racks] if len(self.racks) > 1 else []
        return self.ring(2, max(*self.nics, *uplinks))

    def crossed(self, group: Iterable[int]) -> list[int]:
        """The racks whose uplinks a group uses; empty if all ranks of the group are in one rack."""
        racks = sorted({self.home[rank] for rank in group})
        return racks if len(racks) > 1 else []

    def slowness(self, group: Sequence[int]) -> float:
        """The time of a byte over the group's slowest NIC or uplink, divided by that over a link within a rack."""
        uplinks = [self.racks[index].uplink for index in self.crossed(group)]
        return max(max(self.nics[rank] for rank in group), *uplinks, 1.0)

    def ring(self, members: int, slowness: float) -> float:
        """Seconds of a ring allreduce among `members` ranks. Every round waits for a link with this slowness."""
        return 2 * (members - 1) * (self.alpha + self.nbytes / members * self.beta * slowness)

    def seconds(self, groups: Iterable[Sequence[int]]) -> float:
        """Seconds of the slowest group; all groups average at the same time."""
        return max(self.ring(len(group), self.slowness(group)) for group in groups)


def prove(groups: Groups, ranks: int, alpha: float, beta: float) -> None:
    """Proves that the groups can run on their network as predicted, and that they bring all ranks to one mean.

    The checks are: each iteration puts each rank into one group, at most one group crosses a rack's uplink, and the
    union of a period's groups is connected. The matrices W_t (see `Groups`) are orthogonal projections, so a period
    keeps the length of a vector x only if x is constant on every group of every iteration. As the union is connected,
    such an x is constant on all ranks. Hence ρ < 1. The stored values of ρ and of the seconds are compared with newly
    computed values.

    Args:
      groups: the groups.
      ranks: the plan's ranks.
      alpha: seconds of a hop.
      beta: seconds of a byte within a rack.

    Raises:
      PlanError: a check fails. The error text names the iteration, group and rank.
    """
    _check_sizes(groups, ranks)
    _check_deal("racks", [rack.ranks for rack in groups.racks], ranks)
    links = GroupCosts(groups.racks, groups.nics, groups.bytes, alpha, beta)
    for t, iteration in enumerate(groups.iterations):
        _check_deal(f"iterations[{t}]", iteration, ranks)
        _check_uplinks(t, iteration, links)
        _check_close(f"seconds[{t}]", groups.seconds[t], links.seconds(iteration), TOLERANCE * groups.seconds[t])
    _check_close("bound", groups.bound, links.least, TOLERANCE * groups.bound)
    found = components(groups.iterations, ranks)
    for rank, component in enumerate(found):
        if component != found[0]:
            raise PlanError(
                f"groups.iterations: over the period of {groups.period} iterations nothing of rank {rank} reaches "
                f"rank 0, not even through other ranks; they would never agree.{CURE}"
            )
    _check_close("rho", groups.rho, contraction(groups.iterations, ranks), TOLERANCE)


def _check_sizes(groups: Groups, ranks: int) -> None:
    if ranks > MAX_GROUPED or groups.period * ranks > MAX_CELLS:
        raise PlanError(
            f"groups.iterations: {groups.period} iterations of {ranks} ranks; at most {MAX_GROUPED} ranks are allowed, "
            f"and {MAX_CELLS} over all iterations.{CURE}"
        )
    for name, length, needed in (("nics", len(groups.nics), ranks), ("seconds", len(groups.seconds), groups.period)):
        if length != needed:
            raise PlanError(f"groups.{name} has {length} entries; {needed} are needed.{CURE}")


def _check_deal(where: str, parts: Sequence[Sequence[int]], ranks: int) -> None:
    home: dict[int, int] = {}
    for index, part in enumerate(parts):
        for rank in part:
            if rank >= ranks:
                raise PlanError(f"groups.{where}[{index}] has rank {rank}; the ranks are 0 to {ranks - 1}.{CURE}")
            if rank in home:
                raise PlanError(f"groups.{where}[{index}] has rank {rank}, which [{home[rank]}] has as well.{CURE}")
            home[rank] = index
    if missing := sorted(set(range(ranks)) - set(home)):
        raise PlanError(f"groups.{where} has no place for rank {missing[0]}; every rank needs one.{CURE}")


def _check_uplinks(t: int, iteration: Sequence[Sequence[int]], links: GroupCosts) -> None:
    user: dict[int, int] = {}
    for index, group in enumerate(iteration):
        for rack in links.crossed(group):
            if rack in user:
                rank = next(rank for rank in group if links.home[rank] == rack)
                raise PlanError(
                    f"groups.iterations[{t}][{index}] crosses the uplink of groups.racks[{rack}] with rank {rank}, and "
                    f"so does [{user[rack]}]; one group at most may use an uplink in an iteration.{CURE}"
                )
            user[rack] = index


def _check_close(where: str, stated: float, found: float, tolerance: float) -> None:
    if abs(stated - found) > tolerance:
        raise PlanError(f"groups.{where} is {stated:.9g}, but these groups have {found:.9g}.{CURE}")
