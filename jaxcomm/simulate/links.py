"""The times of messages. A message starts as soon as all its dependencies are done.

Messages that share a link run one after another. The core computes the times (cc/simulate), because a plan for many
hosts needs hundreds of runs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.ffi.arguments import IndexLists, MessageNetwork, MessageTimes
from jaxcomm.ffi.cpu import CPU
from jaxcomm.simulate.dependencies import Dependencies, Lists

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Times(NamedTuple):
    """The times at which every message starts, frees its ports, and has arrived."""

    start: Floats
    free: Floats
    end: Floats


class Links:
    """The links that messages share. Among waiting messages, a link serves the message of the earliest round first.

    A link forwards each byte of a message at once, without waiting for the rest of the message. A link that is faster
    than the slowest link on a message's path serves the message at any time before the message's arrival, and can serve
    other messages meanwhile.
    """

    def __init__(self, needs: Dependencies, link: Ints) -> None:
        """Takes the dependencies and the shared links. `link[i, m]` is the i-th link of message m's path, or -1."""
        self._points = len(needs.early)
        self._after_end, self._after_free = (Lists.of(edges, needs.nodes) for edges in (needs.on_end, needs.on_free))
        self._waits = np.bincount(np.concatenate([needs.on_end, needs.on_free])[:, 1], minlength=needs.nodes)
        self._stages = Lists.of(np.stack(np.nonzero(link.T >= 0), axis=1), needs.nodes)
        self._link = np.ascontiguousarray(link, np.int64)
        self._shared = int(link.max(initial=-1)) + 1

    def times(self, ready: Floats, port_s: Floats, early_s: Floats, lag_s: Floats, link_s: Floats) -> Times:
        """Returns the times of all messages in a run.

        Args:
          ready: the time at which both ranks of each message have arrived.
          port_s: seconds for which each message occupies its slower port.
          early_s: for each point of the dependencies, the seconds from the point to the end of its last predecessor.
          lag_s: seconds from the time at which a message's ports are free to its arrival.
          link_s: seconds for which each message occupies the shared links on its path, as [stages, messages].
        """
        nothing = np.zeros(self._points)
        start, free, end = (
            np.concatenate([known, at_points])
            for known, at_points in ((ready, nothing - np.inf), (port_s, -early_s), (lag_s, nothing))
        )
        taken = np.ascontiguousarray(link_s, np.float64)
        slowest = np.broadcast_to(np.maximum(taken.max(axis=0), port_s), taken.shape).copy()
        network = MessageNetwork(
            *(len(ready), len(start), self._shared),
            *(_index_lists(self._after_end), _index_lists(self._after_free), self._waits),
            *(_index_lists(self._stages), self._link, taken, slowest),
        )
        CPU.call("simulate", network, MessageTimes(start, free, end))
        return Times(*(each[: len(ready)] for each in (start, free, end)))


def _index_lists(lists: Lists) -> IndexLists:
    return IndexLists(lists.first, lists.members)
