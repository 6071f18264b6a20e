"""Schedules for hosts and racks: hierarchical schedules, and halving and doubling in orders that fit the hosts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm import schedules
from jaxcomm.plan.limits import MAX_LISTED
from jaxcomm.plan.values import HalvingDoubling, Hierarchical, HierarchicalHalves, Spec
from jaxcomm.planner.late_ranks import ROLE
from jaxcomm.planner.schedules.setting import Setting, spec_of
from jaxcomm.profile.cluster import SOLVED, Cluster, Topology
from jaxcomm.schedules import Schedule
from jaxcomm.simulate import clock, tune

# Numbers of chunks per rank of hierarchical schedules. More chunks keep all tiers busy; fewer chunks cost less latency.
MULTIPLES: Final = (1, 2, 4, 16)
# Number of `MULTIPLES` tried above `SOLVED` ranks if rates differ; with equal rates only the first is tried. Different
# rates need more, because one chunk per rank is too coarse to be shared in proportion to the rates.
UNLIKE: Final = 3
FINE: Final = (*MULTIPLES, 32)  # replaces `MULTIPLES` if rates differ and there are at most `FEW` ranks
FEW: Final = 8
SHARES: Final = 4  # number of delays, up to the longest useful one, for which schedules are made
UNLIKE_SHARES: Final = 8  # replaces `SHARES` if links have different rates


def halving_doubling_specs(setting: Setting, nbytes: int, limit: float = np.inf) -> list[Spec]:
    """Halving and doubling in the best order of ranks; empty without several hosts. `limit` is as in `fastest`."""
    topology = setting.links.topology
    if not topology or len({*topology.hosts}) < 2:
        return []
    distinct = {order: name for name, order in schedules.orders_by_host(topology.hosts).items()}
    distinct.pop(tuple(range(setting.ranks)), None)  # plain halving_doubling has this order
    specs = [spec_of(HalvingDoubling, order=name) for name in distinct.values()]
    return fastest(setting, specs, nbytes, limit)


def hierarchical_specs(setting: Setting, nbytes: int, limit: float = np.inf) -> list[Spec]:
    """The best hierarchical schedule that uses no delay; empty if there is only one tier."""
    return fastest(
        setting, [spec_of(Hierarchical, chunks=chunks) for chunks in _counts(setting, nbytes)], nbytes, limit
    )


def halves_specs(setting: Setting, nbytes: int, limit: float = np.inf) -> list[Spec]:
    """The hierarchical reduce-scatter and all-gather as one all-reduce of one chunk per rank.

    Empty up to `SOLVED` ranks, where hierarchical schedules with more chunks gain more.
    """
    topology, ranks = setting.links.topology, setting.ranks
    if not topology or not topology.has_tiers or not SOLVED < ranks <= clock.TIMED:
        return []
    return fastest(setting, [spec_of(HierarchicalHalves)], nbytes, limit)


def late_hierarchical_specs(setting: Setting, nbytes: int, limit: float = np.inf) -> list[Spec]:
    """The best hierarchical schedule for the late rank.

    Before the late rank arrives, the other ranks of each tier sum a share of the chunks. Only this work can run during
    the delay. Schedules can be made for several delays, up to the longest useful one. This function compares the
    schedules for three of these delays: the two just below the median profiled delay, and the one just above it.
    """
    topology = setting.links.topology
    if not topology:
        return []
    beta = setting.links.beta * nbytes
    usual = float(np.median(setting.late.delays.seconds)) / beta if beta else np.inf
    found: list[Spec] = []
    for chunks in _counts(setting, nbytes):
        shares = list(zip(_useful_delays(topology), _shares(topology, chunks), strict=True))
        shorter = [pair for delay, pair in shares if delay <= usual]
        longer = [pair for delay, pair in shares if delay > usual]
        chosen = dict.fromkeys([*shorter[-2:], *longer[:1]])
        found += [spec_of(Hierarchical, chunks=chunks, late=(ROLE,), within=w, across=a) for w, a in chosen]
    return fastest(setting, found, nbytes, limit)


def late_set_specs(setting: Setting, nbytes: int, late: Sequence[str], limit: float = np.inf) -> list[Spec]:
    """The best hierarchical schedule for several late ranks that join together."""
    if not setting.links.topology:
        return []
    counts = _counts(setting, nbytes)
    specs = [spec_of(Hierarchical, chunks=k, late=tuple(late), within=k, across=k) for k in counts]
    return fastest(setting, specs, nbytes, limit)


def fastest(setting: Setting, specs: Sequence[Spec], nbytes: int, limit: float = np.inf) -> list[Spec]:
    """The spec that takes the least time, as a list; empty if there is no spec, or all take `limit` or longer.

    A spec's time is not computed if its busiest port, after the last rank's arrival, is busy for at least `limit`, or
    for at least the whole time of another spec.
    """
    links, least = setting.links, limit
    best: list[Spec] = []
    if not specs:
        return []
    assert links.topology
    bounds = [0.0] * len(specs)
    if setting.ranks <= clock.TIMED:
        for index, spec in enumerate(specs):
            rounds, volume = _port_loads(setting.schedule(spec), links.topology, setting.late.ranks[-1:])
            bounds[index] = float((rounds * links.alpha + volume * nbytes * links.beta).max())
    for _, index in sorted(zip(bounds, range(len(specs)), strict=True)):
        if bounds[index] < least:
            seconds = setting.seconds(specs[index], nbytes)
            if seconds < least:
                best, least = [specs[index]], seconds
    return best


def _counts(setting: Setting, nbytes: int) -> list[int]:
    """Numbers of chunks worth trying, all multiples of the number of ranks; empty for a single tier of equal links."""
    topology, ranks = setting.links.topology, setting.ranks
    if not topology or len({*topology.hosts}) < 2 or not (topology.has_tiers or topology.is_unlike):
        return []
    few = MULTIPLES[: UNLIKE if topology.is_unlike else 1]
    if ranks**2 * (1 + sum(few)) > MAX_LISTED:  # ranks · chunks that a plan would list, those of the halves included
        few = few[:-1]
    multiples = MULTIPLES if ranks <= SOLVED else few if ranks <= clock.TIMED else ()
    multiples = FINE if topology.is_unlike and ranks <= FEW else multiples
    limit = tune.max_chunks(ranks, nbytes)
    return [ranks * multiple for multiple in multiples if ranks * multiple <= limit] or [ranks][: len(multiples)]


def _useful_delays(topology: Topology) -> list[float]:
    """Delays up to the longest that some tier can use, in units of the buffer's transfer time within a host."""
    sizes = [topology.hosts.count(host) for host in range(max(topology.hosts) + 1)]
    longest = max(_longest(max(sizes), 1.0), _longest(len(sizes), _unit(topology, sizes)))
    shares = UNLIKE_SHARES if topology.is_unlike else SHARES
    return [share / shares * longest for share in range(1, shares + 1)]


def _shares(topology: Topology, chunks: int) -> Iterable[tuple[int, int]]:
    """The numbers of chunks that are summed before the late rank arrives, for each useful delay.

    The first number counts chunks summed within hosts, the second number counts chunks summed between hosts.
    """
    sizes = [topology.hosts.count(host) for host in range(max(topology.hosts) + 1)]
    across, within = _longest(len(sizes), _unit(topology, sizes)), _longest(max(sizes), 1.0)
    for delay in _useful_delays(topology):
        shares = [min(1.0, delay / longest) if longest else 1.0 for longest in (within, across)]
        yield round(shares[0] * chunks), round(shares[1] * chunks)


def _longest(nodes: int, unit: float) -> float:
    """The seconds that a reduce-scatter takes among all nodes (ranks, or hosts) except one.

    `unit` is the seconds that a node needs to send a whole buffer.
    """
    return (nodes - 2) / (nodes - 1) * unit if nodes > 2 else 0.0


def _unit(topology: Topology, sizes: Sequence[int]) -> float:
    slow = topology.slow * max(topology.nics, default=1.0)
    return slow / min(sizes) if topology.nic == "rank" else slow


@lru_cache(maxsize=1024)
def _port_loads(
    schedule: Schedule, topology: Topology, last: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each port, the number of rounds that use the port, and its busy time. A shared link is a port with 0 rounds.

    The unit of the busy time is a buffer's transfer time within a host. Messages that can run before the last rank
    arrives do not count.
    """
    network = Cluster(0.0, 1.0, topology)
    arrivals = [-np.inf if last and rank not in last else 0.0 for rank in range(schedule.ranks)]
    phases = clock.simulation(schedule, topology).run(arrivals).phases
    late = [messages.end_s > -np.inf for messages in phases]
    round_, src, dst, chunks = (
        np.concatenate([getattr(messages, name)[after] for messages, after in zip(phases, late, strict=True)])
        for name in ("round", "src", "dst", "chunks")
    )
    phase = np.repeat(range(len(phases)), [after.sum() for after in late])
    remote = network.remote(src, dst)
    rounds: list[NDArray[np.float64]] = []
    volumes: list[NDArray[np.float64]] = []
    for rank, beta in zip((src, dst), network.port_betas(src, dst), strict=True):
        port = 2 * rank + remote
        own = np.unique(np.stack([port, phase, round_], axis=1), axis=0)[:, 0]
        rounds.append(np.bincount(own, minlength=2 * schedule.ranks).astype(np.float64))
        volumes.append(np.bincount(port, beta * chunks, minlength=2 * schedule.ranks).astype(np.float64))
    for link, link_beta in zip(*network.shared(src, dst), strict=True):
        if (link >= 0).any():
            volumes.append(np.bincount(link[link >= 0], (link_beta * chunks)[link >= 0]).astype(np.float64))
            rounds.append(np.zeros(len(volumes[-1])))
    loads: NDArray[np.float64] = np.unique(np.stack([np.concatenate(rounds), np.concatenate(volumes)], axis=1), axis=0)
    return loads[:, 0], loads[:, 1] / schedule.num_chunks
