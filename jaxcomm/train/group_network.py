"""The network for which groups are planned: the network of a plan, or the network measured in the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from jaxcomm.plan import Plan
from jaxcomm.plan.groups import GroupCosts, Groups, RackRanks

REMEASURE_FACTOR: Final = 1.3  # links are measured again if averages became slower or faster by this factor
RARELY: Final = 100  # minimum time between measurements, divided by a measurement's time: at most 1 % of the run
MATTERS: Final = 1.25  # factor by which a link must become slower or faster to count as changed
SLOWEST: Final = 1e6  # maximum value of `nics` in a plan


@dataclass(frozen=True)
class GroupNetwork:
    """Racks and NICs, and the time of their measurement.

    Attributes:
      racks: the racks, each with the time of a byte through its uplink, divided by the time of a byte within a rack.
      nics: by rank, the time of a byte through its NIC, divided by the time of a byte within a rack.
      alpha_s: seconds of a hop.
      beta_s_per_byte: seconds of a byte within a rack.
      measured_at_s: time of the measurement, by the first process's monotonic clock; None: the plan's network.
      measured_in_s: duration of the measurement.
      average_s: mean time of an average, from the last arrival to the end, when the links were measured. After a change
        of groups, the mean time with the new groups. None: unknown.
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
        """The network of a plan."""
        return cls(groups.racks, groups.nics, plan.assumptions.alpha_s, plan.assumptions.beta_s_per_byte)

    def with_late(self, late_s: NDArray[np.float64], nbytes: int) -> GroupCosts:
        """The network with slower NICs: each rank's NIC takes longer for `nbytes` bytes, by the rank's lateness."""
        model_s = max(nbytes * self.beta_s_per_byte, 1e-12)
        nics = np.minimum(np.array(self.nics) + late_s / model_s, SLOWEST).round(3)
        return GroupCosts(self.racks, tuple(nics.tolist()), nbytes, self.alpha_s, self.beta_s_per_byte)

    def has_changed(self, average_s: float) -> bool:
        """Whether `average_s` differs from this network's `average_s` by a factor of at least REMEASURE_FACTOR."""
        return self.average_s is not None and not (
            1 / REMEASURE_FACTOR < average_s / max(self.average_s, 1e-12) < REMEASURE_FACTOR
        )

    def wait_s(self, now_s: float) -> float:
        """Seconds until the links may be measured again. `now_s` and `measured_at_s` are times of the same clock."""
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
