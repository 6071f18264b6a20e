"""Groups that follow what a training meets: from the statistics of its averages to the next pattern, on the host."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm import ffi
from jaxcomm.plan import Plan
from jaxcomm.plan.consensus import left
from jaxcomm.plan.rank_groups import GroupCosts, Groups
from jaxcomm.train.divide_and_shuffle import group_table, grouped

ENOUGH: Final = 8  # steps: fewer say too little about what most of them are like
SLOWEST: Final = 1e6  # times as slow as a NIC may be in a plan
SOONER: Final = 1.1  # times as much agreement per second is worth another pattern


@dataclass(frozen=True)
class Adjustment:
    """What was seen, and the groups to go on with.

    Attributes:
      groups: the new groups, or the present ones.
      changed: whether they are new.
      late_s: seconds that a rank's own work takes longer than the median rank's in three of four steps, by rank.
      reason: what was seen, and why the groups changed or did not, for a log.
    """

    groups: Groups
    changed: bool
    late_s: tuple[float, ...]
    reason: str

    @property
    def table(self) -> NDArray[np.int32]:
        """The groups as the argument of a step that is compiled already."""
        return group_table(self.groups)


def adjust_groups(
    plan: str | os.PathLike[str] | Plan,
    present: Groups | None = None,
    *,
    steps: int = 64,
    worth: float = 0.05,
    sites: Sequence[Mapping[str, Any]] | None = None,
) -> Adjustment:
    """Looks at the latest averages and plans the groups anew if some rank has become slow, or is slow no more.

    A rank is as slow as its own work between two averages: what it waits for others is not in it. That work begins when
    the rank leaves an average, or for all together where the host or another collective lines the ranks up in between;
    of the two the one is taken by which each rank's work is steadier. What it takes longer than the median rank's in
    three of four steps counts like a NIC that delays the model as much; the planner then keeps that rank in the
    smallest groups. The plan's racks and NICs stay as they are, and a network that several ranks share is not looked
    at: the time after a group's last arrival is nobody's own.

    Between processes the statistics of each have its own ranks only, and the groups stay as they are.

    Call it between steps, every so many of them; it takes milliseconds to a second, needs no solver, and the same
    statistics give the same groups. The step that runs `divide_and_shuffle` with the table is not compiled again:

        if step % 100 == 0:
            adjustment = train.adjust_groups(plan, groups, steps=100)
            groups, table = adjustment.groups, adjustment.table
            logging.info(adjustment.reason)

    Args:
      plan: the plan that `divide_and_shuffle` got: path, or `jaxcomm.plan.Plan`.
      present: the groups in use; None: the plan's.
      steps: how many of the latest averages count, at most the 256 that the statistics keep.
      worth: the share of a step's time that other groups must be predicted to save; groups that cost no more than
        that and agree sooner are taken, too.
      sites: what `jaxcomm.stats()` returned; None: what it returns now.

    Raises:
      PlanError: the plan cannot be read, or decides no groups.
      ValueError: fewer than 8 steps, or a negative worth.

    Source: Wang et al., "DS-Sync", section III-B3; what counts as slow, and when a change is worth it, are ours.
    """
    if steps < ENOUGH or worth < 0:
        raise ValueError(
            f"adjust_groups: steps is {steps} and worth {worth}; they must be at least {ENOUGH} and at least 0"
        )
    loaded, planned = grouped(plan)
    present = present or planned
    lateness, step_s = _seen(ffi.sites() if sites is None else sites, len(planned.nics), steps)
    if len(lateness) < ENOUGH:
        reason = (
            f"{len(lateness)} averages of all ranks in groups have been seen in this process, and it takes {ENOUGH} to "
            "tell: the groups stay."
        )
        return Adjustment(present, False, (0.0,) * len(planned.nics), reason)
    late = np.quantile(lateness, 0.25, axis=0).clip(min=0)
    links = _links(loaded, planned, late)
    from jaxcomm.planner.groups import on  # the planner is slow to import, and few trainings adjust groups

    offered = on(links)
    before, then = (max(map(links.seconds, groups.iterations)) for groups in (present, offered))
    kept, left_then = (
        left(groups.rho, sum(map(links.seconds, groups.iterations)), links.least) for groups in (present, offered)
    )
    faster = before - then > worth * step_s
    sooner = before - then >= -worth * step_s and left_then < kept**SOONER
    seen = _describe(late, worth * step_s, step_s, len(lateness))
    change = (
        f"the slowest group is predicted to take {_ms(then)} with other groups and {_ms(before)} with these, and "
        f"disagreement to shrink to {left_then:.3f} and {kept:.3f} in {_ms(links.least)}"
    )
    if faster or sooner:
        return Adjustment(offered, True, tuple(late.tolist()), f"{seen}; {change}: the groups change.")
    return Adjustment(present, False, tuple(late.tolist()), f"{seen}; {change}: the groups stay.")


def _seen(sites: Sequence[Mapping[str, Any]], ranks: int, steps: int) -> tuple[NDArray[np.float64], float]:
    """How much longer than the median rank each works, [steps, ranks], and a step's seconds, by the largest sums."""
    ours = [
        site
        for site in sites
        if (site["plan"], site["ranks"]) == ("groups", ranks) and site["own_s"] and None not in site["own_s"][-1]
    ]
    if not ours:
        return np.empty((0, ranks)), 0.0
    most = max(ours, key=lambda site: site["bytes"])
    own = np.array(most["own_s"][-steps:])
    by_itself, together = (
        work - np.median(work, axis=1, keepdims=True) for work in (own, np.array(most["arrivals"][-len(own) :]))
    )
    step_s = float(np.median(own) + np.median(most["after_arrival_s"][-len(own) :]))
    return min(by_itself, together, key=_unsteadiness), step_s


def _unsteadiness(lateness: NDArray[np.float64]) -> float:
    return float(np.abs(lateness - np.median(lateness, axis=0)).mean())


def _links(plan: Plan, planned: Groups, late: NDArray[np.float64]) -> GroupCosts:
    """The plan's network, in which a late rank has a NIC that takes as much longer for the model."""
    alpha, beta = plan.assumptions.alpha_s, plan.assumptions.beta_s_per_byte
    model_s = max(planned.bytes * beta, 1e-12)
    nics = np.minimum(np.array(planned.nics) + late / model_s, SLOWEST).round(3)
    return GroupCosts(planned.racks, tuple(nics.tolist()), planned.bytes, alpha, beta)


def _describe(late: NDArray[np.float64], least_s: float, step_s: float, steps: int) -> str:
    slow = [f"rank {rank} by {_ms(late[rank])}" for rank in np.argsort(-late) if late[rank] > least_s]
    who = ", ".join(slow) if slow else "nobody"
    return f"late in three of four of the last {steps} steps, which take the median rank {_ms(step_s)}: {who}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
