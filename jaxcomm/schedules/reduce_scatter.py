"""ReduceScatter of the ranks that are not late: what they do while they wait for the straggler."""

from __future__ import annotations

import numpy as np

from jaxcomm.schedules.schedule import Op, Schedule, Table, rows


def reduce_scatter(ranks: int, late: int, chunks: int, num_chunks: int) -> Schedule:
    """Sums chunk c < chunks of the N others on the (c mod N)-th of them, ascending, in N − 1 rounds.

    Args:
      ranks: number of ranks n = N + 1, the late one included.
      late: the rank that takes no part.
      chunks: how many chunks are reduced.
      num_chunks: pieces that the buffer is cut into, at least `chunks`.
    """
    rounds = ranks - 2
    volume = rounds * -(-chunks // (ranks - 1))
    return Schedule("reduce_scatter", ranks, num_chunks, rounds, volume, 1, _table, (ranks, late, chunks), late=late)


def all_but(late: int, ranks: int) -> list[int]:
    """The other ranks, ascending."""
    return [rank for rank in range(ranks) if rank != late]


def _table(ranks: int, late: int, chunks: int) -> Table:
    others = np.array(all_but(late, ranks))
    step, chunk = np.ogrid[1 : len(others), :chunks]
    return rows(step - 1, others[(chunk - step) % len(others)], others[chunk % len(others)], chunk, Op.REDUCE)
