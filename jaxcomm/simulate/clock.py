"""A schedule's time on links that differ. Cached simulations give the time for any latency and size.

A message of b bytes occupies both its ports for bβ, and arrives α later. A port starts its next message of the same
round when the port is free, and a message of a later round when the previous message has arrived. With more than
`TIMED` ranks, a round takes the time of its busiest port, and begins when the previous round has ended.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.profile.cluster import Cluster, Topology
from jaxcomm.schedules import Schedule
from jaxcomm.simulate.network import Network
from jaxcomm.simulate.simulation import Simulation

STRAIGHT: Final = 2e-3  # maximum distance of a simulated time from the interpolated time, as a share of the time
ALIKE: Final = 1e-2  # times that differ by at most this share are interpolated without the check of STRAIGHT
LARGE, LOOSE = 4096, 10.0  # with more than LARGE transfers, STRAIGHT and ALIKE are multiplied by LOOSE
TIMED: Final = 128  # maximum number of ranks for which a schedule is simulated message by message
# With shared links, STRAIGHT and ALIKE are multiplied by JUMPS: if a link serves messages in another order, times
# change by about 1 %.
JUMPS: Final = 2.5
TIE: Final = 1e-9  # minimum share of α: with α = 0, consecutive messages would have equal times
DEPTH, COARSE = 20, 10  # maximum number of times that `_Curve.at` halves a range: without shared links, and with them

Floats = NDArray[np.float64]
Comers = tuple[frozenset[int], ...]


def left_seconds(
    schedule: Schedule, nbytes: int, alpha: float, beta: float, topology: Topology, comers: Comers
) -> tuple[float, ...]:
    """Seconds to the end: from the start if all ranks arrive together, and from the arrival of each set of late ranks.

    Args:
      schedule: any schedule. Messages that need no late rank run early, even if the schedule names no late rank.
      nbytes: size of the buffer.
      alpha: seconds per message.
      beta: seconds per byte within a host.
      topology: the hosts and racks.
      comers: sets of late ranks, each a subset of the previous set. When a set arrives, the ranks outside the set have
        done all that they can without the set.

    Returns:
      The time for no late rank, then the time for each set; the times descend. Let the last rank outside all sets
      arrive at `r[0]`, and the last rank of the i-th set at `r[i]`. The schedule ends at the greatest of `r[i] +
      time[i]`, except if a late rank's message waits at a shared link for a message of a rank that is not late.
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
    """The seconds that each phase adds to the time to the end of the schedule; see `differences`."""
    comers = tuple(phase.late_ranks for phase in schedule.phases[1:])
    return differences(left_seconds(schedule, nbytes, alpha, beta, topology, comers))


def differences(left: tuple[float, ...]) -> tuple[float, ...]:
    """The seconds that each stage adds: its time to the end (in `left`) minus the next stage's time to the end."""
    return tuple(here - after for here, after in itertools.pairwise((*left, 0.0)))


def _first_phase(schedule: Schedule, late: frozenset[int]) -> int:
    """The index of the first phase that needs at least one of the late ranks."""
    absent = [phase.late_ranks for phase in schedule.phases[1:]]
    return sum(late <= each for each in absent) if late else 0


@lru_cache(maxsize=4096)
def _curve(schedule: Schedule, topology: Topology, comers: Comers) -> _Curve:
    return _Curve(schedule, topology, comers)


class _Curve:
    """`left_seconds`, interpolated. The unit of time is the time of a message of the whole buffer.

    `share` is the bytes' share of this unit; the rest is α. Between two simulated shares, times are interpolated if the
    time in the middle is close to the line. Without shared links this check is enough, because a time is the length of
    the longest chain of messages, and so the maximum of linear functions of the share. At a shared link, the order of
    messages may change with the share, and times may jump. With shared links, the times at the quarters are therefore
    checked, too.
    """

    def __init__(self, schedule: Schedule, topology: Topology, comers: Comers) -> None:
        self._schedule, self._topology, self._comers = schedule, topology, comers
        self._known: dict[float, Floats] = {}
        self._lines: dict[tuple[float, float], bool] = {}
        self._jumps = topology.nic == "host" or bool(topology.racks)
        large = sum(len(phase.table()) for phase in schedule.phases) > LARGE
        self._loose = LOOSE if large else JUMPS if self._jumps else 1.0

    def at(self, share: float) -> Floats:
        """The seconds for a share in [0, 1]; the result does not depend on earlier calls."""
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
            arrivals[sorted(late)] = found[0]  # at this time, the other ranks have done all that they can
            found.append(float(scaled.run(arrivals.tolist()).finish_s.max()) - found[0])
        return np.minimum.accumulate(np.array(found))


@lru_cache(maxsize=32)
def simulation(schedule: Schedule, topology: Topology) -> Simulation:
    """The simulation of a schedule on a topology, for a buffer of 1 byte, α of 1 s and β of 1 s per byte."""
    return Simulation(schedule, 1, Network(1.0, 1.0, topology))


def _rounds_seconds(phase: Schedule, per_byte: float, alpha: float, topology: Topology) -> float:
    return phase.num_rounds * alpha + _busiest(phase, topology) / phase.num_chunks * per_byte


@lru_cache(maxsize=1024)
def _busiest(schedule: Schedule, topology: Topology) -> float:
    """The load of the busiest port or uplink, summed over the rounds. The unit is a chunk's time over a fast link."""
    round_, src, dst = schedule.table()[:, :3].T.astype(np.int64)
    cluster = Cluster(0.0, 1.0, topology)
    remote, (out, into) = cluster.remote(src, dst), cluster.port_betas(src, dst)
    most = np.zeros(schedule.num_rounds)
    for port, cost in [(2 * src + remote, out), (2 * dst + remote, into), *zip(*cluster.shared(src, dst), strict=True)]:
        used, width = port >= 0, int(port.max(initial=-1)) + 1
        load = np.bincount(round_[used] * width + port[used], cost[used], minlength=len(most) * width)
        most = np.maximum(most, load.reshape(len(most), width).max(axis=1, initial=0))
    return float(most.sum())
