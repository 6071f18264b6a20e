"""When messages run: each as soon as what it awaits is over, those that share a link one after the other.

The core finds it (cc/simulate), as a plan for many hosts asks hundreds of times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.ffi.cpu import CPU
from jaxcomm.simulate.dependencies import Dependencies, Lists

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Times(NamedTuple):
    """When every message starts, frees its ports, and has arrived."""

    start: Floats
    free: Floats
    end: Floats


class Links:
    """The links that messages pass and share with others: of those that wait, the one of the earliest round is served.

    A message passes a link as its bytes come in: its first byte goes on to the next link at once. A link that is faster
    than the slowest one on a message's way serves it at any time before its arrival, and others meanwhile.
    """

    def __init__(self, needs: Dependencies, link: Ints) -> None:
        """Takes the shared links on the way of each message, as [stages, messages]; -1: none."""
        self._points = len(needs.early)
        self._after_end, self._after_free = (Lists.of(edges, needs.nodes) for edges in (needs.on_end, needs.on_free))
        self._waits = np.bincount(np.concatenate([needs.on_end, needs.on_free])[:, 1], minlength=needs.nodes)
        self._stages = Lists.of(np.stack(np.nonzero(link.T >= 0), axis=1), needs.nodes)
        self._link = np.ascontiguousarray(link, np.int64)
        self._shared = int(link.max(initial=-1)) + 1

    def times(self, ready: Floats, port_s: Floats, early_s: Floats, lag_s: Floats, link_s: Floats) -> Times:
        """The times of a run.

        Args:
          ready: when the ranks of each message are there.
          port_s: seconds that each takes of its slower port.
          early_s: by point, the seconds by which a faster port is free before that.
          lag_s: seconds from its ports' being free to its arrival.
          link_s: seconds that each takes of the shared links on its way, as [stages, messages].
        """
        nothing = np.zeros(self._points)
        start, free, end = (
            np.concatenate([known, at_points])
            for known, at_points in ((ready, nothing - np.inf), (port_s, -early_s), (lag_s, nothing))
        )
        taken = np.ascontiguousarray(link_s, np.float64)
        slowest = np.broadcast_to(np.maximum(taken.max(axis=0), port_s), taken.shape).copy()
        lists = (self._after_end, self._after_free)
        arrays = (
            *(array for each in lists for array in (each.first, each.members)),
            self._waits,
            *(self._stages.first, self._stages.members, self._link),
            *(taken, slowest, start, free, end),
        )
        CPU.call("simulate", len(ready), len(start), self._shared, *(array.ctypes.data for array in arrays))
        return Times(*(each[: len(ready)] for each in (start, free, end)))
