"""Recursive halving and doubling: logarithmic rounds with the volume of a ring when n is a power of two."""

from __future__ import annotations

import numpy as np

from jaxcomm.schedules.schedule import Op, Schedule, Table, check_ranks, join, rows


def halving_doubling(ranks: int) -> Schedule:
    """AllReduce by recursive halving (ReduceScatter) and recursive doubling (AllGather).

    Takes `2·log2(p)` rounds and the volume of a ring among the p ranks of the greatest power of two `p <= ranks`.
    Each of the other `ranks - p` ranks first folds its whole buffer into one of the p and in the end gets the result
    back from it, which costs two more rounds of the whole buffer.

    Args:
      ranks: number of ranks n, at least 2; the buffer is cut into p chunks.

    Raises:
      ValueError: fewer than two ranks.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", section 4.
    """
    check_ranks(ranks)
    log = ranks.bit_length() - 1
    p = 1 << log
    folds = 2 if ranks > p else 0
    return Schedule("halving_doubling", ranks, p, 2 * log + folds, 2 * (p - 1) + folds * p, 1, _table, (ranks,))


def _table(ranks: int) -> Table:
    log = ranks.bit_length() - 1
    p = 1 << log
    rank, extra, chunks = np.arange(p)[:, None], np.arange(p, ranks)[:, None], np.arange(p)
    fold = 1 if ranks > p else 0
    parts = [rows(0, extra, extra - p, chunks, Op.REDUCE)]
    for bit in range(log):
        distance = 1 << bit
        peer, low = rank ^ distance, np.arange(distance)
        # Of the chunks in question, those that agree with a rank in all bits from `bit` upwards are that rank's half.
        parts.append(rows(fold + log - 1 - bit, rank, peer, (peer & -distance) | low, Op.REDUCE))
        parts.append(rows(fold + log + bit, rank, peer, (rank & -distance) | low, Op.COPY))
    parts.append(rows(fold + 2 * log, extra - p, extra, chunks, Op.COPY))
    return join(parts)
