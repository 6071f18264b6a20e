"""Direct join: a late rank joins in the fewest possible rounds, if ranks exchange with all others at once."""

from __future__ import annotations

import numpy as np

from jaxcomm.schedules.reduce_scatter import all_but, reduce_scatter
from jaxcomm.schedules.schedule import Op, Schedule, Table, check_chunks, check_rank, check_ranks, join, rows


def direct_join(ranks: int, late: int, chunks: int) -> Schedule:
    """AllReduce in which one late rank exchanges with all others at once, after the others have reduce-scattered.

    In each round the late rank exchanges a different chunk with every other rank. Every other rank also copies its sum
    of the previous round to the remaining ranks. With `k = m(n-1)` chunks this takes `m + 1` rounds and moves
    `1 + (n-2)/k` buffers after the late rank's arrival. With many chunks the volume is close to the volume of
    `straggler`, and the rounds are far fewer. But the schedule needs `ranks - 1` ports per rank.

    In the program each chunk takes one operation. The rank that has the others' sum of the chunk reads the late rank's
    chunk, adds it to the sum, and stores the result on all ranks.

    Args:
      ranks: number of ranks n, at least 2.
      late: the late rank, in [0, n).
      chunks: pieces k of the buffer, at least 1; a multiple of n − 1 keeps all ranks busy.

    Returns:
      A schedule whose `precondition` is the others' ReduceScatter.

    Raises:
      ValueError: a rank out of range, or no chunk.

    Example:
      >>> jaxcomm.schedules.direct_join(8, late=3, chunks=7).num_rounds  # after the late rank's arrival
      2
    """
    check_ranks(ranks)
    check_rank("late", late, ranks)
    check_chunks(chunks)
    others = ranks - 1
    cycles = -(-chunks // others)
    rounds = cycles + (others > 1)
    volume = (chunks if cycles == 1 else cycles * others) + others - 1
    before = reduce_scatter(ranks, late, chunks, chunks)
    return Schedule("direct_join", ranks, chunks, rounds, volume, others, _table, (ranks, late, chunks), before, late)


def _table(ranks: int, late: int, chunks: int) -> Table:
    others, chunk = np.array(all_but(late, ranks)), np.arange(chunks)
    cycle, owner = np.divmod(chunk, ranks - 1)
    step = np.arange(1, ranks - 1)[:, None]
    return join(
        [
            rows(cycle, late, others[owner], chunk, Op.REDUCE),
            rows(cycle, others[owner], late, chunk, Op.REDUCE),
            rows(cycle + 1, others[owner], others[(owner + step) % (ranks - 1)], chunk, Op.COPY),
        ]
    )
