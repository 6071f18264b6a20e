"""Medians and ratios of medians, with their 95 % intervals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

LEAST_TURNS = 5
_RESAMPLED = 2000

Launches = Sequence[Sequence[float]]  # seconds of each turn, by launch


class Estimate(NamedTuple):
    """A value and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def ratio(ours: Launches, peer: Launches) -> Estimate:
    """Our median divided by the peer's median, for each launch or pair of launches; the median of these ratios.

    The interval is from a bootstrap that draws launches, and in each of them turns of each side.

    Args:
      ours: seconds of our turns in each launch.
      peer: seconds of the peer's turns, in the same number of launches.

    Raises:
      ValueError: fewer than `LEAST_TURNS` turns in a launch, no launch, or different numbers of launches.
    """
    return _estimate([ours, peer], lambda medians: medians[0] / medians[1])


def median(ours: Launches) -> Estimate:
    """The median of all launches' medians, with its interval from the same bootstrap."""
    return _estimate([ours], lambda medians: medians[0])


def _estimate(sides: Sequence[Launches], combined: Callable[[list[np.ndarray]], np.ndarray]) -> Estimate:
    count = len(sides[0])
    if not count or any(len(side) != count for side in sides):
        raise ValueError(f"{' and '.join(str(len(side)) for side in sides)} launches")
    turns = min(len(launch) for side in sides for launch in side)
    if turns < LEAST_TURNS:
        raise ValueError(f"{turns} turns; {LEAST_TURNS} are the fewest that have an interval")
    plain = [np.array([statistics.median(launch) for launch in side]) for side in sides]
    draw = np.random.default_rng(0)
    drawn = []
    for side in sides:
        drawn.append(np.stack([np.median(draw.choice(launch, (_RESAMPLED, len(launch))), axis=1) for launch in side]))
    each = combined(drawn)  # by launch and draw
    chosen = draw.integers(count, size=(count, _RESAMPLED))
    low, high = np.percentile(np.median(np.take_along_axis(each, chosen, axis=0), axis=0), [2.5, 97.5])
    return Estimate(float(np.median(combined(plain))), float(low), float(high))
