"""The network that groups are planned on: as a plan says, and as it is measured in the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from jaxcomm.plan import Plan
from jaxcomm.plan.groups import GroupCosts, Groups, RackRanks

REMEASURE_FACTOR: Final = 1.3  # times as long or as short as averages took: the links are then measured again
RARELY: Final = 100  # times as long as that took, until it may be done again: one percent of the time
MATTERS: Final = 1.25  # times as slow or as fast, from which on a link has changed
SLOWEST: Final = 1e6  # times as slow as a NIC may be in a plan


@dataclass(frozen=True)
class GroupNetwork:
    """Racks and NICs, and when they were measured.

    Attributes:
      racks: with what a byte takes through their uplinks, in times of one within a rack.
      nics: by rank, how many times as long a byte takes through its NIC.
      alpha_s: seconds of a hop.
      beta_s_per_byte: seconds of a byte within a rack.
      measured_at_s: when that was, by the first process's monotonic clock; None: it is the plan's.
      measured_in_s: how long it took.
      average_s: the time of averages from the last arrival on, then or with the present groups; None: not known yet.
    """

    racks: tuple[RackRanks, ...]
    nics: tuple[float, ...]
    alpha_s: float
    beta_s_per_byte: float
    measured_at_s: float | None = None
    measured_in_s: float = 0.0
    average_s: float | None = None

    @classmethod
    def of(cls, plan: Plan, groups: Groups) -> Self:
        """The plan's."""
        return cls(groups.racks, groups.nics, plan.assumptions.alpha_s, plan.assumptions.beta_s_per_byte)

    def with_late(self, late_s: NDArray[np.float64], nbytes: int) -> GroupCosts:
        """The network in which a late rank has a NIC that takes as much longer for a model of `nbytes`."""
        model_s = max(nbytes * self.beta_s_per_byte, 1e-12)
        nics = np.minimum(np.array(self.nics) + late_s / model_s, SLOWEST).round(3)
        return GroupCosts(self.racks, tuple(nics.tolist()), nbytes, self.alpha_s, self.beta_s_per_byte)

    def has_changed(self, average_s: float) -> bool:
        """Whether averages take longer or shorter than they did."""
        return self.average_s is not None and not (
            1 / REMEASURE_FACTOR < average_s / max(self.average_s, 1e-12) < REMEASURE_FACTOR
        )

    def wait_s(self, now_s: float) -> float:
        """Seconds until it may be measured again, by the same clock."""
        if self.measured_at_s is None:
            return 0.0
        return max(0.0, self.measured_at_s + RARELY * self.measured_in_s - now_s)

    def changes_from(self, before: GroupNetwork) -> str:
        """The links that are slower or faster than before, and by how much."""
        changes = []
        if [rack.ranks for rack in self.racks] != [rack.ranks for rack in before.racks]:
            changes.append(f"the racks are {' and '.join(_ranks(rack.ranks) for rack in self.racks)}")
        elif len(self.racks) > 1:
            for index, (rack, old) in enumerate(zip(self.racks, before.racks, strict=True)):
                changes += _change(f"the uplink of rack {index}", rack.uplink, old.uplink)
        for rank, (nic, old_nic) in enumerate(zip(self.nics, before.nics, strict=True)):
            changes += _change(f"the NIC of rank {rank}", nic, old_nic)
        per_mib = [2**20 * each.beta_s_per_byte for each in (self, before)]
        if not 1 / MATTERS < per_mib[0] / max(per_mib[1], 1e-12) < MATTERS:
            changes.append(f"1 MiB within a rack takes {1e3 * per_mib[0]:.3g} ms, after {1e3 * per_mib[1]:.3g}")
        return ", ".join(changes) or "they are as before"


def _change(link: str, now: float, before: float) -> list[str]:
    if 1 / MATTERS < now / before < MATTERS:
        return []
    return [f"a byte through {link} takes {now:.3g} times as long as within a rack, after {before:.3g}"]


def _ranks(ranks: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ranks))}]"
