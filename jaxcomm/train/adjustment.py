"""Groups that follow what a training meets: from the statistics of its averages to the next pattern, on the host."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from jaxcomm import ffi
from jaxcomm.plan import Plan
from jaxcomm.plan.consensus import left
from jaxcomm.plan.groups import Groups, RackRanks
from jaxcomm.train.divide_and_shuffle import group_table, grouped
from jaxcomm.train.group_network import GroupNetwork
from jaxcomm.train.recent_averages import RecentAverages

if TYPE_CHECKING:
    from jaxcomm.train.agreed_adjustment import MeasuredRacks

ENOUGH: Final = 8  # steps: fewer say too little about what most of them are like
SOONER: Final = 1.1  # times as much agreement per second is worth another pattern


@dataclass(frozen=True)
class Adjustment:
    """The links that were measured, and the groups to go on with.

    Attributes:
      groups: the new groups, or the present ones.
      changed: whether they are new.
      late_s: seconds that a rank's own work takes longer than the median rank's in three of four steps, by rank.
      reason: for a log, the measured times and why the groups changed or did not.
      network: the links as they were measured last; None: they were not.
    """

    groups: Groups
    changed: bool
    late_s: tuple[float, ...]
    reason: str
    network: GroupNetwork | None = None

    @property
    def table(self) -> NDArray[np.int32]:
        """The groups as the argument of a step that is compiled already."""
        return group_table(self.groups)


def adjust_groups(
    plan: str | os.PathLike[str] | Plan,
    present: Adjustment | Groups | None = None,
    *,
    steps: int = 64,
    worth: float = 0.05,
    sites: Sequence[Mapping[str, Any]] | None = None,
) -> Adjustment:
    """Looks at the latest averages, and plans the groups anew if a rank or a link has become slow, or is slow no more.

    A rank is as slow as its own work between two averages: its wait for others is not in it. That work begins when
    the rank leaves an average, or for all together where the host or another collective lines the ranks up in between;
    of the two, the one that makes each rank's work steadier counts. The time by which that work exceeds the median
    rank's in three of four steps counts like a NIC that delays the model as much; the planner then keeps that rank in
    the smallest groups.

    If the ranks are those of several processes, all processes call it after the same step, and get the same result.
    They also measure the links between them: at the first call, and when averages take 1.3 times as long from their
    last arrival on as they did then, or as short. That takes a second or two, and at most a percent of the time, so
    `present` should be what the last call returned, which remembers it. Uplinks, NICs and the time of a byte are then
    the measured ones; the plan's racks stay, unless other ones explain the times better. In one process, or where all
    are on one host, the network is the plan's.

    Call it between steps, when they have ended, say every 100 of them; without measuring it takes milliseconds to a
    second, needs no solver, and the same statistics give the same groups. The step that runs `divide_and_shuffle` with
    the table is not compiled again:

        if step % 100 == 0:
            adjustment = train.adjust_groups(plan, adjustment, steps=100)  # None at first
            table = adjustment.table
            logging.info(adjustment.reason)

    Args:
      plan: the plan that `divide_and_shuffle` got: path, or `jaxcomm.plan.Plan`. Its ranks are `jax.devices()`.
      present: the result of the last call, or the groups in use; None: the plan's.
      steps: the number of latest averages that count, at most the 256 that the statistics keep.
      worth: the share of a step's time that other groups must be predicted to save; groups that cost no more than
        that and agree sooner are taken, too.
      sites: an earlier result of `jaxcomm.stats()` in this process; None: the present one.

    Raises:
      PlanError: the plan cannot be read, or decides no groups.
      ValueError: fewer than 8 steps, or a negative worth.
      JaxcommError: another process has not called it within five minutes, or is gone.

    Source: Wang et al., "DS-Sync", section III-B3; the thresholds of a slow rank and of a worthwhile change are ours.
    """
    if steps < ENOUGH or worth < 0:
        raise ValueError(
            f"adjust_groups: steps is {steps} and worth {worth}; they must be at least {ENOUGH} and at least 0"
        )
    loaded, planned = grouped(plan)
    ranks = len(planned.nics)
    if not isinstance(present, Adjustment):
        present = Adjustment(present or planned, False, (0.0,) * ranks, "")
    seen = RecentAverages.read(ffi.sites() if sites is None else sites, ranks, steps)
    network = GroupNetwork.of(loaded, planned)
    if ranks <= jax.local_device_count():
        return _adjust(present, network, seen, worth)
    return _adjust_together(present, network, seen, worth)


def _adjust_together(present: Adjustment, planned: GroupNetwork, own: RecentAverages, worth: float) -> Adjustment:
    """As `_adjust`, on the links as they are measured, for what all processes have seen."""
    from jaxcomm.train import agreed_adjustment  # one process needs nothing of it

    known = present.network
    can_measure = jax.default_backend() == "cpu" and len(planned.nics) == jax.device_count()

    def is_due(seen: RecentAverages) -> bool:
        if not can_measure or seen.steps < ENOUGH:
            return False
        return known is None or (known.has_changed(seen.average_s) and not known.wait_s(time.monotonic()))

    def adjust(seen: RecentAverages, measured: MeasuredRacks | None) -> str:
        network, network_text = known or planned, ""
        if seen.steps >= ENOUGH:
            network, network_text = _followed(network, seen, measured)
        found = _adjust(present, network, seen, worth, network_text)
        if network.measured_at_s is not None:  # other groups take other times
            found = replace(found, network=replace(network, average_s=None) if found.changed else network)
        return adapter.dump_json(found).decode()

    adapter = TypeAdapter(Adjustment)
    racks = [rack.ranks for rack in (known or planned).racks]
    return adapter.validate_json(agreed_adjustment.agree(own, racks, is_due, adjust))


def _followed(network: GroupNetwork, seen: RecentAverages, measured: MeasuredRacks | None) -> tuple[GroupNetwork, str]:
    """The network after what was seen or measured, and what that says."""
    usual, now = network.average_s, seen.average_s
    took = f"averages take {_ms(now)} from the last arrival on" + (f", after {_ms(usual)}" if usual else "")
    if measured is None:
        if wait_s := network.has_changed(now) and network.wait_s(time.monotonic()):
            return network, f"{took}; the links may be measured again in {wait_s:.0f} s"
        return replace(network, average_s=network.average_s or now), ""
    found = replace(network, measured_at_s=measured.at_s, measured_in_s=measured.took_s, average_s=now)
    if measured.links is None:
        return found, f"{took}; all processes are on one host, so the plan's network stays"
    links = measured.links
    racks = tuple(RackRanks(ranks=ranks, uplink=up) for ranks, up in zip(links.racks, links.uplinks, strict=True))
    found = replace(found, racks=racks, nics=links.nics, alpha_s=links.alpha_s, beta_s_per_byte=links.beta_s_per_byte)
    return found, f"{took}; the links were measured in {measured.took_s:.1f} s: {found.changes_from(network)}"


def _adjust(
    present: Adjustment, network: GroupNetwork, seen: RecentAverages, worth: float, network_text: str = ""
) -> Adjustment:
    """The groups for this network and what has been seen; the reason begins with `network_text`."""
    if seen.steps < ENOUGH:
        reason = (
            f"{seen.steps} averages of all ranks in groups have been recorded, and {ENOUGH} are needed: "
            "the groups stay."
        )
        return replace(present, changed=False, late_s=(0.0,) * len(network.nics), reason=reason)
    late, step_s = seen.late_s, seen.step_s
    links = network.with_late(late, present.groups.bytes)
    from jaxcomm.planner.groups import on  # the planner is slow to import, and few trainings adjust groups

    offered = on(links)
    before, then = (max(map(links.seconds, groups.iterations)) for groups in (present.groups, offered))
    kept, left_then = (
        left(groups.rho, sum(map(links.seconds, groups.iterations)), links.least)
        for groups in (present.groups, offered)
    )
    faster = before - then > worth * step_s
    sooner = before - then >= -worth * step_s and left_then < kept**SOONER
    reason = (
        f"{network_text}{'; ' if network_text else ''}{_describe(late, worth * step_s, step_s, seen.steps)}; "
        f"the slowest group is predicted to take {_ms(then)} with other groups and {_ms(before)} with these, and "
        f"disagreement to shrink to {left_then:.3f} and {kept:.3f} in {_ms(links.least)}"
    )
    changed = faster or sooner
    return Adjustment(
        offered if changed else present.groups,
        changed,
        tuple(late.tolist()),
        f"{reason}: the groups {'change' if changed else 'stay'}.",
    )


def _describe(late: NDArray[np.float64], least_s: float, step_s: float, steps: int) -> str:
    slow = [f"rank {rank} by {_ms(late[rank])}" for rank in np.argsort(-late) if late[rank] > least_s]
    who = ", ".join(slow) if slow else "nobody"
    return f"late in three of four of the last {steps} steps, which take the median rank {_ms(step_s)}: {who}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
