"""Why a run took as long as it did: the chain of messages that ends with the last one, and where its time went."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.simulate.events import Messages, Run


class Parts(NamedTuple):
    """Seconds of the critical path; together they are the run's, from the first arrival to the end.

    `late_s` passes before the first message's ranks are there, `port_s` is what the messages take of their ports,
    `latency_s` their α, `links_s` the queues and the slower speed of shared links, `repair_s` what lost packets cost.
    """

    late_s: float
    port_s: float
    latency_s: float
    links_s: float
    repair_s: float


def critical_path(run: Run, first_s: float = 0.0) -> Parts:
    """Follows the last message back to what it waited for, and so on, until a message that waited for nobody.

    Args:
      run: a run.
      first_s: when the first rank arrived.
    """
    phases = [messages for messages in run.phases if len(messages.src)]
    fields = (np.concatenate([getattr(each, name) for each in phases]) for name in Messages.__dataclass_fields__)
    steps = Messages(*fields)
    by_end, by_free = (_Times(times) for times in (steps.end_s, steps.free_s))
    parts = np.zeros(5)
    at, arrives = int(steps.end_s.argmax()), True  # whether the path waits for the message's arrival, or its ports
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
            parts[np.abs(parts) < 1e-12 * steps.end_s.max()] = 0.0  # rounding left of differences of equal times
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
