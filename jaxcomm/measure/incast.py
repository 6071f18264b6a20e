"""The cost for hosts to exchange with several others, rather than each with the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from jaxcomm.measure import placement
from jaxcomm.measure.placement import Exchanges, Floats

_SECONDS: Final = 0.06  # of a sum
_CHUNK: Final = (2**18, 2**22)  # bytes of a rank's part of it
_ALIGNED: Final = 64
_TIMES: Final = 5
_MOST: Final = 32  # hosts, as buffers grow with them

Sums = Callable[[Sequence[int], int, Sequence[str]], Floats]


def measure(found: Exchanges, sums: Sums) -> float | None:
    """Seconds of a byte in the direct schedule, in times of those in a ring, of one rank per host; at least 1.

    Both carry as much between hosts; in a ring each host sends to one other. Of more than 32 hosts the first 32 take
    part. None: there are no three hosts.

    Args:
      found: the times of the exchanges of pairs.
      sums: takes ranks, bytes and the names of schedules, runs a sum by each of them in turn, and returns the seconds;
        all processes call it.
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
    direct, ring = np.median(seconds.reshape(-1, 2)[1:], axis=0)  # the first ones touch new memory
    bytes_s = direct - 2 * message_s, max(ring - 2 * (hosts - 1) * message_s, ring / 2)
    return max(1.0, float(bytes_s[0] / bytes_s[1]))
