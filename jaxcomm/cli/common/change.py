"""The changes that `jaxcomm what-if` makes in a profile."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from jaxcomm import profile
from jaxcomm.cli.common.arguments import Late, NicRate, PartRate
from jaxcomm.profile import Profile
from jaxcomm.report.tables import seconds_text


@dataclass(frozen=True)
class Change:
    """Changes of a profile, applied in this order: straggler, links, rails, uplinks of racks, NICs, late ranks."""

    no_straggler: bool = False
    rate: Fraction | None = None
    late: tuple[Late, ...] = ()
    without_rails: tuple[str, ...] = ()
    rail_rates: tuple[PartRate, ...] = ()
    uplink_rates: tuple[PartRate, ...] = ()
    nic_rates: tuple[NicRate, ...] = ()

    def __str__(self) -> str:
        """The change in words."""
        parts = ["no straggler"] if self.no_straggler else []
        parts += [f"links at {self.rate} times their rate"] if self.rate else []
        parts += [f"no rail {name}" for name in self.without_rails]
        parts += [f"rail {each.name} at {each.rate} times its rate" for each in self.rail_rates]
        parts += [f'the uplink of "{each.name}" at {each.rate} times its rate' for each in self.uplink_rates]
        parts += [f"the NIC of rank {each.rank} at {each.rate} times its rate" for each in self.nic_rates]
        parts += [f"rank {late.rank} later by {seconds_text(late.seconds)}" for late in self.late]
        return ", ".join(parts)

    def apply(self, measured: Profile) -> Profile:
        """The changed profile."""
        changed = profile.without_straggler(measured) if self.no_straggler else measured
        changed = profile.at_rate(changed, float(self.rate)) if self.rate else changed
        for name in self.without_rails:
            changed = profile.without_rail(changed, name)
        for each in self.rail_rates:
            changed = profile.rail_at_rate(changed, each.name, float(each.rate))
        for each in self.uplink_rates:
            changed = profile.uplink_at_rate(changed, each.name, float(each.rate))
        for nic in self.nic_rates:
            changed = profile.nic_at_rate(changed, nic.rank, float(nic.rate))
        for late in self.late:
            changed = profile.with_late_rank(changed, late.rank, late.seconds)
        return changed

    def document(self) -> dict[str, Any]:
        """The change as JSON."""
        return {
            "no_straggler": self.no_straggler,
            "rate": float(self.rate or 1),
            "late": [late._asdict() for late in self.late],
            "without_rails": self.without_rails,
            "rail_rates": {each.name: float(each.rate) for each in self.rail_rates},
            "uplink_rates": {each.name: float(each.rate) for each in self.uplink_rates},
            "nic_rates": {str(each.rank): float(each.rate) for each in self.nic_rates},
        }
