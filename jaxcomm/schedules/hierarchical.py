"""Hierarchical all-reduce: sums within hosts and across them, at once for different chunks; ranks may be late."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from jaxcomm.schedules.list_scheduling import in_two_phases
from jaxcomm.schedules.schedule import Schedule, Table, check_chunks, check_rank, check_ranks, loads, measure
from jaxcomm.schedules.tiers import Tiers

_Parameters = tuple[
    tuple[int, ...], str, float, int, tuple[int, ...], int, int, tuple[int, ...], tuple[float, ...], tuple[float, ...]
]


def hierarchical(
    hosts: Sequence[int],
    nic: Literal["rank", "host"],
    slow: float,
    chunks: int,
    late: Sequence[int] = (),
    within: int = 0,
    across: int = 0,
    racks: Sequence[int] = (),
    nics: Sequence[float] = (),
    uplinks: Sequence[float] = (),
) -> Schedule:
    """AllReduce in tiers, each with as little as possible through its own links, all of them busy at once.

    A chunk is summed on one rank of every host, these sums on one host of every rack, those on one rack, and the total
    goes back the same way. The rank that sums changes from chunk to chunk. So s bytes pass
    `2(h-1)/h` times between h hosts, whatever the number of their ranks, and with many chunks the time tends to the
    greatest of the tiers' times.

    Of the first chunks the others' part is summed before the late ranks come: `within` those of their mates, `across`
    those of the other hosts. Both sums stay where they are until the late rank's part joins them, on different ranks.
    A rank that is late by d buffers' time leaves `max{F(m; 1, d), F(h; u, d)}` of it, where m ranks of a host send
    through their NICs what one of them sends in 1/u of the time, and `F(n; u, d) = max{u, (n-1)/n · (2u-d)}`.

    The owner of a chunk, which sums it, carries more of it than the others. So where NICs or uplinks have unlike rates,
    slower ones own fewer chunks (`jaxcomm.schedules.owners`): of hosts whose links take r₁, r₂, … times as long, with
    many chunks the time tends to `max(max rᵢ, 2(h-1)/Σ 1/rᵢ)` times the buffer's through a fast link, which no schedule
    can beat. One of four hosts at half the rate costs a third of the time more, instead of twice the time.

    Args:
      hosts: the host of every rank, numbered as they appear.
      nic: whose a NIC is, the rank's or all the host's.
      slow: the factor by which a chunk takes longer between hosts; moves are ordered by it.
      chunks: pieces k of the buffer, at least 1.
      late: the late ranks, none to n − 1 of them.
      within: chunks of which the late ranks' mates sum theirs before, in [0, chunks].
      across: chunks of which the other hosts sum theirs before, in [0, chunks].
      racks: the rack of every host; () means that all are in one.
      nics: by rank, how many times as long a byte takes through the NIC that it uses; () means that all are alike.
      uplinks: by rack, how many times as long a byte takes through its uplink; () means that all are alike.

    Returns:
      A schedule whose `precondition` is what the others do before, if `late` names anybody.

    Raises:
      ValueError: a rank out of range or named twice, everybody late, or a number of chunks that does not fit.
    """
    ranks = len(hosts)
    check_ranks(ranks)
    for index, rank in enumerate(late):
        check_rank(f"late[{index}]", rank, ranks)
    if len({*late}) < len(late) or len(late) >= ranks:
        raise ValueError(f"late is {list(late)} of {ranks} ranks; each may stand there once, and one must not be late")
    check_chunks(chunks)
    for name, count in (("within", within), ("across", across)):
        if not 0 <= count <= (chunks if late else 0):
            raise ValueError(f"{name} is {count}; it must be in [0, {chunks if late else 0}]")
    if len(racks) not in (0, max(hosts) + 1):
        raise ValueError(f"racks has {len(racks)} entries; there are {max(hosts) + 1} hosts")
    for name, given, count in (("nics", nics, ranks), ("uplinks", uplinks, max(racks, default=-1) + 1)):
        if len(given) not in (0, count) or not all(each > 0 for each in given):
            raise ValueError(f"{name} is {list(given)}; it must be {count} positive numbers, or none")
    unlike = () if len({*nics}) < 2 else tuple(map(float, nics)), tuple(map(float, uplinks))
    return _made((tuple(hosts), nic, float(slow), chunks, tuple(sorted(late)), within, across, tuple(racks), *unlike))


@lru_cache(maxsize=128)  # as many as a plan compares, each timed for many sizes
def _made(known: _Parameters) -> Schedule:
    hosts, _, _, chunks, late, *_ = known
    ranks, before = len(hosts), None
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
def _tables(
    hosts: tuple[int, ...],
    nic: str,
    slow: float,
    chunks: int,
    late: tuple[int, ...],
    within: int,
    across: int,
    racks: tuple[int, ...],
    nics: tuple[float, ...],
    uplinks: tuple[float, ...],
) -> tuple[Table, Table]:
    """The transfers before and after the late ranks' arrival."""
    tiers = Tiers(hosts, nic, slow, chunks, frozenset(late), within, across, racks, nics, uplinks)
    for chunk in range(chunks):
        tiers.sum(chunk)
    return in_two_phases(tiers.moves, frozenset(late), tiers.delay)
