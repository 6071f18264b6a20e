"""What every message of a schedule waits for: its ports, and the chunks that it reads and overwrites."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jaxcomm.schedules import Schedule
from jaxcomm.simulate.network import Network

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Dependencies:
    """The messages of one schedule on one network, in the order in which every port serves them, and what they await.

    What one rank sends another in one round goes as one message. In a round, a rank serves its peers by distance, so
    that no two of them wait for the same third one. A message starts when its sender's and its receiver's port are done
    with the messages before it, and all earlier rounds with its chunks, at both its ends.

    A touch is a chunk of a message at one of its ends; the touches of one rank, chunk and round are a group. A group
    may begin when all of the group before it, of the same rank and chunk, are done.
    """

    def __init__(self, schedule: Schedule, network: Network) -> None:
        """Unrolls the schedule; at 1024 ranks mind its size."""
        n, k = schedule.ranks, schedule.num_chunks
        round_, src, dst, chunk = schedule.table().astype(np.int64).T[:4]
        distance = (dst - src) % n
        keys, message, self.chunks = np.unique(
            (round_ * n + distance) * n + src, return_inverse=True, return_counts=True
        )
        self.round, self.src = keys // (n * n), keys % n
        self.dst = (self.src + keys // n % n) % n
        remote = network.remote(self.src, self.dst)
        self._ports = [_following(2 * rank + remote) for rank in (self.src, self.dst)]

        touched = (np.concatenate([src, dst]) * k + np.tile(chunk, 2)) * (schedule.num_rounds + 1) + np.tile(round_, 2)
        order = np.argsort(touched, kind="stable")
        touched, self._message = touched[order], np.tile(message, 2)[order]
        first = np.flatnonzero(np.diff(touched, prepend=-1))
        self._group = np.repeat(np.arange(len(first)), np.diff(first, append=len(touched)))
        self._start, self._size = first, np.diff(first, append=len(touched))
        place = touched[first] // (schedule.num_rounds + 1)
        self._continues = np.diff(place, append=-1) == 0  # whether the next group is of the same rank and chunk
        self._touches = np.argsort(self._message, kind="stable")
        self._first_touch = np.searchsorted(self._message[self._touches], np.arange(len(keys) + 1))

        waits = np.concatenate([[False], self._continues[:-1]]) if len(first) else np.zeros(0, bool)
        self._waiting = np.bincount(self._message[waits[self._group]], minlength=len(keys))
        for following in self._ports:
            self._waiting[following[following >= 0]] += 1

    def pause(self, alpha: float) -> float:
        """The least time between the end of a message's way and a start that waits for it: 0 if a port serves on."""
        return 0.0 if any((self.round[f >= 0] == self.round[f[f >= 0]]).any() for f in self._ports) else alpha

    def begin(self, ready: Floats) -> tuple[Ints, Floats]:
        """Forgets the last run.

        Args:
          ready: when each rank is.

        Returns:
          The messages that wait for no other, and when each message can start, as far as is known by now; `finish`
          brings that up to date.
        """
        self._left = self._size.copy()
        self._open = np.zeros(len(self._size))
        self._awaits = self._waiting.copy()
        self._ready = np.maximum(ready[self.src], ready[self.dst])
        return np.flatnonzero(self._awaits == 0), self._ready

    def finish(self, done: Ints, free: Floats, end: Floats) -> Ints:
        """Takes note that messages are through, and returns those that can start now.

        Args:
          done: the messages.
          free: when their ports can serve another peer in the same round, by message of the whole schedule.
          end: when they have arrived, likewise.
        """
        woken = []
        for following in self._ports:
            after = following[done]
            before, after = done[after >= 0], after[after >= 0]
            time = np.where(self.round[before] == self.round[after], free[before], end[before])
            self._ready[after] = np.maximum(self._ready[after], time)
            self._awaits[after] -= 1
            woken.append(after)
        touch = self._touches[_ranges(self._first_touch[done], self._first_touch[done + 1])]
        group = self._group[touch]
        np.maximum.at(self._open, group, end[self._message[touch]])
        np.subtract.at(self._left, group, 1)
        over = group[(self._left[group] == 0) & self._continues[group]]
        if len(over):
            over = np.unique(over)
            after = self._message[_ranges(self._start[over + 1], self._start[over + 1] + self._size[over + 1])]
            np.maximum.at(self._ready, after, np.repeat(self._open[over], self._size[over + 1]))
            np.subtract.at(self._awaits, after, 1)
            woken.append(after)
        candidates = np.concatenate(woken)
        return np.unique(candidates[self._awaits[candidates] == 0])


def _following(port: Ints) -> Ints:
    """For every message the next one on its port, or -1."""
    order = np.argsort(port, kind="stable")
    following = np.full(len(port), -1)
    same = port[order[1:]] == port[order[:-1]]
    following[order[:-1][same]] = order[1:][same]
    return following


def _ranges(first: Ints, last: Ints) -> Ints:
    """The integers of all ranges [first, last), one range after the other."""
    sizes = last - first
    offsets = np.cumsum(sizes) - sizes
    joined: Ints = np.arange(sizes.sum()) + np.repeat(first - offsets, sizes)
    return joined
