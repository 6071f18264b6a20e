"""Schedules for a late rank given transfer by transfer, by who knows more of the network than a closed form does."""

from __future__ import annotations

import functools

import numpy as np

from jaxcomm.schedules.reduce_scatter import all_but
from jaxcomm.schedules.schedule import Op, Schedule, Table, check_rank, check_ranks, join, loads, measure, rows

COLUMNS = ("round", "sender", "receiver", "chunk", "op")  # of a transfer


@functools.lru_cache(maxsize=16)  # a plan names one in many of its entries
def listed(ranks: int, late: int, chunks: int, before: tuple[int, ...], after: tuple[int, ...]) -> Schedule:
    """AllReduce by transfers that are given, those before a late rank comes and those after.

    Whether they give every rank every sum is for `jaxcomm.plan.verify` to prove.

    Args:
      ranks: number of ranks n, at least 2.
      late: the late rank, in [0, n).
      chunks: pieces k of the buffer, at least 1.
      before: round, sender, receiver, chunk and op (an `Op`) of every transfer, one after the other, without the late
        rank.
      after: the same for those that follow.

    Returns:
      A schedule whose `precondition` are the transfers `before`.

    Raises:
      ValueError: no chunk, a number out of range, the late rank in `before`, or transfers that are not whole.
    """
    check_ranks(ranks)
    check_rank("late", late, ranks)
    if chunks < 1:
        raise ValueError(f"chunks is {chunks}; the buffer needs at least 1")
    for name, numbers in (("before", before), ("after", after)):
        if len(numbers) % len(COLUMNS):
            raise ValueError(f"{name} has {len(numbers)} numbers; every transfer has 5: {', '.join(COLUMNS)}")
        for index, number in enumerate(numbers):
            end = (len(numbers), ranks, ranks, chunks, len(Op))[index % len(COLUMNS)]
            if not 0 <= number < end:
                raise ValueError(f"{name}[{index}] is {number}; it must be in [0, {end - 1}]")
            if name == "before" and index % len(COLUMNS) in (1, 2) and number == late:
                raise ValueError(f"before[{index}] is {number}, the late rank, which does nothing before it arrives")
    first, second = _measured(before), _measured(after)
    precondition = Schedule("reduce_scatter", ranks, chunks, *first, _listed_table, (before,), late=late)
    return Schedule("transfers", ranks, chunks, *second, _listed_table, (after,), precondition, late)


def _measured(numbers: tuple[int, ...]) -> tuple[int, int, int]:
    """Rounds, volume and ports."""
    sends, receives = loads(_listed_table(numbers))
    return *measure(sends, receives), int(max((1, *sends.peers, *receives.peers)))


def _listed_table(numbers: tuple[int, ...]) -> Table:
    table = np.array(numbers, np.int32).reshape(-1, len(COLUMNS))
    return table[np.argsort(table[:, 0], kind="stable")]


@functools.lru_cache(maxsize=16)
def transfers(ranks: int, late: int, owners: tuple[int, ...], moves: tuple[int, ...]) -> Schedule:
    """AllReduce in which a late rank exchanges every chunk with its owner, and given copies spread the sums.

    Whether the moves give every rank every sum is for `jaxcomm.plan.verify` to prove.

    Args:
      ranks: number of ranks n, at least 2.
      late: the late rank, in [0, n).
      owners: for every chunk the rank on which the others reduce it.
      moves: round, sender, receiver and chunk of every transfer, one after the other. The move of a chunk from the late
        rank to the chunk's owner is their exchange, in both directions; all others are copies.

    Returns:
      A schedule whose `precondition` is the others' ReduceScatter to the owners.

    Raises:
      ValueError: no chunk, a late owner, a rank or chunk out of range, or moves that are not whole.
    """
    check_ranks(ranks)
    check_rank("late", late, ranks)
    if not owners:
        raise ValueError("owners is empty; the buffer needs at least 1 chunk")
    for chunk, owner in enumerate(owners):
        check_rank(f"owners[{chunk}]", owner, ranks)
        if owner == late:
            raise ValueError(f"owners[{chunk}] is {owner}, the late rank, which reduces nothing before it arrives")
    if len(moves) % 4:
        raise ValueError(f"moves has {len(moves)} numbers; every transfer has 4: round, sender, receiver, chunk")
    for index, number in enumerate(moves):
        end = (len(moves), ranks, ranks, len(owners))[index % 4]
        if not 0 <= number < end:
            raise ValueError(f"moves[{index}] is {number}; it must be in [0, {end - 1}]")
    parameters = (ranks, late, owners, moves)
    sends, receives = loads(_table(*parameters))
    rounds, volume = measure(sends, receives)
    ports = int(max((1, *sends.peers, *receives.peers)))
    before = _reduce_to(ranks, late, owners)
    return Schedule("transfers", ranks, len(owners), rounds, volume, ports, _table, parameters, before, late)


def _table(ranks: int, late: int, owners: tuple[int, ...], moves: tuple[int, ...]) -> Table:
    round_, src, dst, chunk = np.array(moves, np.int64).reshape(-1, 4).T
    joins = (src == late) & (dst == np.array(owners)[chunk])
    forth = rows(round_, src, dst, chunk, Op.COPY)
    forth[joins, 4] = Op.REDUCE
    return join([forth, rows(round_[joins], dst[joins], src[joins], chunk[joins], Op.REDUCE)])


def _reduce_to(ranks: int, late: int, owners: tuple[int, ...]) -> Schedule:
    """The others' ReduceScatter to any owners: each of them sums its chunks one after the other, N − 1 rounds each."""
    others = all_but(late, ranks)
    parameters = (ranks, late, owners)
    laps = max(owners.count(rank) for rank in others)
    rounds = laps * (len(others) - 1)
    return Schedule("reduce_scatter", ranks, len(owners), rounds, rounds, 1, _reduce_to_table, parameters, late=late)


def _reduce_to_table(ranks: int, late: int, owners: tuple[int, ...]) -> Table:
    others = np.array(all_but(late, ranks))
    index, chunk = np.searchsorted(others, owners), np.arange(len(owners))
    lap = np.array([owners[:c].count(owner) for c, owner in enumerate(owners)])
    step = np.arange(1, len(others))[:, None]
    return join(
        [
            rows(
                lap * (len(others) - 1) + step - 1,
                others[(index - step) % len(others)],
                others[index],
                chunk,
                Op.REDUCE,
            )
        ]
    )
