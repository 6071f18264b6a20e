"""A straggler schedule given transfer by transfer, by whoever knows more of the network than a closed form does."""

from __future__ import annotations

import functools

import numpy as np

from jaxcomm.schedules.reduce_scatter import all_but
from jaxcomm.schedules.schedule import Op, Schedule, Table, check_rank, check_ranks, join, loads, measure, rows


@functools.lru_cache(maxsize=16)  # a plan names one in many of its entries
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
