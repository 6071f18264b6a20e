"""A schedule's time on links that differ, for any latency and size: the run message by message, remembered.

This is the one clock of planner, predictions and what-if. A message of b bytes takes α + bβ of both its ports: all its
chunks go together, and the next message of the port starts when it has arrived. Of more than `TIMED` ranks a round
takes as long as its busiest port, and ends before the next one begins.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.profile.cluster import Cluster, Topology
from jaxcomm.schedules import Schedule
from jaxcomm.simulate.events import Simulation
from jaxcomm.simulate.network import Network

STRAIGHT: Final = 2e-3  # the most by which a point of a line may be off it
ALIKE: Final = 1e-2  # the most by which times may differ that have only lines between them
LARGE, LOOSE = 4096, 10.0  # from LARGE transfers on, both may be LOOSE times as much
TIMED: Final = 128  # ranks up to which a schedule is run message by message
JUMPS: Final = 2.5  # the factor where links are shared: overtaking changes times by about a hundredth
TIE: Final = 1e-9  # the least α: without any, messages meet that in runs come one after the other
DEPTH, COARSE = 20, 10  # halvings at most, and where times jump

Floats = NDArray[np.float64]
Comers = tuple[frozenset[int], ...]


def left_seconds(
    schedule: Schedule, nbytes: int, alpha: float, beta: float, topology: Topology, comers: Comers
) -> tuple[float, ...]:
    """Seconds to the end from when all are there, and from the arrival of each of some sets of ranks.

    Args:
      schedule: any schedule; also one that does not wait for late ranks has messages that do not depend on them.
      nbytes: size of the buffer.
      alpha: seconds per message.
      beta: seconds per byte within a host.
      topology: the hosts and racks.
      comers: late ranks; each set is part of the one before. By its arrival the others have done what they can.

    Returns:
      One time more than there are sets, none longer than the one before. So if the i-th set's last rank, or before all
      sets the last of the others, comes at `r[i]`, the schedule ends at the greatest of `r[i] + time[i]`, as long as no
      message of a late rank waits at a shared link for one that is not late.
    """
    per_byte = nbytes * beta
    if not alpha + per_byte:
        return (0.0,) * (1 + len(comers))
    if schedule.ranks > TIMED:
        times = [_rounds_seconds(phase, per_byte, alpha, topology) for phase in schedule.phases]
        first = [_first_phase(schedule, late) for late in (frozenset[int](), *comers)]
        return tuple(sum(times[phase:]) for phase in first)
    left = (alpha + per_byte) * _curve(schedule, topology, comers).at(per_byte / (alpha + per_byte))
    return tuple(left.tolist())


def phase_seconds(schedule: Schedule, nbytes: int, alpha: float, beta: float, topology: Topology) -> tuple[float, ...]:
    """Each phase's part of the time that starts when its ranks are there and ends with the schedule."""
    comers = tuple(phase.late_ranks for phase in schedule.phases[1:])
    return differences(left_seconds(schedule, nbytes, alpha, beta, topology, comers))


def differences(left: tuple[float, ...]) -> tuple[float, ...]:
    """Each stage's part of the time that is left when the last one begins."""
    return tuple(here - after for here, after in itertools.pairwise((*left, 0.0)))


def _first_phase(schedule: Schedule, late: frozenset[int]) -> int:
    """The first phase that needs any of the late ranks."""
    absent = [phase.late_ranks for phase in schedule.phases[1:]]
    return sum(late <= each for each in absent) if late else 0


@lru_cache(maxsize=4096)
def _curve(schedule: Schedule, topology: Topology, comers: Comers) -> _Curve:
    return _Curve(schedule, topology, comers)


class _Curve:
    """`left_seconds` where a message of the whole buffer takes 1 second.

    `share` is what of that second the bytes take; the rest is α. Where no link is shared, times are sums along the
    longest chain: the greatest of some linear functions of the share. A line between two points is then as close as in
    its middle. Where messages overtake each other on the way to a shared link times may jump, so the quarters count,
    too.
    """

    def __init__(self, schedule: Schedule, topology: Topology, comers: Comers) -> None:
        self._schedule, self._topology, self._comers = schedule, topology, comers
        self._known: dict[float, Floats] = {}
        self._lines: dict[tuple[float, float], bool] = {}
        self._jumps = topology.nic == "host" or bool(topology.racks)
        large = sum(len(phase.table()) for phase in schedule.phases) > LARGE
        self._loose = LOOSE if large else JUMPS if self._jumps else 1.0

    def at(self, share: float) -> Floats:
        """The seconds for a share in [0, 1]; equal however often, and in whatever order, it is asked."""
        low, high = 0.0, 1.0
        for _ in range(COARSE if self._jumps else DEPTH):
            straight, middle = self._is_line(low, high), (low + high) / 2
            low, high = (low, middle) if share < middle else (middle, high)
            if straight:
                break
        weight = (share - low) / (high - low)
        found: Floats = (1 - weight) * self._point(low) + weight * self._point(high)
        return found

    def _is_line(self, low: float, high: float) -> bool:
        if (low, high) not in self._lines:
            middle = (low + high) / 2
            halves = [(low, middle), (middle, high)] if self._jumps else []
            self._lines[low, high] = all(self._is_straight(*part) for part in [(low, high), *halves])
        return self._lines[low, high]

    def _is_straight(self, low: float, high: float) -> bool:
        below, here, above = (self._point(each) for each in (low, (low + high) / 2, high))
        bend, change = np.abs(here - (below + above) / 2), np.maximum(np.abs(here - below), np.abs(here - above))
        return bool(((bend <= self._loose * STRAIGHT * here) | (change <= self._loose * ALIKE * here)).all())

    def _point(self, share: float) -> Floats:
        if share not in self._known:
            self._known[share] = self._run(share)
        return self._known[share]

    def _run(self, share: float) -> Floats:
        scaled = simulation(self._schedule, self._topology).scaled(share, max(1 - share, TIE))
        found = [float(scaled.run().finish_s.max())]
        for late in self._comers:
            arrivals = np.zeros(self._schedule.ranks)
            arrivals[sorted(late)] = found[0]  # by then the others have done what they can without them
            found.append(float(scaled.run(arrivals.tolist()).finish_s.max()) - found[0])
        return np.minimum.accumulate(np.array(found))


@lru_cache(maxsize=32)
def simulation(schedule: Schedule, topology: Topology) -> Simulation:
    """The schedule on a topology, for a buffer and links of one unit each."""
    return Simulation(schedule, 1, Network(1.0, 1.0, topology))


def _rounds_seconds(phase: Schedule, per_byte: float, alpha: float, topology: Topology) -> float:
    return phase.num_rounds * alpha + _busiest(phase, topology) / phase.num_chunks * per_byte


@lru_cache(maxsize=1024)
def _busiest(schedule: Schedule, topology: Topology) -> float:
    """The load of the busiest port or uplink of every round, summed over the rounds, in chunks over a fast link."""
    round_, src, dst = schedule.table()[:, :3].T.astype(np.int64)
    cluster = Cluster(0.0, 1.0, topology)
    remote, (out, into) = cluster.remote(src, dst), cluster.port_betas(src, dst)
    most = np.zeros(schedule.num_rounds)
    for port, cost in [(2 * src + remote, out), (2 * dst + remote, into), *zip(*cluster.shared(src, dst), strict=True)]:
        used, width = port >= 0, int(port.max(initial=-1)) + 1
        load = np.bincount(round_[used] * width + port[used], cost[used], minlength=len(most) * width)
        most = np.maximum(most, load.reshape(len(most), width).max(axis=1, initial=0))
    return float(most.sum())
