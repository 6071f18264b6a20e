"""Schedules for hosts and racks: in tiers, and halving and doubling in orders that fit them."""

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

# Chunks per rank of hierarchical schedules: more fill the tiers, fewer need less latency.
MULTIPLES: Final = (1, 2, 4, 16)
UNLIKE: Final = 3  # of these, tried above `SOLVED` ranks where rates are unlike: one chunk per rank shares out nothing
FINE: Final = (*MULTIPLES, 32)  # where rates are unlike, up to `FEW` ranks
FEW: Final = 8
SHARES: Final = 4  # of the longest delay that is of use, for whose multiples schedules are made
UNLIKE_SHARES: Final = 8  # where rates are unlike


def halving_doubling_specs(setting: Setting, nbytes: int, limit: float = np.inf) -> list[Spec]:
    """Halving and doubling in the best of the orders; empty where there are no hosts; for `limit` see `fastest`."""
    topology = setting.links.topology
    if not topology or len({*topology.hosts}) < 2:
        return []
    distinct = {order: name for name, order in schedules.orders_by_host(topology.hosts).items()}
    distinct.pop(tuple(range(setting.ranks)), None)  # the usual one
    specs = [spec_of(HalvingDoubling, order=name) for name in distinct.values()]
    return fastest(setting, specs, nbytes, limit)


def hierarchical_specs(setting: Setting, nbytes: int, limit: float = np.inf) -> list[Spec]:
    """The best hierarchical schedule that cannot use a delay; empty where there is but one tier."""
    return fastest(
        setting, [spec_of(Hierarchical, chunks=chunks) for chunks in _counts(setting, nbytes)], nbytes, limit
    )


def halves_specs(setting: Setting, nbytes: int, limit: float = np.inf) -> list[Spec]:
    """The hierarchical halves as one all-reduce, above `SOLVED` ranks: fewer are served by more chunks."""
    topology, ranks = setting.links.topology, setting.ranks
    if not topology or not topology.has_tiers or not SOLVED < ranks <= clock.TIMED:
        return []
    return fastest(setting, [spec_of(HierarchicalHalves)], nbytes, limit)


def late_hierarchical_specs(setting: Setting, nbytes: int, limit: float = np.inf) -> list[Spec]:
    """The best hierarchical schedule for the late rank.

    Each tier has its own share of chunks whose sums the others make before, which is all that it can hide behind the
    delay; so schedules are made for some delays up to the longest that is of use, and those next to the delay compared.
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
    """The best hierarchical schedule for several late ranks that come together."""
    if not setting.links.topology:
        return []
    counts = _counts(setting, nbytes)
    specs = [spec_of(Hierarchical, chunks=k, late=tuple(late), within=k, across=k) for k in counts]
    return fastest(setting, specs, nbytes, limit)


def fastest(setting: Setting, specs: Sequence[Spec], nbytes: int, limit: float = np.inf) -> list[Spec]:
    """The spec that takes the least time, as a list: empty if no spec exists, or all take `limit` or longer.

    One whose busiest port alone takes longer after the last rank's arrival than that, or than another in all, is not
    timed.
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
    """Numbers of chunks worth trying: the same for each rank; empty where there is but one tier, of like links."""
    topology, ranks = setting.links.topology, setting.ranks
    if not topology or len({*topology.hosts}) < 2 or not (topology.has_tiers or topology.is_unlike):
        return []
    few = MULTIPLES[: UNLIKE if topology.is_unlike else 1]
    if ranks**2 * (1 + sum(few)) > MAX_LISTED:  # a plan with all of them, and with halves
        few = few[:-1]
    multiples = MULTIPLES if ranks <= SOLVED else few if ranks <= clock.TIMED else ()
    multiples = FINE if topology.is_unlike and ranks <= FEW else multiples
    limit = tune.max_chunks(ranks, nbytes)
    return [ranks * multiple for multiple in multiples if ranks * multiple <= limit] or [ranks][: len(multiples)]


def _useful_delays(topology: Topology) -> list[float]:
    """Delays, in times of the buffer within a host, up to which a longer one helps some tier."""
    sizes = [topology.hosts.count(host) for host in range(max(topology.hosts) + 1)]
    longest = max(_longest(max(sizes), 1.0), _longest(len(sizes), _unit(topology, sizes)))
    shares = UNLIKE_SHARES if topology.is_unlike else SHARES
    return [share / shares * longest for share in range(1, shares + 1)]


def _shares(topology: Topology, chunks: int) -> Iterable[tuple[int, int]]:
    """For each of the useful delays, the chunks that are summed before within hosts, and across them."""
    sizes = [topology.hosts.count(host) for host in range(max(topology.hosts) + 1)]
    across, within = _longest(len(sizes), _unit(topology, sizes)), _longest(max(sizes), 1.0)
    for delay in _useful_delays(topology):
        shares = [min(1.0, delay / longest) if longest else 1.0 for longest in (within, across)]
        yield round(shares[0] * chunks), round(shares[1] * chunks)


def _longest(nodes: int, unit: float) -> float:
    """Seconds in which all nodes but one reduce-scatter a buffer that each of them sends in `unit`."""
    return (nodes - 2) / (nodes - 1) * unit if nodes > 2 else 0.0


def _unit(topology: Topology, sizes: Sequence[int]) -> float:
    slow = topology.slow * max(topology.nics, default=1.0)
    return slow / min(sizes) if topology.nic == "rank" else slow


@lru_cache(maxsize=1024)
def _port_loads(
    schedule: Schedule, topology: Topology, last: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By port and shared link, in how many rounds it serves somebody, and how many buffers' time it is busy, with what
    cannot run before the last rank is there."""
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
