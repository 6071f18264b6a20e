"""Hierarchical all-reduce, also with late ranks. Sums within and between hosts run at once for different chunks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from jaxcomm.schedules.list_scheduling import in_two_phases
from jaxcomm.schedules.ports import HostLinks
from jaxcomm.schedules.schedule import Schedule, Table, check_chunks, check_rank, check_ranks, loads, measure
from jaxcomm.schedules.tiers import Tiers

_Parameters = tuple[HostLinks, int, tuple[int, ...], int, int]


def hierarchical(links: HostLinks, chunks: int, late: Sequence[int] = (), within: int = 0, across: int = 0) -> Schedule:
    """AllReduce in tiers. Every tier moves as little as possible over its own links, and all links are busy.

    A chunk is summed on one rank of every host, then on one host of every rack, then on one rack. The total returns
    along the same path. The rank that sums changes from chunk to chunk. So `2(h-1)/h` buffers leave each of h hosts,
    whatever the number of their ranks. With many chunks the time tends to the greatest of the tiers' times.

    Before the late ranks arrive, the punctual ranks on the late ranks' hosts sum their parts of the first `within`
    chunks, and the other hosts sum their parts of the first `across` chunks. The two sums of a chunk wait on different
    ranks until the late rank's part joins them. Let the unit of time be the time of the buffer within a host, and let a
    rank be late by d. The call ends `max{F(m; 1, d), F(h; u, d)}` after the arrival. Here hosts have m ranks, a host's
    NICs send a buffer in the time u, and `F(n; u, d) = max{u, (n-1)/n · (2u-d)}`.

    The owner of a chunk sums the chunk, and so moves more of it than other ranks. Where NICs or uplinks differ in
    rate, ranks with slower links therefore own fewer chunks (`jaxcomm.schedules.owners`). Let rᵢ be the time of a byte
    through the link of host i, divided by its time through a fast link. With many chunks the time tends to
    `max(max rᵢ, 2(h-1)/Σ 1/rᵢ)` times the time of the buffer through a fast link. No schedule can be faster than that.
    If one of four hosts has half the rate, the time grows by a third, instead of doubling.

    Args:
      links: the hosts, their racks, and the times of a byte through their links. Moves are ordered by these times.
      chunks: pieces k of the buffer, at least 1.
      late: the late ranks, at most n − 1.
      within: chunks that the other ranks of late hosts sum before the arrival, in [0, chunks].
      across: chunks that the other hosts sum before the arrival, in [0, chunks].

    Returns:
      A schedule. If ranks are late, the schedule's `precondition` is the other ranks' work before the arrival.

    Raises:
      ValueError: a rank out of range or named twice, every rank late, or a number of chunks that does not fit.

    Example:
      >>> links = jaxcomm.schedules.HostLinks.of([0, 0, 1, 1], "host", slow=10.0)
      >>> jaxcomm.schedules.hierarchical(links, chunks=4).ranks
      4
    """
    ranks = len(links.hosts)
    check_ranks(ranks)
    for index, rank in enumerate(late):
        check_rank(f"late[{index}]", rank, ranks)
    if len({*late}) < len(late) or len(late) >= ranks:
        raise ValueError(f"late is {list(late)} of {ranks} ranks; each may be named once, and one must not be late")
    check_chunks(chunks)
    for name, count in (("within", within), ("across", across)):
        if not 0 <= count <= (chunks if late else 0):
            raise ValueError(f"{name} is {count}; it must be in [0, {chunks if late else 0}]")
    return _made((links, chunks, tuple(sorted(late)), within, across))


@lru_cache(maxsize=128)  # holds all schedules that a plan compares, because each is timed for many sizes
def _made(known: _Parameters) -> Schedule:
    links, chunks, late, *_ = known
    ranks, before = len(links.hosts), None
    if late:
        table = _tables(*known)[0]
        rounds, volume, ports = _measured(table)
        last, *others = late[::-1]
        before = Schedule(
            "reduce_scatter", ranks, chunks, rounds, volume, ports, _before, known, None, last, None, tuple(others)
        )
    rounds, volume, ports = _measured(_tables(*known)[1])
    return Schedule(
        "hierarchical",
        ranks,
        chunks,
        rounds,
        volume,
        ports,
        _after,
        known,
        before,
        before.late if before else None,
        None,
        before.other_late_ranks if before else (),
    )


def _measured(table: Table) -> tuple[int, int, int]:
    sends, receives = loads(table)
    return *measure(sends, receives), int(max((1, *sends.peers, *receives.peers)))


def _before(*parameters: Any) -> Table:
    return _tables(*parameters)[0].copy()


def _after(*parameters: Any) -> Table:
    return _tables(*parameters)[1].copy()


@lru_cache(maxsize=2)
def _tables(links: HostLinks, chunks: int, late: tuple[int, ...], within: int, across: int) -> tuple[Table, Table]:
    """The transfers before and after the late ranks' arrival."""
    tiers = Tiers(links, chunks, frozenset(late), within, across)
    for chunk in range(chunks):
        tiers.sum(chunk)
    return in_two_phases(tiers.moves, frozenset(late), tiers.delay)
