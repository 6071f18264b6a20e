"""Adjusts groups during a training run: the host plans new groups from the statistics of the latest averages."""

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

ENOUGH: Final = 8  # minimum number of steps; fewer do not show how long most steps take
SOONER: Final = 1.1  # other groups are worthwhile if they shrink disagreement faster by this factor


@dataclass(frozen=True)
class Adjustment:
    """The groups for the next steps, and the links as last measured.

    Attributes:
      groups: the new groups, or the present groups if they stay.
      changed: whether the groups are new.
      late_s: for each rank, the seconds by which the rank's own work exceeds the median rank's work in three of four
        steps.
      reason: a text for logs: the measured times, and why the groups changed or stayed.
      network: the links as last measured; None: never measured.
    """

    groups: Groups
    changed: bool
    late_s: tuple[float, ...]
    reason: str
    network: GroupNetwork | None = None

    @property
    def table(self) -> NDArray[np.int32]:
        """The groups as an argument of an already compiled step."""
        return group_table(self.groups)


def adjust_groups(
    plan: str | os.PathLike[str] | Plan,
    present: Adjustment | Groups | None = None,
    *,
    steps: int = 64,
    worth: float = 0.05,
    sites: Sequence[Mapping[str, Any]] | None = None,
) -> Adjustment:
    """Plans the groups anew if the latest averages show that a rank or a link has become slow or is slow no longer.

    A rank's speed is judged by its own work between two averages, without its wait for other ranks. That work begins
    when the rank leaves an average. But if the host or another collective synchronises the ranks in between, the work
    begins for all ranks together. The beginning with which the ranks' work varies less between steps is used. A rank's
    lateness is the time by which its work exceeds the median rank's work in three of four steps. The planner treats
    this lateness as a NIC that delays the model by the same time, and therefore keeps the rank in the smallest groups.

    If the ranks are in several processes, all processes call this function after the same step, and get the same
    result. They also measure the links between the processes: in the first call, and again when averages, timed from
    the last arrival to the end, have become slower or faster by a factor of 1.3. Measurements take a second or two
    each, and at most one percent of the time. The result records the measurement, so pass the result as `present` to
    the next call. After a measurement, uplinks, NICs and the time of a byte have the measured values. The plan's racks
    stay unless other racks explain the times better. In one process, or with all ranks on one host, the network is the
    plan's network.

    Call this function between steps, after they have ended, for example every 100 steps. Without a measurement the call
    takes milliseconds to a second. It needs no solver. The same statistics give the same groups. The step that runs
    `divide_and_shuffle` with the table is not compiled again:

        if step % 100 == 0:
            adjustment = train.adjust_groups(plan, adjustment, steps=100)  # None at first
            table = adjustment.table
            logging.info(adjustment.reason)

    Args:
      plan: the plan that `divide_and_shuffle` got: a path, or a `jaxcomm.plan.Plan`. Its ranks are `jax.devices()`.
      present: the result of the last call, or the groups in use; None: the plan's groups.
      steps: the number of latest averages that count, at most the 256 that the statistics keep.
      worth: the groups change if other groups are predicted to save more than this share of a step's time. Groups that
        make the ranks agree sooner are also taken if they add at most this share to a step's time.
      sites: an earlier result of `jaxcomm.stats()` in this process; None: the present result.

    Raises:
      PlanError: the plan cannot be read, or has no groups.
      ValueError: fewer than 8 steps, or a negative worth.
      JaxcommError: another process has not called this function within five minutes, or has ended.

    Source: Wang et al., "DS-Sync", section III-B3; the thresholds of a slow rank and of a worthwhile change are ours.

    Example:
      >>> adjustment = jaxcomm.train.adjust_groups("plan.json", sites=[])
      >>> adjustment.changed, adjustment.table.shape
      (False, (32, 8))
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
    """Adjusts the groups like `_adjust`, but uses the averages of all processes and, if possible, measured links."""
    from jaxcomm.train import agreed_adjustment  # not needed in a job of one process

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
        if network.measured_at_s is not None:  # the new groups' mean time is unknown
            found = replace(found, network=replace(network, average_s=None) if found.changed else network)
        return adapter.dump_json(found).decode()

    adapter = TypeAdapter(Adjustment)
    racks = [rack.ranks for rack in (known or planned).racks]
    return adapter.validate_json(agreed_adjustment.agree(own, racks, is_due, adjust))


def _followed(network: GroupNetwork, seen: RecentAverages, measured: MeasuredRacks | None) -> tuple[GroupNetwork, str]:
    """Returns the network, updated by the averages and the measurement, and a text that describes the change."""
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
    """The groups for this network and the recorded averages; the reason begins with `network_text`."""
    if seen.steps < ENOUGH:
        reason = (
            f"{seen.steps} averages of all ranks in groups have been recorded, and {ENOUGH} are needed: "
            "the groups stay."
        )
        return replace(present, changed=False, late_s=(0.0,) * len(network.nics), reason=reason)
    late, step_s = seen.late_s, seen.step_s
    links = network.with_late(late, present.groups.bytes)
    from jaxcomm.planner.groups import on  # the planner is slow to import, and few training runs adjust groups

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
