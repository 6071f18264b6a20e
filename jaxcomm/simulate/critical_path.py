"""The critical path of a run: the chain of messages that ends with the last arrival, and its time by cause."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.simulate.simulation import Messages, Run


class Parts(NamedTuple):
    """Seconds of the critical path; they sum to the run's time from the first arrival to the end.

    `late_s` is the time until both ranks of the first message have arrived. `port_s` is the messages' time at their
    ports, and `latency_s` is their α. `links_s` is the time added by shared links: queues, and slower speed.
    `repair_s` is the time added by lost packets.
    """

    late_s: float
    port_s: float
    latency_s: float
    links_s: float
    repair_s: float


def critical_path(run: Run, first_s: float = 0.0) -> Parts:
    """Follows the critical path back from the last message, to a message that waited for no other message.

    Args:
      run: a run.
      first_s: the time at which the first rank arrived.
    """
    phases = [messages for messages in run.phases if len(messages.src)]
    fields = (np.concatenate([getattr(each, name) for each in phases]) for name in Messages.__dataclass_fields__)
    steps = Messages(*fields)
    by_end, by_free = (_Times(times) for times in (steps.end_s, steps.free_s))
    parts = np.zeros(5)
    at, arrives = int(steps.end_s.argmax()), True  # False: the path leaves message `at` when its ports are free
    while True:
        start, free, end = steps.start_s[at], steps.free_s[at], steps.end_s[at]
        port, resent, wait = steps.port_s[at], steps.resent_s[at], steps.wait_s[at]
        parts += [0.0, port, 0.0, max(0.0, free - start - port - resent), resent]
        if arrives:
            parts += [0.0, 0.0, end - free - wait, 0.0, wait]
        ends, frees = by_end.at(start), by_free.at(start)
        src, dst = steps.src[at], steps.dst[at]
        met = ends[np.isin(steps.src[ends], (src, dst)) | np.isin(steps.dst[ends], (src, dst))]
        served = frees[
            (steps.round[frees] == steps.round[at]) & ((steps.src[frees] == src) | (steps.dst[frees] == dst))
        ]
        before = np.concatenate([met, served])
        before = before[steps.start_s[before] < start]
        arrives = before[:1] in met
        if not len(before):
            parts[0] = start - first_s
            parts[np.abs(parts) < 1e-12 * steps.end_s.max()] = 0.0  # removes rounding errors
            return Parts(*parts.tolist())
        at = int(before[0])


class _Times:
    """Finds the messages of a given time."""

    def __init__(self, times: NDArray[np.float64]) -> None:
        self._order = np.argsort(times)
        self._sorted = times[self._order]

    def at(self, time: float) -> NDArray[np.int64]:
        first, last = np.searchsorted(self._sorted, time, "left"), np.searchsorted(self._sorted, time, "right")
        return self._order[first:last]
