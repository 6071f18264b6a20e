"""The two halves of an all-reduce: reduce-scatters, which sum, and all-gathers, which are reversed reduce-scatters.

Neither half has a schedule for a late rank, because such a schedule would save no time. After its arrival the late rank
must still send its parts of the others' n - 1 chunks, or receive these chunks. Its port is then busy for as long as a
whole call in which all ranks arrive together. In a reduce-scatter the late rank's host must also still send the late
rank's parts to other hosts. In an all-gather, every schedule brings the other ranks' chunks to the late rank's host
before the arrival.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np

from jaxcomm.schedules.list_scheduling import PendingMove, in_rounds
from jaxcomm.schedules.ports import HostLinks, arrival
from jaxcomm.schedules.schedule import Op, Schedule, Table, check_ranks, join, loads, measure

Half = Literal["reduce_scatter", "all_gather"]


def half(collective: Half, whole: Schedule) -> Schedule:
    """The reduce-scatter with which an all-reduce begins, or the all-gather that reverses this reduce-scatter.

    The half takes half the rounds and half the volume of the all-reduce.

    Args:
      collective: the half to return.
      whole: an all-reduce by `direct` or `ring` or, if the number of ranks is a power of two, by `halving_doubling`. In
        the half, each chunk has the number of the rank that is the first to have its sum.

    Raises:
      ValueError: `whole` does not leave one sum on each rank.

    Example:
      >>> jaxcomm.schedules.half("reduce_scatter", jaxcomm.schedules.ring(4)).num_rounds
      3
    """
    if whole.kind not in ("direct", "ring", "halving_doubling") or whole.num_chunks != whole.ranks:
        raise ValueError(
            f"{whole.kind} of {whole.ranks} ranks and {whole.num_chunks} chunks does not leave each rank one sum"
        )
    measured = whole.num_rounds // 2, whole.volume // 2, whole.ports
    parameters = collective, whole
    return Schedule(whole.kind, whole.ranks, whole.ranks, *measured, _half, parameters, collective=collective)


def hierarchical_half(collective: Half, links: HostLinks) -> Schedule:
    """ReduceScatter that sums within hosts, then within racks, then between racks; or its reverse, an all-gather.

    A host sends one message per chunk to other hosts, instead of one message per rank. So `(h-1)/h` of the buffer
    leaves each of h hosts. The rank that sends a chunk out of its host has the same place in this host as the chunk's
    owner has in the owner's host. Each host begins with the chunks of other hosts, so that NICs and links within hosts
    work at the same time.

    Args:
      collective: the half to return.
      links: the hosts, their racks and their NICs. Moves are ordered by the NICs' times, as if all uplinks were equal.

    Raises:
      ValueError: fewer than two ranks.

    Example:
      >>> links = jaxcomm.schedules.HostLinks.of([0, 0, 1, 1], "host", slow=10.0)
      >>> jaxcomm.schedules.hierarchical_half("all_gather", links).collective
      'all_gather'
    """
    check_ranks(len(links.hosts))
    return _hierarchical_half(collective, links._replace(uplinks=(1.0,) * len(links.uplinks)))


def hierarchical_halves(links: HostLinks) -> Schedule:
    """AllReduce by the two hierarchical halves. Each rank sums one chunk and sends the sum to all ranks.

    With many ranks in racks, each rank's chunk takes a different path through the racks, so few chunks fill all links.
    The all-gather of some chunks runs at the same time as the reduce-scatter of other chunks. `links` and the
    errors are described at `hierarchical_half`.

    Example:
      >>> links = jaxcomm.schedules.HostLinks.of([0, 0, 1, 1], "host", slow=10.0)
      >>> jaxcomm.schedules.hierarchical_halves(links).num_chunks
      4
    """
    half = hierarchical_half("reduce_scatter", links)
    name, ranks, rounds, ports = "hierarchical_halves", half.ranks, 2 * half.num_rounds, half.ports
    return Schedule(name, ranks, ranks, rounds, 2 * half.volume, ports, _halves_table, half.parameters[1:])


def _halves_table(links: HostLinks) -> Table:
    table = _scatter_on_hosts(links)
    after = _backwards(table)
    after[:, 0] += 1 + table[:, 0].max(initial=-1)
    return join([table, after])


@lru_cache(maxsize=8)
def _hierarchical_half(collective: Half, links: HostLinks) -> Schedule:
    sends, receives = loads(_scatter_on_hosts(links))
    measured = *measure(sends, receives), int(max((1, *sends.peers, *receives.peers)))
    ranks, parameters = len(links.hosts), (collective, links)
    return Schedule("hierarchical", ranks, ranks, *measured, _hierarchical_table, parameters, collective=collective)


def _half(collective: Half, whole: Schedule) -> Table:
    table = whole.table()
    sums = table[table[:, 4] == Op.REDUCE]
    sums = sums[sums[:, 0] < whole.num_rounds // 2]
    owner = np.zeros(whole.num_chunks, np.int32)
    owner[sums[:, 3]] = sums[:, 2]  # a chunk's owner is the last rank that receives parts of it
    named = sums.copy()
    named[:, 3] = owner[sums[:, 3]]
    return named if collective == "reduce_scatter" else _backwards(named)


def _hierarchical_table(collective: Half, links: HostLinks) -> Table:
    table = _scatter_on_hosts(links)
    return table.copy() if collective == "reduce_scatter" else _backwards(table)


def _backwards(table: Table) -> Table:
    """The all-gather that reverses a reduce-scatter: every receiver of a chunk becomes a sender of the chunk's sum."""
    last = table[:, 0].max(initial=0)
    found = table[::-1, [0, 2, 1, 3, 4]].copy()
    found[:, 0], found[:, 4] = last - found[:, 0], Op.COPY
    return join([found])


@lru_cache(maxsize=4)
def _scatter_on_hosts(links: HostLinks) -> Table:
    hosts, rack_of = links.hosts, links.racks
    members = [[rank for rank, host in enumerate(hosts) if host == g] for g in range(max(hosts) + 1)]
    moves: list[PendingMove] = []

    def send(src: int, dst: int, chunk: int, priority: tuple[float, int]) -> None:
        ports = links.between(src, dst)
        moves.append(PendingMove(priority, src, dst, chunk, Op.REDUCE, False, arrival(ports), ports))

    for owner, home in enumerate(hosts):
        place = members[home].index(owner)
        ends = [each[place % len(each)] for each in members]  # for each host, the rank that sums the chunk
        for host, end in enumerate(ends):
            # A host sums other hosts' chunks before its own. It begins with the chunks of the next host.
            turn = (home - host - 1) % len(members)
            for rank in members[host]:
                if rank != end:
                    send(rank, end, owner, (turn, (end - rank) % len(hosts)))
        for rack in sorted({*rack_of}):
            mine = [host for host, each in enumerate(rack_of) if each == rack]
            root = home if rack == rack_of[home] else mine[home % len(mine)]
            for host in mine:
                if host != root:
                    send(ends[host], ends[root], owner, ((home - host - 1) % len(members), 0))
            if root != home:
                send(ends[root], owner, owner, ((home - root - 1) % len(members), 0))
    return in_rounds(moves)
