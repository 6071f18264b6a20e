"""ReduceScatter of the ranks that are not late, while they wait for the late ranks."""

from __future__ import annotations

import numpy as np

from jaxcomm.schedules.schedule import Op, Schedule, Table, rows


def reduce_scatter(ranks: int, late: int, chunks: int, num_chunks: int) -> Schedule:
    """ReduceScatter of the N ranks that are not late, in N − 1 rounds.

    The (c mod N)-th of these ranks, in ascending order, sums chunk c, for all c < chunks.

    Args:
      ranks: number of ranks n = N + 1, the late one included.
      late: the late rank, which neither sends nor receives.
      chunks: the number of chunks that are reduced.
      num_chunks: pieces that the buffer is cut into, at least `chunks`.
    """
    rounds = ranks - 2
    volume = rounds * -(-chunks // (ranks - 1))
    return Schedule("reduce_scatter", ranks, num_chunks, rounds, volume, 1, _table, (ranks, late, chunks), late=late)


def reduce_scatter_to(ranks: int, late: tuple[int, ...], owners: tuple[int, ...], chunks: int) -> Schedule:
    """ReduceScatter of the N ranks that are not late, in which only some of them sum chunks.

    The i-th of these ranks sums chunk c, with i = owners[c mod len(owners)]. In the N − 1 rounds every rank sends to
    each other rank once: its parts of all chunks that the receiver sums.

    Args:
      ranks: number of ranks, the late ones included.
      late: the late ranks, which neither send nor receive.
      owners: indices in [0, N) of the ranks that sum chunks. Index i stands for the i-th lowest rank that is not late.
      chunks: pieces of the buffer.
    """
    rounds = ranks - len(late) - 1
    owner = np.resize(owners, chunks)
    volume = rounds * int(np.bincount(owner).max())
    parameters = (ranks, late, owners, chunks)
    return Schedule(
        "reduce_scatter",
        ranks,
        chunks,
        rounds,
        volume,
        1,
        _table_to,
        parameters,
        late=late[-1],
        other_late_ranks=late[:-1],
    )


def _table_to(ranks: int, late: tuple[int, ...], owners: tuple[int, ...], chunks: int) -> Table:
    others = np.array([rank for rank in range(ranks) if rank not in late])
    owner = np.resize(owners, chunks)
    step, chunk = np.ogrid[1 : len(others), :chunks]
    return rows(step - 1, others[(owner - step) % len(others)], others[owner], chunk, Op.REDUCE)


def all_but(late: int, ranks: int) -> list[int]:
    """The ranks other than `late`, ascending."""
    return [rank for rank in range(ranks) if rank != late]


def _table(ranks: int, late: int, chunks: int) -> Table:
    others = np.array(all_but(late, ranks))
    step, chunk = np.ogrid[1 : len(others), :chunks]
    return rows(step - 1, others[(chunk - step) % len(others)], others[chunk % len(others)], chunk, Op.REDUCE)
