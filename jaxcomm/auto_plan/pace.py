"""Whether calls take as long as when their plan was made: if not, a link is slower or faster than it was."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.auto_plan.situation import CALLS

_CHANGED: Final = 1.3  # times as long or as short


class Pace:
    """Seconds from the last arrival to the end, of the calls of each site under one plan.

    pace = Pace()
    change = pace.change(site, seconds)  # now and then; the first steady seconds are those to compare with
    """

    def __init__(self) -> None:
        self._usual: dict[object, float] = {}

    def forget(self) -> None:
        """Begins again: the plan is another one, or links have been measured."""
        self._usual.clear()

    def change(self, site: object, seconds: NDArray[np.float64]) -> tuple[float, float] | None:
        """What a call took and takes now, by the median; None: as long as before, or that cannot be told yet.

        Args:
          site: of the calls.
          seconds: of the latest calls, each.
        """
        if len(seconds) < CALLS:
            return None
        now = float(np.median(seconds[-CALLS:]))
        halves = [float(np.median(half)) for half in (seconds[-CALLS : -CALLS // 2], seconds[-CALLS // 2 :])]
        if max(halves) < _CHANGED * min(halves):
            self._usual.setdefault(site, now)
        usual = self._usual.get(site, now)
        has_changed = min(halves) >= _CHANGED * usual or _CHANGED * max(halves) <= usual
        return (usual, now) if has_changed else None
