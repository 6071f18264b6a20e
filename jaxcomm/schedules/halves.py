"""The two halves of an all-reduce: reduce-scatters, which sum, and all-gathers, which are the same backwards.

No schedule for a late rank is among them. After its arrival it must still send its part of the n - 1 chunks of others,
or receive these, through the port that bounds the call when all ranks come together; of a reduce-scatter its host must
also still send what is for other hosts. Of an all-gather the others' chunks have crossed by then, in any schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from jaxcomm.schedules.list_scheduling import PendingMove, in_rounds
from jaxcomm.schedules.ports import HostLinks, arrival
from jaxcomm.schedules.schedule import Op, Schedule, Table, check_ranks, join, loads, measure

Half = Literal["reduce_scatter", "all_gather"]


def half(collective: Half, whole: Schedule) -> Schedule:
    """The reduce-scatter that an all-reduce begins with, or that backwards as an all-gather.

    Takes half of the all-reduce's rounds and of its volume.

    Args:
      collective: one of the two.
      whole: direct, a ring, or halving and doubling of a power of two of ranks; its chunks are named anew, each by the
        rank that has its sum first.

    Raises:
      ValueError: another all-reduce, whose sums are not one on each rank.
    """
    if whole.kind not in ("direct", "ring", "halving_doubling") or whole.num_chunks != whole.ranks:
        raise ValueError(
            f"{whole.kind} of {whole.ranks} ranks and {whole.num_chunks} chunks does not leave each rank one sum"
        )
    measured = whole.num_rounds // 2, whole.volume // 2, whole.ports
    parameters = collective, whole
    return Schedule(whole.kind, whole.ranks, whole.ranks, *measured, _half, parameters, collective=collective)


def hierarchical_half(
    collective: Half,
    hosts: Sequence[int],
    nic: Literal["rank", "host"],
    slow: float,
    racks: Sequence[int] = (),
    nics: Sequence[float] = (),
) -> Schedule:
    """Reduce-scatter that sums within hosts, then within racks, then across them; or that backwards as an all-gather.

    Of every chunk a host sends one message to other hosts, instead of one for each of its ranks: of s bytes `(h-1)/h`
    leave each of h hosts, through the NIC of the rank whose place in its host is that of the chunk's own rank. The
    chunks of other hosts come first, so that NICs and links within hosts work at once.

    Args:
      hosts: the host of every rank, numbered as they appear.
      nic: whose a NIC is, the rank's or all the host's.
      slow: the factor by which a chunk takes longer between hosts; moves are ordered by it.
      racks: the rack of every host; () means that all are in one.
      nics: by rank, how many times as long a byte takes through the NIC that it uses; () means that all are alike.

    Raises:
      ValueError: fewer than two ranks, or racks that are not those of the hosts.
    """
    check_ranks(len(hosts))
    if len(racks) not in (0, max(hosts) + 1):
        raise ValueError(f"racks has {len(racks)} entries; there are {max(hosts) + 1} hosts")
    return _hierarchical_half(collective, tuple(hosts), nic, float(slow), tuple(racks), tuple(map(float, nics)))


def hierarchical_halves(
    hosts: Sequence[int],
    nic: Literal["rank", "host"],
    slow: float,
    racks: Sequence[int] = (),
    nics: Sequence[float] = (),
) -> Schedule:
    """AllReduce by the two hierarchical halves: every rank sums one of as many chunks as ranks, and gives it to all.

    Where many ranks are in racks, each rank's own chunk goes another way through them, and few chunks fill all links.
    The all-gather of some chunks runs beside the reduce-scatter of others. Arguments and errors are those of
    `hierarchical_half`.
    """
    half = hierarchical_half("reduce_scatter", hosts, nic, slow, racks, nics)
    name, ranks, rounds, ports = "hierarchical_halves", half.ranks, 2 * half.num_rounds, half.ports
    return Schedule(name, ranks, ranks, rounds, 2 * half.volume, ports, _halves_table, half.parameters[1:])


def _halves_table(
    hosts: tuple[int, ...], nic: str, slow: float, racks: tuple[int, ...], nics: tuple[float, ...]
) -> Table:
    table = _scatter_on_hosts(hosts, nic, slow, racks, nics)
    after = _backwards(table)
    after[:, 0] += 1 + table[:, 0].max(initial=-1)
    return join([table, after])


@lru_cache(maxsize=8)
def _hierarchical_half(
    collective: Half, hosts: tuple[int, ...], nic: str, slow: float, racks: tuple[int, ...], nics: tuple[float, ...]
) -> Schedule:
    sends, receives = loads(_scatter_on_hosts(hosts, nic, slow, racks, nics))
    measured = *measure(sends, receives), int(max((1, *sends.peers, *receives.peers)))
    ranks, parameters = len(hosts), (collective, hosts, nic, slow, racks, nics)
    return Schedule("hierarchical", ranks, ranks, *measured, _hierarchical_table, parameters, collective=collective)


def _half(collective: Half, whole: Schedule) -> Table:
    table = whole.table()
    sums = table[table[:, 4] == Op.REDUCE]
    sums = sums[sums[:, 0] < whole.num_rounds // 2]
    owner = np.zeros(whole.num_chunks, np.int32)
    owner[sums[:, 3]] = sums[:, 2]  # the last to receive a chunk
    named = sums.copy()
    named[:, 3] = owner[sums[:, 3]]
    return named if collective == "reduce_scatter" else _backwards(named)


def _hierarchical_table(
    collective: Half, hosts: tuple[int, ...], nic: str, slow: float, racks: tuple[int, ...], nics: tuple[float, ...]
) -> Table:
    table = _scatter_on_hosts(hosts, nic, slow, racks, nics)
    return table.copy() if collective == "reduce_scatter" else _backwards(table)


def _backwards(table: Table) -> Table:
    """The all-gather that a reduce-scatter is backwards: its receivers send."""
    last = table[:, 0].max(initial=0)
    found = table[::-1, [0, 2, 1, 3, 4]].copy()
    found[:, 0], found[:, 4] = last - found[:, 0], Op.COPY
    return join([found])


@lru_cache(maxsize=4)
def _scatter_on_hosts(
    hosts: tuple[int, ...], nic: str, slow: float, racks: tuple[int, ...], nics: tuple[float, ...]
) -> Table:
    members = [[rank for rank, host in enumerate(hosts) if host == g] for g in range(max(hosts) + 1)]
    rack_of = racks or (0,) * len(members)
    links = HostLinks(hosts, rack_of, nic == "rank", slow, nics or (1.0,) * len(hosts), (1.0,) * len({*rack_of}))
    moves: list[PendingMove] = []

    def send(src: int, dst: int, chunk: int, priority: tuple[float, int]) -> None:
        ports = links.between(src, dst)
        moves.append(PendingMove(priority, src, dst, chunk, Op.REDUCE, False, arrival(ports), ports))

    for owner, home in enumerate(hosts):
        place = members[home].index(owner)
        ends = [each[place % len(each)] for each in members]  # the ranks that have the sum of a host
        for host, end in enumerate(ends):
            # Others' chunks before those of the host itself, and of the others the next host's first.
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
