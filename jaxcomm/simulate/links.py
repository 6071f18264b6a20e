"""When messages run: each as soon as what it awaits is over, those that share a link one after the other."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.simulate.dependencies import Dependencies

Floats = NDArray[np.float64]


class Pass(NamedTuple):
    """A shared link on a message's way: it is taken for `link_s`, and the message is through no sooner than `slowest_s`
    after it has begun."""

    link: int
    link_s: float
    slowest_s: float


def times(
    needs: Dependencies, ready: Floats, port_s: Floats, lag_s: Floats, ways: Sequence[Sequence[Pass]] | None
) -> tuple[Floats, Floats, Floats]:
    """When every message starts, frees its ports, and has arrived.

    Shared links serve first come, first served. A message passes a link as its bytes come in: its first byte goes on to
    the next link at once.

    Args:
      needs: the messages and what they await.
      ready: when the ranks of each are there.
      port_s: seconds that each takes of its ports.
      lag_s: seconds from its ports' being free to its arrival.
      ways: the shared links of each message, None if nothing is shared.
    """
    points = len(needs.waits) - len(port_s)
    start = [*ready.tolist(), *[-np.inf] * points]
    free, lag = [*port_s.tolist(), *[0.0] * points], [*lag_s.tolist(), *[0.0] * points]
    end, waits = [0.0] * len(start), needs.waits.copy()
    idle: dict[int, float] = {}  # when each shared link is
    on_the_way: list[tuple[float, int, int]] = []  # the head's arrival at its next link, message, number of the link
    can_start = [index for index, count in enumerate(waits) if not count]
    while can_start or on_the_way:
        if can_start:
            now = can_start.pop()
            free[now] += start[now]
            if ways and now < len(ways) and ways[now]:
                heapq.heappush(on_the_way, (start[now], now, 0))
                continue
        else:  # nobody can overtake the first: whatever starts from here on does so later
            head, now, place = heapq.heappop(on_the_way)
            assert ways
            link, link_s, slowest_s = ways[now][place]
            head = max(head, idle.get(link, -np.inf))
            idle[link] = head + link_s
            free[now] = max(free[now], head + slowest_s)
            if place + 1 < len(ways[now]):
                heapq.heappush(on_the_way, (head, now, place + 1))
                continue
        end[now] = arrival = free[now] + lag[now]
        for (followers, first), when in ((needs.after_end, arrival), (needs.after_free, free[now])):
            for after in followers[first[now] : first[now + 1]]:
                if when > start[after]:
                    start[after] = when
                waits[after] -= 1
                if not waits[after]:
                    can_start.append(after)
    count = len(port_s)
    return np.array(start[:count]), np.array(free[:count]), np.array(end[:count])
