"""The α–β cost of a schedule when one rank is late, over a whole distribution of delays.

A round that moves b bytes takes α + bβ where all links are alike; where they differ, `clock` runs the schedule. The
others' work before the late rank arrives is hidden behind its delay, as far as the delay lasts; only the rest of it
counts.
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

PORTS: Final = 16  # peers that a rank drives at full speed at once: one host of accelerators, not a cluster


class Delays:
    """How late the late rank was, one value per step; all steps weigh the same."""

    def __init__(self, seconds: Sequence[float] = ()) -> None:
        """Takes the delays in seconds, at least 0; none means that all ranks arrive together."""
        self.seconds: NDArray[np.float64] = np.sort(np.asarray(seconds if len(seconds) else [0.0], dtype=np.float64))
        self._sums = np.concatenate([[0.0], np.cumsum(self.seconds)])

    def exposed(self, before: ArrayLike) -> NDArray[np.float64]:
        """Mean over the delays d of max(0, before - d): the part of `before` seconds of work left by a delay."""
        work = np.asarray(before, dtype=np.float64)
        shorter = np.searchsorted(self.seconds, work)
        exposed: NDArray[np.float64] = (shorter * work - self._sums[shorter]) / len(self.seconds)
        return exposed


def seconds(
    schedule: Schedule, nbytes: int, delays: Delays, alpha: float, beta: float, topology: Topology | None = None
) -> float:
    """Mean time of a schedule from the late rank's arrival on.

    Args:
      schedule: any schedule; one without precondition gains nothing from a delay.
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
    """Seconds before and after the late rank's arrival; the arguments are those of `seconds`."""
    times = phase_seconds(schedule, nbytes, alpha, beta, topology)
    return sum(times[:-1]), times[-1]


def phase_seconds(
    schedule: Schedule, nbytes: int, alpha: float, beta: float, topology: Topology | None = None
) -> tuple[float, ...]:
    """Seconds of every phase, for `staggered`; the arguments are those of `seconds`."""
    if topology:
        return clock.phase_seconds(schedule, nbytes, alpha, beta, topology)
    return tuple(phase.seconds(nbytes, alpha, beta) for phase in schedule.phases)


def stage_seconds(
    schedule: Schedule, nbytes: int, alpha: float, beta: float, topology: Topology, late: Sequence[int]
) -> tuple[float, ...]:
    """Each stage's part of the time on hosts, for `staggered`: the ranks that are not late, then the late ones.

    Args:
      schedule: any schedule; one that does not wait for late ranks, too, does before their arrival what it can.
      nbytes: size of the buffer.
      alpha: seconds per message.
      beta: seconds per byte within a host.
      topology: the hosts and racks.
      late: the late ranks, in the order in which they come.
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
    """Mean time from the last rank's arrival on; `late` are the late ranks in the order in which they come, `arrivals`
    has one row per step and one column per rank, and the other arguments are those of `seconds`."""
    if topology:
        times = stage_seconds(schedule, nbytes, alpha, beta, topology, late)
        return staggered(times, stages(late, arrivals))
    return staggered(phase_seconds(schedule, nbytes, alpha, beta), releases(schedule, arrivals))


def staggered(times: Sequence[float], releases: ArrayLike) -> float:
    """Mean time of phases that wait for more and more ranks, from the last rank's arrival on.

    A phase starts when the one before it is done and all of its ranks are there. For two phases this is
    `Delays.exposed` of the first plus the second.

    Args:
      times: seconds of each phase.
      releases: one row per phase and one column per step, as from `releases`.
    """
    end: NDArray[np.float64] = np.array(-np.inf)
    for seconds_, release in zip(times, np.asarray(releases, np.float64), strict=True):
        end = np.maximum(end, release) + seconds_
    return float(end.mean())


def releases(schedule: Schedule, arrivals: ArrayLike) -> NDArray[np.float64]:
    """When the last rank of each phase is there: at most 0, seconds after the last arrival of the step.

    Args:
      schedule: any schedule.
      arrivals: one row per step and one column per rank.

    Returns:
      One row per phase and one column per step.
    """
    return _there([sorted(after.late_ranks) for after in schedule.phases[1:]], arrivals)


def stages(late: Sequence[int], arrivals: ArrayLike) -> NDArray[np.float64]:
    """As `releases`, for stages of arrivals: when those are there that are not late, then each of the late ones."""
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
    """Mean time that no allreduce can beat after the late rank's arrival, if ranks send and receive through one port.

    If that port drives p peers at once, what a rank knows reaches at most p+1 times as many ranks per round, so
    log_{p+1}(n) rounds are needed. For a delay of d·sβ the volume is at least max(1, (n-1)(2-d)/n) buffers: the late
    rank's port moves the buffer once, and all ports together move 2(n-1) buffers, of which the delay hides what fits
    into it. Where NICs are unlike, the same holds for hosts and their rates: each sends its buffer once, and all
    together 2(h-1) of them; and `parts_bound` counts the same for racks and other parts, of which a delay hides no more
    than itself.

    Args:
      ranks: number of ranks n.
      nbytes: size of the buffer s.
      delays: how late the late rank is.
      alpha: seconds per round α.
      beta: seconds per byte β.
      ports: peers that a rank can exchange with in one round.
      topology: the differences between the links; a rank drives its port and its NIC at once.
    """
    own = beta / (1 + 1 / topology.slow) if topology and len({*topology.hosts}) > 1 else beta
    volume = np.maximum(nbytes * own, (ranks - 1) / ranks * (2 * nbytes * own - delays.seconds))
    if topology and topology.is_unlike:
        slowness = topology.host_slowness
        rates = [1 / (each * nbytes * beta) for each in slowness]  # buffers per second
        messages = 2 * (len(rates) - 1) - delays.seconds * (sum(rates) - min(rates))
        volume = np.maximum(volume, np.maximum(max(slowness) * nbytes * beta, messages / sum(rates)))
        volume = np.maximum(volume, least_time(topology) * nbytes * beta - delays.seconds)
    return _rounds(ranks, ports) * alpha + float(volume.mean())


def half_lower_bound(
    ranks: int, nbytes: int, alpha: float, beta: float, ports: int = PORTS, topology: Topology | None = None
) -> float:
    """Time that no reduce-scatter, and no all-gather, of ranks that come together can beat, through one port per rank.

    A rank sends its part of every other's chunk, (n-1)/n buffers, and a host of m ranks at least one message of every
    chunk of another host, (n-m)/n buffers through its NICs; of an all-gather both receive as much. After its arrival a
    late rank must still do all that, and of a reduce-scatter its host, too: there a delay takes nothing off. Rounds and
    arguments are those of `lower_bound`; `nbytes` is the operand of the one and the result of the other.
    """
    volume = (ranks - 1) / ranks
    if topology and len({*topology.hosts}) > 1:
        volume /= 1 + 1 / topology.slow
        for members in Counter(topology.hosts).values():
            nics = members if topology.nic == "rank" else 1
            volume = max(volume, (ranks - members) / ranks * topology.slow / nics)
    return _rounds(ranks, ports) * alpha + volume * nbytes * beta


def _rounds(ranks: int, ports: int) -> int:
    """Rounds in which what one rank knows can reach all."""
    rounds, reached = 0, 1
    while reached < ranks:
        rounds, reached = rounds + 1, reached * (ports + 1)
    return rounds
