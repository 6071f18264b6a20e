"""Detects that calls take more or less time than when their plan was made: a link has become slower or faster."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.auto_plan.situation import CALLS

REMEASURE_FACTOR: Final = 1.3  # links are measured again if calls became slower or faster by this factor


class SpeedChange:
    """Follows the time from the last arrival to the end, for each site's calls under one plan.

    speed = SpeedChange()
    change = speed.change(site, seconds)  # repeatedly; compares with the first steady seconds
    """

    def __init__(self) -> None:
        self._usual: dict[object, float] = {}

    def forget(self) -> None:
        """Forgets all times. Call this after a switch of plans or a measurement of the links."""
        self._usual.clear()

    def change(self, site: object, seconds: NDArray[np.float64]) -> tuple[float, float] | None:
        """A call's median seconds when the site was first steady, and now; None without a change, or for too few calls.

        Args:
          site: the call site.
          seconds: seconds of each of the latest calls.
        """
        if len(seconds) < CALLS:
            return None
        now = float(np.median(seconds[-CALLS:]))
        halves = [float(np.median(half)) for half in (seconds[-CALLS : -CALLS // 2], seconds[-CALLS // 2 :])]
        if max(halves) < REMEASURE_FACTOR * min(halves):
            self._usual.setdefault(site, now)
        usual = self._usual.get(site, now)
        has_changed = min(halves) >= REMEASURE_FACTOR * usual or REMEASURE_FACTOR * max(halves) <= usual
        return (usual, now) if has_changed else None
