"""The time of a step with drops, with averaging within groups, or with both, if a training run accepts them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np

from jaxcomm.plan.drops import Drops
from jaxcomm.plan.groups import GroupCosts, Groups
from jaxcomm.plan.step import Accepted, Planned, Relaxation, Step
from jaxcomm.planner.drops.ring_cost import bounded, reliable
from jaxcomm.planner.late_ranks import LateRanks
from jaxcomm.planner.rounding import significant
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.planner.step.jobs import Option
from jaxcomm.planner.step.queue import StepQueue
from jaxcomm.profile import PacketLoss

Times = tuple[float, float]  # seconds before and after the late rank's arrival
Cost = Callable[[Planned, float | None], Times]


def relaxed_steps(
    step: Step, setting: Setting, packet_loss: PacketLoss | None, policy: Drops | None, groups: Groups | None
) -> tuple[Accepted, ...]:
    """The step's times with the drop policy, with the groups, and with both, where the plan has them.

    These times and the exact step's time are for the same links. The links lose packets as in `packet_loss`. If there
    are groups, the slowest NIC and the uplinks slow the sums over all ranks.

    Args:
      step: the step; the boundaries and schedules of its buckets stay as they are.
      setting: the plan's setting.
      packet_loss: the links' packet loss.
      policy: the share that each gradient may lose. It is the share of the layer with the gradient's name, or the mean
        over all layers if there is no such layer.
      groups: the plan's groups. With groups, a bucket takes the time of an iteration's slowest group, averaged over a
        period.
    """
    links = _Links.of(setting, packet_loss if packet_loss and packet_loss.rate else None, groups)
    everything = [None] * len(step.planned)
    may_lose = _shares(step, policy) if policy else everything
    ways: list[tuple[Relaxation, Cost, Sequence[float | None]]] = []
    ways += [("drops", links.whole, may_lose)] if policy else []
    ways += [("groups", links.divided, everything)] if groups else []
    ways += [("drops_and_groups", links.divided, may_lose)] if policy and groups else []
    exact = _exposed(step, setting.late, links.whole, everything) if ways else 0.0
    return tuple(
        Accepted(relaxation=relaxation, seconds=_exposed(step, setting.late, cost, shares), exact_seconds=exact)
        for relaxation, cost, shares in ways
    )


class _Links(NamedTuple):
    """Bucket times on links that may lose packets or connect racks. A bucket drops nothing if its share is None.

    Buckets are summed by rings in two cases: if packets are lost, and within groups. Rings wait for the late rank. In
    the setting `everybody` all links are as slow as the slowest NIC. Without a topology they are also as slow as the
    slowest uplink. `beta` is the seconds per byte of a ring over all ranks. For each iteration, `rings` has the number
    of ranks and the seconds per byte of each group.
    """

    everybody: Setting
    beta: float
    packet_loss: PacketLoss | None
    rings: tuple[frozenset[tuple[int, float]], ...]

    @classmethod
    def of(cls, setting: Setting, packet_loss: PacketLoss | None, groups: Groups | None) -> Self:
        """The links of a setting, with the racks and NICs of `groups`."""
        link = setting.links
        if groups is None:
            return cls(setting, link.beta, packet_loss, ())
        links = GroupCosts(groups.racks, groups.nics, groups.bytes, link.alpha, link.beta)
        rings = tuple(
            frozenset((len(part), link.beta * links.slowness(part)) for part in iteration)
            for iteration in groups.iterations
        )
        slowest = links.slowness(range(setting.ranks))
        slow = max(groups.nics) if link.topology else slowest
        everybody = replace(setting, links=replace(link, beta=link.beta * slow), timed=None)
        return cls(everybody, link.beta * slowest, packet_loss, rings)

    def whole(self, bucket: Planned, share: float | None) -> Times:
        """The time of a sum over all ranks: by the bucket's schedule if no packets are lost, otherwise by a ring."""
        setting = self.everybody
        if self.packet_loss:
            return 0.0, self._ring(setting.ranks, bucket.bytes, self.beta, share)
        return setting.cost(bucket.schedule, math.ceil(bucket.bytes * (1 - (share or 0.0))))

    def divided(self, bucket: Planned, share: float | None) -> Times:
        """The time of averaging within groups: the time of an iteration's slowest group, averaged over iterations."""
        slowest = [max(self._ring(ranks, bucket.bytes, beta, share) for ranks, beta in each) for each in self.rings]
        return 0.0, sum(slowest) / len(slowest)

    def _ring(self, ranks: int, nbytes: int, beta: float, share: float | None) -> float:
        if share is None:
            return reliable(ranks, nbytes, self.everybody.links.alpha, beta, self.packet_loss)
        return bounded(ranks, nbytes, self.everybody.links.alpha, beta, self.packet_loss, share)


def _shares(step: Step, policy: Drops) -> list[float]:
    """The share of each planned bucket that may be dropped."""
    named = {layer.name: layer.share for layer in policy.layers}
    lost = math.fsum(layer.share * layer.bytes for layer in policy.layers)
    mean = lost / sum(layer.bytes for layer in policy.layers)
    return [
        math.fsum(named.get(each.name, mean) * each.bytes for each in members) / bucket.bytes
        for bucket, members in zip(step.planned, step.members(), strict=True)
    ]


def _exposed(step: Step, late: LateRanks, cost: Cost, shares: Sequence[float | None]) -> float:
    """Mean seconds from the late rank's last gradient to the last sum."""
    kinds = {(bucket.bytes, share): bucket for bucket, share in zip(step.planned, shares, strict=True)}
    times = {(nbytes, share): cost(bucket, share) for (nbytes, share), bucket in kinds.items()}
    stages = late.stages
    work = []
    for bucket, share in zip(step.planned, shares, strict=True):
        before, after = times[bucket.bytes, share]
        option = Option(bucket.schedule, before, after, stage=late.stage(bucket.schedule))
        work.append(option.work(len(stages)))
    ready = np.array([members[-1].ready_s for members in step.members()])
    return significant(float(StepQueue.of(ready, stages).exposed(np.array(work).T).mean()))
