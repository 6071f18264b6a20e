"""Broadcast: the simplest way to let a late rank join, and the fastest for small buffers."""

from __future__ import annotations

import numpy as np

from jaxcomm.schedules.reduce_scatter import all_but
from jaxcomm.schedules.ring import ring_table
from jaxcomm.schedules.schedule import Op, Schedule, Table, check_rank, check_ranks, join, rows


def broadcast(ranks: int, root: int) -> Schedule:
    """AllReduce in which the late rank exchanges its buffer with one other rank, and both ranks then spread the result.

    Takes `ceil(log2(ranks))` rounds of the whole buffer after the late rank's arrival.

    Args:
      ranks: number of ranks n, at least 2; the buffer is cut into n − 1 chunks for the AllReduce of the other ranks.
      root: the late rank, in [0, n).

    Returns:
      A schedule whose `precondition` is an AllReduce of the other ranks around a ring.

    Raises:
      ValueError: a rank out of range.

    Source: Devraj et al., "Accelerating AllReduce with a Persistent Straggler", section 4, the baseline "Broadcast".

    Example:
      >>> jaxcomm.schedules.broadcast(8, root=3).late
      3
    """
    check_ranks(ranks)
    check_rank("root", root, ranks)
    others = all_but(root, ranks)
    chunks, rounds = ranks - 1, (ranks - 1).bit_length()
    lap = 2 * (ranks - 2)
    before = Schedule("ring", ranks, chunks, lap, lap, 1, ring_table, (tuple(others),), late=root)
    return Schedule("broadcast", ranks, chunks, rounds, rounds * chunks, 1, _table, (ranks, root), before, root)


def _table(ranks: int, root: int) -> Table:
    return spread_table(ranks, root, ranks - 1)


def spread_table(ranks: int, late: int, chunks: int) -> Table:
    """Returns transfers that spread the sum in rounds.

    The late rank exchanges all chunks with one other rank. Then in each round every rank that has the result copies it
    to one rank that lacks it.
    """
    first, *others = all_but(late, ranks)
    order, chunk = np.array([first, late, *others]), np.arange(chunks)
    parts = [rows(0, order[[[0], [1]]], order[[[1], [0]]], chunk, Op.REDUCE)]
    for round_ in range(1, (ranks - 1).bit_length()):
        receivers = order[1 << round_ : 2 << round_, None]
        parts.append(rows(round_, order[: len(receivers), None], receivers, chunk, Op.COPY))
    return join(parts)
