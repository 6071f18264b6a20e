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
from jaxcomm.plan.limits import MAX_FENCES
from jaxcomm.plan.solved import SolvedNetwork
from jaxcomm.plan.spec_check import SpecCheck
from jaxcomm.plan.specs import build
from jaxcomm.plan.values import Count, Hierarchical, Rank, Seconds, Spec
from jaxcomm.profile.cluster import Topology
from jaxcomm.schedules import Schedule


class FencedRange(Value):
    """The schedule of calls of `min_bytes` to `max_bytes` bytes, both included; `max_bytes` null means no limit.

    Without the rail it is predicted to take `seconds` for `reference_bytes`, and the entry's schedule `otherwise`.
    """

    min_bytes: Count
    max_bytes: Count | None
    schedule: Spec
    reference_bytes: Count
    seconds: Seconds
    otherwise: Seconds


class Fence(Value):
    """The schedules of calls while the host of one rank, and no other, lacks a rail.

    `topology` is the network without it, for which they are made. Calls of fewer bytes than the first of the `ranges`
    run what they always do.
    """

    rank: Rank
    rail: Annotated[str, Field(max_length=256)]
    topology: Topology
    ranges: Annotated[tuple[FencedRange, ...], Field(fail_fast=True, min_length=1, max_length=64)]

    def schedule_for(self, nbytes: int) -> Schedule:
        """The schedule of calls of this size, which is not below the first range."""
        return self.schedules[bisect.bisect_right(self.ranges, nbytes, key=lambda each: each.min_bytes) - 1]

    @cached_property
    def schedules(self) -> tuple[Schedule, ...]:
        """The schedule of every range."""
        network = self.topology
        return tuple(build(each.schedule, len(network.hosts), {}, None, (), network) for each in self.ranges)


Fences = Annotated[tuple[Fence, ...], Field(fail_fast=True, max_length=MAX_FENCES)]


def check_fences(fences: Iterable[Fence], specs: SpecCheck) -> int:
    """Checks the fences of a plan, and returns the number of ranks · chunks of their different schedules.

    Raises:
      ValueError: a rank or a topology does not fit the plan's ranks, or a schedule is out of range.
    """
    ranks, known = specs.ranks, dict[tuple[int, str], int]()
    for i, fence in enumerate(fences):
        if (first := known.setdefault((fence.rank, fence.rail), i)) < i:
            raise ValueError(
                f"fences[{i}] is for rank {fence.rank} and rail {fence.rail!r}, which fences[{first}] is for, too"
            )
        if fence.rank >= ranks:
            raise ValueError(f"fences[{i}].rank is {fence.rank}; with {ranks} ranks it must be in [0, {ranks - 1}]")
        if len(hosts := fence.topology.hosts) != ranks:
            raise ValueError(f"fences[{i}].topology.hosts has {len(hosts)} entries; matches.ranks is {ranks}")
        own = specs._replace(network=SolvedNetwork(topology=fence.topology, schedules=()))
        for j, each in enumerate(fence.ranges):
            where = f"fences[{i}].ranges[{j}]"
            after = fence.ranges[j + 1].min_bytes - 1 if j + 1 < len(fence.ranges) else None
            if each.max_bytes != after:
                found = "null" if each.max_bytes is None else each.max_bytes
                must = "null, as the last" if after is None else f"{after}, as the next range begins there"
                raise ValueError(f"{where}.max_bytes is {found}; it must be {must}")
            if not each.min_bytes <= each.reference_bytes <= (each.max_bytes or each.reference_bytes):
                raise ValueError(f"{where}.reference_bytes is {each.reference_bytes}, outside of its range")
            spec = each.schedule
            if not isinstance(spec, Hierarchical):
                raise ValueError(f"{where}.schedule is a {spec.kind} schedule; those of fences are hierarchical")
            if spec.late:
                raise ValueError(f"{where}.schedule.late names ranks; the schedules of fences wait for no late rank")
            own.check(f"{where}.schedule", spec)
    return listed(fences, ranks)


def listed(fences: Iterable[Fence], ranks: int) -> int:
    """The number of ranks · chunks of the different schedules."""
    different = {(each.schedule, fence.topology) for fence in fences for each in fence.ranges}
    return sum(ranks * spec.chunks for spec, _ in different if isinstance(spec, Hierarchical))
