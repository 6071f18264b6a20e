"""Schedules for calls while a host lacks a rail: one of its interfaces failed, so its bytes take longer.

They are chosen when the plan is made, and proved as all others, so that calls can run them at once.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated

from pydantic import Field

from jaxcomm.files import Value
from jaxcomm.plan.limits import MAX_LOST_RAILS
from jaxcomm.plan.solved import SolvedNetwork
from jaxcomm.plan.spec_check import SpecCheck
from jaxcomm.plan.specs import build
from jaxcomm.plan.values import Count, Hierarchical, Rank, Seconds, Spec
from jaxcomm.profile.cluster import Topology
from jaxcomm.schedules import Schedule


class LostRailRange(Value):
    """The schedule of calls of `min_bytes` to `max_bytes` bytes, both included; `max_bytes` null means no limit.

    Without the rail it is predicted to take `seconds` for `reference_bytes`, and the entry's schedule `otherwise`.
    """

    min_bytes: Count
    max_bytes: Count | None
    schedule: Spec
    reference_bytes: Count
    seconds: Seconds
    otherwise: Seconds


class LostRail(Value):
    """The schedules of calls while the host of one rank, and no other, lacks a rail.

    `topology` is the network without it, for which they are made. Calls of fewer bytes than the first of the `ranges`
    run what they always do.
    """

    rank: Rank
    rail: Annotated[str, Field(max_length=256)]
    topology: Topology
    ranges: Annotated[tuple[LostRailRange, ...], Field(fail_fast=True, min_length=1, max_length=64)]

    def schedule_for(self, nbytes: int) -> Schedule:
        """The schedule of calls of this size, which is not below the first range."""
        return self.schedules[bisect.bisect_right(self.ranges, nbytes, key=lambda each: each.min_bytes) - 1]

    @cached_property
    def schedules(self) -> tuple[Schedule, ...]:
        """The schedule of every range."""
        network = self.topology
        return tuple(build(each.schedule, len(network.hosts), {}, None, (), network) for each in self.ranges)


LostRails = Annotated[tuple[LostRail, ...], Field(fail_fast=True, max_length=MAX_LOST_RAILS)]


def check_lost_rails(lost_rails: Iterable[LostRail], specs: SpecCheck) -> int:
    """Checks the lost rails of a plan, and returns the number of ranks · chunks of their different schedules.

    Raises:
      ValueError: a rank or a topology does not fit the plan's ranks, or a schedule is out of range.
    """
    ranks, known = specs.ranks, dict[tuple[int, str], int]()
    for i, lost in enumerate(lost_rails):
        if (first := known.setdefault((lost.rank, lost.rail), i)) < i:
            raise ValueError(
                f"lost_rails[{i}] is for rank {lost.rank} and rail {lost.rail!r}, which lost_rails[{first}] is for, too"
            )
        if lost.rank >= ranks:
            raise ValueError(f"lost_rails[{i}].rank is {lost.rank}; with {ranks} ranks it must be in [0, {ranks - 1}]")
        if len(hosts := lost.topology.hosts) != ranks:
            raise ValueError(f"lost_rails[{i}].topology.hosts has {len(hosts)} entries; matches.ranks is {ranks}")
        own = specs._replace(network=SolvedNetwork(topology=lost.topology, schedules=()))
        for j, each in enumerate(lost.ranges):
            where = f"lost_rails[{i}].ranges[{j}]"
            after = lost.ranges[j + 1].min_bytes - 1 if j + 1 < len(lost.ranges) else None
            if each.max_bytes != after:
                found = "null" if each.max_bytes is None else each.max_bytes
                must = "null, as the last" if after is None else f"{after}, as the next range begins there"
                raise ValueError(f"{where}.max_bytes is {found}; it must be {must}")
            if not each.min_bytes <= each.reference_bytes <= (each.max_bytes or each.reference_bytes):
                raise ValueError(f"{where}.reference_bytes is {each.reference_bytes}, outside of its range")
            spec = each.schedule
            if not isinstance(spec, Hierarchical):
                raise ValueError(f"{where}.schedule is a {spec.kind} schedule; those of lost rails are hierarchical")
            if spec.late:
                raise ValueError(f"{where}.schedule.late names ranks; those of lost rails wait for no late rank")
            own.check(f"{where}.schedule", spec)
    return listed(lost_rails, ranks)


def listed(lost_rails: Iterable[LostRail], ranks: int) -> int:
    """The number of ranks · chunks of the different schedules."""
    different = {(each.schedule, lost.topology) for lost in lost_rails for each in lost.ranges}
    return sum(ranks * spec.chunks for spec, _ in different if isinstance(spec, Hierarchical))
