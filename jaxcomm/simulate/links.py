"""The shared links: who passes when through the NICs of hosts and the uplinks of racks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Links:
    """Messages on their way over the shared links of their ways, first come first served.

    A message passes a link as its bytes come in: its first byte goes on to the next link at once.
    """

    def __init__(self, link: Ints, link_s: Floats, port_s: Floats, pause_s: float) -> None:
        """Nobody is on the way.

        Args:
          link: the link of every stage of the way and message, -1 for none.
          link_s: seconds that the message takes of it.
          port_s: seconds that a message takes of its ports.
          pause_s: the least time between the end of a message and the start of what waited for it.
        """
        used = np.any(link >= 0, axis=1)
        self._link, self._link_s = link[used], link_s[used]
        self._slowest = np.maximum(self._link_s, port_s)
        self._pause = pause_s
        self._free = np.zeros(int(link.max(initial=-1)) + 1)
        self._head = np.zeros(len(port_s))  # when a message's first byte reaches its next link
        self._waiting = [np.empty(0, np.int64) for _ in range(len(self._link) + 1)]
        self.alone: NDArray[np.bool_] = np.all(link < 0, axis=0)

    def __len__(self) -> int:
        return sum(map(len, self._waiting))

    def add(self, messages: Ints, start_s: Floats) -> None:
        """Sets out messages."""
        self._head[messages] = start_s[messages]
        self._waiting[0] = np.concatenate([self._waiting[0], messages])

    def serve(self, free_s: Floats) -> Ints:
        """Serves all messages that nobody can overtake any more, one at least, and returns those that are through.

        Args:
          free_s: when their last byte is through, by message of the whole schedule; is brought up to date.
        """
        now, horizon = np.inf, np.inf  # what is not known yet reaches its first link at the horizon or later
        for stage in range(len(self._link)):
            some = self._waiting[stage]
            if len(some):
                link, head = self._link[stage, some], self._head[some]
                begin = np.where(link >= 0, np.maximum(head, self._free[link]), head)
                through = np.maximum(free_s[some], begin + self._slowest[stage, some])
                now, horizon = min(now, float(head.min())), min(horizon, float(through.min()) + self._pause)
        for stage in range(len(self._link)):
            some = self._waiting[stage]
            if len(some):
                head = self._head[some]
                soon = (head < horizon) | (head == now)
                here, self._waiting[stage] = some[soon], some[~soon]
                self._pass(stage, here[self._link[stage, here] >= 0], free_s)
                self._waiting[stage + 1] = np.concatenate([self._waiting[stage + 1], here])
        done, self._waiting[-1] = self._waiting[-1], self._waiting[-1][:0]
        return done

    def _pass(self, stage: int, messages: Ints, free_s: Floats) -> None:
        if not len(messages):
            return
        messages = messages[np.lexsort((messages, self._head[messages], self._link[stage, messages]))]
        link, head, seconds = self._link[stage, messages], self._head[messages], self._link_s[stage, messages]
        first = np.flatnonzero(np.concatenate([[True], link[1:] != link[:-1]]))
        length = np.concatenate([first[1:], [len(link)]]) - first
        begin = np.empty(len(link))
        for place in range(int(length.max())):  # the first of every queue, then the second of every queue, ...
            at = first[length > place] + place
            begin[at] = np.maximum(head[at], self._free[link[at]])
            self._free[link[at]] = begin[at] + seconds[at]
        self._head[messages] = begin
        free_s[messages] = np.maximum(free_s[messages], begin + self._slowest[stage, messages])
