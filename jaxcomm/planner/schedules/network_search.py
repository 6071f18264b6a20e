"""Searches for schedules for a late rank on one network, at some call sizes, and bounds the schedules' time.

The search covers only schedules of few chunks. With few chunks latency counts, and hierarchical schedules do not keep
all tiers busy. With many chunks, hierarchical schedules are near the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from jaxcomm.plan.solved import SolvedCall
from jaxcomm.plan.values import Hierarchical, Spec, StragglerSpec, Transfers
from jaxcomm.planner.byte_ranges import LARGEST, SMALLEST
from jaxcomm.planner.late_ranks import ROLE
from jaxcomm.planner.rounding import significant
from jaxcomm.planner.schedules import on_hosts
from jaxcomm.planner.schedules.bound import lower_bound
from jaxcomm.planner.schedules.candidates import late_specs, plain
from jaxcomm.planner.schedules.setting import Setting, spec_of
from jaxcomm.profile.cluster import SOLVED, Cluster
from jaxcomm.schedules import Schedule, listed
from jaxcomm.schedules.tree_search import MessageSeconds, improve
from jaxcomm.simulate import clock

SIZES: Final = (8, 32, 128, 512)  # call sizes: the buffer's transfer time within a host divided by a message's latency
CHUNKS: Final = (0.5, 1, 2, 4)  # numbers of chunks per rank
STARTS: Final = 3  # number of schedules that the search improves at each size
MOST_TRIES: Final = 30_000
WORK_PER_SECOND: Final = 5_000_000  # (tries · messages) that the search does per second, as measured on one machine


def solved(setting: Setting, time_limit: float, seed: int) -> tuple[SolvedCall, ...]:
    """Schedules for some sizes, each faster at its size than every other candidate.

    Empty without a topology or a late rank, above `SOLVED` ranks, or if latency or bytes cost nothing. If latency costs
    nothing, the largest number of chunks is best. If bytes cost nothing, a single chunk is best.

    Args:
      setting: the plan's setting.
      time_limit: approximate seconds for the search. The limit counts work, so it is equal on every machine.
      seed: seed of the search; equal arguments give equal schedules.
    """
    links, late = setting.links, setting.late
    if not (links.topology and late.roles and setting.ranks <= SOLVED and links.alpha and links.beta):
        return ()
    found: list[SolvedCall] = []
    for size in SIZES:
        nbytes = round(size * links.alpha / links.beta)
        if not SMALLEST <= nbytes <= LARGEST:
            continue
        best = solve_size(setting, nbytes, time_limit / len(SIZES), seed)
        spec = spec_of(Transfers, late=ROLE, chunks=best.chunks, index=0)
        usual = [plain(setting, nbytes), *late_specs(setting, nbytes)]
        if replace(setting, solved=(best,)).seconds(spec, nbytes) < min(setting.seconds(one, nbytes) for one in usual):
            found.append(best)
    return tuple(found)


def solve_size(setting: Setting, nbytes: int, time_limit: float, seed: int) -> SolvedCall:
    """The best schedule that a search finds for one call size and the median delay.

    The search begins with the fastest `STARTS` schedules. Searches are cached, because many what-if changes of rails or
    NICs leave the network as it is. The arguments are as in `solved`.
    """
    late = setting.late
    starts = sorted({*_starts(setting, nbytes)}, key=lambda spec: (setting.seconds(spec, nbytes), repr(spec)))[:STARTS]
    made, delay = tuple(setting.schedule(spec) for spec in starts), float(np.median(late.delays.seconds))
    return _searched(made, nbytes, setting.links, late.ranks[-1], delay, time_limit=time_limit, seed=seed)


def solve(
    starts: Sequence[Schedule],
    nbytes: int,
    cluster: Cluster,
    late: int,
    delay: float,
    *,
    time_limit: float = 10.0,
    seed: int = 0,
) -> SolvedCall:
    """The best schedule that `tree_search` finds from the schedules `starts`. None of `starts` is faster.

    Args:
      starts: schedules from which the search starts, at least one.
      nbytes: size of the buffer.
      cluster: the network, with a topology.
      late: the late rank.
      delay: seconds by which the rank is late.
      time_limit: approximate seconds.
      seed: seed of the search; equal arguments give equal schedules.
    """
    call = nbytes, cluster, late, delay
    start_s = min(_seconds(start, *call) for start in starts)
    found: list[Schedule] = []
    for start in starts:
        messages = 2 * start.ranks * start.num_chunks
        tries = min(MOST_TRIES, int(time_limit / len(starts) * WORK_PER_SECOND / messages))
        links = _links(cluster, nbytes / start.num_chunks)
        found += [improve(start, links, late, delay, tries, seed), _given(start, late)]
    best = min(found, key=lambda schedule: _seconds(schedule, *call))
    assert best.precondition
    return SolvedCall(
        late=late,
        chunks=best.num_chunks,
        before=best.precondition.parameters[0],
        after=best.parameters[0],
        nbytes=nbytes,
        delay_s=significant(delay),
        seconds=significant(_seconds(best, *call)),
        start_s=significant(start_s),
        bound_s=significant(lower_bound(best.num_chunks, *call)),
    )


_searched = lru_cache(maxsize=64)(solve)


def _starts(setting: Setting, nbytes: int) -> list[Spec]:
    """Specs that sum all they can before the arrival, specs that sum nothing before it, and the best for the delay."""
    counts = [max(1, round(share * setting.ranks)) for share in CHUNKS]
    specs: list[Spec] = [spec_of(StragglerSpec, late=ROLE, chunks=max(1, count - 1)) for count in counts]
    for count in counts:
        specs += [
            spec_of(Hierarchical, chunks=count, late=(ROLE,), within=count, across=count),
            spec_of(Hierarchical, chunks=count),
        ]
    best = [*on_hosts.hierarchical_specs(setting, nbytes), *on_hosts.late_hierarchical_specs(setting, nbytes)]
    return specs + [spec for spec in best if isinstance(spec, Hierarchical) and spec.chunks <= counts[-1]]


def _links(cluster: Cluster, chunk_bytes: float) -> MessageSeconds:
    assert cluster.topology
    ranks = len(cluster.topology.hosts)
    src, dst = np.divmod(np.arange(ranks * ranks), ranks)
    link, link_beta = cluster.shared(src, dst)
    port_s, link_s = cluster.port_beta(src, dst) * chunk_bytes, link_beta * chunk_bytes
    return MessageSeconds(cluster.alpha, cluster.remote(src, dst), port_s, link, link_s)


def _given(schedule: Schedule, late: int) -> Schedule:
    """The schedule as a list of its transfers.

    The search's result may be slower than its start, because the search can send messages in another order over shared
    links. The start is therefore a candidate, too.
    """
    *before, after = (tuple(phase.table().ravel().tolist()) for phase in schedule.phases)
    return listed(schedule.ranks, late, schedule.num_chunks, before[0] if before else (), after)


def _seconds(schedule: Schedule, nbytes: int, cluster: Cluster, late: int, delay: float) -> float:
    """Seconds from the late rank's arrival on, by the clock that plans use."""
    assert cluster.topology
    comers = (frozenset((late,)),)
    together, after = clock.left_seconds(schedule, nbytes, cluster.alpha, cluster.beta, cluster.topology, comers)
    return max(together - delay, after)
