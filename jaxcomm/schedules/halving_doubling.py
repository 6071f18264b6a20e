"""Recursive halving and doubling: few rounds (about 2·log2 n), and the volume of a ring if n is a power of two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxcomm.schedules.schedule import Op, Schedule, Table, check_ranks, join, rows


def halving_doubling(ranks: int, order: Sequence[int] = ()) -> Schedule:
    """AllReduce by recursive halving (ReduceScatter) and recursive doubling (AllGather).

    Let p be the greatest power of two up to `ranks`. The schedule takes `2·log2(p)` rounds and the volume of a ring
    among p ranks. Each of the other `ranks - p` ranks has a partner among the p ranks. Such a rank first sends its
    whole buffer to its partner, which adds the buffer to its own. In the end the rank gets the result back from its
    partner. This costs two more rounds of the whole buffer.

    Args:
      ranks: number of ranks n, at least 2; the buffer is cut into p chunks.
      order: the rank at every place. Two ranks exchange half the buffer if their places differ only in the first of
        log2(p) bits, and a p-th of the buffer if their places differ only in the last bit. Default: ascending ranks.

    Raises:
      ValueError: fewer than two ranks, or an order that is not a permutation of the ranks.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", section 4.

    Example:
      >>> jaxcomm.schedules.halving_doubling(8).num_rounds
      6
    """
    check_ranks(ranks)
    log = ranks.bit_length() - 1
    p = 1 << log
    folds = 2 if ranks > p else 0
    if order and sorted(order) != list(range(ranks)):
        raise ValueError(f"order is {list(order)}; it must name each of {ranks} ranks once")
    parameters = (ranks, tuple(order)) if order else (ranks,)
    return Schedule("halving_doubling", ranks, p, 2 * log + folds, 2 * (p - 1) + folds * p, 1, _table, parameters)


def orders_by_host(hosts: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Returns orders of the ranks for `halving_doubling`, by name.

    The orders differ in the number of bytes that ranks of one host exchange with each other.

    "by_host" lists host after host, so places of different hosts differ in the first bits. "dealt_out" takes one rank
    of each host in turn, so places of different hosts differ in the last bits. "by_host_reversed" and
    "dealt_out_reversed" are these orders with the bits of the first p places reversed.

    Args:
      hosts: the host of every rank.

    Example:
      >>> orders = jaxcomm.schedules.orders_by_host([0, 1, 0, 1])
      >>> orders["by_host"], orders["dealt_out"]
      ((0, 2, 1, 3), (0, 1, 2, 3))
    """
    ranks = range(len(hosts))
    by_host = sorted(ranks, key=lambda rank: (hosts[rank], rank))
    dealt = sorted(ranks, key=lambda rank: (hosts[:rank].count(hosts[rank]), hosts[rank]))
    log = len(hosts).bit_length() - 1
    places = [int(f"{place:0{log}b}"[::-1], 2) if log else 0 for place in range(1 << log)]
    found = {}
    for name, order in (("by_host", by_host), ("dealt_out", dealt)):
        found[name] = tuple(order)
        found[f"{name}_reversed"] = (*(order[place] for place in places), *order[1 << log :])
    return found


def _table(ranks: int, order: tuple[int, ...] = ()) -> Table:
    log = ranks.bit_length() - 1
    p = 1 << log
    rank, extra, chunks = np.arange(p)[:, None], np.arange(p, ranks)[:, None], np.arange(p)
    fold = 1 if ranks > p else 0
    parts = [rows(0, extra, extra - p, chunks, Op.REDUCE)]
    for bit in range(log):
        distance = 1 << bit
        peer, low = rank ^ distance, np.arange(distance)
        # A rank keeps the chunks whose numbers agree with the rank's number in all bits from `bit` upwards.
        parts.append(rows(fold + log - 1 - bit, rank, peer, (peer & -distance) | low, Op.REDUCE))
        parts.append(rows(fold + log + bit, rank, peer, (rank & -distance) | low, Op.COPY))
    parts.append(rows(fold + 2 * log, extra - p, extra, chunks, Op.COPY))
    table = join(parts)
    if order:
        table[:, 1:3] = np.array(order)[table[:, 1:3]]
    return table
