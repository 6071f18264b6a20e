"""Measures how much longer a byte takes if each host sends to several hosts at once instead of to one host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from jaxcomm.measure import placement
from jaxcomm.measure.placement import Floats, PairTimes

_SECONDS: Final = 0.06  # target time of a sum, in seconds
_CHUNK: Final = (2**18, 2**22)  # minimum and maximum size of a rank's chunk of the buffer, in bytes
_ALIGNED: Final = 64
_TIMES: Final = 5
_MOST: Final = 32  # maximum number of hosts, because buffers grow with this number

Sums = Callable[[Sequence[int], int, Sequence[str]], Floats]


def measure(found: PairTimes, sums: Sums) -> float | None:
    """Returns a byte's time in the direct schedule, divided by its time in a ring, for one rank per host; at least 1.

    Both schedules carry the same bytes between hosts, but in a ring each host sends to one host only. Only the first 32
    hosts are measured. Returns None if there are fewer than three hosts.

    Args:
      found: the times of the exchanges of pairs.
      sums: takes ranks, bytes and names of schedules. It runs a sum by each schedule in turn and returns each sum's
        seconds. All processes call it.
    """
    ranks = [found.hosts.index(host) for host in dict.fromkeys(found.hosts)][:_MOST]
    if (hosts := len(ranks)) < 3:
        return None
    rows = [
        (float(row[0]), float(byte))
        for pairs, seconds in found.loaded
        for pair, row, byte in zip(pairs, seconds, placement.per_byte(found.sizes, seconds), strict=True)
        if found.hosts[pair[0]] != found.hosts[pair[1]]
    ]
    message_s, byte_s = np.median(np.array(rows), axis=0)
    chunk = int(np.clip(_SECONDS / (2 * hosts * byte_s), *_CHUNK)) // _ALIGNED * _ALIGNED
    seconds = sums(ranks, chunk * hosts, ["direct", "ring"] * (1 + _TIMES))
    direct, ring = np.median(seconds.reshape(-1, 2)[1:], axis=0)  # without the first sums, which touch new memory
    bytes_s = direct - 2 * message_s, max(ring - 2 * (hosts - 1) * message_s, ring / 2)
    return max(1.0, float(bytes_s[0] / bytes_s[1]))
