"""When messages run: each as soon as what it awaits is over, those that share a link one after the other."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.simulate.dependencies import Dependencies, Lists

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Times(NamedTuple):
    """When every message starts, frees its ports, and has arrived."""

    start: Floats
    free: Floats
    end: Floats


class Unshared:
    """Messages whose ports are all they need: what each awaits is over before it in one fixed order."""

    def __init__(self, needs: Dependencies) -> None:
        self._points = needs.points
        ends, frees = (Lists.of(edges[:, ::-1], needs.nodes).each() for edges in (needs.on_end, needs.on_free))
        self._order = [(each, ends[each], frees[each]) for each in needs.order().tolist()]

    def times(self, ready: Floats, port_s: Floats, lag_s: Floats, link_s: Floats) -> Times:
        """The times of a run.

        Args:
          ready: when the ranks of each message are there.
          port_s: seconds that each takes of its ports.
          lag_s: seconds from its ports' being free to its arrival.
          link_s: seconds that each takes of the shared links on its way, as [stages, messages]; here there are none.
        """
        start = [*ready.tolist(), *[-np.inf] * self._points]
        free, end = [*port_s.tolist(), *[0.0] * self._points], [*lag_s.tolist(), *[0.0] * self._points]
        for now, ends, frees in self._order:
            begin = start[now]
            for each in ends:
                if end[each] > begin:
                    begin = end[each]
            for each in frees:
                if free[each] > begin:
                    begin = free[each]
            start[now] = begin
            free[now] += begin
            end[now] += free[now]
        return Times(*(np.array(each[: len(ready)]) for each in (start, free, end)))


class Shared:
    """Messages that also pass links which they share with others: first come, first served.

    A message passes a link as its bytes come in: its first byte goes on to the next link at once.
    """

    def __init__(self, needs: Dependencies, link: Ints) -> None:
        """Takes the shared links on the way of each message, as [stages, messages]; -1: none."""
        self._points = needs.points
        self._after_end, self._after_free = (
            Lists.of(edges, needs.nodes).each() for edges in (needs.on_end, needs.on_free)
        )
        self._waits = np.bincount(np.concatenate([needs.on_end, needs.on_free])[:, 1], minlength=needs.nodes).tolist()
        stages, links = Lists.of(np.stack(np.nonzero(link.T >= 0), axis=1), needs.nodes).each(), link.tolist()
        self._ways = [[(stage, links[stage][index]) for stage in way] for index, way in enumerate(stages)]
        self._shared = int(link.max()) + 1

    def times(self, ready: Floats, port_s: Floats, lag_s: Floats, link_s: Floats) -> Times:
        """As `Unshared.times`."""
        start = [*ready.tolist(), *[-np.inf] * self._points]
        free, end = [*port_s.tolist(), *[0.0] * self._points], [*lag_s.tolist(), *[0.0] * self._points]
        taken, slowest = link_s.tolist(), np.maximum(link_s, port_s).tolist()
        ways, waits, after_end, after_free = self._ways, self._waits.copy(), self._after_end, self._after_free
        idle = [-np.inf] * self._shared  # when each shared link is
        # The head's arrival at its next link, the message, the number of the link.
        on_the_way: list[tuple[float, int, int]] = []
        can_start = [index for index, awaited in enumerate(waits) if not awaited]
        while True:
            if can_start:
                now = can_start.pop()
                free[now] += start[now]
                if ways[now]:
                    heapq.heappush(on_the_way, (start[now], now, 0))
                    continue
            elif on_the_way:  # nobody can overtake the first: whatever starts from here on does so later
                head, now, place = heapq.heappop(on_the_way)
                way = ways[now]
                stage, link = way[place]
                if idle[link] > head:
                    head = idle[link]
                idle[link] = head + taken[stage][now]
                passed = head + slowest[stage][now]
                if passed > free[now]:
                    free[now] = passed
                if place + 1 < len(way):
                    heapq.heappush(on_the_way, (head, now, place + 1))
                    continue
            else:
                break
            freed = free[now]
            end[now] = arrival = freed + end[now]
            for after in after_end[now]:
                if arrival > start[after]:
                    start[after] = arrival
                waits[after] -= 1
                if not waits[after]:
                    can_start.append(after)
            for after in after_free[now]:
                if freed > start[after]:
                    start[after] = freed
                waits[after] -= 1
                if not waits[after]:
                    can_start.append(after)
        return Times(*(np.array(each[: len(ready)]) for each in (start, free, end)))
