"""What a schedule takes on links that differ, for any latency and size: the run message by message, remembered.

This is the one clock of planner, predictions and what-if. A message of b bytes takes α + bβ of both its ports: all its
chunks go together, and the next message of the port starts when it has arrived. Of more than `TIMED` ranks a round
takes as long as its busiest port, and ends before the next one begins.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.cluster import Cluster, Topology
from jaxcomm.schedules import Schedule
from jaxcomm.simulate.events import Simulation
from jaxcomm.simulate.network import Network

STRAIGHT: Final = 2e-3  # how far a time may be from the line between its neighbours to be taken for a point of it
ALIKE: Final = 1e-2  # how much times may differ that have only lines between them
LARGE, LOOSE = 4096, 10.0  # from so many transfers on, both may be so many times as much
TIMED: Final = 128  # ranks up to which a schedule is run message by message
DEPTH: Final = 20  # halvings at most

Floats = NDArray[np.float64]


def phase_seconds(schedule: Schedule, nbytes: int, alpha: float, beta: float, topology: Topology) -> tuple[float, ...]:
    """What each phase adds to the time that starts when its ranks are there and ends with the schedule.

    Of two phases, the first takes what all ranks need that come together, less what they need when the late rank comes
    last, and the second takes the latter; so `exposed` of the first plus the second is the time for every delay, as
    long as no message of a late rank waits at a shared link for one that is not late.

    Args:
      schedule: any schedule.
      nbytes: size of the buffer.
      alpha: seconds per message.
      beta: seconds per byte within a host.
      topology: the hosts and racks.
    """
    per_byte = nbytes * beta
    if not alpha + per_byte:
        return (0.0,) * len(schedule.phases)
    if schedule.ranks > TIMED:
        return tuple(_rounds_seconds(phase, per_byte, alpha, topology) for phase in schedule.phases)
    left = (alpha + per_byte) * _curve(schedule, topology).at(per_byte / (alpha + per_byte))
    return tuple((left - np.append(left[1:], 0.0)).tolist())


@lru_cache(maxsize=4096)
def _curve(schedule: Schedule, topology: Topology) -> _Curve:
    return _Curve(schedule, topology)


class _Curve:
    """Seconds from the arrival of each phase's ranks to the end, where a message of the whole buffer takes 1 second.

    `share` is what of that second the bytes take; the rest is α. As times are sums along the longest chain, they are
    almost the greatest of some linear functions of it, so lines between a few points are close.
    """

    def __init__(self, schedule: Schedule, topology: Topology) -> None:
        self._schedule, self._topology = schedule, topology
        self._known: dict[float, Floats] = {}
        self._loose = LOOSE if sum(len(phase.table()) for phase in schedule.phases) > LARGE else 1.0

    def at(self, share: float) -> Floats:
        """The seconds for a share in [0, 1]; equal however often, and in whatever order, it is asked."""
        if share in (0.0, 1.0):
            return self._point(share)
        low, high = 0.0, 1.0
        for _ in range(DEPTH):
            middle = (low + high) / 2
            below, here, above = (self._point(each) for each in (low, middle, high))
            low, high = (low, middle) if share < middle else (middle, high)
            bend, change = np.abs(here - (below + above) / 2), np.maximum(np.abs(here - below), np.abs(here - above))
            if ((bend <= self._loose * STRAIGHT * here) | (change <= self._loose * ALIKE * here)).all():
                break
        weight = (share - low) / (high - low)
        found: Floats = (1 - weight) * self._point(low) + weight * self._point(high)
        return found

    def _point(self, share: float) -> Floats:
        if share not in self._known:
            self._known[share] = _left(self._schedule, self._topology, share)
        return self._known[share]


def _left(schedule: Schedule, topology: Topology, share: float) -> Floats:
    """By phase, the seconds from its ranks' arrival to the end when all that are not late for it were there before."""
    simulation = _simulation(schedule, topology).scaled(share, 1 - share)
    found = [float(simulation.run().finish_s.max())]
    for phase in schedule.phases[1:]:
        arrivals = np.zeros(schedule.ranks)
        arrivals[sorted(phase.late_ranks)] = found[0]  # by then the others have done what they can without them
        found.append(float(simulation.run(arrivals.tolist()).finish_s.max()) - found[0])
    return np.minimum.accumulate(np.array(found))


@lru_cache(maxsize=8)
def _simulation(schedule: Schedule, topology: Topology) -> Simulation:
    return Simulation(schedule, 1, Network(1.0, 1.0, topology))


def _rounds_seconds(phase: Schedule, per_byte: float, alpha: float, topology: Topology) -> float:
    return phase.num_rounds * alpha + _busiest(phase, topology) / phase.num_chunks * per_byte


@lru_cache(maxsize=1024)
def _busiest(schedule: Schedule, topology: Topology) -> float:
    """What the busiest port or uplink of every round carries, summed over the rounds, in chunks over a fast link."""
    round_, src, dst = schedule.table()[:, :3].T.astype(np.int64)
    cluster = Cluster(0.0, 1.0, topology)
    remote, beta = cluster.remote(src, dst), cluster.port_beta(src, dst)
    most = np.zeros(schedule.num_rounds)
    for port, cost in [
        (2 * src + remote, beta),
        (2 * dst + remote, beta),
        *zip(*cluster.shared(src, dst), strict=True),
    ]:
        used, width = port >= 0, int(port.max(initial=-1)) + 1
        load = np.bincount(round_[used] * width + port[used], cost[used], minlength=len(most) * width)
        most = np.maximum(most, load.reshape(len(most), width).max(axis=1, initial=0))
    return float(most.sum())
