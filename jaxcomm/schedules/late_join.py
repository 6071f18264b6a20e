"""Late join: the late rank joins by a few whole collectives.

This schedule is for networks in which a broadcast takes no longer than sending the bytes once through one port.
"""

from __future__ import annotations

import numpy as np

from jaxcomm.schedules.reduce_scatter import all_but
from jaxcomm.schedules.schedule import Op, Schedule, Table, check_chunks, check_rank, check_ranks, join, rows


def late_join(ranks: int, late: int, chunks: int) -> Schedule:
    """AllReduce in which the others allreduce first, and the late rank's chunks then pass through them in a pipeline.

    The first of the other ranks adds the late rank's chunk to its sum. Each rank passes the result on to the next, and
    the last one sends it to the late rank. This takes `chunks + ranks - 1` rounds of one chunk after the late rank's
    arrival.

    XLA's executor runs this schedule as whole collectives. The others run an all-reduce in their group. Then, for each
    chunk, the late rank broadcasts its part, and a permute sends the others' sum to the late rank.

    Args:
      ranks: number of ranks n, at least 2.
      late: the late rank, in [0, n).
      chunks: pieces k of the buffer, at least 1.

    Returns:
      A schedule whose `precondition` is the others' AllReduce.

    Raises:
      ValueError: a rank out of range, or no chunk.

    Example:
      >>> jaxcomm.schedules.late_join(8, late=3, chunks=4).precondition.ranks
      8
    """
    check_ranks(ranks)
    check_rank("late", late, ranks)
    check_chunks(chunks)
    others, parameters = ranks - 1, (ranks, late, chunks)
    lap = 2 * (others - 1)
    before = Schedule(
        "all_reduce", ranks, chunks, lap, lap * -(-chunks // others), 1, _all_reduce_table, parameters, late=late
    )
    rounds = chunks + others
    return Schedule("late_join", ranks, chunks, rounds, rounds, 1, _table, parameters, before, late)


def _all_reduce_table(ranks: int, late: int, chunks: int) -> Table:
    """Returns transfers that sum chunk c on the (c mod N)-th of the N others; this rank copies the sum to the rest."""
    others = np.array(all_but(late, ranks))
    n = len(others)
    step, chunk = np.ogrid[1:n, :chunks]
    owner, other = others[chunk % n], others[(chunk - step) % n]
    return join([rows(step - 1, other, owner, chunk, Op.REDUCE), rows(n - 2 + step, owner, other, chunk, Op.COPY)])


def _table(ranks: int, late: int, chunks: int) -> Table:
    ring = np.array([late, *all_but(late, ranks), late])
    hop, chunk = np.ogrid[:ranks, :chunks]
    op = np.where(hop == 0, Op.REDUCE, Op.COPY)
    table = rows(chunk + hop, ring[hop], ring[hop + 1], chunk, Op.COPY)
    table[:, 4] = np.broadcast_to(op, (ranks, chunks)).reshape(-1)
    return join([table])
