"""The rails' shares, in units of 1/1024. `cc/transport/rails/rail_table.h` uses them to choose each segment's rail."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

UNITS: Final = 1024  # the sum of the shares of all rails


class SharesFrom(NamedTuple):
    """The shares for calls of at least `min_bytes` bytes. The keys are the rails' names. All shares sum to UNITS."""

    min_bytes: int
    shares: Mapping[str, int]


class PlanRail(NamedTuple):
    """A rail of a plan: its name, its transport, and the bytes per second of a large all-reduce on this rail alone."""

    name: str
    transport: str
    bytes_per_s: float


class PlanRails(NamedTuple):
    """The rails of a plan, and the rails' shares for each range of sizes. The first range begins at 0 bytes."""

    rails: tuple[PlanRail, ...]
    shares: tuple[SharesFrom, ...]


def in_units(weights: Sequence[float]) -> list[int]:
    """Shares in proportion to the weights, within 1 of the exact values. At least one weight must be above 0."""
    total = sum(weights)
    edges = [round(UNITS * each / total) for each in itertools.accumulate(weights, initial=0.0)]
    return [high - low for low, high in itertools.pairwise(edges)]
