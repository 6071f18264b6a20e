"""The α–β cost of a schedule when one rank is late, over a whole distribution of delays.

If all links have one rate, a round that moves b bytes takes α + bβ. If links differ, `clock` runs the schedule. The
delay hides work that the other ranks do before the late rank arrives. Only the work that outlasts the delay counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxcomm.profile.cluster import Topology
from jaxcomm.schedules import Schedule
from jaxcomm.simulate import clock
from jaxcomm.simulate.parts_bound import least_time

PORTS: Final = 16  # number of peers with which a rank exchanges at full speed at once, as in a host of accelerators


class Delays:
    """The delays of the late rank, one value per step. All steps have the same weight."""

    def __init__(self, seconds: Sequence[float] = ()) -> None:
        """Takes the delays in seconds, at least 0; () means that all ranks arrive together."""
        self.seconds: NDArray[np.float64] = np.sort(np.asarray(seconds if len(seconds) else [0.0], dtype=np.float64))
        self._sums = np.concatenate([[0.0], np.cumsum(self.seconds)])

    def exposed(self, before: ArrayLike) -> NDArray[np.float64]:
        """Mean over the delays d of max(0, before - d): the seconds of work left when the late rank arrives."""
        work = np.asarray(before, dtype=np.float64)
        shorter = np.searchsorted(self.seconds, work)
        exposed: NDArray[np.float64] = (shorter * work - self._sums[shorter]) / len(self.seconds)
        return exposed


def seconds(
    schedule: Schedule, nbytes: int, delays: Delays, alpha: float, beta: float, topology: Topology | None = None
) -> float:
    """Mean time of a schedule from the late rank's arrival on.

    Args:
      schedule: any schedule; a schedule without a precondition gains nothing from a delay.
      nbytes: size of the buffer.
      delays: how late the late rank is.
      alpha: seconds per round.
      beta: seconds per byte.
      topology: the differences between the links; by default there are none.
    """
    before, after = phases(schedule, nbytes, alpha, beta, topology)
    return float(delays.exposed(before)) + after


def phases(
    schedule: Schedule, nbytes: int, alpha: float, beta: float, topology: Topology | None = None
) -> tuple[float, float]:
    """Seconds of the work before and after the late rank's arrival. The arguments are as for `seconds`."""
    times = phase_seconds(schedule, nbytes, alpha, beta, topology)
    return sum(times[:-1]), times[-1]


def phase_seconds(
    schedule: Schedule, nbytes: int, alpha: float, beta: float, topology: Topology | None = None
) -> tuple[float, ...]:
    """Seconds of every phase, for `staggered`. Takes the same arguments as `seconds`, without delays."""
    if topology:
        return clock.phase_seconds(schedule, nbytes, alpha, beta, topology)
    return tuple(phase.seconds(nbytes, alpha, beta) for phase in schedule.phases)


def stage_seconds(
    schedule: Schedule, nbytes: int, alpha: float, beta: float, topology: Topology, late: Sequence[int]
) -> tuple[float, ...]:
    """Seconds of every stage on hosts, for `staggered`.

    The first stage begins when all ranks that are not late have arrived, each later stage when a late rank arrives.

    Args:
      schedule: any schedule. Messages that need no late rank run early, even if the schedule names no late rank.
      nbytes: size of the buffer.
      alpha: seconds per message.
      beta: seconds per byte within a host.
      topology: the hosts and racks.
      late: the late ranks, in order of arrival.
    """
    comers = tuple(frozenset(late[place:]) for place in range(len(late)))
    return clock.differences(clock.left_seconds(schedule, nbytes, alpha, beta, topology, comers))


def mean_seconds(
    schedule: Schedule,
    nbytes: int,
    alpha: float,
    beta: float,
    topology: Topology | None,
    late: Sequence[int],
    arrivals: ArrayLike,
) -> float:
    """Mean time from the last rank's arrival on.

    `late` are the late ranks in order of arrival. `arrivals` has one row per step and one column per rank. See
    `seconds` for the other arguments.
    """
    if topology:
        times = stage_seconds(schedule, nbytes, alpha, beta, topology, late)
        return staggered(times, stages(late, arrivals))
    return staggered(phase_seconds(schedule, nbytes, alpha, beta), releases(schedule, arrivals))


def staggered(times: Sequence[float], releases: ArrayLike) -> float:
    """Mean time from the last rank's arrival to the end of consecutive phases, each of which waits for more ranks.

    A phase starts when the previous phase is done and all ranks of the phase have arrived. For two phases the mean time
    is `Delays.exposed` of the first phase plus the seconds of the second phase.

    Args:
      times: seconds of each phase.
      releases: one row per phase and one column per step, as from `releases`.
    """
    end: NDArray[np.float64] = np.array(-np.inf)
    for seconds_, release in zip(times, np.asarray(releases, np.float64), strict=True):
        end = np.maximum(end, release) + seconds_
    return float(end.mean())


def releases(schedule: Schedule, arrivals: ArrayLike) -> NDArray[np.float64]:
    """Times at which the last rank of each phase arrives, in seconds after the step's last arrival; at most 0.

    Args:
      schedule: any schedule.
      arrivals: one row per step and one column per rank.

    Returns:
      One row per phase and one column per step.
    """
    return _there([sorted(after.late_ranks) for after in schedule.phases[1:]], arrivals)


def stages(late: Sequence[int], arrivals: ArrayLike) -> NDArray[np.float64]:
    """Like `releases`, for stages: the last arrival of a rank that is not late, then the arrival of each late rank."""
    return _there([late[place:] for place in range(len(late))], arrivals)


def _there(absent: Sequence[Sequence[int]], arrivals: ArrayLike) -> NDArray[np.float64]:
    times = np.asarray(arrivals, np.float64)
    there: NDArray[np.float64] = np.array([np.delete(times, late, axis=1).max(axis=1) for late in (*absent, [])])
    there -= times.max(axis=1)
    return there


def lower_bound(
    ranks: int,
    nbytes: int,
    delays: Delays,
    alpha: float,
    beta: float,
    ports: int = PORTS,
    topology: Topology | None = None,
) -> float:
    """Lower bound of an all-reduce's mean time after the late rank's arrival. Ranks send and receive at one port each.

    If a port exchanges with p peers at once, one rank's data reaches at most (p+1)^r ranks in r rounds. So
    log_{p+1}(n) rounds are needed. For a delay of d·sβ the volume is at least max(1, (n-1)(2-d)/n) buffers: the late
    rank's port moves the buffer once, and all ports together move 2(n-1) buffers, except the buffers that fit into the
    delay. If NICs differ, hosts with their rates take the place of ranks: each host sends its buffer once, and all
    hosts together send 2(h-1) buffers. `parts_bound` does the same count for racks and other parts of the network. A
    delay shortens the bound for these parts by at most the delay's length.

    Args:
      ranks: number of ranks n.
      nbytes: size of the buffer s.
      delays: how late the late rank is.
      alpha: seconds per round α.
      beta: seconds per byte β.
      ports: peers that a rank can exchange with in one round.
      topology: the differences between the links; a rank can use its port and its NIC at the same time.
    """
    own = beta / (1 + 1 / topology.slow) if topology and len({*topology.hosts}) > 1 else beta
    volume = np.maximum(nbytes * own, (ranks - 1) / ranks * (2 * nbytes * own - delays.seconds))
    if topology and topology.is_unlike:
        slowness, buffer_s = topology.host_slowness, nbytes * beta
        rates = [1 / each for each in slowness]  # by host, how many buffers the host can send in `buffer_s` seconds
        together = (2 * (len(rates) - 1) * buffer_s - delays.seconds * (sum(rates) - min(rates))) / sum(rates)
        volume = np.maximum(volume, np.maximum(max(slowness) * buffer_s, together))
        volume = np.maximum(volume, least_time(topology) * buffer_s - delays.seconds)
    return _rounds(ranks, ports) * alpha + float(volume.mean())


def half_lower_bound(
    ranks: int, nbytes: int, alpha: float, beta: float, ports: int = PORTS, topology: Topology | None = None
) -> float:
    """Lower bound of the time of a reduce-scatter or an all-gather, if ranks arrive together and have one port each.

    In a reduce-scatter a rank sends its parts of all other ranks' chunks: (n-1)/n buffers together. A host of m ranks
    sends at least one message per chunk of another host: (n-m)/n buffers together through its NICs. In an all-gather
    the rank and the host receive these amounts. After its arrival a late rank must still move its whole amount, and in
    a reduce-scatter its host must do so, too. So a delay saves nothing. See `lower_bound` for the number of rounds and
    for the arguments. `nbytes` is the size of a reduce-scatter's operand or of an all-gather's result.
    """
    volume = (ranks - 1) / ranks
    if topology and len({*topology.hosts}) > 1:
        volume /= 1 + 1 / topology.slow
        for members in Counter(topology.hosts).values():
            nics = members if topology.nic == "rank" else 1
            volume = max(volume, (ranks - members) / ranks * topology.slow / nics)
    return _rounds(ranks, ports) * alpha + volume * nbytes * beta


def _rounds(ranks: int, ports: int) -> int:
    """The least number of rounds in which one rank's data can reach all ranks."""
    rounds, reached = 0, 1
    while reached < ranks:
        rounds, reached = rounds + 1, reached * (ports + 1)
    return rounds
