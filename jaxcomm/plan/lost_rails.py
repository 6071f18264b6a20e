"""Schedules for calls while a host lacks a rail. The host's interface failed, so the host's bytes take longer.

These schedules are chosen when the plan is made, and proved like all other schedules. Calls can therefore run them as
soon as a rail is lost.
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
    """The schedule of calls of `min_bytes` to `max_bytes` bytes, both included. A `max_bytes` of null means no limit.

    For `reference_bytes` bytes without the rail, this schedule is predicted to take `seconds`, and the schedule of the
    plan's entry is predicted to take `otherwise` seconds.
    """

    min_bytes: Count
    max_bytes: Count | None
    schedule: Spec
    reference_bytes: Count
    seconds: Seconds
    otherwise: Seconds


class LostRail(Value):
    """The schedules of calls while the host of `rank`, and no other host, lacks the rail `rail`.

    The schedules are made for `topology`, the network without that rail. Calls that are smaller than the first of the
    `ranges` run as usual.
    """

    rank: Rank
    rail: Annotated[str, Field(max_length=256)]
    topology: Topology
    ranges: Annotated[tuple[LostRailRange, ...], Field(fail_fast=True, min_length=1, max_length=64)]

    def schedule_for(self, nbytes: int) -> Schedule:
        """The schedule of calls of this size. The size must not be below the first range."""
        return self.schedules[bisect.bisect_right(self.ranges, nbytes, key=lambda each: each.min_bytes) - 1]

    @cached_property
    def schedules(self) -> tuple[Schedule, ...]:
        """The schedule of every range."""
        network = self.topology
        return tuple(build(each.schedule, len(network.hosts), {}, None, (), network) for each in self.ranges)


LostRails = Annotated[tuple[LostRail, ...], Field(fail_fast=True, max_length=MAX_LOST_RAILS)]


def check_lost_rails(lost_rails: Iterable[LostRail], specs: SpecCheck) -> int:
    """Checks the lost rails of a plan. Returns the sum of ranks · chunks over their distinct schedules.

    Raises:
      ValueError: two lost rails are the same, a rank or a topology does not fit the plan's ranks, or a range or its
        schedule is invalid.
    """
    ranks, known = specs.ranks, dict[tuple[int, str], int]()
    for i, lost in enumerate(lost_rails):
        if (first := known.setdefault((lost.rank, lost.rail), i)) < i:
            raise ValueError(
                f"lost_rails[{i}] is for rank {lost.rank} and rail {lost.rail!r}, like lost_rails[{first}]"
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
                must = "null in the last range" if after is None else f"{after}, where the next range begins"
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
    """The sum of ranks · chunks over the distinct schedules of all lost rails."""
    different = {(each.schedule, lost.topology) for lost in lost_rails for each in lost.ranges}
    return sum(ranks * spec.chunks for spec, _ in different if isinstance(spec, Hierarchical))
